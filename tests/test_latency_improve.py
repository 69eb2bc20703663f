"""Copies and windows: proposals on large graphs, against exhaustive search on small."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.latency.bounds import completion_bound
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.latency.shared_copies import (
    longest_first_makespan,
    reserved_apart,
    share_copies,
)
from raptor_cp.models.latency_bound import bound_latency
from raptor_cp.models.latency_copies import plan_copies, reservation
from raptor_cp.models.latency_improve import improve_latency
from raptor_cp.models.latency_window import WindowSearch
from raptor_cp.models.solving import SolveBudget, SolveSettings
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import load, loads
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.targets.registry import create
from raptor_cp.validation import violations
from tests.instances import generator, random_problem

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem

ROOT = Path(__file__).parents[1]


def shipped(name: str) -> Problem:
    loaded = load(ROOT / "scenarios" / f"{name}.yaml")
    prepared = prepare(loaded, create(loaded))
    assert isinstance(prepared, Prepared)
    return prepared.problem


def layers(lanes: list[int], lengths: list[int], slots: list[int]) -> Problem:
    """A chain of operations; all lanes of one hold one weight."""
    tasks: list[str] = []
    edges: list[str] = []
    before: list[str] = []
    for op, (count, length) in enumerate(zip(lanes, lengths, strict=True)):
        names = [f"t{op}_{n}" for n in range(count)]
        tasks += [
            f"{{id: {n}, operation: o{op}, execution_ns: {length}, weights: [w{op}]}}"
            for n in names
        ]
        edges += [f"{{src: {a}, dst: {b}}}" for a in before for b in names]
        before = names
    weights = [f"{{id: w{op}, slots: {s}}}" for op, s in enumerate(slots)]
    loaded = loads(
        f"""
schema: raptor-cp/1
name: layers
network:
  tasks: [{", ".join(tasks)}]
  edges: [{", ".join(edges)}]
  weights: [{", ".join(weights)}]
target: {{kind: table, cores: 4, slots_per_core: 10}}
mode: latency
"""
    )
    prepared = prepare(loaded, create(loaded))
    assert isinstance(prepared, Prepared)
    return prepared.problem


def test_copies_are_the_best_split_of_the_slots() -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        lanes = rng.integers(1, 6, 3).tolist()
        lengths = rng.integers(1, 50, 3).tolist()
        slots = rng.integers(1, 9, 3).tolist()
        problem = layers(lanes, lengths, slots)
        weights = IndexedResidentWeights.of(problem)
        plan = plan_copies(problem, weights, SolveBudget(2.0))
        assert plan is not None

        def total(
            copies: tuple[int, ...],
            lanes: list[int] = lanes,
            lengths: list[int] = lengths,
        ) -> int:
            return sum(
                longest_first_makespan([length] * count, n)
                for count, length, n in zip(lanes, lengths, copies, strict=True)
            )

        def fits(copies: tuple[int, ...], slots: list[int] = slots) -> bool:
            large = sum(n for n, s in zip(copies, slots, strict=True) if s > 5)
            used = sum(n * s for n, s in zip(copies, slots, strict=True))
            return used <= 40 and large <= 4

        options = itertools.product(*(range(1, min(n, 4) + 1) for n in lanes))
        assert fits(plan.copies)
        assert total(plan.copies) == min(total(c) for c in options if fits(c))
        held = reservation(plan, problem, weights)
        if held is None:
            continue
        assert (held @ weights.slots <= 10).all()
        assert held.any(axis=0).all()
        placed = HeftScheduler(problem).schedule_on(held)
        schedule = StaticEvaluator(problem).schedule(placed.placement)
        assert violations(schedule) == ()


@pytest.mark.parametrize(("name", "optimum"), [("peft-paper", 113), ("heft-paper", 73)])
def test_a_window_of_everything_is_the_exact_model(name: str, optimum: int) -> None:
    problem = shipped(name)
    evaluator = StaticEvaluator(problem)
    listed = HeftScheduler(problem).schedule()
    assert isinstance(listed, ListSchedule)
    search = WindowSearch(problem, evaluator, window_tasks=10, candidates=3)
    best = search.improve(evaluator.schedule(listed.placement), SolveBudget(2.0))
    assert best.summary.completion_ns == optimum


@pytest.mark.parametrize("seed", range(6))
def test_windows_never_lose_and_never_beat_the_optimum(seed: int) -> None:
    problem = random_problem(
        generator(seed),
        operations=4,
        max_lanes=3,
        cores=3,
        uneven_cores=seed % 2 > 0,
        slots=6,
    )
    evaluator = StaticEvaluator(problem)
    listed = HeftScheduler(problem).schedule()
    if not isinstance(listed, ListSchedule):
        pytest.skip("no list schedule")
    first = evaluator.schedule(listed.placement)
    optimum = bound_latency(problem, first, evaluator, SolveBudget(4.0)).bound_ns
    for size in (1, 4, 9):
        search = WindowSearch(
            problem, evaluator, window_tasks=size, candidates=problem.resources.cores
        )
        best = search.improve(first, SolveBudget(1.0))
        assert violations(best) == ()
        assert optimum <= best.summary.completion_ns <= first.summary.completion_ns
    known = improve_latency(
        problem, first, evaluator, SolveBudget(1.0), SolveSettings()
    )
    assert any(schedule is first for schedule in known)
    figures = [schedule.summary.completion_ns for schedule in known]
    assert figures == sorted(figures)
    assert optimum <= figures[0] <= first.summary.completion_ns


def test_without_time_nothing_changes() -> None:
    problem = shipped("peft-paper")
    evaluator = StaticEvaluator(problem)
    listed = HeftScheduler(problem).schedule()
    assert isinstance(listed, ListSchedule)
    first = evaluator.schedule(listed.placement)
    assert WindowSearch(problem, evaluator).improve(first, SolveBudget(0.0)) is first


SCRIPT = """
import json, sys
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule

result = schedule(load(sys.argv[1], [
    "latency.method=cp-sat", "solver.deterministic_time=0.3",
]))
print(json.dumps(result.schedule_document(), sort_keys=True))
print(json.dumps(result.summary(), sort_keys=True))
"""


def test_a_network_improves_and_repeats_to_the_byte() -> None:
    found = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SCRIPT,
                str(ROOT / "scenarios/resnet18-latency.yaml"),
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            cwd=ROOT,
        )
        found.append(done.stdout)
    assert hashlib.sha256(found[0]).digest() == hashlib.sha256(found[1]).digest()
    problem = shipped("resnet18-latency")
    listed = HeftScheduler(problem).schedule()
    assert isinstance(listed, ListSchedule)
    summary = json.loads(found[0].splitlines()[1])
    assert summary["static_latency_ns"] < 0.9 * listed.makespan_ns
    assert summary["certificate"]["gap"] < 0.1
    assert summary["timing"] == "queue"


def expected_end(problem: Problem, copies: dict[int, int]) -> int:
    """The inequalities of shared copies, task by task; one weight for each task."""
    graph = problem.graph
    work = problem.costs.execution_ns.tolist()
    tail = completion_bound(problem).tail_ns.min(axis=1).tolist()
    before: list[set[int]] = []
    start: list[int] = []
    ends = [0]
    for task in range(graph.task_count):
        low, high = int(graph.pred_ptr[task]), int(graph.pred_ptr[task + 1])
        sources = [int(source) for source in graph.pred_src[low:high]]
        before.append(set(sources).union(*(before[s] for s in sources)))
        begin = max([start[s] + work[s] for s in sources], default=0)
        for weight, count in copies.items():
            own = [t for t in before[task] if graph.tasks[t].weights == (weight,)]
            if own:
                together = longest_first_makespan([work[t] for t in own], count)
                begin = max(begin, min(start[t] for t in own) + together)
        start.append(begin)
        ends.append(begin + work[task] + tail[task])
    for weight, count in copies.items():
        own = [t for t, task in enumerate(graph.tasks) if task.weights == (weight,)]
        together = longest_first_makespan([work[t] for t in own], count)
        least = min(tail[t] for t in own)
        ends.append(min(start[t] for t in own) + together + least)
    return max(ends)


def test_shared_copies_fit_and_end_as_the_inequalities_say() -> None:
    shared_some = 0
    for seed in range(60):
        problem = random_problem(
            generator(seed),
            operations=5,
            max_lanes=6,
            cores=4,
            slots=4 + seed % 5,
            max_blocks=1,
        )
        weights = IndexedResidentWeights.of(problem)
        shared = share_copies(problem, LatencyCosts.of(problem), weights)
        if shared is None:
            continue
        plan = shared.plan
        of = {
            int(weights.class_weights(item)[0]): count
            for item, count in zip(plan.items, plan.copies, strict=True)
        }
        slots = problem.graph.weight_slots
        room = problem.resources.cores * problem.resources.slots_per_core
        assert sum(int(slots[w]) * n for w, n in of.items()) <= room
        assert shared.completion_ns == expected_end(problem, of)
        shared_some += any(n > 1 for n in of.values())
        for held in (
            reservation(plan, problem, weights),
            reserved_apart(shared, weights, problem.resources.cores),
        ):
            if held is None:
                continue
            assert (held @ weights.slots <= weights.capacity).all()
            listed = HeftScheduler(problem).schedule_on(held)
            schedule = StaticEvaluator(problem).schedule(listed.placement)
            assert violations(schedule) == ()
    assert shared_some > 10


def test_slots_go_where_the_end_is() -> None:
    """A long operation and a short one: the copies go to the long one."""
    text = """
schema: raptor-cp/1
name: two
network:
  tasks:
    - {id: a1, operation: a, execution_ns: 100, weights: [wa]}
    - {id: a2, operation: a, execution_ns: 100, weights: [wa]}
    - {id: b1, operation: b, execution_ns: 10, weights: [wb]}
    - {id: b2, operation: b, execution_ns: 10, weights: [wb]}
  edges:
    - {src: a1, dst: b1, bytes: 1}
    - {src: a1, dst: b2, bytes: 1}
    - {src: a2, dst: b1, bytes: 1}
    - {src: a2, dst: b2, bytes: 1}
  weights: [{id: wa, slots: 4}, {id: wb, slots: 4}]
target: {kind: table, cores: 3, slots_per_core: 4}
mode: latency
"""
    loaded = loads(text)
    prepared = prepare(loaded, create(loaded))
    assert isinstance(prepared, Prepared)
    problem = prepared.problem
    weights = IndexedResidentWeights.of(problem)
    shared = share_copies(problem, LatencyCosts.of(problem), weights)
    assert shared is not None
    assert shared.plan.copies == (2, 1)
    # Transfers are not in it, but for the least tail of the bound.
    assert shared.completion_ns in (120, 121)
    assert shared.begin_ns[0] == 0
    assert shared.end_ns[0] == shared.begin_ns[1] == 100
