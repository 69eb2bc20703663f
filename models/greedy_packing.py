"""Greedy packing under union capacity and a load limit: least cores, in a few orders.

First fit and reuse-first best fit over a small fixed list of task orders; each run
opens a core when no open one has room.  The result is an assignment or nothing; a
failure proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.models.packing_bounds import task_slots

if TYPE_CHECKING:
    from raptor_cp.models.instances import PackingInstance

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]

_NO_LIMIT = 2**62
#: (order, rule) in the order of trial: the usual winners first.
_TRIALS = ((0, 1), (1, 1), (2, 0), (3, 1), (0, 0), (1, 0), (0, 2), (3, 2))


@dataclass(frozen=True, eq=False)
class GreedyResult:
    """An assignment on ``cores`` cores (numbered from 0), its largest load in ns."""

    core_of: IndexArray
    cores: int
    load_ns: int


class GreedyPacker:
    """Greedy runs over one set of tasks, for any limit and number of cores.

    Args:
        instance: its ``cores`` and ``load_limit_ns`` are ignored.
        kind: [T] the same number for tasks with the same weights, ascending by
            first task (:func:`weight_kinds`); computed when None.
    """

    def __init__(self, instance: PackingInstance, kind: IntArray | None = None) -> None:
        self.load = np.array(instance.load_ns)
        self.ptr = np.array(instance.weight_ptr)
        used, local = np.unique(instance.weight_idx, return_inverse=True)
        self.idx = local.astype(np.int32)
        self.slots = np.array(instance.slots[used])
        self.capacity = instance.capacity
        self.orders = self._orders(
            weight_kinds(instance) if kind is None else kind, task_slots(instance)
        )

    def _orders(self, kind: IntArray, slots: IntArray) -> tuple[IntArray, ...]:
        index = np.arange(self.load.size)
        _, local = np.unique(kind, return_inverse=True)
        work = np.zeros(index.size, dtype=np.int64)
        np.add.at(work, local, self.load)
        return (
            np.lexsort((index, -self.load, kind, -slots)),
            np.lexsort((index, kind, -self.load)),
            index,
            np.lexsort((index, -self.load, kind, -work[local])),
        )

    def fewest(
        self, limit_ns: int | None, most: int, enough: int = 1
    ) -> GreedyResult | None:
        """Fewest cores over all trials, None when every trial needs more than ``most``.

        Args:
            limit_ns: largest load of a core; None for no limit.
            most: cores that there are.
            enough: stop as soon as so few cores are reached.
        """
        limit = _NO_LIMIT if limit_ns is None else limit_ns
        best: GreedyResult | None = None
        for order, rule in _TRIALS:
            bound = most if best is None else best.cores - 1
            if bound < 1:
                break
            core_of, cores, load = _fill(
                self.orders[order],
                self.load,
                self.ptr,
                self.idx,
                self.slots,
                self.capacity,
                limit,
                bound,
                rule,
            )
            if cores:
                best = GreedyResult(core_of, cores, load)
                if cores <= enough:
                    break
        return best


def weight_kinds(instance: PackingInstance) -> IntArray:
    """[T] number of the weight set of each task, by first appearance."""
    known: dict[bytes, int] = {}
    index, pointer = instance.weight_idx, instance.weight_ptr.tolist()
    return np.array(
        [
            known.setdefault(index[a:b].tobytes(), len(known))
            for a, b in pairwise(pointer)
        ],
        dtype=np.int64,
    )


@njit(cache=True)
def _fill(
    order: IntArray,
    load: IntArray,
    ptr: IndexArray,
    idx: IndexArray,
    slots: IntArray,
    capacity: int,
    limit: int,
    most: int,
    rule: int,
) -> tuple[IndexArray, int, int]:
    """(core of each task, cores opened, largest load); 0 cores: failed.

    Rule 0: first core with room.  1: fewest further slots, then the fullest.  2:
    fewest further slots, then the least loaded.
    """
    held = np.zeros((most, slots.size), dtype=np.bool_)
    used = np.zeros(most, dtype=np.int64)
    busy = np.zeros(most, dtype=np.int64)
    core_of = np.full(load.size, -1, dtype=np.int32)
    opened = 0
    for task in order:
        best = -1
        best_need = np.int64(0)
        for core in range(opened):
            if busy[core] + load[task] > limit:
                continue
            need = np.int64(0)
            for entry in range(ptr[task], ptr[task + 1]):
                if not held[core, idx[entry]]:
                    need += slots[idx[entry]]
            if used[core] + need > capacity:
                continue
            better = best < 0 or need < best_need
            if best >= 0 and need == best_need:
                if rule == 1:
                    better = busy[core] > busy[best]
                elif rule == 2:
                    better = busy[core] < busy[best]
            if better:
                best = core
                best_need = need
            if rule == 0:
                break
        if best < 0:
            if opened == most or load[task] > limit:
                return core_of, 0, 0
            best = opened
            opened += 1
            need = np.int64(0)
            for entry in range(ptr[task], ptr[task + 1]):
                need += slots[idx[entry]]
            if need > capacity:
                return core_of, 0, 0
        for entry in range(ptr[task], ptr[task + 1]):
            weight = idx[entry]
            if not held[best, weight]:
                held[best, weight] = True
                used[best] += slots[weight]
        busy[best] += load[task]
        core_of[task] = best
    largest = 0
    for core in range(opened):
        largest = max(largest, int(busy[core]))
    return core_of, max(opened, 1), largest
