"""The inner loop of the queue engine: timestamped tokens over flat arrays.

Order of processing.  Plain events have max-plus times that do not depend on the
order in which they are computed, so their tokens spread at once, depth first.
A time-ordered heap holds only what must wait for its time: requests, because FIFO
service depends on arrival order, and targets of edges with initial tokens, because
they would otherwise run ahead without end.  Whatever a heap entry causes happens no
earlier than the entry itself, so entries leave in final arrival order.  The heap key
is total: (time, plain events before requests, tie rank); an event is in the heap
with one generation at a time, and its generations leave in order.

Tokens.  Edges are FIFO and times never decrease from one generation to the next, so
a token of source generation ``k`` belongs to target generation ``k + distance``.  It
suffices to keep, per event and pending generation, the tokens still missing and the
latest time so far: a small ring per event, grown when a producer runs ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import Int32Array, Int64Array

#: Columns of the ``node`` table, one cache line an event.
RING_BASE, RING_MASK, FIRED, IN_DEGREE, OUT_BEGIN, OUT_END, ROLE, START = range(8)
#: Bits of ``ROLE``; the server number plus one stands above them.
IN_HEAP, RECORDED, SERVER_SHIFT = 1, 2, 2

#: Entries of ``meta``, the scalars that survive from call to call.
(
    HEAP_SIZE,
    RING_USED,
    PROCESSED,
    NOW,
    MAX_WAIT,
    BLOCKED,
    STACK_SIZE,
    REACHED,
    META_SIZE,
) = range(9)

#: Why :func:`advance` returned.
CHECKPOINT, EMPTY, EVENT_LIMIT, GENERATION_LIMIT, RING_FULL = range(5)

#: Heap rank bit that lets plain events go before requests of the same time.
_REQUEST = 1 << 32


@njit(cache=True, inline="always")
def _push(
    heap_time: Int64Array, heap_key: Int64Array, size: int, time: int, key: int
) -> None:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        above = heap_time[parent]
        if above < time or (above == time and heap_key[parent] < key):
            break
        heap_time[place] = above
        heap_key[place] = heap_key[parent]
        place = parent
    heap_time[place] = time
    heap_key[place] = key


@njit(cache=True, inline="always")
def _remove_first(heap_time: Int64Array, heap_key: Int64Array, size: int) -> None:
    """Move the last of ``size`` entries to the top and let it sink."""
    last = size - 1
    time = heap_time[last]
    key = heap_key[last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        right = child + 1
        if right < last and (
            heap_time[right] < heap_time[child]
            or (
                heap_time[right] == heap_time[child]
                and heap_key[right] < heap_key[child]
            )
        ):
            child = right
        if time < heap_time[child] or (
            time == heap_time[child] and key < heap_key[child]
        ):
            break
        heap_time[place] = heap_time[child]
        heap_key[place] = heap_key[child]
        place = child
    heap_time[place] = time
    heap_key[place] = key


@njit(cache=True)
def _grow(node: Int64Array, ring: Int64Array, meta: Int64Array, event: int) -> bool:
    """Double an event's ring at the end of the arena; False when that is full."""
    mask = node[event, RING_MASK]
    old = node[event, RING_BASE]
    new = meta[RING_USED]
    wide = 2 * (mask + 1)
    if new + wide > ring.shape[0]:
        return False
    fired = node[event, FIRED]
    for generation in range(fired, fired + wide):
        slot = new + (generation & (wide - 1))
        if generation <= fired + mask:
            ring[slot, 0] = ring[old + (generation & mask), 0]
            ring[slot, 1] = ring[old + (generation & mask), 1]
        else:
            ring[slot, 0] = node[event, START]
            ring[slot, 1] = node[event, IN_DEGREE]
    node[event, RING_BASE] = new
    node[event, RING_MASK] = wide - 1
    meta[RING_USED] = new + wide
    return True


@njit(cache=True)
def fill_ring(
    node: Int64Array,
    ring: Int64Array,
    edge_dst: Int32Array,
    edge_distance: Int32Array,
) -> None:
    """Empty slots, then take the initial tokens out of what is missing."""
    for event in range(node.shape[0]):
        base = node[event, RING_BASE]
        for slot in range(base, base + node[event, RING_MASK] + 1):
            ring[slot, 0] = node[event, START]
            ring[slot, 1] = node[event, IN_DEGREE]
    for edge in range(edge_dst.shape[0]):
        base = node[edge_dst[edge], RING_BASE]
        for generation in range(edge_distance[edge]):
            ring[base + generation, 1] -= 1


@njit(cache=True)
def seed_heap(
    node: Int64Array,
    ring: Int64Array,
    heap_time: Int64Array,
    heap_key: Int64Array,
    meta: Int64Array,
    backwards: bool,
) -> None:
    """Put every event whose first generation is ready into the heap."""
    events = node.shape[0]
    for event in range(events):
        slot = node[event, RING_BASE]
        if node[event, ROLE] & IN_HEAP and ring[slot, 1] == 0:
            key = events - 1 - event if backwards else event
            if node[event, ROLE] >> SERVER_SHIFT:
                key |= _REQUEST
            _push(heap_time, heap_key, meta[HEAP_SIZE], int(ring[slot, 0]), int(key))
            meta[HEAP_SIZE] += 1


@njit(cache=True)
def advance(
    node: Int64Array,
    ring: Int64Array,
    edge_dst: Int32Array,
    edge_delay: Int64Array,
    edge_distance: Int32Array,
    service: Int64Array,
    core_row: Int32Array,
    server_free: Int64Array,
    heap_time: Int64Array,
    heap_key: Int64Array,
    stack: Int32Array,
    record_row: Int32Array,
    ready: Int64Array,
    finish: Int64Array,
    core_wait: Int64Array,
    meta: Int64Array,
    backwards: bool,
    reference: int,
    stop_when_blocked: bool,
    event_limit: int,
) -> int:
    """Run until ``reference`` has happened once more, or a limit is met.

    Between calls the stack is empty (except after ``RING_FULL``), so the state is a
    function of the heap entries taken so far: a well-defined cut in time.

    Args:
        node, ring: see the column names above; ``ring[:, 0]`` latest token time, ns,
            ``ring[:, 1]`` tokens missing.
        core_row: row of each event's core in ``core_wait``.
        record_row: row of a recorded event in ``ready`` and ``finish``.
        core_wait: ``[cores, generations]`` queue wait, ns; its second extent is the
            generation limit.
    """
    events = node.shape[0]
    generation_limit = core_wait.shape[1]
    while True:
        size = meta[STACK_SIZE]
        if size > 0:
            event = np.int64(stack[size - 1])
        else:
            if meta[REACHED] == 1:
                meta[REACHED] = 0
                return CHECKPOINT
            size = meta[HEAP_SIZE]
            if size == 0:
                return EMPTY
            key = heap_key[0] & (_REQUEST - 1)
            event = events - 1 - key if backwards else key
            meta[NOW] = heap_time[0]
        generation = node[event, FIRED]
        if generation >= generation_limit:
            meta[BLOCKED] = 1
            if stop_when_blocked:
                return GENERATION_LIMIT
            if meta[STACK_SIZE] > 0:
                meta[STACK_SIZE] -= 1
            else:
                _remove_first(heap_time, heap_key, size)
                meta[HEAP_SIZE] -= 1
            continue
        if meta[PROCESSED] >= event_limit:
            return EVENT_LIMIT
        begin = node[event, OUT_BEGIN]
        end = node[event, OUT_END]
        # Room for every token first: nothing is half done when the arena is full.
        for edge in range(begin, end):
            target = edge_dst[edge]
            while (
                generation + edge_distance[edge] - node[target, FIRED]
                > node[target, RING_MASK]
            ):
                if not _grow(node, ring, meta, target):
                    return RING_FULL
        from_stack = meta[STACK_SIZE] > 0
        if from_stack:
            meta[STACK_SIZE] -= 1
        else:
            _remove_first(heap_time, heap_key, size)
            meta[HEAP_SIZE] -= 1
        meta[PROCESSED] += 1
        role = node[event, ROLE]
        slot = node[event, RING_BASE] + (generation & node[event, RING_MASK])
        time = ring[slot, 0]
        arrival = time
        server = (role >> SERVER_SHIFT) - 1
        if server >= 0:
            wait = max(server_free[server] - time, 0)
            time += wait + service[event]
            server_free[server] = time
            core_wait[core_row[event], generation] += wait
            meta[MAX_WAIT] = max(meta[MAX_WAIT], wait)
        ring[slot, 0] = node[event, START]
        ring[slot, 1] = node[event, IN_DEGREE]
        if role & RECORDED:
            ready[record_row[event], generation] = arrival
            finish[record_row[event], generation] = time
        if event == reference:
            meta[REACHED] = 1
        for edge in range(begin, end):
            target = np.int64(edge_dst[edge])
            arriving = generation + edge_distance[edge]
            slot = node[target, RING_BASE] + (arriving & node[target, RING_MASK])
            at = time + edge_delay[edge]
            if at > ring[slot, 0]:
                ring[slot, 0] = at
            missing = ring[slot, 1] - 1
            ring[slot, 1] = missing
            if missing == 0:
                target_role = node[target, ROLE]
                if not target_role & IN_HEAP:
                    stack[meta[STACK_SIZE]] = target
                    meta[STACK_SIZE] += 1
                elif arriving == node[target, FIRED]:
                    key = events - 1 - target if backwards else target
                    if target_role >> SERVER_SHIFT:
                        key |= _REQUEST
                    _push(
                        heap_time,
                        heap_key,
                        meta[HEAP_SIZE],
                        int(ring[slot, 0]),
                        int(key),
                    )
                    meta[HEAP_SIZE] += 1
        # Only now: a token of a self-loop above must not enter the heap by itself.
        node[event, FIRED] = generation + 1
        if role & IN_HEAP:
            slot = node[event, RING_BASE] + ((generation + 1) & node[event, RING_MASK])
            if ring[slot, 1] == 0:
                key = events - 1 - event if backwards else event
                if server >= 0:
                    key |= _REQUEST
                _push(
                    heap_time, heap_key, meta[HEAP_SIZE], int(ring[slot, 0]), int(key)
                )
                meta[HEAP_SIZE] += 1
