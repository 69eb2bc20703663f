"""Execution plans: what every core does in one generation, in order.

A plan is immutable and self-contained; candidates share nothing mutable.  Terms and
rules: scheduling spec, "Periodic dependency diagnostics", and docs/realization.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor_cp.schedules import Schedule

#: Event registers of a core.  The simulator does not check the number.
REGISTERS = 32


class Policy(StrEnum):
    """How stages are coupled through shared memory."""

    DOUBLE_BUFFER = "double-buffer"
    RELEASE = "release"
    BARRIER = "barrier"


class CrossStage(StrEnum):
    """How a result reaches a later stage."""

    MEMORY = "memory"
    DIRECT = "direct"


class OrderRule(StrEnum):
    """How the linear order is made."""

    BLOCKING = "blocking"  #: list schedule; a transfer occupies both of its ends
    OVERLAPPING = "overlapping"  #: it only takes time; cores keep computing
    STEADY = "steady"  #: the order that repeats fastest of several, stage by stage


class Purpose(StrEnum):
    """What a signal means."""

    READY = "ready"  #: the publications of this generation are stored
    FREE = "free"  #: the reader has entered the next generation
    RELEASE = "release"  #: downstream release tree of the barrier policy
    BARRIER = "barrier"  #: a round of a dissemination barrier
    RESTART = "restart"  #: restart permission of the barrier policy


@dataclass(frozen=True, slots=True)
class Signal:
    """Add one token to a register of another core; does not block."""

    core: int
    register: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until ``count`` tokens are in the register, then take them."""

    register: int
    count: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Load:
    """Read from shared memory: a consumer transfer, or a baseline access.

    Exactly one of ``transfer``, ``baseline`` and ``edge`` (an explicit edge with
    bytes) is an index into the graph, the others are None.  ``size`` bytes in
    ``runs`` contiguous pieces.
    """

    transfer: int | None
    baseline: int | None
    size: int
    runs: int
    edge: int | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Write to shared memory: a publication, or a network output.

    Exactly one of ``publication``, ``baseline`` and ``edge`` is an index into the
    graph.  ``consumer`` is set only for a scalar projection, which is stored
    separately for each consumer transfer.
    """

    publication: int | None
    baseline: int | None
    size: int
    runs: int
    consumer: int | None = None
    edge: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive compatible tasks (lanes of one operation) of one core."""

    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Sending end of a direct transfer (index into ``ExecutionPlan.direct``)."""

    direct: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receiving end of a direct transfer."""

    direct: int


Item = Signal | Wait | Load | Store | Run | Send | Receive


@dataclass(frozen=True, slots=True)
class DirectTransfer:
    """One payload from core to core (rendezvous).

    Attributes:
        publication: what is sent; None for an explicit edge.
        source: sending core.
        destination: receiving core.
        size: bytes; 0 for an explicit edge that carries none.
        box: hull of what the consumers read; None when opaque.
        transfers: consumer transfers that this one serves.
        position: place in the one linear order of the generation, tasks included.
        edge: index of the explicit edge, None for a publication.
    """

    publication: int | None
    source: int
    destination: int
    size: int
    box: tuple[int, int, int, int, int, int] | None
    transfers: tuple[int, ...]
    position: int
    edge: int | None = None


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The text of one core: its items in order, repeated every generation."""

    core: int
    stage: int
    items: tuple[Item, ...]


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """A realized schedule.

    Attributes:
        schedule: the schedule it realizes.
        policy: synchronisation policy.
        cross_stage: form of cross-stage transfers.
        cores: active cores, ascending.
        direct: direct transfers in linear order.
        banks: for each publication that is stored its number of buffers, ascending.
        chains: signal-only (writer, reader) pairs that were added.
        edge_banks: the same as ``banks`` for explicit edges.
        expected_ns: interval that the steady order was chosen for: that of the order,
            at least the service of the shared memory; None under the other rules.
    """

    schedule: Schedule
    policy: Policy
    cross_stage: CrossStage
    cores: tuple[CorePlan, ...]
    direct: tuple[DirectTransfer, ...]
    banks: tuple[tuple[int, int], ...]
    chains: tuple[tuple[int, int], ...] = ()
    edge_banks: tuple[tuple[int, int], ...] = ()
    expected_ns: int | None = None

    def __repr__(self) -> str:
        return (
            f"<ExecutionPlan: {len(self.cores)} cores, {self.policy}, "
            f"{self.cross_stage}, {len(self.direct)} direct transfers>"
        )

    def registers_used(self) -> dict[int, tuple[int, ...]]:
        """Event registers of each core, ascending."""
        used: dict[int, set[int]] = {plan.core: set() for plan in self.cores}
        for plan in self.cores:
            for item in plan.items:
                if isinstance(item, Signal):
                    used[item.core].add(item.register)
                elif isinstance(item, Wait):
                    used[plan.core].add(item.register)
        return {core: tuple(sorted(regs)) for core, regs in used.items()}
