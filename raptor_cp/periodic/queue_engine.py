"""Queue engine: what FIFO servers do to an event graph, generation by generation.

The graph is executed with timestamped tokens, never copied or unrolled (scheduling
spec, "Post-codegen instruction diagnostic").  Requests of one server are served in
order of arrival; of simultaneous arrivals the one with the smallest event number
goes first, or, under the other tie order, the largest.  The two orders are
sensitivity checks, not bounds over every order.

:func:`execute` runs a fixed number of generations and keeps all times (latency mode,
traces); :func:`measure_queue` estimates the interval from two adjacent windows of two
generations that agree within one percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.periodic import token_kernel as kernel
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph, Int32Array, Int64Array

#: Generations of one event in one analysis (scheduling spec).
MAX_GENERATIONS = 64
#: Processed events of one analysis, times ``V + E`` (scheduling spec).
MAX_VISITS = 16
#: Generations of one window; two adjacent windows are compared.
WINDOW = 2
#: Two windows agree when they differ by at most one part in this many.
AGREEMENT = 100
_TIME_LIMIT = 2**62
_RING_BYTES_LIMIT = 2**30


class TieOrder(StrEnum):
    """Who goes first among simultaneous arrivals at one server."""

    EVENT_INDEX = "event-index"
    REVERSED = "reversed"


class Stop(IntEnum):
    """Why an execution paused."""

    CHECKPOINT = kernel.CHECKPOINT  #: the reference event has happened once more
    EMPTY = kernel.EMPTY  #: nothing can happen any more
    EVENT_LIMIT = kernel.EVENT_LIMIT
    GENERATION_LIMIT = kernel.GENERATION_LIMIT
    STORAGE_LIMIT = kernel.RING_FULL


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """All times of a fixed number of generations.

    Attributes:
        order: the tie order used.
        ready_ns: ``[V, generations]`` when the incoming edges were satisfied (the
            arrival of a request); -1 where an event never happened.
        finish_ns: ``[V, generations]`` when the outgoing edges start: completion of a
            request, the same as ``ready_ns`` of a plain event; -1 likewise.
        processed_events: events that happened.
        max_request_wait_ns: longest wait of a request for its server.
    """

    order: TieOrder
    ready_ns: Int64Array
    finish_ns: Int64Array
    processed_events: int
    max_request_wait_ns: int

    @property
    def completed(self) -> bool:
        """False when some event waits for ever (a token-free cycle)."""
        return bool((self.finish_ns >= 0).all())

    @property
    def makespan_ns(self) -> int:
        """When the last event finished."""
        return int(self.finish_ns.max())


@dataclass(frozen=True, slots=True)
class Window:
    """Two adjacent windows of two generations that agree within one percent.

    Attributes:
        first_generation: ``k``; the windows span completions ``k`` to ``k + 4``.
        interval_ns: mean interval across both windows, ns, of the slowest core.
        core_waits_ns: queue wait of each core in generations ``k + 1`` to ``k + 4``.
    """

    first_generation: int
    interval_ns: Fraction
    core_waits_ns: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "first_generation": self.first_generation,
            "interval_ns": ns_for_json(self.interval_ns),
            "core_waits_ns": {str(core): wait for core, wait in self.core_waits_ns},
        }


@dataclass(frozen=True, slots=True)
class QueueMeasurement:
    """Answer of :func:`measure_queue`.

    Attributes:
        window: the interval, or why there is none.
        max_request_wait_ns: longest wait of a request so far, bootstrap included.
        processed_events: at most ``16 (V + E)``.
        generations: most generations of one event, at most 64.
    """

    order: TieOrder
    window: Window | Unavailable
    max_request_wait_ns: int
    processed_events: int
    generations: int


class TokenExecution:
    """A running execution that pauses whenever ``reference`` has happened.

    Args:
        generations: events stop after this many.
        event_limit: processed events at most (default: no limit).
        record_all: keep the times of all events, not only of the completions.
        reference: default: the first completion event.
    """

    def __init__(
        self,
        graph: EventGraph,
        order: TieOrder,
        *,
        generations: int = MAX_GENERATIONS,
        event_limit: int | None = None,
        record_all: bool = False,
        reference: int | None = None,
    ) -> None:
        self.graph = graph
        self.order = order
        self.generations = generations
        self.reference = int(graph.completion[0]) if reference is None else reference
        self.recorded: Int32Array = (
            np.arange(graph.event_count, dtype=np.int32)
            if record_all
            else graph.completion
        )
        self._event_limit = 2**62 if event_limit is None else event_limit
        self._attempts = 1
        self._seen_events = self._seen_generations = 0
        # A blocked event changes the contention that others see, so nothing after
        # it counts; without servers it changes nothing that is recorded.
        self._stop_when_blocked = event_limit is not None and graph.request_count > 0
        events = graph.event_count
        self.node = _node_table(graph, self.recorded)
        slots = int(self.node[-1, kernel.RING_BASE] + self.node[-1, kernel.RING_MASK])
        self.fits = 16 * (slots + 1) <= _RING_BYTES_LIMIT
        self.ring = np.empty((slots + 1 if self.fits else 0, 2), np.int64)
        self.meta = np.zeros(kernel.META_SIZE, np.int64)
        self.meta[kernel.RING_USED] = slots + 1
        self.cores, core_row = np.unique(graph.core, return_inverse=True)
        self._core_row: Int32Array = core_row.astype(np.int32)
        self.core_wait_ns: Int64Array = np.zeros(
            (len(self.cores), generations), np.int64
        )
        self.server_free_ns: Int64Array = np.zeros(len(graph.server_labels), np.int64)
        rows = len(self.recorded)
        self._record_row = np.zeros(events, np.int32)
        self._record_row[self.recorded] = np.arange(rows)
        self.ready_ns: Int64Array = np.full((rows, generations), -1, np.int64)
        self.finish_ns: Int64Array = np.full((rows, generations), -1, np.int64)
        self._heap_time = np.empty(events, np.int64)
        self._heap_key = np.empty(events, np.int64)
        self._stack = np.empty(events, np.int32)
        self._backwards = order is TieOrder.REVERSED
        if self.fits:
            kernel.fill_ring(self.node, self.ring, graph.edge_dst, graph.edge_distance)
            kernel.seed_heap(
                self.node,
                self.ring,
                self._heap_time,
                self._heap_key,
                self.meta,
                self._backwards,
            )

    @property
    def now_ns(self) -> int:
        """Time up to which everything has happened."""
        return int(self.meta[kernel.NOW])

    @property
    def processed_events(self) -> int:
        """Events that have happened, all generations together."""
        return int(self.meta[kernel.PROCESSED])

    @property
    def max_request_wait_ns(self) -> int:
        """Longest wait of a request for its server so far."""
        return int(self.meta[kernel.MAX_WAIT])

    @property
    def blocked(self) -> bool:
        """True when some event wanted to exceed the generation limit."""
        return bool(self.meta[kernel.BLOCKED])

    @property
    def reference_generations(self) -> int:
        """How often the reference event has happened."""
        return int(self.node[self.reference, kernel.FIRED])

    @property
    def max_generations(self) -> int:
        """Most generations of one event so far."""
        return int(self.node[:, kernel.FIRED].max())

    @property
    def completed_generations(self) -> int:
        """Generations that all completion events have finished."""
        return int(self.node[self.graph.completion, kernel.FIRED].min())

    def completion_times_ns(self) -> Int64Array:
        """``[C, generations]`` times of the completion events; -1 not yet."""
        rows: Int64Array = self.finish_ns[self._record_row[self.graph.completion]]
        return rows

    def advance(self) -> Stop:
        """Run to the next checkpoint, or until a limit or the end."""
        if not self.fits:
            return Stop.STORAGE_LIMIT
        while True:
            stop = Stop(
                kernel.advance(
                    self.node,
                    self.ring,
                    self.graph.edge_dst,
                    self.graph.edge_delay_ns,
                    self.graph.edge_distance,
                    self.graph.service_ns,
                    self._core_row,
                    self.server_free_ns,
                    self._heap_time,
                    self._heap_key,
                    self._stack,
                    self._record_row,
                    self.ready_ns,
                    self.finish_ns,
                    self.core_wait_ns,
                    self.meta,
                    self._backwards,
                    self.reference,
                    self._stop_when_blocked,
                    self._attempts * self._event_limit,
                )
            )
            if stop is not Stop.STORAGE_LIMIT or not self._enlarge():
                return stop

    @property
    def attempt_events(self) -> int:
        """Processed events since the start or the last :meth:`extend`."""
        return self.processed_events - self._seen_events

    @property
    def attempt_generations(self) -> int:
        """Most generations of one event since then."""
        return self.max_generations - self._seen_generations

    def extend(self) -> None:
        """Allow as many events and generations once more, from where the run is.

        Only after a stop at one of these limits, of an execution with servers: others
        drop events that reach the generation limit.
        """
        self._attempts += 1
        self._seen_events = self.processed_events
        self._seen_generations = self.max_generations
        self.meta[kernel.BLOCKED] = 0
        self.core_wait_ns = _widened(self.core_wait_ns, self.generations, 0)
        self.ready_ns = _widened(self.ready_ns, self.generations, -1)
        self.finish_ns = _widened(self.finish_ns, self.generations, -1)

    def why(self, stop: Stop) -> str:
        """The limit behind a stop, as a reason without a final full stop."""
        if stop is Stop.EVENT_LIMIT:
            return (
                f"{MAX_VISITS}(V+E) = {self._event_limit} processed events "
                "were not enough"
            )
        if stop is Stop.STORAGE_LIMIT:
            return "pending tokens need more storage than allowed"
        if self.blocked:
            return f"an event reached the limit of {self.generations} generations"
        return "some events wait for ever"

    def _enlarge(self) -> bool:
        wide = 2 * len(self.ring) + 64
        if 16 * wide > _RING_BYTES_LIMIT:
            return False
        ring = np.empty((wide, 2), np.int64)
        ring[: len(self.ring)] = self.ring
        self.ring = ring
        return True


def time_range_fault(graph: EventGraph, generations: int) -> Unavailable | None:
    """Whether ``generations`` of the graph could leave the range of int64 times."""
    # Queues reorder work but add none: no time exceeds all delays and services of
    # all generations in a row.
    if (generations + 1) * graph.total_delay_ns() >= _TIME_LIMIT:
        return Unavailable("event times would leave the supported numeric range")
    return None


def event_limit(graph: EventGraph) -> int:
    """``16 (V + E)``, the processed events of one analysis."""
    return MAX_VISITS * (graph.event_count + graph.edge_count)


def execute(
    graph: EventGraph,
    order: TieOrder = TieOrder.EVENT_INDEX,
    *,
    generations: int = 1,
) -> Execution | Unavailable:
    """Let every event happen ``generations`` times; keep all times.

    One generation is the latency mode: nothing follows the first inference.
    Storage: ``2 V generations`` times.
    """
    fault = time_range_fault(graph, generations)
    if fault is not None:
        return fault
    run = TokenExecution(graph, order, generations=generations, record_all=True)
    while (stop := run.advance()) is Stop.CHECKPOINT:
        pass
    if stop is Stop.STORAGE_LIMIT:
        return Unavailable(run.why(stop))
    return Execution(
        order=order,
        ready_ns=run.ready_ns,
        finish_ns=run.finish_ns,
        processed_events=run.processed_events,
        max_request_wait_ns=run.max_request_wait_ns,
    )


class WindowSearch:
    """Looks for the first pair of agreeing windows of a running execution."""

    def __init__(self, run: TokenExecution) -> None:
        self._run = run
        self.next_generation = 0

    def search(self, exact_ns: Fraction | None = None) -> Window | None:
        """Try the starting generations that have become complete.

        Args:
            exact_ns: the proved interval, if known.  Windows in a transient may agree
                by accident; such a pair is passed over.
        """
        complete = self._run.completed_generations
        if self.next_generation + 2 * WINDOW >= complete:
            return None
        times = self._run.completion_times_ns()
        while self.next_generation + 2 * WINDOW < complete:
            first = self.next_generation
            self.next_generation += 1
            interval = _agreed_interval(times, first)
            if interval is not None and (
                exact_ns is None or within_agreement(interval, exact_ns)
            ):
                return Window(first, interval, self._core_waits(first))
        return None

    def _core_waits(self, first: int) -> tuple[tuple[int, int], ...]:
        body = self._run.core_wait_ns[:, first + 1 : first + 1 + 2 * WINDOW]
        return tuple(
            (int(core), int(wait))
            for core, wait in zip(self._run.cores, body.sum(axis=1), strict=True)
            if core >= 0
        )


def within_agreement(interval: Fraction, exact: Fraction) -> bool:
    """True when ``interval`` deviates from ``exact`` by at most one percent."""
    return AGREEMENT * abs(interval - exact) <= exact


def _agreed_interval(times: Int64Array, first: int) -> Fraction | None:
    """Mean interval of the slowest core if both windows agree on every core."""
    early = times[:, first + WINDOW] - times[:, first]
    late = times[:, first + 2 * WINDOW] - times[:, first + WINDOW]
    if np.any(AGREEMENT * np.abs(late - early) > np.maximum(early, late)):
        return None
    return Fraction(int((early + late).max()), 2 * WINDOW)


def measure_queue(
    graph: EventGraph, order: TieOrder = TieOrder.EVENT_INDEX
) -> QueueMeasurement | Unavailable:
    """The windows' interval estimate under one tie order; proves nothing.

    Returns:
        A measurement whose ``window`` may itself be :class:`Unavailable` (limits of
        64 generations and ``16 (V + E)`` processed events), or :class:`Unavailable`
        when times leave the supported range.
    """
    fault = time_range_fault(graph, MAX_GENERATIONS)
    if fault is not None:
        return fault
    run = TokenExecution(graph, order, event_limit=event_limit(graph))
    windows = WindowSearch(run)
    window: Window | Unavailable | None = None
    while window is None:
        stop = run.advance()
        window = windows.search()
        if window is None and stop is not Stop.CHECKPOINT:
            window = Unavailable(f"no two adjacent windows agree: {run.why(stop)}")
    return QueueMeasurement(
        order=order,
        window=window,
        max_request_wait_ns=run.max_request_wait_ns,
        processed_events=run.processed_events,
        generations=run.max_generations,
    )


def _widened(table: Int64Array, columns: int, fill: int) -> Int64Array:
    more = np.full((len(table), columns), fill, np.int64)
    return np.concatenate([table, more], axis=1)


def _node_table(graph: EventGraph, recorded: Int32Array) -> Int64Array:
    """``[V, 8]`` state and structure of each event, one cache line each."""
    events = graph.event_count
    in_degree = np.bincount(graph.edge_dst, minlength=events)
    furthest = np.zeros(events, np.int64)
    np.maximum.at(furthest, graph.edge_dst, graph.edge_distance)
    # A ring holds all initial tokens: 2 places, or the power of two above them.
    _, bits = np.frexp(np.maximum(furthest, 1))
    width = np.int64(1) << bits.astype(np.int64)
    node = np.zeros((events, 8), np.int64)
    node[1:, kernel.RING_BASE] = np.cumsum(width)[:-1]
    node[:, kernel.RING_MASK] = width - 1
    node[:, kernel.IN_DEGREE] = in_degree
    node[:, kernel.OUT_BEGIN] = graph.edge_ptr[:-1]
    node[:, kernel.OUT_END] = graph.edge_ptr[1:]
    node[:, kernel.START] = graph.start_ns
    in_heap = (furthest > 0) | (graph.server >= 0) | (in_degree == 0)
    role = (graph.server.astype(np.int64) + 1) << kernel.SERVER_SHIFT
    role |= np.where(in_heap, kernel.IN_HEAP, 0)
    role[recorded] |= kernel.RECORDED
    node[:, kernel.ROLE] = role
    return node
