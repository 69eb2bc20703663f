"""Complete-state recurrence: a proof that an execution is periodic from here on.

The future of an execution depends only on what has not happened yet: how far each
event has come, the tokens that wait, and when each server becomes free, all relative
to the present generation and time.  What lies in the past matters only as "already
there", so past times count as the present.  When one such state is seen again, the
execution repeats for ever, and its interval is exactly the time between the two
sightings over the generations between them.

States are found by a hash and compared in full: the hash proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from raptor_cp.periodic.queue_engine import (
    MAX_GENERATIONS,
    Stop,
    TieOrder,
    TokenExecution,
    event_limit,
    time_range_fault,
)
from raptor_cp.periodic.token_kernel import (
    FIRED,
    IN_DEGREE,
    RING_BASE,
    RING_MASK,
)
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import (
        EventGraph,
        Int16Array,
        Int64Array,
    )

#: Bytes of stored states of one analysis.
MAX_STATE_BYTES = 256 * 2**20
#: Per state: arrays' headers and the record around them, a generous round figure.
_STATE_OVERHEAD = 1024


class Start(StrEnum):
    """Where the attempt that proved a recurrence began, in the order of trying."""

    COLD = "cold"  #: every edge holds its initial tokens, all available at time 0
    CONTINUED = "continued"  #: the state in which the cold execution met its limits
    PACED = "paced"  #: everything waits for the critical cycle


@dataclass(frozen=True, slots=True)
class RecurrenceProof:
    """The execution repeats: ``t(v, k + p) == t(v, k) + period_ns`` for every event
    ``v`` and every ``k >= transient_generations``, ``p = period_generations``.

    Attributes:
        transient_ns: time of the first of the two equal states.
        processed_events, stored_bytes: what the proof took.
        start: generations and times are counted from the cold start, or, if this is
            ``paced``, from the paced one.
    """

    order: TieOrder
    transient_generations: int
    transient_ns: int
    period_generations: int
    period_ns: int
    processed_events: int
    stored_bytes: int
    start: Start = Start.COLD

    @property
    def interval_ns(self) -> Fraction:
        """Exact initiation interval, ns per generation."""
        return Fraction(self.period_ns, self.period_generations)

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "start": self.start.value,
            "transient_generations": self.transient_generations,
            "transient_ns": self.transient_ns,
            "period_generations": self.period_generations,
            "period_ns": self.period_ns,
            "interval_ns": ns_for_json(self.interval_ns),
        }


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    generation: int
    now_ns: int
    furthest: int
    progress: Int16Array
    pending: Int64Array
    server_free_ns: Int64Array

    @property
    def stored_bytes(self) -> int:
        return (
            self.progress.nbytes
            + self.pending.nbytes
            + self.server_free_ns.nbytes
            + _STATE_OVERHEAD
        )

    def equals(self, other: _State) -> bool:
        return (
            np.array_equal(self.progress, other.progress)
            and np.array_equal(self.pending, other.pending)
            and np.array_equal(self.server_free_ns, other.server_free_ns)
        )


@njit(cache=True)
def _count_pending(node: Int64Array, ring: Int64Array) -> int:
    """Generations of all events for which some but not necessarily all tokens wait."""
    found = 0
    for event in range(node.shape[0]):
        base = node[event, RING_BASE]
        for slot in range(base, base + node[event, RING_MASK] + 1):
            if ring[slot, 1] != node[event, IN_DEGREE]:
                found += 1
    return found


@njit(cache=True)
def _capture(
    node: Int64Array,
    ring: Int64Array,
    generation: int,
    now: int,
    progress: Int16Array,
    pending: Int64Array,
) -> int:
    """Fill progress ``[V]`` and pending ``[n, 3]``; return a hash of both.

    A row of ``pending`` is (event, generations ahead and tokens missing, latest token
    time after ``now``).  Which tokens are missing follows from the progress of their
    sources.
    """
    mixed = np.uint64(14695981039346656037)
    prime = np.uint64(1099511628211)
    row = 0
    for event in range(node.shape[0]):
        fired = node[event, FIRED]
        ahead = fired - generation
        progress[event] = ahead
        mixed = (mixed ^ np.uint64(ahead + 2**15)) * prime
        base = node[event, RING_BASE]
        mask = node[event, RING_MASK]
        for step in range(mask + 1):
            slot = base + ((fired + step) & mask)
            missing = ring[slot, 1]
            if missing != node[event, IN_DEGREE]:
                after = max(ring[slot, 0] - now, 0)
                pending[row, 0] = event
                pending[row, 1] = (np.int64(step) << 32) | missing
                pending[row, 2] = after
                mixed = (mixed ^ np.uint64(event)) * prime
                mixed = (mixed ^ np.uint64(pending[row, 1])) * prime
                mixed = (mixed ^ np.uint64(after)) * prime
                row += 1
    return int(mixed >> np.uint64(1))


class StateHistory:
    """The states seen at the checkpoints of one execution."""

    def __init__(
        self,
        run: TokenExecution,
        *,
        byte_limit: int = MAX_STATE_BYTES,
        start: Start = Start.COLD,
    ) -> None:
        self._run = run
        self.start = start
        self._byte_limit = byte_limit
        self._states: dict[int, list[_State]] = {}
        # Before the last bootstrap offset has passed, states are not comparable.
        self._settled_ns = int(run.graph.start_ns.max())
        self.stored_bytes = 0
        self.full = False

    def observe(self) -> RecurrenceProof | None:
        """Take the present state; a proof if it was there before.

        Call it at checkpoints.  Once the stored states reach the byte limit nothing
        more is stored (``full``).
        """
        run = self._run
        if self.full or run.blocked or run.now_ns < self._settled_ns:
            return None
        fingerprint, state = self._present()
        alike = self._states.setdefault(fingerprint, [])
        for earlier in alike:
            if earlier.equals(state):
                return RecurrenceProof(
                    order=run.order,
                    transient_generations=earlier.furthest,
                    transient_ns=earlier.now_ns,
                    period_generations=state.generation - earlier.generation,
                    period_ns=state.now_ns - earlier.now_ns,
                    processed_events=run.processed_events,
                    stored_bytes=self.stored_bytes,
                    start=self.start,
                )
        if self.stored_bytes + state.stored_bytes > self._byte_limit:
            self.full = True
            return None
        self.stored_bytes += state.stored_bytes
        alike.append(state)
        return None

    def why_unproved(self, stop: Stop) -> str:
        """The reason without a final full stop."""
        if self.full:
            return (
                "stored states would exceed "
                f"{self._byte_limit} bytes ({self.stored_bytes} in use)"
            )
        return f"no state was seen twice: {self._run.why(stop)}"

    def _present(self) -> tuple[int, _State]:
        run = self._run
        generation, now = run.reference_generations, run.now_ns
        progress = np.empty(run.graph.event_count, np.int16)
        pending = np.empty((_count_pending(run.node, run.ring), 3), np.int64)
        fingerprint = _capture(run.node, run.ring, generation, now, progress, pending)
        free = np.maximum(run.server_free_ns - now, 0)
        return int(fingerprint), _State(
            generation=generation,
            now_ns=now,
            furthest=generation + int(progress.max()),
            progress=progress,
            pending=pending,
            server_free_ns=free,
        )


def prove_recurrence(
    graph: EventGraph,
    order: TieOrder = TieOrder.EVENT_INDEX,
    *,
    byte_limit: int = MAX_STATE_BYTES,
) -> RecurrenceProof | Unavailable:
    """Run until a complete state returns, within the limits of the analysis.

    Limits: 64 generations of one event, ``16 (V + E)`` processed events,
    ``byte_limit`` bytes of stored states.  A graph of uncoupled parts may never recur
    as a whole: see :func:`raptor_cp.periodic.dependency_order.coupled_parts`.
    """
    fault = time_range_fault(graph, MAX_GENERATIONS)
    if fault is not None:
        return fault
    run = TokenExecution(graph, order, event_limit=event_limit(graph))
    history = StateHistory(run, byte_limit=byte_limit)
    while not history.full and (stop := run.advance()) is Stop.CHECKPOINT:
        proof = history.observe()
        if proof is not None:
            return proof
    return Unavailable(history.why_unproved(stop))
