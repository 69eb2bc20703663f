"""Copies and windows: proposals on large graphs, against exhaustive search on small."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.models.latency_bound import bound_latency
from raptor_cp.models.latency_improve import improve_latency
from raptor_cp.models.latency_window import WindowSearch
from raptor_cp.models.solving import SolveBudget, SolveSettings
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import load
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
