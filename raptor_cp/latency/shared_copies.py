"""Copies of weights for one inference whose operations overlap.

Where slots run short, list schedulers copy weights greedily and leave late operations
with few cores.  Here the slots are shared out before anything is placed.  The tasks of
one weight set on n copies of it take the makespan of their longest-first schedule on n
machines, and a task starts after all those of a set that it depends on::

    start(t) >= start(p) + execution(p)               for each predecessor p
    start(t) >= min start(A) + makespan(A, n copies)  for each weight set, A its tasks
                                                      that t depends on

so operations follow each other only as far as their lanes do.  Every set begins with a
copy for each of its tasks; while the copies exceed the chip, one copy goes whose loss
delays the end least, the largest on a tie.  Transfers and cores that hold several sets
are left out, so the answer is a proposal: a list scheduler gets it as a reservation.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.latency.bounds import completion_bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.latency.costs import LatencyCosts
    from raptor_cp.pipeline.weights import IndexedResidentWeights
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

#: Larger graphs get no proposal: ancestors are T x T flags.
MAX_TASKS = 6_000
#: Steps of all evaluations of the end; a graph that needs more gets no proposal.
MAX_STEPS = 10**9


@dataclass(frozen=True, eq=False)
class CopyPlan:
    """Copies of the maximal weight sets of a graph.

    Attributes:
        items: classes of :class:`IndexedResidentWeights`, ascending.
        copies: cores that should hold each of them, at least 1.
        load_ns: work of the tasks that each of them serves.
    """

    items: tuple[int, ...]
    copies: tuple[int, ...]
    load_ns: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SharedCopies:
    """Copies, and when their tasks are expected to run.

    Attributes:
        plan: the copies.
        begin_ns, end_ns: of each item of the plan: first start, last end.
        completion_ns: expected end of the inference.
    """

    plan: CopyPlan
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    completion_ns: int


def longest_first_makespan(lengths: Sequence[int], machines: int) -> int:
    """Makespan of independent jobs, each to the machine that is free first.

    >>> longest_first_makespan([3, 3, 2, 2, 2], 2)
    7
    """
    free = [0] * machines
    for length in sorted(lengths, reverse=True):
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def items_of_classes(weights: IndexedResidentWeights, items: list[int]) -> list[int]:
    """[C] the smallest item that holds each class; -1 for one without weights."""
    result = []
    sets = {item: set(weights.class_weights(item).tolist()) for item in items}
    for number in range(weights.class_count):
        own = set(weights.class_weights(number).tolist())
        over = [item for item in items if own <= sets[item]]
        result.append(
            min(over, key=lambda i: (int(weights.class_slots[i]), i)) if own else -1
        )
    return result


def share_copies(
    problem: Problem, costs: LatencyCosts, weights: IndexedResidentWeights
) -> SharedCopies | None:
    """Copies that delay the end of one inference least; None without a proposal.

    Args:
        problem: graph, costs and chip.
        costs, weights: tables of the problem.

    ``O(T^2 + T E)`` time and memory for the ancestors, then one evaluation of the end
    for each set and copy that goes.
    """
    items = weights.maximal_classes(range(costs.tasks)).tolist()
    if not items or costs.tasks > MAX_TASKS:
        return None
    seat = np.array(items_of_classes(weights, items))[weights.task_class]
    members = [np.flatnonzero(seat == item).astype(np.int64) for item in items]
    tail = completion_bound(problem, costs, weights).tail_ns.min(axis=1)
    chain = _chain(costs, tail, members)
    copies = np.array([min(costs.cores, own.size) for own in members], dtype=np.int64)
    slots = weights.class_slots[items].astype(np.int64)
    steps = int((copies - 1).sum()) * len(items) * (chain.tasks.size + costs.tasks)
    if steps > MAX_STEPS:
        return None
    room = costs.cores * weights.capacity
    if not _shrink(
        copies, slots, 2 * slots > weights.capacity, room, costs.cores, chain
    ):
        return None
    start = np.zeros(costs.tasks, dtype=np.int64)
    completion = int(_end(copies, start, chain))
    begin, end = [], []
    for own, count in zip(members, copies.tolist(), strict=True):
        begin.append(int(start[own].min()))
        together = longest_first_makespan(chain.work[own].tolist(), count)
        last = int((start[own] + chain.work[own]).max())
        end.append(max(last, begin[-1] + together))
    load = tuple(int(chain.work[own].sum()) for own in members)
    plan = CopyPlan(tuple(items), tuple(copies.tolist()), load)
    return SharedCopies(plan, tuple(begin), tuple(end), completion)


def reserved_apart(
    shared: SharedCopies, weights: IndexedResidentWeights, cores: int
) -> BoolArray | None:
    """[P, W] cores that hold the copies: sets that run at one time on different ones.

    Largest sets first.  Further copies that fit nowhere are left out; None when some
    first copy fits nowhere.
    """
    plan = shared.plan
    begin, end = np.array(shared.begin_ns), np.array(shared.end_ns)
    overlap = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
    overlap = np.maximum(overlap, 0)
    held = np.zeros((cores, weights.slots.size), dtype=np.bool_)
    here = np.zeros((cores, len(plan.items)), dtype=np.int64)
    load = np.zeros(cores, dtype=np.int64)
    sizes = [int(weights.class_slots[item]) for item in plan.items]
    for index in sorted(
        range(len(sizes)), key=lambda i: (-sizes[i], shared.begin_ns[i], i)
    ):
        members = weights.class_weights(plan.items[index])
        for count in range(plan.copies[index]):
            used = held @ weights.slots
            need = (~held[:, members] * weights.slots[members]).sum(axis=1)
            there = held[:, members].all(axis=1)
            fits = np.flatnonzero((used + need <= weights.capacity) & ~there)
            if fits.size == 0:
                if count == 0 and not there.any():
                    return None
                break
            at_once = here[fits] @ overlap[index]
            core = int(fits[np.lexsort((fits, used[fits], load[fits], at_once))[0]])
            held[core, members] = True
            here[core, index] = 1
            load[core] += plan.load_ns[index] // plan.copies[index]
    return held


class _Chain(NamedTuple):
    """The inequalities of the module docstring as flat arrays, for kernels.

    Row r is about the set ``tasks[first[r]:first[r + 1]]``.

    Attributes:
        work: [T] least execution (ns).
        pred_ptr, pred_src: [T+1], [E] dependencies by destination.
        tail: [T] at least this passes after a task's end.
        rows: [T+2] rows of each task; those of T bound the end itself.
        item: [R] item of each row.
        first, tasks: [R+1] and the sets.
        table, makespan: row r on n copies takes ``makespan[table[r] + n - 1]``.
        least_tail: [I] least tail of the tasks of an item.
    """

    work: IntArray
    pred_ptr: IndexArray
    pred_src: IndexArray
    tail: IntArray
    rows: IntArray
    item: IntArray
    first: IntArray
    tasks: IntArray
    table: IntArray
    makespan: IntArray
    least_tail: IntArray


def _chain(costs: LatencyCosts, tail: IntArray, members: Sequence[IntArray]) -> _Chain:
    """Rows of all tasks; a row that a predecessor has already is left out."""
    work = costs.execution_ns.min(axis=1)
    ancestors = _ancestors(costs)
    ends = np.repeat(np.arange(costs.tasks), np.diff(costs.pred_ptr))
    found: list[tuple[int, int, IntArray]] = []
    for index, own in enumerate(members):
        if own.size < 2:
            continue
        # A task's set contains those of its predecessors: equal size, equal set.
        count = ancestors[:, own].sum(axis=1)
        known = np.zeros(costs.tasks, dtype=np.int64)
        np.maximum.at(known, ends, count[costs.pred_src])
        for task in np.flatnonzero((count > known) & (count > 1)).tolist():
            found.append((task, index, own[ancestors[task, own]]))
        found.append((costs.tasks, index, own))
    found.sort(key=lambda row: row[:2])
    tables: dict[bytes, int] = {}
    makespan: list[IntArray] = []
    size, table = 0, []
    for _, _, own in found:
        lengths = np.sort(work[own])[::-1].copy()
        key = lengths.tobytes()
        if key not in tables:
            tables[key] = size
            makespan.append(_makespans(lengths))
            size += makespan[-1].size
        table.append(tables[key])
    nothing = np.zeros(0, dtype=np.int64)
    owner = np.array([row[0] for row in found], dtype=np.int64)
    return _Chain(
        work,
        costs.pred_ptr,
        costs.pred_src,
        tail,
        np.searchsorted(owner, np.arange(costs.tasks + 2)).astype(np.int64),
        np.array([row[1] for row in found], dtype=np.int64),
        np.cumsum([0, *(row[2].size for row in found)]).astype(np.int64),
        np.concatenate([nothing, *(row[2] for row in found)]),
        np.array(table, dtype=np.int64),
        np.concatenate([nothing, *makespan]),
        np.array([tail[own].min(initial=2**62) for own in members], dtype=np.int64),
    )


def _ancestors(costs: LatencyCosts) -> BoolArray:
    """[T, T] whether the first depends on the second, directly or not."""
    found = np.zeros((costs.tasks, costs.tasks), dtype=np.bool_)
    ptr, source = costs.pred_ptr.tolist(), costs.pred_src
    for task in range(costs.tasks):
        before = source[ptr[task] : ptr[task + 1]]
        if before.size:
            found[task] = found[before].any(axis=0)
            found[task, before] = True
    return found


@njit(cache=True)
def _makespans(lengths: IntArray) -> IntArray:
    """[n] makespan on 1 to n machines of n jobs, longest first."""
    jobs = lengths.size
    result = np.empty(jobs, dtype=np.int64)
    for machines in range(1, jobs + 1):
        free = np.zeros(machines, dtype=np.int64)
        for job in range(jobs):
            free[np.argmin(free)] += lengths[job]
        result[machines - 1] = free.max()
    return result


@njit(cache=True)
def _end(copies: IntArray, start: IntArray, chain: _Chain) -> int:
    """Expected end; fills in ``start``."""
    count, last = chain.work.size, np.int64(0)
    for task in range(count + 1):
        begin = np.int64(0)
        if task < count:
            for edge in range(chain.pred_ptr[task], chain.pred_ptr[task + 1]):
                source = chain.pred_src[edge]
                begin = max(begin, start[source] + chain.work[source])
        for row in range(chain.rows[task], chain.rows[task + 1]):
            earliest = start[chain.tasks[chain.first[row]]]
            for entry in range(chain.first[row] + 1, chain.first[row + 1]):
                earliest = min(earliest, start[chain.tasks[entry]])
            machines = min(
                copies[chain.item[row]], chain.first[row + 1] - chain.first[row]
            )
            done = earliest + chain.makespan[chain.table[row] + machines - 1]
            if task < count:
                begin = max(begin, done)
            else:
                last = max(last, done + chain.least_tail[chain.item[row]])
        if task < count:
            start[task] = begin
            last = max(last, begin + chain.work[task] + chain.tail[task])
    return int(last)


@njit(cache=True)
def _shrink(
    copies: IntArray,
    slots: IntArray,
    large: BoolArray,
    room: int,
    cores: int,
    chain: _Chain,
) -> bool:
    """Take copies away, in place, until they fit; False when they never do."""
    start = np.zeros(chain.work.size, dtype=np.int64)
    while True:
        over = (slots * copies).sum() > room
        # No core holds two sets of more than half its slots each.
        crowded = copies[large].sum() > cores
        if not over and not crowded:
            return True
        best, least = -1, 0
        for index in range(copies.size):
            if copies[index] == 1 or (not over and not large[index]):
                continue
            copies[index] -= 1
            end = _end(copies, start, chain)
            copies[index] += 1
            if best < 0 or end < least or (end == least and slots[index] > slots[best]):
                best, least = index, end
        if best < 0:
            return False
        copies[best] -= 1
