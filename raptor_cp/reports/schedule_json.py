"""``schedule.json``: a schedule that can be checked without this library.

Top-level keys and records are fixed::

    schema, scenario, capacity,
    weights    [{id, slots}]
    tasks      [{id, operation, group, lane, execution_ns, weights}]
    edges      [{src, dst, bytes}]
    groups     [{index, operation}]
    cores      [{id, stage, tasks, slots, starts_ns, last_task}]
    equivalence_classes [[id]]
    stages     [{index, groups, cores}]
    verdict, certificate, costs

Ids are positions from 0.  ``execution_ns`` is the time on the core where the task
is placed.  Every core of the chip is listed, idle ones with empty lists and null as
``last_task``; ``stage`` is null outside all stages and in latency mode.  ``costs``
holds every figure of :class:`raptor_cp.schedules.CostSummary` and, from the target,
``timing``, ``interval_ns``, ``alternative_interval_ns``, ``recurrence_proved`` and
``failures``; ``components`` has named parts of the execution times (``dispatch_ns`` of
the pe target), in total and by task.  Times are ns, ``bytes`` bytes, ``slots`` of
weights and ``capacity`` weight slots, ``slots`` of cores positions in the execution
order.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from raptor_cp.target import Unavailable
from raptor_cp.validation import dependencies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.schedules import Schedule
    from raptor_cp.target import RealizedCost
    from raptor_cp.verdict import Verdict

SCHEMA = "raptor-cp/schedule/1"


def schedule_document(
    schedule: Schedule,
    scenario: Mapping[str, object],
    verdict: Verdict,
    certificate: Mapping[str, object] | None = None,
    cost: RealizedCost | None = None,
) -> dict[str, object]:
    """The document; plain data, the same for the same schedule.

    Args:
        schedule: a validated schedule.
        scenario: the resolved scenario.
        verdict: what is known about it.
        certificate: bound and gap; an empty object when there is none.
        cost: the target's evidence; ``timing`` is ``"static"`` without it and the
            interval is then the static estimate.
    """
    problem, placement = schedule.problem, schedule.placement
    graph = problem.graph
    cores = placement.core_of.tolist()
    starts, slots = schedule.start_ns.tolist(), schedule.slot.tolist()
    stage_of = placement.stage_of_core(problem.resources.cores).tolist()
    return {
        "schema": SCHEMA,
        "scenario": dict(scenario),
        "capacity": problem.resources.slots_per_core,
        "weights": [
            {"id": number, "slots": weight.slots}
            for number, weight in enumerate(graph.weights)
        ],
        "tasks": [
            {
                "id": number,
                "operation": graph.operations[task.operation],
                "group": task.operation,
                "lane": task.lane,
                "execution_ns": problem.costs.on(number, cores[number]),
                "weights": sorted(task.weights),
            }
            for number, task in enumerate(graph.tasks)
        ],
        "edges": [
            {"src": source, "dst": target, "bytes": size}
            for source, target, size in dependencies(problem)
        ],
        "groups": [
            {"index": number, "operation": name}
            for number, name in enumerate(graph.operations)
        ],
        "cores": [
            {
                "id": core,
                "stage": stage_of[core] if stage_of[core] >= 0 else None,
                "tasks": list(tasks),
                "slots": [slots[task] for task in tasks],
                "starts_ns": [starts[task] for task in tasks],
                "last_task": schedule.last_tasks[core],
            }
            for core, tasks in enumerate(placement.order)
        ],
        "equivalence_classes": [list(group) for group in schedule.equivalence_classes],
        "stages": [
            {"index": s.index, "groups": list(s.groups), "cores": list(s.cores)}
            for s in placement.stages
        ],
        "verdict": str(verdict),
        "certificate": dict(certificate or {}),
        "costs": {
            **_static_costs(schedule),
            **_timing(schedule, cost),
            "components": cost_components(schedule),
        },
    }


def cost_components(schedule: Schedule) -> dict[str, dict[str, object]]:
    """Named parts of the execution times: in total, and by task id."""
    return {
        name: {"total": int(values.sum()), "tasks": values.tolist()}
        for name, values in schedule.problem.costs.components
    }


def _static_costs(schedule: Schedule) -> dict[str, object]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(schedule.summary).items()
    }


def _timing(schedule: Schedule, cost: RealizedCost | None) -> dict[str, object]:
    if cost is None:
        interval = schedule.summary.static_interval_ns
        return {
            "timing": "static",
            "interval_ns": interval,
            "alternative_interval_ns": interval,
            "recurrence_proved": False,
            "failures": [],
        }
    return {
        "timing": cost.timing,
        "interval_ns": _figure(cost.interval_ns),
        "alternative_interval_ns": _figure(cost.alternative_ns),
        "recurrence_proved": cost.recurrence_proved,
        "failures": list(cost.failures),
    }


def _figure(value: int | Unavailable) -> object:
    return {"unavailable": value.reason} if isinstance(value, Unavailable) else value
