"""Order inside one generation: topological order, span, token-free cycles.

Only distance-0 edges matter here.  A cycle of them holds no token, so none of its
events ever happens, whatever its delay: it is reported as not executable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph, Int32Array, Int64Array

#: Edge visits that the search for the SHORTEST token-free cycle may spend.
_SEARCH_VISITS = 50_000_000


@dataclass(frozen=True, slots=True)
class TokenFreeCycle:
    """A dependency cycle within one generation: no schedule can execute it.

    Attributes:
        events: the cycle, starting at its smallest event.
        labels: the same as names.
        delay_ns: delays and services along it; zero is as impossible as any other.
        shortest: True unless the search budget ended before all starts were tried.
    """

    events: tuple[int, ...]
    labels: tuple[str, ...]
    delay_ns: int
    shortest: bool

    @property
    def reason(self) -> str:
        """One sentence for diagnostics."""
        shown = list(self.labels[:12])
        if len(self.labels) > 12:
            shown.append(f"... {len(self.labels) - 12} more")
        return (
            f"{len(self.events)} events wait for each other within one generation: "
            + " -> ".join([*shown, self.labels[0]])
        )

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "unavailable": self.reason,
            "token_free_cycle": list(self.labels),
            "delay_ns": self.delay_ns,
            "shortest": self.shortest,
        }


@njit(cache=True)
def _topological_order(
    edge_ptr: Int64Array, edge_dst: Int32Array, edge_distance: Int32Array
) -> tuple[Int32Array, int]:
    """Kahn's algorithm; ready events leave in the order in which they got ready."""
    events = edge_ptr.shape[0] - 1
    waits = np.zeros(events, np.int32)
    for edge in range(edge_dst.shape[0]):
        if edge_distance[edge] == 0:
            waits[edge_dst[edge]] += 1
    order = np.empty(events, np.int32)
    tail = 0
    for event in range(events):
        if waits[event] == 0:
            order[tail] = event
            tail += 1
    head = 0
    while head < tail:
        event = order[head]
        head += 1
        for edge in range(edge_ptr[event], edge_ptr[event + 1]):
            if edge_distance[edge] == 0:
                target = edge_dst[edge]
                waits[target] -= 1
                if waits[target] == 0:
                    order[tail] = target
                    tail += 1
    return order, tail


def topological_order(graph: EventGraph) -> Int32Array | TokenFreeCycle:
    """Events in an order that respects distance-0 edges, or why there is none."""
    order, ordered = _topological_order(
        graph.edge_ptr, graph.edge_dst, graph.edge_distance
    )
    if ordered < graph.event_count:
        return _shortest_cycle(graph, order[:ordered])
    topological: Int32Array = order
    return topological


@njit(cache=True)
def _span(
    order: Int32Array,
    edge_ptr: Int64Array,
    edge_dst: Int32Array,
    edge_delay: Int64Array,
    edge_distance: Int32Array,
    service: Int64Array,
    start: Int64Array,
) -> int:
    finish = start.copy()
    latest = 0
    for position in range(order.shape[0]):
        event = order[position]
        done = finish[event] + service[event]
        latest = max(latest, done)
        for edge in range(edge_ptr[event], edge_ptr[event + 1]):
            if edge_distance[edge] == 0:
                target = edge_dst[edge]
                finish[target] = max(finish[target], done + edge_delay[edge])
    return latest


def within_generation_span_ns(graph: EventGraph, order: Int32Array) -> int:
    """Longest distance-0 path, services included and queues ignored, ns.

    Not an initiation interval: generations overlap.  ``order`` is topological.
    """
    return int(
        _span(
            order,
            graph.edge_ptr,
            graph.edge_dst,
            graph.edge_delay_ns,
            graph.edge_distance,
            graph.service_ns,
            graph.start_ns,
        )
    )


@njit(cache=True)
def _shortest_token_free_cycle(
    edge_ptr: Int64Array,
    edge_dst: Int32Array,
    edge_distance: Int32Array,
    suspects: Int32Array,
    suspected: Int32Array,
    visits: int,
) -> tuple[Int64Array, bool]:
    """Breadth-first search from every suspect, cut at the best length so far."""
    events = edge_ptr.shape[0] - 1
    seen = np.full(events, -1, np.int32)
    parent_edge = np.empty(events, np.int64)
    parent = np.empty(events, np.int32)
    depth = np.empty(events, np.int32)
    queue = np.empty(events, np.int32)
    best = np.empty(0, np.int64)
    best_length = events + 1
    for root in suspects:
        if visits <= 0 and best.shape[0] > 0:
            return best, False
        seen[root] = root
        depth[root] = 0
        queue[0] = root
        head, tail = 0, 1
        closed = False
        while head < tail and not closed:
            event = queue[head]
            head += 1
            if depth[event] + 1 >= best_length:
                break
            for edge in range(edge_ptr[event], edge_ptr[event + 1]):
                visits -= 1
                target = edge_dst[edge]
                if edge_distance[edge] != 0 or suspected[target] == 0:
                    continue
                if target == root:
                    best_length = depth[event] + 1
                    best = np.empty(best_length, np.int64)
                    best[best_length - 1] = edge
                    while event != root:
                        best[depth[event] - 1] = parent_edge[event]
                        event = parent[event]
                    closed = True
                    break
                if seen[target] != root:
                    seen[target] = root
                    depth[target] = depth[event] + 1
                    parent[target] = event
                    parent_edge[target] = edge
                    queue[tail] = target
                    tail += 1
    return best, True


def _shortest_cycle(graph: EventGraph, ordered: Int32Array) -> TokenFreeCycle:
    """Fewest edges; among those, the one through the smallest event."""
    suspected = np.ones(graph.event_count, np.int32)
    suspected[ordered] = 0
    edges, shortest = _shortest_token_free_cycle(
        graph.edge_ptr,
        graph.edge_dst,
        graph.edge_distance,
        np.flatnonzero(suspected).astype(np.int32),
        suspected,
        _SEARCH_VISITS,
    )
    events = graph.edge_src[edges]
    turn = int(np.argmin(events))
    cycle = tuple(int(e) for e in np.roll(events, -turn))
    return TokenFreeCycle(
        events=cycle,
        labels=tuple(graph.label(event) for event in cycle),
        delay_ns=int(graph.edge_delay_ns[edges].sum() + graph.service_ns[events].sum()),
        shortest=bool(shortest),
    )


@njit(cache=True)
def _coupled(
    events: int,
    edge_src: Int32Array,
    edge_dst: Int32Array,
    server: Int32Array,
    servers: int,
) -> Int32Array:
    """Union-find with the smallest event as the representative."""
    root = np.arange(events).astype(np.int32)
    first_of_server = np.full(servers, -1, np.int32)

    for item in range(edge_src.shape[0] + events):
        if item < edge_src.shape[0]:
            left, right = edge_src[item], edge_dst[item]
        else:
            right = np.int32(item - edge_src.shape[0])
            if server[right] < 0:
                continue
            left = first_of_server[server[right]]
            if left < 0:
                first_of_server[server[right]] = right
                continue
        while root[left] != left:
            root[left] = root[root[left]]
            left = root[left]
        while root[right] != right:
            root[right] = root[root[right]]
            right = root[right]
        if left < right:
            root[right] = left
        else:
            root[left] = right
    for event in range(events):
        # Parents are smaller than their children: one rising pass flattens all.
        root[event] = root[root[event]]
    return root


def coupled_parts(graph: EventGraph) -> tuple[EventGraph, ...]:
    """The parts that neither an edge nor a shared server joins, by first event.

    Parts run independently, so only a part, not the whole, can be expected to
    return to an earlier state.
    """
    root = _coupled(
        graph.event_count,
        graph.edge_src,
        graph.edge_dst,
        graph.server,
        len(graph.server_labels),
    )
    if not root.any():
        return (graph,)
    by_event = np.argsort(root, kind="stable")
    by_edge = np.argsort(root[graph.edge_src], kind="stable")
    heads, event_from = np.unique(root[by_event], return_index=True)
    edge_root = root[graph.edge_src][by_edge]
    edge_from = np.searchsorted(edge_root, heads, side="left")
    edge_to = np.searchsorted(edge_root, heads, side="right")
    event_to = np.append(event_from[1:], graph.event_count)
    return tuple(
        graph.restricted_to(by_event[a:b], by_edge[c:d])
        for a, b, c, d in zip(event_from, event_to, edge_from, edge_to, strict=True)
    )
