"""The waiting graph of an execution plan, for its checks.

Nodes are the items that can wait or let others go on: signals and waits, and both
ends of direct transfers, each with a start and an end because they wait for each
other.  Runs, loads and stores only sit between two such items in program order, so
they are places on an edge.  Edges are program order, the wrap to the next generation
(distance 1), SYNC -> WAIT and the rendezvous of a direct transfer.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.realization.plan import Load, Receive, Send, Signal, Store, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.realization.plan import ExecutionPlan, Item

Ints = NDArray[np.int32]
UNREACHED = 2**30

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


@dataclass(slots=True)
class PlanItems:
    """All items of a plan by kind, each with its place, in text order."""

    signals: list[tuple[Place, Signal]] = field(default_factory=list)
    waits: list[tuple[Place, Wait]] = field(default_factory=list)
    loads: list[tuple[Place, Load]] = field(default_factory=list)
    stores: list[tuple[Place, Store]] = field(default_factory=list)
    ends: list[tuple[Place, Send | Receive]] = field(default_factory=list)

    @classmethod
    def of(cls, plan: ExecutionPlan) -> PlanItems:
        """Sort the items of a plan by kind; runs are left out."""
        found = cls()
        keep: dict[type, Callable[[tuple[Place, Any]], None]] = {
            Load: found.loads.append,
            Store: found.stores.append,
            Send: found.ends.append,
            Receive: found.ends.append,
            Signal: found.signals.append,
            Wait: found.waits.append,
        }
        for text in plan.cores:
            core = text.core
            for position, item in enumerate(text.items):
                add = keep.get(type(item))
                if add is not None:
                    add(((core, position), item))
        return found


@dataclass(slots=True)
class _Marks:
    """Items of one core that have nodes: text positions, start and end nodes."""

    positions: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class WaitingGraph:
    """Nodes and edges of a plan, or of its signals alone.

    Args:
        items: the plan's items.
        rendezvous: with the ends of direct transfers.  Without them nearly all
            paths of a sound plan are still there, in a tenth of the nodes.
    """

    def __init__(self, items: PlanItems, *, rendezvous: bool) -> None:
        marks: dict[int, list[tuple[int, bool]]] = {}
        for (core, position), _ in (*items.signals, *items.waits):
            marks.setdefault(core, []).append((position, False))
        if rendezvous:
            for (core, position), _ in items.ends:
                marks.setdefault(core, []).append((position, True))
        self._first: dict[Place, int] = {}  #: start node of an item
        self._places: list[Place] = []
        self._marks: dict[int, _Marks] = {}
        source: list[int] = []
        target: list[int] = []
        wraps: list[tuple[int, int]] = []
        for core in sorted(marks):
            own = _Marks()
            for position, both in sorted(marks[core]):
                node = len(self._places)
                self._first[core, position] = node
                own.positions.append(position)
                own.starts.append(node)
                self._places.append((core, position))
                if both:
                    self._places.append((core, position))
                own.ends.append(len(self._places) - 1)
            self._marks[core] = own
            first, last = own.starts[0], len(self._places) - 1
            source.extend(range(first, last))
            target.extend(range(first + 1, last + 1))
            wraps.append((last, first))
        waits = {
            (core, item.register): self._first[core, position]
            for (core, position), item in items.waits
        }
        for place, item in items.signals:
            joined = waits.get((item.core, item.register))
            if joined is not None:
                source.append(self._first[place])
                target.append(joined)
        if rendezvous:
            ends: dict[tuple[bool, int], int] = {
                (isinstance(item, Send), item.direct): self._first[place]
                for place, item in items.ends
            }
            for (sending, direct), node in ends.items():
                other = ends.get((not sending, direct))
                if other is not None:
                    source.append(other)
                    target.append(node + 1)
        self.edges = (
            source + [s for s, _ in wraps],
            target + [t for _, t in wraps],
            [0] * len(source) + [1] * len(wraps),
        )
        begin, end, weight = (np.array(e, np.int32) for e in self.edges)
        order = np.argsort(begin, kind="stable")
        count = len(self._places)
        self._ptr = np.searchsorted(begin[order], np.arange(count + 1)).astype(np.int32)
        self._dst = end[order]
        self._weight = weight[order]

    @property
    def node_count(self) -> int:
        """Starts and ends together."""
        return len(self._places)

    @property
    def edge_count(self) -> int:
        """All edges."""
        return len(self._dst)

    def place(self, node: int) -> Place:
        """Where the item of a node stands."""
        return self._places[node]

    def stuck(self) -> list[int]:
        """Nodes on or behind a cycle of distance 0, ascending."""
        result: list[int] = np.flatnonzero(
            _stuck(self._ptr, self._dst, self._weight)
        ).tolist()
        return result

    def leave(self, place: Place) -> tuple[int, int] | None:
        """First node at or after a place, and the generations until then."""
        core, position = place
        if core not in self._marks:
            return None
        marks = self._marks[core]
        index = bisect_left(marks.positions, position)
        if index < len(marks.starts):
            return marks.starts[index], 0
        return marks.starts[0], 1

    def reach(self, place: Place) -> tuple[int, int] | None:
        """Last node before a place (a mark's own), and the generations since."""
        core, position = place
        if core not in self._marks:
            return None
        own = self._first.get(place)
        if own is not None:
            return own, 0
        marks = self._marks[core]
        index = bisect_left(marks.positions, position) - 1
        return marks.ends[index], 0 if index >= 0 else 1

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
