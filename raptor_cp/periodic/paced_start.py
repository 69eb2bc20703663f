"""Paced start: the state in which everything waits for the critical cycle.

From the cold start, parts that could run slightly faster than the critical cycle gain
on it a little in every generation, until their credits are exhausted: that can take
hundreds of generations.  Let the critical event pause until nothing else can happen.
Then everything upstream has used up its credits and everything downstream has run
dry, as in the paced regime.  A pause is an execution of the same marked graph, and
the marking it ends in does not depend on any time: event ``v`` has happened ``D(v)``
times more than the critical event, ``D`` being the fewest initial tokens on a path to
``v``.  Counting generations of ``v`` from there turns the distance of an edge
``(u, v, w, d)`` into ``d + D(u) - D(v) >= 0``, which leaves every cycle's distance as
it was.  Tokens present after a long pause are available at once: time 0.

Without contention the regime that follows is the only one, at the cycle ratio.  With
it there can be others, so the caller compares the intervals.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.periodic.cycle_ratio import CycleRatio, ratio_in_order

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph, Int32Array, Int64Array

_UNREACHED = 2**62
#: Generations by which an event may be ahead: each costs storage for its tokens.
_FARTHEST = 2**10


@njit(cache=True)
def _fewest_tokens(
    edge_ptr: Int64Array, edge_dst: Int32Array, edge_distance: Int32Array, origin: int
) -> Int64Array:
    """``[V]`` least sum of distances over paths from ``origin`` (Dijkstra)."""
    fewest = np.full(edge_ptr.shape[0] - 1, _UNREACHED, np.int64)
    fewest[origin] = 0
    heap = [(np.int64(0), np.int64(origin))]
    while len(heap) > 0:
        tokens, event = heapq.heappop(heap)
        if tokens > fewest[event]:
            continue
        for edge in range(edge_ptr[event], edge_ptr[event + 1]):
            target = np.int64(edge_dst[edge])
            found = tokens + edge_distance[edge]
            if found < fewest[target]:
                fewest[target] = found
                heapq.heappush(heap, (found, target))
    return fewest


def waiting_for(graph: EventGraph, event: int) -> EventGraph | None:
    """The graph in the state in which everything waits for ``event``.

    None when some event never does: it would run ahead without end.
    ``O((V + E) log V)``.
    """
    fewest = _fewest_tokens(graph.edge_ptr, graph.edge_dst, graph.edge_distance, event)
    if fewest.max() > _FARTHEST:
        return None
    ahead = fewest[graph.edge_src] - fewest[graph.edge_dst]
    distance = (graph.edge_distance + ahead).astype(np.int32)
    distance.setflags(write=False)
    # Bootstrap offsets have passed by then.
    start = np.zeros(graph.event_count, np.int64)
    start.setflags(write=False)
    return replace(graph, edge_distance=distance, start_ns=start)


def paced(graph: EventGraph, order: Int32Array) -> EventGraph | None:
    """The graph in the state in which everything waits for its critical cycle.

    None when no cycle bounds the throughput or not everything waits for one.
    ``order`` is a topological order of the graph.
    """
    ratio = ratio_in_order(graph, order)
    if not isinstance(ratio, CycleRatio) or ratio.witness is None:
        return None
    return waiting_for(graph, ratio.witness.edges[0].source)
