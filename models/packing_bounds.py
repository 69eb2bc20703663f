"""Lower bounds on cores: arguments without a search, and without the solver.

Every bound here is a counting argument over one core: what fits on it is at most its
capacity (weight slots) and, with a load limit C, at most C ns of work.

* *Dual feasible functions* f: if sizes that fit together never sum above 1 under f,
  then ``ceil(sum f)`` cores are needed.  Used: the identity, the rounding functions
  u_k, and the threshold functions of the classical L2 bound.
* *Copies*: the tasks that hold weight w need ``ceil(sum f(load))`` cores, and each
  of them holds a copy of w; all copies together must fit the slots of all cores.
* *Tightened capacity*: no core can use more slots than the largest subset sum of the
  weight sizes that is at most the capacity.
* *Cliques*: tasks that pairwise exceed a core need a core each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.models.instances import JointInstance, PackingInstance

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]

#: "No number of cores is enough".
IMPOSSIBLE = np.int64(2**40)
#: Subset sums are computed exactly up to this many units.
_SUBSET_LIMIT = 2_000_000
#: ... and up to this many units times sizes (bit operations, 64 at a time).
_SUBSET_WORK = 20_000_000
#: Rounding functions u_k with k up to this; larger ones gain below 2 %.
_LARGEST_K = 48
_FUNCTIONS = 12


@dataclass(frozen=True, slots=True)
class CoreBound:
    """At least so many cores, and why.

    Attributes:
        cores: lower bound; :data:`IMPOSSIBLE` when no number is enough.
        reason: ``task`` (one exceeds a core), ``slots``, ``load`` or ``clique``.
        tasks: tasks of the argument, when they are few (task, clique); else empty.
    """

    cores: int
    reason: str
    tasks: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class DualFunctions:
    """D functions over n sizes as exact integers.

    ``value[d] / unit[d]`` is the value in [0, 1] of each size.
    """

    value: IntArray
    unit: IntArray

    @classmethod
    def of(cls, sizes: IntArray, capacity: int) -> DualFunctions:
        """The identity, u_k and threshold functions that can matter for ``sizes``."""
        rows, units = [sizes.astype(np.int64)], [capacity]
        fitting = sizes[(sizes > 0) & (sizes <= capacity)]
        distinct, counts = np.unique(fitting, return_counts=True)
        # Sizes that fill most of the cores decide which functions can matter.
        heavy = distinct[np.argsort(-(distinct * counts), kind="stable")]
        rounding: list[int] = []
        # All sums of scaled sizes must stay in int64.
        largest = min(_LARGEST_K, 2**61 // max(1, int(sizes.sum()) + capacity))
        for size in heavy.tolist():
            k = capacity // size
            if k <= largest and k not in rounding and len(rounding) < _FUNCTIONS:
                rounding.append(k)
        for k in rounding:
            scaled = (k + 1) * sizes
            whole = scaled % capacity == 0
            rows.append(np.where(whole, k * sizes, scaled // capacity * capacity))
            units.append(k * capacity)
        halves = heavy[heavy <= capacity // 2][: _FUNCTIONS // 2]
        large = distinct[distinct > capacity // 2]
        if large.size:
            halves = np.unique(np.concatenate([halves, capacity - large]))
            halves = halves[halves > 0][:_FUNCTIONS]
            for threshold in halves.tolist():
                row = np.where(sizes >= threshold, sizes, 0)
                rows.append(np.where(sizes > capacity - threshold, capacity, row))
                units.append(capacity)
        return cls(np.array(rows, dtype=np.int64), np.array(units, dtype=np.int64))

    def bound(self, copies: IntArray | None = None) -> int:
        """Cores for all sizes, each ``copies`` times."""
        value = self.value if copies is None else self.value * copies
        needed = -(-value.sum(axis=1) // self.unit)
        return int(needed.max(initial=0))


def reachable_capacity(sizes: IntArray, capacity: int) -> int:
    """Largest subset sum of ``sizes`` that is at most ``capacity``.

    The capacity itself when the exact sum is too costly to compute.

    >>> reachable_capacity(np.array([36, 36, 24, 24]), 95)
    84
    """
    fitting = [s for s in sizes.tolist() if 0 < s <= capacity]
    if not fitting:
        return 0
    step = gcd(*fitting)
    limit = capacity // step
    if sum(fitting) <= capacity:
        return sum(fitting)
    if limit > _SUBSET_LIMIT or len(fitting) * limit > _SUBSET_WORK:
        return limit * step
    reach, mask = 1, (1 << (limit + 1)) - 1
    for size in fitting:
        reach = (reach | (reach << (size // step))) & mask
        if reach >> limit:
            return limit * step
    return (reach.bit_length() - 1) * step


def core_bound(instance: PackingInstance) -> CoreBound:
    """Best counting bound on the cores of one packing (cliques apart)."""
    slots = task_slots(instance)
    too_large = np.flatnonzero(slots > instance.capacity)
    if too_large.size:
        return CoreBound(int(IMPOSSIBLE), "task", (int(too_large[0]),))
    limit = instance.load_limit_ns
    best = CoreBound(1 if instance.tasks else 0, "task")
    copies = np.zeros(instance.slots.size, dtype=np.int64)
    copies[np.unique(instance.weight_idx)] = 1
    if limit is not None:
        too_long = np.flatnonzero(instance.load_ns > limit)
        if too_long.size:
            return CoreBound(int(IMPOSSIBLE), "task", (int(too_long[0]),))
        reach = max(1, reachable_capacity(instance.load_ns, limit))
        loads = DualFunctions.of(instance.load_ns, reach)
        best = max(best, CoreBound(loads.bound(), "load"), key=lambda b: b.cores)
        owner = np.repeat(np.arange(instance.tasks), np.diff(instance.weight_ptr))
        sums = np.zeros((loads.unit.size, copies.size), dtype=np.int64)
        for row, value in zip(sums, loads.value, strict=True):
            np.add.at(row, instance.weight_idx, value[owner])
        copies = np.maximum(copies, (-(-sums // loads.unit[:, None])).max(axis=0))
    used = np.flatnonzero(copies)
    if used.size:
        sizes = instance.slots[used]
        reach = max(
            1, reachable_capacity(np.repeat(sizes, copies[used]), instance.capacity)
        )
        needed = DualFunctions.of(sizes, reach).bound(copies[used])
        best = max(best, CoreBound(needed, "slots"), key=lambda b: b.cores)
    return best


def task_slots(instance: PackingInstance) -> IntArray:
    """[T] weight slots that each task needs alone."""
    total = np.concatenate([[0], np.cumsum(instance.slots[instance.weight_idx])])
    result: IntArray = total[instance.weight_ptr[1:]] - total[instance.weight_ptr[:-1]]
    return result


def incompatible_clique(instance: PackingInstance) -> tuple[int, ...]:
    """Tasks that pairwise cannot share a core, found greedily, largest first.

    Tasks are compared by weights, and by load when there is a limit.
    """
    sets = [frozenset(instance.weights_of(t)) for t in range(instance.tasks)]
    slots = task_slots(instance)
    size = instance.slots.tolist()
    load = instance.load_ns.tolist()
    limit = instance.load_limit_ns
    order = sorted(range(instance.tasks), key=lambda t: (-int(slots[t]), -load[t], t))
    clique: list[int] = []
    for task in order:
        for member in clique:
            shared = sum(size[w] for w in sets[task] & sets[member])
            union = int(slots[task] + slots[member]) - shared
            apart = union > instance.capacity
            if limit is not None:
                apart = apart or load[task] + load[member] > limit
            if not apart:
                break
        else:
            clique.append(task)
    return tuple(clique)


class SegmentBounds:
    """Least cores of every segment of a joint instance, for any threshold C.

    Args:
        instance: groups in order.
    """

    def __init__(self, instance: JointInstance) -> None:
        self.instance = instance
        packing = instance.packing
        groups = instance.groups
        self.group_of = np.repeat(
            np.arange(groups, dtype=np.int64), np.diff(instance.group_ptr)
        )
        owner = np.repeat(
            np.arange(packing.tasks, dtype=np.int64), np.diff(packing.weight_ptr)
        )
        # One entry for each (group, weight): lanes of an operation share weights.
        key = self.group_of[owner] * max(1, packing.slots.size) + packing.weight_idx
        order = np.argsort(key, kind="stable")
        self._entry_task = owner[order]
        distinct, self._entry_start = np.unique(key[order], return_index=True)
        self._entry_weight = distinct % max(1, packing.slots.size)
        entry_group = distinct // max(1, packing.slots.size)
        self._entry_ptr = np.searchsorted(entry_group, np.arange(groups + 1))
        self.span_ns = segment_spans(
            np.array(instance.group_ptr),
            np.array(packing.load_ns),
            np.array(instance.edge_src),
            np.array(instance.edge_dst),
        )
        self.load_prefix = np.concatenate([[0], np.cumsum(packing.load_ns)])[
            instance.group_ptr
        ]
        self.longest = _running_max(_group_max(packing.load_ns, instance.group_ptr))
        self._too_large = _running_max(
            _group_max(
                (task_slots(packing) > packing.capacity).astype(np.int64),
                instance.group_ptr,
            )
        )
        copies_cap = np.unique(packing.weight_idx)
        sizes = packing.slots[copies_cap] if copies_cap.size else packing.slots[:0]
        # Copies make every size available often enough: repeat each up to capacity.
        repeats = np.maximum(1, packing.capacity // np.maximum(1, sizes))
        reach = reachable_capacity(
            np.repeat(np.unique(sizes), packing.capacity)
            if packing.capacity <= 512
            else np.repeat(sizes, repeats),
            packing.capacity,
        )
        self._slot_functions = DualFunctions.of(packing.slots, max(1, reach))
        least, most = instance.rules.core_range(groups, instance.cores)
        self._least, self._most = least, most
        pointer = instance.group_ptr
        empty = pointer[:-1, None] == pointer[None, :]
        self._forbidden = ~instance.segments_allowed() | empty

    def least_cores(self, limit_ns: int) -> IntArray:
        """[G, G+1] proved lower bound on cores; IMPOSSIBLE where none is enough."""
        packing = self.instance.packing
        limit = max(1, limit_ns)
        loads = DualFunctions.of(packing.load_ns, limit)
        starts = self._entry_start
        entry_sums = (
            np.add.reduceat(loads.value[:, self._entry_task], starts, axis=1)
            if starts.size
            else np.zeros((loads.unit.size, 0), dtype=np.int64)
        )
        prefix = np.concatenate(
            [
                np.zeros((loads.unit.size, 1), dtype=np.int64),
                np.cumsum(loads.value, axis=1),
            ],
            axis=1,
        )[:, self.instance.group_ptr]
        cores = _least_cores(
            prefix,
            loads.unit,
            self._entry_ptr,
            self._entry_weight,
            np.ascontiguousarray(entry_sums.T),
            np.ascontiguousarray(self._slot_functions.value.T),
            self._slot_functions.unit,
        )
        cores = np.maximum(cores, self._least)
        impossible = (
            self._forbidden
            | (self.span_ns > limit_ns)
            | (self.longest > limit_ns)
            | (self._too_large > 0)
            | (cores > self._most)
        )
        result: IntArray = np.where(impossible, IMPOSSIBLE, cores)
        return result


@njit(cache=True)
def _least_cores(
    prefix: IntArray,
    unit: IntArray,
    entry_ptr: IntArray,
    entry_weight: IntArray,
    entry_sums: IntArray,
    slot_value: IntArray,
    slot_unit: IntArray,
) -> IntArray:
    """For each first group, add groups one by one and keep all sums."""
    functions, points = prefix.shape
    groups = points - 1
    result = np.ones((groups, points), dtype=np.int64)
    weights, slot_functions = slot_value.shape
    sums = np.zeros((weights, functions), dtype=np.int64)
    copies = np.zeros(weights, dtype=np.int64)
    total = np.zeros(slot_functions, dtype=np.int64)
    for first in range(groups):
        sums[:] = 0
        copies[:] = 0
        total[:] = 0
        for last in range(first + 1, points):
            for entry in range(entry_ptr[last - 1], entry_ptr[last]):
                weight = entry_weight[entry]
                needed = np.int64(1)
                for d in range(functions):
                    sums[weight, d] += entry_sums[entry, d]
                    needed = max(needed, -(-sums[weight, d] // unit[d]))
                more = needed - copies[weight]
                if more > 0:
                    copies[weight] = needed
                    for d in range(slot_functions):
                        total[d] += more * slot_value[weight, d]
            cores = np.int64(1)
            for d in range(functions):
                work = prefix[d, last] - prefix[d, first]
                cores = max(cores, -(-work // unit[d]))
            for d in range(slot_functions):
                cores = max(cores, -(-total[d] // slot_unit[d]))
            result[first, last] = cores
    return result


def segment_spans(
    group_ptr: IndexArray, load_ns: IntArray, edge_src: IndexArray, edge_dst: IndexArray
) -> IntArray:
    """[G, G+1] longest path of execution times (ns) inside groups [i, j)."""
    order = np.argsort(edge_dst, kind="stable")
    pointer = np.searchsorted(edge_dst[order], np.arange(load_ns.size + 1))
    return _segment_spans(group_ptr, load_ns, pointer, edge_src[order])


@njit(cache=True)
def _segment_spans(
    group_ptr: IndexArray, load_ns: IntArray, pointer: IntArray, source: IndexArray
) -> IntArray:
    groups = group_ptr.size - 1
    spans = np.zeros((groups, groups + 1), dtype=np.int64)
    path = np.zeros(load_ns.size, dtype=np.int64)
    for first in range(groups):
        begin = group_ptr[first]
        longest = np.int64(0)
        for group in range(first, groups):
            for task in range(group_ptr[group], group_ptr[group + 1]):
                before = np.int64(0)
                for edge in range(pointer[task], pointer[task + 1]):
                    if source[edge] >= begin:
                        before = max(before, path[source[edge]])
                path[task] = before + load_ns[task]
                longest = max(longest, path[task])
            spans[first, group + 1] = longest
    return spans


def _group_max(values: IntArray, group_ptr: IndexArray) -> IntArray:
    return np.array(
        [int(values[a:b].max(initial=0)) for a, b in pairwise(group_ptr.tolist())],
        dtype=np.int64,
    )


def _running_max(values: IntArray) -> IntArray:
    """[G, G+1] maximum of ``values[i:j]``."""
    groups = values.size
    result = np.zeros((groups, groups + 1), dtype=np.int64)
    for first in range(groups):
        result[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return result
