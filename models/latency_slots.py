"""A bound on one inference whose weights share out too few slots.

Every core that helps with a weight needs a copy of it, and all copies share the slots
of the chip.  Let ``n(w)`` be the copies of weight w, ``h(v)`` the start of task v,
``m(S)`` the first start among the tasks of a set S that all hold w, and ``f(S, n)``
a lower bound on their makespan on n cores.  Every schedule obeys::

    h(v) >= h(u) + execution(u) (+ a transfer that cannot vanish)     dependencies
    h(v) >= m(S) + f(S, n(w)) + path(S, v)     where v depends on every task of S
    m(S) >= h(x) + execution(x) + path(x, S)   where every task of S depends on x
    m(S) >= m(R) + f(R, n(w')) + path(R, S)    where every task of S depends on all of R
    all copies fit the cores                   slots in total, and patterns of sizes

``path`` is the least, over the tasks of a set, of the longest chain in between.  With
the lower convex envelope of f this is a linear program: its optimum is a bound.

:mod:`raptor_cp.models.linear_bound` proves it in exact integers: nothing that the
linear solver claims is taken on trust.

All times are ns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.latency.bounds import never_together
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.models.linear_bound import LinearBound
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raptor_cp.latency.bounds import CompletionBound
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]

#: Larger graphs get no such bound: the paths are T x T numbers.
MAX_TASKS = 2_000
#: Larger programs get no such bound: nonzeros of all rows.
MAX_NONZEROS = 120_000
#: Mixes of weight sizes on one core; with more of them only the slots are counted.
MAX_PATTERNS = 2_000
#: No path: far below every sum of times, far from the end of int64.
_NONE = -(2**61)

_Set = tuple[int, bytes]


def makespan_table(lengths: Sequence[int], most: int) -> list[int]:
    """Lower bounds on the makespan of independent jobs on 1 to ``most`` machines.

    The work over the machines, the longest job, and the k + 1 shortest of the longest
    k n + 1 jobs: two of these meet on some machine at least so often.

    >>> makespan_table([3, 3, 2, 2, 2], 3)
    [12, 6, 4]
    """
    jobs = sorted(lengths, reverse=True)
    until = [0]
    for length in jobs:
        until.append(until[-1] + length)
    table = []
    for machines in range(1, most + 1):
        least = max(jobs[0], ceil_div(until[-1], machines))
        for turns in range(1, (len(jobs) - 1) // machines + 1):
            last = turns * machines + 1
            least = max(least, until[last] - until[last - turns - 1])
        table.append(least)
    return table


def shared_slots_bound(
    problem: Problem,
    bound: CompletionBound,
    horizon_ns: int,
    costs: LatencyCosts | None = None,
    weights: IndexedResidentWeights | None = None,
) -> int | None:
    """No schedule completes earlier (ns); None where this argument says nothing.

    Args:
        problem: graph, costs and chip.
        bound: its other bounds.
        horizon_ns: completion of some schedule of it.
        costs, weights: tables of the problem, when they are there already.
    """
    graph, resources = problem.graph, problem.resources
    weights = IndexedResidentWeights.of(problem) if weights is None else weights
    if not 0 < graph.task_count <= MAX_TASKS or _all_copies_fit(problem):
        return None
    costs = LatencyCosts.of(problem) if costs is None else costs
    chains = _Chains.of(problem, costs, weights)
    program = LinearBound(horizon_ns)
    start = [
        program.variable(low, max(low, high))
        for low, high in zip(
            bound.head_ns.min(axis=1).tolist(),
            (horizon_ns - (bound.tail_ns + costs.execution_ns).min(axis=1)).tolist(),
            strict=True,
        )
    ]
    end = program.variable(bound.ns, horizon_ns)
    holders = np.bincount(graph.weight_idx, minlength=len(graph.weights))
    copies = [
        program.variable(1, max(1, min(resources.cores, count)))
        for count in holders.tolist()
    ]
    _dependencies(program, chains, [*start, end])
    _sets(program, chains, [*start, end], copies)
    _slots(program, problem, copies)
    if program.nonzeros > MAX_NONZEROS:
        return None
    return program.least(end)


def _all_copies_fit(problem: Problem) -> bool:
    """Whether a copy for every task is within the slots: nothing to share out."""
    graph, resources = problem.graph, problem.resources
    count = np.minimum(
        np.bincount(graph.weight_idx, minlength=len(graph.weights)), resources.cores
    )
    slots = graph.weight_slots
    large = int(count[2 * slots > resources.slots_per_core].sum())
    return (
        int((count * slots).sum()) <= resources.cores * resources.slots_per_core
        and large <= resources.cores
    )


@dataclass(frozen=True, eq=False)
class _Chains:
    """Dependencies, and the longest chain between all pairs of tasks.

    Attributes:
        work: [T] least execution.
        pred_ptr, pred_src, lag: [T+1], [E], [E] dependencies by destination, and the
            transfer that cannot vanish.
        path: [T+1, T] from the end of a task to the start of another one, ``_NONE``
            without a chain; the last row is the end of the inference.
        holders: weight and tasks, of each weight that two tasks hold.
    """

    work: IntArray
    pred_ptr: IndexArray
    pred_src: IndexArray
    lag: IntArray
    path: IntArray
    holders: tuple[tuple[int, IntArray], ...]

    @classmethod
    def of(
        cls, problem: Problem, costs: LatencyCosts, weights: IndexedResidentWeights
    ) -> _Chains:
        work = np.ascontiguousarray(costs.execution_ns.min(axis=1))
        apart, _ = never_together(costs, weights)
        lag = np.zeros(costs.pred_src.size, dtype=np.int64)
        away = ~np.eye(costs.cores, dtype=np.bool_)
        for size in np.unique(costs.pred_bytes[apart]).tolist():
            same = apart & (costs.pred_bytes == size)
            lag[same] = int(costs.transfer_ns(size)[away].min())
        graph = problem.graph
        task = np.repeat(np.arange(graph.task_count), np.diff(graph.weight_ptr))
        return cls(
            work,
            costs.pred_ptr,
            costs.pred_src,
            lag,
            _paths(work, costs.pred_ptr, costs.pred_src, lag),
            tuple(
                (weight, own)
                for weight in range(len(graph.weights))
                if (own := task[graph.weight_idx == weight]).size > 1
            ),
        )

    @property
    def tasks(self) -> int:
        """T."""
        return int(self.work.size)

    def before(self, node: int) -> tuple[IntArray, IntArray]:
        """Tasks that a node waits for directly, and the time after their start."""
        if node == self.tasks:
            return np.arange(self.tasks), self.work
        low, high = int(self.pred_ptr[node]), int(self.pred_ptr[node + 1])
        source = self.pred_src[low:high].astype(np.int64)
        return source, self.work[source] + self.lag[low:high]


@njit(cache=True)
def _paths(
    work: IntArray, pred_ptr: IndexArray, pred_src: IndexArray, lag: IntArray
) -> IntArray:
    tasks = work.size
    path = np.full((tasks + 1, tasks), _NONE, dtype=np.int64)
    for node in range(tasks):
        row = path[node]
        for edge in range(pred_ptr[node], pred_ptr[node + 1]):
            source = pred_src[edge]
            step = work[source] + lag[edge]
            for task in range(source):
                if path[source, task] >= 0:
                    row[task] = max(row[task], path[source, task] + step)
            row[source] = max(row[source], lag[edge])
    for source in range(tasks):
        for task in range(source):
            if path[source, task] >= 0:
                path[tasks, task] = max(
                    path[tasks, task], path[source, task] + work[source]
                )
        path[tasks, source] = max(path[tasks, source], 0)
    return path


def _dependencies(program: LinearBound, chains: _Chains, start: Sequence[int]) -> None:
    for node, own in enumerate(start):
        for source, step in zip(*chains.before(node), strict=True):
            program.at_least([(own, 1), (start[int(source)], -1)], int(step))


def _sets(
    program: LinearBound,
    chains: _Chains,
    start: Sequence[int],
    copies: Sequence[int],
) -> None:
    """Sets that end before a task does begin, and what their own begin waits for."""
    first: dict[_Set, int] = {}
    length: dict[_Set, int] = {}
    members: dict[_Set, IntArray] = {}
    tables: dict[tuple[int, bytes], list[int]] = {}
    for weight, own in chains.holders:
        rows = chains.path[:, own]
        most = program.most(copies[weight])
        for node in np.flatnonzero(_fresh(chains, rows)).tolist():
            source, step = chains.before(node)
            seen = np.where(rows[source] >= 0, rows[source] + step[:, None], _NONE)
            for tail, inside in _levels(rows[node]):
                if ((seen >= tail) == inside).all(axis=1).any():
                    continue
                tasks = own[inside]
                key = weight, tasks.tobytes()
                if key not in first:
                    lengths = np.sort(chains.work[tasks])
                    shape = most, lengths.tobytes()
                    if shape not in tables:
                        tables[shape] = makespan_table(lengths.tolist(), most)
                    low = min(program.low(start[t]) for t in tasks.tolist())
                    members[key] = tasks
                    first[key] = program.variable(low, program.horizon)
                    length[key] = program.envelope(copies[weight], tables[shape])
                program.at_least(
                    [(start[node], 1), (first[key], -1), (length[key], -1)], tail
                )
    for key, tasks in members.items():
        common = chains.path[tasks].min(axis=0)
        nearest = np.flatnonzero(
            _nearest(chains.work, chains.pred_ptr, chains.pred_src, chains.lag, common)
        )
        for ancestor in nearest.tolist():
            program.at_least(
                [(first[key], 1), (start[ancestor], -1)],
                int(chains.work[ancestor] + common[ancestor]),
            )
        for weight, own in chains.holders:
            row = common[own]
            if (row >= 0).sum() < 2:
                continue
            seen = chains.path[nearest][:, own]
            step = (chains.work[nearest] + common[nearest])[:, None]
            seen = np.where(seen >= 0, seen + step, _NONE)
            for tail, inside in _levels(row):
                other = weight, own[inside].tobytes()
                if other in first and not ((seen >= tail) == inside).all(axis=1).any():
                    program.at_least(
                        [(first[key], 1), (first[other], -1), (length[other], -1)],
                        tail,
                    )


def _levels(row: IntArray) -> Iterable[tuple[int, NDArray[np.bool_]]]:
    """(tail, tasks with at least that tail) for each tail that two tasks have."""
    for tail in np.unique(row[row >= 0]).tolist():
        inside = row >= tail
        if inside.sum() > 1:
            yield tail, inside


def _fresh(chains: _Chains, rows: IntArray) -> NDArray[np.bool_]:
    """[T+1] nodes with two tasks or more before them that no predecessor has all."""
    tasks = chains.tasks
    fresh: NDArray[np.bool_] = (rows >= 0).sum(axis=1) > 1
    ends = np.repeat(np.arange(tasks), np.diff(chains.pred_ptr))
    step = chains.work[chains.pred_src] + chains.lag
    before = rows[chains.pred_src]
    seen = np.where(before >= 0, before + step[:, None], _NONE)
    fresh[ends[(seen == rows[ends]).all(axis=1)]] = False
    before = rows[:tasks]
    seen = np.where(before >= 0, before + chains.work[:, None], _NONE)
    if (seen == rows[tasks]).all(axis=1).any():
        fresh[tasks] = False
    return fresh


@njit(cache=True)
def _nearest(
    work: IntArray,
    pred_ptr: IndexArray,
    pred_src: IndexArray,
    lag: IntArray,
    common: IntArray,
) -> NDArray[np.bool_]:
    """[T] common ancestors that no other one of them stands for."""
    nearest = common >= 0
    for node in range(common.size):
        if common[node] < 0:
            continue
        for edge in range(pred_ptr[node], pred_ptr[node + 1]):
            source = pred_src[edge]
            if lag[edge] + work[node] + common[node] >= common[source]:
                nearest[source] = False
    return nearest


def _slots(program: LinearBound, problem: Problem, copies: Sequence[int]) -> None:
    """Copies fit the slots of all cores, and cores that hold mixes of sizes."""
    graph, resources = problem.graph, problem.resources
    slots = graph.weight_slots.tolist()
    room = resources.cores * resources.slots_per_core
    program.at_least(
        [(copies[w], -size) for w, size in enumerate(slots) if size], -room, mixed=True
    )
    of_size: dict[int, list[int]] = {}
    for weight, size in enumerate(slots):
        if size:
            of_size.setdefault(size, []).append(weight)
    sizes = sorted(of_size, reverse=True)
    mixes = full_mixes(
        sizes, [len(of_size[size]) for size in sizes], resources.slots_per_core
    )
    if mixes is None:
        return
    cores = [program.variable(0, resources.cores) for _ in mixes]
    program.at_least([(core, -1) for core in cores], -resources.cores, mixed=True)
    for index, size in enumerate(sizes):
        given = [(core, mix[index]) for core, mix in zip(cores, mixes, strict=True)]
        program.at_least(
            [(core, count) for core, count in given if count]
            + [(copies[weight], -1) for weight in of_size[size]],
            0,
            mixed=True,
        )


def full_mixes(
    sizes: Sequence[int], most: Sequence[int], capacity: int
) -> list[tuple[int, ...]] | None:
    """Full mixes of sizes on one core; None when there are too many."""
    found: list[tuple[int, ...]] = []
    steps = 0
    waiting: list[tuple[tuple[int, ...], int]] = [((), capacity)]
    while waiting:
        steps += 1
        if steps > 20 * MAX_PATTERNS or len(found) > MAX_PATTERNS:
            return None
        mix, left = waiting.pop()
        index = len(mix)
        if index == len(sizes):
            if all(size > left or mix[i] == most[i] for i, size in enumerate(sizes)):
                found.append(mix)
            continue
        largest = min(most[index], left // sizes[index])
        waiting += [
            ((*mix, count), left - count * sizes[index]) for count in range(largest + 1)
        ]
    return found
