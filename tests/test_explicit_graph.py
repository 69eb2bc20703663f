"""Explicit graphs and the table target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.explicit import GivenEdge, GivenTask, explicit_graph
from raptor_cp.graph.work import CommandWork, ExplicitWork
from raptor_cp.targets.table.target import TableTarget
from raptor_cp.verdict import Unavailable


def task(name: str, *times: int, operation: str | None = None) -> GivenTask:
    return GivenTask(name, ExplicitWork(times or (1,)), operation)


def test_names_operations_and_lanes() -> None:
    graph = explicit_graph(
        "g",
        [
            task("b0", operation="B"),
            task("a0", operation="A"),
            task("a1", operation="A"),
        ],
        [GivenEdge("a0", "b0", 7), GivenEdge("a1", "b0")],
    )
    assert graph.operations == ("A", "B")
    assert [t.name for t in graph.tasks] == ["a0", "a1", "b0"]
    assert graph.task_lane.tolist() == [0, 1, 0]
    assert graph.edge_bytes.tolist() == [7, 0]
    assert [p.size for p in graph.publications] == [7]
    assert graph.extra_edges == ((1, 2, 0),)


def test_edges_between_lanes_of_one_operation() -> None:
    graph = explicit_graph(
        "g",
        [task("x", operation="A"), task("y", operation="A"), task("z", operation="B")],
        [GivenEdge("y", "x", 1)],
    )
    assert [t.name for t in graph.tasks] == ["y", "x", "z"]


def test_weights_are_shared_by_name() -> None:
    tasks = [
        GivenTask("a", ExplicitWork((1,)), "A", ("w", "v")),
        GivenTask("b", ExplicitWork((1,)), "B", ("w",)),
    ]
    graph = explicit_graph("g", tasks, [], [("v", 2), ("w", 3)])
    assert graph.task_slots().tolist() == [5, 3]
    assert [w.operation for w in graph.weights] == [0, 0]


@pytest.mark.parametrize(
    ("tasks", "edges", "part"),
    [
        ([], [], "no tasks"),
        (["a", "a"], [], "two tasks have one name"),
        (["a"], [("a", "b")], "unknown task (got 'b')"),
        (["a", "b"], [("a", "b"), ("a", "b")], "stands twice"),
        (["a"], [("a", "a")], "cycle: a -> a"),
        (["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "b")], "cycle: b -> c -> b"),
    ],
)
def test_wrong_graphs(
    tasks: list[str], edges: list[tuple[str, str]], part: str
) -> None:
    with pytest.raises(MalformedInput) as caught:
        explicit_graph("g", [task(t) for t in tasks], [GivenEdge(*e) for e in edges])
    assert part in str(caught.value)


def test_cycle_between_operations_is_named() -> None:
    tasks = [
        task("a0", operation="A"),
        task("b0", operation="B"),
        task("b1", operation="B"),
        task("a1", operation="A"),
    ]
    with pytest.raises(
        MalformedInput, match=r"operations .* form a cycle: A -> B -> A"
    ):
        explicit_graph("g", tasks, [GivenEdge("a0", "b0"), GivenEdge("b1", "a1")])


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 3)), max_size=14
    ),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_any_graph_is_ordered_or_refused(
    pairs: list[tuple[int, int, int]], operations: list[int]
) -> None:
    edges = {(a, b): size for a, b, size in pairs}
    tasks = [task(f"t{i}", operation=f"o{o}") for i, o in enumerate(operations)]
    given_edges = [GivenEdge(f"t{a}", f"t{b}", s) for (a, b), s in edges.items()]
    try:
        graph = explicit_graph("g", tasks, given_edges)
    except MalformedInput as error:
        assert "cycle" in str(error)  # noqa: PT017 - both outcomes are legal here
        return
    rank = {t.name: i for i, t in enumerate(graph.tasks)}
    assert all(rank[f"t{a}"] < rank[f"t{b}"] for a, b in edges)
    assert graph.task_operation.tolist() == sorted(graph.task_operation.tolist())


def test_costs_one_or_one_for_each_core() -> None:
    target = TableTarget(2)
    graph = explicit_graph("g", [task("a", 5), task("b", 7)])
    costs = target.costs(graph)
    assert costs.execution_ns.tolist() == [5, 7]
    assert costs.per_core_ns is None
    mixed = target.costs(explicit_graph("g", [task("a", 5), task("b", 7, 3)]))
    assert mixed.execution_ns.tolist() == [5, 7]
    assert mixed.per_core_ns is not None
    assert mixed.per_core_ns.tolist() == [[5, 5], [7, 3]]
    with pytest.raises(MalformedInput, match="one for each of the 2 cores"):
        target.costs(explicit_graph("g", [task("a", 1, 2, 3)]))


def test_other_work_has_no_price() -> None:
    target = TableTarget(2)
    assert isinstance(target.work_ns(CommandWork(())), Unavailable)
    graph = explicit_graph("g", [GivenTask("a", CommandWork(()))])
    with pytest.raises(MalformedInput, match="task 'a'"):
        target.costs(graph)


def test_communication_vanishes_on_one_core() -> None:
    links = TableTarget(3, link_ns=[[9, 2, 3], [4, 9, 6], [7, 8, 9]]).resources().links
    assert links.transfer_ns(5, 0, 1) == 10
    assert links.transfer_ns(5, 2, 1) == 40
    assert links.transfer_ns(5, 1, 1) == 0
    with pytest.raises(MalformedInput, match="3 rows of 3"):
        TableTarget(3, link_ns=[[1, 2], [3, 4]])
