"""Realize a candidate and ask its target what it costs (spec, steps 4 to 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.realization.plan import CrossStage, Policy
from raptor_cp.realization.realize import realize

if TYPE_CHECKING:
    from raptor_cp.phases import Phases
    from raptor_cp.scenario import Pipeline
    from raptor_cp.schedule import Schedule
    from raptor_cp.target import RealizedCost, SchedulingTarget


def realized_cost(
    schedule: Schedule,
    target: SchedulingTarget,
    pipeline: Pipeline,
    phases: Phases,
) -> RealizedCost:
    """Cost of an independent realization; the plan is released afterwards."""
    with phases.timed("realization"):
        plan = realize(
            schedule,
            Policy(pipeline.synchronization),
            CrossStage.DIRECT
            if pipeline.cross_stage == "direct"
            else CrossStage.MEMORY,
        )
    with phases.timed("queue analysis"):
        return target.estimate_realized_schedule_cost(plan)
