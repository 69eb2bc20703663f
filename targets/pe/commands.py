"""Commands that the CPU of a processing element issues, and their logical bytes.

Every command counts the bytes that hardware would write into the scheduler's
queue (dispatch-cost spec, D2): 4 for framing, 1 for an opcode or another enum,
8 for a tensor reference, 4 for a scalar, 1 for the length of a tuple.  Each
reference counts by itself; nothing is de-duplicated.  Python's own object sizes
play no part, and neither do names, which exist for people only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from raptor_cp.errors import MalformedInput

FRAMING_BYTES = 4
OPCODE_BYTES = 1
HANDLE_BYTES = 8
SCALAR_BYTES = 4
LENGTH_BYTES = 1

#: Operation kinds that run on the GEMM engine; every other kind runs on MATH.
#: ``gemm_acc`` adds to its output, ``gemm`` overwrites it.
GEMM_KINDS = ("gemm", "gemm_acc")

V = TypeVar("V")


class MemorySpace(StrEnum):
    """Where a tensor lives: off the element (HBM) or in its local memory (TCM)."""

    HBM = "hbm"
    TCM = "tcm"


class DType(StrEnum):
    """Element type of a tensor."""

    I8 = "i8"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"

    @property
    def bytes(self) -> int:
        """Bytes of one element."""
        return {"i8": 1, "f16": 2, "bf16": 2, "f32": 4}[self.value]


class Scope(StrEnum):
    """Whether an operation of a composite runs for each tile or once for all."""

    TILE = "tile"
    WHOLE = "whole"


class FrozenMap(Mapping[str, V]):
    """An immutable string-keyed mapping that keeps its order and can be pickled."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items: dict[str, V] = dict(items or {})

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(self._items)

    def __hash__(self) -> int:
        # Values may be unhashable; equal maps have equal keys, which is enough.
        return hash(tuple(sorted(self._items)))


@dataclass(frozen=True, slots=True)
class TensorHandle:
    """A tensor that commands refer to by address.

    Args:
        name: unique within a kernel; identity of the tensor for hazards.
        shape: elements per dimension, all positive.
        dtype: element type.
        space: memory that holds it.

    Raises:
        MalformedInput: an empty shape or a dimension below one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = DType.F16
    space: MemorySpace = MemorySpace.TCM

    def __post_init__(self) -> None:
        if not self.shape or any(extent < 1 for extent in self.shape):
            raise MalformedInput(
                "a tensor needs positive dimensions",
                where=f"tensor {self.name}",
                value=self.shape,
            )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.bytes

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last."""
        count = 1
        for extent in self.shape[:-1]:
            count *= extent
        return count

    @property
    def columns(self) -> int:
        """The last dimension."""
        return self.shape[-1]


def extra_bytes(value: object) -> int:
    """Bytes of one value of :attr:`OpSpec.extra` (dispatch-cost spec, D2).

    >>> [extra_bytes(v) for v in (True, 3, 1.0, (64, 64), [1], "row", None)]
    [1, 4, 4, 9, 5, 1, 4]
    """
    if isinstance(value, bool):  # before int: a bool is an int to Python
        return 1
    if isinstance(value, (int, float)):
        return SCALAR_BYTES
    if isinstance(value, (tuple, list)):
        return LENGTH_BYTES + SCALAR_BYTES * len(value)
    if isinstance(value, str):
        return OPCODE_BYTES
    return SCALAR_BYTES


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operation inside a composite.

    Args:
        kind: operation kind; any string, the cost rule needs no table of kinds.
        operands: named input tensors, in order.
        out: output tensor, if any.
        extra: further fields of the descriptor (``m``, ``k``, ``n``, ``axis``...).
        scope: for each tile, or once.
    """

    kind: str
    operands: Mapping[str, TensorHandle] = field(default_factory=dict)
    out: TensorHandle | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    scope: Scope = Scope.TILE

    def __post_init__(self) -> None:
        frozen = {key: _frozen(value) for key, value in self.extra.items()}
        object.__setattr__(self, "operands", FrozenMap(self.operands))
        object.__setattr__(self, "extra", FrozenMap(frozen))

    @property
    def logical_bytes(self) -> int:
        """Bytes inside the composite's descriptor."""
        return (
            OPCODE_BYTES
            + OPCODE_BYTES  # scope
            + LENGTH_BYTES
            + HANDLE_BYTES * len(self.operands)
            + (HANDLE_BYTES if self.out is not None else 0)
            + LENGTH_BYTES
            + sum(extra_bytes(value) for value in self.extra.values())
        )

    @property
    def label(self) -> str:
        """Kind and output, for messages."""
        return self.kind if self.out is None else f"{self.kind}->{self.out.name}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors read, first occurrence first."""
        names = [handle.name for handle in self.operands.values()]
        if self.kind == "gemm_acc" and self.out is not None:
            names.append(self.out.name)
        return tuple(dict.fromkeys(names))

    @property
    def writes(self) -> tuple[str, ...]:
        """Name of the tensor written, if any."""
        return () if self.out is None else (self.out.name,)

    @property
    def fusable(self) -> bool:
        """Operations of a composite may be fused with others."""
        return True

    @property
    def single_command_count(self) -> int:
        """Commands that do this operation without a composite."""
        return len(self.single_commands())

    @property
    def single_command_bytes(self) -> int:
        """Logical bytes of :meth:`single_commands`, together."""
        return sum(command.logical_bytes for command in self.single_commands())

    def gemm_extents(self) -> tuple[int, int, int]:
        """``(m, k, n)`` from ``extra``, or from the operands' shapes.

        Raises:
            MalformedInput: neither gives them.
        """
        named = tuple(self.extra.get(key) for key in ("m", "k", "n"))
        given = tuple(v for v in named if isinstance(v, int) and v > 0)
        if len(given) == 3:
            return given[0], given[1], given[2]
        handles = tuple(self.operands.values())
        if len(handles) < 2:
            raise MalformedInput(
                "a GEMM needs two operands or its m, k, n", where=self.label
            )
        return handles[0].rows, handles[0].columns, handles[1].columns

    def single_commands(self) -> tuple[SingleCommand, ...]:
        """The same operation as single-op commands.

        A composite stages operands out of HBM by itself; single-op commands need
        a DMA command for each of those.
        """
        commands: list[SingleCommand] = []
        local: list[TensorHandle] = []
        for handle in self.operands.values():
            if handle.space is MemorySpace.HBM:
                staged = _staged(handle)
                commands.append(DmaReadCmd(handle, staged))
                local.append(staged)
            else:
                local.append(handle)
        out = self.out
        if out is not None and out.space is MemorySpace.HBM:
            out = _staged(out)
        if self.kind in GEMM_KINDS and out is not None and len(local) >= 2:
            m, k, n = self.gemm_extents()
            accumulate = self.kind == "gemm_acc"
            commands.append(GemmCmd(local[0], local[1], out, m, k, n, accumulate))
        else:
            axis = self.extra.get("axis")
            commands.append(
                MathCmd(
                    self.kind, tuple(local), out, axis if type(axis) is int else None
                )
            )
        if self.out is not None and out is not None and out is not self.out:
            commands.append(DmaWriteCmd(out, self.out))
        return tuple(commands)


def _frozen(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    return value


def _staged(handle: TensorHandle) -> TensorHandle:
    return TensorHandle(
        f"{handle.name}.tcm", handle.shape, handle.dtype, MemorySpace.TCM
    )


@dataclass(frozen=True, slots=True)
class CompositeCmd:
    """A descriptor of several operations that the scheduler expands into tiles.

    Args:
        ops: operations, in order.
        rw_handles: tensors that the scheduler tracks across composites.
        name: for messages and reports; costs no bytes.
    """

    ops: tuple[OpSpec, ...]
    rw_handles: tuple[TensorHandle, ...] = ()
    name: str = "composite"

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return (
            FRAMING_BYTES
            + LENGTH_BYTES
            + sum(op.logical_bytes for op in self.ops)
            + LENGTH_BYTES
            + HANDLE_BYTES * len(self.rw_handles)
        )


@dataclass(frozen=True, slots=True)
class DmaReadCmd:
    """Copy a tensor out of HBM into local memory: framing, two handles, size."""

    src: TensorHandle
    dst: TensorHandle

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return FRAMING_BYTES + 2 * HANDLE_BYTES + SCALAR_BYTES


@dataclass(frozen=True, slots=True)
class DmaWriteCmd:
    """Copy a tensor out of local memory into HBM: framing, two handles, size."""

    src: TensorHandle
    dst: TensorHandle

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return FRAMING_BYTES + 2 * HANDLE_BYTES + SCALAR_BYTES


@dataclass(frozen=True, slots=True)
class GemmCmd:
    """One matrix product on the GEMM engine: three handles, ``m``, ``k``, ``n``.

    Overwriting and accumulating products are two kinds of command, told apart in
    the framing; the flag costs no byte of its own.
    """

    a: TensorHandle
    b: TensorHandle
    out: TensorHandle
    m: int
    k: int
    n: int
    accumulate: bool = False

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return FRAMING_BYTES + 3 * HANDLE_BYTES + 3 * SCALAR_BYTES


@dataclass(frozen=True, slots=True)
class MathCmd:
    """One elementwise operation or reduction on the MATH engine.

    Framing, opcode, the operands behind their count, the output, the axis if any.
    """

    op: str
    operands: tuple[TensorHandle, ...]
    out: TensorHandle | None
    axis: int | None = None

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return (
            FRAMING_BYTES
            + OPCODE_BYTES
            + LENGTH_BYTES
            + HANDLE_BYTES * len(self.operands)
            + (HANDLE_BYTES if self.out is not None else 0)
            + (SCALAR_BYTES if self.axis is not None else 0)
        )


@dataclass(frozen=True, slots=True)
class CopyCmd:
    """A copy inside local memory: framing and two handles."""

    src: TensorHandle
    dst: TensorHandle

    @property
    def logical_bytes(self) -> int:
        """Bytes of the descriptor."""
        return FRAMING_BYTES + 2 * HANDLE_BYTES


@dataclass(frozen=True, slots=True)
class PeCpuOverheadCmd:
    """CPU time stated in cycles; never priced by its size, never queued."""

    cycles: int

    def __post_init__(self) -> None:
        if isinstance(self.cycles, bool) or not isinstance(self.cycles, int):
            raise MalformedInput(
                "CPU cycles are a whole number", where="cycles", value=self.cycles
            )
        if self.cycles < 0:
            raise MalformedInput(
                "CPU cycles cannot be negative", where="cycles", value=self.cycles
            )

    @property
    def logical_bytes(self) -> int:
        """Framing and one scalar (the formula does not use it)."""
        return FRAMING_BYTES + SCALAR_BYTES


SingleCommand: TypeAlias = DmaReadCmd | DmaWriteCmd | GemmCmd | MathCmd | CopyCmd
QueuedCommand: TypeAlias = SingleCommand | CompositeCmd
PeCommand: TypeAlias = QueuedCommand | PeCpuOverheadCmd


def command_reads(command: PeCommand) -> tuple[TensorHandle, ...]:
    """Tensors that ``command`` reads, in field order (composites: of all ops)."""
    match command:
        case DmaReadCmd() | DmaWriteCmd() | CopyCmd():
            return (command.src,)
        case GemmCmd():
            tail = (command.out,) if command.accumulate else ()
            return (command.a, command.b, *tail)
        case MathCmd():
            return command.operands
        case CompositeCmd():
            return tuple(h for op in command.ops for h in op.operands.values())
        case PeCpuOverheadCmd():
            return ()


def command_writes(command: PeCommand) -> tuple[TensorHandle, ...]:
    """Tensors that ``command`` writes."""
    match command:
        case DmaReadCmd() | DmaWriteCmd() | CopyCmd():
            return (command.dst,)
        case GemmCmd():
            return (command.out,)
        case MathCmd():
            return () if command.out is None else (command.out,)
        case CompositeCmd():
            return tuple(op.out for op in command.ops if op.out is not None)
        case PeCpuOverheadCmd():
            return ()
