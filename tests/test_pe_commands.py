"""Logical bytes of commands: one test for each counting rule."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    DmaWriteCmd,
    DType,
    GemmCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    PeCpuOverheadCmd,
    Scope,
    TensorHandle,
    extra_bytes,
)

A = TensorHandle("a", (64, 64))
B = TensorHandle("b", (64, 64))
C = TensorHandle("c", (64, 64))
GEMM = OpSpec("gemm", {"a": A, "b": B}, C, {"m": 64, "k": 64, "n": 64})


def test_anchor_composite_has_54_bytes() -> None:
    assert GEMM.logical_bytes == 1 + 1 + (1 + 16) + 8 + (1 + 12) == 40
    assert CompositeCmd((GEMM,), (C,)).logical_bytes == 4 + 1 + 40 + 1 + 8 == 54


def test_framing_and_two_lengths_of_an_empty_composite() -> None:
    assert CompositeCmd(()).logical_bytes == 4 + 1 + 1


def test_opcode_and_scope_and_lengths_of_a_bare_operation() -> None:
    assert OpSpec("nop").logical_bytes == 1 + 1 + 1 + 1
    assert OpSpec("nop", scope=Scope.WHOLE).logical_bytes == 4


def test_the_length_of_a_name_costs_nothing() -> None:
    assert OpSpec("a" * 50).logical_bytes == OpSpec("a").logical_bytes
    named = CompositeCmd((GEMM,), (C,), "a very long name")
    assert named.logical_bytes == CompositeCmd((GEMM,), (C,)).logical_bytes


@pytest.mark.parametrize("count", range(4))
def test_operand_handles(count: int) -> None:
    op = OpSpec("x", {str(i): A for i in range(count)})
    assert op.logical_bytes == 4 + 8 * count


def test_output_handle() -> None:
    assert OpSpec("x", out=C).logical_bytes == 4 + 8


def test_shape_and_type_of_a_tensor_cost_nothing() -> None:
    large = TensorHandle("l", (4096, 4096, 8), DType.F32, MemorySpace.HBM)
    assert (
        OpSpec("x", {"a": large}).logical_bytes == OpSpec("x", {"a": A}).logical_bytes
    )


def test_tracked_handles() -> None:
    plain = CompositeCmd((GEMM,)).logical_bytes
    assert CompositeCmd((GEMM,), (A, B, C)).logical_bytes == plain + 24


def test_handles_are_never_de_duplicated() -> None:
    op = OpSpec("mul_bcast", {"src_a": C, "src_b": A}, C)
    assert op.logical_bytes == 4 + 8 + 8 + 8  # C twice
    assert CompositeCmd((op,), (C,)).logical_bytes == 6 + 28 + 8  # and once more
    assert CompositeCmd((op, op), (C, C)).logical_bytes == 6 + 56 + 16


class Anything:
    """A value of no known kind."""


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (True, 1),
        (False, 1),
        (0, 4),
        (1, 4),
        (10**30, 4),
        (1.0, 4),
        (float("nan"), 4),
        ((), 1),
        ((64, 64), 9),
        ([1, 2, 3], 13),
        ([True], 5),
        ("row", 1),
        ("", 1),
        (None, 4),
        (Anything(), 4),
        (b"12", 4),
        ({"a": 1}, 4),
    ],
)
def test_extras_by_type(value: object, size: int) -> None:
    assert extra_bytes(value) == size
    assert OpSpec("x", extra={"key": value}).logical_bytes == 4 + size


def test_a_bool_is_not_counted_as_an_int() -> None:
    one, true = OpSpec("x", extra={"k": 1}), OpSpec("x", extra={"k": True})
    assert one.logical_bytes - true.logical_bytes == 3


def test_extras_add_up() -> None:
    extra = {"m": 1, "fast": True, "axes": (0, 1), "mode": "row", "other": None}
    assert OpSpec("x", extra=extra).logical_bytes == 4 + 4 + 1 + 9 + 1 + 4


def test_single_op_commands() -> None:
    assert DmaReadCmd(A, B).logical_bytes == 4 + 16 + 4
    assert DmaWriteCmd(A, B).logical_bytes == 4 + 16 + 4
    assert CopyCmd(A, B).logical_bytes == 4 + 16
    assert GemmCmd(A, B, C, 64, 64, 64).logical_bytes == 4 + 24 + 12
    assert MathCmd("exp", (A,), C).logical_bytes == 4 + 1 + 1 + 8 + 8
    assert MathCmd("add", (A, B), C).logical_bytes == 4 + 1 + 1 + 16 + 8
    assert MathCmd("max", (A,), C, axis=0).logical_bytes == 4 + 1 + 1 + 8 + 8 + 4
    assert MathCmd("trap", (), None).logical_bytes == 4 + 1 + 1
    assert PeCpuOverheadCmd(7).logical_bytes == 4 + 4


def test_commands_are_frozen_hashable_and_can_be_pickled() -> None:
    command = CompositeCmd((GEMM,), (C,))
    with pytest.raises(FrozenInstanceError):
        command.name = "x"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(command)) == command
    assert hash(command) == hash(CompositeCmd((GEMM,), (C,)))
    with pytest.raises(TypeError):
        GEMM.extra["m"] = 1  # type: ignore[index]


def test_an_operation_does_not_follow_the_callers_mapping() -> None:
    extra: dict[str, object] = {"axes": [1, 2]}
    op = OpSpec("x", extra=extra)
    extra["more"] = 1
    assert op.logical_bytes == 4 + 9


def test_single_commands_of_an_operation_load_what_is_remote() -> None:
    far = TensorHandle("far", (64, 64), space=MemorySpace.HBM)
    op = OpSpec("gemm", {"a": A, "b": far}, far)
    kinds = [type(command) for command in op.single_commands()]
    assert kinds == [DmaReadCmd, GemmCmd, DmaWriteCmd]
    assert op.single_command_count == 3
    assert op.single_command_bytes == 24 + 40 + 24
    assert GEMM.single_command_bytes == 40
    assert OpSpec("sum", {"a": A}, C, {"axis": 1}).single_command_bytes == 26


@pytest.mark.parametrize("shape", [(), (0,), (4, -1)])
def test_impossible_tensors(shape: tuple[int, ...]) -> None:
    with pytest.raises(MalformedInput, match="positive dimensions"):
        TensorHandle("t", shape)


@pytest.mark.parametrize("cycles", [-1, 1.5, True, "3"])
def test_impossible_overhead(cycles: object) -> None:
    with pytest.raises(MalformedInput):
        PeCpuOverheadCmd(cycles)  # type: ignore[arg-type]
