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
    """An answer that cannot be given, and why: never a zero, never a silent skip.

    Attributes:
        reason: one sentence without a final full stop, for reports.
    """

    reason: str

    def __str__(self) -> str:
        return f"unavailable: {self.reason}"

    def to_dict(self) -> dict[str, str]:
        """The form used in JSON reports."""
        return {"unavailable": self.reason}
