"""Stage curves and minimax core budgets against brute force."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.pipeline.budgets import (
    StagePacking,
    feasible_budgets,
    minimax_budgets,
    with_idle_cores,
)
from raptor_cp.pipeline.groups import StageLimits
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE, IntArray
from raptor_cp.pipeline.packing import PackingMethod, check_packing
from raptor_cp.schedules import Problem
from tests.instances import costs_of, generator, mesh_resources, random_problem

CASES = range(200)


def random_curve(rng: np.random.Generator, cores: int) -> IntArray:
    """A non-increasing curve with plateaus, unavailable at the start."""
    values = np.sort(rng.integers(1, 12, cores + 1))[::-1].astype(np.int64)
    values[: int(rng.integers(1, 3))] = UNAVAILABLE
    return values


@pytest.mark.parametrize("seed", CASES)
def test_minimax_budgets_equal_brute_force(seed: int) -> None:
    rng = generator(seed)
    stages, pool = int(rng.integers(1, 5)), int(rng.integers(2, 9))
    curves = [random_curve(rng, 8) for _ in range(stages)]
    ranges = [(1, 8)] * stages
    if rng.random() < 0.5:
        ranges = [
            (low := int(rng.integers(1, 4)), int(rng.integers(low, 9)))
            for _ in range(stages)
        ]
    kept = [int(rng.integers(1, 4)) if rng.random() < 0.3 else None for _ in curves]
    free = [s for s in range(stages) if kept[s] is None]
    best: tuple[int, tuple[int, ...]] | None = None
    for cores in product(*(range(ranges[s][0], ranges[s][1] + 1) for s in free)):
        if sum(cores) > pool:
            continue
        value = max(
            (int(curves[s][k]) for s, k in zip(free, cores, strict=True)), default=0
        )
        if value != UNAVAILABLE:
            best = (value, cores) if best is None else min(best, (value, cores))
    found = minimax_budgets(curves, pool, kept=kept, ranges=ranges)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.value_ns == best[0]
    assert tuple(found.budgets[s] for s in free) == best[1]
    assert [found.budgets[s] for s in range(stages) if s not in free] == [
        k for k in kept if k is not None
    ]
    assert found.spare == pool - sum(best[1])


@pytest.mark.parametrize("seed", CASES)
def test_idle_cores_go_out_completely_and_hurt_nobody(seed: int) -> None:
    rng = generator(seed)
    stages = int(rng.integers(1, 5))
    curves = [random_curve(rng, 12) for _ in range(stages)]
    ranges = [(1, int(rng.integers(3, 13))) for _ in range(stages)]
    loads = rng.integers(0, 50, stages).tolist()
    start = minimax_budgets(curves, 10, ranges=ranges)
    if start is None:
        return
    changing = [s for s in range(stages) if rng.random() < 0.7]
    result = with_idle_cores(
        start.budgets, curves, loads, start.spare, changing=changing, ranges=ranges
    )
    room = sum(ranges[s][1] - start.budgets[s] for s in changing)
    assert sum(result) == sum(start.budgets) + min(start.spare, room)
    for stage, (before, after) in enumerate(zip(start.budgets, result, strict=True)):
        assert after >= before
        assert after == before or stage in changing
        assert after <= ranges[stage][1]
        assert curves[stage][after] <= curves[stage][before]


@given(
    st.lists(
        st.lists(st.integers(1, 10**12), min_size=3, max_size=12),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 30),
)
def test_no_core_of_a_minimax_budget_can_be_taken(
    values: list[list[int]], pool: int
) -> None:
    curves = [
        np.array([UNAVAILABLE, *sorted(v, reverse=True)], dtype=np.int64)
        for v in values
    ]
    found = minimax_budgets(curves, pool)
    if found is None:
        assert pool < len(curves)
        return
    reached = [int(c[k]) for c, k in zip(curves, found.budgets, strict=True)]
    assert max(reached) == found.value_ns
    assert sum(found.budgets) + found.spare == pool
    for curve, cores in zip(curves, found.budgets, strict=True):
        assert cores == 1 or curve[cores - 1] > found.value_ns
    # a lower value would need more cores than there are
    lower = [int(np.count_nonzero(c >= found.value_ns)) for c in curves]
    short = any(k >= c.size for k, c in zip(lower, curves, strict=True))
    assert short or sum(lower) > pool


def tight_packing(seed: int) -> StagePacking:
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=4,
        cores=int(rng.integers(3, 8)),
        slots=int(rng.integers(5, 9)),
        max_blocks=3,
        max_slots=3,
    )
    return StagePacking.of(problem)


@pytest.mark.parametrize("seed", range(60))
def test_every_finite_cost_has_an_assignment(seed: int) -> None:
    packing = tight_packing(seed)
    groups = packing.groups
    cores = groups.problem.resources.cores
    for first, last in combinations(range(groups.count + 1), 2):
        curve = packing.curve(first, last)
        assert curve.size == cores + 1
        assert (np.diff(curve) <= 0).all()
        tasks = groups.tasks(first, last)
        bound = packing.weights.bound(tasks)
        assert packing.least[first, last] == bound.cores
        for k in range(cores + 1):
            found = packing.best_packed(first, last, k) if k else None
            if found is None:
                assert curve[k] == UNAVAILABLE
                continue
            check_packing(packing.weights, tasks, found.core_of, k)
            loads = np.bincount(
                found.core_of, groups.execution_ns[list(tasks)], minlength=k
            )
            assert loads.max() == found.load_ns
            assert curve[k] == max(found.load_ns, groups.spans[first, last])


@pytest.mark.parametrize("seed", range(60))
def test_feasible_budgets_are_packed(seed: int) -> None:
    packing = tight_packing(seed)
    groups = packing.groups
    cores = groups.problem.resources.cores
    limits = StageLimits.of(groups, cores={1: (2, 3)})
    for cut in range(1, groups.count):
        segments = [(0, cut), (cut, groups.count)]
        found = feasible_budgets(packing, segments, cores, limits)
        ordered = sum(
            max(limits.core_range(i, j)[0], int(packing.ordered_least[i, j]))
            for i, j in segments
        )
        if found is None:
            continue
        assert sum(found.budgets) <= cores
        assert found.restarted or sum(found.budgets) == ordered
        for (i, j), k, packed in zip(
            segments, found.budgets, found.packings, strict=True
        ):
            low, high = limits.core_range(i, j)
            assert low <= k <= high
            check_packing(packing.weights, groups.tasks(i, j), packed.core_of, k)


def test_exhausted_budgets_restart_from_lower_bounds() -> None:
    """Weights of 6 6 4 4 slots on cores of 10: in order they need three cores, so
    the estimate exceeds the chip; from the lower bound of two, reuse-first packs."""
    names = tuple(f"op{i}" for i in range(5))
    tasks = tuple(
        Task(name, i, 0, ExplicitWork((10,)), (i,)) for i, name in enumerate(names)
    )
    weights = tuple(
        ResidentWeight(f"w{i}", need, i) for i, need in enumerate((6, 6, 4, 4, 3))
    )
    graph = ComputeGraph("restart", names, tasks, weights, (), ())
    problem = Problem(graph, costs_of(graph), mesh_resources(3, 10))
    packing = StagePacking.of(problem)
    segments = [(0, 4), (4, 5)]
    roomy = feasible_budgets(packing, segments, 4)
    assert roomy is not None
    assert (roomy.budgets, roomy.restarted) == ((3, 1), False)
    found = feasible_budgets(packing, segments, 3)
    assert found is not None
    assert (found.budgets, found.restarted) == ((2, 1), True)
    assert found.packings[0].method is not PackingMethod.ORDERED
    assert feasible_budgets(packing, segments, 2) is None
