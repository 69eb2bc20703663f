"""Stages as contiguous runs of groups, with rules that couple segments.

Decision form at a threshold C: one Boolean for each arc (segment, least cores that
bring its cost to C), a path through the cut points, at most P cores, at most S arcs;
C is bisected over the distinct costs.  The exact DP answers everything that does not
couple segments, filters arcs, and is the independent witness for most bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.models.solving import (
    MAX_COEFFICIENT,
    SolveBudget,
    SolveOutcome,
    SolverClaim,
    SolveRecord,
    SolveSettings,
    confirm,
    fits,
    scale_divisor,
    solve,
)
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.models.instances import IntArray, PartitionInstance

#: (first group, group after the last, cores)
Segment = tuple[int, int, int]


def fewest_cores(need: IntArray, depth: int) -> IntArray:
    """[S+1, G+1] least total cores to cover groups [0, j) with exactly s segments.

    Args:
        need: [G, G+1] cores of segment [i, j); large where it is not allowed.
        depth: largest number of segments.
    """
    groups = need.shape[0]
    depth = min(depth, groups)
    table = np.full((depth + 1, groups + 1), _FAR, dtype=np.int64)
    table[0, 0] = 0
    for count in range(1, depth + 1):
        reach = table[count - 1, :groups, None] + need
        table[count] = np.minimum(reach.min(axis=0), _FAR)
    return table


def fewest_cores_path(
    need: IntArray, depth: int, least: int = 1
) -> tuple[int, list[Segment]]:
    """Least total cores with ``least`` to ``depth`` segments, and those segments.

    Ties: fewest segments, then the earliest cuts from the back.  The total is large
    (and the list empty) when there is no cover.
    """
    table = fewest_cores(need, depth)
    groups = need.shape[0]
    if least >= table.shape[0]:
        return int(_FAR), []
    count = least + int(table[least:, groups].argmin())
    total = int(table[count, groups])
    if total >= _FAR:
        return int(_FAR), []
    segments: list[Segment] = []
    stop = groups
    while count:
        reach = table[count - 1, :groups] + need[:, stop]
        start = int(reach.argmin())
        segments.append((start, stop, int(need[start, stop])))
        stop, count = start, count - 1
    return total, segments[::-1]


_FAR = np.int64(2**40)


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Answer of :func:`solve_partition`.

    Attributes:
        verdict: OPTIMAL and INFEASIBLE are confirmed.
        stages: (first group, group after the last, cores), in order.
        cost_ns: largest segment cost; None without a solution.
        bound_ns: no legal partition costs less; None when unknown.
        relaxed_ns: optimum without the coupling rules (DP); None when infeasible.
        records: the solves.
        note: why the verdict is not a proof, when it is not.
    """

    verdict: Verdict
    stages: tuple[Segment, ...] = ()
    cost_ns: int | None = None
    bound_ns: int | None = None
    relaxed_ns: int | None = None
    records: tuple[SolveRecord, ...] = ()
    note: str = ""


class StagePartitionModel:
    """The decision "is there a legal partition of cost at most C?"."""

    def __init__(self, instance: PartitionInstance, limit_ns: int) -> None:
        self.instance = instance
        self.arcs = _useful_arcs(instance, limit_ns)
        self.model = cp_model.CpModel()
        self.exact = True  #: False when bytes had to be rounded up
        self.take: list[cp_model.IntVar] = []

    def build(self) -> None:
        """All variables and rules."""
        self.take = [self.model.new_bool_var("") for _ in self.arcs]
        self.path_through_all_groups()
        self.cores_of_the_chip()
        self.number_of_stages()
        self.total_traffic()
        self.hops_of_skip_edges()

    def path_through_all_groups(self) -> None:
        """What ends at a cut point starts there; exactly one arc leaves group 0."""
        leaving: list[list[cp_model.IntVar]] = [[] for _ in range(self._points)]
        arriving: list[list[cp_model.IntVar]] = [[] for _ in range(self._points)]
        for (start, stop, _), taken in zip(self.arcs, self.take, strict=True):
            leaving[start].append(taken)
            arriving[stop].append(taken)
        self.model.add_exactly_one(leaving[0])
        self.model.add_exactly_one(arriving[-1])
        for point in range(1, self._points - 1):
            if leaving[point] or arriving[point]:
                self.model.add(sum(leaving[point]) == sum(arriving[point]))

    def cores_of_the_chip(self) -> None:
        """Segments own disjoint cores."""
        self.model.add(
            self._sum([cores for _, _, cores in self.arcs]) <= self.instance.cores
        )

    def number_of_stages(self) -> None:
        """At least the least, at most the depth."""
        count = self._sum([1] * len(self.arcs))
        self.model.add(count <= self.instance.depth)
        if self.instance.rules.min_stages > 1:
            self.model.add(count >= self.instance.rules.min_stages)

    def total_traffic(self) -> None:
        """Bytes across all cuts made, rounded up when they leave the safe range."""
        limit = self.instance.rules.total_cut_bytes
        if limit is None:
            return
        sizes = [self._bytes_after(stop) for _, stop, _ in self.arcs]
        divisor = scale_divisor(max([limit, *sizes]), limit=MAX_COEFFICIENT)
        self.exact = divisor == 1
        self.model.add(self._sum([-(-s // divisor) for s in sizes]) <= limit // divisor)

    def hops_of_skip_edges(self) -> None:
        """Few cuts lie between two groups that exchange data."""
        for one, other, hops in self.instance.rules.hop_limits:
            first, last = min(one, other), max(one, other)
            inside = [int(first < stop <= last) for _, stop, _ in self.arcs]
            if any(inside):
                self.model.add(self._sum(inside) <= hops)

    @property
    def _points(self) -> int:
        return self.instance.groups + 1

    def _bytes_after(self, stop: int) -> int:
        return 0 if stop == self.instance.groups else int(self.instance.cut_bytes[stop])

    def _sum(self, factors: list[int]) -> cp_model.LinearExpr:
        return cp_model.LinearExpr.weighted_sum(self.take, factors)

    def segments(self, outcome: SolveOutcome) -> tuple[Segment, ...]:
        """The path of a solution."""
        if outcome.solution is None:
            raise InternalError("stage partition: no solution to read")
        solution = outcome.solution
        return tuple(
            sorted(
                arc
                for arc, taken in zip(self.arcs, self.take, strict=True)
                if solution.true(taken)
            )
        )


def solve_partition(
    instance: PartitionInstance,
    budget: SolveBudget,
    settings: SolveSettings | None = None,
    limit: float | None = None,
) -> PartitionResult:
    """Least largest segment cost under all rules.

    Args:
        instance: curves and rules.
        budget: of the run.
        settings: of each decision.
        limit: deterministic time of one decision; default: all that remains.
    """
    return _Bisection(
        instance, budget, settings or SolveSettings(symmetry_level=0), limit
    ).run()


class _Bisection:
    """Bisects C over the distinct costs; UNKNOWN counts for neither side."""

    def __init__(
        self,
        instance: PartitionInstance,
        budget: SolveBudget,
        settings: SolveSettings,
        limit: float | None,
    ) -> None:
        self.instance, self.budget = instance, budget
        self.settings, self.limit = settings, limit
        self.values = instance.thresholds()
        self.records: list[SolveRecord] = []
        self.best: tuple[Segment, ...] = ()
        self.note = ""
        self.claims: list[tuple[int, StagePartitionModel, SolveOutcome | None]] = []

    def run(self) -> PartitionResult:
        if not self.values.size or not self._relaxed(len(self.values) - 1):
            return PartitionResult(
                Verdict.INFEASIBLE, note="no partition fits the cores (exact DP)"
            )
        low, high = 0, len(self.values) - 1
        while low < high:
            middle = (low + high) // 2
            if self._relaxed(middle):
                high = middle
            else:
                low = middle + 1
        # Below the DP's optimum nothing exists: an argument without the solver.
        relaxed, top = low, len(self.values) - 1
        middle = relaxed  # first the relaxed optimum: it is often legal
        while low <= top:
            if self._decide(middle):
                top = self._rank(self.best) - 1
            else:
                low = middle + 1
            middle = (low + top) // 2
        return self._result(relaxed, self._confirmed_floor(relaxed))

    def _confirmed_floor(self, relaxed: int) -> int:
        """Least rank not proved impossible: only the highest claim needs its proof."""
        if not self.claims:
            return relaxed
        rank, model, outcome = max(self.claims, key=lambda claim: claim[0])
        if outcome is not None:
            outcome = confirm(
                model.model,
                outcome,
                self.budget,
                settings=self.settings,
                limit=self.limit,
            )
            if outcome.confirmation is not None:
                self.records.append(outcome.confirmation)
            if outcome.solution is not None:
                self._keep(model.segments(outcome))
            self.note = outcome.note or self.note
            if outcome.verdict is not Verdict.INFEASIBLE:
                return relaxed
        return rank + 1

    def _result(self, relaxed: int, proved: int) -> PartitionResult:
        records, floor = tuple(self.records), int(self.values[relaxed])
        if not self.best:
            impossible = proved >= len(self.values)
            return PartitionResult(
                Verdict.INFEASIBLE if impossible else Verdict.UNKNOWN,
                bound_ns=None if impossible else int(self.values[proved]),
                relaxed_ns=floor,
                records=records,
                note=self.note,
            )
        rank = self._rank(self.best)
        optimal = proved >= rank
        return PartitionResult(
            Verdict.OPTIMAL if optimal else Verdict.FEASIBLE,
            self.best,
            int(self.values[rank]),
            int(self.values[min(proved, rank)]),
            floor,
            records,
            "" if optimal else self.note or "the budget ended before the proof",
        )

    def _relaxed(self, rank: int) -> bool:
        """Whether the DP, blind to coupling rules, finds a partition of this cost."""
        need = self.instance.least_cores(int(self.values[rank]))
        least = self.instance.rules.min_stages
        total, path = fewest_cores_path(need, self.instance.depth, least)
        return bool(path) and total <= self.instance.cores

    def _decide(self, rank: int) -> bool:
        """True when ``best`` reaches the cost; a claim of "none" is remembered."""
        instance, limit_ns = self.instance, int(self.values[rank])
        if not instance.rules.beyond_dp:
            need = instance.least_cores(limit_ns)
            _, path = fewest_cores_path(need, instance.depth, instance.rules.min_stages)
            self._keep(tuple(path))
            return True
        model = StagePartitionModel(instance, limit_ns)
        if not model.arcs:
            self.claims.append((rank, model, None))
            return False
        if not fits(len(model.arcs)):
            self.note = f"{len(model.arcs)} arcs are too many for the solver"
            return False
        model.build()
        outcome = solve(
            model.model,
            self.budget,
            what=f"stage partition at {limit_ns} ns",
            settings=self.settings,
            limit=self.limit,
        )
        self.records.append(outcome.record)
        if outcome.solution is not None:
            self._keep(model.segments(outcome))
            return True
        if outcome.record.status is SolverClaim.INFEASIBLE and model.exact:
            self.claims.append((rank, model, outcome))
        self.note = outcome.note or self.note
        return False

    def _keep(self, segments: tuple[Segment, ...]) -> None:
        wrong = validate_partition(self.instance, segments)
        if wrong:
            raise InternalError(f"stage partition: {wrong[0]}")
        if not self.best or self._rank(segments) < self._rank(self.best):
            self.best = segments

    def _rank(self, segments: tuple[Segment, ...]) -> int:
        cost = cost_of_partition(self.instance, segments)
        return int(np.searchsorted(self.values, cost))


def cost_of_partition(
    instance: PartitionInstance, segments: tuple[Segment, ...]
) -> int:
    """Largest segment cost (ns)."""
    return max(int(instance.cost_ns[i, j, k - 1]) for i, j, k in segments)


def validate_partition(
    instance: PartitionInstance, segments: tuple[Segment, ...]
) -> list[str]:
    """Check a partition without the solver; one sentence for each violation."""
    rules, groups = instance.rules, instance.groups
    ends = [0, *(stop for _, stop, _ in segments)]
    starts = [*(start for start, _, _ in segments), groups]
    if ends != starts or any(i >= j or k < 1 for i, j, k in segments):
        return ["the stages do not cover all groups in order"]
    wrong = []
    cuts = ends[1:-1]
    if not rules.min_stages <= len(segments) <= instance.depth:
        wrong.append(f"{len(segments)} stages")
    if sum(cores for _, _, cores in segments) > instance.cores:
        wrong.append(f"more than {instance.cores} cores")
    stage_of = [s for s, (i, j, _) in enumerate(segments) for _ in range(i, j)]
    wrong += [f"forbidden cut {cut}" for cut in rules.forbidden_cuts if cut in cuts]
    wrong += [
        f"groups {members} are not in one stage"
        for members in rules.together
        if len({stage_of[g] for g in members}) > 1
    ]
    wrong += [
        f"groups {one} and {other} share a stage"
        for one, other in rules.apart
        if stage_of[one] == stage_of[other]
    ]
    traffic = [int(instance.cut_bytes[c]) for c in cuts if instance.cut_bytes.size]
    if rules.max_cut_bytes is not None and max(traffic, default=0) > (
        rules.max_cut_bytes
    ):
        wrong.append(f"{max(traffic)} bytes across one cut")
    if rules.total_cut_bytes is not None and sum(traffic) > rules.total_cut_bytes:
        wrong.append(f"{sum(traffic)} bytes across all cuts")
    wrong += [
        f"groups {one} and {other} are more than {hops} hops apart"
        for one, other, hops in rules.hop_limits
        if abs(stage_of[one] - stage_of[other]) > hops
    ]
    if rules.stage_memory_bytes is not None:
        wrong += [
            f"stage {s} needs too much memory"
            for s, (i, j, _) in enumerate(segments)
            if int(instance.group_bytes[i:j].sum()) > rules.stage_memory_bytes
        ]
    for group, least, most in rules.group_cores:
        if not least <= segments[stage_of[group]][2] <= most:
            wrong.append(f"the stage of group {group} has a forbidden core count")
    return wrong


def _useful_arcs(instance: PartitionInstance, limit_ns: int) -> list[Segment]:
    """Arcs on some path that keeps the core and stage limits."""
    need = instance.least_cores(limit_ns)
    groups = instance.groups
    forward = fewest_cores(need, instance.depth).min(axis=0)
    mirrored = np.full_like(need, instance.cores + 1)
    for start in range(groups):
        for stop in range(start + 1, groups + 1):
            mirrored[groups - stop, groups - start] = need[start, stop]
    backward = fewest_cores(mirrored, instance.depth).min(axis=0)[::-1]
    total = forward[:groups, None] + need + backward[None, :]
    keep = (total <= instance.cores) & (need <= instance.cores)
    return [
        (int(i), int(j), int(need[i, j]))
        for i, j in zip(*np.nonzero(keep), strict=True)
    ]
