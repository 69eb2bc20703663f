"""Certificates: recomputed without a solver, never beaten, null where unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import BaselineAccess, BaselineKind
from raptor_cp.models.certificate import (
    certify,
    interval_bound,
    relative_gap,
    static_objective,
    unavoidable_memory_ns,
    validate_certificate,
)
from raptor_cp.models.instances import joint_instance, partition_rules
from raptor_cp.models.pipeline_joint import JointResult, solve_joint
from raptor_cp.models.solving import SolveBudget
from raptor_cp.pipeline.groups import PipelineGroups, StageLimits
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.verdict import Verdict
from tests.instances import random_placement, random_problem


@pytest.mark.parametrize("uneven", [False, True])
def test_no_schedule_beats_its_certificate(uneven: bool) -> None:
    exact = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, operations=4, cores=4, uneven_cores=uneven)
        joint = solve_joint(joint_instance(problem, 3), SolveBudget(2.0))
        assert joint.verdict is Verdict.OPTIMAL
        bound = interval_bound(problem)
        for stages in (1, 2, 3):
            schedule = StaticEvaluator(problem).schedule(
                random_placement(rng, problem, stages)
            )
            assert static_objective(schedule) == schedule.summary.static_objective_ns
            interval = schedule.summary.static_interval_ns
            certificate = certify(schedule, interval, joint)
            assert validate_certificate(certificate, schedule) == []
            assert certificate.gap_static is not None
            assert certificate.gap_interval is not None
            assert bound.bound_ns <= interval
            exact += certificate.gap_static == 0
            assert certificate.sentences()
    assert uneven or exact > 0


def test_spans_agree_with_the_groups() -> None:
    from raptor_cp.models.packing_bounds import SegmentBounds

    for seed in range(10):
        problem = random_problem(np.random.default_rng(seed), operations=5)
        spans = SegmentBounds(joint_instance(problem, 2)).span_ns
        assert (spans == PipelineGroups.of(problem).spans).all()


def test_rules_of_a_scenario() -> None:
    problem = random_problem(np.random.default_rng(3), operations=5, cores=6)
    limits = StageLimits.of(
        PipelineGroups.of(problem), forbidden_cuts=(2,), cores={1: (None, 2), 4: (3, 4)}
    )
    rules = partition_rules(limits, 5, 6)
    assert rules.forbidden_cuts == (2,)
    assert rules.group_cores == ((1, 1, 2), (4, 3, 4))
    free = solve_joint(joint_instance(problem, 4), SolveBudget(2.0))
    held = solve_joint(joint_instance(problem, 4, rules), SolveBudget(2.0))
    assert free.bound_ns is not None
    assert held.objective_ns is not None
    assert free.bound_ns <= held.objective_ns
    assert all(stage.last != 2 for stage in held.stages)


def test_gaps_are_null_when_unknown() -> None:
    assert relative_gap(None, 3) is None
    assert relative_gap(3, None) is None
    assert relative_gap(3, 0) is None
    assert relative_gap(2, 3) is None
    assert relative_gap(3, 3) == 0.0
    assert relative_gap(3, 2) == 0.5
    problem = random_problem(np.random.default_rng(1))
    schedule = StaticEvaluator(problem).schedule(
        random_placement(np.random.default_rng(1), problem)
    )
    certificate = certify(schedule, None, None)  # latency mode
    assert certificate.to_dict() == {
        "objective": certificate.objective,
        "ours_static": None,
        "bound_static": None,
        "gap_static": None,
        "interval_ns": None,
        "bound_interval_ns": interval_bound(problem).bound_ns,
        "gap_interval": None,
        "proof": "counting",
    }


def test_a_beaten_bound_is_a_bug() -> None:
    rng = np.random.default_rng(5)
    problem = random_problem(rng, operations=3)
    schedule = StaticEvaluator(problem).schedule(random_placement(rng, problem, 2))
    ours = static_objective(schedule)
    false = JointResult(Verdict.FEASIBLE, objective_ns=ours + 2, bound_ns=ours + 1)
    with pytest.raises(InternalError, match="below its bound"):
        certify(schedule, None, false)
    honest = certify(schedule, ours, None)
    for changed in (
        replace(honest, ours_static=ours + 1),
        replace(honest, gap_interval=0.5),
        replace(honest, bound_static=ours + 1),
        replace(honest, bound_interval_ns=10**15),
    ):
        assert validate_certificate(changed, schedule)


def test_overlapping_reads_count_once() -> None:
    problem = random_problem(np.random.default_rng(2))

    def reading(*accesses: BaselineAccess) -> int:
        graph = replace(problem.graph, baseline=accesses)
        return unavoidable_memory_ns(Problem(graph, problem.costs, problem.resources))

    def rows(first: int, last: int, size: int | None = None) -> BaselineAccess:
        box = (first, last, 0, 4, 0, 8)
        size = (last - first) * 64 if size is None else size
        return BaselineAccess(0, BaselineKind.INPUT, "x", size, 1, box)

    once = reading(rows(0, 10))
    assert once > 0
    assert reading(rows(0, 6), rows(4, 10)) == once
    assert reading(rows(0, 10), rows(2, 3)) == once
    apart = reading(rows(0, 4), rows(6, 10))
    assert apart == reading(rows(0, 8))
    opaque = BaselineAccess(0, BaselineKind.INPUT, "x", 640)
    assert reading(opaque, opaque) == once
    stored = BaselineAccess(0, BaselineKind.OUTPUT, "y", 640)
    assert reading(stored, stored) == 2 * reading(stored)
