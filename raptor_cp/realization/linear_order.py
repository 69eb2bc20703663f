"""The one linear order of a generation: tasks and direct transfers.

Every core executes its items in this order and a transfer has one position, shared
by both ends.  The order extends the dependencies and the order on the cores, so no
core ever waits for a later item: the smallest unfinished item is the next one on
all of its cores (docs/realization.md, "No deadlock").

Among the legal orders the one nearest to the estimated times is taken.  A transfer
is ready when its producer ends; at equal times transfers go first.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.schedule import Schedule

IntArray = NDArray[np.int64]


@njit(cache=True)
def _extension(rank: IntArray, source: IntArray, target: IntArray) -> IntArray:
    """Position of each node: at each step the ready node of the smallest rank."""
    count = rank.size
    begin = np.zeros(count + 2, np.int64)
    waiting = np.zeros(count, np.int64)
    for edge in range(source.size):
        begin[source[edge] + 2] += 1
        waiting[target[edge]] += 1
    for node in range(count):
        begin[node + 2] += begin[node + 1]
    following = np.empty(source.size, np.int64)
    for edge in range(source.size):
        slot = begin[source[edge] + 1]
        following[slot] = target[edge]
        begin[source[edge] + 1] = slot + 1
    node_of = np.empty(count, np.int64)
    for node in range(count):
        node_of[rank[node]] = node
    ready = [np.int64(0)]
    ready.pop()
    for node in range(count):
        if waiting[node] == 0:
            heapq.heappush(ready, rank[node])
    position = np.full(count, -1, np.int64)
    placed = 0
    while len(ready) > 0:
        node = node_of[heapq.heappop(ready)]
        position[node] = placed
        placed += 1
        for edge in range(begin[node], begin[node + 1]):
            waiting[following[edge]] -= 1
            if waiting[following[edge]] == 0:
                heapq.heappush(ready, rank[following[edge]])
    return position


def linear_order(
    schedule: Schedule,
    producer: Sequence[int],
    consumer: Sequence[int],
    consumer_of: Sequence[int],
) -> tuple[IntArray, IntArray]:
    """Positions of all tasks and of X direct transfers in one linear order.

    Args:
        schedule: a schedule whose starts respect dependencies and core order.
        producer: [X] producing task of each transfer.
        consumer: tasks that read a transfer, ``consumer_of`` the transfer of each.

    Returns:
        [T] and [X] positions, together a permutation of 0 to T + X - 1.

    Raises:
        InternalError: the order on the cores contradicts the dependencies.
    """
    graph = schedule.problem.graph
    tasks, moves = graph.task_count, len(producer)
    starts = schedule.start_ns.astype(np.int64)
    made_by = np.array(producer, np.int64)
    time = np.concatenate([starts, finish_ns(schedule)[made_by]])
    is_task = np.concatenate([np.ones(tasks, np.int64), np.zeros(moves, np.int64)])
    rank = np.empty(tasks + moves, np.int64)
    rank[np.lexsort((is_task, time))] = np.arange(tasks + moves)
    transfer = np.arange(tasks, tasks + moves, dtype=np.int64)
    order = schedule.placement.order
    before = [t for core in order for t in core[:-1]]
    after = [t for core in order for t in core[1:]]
    sources = np.repeat(np.arange(tasks, dtype=np.int64), np.diff(graph.edge_ptr))
    position = _extension(
        rank,
        np.concatenate(
            [
                sources,
                np.array(before, np.int64),
                made_by,
                transfer[np.array(consumer_of, np.int64)],
            ]
        ),
        np.concatenate(
            [
                graph.edge_dst.astype(np.int64),
                np.array(after, np.int64),
                transfer,
                np.array(consumer, np.int64),
            ]
        ),
    )
    if position.size and position.min() < 0:
        stuck = graph.tasks[int(np.argmin(position[:tasks]))].name
        raise InternalError(
            f"{graph.name}: the order on the cores contradicts the dependencies "
            f"of task {stuck!r}"
        )
    return position[:tasks], position[tasks:]


def finish_ns(schedule: Schedule) -> IntArray:
    """[T] estimated end of each task (ns)."""
    costs = schedule.problem.costs
    time = costs.execution_ns
    if costs.per_core_ns is not None:
        tasks = np.arange(schedule.problem.graph.task_count)
        time = costs.per_core_ns[tasks, schedule.placement.core_of]
    result: IntArray = schedule.start_ns.astype(np.int64) + time
    return result
