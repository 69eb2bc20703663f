"""Realize a candidate and ask its target what it costs (spec, steps 4 to 6).

A schedule can be realized in several forms: direct transfers in the order that
repeats fastest, or in that of a list schedule; cross-stage results through memory or
sent directly.  Every form that is evaluated counts as a queue evaluation.  The list
schedules are tried only where the first order has no proved interval.  Where the
scenario leaves the choice to queue costs (``cross_stage: auto``), the form with the
smaller expected interval is evaluated, and the other one too when it is close.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realization.realize import realize

if TYPE_CHECKING:
    from raptor_cp.phases import Phases
    from raptor_cp.pipeline.search_budget import Counter
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import Pipeline
    from raptor_cp.schedules import Schedule
    from raptor_cp.target import (
        CompletionEstimator,
        RealizedCompletion,
        RealizedCost,
        SchedulingTarget,
    )


#: Forms whose expected intervals differ by less than this factor are both evaluated.
CLOSE = 1.05


@dataclass(frozen=True, slots=True)
class PlanForm:
    """How a schedule is realized."""

    policy: Policy
    cross_stage: CrossStage
    order: OrderRule

    @property
    def name(self) -> str:
        """As reports print it: ``double-buffer/memory/blocking``."""
        return f"{self.policy}/{self.cross_stage}/{self.order}"

    @classmethod
    def named(cls, name: str) -> PlanForm:
        """The form of a name."""
        policy, cross_stage, order = name.split("/")
        return cls(Policy(policy), CrossStage(cross_stage), OrderRule(order))

    def realize(self, schedule: Schedule) -> ExecutionPlan:
        """An independent plan of the schedule in this form."""
        return realize(schedule, self.policy, self.cross_stage, self.order)


def plan_forms(pipeline: Pipeline) -> tuple[tuple[PlanForm, ...], ...]:
    """Alternatives of a scenario; inside each, forms to fall back to, in order."""
    policy = Policy(pipeline.synchronization)
    ways = (
        (CrossStage.MEMORY, CrossStage.DIRECT)
        if pipeline.cross_stage == "auto"
        else (CrossStage(pipeline.cross_stage),)
    )
    return tuple(
        tuple(
            PlanForm(policy, way, order)
            for order in (OrderRule.STEADY, OrderRule.BLOCKING, OrderRule.OVERLAPPING)
        )
        for way in ways
    )


def realized_cost(
    schedule: Schedule,
    target: SchedulingTarget,
    pipeline: Pipeline,
    phases: Phases,
    further: Counter | None = None,
) -> RealizedCost:
    """Cost of independent realizations; the plans are released afterwards.

    Args:
        schedule: the candidate; its first form is paid for already.
        target: prices plans.
        pipeline: synchronisation and cross-stage form of the scenario.
        phases: where time is counted, that of the target's own phases too.
        further: budget of queue evaluations for further forms; without one, or with
            none left, the first form alone decides.

    Returns:
        The best eligible cost, or the first one when none is eligible.
    """
    found: list[RealizedCost] = []
    for alternative, plan in _in_expected_order(schedule, pipeline, phases):
        if plan is None and any(cost.eligible for cost in found):
            continue
        for form in alternative:
            if found:
                if further is None or further.left == 0:
                    break
                further.take()
            if plan is None:
                with phases.timed("realization"):
                    plan = form.realize(schedule)
            cost = target.estimate_realized_schedule_cost(plan)
            if cost.phases is not None:
                phases.add(cost.phases)
            plan = None
            found.append(replace(cost, form=form.name, phases=None))
            if cost.eligible:
                break
    eligible = [cost for cost in found if cost.eligible]
    if not eligible:
        return found[0]
    return min(eligible, key=lambda cost: cost.larger_ns or 0)


def single_plan(
    schedule: Schedule, pipeline: Pipeline, phases: Phases
) -> tuple[ExecutionPlan, str]:
    """Plan and form of a candidate that is compared with nothing.

    It is realized once; where the scenario leaves the choice of the cross-stage form,
    once in each, and the faster expected plan is taken.
    """
    forms = [alternative[0] for alternative in plan_forms(pipeline)]
    with phases.timed("realization"):
        plans = [form.realize(schedule) for form in forms]
    best = min(range(len(plans)), key=lambda n: (plans[n].expected_ns or 0, n))
    return plans[best], forms[best].name


def _in_expected_order(
    schedule: Schedule, pipeline: Pipeline, phases: Phases
) -> list[tuple[tuple[PlanForm, ...], ExecutionPlan | None]]:
    """Alternatives and plans of their first forms, the faster expected one first.

    Where the scenario leaves a choice, an alternative whose plan is clearly expected
    to be slower comes without its plan: it is a last resort.
    """
    alternatives = plan_forms(pipeline)
    if len(alternatives) == 1:
        return [(alternatives[0], None)]
    with phases.timed("realization"):
        plans = [forms[0].realize(schedule) for forms in alternatives]
    expected = [plan.expected_ns or 0 for plan in plans]
    order = sorted(range(len(plans)), key=lambda n: expected[n])
    near = CLOSE * expected[order[0]]
    return [(alternatives[n], plans[n] if expected[n] <= near else None) for n in order]


#: Orders of the transfers in latency mode, where everything is sent directly.
COMPLETION_FORMS = tuple(
    PlanForm(Policy.DOUBLE_BUFFER, CrossStage.DIRECT, order)
    for order in (OrderRule.BLOCKING, OrderRule.OVERLAPPING)
)


def completion_form(completion: RealizedCompletion | None) -> PlanForm:
    """The form in which a schedule of latency mode is realized for good."""
    if completion is None or not completion.form:
        return COMPLETION_FORMS[0]
    return PlanForm.named(completion.form)


def realized_completion(
    schedule: Schedule, target: CompletionEstimator, phases: Phases
) -> RealizedCompletion:
    """Completion of one inference, realized in the better order of its transfers.

    Args:
        schedule: a schedule of latency mode: everything is sent directly.
        target: times plans.
        phases: where time is counted.

    Returns:
        The realization that completes earliest, the blocking order on a tie; the
        first one when none has a completion.
    """
    found: list[RealizedCompletion] = []
    for form in COMPLETION_FORMS:
        with phases.timed("realization"):
            plan = form.realize(schedule)
        with phases.timed("queue completion"):
            completion = target.estimate_completion(plan)
        found.append(replace(completion, form=form.name))
    timed = [c for c in found if c.larger_ns is not None]
    return min(timed, key=lambda c: c.larger_ns or 0) if timed else found[0]
