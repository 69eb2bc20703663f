"""The pimsim-nn chip as a :class:`~raptor_cp.target.SchedulingTarget`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.widths import Accumulators
from raptor_cp.graph.work import SliceWork, Work
from raptor_cp.network.attributes import OpKind
from raptor_cp.target import (
    BackendResult,
    LinkModel,
    MatrixArray,
    MemoryModel,
    Resources,
    TaskCosts,
    Unavailable,
)
from raptor_cp.targets.pim.costs import CostModel, refusals
from raptor_cp.targets.pim.matrix_costs import Machine
from raptor_cp.targets.pim.timing import PimTiming

if TYPE_CHECKING:
    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.network.structure import Network
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.target import RealizedCompletion, RealizedCost
    from raptor_cp.targets.pim.config import PimConfig


class PimTarget:
    """A chip of processing-in-memory cores.

    Args:
        config: the chip, overrides included.

    Raises:
        MalformedInput: a rate is outside the supported numeric range.
    """

    name = "pim"

    def __init__(self, config: PimConfig) -> None:
        self.config = config
        self.timing = PimTiming.from_config(config)
        matrix = config.core.matrix
        self.machine = Machine(
            timing=self.timing,
            array=MatrixArray(
                matrix.xbar_rows, matrix.xbar_cols, matrix.cell_precision
            ),
            local_memory_bytes=config.core.local_memory.size_bytes,
        )
        self._costs = CostModel(self.machine)
        self._resources = _resources(config, self.timing, self.machine)

    def resources(self) -> Resources:
        """Cores, slots, links, memory.

        A direct transfer costs one control message each way, a local read, the
        payload, and a local write.  Reads of the shared memory send one control
        message (the farthest core's latency is charged) and their data travel back
        free; writes carry their payload.
        """
        return self._resources

    def work_ns(self, work: Work) -> int | Unavailable:
        """Execution time (ns) of one piece of work; all cores are alike."""
        return self._costs.price(work)

    def costs(self, graph: ComputeGraph) -> TaskCosts:
        """Execution times of every task.

        Raises:
            MalformedInput: some work cannot be priced; the message names the task.
        """
        times = np.zeros(graph.task_count, dtype=np.int64)
        noted: dict[str, None] = {}
        previous: object = None
        for index, task in enumerate(graph.tasks):
            price = self._costs.price(task.work)
            if isinstance(price, Unavailable):
                raise MalformedInput(
                    f"no execution time: {price.reason}",
                    where=f"compute graph {graph.name!r}, task {task.name!r}",
                )
            times[index] = price
            if isinstance(task.work, SliceWork):
                operation = task.work.operation
                if operation is not previous:
                    previous = operation
                    for note in _notes(task.work):
                        noted[note] = None
        times.setflags(write=False)
        return TaskCosts(times, notes=tuple(noted))

    def extract_events(self, plan: ExecutionPlan) -> PlanEvents | Unavailable:
        """Execution events of a plan by the simulator's timing rules."""
        from raptor_cp.targets.pim.plan_events import plan_events

        return plan_events(plan, self.timing)

    def estimate_realized_schedule_cost(self, plan: ExecutionPlan) -> RealizedCost:
        """Checks, both queue intervals and recurrence of a realized schedule."""
        from raptor_cp.targets.pim.realized_cost import (
            estimate_realized_schedule_cost,
        )

        return estimate_realized_schedule_cost(plan, self.timing)

    def lower(
        self,
        plan: ExecutionPlan,
        network: Network | None,
        *,
        accumulators: str,
        constants_resident: bool,
    ) -> BackendResult:
        """The schedule as a program for the simulator; see ``docs/codegen.md``."""
        from raptor_cp.targets.pim.backend import (
            Built,
            Refused,
            Rejected,
            build_program,
        )
        from raptor_cp.targets.pim.lowering_common import NotEmitted

        try:
            result = build_program(
                plan,
                self,
                network,
                accumulators=Accumulators(accumulators),
                constants_resident=constants_resident,
            )
            if isinstance(result, Built):
                for _ in result.records(native=True):
                    pass  # what cannot be emitted is refused before anything is written
        except NotEmitted as error:
            return BackendResult("refused", (str(error),))
        if isinstance(result, Refused):
            return BackendResult("refused", result.reasons)
        if isinstance(result, Rejected):
            return BackendResult("rejected", (result.reason,))
        return BackendResult("built", write=result.write)

    def estimate_completion(self, plan: ExecutionPlan) -> RealizedCompletion:
        """Completion of one inference alone, in both tie orders."""
        from raptor_cp.targets.pim.realized_cost import estimate_completion

        return estimate_completion(plan, self.timing)


def _notes(work: SliceWork) -> list[str]:
    operation = work.operation
    notes = [
        f"{operation.name}: {what} is not expressible, priced as vector work"
        for what in refusals(operation)
    ]
    if operation.kind is OpKind.SOFTMAX:
        notes.append(f"{operation.name}: softmax itself has no timed work")
    return notes


def _resources(config: PimConfig, timing: PimTiming, machine: Machine) -> Resources:
    cores = config.core_count
    link = np.array(timing.latency_ns[:cores, :cores])
    link[np.arange(cores), np.arange(cores)] = 0
    handshake = link + link.T
    for matrix in (link, handshake):
        matrix.setflags(write=False)
    to_memory = int(timing.latency_ns[:cores, cores].max())
    local_read, local_write = (
        timing.local_read_ns(1),
        timing.local_write_ns(1),
    )
    return Resources(
        cores=cores,
        slots_per_core=config.crossbars_per_core,
        links=LinkModel(
            handshake_ns=handshake,
            unit_ns=link,
            link_width=config.bus_width,
            endpoint_width=timing.local.width,
            read_ns=local_read,
            write_ns=local_write,
        ),
        memory=MemoryModel(
            width=timing.memory.width,
            read_ns=timing.memory_read_ns(1),
            write_ns=timing.memory_write_ns(1),
            read_fixed_ns=to_memory,
            write_fixed_ns=0,
            local_width=timing.local.width,
            local_read_ns=local_read,
            local_write_ns=local_write,
            link_width=config.bus_width,
            link_ns=to_memory,
        ),
        array=machine.array,
        positions=_positions(config),
        local_memory_bytes=machine.local_memory_bytes,
    )


def _positions(config: PimConfig) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[P, 2] row and column in the declared mesh, or in the squarest one."""
    rows, columns = config.layout
    if rows * columns < config.core_count:
        columns = max(1, round(config.core_count**0.5))
    index = np.arange(config.core_count, dtype=np.int64)
    return np.stack([index // columns, index % columns], axis=1)
