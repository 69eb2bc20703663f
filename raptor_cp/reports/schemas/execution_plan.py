"""``reports/execution_plan.json``: what every core does in one generation."""

from __future__ import annotations

from raptor_cp.reports.schemas.fields import (
    Schema,
    choice,
    constant,
    document,
    either,
    integer,
    positions,
    record,
    several,
    text,
)

POLICY = choice("how stages are coupled", "double-buffer", "release", "barrier")
CROSS_STAGE = choice("how results reach later stages", "memory", "direct")

_BYTES = integer("size, bytes")
_RUNS = integer("contiguous runs, each rounded to the access width alone")
_PURPOSE = choice(
    "what it announces",
    "ready",
    "free",
    "barrier",
    "restart",
    "release",
)
_REGISTER = integer("event register, 0 to 31")

_ITEMS = either(
    "One item of a core's text, by `kind`",
    record(
        "A signal to another core",
        {
            "kind": constant("signal", "which item"),
            "purpose": _PURPOSE,
            "core": integer("core that receives it"),
            "register": _REGISTER,
        },
    ),
    record(
        "A wait for signals",
        {
            "kind": constant("wait", "which item"),
            "purpose": _PURPOSE,
            "register": _REGISTER,
            "count": integer("signals of one generation that it takes"),
        },
    ),
    record(
        "A load from shared memory",
        {
            "kind": constant("load", "which item"),
            "publication": integer("what is read of another stage"),
            "transfer": integer("which consumer transfer"),
            "consumer": integer("task that reads it"),
            "edge": integer("explicit edge, in place of a publication"),
            "baseline": integer("network input or constant, in place of both"),
            "tensor": text("name of its tensor"),
            "bytes": _BYTES,
            "runs": _RUNS,
        },
        optional=(
            "publication", "transfer", "consumer", "edge", "baseline", "tensor",
        ),
    ),
    record(
        "A store to shared memory",
        {
            "kind": constant("store", "which item"),
            "publication": integer("what is stored"),
            "transfer": integer("the one consumer of a scalar projection"),
            "edge": integer("explicit edge, in place of a publication"),
            "baseline": integer("network output, in place of both"),
            "tensor": text("name of its tensor"),
            "bytes": _BYTES,
            "runs": _RUNS,
        },
        optional=("publication", "transfer", "edge", "baseline", "tensor"),
    ),
    record(
        "One end of a direct transfer",
        {
            "kind": choice("which end", "send", "receive"),
            "core": integer("core at the other end"),
            "position": integer("place in the one linear order of the generation"),
            "bytes": _BYTES,
            "publication": integer("what is sent"),
            "transfers": positions("consumer transfers that it covers"),
            "edge": integer("explicit edge, in place of a publication"),
        },
        optional=("publication", "transfers", "edge"),
    ),
    record(
        "Consecutive tasks of one operation",
        {
            "kind": constant("run", "which item"),
            "operation": text("name of the operation"),
            "tasks": positions("task ids"),
        },
    ),
)  # fmt: skip

_CORE = record(
    "What one core does in each generation",
    {
        "core": integer("number of the core"),
        "stage": integer("stage that owns it"),
        "registers": positions("event registers it uses"),
        "fingerprint": text(
            "SHA-256 of its ordered requests, one line of compact JSON each, "
            "runs left out"
        ),
        "items": several("in order", _ITEMS),
    },
)

EXECUTION_PLAN: Schema = document(
    "execution-plan",
    "The realized schedule: one text a core, repeated every generation",
    {
        "schema": constant("raptor-cp/execution-plan/1", "version of the format"),
        "graph": text("name of the compute graph"),
        "policy": POLICY,
        "cross_stage": CROSS_STAGE,
        "banks": several(
            "buffers in shared memory",
            record(
                "Of one publication or explicit edge",
                {
                    "publication": integer("which publication"),
                    "edge": integer("which edge"),
                    "banks": integer("how many generations it holds", 1),
                },
                optional=("publication", "edge"),
            ),
        ),
        "chains": several(
            "signal-only pairs of cores",
            record(
                "One pair",
                {
                    "writer": integer("core upstream"),
                    "reader": integer("core downstream"),
                },
            ),
        ),
        "totals": record(
            "Counts over all cores",
            {
                "runs": integer("compute runs"),
                "loads": integer("loads"),
                "stores": integer("stores"),
                "direct_transfers": integer("SEND and RECV pairs"),
                "signals": integer("signals"),
                "waits": integer("waits"),
                "loaded_bytes": integer("bytes loaded"),
                "stored_bytes": integer("bytes stored"),
                "direct_bytes": integer("bytes sent directly"),
            },
        ),
        "cores": several("cores of all stages", _CORE),
    },
)
