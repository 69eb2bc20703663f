"""The pe target: command lists become tasks with exact, checked costs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.graph.explicit import GivenTask, explicit_graph
from raptor_cp.graph.work import CommandWork, ExplicitWork
from raptor_cp.scenario import load, loads
from raptor_cp.scheduler import schedule
from raptor_cp.target import Unavailable
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    OpSpec,
    PeCpuOverheadCmd,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import CompositeTooLarge, PeCostModel
from raptor_cp.targets.pe.element import element_cost
from raptor_cp.targets.pe.factory import create
from raptor_cp.targets.pe.target import PeTarget, check_task_costs, command_log
from raptor_cp.targets.pe.topology import PeTopology
from raptor_cp.targets.pe.workload import compute_graph
from tests.conftest import ROOT

DECODE = """
schema: raptor-cp/1
name: decode
network: {kernel: gqa_decode_opt2, params: {tiles: 10, splits: 4, layers: 3}}
target: {kind: pe, elements: 6}
"""
X, Y = TensorHandle("x", (64, 64)), TensorHandle("y", (64, 64))


def test_a_decode_scenario_becomes_a_graph_over_elements() -> None:
    loaded = loads(DECODE)
    target = create(loaded)
    graph = compute_graph(loaded, target.topology.elements[0])
    assert graph.task_count == 3 * (4 + 1)
    assert len(graph.operations) == 6
    assert target.resources().cores == 6
    costs = target.costs(graph)
    assert costs.per_core_ns is None
    assert "dispatch" in costs.notes[0]
    # Splits of three tiles cost more than those of two.
    assert len(set(costs.execution_ns[:4].tolist())) == 2
    check_task_costs(target, graph)


def test_execution_is_the_elements_time_rounded_up_once() -> None:
    topology = PeTopology.from_mapping({"pe": {"attrs": {"clock_freq_ghz": 3}}})
    target = PeTarget(topology)
    work = CommandWork((CopyCmd(X, Y), PeCpuOverheadCmd(7)))
    exact = element_cost((CopyCmd(X, Y), PeCpuOverheadCmd(7)), topology.elements[0])
    ns = target.work_ns(work)
    assert isinstance(ns, int)
    assert 0 <= ns - exact.total_ns < 1
    graph = explicit_graph("g", [GivenTask("t", work)])
    (found,) = target.task_dispatch(graph)
    assert found.commands == 2
    assert found.dispatch_cycles == 8 + Fraction(20, 16)
    assert found.dispatch_ns == found.dispatch_cycles / 3
    assert found.execution_ns == ns


def test_elements_may_differ() -> None:
    topology = PeTopology.from_mapping(
        {"pe": {"count": 3, "overrides": {1: {"clock_freq_ghz": 2}}}}
    )
    target = PeTarget(topology)
    graph = explicit_graph("g", [GivenTask("t", CommandWork((CopyCmd(X, Y),)))])
    costs = target.costs(graph)
    assert costs.on(0, 0) == costs.on(0, 2)
    assert costs.on(0, 1) < costs.on(0, 0)
    check_task_costs(target, graph)


def test_explicit_times_stand_beside_commands() -> None:
    target = PeTarget(PeTopology.from_mapping({"pe": {"count": 2}}))
    graph = explicit_graph(
        "g",
        [GivenTask("a", ExplicitWork((5, 9))), GivenTask("b", ExplicitWork((3,)))],
    )
    costs = target.costs(graph)
    assert [costs.on(0, 0), costs.on(0, 1), costs.on(1, 1)] == [5, 9, 3]
    assert costs.notes == ()
    bad = explicit_graph("g", [GivenTask("a", ExplicitWork((1, 2, 3)))])
    with pytest.raises(MalformedInput, match="execution times"):
        target.costs(bad)


def test_a_composite_above_the_cap_names_its_task() -> None:
    wide = CompositeCmd((OpSpec("f", {"x": X}, Y),) * 60, name="wide")
    graph = explicit_graph("g", [GivenTask("late", CommandWork((wide,)))])
    target = PeTarget(PeTopology())
    with pytest.raises(CompositeTooLarge, match=r"task 'late'.*'wide'"):
        target.costs(graph)
    with pytest.raises(CompositeTooLarge):
        check_task_costs(target, graph)


def test_a_wrong_dispatch_is_found() -> None:
    class Wrong(PeTarget):
        def task_dispatch(self, graph, core=0):  # type: ignore[no-untyped-def]
            return [
                replace(d, dispatch_cycles=d.dispatch_cycles + 1)
                for d in super().task_dispatch(graph, core)
            ]

    graph = explicit_graph("g", [GivenTask("t", CommandWork((CopyCmd(X, Y),)))])
    with pytest.raises(InternalError, match="by formula"):
        check_task_costs(Wrong(PeTopology()), graph)


def test_resources_are_whole_and_exact() -> None:
    topology = PeTopology.from_mapping(
        {
            "pe": {
                "count": 2,
                "attrs": {
                    "clock_freq_ghz": 1.25,
                    "tcm": {"capacity_bytes": 5000},
                    "dma": {"bytes_per_cycle": 64, "setup_cycles": 3},
                },
            },
            "links": {"bytes_per_cycle": 2, "setup_cycles": 10},
        }
    )
    resources = PeTarget(topology).resources()
    assert resources.slots_per_core == resources.local_memory_bytes == 5000
    # 2 bytes a cycle at 1.25 GHz are 5 bytes in 2 ns.
    assert resources.links.transfer_ns(10, 0, 1) == 8 + 2 * 2
    assert resources.links.transfer_ns(10, 1, 1) == 0
    assert (resources.memory.width, resources.memory.read_ns) == (80, 1)
    assert resources.memory.read_fixed_ns == 3


def test_what_the_target_cannot_run() -> None:
    loaded = loads(
        "schema: raptor-cp/1\nname: n\nnetwork: {zoo: resnet18}\ntarget: {kind: pe}\n"
    )
    with pytest.raises(MalformedInput, match="runs kernels"):
        compute_graph(loaded, create(loaded).topology.elements[0])
    with pytest.raises(InternalError, match="not a command"):
        command_log(CommandWork((3,)))
    assert not isinstance(PeTarget(PeTopology()).work_ns(CommandWork(())), Unavailable)


@pytest.mark.parametrize(
    "params", ["splits: 11", "splits: 0", "layers: true", "tiles: 1.5", "nothing: 1"]
)
def test_bad_parameters(params: str) -> None:
    loaded = loads(
        "schema: raptor-cp/1\nname: n\ntarget: {kind: pe}\n"
        f"network: {{kernel: gqa_decode_opt2, params: {{{params}}}}}\n"
    )
    with pytest.raises(MalformedInput):
        compute_graph(loaded, create(loaded).topology.elements[0])


def test_other_kernels_are_one_task() -> None:
    loaded = loads(
        "schema: raptor-cp/1\nname: n\ntarget: {kind: pe}\n"
        "network: {kernel: gemm_prefetch}\n"
    )
    target = create(loaded)
    graph = compute_graph(loaded, target.topology.elements[0])
    assert graph.task_count == 1
    assert target.topology.elements[0].cost_model == PeCostModel()
    assert target.costs(graph).execution_ns[0] == 4818


def test_a_decode_scenario_schedules_in_latency_mode() -> None:
    """The shipped scenario, for one token at a time."""
    path = ROOT / "scenarios" / "gqa-decode-pe.yaml"
    result = schedule(load(path, ("mode=latency",)))
    assert result.verdict.has_solution
    assert result.latency_ns is not None
    assert result.schedule is not None
    name, dispatch = result.schedule.problem.costs.components[0]
    assert name == "dispatch_ns"
    assert 0 < int(dispatch.sum()) < result.latency_ns * 8
