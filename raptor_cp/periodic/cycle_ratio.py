"""Maximum cycle ratio: the recurrence that bounds the initiation interval.

A cycle of delay ``w`` that spans ``d`` generations forces ``II >= w / d``.  A test
of an interval asks for a cycle of positive weight under edge weights
``w - II * d``: longest paths by relaxation, sweeping the distance-0 DAG in
topological order between relaxations of the ``R`` edges of positive distance.  A
simple path uses each of these at most once, so ``R + 1`` sweeps settle a test, and
a cycle of predecessors ends an infeasible one early (scheduling spec, "Periodic
dependency diagnostics").

Each infeasible test yields a cycle, whose exact ratio is the next interval to test
(Dinkelbach's method); bisection takes over when the remaining tests would not
suffice otherwise, so 64 tests always close the bracket to one nanosecond.  The last
test finds no such cycle: it relaxes fully, at the exact ratio of the witness, and so
proves that no cycle exceeds it.  Scans run in fixed order: the witness is always the
same one.

The service time of a request counts as delay of its outgoing edges.  Queueing does
not count: see :mod:`raptor_cp.periodic.queue_engine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.errors import InternalError
from raptor_cp.periodic.dependency_order import TokenFreeCycle, topological_order
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json
from raptor_cp.periodic.witness import CycleWitness, witness_of_edges

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import (
        EventGraph,
        Int32Array,
        Int64Array,
    )

#: Feasibility tests of one analysis (scheduling spec).
MAX_TESTS = 64
#: No intermediate value of a test may reach this; beyond, timing is unavailable.
VALUE_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class CycleRatio:
    """The maximum cycle ratio of an executable graph.

    Attributes:
        ratio_ns: exact ratio of the witness, ns per generation; 0 without one.
        upper_ns: no cycle exceeds this; equal to ``ratio_ns`` when ``exact``, and
            never more than one nanosecond above it.
        witness: a cycle of ratio ``ratio_ns``; None when no cycle has any delay, so
            that dependencies leave the throughput unbounded.
        tests, max_sweeps, total_sweeps: work done; ``max_sweeps <= R + 1``.
        recurrence_edges: ``R``.
    """

    ratio_ns: Fraction
    upper_ns: Fraction
    witness: CycleWitness | None
    tests: int
    max_sweeps: int
    total_sweeps: int
    recurrence_edges: int

    @property
    def exact(self) -> bool:
        """True when the bracket is closed."""
        return self.ratio_ns == self.upper_ns

    @property
    def bounded(self) -> bool:
        """True when some cycle bounds the throughput."""
        return self.witness is not None

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        found: dict[str, object] = {
            "interval_ns": ns_for_json(self.ratio_ns),
            "upper_ns": ns_for_json(self.upper_ns),
            "distance": self.witness.distance if self.witness else 0,
            "tests": self.tests,
            "sweeps": self.total_sweeps,
            "recurrence_edges": self.recurrence_edges,
        }
        return found | (self.witness.to_dict() if self.witness else {"witness": []})


CycleRatioAnswer = CycleRatio | TokenFreeCycle | Unavailable


@dataclass(slots=True)
class _Layout:
    """The graph in topological numbering, distance-0 edges by target.

    ``in_*`` are the distance-0 edges, ``rec_*`` the others; ``*_edge`` map back.
    """

    in_ptr: Int64Array
    in_src: Int32Array
    in_weight: Int64Array
    in_edge: Int64Array
    rec_src: Int32Array
    rec_dst: Int32Array
    rec_weight: Int64Array
    rec_distance: Int64Array
    rec_edge: Int64Array


@njit(cache=True)
def _lay_out(
    order: Int32Array,
    edge_src: Int32Array,
    edge_dst: Int32Array,
    edge_delay: Int64Array,
    edge_distance: Int32Array,
    service: Int64Array,
) -> tuple[
    Int64Array,
    Int32Array,
    Int64Array,
    Int64Array,
    Int32Array,
    Int32Array,
    Int64Array,
    Int64Array,
    Int64Array,
]:
    events = order.shape[0]
    edges = edge_src.shape[0]
    position = np.empty(events, np.int32)
    for place in range(events):
        position[order[place]] = place
    in_ptr = np.zeros(events + 2, np.int64)
    recurrences = 0
    for edge in range(edges):
        if edge_distance[edge] == 0:
            in_ptr[position[edge_dst[edge]] + 2] += 1
        else:
            recurrences += 1
    for place in range(events):
        in_ptr[place + 2] += in_ptr[place + 1]
    inner = edges - recurrences
    in_src = np.empty(inner, np.int32)
    in_weight = np.empty(inner, np.int64)
    in_edge = np.empty(inner, np.int64)
    rec_src = np.empty(recurrences, np.int32)
    rec_dst = np.empty(recurrences, np.int32)
    rec_weight = np.empty(recurrences, np.int64)
    rec_distance = np.empty(recurrences, np.int64)
    rec_edge = np.empty(recurrences, np.int64)
    found = 0
    for edge in range(edges):
        source = edge_src[edge]
        target = position[edge_dst[edge]]
        weight = edge_delay[edge] + service[source]
        if edge_distance[edge] == 0:
            slot = in_ptr[target + 1]
            in_ptr[target + 1] = slot + 1
            in_src[slot] = position[source]
            in_weight[slot] = weight
            in_edge[slot] = edge
        else:
            rec_src[found] = position[source]
            rec_dst[found] = target
            rec_weight[found] = weight
            rec_distance[found] = edge_distance[edge]
            rec_edge[found] = edge
            found += 1
    return (
        in_ptr[: events + 1],
        in_src,
        in_weight,
        in_edge,
        rec_src,
        rec_dst,
        rec_weight,
        rec_distance,
        rec_edge,
    )


@njit(cache=True)
def _longest_inner_path(
    in_ptr: Int64Array, in_src: Int32Array, in_weight: Int64Array
) -> int:
    events = in_ptr.shape[0] - 1
    value = np.zeros(events, np.int64)
    for event in range(events):
        best = np.int64(0)
        for edge in range(in_ptr[event], in_ptr[event + 1]):
            best = max(best, value[in_src[edge]] + in_weight[edge])
        value[event] = best
    return int(value.max())


@njit(cache=True)
def _cycle_of_predecessors(
    rec_src: Int32Array, rec_dst: Int32Array, origin: Int32Array
) -> int:
    """A recurrence edge on a cycle of predecessors, -1 if there is none.

    ``origin[v]`` is the recurrence edge at which the best path to ``v`` last entered
    the DAG.  Right after a sweep the distance-0 part of that path is tight, so
    following origins follows the predecessor graph.
    """
    recurrences = rec_src.shape[0]
    mark = np.zeros(recurrences, np.int32)
    for first in range(recurrences):
        edge = first
        if mark[first] != 0 or origin[rec_dst[first]] != first:
            continue
        while edge >= 0 and mark[edge] == 0:
            mark[edge] = first + 1
            edge = origin[rec_src[edge]]
        if edge >= 0 and mark[edge] == first + 1:
            return edge
    return -1


@njit(cache=True)
def _probe(
    in_ptr: Int64Array,
    in_src: Int32Array,
    in_weight: Int64Array,
    rec_src: Int32Array,
    rec_dst: Int32Array,
    rec_weight: Int64Array,
    pred: Int32Array,
) -> tuple[int, int]:
    """One feasibility test of at most ``R + 1`` sweeps.

    Returns the sweeps made and, if a positive cycle exists, an event on a cycle of
    predecessors (else -1).  ``pred[v]`` is left as the incoming distance-0 edge of
    the best path, ``-2 - r`` for recurrence edge ``r``, -1 for none.
    """
    events = in_ptr.shape[0] - 1
    recurrences = rec_src.shape[0]
    value = np.zeros(events, np.int64)
    origin = np.full(events, -1, np.int32)
    pred[:] = -1
    changed = -1
    for sweep in range(1, recurrences + 2):
        for event in range(events):
            best = value[event]
            chosen = -1
            for edge in range(in_ptr[event], in_ptr[event + 1]):
                candidate = value[in_src[edge]] + in_weight[edge]
                if candidate > best:
                    best = candidate
                    chosen = edge
            if chosen >= 0:
                value[event] = best
                pred[event] = chosen
                origin[event] = origin[in_src[chosen]]
        closing = _cycle_of_predecessors(rec_src, rec_dst, origin)
        if closing >= 0:
            return sweep, rec_dst[closing]
        changed = -1
        for r in range(recurrences):
            candidate = value[rec_src[r]] + rec_weight[r]
            target = rec_dst[r]
            if candidate > value[target]:
                value[target] = candidate
                pred[target] = -2 - r
                origin[target] = r
                changed = target
        if changed < 0:
            return sweep, -1
    # An improvement over R + 1 recurrence edges repeats one of them: walking back
    # from it must meet a cycle.
    seen = np.zeros(events, np.bool_)
    while not seen[changed]:
        seen[changed] = True
        step = pred[changed]
        changed = in_src[step] if step >= 0 else rec_src[-2 - step]
    return recurrences + 1, changed


@njit(cache=True)
def _walk_back(
    first: int,
    pred: Int32Array,
    in_src: Int32Array,
    in_edge: Int64Array,
    rec_src: Int32Array,
    rec_edge: Int64Array,
) -> Int64Array:
    """Graph edges of the predecessor cycle through an event, forwards."""
    length = 0
    event = first
    while True:
        step = pred[event]
        event = in_src[step] if step >= 0 else rec_src[-2 - step]
        length += 1
        if event == first:
            break
    edges = np.empty(length, np.int64)
    event = first
    for place in range(length - 1, -1, -1):
        step = pred[event]
        if step >= 0:
            edges[place] = in_edge[step]
            event = in_src[step]
        else:
            edges[place] = rec_edge[-2 - step]
            event = rec_src[-2 - step]
    return edges


def maximum_cycle_ratio(graph: EventGraph) -> CycleRatioAnswer:
    """The largest delay/distance over all cycles, bracketed within one nanosecond.

    Returns:
        :class:`CycleRatio`; :class:`TokenFreeCycle` when a distance-0 cycle makes
        the graph impossible to execute (whatever its delay, zero included);
        :class:`Unavailable` when times leave the supported numeric range.
    """
    order = topological_order(graph)
    if isinstance(order, TokenFreeCycle):
        return order
    return ratio_in_order(graph, order)


def ratio_in_order(graph: EventGraph, order: Int32Array) -> CycleRatio | Unavailable:
    """:func:`maximum_cycle_ratio` with the topological order at hand."""
    if graph.total_delay_ns() >= VALUE_LIMIT:
        return Unavailable("the sum of delays is outside the supported range")
    return _Search(graph, order).run()


class _Search:
    """Bracket ``[low, high]`` with a cycle of ratio ``low``; see the module."""

    def __init__(self, graph: EventGraph, order: Int32Array) -> None:
        self._graph = graph
        layout = _Layout(
            *_lay_out(
                order,
                graph.edge_src,
                graph.edge_dst,
                graph.edge_delay_ns,
                graph.edge_distance,
                graph.service_ns,
            )
        )
        self._layout = layout
        self._recurrences = len(layout.rec_src)
        self._max_distance = int(layout.rec_distance.max(initial=0))
        # A simple cycle with m recurrence edges has at most m inner paths.
        self._reach = _longest_inner_path(
            layout.in_ptr, layout.in_src, layout.in_weight
        ) + int(layout.rec_weight.max(initial=0))
        self._pred = np.empty(graph.event_count, np.int32)
        self._low = Fraction(0)
        self._high: Fraction = Fraction(self._reach)
        self._witness: CycleWitness | None = None
        self._tests = self._max_sweeps = self._total_sweeps = 0

    def run(self) -> CycleRatio | Unavailable:
        if not self._in_range(Fraction(self._high)):
            return Unavailable(
                "a recurrence test would leave the supported numeric range: "
                f"{self._recurrences} recurrence edges, "
                f"inner path {self._reach} ns, distance {self._max_distance}"
            )
        if self._recurrences == 0:
            self._high = Fraction(0)
        while self._low < self._high and self._tests < MAX_TESTS:
            interval = self._next_interval()
            if interval is None:
                break
            self._test(interval)
        return CycleRatio(
            ratio_ns=self._low,
            upper_ns=self._high,
            witness=self._witness,
            tests=self._tests,
            max_sweeps=self._max_sweeps,
            total_sweeps=self._total_sweeps,
            recurrence_edges=self._recurrences,
        )

    def _in_range(self, interval: Fraction) -> bool:
        p, q = interval.numerator, interval.denominator
        grown = (self._recurrences + 2) * self._reach * q
        return max(grown, p * self._max_distance + self._reach * q) < VALUE_LIMIT

    def _next_interval(self) -> Fraction | None:
        """What to test next; None when the bracket cannot become narrower."""
        width = self._high - self._low
        bisections = max(0, (width.numerator // width.denominator).bit_length())
        if self._tests + bisections + 1 >= MAX_TESTS and width > 1:
            return Fraction((self._low + self._high) // 2)
        if self._in_range(self._low):
            return self._low
        # Exact arithmetic would overflow: the next whole nanosecond instead.
        above = Fraction(self._low.numerator // self._low.denominator + 1)
        return above if above < self._high else None

    def _test(self, interval: Fraction) -> None:
        p, q = interval.numerator, interval.denominator
        layout = self._layout
        rec_weight = layout.rec_weight * q - layout.rec_distance * p
        sweeps, on_cycle = _probe(
            layout.in_ptr,
            layout.in_src,
            layout.in_weight if q == 1 else layout.in_weight * q,
            layout.rec_src,
            layout.rec_dst,
            rec_weight,
            self._pred,
        )
        self._tests += 1
        self._total_sweeps += sweeps
        self._max_sweeps = max(self._max_sweeps, sweeps)
        if on_cycle < 0:
            self._high = interval
            return
        edges = _walk_back(
            on_cycle,
            self._pred,
            layout.in_src,
            layout.in_edge,
            layout.rec_src,
            layout.rec_edge,
        )
        self._witness = witness_of_edges(self._graph, edges)
        if self._witness.ratio_ns <= interval:
            raise InternalError("a cycle of predecessors is not a positive cycle")
        self._low = self._witness.ratio_ns
