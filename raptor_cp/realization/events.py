"""Execution plan -> event graph, with the times of any target.

One event sequence per core: an ``entry``, one event for each item that takes part in
waiting, an ``exit``, and a distance-one edge from exit to entry.  A core's switch
(outgoing messages in order) adds at most one more distance-one edge, so that there
are 2P recurrence edges at most.  Compute runs are atomic: one event each.

The two ends of a direct transfer share one event, the permission: it happens when
both have arrived, and everything later on either core is a fixed time behind it.

A load or store of several runs is that many requests in a row.  When the plan has
more than ``REQUEST_LIMIT`` requests, each item keeps at most the largest power of two
of them that respects the limit, and one request stands for several consecutive
accesses: service and time on the core stay exact in sum, only the moments at which
other cores' requests can slip in between are fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np

from raptor_cp.periodic.event_graph import Access, EventGraph
from raptor_cp.realization.plan import (
    Load,
    Receive,
    Run,
    Send,
    Signal,
    Store,
    Wait,
)
from raptor_cp.units import MAX_NS, ceil_div
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from raptor_cp.realization.plan import DirectTransfer, ExecutionPlan, Item

#: Operation visits of one core in one generation (scheduling spec).
MAX_VISITS_PER_CORE = 1_000_000
#: Events besides runs of one candidate (scheduling spec).
MAX_NON_WORK_EVENTS = 2_000_000
#: Requests beyond which several accesses of one item become one request.
REQUEST_LIMIT = 2**15

KINDS = ("entry", "exit", "run", "load", "store", "transfer", "signal", "wait")
_ENTRY, _EXIT, _RUN, _LOAD, _STORE, _TRANSFER, _SIGNAL, _WAIT = range(len(KINDS))
MEMORY_SERVER = "shared memory"


@dataclass(frozen=True, slots=True)
class AccessTime:
    """One access to shared memory, ns.

    Attributes:
        before_ns: from the end of the previous item to arrival, switch idle.
        message_ns: from the moment the switch is free to arrival.
        service_ns: at the memory.
        after_ns: from the end of the service to the end of the item.
    """

    before_ns: int
    message_ns: int
    service_ns: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class DirectTime:
    """A direct transfer, ns; the permission is the moment both ends have arrived.

    Attributes:
        send_before_ns: end of the sender's previous item to the permission.
        send_message_ns: the sender's switch being free to the permission.
        receive_before_ns: end of the receiver's previous item to the permission.
        receive_message_ns: the receiver's switch being free to the permission.
        send_after_ns, receive_after_ns: permission to the end of each item.
        hold_ns: permission to the sender's switch being free again.
    """

    send_before_ns: int
    send_message_ns: int
    receive_before_ns: int
    receive_message_ns: int
    send_after_ns: int
    receive_after_ns: int
    hold_ns: int


@dataclass(frozen=True, slots=True)
class SignalTime:
    """A signal, ns.

    Attributes:
        before_ns: end of the previous item to its dispatch, switch idle.
        after_ns: end of the previous item to the end of this one.
        arrival_ns: dispatch to the end of the WAIT that it lets go.
        hold_ns: dispatch to the switch being free again.
    """

    before_ns: int
    after_ns: int
    arrival_ns: int
    hold_ns: int


class PlanTimes(Protocol):
    """What a target says about the items of a plan; all times are ns."""

    @property
    def first_ns(self) -> int:
        """Offset of the first generation."""
        ...

    @property
    def wait_ns(self) -> int:
        """End of the previous item to the end of a WAIT whose tokens are there."""
        ...

    def run(self, task: int, core: int) -> int:
        """End of the previous item to the end of one task."""
        ...

    def read(self, core: int, size: int) -> AccessTime:
        """One access of ``size`` bytes."""
        ...

    def write(self, core: int, size: int) -> AccessTime:
        """One access of ``size`` bytes."""
        ...

    def direct(self, transfer: DirectTransfer) -> DirectTime:
        """A direct transfer."""
        ...

    def signal(self, source: int, target: int) -> SignalTime:
        """A signal to another core."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PlanEvents:
    """The event graph of a plan and what it took.

    Attributes:
        graph: one generation.
        visits: operation visits of all cores; ``largest_visits`` of one core.
        non_work_events: events besides runs.
        requests: accesses to shared memory in one generation.
        request_events: events that stand for them (see the module).
        busy: [cores] (core, ns) occupied when nothing is waited for, cores rising.
        times: what the graph was made with.
        entries: [cores] event of each core's entry, in the order of the plan.
        first_events: [cores] first event of each item; the requests of one access
            follow each other.
        request_cap: requests of one access at most.
    """

    graph: EventGraph
    visits: int
    largest_visits: int
    non_work_events: int
    requests: int
    request_events: int
    busy: tuple[tuple[int, int], ...]
    times: PlanTimes
    entries: tuple[int, ...]
    first_events: tuple[tuple[int, ...], ...]
    request_cap: int


def extract_events(plan: ExecutionPlan, times: PlanTimes) -> PlanEvents | Unavailable:
    """Events of one generation of a plan that passed its checks.

    ``O(I + S)`` time and storage for I items and S signals.

    Returns:
        Unavailable when a limit is exceeded (visits of one core, events of the
        candidate) or a time leaves the supported range.
    """
    visits = [_visits(text.items) for text in plan.cores]
    for text, count in zip(plan.cores, visits, strict=True):
        if count > MAX_VISITS_PER_CORE:
            return Unavailable(
                f"core {text.core} has {count} operation visits in one generation, "
                f"more than {MAX_VISITS_PER_CORE}"
            )
    runs = np.array(
        [
            item.runs
            for text in plan.cores
            for item in text.items
            if isinstance(item, Load | Store)
        ],
        np.int64,
    )
    cap = _request_cap(runs)
    request_events = int(np.minimum(runs, cap).sum())
    others = sum(
        1
        for text in plan.cores
        for item in text.items
        if isinstance(item, Signal | Wait | Send)
    )
    non_work = request_events + others + 2 * len(plan.cores)
    if non_work > MAX_NON_WORK_EVENTS:
        return Unavailable(
            f"{non_work} events besides runs, more than {MAX_NON_WORK_EVENTS}"
        )
    walk = _Walk(plan, times, cap)
    for text in plan.cores:
        walk.core(text.core, text.items)
    graph = walk.finish()
    if isinstance(graph, Unavailable):
        return graph
    return PlanEvents(
        graph=graph,
        visits=sum(visits),
        largest_visits=max(visits),
        non_work_events=non_work,
        requests=int(runs.sum()),
        request_events=request_events,
        busy=tuple(walk.busy),
        times=times,
        entries=tuple(walk.entries),
        first_events=tuple(walk.first_events),
        request_cap=cap,
    )


def _visits(items: tuple[Item, ...]) -> int:
    count = 0
    for item in items:
        if isinstance(item, Load | Store):
            count += item.runs
        elif isinstance(item, Run):
            count += len(item.tasks)
        else:
            count += 1
    return count


def _request_cap(runs: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> int:
    cap = int(runs.max(initial=1))
    if int(runs.sum()) <= REQUEST_LIMIT:
        return cap
    cap = 1 << (cap.bit_length() - 1)
    while cap > 1 and int(np.minimum(runs, cap).sum()) > REQUEST_LIMIT:
        cap //= 2
    return cap


class _Walk:
    """Events and edges of all cores, one core after the other."""

    def __init__(self, plan: ExecutionPlan, times: PlanTimes, cap: int) -> None:
        self._plan, self._times, self._cap = plan, times, cap
        self._core: list[int] = []
        self._kind: list[int] = []
        self._link: list[int] = []
        self._start: list[int] = []
        self._service: list[int] = []
        self._access: list[int] = []
        self._src: list[int] = []
        self._dst: list[int] = []
        self._delay: list[int] = []
        self._wraps: list[tuple[int, int, int]] = []
        self._exits: list[int] = []
        self._work: list[int] = []
        self.busy: list[tuple[int, int]] = []
        self.entries: list[int] = []
        self.first_events: list[tuple[int, ...]] = []
        self._transfers: dict[int, int] = {}  #: direct transfer -> its event
        self._direct = [times.direct(transfer) for transfer in plan.direct]
        self._links: dict[tuple[int, int], int] = {}
        self._signals: list[tuple[int, int, int, int]] = []
        self._waits: dict[tuple[int, int], int] = {}
        # Sizes repeat a lot, and so do (source, target) pairs.
        self._reads: dict[int, AccessTime] = {}
        self._writes: dict[int, AccessTime] = {}

    def _event(self, core: int, kind: int) -> int:
        self._core.append(core)
        self._kind.append(kind)
        self._link.append(-1)
        self._start.append(0)
        self._service.append(0)
        self._access.append(0)
        return len(self._core) - 1

    def _edge(self, source: int, target: int, delay: int) -> None:
        self._src.append(source)
        self._dst.append(target)
        self._delay.append(delay)

    def core(self, core: int, items: tuple[Item, ...]) -> None:
        """Add the text of one core."""
        times = self._times
        entry = self._event(core, _ENTRY)
        self._start[entry] = times.first_ns
        self.entries.append(entry)
        firsts: list[int] = []
        # The previous item ends ``late`` after event ``at``; the switch is free
        # ``hold[1]`` after event ``hold[0]`` where that can be later.
        at, late = entry, 0
        hold: tuple[int, int] | None = None
        work = busy = 0
        first_message: tuple[int, int] | None = None
        self._reads.clear()
        self._writes.clear()

        def message(event: int, delay: int) -> None:
            """The event follows a message that leaves when the switch is free."""
            nonlocal first_message, hold
            if hold is not None:
                self._edge(hold[0], event, hold[1] + delay)
                hold = None
            if first_message is None:
                first_message = (event, delay)

        for item in items:
            if isinstance(item, Load | Store):
                reading = isinstance(item, Load)
                one = self._access_time(core, item, reading=reading)
                count = min(item.runs, self._cap)
                each, more = divmod(item.runs, count)
                cycle = one.before_ns + one.after_ns
                busy += item.runs * (cycle + one.service_ns)
                firsts.append(len(self._core))
                for number in range(count):
                    stands_for = each + (number < more)
                    event = self._event(core, _LOAD if reading else _STORE)
                    self._service[event] = stands_for * one.service_ns
                    self._access[event] = Access.READ if reading else Access.WRITE
                    self._edge(at, event, late + one.before_ns)
                    message(event, one.message_ns)
                    at, late = event, one.after_ns + (stands_for - 1) * cycle
            elif isinstance(item, Run):
                spent = sum([times.run(task, core) for task in item.tasks])
                event = self._event(core, _RUN)
                firsts.append(event)
                self._edge(at, event, late)
                at, late = event, spent
                work += spent
                busy += spent
            elif isinstance(item, Send):
                event = self._transfer(item.direct)
                firsts.append(event)
                direct = self._direct[item.direct]
                self._edge(at, event, late + direct.send_before_ns)
                message(event, direct.send_message_ns)
                busy += direct.send_before_ns + direct.send_after_ns
                at, late = event, direct.send_after_ns
                if direct.hold_ns > direct.send_after_ns:
                    hold = (event, direct.hold_ns)
            elif isinstance(item, Receive):
                event = self._transfer(item.direct)
                firsts.append(event)
                direct = self._direct[item.direct]
                self._edge(at, event, late + direct.receive_before_ns)
                message(event, direct.receive_message_ns)
                busy += direct.receive_before_ns + direct.receive_after_ns
                at, late = event, direct.receive_after_ns
            elif isinstance(item, Signal):
                signal = times.signal(core, item.core)
                event = self._event(core, _SIGNAL)
                firsts.append(event)
                self._edge(at, event, late + signal.before_ns)
                message(event, 0)
                self._signals.append(
                    (event, item.core, item.register, signal.arrival_ns)
                )
                busy += signal.after_ns
                # Its end does not depend on the switch: count from the item before.
                late += signal.after_ns
                hold = (event, signal.hold_ns)
            else:
                event = self._event(core, _WAIT)
                firsts.append(event)
                self._edge(at, event, late + times.wait_ns)
                self._waits[core, item.register] = event
                busy += times.wait_ns
                at, late = event, 0
        self.first_events.append(tuple(firsts))
        leave = self._event(core, _EXIT)
        self._edge(at, leave, late)
        self._exits.append(leave)
        self._wraps.append((leave, entry, 0))
        if hold is not None and first_message is not None:
            self._wraps.append((hold[0], first_message[0], hold[1] + first_message[1]))
        self._work.append(work)
        self.busy.append((core, busy))

    def _access_time(
        self, core: int, item: Load | Store, *, reading: bool
    ) -> AccessTime:
        known = self._reads if reading else self._writes
        size = ceil_div(item.size, item.runs)
        found = known.get(size)
        if found is None:
            found = (self._times.read if reading else self._times.write)(core, size)
            known[size] = found
        return found

    def _transfer(self, number: int) -> int:
        event = self._transfers.get(number)
        if event is None:
            transfer = self._plan.direct[number]
            event = self._event(transfer.destination, _TRANSFER)
            link = (transfer.source, transfer.destination)
            self._link[event] = self._links.setdefault(link, len(self._links))
            self._transfers[number] = event
        return event

    def finish(self) -> EventGraph | Unavailable:
        """Join signals and waits; build the graph."""
        for event, core, register, arrival in self._signals:
            self._edge(event, self._waits[core, register], arrival)
        wraps = self._wraps
        largest = max(chain(self._delay, self._service, self._work), default=0)
        if largest > MAX_NS:
            return Unavailable(
                f"a single step takes {largest} ns, more than the supported {MAX_NS}"
            )
        access = np.array(self._access, np.int64)
        distance = np.zeros(len(self._src) + len(wraps), np.int64)
        distance[len(self._src) :] = 1
        return EventGraph.from_arrays(
            core=np.array(self._core, np.int64),
            kind=np.array(self._kind, np.int64),
            link=np.array(self._link, np.int64),
            start_ns=np.array(self._start, np.int64),
            server=np.where(access > 0, 0, -1),
            service_ns=np.array(self._service, np.int64),
            access=access,
            kind_labels=KINDS,
            link_labels=tuple(f"{s}->{d}" for s, d in self._links),
            server_labels=(MEMORY_SERVER,),
            completion=np.array(self._exits, np.int64),
            edge_src=np.array(self._src + [w[0] for w in wraps], np.int64),
            edge_dst=np.array(self._dst + [w[1] for w in wraps], np.int64),
            edge_delay_ns=np.array(self._delay + [w[2] for w in wraps], np.int64),
            edge_distance=distance,
            work_core=np.array([text.core for text in self._plan.cores], np.int64),
            work_ns=np.array(self._work, np.int64),
        )
