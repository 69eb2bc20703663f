"""Instruction sequences of operations without a constant matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.axes import box_ranges
from raptor_cp.graph.projection import needed_boxes, needed_by_input
from raptor_cp.network.attributes import (
    Activation,
    ConcatAttributes,
    ElementwiseAttributes,
    GatherAttributes,
    LrnAttributes,
    MatMulAttributes,
    OpKind,
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
    ResizeAttributes,
    TransposeAttributes,
)
from raptor_cp.network.operations import Tensor
from raptor_cp.network.shapes import matrix_shapes
from raptor_cp.targets.pim.functions import (
    POLYNOMIAL,
    PRODUCT,
    emit_function,
    emit_requantised,
    emit_steps,
)
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.matrix_costs import Batches, Machine, batches
from raptor_cp.targets.pim.profile import Profile, ProfileBuilder, profile_ns
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.graph.work import Box, SliceWork
    from raptor_cp.network.operations import Extent


def emit_vector(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Everything that is no matrix operation; the sequence of each kind."""
    KINDS[work.operation.kind](machine, builder, work)


def _bytes(work: SliceWork) -> int:
    return ceil_div(work.input_bits, 8)


def _extent(shape: tuple[int, ...]) -> Extent:
    return Tensor("x", shape).extent


def _needed(work: SliceWork, index: int = 0) -> tuple[Box, ...]:
    return needed_boxes(
        work.operation, index, work.output, work.input_shapes, work.output_shape
    )


def _function(
    machine: Machine, builder: ProfileBuilder, work: SliceWork, parts: Batches | None
) -> None:
    """The fused function of an operation that otherwise only moves or compares."""
    if work.operation.activation is not None:
        parts = parts or batches(machine, work, 2)
        emit_function(
            builder,
            work.operation.activation,
            parts.count,
            parts.length,
            work.output_bits,
            max(work.accumulator_bits, work.output_bits),
        )


# -- pooling and reductions -------------------------------------------------------


def _pool(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    attributes = work.operation.attributes
    if not isinstance(attributes, PoolAttributes):
        return
    average = attributes.function is PoolFunction.AVERAGE
    narrow = work.input_bits
    wide = max(work.accumulator_bits, narrow) if average else narrow
    opcode = Opcode.VVADD if average else Opcode.VVMAX
    _, _, input_rows, input_columns = work.input_shapes[0]
    channels = work.output.shape[2]
    row_taps = _taps(
        (work.output.row_start, work.output.row_stop), attributes, 0, input_rows
    )
    column_taps = _taps(
        (work.output.column_start, work.output.column_stop),
        attributes,
        1,
        input_columns,
    )
    if average and wide != narrow:
        for box in _needed(work):
            rows, columns, depth = box.shape
            builder.vector(Opcode.VRSU, rows, columns * depth, narrow, wide)
    along = ProfileBuilder()
    for taps in row_taps:
        along.vector(opcode, taps - 1, input_columns * channels, wide)
        _line(along, opcode, column_taps, channels, wide)
    direct = ProfileBuilder()
    for taps in row_taps:
        _line(direct, opcode, [taps * c for c in column_taps], channels, wide)
    options: list[Profile] = [along.finish(), direct.finish()]
    builder.merge(min(options, key=lambda p: profile_ns(machine.timing, p)))
    _scaled(machine, builder, work, average=average, wide=wide)


def _taps(
    outputs: tuple[int, int], attributes: PoolAttributes, axis: int, size: int
) -> list[int]:
    """Window positions inside the input, for each output position."""
    result = []
    for position in range(*outputs):
        first = position * attributes.strides[axis] - attributes.pads[axis]
        inside = sum(
            0 <= first + tap * attributes.dilations[axis] < size
            for tap in range(attributes.kernel[axis])
        )
        result.append(max(inside, 1))
    return result


def _line(
    builder: ProfileBuilder,
    opcode: Opcode,
    taps: list[int],
    channels: int,
    width: int,
) -> None:
    """Combine ``taps[i]`` channel vectors for each output position of a row."""
    combined = sum(n - 1 for n in taps)
    builder.vector(opcode, combined, channels, width)
    builder.vector(Opcode.VMV, taps.count(1), channels, width)


def _scaled(
    machine: Machine,
    builder: ProfileBuilder,
    work: SliceWork,
    *,
    average: bool,
    wide: int,
) -> None:
    """Multiply sums by a reciprocal and shift; then the fused function."""
    parts = batches(machine, work, 2)
    builder.set_widths(2 * parts.count)
    if average:
        builder.vector(Opcode.VVMUL, parts.count, parts.length, wide)
        builder.vector(Opcode.VVSRA, parts.count, parts.length, wide, wide)
        if wide != work.output_bits:
            builder.vector(
                Opcode.VRSU, parts.count, parts.length, wide, work.output_bits
            )
    _function(machine, builder, work, parts)


def _reduce(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    attributes = work.operation.attributes
    if not isinstance(attributes, ReduceAttributes):
        return
    summed = attributes.function in (ReduceFunction.MEAN, ReduceFunction.SUM)
    narrow = work.input_bits
    wide = max(work.accumulator_bits, narrow) if summed else narrow
    opcode = Opcode.VVADD if summed else Opcode.VVMAX
    for box in _needed(work):
        rows, columns, channels = box.shape
        if summed and wide != narrow:
            builder.vector(Opcode.VRSU, rows, columns * channels, narrow, wide)
        out_rows, out_columns, out_channels = work.output.shape
        if out_rows < rows:
            builder.vector(opcode, rows - out_rows, columns * channels, wide)
            rows = out_rows
        if out_columns < columns:
            builder.vector(opcode, rows * (columns - out_columns), channels, wide)
            columns = out_columns
        if out_channels < channels:
            single = Opcode.VAVG if summed else opcode
            times = 1 if summed else max(1, (channels - 1).bit_length())
            builder.vector(single, rows * columns * times, channels, wide)
    _scaled(
        machine,
        builder,
        work,
        average=attributes.function is ReduceFunction.MEAN,
        wide=wide,
    )


# -- elementwise ------------------------------------------------------------------


def _elementwise(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Widen and align both operands, combine, requantise.

    A broadcast operand is one channel vector per position.
    """
    attributes = work.operation.attributes
    if not isinstance(attributes, ElementwiseAttributes):
        return
    narrow = work.input_bits
    wide = max(work.accumulator_bits, work.output_bits)
    parts = batches(machine, work, 4)
    if len({_extent(shape) for shape in work.input_shapes}) > 1:
        rows, columns, channels = work.output.shape
        parts = Batches(rows * columns, channels)
    count, length = parts.count, parts.length
    builder.set_widths(3 * count)
    kind = work.operation.kind
    if kind in (OpKind.MAXIMUM, OpKind.MINIMUM):
        steps: tuple[Opcode, ...] = (Opcode.VVMAX,)
        if kind is OpKind.MINIMUM:
            steps = (Opcode.VVSUB, Opcode.VVMAX, Opcode.VVSUB)
        emit_steps(builder, steps, count, length, narrow, wide)
        _function(machine, builder, work, parts)
        return
    if kind is OpKind.DIV:
        emit_steps(builder, POLYNOMIAL, count, length, narrow, wide)
    if kind in (OpKind.MUL, OpKind.DIV):
        builder.vector(Opcode.VVMUL, count, length, narrow, wide)
    else:
        if wide != narrow:
            operands = 2 if attributes.scalar is None else 1
            builder.vector(Opcode.VVSLL, operands * count, length, narrow, wide)
        opcode = Opcode.VVSUB if kind is OpKind.SUB else Opcode.VVADD
        builder.vector(opcode, count, length, wide)
    emit_requantised(
        builder,
        work.operation.activation,
        count,
        length,
        wide,
        work.output_bits,
        bias=False,
    )


def _activation(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    attributes = work.operation.attributes
    wide = max(work.accumulator_bits, work.output_bits)
    parts = batches(machine, work, 3)
    builder.set_widths(parts.count)
    if isinstance(attributes, Activation):
        emit_function(
            builder, attributes, parts.count, parts.length, work.output_bits, wide
        )
    _function(machine, builder, work, parts)


def _scale(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    wide = max(work.accumulator_bits, work.output_bits)
    parts = batches(machine, work, 4)
    builder.set_widths(3 * parts.count)
    builder.vector(Opcode.VVMUL, parts.count, parts.length, work.input_bits, wide)
    emit_requantised(
        builder,
        work.operation.activation,
        parts.count,
        parts.length,
        wide,
        work.output_bits,
        bias=True,
    )


# -- normalisation ----------------------------------------------------------------


def _layer_norm(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Per position: mean, difference, variance, reciprocal root, scale, shift."""
    rows, columns, channels = work.output.shape
    count = rows * columns
    narrow = work.input_bits
    wide = max(work.accumulator_bits, work.output_bits)
    builder.set_widths(4 * count)
    builder.vector(Opcode.VAVG, count, channels, narrow, wide)
    builder.vector(Opcode.VVSUB, count, channels, narrow)
    builder.vector(Opcode.VVMUL, count, channels, narrow, wide)
    builder.vector(Opcode.VAVG, count, channels, wide)
    emit_steps(builder, POLYNOMIAL, count, 1, narrow, wide)
    emit_steps(builder, PRODUCT, count, channels, narrow, wide)
    builder.vector(Opcode.VVMUL, count, channels, narrow, wide)
    emit_requantised(
        builder,
        work.operation.activation,
        count,
        channels,
        wide,
        work.output_bits,
        bias=True,
    )


def _lrn(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Per position: squares, a sliding sum over channels, the power, a product."""
    attributes = work.operation.attributes
    if not isinstance(attributes, LrnAttributes):
        return
    parts = batches(machine, work, 4)
    narrow = work.input_bits
    wide = max(work.accumulator_bits, work.output_bits)
    builder.set_widths(4 * parts.count)
    builder.vector(Opcode.VVMUL, parts.count, parts.length, narrow, wide)
    # Windows must not run into the next position's channels.
    positions = work.output.shape[0] * work.output.shape[1]
    channels = work.output.shape[2]
    builder.vector(Opcode.VVADD, (attributes.size - 1) * positions, channels, wide)
    steps = (*POLYNOMIAL, *PRODUCT)
    emit_steps(builder, steps, parts.count, parts.length, narrow, wide)
    _function(machine, builder, work, parts)


def _softmax(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """The operand is materialised; ``vsoftmax`` itself has no timed work."""
    rows, columns, channels = work.output.shape
    builder.copy(rows, columns * channels * _bytes(work))
    builder.vector(Opcode.VSOFTMAX, rows * columns, channels, work.input_bits)
    _function(machine, builder, work, None)


# -- moves ------------------------------------------------------------------------


def _concat(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """One ``lmv`` per input block of each outer row."""
    attributes = work.operation.attributes
    if not isinstance(attributes, ConcatAttributes):
        return
    _, columns, channels = work.output.shape
    needs = needed_by_input(
        work.operation, work.output, work.input_shapes, work.output_shape
    )
    for boxes in needs:
        for box in boxes:
            own_rows, own_columns, own_channels = box.shape
            if own_channels < channels:
                builder.copy(own_rows * own_columns, own_channels * _bytes(work))
            elif own_columns < columns:
                builder.copy(own_rows, own_columns * own_channels * _bytes(work))
            else:
                block = own_rows * own_columns * own_channels
                builder.copy(1, block * _bytes(work))
    _function(machine, builder, work, None)


def _transpose(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """One strided ``lmv`` for each run that stays contiguous, at worst an element."""
    attributes = work.operation.attributes
    if not isinstance(attributes, TransposeAttributes):
        return
    rank = len(attributes.permutation)
    source = work.input_shapes[0]
    inner = _memory_axes(rank)
    run = 1
    for axis in reversed(inner):
        if attributes.permutation[axis] != axis:
            break
        start, stop = box_ranges(work.output, work.output_shape)[axis]
        run *= stop - start
        if stop - start < source[axis]:
            break
    builder.copy(work.output.elements // run, run * _bytes(work))
    _function(machine, builder, work, None)


def _memory_axes(rank: int) -> list[int]:
    """Logical axes from the outermost to the innermost in memory."""
    if rank <= 3:
        return list(range(rank))
    return [rank - 2, rank - 1, *range(1, rank - 2)]


def _resize(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    attributes = work.operation.attributes
    if not isinstance(attributes, ResizeAttributes):
        return
    rows, columns, channels = work.output.shape
    positions = rows * columns
    if attributes.mode == "nearest":
        builder.copy(positions, channels * _bytes(work))
        _function(machine, builder, work, None)
        return
    wide = max(work.accumulator_bits, work.output_bits)
    builder.set_widths(3 * rows)
    builder.vector(Opcode.VVMUL, 4 * positions, channels, work.input_bits, wide)
    builder.vector(Opcode.VVADD, 3 * positions, channels, wide)
    parts = batches(machine, work, 3)
    emit_requantised(
        builder,
        work.operation.activation,
        parts.count,
        parts.length,
        wide,
        work.output_bits,
        bias=False,
    )


def _move(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Strided slices, gathers and views with a function: one copy a position."""
    rows, columns, channels = work.output.shape
    source = _extent(work.input_shapes[0])
    if work.operation.kind is not OpKind.VIEW:
        if channels < source.channels or chooses_channels(work):
            builder.copy(work.output.elements, _bytes(work))
        else:
            builder.copy(rows * columns, channels * _bytes(work))
    _function(machine, builder, work, None)


def chooses_channels(work: SliceWork) -> bool:
    """True for a gather of channels: they come in another order, even if all do."""
    attributes, rank = work.operation.attributes, len(work.input_shapes[0])
    if not isinstance(attributes, GatherAttributes):
        return False
    return 1 <= attributes.axis <= rank - 3 if rank > 3 else attributes.axis == rank - 1


def _pad(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Fill every output row, copy what lies inside the input."""
    rows, columns, channels = work.output.shape
    builder.fill(rows, columns * channels * _bytes(work))
    for box in _needed(work):
        own_rows, own_columns, own_channels = box.shape
        if own_channels == channels:
            builder.copy(own_rows, own_columns * own_channels * _bytes(work))
        else:
            builder.copy(own_rows * own_columns, own_channels * _bytes(work))
    _function(machine, builder, work, None)


def _matmul(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """Product of two computed operands: one ``vvdmul`` per element of the result.

    An operand that is not contiguous along the summed axis is gathered first,
    element by element, once per lane.
    """
    attributes = work.operation.attributes
    if not isinstance(attributes, MatMulAttributes):
        return
    _, _, inner, _ = matrix_shapes(attributes, *work.input_shapes)
    results = work.output.elements
    wide = max(work.accumulator_bits, work.output_bits)
    left, right = (_needed(work, index) for index in (0, 1))
    if attributes.transpose_a:
        builder.copy(sum(box.elements for box in left), _bytes(work))
    if not attributes.transpose_b:
        builder.copy(sum(box.elements for box in right), _bytes(work))
    builder.vector(Opcode.VVDMUL, results, inner, work.input_bits, wide)
    parts = batches(machine, work, 3)
    builder.set_widths(3 * parts.count)
    emit_requantised(
        builder,
        work.operation.activation,
        parts.count,
        parts.length,
        wide,
        work.output_bits,
        bias=False,
    )


#: The emitter of every kind without a constant matrix.
KINDS: dict[OpKind, Callable[[Machine, ProfileBuilder, SliceWork], None]] = {
    OpKind.MATMUL: _matmul,
    OpKind.ADD: _elementwise,
    OpKind.SUB: _elementwise,
    OpKind.MUL: _elementwise,
    OpKind.DIV: _elementwise,
    OpKind.MAXIMUM: _elementwise,
    OpKind.MINIMUM: _elementwise,
    OpKind.POOL: _pool,
    OpKind.REDUCE: _reduce,
    OpKind.CONCAT: _concat,
    OpKind.SLICE: _move,
    OpKind.PAD: _pad,
    OpKind.VIEW: _move,
    OpKind.TRANSPOSE: _transpose,
    OpKind.SOFTMAX: _softmax,
    OpKind.LAYER_NORM: _layer_norm,
    OpKind.SCALE: _scale,
    OpKind.ACTIVATION: _activation,
    OpKind.LRN: _lrn,
    OpKind.RESIZE: _resize,
    OpKind.GATHER: _move,
}
