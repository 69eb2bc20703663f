"""``trace.perfetto.json``: the steady state of a plan for ui.perfetto.dev.

One track for each core and each queue, an arrow for each transfer between slices that
are shown, and the length of the shared memory's queue as a counter.  (A switch never
has more than the one message its core waits for, so it has no counter.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.periodic.timeline import SliceKind, TrackKind
from raptor_cp.trace_format import TraceEvents

if TYPE_CHECKING:
    from raptor_cp.periodic.timeline import Timeline

_PROCESSES = {TrackKind.CORE: 1, TrackKind.SWITCH: 2, TrackKind.MEMORY: 3}
_TITLES = {
    TrackKind.CORE: "cores",
    TrackKind.SWITCH: "switches",
    TrackKind.MEMORY: "shared memory",
}


def trace_events(timeline: Timeline, name: str) -> TraceEvents:
    """The trace of a timeline.

    Args:
        timeline: what is shown.
        name: of the scenario, before the names of the groups.
    """
    trace = TraceEvents()
    for kind, process in _PROCESSES.items():
        if any(track.kind is kind for track in timeline.tracks):
            trace.name_process(process, f"{name}: {_TITLES[kind]}", process)
    places = []
    for order, track in enumerate(timeline.tracks):
        place = _PROCESSES[track.kind], max(track.core, 0) + 1
        places.append(place)
        trace.name_track(*place, track.name, order)
    kinds = [str(kind) for kind in SliceKind]
    rows = list(
        zip(
            timeline.track.tolist(),
            timeline.start_ns.tolist(),
            timeline.duration_ns.tolist(),
            timeline.kind.tolist(),
            timeline.generation.tolist(),
            timeline.label.tolist(),
            strict=True,
        )
    )
    for track, start, duration, kind, generation, label in rows:
        text = timeline.labels[label]
        shown = text if kinds[kind] in ("wait", "service") else f"{kinds[kind]} {text}"
        process, row = places[track]
        trace.add_slice(
            process,
            row,
            shown,
            start,
            duration,
            category=kinds[kind],
            args={"generation": generation},
        )
    for source, target in zip(
        timeline.flow_source.tolist(), timeline.flow_target.tolist(), strict=True
    ):
        left, right = _arrow(rows[source][1:3], rows[target][1:3])
        trace.add_flow(
            "transfer",
            (*places[rows[source][0]], left),
            (*places[rows[target][0]], right),
        )
    for track, moment, value in zip(
        timeline.counter_track.tolist(),
        timeline.counter_ns.tolist(),
        timeline.counter_value.tolist(),
        strict=True,
    ):
        name = f"requests waiting for {timeline.tracks[track].name}"
        trace.add_counter(places[track][0], name, moment, value)
    return trace


def _arrow(source: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Moments of an arrow's ends, each inside its slice (start, duration; ns).

    A receiver takes part while its sender still sends, so that the slices overlap;
    viewers drop an arrow that ends before it begins.
    """
    (start, duration), (first, length) = source, target
    left = min(max(start, first), start + max(duration - 1, 0))
    return left, min(max(left, first), first + max(length - 1, 0))
