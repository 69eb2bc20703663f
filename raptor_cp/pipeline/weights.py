"""Resident weights of tasks: distinct sets, unions, lower bounds on cores.

A core holds the union of the resident weights of its tasks.  Tasks with the same
set of weights are one *class*: packing looks at classes, of which there are far
fewer than tasks.  Slots are weight slots (scheduling spec, "Capacity and recovery").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BitArray = NDArray[np.uint64]

#: Least cores of what no number of cores can hold.
IMPOSSIBLE: Final[int] = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CoreBound:
    """A proved least number of cores, and why.

    Attributes:
        cores: no assignment uses fewer; above any chip when a task is oversized.
        union_slots: slots of the distinct weights.
        large_weights: distinct weights above half a core; no two share one.
        oversized: tasks whose own weights exceed a core, ascending.
    """

    cores: int
    union_slots: int
    large_weights: int
    oversized: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class IndexedResidentWeights:
    """Weight sets of all tasks of a graph against one core capacity.

    Attributes:
        capacity: weight slots of a core.
        slots: [W] weight slots of each weight.
        task_class: [T] class of each task; classes are numbered by first task.
        class_ptr, class_idx: [C+1], [R]: weights of a class, ascending.
        class_bits: [C, ceil(W/64)] the same as bitset rows.
        class_slots: [C] slots of a class on its own; 0 for the empty set.
    """

    capacity: int
    slots: IntArray
    task_class: IndexArray
    class_ptr: IndexArray
    class_idx: IndexArray
    class_bits: BitArray
    class_slots: IntArray

    @classmethod
    def of(cls, problem: Problem) -> IndexedResidentWeights:
        """Index of a problem."""
        return cls.build(problem.graph, problem.resources.slots_per_core)

    @classmethod
    def build(cls, graph: ComputeGraph, capacity: int) -> IndexedResidentWeights:
        """Index of a graph for cores of ``capacity`` weight slots."""
        known: dict[tuple[int, ...], int] = {}
        members: list[int] = []
        for task in graph.tasks:
            held = tuple(sorted(task.weights))
            members.append(known.setdefault(held, len(known)))
        sets = list(known)
        words = max(1, ceil_div(len(graph.weights), 64))
        bits = np.zeros((len(sets), words), dtype=np.uint64)
        for row, held in enumerate(sets):
            for weight in held:
                bits[row, weight >> 6] |= np.uint64(1) << np.uint64(weight & 63)
        slots = graph.weight_slots.astype(np.int64)
        return cls(
            int(capacity),
            slots,
            np.array(members, dtype=np.int32),
            np.cumsum([0, *(len(held) for held in sets)]).astype(np.int32),
            np.array([w for held in sets for w in held], dtype=np.int32),
            bits,
            np.array([int(slots[list(held)].sum()) for held in sets], dtype=np.int64),
        )

    @property
    def class_count(self) -> int:
        """C."""
        return int(self.class_slots.size)

    def class_weights(self, index: int) -> IndexArray:
        """Weights of a class, ascending."""
        return self.class_idx[self.class_ptr[index] : self.class_ptr[index + 1]]

    def classes_of(self, tasks: Iterable[int]) -> IntArray:
        """Distinct classes of some tasks, ascending."""
        picked = np.fromiter(tasks, dtype=np.int64)
        return np.unique(self.task_class[picked]).astype(np.int64)

    def union_slots(self, tasks: Iterable[int]) -> int:
        """Slots of the distinct weights of some tasks."""
        return int(self.slots[self._union(self.classes_of(tasks))].sum())

    def maximal_classes(self, tasks: Iterable[int]) -> IntArray:
        """Classes of some tasks that lie inside no other of them, ascending.

        Only they need room of their own: a core that holds the larger set can run
        the tasks of the smaller one.  The empty set is never one.
        """
        classes = self.classes_of(tasks)
        classes = classes[self.class_slots[classes] > 0]
        single = np.diff(self.class_ptr)[classes] == 1
        shared = np.zeros(self.slots.size, dtype=np.bool_)
        shared[self._union(classes[~single])] = True
        kept = []
        for index in classes.tolist():
            if not shared[self.class_weights(index)].all():
                kept.append(index)  # some weight of it is in no larger set
                continue
            row = self.class_bits[index]
            inside = ((self.class_bits[classes] & row) == row).all(axis=1)
            if int(inside.sum()) == 1:
                kept.append(index)
        return np.array(kept, dtype=np.int64)

    def bound(self, tasks: Iterable[int]) -> CoreBound:
        """Least cores for some tasks: union / capacity, large weights apart.

        Both arguments are proofs: every weight is on at least one core, and two
        distinct weights above half a core never share one.
        """
        picked = list(tasks)
        classes = self.classes_of(picked)
        held = self._union(classes)
        union = int(self.slots[held].sum())
        large = int((2 * self.slots[held] > self.capacity).sum())
        oversized = tuple(
            t for t in picked if self.class_slots[self.task_class[t]] > self.capacity
        )
        least = max(1 if picked else 0, large)
        if oversized:
            least = IMPOSSIBLE
        elif union:
            least = max(least, ceil_div(union, self.capacity))
        return CoreBound(int(least), union, large, oversized)

    def segment_bounds(self, task_ptr: IndexArray) -> IntArray:
        """[G, G+1] ``bound(...).cores`` of every segment of groups: ``O(G R)``.

        Args:
            task_ptr: [G+1] tasks of group g are ``task_ptr[g] .. task_ptr[g+1]-1``.

        0 for a segment without tasks; IMPOSSIBLE when a task is oversized.
        """
        return _segment_bounds(
            task_ptr,
            self.task_class,
            self.class_ptr,
            self.class_idx,
            self.class_slots,
            self.slots,
            self.capacity,
        )

    def _union(self, classes: IntArray) -> IntArray:
        """Distinct weights of some classes, ascending."""
        parts = [self.class_weights(c) for c in classes.tolist()]
        if not parts:
            return np.zeros(0, dtype=np.int64)
        return np.unique(np.concatenate(parts)).astype(np.int64)


@njit(cache=True)
def _segment_bounds(
    task_ptr: IndexArray,
    task_class: IndexArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    class_slots: IntArray,
    slots: IntArray,
    capacity: int,
) -> IntArray:
    groups = task_ptr.size - 1
    result = np.zeros((groups, groups + 1), dtype=np.int64)
    seen = np.full(slots.size, -1, dtype=np.int64)
    for first in range(groups):
        union, large, oversized = 0, 0, False
        for last in range(first + 1, groups + 1):
            for task in range(task_ptr[last - 1], task_ptr[last]):
                held = task_class[task]
                oversized = oversized or class_slots[held] > capacity
                for entry in range(class_ptr[held], class_ptr[held + 1]):
                    weight = class_idx[entry]
                    if seen[weight] == first:
                        continue
                    seen[weight] = first
                    union += slots[weight]
                    if 2 * slots[weight] > capacity:
                        large += 1
            if oversized:
                result[first, last] = IMPOSSIBLE
            elif task_ptr[last] > task_ptr[first]:
                least = -(-union // capacity)
                result[first, last] = max(1, large, least)
    return result
