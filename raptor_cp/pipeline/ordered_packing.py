"""Ordered packing: contiguous runs of tasks on k cores, exact, as curves over k.

Tasks stand in *packing order*: by group, inside a group by resident-weight class
(classes in order of their first task), inside a class by task id.  Lanes that share
a weight set are thereby neighbours and share a core before another set starts; how
tasks execute on a core does not depend on this order.

A core takes a run of consecutive tasks whose union of weights fits its capacity.
``curve(k)`` is the least possible largest core load (ns) over all ways to cut the
segment into at most k runs, UNAVAILABLE when none fits (scheduling spec, "Costs
and interpretation").  With ``f(k, t)`` for the first t tasks of a segment::

    f(k, t) = min over s of max(f(k - 1, s), load(s, t)),   run [s, t) fits

``f(k - 1, s)`` grows and ``load(s, t)`` shrinks in s, so the best s is where they
cross, and the crossing only moves right as t grows: all segments that start at one
group and all core counts up to k together cost ``O(k T)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.pipeline.groups import PipelineGroups
    from raptor_cp.pipeline.weights import IndexedResidentWeights

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]

#: Cost of what no ordered assignment can do.
UNAVAILABLE: Final[int] = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class OrderedPacking:
    """Ordered packings of all segments of a problem.

    Attributes:
        groups: the groups; segments are ranges of them.
        order: [T] task at each position of the packing order; the positions of a
            group are the same range as its task ids.
        load_prefix: [T+1] execution time (ns) of all tasks before a position.
        back: [T+1] least s such that positions s .. t-1 fit on one core; t when
            the task at t-1 alone is too large.
    """

    groups: PipelineGroups
    order: IndexArray
    load_prefix: IntArray
    back: IndexArray

    @classmethod
    def of(
        cls, groups: PipelineGroups, weights: IndexedResidentWeights
    ) -> OrderedPacking:
        """Order the tasks and measure how far a core reaches: ``O(T log T + R)``."""
        tasks = np.arange(groups.execution_ns.size)
        # (group, class) -> first task of the pair, which is its rank in the group
        pair = groups.task_group.astype(np.int64) * weights.class_count
        _, first, inverse = np.unique(
            pair + weights.task_class, return_index=True, return_inverse=True
        )
        rank = first[inverse.reshape(-1)]
        keys = (tasks, rank, groups.task_group)
        order: IndexArray = np.lexsort(keys).astype(np.int32)
        prefix = np.zeros(order.size + 1, dtype=np.int64)
        prefix[1:] = np.cumsum(groups.execution_ns[order])
        back = _reach_back(
            weights.task_class[order],
            weights.class_ptr,
            weights.class_idx,
            weights.slots,
            weights.capacity,
        )
        return cls(groups, order, prefix, back)

    def curve(self, first: int, last: int, cores: int) -> IntArray:
        """[cores+1] least largest load (ns) of groups [first, last) on k cores.

        Never rises with k; entry 0 is UNAVAILABLE (0 for a segment without tasks).
        """
        begin, end = self._range(first, last)
        return _curve(begin, end, self.load_prefix, self.back, cores)

    def segment_curves(self, counts: IntArray) -> IntArray:
        """[G, G+1, n] largest load (ns) of every segment on each of n core counts.

        Args:
            counts: [n] core counts, ascending, at least 1.

        Segments without tasks are UNAVAILABLE.
        """
        return _segment_curves(
            self.groups.task_ptr, self.load_prefix, self.back, counts
        )

    def minimum_cores(self) -> IntArray:
        """[G, G+1] least cores on which an ordered assignment of a segment fits.

        UNAVAILABLE when a task is too large or the segment has no tasks.
        """
        return self.cores_within(UNAVAILABLE)

    def cores_within(self, limit: int) -> IntArray:
        """[G, G+1] least cores on which every load is at most ``limit`` ns.

        UNAVAILABLE when a task is too large or too long, or there are no tasks.
        """
        return _cores_within(self.groups.task_ptr, self.load_prefix, self.back, limit)

    def assignment(self, first: int, last: int, cores: int) -> IndexArray | None:
        """Local core of each task of groups [first, last), by ascending task id.

        Cuts the longest runs that stay within the curve's value; None when the
        curve is unavailable.  Later cores may stay idle.
        """
        begin, end = self._range(first, last)
        limit = int(self.curve(first, last, cores)[cores])
        if limit == UNAVAILABLE:
            return None
        runs = _longest_runs(begin, end, self.load_prefix, self.back, limit)
        result = np.empty(end - begin, dtype=np.int32)
        result[self.order[begin:end] - begin] = runs
        return result

    def _range(self, first: int, last: int) -> tuple[int, int]:
        return int(self.groups.task_ptr[first]), int(self.groups.task_ptr[last])


@njit(cache=True)
def _reach_back(
    position_class: IndexArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
) -> IndexArray:
    """Two pointers over the order, with how often each weight is in the window."""
    count = position_class.size
    back = np.zeros(count + 1, dtype=np.int32)
    uses = np.zeros(slots.size, dtype=np.int32)
    union = np.int64(0)
    start = 0
    for position in range(count):
        held = position_class[position]
        for entry in range(class_ptr[held], class_ptr[held + 1]):
            weight = class_idx[entry]
            if uses[weight] == 0:
                union += slots[weight]
            uses[weight] += 1
        while union > capacity:
            gone = position_class[start]
            for entry in range(class_ptr[gone], class_ptr[gone + 1]):
                weight = class_idx[entry]
                uses[weight] -= 1
                if uses[weight] == 0:
                    union -= slots[weight]
            start += 1
        back[position + 1] = start
    return back


@njit(cache=True)
def _next_row(
    begin: int,
    end: int,
    prefix: IntArray,
    back: IndexArray,
    previous: IntArray,
    row: IntArray,
) -> bool:
    """f(k, .) from f(k-1, .); False when no entry changed."""
    changed = False
    row[begin] = 0
    split = begin
    for stop in range(begin + 1, end + 1):
        low = max(begin, back[stop])
        split = max(split, low)
        if low >= stop:  # this task fits on no core: nothing after it does either
            for rest in range(stop, end + 1):
                row[rest] = UNAVAILABLE
            break
        total = prefix[stop]
        while split < stop - 1 and previous[split] < total - prefix[split]:
            split += 1
        best = min(previous[stop], max(previous[split], total - prefix[split]))
        if split > low:
            left = max(previous[split - 1], total - prefix[split - 1])
            best = min(best, left)
        row[stop] = best
        if best != previous[stop]:
            changed = True
    return changed


@njit(cache=True)
def _curve(
    begin: int, end: int, prefix: IntArray, back: IndexArray, cores: int
) -> IntArray:
    result = np.full(cores + 1, UNAVAILABLE, dtype=np.int64)
    previous = np.full(prefix.size, UNAVAILABLE, dtype=np.int64)
    row = np.full(prefix.size, UNAVAILABLE, dtype=np.int64)
    previous[begin] = 0
    result[0] = previous[end]
    for count in range(1, cores + 1):
        if not _next_row(begin, end, prefix, back, previous, row):
            result[count:] = previous[end]
            break
        previous, row = row, previous
        result[count] = previous[end]
    return result


@njit(cache=True)
def _segment_curves(
    task_ptr: IndexArray, prefix: IntArray, back: IndexArray, counts: IntArray
) -> IntArray:
    groups = task_ptr.size - 1
    result = np.full((groups, groups + 1, counts.size), UNAVAILABLE, dtype=np.int64)
    previous = np.empty(prefix.size, dtype=np.int64)
    row = np.empty(prefix.size, dtype=np.int64)
    end = prefix.size - 1
    for first in range(groups):
        begin = task_ptr[first]
        previous[:] = UNAVAILABLE
        previous[begin] = 0
        cores, moving = 0, True
        for index in range(counts.size):
            while moving and cores < counts[index]:
                moving = _next_row(begin, end, prefix, back, previous, row)
                previous, row = row, previous
                cores += 1
            for last in range(first + 1, groups + 1):
                if task_ptr[last] > begin:
                    result[first, last, index] = previous[task_ptr[last]]
    return result


@njit(cache=True)
def _cores_within(
    task_ptr: IndexArray, prefix: IntArray, back: IndexArray, limit: int
) -> IntArray:
    """Longest runs from each first group: fewest runs to every end, one sweep."""
    groups = task_ptr.size - 1
    result = np.full((groups, groups + 1), UNAVAILABLE, dtype=np.int64)
    for first in range(groups):
        run, cores = task_ptr[first], 0
        stop, last = task_ptr[first], first + 1
        while last <= groups:
            if stop == task_ptr[last]:
                if cores > 0:
                    result[first, last] = cores
                last += 1
                continue
            stop += 1
            if back[stop] >= stop or prefix[stop] - prefix[stop - 1] > limit:
                break
            if cores == 0 or back[stop] > run or prefix[stop] - prefix[run] > limit:
                run = stop - 1
                cores += 1
    return result


@njit(cache=True)
def _longest_runs(
    begin: int, end: int, prefix: IntArray, back: IndexArray, limit: int
) -> IndexArray:
    """Run of each position when every run is as long as load and room allow."""
    result = np.zeros(end - begin, dtype=np.int32)
    run, number = begin, 0
    for stop in range(begin + 1, end + 1):
        if back[stop] > run or prefix[stop] - prefix[run] > limit:
            run = stop - 1
            number += 1
        result[stop - 1 - begin] = number
    return result
