"""PEFT: the paper's example exactly, the table and the insertion against plain Python.

Figures of Arabnejad and Barbosa, IEEE TPDS 25(3), 2014: computation costs, optimistic
cost table with ranks, and schedule lengths PEFT 122 and HEFT 133.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.graph.compute_graph import ComputeGraph, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.list_scheduling import ListSchedule, ListScheduler
from raptor_cp.latency.optimistic_cost import earliest_starts, optimistic_costs
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import load
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import TaskCosts
from raptor_cp.targets.registry import create
from raptor_cp.validation import violations
from tests.instances import generator, mesh_resources, random_problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCENARIOS = Path(__file__).parents[1] / "scenarios"

#: Optimistic cost table of the paper: tasks 1 to 10 on processors 1 to 3.
PAPER_TABLE = [
    [64, 68, 86],
    [42, 39, 42],
    [27, 41, 43],
    [42, 39, 50],
    [28, 37, 28],
    [42, 39, 44],
    [13, 16, 22],
    [13, 16, 33],
    [13, 16, 20],
    [0, 0, 0],
]
#: Its last column, as printed.
PAPER_RANKS = [72.7, 41.0, 37.0, 43.7, 31.0, 41.7, 17.0, 20.7, 16.3, 0.0]


def problem_of(name: str) -> Problem:
    """The problem of a shipped scenario."""
    loaded = load(SCENARIOS / f"{name}.yaml")
    prepared = prepare(loaded, create(loaded))
    assert isinstance(prepared, Prepared)
    return prepared.problem


def scheduled(scheduler: ListScheduler) -> ListSchedule:
    outcome = scheduler.schedule()
    assert isinstance(outcome, ListSchedule)
    return outcome


def test_the_table_and_the_ranks_of_the_paper() -> None:
    scheduler = PeftScheduler(problem_of("peft-paper"))
    assert scheduler.table.tolist() == PAPER_TABLE
    assert [round(float(rank), 1) for rank in scheduler.ranks] == PAPER_RANKS
    assert scheduler.ranks[0] == Fraction(218, 3)


def test_the_schedule_of_the_paper() -> None:
    found = scheduled(PeftScheduler(problem_of("peft-paper")))
    assert found.makespan_ns == 122
    # processor 1: T1 T4 T2 T3 T7, processor 2: T6 T8 T10, processor 3: T5 T9
    assert found.placement.order == ((0, 3, 1, 2, 6), (5, 7, 9), (4, 8))
    assert found.start_ns.tolist() == [0, 29, 51, 22, 35, 29, 83, 54, 81, 106]


def test_heft_on_the_example_of_the_peft_paper() -> None:
    scheduler = HeftScheduler(problem_of("peft-paper"))
    assert scheduled(scheduler).makespan_ns == 133
    whole = [int(rank) for rank in scheduler.ranks]
    assert whole == [169, 114, 102, 110, 129, 119, 52, 92, 42, 20]


def plain_table(problem: Problem) -> list[list[int]]:
    """The recursion of the paper with the links of the chip."""
    graph, costs = problem.graph, problem.costs
    links, cores = problem.resources.links, range(problem.resources.cores)
    table = [[0 for _ in cores] for _ in graph.tasks]
    for task in reversed(range(graph.task_count)):
        for core in cores:
            for edge in range(int(graph.edge_ptr[task]), int(graph.edge_ptr[task + 1])):
                after, size = int(graph.edge_dst[edge]), int(graph.edge_bytes[edge])
                best = min(
                    table[after][other]
                    + costs.on(after, other)
                    + links.transfer_ns(size, core, other)
                    for other in cores
                )
                table[task][core] = max(table[task][core], best)
    return table


def plain_schedule(scheduler: ListScheduler) -> tuple[list[int], list[int]]:
    """(core, start) of every task: the same rules as lists, without a kernel.

    Execution times are positive here, so that gaps need no tie rule.
    """
    problem = scheduler.problem
    graph, costs, links = problem.graph, problem.costs, problem.resources.links
    cores, capacity = problem.resources.cores, problem.resources.slots_per_core
    ahead = scheduler.look_ahead_ns
    busy: list[list[tuple[int, int]]] = [[] for _ in range(cores)]
    held: list[set[int]] = [set() for _ in range(cores)]
    core_of = [-1] * graph.task_count
    start = [0] * graph.task_count
    for task in scheduler.order.tolist():
        choices = []
        for core in range(cores):
            further = sorted(set(graph.tasks[task].weights) - held[core])
            need = int(graph.weight_slots[further].sum())
            used = int(graph.weight_slots[sorted(held[core])].sum())
            if used + need > capacity:
                continue
            ready = 0
            for edge in range(int(graph.pred_ptr[task]), int(graph.pred_ptr[task + 1])):
                before = int(graph.pred_src[edge])
                size = int(graph.pred_bytes[edge])
                done = start[before] + costs.on(before, core_of[before])
                moved = links.transfer_ns(size, core_of[before], core)
                ready = max(ready, done + moved)
            duration = costs.on(task, core)
            begin = ready
            for first, last in sorted(busy[core]):
                if begin + duration <= first:
                    break
                begin = max(begin, last)
            end = begin + duration
            guide = 0 if ahead is None else int(ahead[task, core])
            choices.append((end + guide, end, need, core, begin))
        assert choices
        _, end, _, core, begin = min(choices)
        busy[core].append((begin, end))
        held[core].update(graph.tasks[task].weights)
        core_of[task], start[task] = core, begin
    return core_of, start


@pytest.mark.parametrize("seed", range(40))
def test_kernels_agree_with_plain_python(seed: int) -> None:
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=int(rng.integers(2, 7)),
        cores=int(rng.integers(1, 7)),
        uneven_cores=seed % 2 == 0,
    )
    for scheduler in (PeftScheduler(problem), HeftScheduler(problem)):
        found = scheduled(scheduler)
        core_of, start = plain_schedule(scheduler)
        assert found.placement.core_of.tolist() == core_of
        assert found.start_ns.tolist() == start
        schedule = evaluate(problem, found.placement)
        assert violations(schedule) == ()
        assert schedule.summary.completion_ns <= found.makespan_ns
    assert PeftScheduler(problem).table.tolist() == plain_table(problem)


@pytest.mark.parametrize("seed", range(20))
def test_the_table_bounds_every_schedule(seed: int) -> None:
    rng = generator(100 + seed)
    problem = random_problem(rng, operations=5, cores=4, uneven_cores=seed % 2 == 0)
    costs = LatencyCosts.of(problem)
    head, tail = earliest_starts(costs), optimistic_costs(costs)
    for scheduler in (PeftScheduler(problem), HeftScheduler(problem)):
        schedule = evaluate(problem, scheduled(scheduler).placement)
        for task, core in enumerate(schedule.placement.core_of.tolist()):
            start = int(schedule.start_ns[task])
            assert head[task, core] <= start
            end = start + problem.costs.on(task, core)
            assert end + tail[task, core] <= schedule.summary.completion_ns


def test_dependencies_that_never_share_a_core() -> None:
    problem = problem_of("peft-paper")
    costs = LatencyCosts.of(problem)
    apart = np.ones(costs.pred_src.size, dtype=np.bool_)
    table = optimistic_costs(costs, apart)
    assert (table >= optimistic_costs(costs)).all()
    # T8 to T10: 42 away from any core, T10 costs 13 on the first and 16 on the second
    assert table[7].tolist() == [42 + 16, 42 + 13, 42 + 13]


def chain_without_time(durations: list[int], cores: int) -> Problem:
    tasks = tuple(
        Task(f"t{n}", n, 0, ExplicitWork((max(time, 1),)))
        for n, time in enumerate(durations)
    )
    edges = tuple((n, n + 1, 0) for n in range(len(durations) - 1))
    names = tuple(f"o{n}" for n in range(len(durations)))
    graph = ComputeGraph("chain", names, tasks, (), (), (), (), edges)
    times: NDArray[np.int64] = np.array(durations, dtype=np.int64)
    return Problem(graph, TaskCosts(times), mesh_resources(cores, 4))


@pytest.mark.parametrize("durations", [[0, 0, 0, 0], [0, 5, 0, 0, 3, 0]])
def test_tasks_without_time_keep_their_order(durations: list[int]) -> None:
    problem = chain_without_time(durations, 2)
    found = scheduled(PeftScheduler(problem))
    schedule = evaluate(problem, found.placement)
    assert violations(schedule) == ()
    assert schedule.summary.completion_ns == sum(durations)


def test_one_core_and_repeatable() -> None:
    problem = random_problem(generator(5), operations=6, cores=1)
    found = scheduled(PeftScheduler(problem))
    assert found.makespan_ns == int(problem.costs.execution_ns.sum())
    again = scheduled(PeftScheduler(problem))
    assert again.placement.key() == found.placement.key()


def test_the_order_is_topological_and_by_rank() -> None:
    problem = random_problem(generator(8), operations=8, cores=5, uneven_cores=True)
    scheduler = PeftScheduler(problem)
    position = {task: n for n, task in enumerate(scheduler.order.tolist())}
    graph = problem.graph
    for source in range(graph.task_count):
        for edge in range(int(graph.edge_ptr[source]), int(graph.edge_ptr[source + 1])):
            assert position[source] < position[int(graph.edge_dst[edge])]
