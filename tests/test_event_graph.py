"""Construction and checks of event graphs."""

from __future__ import annotations

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.periodic.dependency_order import coupled_parts
from raptor_cp.periodic.event_graph import (
    MAX_DISTANCE,
    Access,
    EventGraph,
    EventGraphBuilder,
)
from raptor_cp.units import MAX_NS


def small() -> EventGraphBuilder:
    builder = EventGraphBuilder()
    entry = builder.add_event(4, "entry", start_ns=3)
    load = builder.add_request(4, "load", "memory", 40, Access.READ, link="4->memory")
    store = builder.add_request(4, "store", "memory", 60, Access.WRITE)
    builder.add_edge(store, entry, 1, distance=1)
    builder.add_edge(entry, load, 15)
    builder.add_edge(load, store, 7)
    builder.add_core_work(4, 100)
    builder.add_core_work(2, 5)
    builder.add_core_work(4, 1)
    return builder


def test_arrays_are_sorted_by_source_and_read_only() -> None:
    graph = small().build()
    assert graph.edge_src.tolist() == [0, 1, 2]
    assert graph.edge_ptr.tolist() == [0, 1, 2, 3]
    assert graph.edge_dst.tolist() == [1, 2, 0]
    assert graph.edge_distance.tolist() == [0, 0, 1]
    assert (graph.event_count, graph.edge_count) == (3, 3)
    assert (graph.recurrence_edge_count, graph.request_count) == (1, 2)
    assert graph.label(1) == "load@4[4->memory]#1"
    assert graph.work_core.tolist() == [2, 4]
    assert graph.work_ns.tolist() == [5, 101]
    with pytest.raises(ValueError, match="read-only"):
        graph.edge_delay_ns[0] = 1


def test_service_totals() -> None:
    graph = small().build()
    assert graph.service_by_server().tolist() == [100]
    assert graph.service_by_server(Access.READ).tolist() == [40]
    assert graph.service_by_server(Access.WRITE).tolist() == [60]
    assert graph.total_delay_ns() == 1 + 15 + 7 + 40 + 60 + 3


def test_completion_defaults_to_events_without_successor() -> None:
    assert small().build().completion.tolist() == [2]
    builder = small()
    builder.mark_completion(1)
    builder.mark_completion(1)
    assert builder.build().completion.tolist() == [1]


def test_bulk_edges_equal_single_edges() -> None:
    one, many = small(), small()
    one.add_edge(0, 2, 9, 3)
    one.add_edge(1, 2, 8, 3)
    many.add_edges(np.array([0, 1]), [2, 2], np.array([9, 8]), 3)
    left, right = one.build(), many.build()
    for name in ("edge_src", "edge_dst", "edge_delay_ns", "edge_distance"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    with pytest.raises(MalformedInput, match="edge arrays differ in length"):
        many.add_edges([0], [1], [2, 3])


@pytest.mark.parametrize(
    ("edge", "name", "expected"),
    [
        ((0, 1, -1, 0), "delay", f"0 to {MAX_NS}"),
        ((0, 1, MAX_NS + 1, 0), "delay", f"0 to {MAX_NS}"),
        ((0, 1, 2**70, 0), "delay", f"0 to {MAX_NS}"),
        ((0, 1, 1.5, 0), "delay", f"0 to {MAX_NS}"),
        ((0, 1, 1, -1), "distance", f"0 to {MAX_DISTANCE}"),
        ((0, 1, 1, MAX_DISTANCE + 1), "distance", f"0 to {MAX_DISTANCE}"),
        ((-1, 1, 1, 0), "source", "0 to 2"),
        ((0, 3, 1, 0), "target", "0 to 2"),
    ],
)
def test_bad_edges_are_named(
    edge: tuple[int, int, int, int], name: str, expected: str
) -> None:
    builder = small()
    builder.add_edge(*edge)
    with pytest.raises(MalformedInput) as caught:
        builder.build()
    assert str(caught.value).startswith(f"edge 3: bad {name} (got ")
    assert expected in caught.value.expected


def test_bad_events_are_named() -> None:
    with pytest.raises(MalformedInput, match="no events"):
        EventGraphBuilder().build()
    builder = small()
    builder.add_request(0, "load", "memory", -5)
    with pytest.raises(MalformedInput, match="event 3: bad service"):
        builder.build()
    builder = small()
    builder.add_event(-2, "entry")
    with pytest.raises(MalformedInput, match="event 3: bad core"):
        builder.build()
    with pytest.raises(MalformedInput, match="a service time without a server"):
        EventGraph.from_arrays(
            core=[0],
            kind=[0],
            kind_labels=["x"],
            service_ns=[4],
            edge_src=[],
            edge_dst=[],
            edge_delay_ns=[],
            edge_distance=[],
        )
    with pytest.raises(MalformedInput, match="edges: delay array has the wrong length"):
        EventGraph.from_arrays(
            core=[0],
            kind=[0],
            kind_labels=["x"],
            edge_src=[0],
            edge_dst=[0],
            edge_delay_ns=[],
            edge_distance=[1],
        )


def test_to_networkx_keeps_everything() -> None:
    graph = small().build().to_networkx()
    assert graph.number_of_edges() == 3
    assert graph.nodes[1] == {
        "label": "load@4[4->memory]#1",
        "core": 4,
        "kind": "load",
        "link": "4->memory",
        "server": "memory",
        "service_ns": 40,
        "access": "READ",
        "start_ns": 0,
    }
    assert graph.edges[2, 0, 0] == {"delay_ns": 1, "distance": 1}


def test_parts_are_joined_by_edges_and_by_servers() -> None:
    builder = EventGraphBuilder()
    plain = [builder.add_event(0, "plain") for _ in range(3)]
    left = builder.add_request(0, "left", "shared", 1)
    apart = builder.add_request(1, "apart", "own", 2)
    right = builder.add_request(2, "right", "shared", 3)
    builder.add_edge(plain[2], plain[0], 11, 1)
    builder.add_edge(right, plain[1], 12)
    builder.mark_completion(right)
    graph = builder.build()
    parts = coupled_parts(graph)
    assert [part.event_count for part in parts] == [2, 3, 1]
    assert parts[0].edge_delay_ns.tolist() == [11]
    assert [parts[1].label(event) for event in range(3)] == [
        "plain@0#0",
        "left@0#1",
        "right@2#2",
    ]
    assert parts[1].completion.tolist() == [2]
    assert parts[1].edge_dst.tolist() == [0]
    assert parts[2].service_ns.tolist() == [2]
    assert (left, apart) == (3, 4)
    whole = small().build()
    assert coupled_parts(whole) == (whole,)
