"""Explicit tasks and the table target from Python: legal, and refused by name."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import raptor_cp as rc
from raptor_cp.graph.explicit import GivenEdge, GivenTask, explicit_graph
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import evaluate
from raptor_cp.targets.table.target import TableTarget
from raptor_cp.validation import violations

if TYPE_CHECKING:
    from collections.abc import Callable

SCENARIO: dict[str, Any] = {
    "schema": "raptor-cp/1",
    "name": "two",
    "mode": "latency",
    "network": {
        "tasks": [
            {"id": "first", "execution_ns": [1, 2], "weights": ["w"]},
            {"id": "second", "execution_ns": [3, 4]},
        ],
        "edges": [{"src": "first", "dst": "second", "bytes": 3}],
        "weights": [{"id": "w", "slots": 2}],
    },
    "target": {"kind": "table", "cores": 2, "slots_per_core": 4},
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    scenario = copy.deepcopy(SCENARIO)
    change(scenario)
    return scenario


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda d: d["network"]["tasks"][0].update(execution_ns=[1, 2, 3]),
            "task 'first': wrong number of execution times (got 3); expected one, or "
            "one for each of the 2 cores",
        ),
        (
            lambda d: d["network"]["tasks"][0].update(execution_ns=[1, -2]),
            "network.tasks.0.execution_ns.1: wrong value (got -2)",
        ),
        (
            lambda d: d["network"]["edges"].append(
                {"src": "second", "dst": "first", "bytes": 1}
            ),
            "dependencies form a cycle: first -> second -> first",
        ),
        (
            lambda d: d["network"]["edges"].append({"src": "first", "dst": "secnd"}),
            "edge 1: unknown task (got 'secnd'); did you mean 'second'?",
        ),
        (
            lambda d: d["network"]["tasks"].append({"id": "first", "execution_ns": 1}),
            "two tasks have one name (got 'first')",
        ),
        (
            lambda d: d["network"]["tasks"][1].update(weights=["v"]),
            "task 'second': unknown weight (got 'v')",
        ),
        (
            lambda d: d["target"].update(link_ns=[[0, 1], [1]]),
            "target.link_ns: not a square matrix over the cores",
        ),
        (
            lambda d: d["target"].update(handshake_ns=[[0, -1], [1, 0]]),
            "target.handshake_ns.0.1: wrong value (got -1)",
        ),
    ],
)
def test_sentences_of_a_scenario(
    change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(rc.MalformedInput) as refused:
        rc.schedule(changed(change))
    assert sentence in str(refused.value)


def test_a_weight_above_the_capacity_is_proved_infeasible() -> None:
    result = rc.schedule(changed(lambda d: d["target"].update(slots_per_core=1)))
    assert result.verdict is rc.Verdict.INFEASIBLE
    assert result.exit_code == 1
    assert "task 'first' needs 2 weight slots at once, a core has 1" in result.reason


def test_link_matrices_have_a_direction() -> None:
    """b can only run fast on core 1: the way there costs what the matrices say."""
    scenario = changed(
        lambda d: d["target"].update(
            link_ns=[[0, 5], [7, 0]], handshake_ns=[[0, 1], [2, 0]]
        )
    )
    scenario["network"]["tasks"] = [
        {"id": "first", "execution_ns": [1, 900]},
        {"id": "second", "execution_ns": [900, 1]},
    ]
    assert rc.schedule(scenario).static_latency_ns == 1 + (1 + 3 * 5) + 1
    scenario["network"]["tasks"] = [
        {"id": "first", "execution_ns": [900, 1]},
        {"id": "second", "execution_ns": [1, 900]},
    ]
    assert rc.schedule(scenario).static_latency_ns == 1 + (2 + 3 * 7) + 1


def graph_of(
    costs: tuple[int, ...] = (1, 2), size: int = 3, end: str = "second"
) -> Problem:
    """The scenario above without a scenario."""
    graph = explicit_graph(
        "two",
        [
            GivenTask("first", ExplicitWork(costs), weights=("w",)),
            GivenTask("second", ExplicitWork((3, 4))),
        ],
        [GivenEdge("first", end, size)],
        [("w", 2)],
    )
    target = TableTarget(2, slots_per_core=4)
    return Problem(graph, target.costs(graph), target.resources())


def test_from_python() -> None:
    problem = graph_of()
    found = PeftScheduler(problem).schedule()
    assert isinstance(found, ListSchedule)
    assert found.makespan_ns == 4
    assert violations(evaluate(problem, found.placement)) == ()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: graph_of(costs=(1, -2)),
            "task 'first', core 1: out of range (got -2)",
        ),
        (lambda: graph_of(costs=(-1,)), "task 'first': out of range (got -1)"),
        (lambda: graph_of(costs=(2**64, 1)), "core 0: out of range"),
        (lambda: graph_of(costs=()), "wrong number of execution times (got 0)"),
        (lambda: graph_of(size=-3), "edge 0: a dependency moves no less than nothing"),
        (lambda: graph_of(end="secnd"), "did you mean 'second'?"),
        (lambda: TableTarget(0), "target.cores: out of range (got 0)"),
        (lambda: TableTarget(2, 0), "target.slots_per_core: out of range (got 0)"),
        (lambda: TableTarget(2, link_width=0), "target.link_width: out of range"),
        (lambda: TableTarget(2, link_ns=-1), "target.link_ns: out of range (got -1)"),
        (
            lambda: TableTarget(2, link_ns=[[0, -1], [1, 0]]),
            "target.link_ns[0][1]: out of range (got -1)",
        ),
        (
            lambda: TableTarget(2, link_ns=1.5),  # type: ignore[arg-type]
            "target.link_ns: not a number of ns (got 1.5)",
        ),
        (
            lambda: TableTarget(2, link_ns=[[0, 1.5], [1, 0]]),  # type: ignore[list-item]
            "target.link_ns[0][1]: not a whole number (got 1.5)",
        ),
        (
            lambda: TableTarget(3, handshake_ns=[[0, 1], [1, 0]]),
            "target.handshake_ns: not a square matrix over the cores",
        ),
    ],
)
def test_sentences_of_python(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(rc.MalformedInput) as refused:
        make()
    assert sentence in str(refused.value)


def test_numbers_and_matrices_of_numpy() -> None:
    matrix = np.array([[0, 5], [7, 0]])
    links = TableTarget(2, link_ns=matrix).resources().links
    assert links.transfer_ns(2, 0, 1) == 10
    assert links.transfer_ns(2, 1, 0) == 14
    alike = TableTarget(2, link_ns=np.int64(3)).resources().links
    assert alike.transfer_ns(1, 0, 1) == 3
