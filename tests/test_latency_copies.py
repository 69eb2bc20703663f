"""Reservations that learn from list schedules: legal, bounded, and where they pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raptor_cp.latency.copy_search import MAX_PLACEMENTS, MAX_ROUNDS, CopySearch
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.methods import METHODS
from raptor_cp.models.latency_bound import bound_latency
from raptor_cp.models.solving import SolveBudget
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict
from tests.instances import generator, random_problem
from tests.test_latency_capacity import made_of, tight_problem
from tests.test_latency_slots import chain_of_operations

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem


def searching(problem: Problem) -> CopySearch:
    schedulers = [method(problem) for method in METHODS.values()]
    return CopySearch(problem, schedulers, StaticEvaluator(problem))


@pytest.mark.parametrize("seed", range(30))
def test_every_round_is_legal(seed: int) -> None:
    problem = (
        tight_problem(seed)
        if seed % 2
        else random_problem(
            generator(seed), operations=5, max_lanes=5, cores=4, slots=4 + seed % 5
        )
    )
    search = searching(problem)
    weights, more = search.weights, True
    while more:
        reserved = search.reservation()
        if reserved is None:
            assert not search.next_round()
            return
        assert (reserved.held @ weights.slots <= weights.capacity).all()
        assert min(reserved.copies, default=1) >= 1
        for item in search.items:
            members = weights.class_weights(item)
            assert reserved.held[:, members].all(axis=1).any()
        more = search.next_round()
    assert search.rounds <= search.limit
    for schedule in search.best:
        if schedule is not None:
            assert violations(schedule) == ()


def test_slots_go_where_the_end_is() -> None:
    """A long operation and a short one share three cores: the long one gets two."""
    problem = chain_of_operations([2, 2], [100, 10], [4, 4], 3, 4)
    search = searching(problem)
    while search.next_round():
        pass
    for schedule in search.best:
        assert schedule is not None
        assert schedule.summary.completion_ns == 120
    first = search.best[0]
    assert first is not None
    answer = bound_latency(problem, first, StaticEvaluator(problem), SolveBudget(1.0))
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.bound_ns == 120


def test_waiting_raises_the_priority_of_the_weights_that_wait() -> None:
    """three tasks of one weight on one core wait for each other."""
    problem = made_of([(0,)] * 3 + [(1,)], [10, 10], 2)
    search = searching(problem)
    before = list(search.priority)
    reserved = search.reservation()
    assert reserved is not None
    assert not reserved.complete
    placed = search.schedulers[0].schedule_on(reserved.held)
    schedule = search.evaluator.schedule(placed.placement)
    # On the chain that ends last: the third one waits 20 ns, the second one 10 ns.
    assert search.waits(schedule) == {0: 30}
    assert search.next_round()
    assert search.priority[0] == before[0] + 30 * 10
    assert search.priority[1] == before[1]


def test_one_round_where_all_copies_fit() -> None:
    problem = made_of([(0,)] * 3 + [(1,)] * 2, [2, 3], 3)
    search = searching(problem)
    assert not search.next_round()
    assert search.rounds == 1


def test_no_search_without_weights_or_without_a_place() -> None:
    assert not searching(made_of([(), ()], [], 2)).next_round()
    full = searching(made_of([(0,), (1,), (2,)], [9, 9, 9], 2))
    assert full.reservation() is None
    assert not full.next_round()
    assert full.best == [None, None]


def test_rounds_are_bounded_by_the_size_of_the_graph() -> None:
    search = searching(made_of([(0,)] * 4 + [(1,)] * 4, [10, 10], 3))
    assert search.limit == MAX_ROUNDS
    while search.next_round():
        pass
    assert search.rounds == MAX_ROUNDS
    assert not search.next_round()
    assert MAX_PLACEMENTS // (2 * 5_000 * 168) < MAX_ROUNDS


def test_a_search_repeats() -> None:
    problem = tight_problem(4)
    found = []
    for _ in range(2):
        search = searching(problem)
        while search.next_round():
            pass
        found.append(
            (
                search.priority,
                [b.placement.key() for b in search.best if b is not None],
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(12))
def test_it_never_beats_the_optimum(seed: int) -> None:
    problem = random_problem(
        generator(seed), operations=3, max_lanes=3, cores=3, slots=4 + seed % 4
    )
    search = searching(problem)
    while search.next_round():
        pass
    evaluator = StaticEvaluator(problem)
    for schedule in search.best:
        if schedule is None:
            continue
        answer = bound_latency(problem, schedule, evaluator, SolveBudget(2.0))
        assert answer.verdict is Verdict.OPTIMAL
        assert answer.bound_ns <= schedule.summary.completion_ns


def test_it_beats_greedy_copies_on_a_long_chain() -> None:
    """Greedy copying leaves the late operations of a chain with a core each."""
    problem = chain_of_operations([8] * 4, [10] * 4, [10] * 4, 12, 10)
    greedy = HeftScheduler(problem).schedule()
    search = searching(problem)
    while search.next_round():
        pass
    ends = [b.summary.completion_ns for b in search.best if b is not None]
    # Three copies each: three turns of 10 ns, four times.
    assert min(ends) == 120
    assert greedy.to_dict()["makespan_ns"] != 120
