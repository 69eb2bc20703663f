"""``reports/timeline.json``: what every core and queue does in the steady state."""

from __future__ import annotations

from raptor_cp.periodic.timeline import SCHEMA, SliceKind, TrackKind
from raptor_cp.reports.schemas.fields import (
    Schema,
    boolean,
    choice,
    constant,
    document,
    integer,
    number,
    positions,
    record,
    several,
    texts,
)

_TRACK = record(
    "One row",
    {
        "name": {"description": "what is shown", "type": "string"},
        "kind": choice("what the row is", *TrackKind),
        "core": integer("its core; -1 for what all cores share", -1),
    },
)

TIMELINE: Schema = document(
    "timeline",
    "Slices of a few generations, as columns: the n-th entries of `track`, `start_ns`, "
    "`duration_ns`, `kind`, `generation` and `label` are one slice. Slices of a track "
    "never overlap; those of a core fill the window.",
    {
        "schema": constant(SCHEMA, "format"),
        "window_ns": integer("length of the window, ns; times count from its start"),
        "interval_ns": number("window over generations, ns"),
        "generations": integer("generations in the window"),
        "proved": boolean("the window is a whole period of a proved recurrence"),
        "tracks": several("cores first, then queues", _TRACK),
        "kinds": several(
            "what `kind` counts", choice("what happens in a slice", *SliceKind)
        ),
        "labels": texts("what `label` counts: operations, partners"),
        "start_ns": positions("begin of each slice, ns"),
        "duration_ns": positions("length of each slice, ns"),
        "counter_ns": positions("moments at which a queue changes its length, ns"),
        "track": positions("track of each slice"),
        "kind": positions("kind of each slice"),
        "generation": positions("inference of each slice, from the first shown"),
        "label": positions("label of each slice"),
        "flow_source": positions("slices from which a transfer goes"),
        "flow_target": positions("slices to which it goes"),
        "counter_track": positions("track whose queue changes"),
        "counter_value": positions("requests that wait from then on"),
    },
)
