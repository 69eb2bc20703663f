"""Shape inference: the shape each operation produces, or why it cannot."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    BINARY_KINDS,
    Activation,
    Attributes,
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    ElementwiseAttributes,
    GatherAttributes,
    GemmAttributes,
    LayerNormAttributes,
    LrnAttributes,
    MatMulAttributes,
    OpKind,
    PadAttributes,
    PoolAttributes,
    ReduceAttributes,
    ResizeAttributes,
    ScaleAttributes,
    Shape,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
    ViewAttributes,
)
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.network.operations import WeightShape


def infer_shape(
    kind: OpKind,
    attributes: Attributes,
    inputs: Sequence[Shape],
    weight: WeightShape | None = None,
    *,
    where: str = "",
) -> Shape:
    """The shape of the output.

    Args:
        inputs: shapes of the input tensors, in order.
        weight: the constant matrices of a weighted kind.
        where: place named in errors.

    Raises:
        MalformedInput: the shapes contradict the attributes or one another.

    >>> stem = ConvAttributes((7, 7), (2, 2), (3, 3, 3, 3))
    >>> from raptor_cp.network.operations import WeightShape
    >>> infer_shape(OpKind.CONV, stem, [(1, 3, 224, 224)], WeightShape(147, 64))
    (1, 64, 112, 112)
    """
    if not inputs:
        raise MalformedInput("no inputs", where=_at(where, "inputs"))
    match attributes:
        case ConvAttributes() if weight is not None:
            return _conv(attributes, _only(inputs, where), weight, where)
        case ConvTransposeAttributes() if weight is not None:
            return _conv_transpose(attributes, _only(inputs, where), weight, where)
        case GemmAttributes() if weight is not None:
            return _gemm(_only(inputs, where), weight, where)
        case ConvAttributes() | ConvTransposeAttributes() | GemmAttributes():
            raise MalformedInput(
                "weight missing", where=where, expected="a weight shape"
            )
        case MatMulAttributes():
            return _matmul(attributes, inputs, where)
        case ElementwiseAttributes():
            return _elementwise(kind, attributes, inputs, where)
        case PoolAttributes():
            return _pool(attributes, _only(inputs, where), where)
        case ReduceAttributes():
            return _reduce(attributes, _only(inputs, where), where)
        case ConcatAttributes():
            return _concat(attributes, inputs, where)
        case SliceAttributes():
            return _slice(attributes, _only(inputs, where), where)
        case PadAttributes():
            return _pad(attributes, _only(inputs, where), where)
        case ViewAttributes():
            return _view(attributes, _only(inputs, where), where)
        case TransposeAttributes():
            return _transpose(attributes, _only(inputs, where), where)
        case SoftmaxAttributes() | LayerNormAttributes() | ScaleAttributes():
            shape = _only(inputs, where)
            checked_axis(attributes.axis, shape, _at(where, "axis"))
            return shape
        case Activation():
            return _only(inputs, where)
        case LrnAttributes():
            return feature_map(_only(inputs, where), where)
        case ResizeAttributes():
            shape = feature_map(_only(inputs, where), where)
            return (*shape[:2], *attributes.size)
        case GatherAttributes():
            return _gather(attributes, inputs, where)


def broadcast_shapes(shapes: Sequence[Shape], where: str = "") -> Shape:
    """The common shape of elementwise operands, by the rules of numpy.

    >>> broadcast_shapes([(1, 64, 56, 56), (1, 64, 1, 1)])
    (1, 64, 56, 56)
    """
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for axis in range(rank):
        sizes = [shape[axis] for shape in padded if shape[axis] != 1]
        if any(size != sizes[0] for size in sizes):
            raise MalformedInput(
                "the operands do not broadcast",
                where=where,
                value=tuple(shapes),
                expected=f"equal sizes or 1 on axis {axis - rank}",
            )
        result.append(sizes[0] if sizes else 1)
    return tuple(result)


def auto_pads(
    mode: str,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int] = (1, 1),
    *,
    where: str = "",
) -> tuple[int, int, int, int]:
    """Explicit (top, left, bottom, right) pads of an ONNX ``auto_pad`` mode.

    SAME_UPPER puts the odd element at the end, SAME_LOWER at the beginning; the
    output is then ``ceil(size/stride)``.  VALID (and NOTSET) pad nothing.

    >>> auto_pads("SAME_UPPER", (224, 224), (3, 3), (2, 2))
    (0, 0, 1, 1)
    >>> auto_pads("SAME_LOWER", (224, 224), (3, 3), (2, 2))
    (1, 1, 0, 0)
    """
    if mode in ("VALID", "NOTSET"):
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise MalformedInput(
            "unknown padding mode",
            where=_at(where, "auto_pad"),
            value=mode,
            expected="SAME_UPPER, SAME_LOWER, VALID or NOTSET",
        )
    begins, ends = [], []
    for axis in range(2):
        outputs = ceil_div(size[axis], strides[axis])
        span = dilations[axis] * (kernel[axis] - 1) + 1
        total = max((outputs - 1) * strides[axis] + span - size[axis], 0)
        small, large = total // 2, total - total // 2
        begins.append(small if mode == "SAME_UPPER" else large)
        ends.append(large if mode == "SAME_UPPER" else small)
    return (begins[0], begins[1], ends[0], ends[1])


def window_positions(
    attributes: ConvAttributes | PoolAttributes,
    size: tuple[int, int],
    *,
    where: str = "",
) -> tuple[int, int]:
    """(rows, columns) of window positions on a map of ``size`` (height, width)."""
    ceil_mode = isinstance(attributes, PoolAttributes) and attributes.ceil_mode
    result = []
    for axis, label in enumerate(("height", "width")):
        before, after = attributes.pads[axis], attributes.pads[axis + 2]
        stride = attributes.strides[axis]
        span = attributes.dilations[axis] * (attributes.kernel[axis] - 1) + 1
        free = size[axis] + before + after - span
        if free < 0:
            raise MalformedInput(
                f"the window does not fit the padded {label}",
                where=_at(where, "kernel"),
                value=attributes.kernel,
                expected=f"a span of at most {size[axis] + before + after}, not {span}",
            )
        outputs = (ceil_div(free, stride) if ceil_mode else free // stride) + 1
        if ceil_mode and (outputs - 1) * stride >= size[axis] + before:
            outputs -= 1  # the last window would see only the padding behind
        result.append(outputs)
    return (result[0], result[1])


def matrix_shapes(
    attributes: MatMulAttributes, first: Shape, second: Shape, *, where: str = ""
) -> tuple[Shape, int, int, int]:
    """(batch shape, M, K, N) of a product of two computed tensors."""
    batch_a, rows, inner = _operand(
        attributes, first, attributes.transpose_a, _at(where, "inputs[0]")
    )
    batch_b, inner_b, columns = _operand(
        attributes, second, attributes.transpose_b, _at(where, "inputs[1]")
    )
    if inner != inner_b:
        raise MalformedInput(
            "the inner dimensions differ",
            where=where,
            value=(first, second),
            expected=f"{inner} on both sides, not {inner_b} on the right",
        )
    batch = broadcast_shapes([batch_a, batch_b], where) if batch_a or batch_b else ()
    return batch, rows, inner, columns


def checked_axis(axis: int, shape: Shape, where: str = "") -> int:
    """``axis`` if it is one of ``shape``'s; negative axes are not normalised."""
    if type(axis) is not int or not 0 <= axis < len(shape):
        raise MalformedInput(
            "no such axis",
            where=where,
            value=axis,
            expected=f"0 to {len(shape) - 1} for shape {shape}",
        )
    return axis


def feature_map(shape: Shape, where: str = "") -> Shape:
    """``shape`` if it has the four axes (1, C, H, W)."""
    if len(shape) != 4:
        raise MalformedInput(
            "not a feature map",
            where=_at(where, "inputs"),
            value=shape,
            expected="four dimensions (1, C, H, W)",
        )
    return shape


def _at(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _only(inputs: Sequence[Shape], where: str) -> Shape:
    if len(inputs) != 1:
        raise MalformedInput(
            "wrong number of inputs",
            where=_at(where, "inputs"),
            value=len(inputs),
            expected="1",
        )
    return inputs[0]


def _conv(
    attributes: ConvAttributes, shape: Shape, weight: WeightShape, where: str
) -> Shape:
    _, channels, height, width = feature_map(shape, where)
    taps = attributes.kernel[0] * attributes.kernel[1]
    _check_groups(attributes.groups, channels, taps, weight, where)
    rows, columns = window_positions(attributes, (height, width), where=where)
    return (shape[0], weight.columns * weight.groups, rows, columns)


def _conv_transpose(
    attributes: ConvTransposeAttributes,
    shape: Shape,
    weight: WeightShape,
    where: str,
) -> Shape:
    _, channels, height, width = feature_map(shape, where)
    taps = attributes.kernel[0] * attributes.kernel[1]
    _check_groups(attributes.groups, channels, taps, weight, where)
    sizes = []
    for axis, size in enumerate((height, width)):
        span = attributes.dilations[axis] * (attributes.kernel[axis] - 1) + 1
        pads = attributes.pads[axis] + attributes.pads[axis + 2]
        reach = (size - 1) * attributes.strides[axis] + span
        sizes.append(reach - pads + attributes.output_padding[axis])
    if min(sizes) < 1:
        raise MalformedInput(
            "nothing is left of the output",
            where=_at(where, "pads"),
            value=attributes.pads,
            expected="less padding than the output has rows and columns",
        )
    return (shape[0], weight.columns * weight.groups, sizes[0], sizes[1])


def _check_groups(
    groups: int, channels: int, taps: int, weight: WeightShape, where: str
) -> None:
    if channels % groups:
        raise MalformedInput(
            "the groups do not divide the input channels",
            where=_at(where, "groups"),
            value=groups,
            expected=f"a divisor of {channels}",
        )
    rows = channels // groups * taps
    if weight.groups != groups or weight.rows != rows:
        raise MalformedInput(
            "the weight does not match the input",
            where=_at(where, "weight"),
            value=weight,
            expected=f"{groups} group(s) of {rows} rows",
        )


def _gemm(shape: Shape, weight: WeightShape, where: str) -> Shape:
    if weight.groups != 1 or weight.rows != shape[-1]:
        raise MalformedInput(
            "the weight does not match the input",
            where=_at(where, "weight"),
            value=weight,
            expected=f"one group of {shape[-1]} rows (last axis of {shape})",
        )
    return (*shape[:-1], weight.columns)


def _operand(
    attributes: MatMulAttributes, shape: Shape, transposed: bool, where: str
) -> tuple[Shape, int, int]:
    heads = attributes.heads
    if len(shape) < 2:
        raise MalformedInput(
            "not a matrix", where=where, value=shape, expected="2 or more dimensions"
        )
    batch, rows, columns = shape[:-2], shape[-2], shape[-1]
    if heads > 1 and len(shape) == 3:
        if columns % heads:
            raise MalformedInput(
                "the heads do not divide the channels",
                where=where,
                value=shape,
                expected=f"a last dimension divisible by {heads}",
            )
        batch, columns = (shape[0], heads), columns // heads
    elif heads > 1 and (len(shape) != 4 or shape[1] != heads):
        raise MalformedInput(
            "the operand has no heads",
            where=where,
            value=shape,
            expected=f"(1, {heads}, S, d) or (1, S, {heads}*d)",
        )
    return (batch, columns, rows) if transposed else (batch, rows, columns)


def _matmul(attributes: MatMulAttributes, inputs: Sequence[Shape], where: str) -> Shape:
    if len(inputs) != 2:
        raise MalformedInput(
            "wrong number of inputs",
            where=_at(where, "inputs"),
            value=len(inputs),
            expected="2",
        )
    batch, rows, _, columns = matrix_shapes(
        attributes, inputs[0], inputs[1], where=where
    )
    if attributes.merge_heads:
        if attributes.heads == 1 or len(batch) != 2:
            raise MalformedInput(
                "there are no heads to merge",
                where=_at(where, "heads"),
                value=attributes.heads,
                expected="more than one head",
            )
        return (batch[0], rows, attributes.heads * columns)
    return (*batch, rows, columns)


def _elementwise(
    kind: OpKind,
    attributes: ElementwiseAttributes,
    inputs: Sequence[Shape],
    where: str,
) -> Shape:
    if kind not in BINARY_KINDS:
        raise MalformedInput("not an elementwise kind", where=where, value=kind.value)
    wanted = 2 if attributes.scalar is None else 1
    if len(inputs) != wanted:
        raise MalformedInput(
            "wrong number of inputs",
            where=_at(where, "inputs"),
            value=len(inputs),
            expected="two tensors, or one and a scalar",
        )
    return broadcast_shapes(inputs, _at(where, "inputs"))


def _pool(attributes: PoolAttributes, shape: Shape, where: str) -> Shape:
    batch, channels, height, width = feature_map(shape, where)
    spans = [
        d * (k - 1) + 1
        for d, k in zip(attributes.dilations, attributes.kernel, strict=True)
    ]
    if any(pad >= span for pad, span in zip(attributes.pads, spans * 2, strict=True)):
        raise MalformedInput(
            "the padding holds a whole window",
            where=_at(where, "pads"),
            value=attributes.pads,
            expected=f"pads below the window's {spans}",
        )
    rows, columns = window_positions(attributes, (height, width), where=where)
    return (batch, channels, rows, columns)


def _reduce(attributes: ReduceAttributes, shape: Shape, where: str) -> Shape:
    axes = attributes.axes
    for axis in axes:
        checked_axis(axis, shape, _at(where, "axes"))
    if not axes or len(set(axes)) != len(axes):
        raise MalformedInput(
            "the axes are not distinct",
            where=_at(where, "axes"),
            value=axes,
            expected="at least one axis, each once",
        )
    if attributes.keep_dims:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes) or (1,)


def _concat(attributes: ConcatAttributes, inputs: Sequence[Shape], where: str) -> Shape:
    axis = checked_axis(attributes.axis, inputs[0], _at(where, "axis"))
    first = inputs[0]
    for index, shape in enumerate(inputs):
        if len(shape) != len(first) or any(
            size != first[i] for i, size in enumerate(shape) if i != axis
        ):
            raise MalformedInput(
                "the parts do not fit together",
                where=_at(where, f"inputs[{index}]"),
                value=shape,
                expected=f"{first} except on axis {axis}",
            )
    total = sum(shape[axis] for shape in inputs)
    return (*first[:axis], total, *first[axis + 1 :])


def _slice(attributes: SliceAttributes, shape: Shape, where: str) -> Shape:
    result = list(shape)
    ranges = zip(
        attributes.axes,
        attributes.starts,
        attributes.stops,
        attributes.steps,
        strict=True,
    )
    for axis, start, stop, step in ranges:
        checked_axis(axis, shape, _at(where, "axes"))
        if not start < stop <= shape[axis]:
            raise MalformedInput(
                "the slice is empty or leaves the tensor",
                where=_at(where, "stops"),
                value=(start, stop),
                expected=f"0 <= start < stop <= {shape[axis]} on axis {axis}",
            )
        result[axis] = ceil_div(stop - start, step)
    return tuple(result)


def _pad(attributes: PadAttributes, shape: Shape, where: str) -> Shape:
    if len(attributes.before) != len(shape):
        raise MalformedInput(
            "wrong number of pads",
            where=_at(where, "before"),
            value=attributes.before,
            expected=f"{len(shape)} values",
        )
    sides = zip(attributes.before, shape, attributes.after, strict=True)
    return tuple(before + size + after for before, size, after in sides)


def _view(attributes: ViewAttributes, shape: Shape, where: str) -> Shape:
    if prod(attributes.shape) != prod(shape):
        raise MalformedInput(
            "the view has another number of elements",
            where=_at(where, "shape"),
            value=attributes.shape,
            expected=f"{prod(shape)} elements, as in {shape}",
        )
    return attributes.shape


def _transpose(attributes: TransposeAttributes, shape: Shape, where: str) -> Shape:
    if sorted(attributes.permutation) != list(range(len(shape))):
        raise MalformedInput(
            "not a permutation of the axes",
            where=_at(where, "permutation"),
            value=attributes.permutation,
            expected=f"each of 0 to {len(shape) - 1} once",
        )
    return tuple(shape[axis] for axis in attributes.permutation)


def _gather(attributes: GatherAttributes, inputs: Sequence[Shape], where: str) -> Shape:
    data = inputs[0]
    axis = checked_axis(attributes.axis, data, _at(where, "axis"))
    indices = attributes.indices
    wanted = 2 if indices is None else 1
    if len(inputs) != wanted:
        raise MalformedInput(
            "wrong number of inputs",
            where=_at(where, "inputs"),
            value=len(inputs),
            expected="data and fixed indices, or data and an index tensor",
        )
    if indices is None:
        return (*data[:axis], *inputs[1], *data[axis + 1 :])
    if not indices or any(not 0 <= index < data[axis] for index in indices):
        raise MalformedInput(
            "an index leaves the tensor",
            where=_at(where, "indices"),
            value=indices,
            expected=f"at least one, each 0 to {data[axis] - 1}",
        )
    if attributes.drop_axis:
        if len(indices) != 1:
            raise MalformedInput(
                "only a single index drops its axis",
                where=_at(where, "indices"),
                value=indices,
                expected="one index",
            )
        return (*data[:axis], *data[axis + 1 :]) or (1,)
    return (*data[:axis], len(indices), *data[axis + 1 :])
