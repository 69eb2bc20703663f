"""The five graph checks that every execution plan passes (docs/realization.md).

1. The distance-0 graph is acyclic: no deadlock.
2. Each event register has one WAIT, whose value is the number of SYNCs sent to it.
3. A path of distance 0 from each store to each of its loads: no stale read.
4. A path of distance at most D, the number of banks, from each load to the store that
   reuses its bank: no overwrite.
5. For a register with several source cores a path of distance at most 1 from its WAIT
   to each SYNC: tokens of two generations do not mix.

Nodes are items (both ends of a SEND and a RECV have a start and an end, because they
wait for each other); edges are program order, the wrap to the next generation
(distance 1), signals and rendezvous.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.realization.plan import (
    REGISTERS,
    ExecutionPlan,
    Load,
    Receive,
    Send,
    Signal,
    Store,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.realization.plan import Item

Ints = NDArray[np.int32]
UNREACHED = np.int32(2**30)


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


@njit(cache=True)
def _distances(ptr: Ints, dst: Ints, weight: Ints, source: int, limit: int) -> Ints:
    """0-1 breadth-first search up to ``limit``; nodes beyond it stay unreached."""
    count = ptr.size - 1
    found = np.full(count, UNREACHED, np.int32)
    current = np.empty(count, np.int32)
    following = np.empty(count, np.int32)
    current[0] = source
    held, waiting = 1, 0
    found[source] = 0
    distance = 0
    while held > 0 and distance <= limit:
        waiting = 0
        top = held
        while top > 0:
            top -= 1
            node = current[top]
            if found[node] != distance:
                continue
            for edge in range(ptr[node], ptr[node + 1]):
                target = dst[edge]
                reached = distance + weight[edge]
                if reached < found[target]:
                    found[target] = reached
                    if weight[edge] == 0:
                        current[top] = target
                        top += 1
                    else:
                        following[waiting] = target
                        waiting += 1
        current, following = following, current
        held = waiting
        distance += 1
    return found


class _Graph:
    """Nodes and edges of a plan, or of its signals alone."""

    def __init__(self, plan: ExecutionPlan, *, rendezvous: bool) -> None:
        self.plan = plan
        self.first: dict[tuple[int, int], int] = {}  #: (core, item) -> start node
        self.labels: list[tuple[int, int]] = []
        self.edges: list[tuple[int, int, int]] = []
        sends: dict[int, tuple[int, int]] = {}
        receives: dict[int, tuple[int, int]] = {}
        waits: dict[tuple[int, int], int] = {}
        signals: list[tuple[int, Signal]] = []
        for text in plan.cores:
            previous = opening = -1
            for position, item in enumerate(text.items):
                both_ends = isinstance(item, Send | Receive)
                if both_ends and not rendezvous:
                    continue
                node = self._node(text.core, position)
                self.first[text.core, position] = node
                if previous >= 0:
                    self.edges.append((previous, node, 0))
                else:
                    opening = node
                previous = node
                if isinstance(item, Send | Receive):
                    previous = self._node(text.core, position)
                    self.edges.append((node, previous, 0))
                    ends = sends if isinstance(item, Send) else receives
                    ends[item.direct] = (node, previous)
                elif isinstance(item, Signal):
                    signals.append((node, item))
                elif isinstance(item, Wait):
                    waits[text.core, item.register] = node
            if previous >= 0:
                self.edges.append((previous, opening, 1))
        for node, signal in signals:
            target = waits.get((signal.core, signal.register))
            if target is not None:
                self.edges.append((node, target, 0))
        for direct in sorted(sends.keys() & receives.keys()):
            self.edges.append((sends[direct][0], receives[direct][1], 0))
            self.edges.append((receives[direct][0], sends[direct][1], 0))
        self._csr()

    def _node(self, core: int, position: int) -> int:
        self.labels.append((core, position))
        return len(self.labels) - 1

    def _csr(self) -> None:
        count = len(self.labels)
        triples = np.array(self.edges, dtype=np.int32).reshape(-1, 3)
        order = np.argsort(triples[:, 0], kind="stable")
        triples = triples[order]
        self.ptr = np.searchsorted(triples[:, 0], np.arange(count + 1)).astype(np.int32)
        self.dst = np.ascontiguousarray(triples[:, 1])
        self.weight = np.ascontiguousarray(triples[:, 2])

    def distances(self, source: int, limit: int) -> Ints:
        """Distance from a node to all others, up to ``limit``."""
        result: Ints = _distances(self.ptr, self.dst, self.weight, source, limit)
        return result

    def describe(self, node: int) -> str:
        """Core and item of a node, for messages."""
        core, position = self.labels[node]
        text = next(c for c in self.plan.cores if c.core == core)
        return f"core {core} {describe_item(self.plan, text.items[position])}"


def describe_item(plan: ExecutionPlan, item: Item) -> str:
    """One item in a few words."""
    graph = plan.schedule.problem.graph
    match item:
        case Signal():
            return f"SYNC {item.purpose} -> core {item.core} register {item.register}"
        case Wait():
            return f"WAIT {item.purpose} register {item.register} value {item.count}"
        case Load(transfer=int(number)):
            move = graph.transfers[number]
            return f"LD publication {move.publication}"
        case Load():
            return f"LD baseline {item.baseline}"
        case Store(publication=int(number)):
            return f"ST publication {number}"
        case Store():
            return f"ST baseline {item.baseline}"
        case Send() | Receive():
            direct = plan.direct[item.direct]
            word = "SEND" if isinstance(item, Send) else "RECV"
            return f"{word} {direct.source} -> {direct.destination} #{item.direct}"
        case _:
            return f"RUN {graph.tasks[item.tasks[0]].name}"


def check(plan: ExecutionPlan) -> CheckReport:
    """Run the five checks on a plan."""
    faults = _register_faults(plan)
    full = _Graph(plan, rendezvous=True)
    deadlock = _deadlock(full)
    if deadlock:
        faults.append(deadlock)
        return CheckReport(tuple(faults), len(full.labels), len(full.edges), 0)
    # Signals alone give nearly every path, in a graph a tenth of the size; what they
    # do not give is asked of the full graph.
    light = _Graph(plan, rendezvous=False)
    paths = _Paths(plan, light, full)
    faults.extend(paths.stale_reads())
    faults.extend(paths.overwrites())
    faults.extend(paths.mixed_generations())
    return CheckReport(tuple(faults), len(full.labels), len(full.edges), paths.count)


def _register_faults(plan: ExecutionPlan) -> list[Fault]:
    active = {text.core for text in plan.cores}
    sent: dict[tuple[int, int], int] = defaultdict(int)
    waited: dict[tuple[int, int], list[int]] = defaultdict(list)
    faults: list[Fault] = []
    for text in plan.cores:
        for item in text.items:
            if isinstance(item, Signal):
                sent[item.core, item.register] += 1
                if item.core not in active:
                    faults.append(
                        Fault(
                            "registers",
                            f"core {text.core} signals core {item.core}, which has "
                            "no program",
                        )
                    )
            elif isinstance(item, Wait):
                waited[text.core, item.register].append(item.count)
    for core, register in sorted(sent.keys() | waited.keys()):
        place = f"core {core} register {register}"
        counts, tokens = waited[core, register], sent[core, register]
        if not 0 <= register < REGISTERS:
            faults.append(
                Fault("registers", f"{place}: registers are 0 to {REGISTERS - 1}")
            )
        if len(counts) != 1:
            faults.append(
                Fault("registers", f"{place}: {len(counts)} WAITs, expected one")
            )
        elif counts[0] != tokens or counts[0] < 1:
            faults.append(
                Fault(
                    "registers",
                    f"{place}: WAIT value {counts[0]}, but {tokens} SYNCs a generation",
                )
            )
    return faults


def _deadlock(graph: _Graph) -> Fault | None:
    zero = [(s, d) for s, d, w in graph.edges if w == 0]
    degree = np.zeros(len(graph.labels), dtype=np.int64)
    out: dict[int, list[int]] = defaultdict(list)
    for source, destination in zero:
        degree[destination] += 1
        out[source].append(destination)
    ready = [n for n in range(len(graph.labels)) if degree[n] == 0]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for target in out[node]:
            degree[target] -= 1
            if degree[target] == 0:
                ready.append(target)
    if done == len(graph.labels):
        return None
    stuck: nx.DiGraph[int] = nx.DiGraph(
        (s, d) for s, d in zero if degree[s] > 0 and degree[d] > 0
    )
    shortest: list[int] = []
    for source, destination in sorted(stuck.edges):
        if nx.has_path(stuck, destination, source):
            cycle = nx.shortest_path(stuck, destination, source)
            if not shortest or len(cycle) < len(shortest):
                shortest = cycle
            if len(shortest) <= 4:
                break
    path = " -> ".join(graph.describe(n) for n in [*shortest, shortest[0]])
    return Fault("deadlock", f"items wait for each other: {path}")


class _Paths:
    """Checks 3 to 5, by distance queries between nodes."""

    def __init__(self, plan: ExecutionPlan, light: _Graph, full: _Graph) -> None:
        self.plan, self.light, self.full = plan, light, full
        self.count = 0
        banks = dict(plan.banks)
        graph = plan.schedule.problem.graph
        #: publication -> (core, position) of its stores; (core, position, publication)
        self.stores: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.loads: list[tuple[int, int, int]] = []
        for text in plan.cores:
            for position, item in enumerate(text.items):
                if isinstance(item, Store) and item.publication is not None:
                    self.stores[item.publication].append((text.core, position))
                elif isinstance(item, Load) and item.transfer is not None:
                    publication = graph.transfers[item.transfer].publication
                    self.loads.append((text.core, position, publication))
        self.banks = banks

    def _unreached(
        self,
        wanted: dict[tuple[int, int], dict[tuple[int, int], int]],
    ) -> list[tuple[tuple[int, int], tuple[int, int], int, int]]:
        """(source, destination, limit, distance) of pairs without a short path."""
        missing = []
        for source in sorted(wanted):
            targets = wanted[source]
            limit = max(targets.values())
            self.count += len(targets)
            left = self._ask(self.light, source, targets, limit)
            if left:
                for target, found in self._ask(
                    self.full, source, {t: targets[t] for t, _ in left}, limit + 2
                ):
                    missing.append((source, target, targets[target], found))
        return missing

    @staticmethod
    def _ask(
        graph: _Graph,
        source: tuple[int, int],
        targets: dict[tuple[int, int], int],
        limit: int,
    ) -> list[tuple[tuple[int, int], int]]:
        found = graph.distances(graph.first[source], limit)
        return [
            (target, int(found[graph.first[target]]))
            for target, most in sorted(targets.items())
            if found[graph.first[target]] > most
        ]

    def _between(
        self, limit_of: Callable[[int], int], *, forward: bool
    ) -> dict[tuple[int, int], dict[tuple[int, int], int]]:
        """The pairs to ask about: for two cores the last source and first target.

        Program order carries the answer to all other pairs of the same two cores.
        """
        extreme: dict[tuple[int, int], tuple[int, int, int]] = {}
        for reader, load, publication in self.loads:
            for writer, store in self.stores.get(publication, []):
                source, target = (store, load) if forward else (load, store)
                key = (writer, reader)
                held = extreme.get(key, (source, target, limit_of(publication)))
                extreme[key] = (
                    max(held[0], source),
                    min(held[1], target),
                    min(held[2], limit_of(publication)),
                )
        wanted: dict[tuple[int, int], dict[tuple[int, int], int]] = defaultdict(dict)
        for (writer, reader), (source, target, limit) in extreme.items():
            ends = (writer, reader) if forward else (reader, writer)
            wanted[ends[0], source][ends[1], target] = limit
        return wanted

    def stale_reads(self) -> list[Fault]:
        """Check 3."""
        faults = [
            Fault("stale read", f"publication {publication} is read but never stored")
            for publication in sorted(
                {p for _, _, p in self.loads if p not in self.stores}
            )
        ]
        for source, target, _, found in self._unreached(
            self._between(lambda _: 0, forward=True)
        ):
            faults.append(self._fault("stale read", source, target, 0, found))
        return faults

    def overwrites(self) -> list[Fault]:
        """Check 4."""
        return [
            self._fault("overwrite", source, target, limit, found)
            for source, target, limit, found in self._unreached(
                self._between(lambda p: self.banks.get(p, 0), forward=False)
            )
        ]

    def mixed_generations(self) -> list[Fault]:
        """Check 5."""
        sources: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        waits: dict[tuple[int, int], tuple[int, int]] = {}
        for text in self.plan.cores:
            for position, item in enumerate(text.items):
                if isinstance(item, Signal):
                    sources[item.core, item.register].append((text.core, position))
                elif isinstance(item, Wait):
                    waits[text.core, item.register] = (text.core, position)
        wanted = {
            waits[register]: dict.fromkeys(signals, 1)
            for register, signals in sources.items()
            if len({core for core, _ in signals}) > 1 and register in waits
        }
        return [
            self._fault("mixed generations", source, target, limit, found)
            for source, target, limit, found in self._unreached(wanted)
        ]

    def _fault(
        self,
        check: str,
        source: tuple[int, int],
        target: tuple[int, int],
        limit: int,
        found: int,
    ) -> Fault:
        graph = self.full
        ends = [graph.describe(graph.first[end]) for end in (source, target)]
        how = (
            "no path"
            if found >= UNREACHED
            else f"the shortest path has distance {found}: {self._path(source, target)}"
        )
        return Fault(check, f"{ends[0]} => {ends[1]}: {how}, expected at most {limit}")

    def _path(self, source: tuple[int, int], target: tuple[int, int]) -> str:
        graph = self.full
        net: nx.DiGraph[int] = nx.DiGraph()
        for start, end, weight in graph.edges:
            if not net.has_edge(start, end) or net[start][end]["weight"] > weight:
                net.add_edge(start, end, weight=weight)
        nodes = nx.dijkstra_path(net, graph.first[source], graph.first[target])
        # Signals and waits tell the story; the rest is program order.
        told = [graph.describe(n) for n in nodes]
        return " -> ".join(t for t in told if "SYNC" in t or "WAIT" in t)[:2000]
