"""Which events of a chip are ordered by its signals, whatever its speed.

Vector clocks: entry ``c`` of core ``d``'s clock is the number of core ``c``'s events
that are known to lie before ``d``'s next one.  A signal carries its sender's clock, a
wait joins those that it takes, and both ends of a rendezvous join each other's.  A
load that is not behind the store it reads, or a store that is not behind a load of
what it replaces, is a race, even if this execution happened to be right.

(C. J. Fidge 1988, F. Mattern 1989; the epochs of stores as in C. Flanagan and
S. N. Freund, FastTrack, 2009.)
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Clock = NDArray[np.int32]


class Access(NamedTuple):
    """A load of global memory: when, where, by whom."""

    core: int
    epoch: int
    generation: int
    instruction: int
    start: int
    stop: int


class Clocks:
    """Clocks of all cores, signals in flight, loads not yet overwritten.

    Args:
        cores: ids that can occur are below this number.
        sources: (target, register) -> how many cores signal it.
    """

    def __init__(self, cores: int, sources: dict[tuple[int, int], int]) -> None:
        self._clocks = np.zeros((cores, cores), np.int32)
        self._sources = sources
        self._flying: dict[tuple[int, int], deque[Clock]] = {}
        self._waits: dict[tuple[int, int], list[int]] = {}
        self._loads: dict[tuple[int, int], list[Access]] = {}

    def tick(self, core: int) -> int:
        """A new event of a core; its epoch."""
        self._clocks[core, core] += 1
        return int(self._clocks[core, core])

    def signal(self, core: int, target: int, register: int, generation: int) -> bool:
        """A SYNC; False if it may be taken by the target's wait of another round.

        With several sources the wait of the round before must lie before the signal,
        or a fast core's second signal could stand in for a slow core's first.
        """
        self.tick(core)
        key = (target, register)
        self._flying.setdefault(key, deque()).append(self._clocks[core].copy())
        if generation == 0 or self._sources.get(key, 0) <= 1:
            return True
        waits = self._waits.get(key, [])
        return len(waits) >= generation and bool(
            self._clocks[core, target] >= waits[generation - 1]
        )

    def wait(self, core: int, register: int, count: int) -> None:
        """A WAIT that takes ``count`` signals."""
        key = (core, register)
        flying = self._flying.get(key, deque())
        clock = self._clocks[core]
        for _ in range(count):
            np.maximum(clock, flying.popleft(), out=clock)
        self._waits.setdefault(key, []).append(self.tick(core))

    def meet(self, one: int, other: int) -> None:
        """A SEND and its RECV."""
        self.tick(one)
        self.tick(other)
        joined = np.maximum(self._clocks[one], self._clocks[other])
        self._clocks[one] = self._clocks[other] = joined

    def unordered(
        self, core: int, writers: NDArray[np.int32], epochs: NDArray[np.int32]
    ) -> int:
        """First index whose store is not known to lie before ``core``'s next event.

        Negative writers (nobody, the host) count as ordered.  -1 if all are.
        """
        known = self._clocks[core][np.maximum(writers, 0)] >= epochs
        wrong = ~(known | (writers < 0))
        return int(np.argmax(wrong)) if wrong.any() else -1

    def load(self, place: tuple[int, int], access: Access) -> None:
        """Remember a load from a bank."""
        self._loads.setdefault(place, []).append(access)

    def store(
        self, core: int, place: tuple[int, int], start: int, stop: int
    ) -> Access | None:
        """A load that this store may overtake, or None; the others are forgotten."""
        held = self._loads.get(place)
        if not held:
            return None
        kept = []
        for access in held:
            if access.stop <= start or access.start >= stop:
                kept.append(access)
            elif self._clocks[core, access.core] < access.epoch:
                return access
        self._loads[place] = kept
        return None


def signal_sources(
    signals: Iterable[tuple[int, int, int]],
) -> dict[tuple[int, int], int]:
    """Number of sources of each register, from (source, target, register)."""
    found: dict[tuple[int, int], int] = {}
    for _, target, register in dict.fromkeys(signals):
        found[target, register] = found.get((target, register), 0) + 1
    return found
