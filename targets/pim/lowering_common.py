"""What every operation's lowering shares: its needs, its places, requantisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.network.attributes import Activation, Function
from raptor_cp.targets.pim.emission import NO_SYMBOL, Ref, Template, Text
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from numpy.typing import NDArray

    from raptor_cp.graph.work import Box, SliceWork
    from raptor_cp.targets.pim.codegen_storage import Block
    from raptor_cp.targets.pim.matrix_costs import Machine
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]

#: Functions of finished elements that have an emitted sequence.
EMITTED_FUNCTIONS = frozenset(
    {
        Function.RELU,
        Function.CLIP,
        Function.LEAKY_RELU,
        Function.PRELU,
        Function.SIGMOID,
        Function.TANH,
    }
)


class NotEmitted(Exception):
    """Code generation has no sequence for this operation (not an error)."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstantVector:
    """``elements`` elements of ``width`` bytes: ``values``, repeated.

    Attributes:
        pattern: names the values: equal names, equal values.
        loaded: read from global memory each round when constants are not resident.
    """

    pattern: str
    values: Ints
    elements: int
    width: int
    loaded: bool = False


@dataclass(slots=True)
class Needs:
    """Scratch bytes and constants of one task, by name."""

    scratch: dict[str, int] = field(default_factory=dict)
    constants: dict[str, ConstantVector] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Operand:
    """One input of a task as it lies in local memory.

    Attributes:
        blocks: where its elements can be.
        like: hull of what the task reads of the root tensor; nothing is read, and
            there are no blocks, where all of a task's windows lie in the padding.
        shift: root coordinates of the operand's element (0, 0, 0).
    """

    blocks: list[Block]
    like: Box
    shift: tuple[int, int, int] = (0, 0, 0)

    def block(self, row: int) -> Block:
        """The block that has root row ``row``."""
        for block in self.blocks:
            if block.holds(row, self.like):
                return block
        raise InternalError(f"row {row} of {self.blocks[0].tensor} is nowhere")

    @property
    def first(self) -> Block:
        """The block with the first root row."""
        return self.block(self.like.row_start)

    @property
    def element(self) -> int:
        """Bytes of an element."""
        return self.first.element

    @property
    def column_stride(self) -> int:
        """Bytes from column to column."""
        if not self.blocks:
            return 0
        return self.first.column_stride

    def row(self, row: int) -> int:
        """Address of element (row, 0, 0), extrapolated where it is not stored."""
        if not self.blocks:
            return 0
        block = self.block(row + self.shift[0])
        if block.column_stride != self.first.column_stride:
            raise InternalError(f"{block.tensor}: rows of unequal strides")
        return block.at(row + self.shift[0], self.shift[1], self.shift[2])

    def dense(self, columns: int, channels: int) -> bool:
        """True if a row of so many columns and channels is one piece."""
        return columns == 1 or self.column_stride == channels * self.element

    def dense_rows(self, rows: tuple[int, int], columns: int, channels: int) -> bool:
        """True if several such rows follow each other in one block."""
        if not self.dense(columns, channels):
            return False
        if rows[1] - rows[0] == 1:
            return True
        block = self.block(rows[0] + self.shift[0])
        last = rows[1] - 1 + self.shift[0]
        return (
            block.box.row_stop > last
            and block.row_stride == columns * channels * self.element
        )


@dataclass(slots=True, eq=False)
class Places:
    """Everything that has an address or a number when a task is emitted."""

    work: SliceWork
    numbers: OperationNumbers
    machine: Machine
    inputs: list[Operand]
    out: Block
    scratch: dict[str, int]
    constants: dict[str, int]
    bounds: dict[int, int]
    group_base: int
    templates: dict[Hashable, Template]

    @property
    def narrow(self) -> int:
        """Bits of a finished element."""
        return self.work.output_bits

    @property
    def wide(self) -> int:
        """Bits of a partial sum."""
        return max(self.work.accumulator_bits, self.work.output_bits)

    def out_row(self, row: int) -> int:
        """Address of a row of the task's output."""
        box = self.work.output
        return self.out.at(row, box.column_start, box.channel_start)


def width(bits: int) -> int:
    """Bytes of an element."""
    return ceil_div(bits, 8)


def aligned(size: int) -> int:
    """Rounded up to 8 bytes."""
    return -(-size // 8) * 8


def repeated(pattern: str, value: int, elements: int, bits: int) -> ConstantVector:
    """One value everywhere."""
    return ConstantVector(pattern, np.array([value], np.int64), elements, width(bits))


def is_rectified(activation: Activation | None) -> bool:
    """The lower bound is zero by ``vrelu``."""
    return activation is not None and (
        activation.function is Function.RELU
        or (activation.function is Function.CLIP and activation.alpha == 0)
    )


def finish_needs(
    needs: Needs,
    work: SliceWork,
    numbers: OperationNumbers,
    length: int,
    bias: ConstantVector | None,
) -> None:
    """Constants of :func:`finish` on vectors of ``length`` elements."""
    wide, narrow = max(work.accumulator_bits, work.output_bits), work.output_bits
    if wide > narrow:
        rounding = (1 << numbers.shift) >> 1
        if bias is None:
            bias = repeated(f"value:{rounding}", rounding, length, wide)
        needs.constants["shift"] = repeated(
            f"value:{numbers.shift}", numbers.shift, length, wide
        )
    if bias is not None:
        needs.constants["bias"] = bias


def bias_vector(
    values: Ints, work: SliceWork, numbers: OperationNumbers, length: int
) -> ConstantVector:
    """Bias (and rounding constant) of the task's channels, along a vector."""
    wide, narrow = max(work.accumulator_bits, work.output_bits), work.output_bits
    rounding = (1 << numbers.shift) >> 1 if wide > narrow else 0
    box = work.output
    own = values[box.channel_start : box.channel_stop] + rounding
    name = f"bias:{numbers.name}:{box.channel_start}:{box.channel_stop}"
    return ConstantVector(name, own, length, width(wide), loaded=True)


def finish(
    text: Text,
    places: Places,
    accumulator: Ref,
    out: Ref,
    length: int,
    refs: Mapping[str, Ref],
) -> bool:
    """Partial sums to finished elements; False if nothing was to be done.

    ``refs``: where the constants and the scratch of the task are, by name.  The
    accumulator is overwritten.
    """
    operation, narrow, wide = places.work.operation, places.narrow, places.wide
    activation = operation.activation
    if wide == narrow:
        text.widths(narrow, narrow)
        if "bias" in refs:
            target = out if activation is None else accumulator
            text.vector(Opcode.VVADD, target, accumulator, refs["bias"], length=length)
        apply_function(text, places, activation, accumulator, out, length, refs)
        return "bias" in refs or activation is not None
    text.widths(wide, wide)
    for opcode, name in ((Opcode.VVADD, "bias"), (Opcode.VVSRA, "shift")):
        text.vector(opcode, accumulator, accumulator, refs[name], length=length)
    if is_rectified(activation):
        text.vector(Opcode.VRELU, accumulator, accumulator, length=length)
    else:
        register = places.bounds[places.numbers.lower]
        text.vector(Opcode.VRSL, accumulator, accumulator, register, length=length)
    text.widths(wide, narrow)
    register = places.bounds[places.numbers.upper]
    text.vector(Opcode.VRSU, out, accumulator, register, length=length)
    bounded = is_rectified(activation) or (
        activation is not None and activation.function is Function.CLIP
    )
    if not bounded:
        apply_function(text, places, activation, out, out, length, refs)
    return True


def function_needs(
    needs: Needs,
    work: SliceWork,
    numbers: OperationNumbers,
    length: int,
    slopes: Ints | None,
) -> None:
    """Scratch and constants of the functions of a task.

    ``slopes``: [channels] of a PReLU.

    Raises:
        NotEmitted: a function without a sequence.
    """
    for activation in (work.operation.attributes, work.operation.activation):
        if not isinstance(activation, Activation):
            continue
        if activation.function not in EMITTED_FUNCTIONS:
            raise NotEmitted(f"function {activation.function.value}")
        if activation.function not in (Function.LEAKY_RELU, Function.PRELU):
            continue
        wide, narrow = max(work.accumulator_bits, work.output_bits), work.output_bits
        needs.scratch["product"] = aligned(length * width(wide))
        needs.scratch["negative"] = aligned(length * width(narrow))
        needs.constants["slope_shift"] = repeated(
            f"value:{numbers.slope_shift}", numbers.slope_shift, length, wide
        )
        if slopes is None:
            slope = repeated(f"value:{numbers.slope}", numbers.slope, length, narrow)
        else:
            box = work.output
            own = slopes[box.channel_start : box.channel_stop]
            name = f"slope:{numbers.name}:{box.channel_start}:{box.channel_stop}"
            slope = ConstantVector(name, own, length, width(narrow))
        needs.constants["slope"] = slope


def apply_function(
    text: Text,
    places: Places,
    activation: Activation | None,
    source: Ref,
    out: Ref,
    length: int,
    refs: Mapping[str, Ref],
) -> None:
    """A function of finished elements, from ``source`` to ``out``."""
    if activation is None:
        return
    numbers, bounds = places.numbers, places.bounds
    narrow, wide = places.narrow, places.wide
    match activation.function:
        case Function.RELU | Function.SIGMOID | Function.TANH as function:
            opcode = _ONE_STEP[function]
            text.widths(narrow, narrow)
            text.vector(opcode, out, source, length=length)
        case Function.CLIP:
            text.widths(narrow, narrow)
            low, high = bounds[numbers.lower], bounds[numbers.upper]
            text.vector(Opcode.VRSL, out, source, low, length=length)
            text.vector(Opcode.VRSU, out, out, high, length=length)
        case Function.LEAKY_RELU | Function.PRELU:
            product, negative = refs["product"], refs["negative"]
            text.widths(narrow, wide)
            text.vector(Opcode.VVMUL, product, source, refs["slope"], length=length)
            text.widths(wide, wide)
            shift = refs["slope_shift"]
            text.vector(Opcode.VVSRA, product, product, shift, length=length)
            text.widths(wide, narrow)
            top = bounds[(1 << (narrow - 1)) - 1]
            text.vector(Opcode.VRSU, negative, product, top, length=length)
            text.widths(narrow, narrow)
            text.vector(Opcode.VVMAX, out, source, negative, length=length)
        case other:
            raise NotEmitted(f"function {other.value}")


_ONE_STEP = {
    Function.RELU: Opcode.VRELU,
    Function.SIGMOID: Opcode.VSIGM,
    Function.TANH: Opcode.VTANH,
}


def references(places: Places) -> dict[str, Ref]:
    """Known addresses of a task's constants and scratch, by name."""
    return {
        name: known(address)
        for name, address in (*places.constants.items(), *places.scratch.items())
    }


def known(value: int | Ints) -> Ref:
    """An address without a symbol."""
    return Ref(NO_SYMBOL, value)
