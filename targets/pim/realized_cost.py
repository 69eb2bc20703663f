"""What a realized schedule costs on the pimsim-nn chip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.realization.cost import realized_completion, realized_cost
from raptor_cp.targets.pim.plan_events import plan_events

if TYPE_CHECKING:
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.target import RealizedCompletion, RealizedCost
    from raptor_cp.targets.pim.timing import PimTiming


def estimate_realized_schedule_cost(
    plan: ExecutionPlan, timing: PimTiming
) -> RealizedCost:
    """Checks, both queue intervals, recurrence and guidance of a plan."""
    return realized_cost(plan, lambda realized: plan_events(realized, timing))


def estimate_completion(plan: ExecutionPlan, timing: PimTiming) -> RealizedCompletion:
    """Checks, and both completions of one generation of a plan."""
    return realized_completion(plan, lambda realized: plan_events(realized, timing))
