"""Lower bounds on the completion of one inference, without a solver.

With ``head(t)`` the earliest start and ``tail(t)`` the least time after the end of a
task (:mod:`raptor_cp.latency.optimistic_cost`, forwards and backwards), no schedule
of this graph on this chip completes before any of:

*path*
    ``head + shortest execution + tail`` of a task, at its best core.
*work*
    tasks that all start after h and all end q before the end:
    ``h + ceil(their work / P) + q``, for every h and q.
*copies*
    In M ns a core can run at most ``M - h - q`` ns of the tasks that hold weight w,
    which start after h and end q before the end: so w stands on at least
    ``ceil(load / (M - h - q))`` cores, and all copies of all weights must fit the
    slots of all cores.  The least M for which they do.

Dependent tasks whose weights exceed a core together never share one: their transfer
is part of every path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.latency.optimistic_cost import earliest_starts, optimistic_costs
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

#: Above so many tasks the work bound looks at this many values of h only.
_WORK_STEPS = 2_000


@dataclass(frozen=True, eq=False)
class CompletionBound:
    """What no schedule beats.

    Attributes:
        path_ns, work_ns, copies_ns: each of the arguments alone.
        slots_ns: another one, by :mod:`raptor_cp.models.latency_slots`; 0: not asked.
        head_ns: [T, P] no schedule starts task t on core p earlier.
        tail_ns: [T, P] at least this passes after the end of t on p.
    """

    path_ns: int
    work_ns: int
    copies_ns: int
    head_ns: IntArray
    tail_ns: IntArray
    slots_ns: int = 0

    @property
    def ns(self) -> int:
        """The best of them."""
        return max(self.path_ns, self.work_ns, self.copies_ns, self.slots_ns)

    @property
    def argument(self) -> str:
        """Which one it is: ``path``, ``work``, ``copies`` or ``slots``."""
        if self.path_ns == self.ns:
            return "path"
        if self.work_ns == self.ns:
            return "work"
        return "copies" if self.copies_ns == self.ns else "slots"


def completion_bound(
    problem: Problem,
    costs: LatencyCosts | None = None,
    weights: IndexedResidentWeights | None = None,
) -> CompletionBound:
    """All bounds of a problem: ``O(E P^2 + T^2)`` at worst.

    Args:
        problem: graph, costs and chip; its weights fit the chip (on a chip where
            they do not, the figures mean nothing).
        costs, weights: tables of the problem, when they are there already.
    """
    costs = LatencyCosts.of(problem) if costs is None else costs
    weights = IndexedResidentWeights.of(problem) if weights is None else weights
    before, after = never_together(costs, weights)
    head = earliest_starts(costs, after)
    tail = optimistic_costs(costs, before)
    shortest = costs.execution_ns.min(axis=1)
    path = int((head + costs.execution_ns + tail).min(axis=1).max())
    least_head, least_tail = head.min(axis=1), tail.min(axis=1)
    return CompletionBound(
        path,
        _work_bound(least_head, shortest, least_tail, costs.cores),
        _copies_bound(problem, least_head, shortest, least_tail, path),
        head,
        tail,
    )


def never_together(
    costs: LatencyCosts, weights: IndexedResidentWeights
) -> tuple[BoolArray, BoolArray]:
    """[E] by destination and [E] by source: weights of both ends exceed a core.

    On a chip of one core nothing is apart: such weights do not fit it at all.
    """
    count = weights.class_count
    flags = []
    for ptr, neighbour in (
        (costs.pred_ptr, costs.pred_src),
        (costs.succ_ptr, costs.succ_dst),
    ):
        owner = np.repeat(np.arange(costs.tasks), np.diff(ptr))
        ends = weights.task_class[np.stack([owner, neighbour])].astype(np.int64)
        pair = ends.min(axis=0) * count + ends.max(axis=0)
        distinct, inverse = np.unique(pair, return_inverse=True)
        apart = np.zeros(distinct.size, dtype=np.bool_)
        for number, value in enumerate(distinct.tolist()):
            first, second = divmod(value, count)
            least = int(weights.class_slots[first] + weights.class_slots[second])
            if first == second or least <= weights.capacity or costs.cores == 1:
                continue
            union = np.union1d(
                weights.class_weights(first), weights.class_weights(second)
            )
            apart[number] = int(weights.slots[union].sum()) > weights.capacity
        flags.append(apart[inverse.reshape(-1)])
    return flags[0], flags[1]


def _work_bound(head: IntArray, work: IntArray, tail: IntArray, cores: int) -> int:
    heads = np.unique(head)
    if heads.size > _WORK_STEPS:
        picked = np.linspace(0, heads.size - 1, _WORK_STEPS).astype(np.int64)
        heads = heads[picked]
    by_tail = np.argsort(-tail, kind="stable")
    return int(_work_kernel(heads, head[by_tail], work[by_tail], tail[by_tail], cores))


@njit(cache=True)
def _work_kernel(
    heads: IntArray, head: IntArray, work: IntArray, tail: IntArray, cores: int
) -> int:
    """Tasks by falling tail; every prefix of those after a head is a set."""
    best = 0
    for threshold in heads:
        total = 0
        for task in range(head.size):
            if head[task] >= threshold:
                total += int(work[task])
                share = (total + cores - 1) // cores
                best = max(best, int(threshold) + share + int(tail[task]))
    return best


def _copies_bound(
    problem: Problem, head: IntArray, work: IntArray, tail: IntArray, least: int
) -> int:
    """Bisection from ``least`` ns: more time never needs more copies."""
    graph, resources = problem.graph, problem.resources
    if not graph.weights:
        return least
    task = np.repeat(np.arange(graph.task_count), np.diff(graph.weight_ptr))
    count = len(graph.weights)
    load = np.zeros(count, dtype=np.int64)
    np.add.at(load, graph.weight_idx, work[task])
    around = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    late = around.copy()
    np.minimum.at(around, graph.weight_idx, head[task])
    np.minimum.at(late, graph.weight_idx, tail[task])
    used = load > 0
    rows = list(
        zip(
            load[used].tolist(),
            (around[used] + late[used]).tolist(),
            graph.weight_slots[used].tolist(),
            strict=True,
        )
    )
    room = resources.cores * resources.slots_per_core

    def fits(limit: int) -> bool:
        slots = 0
        for total, outside, size in rows:
            if limit <= outside:
                return False
            copies = ceil_div(total, limit - outside)
            if copies > resources.cores:
                return False
            slots += copies * size
        return slots <= room

    low, high = least, max(least, int(load.sum()) + int((head + tail).max()) + 1)
    if not fits(high):  # the weights do not fit the chip once each
        return least
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low
