"""``result.json``: the figures of a run without the schedule itself."""

from __future__ import annotations

from raptor_cp.reports.schemas.common import (
    BUDGETS,
    CERTIFICATE,
    INFEASIBILITY,
    PHASE_COUNTS,
    PHASES,
    VERDICT,
    count,
)
from raptor_cp.reports.schemas.fields import (
    Schema,
    boolean,
    choice,
    constant,
    document,
    integer,
    named,
    number,
    or_null,
    or_unavailable,
    record,
    several,
    text,
    texts,
)

_COMPLETION = record(
    "One inference on the queues (latency mode)",
    {
        "timing": constant("queue", "where the figures are from"),
        "event_index_ns": or_unavailable(
            integer("completion under the event-index tie order, ns")
        ),
        "reversed_ns": or_unavailable(
            integer("completion under the reversed tie order, ns")
        ),
        "form": text("how the schedule was realized"),
        "failures": texts("faults of the plan"),
        "details": named("named counts and times", {"type": "integer"}),
    },
)

_LIST_SCHEDULE = record(
    "What the list scheduler found first (latency mode)",
    {
        "method": text("the list scheduler"),
        "verdict": VERDICT,
        "reason": or_null(text("why it found no placement")),
        "makespan_ns": or_null(
            integer("end of the last task as it was planned, ns"), "without a placement"
        ),
        "reservation": or_null(
            choice(
                "which step made the weights fit",
                "arrival",
                "largest-first",
                "constructed",
                "given",
            ),
            "without a placement",
        ),
        "packing": or_null(
            text("constructor of the reservation"), "unless it was constructed"
        ),
        "budgets": record(
            "Retries of the shared constructor; no limit can be exceeded",
            {
                "packing_deviations": count("Single-choice deviations"),
                "core_candidate_checks": count("Core-candidate checks"),
            },
        ),
    },
)

_SOLVE = record(
    "One solve; null where unknown",
    {
        "what": text("the question"),
        "status": choice(
            "what the solver claimed", "OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"
        ),
        "objective": or_null(
            integer("value of the solution, in the model's unit", None)
        ),
        "bound": or_null(integer("bound on the objective by this solve", None)),
        "deterministic_time": number("spent, in the solver's unit"),
        "limit": number("granted, in the solver's unit"),
        "conflicts": or_null(integer("search conflicts")),
        "branches": or_null(integer("search decisions")),
        "booleans": or_null(integer("Boolean variables after presolve")),
        "model_hash": or_null(text("SHA-256 of the model's text form")),
        "settings": text("settings that differ from the defaults"),
        "reproducible": boolean("false when the wall-clock net ended the solve"),
        "note": text("anything a reader must know; empty otherwise"),
    },
)

_EXPECTATION = record(
    "One line of `expect`",
    {
        "name": text("which figure"),
        "expected": text("what was expected"),
        "found": text("what was found"),
        "held": boolean("whether it held"),
    },
)

RESULT: Schema = document(
    "result",
    "The figures of a run. `schedule --json` prints the same with the schedule "
    "document under `schedule`",
    {
        "schema": constant("raptor-cp/result/1", "version of the format"),
        "scenario": text("name of the scenario"),
        "verdict": VERDICT,
        "reason": text("one sentence"),
        "timing": or_null(
            choice("where the figures are from", "queue", "static"),
            "without a schedule",
        ),
        "interval_ns": or_null(
            integer("initiation interval, the larger tie order, ns"),
            "in latency mode or without a schedule",
        ),
        "latency_ns": or_null(integer("completion of one inference, ns")),
        "static_latency_ns": or_null(
            integer("completion by the evaluator, in which nothing queues, ns")
        ),
        "queue_completion": or_null(_COMPLETION, "in pipeline mode"),
        "stages": integer("number of stages; 0 in latency mode"),
        "cores_used": or_null(integer("cores that run a task")),
        "certificate": or_null(CERTIFICATE),
        "infeasibility": or_null(INFEASIBILITY, "unless INFEASIBLE is proved"),
        "selection": or_null(
            choice(
                "why this candidate",
                "single",
                "separated",
                "near-equivalent",
                "initialized",
                "accepted-initial",
                "stopped",
                "interrupted",
                "exhausted",
            )
        ),
        "termination": or_null(text("what ended the search")),
        "budgets": or_null(BUDGETS, "in latency mode"),
        "list_schedule": or_null(_LIST_SCHEDULE, "in pipeline mode"),
        "components": named(
            "named parts of the execution times in total, ns", {"type": "integer"}
        ),
        "mvmul": or_null(
            integer("products of an inference"), "without a network of layers"
        ),
        "expectations": several("what `expect` asked", _EXPECTATION),
        "program": or_null(
            choice("what the backend made", "built", "refused", "rejected"),
            "when no program was asked for",
        ),
        "program_reasons": texts("why there is no program"),
        "interrupted": boolean("ended early by a signal; the best so far was kept"),
        "notes": texts("what was approximated, not proved, or left out"),
        "schedule": or_null(
            {"description": "the schedule document (standard output only)"},
        ),
        "solver": several("all solves of the run", _SOLVE),
        "phases": PHASES,
        "phase_counts": PHASE_COUNTS,
    },
    optional=("schedule",),
)

RUN_MARKER: Schema = document(
    "run",
    "Marks a folder as a run, which may be replaced",
    {"schema": constant("raptor-cp/run/1", "version of the format")},
)
