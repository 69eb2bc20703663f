"""The bound of shared slots: against exhaustive search, and its exact arithmetic."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.latency.bounds import completion_bound
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.models.latency_bound import bound_latency
from raptor_cp.models.latency_slots import (
    MAX_PATTERNS,
    full_mixes,
    makespan_table,
    shared_slots_bound,
)
from raptor_cp.models.linear_bound import LinearBound
from raptor_cp.models.solving import SolveBudget
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import load
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.targets.registry import create
from raptor_cp.verdict import Verdict
from tests.instances import costs_of, generator, mesh_resources, random_problem
from tests.test_latency_bound import brute_force
from tests.test_peft import scheduled

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]


def chain_of_operations(
    lanes: list[int], lengths: list[int], slots: list[int], cores: int, capacity: int
) -> Problem:
    """Every lane of an operation needs all lanes of the one before; no bytes move."""
    tasks: list[Task] = []
    edges: list[tuple[int, int, int]] = []
    before: list[int] = []
    for op, (count, length) in enumerate(zip(lanes, lengths, strict=True)):
        own = list(range(len(tasks), len(tasks) + count))
        tasks += [
            Task(f"t{n}", op, lane, ExplicitWork((length,)), (op,))
            for lane, n in enumerate(own)
        ]
        edges += [(a, b, 0) for a in before for b in own]
        before = own
    weights = tuple(ResidentWeight(f"w{n}", s, 0) for n, s in enumerate(slots))
    graph = ComputeGraph(
        "chain",
        tuple(f"o{n}" for n in range(len(lanes))),
        tuple(tasks),
        weights,
        (),
        (),
        (),
        tuple(edges),
    )
    return Problem(graph, costs_of(graph), mesh_resources(cores, capacity))


def bound_of(problem: Problem, horizon: int) -> int:
    found = shared_slots_bound(problem, completion_bound(problem), horizon)
    assert found is not None
    return found


def test_two_operations_share_four_cores() -> None:
    """Two weights that fill a core each, four lanes each: two copies each are best."""
    problem = chain_of_operations([4, 4], [10, 10], [10, 10], 4, 10)
    counted = completion_bound(problem)
    assert (counted.path_ns, counted.work_ns, counted.copies_ns) == (20, 20, 30)
    assert bound_of(problem, 80) == 40
    assert brute_force(problem) == 40


def test_sizes_that_do_not_mix_count_by_cores() -> None:
    """Sets of 6 slots on cores of 10: by slots five copies fit, by cores only three."""
    problem = chain_of_operations([3, 3], [10, 10], [6, 6], 3, 10)
    # One and two copies: 30 + 20 ns; the convex envelope of both is 45.
    assert brute_force(problem) == 50
    assert bound_of(problem, 60) >= 45


def test_it_never_exceeds_the_optimum_and_often_beats_counting() -> None:
    better = asked = 0
    for seed in range(200):
        rng = generator(seed)
        if seed % 2:
            problem = random_problem(
                rng,
                operations=3,
                max_lanes=4,
                cores=int(rng.integers(2, 4)),
                slots=int(rng.integers(3, 7)),
                uneven_cores=seed % 3 == 0,
            )
        else:
            count = int(rng.integers(2, 4))
            problem = chain_of_operations(
                rng.integers(1, 4, count).tolist(),
                rng.integers(1, 30, count).tolist(),
                rng.integers(3, 11, count).tolist(),
                3,
                10,
            )
        if problem.graph.task_count > 8:
            continue
        optimum = brute_force(problem)
        if optimum is None:
            continue
        counted = completion_bound(problem)
        for horizon in (optimum, 3 * optimum):
            found = shared_slots_bound(problem, counted, horizon)
            if found is None:
                continue
            asked += 1
            assert found <= optimum
            better += found > counted.ns
    assert asked > 100
    assert better > 20


def test_what_fits_has_nothing_to_share_out() -> None:
    problem = chain_of_operations([2, 2], [10, 10], [1, 1], 4, 10)
    assert shared_slots_bound(problem, completion_bound(problem), 80) is None


def test_makespans_bound_every_assignment() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        jobs = rng.integers(1, 20, int(rng.integers(1, 7))).tolist()
        table = makespan_table(jobs, 4)
        assert table == sorted(table, reverse=True)
        for machines, least in enumerate(table, start=1):
            best = min(
                max(
                    sum(j for j, m in zip(jobs, chosen, strict=True) if m == machine)
                    for machine in range(machines)
                )
                for chosen in itertools.product(range(machines), repeat=len(jobs))
            )
            assert least <= best
            if len(set(jobs)) == 1 or machines == 1:
                assert least == best


def test_mixes_are_full_and_complete() -> None:
    sizes, most, capacity = [7, 4, 3, 1], [1, 2, 1, 2], 12
    mixes = full_mixes(sizes, most, capacity)
    assert mixes is not None
    everything = [
        mix
        for mix in itertools.product(*(range(m + 1) for m in most))
        if sum(n * s for n, s in zip(mix, sizes, strict=True)) <= capacity
    ]
    for mix in mixes:
        assert mix in everything
    for mix in everything:  # each is part of a full one
        assert any(
            all(a <= b for a, b in zip(mix, full, strict=True)) for full in mixes
        )
    many = list(range(60, 0, -1))
    assert full_mixes(many, [3] * 60, 600) is None
    assert MAX_PATTERNS >= 1_000


@pytest.mark.parametrize("seed", range(30))
def test_any_multipliers_give_a_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However wrong the suggestion is, what is proved holds."""
    rng = np.random.default_rng(seed)
    program = LinearBound(9)
    for _ in range(3):
        low = int(rng.integers(0, 3))
        program.variable(low, low + int(rng.integers(0, 5)))
    for _ in range(4):
        terms = [(v, int(rng.integers(-3, 4))) for v in range(3)]
        program.at_least(terms, int(rng.integers(-6, 6)))
    values = [
        point[0]
        for point in itertools.product(*(range(a, b + 1) for a, b in program.bounds))
        if all(
            sum(a * point[v] for v, a in terms) >= least
            for terms, least, _ in program.rows
        )
    ]
    suggested = program.least(0)
    if not values:
        return
    assert suggested is not None
    assert suggested <= min(values)
    for _ in range(20):
        prices = rng.integers(0, 2**50, 4).tolist()
        monkeypatch.setattr(program, "_prices", lambda _, p=prices: p)
        wrong = program.least(0)
        assert wrong is not None
        assert wrong <= min(values)


def halves(problem: Problem) -> NDArray[np.bool_]:
    """The first weight on one half of the cores, the second on the other."""
    cores = np.arange(problem.resources.cores)
    second = cores >= cores.size // 2
    return np.stack([~second, second], axis=1)


def test_the_certificate_names_it() -> None:
    """Too large for the exact model; 75 copies of each are the best split of 150."""
    problem = chain_of_operations([150, 150], [10, 10], [10, 10], 150, 10)
    evaluator = StaticEvaluator(problem)
    first = evaluator.schedule(scheduled(PeftScheduler(problem)).placement)
    answer = bound_latency(problem, first, evaluator, SolveBudget(0.5))
    assert (answer.proof, answer.bound_ns) == ("slots", 40)
    assert answer.certificate(first).to_dict()["proof"] == "slots"
    best = evaluator.schedule(
        PeftScheduler(problem).schedule_on(halves(problem)).placement
    )
    assert bound_latency(problem, best, evaluator, SolveBudget(0.5)).verdict is (
        Verdict.OPTIMAL
    )
    without = bound_latency(problem, first, evaluator, SolveBudget(0.0))
    assert (without.proof, without.bound_ns) == ("copies", 30)


@pytest.mark.slow
def test_resnet50_on_arch_a() -> None:
    loaded = load(ROOT / "scenarios/resnet50-arch-a.yaml", ("mode=latency",))
    prepared = prepare(loaded, create(loaded))
    assert isinstance(prepared, Prepared)
    problem = prepared.problem
    counted = completion_bound(problem)
    assert bound_of(problem, 300_000_000) > 1.04 * counted.ns
