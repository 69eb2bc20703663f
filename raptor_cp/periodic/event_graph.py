"""Event graphs: what happens in every generation, and what waits for what.

An edge ``(u, v, w, d)`` states ``t(v, k) >= t(u, k - d) + w`` for every
generation ``k >= d`` (scheduling spec, "Periodic dependency diagnostics").  In the
token reading used by the queue engine it is a FIFO channel that holds ``d``
initial tokens, all available at time 0; a distance may be any non-negative
integer, so a bounded queue of ``n`` places is a credit edge of distance ``n``.

A *request* is an event that a FIFO server serves in order of arrival.  It arrives
when its incoming edges are satisfied and completes at
``max(arrival, server free) + service``; its outgoing edges start at completion.
Requests with a service time of zero join the queue like all others.

All arrays are flat and read-only; times are int64 nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor_cp.errors import MalformedInput
from raptor_cp.periodic.integer_checks import (
    MAX_ID,
    IntsLike,
    checked,
    summed_work,
)
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import networkx as nx

Int8Array = npt.NDArray[np.int8]
Int16Array = npt.NDArray[np.int16]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

#: Largest edge distance (initial tokens of one edge).
MAX_DISTANCE = 2**20
NONE = -1


class Access(IntEnum):
    """What a request does at its server; only reports look at it."""

    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, slots=True, eq=False)
class EventGraph:
    """One generation of events; ``V`` events, ``E`` edges sorted by source.

    Attributes:
        core: ``[V]`` physical core of each event, -1 where there is none.
        kind: ``[V]`` index into ``kind_labels``.
        link: ``[V]`` index into ``link_labels``, -1 where there is none.
        start_ns: ``[V]`` earliest time of the event (bootstrap offsets).
        server: ``[V]`` FIFO server of a request, -1 for a plain event.
        service_ns: ``[V]`` service time of a request, 0 for a plain event.
        access: ``[V]`` :class:`Access` of a request.
        completion: ``[C]`` events whose times define the interval: one per core,
            or, when none was named, every event without a distance-0 successor.
        edge_ptr: ``[V + 1]`` edges of source ``v`` are ``edge_ptr[v]`` up to
            ``edge_ptr[v + 1]``.
        edge_src, edge_dst: ``[E]`` event numbers.
        edge_delay_ns: ``[E]`` ns from (completion of) the source.
        edge_distance: ``[E]`` generations spanned.
        work_core, work_ns: compute work of one generation by core, cores rising.
    """

    kind_labels: tuple[str, ...]
    link_labels: tuple[str, ...]
    server_labels: tuple[str, ...]
    core: Int32Array
    kind: Int32Array
    link: Int32Array
    start_ns: Int64Array
    server: Int32Array
    service_ns: Int64Array
    access: Int8Array
    completion: Int32Array
    edge_ptr: Int64Array
    edge_src: Int32Array
    edge_dst: Int32Array
    edge_delay_ns: Int64Array
    edge_distance: Int32Array
    work_core: Int32Array
    work_ns: Int64Array

    @classmethod
    def from_arrays(
        cls,
        *,
        core: IntsLike,
        kind: IntsLike,
        edge_src: IntsLike,
        edge_dst: IntsLike,
        edge_delay_ns: IntsLike,
        edge_distance: IntsLike,
        kind_labels: Sequence[str],
        link: IntsLike | None = None,
        link_labels: Sequence[str] = (),
        start_ns: IntsLike | None = None,
        server: IntsLike | None = None,
        service_ns: IntsLike | None = None,
        access: IntsLike | None = None,
        server_labels: Sequence[str] = (),
        completion: IntsLike = (),
        work_core: IntsLike = (),
        work_ns: IntsLike = (),
    ) -> EventGraph:
        """Check flat arrays and sort their edges by source (stable).

        Raises:
            MalformedInput: a wrong length, a fraction, or a value out of range;
                names the first event or edge concerned.
        """
        events = len(core)
        if events == 0:
            raise MalformedInput("the event graph has no events")
        edges = len(edge_src)

        def of_events(name: str, values: IntsLike | None, default: int) -> IntsLike:
            return np.full(events, default, np.int64) if values is None else values

        core64 = checked("event", "core", core, events, NONE, MAX_ID)
        kind64 = checked("event", "kind", kind, events, 0, len(kind_labels) - 1)
        link64 = checked(
            "event",
            "link",
            of_events("link", link, NONE),
            events,
            NONE,
            len(link_labels) - 1,
        )
        start64 = checked(
            "event", "start", of_events("start", start_ns, 0), events, 0, MAX_NS
        )
        server64 = checked(
            "event",
            "server",
            of_events("server", server, NONE),
            events,
            NONE,
            len(server_labels) - 1,
        )
        service64 = checked(
            "event", "service", of_events("service", service_ns, 0), events, 0, MAX_NS
        )
        access64 = checked(
            "event",
            "access",
            of_events("access", access, 0),
            events,
            Access.NONE,
            Access.WRITE,
        )
        unserved = np.flatnonzero((server64 == NONE) & (service64 > 0))
        if unserved.size:
            raise MalformedInput(
                "a service time without a server",
                where=f"event {unserved[0]}",
                value=int(service64[unserved[0]]),
                expected="a server number",
            )
        src64 = checked("edge", "source", edge_src, edges, 0, events - 1)
        dst64 = checked("edge", "target", edge_dst, edges, 0, events - 1)
        delay64 = checked("edge", "delay", edge_delay_ns, edges, 0, MAX_NS)
        distance64 = checked("edge", "distance", edge_distance, edges, 0, MAX_DISTANCE)
        completion64 = checked(
            "completion", "event", completion, len(completion), 0, events - 1
        )
        cores, work = summed_work(work_core, work_ns)

        order = np.argsort(src64, kind="stable")
        edge_ptr = np.zeros(events + 1, np.int64)
        np.cumsum(np.bincount(src64, minlength=events), out=edge_ptr[1:])
        if not completion64.size:
            has_successor = np.zeros(events, np.bool_)
            has_successor[src64[distance64 == 0]] = True
            completion64 = np.flatnonzero(~has_successor)
            if not completion64.size:
                completion64 = np.arange(events)
        return cls(
            kind_labels=tuple(kind_labels),
            link_labels=tuple(link_labels),
            server_labels=tuple(server_labels),
            core=_frozen32(core64),
            kind=_frozen32(kind64),
            link=_frozen32(link64),
            start_ns=_frozen64(start64),
            server=_frozen32(server64),
            service_ns=_frozen64(service64),
            access=_frozen8(access64),
            completion=_frozen32(np.unique(completion64)),
            edge_ptr=_frozen64(edge_ptr),
            edge_src=_frozen32(src64[order]),
            edge_dst=_frozen32(dst64[order]),
            edge_delay_ns=_frozen64(delay64[order]),
            edge_distance=_frozen32(distance64[order]),
            work_core=_frozen32(cores),
            work_ns=_frozen64(work),
        )

    @property
    def event_count(self) -> int:
        """``V``."""
        return len(self.core)

    @property
    def edge_count(self) -> int:
        """``E``."""
        return len(self.edge_src)

    @property
    def recurrence_edge_count(self) -> int:
        """Edges of positive distance."""
        return int(np.count_nonzero(self.edge_distance))

    @property
    def request_count(self) -> int:
        """Events that a FIFO server serves."""
        return int(np.count_nonzero(self.server >= 0))

    def label(self, event: int) -> str:
        """How messages and reports name an event.

        >>> builder = EventGraphBuilder()
        >>> send = builder.add_event(3, "send", link="3->5")
        >>> builder.build().label(send)
        'send@3[3->5]#0'
        """
        text = self.kind_labels[self.kind[event]]
        if self.core[event] >= 0:
            text += f"@{self.core[event]}"
        if self.link[event] >= 0:
            text += f"[{self.link_labels[self.link[event]]}]"
        return f"{text}#{event}"

    def service_by_server(self, access: Access | None = None) -> Int64Array:
        """``[servers]`` ns of service that one generation asks of each server."""
        chosen = self.server >= 0
        if access is not None:
            chosen &= self.access == access
        total = np.zeros(len(self.server_labels), np.int64)
        np.add.at(total, self.server[chosen], self.service_ns[chosen])
        return total

    def total_delay_ns(self) -> int:
        """Sum of all delays, services and starts, ns, as an exact Python int."""
        arrays = (self.edge_delay_ns, self.service_ns, self.start_ns)
        # 21-bit halves: a sum of 2**31 values of up to 2**42 would not fit in int64.
        return sum(
            (int((a >> 21).sum()) << 21) + int((a & (2**21 - 1)).sum()) for a in arrays
        )

    def restricted_to(self, events: Int64Array, edges: Int64Array) -> EventGraph:
        """The part with the given events (rising) and edges (rising).

        Every edge must join two of the events.  Event order is kept, so that both
        tie orders mean the same in the part as in the whole.  Core work stays with
        the whole graph.
        """
        number = np.full(self.event_count, NONE, np.int64)
        number[events] = np.arange(len(events))
        completion = number[self.completion]
        return EventGraph.from_arrays(
            core=self.core[events],
            kind=self.kind[events],
            link=self.link[events],
            start_ns=self.start_ns[events],
            server=self.server[events],
            service_ns=self.service_ns[events],
            access=self.access[events],
            kind_labels=self.kind_labels,
            link_labels=self.link_labels,
            server_labels=self.server_labels,
            completion=completion[completion >= 0],
            edge_src=number[self.edge_src[edges]],
            edge_dst=number[self.edge_dst[edges]],
            edge_delay_ns=self.edge_delay_ns[edges],
            edge_distance=self.edge_distance[edges],
        )

    def to_networkx(self) -> nx.MultiDiGraph[int]:
        """A copy for drawings and analyses of the user's own.

        Node attributes: ``label core kind link server service_ns access start_ns``;
        edge attributes: ``delay_ns distance``.
        """
        import networkx as nx

        graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        for event in range(self.event_count):
            link = int(self.link[event])
            server = int(self.server[event])
            graph.add_node(
                event,
                label=self.label(event),
                core=int(self.core[event]),
                kind=self.kind_labels[self.kind[event]],
                link=self.link_labels[link] if link >= 0 else "",
                server=self.server_labels[server] if server >= 0 else "",
                service_ns=int(self.service_ns[event]),
                access=Access(int(self.access[event])).name,
                start_ns=int(self.start_ns[event]),
            )
        for edge in range(self.edge_count):
            graph.add_edge(
                int(self.edge_src[edge]),
                int(self.edge_dst[edge]),
                delay_ns=int(self.edge_delay_ns[edge]),
                distance=int(self.edge_distance[edge]),
            )
        return graph


class EventGraphBuilder:
    """Collects events and edges one by one or in bulk, then checks them all.

    Values are checked in :meth:`build`, so that edges may name later events.

    >>> builder = EventGraphBuilder()
    >>> entry = builder.add_event(0, "entry")
    >>> load = builder.add_request(0, "load", "memory", 40, Access.READ)
    >>> builder.add_edge(entry, load, 15)
    >>> builder.add_edge(load, entry, 5, distance=1)
    >>> builder.build().edge_count
    2
    """

    def __init__(self) -> None:
        self._labels: dict[str, dict[str, int]] = {"kind": {}, "link": {}, "server": {}}
        self._core: list[int] = []
        self._kind: list[int] = []
        self._link: list[int] = []
        self._start: list[int] = []
        self._server: list[int] = []
        self._service: list[int] = []
        self._access: list[int] = []
        self._completion: list[int] = []
        self._src: list[int] = []
        self._dst: list[int] = []
        self._delay: list[int] = []
        self._distance: list[int] = []
        self._work_core: list[int] = []
        self._work_ns: list[int] = []

    @property
    def event_count(self) -> int:
        """Events added so far; also the number of the next one."""
        return len(self._core)

    def kind(self, label: str) -> int:
        """The number of a kind label, made at first use."""
        return self._number("kind", label)

    def link(self, label: str) -> int:
        """The number of a link label, made at first use."""
        return self._number("link", label)

    def server(self, label: str) -> int:
        """The number of a FIFO server, made at first use."""
        return self._number("server", label)

    def add_event(
        self, core: int, kind: str, *, link: str = "", start_ns: int = 0
    ) -> int:
        """Add a plain event and return its number."""
        return self._add(core, kind, link, start_ns, NONE, 0, Access.NONE)

    def add_request(
        self,
        core: int,
        kind: str,
        server: str,
        service_ns: int,
        access: Access = Access.NONE,
        *,
        link: str = "",
        start_ns: int = 0,
    ) -> int:
        """Add a request to a FIFO server and return its number."""
        served_by = self.server(server)
        return self._add(core, kind, link, start_ns, served_by, service_ns, access)

    def add_edge(
        self, source: int, target: int, delay_ns: int, distance: int = 0
    ) -> None:
        """State ``t(target, k) >= t(source, k - distance) + delay_ns``."""
        self._src.append(source)
        self._dst.append(target)
        self._delay.append(delay_ns)
        self._distance.append(distance)

    def add_edges(
        self,
        source: IntsLike,
        target: IntsLike,
        delay_ns: IntsLike,
        distance: IntsLike | int = 0,
    ) -> None:
        """Add many edges at once (arrays of one length)."""
        count = len(source)
        spans = [distance] * count if isinstance(distance, int) else _listed(distance)
        if not count == len(target) == len(delay_ns) == len(spans):
            raise MalformedInput(
                "edge arrays differ in length",
                value=(count, len(target), len(delay_ns), len(spans)),
                expected="one length",
            )
        self._src += _listed(source)
        self._dst += _listed(target)
        self._delay += _listed(delay_ns)
        self._distance += spans

    def mark_completion(self, event: int) -> None:
        """Let this event's times count for the interval (one per core)."""
        self._completion.append(event)

    def add_core_work(self, core: int, work_ns: int) -> None:
        """Add compute work of one generation to a core, ns."""
        self._work_core.append(core)
        self._work_ns.append(work_ns)

    def build(self) -> EventGraph:
        """Check everything and freeze it.

        Raises:
            MalformedInput: see :meth:`EventGraph.from_arrays`.
        """
        return EventGraph.from_arrays(
            core=self._core,
            kind=self._kind,
            link=self._link,
            start_ns=self._start,
            server=self._server,
            service_ns=self._service,
            access=self._access,
            kind_labels=tuple(self._labels["kind"]),
            link_labels=tuple(self._labels["link"]),
            server_labels=tuple(self._labels["server"]),
            completion=self._completion,
            edge_src=self._src,
            edge_dst=self._dst,
            edge_delay_ns=self._delay,
            edge_distance=self._distance,
            work_core=self._work_core,
            work_ns=self._work_ns,
        )

    def _number(self, family: str, label: str) -> int:
        labels = self._labels[family]
        return labels.setdefault(label, len(labels))

    def _add(
        self,
        core: int,
        kind: str,
        link: str,
        start_ns: int,
        server: int,
        service_ns: int,
        access: int,
    ) -> int:
        self._core.append(core)
        self._kind.append(self.kind(kind))
        self._link.append(self.link(link) if link else NONE)
        self._start.append(start_ns)
        self._server.append(server)
        self._service.append(service_ns)
        self._access.append(access)
        return len(self._core) - 1


def _listed(values: IntsLike) -> list[int]:
    listed: list[int] = (
        values.tolist() if isinstance(values, np.ndarray) else list(values)
    )
    return listed


def _frozen8(values: Int64Array) -> Int8Array:
    array = np.ascontiguousarray(values, dtype=np.int8)
    array.flags.writeable = False
    return array


def _frozen32(values: npt.NDArray[np.integer]) -> Int32Array:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


def _frozen64(values: Int64Array) -> Int64Array:
    array = np.array(values, dtype=np.int64)
    array.flags.writeable = False
    return array
