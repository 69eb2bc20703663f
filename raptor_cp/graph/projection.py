"""Which part of each input a box of an operation's output needs.

The answer is a tuple of boxes that together cover every element read: exact row
windows with halo for convolution and pooling (several boxes where the stride or
the dilation leaves rows out), exact boxes for elementwise operations (broadcasting
included), concatenation, slices and transposes.  What is not proven needs the
whole input: the complete producer dependency.  An empty tuple says that nothing of
this input is read.  Columns are always covered by one range: a row of a feature
map is one contiguous run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.axes import (
    Range,
    Ranges,
    box_ranges,
    join_ranges,
    ranges_box,
    split_range,
    whole_ranges,
)
from raptor_cp.graph.work import Box
from raptor_cp.network.attributes import (
    Activation,
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    ElementwiseAttributes,
    GatherAttributes,
    GemmAttributes,
    LayerNormAttributes,
    LrnAttributes,
    MatMulAttributes,
    PadAttributes,
    PoolAttributes,
    ReduceAttributes,
    ResizeAttributes,
    ScaleAttributes,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
    ViewAttributes,
)
from raptor_cp.network.shapes import matrix_shapes
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.operations import Operation


def needed_boxes(
    operation: Operation,
    index: int,
    output: Box,
    shapes: Sequence[Shape],
    output_shape: Shape,
    matrix_rows: Range | None = None,
) -> tuple[Box, ...]:
    """Boxes of input ``index`` that ``output`` needs.

    Args:
        operation: any operation but a view (see :mod:`raptor_cp.graph.views`).
        index: which input.
        output: a box of the output.
        shapes: logical shapes of all inputs.
        output_shape: logical shape of the output.
        matrix_rows: of a weighted operation, the rows of the constant matrix that
            are used (rows are ordered kernel row, kernel column, channel); None
            for all.

    >>> from raptor_cp.network.operations import Operation, WeightShape
    >>> from raptor_cp.network.attributes import OpKind
    >>> conv = Operation(
    ...     "c", OpKind.CONV, ("x",), ("y",),
    ...     ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1)), WeightShape(18, 4),
    ... )
    >>> needed_boxes(conv, 0, Box(0, 2, 0, 8, 0, 4), [(1, 2, 8, 8)], (1, 4, 8, 8))
    (Box(row_start=0, row_stop=3, column_start=0, column_stop=8, \
channel_start=0, channel_stop=2),)
    """
    shape = shapes[index]
    attributes = operation.attributes
    if isinstance(attributes, ConvAttributes) and operation.weight is not None:
        per_group = operation.weight.columns
        return _conv(attributes, output, shape, per_group, matrix_rows)
    if isinstance(attributes, PoolAttributes):
        window = _window_rows(attributes, output, shape[2], (0, attributes.kernel[0]))
        columns = _window(
            (output.column_start, output.column_stop),
            attributes.strides[1],
            attributes.pads[1],
            attributes.dilations[1],
            (0, attributes.kernel[1]),
            shape[3],
        )
        channels = (output.channel_start, output.channel_stop)
        return _boxes(window, columns, channels)
    wanted = box_ranges(output, output_shape)
    ranges = _needed_ranges(operation, index, wanted, shapes, output_shape, matrix_rows)
    if ranges is None:
        return (ranges_box(whole_ranges(shape), shape),)
    if any(start >= stop for start, stop in ranges):
        return ()
    return (ranges_box(ranges, shape),)


def needed_by_input(
    operation: Operation,
    output: Box,
    shapes: Sequence[Shape],
    output_shape: Shape,
    matrix_rows: Range | None = None,
) -> Iterator[tuple[Box, ...]]:
    """:func:`needed_boxes` of every input, in order.

    ``O(A D)`` for A concatenated inputs of rank D: one after the other, the offset of
    each is that of the input before plus its size.
    """
    attributes = operation.attributes
    if not isinstance(attributes, ConcatAttributes):
        for index in range(len(shapes)):
            yield needed_boxes(
                operation, index, output, shapes, output_shape, matrix_rows
            )
        return
    wanted = box_ranges(output, output_shape)
    before = 0
    for shape in shapes:
        ranges = _concatenated(attributes, wanted, shape, before)
        before += shape[attributes.axis]
        empty = any(start >= stop for start, stop in ranges)
        yield () if empty else (ranges_box(ranges, shape),)


def _concatenated(
    concat: ConcatAttributes, wanted: Ranges, shape: Shape, before: int
) -> Ranges:
    """Ranges of an input of which ``before`` places stand in front."""
    start, stop = wanted[concat.axis]
    part = (max(start - before, 0), min(stop - before, shape[concat.axis]))
    return _put(wanted, concat.axis, part)


def _needed_ranges(
    operation: Operation,
    index: int,
    wanted: Ranges,
    shapes: Sequence[Shape],
    output_shape: Shape,
    matrix_rows: Range | None,
) -> Ranges | None:
    """Ranges of input ``index``, or None when nothing is proven."""
    shape = shapes[index]
    match operation.attributes:
        case GemmAttributes():
            last = matrix_rows or (0, shape[-1])
            return (*wanted[:-1], last)
        case ElementwiseAttributes():
            return _broadcast(wanted, shape)
        case Activation() | ScaleAttributes():
            return wanted
        case SoftmaxAttributes() as softmax:
            return _all_along(wanted, shape, (softmax.axis,))
        case LayerNormAttributes() as norm:
            return _all_along(wanted, shape, range(norm.axis, len(shape)))
        case LrnAttributes() as lrn:
            half = lrn.size // 2
            return _widened(wanted, shape, 1, half, half)
        case ConcatAttributes() as concat:
            before = sum(s[concat.axis] for s in shapes[:index])
            return _concatenated(concat, wanted, shape, before)
        case SliceAttributes() as cut:
            return sliced_ranges(cut, wanted)
        case TransposeAttributes() as transpose:
            moved = [(0, 1)] * len(shape)
            for axis, source in enumerate(transpose.permutation):
                moved[source] = wanted[axis]
            return tuple(moved)
        case ReduceAttributes() as reduce:
            return _reduced(reduce, wanted, shape)
        case MatMulAttributes() as matmul:
            return _matmul(matmul, index, wanted, shapes)
        case PadAttributes() as pad:
            return _padded(pad, wanted, shape)
        case ResizeAttributes():
            return _resized(wanted, shape, output_shape)
        case GatherAttributes() as gather if index == 0:
            return gathered_ranges(gather, wanted, shape)
        case ConvTransposeAttributes() as conv if operation.weight is not None:
            return _conv_transpose(conv, wanted, shape, operation.weight.columns)
        case ViewAttributes():
            # A view that also applies a function: its elements may lie anywhere.
            return None
    return None


def _put(ranges: Ranges, axis: int, value: Range) -> Ranges:
    return (*ranges[:axis], value, *ranges[axis + 1 :])


def _all_along(ranges: Ranges, shape: Shape, axes: Sequence[int]) -> Ranges:
    for axis in axes:
        ranges = _put(ranges, axis, (0, shape[axis]))
    return ranges


def _widened(
    ranges: Ranges, shape: Shape, axis: int, before: int, after: int
) -> Ranges:
    start, stop = ranges[axis]
    limits = (max(start - before, 0), min(stop + after, shape[axis]))
    return _put(ranges, axis, limits)


def _broadcast(wanted: Ranges, shape: Shape) -> Ranges:
    aligned = wanted[len(wanted) - len(shape) :]
    pairs = zip(aligned, shape, strict=True)
    return tuple((0, 1) if size == 1 else part for part, size in pairs)


def sliced_ranges(cut: SliceAttributes, wanted: Ranges) -> Ranges:
    """Source ranges of a slice's output ranges."""
    for axis, start, step in zip(cut.axes, cut.starts, cut.steps, strict=True):
        first, stop = wanted[axis]
        part = (start + first * step, start + (stop - 1) * step + 1)
        wanted = _put(wanted, axis, part)
    return wanted


def gathered_ranges(
    gather: GatherAttributes, wanted: Ranges, shape: Shape
) -> Ranges | None:
    """Source ranges of a gather's output ranges; None for computed indices."""
    if gather.indices is None:
        return None
    axis = gather.axis
    if gather.drop_axis:
        only = gather.indices[0]
        if len(shape) == 1:
            return ((only, only + 1),)
        return (*wanted[:axis], (only, only + 1), *wanted[axis:])
    start, stop = wanted[axis]
    taken = gather.indices[start:stop]
    return _put(wanted, axis, (min(taken), max(taken) + 1))


def _reduced(reduce: ReduceAttributes, wanted: Ranges, shape: Shape) -> Ranges:
    if reduce.keep_dims:
        return _all_along(wanted, shape, reduce.axes)
    kept = iter(wanted if len(reduce.axes) < len(shape) else ())
    return tuple(
        (0, size) if axis in reduce.axes else next(kept)
        for axis, size in enumerate(shape)
    )


def _padded(pad: PadAttributes, wanted: Ranges, shape: Shape) -> Ranges:
    result: list[Range] = []
    for axis, (start, stop) in enumerate(wanted):
        size, before = shape[axis], pad.before[axis]
        first, last = start - before, stop - before
        if pad.mode != "constant" and (first < 0 or last > size):
            first, last = 0, size  # reflected or repeated from somewhere inside
        result.append((max(first, 0), min(last, size)))
    return tuple(result)


def _resized(wanted: Ranges, shape: Shape, output_shape: Shape) -> Ranges:
    """One extra source position each way covers every coordinate convention."""
    for axis in (2, 3):
        source, target = shape[axis], output_shape[axis]
        if source == target:
            continue
        start, stop = wanted[axis]
        first = start * source // target - 1
        last = ceil_div(stop * source, target) + 1
        wanted = _put(wanted, axis, (max(first, 0), min(last, source)))
    return wanted


def _window(
    wanted: Range, stride: int, pad: int, dilation: int, taps: Range, size: int
) -> Range:
    """Hull of the input positions that window positions ``wanted`` touch."""
    if dilation > 1:
        touched = _touched(wanted, stride, pad, dilation, taps, size)
        return (touched[0], touched[-1] + 1) if touched else (0, 0)
    first = wanted[0] * stride - pad + taps[0]
    last = (wanted[1] - 1) * stride - pad + taps[1]
    return (max(first, 0), min(last, size))


def _touched(
    wanted: Range, stride: int, pad: int, dilation: int, taps: Range, size: int
) -> list[int]:
    """All input positions that window positions ``wanted`` touch, ascending."""
    found = {
        position * stride - pad + tap * dilation
        for position in range(*wanted)
        for tap in range(*taps)
    }
    return sorted(position for position in found if 0 <= position < size)


def _window_rows(
    attributes: ConvAttributes | PoolAttributes, output: Box, size: int, taps: Range
) -> list[Range]:
    """Row windows; apart where stride or dilation leave rows between them."""
    stride, pad = attributes.strides[0], attributes.pads[0]
    dilation = attributes.dilations[0]
    rows = (output.row_start, output.row_stop)
    if dilation == 1 and stride <= taps[1] - taps[0]:
        return [_window(rows, stride, pad, dilation, taps, size)]
    runs: list[Range] = []
    for row in _touched(rows, stride, pad, dilation, taps, size):
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs


def _boxes(rows: Sequence[Range], columns: Range, channels: Range) -> tuple[Box, ...]:
    if columns[0] >= columns[1]:
        return ()
    return tuple(
        Box(*window, *columns, *channels) for window in rows if window[0] < window[1]
    )


def _conv(
    attributes: ConvAttributes,
    output: Box,
    shape: Shape,
    per_group: int,
    matrix_rows: Range | None,
) -> tuple[Box, ...]:
    depth = shape[1] // attributes.groups
    height, width = attributes.kernel
    taps = (height, width, depth)
    ky, kx, inner = (
        split_range(matrix_rows, taps) if matrix_rows else whole_ranges(taps)
    )
    groups = (
        output.channel_start // per_group,
        ceil_div(output.channel_stop, per_group),
    )
    if groups[1] - groups[0] > 1:
        inner = (0, depth)
    channels = (groups[0] * depth + inner[0], (groups[1] - 1) * depth + inner[1])
    columns = _window(
        (output.column_start, output.column_stop),
        attributes.strides[1],
        attributes.pads[1],
        attributes.dilations[1],
        kx,
        shape[3],
    )
    return _boxes(_window_rows(attributes, output, shape[2], ky), columns, channels)


def _conv_transpose(
    attributes: ConvTransposeAttributes, wanted: Ranges, shape: Shape, per_group: int
) -> Ranges:
    depth = shape[1] // attributes.groups
    start, stop = wanted[1]
    groups = (start // per_group, ceil_div(stop, per_group))
    result: list[Range] = [(0, 1), (groups[0] * depth, groups[1] * depth)]
    for axis in (0, 1):
        stride, pad = attributes.strides[axis], attributes.pads[axis]
        reach = attributes.dilations[axis] * (attributes.kernel[axis] - 1)
        first, last = wanted[axis + 2]
        low = ceil_div(first + pad - reach, stride)
        high = (last - 1 + pad) // stride + 1
        result.append((max(low, 0), min(high, shape[axis + 2])))
    return tuple(result)


def _matmul(
    matmul: MatMulAttributes, index: int, wanted: Ranges, shapes: Sequence[Shape]
) -> Ranges:
    _, _, inner, columns = matrix_shapes(matmul, shapes[0], shapes[1])
    if matmul.merge_heads:
        heads, right = split_range(wanted[2], (matmul.heads, columns))
        outer: Ranges = ((0, 1), heads)
        left = wanted[1]
    else:
        outer, left, right = wanted[:-2], wanted[-2], wanted[-1]
    shape = shapes[index]
    rows, depth = (left, (0, inner)) if index == 0 else ((0, inner), right)
    if matmul.transpose_a if index == 0 else matmul.transpose_b:
        rows, depth = depth, rows
    if matmul.heads > 1 and len(shape) == 3:
        size = shape[2] // matmul.heads
        return ((0, 1), rows, join_ranges((outer[1], depth), (matmul.heads, size)))
    own = len(shape) - 2
    return (*_broadcast(outer[len(outer) - own :], shape[:own]), rows, depth)
