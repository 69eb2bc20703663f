"""The ``pe`` target: tasks are command lists, priced by the element model.

A task's execution time is what the element needs for its commands, dispatch included;
dispatch is also kept apart (:meth:`PeTarget.task_dispatch`), and recomputed from the
formula by :func:`check_task_costs`.  One weight slot is one byte of local memory.
Cycles become whole nanoseconds here, once, rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.graph.work import CommandWork, ExplicitWork
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts, Unavailable
from raptor_cp.targets.pe.commands import PeCommand
from raptor_cp.targets.pe.cost_model import CompositeTooLarge
from raptor_cp.targets.pe.kernel import replay
from raptor_cp.targets.pe.op_log import Issue, OpLog, Wait
from raptor_cp.targets.pe.workload import compute_graph
from raptor_cp.units import ceil_div, checked_ns

if TYPE_CHECKING:
    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.graph.work import Work
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.target import RealizedCompletion, RealizedCost
    from raptor_cp.targets.pe.timeline import ElementCost
    from raptor_cp.targets.pe.topology import PeAttributes, PeTopology, Rate


@dataclass(frozen=True, slots=True)
class TaskDispatch:
    """Dispatch of one task on one element.

    Attributes:
        commands: issued.
        dispatch_cycles: by the formula, exact.
        dispatch_ns: the same on the element's clock, exact.
        execution_ns: of the task, dispatch included, whole.
    """

    commands: int
    dispatch_cycles: Fraction
    dispatch_ns: Fraction
    execution_ns: int


class PeTarget:
    """Processing elements of a topology, one core each."""

    name = "pe"

    def __init__(self, topology: PeTopology) -> None:
        self.topology = topology
        elements = topology.elements
        first = elements[0]
        self._kinds = tuple(dict.fromkeys(elements))
        width, unit = _exact_rate(topology.link, first)
        handshake = _whole_ns(first, topology.link.setup_cycles)
        dma_width, dma_unit = _exact_rate(first.dma, first)
        setup = _whole_ns(first, first.dma.setup_cycles)
        count = len(elements)
        self._resources = Resources(
            cores=count,
            slots_per_core=min(e.capacity_bytes for e in elements),
            links=LinkModel(
                _between(count, handshake), _between(count, unit), link_width=width
            ),
            memory=MemoryModel(
                dma_width,
                dma_unit,
                dma_unit,
                read_fixed_ns=setup,
                write_fixed_ns=setup,
            ),
            local_memory_bytes=min(e.capacity_bytes for e in elements),
        )
        self._known: dict[tuple[OpLog, int], ElementCost] = {}

    def compute_graph(self, loaded: LoadedScenario) -> ComputeGraph:
        """Tasks of a kernel, or of command lists.

        Raises:
            MalformedInput: another kind of network, or a composite above the cap.
        """
        return compute_graph(loaded, self.topology.elements[0])

    def extract_events(self, plan: ExecutionPlan) -> PlanEvents | Unavailable:
        """Events: transfers take their link's time, shared memory serves in order."""
        from raptor_cp.realization.events import extract_events
        from raptor_cp.realization.neutral_events import NeutralTimes

        return extract_events(plan, NeutralTimes(plan.schedule.problem))

    def estimate_realized_schedule_cost(self, plan: ExecutionPlan) -> RealizedCost:
        """Transfers take their link's time, shared memory serves in order."""
        from raptor_cp.realization.cost import realized_cost

        return realized_cost(plan, self.extract_events)

    def estimate_completion(self, plan: ExecutionPlan) -> RealizedCompletion:
        """One inference alone; transfers occupy both of their ends."""
        from raptor_cp.realization.cost import realized_completion
        from raptor_cp.realization.events import extract_events
        from raptor_cp.realization.neutral_events import NeutralTimes

        times = NeutralTimes(plan.schedule.problem)
        return realized_completion(
            plan, lambda realized: extract_events(realized, times)
        )

    def audit_costs(self, graph: ComputeGraph) -> None:
        """See :func:`check_task_costs`."""
        check_task_costs(self, graph)

    def resources(self) -> Resources:
        """Elements as cores; their links, DMA and local memory."""
        return self._resources

    def work_ns(self, work: Work) -> int | Unavailable:
        """Execution time on the cheapest element."""
        if isinstance(work, ExplicitWork):
            return min(work.execution_ns)
        if isinstance(work, CommandWork):
            log = command_log(work)
            return min(self._ns(log, kind) for kind in range(len(self._kinds)))
        return Unavailable("the pe target runs command lists, not network layers")

    def costs(self, graph: ComputeGraph) -> TaskCosts:
        """[T, P] execution times; a note says how much of them is dispatch.

        Raises:
            CompositeTooLarge: a composite above the cap of an element.
            MalformedInput: a task without commands or explicit times.
        """
        cores = self._resources.cores
        kind = [self._kinds.index(e) for e in self.topology.elements]
        table = np.empty((graph.task_count, cores), np.int64)
        for index, task in enumerate(graph.tasks):
            where = f"graph {graph.name!r}, task {task.name!r}"
            if isinstance(task.work, ExplicitWork):
                given = task.work.execution_ns
                if len(given) not in (1, cores):
                    raise MalformedInput(
                        "wrong number of execution times",
                        where=where,
                        value=len(given),
                        expected=f"one, or one for each of the {cores} elements",
                    )
                table[index] = given[0] if len(given) == 1 else given
                continue
            if not isinstance(task.work, CommandWork):
                raise MalformedInput(
                    "has no commands", where=where, expected="commands (target pe)"
                )
            log = command_log(task.work)
            try:
                times = [self._ns(log, k) for k in range(len(self._kinds))]
            except CompositeTooLarge as error:
                raise CompositeTooLarge(error.composite, error.model, where) from None
            table[index] = [times[k] for k in kind]
        notes = self._notes(graph)
        dispatch = np.array(
            [
                ceil_div(task.dispatch_ns.numerator, task.dispatch_ns.denominator)
                for task in self.task_dispatch(graph)
            ],
            dtype=np.int64,
        )
        parts = (("dispatch_ns", dispatch),)
        if bool((table == table[:, :1]).all()):
            return TaskCosts(table[:, 0].copy(), notes=notes, components=parts)
        return TaskCosts(table.max(axis=1), table, notes, parts)

    def task_dispatch(self, graph: ComputeGraph, core: int = 0) -> list[TaskDispatch]:
        """Dispatch of every task on an element; zero for explicit times."""
        kind = self._kinds.index(self.topology.elements[core])
        found = []
        for task in graph.tasks:
            if not isinstance(task.work, CommandWork):
                execution = self.work_ns(task.work)
                whole = execution if isinstance(execution, int) else 0
                found.append(TaskDispatch(0, Fraction(0), Fraction(0), whole))
                continue
            log = command_log(task.work)
            cost = self._cost(log, kind)
            found.append(
                TaskDispatch(
                    len(log.commands),
                    cost.dispatch_cycles,
                    cost.dispatch_ns,
                    self._ns(log, kind),
                )
            )
        return found

    def _notes(self, graph: ComputeGraph) -> tuple[str, ...]:
        tasks = [d for d in self.task_dispatch(graph) if d.commands]
        if not tasks:
            return ()
        dispatch = sum((d.dispatch_ns for d in tasks), Fraction(0))
        execution = sum(d.execution_ns for d in tasks)
        return (
            f"dispatch: {sum(d.commands for d in tasks):,} commands cost"
            f" {round(dispatch):,} ns of CPU time, within {execution:,} ns of execution"
            " (element 0)",
        )

    def _cost(self, log: OpLog, kind: int) -> ElementCost:
        key = (log, kind)
        if key not in self._known:
            self._known[key] = replay(log, self._kinds[kind]).cost()
        return self._known[key]

    def _ns(self, log: OpLog, kind: int) -> int:
        exact = self._cost(log, kind).total_ns
        return checked_ns(ceil_div(exact.numerator, exact.denominator), "task time")


def command_log(work: CommandWork) -> OpLog:
    """The commands of a task as a log; waits may stand among them.

    Raises:
        InternalError: something else stands among them.
    """
    entries: list[Issue | Wait] = []
    for item in work.commands:
        if isinstance(item, (Issue, Wait)):
            entries.append(item)
        elif isinstance(item, PeCommand):
            entries.append(Issue(item))
        else:
            raise InternalError(f"not a command: {item!r}")
    return OpLog(tuple(entries))


def check_task_costs(target: PeTarget, graph: ComputeGraph) -> None:
    """Recompute dispatch and cap of every task from the formula alone.

    Raises:
        CompositeTooLarge: a composite above the cap.
        InternalError: a task's dispatch is not what the formula gives, or it takes
            more CPU time than the task takes altogether.
    """
    for core, attributes in enumerate(target.topology.elements):
        model = attributes.cost_model
        for task, found in zip(
            graph.tasks, target.task_dispatch(graph, core), strict=True
        ):
            if not isinstance(task.work, CommandWork):
                continue
            where = f"task {task.name!r} on element {core}"
            total = Fraction(0)
            for command in command_log(task.work).commands:
                model.check_cap(command, where=where)
                total += model.dispatch_cycles(command)
            if total != found.dispatch_cycles:
                raise InternalError(
                    f"{where}: dispatch {found.dispatch_cycles}, by formula {total}"
                )
            if found.dispatch_ns > found.execution_ns:
                raise InternalError(f"{where}: dispatch is longer than execution")


def _whole_ns(attributes: PeAttributes, cycles: Fraction) -> int:
    exact = attributes.cycles_to_ns(cycles)
    return ceil_div(exact.numerator, exact.denominator)


def _exact_rate(rate: Rate, attributes: PeAttributes) -> tuple[int, int]:
    """Whole bytes in whole ns: ``p / q`` bytes a ns are ``p`` bytes in ``q`` ns."""
    bytes_per_ns = rate.per_cycle * attributes.clock_freq_ghz
    return bytes_per_ns.numerator, bytes_per_ns.denominator


def _between(count: int, value: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    matrix = np.full((count, count), value, np.int64)
    np.fill_diagonal(matrix, 0)
    matrix.setflags(write=False)
    return matrix
