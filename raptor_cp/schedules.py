"""Schedules: placement, per-core order, stages, cost summary.

``Placement`` is a decision; ``Schedule`` is a decision with its estimated starts
and cost summary (filled in by :mod:`raptor_cp.static_evaluation`).  Times are ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.target import Resources, TaskCosts

IndexArray = NDArray[np.int32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Problem:
    """What every scheduling step looks at: graph, its costs, the chip."""

    graph: ComputeGraph
    costs: TaskCosts
    resources: Resources


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous run of operation groups and the cores it owns (ascending)."""

    index: int
    groups: tuple[int, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Placement:
    """Where and in which order every task runs.

    Attributes:
        core_of: [T] int32 core of each task.
        order: for each of the P cores its tasks in execution order (slots 0..n-1).
        stages: pipeline stages in order; empty in latency mode.  The cores of all
            stages are disjoint; a stage may own idle cores.
    """

    core_of: IndexArray
    order: tuple[tuple[int, ...], ...]
    stages: tuple[Stage, ...] = ()

    @classmethod
    def in_task_order(
        cls, core_of: IndexArray, cores: int, stages: tuple[Stage, ...] = ()
    ) -> Placement:
        """Every core runs its tasks by ascending id, which is topological."""
        frozen = np.array(core_of, dtype=np.int32)
        frozen.setflags(write=False)
        order: list[list[int]] = [[] for _ in range(cores)]
        for task, core in enumerate(frozen.tolist()):
            order[core].append(task)
        return cls(frozen, tuple(tuple(tasks) for tasks in order), stages)

    def stage_of_core(self, cores: int) -> IndexArray:
        """[P] stage index of each core, -1 for a core outside all stages."""
        result = np.full(cores, -1, dtype=np.int32)
        for stage in self.stages:
            result[list(stage.cores)] = stage.index
        return result

    def key(self) -> tuple[bytes, tuple[tuple[int, ...], ...], bytes]:
        """Identity for de-duplication, inactive cores' stages included."""
        return (
            self.core_of.tobytes(),
            self.order,
            self.stage_of_core(len(self.order)).tobytes(),
        )


@dataclass(frozen=True, slots=True)
class CostSummary:
    """Static costs of a schedule (spec: Costs and interpretation); ns.

    Attributes:
        serial_work_ns: sum of all execution times.
        core_work_ns: [P] execution time on each core.
        critical_path_ns: longest dependency path, transfers included, core order
            not.
        transfer_work_ns: sum of all transfers between different cores.
        completion_ns: end of one inference, core order included.
        stage_spans_ns: per stage, completion inside the stage alone (no cross-stage
            routing, no restart, no contention).
        stage_loads_ns: per stage, the largest core load.
        memory_service_ns: serialized shared-memory service of one inference: cut
            stores and loads, and the baseline traffic.
        static_objective_ns: max over stages of max(load, dependency span).
        static_interval_ns: max(largest core work, memory service, largest stage
            span): the static estimate of the initiation interval.
    """

    serial_work_ns: int
    core_work_ns: tuple[int, ...]
    critical_path_ns: int
    transfer_work_ns: int
    completion_ns: int
    stage_spans_ns: tuple[int, ...]
    stage_loads_ns: tuple[int, ...]
    memory_service_ns: int
    static_objective_ns: int
    static_interval_ns: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """A placement with its evaluation.

    Attributes:
        problem: the graph, costs and chip it was made for.
        placement: the decision.
        start_ns: [T] estimated start of each task in one inference.
        slot: [T] position of each task on its core, contiguous from 0.
        equivalence_classes: task ids by publication equivalence, each ascending.
        summary: static costs.
    """

    problem: Problem
    placement: Placement
    start_ns: IntArray
    slot: IndexArray
    equivalence_classes: tuple[tuple[int, ...], ...]
    summary: CostSummary

    def __repr__(self) -> str:
        graph, cores = self.problem.graph, self.placement.order
        return (
            f"<Schedule of {graph.name!r}: {len(graph.tasks)} tasks on "
            f"{sum(1 for tasks in cores if tasks)} of {len(cores)} cores, "
            f"{len(self.placement.stages)} stages>"
        )

    @property
    def last_tasks(self) -> tuple[int | None, ...]:
        """For each core its last task in execution order, None when idle."""
        return tuple(tasks[-1] if tasks else None for tasks in self.placement.order)
