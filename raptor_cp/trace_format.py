"""The trace event format that Perfetto and Chrome read, for every timeline here.

Times go in as ns (whole or fractional) and stand in the file as microseconds.  A flow
is an arrow from inside one slice to inside another; Perfetto binds each end to the
slice that encloses its moment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    Ns = int | Fraction


@dataclass(slots=True)
class TraceEvents:
    """Collects trace events; ``process`` is a group of tracks, ``track`` one row."""

    events: list[dict[str, object]] = field(default_factory=list)
    _flows: int = 0

    def name_process(self, process: int, name: str, order: int | None = None) -> None:
        """Name a group of tracks, and give its place among the groups."""
        self._meta("process_name", process, None, {"name": name})
        if order is not None:
            self._meta("process_sort_index", process, None, {"sort_index": order})

    def name_track(
        self, process: int, track: int, name: str, order: int | None = None
    ) -> None:
        """Name a track, and give its place in its group."""
        self._meta("thread_name", process, track, {"name": name})
        if order is not None:
            self._meta("thread_sort_index", process, track, {"sort_index": order})

    def add_slice(
        self,
        process: int,
        track: int,
        name: str,
        start_ns: Ns,
        duration_ns: Ns,
        *,
        category: str = "",
        args: Mapping[str, object] | None = None,
    ) -> None:
        """Something that takes time; slices of one track must not overlap."""
        event: dict[str, object] = {"name": name, "ph": "X"}
        if category:
            event["cat"] = category
        event |= {
            "pid": process,
            "tid": track,
            "ts": _microseconds(start_ns),
            "dur": _microseconds(duration_ns),
        }
        if args is not None:
            event["args"] = dict(args)
        self.events.append(event)

    def add_flow(
        self, name: str, source: tuple[int, int, Ns], target: tuple[int, int, Ns]
    ) -> None:
        """An arrow; both ends are (process, track, moment inside a slice)."""
        for phase, (process, track, moment) in (("s", source), ("f", target)):
            event: dict[str, object] = {
                "name": name,
                "cat": "transfer",
                "ph": phase,
                "id": self._flows,
                "pid": process,
                "tid": track,
                "ts": _microseconds(moment),
            }
            if phase == "f":
                event["bp"] = "e"
            self.events.append(event)
        self._flows += 1

    def add_counter(self, process: int, name: str, moment_ns: Ns, value: int) -> None:
        """The value of a counter from a moment on."""
        self.events.append(
            {
                "name": name,
                "ph": "C",
                "pid": process,
                "ts": _microseconds(moment_ns),
                "args": {"value": value},
            }
        )

    def document(self) -> dict[str, object]:
        """The trace."""
        return {"displayTimeUnit": "ns", "traceEvents": self.events}

    def text(self) -> str:
        """The trace as JSON, an event a line."""
        lines = ",\n".join(
            json.dumps(event, separators=(",", ":"), allow_nan=False)
            for event in self.events
        )
        return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'

    def _meta(
        self, name: str, process: int, track: int | None, args: dict[str, object]
    ) -> None:
        event: dict[str, object] = {"name": name, "ph": "M", "pid": process}
        if track is not None:
            event["tid"] = track
        self.events.append({**event, "args": args})


def _microseconds(ns: Ns) -> int | float:
    whole, rest = divmod(ns, 1000)
    return int(whole) if rest == 0 else float(Fraction(ns) / 1000)
