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

from raptor_cp.periodic.attempts import OrderAnalysis, Part, analyse_parts
from raptor_cp.periodic.cycle_ratio import CycleRatioAnswer, ratio_in_order
from raptor_cp.periodic.dependency_order import (
    TokenFreeCycle,
    coupled_parts,
    topological_order,
    within_generation_span_ns,
)
from raptor_cp.periodic.queue_engine import TieOrder, execute, time_range_fault
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph

__all__ = ["OrderAnalysis", "PeriodicAnalysis", "analyse", "analyse_order"]


@dataclass(frozen=True, slots=True)
class PeriodicAnalysis:
    """Answer of :func:`analyse`; times in ns.

    Attributes:
        events, edges: size of the graph, V and E.
        recurrence: maximum cycle ratio, a token-free cycle, or unavailable.
        orders: the two tie orders, event index first.
        core_work_ns, core_work_core: compute work of the busiest core; 0 and -1 when
            the graph has none.
        service_ns: total service of the busiest server, ``service_by_server`` of all.
        within_generation_span_ns: longest path through one generation.
        single_generation_ns: makespan of one generation alone in both tie orders.
    """

    events: int
    edges: int
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


def analyse(graph: EventGraph, *, continuations: int = 1) -> PeriodicAnalysis:
    """Cycle ratio, queues in both tie orders, recurrence proofs and resource sums.

    Args:
        continuations: how often an unproved cold execution may go on for as many
            generations and events as one attempt has.
    """
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
        parts = tuple(Part.of(part) for part in coupled_parts(graph))
        orders = [analyse_parts(parts, tie, continuations) for tie in TieOrder]
        single = _single_generation(graph)
    return PeriodicAnalysis(
        events=graph.event_count,
        edges=graph.edge_count,
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


def analyse_order(
    graph: EventGraph, order: TieOrder, *, continuations: int = 1
) -> OrderAnalysis | Unavailable:
    """Window estimate and recurrence proof under one tie order.

    See :mod:`raptor_cp.periodic.attempts`.
    """
    parts = tuple(Part.of(part) for part in coupled_parts(graph))
    return analyse_parts(parts, order, continuations)


def _single_generation(graph: EventGraph) -> tuple[int, int] | Unavailable:
    spans: list[int] = []
    for order in TieOrder:
        alone = execute(graph, order)
        if isinstance(alone, Unavailable):
            return alone
        spans.append(alone.makespan_ns)
    return spans[0], spans[1]
