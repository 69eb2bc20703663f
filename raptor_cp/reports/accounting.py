"""Where every nanosecond of a timeline goes, core by core.

The parts of a core always sum to the window, because its slices fill it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.periodic.timeline import SliceKind, TrackKind

if TYPE_CHECKING:
    from raptor_cp.periodic.timeline import Timeline

Int64Array = NDArray[np.int64]


class Part(StrEnum):
    """What the time of a core is spent on."""

    COMPUTING = "computing"
    RECEIVING = "receiving"
    SENDING = "sending"
    LOADING = "loading from shared memory"
    STORING = "storing to shared memory"
    SIGNALLING = "signalling"
    WAITING_MEMORY = "waiting for shared memory"
    WAITING_CORE = "waiting for the partner of a transfer"
    WAITING_SIGNAL = "waiting for a signal"
    OUTSIDE = "nothing left to do"  #: only where one inference runs alone


PARTS = tuple(Part)
WAITING = (
    Part.WAITING_MEMORY,
    Part.WAITING_CORE,
    Part.WAITING_SIGNAL,
    Part.OUTSIDE,
)
_WAITS = [PARTS.index(part) for part in WAITING]

_OF_KIND = {
    SliceKind.RUN: Part.COMPUTING,
    SliceKind.SEND: Part.SENDING,
    SliceKind.RECEIVE: Part.RECEIVING,
    SliceKind.LOAD: Part.LOADING,
    SliceKind.STORE: Part.STORING,
    SliceKind.SIGNAL: Part.SIGNALLING,
}


@dataclass(frozen=True, eq=False, slots=True)
class Accounting:
    """Sums over the window of a timeline.

    Attributes:
        window_ns: its length.
        generations: inferences in it.
        cores: [C] numbers of the cores that have a track, in its order.
        parts: [C, len(PARTS)] ns; every row sums to ``window_ns``.
        memory_ns: how long the shared memory serves; None without its track.
    """

    window_ns: int
    generations: int
    cores: tuple[int, ...]
    parts: Int64Array
    memory_ns: int | None

    @classmethod
    def of(cls, timeline: Timeline) -> Accounting:
        """Sum up a timeline."""
        kinds = tuple(SliceKind)
        part_of = slice_parts(timeline)
        rows = [n for n, t in enumerate(timeline.tracks) if t.kind is TrackKind.CORE]
        place = np.full(len(timeline.tracks) + 1, -1, np.int64)
        place[rows] = np.arange(len(rows))
        row = place[timeline.track]
        mine = row >= 0
        sums = np.zeros((len(rows), len(PARTS)), np.int64)
        np.add.at(sums, (row[mine], part_of[mine]), timeline.duration_ns[mine])
        sums[:, PARTS.index(Part.OUTSIDE)] += timeline.window_ns - sums.sum(axis=1)
        memory = [
            n for n, t in enumerate(timeline.tracks) if t.kind is TrackKind.MEMORY
        ]
        served = None
        if memory:
            chosen = (timeline.track == memory[0]) & (
                timeline.kind == kinds.index(SliceKind.SERVICE)
            )
            served = int(timeline.duration_ns[chosen].sum())
        return cls(
            timeline.window_ns,
            timeline.generations,
            tuple(timeline.tracks[n].core for n in rows),
            sums,
            served,
        )

    @property
    def busy_ns(self) -> Int64Array:
        """[C] time in which a core does not wait."""
        busy: Int64Array = self.window_ns - self.parts[:, _WAITS].sum(axis=1)
        return busy

    @property
    def memory_share(self) -> float:
        """Share of the window in which the shared memory serves."""
        return (self.memory_ns or 0) / self.window_ns

    def row(self, core: int) -> int:
        """Row of a core.

        Raises:
            ValueError: it has no track.
        """
        return self.cores.index(core)

    def of_core(self, core: int) -> dict[Part, int]:
        """Parts of one core in ns, without those that are 0."""
        values = self.parts[self.row(core)].tolist()
        return {part: ns for part, ns in zip(PARTS, values, strict=True) if ns}

    def busy_share(self, core: int) -> float:
        """Share of the window in which a core does not wait."""
        return float(self.busy_ns[self.row(core)] / self.window_ns)


def slice_parts(timeline: Timeline) -> Int64Array:
    """[N] index into ``PARTS`` of every slice; services count as computing."""
    waits = np.array(
        [PARTS.index(_wait_part(label)) for label in timeline.labels] or [0], np.int64
    )
    of_kind = np.array(
        [PARTS.index(_OF_KIND.get(kind, Part.COMPUTING)) for kind in SliceKind],
        np.int64,
    )
    waiting = timeline.kind == tuple(SliceKind).index(SliceKind.WAIT)
    found: Int64Array = np.where(waiting, waits[timeline.label], of_kind[timeline.kind])
    return found


def _wait_part(label: str) -> Part:
    if label == "wait for shared memory":
        return Part.WAITING_MEMORY
    if label.startswith("wait for core "):
        return Part.WAITING_CORE
    return Part.WAITING_SIGNAL
