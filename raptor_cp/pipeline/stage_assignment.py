"""Kernels of stage-local placement: greedy rules, ranking figures, exchanges.

A stage is tasks ``begin .. begin + n - 1`` on local cores 0 .. k-1.  Common arguments:

``pred_ptr, pred_src``
    [T+1], [E] dependencies by destination, of the whole graph;
``messages, units, ends``
    [E] of each dependency: 1 when it carries bytes, its link units, and the part of
    its direct time that does not depend on the cores (ns);
``handshake, unit``
    [k, k] link times between the local cores (ns), 0 on the diagonal;
``work, memory``
    [n, k] or [n, 1] execution times, [n] core time on shared memory (ns);
``task_class, class_ptr, class_idx, slots, capacity``
    [n] weight class of each task, and the resident-weight index.

The rules are described in :mod:`raptor_cp.pipeline.placement`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]


@njit(cache=True)
def greedy(
    rule: int,
    limit: int,
    begin: int,
    pred_ptr: IndexArray,
    pred_src: IndexArray,
    messages: IntArray,
    units: IntArray,
    ends: IntArray,
    handshake: IntArray,
    unit: IntArray,
    work: IntArray,
    memory: IntArray,
    task_class: IndexArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
) -> tuple[IndexArray, int]:
    """Local core of each task, empty when a task fits nowhere; and the checks."""
    tasks, cores = task_class.size, handshake.shape[0]
    alike = work.shape[1] == 1
    local = np.full(tasks, -1, dtype=np.int32)
    finish = np.zeros(tasks, dtype=np.int64)
    ready = np.zeros(cores, dtype=np.int64)
    load = np.zeros(cores, dtype=np.int64)
    demand = np.zeros(cores, dtype=np.int64)
    used = np.zeros(cores, dtype=np.int64)
    held = np.zeros((cores, slots.size), dtype=np.bool_)
    extra = np.zeros(cores, dtype=np.int64)  # slots the current class adds
    current = -1
    checks = 0
    for task in range(tasks):
        kind = task_class[task]
        if kind != current:
            current = kind
            for core in range(cores):
                extra[core] = 0
                for position in range(class_ptr[kind], class_ptr[kind + 1]):
                    weight = class_idx[position]
                    if not held[core, weight]:
                        extra[core] += slots[weight]
        low = pred_ptr[begin + task]
        high = pred_ptr[begin + task + 1]
        while low < high and pred_src[low] < begin:
            low += 1  # sources ascend: the earlier ones are in other stages
        best = -1
        best_first = best_second = best_third = np.int64(0)
        for core in range(cores):
            checks += 1
            if used[core] + extra[core] > capacity:
                continue
            arrival = np.int64(0)
            incident = np.int64(0)
            for edge in range(low, high):
                source = pred_src[edge] - begin
                tail = local[source]
                time = np.int64(0)
                if tail != core:
                    time = (
                        messages[edge] * handshake[tail, core]
                        + units[edge] * unit[tail, core]
                        + ends[edge]
                    )
                incident += time
                arrival = max(arrival, finish[source] + time)
            length = work[task, 0 if alike else core]
            end = max(arrival, ready[core]) + length
            if rule == 0:
                first, second, third = end, load[core] + length, extra[core]
            elif rule == 1:
                first = demand[core] + length + memory[task] + incident
                second, third = extra[core], end
            else:
                # Above the limit only the load counts: it must stay low.
                over = max(load[core] + length - limit, 0)
                first, second, third = over, extra[core], end
            if (
                best < 0
                or first < best_first
                or (
                    first == best_first
                    and (
                        second < best_second
                        or (second == best_second and third < best_third)
                    )
                )
            ):
                best = core
                best_first, best_second, best_third = first, second, third
        if best < 0:
            return np.empty(0, dtype=np.int32), checks
        local[task] = best
        length = work[task, 0 if alike else best]
        start = ready[best]
        for edge in range(low, high):
            source = pred_src[edge] - begin
            tail = local[source]
            time = np.int64(0)
            if tail != best:
                time = (
                    messages[edge] * handshake[tail, best]
                    + units[edge] * unit[tail, best]
                    + ends[edge]
                )
                demand[tail] += time
                demand[best] += time
            start = max(start, finish[source] + time)
        finish[task] = start + length
        ready[best] = finish[task]
        load[best] += length
        demand[best] += length + memory[task]
        used[best] += extra[best]
        extra[best] = 0
        for position in range(class_ptr[kind], class_ptr[kind + 1]):
            held[best, class_idx[position]] = True
    return local, checks


@njit(cache=True)
def stage_figures(
    begin: int,
    pred_ptr: IndexArray,
    pred_src: IndexArray,
    messages: IntArray,
    units: IntArray,
    ends: IntArray,
    handshake: IntArray,
    unit: IntArray,
    work: IntArray,
    memory: IntArray,
    local: IndexArray,
) -> tuple[int, int, int]:
    """Largest demand, span and largest load (ns) of an assignment."""
    cores = handshake.shape[0]
    alike = work.shape[1] == 1
    finish = np.zeros(local.size, dtype=np.int64)
    ready = np.zeros(cores, dtype=np.int64)
    load = np.zeros(cores, dtype=np.int64)
    demand = np.zeros(cores, dtype=np.int64)
    for task in range(local.size):
        core = local[task]
        start = ready[core]
        for edge in range(pred_ptr[begin + task], pred_ptr[begin + task + 1]):
            source = pred_src[edge] - begin
            if source < 0:
                continue
            tail = local[source]
            time = np.int64(0)
            if tail != core:
                time = (
                    messages[edge] * handshake[tail, core]
                    + units[edge] * unit[tail, core]
                    + ends[edge]
                )
                demand[tail] += time
                demand[core] += time
            start = max(start, finish[source] + time)
        length = work[task, 0 if alike else core]
        finish[task] = start + length
        ready[core] = finish[task]
        load[core] += length
        demand[core] += length + memory[task]
    return demand.max(), ready.max(), load.max()


@njit(cache=True)
def first_overfull(
    task_class: IndexArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
    local: IndexArray,
    cores: int,
) -> int:
    """First core whose union exceeds the capacity, -1 when all fit."""
    held = np.zeros((cores, slots.size), dtype=np.bool_)
    used = np.zeros(cores, dtype=np.int64)
    for task in range(local.size):
        core, kind = local[task], task_class[task]
        for position in range(class_ptr[kind], class_ptr[kind + 1]):
            weight = class_idx[position]
            if not held[core, weight]:
                held[core, weight] = True
                used[core] += slots[weight]
        if used[core] > capacity:
            return int(core)
    return -1


@njit(cache=True)
def traffic(
    begin: int,
    pred_ptr: IndexArray,
    pred_src: IndexArray,
    messages: IntArray,
    units: IntArray,
    local: IndexArray,
    cores: int,
) -> tuple[IntArray, IntArray]:
    """[k, k] direct messages and link units from core to core."""
    count = np.zeros((cores, cores), dtype=np.int64)
    total = np.zeros((cores, cores), dtype=np.int64)
    for task in range(local.size):
        for edge in range(pred_ptr[begin + task], pred_ptr[begin + task + 1]):
            source = pred_src[edge] - begin
            if source >= 0 and local[source] != local[task]:
                count[local[source], local[task]] += messages[edge]
                total[local[source], local[task]] += units[edge]
    return count, total


@njit(cache=True)
def exchange(
    messages: IntArray,
    units: IntArray,
    handshake: IntArray,
    unit: IntArray,
    passes: int,
) -> IndexArray:
    """Seat of every local core: pairs change seats while the sum of all direct
    transfer times falls."""
    cores = messages.shape[0]
    seat = np.arange(cores).astype(np.int32)
    for _ in range(passes):
        moved = False
        for a in range(cores):
            for b in range(a + 1, cores):
                p, q = seat[a], seat[b]
                gain = np.int64(0)
                for c in range(cores):
                    if c in (a, b):
                        continue
                    r = seat[c]
                    gain += messages[a, c] * (handshake[p, r] - handshake[q, r])
                    gain += units[a, c] * (unit[p, r] - unit[q, r])
                    gain += messages[c, a] * (handshake[r, p] - handshake[r, q])
                    gain += units[c, a] * (unit[r, p] - unit[r, q])
                    gain += messages[b, c] * (handshake[q, r] - handshake[p, r])
                    gain += units[b, c] * (unit[q, r] - unit[p, r])
                    gain += messages[c, b] * (handshake[r, q] - handshake[r, p])
                    gain += units[c, b] * (unit[r, q] - unit[r, p])
                gain += messages[a, b] * (handshake[p, q] - handshake[q, p])
                gain += units[a, b] * (unit[p, q] - unit[q, p])
                gain += messages[b, a] * (handshake[q, p] - handshake[p, q])
                gain += units[b, a] * (unit[q, p] - unit[p, q])
                if gain > 0:
                    seat[a], seat[b] = q, p
                    moved = True
        if not moved:
            break
    return seat
