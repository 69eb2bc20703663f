"""Howard's policy iteration: a second method for the maximum cycle ratio.

It shares nothing with :mod:`raptor_cp.periodic.cycle_ratio` but the graph, so it is
the oracle of that analysis where brute force is too slow.  Every event of a strongly
connected component follows one outgoing edge (its policy); the best cycle of the
policy gives a ratio, relative values follow from it, and every edge that improves a
value becomes policy (Cochet-Terrasson et al., "Numerical computation of spectral
elements in max-plus algebra", 1998; Dasdan, "Experimental analysis of the fastest
optimum cycle ratio and mean algorithms", 2004).  Values are integers scaled by the
denominator of the ratio, so no tolerance is needed.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.errors import InternalError
from raptor_cp.periodic.dependency_order import TokenFreeCycle, topological_order
from raptor_cp.periodic.unavailable import Unavailable

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph, Int32Array, Int64Array

_VALUE_LIMIT = 2**62
_MAX_ITERATIONS = 10_000


@njit(cache=True)
def _strong_components(edge_ptr: Int64Array, edge_dst: Int32Array) -> Int32Array:
    """Tarjan's algorithm with an explicit stack; component number of each event."""
    events = edge_ptr.shape[0] - 1
    component = np.full(events, -1, np.int32)
    index = np.full(events, -1, np.int32)
    low = np.zeros(events, np.int32)
    cursor = edge_ptr[:-1].copy()
    path = np.empty(events, np.int32)
    open_events = np.empty(events, np.int32)
    opened = 0
    numbered = 0
    components = 0
    for root in range(events):
        if index[root] >= 0:
            continue
        depth = 0
        path[0] = root
        index[root] = low[root] = numbered
        numbered += 1
        open_events[opened] = root
        opened += 1
        while depth >= 0:
            event = path[depth]
            if cursor[event] < edge_ptr[event + 1]:
                target = edge_dst[cursor[event]]
                cursor[event] += 1
                if index[target] < 0:
                    index[target] = low[target] = numbered
                    numbered += 1
                    open_events[opened] = target
                    opened += 1
                    depth += 1
                    path[depth] = target
                elif component[target] < 0:
                    low[event] = min(low[event], index[target])
                continue
            if low[event] == index[event]:
                while True:
                    opened -= 1
                    member = open_events[opened]
                    component[member] = components
                    if member == event:
                        break
                components += 1
            depth -= 1
            if depth >= 0:
                low[path[depth]] = min(low[path[depth]], low[event])
    return component


@njit(cache=True)
def _best_policy_cycles(
    members: Int32Array,
    policy: Int64Array,
    edge_dst: Int32Array,
    weight: Int64Array,
    distance: Int32Array,
    mark: Int64Array,
    stamp: int,
) -> tuple[int, int, int]:
    """Delay, distance and one event of the policy cycle of the largest ratio."""
    best_delay, best_distance, best_event = np.int64(-1), np.int64(1), np.int64(-1)
    first_stamp = stamp
    for start in members:
        stamp += 1
        event = np.int64(start)
        while mark[event] < first_stamp:
            mark[event] = stamp
            event = np.int64(edge_dst[policy[event]])
        if mark[event] != stamp:
            continue
        around_delay, around_distance = np.int64(0), np.int64(0)
        walker = event
        while True:
            edge = policy[walker]
            around_delay += weight[edge]
            around_distance += distance[edge]
            walker = np.int64(edge_dst[edge])
            if walker == event:
                break
        # Ratios of int64 terms overflow when cross-multiplied; an inexact choice of
        # the best cycle only costs an iteration.
        if best_event < 0 or (
            around_delay / around_distance > best_delay / best_distance
        ):
            best_delay, best_distance = around_delay, around_distance
            best_event = event
    return int(best_delay), int(best_distance), int(best_event)


@njit(cache=True)
def _evaluate(
    root: int,
    component: Int32Array,
    in_ptr: Int64Array,
    in_edge: Int64Array,
    edge_src: Int32Array,
    weight: Int64Array,
    distance: Int32Array,
    p: int,
    q: int,
    policy: Int64Array,
    value: Int64Array,
    reached: Int64Array,
    stamp: int,
    queue: Int32Array,
) -> None:
    """Values relative to ``root``; events that miss it are led there."""
    queue[0] = root
    value[root] = 0
    reached[root] = stamp
    tail = 1
    for only_policy in (True, False):
        head = 0
        while head < tail:
            event = queue[head]
            head += 1
            for place in range(in_ptr[event], in_ptr[event + 1]):
                edge = in_edge[place]
                source = edge_src[edge]
                if component[source] != component[root] or reached[source] == stamp:
                    continue
                if only_policy and policy[source] != edge:
                    continue
                policy[source] = edge
                value[source] = (
                    value[event] + weight[edge] * q - distance[edge] * np.int64(p)
                )
                reached[source] = stamp
                queue[tail] = source
                tail += 1


@njit(cache=True)
def _improve(
    members: Int32Array,
    component: Int32Array,
    edge_ptr: Int64Array,
    edge_dst: Int32Array,
    weight: Int64Array,
    distance: Int32Array,
    p: int,
    q: int,
    policy: Int64Array,
    value: Int64Array,
) -> bool:
    improved = False
    for event in members:
        for edge in range(edge_ptr[event], edge_ptr[event + 1]):
            target = edge_dst[edge]
            if component[target] != component[event]:
                continue
            candidate = value[target] + weight[edge] * q - distance[edge] * np.int64(p)
            if candidate > value[event]:
                value[event] = candidate
                policy[event] = edge
                improved = True
    return improved


def howard_cycle_ratio(graph: EventGraph) -> Fraction | TokenFreeCycle | Unavailable:
    """Maximum delay/distance over all cycles, exactly; 0 when there is no cycle.

    Services of requests count as delay of their outgoing edges.  Graphs that cannot
    run are reported as by
    :func:`raptor_cp.periodic.cycle_ratio.maximum_cycle_ratio`.
    """
    order = topological_order(graph)
    if isinstance(order, TokenFreeCycle):
        return order
    if graph.total_delay_ns() >= _VALUE_LIMIT:
        return Unavailable("the sum of delays is outside the supported range")
    component = _strong_components(graph.edge_ptr, graph.edge_dst)
    inside = component[graph.edge_src] == component[graph.edge_dst]
    if not inside.any():
        return Fraction(0)
    weight = graph.edge_delay_ns + graph.service_ns[graph.edge_src]
    in_edge = np.argsort(graph.edge_dst, kind="stable")
    in_ptr = np.zeros(graph.event_count + 1, np.int64)
    np.cumsum(np.bincount(graph.edge_dst, minlength=graph.event_count), out=in_ptr[1:])
    policy = np.full(graph.event_count, -1, np.int64)
    usable = np.flatnonzero(inside)
    policy[graph.edge_src[usable]] = usable
    grouped = np.argsort(component, kind="stable").astype(np.int32)
    starts = np.append(
        np.flatnonzero(np.diff(component[grouped], prepend=-1)), len(grouped)
    )
    solver = _PolicyIteration(graph, component, weight, in_ptr, in_edge, policy)
    best = Fraction(0)
    for begin, end in itertools.pairwise(starts):
        members = grouped[begin:end]
        if policy[members[0]] < 0:
            continue
        ratio = solver.solve(members)
        if isinstance(ratio, Unavailable):
            return ratio
        best = max(best, ratio)
    return best


class _PolicyIteration:
    def __init__(
        self,
        graph: EventGraph,
        component: Int32Array,
        weight: Int64Array,
        in_ptr: Int64Array,
        in_edge: Int64Array,
        policy: Int64Array,
    ) -> None:
        self._graph = graph
        self._component = component
        self._weight = weight
        self._in_ptr = in_ptr
        self._in_edge = in_edge
        self._policy = policy
        self._value = np.zeros(graph.event_count, np.int64)
        self._mark = np.full(graph.event_count, -1, np.int64)
        self._reached = np.full(graph.event_count, -1, np.int64)
        self._queue = np.empty(graph.event_count, np.int32)
        self._stamp = 0
        self._round = 0
        # No value is the sum of more than every edge once.
        self._delay_sum = graph.total_delay_ns() + int(weight.sum())
        self._distance_sum = int(graph.edge_distance.sum(dtype=np.int64))

    def solve(self, members: Int32Array) -> Fraction | Unavailable:
        graph = self._graph
        for _ in range(_MAX_ITERATIONS):
            delay, distance, root = _best_policy_cycles(
                members,
                self._policy,
                graph.edge_dst,
                self._weight,
                graph.edge_distance,
                self._mark,
                self._stamp,
            )
            self._stamp += len(members) + 1
            ratio = Fraction(delay, distance)
            p, q = ratio.numerator, ratio.denominator
            if max(self._delay_sum * q, self._distance_sum * p) >= _VALUE_LIMIT:
                return Unavailable("policy values leave the supported numeric range")
            self._round += 1
            _evaluate(
                root,
                self._component,
                self._in_ptr,
                self._in_edge,
                graph.edge_src,
                self._weight,
                graph.edge_distance,
                p,
                q,
                self._policy,
                self._value,
                self._reached,
                self._round,
                self._queue,
            )
            if not _improve(
                members,
                self._component,
                graph.edge_ptr,
                graph.edge_dst,
                self._weight,
                graph.edge_distance,
                p,
                q,
                self._policy,
                self._value,
            ):
                return ratio
        raise InternalError("policy iteration did not converge")
