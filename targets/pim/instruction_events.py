"""The event graph of a program, by the recipe of the execution model.

S is the start, C the commit of an instruction; a message leaves a core's switch
when the one before has left, travels, and frees the switch on arrival.  Because
the reorder buffer holds one instruction, the order in a switch is program order,
permissions of receives included; only the global memory needs arbitration.

Per communication instruction the graph has these events (times marked ``*`` are
what the core continues from):

======  =========================  ============================================
LD ST   ``load*`` / ``store*``     request to the memory controller (controller
                                   model), or its dispatch where the switch may
                                   still be busy (base model); otherwise none
SEND    ``ready``, ``payload``     arrival of the control message and of the data
RECV    ``permission``             arrival of the answer at the sender: the SEND
                                   continues from here, the RECV from ``payload``
SYNC    ``signal``                 arrival at the waiting core
WAIT    ``wait*``                  commit of the wait
======  =========================  ============================================

With a clock slower than 1 ns commits wait for its next edge.  Starts lie on edges, so
an end is a known time after one: SEND and RECV then get an event of their own for the
commit (``sent*``, ``received*``) that takes the rounded time from either start.

plus ``entry`` and ``exit`` of every core, which a distance-one edge joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import Unresolved
from raptor_cp.periodic.event_graph import Access, EventGraph
from raptor_cp.targets.pim import timing_arrays as arrays
from raptor_cp.targets.pim.event_types import (
    EventOptions,
    InstructionEvents,
    SignalGroup,
)
from raptor_cp.targets.pim.instruction_scan import CoreScan, Item, scan_core
from raptor_cp.targets.pim.isa import EVENT_REGISTERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.targets.pim.artifact import Program
    from raptor_cp.targets.pim.timing import PimTiming

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["EventOptions", "InstructionEvents", "SignalGroup", "build_events"]

MEMORY_SERVER = "global memory"
KINDS = (
    "entry",
    "exit",
    "load",
    "store",
    "ready",
    "payload",
    "permission",
    "signal",
    "wait",
    "sent",
    "received",
)
_KIND = {name: index for index, name in enumerate(KINDS)}
_FIRST_KIND = {
    Item.ENTRY: "entry",
    Item.EXIT: "exit",
    Item.LD: "load",
    Item.ST: "store",
    Item.SEND: "ready",
    Item.RECV: "permission",
    Item.SYNC: "signal",
    Item.WAIT: "wait",
}


def build_events(
    program: Program, timing: PimTiming, options: EventOptions
) -> InstructionEvents:
    """Scan all cores, one file at a time, and join their sequences.

    Raises:
        Unresolved: the program is not a single-rate graph (a register gets another
            number of signals than its waits take), or times leave the range.
    """
    scans = [
        scan_core(core, timing, issue=options.issue) for core in program.active_cores
    ]
    return _Assembly(scans, timing, options).events()


class _Assembly:
    """All sequences one after the other, ENTRY ... EXIT each, as flat arrays."""

    def __init__(
        self, scans: list[CoreScan], timing: PimTiming, options: EventOptions
    ) -> None:
        self._scans = scans
        self._timing = timing
        self._options = options
        self._kind = np.concatenate([scan.kind for scan in scans])
        self._gap = np.concatenate([scan.gap_ns for scan in scans])
        self._size = np.concatenate([scan.size for scan in scans])
        self._peer = np.concatenate([scan.peer for scan in scans])
        self._register = np.concatenate([scan.register for scan in scans])
        self._value = np.concatenate([scan.value for scan in scans])
        lengths = np.array([len(scan.kind) for scan in scans])
        self._core = np.repeat(np.array([scan.core for scan in scans]), lengths)
        self._entry = np.repeat(np.cumsum(lengths) - lengths, lengths)
        self._index = np.arange(len(self._kind))
        self._src: list[Ints] = []
        self._dst: list[Ints] = []
        self._delay: list[Ints] = []
        self._distance: list[Ints] = []

    def events(self) -> InstructionEvents:
        """Build everything; see the module."""
        # Commits after a message need rounding to edges of their own.
        self._rounded = self._options.issue and self._timing.period_ns > 1
        self._match_transfers()
        self._price_messages()
        self._find_earlier_messages()
        self._number_events()
        self._price_items()
        self._add_program_edges()
        self._add_switch_edges()
        self._add_transfer_edges()
        groups = self._add_signal_edges()
        return self._finish(groups)

    def _is(self, *items: Item) -> Bools:
        mask: Bools = np.isin(self._kind, [int(item) for item in items])
        return mask

    def _match_transfers(self) -> None:
        """The m-th SEND from s to r meets the m-th RECV of that pair."""
        sends = np.flatnonzero(self._kind == Item.SEND)
        receives = np.flatnonzero(self._kind == Item.RECV)
        self._sends = sends[np.lexsort((self._peer[sends], self._core[sends]))]
        self._receives = receives[
            np.lexsort((self._core[receives], self._peer[receives]))
        ]

    def _price_messages(self) -> None:
        """Travel time of the message that each item puts into its switch first."""
        timing = self._timing
        memory = self._is(Item.LD, Item.ST)
        target = np.where(memory, timing.cores, self._peer)
        store = self._kind == Item.ST
        self._sending = self._is(Item.LD, Item.ST, Item.SEND, Item.RECV, Item.SYNC)
        self._travel = np.zeros(len(self._kind), dtype=np.int64)
        some = self._sending
        size = np.where(store[some], self._size[some], 1)
        self._travel[some] = arrays.link_ns(
            timing, self._core[some], target[some], size
        )
        flits = arrays.ceil_div_array(size, timing.bus_width)
        self._energy = float(
            (flits * timing.link_energy_pj[self._core[some], target[some]]).sum()
        )
        sends = self._sends
        self._payload = arrays.link_ns(
            timing, self._core[sends], self._peer[sends], self._size[sends]
        )
        flits = arrays.ceil_div_array(self._size[sends], timing.bus_width)
        energy = timing.link_energy_pj[self._core[sends], self._peer[sends]]
        self._energy += float((flits * energy).sum())

    def _find_earlier_messages(self) -> None:
        """Per sending item: the item whose message its switch sent before.

        Before a core's first message comes its last one, a generation earlier.
        """
        index = np.where(self._sending, self._index, -1)
        latest = np.maximum.accumulate(index)
        before = np.concatenate(([-1], latest[:-1]))
        wrapped = before < self._entry
        starts = np.unique(self._entry)
        exits = np.append(starts[1:], len(self._kind)) - 1
        last = latest[exits][np.searchsorted(starts, self._entry)]
        self._earlier = np.where(wrapped, last, before)
        self._earlier_distance = wrapped.astype(np.int64)
        # After LD, ST and RECV the switch is free before the core goes on.
        lingering = self._is(Item.SEND, Item.SYNC)
        self._must_queue = self._sending & lingering[self._earlier]
        if not self._options.network_queues:
            self._must_queue[:] = False

    def _number_events(self) -> None:
        """Events of an item are consecutive, items are in program order."""
        memory = self._is(Item.LD, Item.ST)
        if self._options.memory_controller:
            self._silent = np.zeros(len(self._kind), dtype=np.bool_)
        else:
            self._silent = memory & ~self._must_queue
        count = np.where(self._silent, 0, 1) + (self._kind == Item.SEND)
        if self._rounded:
            count += self._is(Item.SEND, Item.RECV)
        self._first = np.cumsum(count) - count
        self._events = int(count.sum())

    def _price_items(self) -> None:
        """Time from an item's reference (see ``_reference``) to the core's commit."""
        timing, issue = self._timing, self._options.issue
        period = timing.period_ns
        after = np.zeros(len(self._kind), dtype=np.int64)
        head = np.zeros(len(self._kind), dtype=np.int64)
        service = np.zeros(len(self._kind), dtype=np.int64)
        energy = 0.0
        for item in (Item.LD, Item.ST):
            chosen = np.flatnonzero(self._kind == item)
            size, travel = self._size[chosen], self._travel[chosen]
            beats = float(arrays.ceil_div_array(size, timing.local.width).sum())
            requests = float(arrays.ceil_div_array(size, timing.memory.width).sum())
            if item is Item.LD:
                served = arrays.memory_read_ns(timing, size)
                lead = np.zeros(len(chosen), dtype=np.int64)
                last = arrays.local_write_ns(timing, size)
                execution = travel + served + last
                energy += beats * timing.local.write_energy_pj
                energy += requests * timing.memory.read_energy_pj
            else:
                served = arrays.memory_write_ns(timing, size)
                lead = arrays.local_read_ns(timing, size)
                last = execution = lead + travel + served
                energy += beats * timing.local.read_energy_pj
                energy += requests * timing.memory.write_energy_pj
            whole = (
                arrays.occupancy_ns(
                    timing,
                    execution,
                    None if item is Item.ST else last,
                    late=item is Item.ST,
                    outside=item is Item.LD,
                )
                if issue
                else execution
            )
            head[chosen] = lead
            service[chosen] = served
            if self._options.memory_controller:
                after[chosen] = whole - lead - travel - served
            else:
                after[chosen] = whole - np.where(self._silent[chosen], 0, lead)
        sends, receives = self._sends, self._receives
        self._send_read = arrays.local_read_ns(timing, self._size[sends])
        write = arrays.local_write_ns(timing, self._size[receives])
        self._receive_write = write
        if not self._rounded:
            after[sends], after[receives] = self._send_read, write
            if issue:
                after[sends] += arrays.retire_ns(timing, self._send_read)
                after[receives] += arrays.retire_ns(timing, write)
        energy += timing.local.read_energy_pj * float(
            arrays.ceil_div_array(self._size[sends], timing.local.width).sum()
        )
        energy += timing.local.write_energy_pj * float(
            arrays.ceil_div_array(self._size[receives], timing.local.width).sum()
        )
        after[self._kind == Item.SYNC] = 3 * period if issue else period
        total = int(service.sum(dtype=np.float64))
        arrays.in_range(total >> 10, "the global memory's service")
        self._after, self._head, self._service = after, head, service
        self._energy += energy

    def _add_program_edges(self) -> None:
        """Each item starts when the one before has committed, plus the gap."""
        # Items without an event of their own to continue from pass time through.
        passing = self._silent | (self._kind == Item.SYNC)
        anchor = np.maximum.accumulate(np.where(passing, -1, self._index))
        before = np.concatenate(([0], anchor[:-1]))
        elapsed = self._gap + np.concatenate(([0], self._after[:-1]))
        arrays.in_range(
            int(elapsed.sum(dtype=np.float64)) >> 10, "one generation of the program"
        )
        total = np.cumsum(elapsed)
        start = total - total[before]
        # What the core continues from: its own event, or the partner's.
        reference = self._first.copy()
        reference[self._sends] = self._first[self._receives]
        reference[self._receives] = self._first[self._sends] + 1
        if self._rounded:
            reference[self._sends] = self._first[self._sends] + 2
            reference[self._receives] = self._first[self._receives] + 1
        # An item starts ``start`` ns after the event ``from_event``.
        self._from_event, self._start = reference[before], start
        travel = self._travel.copy()
        if not self._options.memory_controller:
            travel[self._is(Item.LD, Item.ST)] = 0
        if self._options.issue:
            travel[self._kind == Item.WAIT] = 2 * self._timing.period_ns
        chosen = np.flatnonzero(~self._silent & (self._kind != Item.ENTRY))
        delay = start + self._head + travel
        self._edges(reference[before[chosen]], self._first[chosen], delay[chosen])
        exits = self._first[self._kind == Item.EXIT]
        entries = self._first[self._kind == Item.ENTRY]
        wrap = np.array([scan.wrap_ns for scan in self._scans])
        self._edges(exits, entries, wrap, 1)

    def _add_switch_edges(self) -> None:
        """A message leaves when the one before has arrived."""
        chosen = np.flatnonzero(self._must_queue)
        earlier = self._earlier[chosen]
        # The last message of a SEND is its payload.
        free = self._first[earlier] + (self._kind[earlier] == Item.SEND)
        travel = self._travel[chosen]
        if not self._options.memory_controller:
            travel = np.where(self._is(Item.LD, Item.ST)[chosen], 0, travel)
        self._edges(free, self._first[chosen], travel, self._earlier_distance[chosen])

    def _add_transfer_edges(self) -> None:
        """READY -> permission -> payload."""
        ready = self._first[self._sends]
        permission = self._first[self._receives]
        answer = self._travel[self._receives]
        self._edges(ready, permission, answer)
        self._edges(permission, ready + 1, self._send_read + self._payload)
        if self._options.network_queues:
            # The sender's switch is busy 1 ns longer than the READY travels.
            close = np.flatnonzero(answer + self._send_read < 1)
            self._edges(ready[close], ready[close] + 1, 1 + self._payload[close])
        if self._rounded:
            self._add_rounded_commits()

    def _add_rounded_commits(self) -> None:
        """Commits of transfers: from either start, rounded; at least the end."""
        timing = self._timing
        sends, receives = self._sends, self._receives
        answer = self._travel[receives]
        read, write = self._send_read, self._receive_write
        sent, received = self._first[sends] + 2, self._first[receives] + 1
        whole = answer + read + self._payload + write
        for commit, execution, last in (
            (sent, answer + read, read),
            (received, whole, write),
        ):
            for start, lead in ((sends, self._travel[sends]), (receives, 0)):
                occupied = arrays.occupancy_ns(
                    timing, execution + lead, last, outside=True
                )
                self._edges(
                    self._from_event[start], commit, self._start[start] + occupied
                )
        self._edges(self._first[receives], sent, read + arrays.retire_ns(timing, read))
        self._edges(
            self._first[sends] + 1, received, write + arrays.retire_ns(timing, write)
        )

    def _add_signal_edges(self) -> tuple[SignalGroup, ...]:
        """Each WAIT joins the signals that it consumes, distance zero."""
        signals = np.flatnonzero(self._kind == Item.SYNC)
        waits = np.flatnonzero((self._kind == Item.WAIT) & (self._value > 0))
        signal_key = self._peer[signals] * EVENT_REGISTERS + self._register[signals]
        wait_key = self._core[waits] * EVENT_REGISTERS + self._register[waits]
        signals = signals[np.argsort(signal_key, kind="stable")]
        waits = waits[np.argsort(wait_key, kind="stable")]
        signal_key, wait_key = np.sort(signal_key), np.sort(wait_key)
        used = np.isin(signal_key, wait_key)
        signals, signal_key = signals[used], signal_key[used]
        keys, first_wait = np.unique(wait_key, return_index=True)
        first_signal = np.searchsorted(signal_key, keys, side="left")
        past_signal = np.searchsorted(signal_key, keys, side="right")
        past_wait = np.append(first_wait[1:], len(waits))
        groups = []
        for position, key in enumerate(keys.tolist()):
            mine = waits[first_wait[position] : past_wait[position]]
            arriving = signals[first_signal[position] : past_signal[position]]
            groups.append(self._group(key, mine, arriving))
        consumer = np.repeat(waits, self._value[waits])
        # First clock edge strictly after the arrival, and one period to retire.
        delay = self._timing.period_ns + 1 if self._options.issue else 0
        self._edges(
            self._first[signals],
            self._first[consumer],
            np.full(len(consumer), delay, dtype=np.int64),
        )
        if self._rounded:
            occupied = arrays.occupancy_ns(
                self._timing, self._travel[signals], late=True
            )
            self._edges(
                self._from_event[signals],
                self._first[consumer],
                self._start[signals] + occupied,
            )
        return tuple(groups)

    def _group(self, key: int, waits: Ints, signals: Ints) -> SignalGroup:
        core, register = divmod(key, EVENT_REGISTERS)
        values = self._value[waits]
        taken = sum(values.tolist())
        name = f"event register {register} of core {core}"
        if taken != len(signals):
            raise Unresolved(
                f"{name} gets {len(signals)} signals a generation but its waits take "
                f"{taken}: its cores cannot run at one rate"
            )
        sources = tuple(np.unique(self._core[signals]).tolist())
        if len(waits) > 1 and len(sources) > 1:
            raise Unresolved(
                f"{name} has {len(waits)} waits and {len(sources)} signalling cores: "
                "which signal ends which wait depends on time"
            )
        ends = np.cumsum(values)
        events = self._first[signals].tolist()
        return SignalGroup(
            core=core,
            register=register,
            waits=tuple(self._first[waits].tolist()),
            signals=tuple(
                tuple(events[end - value : end])
                for end, value in zip(ends.tolist(), values.tolist(), strict=True)
            ),
            sources=sources,
        )

    def _edges(
        self, source: Ints, target: Ints, delay: Ints, distance: Ints | int = 0
    ) -> None:
        self._src.append(source)
        self._dst.append(target)
        self._delay.append(delay)
        self._distance.append(
            np.full(len(source), distance, dtype=np.int64)
            if isinstance(distance, int)
            else distance
        )

    def _finish(self, groups: tuple[SignalGroup, ...]) -> InstructionEvents:
        timing = self._timing
        delays = np.concatenate(self._delay)
        arrays.in_range(int(delays.max(initial=0)), "a part of one generation")
        named = ~self._silent
        event = self._first[named]
        core = np.zeros(self._events, dtype=np.int64)
        kind = np.zeros(self._events, dtype=np.int64)
        core[event] = self._core[named]
        lookup = np.zeros(max(Item) + 1, dtype=np.int64)
        for item, name in _FIRST_KIND.items():
            lookup[item] = _KIND[name]
        kind[event] = lookup[self._kind[named]]
        payload = self._first[self._sends] + 1
        core[payload] = self._core[self._sends]
        kind[payload] = _KIND["payload"]
        if self._rounded:
            for items, offset, name in (
                (self._sends, 2, "sent"),
                (self._receives, 1, "received"),
            ):
                commit = self._first[items] + offset
                core[commit] = self._core[items]
                kind[commit] = _KIND[name]
        link, labels = self._links(payload)
        start = np.zeros(self._events, dtype=np.int64)
        entries = self._first[self._kind == Item.ENTRY]
        # start(first) = (3 + k)P, of which (1 + k)P is its own issue.
        start[entries] = 2 * timing.period_ns if self._options.issue else 0
        memory = self._is(Item.LD, Item.ST)
        server = np.full(self._events, -1, dtype=np.int64)
        service = np.zeros(self._events, dtype=np.int64)
        access = np.zeros(self._events, dtype=np.int64)
        if self._options.memory_controller:
            requests = self._first[memory]
            server[requests] = 0
            service[requests] = self._service[memory]
            access[requests] = np.where(
                self._kind[memory] == Item.LD, Access.READ, Access.WRITE
            )
        exits = self._first[self._kind == Item.EXIT]
        cores = [scan.core for scan in self._scans]
        work = np.array([scan.work_ns for scan in self._scans], dtype=np.int64)
        graph = EventGraph.from_arrays(
            core=core,
            kind=kind,
            link=link,
            start_ns=start,
            server=server,
            service_ns=service,
            access=access,
            kind_labels=KINDS,
            link_labels=labels,
            server_labels=(MEMORY_SERVER,),
            completion=exits,
            edge_src=np.concatenate(self._src),
            edge_dst=np.concatenate(self._dst),
            edge_delay_ns=delays,
            edge_distance=np.concatenate(self._distance),
            work_core=np.array(cores, dtype=np.int64),
            work_ns=work,
        )
        return InstructionEvents(
            graph=graph,
            cores=tuple(cores),
            exit_event=exits,
            instructions=sum(scan.instructions for scan in self._scans),
            work_ns=work,
            requests=int(memory.sum()),
            memory_service_ns=int(self._service.sum()),
            energy_pj=self._energy + sum(scan.energy_pj for scan in self._scans),
            groups=groups,
            softmax=sum(scan.softmax for scan in self._scans),
            endless_cores=tuple(s.core for s in self._scans if s.ends_in_slot),
        )

    def _links(self, payload: Ints) -> tuple[Ints, list[str]]:
        """Label numbers ``source->target`` of the events that messages cause."""
        link = np.full(self._events, -1, dtype=np.int64)
        chosen = self._sending & ~self._silent
        memory = self._timing.cores
        target = np.where(self._peer < 0, memory, self._peer)
        codes = np.concatenate(
            (
                self._core[chosen] * (memory + 1) + target[chosen],
                self._core[self._sends] * (memory + 1) + target[self._sends],
            )
        )
        pairs, number = np.unique(codes, return_inverse=True)
        link[np.concatenate((self._first[chosen], payload))] = number
        labels = []
        for code in pairs.tolist():
            source, end = divmod(code, memory + 1)
            labels.append(f"{source}->{'memory' if end == memory else end}")
        return link, labels
