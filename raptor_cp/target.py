"""The target boundary: what a chip tells the scheduler, in target-neutral terms.

A target supplies facts (resources, costs, evidence); policy stays in the core.
Unknown support is :class:`Unavailable`, never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from raptor_cp.graph.crossbars import MatrixArray as MatrixArray  # noqa: TC001
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Unavailable as Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.graph.work import Work
    from raptor_cp.network.structure import Network
    from raptor_cp.phases import Phases
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import LoadedScenario

IntArray = NDArray[np.int64]


class AccessKind(IntEnum):
    """Direction of a shared-memory access, seen from the core."""

    READ = 0
    WRITE = 1


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """Shared-memory service of one access.

    Attributes:
        width: access width in bytes.
        beats: requests after rounding, all runs together.
        service_ns: time the (serialized) memory is occupied.
        core_ns: time the issuing core is occupied, service included, no queueing.
    """

    width: int
    beats: int
    service_ns: int
    core_ns: int


@dataclass(frozen=True, eq=False)
class LinkModel:
    """Direct transfer of B bytes from core s to core d, s != d, in ns::

        handshake_ns[s, d] + ceil(B / link_width) * unit_ns[s, d]
            + ceil(B / endpoint_width) * (read_ns + write_ns)

    ``[P, P]`` int64 arrays; the diagonal is 0 (a local result is already there).
    """

    handshake_ns: IntArray
    unit_ns: IntArray
    link_width: int
    endpoint_width: int = 1
    read_ns: int = 0
    write_ns: int = 0

    def transfer_ns(self, size: int, source: int, destination: int) -> int:
        """Completion time (ns) of a ``size``-byte transfer; 0 on one core."""
        if source == destination or size == 0:
            return 0
        return int(
            self.handshake_ns[source, destination]
            + ceil_div(size, self.link_width) * self.unit_ns[source, destination]
            + ceil_div(size, self.endpoint_width) * (self.read_ns + self.write_ns)
        )

    def transfers_ns(
        self, sizes: IntArray, sources: IntArray, destinations: IntArray
    ) -> IntArray:
        """:meth:`transfer_ns` of many transfers at once."""
        ends = -(-sizes // self.endpoint_width) * (self.read_ns + self.write_ns)
        times: IntArray = (
            self.handshake_ns[sources, destinations]
            + -(-sizes // self.link_width) * self.unit_ns[sources, destinations]
            + ends
        )
        times[(sizes == 0) | (sources == destinations)] = 0
        return times

    def distance(self) -> IntArray:
        """[P, P] symmetric topology distance used for clustering cores (ns)."""
        total = self.handshake_ns + self.unit_ns
        symmetric: IntArray = total + total.T
        return symmetric


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Shared memory: width in bytes, ns per beat; what one access costs its core.

    ``core_ns`` of a read of n bytes: ``read_fixed_ns + service +
    ceil(n/local_width)*local_write_ns``; of a write: ``write_fixed_ns +
    ceil(n/local_width)*local_read_ns + ceil(n/link_width)*link_ns + service``.
    """

    width: int
    read_ns: int
    write_ns: int
    read_fixed_ns: int = 0
    write_fixed_ns: int = 0
    local_width: int = 1
    local_read_ns: int = 0
    local_write_ns: int = 0
    link_width: int = 1
    link_ns: int = 0

    def access(self, size: int, kind: AccessKind, runs: int = 1) -> ServiceTime:
        """Service of ``size`` bytes in ``runs`` equal runs, each rounded alone."""
        run = ceil_div(size, runs)
        beats = ceil_div(run, self.width) * runs
        local = ceil_div(run, self.local_width) * runs
        if kind is AccessKind.READ:
            service = beats * self.read_ns
            core = self.read_fixed_ns * runs + service + local * self.local_write_ns
        else:
            service = beats * self.write_ns
            core = self.write_fixed_ns * runs + service + local * self.local_read_ns
            core += ceil_div(run, self.link_width) * runs * self.link_ns
        return ServiceTime(self.width, beats, service, core)


@dataclass(frozen=True, eq=False)
class Resources:
    """What the chip has.

    Attributes:
        cores: P.
        slots_per_core: core capacity in weight slots.
        links: direct transfers between cores.
        memory: the shared memory.
        array: geometry of a weight slot; None when the target has none.
        positions: [P, 2] coordinates for drawings; None when there are none.
        local_memory_bytes: per core; None when unlimited.
    """

    cores: int
    slots_per_core: int
    links: LinkModel
    memory: MemoryModel
    array: MatrixArray | None = None
    positions: IntArray | None = None
    local_memory_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class TaskCosts:
    """Execution times of all tasks of a graph.

    Attributes:
        execution_ns: [T] int64, the cost on any core (the largest when they differ).
        per_core_ns: [T, P] int64 when cores differ, otherwise None.
        notes: what was approximated or has no timed work, for reports.
        components: named parts of the execution time, [T] int64 ns each, rounded up
            (on the first core where cores differ): ``dispatch_ns`` of the pe target.
    """

    execution_ns: IntArray
    per_core_ns: IntArray | None = None
    notes: tuple[str, ...] = ()
    components: tuple[tuple[str, IntArray], ...] = ()

    def on(self, task: int, core: int) -> int:
        """Execution time (ns) of a task on a core."""
        table = self.per_core_ns
        return int(self.execution_ns[task] if table is None else table[task, core])


@dataclass(frozen=True, slots=True)
class ProcessorGuidance:
    """Where the time goes on one schedule, for ties in the search.

    ``stage_service_ns``: per stage, largest processor service of a core;
    ``critical_stages``: stages on the critical recurrence, most delay first.
    """

    stage_service_ns: tuple[int, ...]
    critical_stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RealizedCost:
    """Cost evidence of one realized schedule (spec: Default throughput selection).

    Attributes:
        timing: ``"static"`` or ``"queue"``.
        interval_ns: interval under the event-index tie order (ns), or why not.
        alternative_ns: interval under the reversed tie order.
        recurrence_proved: complete-state recurrence holds under both tie orders.
        static_support: the plan has only forms the backend can lower.
        failures: reasons, one sentence each; empty when eligible.
        guidance: for the search; None when unknown.
        details: named integers for reports (visits, events, recurrence ns, ...).
        form: how the schedule was realized; empty for a static estimate.
        phases: where the evaluation spent its time; no part of the evidence.
    """

    timing: str
    interval_ns: int | Unavailable
    alternative_ns: int | Unavailable
    recurrence_proved: bool
    static_support: bool = True
    failures: tuple[str, ...] = ()
    guidance: ProcessorGuidance | None = None
    details: tuple[tuple[str, int], ...] = field(default=())
    form: str = ""
    phases: Phases | None = field(default=None, compare=False, repr=False)

    @property
    def eligible(self) -> bool:
        """May take part in a comparison of candidates."""
        return (
            isinstance(self.interval_ns, int)
            and isinstance(self.alternative_ns, int)
            and self.recurrence_proved
            and self.static_support
            and not self.failures
        )

    @property
    def larger_ns(self) -> int | None:
        """The larger of both tie orders (ns): what the beam ranks by."""
        if isinstance(self.interval_ns, int) and isinstance(self.alternative_ns, int):
            return max(self.interval_ns, self.alternative_ns)
        return None


@dataclass(frozen=True, slots=True)
class RealizedCompletion:
    """When one inference alone is done, by the queues of a realized schedule.

    Attributes:
        event_index_ns: completion (ns) from a cold start under the event-index tie
            order, or why there is none.
        reversed_ns: the same under the reversed tie order.
        static_support: the plan has only forms the backend can lower.
        failures: faults of the plan, one sentence each.
        details: named integers for reports.
        form: how the schedule was realized.
    """

    event_index_ns: int | Unavailable
    reversed_ns: int | Unavailable
    static_support: bool = True
    failures: tuple[str, ...] = ()
    details: tuple[tuple[str, int], ...] = ()
    form: str = ""

    @property
    def larger_ns(self) -> int | None:
        """The larger of both tie orders (ns); None when one is unavailable."""
        if isinstance(self.event_index_ns, int) and isinstance(self.reversed_ns, int):
            return max(self.event_index_ns, self.reversed_ns)
        return None

    @property
    def reason(self) -> str:
        """Why there is no figure; empty when there is one."""
        for figure in (self.event_index_ns, self.reversed_ns):
            if isinstance(figure, Unavailable):
                return "; ".join((figure.reason, *self.failures))
        return ""

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        figures = {
            "event_index_ns": self.event_index_ns,
            "reversed_ns": self.reversed_ns,
        }
        return {
            "timing": "queue",
            **{
                name: {"unavailable": figure.reason}
                if isinstance(figure, Unavailable)
                else figure
                for name, figure in figures.items()
            },
            "form": self.form,
            "failures": list(self.failures),
            "details": dict(self.details),
        }


@runtime_checkable
class SchedulingTarget(Protocol):
    """A chip, as the scheduler sees it.  Implementations register by entry point."""

    @property
    def name(self) -> str:
        """Registered kind: ``pim``, ``pe``, ``table``, ..."""
        ...

    def resources(self) -> Resources:
        """Cores, slots, links, memory."""
        ...

    def work_ns(self, work: Work) -> int | Unavailable:
        """Execution time (ns) of one piece of work on the cheapest core."""
        ...

    def costs(self, graph: ComputeGraph) -> TaskCosts:
        """Execution times of every task.

        Raises:
            MalformedInput: some work cannot be priced; the message names the task.
        """
        ...

    def extract_events(self, plan: ExecutionPlan) -> PlanEvents | Unavailable:
        """Execution events of a realized schedule, or why there are none."""
        ...

    def estimate_realized_schedule_cost(self, plan: ExecutionPlan) -> RealizedCost:
        """Cost evidence of one realized schedule; reads the plan, changes nothing."""
        ...


@runtime_checkable
class GraphSource(Protocol):
    """A target that makes the compute graph of its own kinds of network."""

    def compute_graph(self, loaded: LoadedScenario) -> ComputeGraph:
        """The graph of a scenario.

        Raises:
            MalformedInput: a network that it does not run.
        """
        ...


@runtime_checkable
class CompletionEstimator(Protocol):
    """A target that times one inference of a realized schedule (latency mode).

    A target without it is timed by the evaluator alone.
    """

    def estimate_completion(self, plan: ExecutionPlan) -> RealizedCompletion:
        """Completion of one generation alone; reads the plan, changes nothing."""
        ...


@runtime_checkable
class CostAuditor(Protocol):
    """A target whose task costs have a part that can be recomputed."""

    def audit_costs(self, graph: ComputeGraph) -> None:
        """Recompute it.

        Raises:
            InternalError: a cost is not what its definition gives.
        """
        ...


@dataclass(frozen=True, eq=False)
class BackendResult:
    """What a backend made of one realized schedule.

    Attributes:
        outcome: ``built``; ``refused``: the target's instructions cannot express the
            network, whatever the schedule; ``rejected``: this candidate does not fit
            (candidate-specific), another one may.
        reasons: one phrase each; empty when built.
        write: writes the program and its sidecar into a new folder, verified as it
            is read back; None unless built.
    """

    outcome: str
    reasons: tuple[str, ...] = ()
    write: Callable[[Path], object] | None = None


@runtime_checkable
class ProgramBackend(Protocol):
    """A target that emits runnable programs."""

    def lower(
        self,
        plan: ExecutionPlan,
        network: Network | None,
        *,
        accumulators: str,
        constants_resident: bool,
    ) -> BackendResult:
        """Allocate, generate code, verify."""
        ...
