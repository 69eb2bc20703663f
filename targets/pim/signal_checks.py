"""Do signals of two generations stay apart?  Answered on the event graph.

An event register is a number: nothing in it says which generation a signal belongs
to.  With the counting wait a register of several sources can end a wait with two
signals of a fast core and none of a slow one; with the original simulator's exact
wait a signal that arrives early overshoots and the core waits for ever.  Both are
excluded where a path leads from each wait to each of the signals that the register's
next wait consumes: within the generation, or, after the last wait, over at most one
generation (execution model, rule 6).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from raptor_cp.periodic.event_graph import EventGraph
    from raptor_cp.targets.pim.event_types import SignalGroup

    Ints = NDArray[np.int64]

#: Edge visits that all searches of one program may spend together.
MAX_VISITS = 200_000_000


def first_unordered(
    graph: EventGraph, groups: Iterable[SignalGroup]
) -> SignalGroup | None:
    """The first group whose signals may mix, or could not be proved not to."""
    budget = MAX_VISITS
    seen = np.full(graph.event_count, -1, dtype=np.int64)
    queue = np.empty(2 * graph.event_count, dtype=np.int64)
    search = 0
    for group in groups:
        for place, wait in enumerate(group.waits):
            last = place + 1 == len(group.waits)
            following = group.signals[0 if last else place + 1]
            visits = _reaches(
                graph.edge_ptr,
                graph.edge_dst,
                graph.edge_distance,
                wait,
                np.array(following, dtype=np.int64),
                1 if last else 0,
                seen,
                queue,
                search,
                budget,
            )
            if visits < 0:
                return group
            budget -= visits
            search += 2
    return None


@njit(cache=True)
def _reaches(
    edge_ptr: Ints,
    edge_dst: NDArray[np.int32],
    edge_distance: NDArray[np.int32],
    start: int,
    targets: Ints,
    allowed: int,
    seen: Ints,
    queue: Ints,
    search: int,
    budget: int,
) -> int:
    """Edge visits needed to reach all targets within ``allowed``; -1 if not.

    ``seen`` holds ``search`` for events reached at distance 0, ``search + 1`` at 1.
    """
    missing = 0
    visits = 0
    head, tail = 0, 1
    queue[0] = start
    seen[start] = search
    later = np.empty(16, dtype=np.int64)
    waiting = 0
    for level in range(allowed + 1):
        while head < tail:
            event = queue[head]
            head += 1
            for edge in range(edge_ptr[event], edge_ptr[event + 1]):
                visits += 1
                distance = edge_distance[edge]
                target = edge_dst[edge]
                if distance == 0:
                    if seen[target] < search:
                        seen[target] = search + level
                        queue[tail] = target
                        tail += 1
                elif distance == 1 and level == 0 and allowed == 1:
                    if waiting == later.shape[0]:
                        grown = np.empty(2 * waiting, dtype=np.int64)
                        grown[:waiting] = later
                        later = grown
                    later[waiting] = target
                    waiting += 1
            if visits > budget:
                return -1
        missing = 0
        for target in targets:
            if seen[target] < search:
                missing += 1
        if missing == 0:
            return visits
        for place in range(waiting):
            if seen[later[place]] < search:
                seen[later[place]] = search + 1
                queue[tail] = later[place]
                tail += 1
        waiting = 0
    return -1
