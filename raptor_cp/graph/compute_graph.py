"""The compute graph: tasks, edges, resident weights, publications (flat arrays).

Everything here is frozen after construction and validated by it.  Task ids are a
topological order: ``edge source < edge destination`` always holds.

Array shapes use T tasks, G operation groups, W resident weights, E edges,
N publications, F transfers (physical consumer demands), B baseline accesses.
Sizes are bytes, capacities weight slots.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import MalformedInput
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from raptor_cp.graph.work import Work

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BitArray = NDArray[np.uint64]


class BaselineKind(IntEnum):
    """Traffic with the outside: always through shared memory."""

    INPUT = 0  #: a load of a network input
    CONSTANT = 1  #: a load of constants (only when they are not resident)
    OUTPUT = 2  #: a store of a network output


@dataclass(frozen=True, slots=True)
class Publication:
    """One stored result (identity: generation, payload type, source fragment).

    Attributes:
        producer: task id.
        tensor: name of the immutable result generation.
        payload_bits: bits of one element.
        box: physical source fragment (6 ints: see ``Box``); None when opaque.
        size: bytes of the fragment.
        runs: contiguous source runs; a scalar projection rounds each separately.
        scalar: a scalar projection: stored separately for each consumer.
    """

    producer: int
    tensor: str
    payload_bits: int
    box: tuple[int, int, int, int, int, int] | None
    size: int
    runs: int = 1
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """One physical consumer demand on a publication.

    ``size`` bytes in ``runs`` contiguous pieces; ``box`` in the coordinates of the
    publication's tensor.
    """

    publication: int
    consumer: int
    size: int
    runs: int = 1
    box: tuple[int, int, int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class BaselineAccess:
    """Load of a network input or constant, or store of a network output."""

    task: int
    kind: BaselineKind
    tensor: str
    size: int
    runs: int = 1
    box: tuple[int, int, int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class ResidentWeight:
    """A distinct weight block: its name and how many weight slots it occupies."""

    name: str
    slots: int
    operation: int


@dataclass(frozen=True, slots=True)
class Task:
    """One lane (or part of a lane) of one operation: the unit of placement."""

    name: str
    operation: int
    lane: int
    work: Work
    weights: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class ComputeGraph:
    """Validated, immutable compute graph; see the module docstring for shapes.

    Args:
        name: for messages and reports.
        operations: G operation (group) names in a fixed topological order.
        tasks: T tasks in topological order.
        weights: W resident weights.
        publications: N publications.
        transfers: F transfers; edges are their aggregation.
        baseline: B accesses to network inputs, constants and outputs.
        extra_edges: (source, destination, bytes) of dependencies that have no
            publication (explicit graphs); bytes may be 0.

    Raises:
        MalformedInput: an unknown id, a cycle (the shortest one is named), an
            overlap or hole in publications of one tensor, a transfer outside its
            publication, a size that is not positive, an empty graph.
    """

    def __repr__(self) -> str:
        return (
            f"<ComputeGraph {self.name!r}: {len(self.operations)} operations, "
            f"{len(self.tasks)} tasks, {len(self.weights)} weights, "
            f"{len(self.transfers)} transfers>"
        )

    name: str
    operations: tuple[str, ...]
    tasks: tuple[Task, ...]
    weights: tuple[ResidentWeight, ...]
    publications: tuple[Publication, ...]
    transfers: tuple[Transfer, ...]
    baseline: tuple[BaselineAccess, ...] = ()
    extra_edges: tuple[tuple[int, int, int], ...] = ()

    #: [T] operation (group) of a task, and its lane.
    task_operation: IndexArray = field(init=False)
    task_lane: IndexArray = field(init=False)
    #: [T+1], [R]: weights of a task, ascending.
    weight_ptr: IndexArray = field(init=False)
    weight_idx: IndexArray = field(init=False)
    #: [W] weight slots.
    weight_slots: IntArray = field(init=False)
    #: [T+1], [E], [E]: out-edges by source, destinations ascending, bytes.
    edge_ptr: IndexArray = field(init=False)
    edge_dst: IndexArray = field(init=False)
    edge_bytes: IntArray = field(init=False)
    #: [T+1], [E], [E]: the same edges by destination, sources ascending.
    pred_ptr: IndexArray = field(init=False)
    pred_src: IndexArray = field(init=False)
    pred_bytes: IntArray = field(init=False)
    #: [N] producers, sizes, runs, scalar flags of publications.
    publication_producer: IndexArray = field(init=False)
    publication_size: IntArray = field(init=False)
    publication_runs: IntArray = field(init=False)
    publication_scalar: NDArray[np.bool_] = field(init=False)
    #: [F] publication, consumer, size, runs of transfers.
    transfer_publication: IndexArray = field(init=False)
    transfer_consumer: IndexArray = field(init=False)
    transfer_size: IntArray = field(init=False)
    transfer_runs: IntArray = field(init=False)

    def __post_init__(self) -> None:
        _check_members(self)
        edges = _aggregate_edges(self)
        _check_acyclic(self, edges)
        _check_publications(self)
        self._freeze(edges)

    @property
    def task_count(self) -> int:
        """T."""
        return len(self.tasks)

    @property
    def edge_count(self) -> int:
        """E."""
        return int(self.edge_dst.size)

    def tasks_of(self, operation: int) -> IntArray:
        """Task ids of an operation, ascending."""
        return np.flatnonzero(self.task_operation == operation)

    def task_weights(self, task: int) -> IndexArray:
        """Resident weights of a task, ascending."""
        return self.weight_idx[self.weight_ptr[task] : self.weight_ptr[task + 1]]

    def weight_bits(self) -> BitArray:
        """[T, ceil(W/64)] bitset rows: bit w of row t says that t holds w."""
        words = max(1, -(-len(self.weights) // 64))
        bits = np.zeros((self.task_count, words), dtype=np.uint64)
        for task in range(self.task_count):
            for weight in self.task_weights(task):
                bits[task, weight >> 6] |= np.uint64(1) << np.uint64(weight & 63)
        return bits

    def task_slots(self) -> IntArray:
        """[T] weight slots that each task needs on its own."""
        sums = np.zeros(self.task_count, dtype=np.int64)
        owners = np.repeat(np.arange(self.task_count), np.diff(self.weight_ptr))
        np.add.at(sums, owners, self.weight_slots[self.weight_idx])
        return sums

    def to_networkx(self) -> nx.DiGraph[int]:
        """Task graph with ``name``, ``operation``, ``lane`` and ``bytes``."""
        graph: nx.DiGraph[int] = nx.DiGraph(name=self.name)
        for index, task in enumerate(self.tasks):
            graph.add_node(
                index,
                name=task.name,
                operation=self.operations[task.operation],
                lane=task.lane,
            )
        for source in range(self.task_count):
            for edge in range(self.edge_ptr[source], self.edge_ptr[source + 1]):
                graph.add_edge(
                    source, int(self.edge_dst[edge]), bytes=int(self.edge_bytes[edge])
                )
        return graph

    def _freeze(self, edges: dict[tuple[int, int], int]) -> None:
        def put(name: str, values: object, dtype: type[np.generic]) -> None:
            array = np.array(values, dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)

        count = len(self.tasks)
        put("task_operation", [t.operation for t in self.tasks], np.int32)
        put("task_lane", [t.lane for t in self.tasks], np.int32)
        put(
            "weight_ptr",
            np.cumsum([0, *(len(t.weights) for t in self.tasks)]),
            np.int32,
        )
        put("weight_idx", [w for t in self.tasks for w in sorted(t.weights)], np.int32)
        put("weight_slots", [w.slots for w in self.weights], np.int64)
        for prefix, other, position in (("edge", "dst", 0), ("pred", "src", 1)):
            ordered = sorted(edges, key=lambda e: (e[position], e[1 - position]))
            degree = np.zeros(count + 1, dtype=np.int64)
            for edge in ordered:
                degree[edge[position] + 1] += 1
            put(f"{prefix}_ptr", np.cumsum(degree), np.int32)
            put(f"{prefix}_{other}", [e[1 - position] for e in ordered], np.int32)
            put(f"{prefix}_bytes", [edges[e] for e in ordered], np.int64)
        pubs, moves = self.publications, self.transfers
        put("publication_producer", [p.producer for p in pubs], np.int32)
        put("publication_size", [p.size for p in pubs], np.int64)
        put("publication_runs", [p.runs for p in pubs], np.int64)
        put("publication_scalar", [p.scalar for p in pubs], np.bool_)
        put("transfer_publication", [m.publication for m in moves], np.int32)
        put("transfer_consumer", [m.consumer for m in moves], np.int32)
        put("transfer_size", [m.size for m in moves], np.int64)
        put("transfer_runs", [m.runs for m in moves], np.int64)


def _check_index(value: int, count: int, what: str, where: str) -> None:
    if not 0 <= value < count:
        raise MalformedInput(
            f"unknown {what}", where=where, value=value, expected=f"0 to {count - 1}"
        )


def _check_size(size: int, what: str, where: str, minimum: int = 1) -> None:
    if not minimum <= size <= MAX_NS:
        raise MalformedInput(
            f"{what} is out of range",
            where=where,
            value=size,
            expected=f"{minimum} to {MAX_NS}",
        )


def _check_members(graph: ComputeGraph) -> None:
    where = f"compute graph {graph.name!r}"
    if not graph.tasks:
        raise MalformedInput("the graph has no tasks", where=where)
    tasks, weights = len(graph.tasks), len(graph.weights)
    previous = 0
    for index, task in enumerate(graph.tasks):
        place = f"{where}, task {task.name!r}"
        _check_index(task.operation, len(graph.operations), "operation", place)
        if len(set(task.weights)) != len(task.weights):
            raise MalformedInput("a weight is listed twice", where=place)
        for weight in task.weights:
            _check_index(weight, weights, "weight", place)
        if index and task.operation < previous:
            raise MalformedInput(
                "tasks are not in operation order", where=place, value=task.operation
            )
        previous = task.operation
    for weight_block in graph.weights:
        place = f"{where}, weight {weight_block.name!r}"
        _check_size(weight_block.slots, "number of weight slots", place)
    for number, publication in enumerate(graph.publications):
        place = f"{where}, publication {number} of {publication.tensor!r}"
        _check_index(publication.producer, tasks, "producer task", place)
        _check_size(publication.size, "size in bytes", place)
        _check_size(publication.runs, "number of runs", place)
        _check_size(publication.payload_bits, "payload bits", place)
    for number, move in enumerate(graph.transfers):
        place = f"{where}, transfer {number}"
        _check_index(move.publication, len(graph.publications), "publication", place)
        _check_index(move.consumer, tasks, "consumer task", place)
        _check_size(move.size, "size in bytes", place)
        _check_size(move.runs, "number of runs", place)
        source = graph.publications[move.publication]
        if move.size > source.size:
            raise MalformedInput(
                f"reads more than publication {move.publication} holds",
                where=place,
                value=move.size,
                expected=f"at most {source.size} bytes",
            )
        if (
            move.box is not None
            and source.box is not None
            and not _inside(move.box, source.box)
        ):
            raise MalformedInput(
                f"reads outside publication {move.publication}",
                where=place,
                value=move.box,
                expected=f"a box inside {source.box}",
            )
    for number, access in enumerate(graph.baseline):
        place = f"{where}, baseline access {number} of {access.tensor!r}"
        _check_index(access.task, tasks, "task", place)
        _check_size(access.size, "size in bytes", place)
        _check_size(access.runs, "number of runs", place)


def _inside(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    return all(outer[a] <= inner[a] and inner[a + 1] <= outer[a + 1] for a in (0, 2, 4))


def _aggregate_edges(graph: ComputeGraph) -> dict[tuple[int, int], int]:
    edges: dict[tuple[int, int], int] = {}
    for move in graph.transfers:
        key = (graph.publications[move.publication].producer, move.consumer)
        edges[key] = edges.get(key, 0) + move.size
    for number, (source, destination, size) in enumerate(graph.extra_edges):
        place = f"compute graph {graph.name!r}, edge {number}"
        _check_index(source, len(graph.tasks), "source task", place)
        _check_index(destination, len(graph.tasks), "destination task", place)
        _check_size(size, "size in bytes", place, minimum=0)
        edges[source, destination] = edges.get((source, destination), 0) + size
    return edges


def _check_acyclic(graph: ComputeGraph, edges: dict[tuple[int, int], int]) -> None:
    backward = sorted(e for e in edges if e[0] >= e[1])
    if not backward:
        return
    dependencies: nx.DiGraph[int] = nx.DiGraph(sorted(edges))
    shortest: list[int] | None = None
    for source, destination in backward:
        if nx.has_path(dependencies, destination, source):
            cycle = nx.shortest_path(dependencies, destination, source)
            if shortest is None or len(cycle) < len(shortest):
                shortest = cycle
    where = f"compute graph {graph.name!r}"
    if shortest is not None:
        names = " -> ".join(graph.tasks[t].name for t in [*shortest, shortest[0]])
        raise MalformedInput(f"dependencies form a cycle: {names}", where=where)
    source, destination = backward[0]
    raise MalformedInput(
        f"tasks are not in topological order: {graph.tasks[source].name!r} feeds "
        f"{graph.tasks[destination].name!r}",
        where=where,
    )


def _check_publications(graph: ComputeGraph) -> None:
    """Fragments of one tensor tile it: no overlap, no hole, one payload type."""
    by_tensor: dict[str, list[Publication]] = {}
    for publication in graph.publications:
        by_tensor.setdefault(publication.tensor, []).append(publication)
    for tensor, group in by_tensor.items():
        where = f"compute graph {graph.name!r}, tensor {tensor!r}"
        kinds = sorted({p.payload_bits for p in group})
        if len(kinds) > 1:
            raise MalformedInput(
                "publications disagree about the payload type",
                where=where,
                value=kinds,
                expected="one width in bits",
            )
        boxes = sorted(p.box for p in group if p.box is not None and not p.scalar)
        if boxes:
            _check_tiling(boxes, where)


def _check_tiling(boxes: list[tuple[int, int, int, int, int, int]], where: str) -> None:
    for index, box in enumerate(boxes):
        if any(box[a] >= box[a + 1] for a in (0, 2, 4)):
            raise MalformedInput("an empty fragment", where=where, value=box)
        for other in boxes[index + 1 :]:
            if other[0] >= box[1]:
                break  # sorted by first row: nothing later can meet this one
            if all(box[a] < other[a + 1] and other[a] < box[a + 1] for a in (0, 2, 4)):
                raise MalformedInput(
                    "publications overlap", where=where, value=(box, other)
                )
    hull = [
        min(b[a] for b in boxes) if a % 2 == 0 else max(b[a] for b in boxes)
        for a in range(6)
    ]
    volume = sum(
        (b[1] - b[0]) * (b[3] - b[2]) * (b[5] - b[4]) for b in boxes
    )  # disjoint boxes fill their hull exactly when the volumes agree
    full = (hull[1] - hull[0]) * (hull[3] - hull[2]) * (hull[5] - hull[4])
    if volume != full:
        raise MalformedInput(
            "publications leave a hole",
            where=where,
            value=f"{volume} elements",
            expected=f"{full} elements in rows {hull[0]}..{hull[1]}, columns "
            f"{hull[2]}..{hull[3]}, channels {hull[4]}..{hull[5]}",
        )
