"""Parts that several reports have: certificate, budgets, attempts, infeasibility."""

from __future__ import annotations

from raptor_cp.reports.schemas.fields import (
    Schema,
    choice,
    constant,
    either,
    integer,
    named,
    number,
    or_null,
    record,
    several,
    text,
    texts,
)
from raptor_cp.verdict import Verdict

VERDICT = choice("what is known: see the verdicts", *(str(v) for v in Verdict))

PIPELINE_CERTIFICATE: Schema = {"title": "pipeline"} | record(
    "How far from the optimum the schedule is at most (pipeline mode)",
    {
        "objective": text("the static objective in words"),
        "ours_static": or_null(integer("its value for this schedule, ns")),
        "bound_static": or_null(
            integer("no schedule of this depth has a smaller one, ns")
        ),
        "gap_static": or_null(number("(ours - bound) / bound")),
        "interval_ns": or_null(integer("interval of this schedule, ns")),
        "bound_interval_ns": or_null(
            integer("no schedule of this graph on this chip has a smaller one, ns")
        ),
        "gap_interval": or_null(number("(interval - bound) / bound")),
        "proof": text("what the bounds rest on"),
    },
)

LATENCY_CERTIFICATE: Schema = {"title": "latency"} | record(
    "How far from the optimum the completion is at most (latency mode)",
    {
        "objective": constant("completion_ns", "what is bounded"),
        "completion_ns": integer("completion without queues, ns"),
        "bound_ns": integer("no schedule completes earlier, ns"),
        "best_ns": integer("completion of the best schedule that is known, ns"),
        "gap": number("(completion - bound) / bound"),
        "proof": choice(
            "what the bound rests on", "path", "work", "copies", "slots", "cp-sat"
        ),
        "note": text("what was not proved; empty otherwise"),
    },
)

CERTIFICATE = either(
    "How far from the optimum the schedule is at most; by mode",
    PIPELINE_CERTIFICATE,
    LATENCY_CERTIFICATE,
)


def count(meaning: str) -> Schema:
    """Used and limit of a counted budget."""
    return record(
        meaning,
        {
            "used": integer("how much was used; of a round, the most in any one"),
            "limit": integer("how much there was"),
        },
    )


BUDGETS = record(
    "Counted budgets of the search; none can be exceeded",
    {
        "queue_evaluations": count("Complete queue costs"),
        "packings": count("Constructive allocations and physical packings"),
        "beam": count("Schedules kept"),
        "placements_per_round": count("New placements of a round"),
        "shortlist": count("Proposals of a round that the proxy kept"),
        "spare_units": count("Units of spare cores in the initial partition"),
        "packing_deviations": count("Single-choice deviations of one recovery"),
        "core_candidate_checks": count("Core-candidate checks of one recovery"),
        "rounds": count("Rounds"),
    },
)

ATTEMPTS = several(
    "What the backend did, in order",
    record(
        "One attempt",
        {
            "candidate": integer("evaluation index"),
            "outcome": choice(
                "`rejected` is specific to the candidate, `refused` is not",
                "built",
                "refused",
                "rejected",
            ),
            "reasons": texts("one phrase each; empty when built"),
        },
    ),
)

INFEASIBILITY = record(
    "The proof that nothing fits",
    {
        "reason": text("one sentence"),
        "proof": text("how it is known"),
        "slots_needed": integer("weight slots that the conflicting operations need"),
        "slots_available": integer("weight slots there are for them"),
        "operations": several(
            "the conflict, largest first",
            record(
                "An operation of it",
                {
                    "operation": text("its name"),
                    "slots": integer("weight slots it needs"),
                },
            ),
        ),
        "levers": texts("what would help, one sentence each"),
    },
)

PHASES = named(
    "Seconds by phase: the only part that differs between equal runs",
    {"type": "number", "minimum": 0},
)

PHASE_COUNTS = named("How often each phase was entered", integer(""))


def registry(*schemas: Schema) -> dict[str, Schema]:
    """Schemas by title."""
    return {str(schema["title"]): schema for schema in schemas}
