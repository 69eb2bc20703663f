"""``reports/pipeline_selection.json``: every candidate, its evidence, the choice.

Schema ``raptor-cp/pipeline-selection/1``::

    scenario, timing, initialized (0), chosen, best, reason, termination
    stops      [{candidate, property, explanation}]
    budgets    {name: {used, limit}}
    candidates [{index, origin, parent, stages: [{groups, cores}], task_stage_runs:
                 [[stage, first task, last task]], proxy_ns, timing, form, interval_ns,
                 alternative_ns, recurrence_proved, static_support, eligible,
                 failures, unavailable, details, recurrence_contributions:
                 {stage_service_ns, critical_stages}, static}]
    attempts   [{candidate, outcome}]
    phases     {phase: seconds}; some lie inside others
    phase_counts {phase: times entered}

The phases of a candidate: neighbourhood scoring, constructive packing, realization,
graph checks, event extraction, dependency-witness analysis, queue execution (with its
complete-state proofs).  ``details`` has the counted work next to each limit of the
spec: docs/realization.md.

Times are ns but for ``phases``, the only part that differs between equal runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.pipeline.beam import Candidate, SearchResult
    from raptor_cp.pipeline.selection import Selection
    from raptor_cp.target import RealizedCost

SCHEMA = "raptor-cp/pipeline-selection/1"


def selection_document(
    scenario: str,
    search: SearchResult,
    selection: Selection,
    phases: Mapping[str, float],
    attempts: Sequence[Mapping[str, object]] = (),
    phase_counts: Mapping[str, int] | None = None,
) -> dict[str, object]:
    """The report; plain data, the same for the same run but for ``phases``."""
    timings = {c.cost.timing for c in search.candidates if c.cost is not None}
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "timing": ", ".join(sorted(timings)) or None,
        "initialized": 0,
        "chosen": selection.chosen,
        "best": selection.best,
        "reason": selection.reason,
        "termination": search.termination,
        "stops": [
            {"candidate": index, "property": prop, "explanation": why}
            for index, prop, why in selection.stops
        ],
        "budgets": search.budget.to_dict(),
        "candidates": [_candidate(candidate) for candidate in search.candidates],
        "attempts": [dict(attempt) for attempt in attempts],
        "phases": dict(phases),
        "phase_counts": dict(phase_counts or {}),
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    schedule = candidate.schedule
    graph, stages = schedule.problem.graph, schedule.placement.stages
    runs = []
    for stage in stages:
        tasks = [
            task
            for group in (stage.groups[0], stage.groups[-1])
            for task in graph.tasks_of(group)[[0, -1]].tolist()
        ]
        runs.append([stage.index, min(tasks), max(tasks)])
    return {
        "index": candidate.index,
        "origin": candidate.origin,
        "parent": candidate.parent,
        "stages": [
            {"groups": list(stage.groups), "cores": list(stage.cores)}
            for stage in stages
        ],
        "task_stage_runs": runs,
        "proxy_ns": candidate.proxy_ns,
        **_evidence(candidate.cost),
        "static": {
            "interval_ns": schedule.summary.static_interval_ns,
            "objective_ns": schedule.summary.static_objective_ns,
            "memory_service_ns": schedule.summary.memory_service_ns,
        },
    }


def _evidence(cost: RealizedCost | None) -> dict[str, object]:
    if cost is None:
        return {"timing": None, "eligible": None}
    figures: dict[str, object] = {}
    unavailable: dict[str, str] = {}
    for name in ("interval_ns", "alternative_ns"):
        value = getattr(cost, name)
        if isinstance(value, Unavailable):
            figures[name], unavailable[name] = None, value.reason
        else:
            figures[name] = value
    return {
        "timing": cost.timing,
        "form": cost.form,
        **figures,
        "recurrence_proved": cost.recurrence_proved,
        "static_support": cost.static_support,
        "eligible": cost.eligible,
        "failures": list(cost.failures),
        "unavailable": unavailable,
        "details": dict(cost.details),
        "recurrence_contributions": None
        if cost.guidance is None
        else {
            "stage_service_ns": list(cost.guidance.stage_service_ns),
            "critical_stages": list(cost.guidance.critical_stages),
        },
    }
