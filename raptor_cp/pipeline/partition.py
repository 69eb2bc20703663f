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

When the grid has no feasible path, the minimum-resource DP over every core count
decides (:mod:`raptor_cp.pipeline.minimum_resource`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.pipeline.budgets import StagePacking, with_idle_cores
from raptor_cp.pipeline.groups import StageLimits
from raptor_cp.pipeline.minimum_resource import (
    QUESTION_LIMIT,
    MinimumResource,
    ResourcePath,
    SegmentTables,
)
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE
from raptor_cp.pipeline.packing import Packed, check_packing
from raptor_cp.pipeline.search_budget import UNIT_LIMIT
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


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
        unit: cores of a unit of the grid; ``units``: how many there were (0: no grid).
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


Partitioned = InitialPartition | PartitionFailure


def initial_partition(
    packing: StagePacking, depth: int, limits: StageLimits | None = None
) -> Partitioned:
    """Partition the groups into at most ``depth`` stages with budgets.

    Raises:
        MalformedInput: depth is not in 1 .. P.
    """
    return _Builder(packing, depth, limits or StageLimits.of(packing.groups)).run()


def unquantized_partition(
    packing: StagePacking, depth: int, limits: StageLimits | None = None
) -> Partitioned:
    """The minimum-resource DP alone: not above the quality grid's value as long as
    the constructor's questions last.

    It is not the initialized schedule of the spec, but a cheap further seed.

    Raises:
        MalformedInput: depth is not in 1 .. P.
    """
    limits = limits or StageLimits.of(packing.groups)
    return _Builder(packing, depth, limits).minimum_resource()


class QualityGrid:
    """Core counts and cell costs of the quality grid.

    Attributes:
        unit: cores of a unit; ``units``: Q, at most sixteen.
        counts: [Q+1] core counts.
        cost: [G, G+1, Q+1] cost (ns); a lower bound where ``pending``.
        pending: [G, G+1, Q+1] only the constructor can tell.
    """

    def __init__(
        self, packing: StagePacking, tables: SegmentTables, depth: int
    ) -> None:
        spare = packing.groups.problem.resources.cores - depth
        self.unit = max(1, ceil_div(spare, UNIT_LIMIT))
        self.units = spare // self.unit
        if self.units > UNIT_LIMIT:
            raise InternalError(f"{self.units} units of spare cores")
        self.counts = 1 + self.unit * np.arange(self.units + 1, dtype=np.int64)
        self.packing = packing
        cost = packing.ordered.segment_curves(self.counts)
        illegal = ~tables.legal[:, :, None] | (self.counts < tables.low[:, :, None])
        illegal |= self.counts > tables.high[:, :, None]
        fits = (self.counts >= packing.least[:, :, None]) & ~illegal
        self.pending: BoolArray = (cost == UNAVAILABLE) & fits
        cost[self.pending] = tables.load_bound(self.counts)[self.pending]
        cost[illegal] = UNAVAILABLE
        self.cost: IntArray = np.maximum(cost, packing.groups.spans[:, :, None])

    def ask(self, first: int, last: int, index: int) -> None:
        """Replace a pending cell by what the constructor finds."""
        found = self.packing.packed(first, last, int(self.counts[index]))
        span = int(self.packing.groups.spans[first, last])
        value = UNAVAILABLE if found is None else max(found.load_ns, span)
        self.cost[first, last, index] = value
        self.pending[first, last, index] = False


class _Builder:
    """One initial partition."""

    def __init__(self, packing: StagePacking, depth: int, limits: StageLimits) -> None:
        self.packing, self.limits = packing, limits
        self.groups = packing.groups
        self.tables = SegmentTables.of(packing, limits)
        self.cores = self.groups.problem.resources.cores
        if not 1 <= depth <= self.cores:
            raise MalformedInput(
                "the pipeline depth is out of range",
                value=depth,
                expected=f"1 to {self.cores} (one core a stage)",
            )
        self.configured = depth
        self.depth = min(depth, self.groups.count)
        traffic = self.groups.traffic
        self.service = traffic.segment_load_ns + traffic.segment_store_ns
        self.questions = 0

    def run(self) -> Partitioned:
        grid = QualityGrid(self.packing, self.tables, self.depth)
        best = self._grid_path(grid)
        if best is None:
            return self.minimum_resource(grid)
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
                if self.questions == QUESTION_LIMIT:  # the rest counts as unavailable
                    grid.cost[grid.pending] = UNAVAILABLE
                    grid.pending[:] = False
                    break
                grid.ask(*cell)
                self.questions += 1

    def minimum_resource(self, grid: QualityGrid | None = None) -> Partitioned:
        """The other DP; ``grid`` is the one that failed, if any."""
        answer = MinimumResource(self.packing, self.tables, self.depth).run()
        questions = self.questions + answer.questions
        if isinstance(answer, ResourcePath):
            self.questions = questions
            method = PartitionMethod.MINIMUM_RESOURCE
            return self._expanded(
                answer.segments,
                answer.cores,
                answer.value_ns,
                method,
                grid,
                answer.restarted,
            )
        if answer.proved:
            return self._refuted(answer.least_cores)
        return PartitionFailure(
            Verdict.UNKNOWN,
            f"constructive packing found no partition on {self.cores} cores; lower "
            f"bounds allow {answer.least_cores}, which proves nothing",
            answer.least_cores,
            self.cores,
            questions,
        )

    def _refuted(self, least: int | None) -> PartitionFailure:
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
        if least is None:
            reason = "no partition meets the side constraints on the stages"
            return PartitionFailure(Verdict.INFEASIBLE, reason, None, self.cores)
        reason = (
            f"every partition needs at least {least} cores, the chip has {self.cores}; "
            f"the weights take {bound.union_slots} slots of "
            f"{self.cores * self.packing.weights.capacity}"
        )
        return PartitionFailure(Verdict.INFEASIBLE, reason, least, self.cores)

    def _expanded(
        self,
        segments: Sequence[tuple[int, int]],
        cores: Sequence[int],
        value: int,
        method: PartitionMethod,
        grid: QualityGrid | None,
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
            1 if grid is None else grid.unit,
            0 if grid is None else grid.units,
            self.questions,
            restarted,
        )
        if result.objective_ns > value:
            raise InternalError(
                f"stages cost {result.objective_ns} ns, the DP said {value}"
            )
        return result


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
