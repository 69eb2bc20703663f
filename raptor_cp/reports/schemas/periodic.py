"""``reports/pipeline_periodic.json``: the periodic analysis of the selected plan."""

from __future__ import annotations

from raptor_cp.reports.schemas.execution_plan import CROSS_STAGE, POLICY
from raptor_cp.reports.schemas.fields import (
    UNAVAILABLE,
    Schema,
    boolean,
    choice,
    constant,
    document,
    either,
    integer,
    named,
    number,
    or_null,
    or_unavailable,
    positions,
    record,
    several,
    text,
    texts,
)

_START = choice("which start", "cold", "continued", "paced")

WITNESS_EDGE = record(
    "One edge of the critical cycle",
    {
        "source": integer("event number"),
        "target": integer("event number"),
        "source_label": text("what the source is"),
        "target_label": text("what the target is"),
        "delay_ns": integer("delay, ns"),
        "distance": integer("generations it spans"),
    },
)
WITNESS_TOTALS = record(
    "Totals over the whole cycle",
    {
        "delay_ns": integer("delay, ns"),
        "distance": integer("generations"),
        "edges": integer("number of edges"),
        "cores": positions("cores on it"),
        "links": texts("links on it, `source->target`"),
    },
)

_RECURRENCE = either(
    "Maximum cycle ratio: no interval is smaller",
    record(
        "A bracketed ratio",
        {
            "interval_ns": number("the ratio, ns"),
            "upper_ns": number("upper end of the bracket, at most 1 ns above"),
            "tests": integer("feasibility tests, at most 64"),
            "largest_sweeps": integer("sweeps of one test, at most R + 1"),
            "recurrence_edges": integer(
                "edges of positive distance R, at most two for each core"
            ),
            "witness": several("at most 128 edges of a critical cycle", WITNESS_EDGE),
            "totals": WITNESS_TOTALS,
        },
        optional=("witness", "totals"),
    ),
    record(
        "A cycle of distance 0: the plan cannot run",
        {
            "unavailable": text("why, one sentence"),
            "token_free_cycle": texts("events of the cycle"),
            "delay_ns": integer("its delay, ns"),
            "shortest": boolean("whether it is the shortest"),
        },
    ),
    UNAVAILABLE,
)

_WINDOW = either(
    "Two adjacent windows of two generations within one percent",
    record(
        "The estimate of the spec",
        {
            "first_generation": integer("first generation of the first window"),
            "interval_ns": number("mean interval over both windows, ns"),
            "core_waits_ns": named(
                "queue waits by core over four generations, ns", integer("")
            ),
        },
    ),
    UNAVAILABLE,
)

_PROOF = record(
    "A complete-state recurrence",
    {
        "start": _START,
        "transient_generations": integer("generations before the first state"),
        "transient_ns": integer("time before it, ns"),
        "period_generations": integer("generations between two equal states"),
        "period_ns": integer("time between them, ns"),
        "interval_ns": number("their quotient, ns"),
    },
)

_QUEUE = either(
    "One tie order",
    record(
        "What its execution gave",
        {
            "tie_order": choice("who goes first", "event-index", "reversed"),
            "interval_ns": or_unavailable(number("estimate of the queues, ns")),
            "window": _WINDOW,
            "exact_interval_ns": or_unavailable(
                number("interval of the proved recurrence, ns")
            ),
            "mean_interval_ns": or_null(
                or_unavailable(
                    number("mean over the later half of the generations, ns")
                ),
                "with too few of them",
            ),
            "recurrence_established": boolean("a recurrence is proved"),
            "start": or_null(_START, "when unproved"),
            "proofs": several("one for each uncoupled part", _PROOF),
            "max_request_wait_ns": integer("longest wait, bootstrap included, ns"),
            "attempts": several(
                "in this order",
                record(
                    "One attempt",
                    {
                        "start": _START,
                        "processed_events": integer("at most 16 (V + E)"),
                        "generations": integer("of one event, at most 64"),
                    },
                ),
            ),
        },
    ),
    UNAVAILABLE,
)

PIPELINE_PERIODIC: Schema = document(
    "pipeline-periodic",
    "The periodic analysis of the selected plan: a diagnostic that ranks nothing",
    {
        "schema": constant("raptor-cp/pipeline-periodic/1", "version of the format"),
        "graph": text("name of the compute graph"),
        "policy": POLICY,
        "cross_stage": CROSS_STAGE,
        "selection_eligible": constant(False, "always false"),
        "core_work_ns": several(
            "compute work of every core",
            record(
                "One core",
                {
                    "core": integer("number of the core"),
                    "stage": integer("its stage"),
                    "work_ns": integer("execution time of its tasks, ns"),
                },
            ),
        ),
        "registers": named(
            "event registers by core, compared with the emitted program",
            positions("register numbers"),
        ),
        "not_modelled": texts("effects that the events leave out"),
        "unavailable": text("why there is no timing, in place of all that follows"),
        "events": integer("events of one generation, V"),
        "edges": integer("dependencies, E"),
        "interval_ns": or_unavailable(
            number("largest of recurrence, core work and memory service, ns")
        ),
        "recurrence": _RECURRENCE,
        "largest_core_work_ns": record(
            "The busiest core",
            {
                "max": integer("its work, ns"),
                "core": integer("its number", -1),
            },
        ),
        "memory_service_ns": integer(
            "serialized shared-memory service of one generation, ns"
        ),
        "within_generation_span_ns": or_unavailable(
            number("longest path through one generation, ns; not an interval")
        ),
        "single_generation_ns": either(
            "One generation alone, both tie orders",
            positions("two times, ns"),
            UNAVAILABLE,
        ),
        "queues": several("both tie orders", _QUEUE),
        "recurrence_established": boolean("proved under both tie orders"),
    },
    optional=(
        "unavailable", "events", "edges", "interval_ns", "recurrence",
        "largest_core_work_ns", "memory_service_ns", "within_generation_span_ns",
        "single_generation_ns",
        "queues", "recurrence_established",
    ),
)  # fmt: skip
