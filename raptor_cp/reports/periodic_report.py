"""``reports/pipeline_periodic.json``: the periodic analysis of the selected plan.

A diagnostic: it ranks nothing (``selection_eligible`` is always false).  The schema is
described in docs/realization.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.periodic.cycle_ratio import CycleRatio
from raptor_cp.periodic.unavailable import ns_for_json
from raptor_cp.realization.plan import Run
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.periodic.analysis import PeriodicAnalysis
    from raptor_cp.realization.plan import ExecutionPlan

SCHEMA = "raptor-cp/pipeline-periodic/1"

#: What the events of a plan leave out, on every target.
NOT_MODELLED = (
    "loads that later steps fold together, and strided transfers that they split",
    "local memory contention inside a core",
    "instructions of bank rotation and of program start",
    "what the host does between inferences",
    "interleaving of other requests within accesses that one request stands for",
)


def periodic_document(
    plan: ExecutionPlan,
    analysis: PeriodicAnalysis | Unavailable,
    not_modelled: Sequence[str] = NOT_MODELLED,
) -> dict[str, object]:
    """The analysis of a plan as JSON data; times in ns.

    Args:
        plan: the realized schedule.
        analysis: of its events, or why there are none.
        not_modelled: effects to list.
    """
    head: dict[str, object] = {
        "schema": SCHEMA,
        "graph": plan.schedule.problem.graph.name,
        "policy": plan.policy.value,
        "cross_stage": plan.cross_stage.value,
        "selection_eligible": False,
        "core_work_ns": _core_work(plan),
        "registers": {
            str(core): list(used)
            for core, used in sorted(plan.registers_used().items())
        },
        "not_modelled": list(not_modelled),
    }
    if isinstance(analysis, Unavailable):
        return head | {"unavailable": analysis.reason}
    single = analysis.single_generation_ns
    span = analysis.within_generation_span_ns
    return head | {
        "events": analysis.events,
        "edges": analysis.edges,
        "interval_ns": ns_for_json(analysis.interval_ns),
        "recurrence": _recurrence(analysis),
        "largest_core_work_ns": {
            "max": analysis.core_work_ns,
            "core": analysis.core_work_core,
        },
        "memory_service_ns": analysis.service_ns,
        "within_generation_span_ns": ns_for_json(span),
        "single_generation_ns": (
            single.to_dict() if isinstance(single, Unavailable) else list(single)
        ),
        "queues": [order.to_dict() for order in analysis.orders],
        "recurrence_established": analysis.recurrence_established,
    }


def _core_work(plan: ExecutionPlan) -> list[dict[str, int]]:
    costs = plan.schedule.problem.costs
    return [
        {
            "core": text.core,
            "stage": text.stage,
            "work_ns": sum(
                costs.on(task, text.core)
                for item in text.items
                if isinstance(item, Run)
                for task in item.tasks
            ),
        }
        for text in plan.cores
    ]


def _recurrence(analysis: PeriodicAnalysis) -> dict[str, object]:
    found = analysis.recurrence
    if not isinstance(found, CycleRatio):
        return dict(found.to_dict())
    document: dict[str, object] = {
        "interval_ns": ns_for_json(found.ratio_ns),
        "upper_ns": ns_for_json(found.upper_ns),
        "tests": found.tests,
        "largest_sweeps": found.max_sweeps,
        "recurrence_edges": found.recurrence_edges,
    }
    if found.witness is not None:
        document |= found.witness.to_dict()
    return document
