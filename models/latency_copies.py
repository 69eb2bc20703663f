"""How many cores should hold each weight: copies for the work of one inference.

The list scheduler copies weights greedily, early tasks first; on a chip whose slots
run short the late ones are left with few cores.  Here CP-SAT shares the slots out
before anything is placed: the lanes of an operation on n copies of their weights
take the makespan of their longest-first schedule on n machines, operations follow
each other along the dependencies, and the end of the last one is least.  Transfers,
overlap of operations and fragmentation are left to the list scheduler, which gets the
copies as a reservation; so the answer is a proposal, evaluated as any other schedule.

All times are ns, or units of several ns above the solver's safe range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from raptor_cp.latency.shared_copies import (
    CopyPlan,
    items_of_classes,
    longest_first_makespan,
)
from raptor_cp.models.solving import (
    MAX_COEFFICIENT,
    MAX_OBJECTIVE,
    SolveBudget,
    SolveSettings,
    scale_divisor,
    solve,
)

if TYPE_CHECKING:
    from raptor_cp.pipeline.weights import IndexedResidentWeights
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def plan_copies(
    problem: Problem,
    weights: IndexedResidentWeights,
    budget: SolveBudget,
    *,
    settings: SolveSettings | None = None,
    limit: float | None = None,
) -> CopyPlan | None:
    """Copies that make the chain of operations short; None without an answer.

    Args:
        problem: graph, costs and chip.
        weights: index of its resident weights.
        budget: deterministic time of the run.
        settings: seed of the solve.
        limit: deterministic time of the solve.
    """
    graph, resources = problem.graph, problem.resources
    items = weights.maximal_classes(range(graph.task_count)).tolist()
    items = [item for item in items if weights.class_slots[item] > 0]
    room = resources.cores * resources.slots_per_core
    if not items or room > MAX_COEFFICIENT:
        return None
    seat = items_of_classes(weights, items)
    lanes: dict[tuple[int, int], list[int]] = {}
    least: dict[int, int] = {}
    work = problem.costs.execution_ns.tolist()
    served = {item: 0 for item in items}
    for number, task in enumerate(graph.tasks):
        item = seat[int(weights.task_class[number])]
        least[task.operation] = max(least.get(task.operation, 0), work[number])
        if item >= 0:
            lanes.setdefault((task.operation, item), []).append(work[number])
            served[item] += work[number]
    model = cp_model.CpModel()
    unit = scale_divisor(max(sum(work), 1))
    horizon = sum(work) // unit + 1
    copies = {
        item: model.new_int_var(
            1,
            max(
                1,
                min(
                    resources.cores,
                    max((len(v) for (_, i), v in lanes.items() if i == item)),
                ),
            ),
            "",
        )
        for item in items
    }
    end = {op: model.new_int_var(0, horizon, "") for op in sorted(least)}
    length = {
        op: model.new_int_var(least[op] // unit, horizon, "") for op in sorted(least)
    }
    for (op, item), members in lanes.items():
        most = min(len(members), resources.cores)
        times = [longest_first_makespan(members, n) // unit for n in range(1, most + 1)]
        # Further copies, for another operation, do not help this one.
        active = model.new_int_var(1, most, "")
        model.add(active <= copies[item])
        time = model.new_int_var(0, horizon, "")
        model.add_element(active - 1, times, time)
        model.add(length[op] >= time)
    for op in sorted(least):
        model.add(end[op] >= length[op])
    for source, target in _operation_edges(problem):
        model.add(end[target] >= end[source] + length[target])
    slots = [int(weights.class_slots[item]) for item in items]
    row = [copies[item] for item in items]
    model.add(cp_model.LinearExpr.weighted_sum(row, slots) <= room)
    large = [
        copies[item]
        for item, size in zip(items, slots, strict=True)
        if 2 * size > resources.slots_per_core
    ]
    if large:
        model.add(cp_model.LinearExpr.sum(large) <= resources.cores)
    last = model.new_int_var(0, horizon, "")
    model.add_max_equality(last, [end[op] for op in sorted(end)])
    # Slots that shorten nothing are left for the list scheduler to use.
    used = cp_model.LinearExpr.weighted_sum(row, slots)
    scale = room + 1 if horizon * (room + 1) < MAX_OBJECTIVE else 0
    model.minimize(last * scale + used if scale else last)
    outcome = solve(
        model,
        budget,
        what="copies of weights for one inference",
        settings=(settings or SolveSettings()).single(),
        limit=limit,
    )
    if outcome.solution is None:
        return None
    found = outcome.solution
    return CopyPlan(
        tuple(items),
        tuple(found.value(copies[item]) for item in items),
        tuple(served[item] for item in items),
    )


def reservation(
    plan: CopyPlan, problem: Problem, weights: IndexedResidentWeights
) -> BoolArray | None:
    """[P, W] cores that hold the copies, largest sets first, light cores first.

    Every set gets its first core before any set gets a second one; further copies
    that fit nowhere are left out.  None when some first copy fits nowhere.
    """
    cores, capacity = problem.resources.cores, weights.capacity
    held = np.zeros((cores, weights.slots.size), dtype=np.bool_)
    load = np.zeros(cores, dtype=np.int64)
    largest = sorted(
        range(len(plan.items)),
        key=lambda i: (-int(weights.class_slots[plan.items[i]]), plan.items[i]),
    )
    first = [(i, 1) for i in largest]
    more = [(i, plan.copies[i] - 1) for i in largest]
    for index, (i, count) in enumerate(first + more):
        members = weights.class_weights(plan.items[i])
        share = plan.load_ns[i] // plan.copies[i]
        for _ in range(count):
            used = held @ weights.slots
            need = (~held[:, members] * weights.slots[members]).sum(axis=1)
            there = held[:, members].all(axis=1)
            fits = np.flatnonzero((used + need <= capacity) & ~there)
            if fits.size == 0:
                if index < len(first) and not there.any():
                    return None
                break
            core = int(fits[np.lexsort((fits, used[fits], load[fits]))[0]])
            held[core, members] = True
            load[core] += share
    return held


def _operation_edges(problem: Problem) -> list[tuple[int, int]]:
    graph = problem.graph
    source = np.repeat(np.arange(graph.task_count), np.diff(graph.edge_ptr))
    ends = np.stack(
        [graph.task_operation[source], graph.task_operation[graph.edge_dst]], axis=1
    )
    pairs = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    return [(int(a), int(b)) for a, b in pairs.tolist()]
