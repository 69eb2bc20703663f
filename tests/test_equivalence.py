"""Publication equivalence: who is interchangeable with whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.equivalence import equivalence_classes
from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from tests.instances import generator, random_graph


def _lanes(count: int = 4) -> ComputeGraph:
    """One producer, ``count`` equal lanes that each read all of it, one consumer."""
    work = ExplicitWork((5,))
    tasks = [Task("a", 0, 0, work)]
    tasks += [Task(f"b{lane}", 1, lane, work, (0,)) for lane in range(count)]
    tasks.append(Task("c", 2, 0, work))
    publications = [Publication(0, "x", 8, (0, 1, 0, 1, 0, 1), 6)]
    publications += [
        Publication(1 + lane, "y", 8, (lane, lane + 1, 0, 3, 0, 1), 3)
        for lane in range(count)
    ]
    transfers = [Transfer(0, 1 + lane, 6) for lane in range(count)]
    transfers += [Transfer(1 + lane, count + 1, 3) for lane in range(count)]
    return ComputeGraph(
        "lanes",
        ("A", "B", "C"),
        tuple(tasks),
        (ResidentWeight("w", 2, 1), ResidentWeight("v", 2, 1)),
        tuple(publications),
        tuple(transfers),
    )


def _parts(graph: ComputeGraph, **changes: object) -> ComputeGraph:
    values = {
        name: getattr(graph, name)
        for name in (
            "name",
            "operations",
            "tasks",
            "weights",
            "publications",
            "transfers",
            "baseline",
            "extra_edges",
        )
    }
    return ComputeGraph(**{**values, **changes})


def test_equal_lanes_are_one_class() -> None:
    assert equivalence_classes(_lanes()) == ((0,), (1, 2, 3, 4), (5,))


def _changed(graph: ComputeGraph, what: str) -> ComputeGraph:
    """The graph with one thing different for lane 2 (task 3)."""
    tasks, moves = list(graph.tasks), list(graph.transfers)
    publications = list(graph.publications)
    if what == "work":
        tasks[3] = replace(tasks[3], work=ExplicitWork((6,)))
    elif what == "weights":
        tasks[3] = replace(tasks[3], weights=(0, 1))
    elif what == "published runs":
        publications[3] = replace(publications[3], runs=2)
    elif what == "read size":
        moves[2] = replace(moves[2], size=5)
    elif what == "demand on it":
        moves[6] = replace(moves[6], size=2)
    elif what == "one reader more":
        moves.append(Transfer(3, 5, 1))
    elif what == "baseline":
        access = BaselineAccess(3, BaselineKind.INPUT, "in", 4)
        return _parts(graph, baseline=(access,))
    elif what == "edge":
        return _parts(graph, extra_edges=((3, 5, 0),))
    return _parts(
        graph,
        tasks=tuple(tasks),
        transfers=tuple(moves),
        publications=tuple(publications),
    )


@pytest.mark.parametrize(
    "what",
    [
        "work",
        "weights",
        "published runs",
        "read size",
        "demand on it",
        "one reader more",
        "baseline",
        "edge",
    ],
)
def test_each_part_of_the_definition_splits_a_class(what: str) -> None:
    classes = equivalence_classes(_changed(_lanes(), what))
    assert classes == ((0,), (1, 2, 4), (3,), (5,))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_classes_partition_the_tasks(seed: int) -> None:
    graph = random_graph(generator(seed), operations=6)
    classes = equivalence_classes(graph)
    assert classes == equivalence_classes(random_graph(generator(seed), operations=6))
    assert sorted(t for group in classes for t in group) == list(
        range(graph.task_count)
    )
    assert list(classes) == sorted(classes)
    for group in classes:
        first = graph.tasks[group[0]]
        for task in group:
            other = graph.tasks[task]
            assert (other.operation, other.work) == (first.operation, first.work)
            assert sorted(other.weights) == sorted(first.weights)
