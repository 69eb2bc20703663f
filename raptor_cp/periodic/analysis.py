"""Everything the periodic analysis can say about one event graph.

The reported interval is the maximum of the recurrence, the compute work of the
busiest core and the service of the busiest server; the span of a single generation
is reported apart because it is not an interval (scheduling spec, "Periodic dependency
diagnostics").  What queues add is measured by the queue engine in both tie orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.periodic.cycle_ratio import CycleRatioAnswer, ratio_in_order
from raptor_cp.periodic.dependency_order import (
    TokenFreeCycle,
    coupled_parts,
    topological_order,
    within_generation_span_ns,
)
from raptor_cp.periodic.queue_engine import (
    MAX_GENERATIONS,
    Stop,
    TieOrder,
    TokenExecution,
    Window,
    WindowSearch,
    event_limit,
    execute,
    time_range_fault,
    within_agreement,
)
from raptor_cp.periodic.recurrence import RecurrenceProof, StateHistory
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.periodic.event_graph import EventGraph


@dataclass(frozen=True, slots=True)
class OrderAnalysis:
    """Queues and recurrence under one tie order.

    Parts of the graph that nothing couples are run apart; the slowest one decides.

    Attributes:
        window: the spec's estimate from agreeing windows.
        exact_interval_ns: interval of the proved recurrence, or why it is unproved.
        proofs: one for each part if all are proved, else empty.
        max_request_wait_ns: longest wait of a request, bootstrap included.
        processed_events: all parts together, at most ``16 (V + E)``.
        generations: most generations of one event, at most 64.
        stored_bytes: stored states of the largest part.
    """

    order: TieOrder
    window: Window | Unavailable
    exact_interval_ns: Fraction | Unavailable
    proofs: tuple[RecurrenceProof, ...]
    max_request_wait_ns: int
    processed_events: int
    generations: int
    stored_bytes: int

    @property
    def recurrence_established(self) -> bool:
        """True when complete-state recurrence is proved for every part."""
        return isinstance(self.exact_interval_ns, Fraction)

    @property
    def interval_ns(self) -> Fraction | Unavailable:
        """The window mean; the exact interval where no windows agree."""
        if isinstance(self.window, Window):
            return self.window.interval_ns
        if isinstance(self.exact_interval_ns, Fraction):
            return self.exact_interval_ns
        return self.window

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "tie_order": self.order.value,
            "interval_ns": ns_for_json(self.interval_ns),
            "window": self.window.to_dict(),
            "exact_interval_ns": ns_for_json(self.exact_interval_ns),
            "recurrence_established": self.recurrence_established,
            "proofs": [proof.to_dict() for proof in self.proofs],
            "max_request_wait_ns": self.max_request_wait_ns,
            "processed_events": self.processed_events,
            "generations": self.generations,
        }


@dataclass(frozen=True, slots=True)
class PeriodicAnalysis:
    """Answer of :func:`analyse`; times in ns.

    Attributes:
        recurrence: maximum cycle ratio, a token-free cycle, or unavailable.
        orders: the two tie orders, event index first.
        core_work_ns, core_work_core: compute work of the busiest core; 0 and -1 when
            the graph has none.
        service_ns: total service of the busiest server, ``service_by_server`` of all.
        within_generation_span_ns: longest path through one generation.
        single_generation_ns: makespan of one generation alone in both tie orders.
    """

    recurrence: CycleRatioAnswer
    orders: tuple[OrderAnalysis | Unavailable, OrderAnalysis | Unavailable]
    core_work_ns: int
    core_work_core: int
    service_ns: int
    service_by_server: tuple[tuple[str, int], ...]
    within_generation_span_ns: int | Unavailable
    single_generation_ns: tuple[int, int] | Unavailable

    @property
    def interval_ns(self) -> Fraction | Unavailable:
        """Maximum of recurrence, per-core compute work and serialized service."""
        if isinstance(self.recurrence, Unavailable):
            return self.recurrence
        if isinstance(self.recurrence, TokenFreeCycle):
            return Unavailable(self.recurrence.reason)
        return max(
            self.recurrence.ratio_ns,
            Fraction(self.core_work_ns),
            Fraction(self.service_ns),
        )

    @property
    def recurrence_established(self) -> bool:
        """True when both tie orders are proved to recur."""
        return all(
            isinstance(order, OrderAnalysis) and order.recurrence_established
            for order in self.orders
        )

    @property
    def queue_intervals_ns(self) -> tuple[Fraction, Fraction] | Unavailable:
        """Queue estimates of both tie orders, event index first."""
        found: list[Fraction] = []
        for order in self.orders:
            interval = order if isinstance(order, Unavailable) else order.interval_ns
            if isinstance(interval, Unavailable):
                return interval
            found.append(interval)
        return found[0], found[1]

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        single = self.single_generation_ns
        return {
            "interval_ns": ns_for_json(self.interval_ns),
            "recurrence": self.recurrence.to_dict(),
            "core_work_ns": {"max": self.core_work_ns, "core": self.core_work_core},
            "memory_service_ns": self.service_ns,
            "service_by_server_ns": dict(self.service_by_server),
            "within_generation_span_ns": ns_for_json(self.within_generation_span_ns),
            "single_generation_ns": (
                list(single) if isinstance(single, tuple) else single.to_dict()
            ),
            "queues": [order.to_dict() for order in self.orders],
            "recurrence_established": self.recurrence_established,
        }


def analyse(graph: EventGraph) -> PeriodicAnalysis:
    """Cycle ratio, queues in both tie orders, recurrence proofs and resource sums."""
    cores = graph.work_core
    busiest = int(graph.work_ns.argmax()) if len(cores) else -1
    by_server = graph.service_by_server()
    order = topological_order(graph)
    recurrence: CycleRatioAnswer
    span: int | Unavailable
    orders: list[OrderAnalysis | Unavailable]
    single: tuple[int, int] | Unavailable
    if isinstance(order, TokenFreeCycle):
        recurrence = order
        span = single = Unavailable(order.reason)
        orders = [span, span]
    else:
        recurrence = ratio_in_order(graph, order)
        fault = time_range_fault(graph, 1)
        span = fault or within_generation_span_ns(graph, order)
        parts = coupled_parts(graph)
        orders = [_analyse_order(parts, tie) for tie in TieOrder]
        single = _single_generation(graph)
    return PeriodicAnalysis(
        recurrence=recurrence,
        orders=(orders[0], orders[1]),
        core_work_ns=int(graph.work_ns[busiest]) if busiest >= 0 else 0,
        core_work_core=int(cores[busiest]) if busiest >= 0 else -1,
        service_ns=int(by_server.max(initial=0)),
        service_by_server=tuple(
            (label, int(ns))
            for label, ns in zip(graph.server_labels, by_server, strict=True)
        ),
        within_generation_span_ns=span,
        single_generation_ns=single,
    )


def analyse_order(graph: EventGraph, order: TieOrder) -> OrderAnalysis | Unavailable:
    """Window estimate and recurrence proof under one tie order, from one execution.

    A proof, where there is one, also guards the windows: a pair that agrees by
    accident in a transient but lies more than one percent off the proved interval is
    passed over.
    """
    return _analyse_order(coupled_parts(graph), order)


def _analyse_order(
    parts: Sequence[EventGraph], order: TieOrder
) -> OrderAnalysis | Unavailable:
    done: list[OrderAnalysis] = []
    for part in parts:
        answer = _analyse_part(part, order)
        if isinstance(answer, Unavailable):
            return answer
        done.append(answer)
    return done[0] if len(done) == 1 else _slowest(done, order)


def _analyse_part(graph: EventGraph, order: TieOrder) -> OrderAnalysis | Unavailable:
    fault = time_range_fault(graph, MAX_GENERATIONS)
    if fault is not None:
        return fault
    run = TokenExecution(graph, order, event_limit=event_limit(graph))
    history = StateHistory(run)
    windows = WindowSearch(run)
    proof: RecurrenceProof | None = None
    window: Window | None = None
    while True:
        stop = run.advance()
        exact = proof.interval_ns if proof is not None else None
        if proof is None and stop is Stop.CHECKPOINT:
            proof = history.observe()
            if proof is not None:
                exact = proof.interval_ns
                if window and not within_agreement(window.interval_ns, exact):
                    window = None
        if window is None:
            window = windows.search(exact)
        if stop is not Stop.CHECKPOINT:
            break
        # All phases of the period have been tried once the search is beyond it.
        if proof is not None and (
            window is not None
            or windows.next_generation
            > proof.transient_generations + proof.period_generations
        ):
            break
        if history.full and window is not None:
            break
    no_window = (
        f"no two adjacent windows agree: {run.why(stop)}"
        if stop is not Stop.CHECKPOINT
        else "no windows agree within one percent of the proved interval"
    )
    return OrderAnalysis(
        order=order,
        window=window if window is not None else Unavailable(no_window),
        exact_interval_ns=(
            proof.interval_ns
            if proof is not None
            else Unavailable(history.why_unproved(stop))
        ),
        proofs=(proof,) if proof is not None else (),
        max_request_wait_ns=run.max_request_wait_ns,
        processed_events=run.processed_events,
        generations=run.max_generations,
        stored_bytes=history.stored_bytes,
    )


def _slowest(parts: Sequence[OrderAnalysis], order: TieOrder) -> OrderAnalysis:
    """One answer for parts that run side by side."""
    exact: Fraction | Unavailable = Fraction(0)
    window: Window | Unavailable = Window(0, Fraction(0), ())
    for part in parts:
        exact = _larger(exact, part.exact_interval_ns)
        if isinstance(window, Window):
            if isinstance(part.window, Window):
                window = _joined(window, part.window)
            else:
                window = part.window
    proved = isinstance(exact, Fraction)
    return OrderAnalysis(
        order=order,
        window=window,
        exact_interval_ns=exact,
        proofs=tuple(p for part in parts for p in part.proofs) if proved else (),
        max_request_wait_ns=max(part.max_request_wait_ns for part in parts),
        processed_events=sum(part.processed_events for part in parts),
        generations=max(part.generations for part in parts),
        stored_bytes=max(part.stored_bytes for part in parts),
    )


def _larger(
    left: Fraction | Unavailable, right: Fraction | Unavailable
) -> Fraction | Unavailable:
    if isinstance(left, Unavailable) or isinstance(right, Unavailable):
        return left if isinstance(left, Unavailable) else right
    return max(left, right)


def _joined(left: Window, right: Window) -> Window:
    waits = dict(left.core_waits_ns)
    for core, wait in right.core_waits_ns:
        waits[core] = waits.get(core, 0) + wait
    return Window(
        first_generation=max(left.first_generation, right.first_generation),
        interval_ns=max(left.interval_ns, right.interval_ns),
        core_waits_ns=tuple(sorted(waits.items())),
    )


def _single_generation(graph: EventGraph) -> tuple[int, int] | Unavailable:
    spans: list[int] = []
    for order in TieOrder:
        alone = execute(graph, order)
        if isinstance(alone, Unavailable):
            return alone
        spans.append(alone.makespan_ns)
    return spans[0], spans[1]
