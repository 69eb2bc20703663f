"""Neighbourhood moves and the beam: legality, coverage, counted budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.pipeline.beam import Candidate, Scored, refine
from raptor_cp.pipeline.neighbourhood import Move, StageVector, moves
from raptor_cp.pipeline.search_budget import Counter, SearchBudget
from raptor_cp.schedules import Placement, Problem, Schedule
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import RealizedCost
from raptor_cp.verdict import Unavailable
from tests.instances import generator, random_problem

vectors = st.integers(1, 7).flatmap(
    lambda groups: st.tuples(
        st.just(groups),
        st.sets(st.integers(1, max(groups - 1, 1)), max_size=4),
        st.lists(st.integers(1, 9), min_size=5, max_size=5),
    )
)


class AnyCut:
    def allows_cut(self, group: int) -> bool:
        return True


class OddCuts:
    def allows_cut(self, group: int) -> bool:
        return group % 2 == 1


def vector_of(groups: int, cuts: set[int], budgets: list[int]) -> StageVector:
    starts = (0, *sorted(c for c in cuts if c < groups))
    return StageVector(starts, tuple(budgets[: len(starts)]))


@given(vectors)
def test_moves_are_legal_and_keep_the_pool(
    given_vector: tuple[int, set[int], list[int]],
) -> None:
    groups, parent = given_vector[0], vector_of(*given_vector)
    for move in moves(parent, groups, 5, AnyCut()):
        assert move.starts[0] == 0
        assert list(move.starts) == sorted(set(move.starts))
        assert move.starts[-1] < groups
        assert 1 <= len(move.starts) <= max(5, len(parent.starts))
        kept = [b for b in move.kept if b is not None]
        assert len(move.kept) == len(move.starts)
        assert sum(kept) + move.pool == sum(parent.budgets)
        assert all(0 <= s < len(parent.starts) for s in move.touched)
        if move.kind == "transfer":
            assert min(kept) >= 1
            changes = [b - a for a, b in zip(parent.budgets, kept, strict=True)]
            amount = max(changes)
            assert amount & (amount - 1) == 0
            assert sorted(c for c in changes if c) == [-amount, amount]


@given(vectors)
def test_moves_number_is_bounded(
    given_vector: tuple[int, set[int], list[int]],
) -> None:
    groups, parent = given_vector[0], vector_of(*given_vector)
    stages, cores = len(parent.starts), sum(parent.budgets)
    count = sum(1 for _ in moves(parent, groups, 5, AnyCut()))
    limit = 2 * groups + groups + stages**2 + stages**2 * cores.bit_length()
    assert count <= limit


def test_moves_of_a_small_vector_are_exactly_these() -> None:
    parent = StageVector((0, 2), (2, 1))
    found = [(m.kind, m.starts, m.kept) for m in moves(parent, 4, 3, AnyCut())]
    assert found == [
        ("shift", (0, 1), (None, None)),
        ("shift", (0, 3), (None, None)),
        ("insert", (0, 1, 2), (None, None, 1)),
        ("remove", (0,), (None,)),
        ("transfer", (0, 2), (1, 2)),
    ]


def test_forbidden_cuts_are_never_proposed() -> None:
    parent = StageVector((0, 3), (4, 4))
    for move in moves(parent, 6, 4, OddCuts()):
        assert all(s % 2 == 1 for s in move.starts[1:])


def test_depth_is_a_maximum() -> None:
    parent = StageVector((0, 3), (4, 4))
    assert all(len(m.starts) <= 2 for m in moves(parent, 6, 2, AnyCut()))


@dataclass
class FakeModel:
    """Costs that depend on the vector alone; counts what it is asked."""

    problem: Problem
    fail_every: int = 0
    ineligible: int = -1
    placed: int = 0
    costed: int = 0
    seen: list[StageVector] = field(default_factory=list)

    def propose(self, parent: Candidate, move: Move) -> Scored | None:
        stages = len(move.starts)
        budgets = tuple(
            kept if kept is not None else max(1, move.pool // stages)
            for kept in move.kept
        )
        if sum(budgets) > self.problem.resources.cores:
            return None
        value = sum((i + 1) * s for i, s in enumerate(move.starts)) % 17
        return Scored(value, (), StageVector(move.starts, budgets), move.kind)

    def place(self, vector: StageVector) -> Schedule | None:
        self.placed += 1
        self.seen.append(vector)
        if self.fail_every and self.placed % self.fail_every == 0:
            return None
        return schedule_of(self.problem, self.placed)

    def cost(self, schedule: Schedule) -> RealizedCost:
        self.costed += 1
        if self.costed == self.ineligible:
            return RealizedCost("queue", Unavailable("?"), 1, True)
        return RealizedCost("queue", 1000 - self.costed, 1000 - self.costed, True)


def schedule_of(problem: Problem, number: int) -> Schedule:
    """A placement that differs for every number below cores ** tasks."""
    cores, tasks = problem.resources.cores, problem.graph.task_count
    core_of = np.array(
        [(number // cores**t) % cores for t in range(tasks)], dtype=np.int32
    )
    return evaluate(problem, Placement.in_task_order(core_of, cores))


@pytest.fixture
def problem() -> Problem:
    return random_problem(generator(7), cores=6)


def run(
    problem: Problem,
    model: FakeModel,
    budget: SearchBudget,
    seeds: int = 0,
    groups: int = 9,
) -> list[Candidate]:
    initial = (StageVector((0, 3), (3, 3)), schedule_of(problem, 0))
    extra = [
        (StageVector((0, 1 + s), (2, 4)), schedule_of(problem, 500 + s))
        for s in range(seeds)
    ]
    result = refine(
        initial, extra, model, budget, groups=groups, depth=4, limits=AnyCut()
    )
    assert result.budget is budget
    return list(result.candidates)


def test_beam_stops_at_32_queue_evaluations(problem: Problem) -> None:
    model, budget = FakeModel(problem), SearchBudget()
    candidates = run(problem, model, budget)
    assert len(candidates) == model.costed == budget.queue_evaluations.used == 32
    assert budget.spent == "queue evaluations"
    assert budget.largest_round <= 2
    assert budget.largest_shortlist <= 64
    assert len(set(model.seen)) == len(model.seen)  # no vector twice


def test_beam_stops_at_128_packings(problem: Problem) -> None:
    model, budget = FakeModel(problem, fail_every=1), SearchBudget()
    candidates = run(problem, model, budget, groups=99)
    assert len(candidates) == 1
    assert model.placed == budget.packings.used == 128
    assert budget.spent == "packings"


def test_first_round_evaluates_two_neighbours_of_a_single_parent(
    problem: Problem,
) -> None:
    candidates = run(problem, FakeModel(problem), SearchBudget(queue_evaluations=3))
    assert [c.parent for c in candidates] == [None, 0, 0]


def test_each_parent_gets_one_evaluation_a_round(problem: Problem) -> None:
    candidates = run(problem, FakeModel(problem), SearchBudget(queue_evaluations=5))
    # later candidates are cheaper here, so the beam after round one is {2, 1}
    assert [c.parent for c in candidates] == [None, 0, 0, 2, 1]


def test_seeds_are_extra_roots_and_count(problem: Problem) -> None:
    model, budget = FakeModel(problem), SearchBudget(queue_evaluations=6)
    candidates = run(problem, model, budget, seeds=2)
    assert [c.origin for c in candidates[:3]] == ["initial", "seed", "seed"]
    assert candidates[0].index == 0
    assert len(candidates) == 6


def test_duplicate_placements_are_evaluated_once(problem: Problem) -> None:
    class Stuck(FakeModel):
        def place(self, vector: StageVector) -> Schedule | None:
            self.placed += 1
            return schedule_of(self.problem, 0)

    model, budget = Stuck(problem), SearchBudget(packings=10)
    assert len(run(problem, model, budget, groups=99)) == 1
    assert model.placed == 10


def test_ineligible_candidate_stops_the_search(problem: Problem) -> None:
    model = FakeModel(problem, ineligible=2)
    initial = (StageVector((0, 3), (3, 3)), schedule_of(problem, 0))
    result = refine(
        initial, [], model, SearchBudget(), groups=9, depth=4, limits=AnyCut()
    )
    assert result.termination == "stopped: candidate 1 is not eligible"
    assert model.costed <= 3  # at most the rest of that round


def test_single_group_is_a_single_candidate(problem: Problem) -> None:
    model, budget = FakeModel(problem), SearchBudget()
    initial = (StageVector((0,), (6,)), schedule_of(problem, 0))
    result = refine(initial, [], model, budget, groups=1, depth=3, limits=AnyCut())
    assert result.termination == "single-candidate"
    assert budget.queue_evaluations.used == 0
    assert result.candidates[0].cost is None


def test_small_neighbourhood_is_exhausted(problem: Problem) -> None:
    model, budget = FakeModel(problem), SearchBudget()
    initial = (StageVector((0,), (2,)), schedule_of(problem, 0))
    result = refine(initial, [], model, budget, groups=2, depth=2, limits=AnyCut())
    assert result.termination == "neighbourhood exhausted"
    assert len(result.candidates) == 2


def test_counter_refuses_more_than_its_limit() -> None:
    counter = Counter("x", 1)
    counter.take()
    with pytest.raises(InternalError, match="exceeded"):
        counter.take()


@pytest.mark.parametrize(
    ("name", "value"),
    [("queue_evaluations", 33), ("packings", 129), ("beam", 3), ("beam", 0)],
)
def test_budgets_above_the_spec_are_refused(name: str, value: int) -> None:
    with pytest.raises(MalformedInput, match=name):
        SearchBudget(**{name: value})
