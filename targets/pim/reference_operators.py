"""Convolution, pooling and products of whole tensors in wrapping integers.

Feature maps are ``[rows, columns, channels]``; other operands are logical arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.attributes import PoolFunction, ReduceFunction
from raptor_cp.targets.pim.sidecar import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.network.attributes import (
        ConvAttributes,
        ConvTransposeAttributes,
        MatMulAttributes,
        PoolAttributes,
        ReduceAttributes,
        Shape,
    )
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]


def memory_order(x: Ints) -> Ints:
    """A logical array as [rows, columns, channels]."""
    if x.ndim == 1:
        return x.reshape(1, 1, -1)
    if x.ndim == 2:
        return x[:, None, :]
    if x.ndim == 3:
        return np.asarray(x[0][:, None, :], np.int64)
    return np.asarray(x[0].reshape(-1, *x.shape[-2:]).transpose(1, 2, 0), np.int64)


def logical_order(x: Ints, shape: Sequence[int]) -> Ints:
    """Inverse of :func:`memory_order`."""
    if len(shape) <= 3:
        return x.reshape(shape)
    return x.transpose(2, 0, 1).reshape(shape)


def matrix_product(x: Ints, weights: NDArray[np.signedinteger]) -> Ints:
    """``x @ weights`` modulo 2^64, on floating-point units where that is exact."""
    if _magnitude(x) * _magnitude(weights) * x.shape[-1] < 2**53:
        product = x.astype(np.float64) @ weights.astype(np.float64)
        return product.astype(np.int64)
    return np.asarray(x @ weights.astype(np.int64), np.int64)


def _magnitude(x: NDArray[np.signedinteger]) -> int:
    # Not abs(): the most negative number of a type has no positive twin.
    return max(int(x.max(initial=0)), -int(x.min(initial=0)))


def convolution(
    attributes: ConvAttributes,
    x: Ints,
    weights: NDArray[np.signedinteger],
    extent: tuple[int, int, int],
) -> Ints:
    """Sums of a convolution; matrix rows are (kernel row, column, channel)."""
    groups, _, columns = weights.shape
    depth = x.shape[2] // groups
    taps = _window_taps(attributes, x, extent, 0)
    stacked = np.stack(taps, axis=2)  # [rows, columns, taps, channels]
    result = np.empty(extent, np.int64)
    for group in range(groups):
        part = stacked[..., group * depth : (group + 1) * depth]
        part = part.reshape(*extent[:2], -1)
        result[..., group * columns : (group + 1) * columns] = matrix_product(
            part, weights[group]
        )
    return result


def transposed_convolution(
    attributes: ConvTransposeAttributes,
    x: Ints,
    weights: NDArray[np.signedinteger],
    extent: tuple[int, int, int],
) -> Ints:
    """Sums of a transposed convolution: every input position adds its window."""
    groups, _, columns = weights.shape
    depth = x.shape[2] // groups
    (kernel_rows, kernel_columns) = attributes.kernel
    matrix = weights.reshape(groups, kernel_rows, kernel_columns, depth, columns)
    result = np.zeros(extent, np.int64)
    for ky in range(kernel_rows):
        for kx in range(kernel_columns):
            places: list[tuple[Ints, NDArray[np.bool_]]] = []
            for axis, tap in enumerate((ky, kx)):
                place = np.arange(x.shape[axis]) * attributes.strides[axis]
                place += tap * attributes.dilations[axis] - attributes.pads[axis]
                places.append((place, (place >= 0) & (place < extent[axis])))
            (row, row_in), (column, column_in) = places
            inside = x[row_in][:, column_in]
            where = np.ix_(row[row_in], column[column_in])
            for group in range(groups):
                part = inside[..., group * depth : (group + 1) * depth]
                product = matrix_product(part, matrix[group, ky, kx])
                first = group * columns
                own = result[:, :, first : first + columns]
                own[where] += product
    return result


def pool(
    attributes: PoolAttributes, numbers: OperationNumbers, x: Ints, shape: Shape
) -> Ints:
    """Maxima, or averages ``(sum * M) >> shift`` clamped from above."""
    extent = (shape[2], shape[3], shape[1])
    if attributes.function is PoolFunction.MAX:
        lowest = int(np.iinfo(np.int64).min)
        taps = np.stack(_window_taps(attributes, x, extent, lowest))
        return np.asarray(taps.max(axis=0), np.int64)
    sums = np.stack(_window_taps(attributes, x, extent, 0)).sum(axis=0)
    counts = [
        _window_counts(attributes, axis, x.shape[axis], extent[axis]) for axis in (0, 1)
    ]
    factors = np.array(
        [[numbers.reciprocal(int(r * c)) for c in counts[1]] for r in counts[0]],
        np.int64,
    )
    return _averaged(numbers, sums, factors[:, :, None])


def reduce(attributes: ReduceAttributes, numbers: OperationNumbers, x: Ints) -> Ints:
    """Combined along axes of the logical array, which stay with size one."""
    axes = attributes.axes
    if attributes.function is ReduceFunction.MAX:
        return np.asarray(x.max(axis=axes, keepdims=True), np.int64)
    if attributes.function is ReduceFunction.MIN:
        return np.asarray(x.min(axis=axes, keepdims=True), np.int64)
    sums = np.sum(x, axis=axes, keepdims=True)
    if attributes.function is ReduceFunction.SUM:
        if not numbers.exact:
            return wrapped(sums, numbers.output_bits)
        # Narrowing clamps from above.
        wide = wrapped(sums, numbers.accumulator_bits)
        return np.asarray(np.minimum(wide, numbers.upper), np.int64)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    factor = np.array(numbers.reciprocal(count), np.int64)
    return _averaged(numbers, sums, factor)


def matmul(attributes: MatMulAttributes, left: Ints, right: Ints) -> Ints:
    """Sums of a product of two computed tensors; logical output."""
    heads = attributes.heads

    def stacked(x: Ints, transposed: bool) -> Ints:
        if heads > 1 and x.ndim == 3:
            x = x.reshape(1, x.shape[1], heads, -1).transpose(0, 2, 1, 3)
        return x.swapaxes(-1, -2) if transposed else x

    product = np.asarray(
        stacked(left, attributes.transpose_a) @ stacked(right, attributes.transpose_b),
        np.int64,
    )
    return product.transpose(0, 2, 1, 3) if attributes.merge_heads else product


def _averaged(numbers: OperationNumbers, sums: Ints, factors: Ints) -> Ints:
    if not numbers.exact:
        return wrapped(sums, numbers.output_bits) >> numbers.shift
    product = wrapped(
        wrapped(sums, numbers.accumulator_bits) * factors, numbers.accumulator_bits
    )
    return np.asarray(np.minimum(product >> numbers.shift, numbers.upper), np.int64)


def _window_taps(
    attributes: ConvAttributes | PoolAttributes,
    x: Ints,
    extent: tuple[int, int, int],
    padding: int,
) -> list[Ints]:
    """For each kernel position the input element of every output position."""
    kernel, strides = attributes.kernel, attributes.strides
    dilations, pads = attributes.dilations, attributes.pads
    around = []
    for axis in (0, 1):
        # A last partial window (ceil mode) reaches beyond the declared padding.
        reach = (extent[axis] - 1) * strides[axis] + 1
        reach += dilations[axis] * (kernel[axis] - 1)
        around.append((pads[axis], max(0, reach - pads[axis] - x.shape[axis])))
    padded = np.pad(x, [*around, (0, 0)], constant_values=padding)
    taps = []
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            first, second = ky * dilations[0], kx * dilations[1]
            rows = slice(first, first + (extent[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(
                second, second + (extent[1] - 1) * strides[1] + 1, strides[1]
            )
            taps.append(padded[rows, columns])
    return taps


def _window_counts(
    attributes: PoolAttributes, axis: int, size: int, outputs: int
) -> list[int]:
    """Elements along one axis that an average counts, per output position."""
    low, high = 0, size
    if attributes.count_include_pad:
        low, high = -attributes.pads[axis], size + attributes.pads[axis + 2]
    result = []
    for position in range(outputs):
        first = position * attributes.strides[axis] - attributes.pads[axis]
        inside = sum(
            low <= first + tap * attributes.dilations[axis] < high
            for tap in range(attributes.kernel[axis])
        )
        result.append(max(inside, 1))
    return result
