"""Instruction sequences of operations whose constant matrix lies on crossbars."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.graph.axes import split_range
from raptor_cp.graph.crossbars import MatrixArray, TileGrid
from raptor_cp.graph.work import SliceWork, TaskRole
from raptor_cp.network.attributes import (
    ConvAttributes,
    ConvTransposeAttributes,
)
from raptor_cp.targets.pim.functions import emit_requantised
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.targets.pim.profile import ProfileBuilder
    from raptor_cp.targets.pim.timing import PimTiming


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """What an instruction sequence depends on.

    ``local_memory_bytes``: None where the configuration names no size.
    """

    timing: PimTiming
    array: MatrixArray
    local_memory_bytes: int | None = None

    def fits(self, size: int) -> bool:
        """True if ``size`` bytes of scratch leave half the local memory free."""
        return self.local_memory_bytes is None or 2 * size <= self.local_memory_bytes


@dataclass(frozen=True, slots=True)
class Batches:
    """Vector work of a slice: ``count`` vectors of ``length`` elements."""

    count: int
    length: int


def batches(machine: Machine, work: SliceWork, buffers: int) -> Batches:
    """The longest vectors whose ``buffers`` accumulator-wide copies fit.

    A whole lane of a sequence, a row of a feature map, or one position.
    """
    rows, columns, channels = work.output.shape
    width = ceil_div(max(work.accumulator_bits, work.output_bits), 8)
    row = columns * channels
    if columns == 1 and machine.fits(rows * row * width * buffers):
        return Batches(1, rows * row)
    if machine.fits(row * width * buffers):
        return Batches(rows, row)
    return Batches(rows * columns, channels)


def emit_matrix(machine: Machine, builder: ProfileBuilder, work: SliceWork) -> None:
    """CONV, CONV_TRANSPOSE and GEMM: whole, partial sum, or reduction.

    Per output position: the operand vector (im2col) where it does not already lie
    in one piece, then one ``mvmul`` per row tile.  Per batch: the row tiles' results
    are added, then bias, requantisation and function.
    """
    operation = work.operation
    if operation.weight is None:
        raise InternalError(f"{operation.name} has no weight")
    grid = TileGrid.of(operation.weight, machine.array, operation.name)
    wide = max(work.accumulator_bits, work.output_bits)
    if work.role is TaskRole.REDUCE:
        parts = batches(machine, work, 3)
        builder.vector(
            Opcode.VVADD, (work.partials - 1) * parts.count, parts.length, wide
        )
        builder.set_widths(2 * parts.count)
        _finish(builder, work, parts, wide)
        return
    first, last = work.row_tiles
    tiles = last - first
    rows, columns, _ = work.output.shape
    positions = rows * columns
    crossbars = grid.crossbars(work.output.channel_start, work.output.channel_stop)
    _emit_operands(builder, work, grid, len(crossbars))
    widths = (work.input_bits, work.accumulator_bits, operation.weight.bits)
    for size in sorted(set(crossbars)):
        builder.mvmul(positions * tiles * crossbars.count(size), size, widths)
    parts = batches(machine, work, tiles + 2)
    builder.vector(
        Opcode.VVADD, (tiles - 1) * parts.count, parts.length, work.accumulator_bits
    )
    builder.set_widths(2 * parts.count)
    if work.role is TaskRole.COMPUTE:
        builder.set_widths(parts.count)
        _finish(builder, work, parts, wide)


def _finish(
    builder: ProfileBuilder, work: SliceWork, parts: Batches, wide: int
) -> None:
    weight = work.operation.weight
    emit_requantised(
        builder,
        work.operation.activation,
        parts.count,
        parts.length,
        wide,
        work.output_bits,
        bias=weight is not None and weight.bias,
    )


def _emit_operands(
    builder: ProfileBuilder, work: SliceWork, grid: TileGrid, bundles: int
) -> None:
    """im2col: one ``lmv`` per kernel row; padding by ``lldi``.

    A position whose window lies in one piece (1 x 1 kernels, matrix rows of a
    sequence) is read where it is.  A kernel row that is padding for a whole output
    row is filled once per output row.  Taps that are not adjacent (dilation, or
    groups that share the channels) are copied one by one.
    """
    attributes = work.operation.attributes
    if isinstance(attributes, ConvTransposeAttributes):
        _emit_transposed(builder, work, attributes)
        return
    if not isinstance(attributes, ConvAttributes):
        return
    height, width = attributes.kernel
    if height == width == 1 and not any(attributes.pads):
        return
    element = ceil_div(work.input_bits, 8)
    _, _, input_rows, input_columns = work.input_shapes[0]
    depth = work.input_shapes[0][1] // attributes.groups
    used = grid.matrix_rows(work.row_tiles)
    taps = (height, width, depth)
    kernel_rows = split_range(used, taps)[0]
    if attributes.groups > 1:
        depth *= grid.bundle_groups
    separate = attributes.groups > 1 or attributes.dilations[1] > 1
    clips = _column_clips(
        input_columns,
        work.output.shape[1],
        width,
        attributes.strides[1],
        attributes.pads[1],
        attributes.dilations[1],
    )
    in_row = width * (work.input_shapes[0][1] // attributes.groups)
    for ky in range(*kernel_rows):
        offset = ky * attributes.dilations[0] - attributes.pads[0]
        start = max(used[0] - ky * in_row, 0)
        stop = min(used[1] - ky * in_row, in_row)
        if attributes.groups > 1:
            start, stop = start * grid.bundle_groups, stop * grid.bundle_groups
        inside = sum(
            0 <= row * attributes.strides[0] + offset < input_rows
            for row in range(work.output.row_start, work.output.row_stop)
        )
        padded = work.output.shape[0] - inside
        builder.fill(padded * bundles, (stop - start) * element)
        if inside == 0:
            continue
        for left, right, count in clips:
            low = max(start, left * depth)
            high = min(stop, (width - right) * depth)
            times = inside * count * bundles
            if low >= high:
                builder.fill(times, (stop - start) * element)
                continue
            builder.fill(times, (low - start) * element)
            builder.fill(times, (stop - high) * element)
            if not separate:
                builder.copy(times, (high - low) * element)
                continue
            for tap in range(low // depth, ceil_div(high, depth)):
                part = min(high, (tap + 1) * depth) - max(low, tap * depth)
                builder.copy(times, part * element)


def _emit_transposed(
    builder: ProfileBuilder, work: SliceWork, attributes: ConvTransposeAttributes
) -> None:
    """Zero the operand, then one ``lmv`` per tap that meets an input position."""
    weight = work.operation.weight
    if weight is None:
        return
    element = ceil_div(work.input_bits, 8)
    rows, columns, _ = work.output.shape
    depth = work.input_shapes[0][1] // attributes.groups
    hits = ceil_div(attributes.kernel[0], attributes.strides[0]) * ceil_div(
        attributes.kernel[1], attributes.strides[1]
    )
    groups = weight.groups
    builder.fill(rows * columns * groups, weight.rows * element)
    builder.copy(rows * columns * groups * hits, depth * element)


@lru_cache(maxsize=1024)
def _column_clips(
    size: int, outputs: int, kernel: int, stride: int, pad: int, dilation: int
) -> tuple[tuple[int, int, int], ...]:
    """(taps clipped left, clipped right, how many columns) over an output row."""
    counts: dict[tuple[int, int], int] = {}
    for column in range(outputs):
        first = column * stride - pad
        left = sum(first + tap * dilation < 0 for tap in range(kernel))
        right = sum(first + tap * dilation >= size for tap in range(kernel))
        counts[left, right] = counts.get((left, right), 0) + 1
    return tuple((left, right, n) for (left, right), n in sorted(counts.items()))
