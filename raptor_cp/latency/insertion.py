"""Insertion-based placement: tasks in a given order, each where its key is least.

A core's tasks are a linked list by start time.  A task may take a gap between two
tasks already placed (Topcuoglu et al. 2002).  The key of a core is::

    (end + look-ahead of the core, end, further weight slots, core)

so that equal candidates prefer the earlier end, then the core that already holds
more of the task's weights, then the lower number: the result is deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.latency.costs import LatencyCosts
    from raptor_cp.pipeline.weights import IndexedResidentWeights

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Insertion:
    """Result of one pass over an order.

    Attributes:
        placed: tasks of the order that found a core; all, or up to the first that
            fits nowhere.
        core_of: [T] core of each task, -1 where not placed.
        start_ns, end_ns: [T].
        order: tasks of each core by start.
    """

    placed: int
    core_of: IndexArray
    start_ns: IntArray
    end_ns: IntArray
    order: tuple[tuple[int, ...], ...]

    @property
    def makespan_ns(self) -> int:
        """End of the last task."""
        return int(self.end_ns.max())


def insert_in_order(
    order: IntArray,
    costs: LatencyCosts,
    look_ahead_ns: IntArray | None,
    weights: IndexedResidentWeights,
    held: BoolArray | None = None,
    capacity: int | None = None,
) -> Insertion:
    """Place every task of ``order``, a topological order of all tasks.

    Args:
        order: [T] tasks.
        costs: tables of the problem.
        look_ahead_ns: [T, P] added to the end when cores are compared; None: nothing.
        weights: resident weights of the tasks.
        held: [P, W] weights that cores hold already; None: none.  Not changed.
        capacity: weight slots of a core; default: that of ``weights``.

    ``O(E P + T (P r + T))`` time: r weights of a task; gaps can be quadratic.
    """
    tasks, cores = costs.tasks, costs.cores
    core_of = np.full(tasks, -1, dtype=np.int32)
    start, end = np.zeros(tasks, dtype=np.int64), np.zeros(tasks, dtype=np.int64)
    following = np.full(tasks, -1, dtype=np.int32)
    first = np.full(cores, -1, dtype=np.int32)
    if held is None:
        held = np.zeros((cores, weights.slots.size), dtype=np.bool_)
    else:
        held = held.copy()
    if look_ahead_ns is None:
        look_ahead_ns = np.zeros((1, 1), dtype=np.int64)
    placed = _insert(
        order,
        costs.execution_ns,
        costs.pred_ptr,
        costs.pred_src,
        costs.pred_bytes,
        costs.handshake_ns,
        costs.unit_ns,
        costs.link_width,
        costs.endpoint_width,
        costs.endpoint_ns,
        look_ahead_ns,
        weights.task_class,
        weights.class_ptr,
        weights.class_idx,
        weights.slots,
        weights.capacity if capacity is None else capacity,
        held,
        core_of,
        start,
        end,
        following,
        first,
    )
    lists = []
    for head in first.tolist():
        tasks_of_core = []
        while head >= 0:
            tasks_of_core.append(head)
            head = int(following[head])
        lists.append(tuple(tasks_of_core))
    return Insertion(int(placed), core_of, start, end, tuple(lists))


@njit(cache=True)
def _gap(
    head: int,
    following: IndexArray,
    start: IntArray,
    end: IntArray,
    ready: int,
    duration: int,
) -> tuple[int, int]:
    """(earliest start, task before it or -1) on the core whose list is ``head``.

    A task without duration never goes before another one at the same time: among
    these the list keeps the order of placement, which follows the dependencies.
    """
    previous, free = -1, 0
    task = head
    while task >= 0:
        begin = max(free, ready)
        if begin + duration <= start[task] and (
            duration > 0 or begin < start[task] or end[task] > start[task]
        ):
            return begin, previous
        free = end[task]
        previous = task
        task = following[task]
    return max(free, ready), previous


@njit(cache=True)
def _insert(
    order: IntArray,
    execution_ns: IntArray,
    pred_ptr: IndexArray,
    pred_src: IndexArray,
    pred_bytes: IntArray,
    handshake_ns: IntArray,
    unit_ns: IntArray,
    link_width: int,
    endpoint_width: int,
    endpoint_ns: int,
    look_ahead_ns: IntArray,
    task_class: IndexArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
    held: BoolArray,
    core_of: IndexArray,
    start: IntArray,
    end: IntArray,
    following: IndexArray,
    first: IndexArray,
) -> int:
    cores = first.size
    used = np.zeros(cores, dtype=np.int64)
    for core in range(cores):
        for weight in range(slots.size):
            if held[core, weight]:
                used[core] += slots[weight]
    ready = np.zeros(cores, dtype=np.int64)
    guided = look_ahead_ns.shape[0] == execution_ns.shape[0]
    for position in range(order.size):
        task = order[position]
        ready[:] = 0
        for edge in range(pred_ptr[task], pred_ptr[task + 1]):
            tail, done = core_of[pred_src[edge]], end[pred_src[edge]]
            size = pred_bytes[edge]
            units = (size + link_width - 1) // link_width
            ends = (size + endpoint_width - 1) // endpoint_width * endpoint_ns
            for core in range(cores):
                arrival = done
                if size > 0 and core != tail:
                    arrival += (
                        handshake_ns[tail, core] + units * unit_ns[tail, core] + ends
                    )
                ready[core] = max(ready[core], arrival)
        low, high = class_ptr[task_class[task]], class_ptr[task_class[task] + 1]
        best, before, begins = -1, -1, 0
        key = (0, 0, 0)
        for core in range(cores):
            duration = int(execution_ns[task, core])
            ahead = int(look_ahead_ns[task, core]) if guided else 0
            if best >= 0 and ready[core] + duration + ahead > key[0]:
                continue  # its end can only be later
            need = 0
            for entry in range(low, high):
                if not held[core, class_idx[entry]]:
                    need += int(slots[class_idx[entry]])
            if used[core] + need > capacity:
                continue
            begin, previous = _gap(
                first[core], following, start, end, ready[core], duration
            )
            mine = (begin + duration + ahead, begin + duration, need)
            if best < 0 or mine < key:
                best, before, begins, key = core, previous, begin, mine
        if best < 0:
            return position
        for entry in range(low, high):
            weight = class_idx[entry]
            if not held[best, weight]:
                held[best, weight] = True
                used[best] += slots[weight]
        core_of[task] = best
        start[task] = begins
        end[task] = begins + execution_ns[task, best]
        if before < 0:
            following[task] = first[best]
            first[best] = task
        else:
            following[task] = following[before]
            following[before] = task
    return order.size
