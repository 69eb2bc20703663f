"""How far a recorded figure may move before it counts as a difference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(%?)")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A share of the recorded figure, or a number in the figure's own unit.

    Attributes:
        amount: share (``1 %`` is 1/100) or absolute amount; at least 0.
        relative: which of the two.
    """

    amount: Fraction
    relative: bool

    @classmethod
    def parse(cls, text: object, where: str) -> Tolerance:
        """Read ``"1%"``, ``"0.5 %"``, ``"100"`` or ``100``.

        >>> Tolerance.parse("1%", "interval_ns").allows(1000, 1010)
        True
        >>> Tolerance.parse(5, "mvmul").allows(100, 106)
        False

        Raises:
            MalformedInput: anything else.
        """
        found = None
        if isinstance(text, str | int) and not isinstance(text, bool):
            found = _TEXT.fullmatch(str(text).strip())
        if found is None:
            raise MalformedInput(
                "not a tolerance",
                where=where,
                value=text,
                expected="a number at least 0, or a percentage such as 1%",
            )
        amount, percent = Fraction(found[1]), bool(found[2])
        return cls(amount / 100 if percent else amount, percent)

    def allows(self, recorded: int | float, found: int | float) -> bool:
        """Whether ``found`` is near enough; decided exactly."""
        old, new = Fraction(recorded), Fraction(found)
        most = abs(old) * self.amount if self.relative else self.amount
        return abs(new - old) <= most

    def __str__(self) -> str:
        """As it is written: ``1%`` or ``100``.

        >>> str(Tolerance.parse("0.5 %", "gap")), str(Tolerance.parse("20", "mvmul"))
        ('0.5%', '20')
        """
        value = self.amount * 100 if self.relative else self.amount
        return f"{float(value):.15g}{'%' if self.relative else ''}"


def parse_tolerances(texts: Iterable[str]) -> dict[str, Tolerance]:
    """``["interval_ns=1%"]`` as a mapping; the last one of a figure counts.

    Raises:
        MalformedInput: not ``FIGURE=TOLERANCE``.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise MalformedInput(
                "not FIGURE=TOLERANCE",
                where="--tolerance",
                value=text,
                expected="such as interval_ns=1%",
            )
        found[name.strip()] = Tolerance.parse(value, f"--tolerance {name.strip()}")
    return found
