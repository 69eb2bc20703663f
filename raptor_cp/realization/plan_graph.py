"""The waiting graph of an execution plan, for its checks.

Nodes are the items that can wait or let others go on: signals and waits, and both
ends of direct transfers, each with a start and an end because they wait for each
other.  Runs, loads and stores only sit between two such items in program order, so
they are places on an edge.  Edges are program order, the wrap to the next generation
(distance 1), SYNC -> WAIT and the rendezvous of a direct transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.realization.plan import Load, Receive, Send, Signal, Store, Wait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raptor_cp.realization.plan import ExecutionPlan, Item

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]
UNREACHED = 2**30
#: Bits of a place's number that hold the position in the text.
_POSITION_BITS = 32

#: (core, position) of an item in the text of its core.
Place = tuple[int, int]


@njit(cache=True)
def _search(ptr: Ints, dst: Ints, weight: Ints, source: int, limit: int) -> Ints:
    """0-1 breadth-first search up to ``limit``; nodes beyond it stay unreached."""
    count = ptr.size - 1
    found = np.full(count, UNREACHED, np.int32)
    current = np.empty(count, np.int32)
    following = np.empty(count, np.int32)
    current[0] = source
    found[source] = 0
    held = 1
    distance = 0
    while held > 0 and distance <= limit:
        later = 0
        while held > 0:
            held -= 1
            node = current[held]
            if found[node] != distance:
                continue
            for edge in range(ptr[node], ptr[node + 1]):
                target = dst[edge]
                reached = distance + weight[edge]
                if reached < found[target]:
                    found[target] = reached
                    if weight[edge] == 0:
                        current[held] = target
                        held += 1
                    else:
                        following[later] = target
                        later += 1
        current, following = following, current
        held = later
        distance += 1
    return found


@njit(cache=True)
def _stuck(ptr: Ints, dst: Ints, weight: Ints) -> NDArray[np.bool_]:
    """Nodes on or behind a cycle of distance 0."""
    count = ptr.size - 1
    waiting = np.zeros(count, np.int32)
    for edge in range(dst.size):
        if weight[edge] == 0:
            waiting[dst[edge]] += 1
    ready = np.empty(count, np.int32)
    held = 0
    for node in range(count):
        if waiting[node] == 0:
            ready[held] = node
            held += 1
    while held > 0:
        held -= 1
        node = ready[held]
        for edge in range(ptr[node], ptr[node + 1]):
            if weight[edge] == 0:
                waiting[dst[edge]] -= 1
                if waiting[dst[edge]] == 0:
                    ready[held] = dst[edge]
                    held += 1
    return waiting > 0


@dataclass(frozen=True, eq=False, slots=True)
class PlanItems:
    """All items of a plan by kind, each with its place, in text order.

    Runs are left out.  Ends of direct transfers, by far the most, are columns.

    Attributes:
        end_core, end_position: [N] places of SENDs and RECVs.
        end_direct: [N] which direct transfer.
        end_sends: [N] True for a SEND.
    """

    signals: list[tuple[Place, Signal]]
    waits: list[tuple[Place, Wait]]
    loads: list[tuple[Place, Load]]
    stores: list[tuple[Place, Store]]
    end_core: Longs
    end_position: Longs
    end_direct: Longs
    end_sends: Flags

    @classmethod
    def of(cls, plan: ExecutionPlan) -> PlanItems:
        """Sort the items of a plan by kind."""
        signals: list[tuple[Place, Signal]] = []
        waits: list[tuple[Place, Wait]] = []
        loads: list[tuple[Place, Load]] = []
        stores: list[tuple[Place, Store]] = []
        positions: list[int] = []
        directs: list[int] = []
        sends: list[bool] = []
        counts: list[int] = []
        for text in plan.cores:
            core = text.core
            before = len(positions)
            for position, item in enumerate(text.items):
                if isinstance(item, Send):
                    positions.append(position)
                    directs.append(item.direct)
                    sends.append(True)
                elif isinstance(item, Receive):
                    positions.append(position)
                    directs.append(item.direct)
                    sends.append(False)
                elif isinstance(item, Load):
                    loads.append(((core, position), item))
                elif isinstance(item, Store):
                    stores.append(((core, position), item))
                elif isinstance(item, Signal):
                    signals.append(((core, position), item))
                elif isinstance(item, Wait):
                    waits.append(((core, position), item))
            counts.append(len(positions) - before)
        cores = np.array([text.core for text in plan.cores], np.int64)
        return cls(
            signals,
            waits,
            loads,
            stores,
            np.repeat(cores, counts),
            np.array(positions, np.int64),
            np.array(directs, np.int64),
            np.array(sends, np.bool_),
        )


def _keys(core: Longs, position: Longs) -> Longs:
    """Places as single numbers, in the order of the texts."""
    return (core << _POSITION_BITS) | position


def _places(places: Iterable[Place]) -> tuple[Longs, Longs]:
    """Cores and positions of places."""
    flat = np.array(list(places), np.int64).reshape(-1, 2)
    return flat[:, 0], flat[:, 1]


class WaitingGraph:
    """Nodes and edges of a plan, or of its signals alone.

    Args:
        items: the plan's items.
        rendezvous: with the ends of direct transfers.  Without them nearly all
            paths of a sound plan are still there, in a tenth of the nodes.
    """

    def __init__(self, items: PlanItems, *, rendezvous: bool) -> None:
        signals = _keys(*_places(place for place, _ in items.signals))
        waits = _keys(*_places(place for place, _ in items.waits))
        ends = _keys(items.end_core, items.end_position)
        if not rendezvous:
            ends = ends[:0]
        #: marks: items that have nodes, in text order; the nodes of each
        key = np.concatenate([signals, waits, ends])
        wide = np.repeat(np.array([0, 1], np.int64), [key.size - ends.size, ends.size])
        order = np.argsort(key, kind="stable")
        self._key, width = key[order], 1 + wide[order]
        self._stop = np.cumsum(width) - 1
        self._start = self._stop - width + 1
        self._node_key = np.repeat(self._key, width)
        core = self._node_key >> _POSITION_BITS
        same = np.flatnonzero(core[1:] == core[:-1])
        opens = np.flatnonzero(np.diff(core, prepend=-1))
        closes = np.append(opens[1:], core.size)[: opens.size] - 1
        #: by core with nodes: its first and last one, -1 otherwise
        self._first = np.full(int(core.max(initial=-1)) + 1, -1, np.int64)
        self._last = self._first.copy()
        self._first[core[opens]], self._last[core[opens]] = opens, closes
        node_of_wait = self._start[np.searchsorted(self._key, waits)].tolist()
        joined = {
            (place[0], wait.register): node
            for (place, wait), node in zip(items.waits, node_of_wait, strict=True)
        }
        target = np.array(
            [joined.get((s.core, s.register), -1) for _, s in items.signals], np.int64
        )
        met = target >= 0
        source = self._start[np.searchsorted(self._key, signals)]
        begin, end = [same, source[met]], [same + 1, target[met]]
        if rendezvous:
            nodes = self._start[np.searchsorted(self._key, ends)]
            both = np.full((2, int(items.end_direct.max(initial=-1)) + 1), -1, np.int64)
            both[0, items.end_direct[items.end_sends]] = nodes[items.end_sends]
            both[1, items.end_direct[~items.end_sends]] = nodes[~items.end_sends]
            sends, receives = both[:, (both >= 0).all(axis=0)]
            begin += [sends, receives]
            end += [receives + 1, sends + 1]
        sources = np.concatenate([*begin, closes])
        order = np.argsort(sources, kind="stable")
        self._source = sources[order].astype(np.int32)
        self._dst = np.concatenate([*end, opens])[order].astype(np.int32)
        weight = np.zeros(sources.size, np.int32)
        weight[sources.size - opens.size :] = 1
        self._weight = weight[order]
        self._ptr = np.searchsorted(self._source, np.arange(core.size + 1)).astype(
            np.int32
        )

    @property
    def node_count(self) -> int:
        """Starts and ends together."""
        return len(self._node_key)

    @property
    def edge_count(self) -> int:
        """All edges."""
        return len(self._dst)

    def edges(self) -> Iterator[tuple[int, int, int]]:
        """(source, target, distance) of all edges by source."""
        return zip(
            self._source.tolist(),
            self._dst.tolist(),
            self._weight.tolist(),
            strict=True,
        )

    def place(self, node: int) -> Place:
        """Where the item of a node stands."""
        core, position = divmod(int(self._node_key[node]), 1 << _POSITION_BITS)
        return core, position

    def stuck(self) -> list[int]:
        """Nodes on or behind a cycle of distance 0, ascending."""
        result: list[int] = np.flatnonzero(
            _stuck(self._ptr, self._dst, self._weight)
        ).tolist()
        return result

    def leave(self, core: Longs, position: Longs) -> tuple[Longs, Longs]:
        """[N] first node at or after a place (-1: none on its core), and the
        generations until then."""
        return self._step(core, np.searchsorted(self._key, _keys(core, position)), True)

    def reach(self, core: Longs, position: Longs) -> tuple[Longs, Longs]:
        """[N] last node before a place (a mark's own start; -1: none on its core),
        and the generations since."""
        key = _keys(core, position)
        place = np.searchsorted(self._key, key)
        node, since = self._step(core, place - 1, False)
        if self._key.size:
            own = np.minimum(place, self._key.size - 1)
            exact = self._key[own] == key
            node[exact], since[exact] = self._start[own[exact]], 0
        return node, since

    def _step(self, core: Longs, place: Longs, forwards: bool) -> tuple[Longs, Longs]:
        """Node of a mark if it is on the core, otherwise that behind the wrap."""
        nodes = self._start if forwards else self._stop
        wrapped = self._first if forwards else self._last
        node = np.full(core.size, -1, np.int64)
        known = core < wrapped.size
        node[known] = wrapped[core[known]]
        since = np.ones(core.size, np.int64)
        inside = (place >= 0) & (place < self._key.size)
        inside[inside] = self._key[place[inside]] >> _POSITION_BITS == core[inside]
        node[inside], since[inside] = nodes[place[inside]], 0
        return node, since

    def distances(self, source: int, limit: int) -> Ints:
        """Distances from a node to all others, up to ``limit``."""
        result: Ints = _search(self._ptr, self._dst, self._weight, source, limit)
        return result


def describe_item(plan: ExecutionPlan, item: Item) -> str:
    """One item in a few words, with its register, publication or task."""
    graph = plan.schedule.problem.graph
    match item:
        case Signal():
            return f"SYNC {item.purpose} -> core {item.core} register {item.register}"
        case Wait():
            return f"WAIT {item.purpose} register {item.register} value {item.count}"
        case Load(transfer=int(number)):
            return f"LD publication {graph.transfers[number].publication}"
        case Load(edge=int(number)):
            return f"LD edge {number}"
        case Load():
            return f"LD baseline {item.baseline}"
        case Store(publication=int(number)):
            return f"ST publication {number}"
        case Store(edge=int(number)):
            return f"ST edge {number}"
        case Store():
            return f"ST baseline {item.baseline}"
        case Send() | Receive():
            direct = plan.direct[item.direct]
            word = "SEND" if isinstance(item, Send) else "RECV"
            what = (
                f"edge {direct.edge}"
                if direct.publication is None
                else f"publication {direct.publication}"
            )
            return f"{word} {what} core {direct.source} -> {direct.destination}"
        case _:
            return f"RUN {graph.tasks[item.tasks[0]].name}"
