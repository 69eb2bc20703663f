"""The five graph checks that every execution plan passes (docs/realization.md).

1. The distance-0 graph is acyclic: no deadlock.
2. Each event register has one WAIT, whose value is the number of SYNCs sent to it.
3. A path of distance 0 from each store to each of its loads: no stale read.
4. A path of distance at most D, the number of banks, from each load to the store that
   reuses its bank: no overwrite.
5. For a register with several source cores a path of distance at most 1 from its WAIT
   to each SYNC: tokens of two generations do not mix.

Both ends of a direct transfer must also exist exactly once, or it would hang.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from raptor_cp.realization.plan import REGISTERS, Receive, Send
from raptor_cp.realization.plan_graph import (
    UNREACHED,
    PlanItems,
    WaitingGraph,
    describe_item,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raptor_cp.realization.plan import ExecutionPlan, Load, Store
    from raptor_cp.realization.plan_graph import Longs, Place

#: Faults of one check that are reported; more say nothing new.
MAX_FAULTS = 20
#: Longest path, in items, that a message spells out.
_MAX_PATH = 24


@dataclass(frozen=True, slots=True)
class Fault:
    """A check that a plan failed.

    Attributes:
        check: ``deadlock``, ``registers``, ``stale read``, ``overwrite`` or ``mixed
            generations``.
        message: one sentence that names core, register, publication and path.
    """

    check: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Faults of a plan (empty: it passed) and how much was checked."""

    faults: tuple[Fault, ...]
    nodes: int
    edges: int
    paths: int


@dataclass(frozen=True, slots=True)
class _Need:
    """A path of at most ``limit`` generations that must exist."""

    source: Place
    target: Place
    limit: int


def check(plan: ExecutionPlan) -> CheckReport:
    """Run the five checks on a plan.

    ``O(I + N (V + E))`` time for I items and N sources of required paths; V and E
    count signals and waits, and direct transfers only where those do not suffice.
    """
    items = PlanItems.of(plan)
    faults = _register_faults(plan, items)
    full = WaitingGraph(items, rendezvous=True)
    faults.extend(_deadlocks(plan, full))
    faults.extend(_unmatched(plan, items))
    paths = 0
    if not any(fault.check == "deadlock" for fault in faults):
        finder = _PathFinder(plan, items, full)
        faults.extend(finder.stale_reads())
        faults.extend(finder.overwrites())
        faults.extend(finder.mixed_generations())
        paths = finder.count
    return CheckReport(tuple(faults), full.node_count, full.edge_count, paths)


def _register_faults(plan: ExecutionPlan, items: PlanItems) -> list[Fault]:
    active = {text.core for text in plan.cores}
    sent: Counter[tuple[int, int]] = Counter()
    waited: dict[tuple[int, int], list[int]] = defaultdict(list)
    messages: list[str] = []
    for (core, _), signal in items.signals:
        sent[signal.core, signal.register] += 1
        if signal.core not in active:
            messages.append(
                f"core {core} signals core {signal.core}, which has no program"
            )
    for (core, _), wait in items.waits:
        waited[core, wait.register].append(wait.count)
    for core, register in sorted(sent.keys() | waited.keys()):
        place = f"core {core} register {register}"
        counts, tokens = waited.get((core, register), []), sent[core, register]
        if not 0 <= register < REGISTERS:
            messages.append(f"{place}: registers are 0 to {REGISTERS - 1}")
        if len(counts) != 1:
            messages.append(f"{place}: {len(counts)} WAITs, expected one")
        elif counts[0] != tokens or counts[0] < 1:
            messages.append(
                f"{place}: WAIT value {counts[0]}, but {tokens} SYNCs a generation"
            )
    return [Fault("registers", message) for message in messages[:MAX_FAULTS]]


def _unmatched(plan: ExecutionPlan, items: PlanItems) -> list[Fault]:
    """Direct transfers whose ends are missing, doubled or on the wrong core."""
    faults = []
    if not items.end_direct.size and not plan.direct:
        return []
    ends = np.array([(t.source, t.destination) for t in plan.direct], np.int64)
    ends = ends.reshape(-1, 2)
    sides = (~items.end_sends).astype(np.int64)  # 0 sends, 1 receives
    astray = np.flatnonzero(items.end_core != ends[items.end_direct, sides])
    for number in astray[:MAX_FAULTS].tolist():
        direct = int(items.end_direct[number])
        item = Receive(direct) if sides[number] else Send(direct)
        core, text = int(items.end_core[number]), describe_item(plan, item)
        faults.append(Fault("deadlock", f"{text} stands on core {core}"))
    found = np.stack(
        [
            np.bincount(items.end_direct[sides == side], minlength=len(plan.direct))
            for side in (0, 1)
        ]
    )
    for number in np.flatnonzero((found != 1).any(axis=0))[:MAX_FAULTS].tolist():
        faults.append(
            Fault(
                "deadlock",
                f"{describe_item(plan, Send(number))}: {found[0, number]} SENDs and "
                f"{found[1, number]} RECVs, expected one each",
            )
        )
    return faults[:MAX_FAULTS]


def _deadlocks(plan: ExecutionPlan, graph: WaitingGraph) -> list[Fault]:
    stuck = set(graph.stuck())
    if not stuck:
        return []
    net: nx.DiGraph[int] = nx.DiGraph(
        (s, d) for s, d, w in graph.edges() if w == 0 and s in stuck and d in stuck
    )
    rings = [
        sorted(part) for part in nx.strongly_connected_components(net) if len(part) > 1
    ]
    smallest = min(rings, key=lambda part: (len(part), part))
    shortest: list[int] = []
    for node in smallest[:64]:
        back = nx.single_source_shortest_path(net.subgraph(smallest), node)
        for before in sorted(net.predecessors(node)):
            if before in back and (not shortest or len(back[before]) < len(shortest)):
                shortest = back[before]
    path = _told(plan, [graph.place(node) for node in [*shortest, shortest[0]]])
    return [Fault("deadlock", f"items wait for each other: {path}")]


def _told(plan: ExecutionPlan, places: Iterable[Place]) -> str:
    """Items of a path, each once in a row, shortened in the middle."""
    texts = {text.core: text.items for text in plan.cores}
    steps: list[str] = []
    for core, position in places:
        step = f"core {core} {describe_item(plan, texts[core][position])}"
        if not steps or steps[-1] != step:
            steps.append(step)
    if len(steps) > _MAX_PATH:
        half = _MAX_PATH // 2
        hidden = f"({len(steps) - 2 * half} more)"
        steps = [*steps[:half], hidden, *steps[-half:]]
    return " -> ".join(steps)


class _PathFinder:
    """Checks 3 to 5: required paths, asked of the signals first."""

    def __init__(
        self, plan: ExecutionPlan, items: PlanItems, full: WaitingGraph
    ) -> None:
        self.count = 0
        self._plan, self._items, self._full = plan, items, full
        self._light = WaitingGraph(items, rendezvous=False)
        graph = plan.schedule.problem.graph
        publication = graph.transfer_publication.tolist()
        #: what is stored: ("publication", n) or ("edge", n)
        self._stores: dict[tuple[str, int], list[Place]] = defaultdict(list)
        self._loads: list[tuple[Place, tuple[str, int]]] = []
        for place, store in items.stores:
            key = _stored_key(store)
            if key is not None:
                self._stores[key].append(place)
        for place, load in items.loads:
            loaded = _loaded_key(load, publication)
            if loaded is not None:
                self._loads.append((place, loaded))

    def stale_reads(self) -> list[Fault]:
        """Check 3."""
        missing = sorted({key for _, key in self._loads if key not in self._stores})
        faults = [
            Fault("stale read", f"{kind} {number} is read but never stored")
            for kind, number in missing[:MAX_FAULTS]
        ]
        faults += self._unmet("stale read", self._needs(None))
        return faults

    def overwrites(self) -> list[Fault]:
        """Check 4."""
        banks = {("publication", n): count for n, count in self._plan.banks}
        banks |= {("edge", n): count for n, count in self._plan.edge_banks}
        return self._unmet("overwrite", self._needs(banks))

    def mixed_generations(self) -> list[Fault]:
        """Check 5."""
        sources: dict[tuple[int, int], list[Place]] = defaultdict(list)
        for place, signal in self._items.signals:
            sources[signal.core, signal.register].append(place)
        needs: list[_Need] = []
        for place, wait in self._items.waits:
            signals = sources.get((place[0], wait.register), [])
            if len({core for core, _ in signals}) > 1:
                needs.extend(_Need(place, signal, 1) for signal in signals)
        return self._unmet("mixed generations", needs)

    def _needs(self, banks: Mapping[tuple[str, int], int] | None) -> list[_Need]:
        """Store -> load within a generation, or with banks load -> next store.

        For two cores and one limit the last source and the first target stand for
        all: program order carries the answer to the others.
        """
        extreme: dict[tuple[int, int, int], tuple[int, int]] = {}
        for (reader, load), key in self._loads:
            limit = 0 if banks is None else banks.get(key, 0)
            for writer, store in self._stores.get(key, ()):
                source, target = (load, store) if banks is not None else (store, load)
                pair = (writer, reader, limit)
                held = extreme.get(pair)
                if held is None:
                    extreme[pair] = (source, target)
                elif source > held[0] or target < held[1]:
                    extreme[pair] = (max(source, held[0]), min(target, held[1]))
        needs = []
        for (writer, reader, limit), (source, target) in sorted(extreme.items()):
            ends = (reader, writer) if banks is not None else (writer, reader)
            needs.append(_Need((ends[0], source), (ends[1], target), limit))
        return needs

    def _unmet(self, check: str, needs: list[_Need]) -> list[Fault]:
        self.count += len(needs)
        left = self._too_far(self._light, needs)
        if left:
            left = self._too_far(self._full, left)
        return [self._fault(check, need) for need in left[:MAX_FAULTS]]

    def _too_far(self, graph: WaitingGraph, needs: list[_Need]) -> list[_Need]:
        """Needs whose shortest path in a graph is longer than allowed."""
        if not needs:
            return []
        rows = np.array(
            [(*need.source, *need.target, need.limit) for need in needs], np.int64
        )
        core, position, end_core, end_position, limit = rows.T
        start, until = graph.leave(core, position)
        stop, since = graph.reach(end_core, end_position)
        most = limit - until - since
        met = np.zeros(len(needs), np.bool_)
        # One core: program order, or its wrap to the next generation.
        alone = core == end_core
        met[alone] = (position <= end_position)[alone] | (limit >= 1)[alone]
        asked = np.flatnonzero(~alone & (start >= 0) & (stop >= 0) & (most >= 0))
        asked = asked[np.argsort(start[asked], kind="stable")]
        bounds = np.flatnonzero(np.diff(start[asked])) + 1
        for alike in np.split(asked, bounds) if asked.size else ():
            found = graph.distances(int(start[alike[0]]), int(most[alike].max()))
            met[alike] = found[stop[alike]] <= most[alike]
        left = [needs[number] for number in np.flatnonzero(~met).tolist()]
        return sorted(left, key=lambda n: (n.source, n.target, n.limit))

    def _fault(self, check: str, need: _Need) -> Fault:
        texts = {text.core: text.items for text in self._plan.cores}
        ends = [
            f"core {core} {describe_item(self._plan, texts[core][position])}"
            for core, position in (need.source, need.target)
        ]
        how = self._shortest(need)
        return Fault(
            check, f"{ends[0]} => {ends[1]}: {how}, expected at most {need.limit}"
        )

    def _shortest(self, need: _Need) -> str:
        graph = self._full
        starts, until = graph.leave(*_one(need.source))
        stops, since = graph.reach(*_one(need.target))
        start, stop = int(starts[0]), int(stops[0])
        if start < 0 or stop < 0 or need.source[0] == need.target[0]:
            return "no path"
        limit = need.limit + 8
        found = int(graph.distances(start, limit)[stop])
        if found >= UNREACHED:
            return f"no path within {limit} generations"
        net: nx.DiGraph[int] = nx.DiGraph()
        for source, target, weight in graph.edges():
            if not net.has_edge(source, target):
                net.add_edge(source, target, weight=weight)
        nodes = nx.dijkstra_path(net, start, stop)
        path = _told(self._plan, [graph.place(node) for node in nodes])
        distance = found + int(until[0]) + int(since[0])
        return f"the shortest path has distance {distance}: {path}"


def _one(place: Place) -> tuple[Longs, Longs]:
    return np.array([place[0]], np.int64), np.array([place[1]], np.int64)


def _stored_key(store: Store) -> tuple[str, int] | None:
    if store.publication is not None:
        return ("publication", store.publication)
    return None if store.edge is None else ("edge", store.edge)


def _loaded_key(load: Load, publication: list[int]) -> tuple[str, int] | None:
    if load.transfer is not None:
        return ("publication", publication[load.transfer])
    return None if load.edge is None else ("edge", load.edge)
