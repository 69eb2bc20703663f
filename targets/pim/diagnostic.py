"""The standalone instruction diagnostic: timing of any program, read-only.

Scheduling spec, "Post-codegen instruction diagnostic": local work is weighted
chunks, communication is events; the maximum cycle ratio bounds the interval, core
work and serialized memory service bound it too, and with the memory controller
modelled the queue engine measures what arbitration adds, in two tie orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.errors import Unresolved
from raptor_cp.periodic.analysis import OrderAnalysis, analyse_order
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.dependency_order import (
    TokenFreeCycle,
    topological_order,
    within_generation_span_ns,
)
from raptor_cp.periodic.queue_engine import TieOrder, execute, time_range_fault
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json
from raptor_cp.targets.pim.artifact import check_chip
from raptor_cp.targets.pim.event_types import EventOptions, InstructionEvents
from raptor_cp.targets.pim.free_running import (
    FreeRunningEstimate,
    measure_free_running,
)
from raptor_cp.targets.pim.instruction_events import build_events
from raptor_cp.targets.pim.signal_checks import first_unordered
from raptor_cp.targets.pim.timing import PimTiming

if TYPE_CHECKING:
    from raptor_cp.periodic.cycle_ratio import CycleRatioAnswer
    from raptor_cp.periodic.event_graph import EventGraph
    from raptor_cp.targets.pim.artifact import Program
    from raptor_cp.targets.pim.config import PimConfig

SCHEMA = "raptor-cp/periodic/1"
#: Graphs of at most this many events are written out in full.
MAX_SHOWN_EVENTS = 128


class WaitSemantics(StrEnum):
    """The two public meanings of ``wait``."""

    COUNTING = "counting"  #: register >= value, then subtract (maintained fork)
    EXACT = "exact"  #: register == value, then reset (original simulator)


@dataclass(frozen=True, slots=True)
class DiagnosticOptions:
    """What the diagnostic models; defaults as on the command line."""

    network_queues: bool = True
    issue: bool = True
    memory_controller: bool = False
    wait_semantics: WaitSemantics = WaitSemantics.COUNTING


@dataclass(frozen=True, slots=True)
class ControllerEstimate:
    """What the queue engine measured with every global request as a node.

    Attributes:
        interval_ns: estimate under the event-index tie order.
        alternative_tie_interval_ns: under the reversed order.
        exact_interval_ns: larger exact interval, where both orders recur.
        recurrence_established: both orders returned to an earlier complete state.
        max_request_wait_ns: longest wait of a request, bootstrap included.
        core_waits_ns: (core, ns) over the four generations of the windows.
        events, edges, requests: size of the graph.
    """

    interval_ns: Fraction
    alternative_tie_interval_ns: Fraction
    exact_interval_ns: Fraction | Unavailable
    recurrence_established: bool
    max_request_wait_ns: int
    core_waits_ns: tuple[tuple[int, int], ...]
    events: int
    edges: int
    requests: int

    @property
    def best_ns(self) -> Fraction:
        """The exact interval where it is proved, else the larger estimate."""
        if isinstance(self.exact_interval_ns, Fraction):
            return self.exact_interval_ns
        return max(self.interval_ns, self.alternative_tie_interval_ns)

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "interval_ns": ns_for_json(self.interval_ns),
            "alternative_tie_interval_ns": ns_for_json(
                self.alternative_tie_interval_ns
            ),
            "exact_interval_ns": ns_for_json(self.exact_interval_ns),
            "recurrence_established": self.recurrence_established,
            "max_request_wait_ns": self.max_request_wait_ns,
            "core_waits_ns": {str(core): wait for core, wait in self.core_waits_ns},
            "events": self.events,
            "edges": self.edges,
            "requests": self.requests,
        }


ControllerAnswer = ControllerEstimate | FreeRunningEstimate | Unavailable


@dataclass(frozen=True, slots=True, eq=False)
class InstructionDiagnostic:
    """Answer of :func:`diagnose`; times in ns, energies in pJ.

    Attributes:
        cores, instructions: of the program; cores are those with instructions.
        events, edges: size of the base graph.
        interval_ns: maximum of recurrence, core work, memory service and, where it
            was measured, the controller's interval (of the slowest core, if they
            run freely).
        recurrence: maximum cycle ratio of the base graph.
        core_work_ns, core_work_core: issue and local work of the busiest core.
        memory_service_ns: serialized global-memory service of one generation.
        within_generation_span_ns: longest path through one generation.
        single_generation_ns: one generation alone, in both tie orders.
        controller: the queue estimate, or why there is none.
        dynamic_energy_pj, static_power_mw: of one generation, of the cores present.
        unmodelled: what is left out or assumed, one sentence each.
        graph: the base graph where it is small enough to be shown.
    """

    cores: int
    instructions: int
    events: int
    edges: int
    interval_ns: Fraction | Unavailable
    recurrence: CycleRatioAnswer
    core_work_ns: int
    core_work_core: int
    memory_service_ns: int
    within_generation_span_ns: int | Unavailable
    single_generation_ns: tuple[int, int] | Unavailable
    controller: ControllerAnswer
    dynamic_energy_pj: float
    static_power_mw: float
    unmodelled: tuple[str, ...]
    graph: EventGraph | None

    @property
    def available(self) -> bool:
        """True when there is an interval."""
        return isinstance(self.interval_ns, Fraction)

    def to_dict(self) -> dict[str, object]:
        """The JSON report of the command line."""
        document: dict[str, object] = {
            "schema": SCHEMA,
            "cores": self.cores,
            "instructions": self.instructions,
            "events": self.events,
            "edges": self.edges,
            "interval_ns": ns_for_json(self.interval_ns),
            "recurrence": _recurrence_dict(self.recurrence),
            "core_work_ns": {"max": self.core_work_ns, "core": self.core_work_core},
            "memory_service_ns": self.memory_service_ns,
            "within_generation_span_ns": ns_for_json(self.within_generation_span_ns),
            **_single_dict(self.single_generation_ns),
            "memory_controller": self.controller.to_dict(),
            "energy_pj": self._energy(),
            "unmodelled": list(self.unmodelled),
        }
        if self.graph is not None:
            document["timing_graph"] = timing_graph(self.graph)
        return document

    def _energy(self) -> dict[str, object]:
        found: dict[str, object] = {"dynamic": self.dynamic_energy_pj}
        if isinstance(self.interval_ns, Fraction):
            static = self.static_power_mw * float(self.interval_ns)
            found |= {"static": static, "total": self.dynamic_energy_pj + static}
        return found


def diagnose(
    program: Program,
    config: PimConfig,
    options: DiagnosticOptions | None = None,
) -> InstructionDiagnostic:
    """Time a program on a chip without running it.

    What cannot be answered is :class:`Unavailable` with its reason, never a guess.

    Raises:
        MalformedInput: the program needs more cores or crossbars than the chip has.
    """
    chosen = options or DiagnosticOptions()
    check_chip(program, config)
    timing = PimTiming.from_config(config)
    if timing.unavailable:
        return _without_timing(program, "; ".join(timing.unavailable))
    try:
        return _diagnose(program, timing, chosen)
    except Unresolved as error:
        return _without_timing(program, str(error))


def _diagnose(
    program: Program, timing: PimTiming, options: DiagnosticOptions
) -> InstructionDiagnostic:
    base = build_events(
        program, timing, EventOptions(options.network_queues, options.issue)
    )
    unmodelled = _unmodelled(base, timing, options)
    queued = base
    if options.memory_controller and base.requests:
        queued = build_events(
            program, timing, EventOptions(options.network_queues, options.issue, True)
        )
    order = topological_order(base.graph)
    recurrence: CycleRatioAnswer
    span: int | Unavailable
    single: tuple[int, int] | Unavailable
    controller: ControllerAnswer
    if isinstance(order, TokenFreeCycle):
        recurrence = order
        span = single = controller = Unavailable(order.reason)
    else:
        recurrence = maximum_cycle_ratio(base.graph)
        fault = time_range_fault(base.graph, 1)
        span = fault or within_generation_span_ns(base.graph, order)
        single = _single_generation(queued.graph)
        controller = (
            _controller(queued)
            if options.memory_controller
            else Unavailable("not requested: --model-memory-controller")
        )
    if isinstance(controller, FreeRunningEstimate):
        unmodelled += (
            "a common rate: the cores run freely and the chip did not recur, so the "
            "interval is the slowest core's mean loop time over "
            f"{controller.loops} loops (unproved)",
        )
    busiest = int(base.work_ns.argmax())
    work = int(base.work_ns[busiest])
    static_core, static_memory = timing.static_power_mw
    return InstructionDiagnostic(
        cores=len(base.cores),
        instructions=base.instructions,
        events=base.graph.event_count,
        edges=base.graph.edge_count,
        interval_ns=_interval(recurrence, work, base.memory_service_ns, controller),
        recurrence=recurrence,
        core_work_ns=work,
        core_work_core=base.cores[busiest],
        memory_service_ns=base.memory_service_ns,
        within_generation_span_ns=span,
        single_generation_ns=single,
        controller=controller,
        dynamic_energy_pj=base.energy_pj,
        static_power_mw=static_core * len(program.cores) + static_memory,
        unmodelled=unmodelled,
        graph=base.graph if base.graph.event_count <= MAX_SHOWN_EVENTS else None,
    )


def _interval(
    recurrence: CycleRatioAnswer,
    work_ns: int,
    service_ns: int,
    controller: ControllerAnswer,
) -> Fraction | Unavailable:
    if isinstance(recurrence, TokenFreeCycle):
        return Unavailable(recurrence.reason)
    if isinstance(recurrence, Unavailable):
        return recurrence
    bound = max(recurrence.ratio_ns, Fraction(work_ns), Fraction(service_ns))
    if isinstance(controller, ControllerEstimate):
        return max(bound, controller.best_ns)
    if isinstance(controller, FreeRunningEstimate):
        return max(bound, controller.slowest_ns)
    return bound


def _single_generation(graph: EventGraph) -> tuple[int, int] | Unavailable:
    spans = []
    for tie in TieOrder:
        alone = execute(graph, tie)
        if isinstance(alone, Unavailable):
            return alone
        spans.append(int(alone.finish_ns[graph.completion, 0].max()))
    return spans[0], spans[1]


def _controller(events: InstructionEvents) -> ControllerAnswer:
    answers: list[OrderAnalysis] = []
    for tie in TieOrder:
        answer = analyse_order(events.graph, tie)
        if isinstance(answer, Unavailable):
            return answer
        answers.append(answer)
    intervals: list[Fraction] = []
    for answer in answers:
        interval = answer.interval_ns
        if isinstance(interval, Unavailable):
            free = measure_free_running(events.graph, interval.reason)
            return interval if free is None else free
        intervals.append(interval)
    exact: Fraction | Unavailable = Fraction(0)
    for answer in answers:
        if isinstance(answer.exact_interval_ns, Unavailable):
            exact = answer.exact_interval_ns
            break
        if isinstance(exact, Fraction):
            exact = max(exact, answer.exact_interval_ns)
    window = answers[0].window
    return ControllerEstimate(
        interval_ns=intervals[0],
        alternative_tie_interval_ns=intervals[1],
        exact_interval_ns=exact,
        recurrence_established=all(a.recurrence_established for a in answers),
        max_request_wait_ns=answers[0].max_request_wait_ns,
        core_waits_ns=() if isinstance(window, Unavailable) else window.core_waits_ns,
        events=events.graph.event_count,
        edges=events.graph.edge_count,
        requests=events.requests,
    )


def _unmodelled(
    events: InstructionEvents, timing: PimTiming, options: DiagnosticOptions
) -> tuple[str, ...]:
    """What the answer leaves out.

    Raises:
        Unresolved: under exact waits a register may overshoot.
    """
    notes = []
    if options.wait_semantics is WaitSemantics.EXACT:
        group = first_unordered(events.graph, events.groups)
        if group is not None:
            raise Unresolved(
                "under exact waits a signal may arrive at event register "
                f"{group.register} of core {group.core} before the wait it is not "
                "meant for, and the core would wait for ever"
            )
    else:
        several = [group for group in events.groups if len(group.sources) > 1]
        group = first_unordered(events.graph, several)
        if group is not None:
            notes.append(
                f"event register {group.register} of core {group.core} has several "
                "signalling cores and no proof that signals of two generations "
                "cannot mix: they are assumed to stay apart"
            )
    if not options.memory_controller and events.requests:
        notes.append("arbitration of the global memory (its total service is a bound)")
    if not options.network_queues:
        notes.append("queues of the cores' network switches (switched off)")
    if not options.issue:
        notes.append("instruction issue and retirement (switched off)")
    if timing.period_ns != 1:
        notes.append("clock phase of commits after queueing: the least delay is taken")
    if events.softmax:
        notes.append(
            f"{events.softmax} vsoftmax instructions: no timed work and no energy"
        )
    if events.endless_cores:
        notes.append(
            f"{len(events.endless_cores)} cores end in an instruction without a unit "
            f"(first: core {events.endless_cores[0]}): the simulator's latency mode "
            "never sees them finish"
        )
    notes.append("order of simultaneous events in the simulator (about 1 ns)")
    return tuple(notes)


def _without_timing(program: Program, reason: str) -> InstructionDiagnostic:
    fault = Unavailable(reason)
    return InstructionDiagnostic(
        cores=len(program.active_cores),
        instructions=program.instructions,
        events=0,
        edges=0,
        interval_ns=fault,
        recurrence=fault,
        core_work_ns=0,
        core_work_core=-1,
        memory_service_ns=0,
        within_generation_span_ns=fault,
        single_generation_ns=fault,
        controller=fault,
        dynamic_energy_pj=0.0,
        static_power_mw=0.0,
        unmodelled=(reason,),
        graph=None,
    )


def _single_dict(single: tuple[int, int] | Unavailable) -> dict[str, object]:
    if isinstance(single, Unavailable):
        return {"single_generation_ns": single.to_dict()}
    return {
        "single_generation_ns": max(single),
        "single_generation_range_ns": sorted(single),
    }


def _recurrence_dict(recurrence: CycleRatioAnswer) -> dict[str, object]:
    if isinstance(recurrence, CycleRatio):
        return recurrence.to_dict()
    if isinstance(recurrence, TokenFreeCycle):
        return {"unavailable": recurrence.reason, "cycle": list(recurrence.labels)}
    return dict(recurrence.to_dict())


def timing_graph(graph: EventGraph) -> dict[str, object]:
    """A small graph in full, for focused timing checks."""
    return {
        "events": [
            {
                "id": event,
                "label": graph.label(event),
                "kind": graph.kind_labels[graph.kind[event]],
                "core": int(graph.core[event]),
                "start_ns": int(graph.start_ns[event]),
            }
            for event in range(graph.event_count)
        ],
        "edges": [
            {
                "source": int(graph.edge_src[edge]),
                "target": int(graph.edge_dst[edge]),
                "delay_ns": int(graph.edge_delay_ns[edge]),
                "distance": int(graph.edge_distance[edge]),
            }
            for edge in range(graph.edge_count)
        ],
    }
