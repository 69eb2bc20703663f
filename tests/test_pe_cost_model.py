"""The dispatch formula, its knobs, and the cap."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    DmaWriteCmd,
    GemmCmd,
    MathCmd,
    OpSpec,
    PeCommand,
    PeCpuOverheadCmd,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import CompositeTooLarge, PeCostModel, charge
from raptor_cp.targets.pe.topology import PeTopology

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = (TensorHandle(name, (64, 64)) for name in "abc")
GEMM = OpSpec("gemm", {"a": A, "b": B}, C, {"m": 64, "k": 64, "n": 64})
ADD = OpSpec("add", {"a": A, "b": B}, C)
SINGLES: list[PeCommand] = [
    DmaReadCmd(A, B),
    DmaWriteCmd(A, B),
    GemmCmd(A, B, C, 64, 64, 64),
    MathCmd("add", (A, B), C),
    CopyCmd(A, B),
]
COMPOSITES = {
    "one gemm": CompositeCmd((GEMM,), (C,)),
    "five math": CompositeCmd((ADD,) * 5, (C,)),
    "ten operations": CompositeCmd((*(ADD,) * 9, GEMM), (A, B, C)),
}
KNOBS = st.builds(
    PeCostModel,
    st.fractions(0, 200, max_denominator=64),
    st.fractions(0, 200, max_denominator=64),
    st.fractions(0, 2, max_denominator=64),
)


def composite_of(size: int) -> CompositeCmd:
    """A composite of exactly ``size`` >= 28 bytes."""
    filler = OpSpec("fill", extra={str(i): True for i in range(size - 10)})
    command = CompositeCmd((filler,), name="filled")
    assert command.logical_bytes == size
    return command


def test_anchor_cycles() -> None:
    cycles = PeCostModel().dispatch_cycles(COMPOSITES["one gemm"])
    assert cycles == Fraction(347, 8)
    assert float(cycles) == 43.375


@pytest.mark.parametrize("name", COMPOSITES)
@given(model=KNOBS)
def test_formula_of_composites(name: str, model: PeCostModel) -> None:
    command = COMPOSITES[name]
    assert (
        model.dispatch_cycles(command)
        == model.fixed_per_cmd_cycles + command.logical_bytes * model.byte_cycles_recip
    )


@pytest.mark.parametrize("command", SINGLES, ids=lambda c: type(c).__name__)
@given(model=KNOBS)
def test_formula_of_single_op_commands(command: PeCommand, model: PeCostModel) -> None:
    assert model.dispatch_cycles(command) == (
        model.fixed_per_single_op_cmd_cycles
        + command.logical_bytes * model.byte_cycles_recip
    )


@given(st.integers(0, 10**6), KNOBS)
def test_overhead_bypasses_the_formula(cycles: int, model: PeCostModel) -> None:
    cost = charge(model, PeCpuOverheadCmd(cycles))
    assert cost.dispatch_cycles == 0
    assert cost.cpu_cycles == cycles


def test_composites_do_not_move_with_the_single_op_knob() -> None:
    for command in COMPOSITES.values():
        costs = {
            PeCostModel(fixed_per_single_op_cmd_cycles=Fraction(k)).dispatch_cycles(
                command
            )
            for k in (0, 8, 40, 1000)
        }
        assert len(costs) == 1


def test_defaults() -> None:
    model = PeCostModel()
    assert PeCostModel.from_mapping(None) == model == PeCostModel.from_mapping({})
    assert model.fixed_per_cmd_cycles == 40
    assert model.fixed_per_single_op_cmd_cycles == 8
    assert model.byte_cycles_recip == Fraction(1, 16)
    assert model.max_composite_logical_bytes == 1024


def test_override_partial_and_whole() -> None:
    partial = PeCostModel.from_mapping({"fixed_per_cmd_cycles": 12})
    assert partial.fixed_per_cmd_cycles == 12
    assert partial.byte_cycles_recip == Fraction(1, 16)
    whole = PeCostModel.from_mapping(
        {
            "fixed_per_cmd_cycles": 1,
            "fixed_per_single_op_cmd_cycles": 2,
            "byte_cycles_recip": 0.1,
            "max_composite_logical_bytes": 99,
        }
    )
    # 0.1 is what the user wrote, not the nearest binary float.
    assert whole == PeCostModel(Fraction(1), Fraction(2), Fraction(1, 10), 99)


def test_misspelt_knob_names_the_nearest() -> None:
    with pytest.raises(MalformedInput, match="'fixed_per_cmd_cycles'") as caught:
        PeCostModel.from_mapping({"fixed_per_cmd_cycle": 1}, where="t.yaml:pe")
    assert "t.yaml:pe.fixed_per_cmd_cycle" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "knob",
    ["fixed_per_cmd_cycles", "fixed_per_single_op_cmd_cycles", "byte_cycles_recip"],
)
@pytest.mark.parametrize(
    "value",
    [-1, -0.5, float("nan"), float("inf"), "8", None, True, [8], {"a": 1}],
)
def test_bad_knobs(knob: str, value: object) -> None:
    with pytest.raises(MalformedInput, match=knob):
        PeCostModel.from_mapping({knob: value})


@pytest.mark.parametrize("value", [0, -1, 1024.0, float("nan"), "1024", True, None])
def test_bad_cap(value: object) -> None:
    with pytest.raises(MalformedInput, match="max_composite_logical_bytes"):
        PeCostModel.from_mapping({"max_composite_logical_bytes": value})


def test_bad_knobs_of_the_constructor() -> None:
    with pytest.raises(MalformedInput):
        PeCostModel(fixed_per_cmd_cycles=Fraction(-1))


@pytest.mark.parametrize(("size", "fits"), [(1023, True), (1024, True), (1025, False)])
def test_cap_is_inclusive(size: int, fits: bool) -> None:
    command = composite_of(size)
    if fits:
        PeCostModel().check_cap(command)
        return
    with pytest.raises(ValueError, match="1025 logical bytes"):
        PeCostModel().check_cap(command)


def test_cap_error_names_what_a_user_needs() -> None:
    ops = (*(ADD,) * 30, GEMM, OpSpec("wide", {str(i): A for i in range(20)}))
    command = CompositeCmd(ops, (C,), "attention_tail")
    with pytest.raises(CompositeTooLarge) as caught:
        charge(PeCostModel(), command)
    text = str(caught.value)
    assert "attention_tail" in text
    assert str(command.logical_bytes) in text
    assert "cap is 1024 bytes" in text
    assert text.index("#31 wide (164 bytes)") < text.index("#30 gemm->c (40 bytes)")
    assert caught.value.composite is command
    assert isinstance(caught.value, ValueError)


def test_the_cap_is_for_composites_only() -> None:
    model = PeCostModel(max_composite_logical_bytes=1)
    for command in SINGLES:
        charge(model, command)
    with pytest.raises(CompositeTooLarge):
        charge(model, COMPOSITES["one gemm"])


def test_topology_overrides_per_element(tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    file.write_text(
        """
pe:
  count: 3
  attrs:
    clock_freq_ghz: 2.0
    pe_cost_model: {fixed_per_cmd_cycles: 20, byte_cycles_recip: 0.25}
  overrides:
    1: {pe_cost_model: {fixed_per_cmd_cycles: 10}}
"""
    )
    first, second, third = PeTopology.load(file).elements
    command = COMPOSITES["one gemm"]
    assert first.cost_model.dispatch_cycles(command) == 20 + Fraction(54, 4)
    assert second.cost_model.dispatch_cycles(command) == 10 + Fraction(54, 4)
    assert third == first
    assert first.cycles_to_ns(Fraction(3)) == Fraction(3, 2)


def test_topology_without_a_block_has_the_defaults() -> None:
    assert PeTopology.from_mapping({}).elements[0].cost_model == PeCostModel()
    assert PeTopology.from_mapping(None) == PeTopology()


@pytest.mark.parametrize(
    ("data", "place", "near"),
    [
        ({"pee": {}}, "topology.pee", "'pe'"),
        ({"pe": {"attr": {}}}, "topology.pe.attr", "'attrs'"),
        ({"pe": {"attrs": {"clock_ghz": 1}}}, "attrs.clock_ghz", "'clock_freq_ghz'"),
        (
            {"pe": {"attrs": {"pe_cost_model": {"byte_cycle_recip": 1}}}},
            "pe_cost_model.byte_cycle_recip",
            "'byte_cycles_recip'",
        ),
        ({"pe": {"attrs": {"gemm": {"macs": 4}}}}, "gemm.macs", "'macs_per_cycle'"),
        ({"pe": {"attrs": {"tiling": {"mm": 4}}}}, "tiling.mm", "'m'"),
        ({"links": {"byte_per_cycle": 4}}, "byte_per_cycle", "'bytes_per_cycle'"),
    ],
)
def test_unknown_keys_name_the_nearest(
    data: dict[str, object], place: str, near: str
) -> None:
    with pytest.raises(MalformedInput) as caught:
        PeTopology.from_mapping(data)
    assert place in str(caught.value)
    assert f"did you mean {near}?" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {"pe": []},
        {"pe": {"count": 0}},
        {"pe": {"count": 1.5}},
        {"pe": {"attrs": {"clock_freq_ghz": 0}}},
        {"pe": {"attrs": {"clock_freq_ghz": float("nan")}}},
        {"pe": {"attrs": {"scheduler_queue_depth": 0}}},
        {"pe": {"attrs": {"dma": {"bytes_per_cycle": 0}}}},
        {"pe": {"attrs": {"dma": {"setup_cycles": -1}}}},
        {"pe": {"attrs": {"tiling": {"m": True}}}},
        {"pe": {"attrs": {"tcm": {"capacity_bytes": -5}}}},
        {"pe": {"overrides": {"x": {}}}},
        {"pe": {"overrides": {3: {}}}},
        {"pe": {"overrides": [1]}},
        {"pe": {"attrs": {"pe_cost_model": [1]}}},
    ],
)
def test_bad_topologies(data: dict[str, object]) -> None:
    with pytest.raises(MalformedInput):
        PeTopology.from_mapping(data)


def test_unreadable_topologies(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="cannot read"):
        PeTopology.load(tmp_path / "missing.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("pe: [")
    with pytest.raises(MalformedInput, match="cannot read"):
        PeTopology.load(broken)
    broken.write_text("- 1")
    with pytest.raises(MalformedInput, match="not a mapping"):
        PeTopology.load(broken)
