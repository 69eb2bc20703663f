"""A plain numpy interpreter of networks: which input elements an output needs.

Values follow the definition of each operation, except that maxima are sums: only
dependence is asked for.  Independent of :mod:`raptor_cp.graph`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.attributes import (
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    GatherAttributes,
    LayerNormAttributes,
    LrnAttributes,
    MatMulAttributes,
    OpKind,
    PadAttributes,
    PoolAttributes,
    ReduceAttributes,
    ResizeAttributes,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
    ViewAttributes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation

    Array = NDArray[np.float64]


def memory_order(x: Array) -> Array:
    """Logical (1, C, H, W) and its relatives as (rows, columns, channels)."""
    result: Array
    if x.ndim == 1:
        result = x.reshape(1, 1, -1)
    elif x.ndim == 2:
        result = x[:, None, :]
    elif x.ndim == 3:
        result = x[0][:, None, :]
    else:
        flat = x[0].reshape(-1, x.shape[-2], x.shape[-1])
        result = flat.transpose(1, 2, 0)
    return result


def logical_order(memory: Array, shape: Sequence[int]) -> Array:
    """Inverse of :func:`memory_order`."""
    if len(shape) <= 3:
        result: Array = memory.reshape(shape)
    else:
        result = memory.transpose(2, 0, 1).reshape(shape)
    return result


def compute(
    operation: Operation, inputs: Sequence[Array], shape: Sequence[int]
) -> Array:
    """The output of one operation; ``shape`` is its logical output shape."""
    result: Array = np.asarray(_computed(operation, inputs, shape))
    return result


def _computed(
    operation: Operation, inputs: Sequence[Array], shape: Sequence[int]
) -> object:
    x = inputs[0]
    attributes = operation.attributes
    match attributes:
        case ConvAttributes() | PoolAttributes():
            return _windowed(operation, attributes, x, shape)
        case ConvTransposeAttributes():
            return _conv_transpose(operation, attributes, x, shape)
        case ConcatAttributes():
            return np.concatenate(list(inputs), axis=attributes.axis)
        case SliceAttributes():
            cut = [slice(None)] * x.ndim
            for axis, start, stop, step in zip(
                attributes.axes,
                attributes.starts,
                attributes.stops,
                attributes.steps,
                strict=True,
            ):
                cut[axis] = slice(start, stop, step)
            return x[tuple(cut)]
        case TransposeAttributes():
            return x.transpose(attributes.permutation)
        case ReduceAttributes():
            return x.sum(axis=attributes.axes).reshape(shape)
        case SoftmaxAttributes():
            return x + x.sum(axis=attributes.axis, keepdims=True)
        case LayerNormAttributes():
            axes = tuple(range(attributes.axis, x.ndim))
            return x + x.sum(axis=axes, keepdims=True)
        case LrnAttributes():
            half = attributes.size // 2
            parts = [
                x[:, max(c - half, 0) : c + half + 1].sum(axis=1)
                for c in range(x.shape[1])
            ]
            return np.stack(parts, axis=1)
        case PadAttributes():
            pads = list(zip(attributes.before, attributes.after, strict=True))
            return np.pad(x, pads, mode=attributes.mode)  # type: ignore[call-overload]
        case ResizeAttributes():
            rows = np.arange(shape[2]) * x.shape[2] // shape[2]
            columns = np.arange(shape[3]) * x.shape[3] // shape[3]
            return x[:, :, rows][:, :, :, columns]
        case GatherAttributes(indices=indices) if indices is not None:
            taken = np.take(x, indices, axis=attributes.axis)
            return taken.reshape(shape)
        case ViewAttributes():
            if attributes.channels_last:
                return logical_order(
                    memory_order(x).reshape(memory_order(np.zeros(shape)).shape), shape
                )
            return x.reshape(shape)
        case MatMulAttributes():
            return _matmul(attributes, inputs[0], inputs[1], shape)
    if operation.kind is OpKind.GEMM:
        return np.repeat(x.sum(axis=-1, keepdims=True), shape[-1], axis=-1)
    if len(inputs) == 2:
        return inputs[0] + 3 * inputs[1]
    return x.copy()


def _windowed(
    operation: Operation,
    attributes: ConvAttributes | PoolAttributes,
    x: Array,
    shape: Sequence[int],
) -> Array:
    result = np.zeros(shape)
    (kh, kw), (sh, sw) = attributes.kernel, attributes.strides
    (top, left, _, _), (dh, dw) = attributes.pads, attributes.dilations
    weight = operation.weight
    for c, y, z in product(*(range(n) for n in shape[1:])):
        channels = [c]
        if weight is not None:
            depth = x.shape[1] // weight.groups
            group = c // weight.columns
            channels = list(range(group * depth, (group + 1) * depth))
        for i, j in product(range(kh), range(kw)):
            row, column = y * sh - top + i * dh, z * sw - left + j * dw
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                result[0, c, y, z] += x[0, channels, row, column].sum()
    return result


def _conv_transpose(
    operation: Operation,
    attributes: ConvTransposeAttributes,
    x: Array,
    shape: Sequence[int],
) -> Array:
    result = np.zeros(shape)
    weight = operation.weight
    if weight is None:
        raise ValueError("no weight")
    depth = x.shape[1] // weight.groups
    for y, z in product(range(x.shape[2]), range(x.shape[3])):
        for i, j in product(*(range(k) for k in attributes.kernel)):
            row = y * attributes.strides[0] - attributes.pads[0]
            column = z * attributes.strides[1] - attributes.pads[1]
            row += i * attributes.dilations[0]
            column += j * attributes.dilations[1]
            if 0 <= row < shape[2] and 0 <= column < shape[3]:
                for c in range(shape[1]):
                    group = c // weight.columns
                    part = x[0, group * depth : (group + 1) * depth, y, z]
                    result[0, c, row, column] += part.sum()
    return result


def _matmul(
    attributes: MatMulAttributes, a: Array, b: Array, shape: Sequence[int]
) -> Array:
    heads = attributes.heads

    def stacked(x: Array, transposed: bool) -> Array:
        if heads > 1 and x.ndim == 3:
            x = x.reshape(1, x.shape[1], heads, -1).transpose(0, 2, 1, 3)
        return x.swapaxes(-1, -2) if transposed else x

    left = stacked(a, attributes.transpose_a)
    right = stacked(b, attributes.transpose_b)
    result = left @ right
    if attributes.merge_heads:
        result = result.transpose(0, 2, 1, 3)
    return result.reshape(shape)


def dependence(
    operation: Operation,
    index: int,
    shapes: Sequence[Sequence[int]],
    output_shape: Sequence[int],
) -> NDArray[np.bool_]:
    """[input rows, columns, channels, output rows, columns, channels] bools."""
    generator = np.random.default_rng(7)
    inputs = [generator.integers(1, 1000, size=shape).astype(float) for shape in shapes]
    base = memory_order(compute(operation, inputs, output_shape))
    shape = shapes[index]
    extent = memory_order(np.zeros(shape)).shape
    result = np.zeros((*extent, *base.shape), dtype=bool)
    for position in product(*(range(n) for n in extent)):
        changed = memory_order(inputs[index]).copy()
        changed[position] += 1_000_003
        moved = list(inputs)
        moved[index] = logical_order(changed, shape)
        result[position] = memory_order(compute(operation, moved, output_shape)) != base
    return result
