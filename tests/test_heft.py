"""HEFT: the example of Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002, exactly.

Ten tasks, three processors; published: upward ranks to three digits, and a schedule
of length 80.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.methods import METHODS, latency_scheduler
from raptor_cp.static_evaluation import evaluate
from tests.instances import generator, random_problem
from tests.test_peft import problem_of, scheduled

PAPER_RANKS = [
    108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667,
]  # fmt: skip


def test_the_ranks_of_the_paper() -> None:
    scheduler = HeftScheduler(problem_of("heft-paper"))
    assert [round(float(rank), 3) for rank in scheduler.ranks] == PAPER_RANKS
    assert scheduler.ranks[9] == Fraction(44, 3)
    # n1, n3, n4, n2, n5, n6, n9, n7, n8, n10
    assert scheduler.order.tolist() == [0, 2, 3, 1, 4, 5, 8, 6, 7, 9]


def test_the_schedule_of_the_paper() -> None:
    found = scheduled(HeftScheduler(problem_of("heft-paper")))
    assert found.makespan_ns == 80
    assert found.placement.order == ((1, 7), (3, 5, 8, 9), (0, 2, 4, 6))
    assert found.start_ns.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]


def test_last_tasks_slots_and_classes_are_filled_in() -> None:
    problem = problem_of("heft-paper")
    schedule = evaluate(problem, scheduled(HeftScheduler(problem)).placement)
    assert schedule.last_tasks == (7, 9, 6)
    assert schedule.slot.tolist() == [0, 0, 1, 0, 2, 1, 3, 1, 2, 3]
    assert schedule.equivalence_classes == tuple((task,) for task in range(10))
    assert schedule.summary.completion_ns == 80


@pytest.mark.parametrize("seed", range(10))
def test_ranks_are_means_over_different_cores(seed: int) -> None:
    problem = random_problem(
        generator(seed), operations=5, cores=1 + seed % 5, uneven_cores=seed % 2 == 0
    )
    graph, links = problem.graph, problem.resources.links
    cores = range(problem.resources.cores)
    pairs = [(p, q) for p in cores for q in cores if p != q]
    ranks = HeftScheduler(problem).ranks
    for task in range(graph.task_count):
        mean = Fraction(sum(problem.costs.on(task, p) for p in cores), len(cores))
        longest = Fraction(0)
        for edge in range(int(graph.edge_ptr[task]), int(graph.edge_ptr[task + 1])):
            size = int(graph.edge_bytes[edge])
            total = sum(links.transfer_ns(size, p, q) for p, q in pairs)
            moved = Fraction(total, len(pairs)) if pairs else Fraction(0)
            longest = max(longest, moved + ranks[int(graph.edge_dst[edge])])
        assert ranks[task] == mean + longest


def test_methods_by_name() -> None:
    problem = problem_of("heft-paper")
    for name in METHODS:
        assert latency_scheduler(name, problem).name == name
    with pytest.raises(MalformedInput, match="no such latency method"):
        latency_scheduler("cpop", problem)
