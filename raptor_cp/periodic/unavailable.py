"""An answer that a bounded analysis could not give, with the reason."""

from __future__ import annotations

from fractions import Fraction

from raptor_cp.verdict import Unavailable as Unavailable


def ns_for_json(value: Fraction | int | Unavailable) -> object:
    """A time for JSON: int where whole, else float, or ``{"unavailable": reason}``.

    >>> ns_for_json(Fraction(7, 2)), ns_for_json(Fraction(4))
    (3.5, 4)
    """
    if isinstance(value, Unavailable):
        return value.to_dict()
    exact = Fraction(value)
    return int(exact) if exact.denominator == 1 else float(exact)
