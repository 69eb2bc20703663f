"""``trace.perfetto.json``: trace events as Perfetto and Chrome read them."""

from __future__ import annotations

from raptor_cp.reports.schemas.fields import (
    DIALECT,
    Schema,
    constant,
    either,
    integer,
    number,
    record,
    several,
    text,
)

_ARGS: Schema = {"description": "further facts, by name", "type": "object"}
_TRACK = {
    "pid": integer("process: a group of tracks"),
    "tid": integer("thread: one track"),
}
_WHEN = number("begin, microseconds")
_CATEGORY = text("category")

_SLICE = record(
    "Something that takes time; slices of a track never overlap",
    {
        "ph": constant("X", "phase"),
        "name": text("what it is"),
        "cat": _CATEGORY,
        **_TRACK,
        "ts": _WHEN,
        "dur": number("duration, microseconds"),
        "args": _ARGS,
    },
    optional=("cat", "args"),
)
_NAME = record(
    "The name or position of a process or thread",
    {"ph": constant("M", "phase"), "name": text("what is named"), **_TRACK,
     "args": _ARGS},
    optional=("tid",),
)  # fmt: skip
_COUNTER = record(
    "The value of a counter from now on",
    {
        "ph": constant("C", "phase"),
        "name": text("which counter"),
        "cat": _CATEGORY,
        **_TRACK,
        "ts": _WHEN,
        "args": {
            "description": "values",
            "type": "object",
            "additionalProperties": {"type": "number"},
        },
    },
    optional=("cat", "tid"),
)
_FLOW = record(
    "One end of an arrow",
    {
        "ph": {"description": "phase: start or finish", "enum": ["s", "f"]},
        "name": text("what it is"),
        "cat": _CATEGORY,
        "id": {"description": "both ends have the same", "type": ["integer", "string"]},
        **_TRACK,
        "ts": _WHEN,
        "bp": constant("e", "the arrow ends at the enclosing slice"),
        "args": _ARGS,
    },
    optional=("bp", "args"),
)

TRACE: Schema = {
    "$schema": DIALECT,
    "$id": "raptor-cp-trace-1",
    "title": "trace",
    "description": "A timeline in the trace event format; times are microseconds",
    "type": "object",
    "properties": {
        "displayTimeUnit": constant("ns", "how viewers show times"),
        "traceEvents": several(
            "events in any order",
            either("One event, by `ph`", _SLICE, _NAME, _COUNTER, _FLOW),
        ),
        "otherData": {"description": "facts about the run", "type": "object"},
    },
    "required": ["traceEvents"],
    "additionalProperties": False,
}
