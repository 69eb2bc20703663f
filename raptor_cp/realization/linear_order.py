"""The one linear order of a generation: tasks and direct transfers.

Every core executes its items in this order and a transfer has one position, shared
by both ends.  The order extends the dependencies and the order on the cores, so no
core ever waits for a later item: the smallest unfinished item is the next one on
all of its cores (docs/realization.md, "No deadlock").

Among the legal orders a list scheduler chooses: at each step the item that can start
first is appended.  Results of earlier stages count as present, because a stage loads
them before it begins.  Neither of its two rules is better on all networks.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError
from raptor_cp.realization.plan import OrderRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.realization.plan import DirectTransfer
    from raptor_cp.schedules import Schedule

IntArray = NDArray[np.int64]


@njit(cache=True)
def _append_order(
    ends: IntArray,
    duration: IntArray,
    priority: IntArray,
    source: IntArray,
    target: IntArray,
    cores: int,
    blocking: bool,
) -> IntArray:
    """Position of each item in the order in which a list scheduler appends them.

    ``ends``: [I, 2] cores that an item occupies, a transfer only if ``blocking``.  An
    item is ready when all that it follows (``source`` -> ``target``) has been
    appended; of the ready items the one that can start first goes next, then the one
    of smallest priority.
    """
    count = duration.size
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
    free = np.zeros(cores, np.int64)
    earliest = np.zeros(count, np.int64)
    position = np.full(count, -1, np.int64)
    placed = 0
    ready = [(0, 0, 0)]
    ready.pop()
    for node in range(count):
        if waiting[node] == 0:
            heapq.heappush(ready, (0, int(priority[node]), node))
    while len(ready) > 0:
        key, rank, node = heapq.heappop(ready)
        start = int(earliest[node])
        occupies = blocking or ends[node, 0] == ends[node, 1]
        if occupies:
            start = max(start, int(free[ends[node, 0]]), int(free[ends[node, 1]]))
        if start > key:
            heapq.heappush(ready, (start, rank, node))
            continue
        position[node] = placed
        placed += 1
        end = start + int(duration[node])
        if occupies:
            free[ends[node, 0]] = end
            free[ends[node, 1]] = end
        for edge in range(begin[node], begin[node + 1]):
            after = int(following[edge])
            earliest[after] = max(int(earliest[after]), end)
            waiting[after] -= 1
            if waiting[after] == 0:
                heapq.heappush(
                    ready, (int(earliest[after]), int(priority[after]), after)
                )
    return position


def linear_order(
    schedule: Schedule,
    stage_of: Sequence[int],
    direct: Sequence[tuple[int, DirectTransfer]],
    readers: Sequence[Sequence[int]],
    rule: OrderRule = OrderRule.BLOCKING,
) -> tuple[list[int], list[int]]:
    """Positions of all tasks and of X direct transfers in one linear order.

    Args:
        schedule: a schedule whose order on the cores respects the dependencies.
        stage_of: stage of each core; what crosses stages without a direct transfer
            costs no time here.
        direct: producing task and transfer, X of them.
        readers: [X] tasks that read each transfer.
        rule: how a transfer counts.

    Returns:
        [T] and [X] positions, together a permutation of 0 to T + X - 1.

    Raises:
        InternalError: the order on the cores contradicts the dependencies.
    """
    problem, placement = schedule.problem, schedule.placement
    graph, links = problem.graph, problem.resources.links
    tasks, moves = graph.task_count, len(direct)
    ends = np.empty((tasks + moves, 2), np.int64)
    ends[:tasks] = placement.core_of[:, None]
    duration = np.empty(tasks + moves, np.int64)
    duration[:tasks] = execution_ns(schedule)
    for number, (_, transfer) in enumerate(direct):
        ends[tasks + number] = transfer.source, transfer.destination
        duration[tasks + number] = links.transfer_ns(
            transfer.size, transfer.source, transfer.destination
        )
    # Transfers first at equal times, in order of their producers.
    made_by = np.array([producer for producer, _ in direct], np.int64)
    priority = np.concatenate([np.arange(tasks, dtype=np.int64) + moves, made_by * 0])
    priority[tasks:] = np.argsort(np.argsort(made_by, kind="stable"), kind="stable")
    # Inside a stage all dependencies between cores are direct transfers.
    stages = np.array(stage_of, np.int64)[placement.core_of]
    edge_source = np.repeat(np.arange(tasks, dtype=np.int64), np.diff(graph.edge_ptr))
    edge_target = graph.edge_dst.astype(np.int64)
    inside = stages[edge_source] == stages[edge_target]
    before = [t for core in placement.order for t in core[:-1]]
    after = [t for core in placement.order for t in core[1:]]
    transfers = np.arange(tasks, tasks + moves, dtype=np.int64)
    reads = np.array([len(r) for r in readers], np.int64)
    position = _append_order(
        ends,
        duration,
        priority,
        np.concatenate(
            [
                edge_source[inside],
                np.array(before, np.int64),
                made_by,
                np.repeat(transfers, reads),
            ]
        ),
        np.concatenate(
            [
                edge_target[inside],
                np.array(after, np.int64),
                transfers,
                np.array([t for r in readers for t in r], np.int64),
            ]
        ),
        len(placement.order),
        rule is OrderRule.BLOCKING,
    )
    if position.min() < 0:
        stuck = graph.tasks[int(np.argmin(position[:tasks]))].name
        raise InternalError(
            f"{graph.name}: the order on the cores contradicts the dependencies "
            f"of task {stuck!r}"
        )
    # Stage by stage: cross-stage dependencies must be kept as well.
    first = stages[made_by]
    stage = np.concatenate([stages, first])
    order = np.lexsort((position, stage))
    rank = np.empty(tasks + moves, np.int64)
    rank[order] = np.arange(tasks + moves)
    return rank[:tasks].tolist(), rank[tasks:].tolist()


def execution_ns(schedule: Schedule) -> IntArray:
    """[T] execution time of each task where it is placed (ns)."""
    costs = schedule.problem.costs
    if costs.per_core_ns is None:
        return costs.execution_ns
    tasks = np.arange(schedule.problem.graph.task_count)
    result: IntArray = costs.per_core_ns[tasks, schedule.placement.core_of]
    return result
