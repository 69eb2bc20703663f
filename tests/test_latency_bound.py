"""Completion of one inference: the model against brute force, bounds, certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from numba import njit

from raptor_cp.latency.bounds import completion_bound
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.models.instances import packing_instance
from raptor_cp.models.latency_bound import LatencyCertificate, bound_latency
from raptor_cp.models.latency_model import LatencyModel
from raptor_cp.models.solving import SolveBudget, SolverClaim, solve
from raptor_cp.models.weight_packing import pack
from raptor_cp.schedules import Problem, Schedule
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict
from tests.instances import generator, random_problem
from tests.test_latency_capacity import made_of
from tests.test_peft import problem_of, scheduled

if TYPE_CHECKING:
    from numpy.typing import NDArray

NONE = 2**60


@njit(cache=True)
def _search(
    placed: int,
    last_ns: int,
    longest_ns: int,
    best_ns: int,
    work: NDArray[np.int64],
    delay: NDArray[np.int64],
    holds: NDArray[np.bool_],
    slots: NDArray[np.int64],
    capacity: int,
    core_of: NDArray[np.int64],
    end: NDArray[np.int64],
    free: NDArray[np.int64],
    held: NDArray[np.int64],
) -> int:
    """Append tasks by rising start: every schedule is reached in that order.

    The only pruning is a branch that is already as long as the best schedule.
    """
    tasks, cores = work.shape
    if placed == tasks:
        return min(best_ns, longest_ns)
    for task in range(tasks):
        if core_of[task] >= 0:
            continue
        waits = False
        for source in range(tasks):
            if delay[source, task, 0, 0] >= 0 and core_of[source] < 0:
                waits = True
        if waits:
            continue
        for core in range(cores):
            begin = max(last_ns, free[core])
            for source in range(tasks):
                if delay[source, task, 0, 0] >= 0:
                    moved = delay[source, task, core_of[source], core]
                    begin = max(begin, end[source] + moved)
            done = begin + work[task, core]
            if max(longest_ns, done) >= best_ns:
                continue
            union = 0
            for weight in range(slots.size):
                if held[core, weight] > 0 or holds[task, weight]:
                    union += slots[weight]
            if union > capacity:
                continue
            before = free[core]
            core_of[task], end[task], free[core] = core, done, done
            for weight in range(slots.size):
                held[core, weight] += holds[task, weight]
            best_ns = _search(
                placed + 1,
                begin,
                max(longest_ns, done),
                best_ns,
                work,
                delay,
                holds,
                slots,
                capacity,
                core_of,
                end,
                free,
                held,
            )
            core_of[task], free[core] = -1, before
            for weight in range(slots.size):
                held[core, weight] -= holds[task, weight]
    return best_ns


def brute_force(problem: Problem) -> int | None:
    """Least completion (ns) over all schedules; None when there is none."""
    graph, resources = problem.graph, problem.resources
    tasks, cores = graph.task_count, resources.cores
    work = np.array(
        [[problem.costs.on(t, p) for p in range(cores)] for t in range(tasks)]
    )
    delay = np.full((tasks, tasks, cores, cores), -1, dtype=np.int64)
    for source in range(tasks):
        for edge in range(int(graph.edge_ptr[source]), int(graph.edge_ptr[source + 1])):
            size = int(graph.edge_bytes[edge])
            for tail in range(cores):
                for head in range(cores):
                    delay[source, int(graph.edge_dst[edge]), tail, head] = (
                        resources.links.transfer_ns(size, tail, head)
                    )
    holds = np.zeros((tasks, len(graph.weights)), dtype=np.bool_)
    for number, task in enumerate(graph.tasks):
        holds[number, list(task.weights)] = True
    best = _search(
        0,
        0,
        0,
        NONE,
        work,
        delay,
        holds,
        graph.weight_slots.astype(np.int64),
        resources.slots_per_core,
        np.full(tasks, -1, dtype=np.int64),
        np.zeros(tasks, dtype=np.int64),
        np.zeros(cores, dtype=np.int64),
        np.zeros((cores, len(graph.weights)), dtype=np.int64),
    )
    return None if best == NONE else int(best)


def like_links(problem: Problem) -> Problem:
    """The same on a chip whose links are all alike, so that cores are too."""
    cores = problem.resources.cores
    away = 1 - np.eye(cores, dtype=np.int64)
    resources = Resources(
        cores,
        problem.resources.slots_per_core,
        LinkModel(3 * away, 2 * away, 4),
        MemoryModel(1, 0, 0),
    )
    return Problem(problem.graph, problem.costs, resources)


def small_problems(count: int) -> list[Problem]:
    """Random graphs of 5 to 9 tasks with capacities, like and unlike cores."""
    found: list[Problem] = []
    seed = 0
    while len(found) < count:
        rng = generator(seed)
        problem = random_problem(
            rng,
            operations=3 + seed % 3,
            max_lanes=3,
            cores=int(rng.integers(2, 4)),
            slots=int(rng.integers(3, 9)),
            uneven_cores=seed % 3 == 0,
        )
        if seed % 3 == 1:
            problem = like_links(problem)
        seed += 1
        if 5 <= problem.graph.task_count <= 9:
            found.append(problem)
    return found


def test_the_model_equals_brute_force_and_nothing_beats_it() -> None:
    verdicts: dict[str, int] = {}
    for problem in small_problems(300):
        optimum = brute_force(problem)
        evaluator = StaticEvaluator(problem)
        budget = SolveBudget(3.0)
        schedules = []
        for scheduler in (PeftScheduler(problem), HeftScheduler(problem)):
            outcome = scheduler.schedule()
            verdicts[outcome.verdict] = verdicts.get(outcome.verdict, 0) + 1
            if not isinstance(outcome, ListSchedule):
                answer = pack(packing_instance(problem), budget)
                if outcome.verdict is Verdict.INFEASIBLE:
                    assert optimum is None
                assert (answer.verdict is Verdict.INFEASIBLE) == (optimum is None)
                continue
            schedule = evaluator.schedule(outcome.placement)
            assert violations(schedule) == ()
            assert optimum is not None
            assert schedule.summary.completion_ns >= optimum
            schedules.append(schedule)
        if not schedules:
            continue
        assert optimum is not None
        assert completion_bound(problem).ns <= optimum
        answer_ = bound_latency(problem, schedules[0], evaluator, budget)
        assert answer_.verdict is Verdict.OPTIMAL
        assert answer_.bound_ns == optimum
        assert answer_.best.summary.completion_ns == optimum
        assert violations(answer_.best) == ()
    assert verdicts[Verdict.FEASIBLE] > 400
    assert verdicts[Verdict.INFEASIBLE] > 10


@pytest.mark.parametrize(
    ("name", "scheduler", "optimum"),
    [
        ("peft-paper", PeftScheduler, 113),
        ("peft-paper", HeftScheduler, 113),
        ("heft-paper", PeftScheduler, 73),
        ("heft-paper", HeftScheduler, 73),
    ],
)
def test_the_optimum_of_the_papers_is_proved(
    name: str, scheduler: type[PeftScheduler | HeftScheduler], optimum: int
) -> None:
    problem = problem_of(name)
    evaluator = StaticEvaluator(problem)
    first = evaluator.schedule(scheduled(scheduler(problem)).placement)
    budget = SolveBudget(1.0)
    answer = bound_latency(problem, first, evaluator, budget)
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.bound_ns == answer.best.summary.completion_ns == optimum
    assert answer.proof == "cp-sat"
    assert violations(answer.best) == ()
    claim, confirmation = answer.records
    assert claim.status is SolverClaim.OPTIMAL
    assert confirmation.status is SolverClaim.INFEASIBLE
    assert "presolve=False" in confirmation.settings
    assert budget.spent < 0.1  # about a tenth of a second


def first_schedule(problem: Problem) -> tuple[StaticEvaluator, Schedule]:
    evaluator = StaticEvaluator(problem)
    placement = scheduled(PeftScheduler(problem)).placement
    return evaluator, evaluator.schedule(placement)


def test_the_hint_is_a_solution() -> None:
    for problem in small_problems(20):
        outcome = PeftScheduler(problem).schedule()
        if not isinstance(outcome, ListSchedule):
            continue
        schedule = StaticEvaluator(problem).schedule(outcome.placement)
        model = LatencyModel(problem, completion_bound(problem), schedule)
        assert model.model.validate() == ""
        hints = model.model.proto.solution_hint
        values = dict(zip(hints.vars, hints.values, strict=True))
        assert sorted(values) == list(range(len(model.model.proto.variables)))
        for index, value in values.items():
            model.model.add(model.model.get_int_var_from_proto_index(index) == value)
        budget = SolveBudget(1.0)
        assert solve(model.model, budget, what="hint").solution is not None


def test_long_times_are_counted_in_units() -> None:
    """A horizon above 2**31 ns: the bound holds, and the order is timed exactly."""
    problem = problem_of("heft-paper")
    factor = 3 * 10**8 + 7
    table = problem.costs.per_core_ns
    assert table is not None
    links = problem.resources.links
    long = Problem(
        problem.graph,
        TaskCosts(problem.costs.execution_ns * factor, table * factor),
        Resources(
            3,
            problem.resources.slots_per_core,
            LinkModel(links.handshake_ns, links.unit_ns * factor, 1),
            problem.resources.memory,
        ),
    )
    evaluator, first = first_schedule(long)
    answer = bound_latency(long, first, evaluator, SolveBudget(1.0))
    assert answer.best.summary.completion_ns == 73 * factor
    assert 0.999 * 73 * factor < answer.bound_ns <= 73 * factor


def test_without_solver_time_the_bound_is_counted() -> None:
    problem = problem_of("peft-paper")
    evaluator, first = first_schedule(problem)
    answer = bound_latency(problem, first, evaluator, SolveBudget(0.0))
    assert answer.verdict is Verdict.FEASIBLE
    assert (answer.bound_ns, answer.proof) == (86, "path")
    assert answer.best is first
    assert answer.records == ()
    assert "no solver time" in answer.note


def test_a_budget_that_is_too_small_claims_nothing_more() -> None:
    problem = random_problem(generator(4), operations=9, max_lanes=6, cores=5)
    evaluator, first = first_schedule(problem)
    budget = SolveBudget(0.002)
    answer = bound_latency(problem, first, evaluator, budget)
    assert answer.bound_ns <= answer.best.summary.completion_ns
    assert answer.best.summary.completion_ns <= first.summary.completion_ns
    assert answer.bound_ns >= completion_bound(problem).ns


def test_the_same_answer_twice() -> None:
    problem = random_problem(generator(11), operations=5, max_lanes=4, cores=3)
    evaluator, first = first_schedule(problem)
    answers = [
        bound_latency(problem, first, evaluator, SolveBudget(0.2)) for _ in range(2)
    ]
    assert answers[0].records == answers[1].records
    assert answers[0].best.placement.key() == answers[1].best.placement.key()


def test_copies_of_weights_bound_the_completion() -> None:
    """Two weights that fill a core each: 8 and 4 tasks of 10 ns on four cores.

    Work alone says 30 ns; but in less than 40 ns the first weight needs three cores
    and the second one two.
    """
    problem = made_of([(0,)] * 8 + [(1,)] * 4, [10, 10], 4)
    bound = completion_bound(problem)
    assert (bound.path_ns, bound.work_ns, bound.copies_ns) == (10, 30, 40)
    assert bound.argument == "copies"
    evaluator, first = first_schedule(problem)
    answer = bound_latency(problem, first, evaluator, SolveBudget(1.0))
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.bound_ns == 40


def test_a_certificate_reads_well() -> None:
    certificate = LatencyCertificate(122, 113, 113, "cp-sat")
    assert certificate.gap == pytest.approx(9 / 113)
    assert not certificate.optimal
    assert certificate.to_dict()["bound_ns"] == 113
    assert certificate.sentences() == [
        "completion without queues 122 ns; no schedule completes before 113 ns "
        "(cp-sat): gap 7.96%",
        "a schedule of 113 ns is known",
    ]
    best = LatencyCertificate(113, 113, 113, "cp-sat")
    assert best.optimal
    assert best.sentences() == ["completion without queues 113 ns is optimal (cp-sat)"]
