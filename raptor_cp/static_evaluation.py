"""The evaluator: what a placement costs before anything is simulated.

Scheduling spec, 'Costs and interpretation'.  All times are ns.  Definitions:

Edge time
    of a dependency (u, v) at a placement.  0 on one core or for no bytes; the direct
    transfer of all its bytes (:class:`~raptor_cp.target.LinkModel`) inside a stage
    and in latency mode; across stages, through shared memory: what the stores of the
    publications of u that v reads and the loads of v cost their cores.
Critical path
    longest path of execution and edge times, without the order on the cores.
Completion
    the same with that order; its earliest starts are the estimated starts.
Stage span
    completion of the tasks of one stage when nothing else exists.
Memory service
    serialized service of one inference: one store for each publication that is
    read in another stage, one load for each consumer transfer that crosses stages
    (several loads of one publication on one core stay several), and the baseline
    accesses.  A scalar publication is stored for each crossing transfer, each of
    its source runs rounded alone.  An explicit edge with bytes counts as a
    publication of its own.
Static objective
    maximum over stages of max(largest core load, longest dependency path of
    execution times inside the stage): what the initial partition minimizes.
Static interval
    max(largest core load, memory service, largest stage span).

In latency mode (no stages) the chip is one stage for the last two figures, and its
span is the completion.  Evaluation takes ``O(T + E + F + P)`` time, ``O(T + E + P)``
storage, with F consumer transfers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.equivalence import equivalence_classes
from raptor_cp.errors import InternalError
from raptor_cp.memory_demand import MemoryTables as MemoryTables  # re-exported
from raptor_cp.schedules import CostSummary, Schedule

if TYPE_CHECKING:
    from raptor_cp.schedules import Placement, Problem
    from raptor_cp.target import LinkModel

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]


def evaluate(problem: Problem, placement: Placement) -> Schedule:
    """Evaluate one placement; see :class:`StaticEvaluator` for many.

    Raises:
        InternalError: the placement is not one of this problem (a task missing or
            twice, an unknown core or group) or its order contradicts a dependency.
    """
    return StaticEvaluator(problem).schedule(placement)


@dataclass(frozen=True, eq=False)
class LinkTables:
    """A :class:`~raptor_cp.target.LinkModel` as kernel arguments."""

    handshake_ns: IntArray
    unit_ns: IntArray
    link_width: int
    endpoint_width: int
    endpoint_ns: int

    @classmethod
    def of(cls, links: LinkModel) -> LinkTables:
        """Contiguous writable copies, so that kernels see one array type."""
        return cls(
            np.array(links.handshake_ns, dtype=np.int64, order="C"),
            np.array(links.unit_ns, dtype=np.int64, order="C"),
            links.link_width,
            links.endpoint_width,
            links.read_ns + links.write_ns,
        )


class StaticEvaluator:
    """Evaluates placements of one problem; the tables are built once.

    Args:
        problem: graph, costs and chip; held by reference, never changed.
    """

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.problem = problem
        self.links = LinkTables.of(problem.resources.links)
        self.memory = MemoryTables.of(problem)
        # Writable copies: a read-only array is another type to a kernel.
        self.edge_ptr = graph.edge_ptr.copy()
        self.edge_dst = graph.edge_dst.copy()
        self.edge_bytes = graph.edge_bytes.copy()
        self.edge_memory_ns = self.memory.edge_ns(self.edge_ptr, self.edge_dst)
        table = problem.costs.per_core_ns
        if table is None:
            table = problem.costs.execution_ns[:, None]
        #: [T, P] execution times, or [T, 1] when all cores are alike.
        self.execution_ns: IntArray = np.array(table, dtype=np.int64, order="C")
        self._classes: tuple[tuple[int, ...], ...] | None = None

    @property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        """Equivalence classes of the graph's tasks."""
        if self._classes is None:
            self._classes = equivalence_classes(self.problem.graph)
        return self._classes

    def schedule(self, placement: Placement) -> Schedule:
        """The placement with starts, slots, classes and costs.

        Raises:
            InternalError: see :func:`evaluate`.
        """
        cores = self.problem.resources.cores
        core_of = np.array(placement.core_of, dtype=np.int32)
        slot, following = self._positions(placement)
        stage_of = self.stage_of_task(placement)
        stages = len(placement.stages)
        work = _placed_work(self.execution_ns, core_of)
        edge_ns = self.edge_times(core_of, stage_of)
        order, start = _earliest_starts(
            self.edge_ptr, self.edge_dst, edge_ns, work, following
        )
        if order.size < work.size:
            raise InternalError(
                f"{self.problem.graph.name}: the order on the cores contradicts the "
                f"dependencies of {work.size - order.size} tasks"
            )
        core_work = np.zeros(cores, dtype=np.int64)
        np.add.at(core_work, core_of, work)
        spans, chains = _stage_spans(
            self.edge_ptr,
            self.edge_dst,
            edge_ns,
            work,
            following,
            order,
            stage_of,
            max(stages, 1),
        )
        loads = [int(core_work.max())]
        if stages:
            loads = [int(core_work[list(s.cores)].max()) for s in placement.stages]
        service, _ = self.memory_demand(core_of, stage_of)
        completion = int((start + work).max())
        summary = CostSummary(
            serial_work_ns=int(work.sum()),
            core_work_ns=tuple(core_work.tolist()),
            critical_path_ns=_longest_path(self.edge_ptr, self.edge_dst, edge_ns, work),
            transfer_work_ns=int(edge_ns.sum()),
            completion_ns=completion,
            stage_spans_ns=tuple(spans.tolist()) if stages else (),
            stage_loads_ns=tuple(loads) if stages else (),
            memory_service_ns=service,
            static_objective_ns=max(
                max(pair) for pair in zip(loads, chains.tolist(), strict=True)
            ),
            static_interval_ns=max(int(core_work.max()), service, int(spans.max())),
        )
        for array in (start, slot):
            array.setflags(write=False)
        return Schedule(self.problem, placement, start, slot, self.classes, summary)

    def stage_of_task(self, placement: Placement) -> IndexArray:
        """[T] stage that owns each task's group; all 0 in latency mode.

        Raises:
            InternalError: a group is in no stage or unknown.
        """
        graph = self.problem.graph
        groups = len(graph.operations)
        if not placement.stages:
            return np.zeros(graph.task_count, dtype=np.int32)
        owner = np.full(groups, -1, dtype=np.int32)
        for index, stage in enumerate(placement.stages):
            if any(not 0 <= group < groups for group in stage.groups):
                raise InternalError(f"stage {index} has an unknown group")
            owner[list(stage.groups)] = index
        result: IndexArray = owner[graph.task_operation]
        if result.min() < 0:
            raise InternalError("a group with tasks is in no stage")
        return result

    def edge_times(self, core_of: IndexArray, stage_of: IndexArray) -> IntArray:
        """[E] edge times (ns) in the order of ``ComputeGraph.edge_dst``."""
        links = self.links
        result: IntArray = _edge_times(
            self.edge_ptr,
            self.edge_dst,
            self.edge_bytes,
            self.edge_memory_ns,
            core_of,
            stage_of,
            links.handshake_ns,
            links.unit_ns,
            links.link_width,
            links.endpoint_width,
            links.endpoint_ns,
        )
        return result

    def memory_demand(
        self, core_of: IndexArray, stage_of: IndexArray
    ) -> tuple[int, IntArray]:
        """Memory service of one inference, and [P] core time spent on it (ns)."""
        return self._memory(core_of, stage_of, self.problem.resources.cores)

    def task_memory_ns(self, stage_of: IndexArray) -> IntArray:
        """[T] time (ns) a task's core spends on shared memory for it."""
        alone = np.arange(stage_of.size, dtype=np.int32)
        return self._memory(alone, stage_of, stage_of.size)[1]

    def transfer_demand(self, core_of: IndexArray, stage_of: IndexArray) -> IntArray:
        """[P] incident-transfer demand: time (ns) a core spends on transfers.

        A direct transfer occupies both of its ends for its whole time (blocking
        SEND and RECV); stores, loads and baseline accesses occupy their core.
        """
        _, demand = self.memory_demand(core_of, stage_of)
        edge_ns = self.edge_times(core_of, stage_of)
        _add_direct(self.edge_ptr, self.edge_dst, edge_ns, core_of, stage_of, demand)
        return demand

    def _memory(
        self, core_of: IndexArray, stage_of: IndexArray, cores: int
    ) -> tuple[int, IntArray]:
        memory = self.memory
        demand = np.zeros(cores, dtype=np.int64)
        np.add.at(demand, core_of, memory.baseline_core)
        service = _cut_service(
            memory.producer,
            memory.store_service,
            memory.store_core,
            memory.scalar,
            memory.publication,
            memory.consumer,
            memory.load_service,
            memory.load_core,
            core_of,
            stage_of,
            demand,
        )
        return int(service) + memory.baseline_service_ns, demand

    def _positions(self, placement: Placement) -> tuple[IndexArray, IndexArray]:
        """[T] slot and [T] next task on the core (-1 for the last one)."""
        tasks, cores = self.problem.graph.task_count, self.problem.resources.cores
        if len(placement.order) != cores or placement.core_of.shape != (tasks,):
            raise InternalError("the placement is not one of this problem")
        slot = np.full(tasks, -1, dtype=np.int32)
        following = np.full(tasks, -1, dtype=np.int32)
        for core, sequence in enumerate(placement.order):
            previous = -1
            for position, task in enumerate(sequence):
                if not 0 <= task < tasks or slot[task] >= 0:
                    raise InternalError(f"task {task} is unknown or is placed twice")
                if placement.core_of[task] != core:
                    raise InternalError(f"task {task} is in the order of core {core}")
                slot[task] = position
                if previous >= 0:
                    following[previous] = task
                previous = task
        if tasks and slot.min() < 0:
            raise InternalError(f"task {int(slot.argmin())} is in no core's order")
        return slot, following


@njit(cache=True)
def _placed_work(execution_ns: IntArray, core_of: IndexArray) -> IntArray:
    result = np.empty(core_of.size, dtype=np.int64)
    alike = execution_ns.shape[1] == 1
    for task in range(core_of.size):
        result[task] = execution_ns[task, 0 if alike else core_of[task]]
    return result


@njit(cache=True)
def _edge_times(
    edge_ptr: IndexArray,
    edge_dst: IndexArray,
    edge_bytes: IntArray,
    edge_memory_ns: IntArray,
    core_of: IndexArray,
    stage_of: IndexArray,
    handshake_ns: IntArray,
    unit_ns: IntArray,
    link_width: int,
    endpoint_width: int,
    endpoint_ns: int,
) -> IntArray:
    result = np.zeros(edge_dst.size, dtype=np.int64)
    for source in range(core_of.size):
        tail = core_of[source]
        for edge in range(edge_ptr[source], edge_ptr[source + 1]):
            size, target = edge_bytes[edge], edge_dst[edge]
            head = core_of[target]
            if size == 0:
                continue
            if stage_of[source] != stage_of[target]:
                result[edge] = edge_memory_ns[edge]
            elif tail != head:
                result[edge] = (
                    handshake_ns[tail, head]
                    + (size + link_width - 1) // link_width * unit_ns[tail, head]
                    + (size + endpoint_width - 1) // endpoint_width * endpoint_ns
                )
    return result


@njit(cache=True)
def _longest_path(
    edge_ptr: IndexArray, edge_dst: IndexArray, edge_ns: IntArray, work: IntArray
) -> int:
    """Longest path; ids are a topological order."""
    ready = np.zeros(work.size, dtype=np.int64)
    longest = 0
    for task in range(work.size):
        end = ready[task] + work[task]
        longest = max(longest, end)
        for edge in range(edge_ptr[task], edge_ptr[task + 1]):
            target = edge_dst[edge]
            ready[target] = max(ready[target], end + edge_ns[edge])
    return longest


@njit(cache=True)
def _earliest_starts(
    edge_ptr: IndexArray,
    edge_dst: IndexArray,
    edge_ns: IntArray,
    work: IntArray,
    following: IndexArray,
) -> tuple[IndexArray, IntArray]:
    """A topological order of dependencies and core order, and [T] starts.

    The order is shorter than T when there is a cycle.
    """
    tasks = work.size
    waiting = np.zeros(tasks, dtype=np.int32)
    for target in edge_dst:
        waiting[target] += 1
    for target in following:
        if target >= 0:
            waiting[target] += 1
    order = np.empty(tasks, dtype=np.int32)
    start = np.zeros(tasks, dtype=np.int64)
    filled = 0
    for task in range(tasks):
        if waiting[task] == 0:
            order[filled] = task
            filled += 1
    position = 0
    while position < filled:
        task = order[position]
        position += 1
        end = start[task] + work[task]
        for edge in range(edge_ptr[task], edge_ptr[task + 1]):
            target = edge_dst[edge]
            start[target] = max(start[target], end + edge_ns[edge])
            waiting[target] -= 1
            if waiting[target] == 0:
                order[filled] = target
                filled += 1
        target = following[task]
        if target >= 0:
            start[target] = max(start[target], end)
            waiting[target] -= 1
            if waiting[target] == 0:
                order[filled] = target
                filled += 1
    return order[:filled].copy(), start


@njit(cache=True)
def _stage_spans(
    edge_ptr: IndexArray,
    edge_dst: IndexArray,
    edge_ns: IntArray,
    work: IntArray,
    following: IndexArray,
    order: IndexArray,
    stage_of: IndexArray,
    stages: int,
) -> tuple[IntArray, IntArray]:
    """[S] span with transfers and core order, [S] dependency span without both."""
    ready = np.zeros(work.size, dtype=np.int64)
    depth = np.zeros(work.size, dtype=np.int64)
    spans = np.zeros(stages, dtype=np.int64)
    chains = np.zeros(stages, dtype=np.int64)
    for task in order:
        stage = stage_of[task]
        end, deep = ready[task] + work[task], depth[task] + work[task]
        spans[stage] = max(spans[stage], end)
        chains[stage] = max(chains[stage], deep)
        for edge in range(edge_ptr[task], edge_ptr[task + 1]):
            target = edge_dst[edge]
            if stage_of[target] == stage:
                ready[target] = max(ready[target], end + edge_ns[edge])
                depth[target] = max(depth[target], deep)
        target = following[task]
        if target >= 0:
            ready[target] = max(ready[target], end)
    return spans, chains


@njit(cache=True)
def _cut_service(
    producer: IndexArray,
    store_service: IntArray,
    store_core: IntArray,
    scalar: NDArray[np.bool_],
    publication: IndexArray,
    consumer: IndexArray,
    load_service: IntArray,
    load_core: IntArray,
    core_of: IndexArray,
    stage_of: IndexArray,
    demand: IntArray,
) -> int:
    """Service (ns) of what crosses stages; its core time is added to ``demand``."""
    stored = np.zeros(producer.size, dtype=np.bool_)
    service = 0
    for move in range(publication.size):
        source = publication[move]
        writer, reader = producer[source], consumer[move]
        if stage_of[writer] == stage_of[reader]:
            continue
        service += load_service[move]
        demand[core_of[reader]] += load_core[move]
        if scalar[source] or not stored[source]:
            stored[source] = True
            service += store_service[source]
            demand[core_of[writer]] += store_core[source]
    return service


@njit(cache=True)
def _add_direct(
    edge_ptr: IndexArray,
    edge_dst: IndexArray,
    edge_ns: IntArray,
    core_of: IndexArray,
    stage_of: IndexArray,
    demand: IntArray,
) -> None:
    for source in range(core_of.size):
        for edge in range(edge_ptr[source], edge_ptr[source + 1]):
            target = edge_dst[edge]
            if stage_of[source] == stage_of[target]:
                demand[core_of[source]] += edge_ns[edge]
                demand[core_of[target]] += edge_ns[edge]
