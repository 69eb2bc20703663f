"""``expected/NAME.json``: what a regression run compares with."""

from __future__ import annotations

from raptor_cp.reports.schemas.common import VERDICT
from raptor_cp.reports.schemas.fields import (
    Schema,
    constant,
    document,
    integer,
    named,
    or_null,
    positions,
    record,
    several,
    text,
)

EXPECTED: Schema = document(
    "expected",
    "The recorded result of a scenario (`expected/NAME.json` beside it), which "
    "`raptor-cp regress` compares with",
    {
        "schema": constant("raptor-cp/expected/1", "version of the format"),
        "scenario": text("name of the scenario"),
        "verdict": VERDICT,
        "interval_ns": or_null(integer("initiation interval, ns")),
        "latency_ns": or_null(integer("completion of one inference, ns")),
        "stages": several(
            "stages in order",
            record(
                "One stage",
                {
                    "groups": positions("its first and last operation group"),
                    "cores": integer("number of its cores"),
                },
            ),
        ),
        "selection": or_null(text("why this candidate")),
        "bound_static_ns": or_null(integer("bound of the static objective, ns")),
        "bound_interval_ns": or_null(integer("bound of the interval, ns")),
        "slots_needed": or_null(
            integer("weight slots of the conflict"), "unless INFEASIBLE is proved"
        ),
        "mvmul": or_null(integer("products of an inference")),
        "tolerances": named(
            "how far figures may move, `1%` or an amount, by figure",
            {"type": ["string", "integer"]},
        ),
    },
    optional=("tolerances",),
)
