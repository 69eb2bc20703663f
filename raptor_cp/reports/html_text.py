"""Numbers as the HTML report shows them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Number = int | float | Fraction

_UNITS = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """One unit for a whole column, so that its numbers line up.

    >>> unit = TimeUnit.fitting([1_500_000, 12_000])
    >>> unit.name, unit.text(12_000)
    ('ms', '0.012')
    """

    name: str
    ns: int

    @classmethod
    def fitting(cls, values: Iterable[Number | None]) -> TimeUnit:
        """The unit in which the largest value has one to three digits before the point.

        Seconds begin at ten, so that milliseconds of a network stay milliseconds.
        """
        largest = max((abs(float(v)) for v in values if v is not None), default=0.0)
        for name, scale in _UNITS:
            if largest >= scale * (10 if name == "s" else 1):
                return cls(name, scale)
        return cls("ns", 1)

    def text(self, value: Number | None) -> str:
        """The value with three places, whole in ns; a dash for nothing."""
        if value is None:
            return "–"
        if self.ns == 1 and Fraction(value).denominator == 1:
            return f"{int(value):,}"
        return f"{float(Fraction(value) / self.ns):,.3f}"


def duration(value: Number | None) -> str:
    """A time in its own unit.

    >>> duration(11_354_992), duration(950), duration(None)
    ('11.355 ms', '950 ns', '–')
    """
    if value is None:
        return "–"
    unit = TimeUnit.fitting([value])
    return f"{unit.text(value)} {unit.name}"


def exact_ns(value: Number | None) -> str:
    """All digits.

    >>> exact_ns(11_354_992), exact_ns(2.5)
    ('11,354,992 ns', '2.5 ns')
    """
    if value is None:
        return "–"
    exact = Fraction(value)
    if exact.denominator == 1:
        return f"{int(exact):,} ns"
    return f"{float(exact):,} ns"


def percent(share: float | None, places: int = 1) -> str:
    """A share as a percentage.

    >>> percent(0.9312), percent(None)
    ('93.1 %', '–')
    """
    return "–" if share is None else f"{100 * share:.{places}f} %"


def several(count: int, one: str, more: str = "") -> str:
    """A count and its noun.

    >>> several(1, "core"), several(2, "core"), several(0, "entry", "entries")
    ('1 core', '2 cores', '0 entries')
    """
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def numbers(values: Iterable[int], most: int = 12) -> str:
    """A list of numbers with runs written short.

    >>> numbers([1, 2, 3, 7])
    '1–3, 7'
    """
    ordered = sorted(set(values))
    runs: list[list[int]] = []
    for value in ordered:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    if len(texts) > most:
        texts = [*texts[:most], "…"]
    return ", ".join(texts)


def coordinate(value: float) -> str:
    """A place in a drawing with one digit, without a trailing zero.

    >>> coordinate(12.04), coordinate(3)
    ('12', '3')
    """
    return f"{value:.1f}".removesuffix(".0")
