"""The initial partition against brute force over its quantized space."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.pipeline.budgets import StagePacking
from raptor_cp.pipeline.groups import StageLimits
from raptor_cp.pipeline.minimum_resource import (
    QUESTION_LIMIT,
    MinimumResource,
    NoPath,
    SegmentTables,
)
from raptor_cp.pipeline.packing import PackingMethod, check_packing
from raptor_cp.pipeline.partition import (
    InitialPartition,
    PartitionFailure,
    PartitionMethod,
    QualityGrid,
    initial_partition,
    unquantized_partition,
)
from raptor_cp.pipeline.search_budget import UNIT_LIMIT
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.verdict import Verdict
from tests.instances import costs_of, generator, mesh_resources, random_problem

CASES = range(200)


def drawn(seed: int) -> tuple[StagePacking, StageLimits, int]:
    """A small problem with a depth and, half of the time, side constraints."""
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=int(rng.integers(3, 6)),
        cores=int(rng.integers(3, 9)),
        slots=int(rng.integers(4, 9)),
        max_blocks=3,
        max_slots=3,
    )
    packing = StagePacking.of(problem)
    groups = packing.groups
    limits = StageLimits.of(groups)
    if rng.random() < 0.5:
        forbidden = [c for c in range(1, groups.count) if rng.random() < 0.2]
        cores: dict[int, tuple[int | None, int | None]] = {}
        if rng.random() < 0.5:
            cores[int(rng.integers(groups.count))] = (2, None)
        if rng.random() < 0.5:
            cores[int(rng.integers(groups.count))] = (None, 2)
        most = int(rng.integers(20, 200)) if rng.random() < 0.5 else None
        limits = StageLimits.of(
            groups, forbidden_cuts=forbidden, max_cut_bytes=most, cores=cores
        )
    return packing, limits, int(rng.integers(1, problem.resources.cores + 1))


def all_partitions(
    limits: StageLimits, groups: int, depth: int
) -> list[list[tuple[int, int]]]:
    result = []
    for stages in range(1, min(depth, groups) + 1):
        for cuts in combinations(range(1, groups), stages - 1):
            if all(limits.allows_cut(c) for c in cuts):
                result.append(list(pairwise([0, *cuts, groups])))
    return result


def brute_force(
    packing: StagePacking, limits: StageLimits, depth: int
) -> tuple[int, int, int, int, list[tuple[int, int]]] | None:
    """Best (value, stages, memory service, units, segments) of the whole grid."""
    groups, cores = packing.groups, packing.groups.problem.resources.cores
    reserved = min(depth, groups.count)
    spare = cores - reserved
    unit = max(1, -(-spare // 16))
    units = spare // unit
    best = None
    for segments in all_partitions(limits, groups.count, depth):
        for given in product(range(units + 1), repeat=len(segments)):
            if sum(given) > units:
                continue
            costs = []
            for (i, j), q in zip(segments, given, strict=True):
                k = 1 + q * unit
                low, high = limits.core_range(i, j)
                packed = packing.packed(i, j, k)
                if packed is None or not low <= k <= high:
                    break
                costs.append(max(packed.load_ns, int(groups.spans[i, j])))
            if len(costs) < len(segments):
                continue
            service = groups.traffic.memory_service([i for i, _ in segments])
            key = (max(costs), len(segments), service, sum(given), segments)
            best = key if best is None else min(best, key)
    return best


def check_partition(
    packing: StagePacking, limits: StageLimits, depth: int, found: InitialPartition
) -> None:
    """Legal stages, budgets and assignments; the evaluator agrees with the costs."""
    problem = packing.groups.problem
    cores, groups = problem.resources.cores, packing.groups.count
    segments = found.vector.segments(groups)
    assert segments[0][0] == 0
    assert segments[-1][1] == groups
    assert len(segments) <= depth
    assert sum(found.vector.budgets) <= cores
    assert found.objective_ns <= found.dp_value_ns
    core_of = np.zeros(problem.graph.task_count, dtype=np.int32)
    stages, base = [], 0
    for number, stage in enumerate(found.stages):
        assert limits.allows_cut(stage.first)
        low, high = limits.core_range(stage.first, stage.last)
        assert low <= stage.budget <= high
        tasks = packing.groups.tasks(stage.first, stage.last)
        check_packing(packing.weights, tasks, stage.packed.core_of, stage.budget)
        core_of[tasks.start : tasks.stop] = base + stage.packed.core_of
        stages.append(
            Stage(
                number,
                tuple(range(stage.first, stage.last)),
                tuple(range(base, base + stage.budget)),
            )
        )
        base += stage.budget
    placement = Placement.in_task_order(core_of, cores, tuple(stages))
    summary = StaticEvaluator(problem).schedule(placement).summary
    assert summary.static_objective_ns == found.objective_ns
    assert summary.stage_loads_ns == tuple(s.packed.load_ns for s in found.stages)


@pytest.mark.parametrize("seed", CASES)
def test_grid_equals_brute_force(seed: int) -> None:
    packing, limits, depth = drawn(seed)
    expected = brute_force(packing, limits, depth)
    found = initial_partition(packing, depth, limits)
    if isinstance(found, InitialPartition):
        check_partition(packing, limits, depth, found)
    if expected is None:
        if isinstance(found, InitialPartition):
            assert found.method is PartitionMethod.MINIMUM_RESOURCE
        return
    assert isinstance(found, InitialPartition)
    assert found.method is PartitionMethod.QUALITY_GRID
    value, stages, service, _, segments = expected
    assert found.dp_value_ns == value
    assert len(found.stages) == stages
    starts = found.vector.starts
    assert packing.groups.traffic.memory_service(starts) == service
    assert list(found.vector.segments(packing.groups.count)) == segments


def best_over_every_count(
    packing: StagePacking, limits: StageLimits, depth: int
) -> tuple[int, int] | None:
    """Least largest cost over all partitions and core counts, and its stages."""
    groups, cores = packing.groups, packing.groups.problem.resources.cores
    best = None
    for segments in all_partitions(limits, groups.count, depth):
        for given in product(range(1, cores + 1), repeat=len(segments)):
            if sum(given) > cores:
                continue
            costs = []
            for (i, j), k in zip(segments, given, strict=True):
                low, high = limits.core_range(i, j)
                packed = packing.packed(i, j, k) if low <= k <= high else None
                if packed is None:
                    break
                costs.append(max(packed.load_ns, int(groups.spans[i, j])))
            if len(costs) == len(segments):
                key = (max(costs), len(segments))
                best = key if best is None else min(best, key)
    return best


@pytest.mark.parametrize("seed", CASES)
def test_minimum_resource_equals_brute_force_over_every_count(seed: int) -> None:
    packing, limits, depth = drawn(seed)
    expected = best_over_every_count(packing, limits, depth)
    depth = min(depth, packing.groups.count)
    tables = SegmentTables.of(packing, limits)
    found = MinimumResource(packing, tables, depth).run()
    assert found.questions <= QUESTION_LIMIT
    if expected is None:
        assert isinstance(found, NoPath)
        if found.proved:
            assert not possible(packing, limits, depth)
        return
    assert not isinstance(found, NoPath)
    assert (found.value_ns, len(found.segments)) == expected
    seed_partition = unquantized_partition(packing, depth, limits)
    assert isinstance(seed_partition, InitialPartition)
    assert seed_partition.objective_ns <= found.value_ns
    check_partition(packing, limits, depth, seed_partition)
    grid = initial_partition(packing, depth, limits)
    assert isinstance(grid, InitialPartition)
    assert found.value_ns <= grid.dp_value_ns
    assert sum(found.cores) <= packing.groups.problem.resources.cores


def possible(packing: StagePacking, limits: StageLimits, depth: int) -> bool:
    """Exhaustive: can any partition be packed on the chip at all?"""
    problem = packing.groups.problem
    for segments in all_partitions(limits, packing.groups.count, depth):
        total = 0
        for first, last in segments:
            low, high = limits.core_range(first, last)
            least = fewest_cores(problem, packing.groups.tasks(first, last))
            need = max(low, least)
            if need > high:
                break
            total += need
        else:
            if total <= problem.resources.cores:
                return True
    return False


def fewest_cores(problem: Problem, tasks: range) -> int:
    """Exact least number of cores under union capacity, by depth-first search."""
    graph, capacity = problem.graph, problem.resources.slots_per_core
    sets = sorted({frozenset(graph.tasks[t].weights) for t in tasks}, key=sorted)
    sets = [s for s in sets if not any(s < other for other in sets)]
    best = len(sets) + 1

    def slots(held: frozenset[int]) -> int:
        return sum(graph.weights[w].slots for w in held)

    if any(slots(s) > capacity for s in sets):
        return 10**6

    def place(index: int, cores: list[frozenset[int]]) -> None:
        nonlocal best
        if len(cores) >= best:
            return
        if index == len(sets):
            best = len(cores)
            return
        for core in range(len(cores)):
            merged = cores[core] | sets[index]
            if slots(merged) <= capacity:
                place(index + 1, [*cores[:core], merged, *cores[core + 1 :]])
        place(index + 1, [*cores, sets[index]])

    place(0, [])
    return max(best, 1)


@pytest.mark.parametrize("seed", CASES)
def test_verdicts_without_a_partition_are_sound(seed: int) -> None:
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=4,
        max_lanes=2,
        cores=int(rng.integers(2, 5)),
        slots=int(rng.integers(4, 8)),
        max_blocks=3,
        max_slots=3,
    )
    packing = StagePacking.of(problem)
    limits = StageLimits.of(packing.groups)
    for depth in range(1, problem.resources.cores + 1):
        found = initial_partition(packing, depth, limits)
        exists = possible(packing, limits, depth)
        if isinstance(found, InitialPartition):
            check_partition(packing, limits, depth, found)
            assert exists
        elif found.verdict is Verdict.INFEASIBLE:
            assert not exists
            assert found.reason
        else:
            assert found.verdict is Verdict.UNKNOWN


def given_problem(
    operations: list[list[list[int]]], slots: list[int], capacity: int, cores: int
) -> Problem:
    """``operations[g]`` lists the weights of each task of group g; 10 ns a task."""
    tasks = tuple(
        Task(f"op{g}.{lane}", g, lane, ExplicitWork((10,)), tuple(held))
        for g, lanes in enumerate(operations)
        for lane, held in enumerate(lanes)
    )
    names = tuple(f"op{g}" for g in range(len(operations)))
    weights = tuple(ResidentWeight(f"w{i}", need, 0) for i, need in enumerate(slots))
    graph = ComputeGraph("given", names, tasks, weights, (), ())
    return Problem(graph, costs_of(graph), mesh_resources(cores, capacity))


def test_exhausted_budgets_restart_from_lower_bounds() -> None:
    """Sizes 6 4 6 4 on cores of 10: in order 6+4 6+4 fits two cores, 6 6 4 4 does
    not; the reuse-first constructor finds it from the weight lower bounds."""
    problem = given_problem([[[0]], [[1]], [[2]], [[3]]], [6, 6, 4, 4], 10, 2)
    packing = StagePacking.of(problem)
    assert packing.ordered_least[0, 4] == 3
    assert packing.least[0, 4] == 2
    found = initial_partition(packing, 2)
    assert isinstance(found, InitialPartition)
    assert found.method is PartitionMethod.MINIMUM_RESOURCE
    assert found.restarted
    assert [s.packed.method for s in found.stages] != [PackingMethod.ORDERED]
    check_partition(packing, StageLimits.of(packing.groups), 2, found)


def test_questions_to_the_constructor_are_asked_and_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0
    for seed in range(60):
        found = initial_partition(*_arguments(seed))
        if isinstance(found, InitialPartition):
            asked += found.questions
            if found.method is PartitionMethod.QUALITY_GRID and found.questions:
                asked += 1000
    assert asked > 1000  # both DPs asked
    for module in ("partition", "minimum_resource"):
        monkeypatch.setattr(f"raptor_cp.pipeline.{module}.QUESTION_LIMIT", 1)
    for seed in range(60):
        packing, depth, limits = _arguments(seed)
        found = initial_partition(packing, depth, limits)
        assert found.questions <= 2  # one in each DP
        if isinstance(found, InitialPartition):
            check_partition(packing, limits, depth, found)
    problem = given_problem([[[0]], [[1]], [[2]], [[3]]], [6, 6, 4, 4], 10, 2)
    monkeypatch.setattr("raptor_cp.pipeline.minimum_resource.QUESTION_LIMIT", 0)
    failed = initial_partition(StagePacking.of(problem), 2)
    assert isinstance(failed, PartitionFailure)
    assert failed.verdict is Verdict.UNKNOWN
    assert failed.least_cores == 2


def test_minimum_resource_when_the_grid_is_too_coarse() -> None:
    """18 spare cores in units of two: the grid has 1, 3, 5, .. cores and misses
    10 + 10; the minimum-resource DP looks at every count."""
    lanes = [[[w] for w in range(g * 10, g * 10 + 10)] for g in range(2)]
    problem = given_problem(lanes, [5] * 20, 5, 20)
    packing = StagePacking.of(problem)
    limits = StageLimits.of(packing.groups, cores={0: (None, 10), 1: (None, 10)})
    found = initial_partition(packing, 2, limits)
    assert isinstance(found, InitialPartition)
    assert found.method is PartitionMethod.MINIMUM_RESOURCE
    assert found.vector.budgets == (10, 10)
    assert not found.restarted
    check_partition(packing, limits, 2, found)


def test_infeasible_is_proved_with_numbers() -> None:
    problem = given_problem([[[0]], [[1]], [[2]]], [6, 6, 6], 10, 2)
    found = initial_partition(StagePacking.of(problem), 2)
    assert isinstance(found, PartitionFailure)
    assert found.verdict is Verdict.INFEASIBLE
    assert found.least_cores == 3
    assert "at least 3 cores" in found.reason
    oversized = given_problem([[[0]], [[1]]], [6, 11], 10, 2)
    found = initial_partition(StagePacking.of(oversized), 2)
    assert isinstance(found, PartitionFailure)
    assert found.verdict is Verdict.INFEASIBLE
    assert "'op1.0' needs 11 weight slots, a core has 10" in found.reason


def test_an_exhausted_search_proves_nothing() -> None:
    """On a ring of overlapping sets the bounds are too weak to refute two cores."""
    ring = [[[0, 1]], [[1, 2]], [[2, 3]], [[3, 0]]]
    problem = given_problem(ring, [2, 2, 2, 2], 4, 2)
    packing = StagePacking.of(problem)
    assert packing.least[0, 4] == 2
    found = initial_partition(packing, 1)
    assert isinstance(found, PartitionFailure)
    assert found.verdict is Verdict.UNKNOWN
    assert not possible(packing, StageLimits.of(packing.groups), 1)


@pytest.mark.parametrize("cores", range(1, 200, 7))
def test_units_of_the_grid(cores: int) -> None:
    problem = given_problem([[[]], [[]]], [], 1, cores)
    packing = StagePacking.of(problem)
    tables = SegmentTables.of(packing, StageLimits.of(packing.groups))
    for depth in range(1, min(cores, 40) + 1):
        grid = QualityGrid(packing, tables, depth)
        assert grid.units <= UNIT_LIMIT
        assert depth + grid.unit * grid.units <= cores
        assert grid.counts.tolist() == [
            1 + grid.unit * q for q in range(grid.units + 1)
        ]


def test_depth_above_the_cores_is_malformed_above_the_groups_is_not() -> None:
    problem = given_problem([[[]], [[]]], [], 1, 3)
    packing = StagePacking.of(problem)
    for depth in (0, 4):
        with pytest.raises(MalformedInput, match="depth"):
            initial_partition(packing, depth)
    found = initial_partition(packing, 3)
    assert isinstance(found, InitialPartition)
    assert found.depth == 3
    assert len(found.stages) <= 2


def test_the_same_input_gives_the_same_partition() -> None:
    for seed in range(20):
        first = initial_partition(*_arguments(seed))
        second = initial_partition(*_arguments(seed))
        if isinstance(first, InitialPartition):
            assert isinstance(second, InitialPartition)
            assert first.vector == second.vector
            for a, b in zip(first.retained, second.retained, strict=True):
                assert a.tobytes() == b.tobytes()
        else:
            assert first == second


def _arguments(seed: int) -> tuple[StagePacking, int, StageLimits]:
    packing, limits, depth = drawn(seed)
    return packing, depth, limits
