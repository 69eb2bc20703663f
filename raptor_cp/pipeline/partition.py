"""The initial partition: a prefix DP over groups, stages and units of spare cores.

Scheduling spec, "Costs and interpretation".  Each configured stage reserves one
core; the spare cores are handed out in at most sixteen units.  Segment [i, j) with
q units has ``1 + q * unit`` cores and costs ``max(packing load, dependency span)``::

    f(s, j, q) = min over i, q' of max(f(s - 1, i, q - q'), cost(i, j, q'))

The load is that of ordered packing, or of the reuse-first constructor where no
ordered assignment fits.  The constructor is asked only about cells that a best path
uses: until then a cell counts with its lower bound, so the path that is returned is
optimal over the whole grid.  Ties, in this order: fewest stages, least shared-memory
service of the cuts, fewest units, earliest boundaries.

When the grid has no feasible path, the minimum-resource DP finds the fewest cores
that a partition needs, over every core count of every segment: first with ordered
pack counts, and, when those exceed the chip, restarted from the weight lower bounds
with constructive packing ("Capacity and recovery").
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.pipeline.budgets import StagePacking, minimax_budgets, with_idle_cores
from raptor_cp.pipeline.groups import StageLimits
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE
from raptor_cp.pipeline.packing import Packed, check_packing
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

#: Most units of spare cores in the quality grid (the spec's Q).
UNIT_LIMIT: Final = 16
#: Most segments that the constructor is asked about in one partition.
QUESTION_LIMIT: Final = 2048


class PartitionMethod(StrEnum):
    """Which DP found the partition."""

    QUALITY_GRID = "quality-grid"
    MINIMUM_RESOURCE = "minimum-resource"


@dataclass(frozen=True, eq=False)
class InitialStage:
    """A stage with its constructive assignment.

    Attributes:
        first, last: its groups [first, last).
        budget: cores it owns, idle ones included.
        packed: its assignment on at most ``budget`` local cores.
        span_ns: its dependency span.
    """

    first: int
    last: int
    budget: int
    packed: Packed
    span_ns: int

    @property
    def cost_ns(self) -> int:
        """max(largest core load, dependency span)."""
        return max(self.packed.load_ns, self.span_ns)


@dataclass(frozen=True, eq=False)
class InitialPartition:
    """The initial partition; every stage keeps a legal assignment.

    Attributes:
        stages: in order; their groups cover all groups.
        method: the DP that found it.
        dp_value_ns: largest stage cost in that DP; the stages' own costs are not
            above it (idle cores may have lowered them).
        depth: configured depth; the unused part of it stays unused.
        unit: cores of a unit of the grid; ``units``: how many there were.
        questions: segments that the reuse-first constructor was asked about.
        restarted: ordered pack counts exceeded the chip, weight lower bounds and
            constructive packing were used.
    """

    stages: tuple[InitialStage, ...]
    method: PartitionMethod
    dp_value_ns: int
    depth: int
    unit: int
    units: int
    questions: int
    restarted: bool

    @property
    def objective_ns(self) -> int:
        """Static objective: largest stage cost."""
        return max(stage.cost_ns for stage in self.stages)

    @property
    def vector(self) -> StageVector:
        """Canonical stage/budget vector."""
        return StageVector(
            tuple(stage.first for stage in self.stages),
            tuple(stage.budget for stage in self.stages),
        )

    @property
    def retained(self) -> tuple[IndexArray, ...]:
        """Per stage the local core of each of its tasks, by ascending task id."""
        return tuple(stage.packed.core_of for stage in self.stages)

    @property
    def verdict(self) -> Verdict:
        """FEASIBLE."""
        return Verdict.FEASIBLE


@dataclass(frozen=True, slots=True)
class PartitionFailure:
    """No partition found.

    Attributes:
        verdict: INFEASIBLE when lower bounds alone prove it, otherwise UNKNOWN.
        reason: one sentence.
        least_cores: cores that any legal partition needs at least; None when no
            partition meets the side constraints on any number of cores.
        cores: cores of the chip.
        questions: segments that the constructor was asked about.
    """

    verdict: Verdict
    reason: str
    least_cores: int | None
    cores: int
    questions: int = 0


def initial_partition(
    packing: StagePacking, depth: int, limits: StageLimits | None = None
) -> InitialPartition | PartitionFailure:
    """Partition the groups into at most ``depth`` stages with budgets.

    Raises:
        MalformedInput: depth is not in 1 .. P.
    """
    cores = packing.groups.problem.resources.cores
    if not 1 <= depth <= cores:
        raise MalformedInput(
            "the pipeline depth is out of range",
            value=depth,
            expected=f"1 to {cores} (one core a stage)",
        )
    return _Builder(packing, depth, limits or StageLimits.of(packing.groups)).run()


class QualityGrid:
    """Core counts and cell costs of the quality grid.

    Attributes:
        unit: cores of a unit; ``units``: Q, at most sixteen.
        counts: [Q+1] core counts.
        cost: [G, G+1, Q+1] cost (ns); a lower bound where ``asked`` is pending.
        pending: [G, G+1, Q+1] only the constructor can tell.
    """

    def __init__(
        self, packing: StagePacking, limits: StageLimits, depth: int, cores: int
    ) -> None:
        spare = cores - depth
        self.unit = max(1, ceil_div(spare, UNIT_LIMIT))
        self.units = spare // self.unit
        if self.units > UNIT_LIMIT:
            raise InternalError(f"{self.units} units of spare cores")
        self.counts = 1 + self.unit * np.arange(self.units + 1, dtype=np.int64)
        self.packing = packing
        groups = packing.groups
        cost = packing.ordered.segment_curves(self.counts)
        least = packing.least[:, :, None]
        illegal = ~_legal_segments(limits)[:, :, None] | (least == 0)
        low, high = segment_core_ranges(limits)
        illegal = illegal | (self.counts < low[:, :, None])
        illegal |= self.counts > high[:, :, None]
        self.pending: BoolArray = (
            (cost == UNAVAILABLE) & (self.counts >= least) & ~illegal
        )
        bound = _load_bounds(groups.task_ptr, groups.execution_ns, self.counts)
        cost[self.pending] = bound[self.pending]
        cost[illegal] = UNAVAILABLE
        self.cost: IntArray = np.maximum(cost, groups.spans[:, :, None])

    def ask(self, first: int, last: int, index: int) -> None:
        """Replace a pending cell by what the constructor finds."""
        found = self.packing.packed(first, last, int(self.counts[index]))
        span = int(self.packing.groups.spans[first, last])
        value = UNAVAILABLE if found is None else max(found.load_ns, span)
        self.cost[first, last, index] = value
        self.pending[first, last, index] = False


def segment_core_ranges(limits: StageLimits) -> tuple[IntArray, IntArray]:
    """[G, G+1] least and most cores of every segment under the limits."""
    count = limits.min_cores.size
    low = np.ones((count, count + 1), dtype=np.int64)
    high = np.full((count, count + 1), UNAVAILABLE, dtype=np.int64)
    for first in range(count):
        low[first, first + 1 :] = np.maximum.accumulate(limits.min_cores[first:])
        high[first, first + 1 :] = np.minimum.accumulate(limits.max_cores[first:])
    return low, high


def _legal_segments(limits: StageLimits) -> BoolArray:
    """[G, G+1] segments whose two ends are legal boundaries."""
    cut = limits.cut_allowed
    count = cut.size - 1
    legal: BoolArray = cut[:-1, None] & cut[None, :]
    return legal & (np.arange(count + 1)[None, :] > np.arange(count)[:, None])


def _load_bounds(task_ptr: IndexArray, work: IntArray, counts: IntArray) -> IntArray:
    """[G, G+1, n] lower bounds of the largest load: share of each core, longest
    task."""
    count = task_ptr.size - 1
    prefix = np.concatenate([[0], np.cumsum(work)])[task_ptr]
    longest = np.zeros((count, count + 1), dtype=np.int64)
    peaks = np.array(
        [work[a:b].max(initial=0) for a, b in itertools.pairwise(task_ptr)]
    )
    for first in range(count):
        longest[first, first + 1 :] = np.maximum.accumulate(peaks[first:])
    load = np.maximum(prefix[None, :] - prefix[:-1, None], 0)[:, :, None]
    share: IntArray = -(-load // counts)
    return np.maximum(share, longest[:, :, None])


class _Builder:
    """One initial partition."""

    def __init__(self, packing: StagePacking, depth: int, limits: StageLimits) -> None:
        self.packing, self.limits = packing, limits
        self.groups = packing.groups
        self.cores = self.groups.problem.resources.cores
        self.configured = depth
        self.depth = min(depth, self.groups.count)
        traffic = self.groups.traffic
        self.service = traffic.segment_load_ns + traffic.segment_store_ns
        self.questions = 0

    def run(self) -> InitialPartition | PartitionFailure:
        grid = QualityGrid(self.packing, self.limits, self.depth, self.cores)
        best = self._grid_path(grid)
        if best is None:
            return self._minimum_resource(grid)
        value, path = best
        segments = [(first, last) for first, last, _ in path]
        cores = [int(grid.counts[units]) for _, _, units in path]
        return self._expanded(
            segments, cores, value, PartitionMethod.QUALITY_GRID, grid, False
        )

    def _grid_path(
        self, grid: QualityGrid
    ) -> tuple[int, list[tuple[int, int, int]]] | None:
        """Value and (first, last, units) of the best path; all its cells are real."""
        while True:
            value, stages = _grid_value(grid.cost, self.depth)
            if value == UNAVAILABLE:
                return None
            path = _grid_path(grid.cost, self.service, int(value), int(stages))
            cells = [(int(i), int(j), int(q)) for i, j, q in path]
            unknown = [cell for cell in cells if grid.pending[cell]]
            if not unknown:
                return int(value), cells
            for cell in unknown:
                grid.ask(*cell)
                self.questions += 1
            if self.questions >= QUESTION_LIMIT:  # the rest counts as unavailable
                grid.cost[grid.pending] = UNAVAILABLE
                grid.pending[:] = False

    def _minimum_resource(
        self, grid: QualityGrid
    ) -> InitialPartition | PartitionFailure:
        low, high = segment_core_ranges(self.limits)
        illegal = ~_legal_segments(self.limits) | (self.packing.least == 0)
        ordered = _within(self.packing.ordered_least, low, high, illegal)
        restarted = False
        paths = self._paths(ordered)
        if not paths:
            restarted = True
            answer = self._from_lower_bounds(low, high, illegal, ordered)
            if isinstance(answer, PartitionFailure):
                return answer
            paths = answer
        best: InitialPartition | None = None
        for segments in paths:  # fewest stages first
            found = self._budgeted(segments, grid, restarted)
            if best is None or found.dp_value_ns < best.dp_value_ns:
                best = found
        if best is None:
            raise InternalError("a minimum-resource path was lost")
        return best

    def _paths(self, need: IntArray) -> list[list[tuple[int, int]]]:
        """For each stage count the path of fewest cores, where those exist."""
        result = []
        for stages, (total, path) in enumerate(self._resource_paths(need), start=1):
            if total <= self.cores and len(path) == stages:
                result.append(path)
        return result

    def _resource_paths(
        self, need: IntArray
    ) -> list[tuple[int, list[tuple[int, int]]]]:
        """(fewest cores, segments) for 1 .. depth stages; UNAVAILABLE without."""
        total, step = _resource_table(need, self.service, self.depth)
        result = []
        for stages in range(1, self.depth + 1):
            path, first = [], 0
            if total[stages, 0] != UNAVAILABLE:
                for left in range(stages, 0, -1):
                    last = int(step[left, first])
                    path.append((first, last))
                    first = last
            result.append((int(total[stages, 0]), path))
        return result

    def _from_lower_bounds(
        self, low: IntArray, high: IntArray, illegal: BoolArray, ordered: IntArray
    ) -> list[list[tuple[int, int]]] | PartitionFailure:
        """Raise lower bounds by constructive packing until a path stands."""
        need = _within(self.packing.least, low, high, illegal)
        best = _least(self._resource_paths(need))
        if best[0] > self.cores:
            return self._refuted(best[0])
        known = need == ordered  # an ordered assignment is in hand
        proved = best[0]
        while best[0] <= self.cores:
            unknown = [cell for cell in best[1] if not known[cell]]
            if not unknown:
                return [
                    path
                    for total, path in self._resource_paths(need)
                    if total <= self.cores and all(known[cell] for cell in path)
                ]
            for cell in unknown:
                self._settle(cell, need, known, ordered, high)
            best = _least(self._resource_paths(need))
        return PartitionFailure(
            Verdict.UNKNOWN,
            f"constructive packing found no partition on {self.cores} cores; "
            f"lower bounds allow {proved}, which proves nothing",
            proved,
            self.cores,
            self.questions,
        )

    def _settle(
        self,
        cell: tuple[int, int],
        need: IntArray,
        known: BoolArray,
        ordered: IntArray,
        high: IntArray,
    ) -> None:
        """Try one core count of a segment; on failure it needs one more."""
        spent = self.questions >= QUESTION_LIMIT
        if not spent:
            self.questions += 1
            if self.packing.packed(*cell, int(need[cell])) is not None:
                known[cell] = True
                return
        need[cell] = ordered[cell] if spent else need[cell] + 1
        if need[cell] >= ordered[cell]:
            need[cell] = ordered[cell]
            known[cell] = True
        elif need[cell] > high[cell]:
            need[cell] = UNAVAILABLE

    def _refuted(self, least: int) -> PartitionFailure:
        """Lower bounds leave no path: a proof."""
        graph = self.groups.problem.graph
        bound = self.packing.weights.bound(range(graph.task_count))
        if bound.oversized:
            task = graph.tasks[bound.oversized[0]]
            need = int(graph.task_slots()[bound.oversized[0]])
            reason = (
                f"task {task.name!r} needs {need} weight slots, a core has "
                f"{self.packing.weights.capacity}"
            )
            return PartitionFailure(Verdict.INFEASIBLE, reason, None, self.cores)
        if least == UNAVAILABLE:
            reason = "no partition meets the side constraints on the stages"
            return PartitionFailure(Verdict.INFEASIBLE, reason, None, self.cores)
        reason = (
            f"every partition needs at least {least} cores, the chip has {self.cores}; "
            f"the weights take {bound.union_slots} slots of "
            f"{self.cores * self.packing.weights.capacity}"
        )
        return PartitionFailure(Verdict.INFEASIBLE, reason, least, self.cores)

    def _budgeted(
        self, segments: list[tuple[int, int]], grid: QualityGrid, restarted: bool
    ) -> InitialPartition:
        """Minimax budgets over every core count of fixed segments."""
        curves = [self.packing.curve(i, j) for i, j in segments]
        ranges = [self.limits.core_range(i, j) for i, j in segments]
        found = minimax_budgets(curves, self.cores, ranges=ranges)
        if found is None:
            raise InternalError("stages that were packed have no budgets")
        method = PartitionMethod.MINIMUM_RESOURCE
        budgets = list(found.budgets)
        return self._expanded(
            segments, budgets, found.value_ns, method, grid, restarted
        )

    def _expanded(
        self,
        segments: Sequence[tuple[int, int]],
        cores: Sequence[int],
        value: int,
        method: PartitionMethod,
        grid: QualityGrid,
        restarted: bool,
    ) -> InitialPartition:
        """Hand out idle cores; keep the better of both constructive assignments."""
        curves = [self.packing.curve(i, j) for i, j in segments]
        budgets = with_idle_cores(
            cores,
            curves,
            [self.groups.load_ns(i, j) for i, j in segments],
            self.cores - sum(cores),
            ranges=[self.limits.core_range(i, j) for i, j in segments],
        )
        stages = []
        for (first, last), budget in zip(segments, budgets, strict=True):
            packed = self.packing.best_packed(first, last, budget)
            if packed is None:
                raise InternalError(f"stage [{first}, {last}) lost its assignment")
            tasks = self.groups.tasks(first, last)
            check_packing(self.packing.weights, tasks, packed.core_of, budget)
            span = int(self.groups.spans[first, last])
            stages.append(InitialStage(first, last, budget, packed, span))
        result = InitialPartition(
            tuple(stages),
            method,
            value,
            self.configured,
            grid.unit,
            grid.units,
            self.questions,
            restarted,
        )
        if result.objective_ns > value:
            raise InternalError(
                f"stages cost {result.objective_ns} ns, the DP said {value}"
            )
        return result


def _within(
    need: IntArray, low: IntArray, high: IntArray, illegal: BoolArray
) -> IntArray:
    """Cores that a segment needs under its limits; UNAVAILABLE when they clash."""
    result = np.maximum(need, low)
    result[illegal | (result > high)] = UNAVAILABLE
    return result


def _least(
    paths: list[tuple[int, list[tuple[int, int]]]],
) -> tuple[int, list[tuple[int, int]]]:
    """The path of fewest cores; ties: fewest stages."""
    return min(paths, key=lambda path: (path[0], len(path[1])))


@njit(cache=True)
def _grid_value(cost: IntArray, depth: int) -> tuple[int, int]:
    """Least largest cost over paths of at most ``depth`` stages, and the fewest
    stages that reach it.  Cells at or above the best value so far are skipped."""
    groups, _, width = cost.shape
    before = np.full((groups + 1, width), UNAVAILABLE, dtype=np.int64)
    before[0, :] = 0
    best, fewest = np.int64(UNAVAILABLE), 0
    for stages in range(1, depth + 1):
        after = before.copy()
        changed = False
        for first in range(groups):
            if before[first, width - 1] >= best:
                continue
            for last in range(first + 1, groups + 1):
                for units in range(width):
                    cell = cost[first, last, units]
                    if cell >= best:
                        continue
                    for total in range(units, width):
                        value = max(before[first, total - units], cell)
                        if value < after[last, total]:
                            after[last, total] = value
                            changed = True
        if not changed:
            break
        before = after
        if before[groups, width - 1] < best:
            best, fewest = before[groups, width - 1], stages
    return int(best), fewest


@njit(cache=True)
def _grid_path(cost: IntArray, service: IntArray, value: int, stages: int) -> IntArray:
    """[stages, 3] (first, last, units) of a path within ``value``: least service,
    then fewest units, then earliest boundaries."""
    groups, _, width = cost.shape
    units = np.full((groups, groups + 1), width, dtype=np.int64)
    for first in range(groups):
        for last in range(first + 1, groups + 1):
            for count in range(width):
                if cost[first, last, count] <= value:
                    units[first, last] = count
                    break
    rest = np.full((stages + 1, groups + 1, width), UNAVAILABLE, dtype=np.int64)
    rest[0, groups, :] = 0
    for left in range(1, stages + 1):
        for first in range(groups):
            for last in range(first + 1, groups + 1):
                need = units[first, last]
                for total in range(need, width):
                    tail = rest[left - 1, last, total - need]
                    if tail != UNAVAILABLE:
                        sum_ns = tail + service[first, last]
                        rest[left, first, total] = min(rest[left, first, total], sum_ns)
    total = width - 1
    while total > 0 and rest[stages, 0, total - 1] == rest[stages, 0, total]:
        total -= 1
    path = np.zeros((stages, 3), dtype=np.int64)
    first = 0
    for left in range(stages, 0, -1):
        for last in range(first + 1, groups + 1):
            need = units[first, last]
            if need > total:
                continue
            tail = rest[left - 1, last, total - need]
            if tail == UNAVAILABLE:
                continue
            if tail + service[first, last] == rest[left, first, total]:
                path[stages - left] = np.array([first, last, need])
                first, total = last, total - need
                break
    return path


@njit(cache=True)
def _resource_table(
    need: IntArray, service: IntArray, depth: int
) -> tuple[IntArray, IntArray]:
    """(fewest cores, next boundary) from each group to the end with exactly s
    stages; ties: least service, earliest boundary."""
    groups = need.shape[0]
    total = np.full((depth + 1, groups + 1), UNAVAILABLE, dtype=np.int64)
    cut = np.zeros((depth + 1, groups + 1), dtype=np.int64)
    step = np.full((depth + 1, groups + 1), -1, dtype=np.int64)
    total[0, groups] = 0
    for stages in range(1, depth + 1):
        for first in range(groups):
            for last in range(first + 1, groups + 1):
                tail = total[stages - 1, last]
                if need[first, last] == UNAVAILABLE or tail == UNAVAILABLE:
                    continue
                cores = need[first, last] + tail
                memory = service[first, last] + cut[stages - 1, last]
                known = total[stages, first]
                if cores < known or (cores == known and memory < cut[stages, first]):
                    total[stages, first] = cores
                    cut[stages, first] = memory
                    step[stages, first] = last
    return total, step
