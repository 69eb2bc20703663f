"""Groups, resident weights, ordered and reuse-first packing against brute force."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import pytest

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.pipeline.groups import PipelineGroups, StageLimits
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE, OrderedPacking
from raptor_cp.pipeline.packing import (
    CHECK_LIMIT,
    DEVIATION_LIMIT,
    CheckBudget,
    Packed,
    PackingExhausted,
    PackingMethod,
    PackingRefuted,
    check_packing,
    pack_resident,
)
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.verdict import Verdict
from tests.instances import costs_of, generator, mesh_resources, random_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

CASES = range(200)


def tight_problem(seed: int, operations: int = 3, max_lanes: int = 3) -> Problem:
    """A problem whose weights need most of a few cores."""
    rng = generator(seed)
    return random_problem(
        rng,
        operations=operations,
        max_lanes=max_lanes,
        cores=int(rng.integers(2, 6)),
        slots=int(rng.integers(3, 8)),
        max_blocks=3,
        max_slots=4,
    )


def union(problem: Problem, tasks: Sequence[int]) -> int:
    """Slots of the distinct weights, straight from the tasks."""
    graph = problem.graph
    held = sorted({w for t in tasks for w in graph.tasks[t].weights})
    return sum(graph.weights[w].slots for w in held)


def test_segments_are_contiguous_task_ranges() -> None:
    for seed in range(20):
        problem = tight_problem(seed, operations=5)
        groups = PipelineGroups.of(problem)
        for first in range(groups.count):
            inside = groups.tasks(first, first + 1)
            assert list(inside) == problem.graph.tasks_of(first).tolist()
            assert groups.load_ns(first, groups.count) == sum(
                int(problem.costs.execution_ns[t])
                for t in groups.tasks(first, groups.count)
            )


def longest_path(graph: ComputeGraph, work: Sequence[int], tasks: range) -> int:
    inside = graph.to_networkx().subgraph(tasks)
    finish: dict[int, int] = {}
    for task in nx.topological_sort(inside):
        before = max((finish[p] for p in inside.predecessors(task)), default=0)
        finish[task] = before + work[task]
    return max(finish.values())


@pytest.mark.parametrize("seed", range(30))
def test_spans_equal_the_longest_path_of_each_segment(seed: int) -> None:
    problem = tight_problem(seed, operations=5)
    groups = PipelineGroups.of(problem)
    work = problem.costs.execution_ns.tolist()
    for first, last in combinations(range(groups.count + 1), 2):
        expected = longest_path(problem.graph, work, groups.tasks(first, last))
        assert groups.spans[first, last] == expected


@pytest.mark.parametrize("seed", range(30))
def test_cut_service_equals_the_evaluator(seed: int) -> None:
    """The additive tables give what a placement with these stages is charged."""
    problem = tight_problem(seed, operations=5)
    groups = PipelineGroups.of(problem)
    evaluator = StaticEvaluator(problem)
    for cuts in ([], [2], [1, 3], [1, 2, 3, 4]):
        if len(cuts) >= problem.resources.cores:
            continue
        starts = [0, *cuts]
        ends = [*cuts, groups.count]
        stages = tuple(
            Stage(s, tuple(range(i, j)), (s,))
            for s, (i, j) in enumerate(zip(starts, ends, strict=True))
        )
        core_of = np.zeros(problem.graph.task_count, dtype=np.int32)
        for stage in stages:
            for group in stage.groups:
                core_of[problem.graph.tasks_of(group)] = stage.index
        placement = Placement.in_task_order(core_of, problem.resources.cores, stages)
        summary = evaluator.schedule(placement).summary
        assert groups.traffic.memory_service(starts) == summary.memory_service_ns


@pytest.mark.parametrize("seed", range(30))
def test_cut_bytes_count_each_crossing_publication_once(seed: int) -> None:
    problem = tight_problem(seed, operations=5)
    graph = problem.graph
    groups = PipelineGroups.of(problem)
    for cut in range(1, groups.count):
        total = 0
        for number, publication in enumerate(graph.publications):
            crossing = [
                move
                for move in graph.transfers
                if move.publication == number
                and graph.tasks[publication.producer].operation < cut
                and graph.tasks[move.consumer].operation >= cut
            ]
            times = len(crossing) if publication.scalar else min(len(crossing), 1)
            total += times * publication.size
        for source, reader, size in graph.extra_edges:
            if graph.tasks[source].operation < cut <= graph.tasks[reader].operation:
                total += size
        assert groups.traffic.cut_bytes[cut] == total
    assert groups.traffic.cut_bytes[[0, -1]].tolist() == [0, 0]


def test_limits_of_stages() -> None:
    groups = PipelineGroups.of(tight_problem(1, operations=5))
    limits = StageLimits.of(groups, forbidden_cuts=[1], together=[[2, 4]])
    assert [limits.allows_cut(c) for c in range(6)] == [
        True,
        False,
        True,
        False,
        False,
        True,
    ]
    limits = StageLimits.of(groups, cores={1: (2, None), 3: (None, 2)})
    assert limits.core_range(0, 5) == (2, 2)
    assert limits.core_range(0, 1) == (1, groups.problem.resources.cores)
    none = StageLimits.of(groups, max_cut_bytes=0)
    assert not none.cut_allowed[1:-1].all()


@pytest.mark.parametrize(
    "arguments",
    [
        {"forbidden_cuts": [0]},
        {"forbidden_cuts": [5]},
        {"together": [[1, 7]]},
        {"cores": {9: (1, 2)}},
        {"cores": {0: (4, 3)}},
        {"cores": {0: (999, None)}},
    ],
)
def test_unknown_or_contradictory_limits_are_malformed(
    arguments: dict[str, object],
) -> None:
    groups = PipelineGroups.of(tight_problem(1, operations=5))
    with pytest.raises(MalformedInput):
        StageLimits.of(groups, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(50))
def test_weight_index_equals_sets(seed: int) -> None:
    problem = tight_problem(seed, operations=4)
    weights = IndexedResidentWeights.of(problem)
    graph = problem.graph
    sets = [frozenset(task.weights) for task in graph.tasks]
    rng = generator(seed)
    for _ in range(5):
        tasks = np.flatnonzero(rng.random(graph.task_count) < 0.6).tolist()
        assert weights.union_slots(tasks) == union(problem, tasks)
        distinct = {sets[t] for t in tasks} - {frozenset()}
        maximal = {s for s in distinct if not any(s < other for other in distinct)}
        found = {
            frozenset(weights.class_weights(c).tolist())
            for c in weights.maximal_classes(tasks).tolist()
        }
        assert found == maximal
    for task in range(graph.task_count):
        row = weights.class_bits[weights.task_class[task]]
        assert (row == graph.weight_bits()[task]).all()


def ordered_brute_force(
    problem: Problem, order: Sequence[int], cores: int
) -> int | None:
    """Least largest load over all ways to cut ``order`` into at most k runs."""
    best: int | None = None
    for cuts in range(min(cores, len(order))):
        for inner in combinations(range(1, len(order)), cuts):
            edges = [0, *inner, len(order)]
            runs = [order[a:b] for a, b in pairwise(edges)]
            if any(union(problem, r) > problem.resources.slots_per_core for r in runs):
                continue
            load = max(sum(int(problem.costs.execution_ns[t]) for t in r) for r in runs)
            best = load if best is None else min(best, load)
    return best


@pytest.mark.parametrize("seed", CASES)
def test_ordered_packing_equals_brute_force(seed: int) -> None:
    problem = tight_problem(seed, operations=3)
    groups = PipelineGroups.of(problem)
    weights = IndexedResidentWeights.of(problem)
    packing = OrderedPacking.of(groups, weights)
    cores = 4
    counts = np.arange(1, cores + 1, dtype=np.int64)
    table = packing.segment_curves(counts)
    least = packing.minimum_cores()
    for first, last in combinations(range(groups.count + 1), 2):
        tasks = groups.tasks(first, last)
        order = packing.order[tasks.start : tasks.stop].tolist()
        assert sorted(order) == list(tasks)
        curve = packing.curve(first, last, cores)
        assert curve[0] == UNAVAILABLE
        assert curve[1:].tolist() == table[first, last].tolist()
        for k in range(1, cores + 1):
            expected = ordered_brute_force(problem, order, k)
            assert curve[k] == (UNAVAILABLE if expected is None else expected)
            assert (k >= least[first, last]) == (expected is not None)
            found = packing.assignment(first, last, k)
            if expected is None:
                assert found is None
                continue
            assert found is not None
            check_packing(weights, tasks, found, k)
            loads = np.zeros(k, dtype=np.int64)
            np.add.at(loads, found, problem.costs.execution_ns[list(tasks)])
            assert loads.max() == expected


def test_packing_order_keeps_equal_weights_together() -> None:
    for seed in range(30):
        problem = tight_problem(seed, max_lanes=6)
        groups = PipelineGroups.of(problem)
        weights = IndexedResidentWeights.of(problem)
        order = OrderedPacking.of(groups, weights).order
        for group in range(groups.count):
            tasks = groups.tasks(group, group + 1)
            classes = weights.task_class[order[tasks.start : tasks.stop]].tolist()
            changes = sum(a != b for a, b in pairwise(classes))
            assert changes == len(set(classes)) - 1


def exists_packing(problem: Problem, tasks: Sequence[int], cores: int) -> bool:
    """Exhaustive search over all assignments, first task on core 0."""
    for seats in product(range(cores), repeat=len(tasks) - 1):
        on: dict[int, list[int]] = {}
        for task, core in zip(tasks, (0, *seats), strict=True):
            on.setdefault(core, []).append(task)
        if all(
            union(problem, t) <= problem.resources.slots_per_core for t in on.values()
        ):
            return True
    return False


@pytest.mark.parametrize("seed", CASES)
def test_packing_verdicts_are_sound(seed: int) -> None:
    problem = tight_problem(seed, operations=3, max_lanes=2)
    weights = IndexedResidentWeights.of(problem)
    tasks = range(problem.graph.task_count)
    for cores in (1, 2, 3):
        outcome = pack_resident(weights, tasks, cores, problem.costs.execution_ns)
        exists = exists_packing(problem, tasks, cores)
        if isinstance(outcome, Packed):
            check_packing(weights, tasks, outcome.core_of, cores)
            loads = np.zeros(cores, dtype=np.int64)
            np.add.at(loads, outcome.core_of, problem.costs.execution_ns)
            assert outcome.load_ns == loads.max()
            assert outcome.verdict is Verdict.FEASIBLE
            assert exists
        elif isinstance(outcome, PackingRefuted):
            assert not exists
            assert outcome.verdict is Verdict.INFEASIBLE
            assert outcome.bound.cores > cores
        else:
            assert outcome.verdict is Verdict.UNKNOWN  # whatever the truth is


@pytest.mark.parametrize("seed", CASES)
def test_recovery_stays_within_its_limits(seed: int) -> None:
    rng = generator(seed)
    problem = random_problem(
        rng, operations=14, max_lanes=3, cores=6, slots=8, max_blocks=3, max_slots=5
    )
    weights = IndexedResidentWeights.of(problem)
    tasks = range(problem.graph.task_count)
    least = min(weights.bound(tasks).cores, 40)
    for checks, deviations in ((CHECK_LIMIT, DEVIATION_LIMIT), (40, 16), (500, 2)):
        budget = CheckBudget(checks, deviations)
        outcome = pack_resident(
            weights, tasks, least, problem.costs.execution_ns, budget
        )
        assert budget.checks <= checks
        assert budget.deviations <= deviations
        if isinstance(outcome, Packed):
            check_packing(weights, tasks, outcome.core_of, least)
        if isinstance(outcome, PackingExhausted):
            assert outcome.counts.recovery_checks == budget.checks
            assert outcome.counts.deviations == budget.deviations


def given_problem(
    sets: Sequence[Sequence[int]], slots: Sequence[int], capacity: int
) -> Problem:
    """One task of 1 ns for each set of weights; operations of one task."""
    graph = ComputeGraph(
        "given",
        tuple(f"op{i}" for i in range(len(sets))),
        tuple(
            Task(f"t{i}", i, 0, ExplicitWork((1,)), tuple(held))
            for i, held in enumerate(sets)
        ),
        tuple(ResidentWeight(f"w{i}", need, 0) for i, need in enumerate(slots)),
        (),
        (),
    )
    return Problem(graph, costs_of(graph), mesh_resources(4, capacity))


@pytest.mark.parametrize(
    ("method", "sets", "slots", "capacity", "cores"),
    [
        (
            PackingMethod.REVERSED,
            [[0, 4], [1], [0], [1, 2, 9], [0, 1, 9], [2, 6, 9]],
            [3, 3, 3, 4, 3, 4, 1, 3, 4, 2],
            11,
            2,
        ),
        (
            PackingMethod.DEVIATION,
            [[3], [5], [0], [0, 2, 4], [3], [3, 6, 9], [0, 9]],
            [3, 3, 2, 3, 2, 4, 3, 4, 4, 2],
            11,
            2,
        ),
    ],
)
def test_recovery_rescues_what_the_first_attempts_lose(
    method: PackingMethod,
    sets: list[list[int]],
    slots: list[int],
    capacity: int,
    cores: int,
) -> None:
    problem = given_problem(sets, slots, capacity)
    weights = IndexedResidentWeights.of(problem)
    tasks, work = range(len(sets)), problem.costs.execution_ns
    outcome = pack_resident(weights, tasks, cores, work)
    assert isinstance(outcome, Packed)
    assert outcome.method is method
    check_packing(weights, tasks, outcome.core_of, cores)
    refused = pack_resident(weights, tasks, cores, work, CheckBudget(0, 0))
    assert isinstance(refused, PackingExhausted)
    assert refused.counts.recovery_checks == refused.counts.deviations == 0


def test_check_budget_cannot_be_exceeded() -> None:
    with pytest.raises(MalformedInput):
        CheckBudget(CHECK_LIMIT + 1)
    with pytest.raises(MalformedInput):
        CheckBudget(deviations=DEVIATION_LIMIT + 1)
    budget = CheckBudget(10, 1)
    budget.spend(10, deviation=True)
    assert budget.spent
    with pytest.raises(InternalError):
        budget.spend(1, deviation=False)
    with pytest.raises(InternalError):
        budget.spend(0, deviation=True)


def test_check_packing_refuses_bad_assignments() -> None:
    problem = tight_problem(3)
    weights = IndexedResidentWeights.of(problem)
    tasks = range(problem.graph.task_count)
    with pytest.raises(InternalError, match="on core 5 of 2"):
        check_packing(weights, tasks, [5] * len(tasks), 2)
    assert weights.union_slots(tasks) > weights.capacity
    with pytest.raises(InternalError, match="weight slots"):
        check_packing(weights, tasks, [0] * len(tasks), 2)


def test_oversized_task_is_refuted_with_its_name() -> None:
    rng = generator(5)
    problem = random_problem(rng, operations=3, max_blocks=3, max_slots=3)
    needs = problem.graph.task_slots()
    small = mesh_resources(6, int(needs.max()) - 1)
    problem = Problem(problem.graph, costs_of(problem.graph), small)
    weights = IndexedResidentWeights.of(problem)
    tasks = range(problem.graph.task_count)
    outcome = pack_resident(weights, tasks, 6, problem.costs.execution_ns)
    assert isinstance(outcome, PackingRefuted)
    assert set(outcome.bound.oversized) == set(
        np.flatnonzero(needs > small.slots_per_core).tolist()
    )
    packing = OrderedPacking.of(PipelineGroups.of(problem), weights)
    assert packing.curve(0, 3, 6)[6] == UNAVAILABLE
