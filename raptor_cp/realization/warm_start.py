"""Bootstrap offsets that start an execution close to its steady state.

From a cold start (every core begins at time 0 with an empty pipeline) the parts of a
plan that could run slightly faster than the critical cycle lose their lead by only
that difference in each generation: the transient can last thousands of generations.
Steady times that ignore queues are known in advance: ``t(v, k) = p(v) + k * ratio``,
where ``p`` is the longest path from the critical cycle under ``w - ratio * d``.
Delaying the first generation's events to ``p`` is an execution of the same machine
(its inputs come late, once), in which only the queues still have to settle.  What
queues cost is then measured over a few generations and added to ``p``.

A recurrence proved from there is a proof of a periodic regime of the plan.  Without
contention there is only one; with it another start may settle into another regime,
as another tie order may.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.periodic.cycle_ratio import CycleRatio, ratio_in_order
from raptor_cp.periodic.queue_engine import Execution, execute

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph
    from raptor_cp.periodic.queue_engine import TieOrder

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]

_UNREACHED = -(2**62)
#: Potentials above this (ns) are not worth their numeric risk.
_LATEST = 2**40
#: Generations over which queue waits are measured; the first half does not count.
_MEASURED = 6


@njit(cache=True)
def _longest_paths(
    order: Ids,
    edge_ptr: Ints,
    edge_dst: Ids,
    weight: Ints,
    distance: Ids,
    origin: int,
) -> tuple[Ints, bool]:
    """Longest paths from one event; True when they have settled.

    Sweeps the distance-0 edges in topological order; a simple path uses each of the
    R other edges at most once, so R + 1 sweeps suffice where no cycle is positive.
    """
    value = np.full(order.size, _UNREACHED, np.int64)
    value[origin] = 0
    recurrences = 0
    for edge in range(distance.size):
        if distance[edge] > 0:
            recurrences += 1
    for _ in range(recurrences + 1):
        changed = False
        for place in range(order.size):
            event = order[place]
            if value[event] == _UNREACHED:
                continue
            for edge in range(edge_ptr[event], edge_ptr[event + 1]):
                found = value[event] + weight[edge]
                if found > value[edge_dst[edge]]:
                    value[edge_dst[edge]] = found
                    if distance[edge] > 0:
                        changed = True
        if not changed:
            return value, True
    return value, False


def settled_start(
    graph: EventGraph, order: Ids, ratio: CycleRatio, tie: TieOrder
) -> EventGraph:
    """:func:`warm_start` with the queue waits that a few generations show."""
    warm = warm_start(graph, order, ratio)
    if warm is graph or graph.request_count == 0:
        return warm
    trial = execute(warm, tie, generations=_MEASURED)
    if not isinstance(trial, Execution) or not trial.completed:
        return warm
    waits = trial.finish_ns - trial.ready_ns - graph.service_ns[:, None]
    mean = waits[:, _MEASURED // 2 :].mean(axis=1).astype(np.int64)
    mean[graph.server < 0] = 0
    slowed = replace(graph, edge_delay_ns=graph.edge_delay_ns + mean[graph.edge_src])
    found = ratio_in_order(slowed, order)
    if not isinstance(found, CycleRatio):
        return warm
    return replace(graph, start_ns=warm_start(slowed, order, found).start_ns)


def warm_start(graph: EventGraph, order: Ids, ratio: CycleRatio) -> EventGraph:
    """The same graph with bootstrap offsets; unchanged where there are none to give.

    Args:
        graph: an executable event graph.
        order: a topological order of its distance-0 edges.
        ratio: its exact maximum cycle ratio.
    """
    if ratio.witness is None or not ratio.exact:
        return graph
    scale = ratio.ratio_ns.denominator
    delay = graph.edge_delay_ns + graph.service_ns[graph.edge_src]
    reach = int(delay.sum()) * scale
    if (
        reach >= 2**60
        or ratio.ratio_ns.numerator * int(graph.edge_distance.sum(dtype=np.int64))
        >= 2**60
    ):
        return graph
    weight = delay * scale - ratio.ratio_ns.numerator * graph.edge_distance.astype(
        np.int64
    )
    value, settled = _longest_paths(
        np.array(order),
        np.array(graph.edge_ptr),
        np.array(graph.edge_dst),
        weight,
        np.array(graph.edge_distance),
        ratio.witness.edges[0].source,
    )
    reached = value > _UNREACHED
    if not settled or not reached.any():
        return graph
    # The potential of a request is its arrival: service is on its outgoing edges.
    base = int(value[reached].min())
    start = np.where(reached, -(-(value - base) // scale), 0) + graph.start_ns
    if int(start.max()) > _LATEST:
        return graph
    start.setflags(write=False)
    return replace(graph, start_ns=start)
