"""Realized costs: intervals, evidence, failure reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from raptor_cp.realization.cost import plan_analysis
from raptor_cp.realization.events import PlanEvents, extract_events
from raptor_cp.realization.neutral_events import NeutralTimes
from raptor_cp.realization.plan import CrossStage, Policy
from raptor_cp.realization.realize import realize
from raptor_cp.reports.periodic_report import periodic_document
from raptor_cp.target import RealizedCost, SchedulingTarget
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.table.target import TableTarget
from raptor_cp.verdict import Unavailable
from tests.plans import pipeline
from tests.test_realization import random_schedule

if TYPE_CHECKING:
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.schedules import Schedule

TABLE = TableTarget(2)


def cost_of(plan: ExecutionPlan) -> RealizedCost:
    return TABLE.estimate_realized_schedule_cost(plan)


def interval(schedule: Schedule, policy: Policy = Policy.DOUBLE_BUFFER) -> int:
    cost = cost_of(realize(schedule, policy))
    assert cost.eligible, cost.failures
    assert cost.larger_ns is not None
    return cost.larger_ns


def neutral(plan: ExecutionPlan) -> PlanEvents:
    found = extract_events(plan, NeutralTimes(plan.schedule.problem))
    assert isinstance(found, PlanEvents)
    return found


def test_targets_answer_the_query() -> None:
    assert isinstance(TABLE, SchedulingTarget)
    chip = PimTarget(load_config("arch-a", core_count=5))
    assert isinstance(chip, SchedulingTarget)
    plan = realize(pipeline(5, [(0, 4)]))
    cost = chip.estimate_realized_schedule_cost(plan)
    assert cost.eligible
    assert cost.timing == "queue"


@pytest.mark.parametrize("policy", [Policy.DOUBLE_BUFFER, Policy.RELEASE])
def test_chains_and_skips_pipeline_at_the_adjacent_rate(policy: Policy) -> None:
    """The execution model's table: a far reader's own credit would cost 2x and 4x."""
    chain = interval(pipeline(5, work_ns=9000), policy)
    assert chain <= 1.02 * interval(pipeline(3, work_ns=9000), policy)
    for skip in ((0, 2), (0, 4), (1, 4)):
        # One more load, that is all.
        assert interval(pipeline(5, [skip], work_ns=9000), policy) <= 1.02 * chain


def test_double_buffer_is_faster_than_release() -> None:
    chip = PimTarget(load_config("arch-a", core_count=6))
    found = []
    for policy in (Policy.DOUBLE_BUFFER, Policy.RELEASE):
        plan = realize(pipeline(6, [(0, 2)], size=2048), policy)
        found.append(chip.estimate_realized_schedule_cost(plan).larger_ns or 0)
    assert 0 < found[0] < found[1]


def test_far_credit_would_serialize() -> None:
    """Fewer stages between two signalling cores is what keeps the rate."""
    schedule = pipeline(5, [(0, 4)])
    direct = cost_of(realize(schedule, cross_stage=CrossStage.DIRECT))
    assert direct.larger_ns is not None
    # A rendezvous across four stages lets no two inferences overlap much.
    assert direct.larger_ns > 2 * interval(schedule)


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("cross", list(CrossStage))
def test_random_plans_have_proved_costs(policy: Policy, cross: CrossStage) -> None:
    for seed in range(25):
        schedule = random_schedule(seed)
        plan = realize(schedule, policy, cross)
        cost = cost_of(plan)
        if not schedule.placement.stages:
            continue  # one inference: nothing couples independent cores
        assert cost.recurrence_proved, (seed, cost.failures)
        details = dict(cost.details)
        summary = schedule.summary
        if cross is CrossStage.MEMORY:
            assert details["memory_service_ns"] == summary.memory_service_ns
        assert details["core_work_ns"] == max(summary.core_work_ns)
        assert cost.guidance is not None
        assert len(cost.guidance.stage_service_ns) == len(schedule.placement.stages)
        for found in (cost.interval_ns, cost.alternative_ns):
            assert isinstance(found, int)
            assert found >= details["recurrence_ns"]
            assert found >= details["core_work_ns"]
            assert found >= details["memory_service_ns"]


def test_a_faulty_plan_fails_with_its_reasons() -> None:
    plan = realize(pipeline(3))
    cost = cost_of(replace(plan, banks=((0, 1), (1, 2))))
    assert not cost.eligible
    assert not cost.static_support
    assert isinstance(cost.interval_ns, Unavailable)
    (reason,) = cost.failures
    assert reason.startswith("overwrite: core 1 LD publication 0 => core 0 ST")


def test_candidates_share_nothing_mutable() -> None:
    schedule = pipeline(4, [(0, 2)])
    before = cost_of(realize(schedule))
    cost_of(realize(schedule, Policy.BARRIER))
    cost_of(realize(schedule, cross_stage=CrossStage.DIRECT))
    assert cost_of(realize(schedule)) == before


def test_periodic_document() -> None:
    plan = realize(pipeline(5, [(0, 4)]))
    document = periodic_document(plan, plan_analysis(neutral(plan)))
    assert document["schema"] == "raptor-cp/pipeline-periodic/1"
    assert document["selection_eligible"] is False
    assert document["not_modelled"]
    recurrence = document["recurrence"]
    assert isinstance(recurrence, dict)
    assert len(recurrence["witness"]) <= 128
    assert recurrence["totals"]["edges"] >= len(recurrence["witness"])
    work = document["core_work_ns"]
    assert isinstance(work, list)
    assert [entry["work_ns"] for entry in work] == [1000] * 5
    missing = periodic_document(plan, Unavailable("no timing"))
    assert missing["unavailable"] == "no timing"
    assert missing["selection_eligible"] is False
