"""Tasks and transfers as flat arrays, and the list scheduler that orders them."""

from __future__ import annotations

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

    def positions(
        self, *, blocking: bool, generations: int = 1, ahead: IntArray | None = None
    ) -> IntArray:
        """[T + X] positions in one generation on empty cores; -1 behind a cycle.

        Args:
            blocking: a transfer occupies both of its ends.
            generations: scheduled one after the other; positions are of the last one.
            ahead: [D] generations by which ``target`` comes later than ``source``, 0
                or 1; all 0 by default.
        """
        return _append_order(
            self.ends,
            self.duration_ns,
            np.argsort(self.priority, kind="stable"),
            self.source,
            self.target,
            np.zeros(len(self.source), np.int64) if ahead is None else ahead,
            self.cores,
            generations,
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


@njit(cache=True, inline="always")
def _rise(starts: IntArray, ranks: IntArray, place: int, start: int, rank: int) -> None:
    """Put an entry at or above a free place of the heap."""
    while place > 0:
        parent = (place - 1) >> 1
        above = starts[parent]
        if above < start or (above == start and ranks[parent] < rank):
            break
        starts[place] = above
        ranks[place] = ranks[parent]
        place = parent
    starts[place] = start
    ranks[place] = rank


@njit(cache=True, inline="always")
def _sink(starts: IntArray, ranks: IntArray, size: int, start: int, rank: int) -> None:
    """Replace the first of ``size`` entries."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            starts[right] < starts[child]
            or (starts[right] == starts[child] and ranks[right] < ranks[child])
        ):
            child = right
        below = starts[child]
        if start < below or (start == below and rank < ranks[child]):
            break
        starts[place] = below
        ranks[place] = ranks[child]
        place = child
    starts[place] = start
    ranks[place] = rank


@njit(cache=True)
def _append_order(
    ends: IntArray,
    duration: IntArray,
    by_rank: IntArray,
    source: IntArray,
    target: IntArray,
    ahead: IntArray,
    cores: int,
    generations: int,
    blocking: bool,
) -> IntArray:
    """[I] positions of the last generation's items in the order of a list scheduler.

    Generations are scheduled together: item i of generation g is number ``g W + i``,
    W the power of two from I upwards.
    ``ends``: [I, 2] cores that an item occupies, a transfer only if ``blocking``;
    ``by_rank``: [I] items, of smallest priority first; ``ahead``: how many generations
    later ``target`` is, 0 or 1.  An item is ready when all that it follows has been
    appended; of the ready items the one that can start first goes next, then the one
    of the earliest generation, then the first one in ``by_rank``.
    """
    count = duration.size
    shift = 0
    while 1 << shift < count:
        shift += 1
    mask = (1 << shift) - 1
    total = generations << shift
    rank_of = np.empty(count, np.int64)
    for rank in range(count):
        rank_of[by_rank[rank]] = rank
    begin = np.zeros(count + 2, np.int64)
    waiting = np.zeros(total, np.int32)
    later = np.zeros(count, np.int32)
    for edge in range(source.size):
        begin[source[edge] + 2] += 1
        if ahead[edge] == 0:
            waiting[target[edge]] += 1
        else:
            later[target[edge]] += 1
    for node in range(count):
        begin[node + 2] += begin[node + 1]
    following = np.empty(source.size, np.int64)
    for edge in range(source.size):
        slot = begin[source[edge] + 1]
        following[slot] = target[edge] + (ahead[edge] << shift)
        begin[source[edge] + 1] = slot + 1
    for generation in range(1, generations):
        base = generation << shift
        for node in range(count):
            waiting[base + node] = waiting[node] + later[node]
    free = np.zeros(cores, np.int64)
    earliest = np.zeros(total, np.int64)
    position = np.full(count, -1, np.int64)
    placed = 0
    # A heap of (start that was possible when it was entered, rank).
    starts = np.empty(total, np.int64)
    ranks = np.empty(total, np.int64)
    held = 0
    last = (generations - 1) << shift
    for generation in range(generations):
        base = generation << shift
        for rank in range(count):
            if waiting[base + by_rank[rank]] == 0:
                starts[held] = 0
                ranks[held] = base + rank
                held += 1
    while held > 0:
        rank = ranks[0]
        node = by_rank[rank & mask]
        base = rank & ~mask
        start = earliest[base + node]
        occupies = blocking or ends[node, 0] == ends[node, 1]
        if occupies:
            start = max(start, free[ends[node, 0]], free[ends[node, 1]])
        if start > starts[0]:
            _sink(starts, ranks, held, start, rank)
            continue
        held -= 1
        _sink(starts, ranks, held, starts[held], ranks[held])
        if base >= last:
            position[node] = placed
        placed += 1
        end = start + duration[node]
        if occupies:
            free[ends[node, 0]] = end
            free[ends[node, 1]] = end
        for edge in range(begin[node], begin[node + 1]):
            after = base + following[edge]
            if after >= total:
                continue
            earliest[after] = max(earliest[after], end)
            waiting[after] -= 1
            if waiting[after] == 0:
                rank = (after & ~mask) + rank_of[after & mask]
                _rise(starts, ranks, held, earliest[after], rank)
                held += 1
    return position
