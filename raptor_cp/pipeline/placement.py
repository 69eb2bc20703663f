"""Topology-aware, stage-local placement of a partition on physical cores.

Each stage gets a cluster of cores (:mod:`raptor_cp.pipeline.core_layout`); then
several assignments of its tasks to these cores compete (scheduling spec, 'Costs and
interpretation' and 'Capacity and recovery'):

``arrival``
    tasks in order, each to the core where it ends first;
``demand``
    tasks in order, each to the core with the least time on compute and transfers;
``reuse``
    tasks in order, each to the core that holds most of its weights already, as long
    as the load stays under that of the retained assignment;
``constructed``
    only when all three fail: the shared constructor with its bounded recovery;
``retained``
    the constructive assignment of the partition, its cores exchanged among the
    physical ones for shorter transfers.

All obey the union capacity.  An assignment's *demand* is its largest time a core
spends on compute, shared memory and both ends of direct transfers.  Among those
within 1 % of the least demand, the least (stage span, demand, compute load) wins,
the earlier in the list above on a tie.  Every core runs its tasks in task order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import InternalError
from raptor_cp.pipeline.packing import (
    Packed,
    PackingCounts,
    PackingExhausted,
    RecoveryUse,
    pack_resident,
)
from raptor_cp.pipeline.stage_assignment import (
    exchange,
    first_overfull,
    greedy,
    stage_figures,
    traffic,
)
from raptor_cp.schedules import Placement, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.pipeline.core_layout import CoreLayout
    from raptor_cp.pipeline.neighbourhood import StageVector
    from raptor_cp.pipeline.packing import PackingOutcome
    from raptor_cp.pipeline.weights import IndexedResidentWeights
    from raptor_cp.static_evaluation import StaticEvaluator
    from raptor_cp.verdict import Verdict

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BitArray = NDArray[np.uint64]

#: Passes over all pairs when cores of a retained assignment are exchanged.
_EXCHANGE_PASSES = 3


class StageMethod(StrEnum):
    """How the tasks of a stage got their cores; see the module docstring."""

    ARRIVAL = "arrival"
    DEMAND = "demand"
    REUSE = "reuse"
    CONSTRUCTED = "constructed"
    RETAINED = "retained"


_RULES = (StageMethod.ARRIVAL, StageMethod.DEMAND, StageMethod.REUSE)


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a stage's assignment is ranked by (ns)."""

    demand_ns: int
    span_ns: int
    load_ns: int


@dataclass(frozen=True, eq=False)
class Placed:
    """A placement in hand.

    Attributes:
        placement: cores, task order, stages.
        methods: per stage, which assignment won.
        figures: per stage, its ranking figures.
        checks: core-candidate checks of the greedy rules, all stages.
    """

    placement: Placement
    methods: tuple[StageMethod, ...]
    figures: tuple[StageFigures, ...]
    checks: int


@dataclass(frozen=True, slots=True)
class PlacementExhausted:
    """No assignment found for one stage within the bounds: nothing is proved.

    Attributes:
        stage: index of the stage.
        groups: its groups [first, last).
        cores: its budget.
        checks: core-candidate checks of the greedy rules so far.
        counts: what the shared constructor tried.
        verdict: UNKNOWN, or INFEASIBLE when the constructor refuted the budget.
    """

    stage: int
    groups: tuple[int, int]
    cores: int
    checks: int
    counts: PackingCounts
    verdict: Verdict


PlacementOutcome = Placed | PlacementExhausted


class StagePlacer:
    """Places partitions of one problem; indices and tables are shared.

    Args:
        evaluator: evaluator of the problem.
        weights: resident-weight index of the problem.
        layout: clusters of the chip.
        recovery: where the counts of packing recovery are noted.
    """

    def __init__(
        self,
        evaluator: StaticEvaluator,
        weights: IndexedResidentWeights,
        layout: CoreLayout,
        recovery: RecoveryUse | None = None,
    ) -> None:
        self.recovery = recovery or RecoveryUse()
        problem = evaluator.problem
        graph, links = problem.graph, evaluator.links
        groups = len(graph.operations)
        self.evaluator, self.weights, self.layout = evaluator, weights, layout
        self._task_ptr = np.searchsorted(graph.task_operation, np.arange(groups + 1))
        self._pred_ptr = graph.pred_ptr.copy()
        self._pred_src = graph.pred_src.copy()
        # A direct transfer is handshake + units * unit time + a constant.
        size = graph.pred_bytes
        self._messages = (size > 0).astype(np.int64)
        self._units = -(-size // links.link_width)
        self._ends = -(-size // links.endpoint_width) * links.endpoint_ns
        self._constructed: dict[tuple[int, int, int], PackingOutcome] = {}

    def place(
        self, vector: StageVector, retained: Sequence[IndexArray | None]
    ) -> PlacementOutcome:
        """Place every stage of a partition.

        Args:
            vector: first groups and budgets of the stages; at most P cores.
            retained: per stage, [n] local core (0 .. budget-1) of each of its
                tasks by ascending id: the constructive assignment; None when there
                is none.

        Raises:
            InternalError: a retained assignment is not legal, or budgets exceed
                the chip.
        """
        problem = self.evaluator.problem
        graph, cores = problem.graph, problem.resources.cores
        clusters = self.layout.clusters(vector.budgets)
        segments = vector.segments(len(graph.operations))
        occupied = self._memory_ns(segments)
        core_of = np.zeros(graph.task_count, dtype=np.int32)
        stages, methods, figures = [], [], []
        checks = 0
        for index, (first, last) in enumerate(segments):
            cluster = np.array(clusters[index], dtype=np.int32)
            task = _StageTask(self, first, last, cluster, occupied)
            options = task.options(retained[index])
            checks += task.checks
            if not options:
                return self._exhausted(index, (first, last), cluster.size, checks)
            method, local, figure = _best(options)
            core_of[task.begin : task.end] = cluster[local]
            methods.append(method)
            figures.append(figure)
            stages.append(
                Stage(index, tuple(range(first, last)), tuple(sorted(clusters[index])))
            )
        return Placed(
            Placement.in_task_order(core_of, cores, tuple(stages)),
            tuple(methods),
            tuple(figures),
            checks,
        )

    def _memory_ns(self, segments: Sequence[tuple[int, int]]) -> IntArray:
        """[T] time (ns) each task's core spends on shared memory for it.

        It depends on the partition alone, not on the cores.
        """
        graph = self.evaluator.problem.graph
        stage_of = np.zeros(graph.task_count, dtype=np.int32)
        for index, (first, last) in enumerate(segments):
            stage_of[self._task_ptr[first] : self._task_ptr[last]] = index
        return self.evaluator.task_memory_ns(stage_of)

    def _exhausted(
        self, stage: int, groups: tuple[int, int], cores: int, checks: int
    ) -> PlacementExhausted:
        outcome = self._construct(*groups, cores)
        if isinstance(outcome, Packed):
            raise InternalError(f"stage {stage} is packed but was not placed")
        counts = PackingCounts()
        if isinstance(outcome, PackingExhausted):
            counts = outcome.counts
        return PlacementExhausted(stage, groups, cores, checks, counts, outcome.verdict)

    def _construct(self, first: int, last: int, cores: int) -> PackingOutcome:
        """The shared constructor's answer; the same question is asked once."""
        key = (first, last, cores)
        if key not in self._constructed:
            tasks = range(int(self._task_ptr[first]), int(self._task_ptr[last]))
            outcome = pack_resident(
                self.weights,
                tasks,
                cores,
                self.evaluator.problem.costs.execution_ns.astype(np.int64),
            )
            self.recovery.note(outcome)
            self._constructed[key] = outcome
        return self._constructed[key]


_Option = tuple[StageMethod, IndexArray, StageFigures]


def _best(options: Sequence[_Option]) -> _Option:
    least = min(figure.demand_ns for _, _, figure in options)
    close = [o for o in options if 100 * o[2].demand_ns <= 101 * least]
    return min(close, key=lambda o: (o[2].span_ns, o[2].demand_ns, o[2].load_ns))


class _StageTask:
    """The placement of one stage: tasks begin .. end-1 on a cluster of k cores.

    Local cores 0 .. k-1 are positions in the cluster.
    """

    def __init__(
        self,
        placer: StagePlacer,
        first: int,
        last: int,
        cluster: IndexArray,
        memory_ns: IntArray,
    ) -> None:
        evaluator = placer.evaluator
        self.placer, self.first, self.last = placer, first, last
        self.begin = int(placer._task_ptr[first])
        self.end = int(placer._task_ptr[last])
        self.cores = int(cluster.size)
        pairs = np.ix_(cluster, cluster)
        self.handshake = np.ascontiguousarray(evaluator.links.handshake_ns[pairs])
        self.unit = np.ascontiguousarray(evaluator.links.unit_ns[pairs])
        table = evaluator.execution_ns[self.begin : self.end]
        self.alike = table.shape[1] == 1
        if self.alike:
            self.work = np.ascontiguousarray(table)
        else:
            self.work = np.ascontiguousarray(table[:, cluster])
        self.memory = memory_ns[self.begin : self.end].copy()
        self.checks = 0

    def options(self, retained: IndexArray | None) -> list[_Option]:
        """All legal assignments, in the order of the module docstring."""
        found: list[_Option] = []
        limit = -1
        if retained is not None:
            retained = self._checked(retained)
            limit = self._figures(retained).load_ns
        for rule, method in enumerate(_RULES):
            if method is StageMethod.REUSE and limit < 0:
                limit = self._fair_share()
            local, checks = self._greedy(rule, limit)
            self.checks += checks
            if local.size:
                found.append((method, local, self._figures(local)))
        if not found:
            outcome = self.placer._construct(self.first, self.last, self.cores)
            if isinstance(outcome, Packed):
                local = self._exchanged(outcome.core_of.astype(np.int32))
                found.append((StageMethod.CONSTRUCTED, local, self._figures(local)))
        if retained is not None:
            local = self._exchanged(retained)
            found.append((StageMethod.RETAINED, local, self._figures(local)))
        return found

    def _fair_share(self) -> int:
        """A load limit (ns) when there is no assignment to measure."""
        least = self.work.min(axis=1)
        if not least.size:
            return 0
        return max(-(-int(least.sum()) // self.cores), int(least.max()))

    def _checked(self, retained: IndexArray) -> IndexArray:
        local = np.array(retained, dtype=np.int32)
        where = f"retained assignment of groups {self.first} to {self.last - 1}"
        if local.shape != (self.end - self.begin,):
            raise InternalError(f"{where}: {local.size} tasks")
        if local.size and not 0 <= local.min() <= local.max() < self.cores:
            raise InternalError(f"{where}: outside its {self.cores} cores")
        weights = self.placer.weights
        full = first_overfull(
            weights.task_class[self.begin : self.end],
            weights.class_ptr,
            weights.class_idx,
            weights.slots,
            weights.capacity,
            local,
            self.cores,
        )
        if full >= 0:
            raise InternalError(f"{where}: core {full} is above its capacity")
        return local

    def _greedy(self, rule: int, limit: int) -> tuple[IndexArray, int]:
        placer, weights = self.placer, self.placer.weights
        local, checks = greedy(
            rule,
            limit,
            self.begin,
            placer._pred_ptr,
            placer._pred_src,
            placer._messages,
            placer._units,
            placer._ends,
            self.handshake,
            self.unit,
            self.work,
            self.memory,
            weights.task_class[self.begin : self.end],
            weights.class_ptr,
            weights.class_idx,
            weights.slots,
            weights.capacity,
        )
        return local, int(checks)

    def _figures(self, local: IndexArray) -> StageFigures:
        placer = self.placer
        demand, span, load = stage_figures(
            self.begin,
            placer._pred_ptr,
            placer._pred_src,
            placer._messages,
            placer._units,
            placer._ends,
            self.handshake,
            self.unit,
            self.work,
            self.memory,
            local,
        )
        return StageFigures(int(demand), int(span), int(load))

    def _exchanged(self, local: IndexArray) -> IndexArray:
        """The assignment with whole cores exchanged for shorter transfers."""
        if not self.alike or self.cores < 2:
            return local
        placer = self.placer
        messages, units = traffic(
            self.begin,
            placer._pred_ptr,
            placer._pred_src,
            placer._messages,
            placer._units,
            local,
            self.cores,
        )
        seat = exchange(messages, units, self.handshake, self.unit, _EXCHANGE_PASSES)
        result: IndexArray = seat[local]
        return result
