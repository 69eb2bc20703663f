"""Beam refinement under counted budgets (spec: Default throughput selection).

The search knows candidates only through a :class:`SearchModel`: how a vector is
priced cheaply (proxy), placed (one packing) and costed (one queue evaluation).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raptor_cp.interruption import Stop
from raptor_cp.pipeline.neighbourhood import Move, StageVector, moves
from raptor_cp.pipeline.search_budget import PLACEMENTS_PER_ROUND, SearchBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.pipeline.neighbourhood import StageLimits
    from raptor_cp.schedules import Schedule
    from raptor_cp.target import RealizedCost


#: Termination of a search that was asked to end early.
INTERRUPTED = "interrupted"
#: How the termination of a search begins that met an ineligible cost.
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An evaluated schedule.

    Attributes:
        index: evaluation index; 0 is the initialized schedule.
        vector: stages and budgets.
        schedule: placed and validated.
        cost: realized cost; None for a single, ungated candidate.
        origin: ``initial``, ``seed`` or the kind of move.
        parent: evaluation index of the parent, None for roots.
        proxy_ns: the proxy's estimate, None for roots.
    """

    index: int
    vector: StageVector
    schedule: Schedule
    cost: RealizedCost | None
    origin: str
    parent: int | None = None
    proxy_ns: int | None = None

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order in the beam: larger estimate, then evaluation index."""
        larger = None if self.cost is None else self.cost.larger_ns
        return (larger is None, larger or 0, self.index)


@dataclass(frozen=True, slots=True)
class Scored:
    """A proposed neighbour with its proxy; sorts best first."""

    proxy_ns: int
    guidance: tuple[int, ...]
    vector: StageVector
    kind: str = field(compare=False)


class SearchModel(Protocol):
    """What the beam needs to know about candidates."""

    def propose(self, parent: Candidate, move: Move) -> Scored | None:
        """Share out the cores of a move and price it; None when it cannot fit."""
        ...

    def place(self, vector: StageVector) -> Schedule | None:
        """Constructive allocation and physical packing; None when it fails."""
        ...

    def cost(self, schedule: Schedule) -> RealizedCost:
        """One complete cost evaluation."""
        ...


class Observer:
    """Hooks into the search; the base class ignores everything."""

    def packed(self, budget: SearchBudget) -> None:
        """A placement was attempted."""

    def evaluated(self, candidate: Candidate, budget: SearchBudget) -> None:
        """A candidate was costed."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All evaluated candidates and why the search stopped.

    ``termination``: ``single-candidate``, ``neighbourhood exhausted``,
    ``queue evaluations``, ``packings``, ``stopped: ...`` (a cost is ineligible) or
    ``interrupted`` (from outside).
    """

    candidates: tuple[Candidate, ...]
    termination: str
    budget: SearchBudget

    def __repr__(self) -> str:
        return (
            f"<SearchResult: {len(self.candidates)} candidates, "
            f"ended by {self.termination}>"
        )


def refine(
    initial: tuple[StageVector, Schedule],
    seeds: Sequence[tuple[StageVector, Schedule]],
    model: SearchModel,
    budget: SearchBudget,
    *,
    groups: int,
    depth: int,
    limits: StageLimits,
    observer: Observer | None = None,
    stop: Stop | None = None,
) -> SearchResult:
    """Refine the initialized schedule with a beam.

    Args:
        initial: the initialized schedule: evaluation 0 and the selection reference.
        seeds: further roots; each takes one queue evaluation (its packing is
            counted by whoever placed it).
        model: proposes, places and costs.
        budget: counted budgets; never exceeded.
        groups: number of groups G.
        depth: configured number of stages, a maximum.
        limits: side constraints.
        observer: progress hooks.
        stop: polled between candidates; the initialized schedule is always costed.

    A comparison of several candidates needs eligible costs: the search stops at
    the first ineligible one and says so; nothing is silently discarded.
    """
    watch = observer or Observer()
    search = _Search(model, budget, groups, depth, limits, watch, stop or Stop())
    roots = [initial]
    keys = {initial[1].placement.key()}
    for seed in seeds:
        key = seed[1].placement.key()
        if key not in keys:
            keys.add(key)
            roots.append(seed)
    only = Candidate(0, *initial, None, "initial")
    if len(roots) == 1 and not search.has_neighbour(only):
        return SearchResult((only,), "single-candidate", budget)
    for number, (vector, schedule) in enumerate(roots):
        if budget.queue_evaluations.left == 0 or (number and search.stop.requested):
            break
        search.admit(vector, schedule, "initial" if number == 0 else "seed")
    search.placements |= keys
    return search.run()


class _Search:
    def __init__(
        self,
        model: SearchModel,
        budget: SearchBudget,
        groups: int,
        depth: int,
        limits: StageLimits,
        observer: Observer,
        stop: Stop,
    ) -> None:
        self.model, self.budget, self.observer = model, budget, observer
        self.stop = stop
        self.groups, self.depth, self.limits = groups, depth, limits
        self.evaluated: list[Candidate] = []
        self.visited: set[StageVector] = set()
        self.placements: set[object] = set()
        self._neighbours: dict[int, list[Scored]] = {}

    def has_neighbour(self, parent: Candidate) -> bool:
        """Does any legal move lead to another schedule that could fit?"""
        return any(
            scored is not None and scored.vector != parent.vector
            for move in moves(parent.vector, self.groups, self.depth, self.limits)
            for scored in [self.model.propose(parent, move)]
        )

    def admit(
        self,
        vector: StageVector,
        schedule: Schedule,
        origin: str,
        parent: int | None = None,
        proxy_ns: int | None = None,
    ) -> None:
        self.budget.queue_evaluations.take()
        self.visited.add(vector)
        cost = self.model.cost(schedule)
        candidate = Candidate(
            len(self.evaluated), vector, schedule, cost, origin, parent, proxy_ns
        )
        self.evaluated.append(candidate)
        self.observer.evaluated(candidate, self.budget)

    def run(self) -> SearchResult:
        while True:
            if self.stop.requested:
                return self._result(INTERRUPTED)
            bad = [
                c.index
                for c in self.evaluated
                if c.cost is not None and not c.cost.eligible
            ]
            if bad:
                return self._result(f"{STOPPED}: candidate {bad[0]} is not eligible")
            if self.budget.spent:
                return self._result(self.budget.spent)
            beam = sorted(self.evaluated, key=lambda c: c.rank)[: self.budget.beam]
            self.budget.rounds += 1
            admitted, attempted = self._round(beam)
            self.budget.largest_round = max(self.budget.largest_round, admitted)
            if not attempted and not self.stop.requested:
                return self._result("neighbourhood exhausted")

    def _round(self, beam: list[Candidate]) -> tuple[int, bool]:
        """One opportunity per parent; two for a single parent in the first round."""
        first = self.budget.rounds == 1 and len(beam) == 1
        opportunities = [*beam, *beam] if first and self.budget.beam > 1 else beam
        limit = 2 * self.budget.queue_evaluations.limit
        shares = {
            parent.index: self._shortlist(parent, limit // len(beam)) for parent in beam
        }
        self.budget.largest_shortlist = max(
            self.budget.largest_shortlist, sum(map(len, shares.values()))
        )
        admitted, attempted = 0, False
        for parent in opportunities:
            if admitted == PLACEMENTS_PER_ROUND or self.budget.spent:
                break
            # Duplicates and failures use up packings, not the evaluation.
            for scored in shares[parent.index]:
                if scored.vector in self.visited:
                    continue
                if self.budget.packings.left == 0 or self.stop.requested:
                    break
                attempted = True
                if self._try(parent, scored):
                    admitted += 1
                    break
        return admitted, attempted

    def _try(self, parent: Candidate, scored: Scored) -> bool:
        self.visited.add(scored.vector)
        self.budget.packings.take()
        schedule = self.model.place(scored.vector)
        self.observer.packed(self.budget)
        if schedule is None:
            return False
        key = schedule.placement.key()
        if key in self.placements:
            return False
        self.placements.add(key)
        self.admit(scored.vector, schedule, scored.kind, parent.index, scored.proxy_ns)
        return True

    def _shortlist(self, parent: Candidate, size: int) -> list[Scored]:
        """Best unvisited neighbours; scores are kept, they do not change."""
        known = self._neighbours.get(parent.index)
        if known is None:
            best: dict[StageVector, Scored] = {}
            for move in moves(parent.vector, self.groups, self.depth, self.limits):
                if self.stop.requested:
                    return []
                scored = self.model.propose(parent, move)
                if scored is not None and scored.vector != parent.vector:
                    held = best.get(scored.vector)
                    best[scored.vector] = (
                        scored if held is None else min(held, scored, key=_order)
                    )
            known = sorted(best.values(), key=_order)
            self._neighbours[parent.index] = known
        return [s for s in known if s.vector not in self.visited][:size]

    def _result(self, termination: str) -> SearchResult:
        return SearchResult(tuple(self.evaluated), termination, self.budget)


def _order(scored: Scored) -> tuple[int, tuple[int, ...], StageVector]:
    return scored.proxy_ns, scored.guidance, scored.vector
