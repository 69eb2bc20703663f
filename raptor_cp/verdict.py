"""What is known about a question: never a bare bool (DESIGN section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Answer to "is there one?" and "is it the best?"."""

    FEASIBLE = "FEASIBLE"  #: a validated solution is in hand
    OPTIMAL = "OPTIMAL"  #: in hand, and nothing better exists (confirmed twice)
    INFEASIBLE = "INFEASIBLE"  #: proved that none exists (confirmed twice)
    UNKNOWN = "UNKNOWN"  #: the budget was spent without an answer

    @property
    def has_solution(self) -> bool:
        """True when a solution comes with the verdict."""
        return self in (Verdict.FEASIBLE, Verdict.OPTIMAL)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A figure that cannot be given, and why: never a zero."""

    reason: str
