"""An answer that a bounded analysis could not give, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


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
