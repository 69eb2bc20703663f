"""Compute graphs given task by task (scenario key ``tasks``, or from Python)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import networkx as nx

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.compute_graph import (
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.graph.work import Work


@dataclass(frozen=True, slots=True)
class GivenTask:
    """A task by name.

    Attributes:
        name: unique.
        work: what it costs.
        operation: tasks of one operation are its lanes and move between stages
            together; by default each task is an operation of its own.
        weights: names of resident weights.
    """

    name: str
    work: Work
    operation: str | None = None
    weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenEdge:
    """A dependency; ``size`` bytes move when the ends are on different cores."""

    source: str
    destination: str
    size: int = 0


def explicit_graph(
    name: str,
    tasks: Sequence[GivenTask],
    edges: Sequence[GivenEdge] = (),
    weights: Sequence[tuple[str, int]] = (),
) -> ComputeGraph:
    """Build a graph from named tasks; operations get a topological order.

    Every edge with bytes is a publication of its own with one transfer (the
    conservative reading: nothing says that two edges carry the same payload).

    Raises:
        MalformedInput: a duplicate or unknown name, a cycle between tasks or
            between operations (the shortest one is named), a negative size, no task.
    """
    where = f"graph {name!r}"
    if not tasks:
        raise MalformedInput("the graph has no tasks", where=where)
    index = _unique([t.name for t in tasks], "task", where)
    weight_index = _unique([w for w, _ in weights], "weight", where)
    seen: set[tuple[str, str]] = set()
    for number, edge in enumerate(edges):
        place = f"{where}, edge {number}"
        for end in (edge.source, edge.destination):
            if end not in index:
                raise MalformedInput(
                    "unknown task", where=place, value=end, hint=_nearest(end, index)
                )
        if edge.size < 0:
            raise MalformedInput(
                "a dependency moves no less than nothing",
                where=place,
                value=edge.size,
                expected="0 bytes or more",
            )
        if (edge.source, edge.destination) in seen:
            raise MalformedInput(
                "this edge stands twice",
                where=place,
                value=f"{edge.source} -> {edge.destination}",
            )
        seen.add((edge.source, edge.destination))
    operations = _operation_order(tasks, edges, where)
    ordered = sorted(
        range(len(tasks)),
        key=lambda t: (operations[tasks[t].operation or tasks[t].name], t),
    )
    ordered = _respecting_edges(tasks, edges, ordered)
    position = {tasks[t].name: rank for rank, t in enumerate(ordered)}
    lanes: dict[int, int] = {}
    built: list[Task] = []
    for t in ordered:
        given = tasks[t]
        operation = operations[given.operation or given.name]
        lane = lanes.get(operation, 0)
        lanes[operation] = lane + 1
        for weight in given.weights:
            if weight not in weight_index:
                raise MalformedInput(
                    "unknown weight",
                    where=f"{where}, task {given.name!r}",
                    value=weight,
                    hint=_nearest(weight, weight_index),
                )
        built.append(
            Task(
                given.name,
                operation,
                lane,
                given.work,
                tuple(sorted(weight_index[w] for w in given.weights)),
            )
        )
    owner = [-1] * len(weights)
    for task in built:
        for number in task.weights:
            if owner[number] < 0:
                owner[number] = task.operation
    moved = sorted(
        (e for e in edges if e.size > 0),
        key=lambda e: (position[e.source], position[e.destination]),
    )
    publications = tuple(
        Publication(position[e.source], f"{e.source}->{e.destination}", 8, None, e.size)
        for e in moved
    )
    transfers = tuple(
        Transfer(number, position[e.destination], e.size)
        for number, e in enumerate(moved)
    )
    extra = tuple(
        sorted(
            (position[e.source], position[e.destination], 0)
            for e in edges
            if e.size == 0
        )
    )
    return ComputeGraph(
        name,
        tuple(sorted(operations, key=operations.__getitem__)),
        tuple(built),
        tuple(
            ResidentWeight(w, slots, max(owner[number], 0))
            for number, (w, slots) in enumerate(weights)
        ),
        publications,
        transfers,
        (),
        extra,
    )


def _nearest(name: str, known: dict[str, int]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _unique(names: Sequence[str], what: str, where: str) -> dict[str, int]:
    index: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in index:
            raise MalformedInput(f"two {what}s have one name", where=where, value=name)
        index[name] = number
    return index


def _operation_order(
    tasks: Sequence[GivenTask], edges: Sequence[GivenEdge], where: str
) -> dict[str, int]:
    """Operation -> rank in the topological order closest to the file's."""
    first: dict[str, int] = {}
    for number, task in enumerate(tasks):
        first.setdefault(task.operation or task.name, number)
    of = {t.name: t.operation or t.name for t in tasks}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(first)
    task_graph: nx.DiGraph[str] = nx.DiGraph()
    for edge in edges:
        task_graph.add_edge(edge.source, edge.destination)
        ends = of[edge.source], of[edge.destination]
        if ends[0] != ends[1]:
            graph.add_edge(*ends)
    _refuse_cycle(task_graph, "dependencies", where)
    _refuse_cycle(graph, "operations (groups of tasks)", where)
    ordered = nx.lexicographical_topological_sort(graph, key=first.__getitem__)
    return {name: rank for rank, name in enumerate(ordered)}


def _refuse_cycle(graph: nx.DiGraph[str], what: str, where: str) -> None:
    if nx.is_directed_acyclic_graph(graph):
        return
    shortest: list[str] | None = None
    for component in nx.strongly_connected_components(graph):
        inside = graph.subgraph(component)
        for source, destination in sorted(inside.edges):
            cycle = nx.shortest_path(inside, destination, source)
            if shortest is None or (len(cycle), cycle) < (len(shortest), shortest):
                shortest = cycle
    assert shortest is not None  # a graph that is not acyclic has a cycle
    start = shortest.index(min(shortest))
    turned = shortest[start:] + shortest[:start]
    raise MalformedInput(
        f"{what} form a cycle: {' -> '.join([*turned, turned[0]])}", where=where
    )


def _respecting_edges(
    tasks: Sequence[GivenTask], edges: Sequence[GivenEdge], ordered: list[int]
) -> list[int]:
    """Reorder lanes inside an operation where an edge joins two of them."""
    rank = {tasks[t].name: r for r, t in enumerate(ordered)}
    inner: nx.DiGraph[int] = nx.DiGraph()
    inner.add_nodes_from(ordered)
    for edge in edges:
        inner.add_edge(ordered[rank[edge.source]], ordered[rank[edge.destination]])
    by_rank = {t: r for r, t in enumerate(ordered)}
    operation = {t: tasks[t].operation or tasks[t].name for t in ordered}
    group_rank: dict[str, int] = {}
    for t in ordered:
        group_rank.setdefault(operation[t], len(group_rank))
    return list(
        nx.lexicographical_topological_sort(
            inner, key=lambda t: (group_rank[operation[t]], by_rank[t])
        )
    )
