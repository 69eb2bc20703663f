"""Core budgets: cost curves of stages, and the minimax split of a pool of cores.

A stage's curve gives for k = 0 .. K cores ``max(largest core load, dependency
span)`` in ns (scheduling spec, "Costs and interpretation"): ordered packing where
an ordered assignment fits, otherwise the reuse-first constructor, otherwise
UNAVAILABLE.  Cores may stay idle, so a curve never rises, and every finite entry
has a constructive assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import InternalError
from raptor_cp.pipeline.groups import PipelineGroups
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE, OrderedPacking
from raptor_cp.pipeline.packing import (
    Packed,
    PackingMethod,
    RecoveryUse,
    pack_resident,
)
from raptor_cp.pipeline.weights import IndexedResidentWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.pipeline.groups import StageLimits
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]


class StagePacking:
    """Curves and assignments of segments of one problem, with a cache.

    Args:
        groups: the groups of the problem.
        weights: its resident-weight index.
        recovery: where the counts of packing recovery are noted.
    """

    def __init__(
        self,
        groups: PipelineGroups,
        weights: IndexedResidentWeights,
        recovery: RecoveryUse | None = None,
    ) -> None:
        self.groups, self.weights = groups, weights
        self.recovery = recovery or RecoveryUse()
        self.ordered = OrderedPacking.of(groups, weights)
        #: [G, G+1] proved least cores, and least cores of an ordered assignment.
        self.least = weights.segment_bounds(groups.task_ptr)
        self.ordered_least = self.ordered.minimum_cores()
        self._reused: dict[tuple[int, int, int], Packed | None] = {}
        self._curves: dict[tuple[int, int], IntArray] = {}

    @classmethod
    def of(cls, problem: Problem) -> StagePacking:
        """Everything built from a problem."""
        return cls(PipelineGroups.of(problem), IndexedResidentWeights.of(problem))

    def reused(self, first: int, last: int, cores: int) -> Packed | None:
        """The reuse-first constructor's assignment of a segment, recovery included."""
        key = (first, last, cores)
        if key not in self._reused:
            tasks = self.groups.tasks(first, last)
            found = pack_resident(self.weights, tasks, cores, self.groups.execution_ns)
            self.recovery.note(found)
            self._reused[key] = found if isinstance(found, Packed) else None
        return self._reused[key]

    def packed(self, first: int, last: int, cores: int) -> Packed | None:
        """Assignment of groups [first, last) on ``cores`` cores: ordered where one
        fits, otherwise reuse-first; None when both fail (nothing is proved)."""
        if not self.groups.tasks(first, last):
            return None
        if cores < self.ordered_least[first, last]:
            if cores < self.least[first, last]:
                return None
            return self.reused(first, last, cores)
        core_of = self.ordered.assignment(first, last, cores)
        if core_of is None:
            raise InternalError(f"no ordered assignment of [{first}, {last})")
        loads = np.zeros(cores, dtype=np.int64)
        tasks = self.groups.tasks(first, last)
        np.add.at(loads, core_of, self.groups.execution_ns[tasks.start : tasks.stop])
        return Packed(core_of, cores, int(loads.max()), PackingMethod.ORDERED)

    def best_packed(self, first: int, last: int, cores: int) -> Packed | None:
        """The least loaded assignment on at most ``cores`` cores behind the curve."""
        best = self.packed(first, last, cores)
        fallback = range(
            int(self.least[first, last]),
            min(cores, int(self.ordered_least[first, last])),
        )
        for count in fallback:
            found = self.packed(first, last, count)
            if found is not None and (best is None or found.load_ns < best.load_ns):
                best = found
        return best

    def curve(self, first: int, last: int) -> IntArray:
        """[P+1] max(largest core load, span) of a stage on k cores (ns), cached."""
        key = (first, last)
        if key not in self._curves:
            cores = self.groups.problem.resources.cores
            loads = self.ordered.curve(first, last, cores)
            loads[0] = UNAVAILABLE
            if not self.groups.tasks(first, last):
                loads[:] = UNAVAILABLE
            for k in range(
                max(1, int(self.least[first, last])),
                min(cores + 1, int(self.ordered_least[first, last])),
            ):
                found = self.packed(first, last, k)
                if found is not None:
                    loads[k] = found.load_ns
            curve = np.minimum.accumulate(loads)
            curve = np.maximum(curve, self.groups.spans[first, last])
            curve.setflags(write=False)
            self._curves[key] = curve
        return self._curves[key]


@dataclass(frozen=True, slots=True)
class Allocation:
    """Cores of every stage.

    Attributes:
        budgets: cores of each stage, kept ones included.
        value_ns: largest curve value of the stages that share the pool (0: none).
        spare: cores of the pool that no stage needs for that value.
    """

    budgets: tuple[int, ...]
    value_ns: int
    spare: int


def minimax_budgets(
    curves: Sequence[IntArray],
    pool: int,
    *,
    kept: Sequence[int | None] | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> Allocation | None:
    """Share a pool so that the largest curve value is least; exact.

    Among the optima the one with the fewest cores for every single stage (it is
    unique): bisection over curve values, then ``searchsorted`` on each curve.

    Args:
        curves: [K+1] non-increasing cost (ns) of each stage on k cores.
        pool: cores of the stages that change.
        kept: budget of each unchanged stage, None where the stage changes.
        ranges: least and most cores of each stage; 1 to the end of its curve when
            None.

    Returns:
        None when the pool cannot make every changing stage finite.
    """
    fixed: list[int | None] = list(kept) if kept is not None else [None] * len(curves)
    bounds = ranges or [(1, curve.size - 1) for curve in curves]
    changing = [s for s, budget in enumerate(fixed) if budget is None]
    windows = []
    for stage in changing:
        low, high = max(1, bounds[stage][0]), min(bounds[stage][1], pool)
        high = min(high, curves[stage].size - 1)
        if low > high:
            return None
        # ascending in the number of cores not taken, for searchsorted
        windows.append((low, high, curves[stage][low : high + 1][::-1]))

    def needed(limit: int) -> list[int]:
        return [
            high - int(np.searchsorted(values, limit, side="right")) + 1
            for low, high, values in windows
        ]

    def fits(limit: int) -> bool:
        cores = needed(limit)
        possible = all(
            k <= high for k, (_, high, _) in zip(cores, windows, strict=True)
        )
        return possible and sum(cores) <= pool

    if not changing:
        return Allocation(tuple(b for b in fixed if b is not None), 0, pool)
    values = np.unique(np.concatenate([v for _, _, v in windows]))
    values = values[values != UNAVAILABLE]
    left, right = 0, values.size
    while left < right:
        middle = (left + right) // 2
        if fits(int(values[middle])):
            right = middle
        else:
            left = middle + 1
    if left == values.size:
        return None
    value = int(values[left])
    cores = needed(value)
    budgets = list(fixed)
    for stage, count in zip(changing, cores, strict=True):
        budgets[stage] = count
    return Allocation(
        tuple(b for b in budgets if b is not None), value, pool - sum(cores)
    )


def with_idle_cores(
    budgets: Sequence[int],
    curves: Sequence[IntArray],
    loads: Sequence[int],
    spare: int,
    *,
    changing: Sequence[int] | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
) -> tuple[int, ...]:
    """Hand out spare cores: first where a curve still falls, then by load.

    The stage with the largest curve value that can be lowered gets what that takes;
    what is left goes, core by core, to the stage with the largest load per core.
    Ties: lowest stage.  No stage gets worse: a packing stays legal with idle cores.

    Args:
        budgets: cores of each stage.
        curves: [K+1] non-increasing cost of each stage (ns).
        loads: execution time (ns) of all tasks of each stage.
        spare: cores to hand out.
        changing: the stages that may get some; all when None.
        ranges: least and most cores of each stage.
    """
    result = list(budgets)
    chosen = list(range(len(result))) if changing is None else list(changing)
    most = {s: curves[s].size - 1 for s in chosen}
    if ranges is not None:
        most = {s: min(most[s], ranges[s][1]) for s in chosen}
    lowering = list(chosen)
    while spare > 0 and lowering:
        stage = max(lowering, key=lambda s: (int(curves[s][result[s]]), -s))
        curve, now = curves[stage], result[stage]
        lower = np.flatnonzero(curve[now : most[stage] + 1] < curve[now])
        if lower.size == 0 or lower[0] > spare:
            lowering.remove(stage)
            continue
        result[stage] += int(lower[0])
        spare -= int(lower[0])
    while spare > 0:
        open_stages = [s for s in chosen if result[s] < most[s]]
        if not open_stages:
            break
        # compare load/cores without floats: cross-multiplied by the largest first
        stage = open_stages[0]
        for other in open_stages[1:]:
            if loads[other] * result[stage] > loads[stage] * result[other]:
                stage = other
        result[stage] += 1
        spare -= 1
    return tuple(result)


@dataclass(frozen=True, slots=True)
class BudgetEstimate:
    """Least budgets that constructive packing established for given stages.

    Attributes:
        budgets: cores of each stage.
        packings: the assignment of each stage on its budget.
        restarted: the ordered pack counts exceeded the chip, so the budgets
            restarted from weight lower bounds.
    """

    budgets: tuple[int, ...]
    packings: tuple[Packed, ...]
    restarted: bool


def feasible_budgets(
    packing: StagePacking,
    segments: Sequence[tuple[int, int]],
    cores: int,
    limits: StageLimits | None = None,
) -> BudgetEstimate | None:
    """Least cores of given stages (scheduling spec, "Capacity and recovery").

    Ordered pack counts estimate the budgets.  When they exceed the chip, budgets
    restart from the weight lower bounds, and constructive packing establishes
    feasibility: a stage that it cannot pack gets one core more, until it fits or
    the chip is exhausted.

    Returns:
        None when the cores do not suffice: a bounded search, not a proof.
    """
    ranges = [
        (1, cores) if limits is None else limits.core_range(i, j) for i, j in segments
    ]
    ordered = [
        max(low, int(packing.ordered_least[i, j]))
        for (i, j), (low, _) in zip(segments, ranges, strict=True)
    ]
    restarted = sum(ordered) > cores or any(
        k > high for k, (_, high) in zip(ordered, ranges, strict=True)
    )
    budgets = ordered
    if restarted:
        budgets = [
            max(low, int(packing.least[i, j]))
            for (i, j), (low, _) in zip(segments, ranges, strict=True)
        ]
    found: list[Packed] = []
    for stage, (first, last) in enumerate(segments):
        while True:
            if sum(budgets) > cores or budgets[stage] > ranges[stage][1]:
                return None
            packed = packing.packed(first, last, budgets[stage])
            if packed is not None:
                break
            budgets[stage] += 1
        found.append(packed)
    return BudgetEstimate(tuple(budgets), tuple(found), restarted)
