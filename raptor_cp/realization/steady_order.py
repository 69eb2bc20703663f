"""The linear order that repeats fastest.

A list schedule of one generation on empty cores sends every result as soon as it is
there.  In the steady state that is often wrong: the receiver is still busy with the
generation before, the sender blocks, and both wait in turn.  So several legal orders
are made, among them list schedules of many generations one after the other, from
which the order of the last generation is taken; each stage then gets the order with
which the whole pipeline repeats fastest.

The rate of an order is exact for what it models, the max-plus linear system of task
times, rendezvous, the accesses of each core and the signals between neighbouring
stages; queues at the shared memory are left to the queue engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.realization.list_schedule import IntArray, OrderItems
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Generations over which a rate is measured; the first half is warm-up.
RATE_GENERATIONS = 32
#: Generations of an unrolled list schedule beyond two for each stage.
EXTRA_GENERATIONS = 6
#: Items of one unrolled list schedule; there are fewer generations above it.
UNROLLED_ITEMS = 200_000
#: Passes over the stages in which each may change its order.
PASSES = 2


@dataclass(frozen=True, eq=False, slots=True)
class StageCoupling:
    """How the cores of neighbouring stages wait for each other.

    Attributes:
        writer, reader: [C] the reader starts its generation when the writer has ended
            the same one; the writer ends a generation when the reader has ended the
            one before (scheduling spec, READY and FREE).
        entry_ns, exit_ns: [P] loads before and stores after the work of a generation.
    """

    writer: IntArray
    reader: IntArray
    entry_ns: IntArray
    exit_ns: IntArray

    @classmethod
    def of(
        cls, pairs: Sequence[tuple[int, int]], entry_ns: IntArray, exit_ns: IntArray
    ) -> StageCoupling:
        """From (writer, reader) pairs."""
        array = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(array[:, 0].copy(), array[:, 1].copy(), entry_ns, exit_ns)

    @classmethod
    def none(cls, cores: int) -> StageCoupling:
        """Nothing but rendezvous joins the cores."""
        zero = np.zeros(cores, np.int64)
        return cls.of((), zero, zero)


def steady_positions(
    items: OrderItems, coupling: StageCoupling
) -> tuple[IntArray, int]:
    """[I] positions of the fastest order found, and its interval (ns, rounded up).

    Positions are -1 behind a cycle.  Deterministic: at most two passes over the
    stages, each of which tries every order that was made, ``O(S * orders)`` rates,
    each linear in the items.
    """
    if items.count == 0:
        return np.empty(0, np.int64), 0
    plain = items.positions(blocking=True)
    if plain.min() < 0:
        return plain, 0
    stages = int(items.stage.max()) + 1
    made = _orders(items, coupling, plain, stages)
    rates = _Rates(items, coupling, stages)
    pieces = [rates.by_stage(position) for position in made]
    alone = [rates.total_ns([piece[s] for s in range(stages)]) for piece in pieces]
    first = int(np.argmin(alone))
    chosen, best = [first] * stages, alone[first]
    for _ in range(PASSES):
        before = best
        for stage in range(stages):
            tried: list[IntArray] = [pieces[chosen[stage]][stage]]
            for number, piece in enumerate(pieces):
                if any(np.array_equal(piece[stage], old) for old in tried):
                    continue
                tried.append(piece[stage])
                trial = [*chosen[:stage], number, *chosen[stage + 1 :]]
                total = rates.total_ns([pieces[n][s] for s, n in enumerate(trial)])
                if total < best:
                    best, chosen = total, trial
        if best == before:
            break
    order = np.concatenate([pieces[n][s] for s, n in enumerate(chosen)])
    position = np.empty(items.count, np.int64)
    position[order] = np.arange(items.count)
    return position, ceil_div(best, RATE_GENERATIONS - RATE_GENERATIONS // 2)


def _orders(
    items: OrderItems, coupling: StageCoupling, plain: IntArray, stages: int
) -> list[IntArray]:
    """Positions under every rule, the steady list schedules first."""
    generations = 2 * stages + EXTRA_GENERATIONS
    generations = max(2, min(generations, UNROLLED_ITEMS // items.count))
    reverse = items.backwards()
    alone = StageCoupling.none(items.cores)
    return [
        unrolled_positions(items, coupling, generations, blocking=True),
        plain,
        items.positions(blocking=False),
        unrolled_positions(items, coupling, generations, blocking=False),
        unrolled_positions(items, alone, generations, blocking=True),
        -reverse.positions(blocking=True),
        -reverse.positions(blocking=False),
    ]


def unrolled_positions(
    items: OrderItems, coupling: StageCoupling, generations: int, *, blocking: bool
) -> IntArray:
    """Positions in the last of several generations, list scheduled together.

    Each core runs one generation after the other, between an entry and an exit.
    """
    count, cores = items.count, items.cores
    core, node = np.arange(cores), np.arange(count)
    entry, end = count + core, count + cores + core
    a, b = items.ends[:, 0], items.ends[:, 1]
    inner = (
        np.concatenate(
            [items.source, node, node, entry[a], entry[b], entry, end[coupling.writer]]
        ),
        np.concatenate(
            [items.target, end[a], end[b], node, node, end, entry[coupling.reader]]
        ),
    )
    outer = (
        np.concatenate([end, end[coupling.reader]]),
        np.concatenate([entry, end[coupling.writer]]),
    )
    low, high = int(items.priority.min()) - 1, int(items.priority.max()) + 1
    priority = np.concatenate(
        [items.priority, np.full(cores, low), np.full(cores, high)]
    )
    both = np.stack([core, core], axis=1)
    unrolled = OrderItems(
        np.concatenate([items.ends, both, both]),
        np.concatenate([items.duration_ns, coupling.entry_ns, coupling.exit_ns]),
        priority,
        np.concatenate([inner[0], outer[0]]),
        np.concatenate([inner[1], outer[1]]),
        np.zeros(0, np.int64),
        cores,
    )
    ahead = np.repeat(np.array([0, 1], np.int64), [len(inner[0]), len(outer[0])])
    position = unrolled.positions(
        blocking=blocking, generations=generations, ahead=ahead
    )
    return position[:count]


class _Rates:
    """Rates of orders of the same items."""

    def __init__(self, items: OrderItems, coupling: StageCoupling, stages: int) -> None:
        self._items, self._coupling = items, coupling
        self._members = [
            np.flatnonzero(items.stage == stage) for stage in range(stages)
        ]
        stage_of = np.zeros(items.cores, np.int64)
        # A core belongs to the stage of its tasks; transfers end behind their stage.
        own = items.ends[:, 0] == items.ends[:, 1]
        stage_of[items.ends[own, 0]] = items.stage[own]
        self._active = np.unique(items.ends[own, 0])
        self._active = self._active[np.argsort(stage_of[self._active], kind="stable")]
        self._core_ptr = np.searchsorted(
            stage_of[self._active], np.arange(stages + 1)
        ).astype(np.int64)
        by_reader = np.argsort(stage_of[coupling.reader], kind="stable")
        by_writer = np.argsort(stage_of[coupling.writer], kind="stable")
        self._ready = (coupling.writer[by_reader], coupling.reader[by_reader])
        self._free = (coupling.writer[by_writer], coupling.reader[by_writer])
        numbers = np.arange(stages + 1)
        self._ready_ptr = np.searchsorted(stage_of[self._ready[1]], numbers)
        self._free_ptr = np.searchsorted(stage_of[self._free[0]], numbers)

    def by_stage(self, position: IntArray) -> list[IntArray]:
        """Items of each stage in the order of their positions."""
        return [
            members[np.argsort(position[members], kind="stable")]
            for members in self._members
        ]

    def total_ns(self, pieces: Sequence[IntArray]) -> int:
        """ns that the second half of the measured generations takes."""
        ptr = np.cumsum([0, *(len(piece) for piece in pieces)])
        return int(
            _measured_ns(
                self._items.ends,
                self._items.duration_ns,
                np.concatenate(pieces),
                ptr,
                self._active,
                self._core_ptr,
                *self._ready,
                self._ready_ptr,
                *self._free,
                self._free_ptr,
                self._coupling.entry_ns,
                self._coupling.exit_ns,
                RATE_GENERATIONS,
            )
        )


@njit(cache=True)
def _measured_ns(
    ends: IntArray,
    duration: IntArray,
    order: IntArray,
    ptr: IntArray,
    active: IntArray,
    core_ptr: IntArray,
    ready_writer: IntArray,
    ready_reader: IntArray,
    ready_ptr: IntArray,
    free_writer: IntArray,
    free_reader: IntArray,
    free_ptr: IntArray,
    entry_ns: IntArray,
    exit_ns: IntArray,
    generations: int,
) -> int:
    """Growth of the latest core over the second half of ``generations``.

    ``busy`` is when a core can go on, ``ended`` when it had ended the generation
    before the current one (for FREE) and ``done`` the last one (for READY).
    """
    cores = entry_ns.size
    busy = np.zeros(cores, np.int64)
    ended = np.zeros(cores, np.int64)
    done = np.zeros(cores, np.int64)
    half = np.int64(0)
    for generation in range(generations):
        if generation == generations // 2:
            half = busy.max()
        ended[:] = busy
        for stage in range(ptr.size - 1):
            for pair in range(ready_ptr[stage], ready_ptr[stage + 1]):
                reader = ready_reader[pair]
                busy[reader] = max(busy[reader], done[ready_writer[pair]])
            for number in range(core_ptr[stage], core_ptr[stage + 1]):
                busy[active[number]] += entry_ns[active[number]]
            for number in range(ptr[stage], ptr[stage + 1]):
                item = order[number]
                a, b = ends[item, 0], ends[item, 1]
                end = max(busy[a], busy[b]) + duration[item]
                busy[a] = end
                busy[b] = end
            for number in range(core_ptr[stage], core_ptr[stage + 1]):
                busy[active[number]] += exit_ns[active[number]]
            for pair in range(free_ptr[stage], free_ptr[stage + 1]):
                writer = free_writer[pair]
                busy[writer] = max(busy[writer], ended[free_reader[pair]])
            for number in range(core_ptr[stage], core_ptr[stage + 1]):
                done[active[number]] = busy[active[number]]
    return int(busy.max() - half)
