"""Construction of compute graphs: what is malformed fails, with the place."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
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
from raptor_cp.units import MAX_NS

BoxTuple = tuple[int, int, int, int, int, int]
WORK = ExplicitWork((10,))
TOP: BoxTuple = (0, 2, 0, 4, 0, 8)
BOTTOM: BoxTuple = (2, 4, 0, 4, 0, 8)


def good() -> ComputeGraph:
    """Two lanes that share a weight feed one consumer, which has an output."""
    return ComputeGraph(
        name="g",
        operations=("conv", "sum"),
        tasks=(
            Task("conv/0", 0, 0, WORK, (0,)),
            Task("conv/1", 0, 1, WORK, (1, 0)),
            Task("sum/0", 1, 0, WORK),
        ),
        weights=(ResidentWeight("conv", 3, 0), ResidentWeight("more", 2, 0)),
        publications=(
            Publication(0, "conv", 8, TOP, 64),
            Publication(1, "conv", 8, BOTTOM, 64),
        ),
        transfers=(
            Transfer(0, 2, 64, 1, TOP),
            Transfer(1, 2, 16, 2, (2, 4, 0, 1, 0, 8)),
            Transfer(1, 2, 8, 1, (2, 3, 3, 4, 0, 8)),
        ),
        baseline=(
            BaselineAccess(0, BaselineKind.INPUT, "x", 12),
            BaselineAccess(2, BaselineKind.OUTPUT, "sum", 4),
        ),
    )


def test_a_graph_reads_back() -> None:
    graph = good()
    assert (graph.task_count, graph.edge_count) == (3, 2)
    assert graph.edge_dst.tolist() == [2, 2]
    assert graph.edge_bytes.tolist() == [64, 24]  # transfers of one pair add up
    assert graph.pred_src.tolist() == [0, 1]
    assert graph.task_slots().tolist() == [3, 5, 0]
    assert graph.task_weights(1).tolist() == [0, 1]
    assert graph.weight_bits().tolist() == [[1], [3], [0]]
    assert graph.tasks_of(0).tolist() == [0, 1]
    assert nx.is_directed_acyclic_graph(graph.to_networkx())
    with pytest.raises(ValueError, match="read-only"):
        graph.edge_bytes[0] = 1
    assert graph.transfer_runs.dtype == np.int64


def _bad_tasks(**changes: object) -> tuple[Task, ...]:
    tasks = good().tasks
    return (replace(tasks[0], **changes), *tasks[1:])  # type: ignore[arg-type]


def _bad_publications(**changes: object) -> tuple[Publication, ...]:
    first, second = good().publications
    return (first, replace(second, **changes))  # type: ignore[arg-type]


def _bad_transfers(**changes: object) -> tuple[Transfer, ...]:
    first, *others = good().transfers
    return (replace(first, **changes), *others)  # type: ignore[arg-type]


def _bad_baseline(**changes: object) -> tuple[BaselineAccess, ...]:
    first, second = good().baseline
    return (replace(first, **changes), second)  # type: ignore[arg-type]


MALFORMED: dict[str, tuple[dict[str, object], str]] = {
    "no tasks": ({"tasks": ()}, "no tasks"),
    "unknown operation": ({"tasks": _bad_tasks(operation=7)}, "unknown operation"),
    "negative operation": ({"tasks": _bad_tasks(operation=-1)}, "unknown operation"),
    "operations out of order": (
        {"tasks": _bad_tasks(operation=1)},
        "not in operation order",
    ),
    "unknown weight": ({"tasks": _bad_tasks(weights=(2,))}, "unknown weight"),
    "weight twice": ({"tasks": _bad_tasks(weights=(0, 0))}, "listed twice"),
    "weight without slots": (
        {"weights": (ResidentWeight("w", 0, 0), ResidentWeight("v", 1, 0))},
        "number of weight slots is out of range",
    ),
    "unknown producer": (
        {"publications": _bad_publications(producer=3)},
        "unknown producer task",
    ),
    "negative producer": (
        {"publications": _bad_publications(producer=-1)},
        "unknown producer task",
    ),
    "publication without bytes": (
        {"publications": _bad_publications(size=0)},
        "size in bytes is out of range",
    ),
    "publication without end": (
        {"publications": _bad_publications(size=MAX_NS + 1)},
        "size in bytes is out of range",
    ),
    "publication without runs": (
        {"publications": _bad_publications(runs=0)},
        "number of runs is out of range",
    ),
    "payload without bits": (
        {"publications": _bad_publications(payload_bits=0)},
        "payload bits is out of range",
    ),
    "two payload types": (
        {"publications": _bad_publications(payload_bits=16)},
        "disagree about the payload type",
    ),
    "overlap": (
        {"publications": _bad_publications(box=(1, 4, 0, 4, 0, 8))},
        "publications overlap",
    ),
    "hole": (
        {"publications": _bad_publications(box=(3, 4, 0, 4, 0, 8)), "transfers": ()},
        "publications leave a hole",
    ),
    "hole in a corner": (
        {"publications": _bad_publications(box=(2, 4, 0, 3, 0, 8)), "transfers": ()},
        "publications leave a hole",
    ),
    "empty fragment": (
        {"publications": _bad_publications(box=(2, 2, 0, 4, 0, 8)), "transfers": ()},
        "an empty fragment",
    ),
    "unknown publication": (
        {"transfers": _bad_transfers(publication=2)},
        "unknown publication",
    ),
    "unknown consumer": (
        {"transfers": _bad_transfers(consumer=3)},
        "unknown consumer task",
    ),
    "transfer without bytes": (
        {"transfers": _bad_transfers(size=0)},
        "size in bytes is out of range",
    ),
    "transfer without runs": (
        {"transfers": _bad_transfers(runs=0)},
        "number of runs is out of range",
    ),
    "more than there is": (
        {"transfers": _bad_transfers(size=65)},
        "reads more than publication 0 holds",
    ),
    "outside the fragment": (
        {"transfers": _bad_transfers(box=(0, 3, 0, 4, 0, 8))},
        "reads outside publication 0",
    ),
    "outside the channels": (
        {"transfers": _bad_transfers(box=(0, 2, 0, 4, 0, 9))},
        "reads outside publication 0",
    ),
    "access of nobody": (
        {"baseline": _bad_baseline(task=9)},
        "unknown task",
    ),
    "access without bytes": (
        {"baseline": _bad_baseline(size=0)},
        "size in bytes is out of range",
    ),
    "access without runs": (
        {"baseline": _bad_baseline(runs=0)},
        "number of runs is out of range",
    ),
    "edge from nowhere": ({"extra_edges": ((5, 2, 1),)}, "unknown source task"),
    "edge to nowhere": ({"extra_edges": ((0, 3, 1),)}, "unknown destination task"),
    "edge with negative bytes": (
        {"extra_edges": ((0, 2, -1),)},
        "size in bytes is out of range",
    ),
    "self edge": ({"extra_edges": ((1, 1, 0),)}, "conv/1 -> conv/1"),
    "cycle": (
        {"extra_edges": ((2, 0, 1),)},
        "dependencies form a cycle: conv/0 -> sum/0 -> conv/0",
    ),
    "not topological": (
        {"extra_edges": ((1, 0, 1),)},
        "not in topological order: 'conv/1' feeds 'conv/0'",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_metadata_fails_construction(name: str) -> None:
    changes, message = MALFORMED[name]
    with pytest.raises(MalformedInput, match=message) as caught:
        replace(good(), **changes)  # type: ignore[arg-type]
    assert "compute graph 'g'" in str(caught.value)


def test_the_shortest_cycle_is_named() -> None:
    tasks = tuple(Task(name, i, 0, WORK) for i, name in enumerate("abcd"))
    with pytest.raises(MalformedInput, match="cycle: c -> d -> c") as caught:
        ComputeGraph(
            "ring",
            tuple("abcd"),
            tasks,
            (),
            (),
            (),
            extra_edges=((0, 1, 1), (1, 2, 1), (2, 3, 1), (3, 0, 1), (3, 2, 1)),
        )
    assert caught.value.exit_code == 2


def test_scalar_projections_may_repeat_a_fragment() -> None:
    graph = good()
    twice = Publication(0, "conv", 8, TOP, 64, runs=2, scalar=True)
    again = replace(graph, publications=(*graph.publications, twice))
    assert again.publication_scalar.tolist() == [False, False, True]


def test_opaque_publications_need_no_box() -> None:
    graph = good()
    opaque = tuple(replace(p, box=None) for p in graph.publications)
    assert replace(graph, publications=opaque).edge_count == 2
