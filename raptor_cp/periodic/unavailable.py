"""An answer that a bounded analysis could not give, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Timing that is not known: never a zero and never a silent skip.

    Attributes:
        reason: one sentence without a final full stop, for reports.
    """

    reason: str

    def __str__(self) -> str:
        return f"unavailable: {self.reason}"

    def to_dict(self) -> dict[str, str]:
        """The form used in JSON reports."""
        return {"unavailable": self.reason}


def ns_for_json(value: Fraction | int | Unavailable) -> object:
    """A time for JSON: int where whole, else float, or ``{"unavailable": reason}``.

    >>> ns_for_json(Fraction(7, 2)), ns_for_json(Fraction(4))
    (3.5, 4)
    """
    if isinstance(value, Unavailable):
        return value.to_dict()
    exact = Fraction(value)
    return int(exact) if exact.denominator == 1 else float(exact)
