"""``schedule.json``: a schedule that anybody can check without this library."""

from __future__ import annotations

from raptor_cp.reports.schemas.common import CERTIFICATE, VERDICT
from raptor_cp.reports.schemas.fields import (
    Schema,
    boolean,
    choice,
    constant,
    document,
    either,
    integer,
    named,
    or_null,
    or_unavailable,
    positions,
    record,
    several,
    text,
    texts,
)

_WEIGHT = record(
    "A resident weight block",
    {
        "id": integer("position in this list"),
        "slots": integer("weight slots on each core that holds it"),
    },
)
_TASK = record(
    "One lane of one operation",
    {
        "id": integer("position in this list"),
        "operation": text("name of its operation"),
        "group": integer("position of its operation group"),
        "lane": integer("which lane of the operation"),
        "execution_ns": integer("time on the core where it is placed, ns"),
        "weights": positions("ids of its resident weights"),
    },
)
_EDGE = record(
    "A dependency",
    {
        "src": integer("task that produces"),
        "dst": integer("task that consumes"),
        "bytes": integer("what it moves, bytes"),
    },
)
_CORE = record(
    "One core of the chip, idle ones included",
    {
        "id": integer("position in this list"),
        "stage": or_null(integer("stage that owns it"), "outside all stages"),
        "tasks": positions("its tasks in execution order"),
        "slots": positions("their positions in that order, from 0"),
        "starts_ns": positions("their estimated starts in one inference, ns"),
        "last_task": or_null(integer("its last task"), "when idle"),
    },
)
_COSTS = record(
    "Static costs, and the target's evidence",
    {
        "serial_work_ns": integer("sum of all execution times, ns"),
        "core_work_ns": positions("execution time on each core, ns"),
        "critical_path_ns": integer(
            "longest dependency path, transfers included, core order not, ns"
        ),
        "transfer_work_ns": integer("sum of all transfers between cores, ns"),
        "completion_ns": integer("end of one inference, core order included, ns"),
        "stage_spans_ns": positions("by stage: completion inside the stage alone, ns"),
        "stage_loads_ns": positions("by stage: the largest core load, ns"),
        "memory_service_ns": integer(
            "serialized shared-memory service of one inference, ns"
        ),
        "static_objective_ns": integer(
            "max over stages of max(load, dependency span), ns"
        ),
        "static_interval_ns": integer("max(core work, memory service, stage span), ns"),
        "timing": choice("where the interval is from", "queue", "static"),
        "interval_ns": or_unavailable(
            integer("interval under the event-index tie order, ns")
        ),
        "alternative_interval_ns": or_unavailable(
            integer("interval under the reversed tie order, ns")
        ),
        "recurrence_proved": boolean("complete state seen again in both tie orders"),
        "failures": texts("why the timing is not eligible; empty otherwise"),
        "components": named(
            "named parts of the execution times (`dispatch_ns` of the pe target)",
            record(
                "One part",
                {
                    "total": integer("sum over all tasks, ns"),
                    "tasks": positions("by task id, ns"),
                },
            ),
        ),
    },
)

SCHEDULE: Schema = document(
    "schedule",
    "A schedule that can be checked without this library. Ids are positions from 0",
    {
        "schema": constant("raptor-cp/schedule/1", "version of the format"),
        "scenario": {"description": "the resolved scenario", "type": "object"},
        "capacity": integer("weight slots of a core"),
        "weights": several("resident weights", _WEIGHT),
        "tasks": several("tasks, in a topological order", _TASK),
        "edges": several("dependencies", _EDGE),
        "groups": several(
            "operation groups",
            record(
                "All lanes of an operation",
                {
                    "index": integer("position in this list"),
                    "operation": text("its name"),
                },
            ),
        ),
        "cores": several("cores", _CORE),
        "equivalence_classes": several(
            "tasks that publish alike", positions("task ids")
        ),
        "stages": several(
            "pipeline stages in order; none in latency mode",
            record(
                "A contiguous run of groups and the cores it owns",
                {
                    "index": integer("position in this list"),
                    "groups": positions("its operation groups"),
                    "cores": positions("its cores, ascending"),
                },
            ),
        ),
        "verdict": VERDICT,
        "certificate": either(
            "bounds and gaps; an empty object when there are none",
            CERTIFICATE,
            record("No certificate", {}),
        ),
        "costs": _COSTS,
    },
)
