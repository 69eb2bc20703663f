"""Choosing among evaluated candidates (spec: Default throughput selection).

The candidate with the lowest larger estimate wins only when its interval band is
separated from that of the initialized schedule; otherwise the initialized one
stays.  The 2.1 % margin is a policy of the scheduler, not of a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.target import RealizedCost

#: Near-equivalence margin: intervals are compared as [min/1.021, max/0.979].
MARGIN = Fraction(21, 1000)


@dataclass(frozen=True, slots=True)
class Band:
    """``[min(ties) / 1.021, max(ties) / 0.979]`` in exact ns."""

    low: Fraction
    high: Fraction

    @classmethod
    def of(cls, cost: RealizedCost) -> Band:
        """Band of an eligible cost.

        Raises:
            ValueError: the cost has no interval.
        """
        first, second = cost.interval_ns, cost.alternative_ns
        if not isinstance(first, int) or not isinstance(second, int):
            raise ValueError("an unavailable interval has no band")
        return cls(
            min(first, second) / (1 + MARGIN),
            Fraction(max(first, second)) / (1 - MARGIN),
        )

    def below(self, other: Band) -> bool:
        """True when this band lies entirely below the other."""
        return self.high < other.low


@dataclass(frozen=True, slots=True)
class Selection:
    """Which candidate to build.

    Attributes:
        chosen: index into the candidates; None when the comparison stopped or the
            backend rejected all.
        best: index of the lowest larger estimate; None in the same cases.
        reason: one of ``single``, ``separated``, ``near-equivalent``, ``initialized``,
            ``accepted-initial``, ``stopped``, ``interrupted``, ``exhausted``.
        stops: (candidate, property, explanation) of each affected candidate.
    """

    chosen: int | None
    best: int | None
    reason: str
    stops: tuple[tuple[int, str, str], ...] = ()


def select(
    costs: Sequence[RealizedCost | None],
    *,
    reference: int = 0,
    remaining: Sequence[int] | None = None,
    accept_initial: bool = False,
    stopped: bool = False,
) -> Selection:
    """Select among candidates by index; ``reference`` is the initialized schedule.

    Args:
        costs: evidence per candidate; None when it was not asked for (a single
            candidate is not gated).
        reference: index whose band must be left to prefer another.
        remaining: indices still to be considered (recovery); the first one becomes
            the reference when ``reference`` is not among them.
        accept_initial: keep the reference when the comparison must stop.
        stopped: the search ended at an ineligible cost, so that even a single
            candidate is not the only one there is.
    """
    pool = list(range(len(costs)) if remaining is None else remaining)
    if not pool:
        raise ValueError("no candidate to select from")
    base = reference if reference in pool else pool[0]
    if len(pool) == 1 and not stopped:
        return Selection(base, base, "single")
    stops = tuple(
        (index, prop, why) for index in pool for prop, why in obstacles(costs[index])
    )
    if stops:
        if accept_initial:
            return Selection(base, None, "accepted-initial", stops)
        return Selection(None, None, "stopped", stops)
    larger = {i: cost.larger_ns for i in pool if (cost := costs[i]) is not None}
    best = min(pool, key=lambda i: (larger[i], i != base, i))
    if best == base:
        return Selection(base, base, "initialized")
    cost, base_cost = costs[best], costs[base]
    if cost is None or base_cost is None:  # obstacles() has refused these
        raise ValueError("a candidate without cost cannot be compared")
    if Band.of(cost).below(Band.of(base_cost)):
        return Selection(best, best, "separated")
    return Selection(base, best, "near-equivalent")


def select_interrupted(
    costs: Sequence[RealizedCost | None], remaining: Sequence[int]
) -> Selection:
    """Best so far: the least larger estimate among candidates with evidence.

    Without any evidence the first one remaining, which is the initialized schedule
    unless the backend has rejected it.  The margin does not apply: it decides
    whether a finished search has found something better, and this one is not
    finished.

    Args:
        costs: evidence per candidate.
        remaining: indices to consider, at least one.
    """
    known = {
        i: cost.larger_ns or 0
        for i in remaining
        if (cost := costs[i]) is not None and not obstacles(cost)
    }
    best = min(known, key=lambda i: (known[i], i), default=remaining[0])
    return Selection(best, best, "interrupted")


def obstacles(cost: RealizedCost | None) -> list[tuple[str, str]]:
    """(property, explanation) of everything that bars a candidate from comparison."""
    if cost is None:
        return [("timing", "no cost was computed")]
    found = []
    for label, value in (
        ("timing", cost.interval_ns),
        ("timing (reversed ties)", cost.alternative_ns),
    ):
        if not isinstance(value, int):
            found.append((label, value.reason))
    if not cost.static_support:
        found.append(("static support", "a form that the backend cannot lower"))
    if not cost.recurrence_proved:
        found.append(("recurrence", "complete-state recurrence is not proved"))
    found.extend(("failure", reason) for reason in cost.failures)
    return found
