"""Tasks and transfers as flat arrays, and the list scheduler that orders them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class OrderItems:
    """What stands in a linear order: T tasks, then X transfers.

    Attributes:
        ends: [T + X, 2] cores that an item occupies; a task's core twice.
        duration_ns: [T + X] execution or transfer time.
        priority: [T + X] the smaller goes first among items that can start at once.
        source, target: [D] ``target`` follows ``source``.
        stage: [T + X] stage of a task, of the producer of a transfer; from 0.
        cores: P.
    """

    ends: IntArray
    duration_ns: IntArray
    priority: IntArray
    source: IntArray
    target: IntArray
    stage: IntArray
    cores: int

    @property
    def count(self) -> int:
        """T + X."""
        return len(self.duration_ns)

    def positions(self, *, blocking: bool) -> IntArray:
        """[T + X] positions in one generation on empty cores; -1 behind a cycle.

        Args:
            blocking: a transfer occupies both of its ends.
        """
        return _append_order(
            self.ends,
            self.duration_ns,
            self.priority,
            self.source,
            self.target,
            self.cores,
            blocking,
        )

    def backwards(self) -> OrderItems:
        """The same items with time reversed: orders of it are legal read backwards."""
        return OrderItems(
            self.ends,
            self.duration_ns,
            -self.priority,
            self.target,
            self.source,
            self.stage,
            self.cores,
        )


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
