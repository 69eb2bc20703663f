"""Cost evidence of an execution plan: checks, recurrence and queues.

The target supplies the events; what is made of them is the same for every target.
The reported interval of a tie order is the maximum of the recurrence (maximum cycle
ratio), the busiest core's compute work, the serialized shared-memory service and the
interval of the proved recurrence, rounded up to whole ns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.periodic.analysis import (
    OrderAnalysis,
    PeriodicAnalysis,
    analyse,
    analyse_order,
)
from raptor_cp.periodic.attempts import MAX_CONTINUATIONS
from raptor_cp.periodic.cycle_ratio import CycleRatio, ratio_in_order
from raptor_cp.periodic.dependency_order import (
    TokenFreeCycle,
    topological_order,
    within_generation_span_ns,
)
from raptor_cp.periodic.queue_engine import (
    TieOrder,
    event_limit,
    execute,
    time_range_fault,
)
from raptor_cp.phases import Phases
from raptor_cp.realization.checks import check
from raptor_cp.target import ProcessorGuidance, RealizedCompletion, RealizedCost
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.periodic.event_graph import EventGraph
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan


def realized_cost(
    plan: ExecutionPlan,
    extract: Callable[[ExecutionPlan], PlanEvents | Unavailable],
) -> RealizedCost:
    """Check a plan, extract its events, and analyse them under both tie orders.

    A plan that fails a check is not analysed; each fault is a failure reason.
    ``phases`` of the cost: graph checks, event extraction, dependency-witness analysis
    (maximum cycle ratio and its witness), queue execution (with its proofs).
    """
    phases = Phases()
    return replace(_evidence(plan, extract, phases), phases=phases)


def _evidence(
    plan: ExecutionPlan,
    extract: Callable[[ExecutionPlan], PlanEvents | Unavailable],
    phases: Phases,
) -> RealizedCost:
    with phases.timed("graph checks"):
        report = check(plan)
    if report.faults:
        reason = Unavailable("the plan failed its checks")
        return RealizedCost(
            timing="queue",
            interval_ns=reason,
            alternative_ns=reason,
            recurrence_proved=False,
            static_support=False,
            failures=tuple(f"{f.check}: {f.message}" for f in report.faults),
            details=(("faults", len(report.faults)),),
        )
    with phases.timed("event extraction"):
        events = extract(plan)
    if isinstance(events, Unavailable):
        return _without_timing(events)
    return _analysed(plan, events, phases)


def realized_completion(
    plan: ExecutionPlan,
    extract: Callable[[ExecutionPlan], PlanEvents | Unavailable],
) -> RealizedCompletion:
    """Check a plan, extract its events, and execute one generation of them.

    Every core starts cold at time 0; the completion is when the last event has
    finished, stores of the outputs included.  A plan that fails a check, or waits
    for ever, is not timed.
    """
    report = check(plan)
    if report.faults:
        reason = Unavailable("the plan failed its checks")
        return RealizedCompletion(
            reason,
            reason,
            static_support=False,
            failures=tuple(f"{f.check}: {f.message}" for f in report.faults),
        )
    events = extract(plan)
    if isinstance(events, Unavailable):
        return RealizedCompletion(events, events)
    graph = events.graph
    order = topological_order(graph)
    if isinstance(order, TokenFreeCycle):
        blocked = Unavailable(order.reason)
        return RealizedCompletion(blocked, blocked)
    details = [
        ("events", graph.event_count),
        ("edges", graph.edge_count),
        ("requests", events.requests),
        ("memory_service_ns", int(graph.service_by_server().max(initial=0))),
    ]
    if time_range_fault(graph, 1) is None:
        span = within_generation_span_ns(graph, order)
        details.append(("within_generation_span_ns", span))
    found: list[int | Unavailable] = []
    for tie in TieOrder:
        alone = execute(graph, tie)
        if isinstance(alone, Unavailable):
            found.append(alone)
            continue
        if not alone.completed:
            found.append(Unavailable("an event waits for ever"))
            continue
        found.append(alone.makespan_ns)
        name = tie.replace("-", "_")
        details.append((f"max_request_wait_ns_{name}", alone.max_request_wait_ns))
    return RealizedCompletion(found[0], found[1], details=tuple(details))


#: Continued attempts of one start, each within the limits of the analysis (64
#: generations of an event, 16 (V + E) events) and with the states already seen: at
#: least so many, and more where together they stay within so many processed events.
CONTINUATIONS = 15
CONTINUED_EVENTS = 2**22


def continuations(graph: EventGraph) -> int:
    """How often an unproved execution of a plan's events may go on."""
    affordable = CONTINUED_EVENTS // max(event_limit(graph), 1)
    return min(max(CONTINUATIONS, affordable), MAX_CONTINUATIONS)


def plan_analysis(events: PlanEvents) -> PeriodicAnalysis:
    """Everything about one plan, for reports: queues as in :func:`realized_cost`."""
    return analyse(events.graph, continuations=continuations(events.graph))


def reported_cost(analysis: PeriodicAnalysis | Unavailable, form: str) -> RealizedCost:
    """Cost of a single candidate, from the analysis that its report needs anyway.

    It is compared with nothing, so it bars nothing and guides nothing.
    """
    if isinstance(analysis, Unavailable):
        return replace(_without_timing(analysis), form=form)
    floor = analysis.interval_ns
    if isinstance(floor, Unavailable):
        return replace(_without_timing(floor), form=form)
    intervals, failures, details = _both_orders(list(analysis.orders), floor)
    return RealizedCost(
        timing="queue",
        interval_ns=intervals[0],
        alternative_ns=intervals[1],
        recurrence_proved=analysis.recurrence_established,
        failures=tuple(failures),
        details=(
            ("events", analysis.events),
            ("edges", analysis.edges),
            ("core_work_ns", analysis.core_work_ns),
            ("memory_service_ns", analysis.service_ns),
            *details,
        ),
        form=form,
    )


def _without_timing(reason: Unavailable) -> RealizedCost:
    return RealizedCost(
        timing="queue",
        interval_ns=reason,
        alternative_ns=reason,
        recurrence_proved=False,
        failures=(f"timing unavailable: {reason.reason}",),
    )


def _analysed(plan: ExecutionPlan, events: PlanEvents, phases: Phases) -> RealizedCost:
    graph = events.graph
    with phases.timed("dependency-witness analysis"):
        order = topological_order(graph)
        if isinstance(order, TokenFreeCycle):
            return _without_timing(Unavailable(order.reason))
        ratio = ratio_in_order(graph, order)
    if isinstance(ratio, Unavailable):
        return _without_timing(ratio)
    work = int(graph.work_ns.max(initial=0))
    service = int(graph.service_by_server().max(initial=0))
    floor = max(ratio.ratio_ns, Fraction(work), Fraction(service))
    details = [
        ("visits", events.visits),
        ("largest_visits", events.largest_visits),
        ("events", graph.event_count),
        ("edges", graph.edge_count),
        ("non_work_events", events.non_work_events),
        ("requests", events.requests),
        ("request_events", events.request_events),
        ("recurrence_ns", _whole(ratio.ratio_ns)),
        ("recurrence_edges", ratio.recurrence_edges),
        ("cores", len(plan.cores)),
        ("bisection_tests", ratio.tests),
        ("largest_sweeps", ratio.max_sweeps),
        ("core_work_ns", work),
        ("memory_service_ns", service),
    ]
    fault = time_range_fault(graph, 1)
    if fault is None:
        span = within_generation_span_ns(graph, order)
        details.append(("within_generation_span_ns", span))
    orders: list[OrderAnalysis | Unavailable] = []
    for tie in TieOrder:
        with phases.timed("queue execution"):
            orders.append(analyse_order(graph, tie, continuations=continuations(graph)))
    intervals, failures, counts = _both_orders(orders, floor)
    return RealizedCost(
        timing="queue",
        interval_ns=intervals[0],
        alternative_ns=intervals[1],
        recurrence_proved=all(
            isinstance(order, OrderAnalysis) and order.recurrence_established
            for order in orders
        ),
        failures=tuple(failures),
        guidance=_guidance(plan, events, ratio),
        details=(*details, *counts),
    )


def _both_orders(
    orders: list[OrderAnalysis | Unavailable], floor: Fraction
) -> tuple[list[int | Unavailable], list[str], list[tuple[str, int]]]:
    """Intervals, failures and counted work of both tie orders."""
    intervals: list[int | Unavailable] = []
    failures: list[str] = []
    details: list[tuple[str, int]] = []
    for tie, found in zip(TieOrder, orders, strict=True):
        if isinstance(found, Unavailable):
            failures.append(f"{tie}: timing unavailable: {found.reason}")
            intervals.append(found)
            continue
        if isinstance(found.exact_interval_ns, Unavailable):
            failures.append(
                f"{tie}: recurrence unproved: {found.exact_interval_ns.reason}"
            )
        intervals.append(_interval(found, floor))
        name = tie.replace("-", "_")
        # Of the largest attempt: each has the limits of the analysis to itself.
        details.append((f"attempts_{name}", len(found.attempts)))
        details.append((f"generations_{name}", found.generations))
        details.append((f"processed_events_{name}", found.processed_events))
        details.append((f"max_request_wait_ns_{name}", found.max_request_wait_ns))
    return intervals, failures, details


def _interval(found: OrderAnalysis, floor: Fraction) -> int | Unavailable:
    """Exact interval where it is proved, otherwise the windows' estimate."""
    queue = found.exact_interval_ns
    if isinstance(queue, Unavailable):
        queue = found.interval_ns
    return queue if isinstance(queue, Unavailable) else _whole(max(queue, floor))


def _whole(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _guidance(
    plan: ExecutionPlan, events: PlanEvents, ratio: CycleRatio
) -> ProcessorGuidance:
    """Busiest core of each stage, and the stages on the critical recurrence.

    The first 128 edges of the witness speak for all.
    """
    stage_of = {text.core: text.stage for text in plan.cores}
    stages = max(stage_of.values()) + 1
    service = [0] * stages
    for core, busy in events.busy:
        service[stage_of[core]] = max(service[stage_of[core]], busy)
    delay: Counter[int] = Counter()
    if ratio.witness is not None:
        cores = events.graph.core
        for edge in ratio.witness.edges:
            core = int(cores[edge.source])
            delay[stage_of[core]] += edge.delay_ns
    critical = sorted(delay, key=lambda stage: (-delay[stage], stage))
    return ProcessorGuidance(tuple(service), tuple(critical))
