"""Weight capacity in latency mode: every step of the reservation, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.list_scheduling import (
    LatencyFailure,
    ListSchedule,
    ReservationMethod,
)
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.models.instances import packing_instance
from raptor_cp.models.solving import SolveBudget
from raptor_cp.models.weight_packing import pack
from raptor_cp.pipeline.packing import CHECK_LIMIT, DEVIATION_LIMIT, PackingMethod
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict
from tests.instances import costs_of, generator, mesh_resources

if TYPE_CHECKING:
    from collections.abc import Sequence


def tight_problem(seed: int) -> Problem:
    """Overlapping weight sets that nearly fill, or overfill, a small chip."""
    rng = generator(seed)
    count, tasks = int(rng.integers(6, 14)), int(rng.integers(6, 16))
    capacity, cores = int(rng.integers(8, 14)), int(rng.integers(3, 6))
    weights = tuple(
        ResidentWeight(f"w{n}", int(rng.integers(1, 6)), 0) for n in range(count)
    )
    built = []
    for task in range(tasks):
        held = rng.choice(count, int(rng.integers(1, 4)), replace=False)
        work = ExplicitWork((int(rng.integers(1, 30)),))
        built.append(Task(f"t{task}", task, 0, work, tuple(sorted(held.tolist()))))
    edges = tuple(
        (source, target, int(rng.integers(0, 9)))
        for target in range(tasks)
        for source in range(target)
        if rng.random() < 1.5 / tasks
    )
    names = tuple(f"o{task}" for task in range(tasks))
    graph = ComputeGraph("tight", names, tuple(built), weights, (), (), (), edges)
    return Problem(graph, costs_of(graph), mesh_resources(cores, capacity))


def made_of(sets: Sequence[tuple[int, ...]], slots: list[int], cores: int) -> Problem:
    """Independent tasks of 10 ns with given weight sets on cores of 10 slots."""
    weights = tuple(ResidentWeight(f"w{n}", s, 0) for n, s in enumerate(slots))
    tasks = tuple(
        Task(f"t{n}", n, 0, ExplicitWork((10,)), held) for n, held in enumerate(sets)
    )
    names = tuple(f"o{n}" for n in range(len(sets)))
    graph = ComputeGraph("made", names, tasks, weights, (), ())
    return Problem(graph, costs_of(graph), mesh_resources(cores, 10))


def test_every_schedule_is_legal_and_every_refusal_is_right() -> None:
    seen: dict[str, int] = {}
    for seed in range(250):
        problem = tight_problem(seed)
        evaluator = StaticEvaluator(problem)
        for scheduler in (PeftScheduler(problem), HeftScheduler(problem)):
            outcome = scheduler.schedule()
            if isinstance(outcome, ListSchedule):
                seen[outcome.reservation] = seen.get(outcome.reservation, 0) + 1
                schedule = evaluator.schedule(outcome.placement)
                assert violations(schedule) == ()
                assert schedule.summary.completion_ns <= outcome.makespan_ns
                continue
            seen[outcome.verdict] = seen.get(outcome.verdict, 0) + 1
            assert outcome.counts.deviations <= DEVIATION_LIMIT
            assert outcome.counts.recovery_checks <= CHECK_LIMIT
            if outcome.verdict is Verdict.INFEASIBLE:
                answer = pack(packing_instance(problem), SolveBudget(1.0))
                assert answer.verdict is Verdict.INFEASIBLE
    assert set(seen) >= {"arrival", "largest-first", "constructed"}
    assert set(seen) >= {Verdict.INFEASIBLE, Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("seed", "method"),
    [
        (37, PackingMethod.LOAD_AWARE),
        (554, PackingMethod.BEST_FIT),
        (1138, PackingMethod.REVERSED),
        (749, PackingMethod.DEVIATION),
    ],
)
def test_the_shared_constructor_has_its_turn(seed: int, method: PackingMethod) -> None:
    problem = tight_problem(seed)
    outcome = PeftScheduler(problem).schedule()
    assert isinstance(outcome, ListSchedule)
    assert outcome.reservation is ReservationMethod.CONSTRUCTED
    assert outcome.packing is method
    assert outcome.counts.first_checks > 0
    assert (outcome.counts.deviations > 0) == (method is PackingMethod.DEVIATION)


def test_copies_are_made_where_there_is_room() -> None:
    """Lanes that share a weight run side by side as long as copies fit."""
    roomy = PeftScheduler(made_of([(0,)] * 4, [5], 4)).schedule()
    assert isinstance(roomy, ListSchedule)
    assert roomy.makespan_ns == 10
    one_core_full = made_of([(0,), (0,), (0,), (1,), (2,)], [6, 6, 6], 3)
    outcome = PeftScheduler(one_core_full).schedule()
    assert isinstance(outcome, ListSchedule)
    assert outcome.makespan_ns == 30
    assert outcome.reservation is ReservationMethod.LARGEST_FIRST


def test_an_exhausted_search_claims_nothing() -> None:
    outcome = PeftScheduler(tight_problem(3)).schedule()
    assert isinstance(outcome, LatencyFailure)
    assert outcome.verdict is Verdict.UNKNOWN
    assert "core-candidate checks were tried" in outcome.reason
    # and the packing model knows why
    answer = pack(packing_instance(tight_problem(3)), SolveBudget(1.0))
    assert answer.verdict is Verdict.INFEASIBLE


def test_counting_refuses_at_once() -> None:
    outcome = PeftScheduler(made_of([(0,), (1,)], [10, 10], 1)).schedule()
    assert isinstance(outcome, LatencyFailure)
    assert outcome.verdict is Verdict.INFEASIBLE
    assert outcome.least_cores == 2
    assert "at least 2 cores" in outcome.reason
    alone = PeftScheduler(made_of([(0, 1)], [6, 6], 3)).schedule()
    assert isinstance(alone, LatencyFailure)
    assert alone.verdict is Verdict.INFEASIBLE
    assert alone.least_cores is None


def test_a_given_assignment_is_reserved() -> None:
    problem = made_of([(0,), (1,), (0,)], [6, 6], 2)
    core_of = np.array([1, 0, 1], dtype=np.int32)
    outcome = PeftScheduler(problem).schedule(core_of)
    assert isinstance(outcome, ListSchedule)
    assert outcome.reservation is ReservationMethod.GIVEN
    assert outcome.placement.core_of.tolist() == [1, 0, 1]
    with pytest.raises(InternalError, match="capacity"):
        PeftScheduler(problem).schedule(np.zeros(3, dtype=np.int32))
