"""``reports/pipeline_selection.json``: every candidate, its evidence, the choice."""

from __future__ import annotations

from raptor_cp.reports.schemas.common import (
    ATTEMPTS,
    BUDGETS,
    PHASE_COUNTS,
    PHASES,
)
from raptor_cp.reports.schemas.fields import (
    Schema,
    boolean,
    choice,
    constant,
    document,
    integer,
    named,
    or_null,
    positions,
    record,
    several,
    text,
    texts,
)

_STAGES = several(
    "its stages in order",
    record(
        "One stage",
        {
            "groups": positions("operation groups"),
            "cores": positions("cores"),
        },
    ),
)

_GUIDANCE = record(
    "Where the time goes, for ties in the search",
    {
        "stage_service_ns": positions("by stage: busiest core, ns"),
        "critical_stages": positions(
            "stages on the critical recurrence, most delay first"
        ),
    },
)

_CANDIDATE = record(
    "An evaluated schedule",
    {
        "index": integer("evaluation index; 0 is the initialized schedule"),
        "origin": text("`initial`, `seed`, or the kind of move"),
        "parent": or_null(integer("evaluation index of the parent"), "for roots"),
        "stages": _STAGES,
        "task_stage_runs": several(
            "by stage: [stage, first task, last task]", positions("three numbers")
        ),
        "proxy_ns": or_null(integer("what the proxy expected, ns"), "for roots"),
        "timing": or_null(
            choice("where its cost is from", "queue", "static"), "when not costed"
        ),
        "form": text("how it was realized: policy/cross-stage/order"),
        "interval_ns": or_null(
            integer("event-index tie order, ns"), "when unavailable"
        ),
        "alternative_ns": or_null(
            integer("reversed tie order, ns"), "when unavailable"
        ),
        "recurrence_proved": boolean("complete state seen again in both tie orders"),
        "static_support": boolean("the plan has only forms that can be lowered"),
        "eligible": or_null(boolean("may be compared with others")),
        "failures": texts("why it is not eligible"),
        "unavailable": named("why a figure is missing", {"type": "string"}),
        "details": named("named counts and times of the evaluation", integer("")),
        "recurrence_contributions": or_null(_GUIDANCE),
        "static": record(
            "Static figures of the same schedule",
            {
                "interval_ns": integer("static estimate of the interval, ns"),
                "objective_ns": integer("static objective, ns"),
                "memory_service_ns": integer("shared-memory service, ns"),
            },
        ),
    },
    optional=(
        "form", "interval_ns", "alternative_ns", "recurrence_proved",
        "static_support", "failures", "unavailable", "details",
        "recurrence_contributions",
    ),
)  # fmt: skip

PIPELINE_SELECTION: Schema = document(
    "pipeline-selection",
    "Every candidate of the search, its evidence, and the choice",
    {
        "schema": constant("raptor-cp/pipeline-selection/1", "version of the format"),
        "scenario": text("name of the scenario"),
        "timing": or_null(text("where costs are from")),
        "initialized": constant(0, "evaluation index of the initialized schedule"),
        "chosen": or_null(
            integer("candidate that was built"), "when stopped or exhausted"
        ),
        "best": or_null(integer("lowest larger estimate"), "when stopped or exhausted"),
        "reason": choice(
            "why it was chosen",
            "single",
            "separated",
            "near-equivalent",
            "initialized",
            "accepted-initial",
            "stopped",
            "interrupted",
            "exhausted",
        ),
        "termination": text("what ended the search"),
        "stops": several(
            "what bars candidates from comparison",
            record(
                "One obstacle",
                {
                    "candidate": integer("evaluation index"),
                    "property": text("which property"),
                    "explanation": text("one sentence"),
                },
            ),
        ),
        "budgets": BUDGETS,
        "candidates": several("in order of evaluation", _CANDIDATE),
        "attempts": ATTEMPTS,
        "phases": PHASES,
        "phase_counts": PHASE_COUNTS,
    },
)
