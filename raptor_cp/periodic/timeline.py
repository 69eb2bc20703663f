"""What every core and every queue does in the steady state, as flat columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Mapping

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]

SCHEMA = "raptor-cp/timeline/1"


class TrackKind(StrEnum):
    """What a track is."""

    CORE = "core"  #: one core
    SWITCH = "switch"  #: the outgoing switch of one core, a FIFO
    MEMORY = "memory"  #: the shared memory's controller, a FIFO


class SliceKind(StrEnum):
    """What happens in a slice."""

    RUN = "run"
    SEND = "send"
    RECEIVE = "receive"
    LOAD = "load"
    STORE = "store"
    SIGNAL = "signal"
    WAIT = "wait"  #: nothing: for a core, a signal or the memory's queue
    SERVICE = "service"  #: a FIFO serves a request


@dataclass(frozen=True, slots=True)
class Track:
    """One row: its name, its kind and its core (-1 for what all cores share)."""

    name: str
    kind: TrackKind
    core: int


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """Slices of a few generations in the steady state.

    Slices of one track never overlap and are sorted by track and start.  Times are ns
    from the start of the window.

    Attributes:
        tracks: cores first, then queues.
        labels: texts that slices refer to.
        track, start_ns, duration_ns: [N] where and when.
        kind: [N] index into the members of :class:`SliceKind`.
        generation: [N] the inference a slice works on, counted from the first shown.
        label: [N] index into ``labels``: the operations, or the partner.
        flow_source, flow_target: [M] slices joined by a transfer.
        counter_track, counter_ns, counter_value: [K] length of a queue from a moment
            on, sorted by track and time.
        window_ns: length of the window.
        interval_ns: what one generation takes in it.
        generations: how many generations begin in the window on each core.
        proved: the window is a whole period of a proved recurrence.
    """

    tracks: tuple[Track, ...]
    labels: tuple[str, ...]
    track: Int32Array
    start_ns: Int64Array
    duration_ns: Int64Array
    kind: Int32Array
    generation: Int32Array
    label: Int32Array
    flow_source: Int32Array
    flow_target: Int32Array
    counter_track: Int32Array
    counter_ns: Int64Array
    counter_value: Int32Array
    window_ns: int
    interval_ns: float
    generations: int
    proved: bool

    @property
    def slice_count(self) -> int:
        """N."""
        return len(self.track)

    def to_dict(self) -> dict[str, object]:
        """``reports/timeline.json``: columns, not records."""
        document: dict[str, object] = {
            "schema": SCHEMA,
            "window_ns": self.window_ns,
            "interval_ns": self.interval_ns,
            "generations": self.generations,
            "proved": self.proved,
            "tracks": [
                {"name": t.name, "kind": str(t.kind), "core": t.core}
                for t in self.tracks
            ],
            "kinds": [str(kind) for kind in SliceKind],
            "labels": list(self.labels),
        }
        for name in _COLUMNS:
            document[name] = getattr(self, name).tolist()
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, object], where: str) -> Timeline:
        """Read :meth:`to_dict` back.

        Raises:
            MalformedInput: not a timeline.
        """
        try:
            if document["schema"] != SCHEMA:
                raise ValueError
            tracks = document["tracks"]
            labels = document["labels"]
            if not isinstance(tracks, list) or not isinstance(labels, list):
                raise TypeError
            long = {name: np.array(document[name], np.int64) for name in _LONG}
            short = {name: np.array(document[name], np.int32) for name in _SHORT}
            return cls(
                tracks=tuple(
                    Track(t["name"], TrackKind(t["kind"]), t["core"]) for t in tracks
                ),
                labels=tuple(str(label) for label in labels),
                track=short["track"],
                start_ns=long["start_ns"],
                duration_ns=long["duration_ns"],
                kind=short["kind"],
                generation=short["generation"],
                label=short["label"],
                flow_source=short["flow_source"],
                flow_target=short["flow_target"],
                counter_track=short["counter_track"],
                counter_ns=long["counter_ns"],
                counter_value=short["counter_value"],
                window_ns=int(str(document["window_ns"])),
                interval_ns=float(str(document["interval_ns"])),
                generations=int(str(document["generations"])),
                proved=bool(document["proved"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise MalformedInput(
                "not a timeline", where=where, expected=f"schema {SCHEMA}"
            ) from None


_LONG = ("start_ns", "duration_ns", "counter_ns")
_SHORT = (
    "track",
    "kind",
    "generation",
    "label",
    "flow_source",
    "flow_target",
    "counter_track",
    "counter_value",
)
_COLUMNS = (*_LONG, *_SHORT)
