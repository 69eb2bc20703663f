"""The same execution with fewer events: plain events of serial chains are merged.

Two kinds of plain events cost a visit in every generation and decide nothing:

- one that waits for a single event of its own generation happens a fixed delay after
  that event, so its outgoing edges can start there;
- one that only a single event of its own generation waits for can hand its incoming
  edges, if they hold no initial tokens, to that event.

Requests, completions and events with a bootstrap offset stay.  Times of all that
remains are equal to those of the whole graph, in every generation and both tie orders,
and what was merged follows from its neighbours, so a recurrence of the smaller graph
is one of the whole graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.periodic.event_graph import EventGraph
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import Int32Array, Int64Array


@njit(cache=True)
def _merge(
    order: Int32Array,
    may_merge: Int64Array,
    edge_src: Int32Array,
    edge_dst: Int32Array,
    edge_delay: Int64Array,
    edge_distance: Int32Array,
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """``(stays, kept_src, kept_dst, kept_delay)``.

    ``stays`` ``[V]`` is 1 for events that are not merged.  The others are ``[E]``:
    where each edge runs afterwards, -1 for those inside merged chains, and its delay
    including what was merged.
    """
    events = may_merge.shape[0]
    edges = edge_src.shape[0]
    waits = np.zeros(events, np.int64)
    initial = np.zeros(events, np.int64)
    only_in = np.full(events, -1, np.int64)
    for edge in range(edges):
        target = edge_dst[edge]
        waits[target] += 1
        only_in[target] = edge
        if edge_distance[edge] > 0:
            initial[target] = 1
    # Backwards: merged with the only event waited for.
    source_of = np.arange(events)
    later = np.zeros(events, np.int64)
    for place in range(events):
        event = order[place]
        if may_merge[event] and waits[event] == 1 and initial[event] == 0:
            edge = only_in[event]
            source_of[event] = source_of[edge_src[edge]]
            later[event] = later[edge_src[edge]] + edge_delay[edge]
    # Forwards: merged with the only event that waits.
    feeds = np.zeros(events, np.int64)
    only_out = np.full(events, -1, np.int64)
    for edge in range(edges):
        if source_of[edge_dst[edge]] == edge_dst[edge]:
            source = source_of[edge_src[edge]]
            feeds[source] += 1
            only_out[source] = edge
    target_of = np.arange(events)
    earlier = np.zeros(events, np.int64)
    for place in range(events - 1, -1, -1):
        event = order[place]
        if (
            may_merge[event]
            and source_of[event] == event
            and waits[event] > 0
            and initial[event] == 0
            and feeds[event] == 1
            and edge_distance[only_out[event]] == 0
        ):
            edge = only_out[event]
            target_of[event] = target_of[edge_dst[edge]]
            earlier[event] = (
                later[edge_src[edge]] + edge_delay[edge] + earlier[edge_dst[edge]]
            )
    kept_src = np.full(edges, -1, np.int64)
    kept_dst = np.full(edges, -1, np.int64)
    kept_delay = np.zeros(edges, np.int64)
    for edge in range(edges):
        source = source_of[edge_src[edge]]
        target = edge_dst[edge]
        if source_of[target] == target and target_of[source] == source:
            kept_src[edge] = source
            kept_dst[edge] = target_of[target]
            kept_delay[edge] = (
                later[edge_src[edge]] + edge_delay[edge] + earlier[target]
            )
    stays = np.zeros(events, np.int64)
    for event in range(events):
        if source_of[event] == event and target_of[event] == event:
            stays[event] = 1
    return stays, kept_src, kept_dst, kept_delay


def contracted(graph: EventGraph, order: Int32Array) -> EventGraph:
    """The graph without events that decide nothing; ``order`` is topological.

    Event order is kept, so that both tie orders mean the same.  ``O(V + E)``.
    """
    may_merge = (graph.server < 0) & (graph.start_ns == 0)
    may_merge[graph.completion] = False
    stays, source, target, delay = _merge(
        order,
        may_merge.astype(np.int64),
        graph.edge_src,
        graph.edge_dst,
        graph.edge_delay_ns,
        graph.edge_distance,
    )
    events = np.flatnonzero(stays)
    if len(events) == graph.event_count or delay.max(initial=0) > MAX_NS:
        return graph
    number = np.cumsum(stays) - 1
    edges = np.flatnonzero(source >= 0)
    return EventGraph.from_arrays(
        core=graph.core[events],
        kind=graph.kind[events],
        link=graph.link[events],
        start_ns=graph.start_ns[events],
        server=graph.server[events],
        service_ns=graph.service_ns[events],
        access=graph.access[events],
        kind_labels=graph.kind_labels,
        link_labels=graph.link_labels,
        server_labels=graph.server_labels,
        completion=number[graph.completion],
        edge_src=number[source[edges]],
        edge_dst=number[target[edges]],
        edge_delay_ns=delay[edges],
        edge_distance=graph.edge_distance[edges],
    )
