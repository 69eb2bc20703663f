"""Integer time: int64 nanoseconds everywhere, converted from cycles once.

Sizes are bytes, capacities are weight slots; neither is ever a float.
"""

from __future__ import annotations

from fractions import Fraction

from raptor_cp.errors import MalformedInput

#: Largest time or count that may enter a schedule.  Sums of up to 2**20 such
#: terms still fit in int64, so kernels need no overflow checks of their own.
MAX_NS = 2**42
INT64_MAX = 2**63 - 1


def ceil_div(dividend: int, divisor: int) -> int:
    """``ceil(dividend / divisor)`` for non-negative ints, without floats.

    >>> ceil_div(147, 128), ceil_div(0, 5)
    (2, 0)
    """
    return -(-dividend // divisor)


def checked_ns(value: int, what: str, *, where: str = "", minimum: int = 0) -> int:
    """Return ``value`` (ns) if it lies in ``[minimum, MAX_NS]``.

    Raises:
        MalformedInput: outside that range or not an int.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedInput(
            f"{what} is not an integer", where=where, value=value, expected="integer ns"
        )
    if not minimum <= value <= MAX_NS:
        raise MalformedInput(
            f"{what} is out of range",
            where=where,
            value=value,
            expected=f"{minimum} to {MAX_NS} ns",
        )
    return value


def cycles_to_ns(cycles: int, period_ns: Fraction | int) -> int:
    """Convert ``cycles`` of a clock of ``period_ns`` to whole ns, rounding up.

    >>> cycles_to_ns(3, Fraction(1, 2))
    2
    """
    exact = Fraction(cycles) * Fraction(period_ns)
    return ceil_div(exact.numerator, exact.denominator)
