"""Element widths: partial sums and stored bytes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from raptor_cp.network.attributes import (
    Function,
    LayerNormAttributes,
    MatMulAttributes,
    OpKind,
    PoolAttributes,
    ReduceAttributes,
)
from raptor_cp.network.shapes import matrix_shapes
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.operations import Operation

#: Nothing is wider than the widest integer of the machine.
MAX_BITS = 64


class Accumulators(StrEnum):
    """Width of partial sums."""

    EXACT = "exact"  #: wide enough for every sum, whole bytes
    ACTIVATION = "activation"  #: the activation width; sums wrap around


def accumulator_bits(
    operation: Operation,
    input_bits: int,
    shapes: Sequence[Shape],
    policy: Accumulators = Accumulators.EXACT,
) -> int:
    """Bits of a partial sum of ``operation``, a multiple of 8, at most 64.

    Exact: ``2b + ceil(log2 K) + 1`` bits for K products of b-bit values, one bit of
    headroom for bias and rounding, rounded up to whole bytes.

    >>> from raptor_cp.network.attributes import ConvAttributes
    >>> from raptor_cp.network.operations import Operation, WeightShape
    >>> conv = Operation(
    ...     "c", OpKind.CONV, ("x",), ("y",),
    ...     ConvAttributes((3, 3)), WeightShape(576, 64, bits=8),
    ... )
    >>> accumulator_bits(conv, 8, [(1, 64, 8, 8)])
    32
    """
    if policy == Accumulators.ACTIVATION:
        return _whole_bytes(input_bits)
    weight, attributes = operation.weight, operation.attributes
    if weight is not None:
        products, terms = input_bits + weight.bits, weight.rows
    elif isinstance(attributes, MatMulAttributes):
        _, _, inner, _ = matrix_shapes(attributes, shapes[0], shapes[1])
        products, terms = 2 * input_bits, inner
    elif isinstance(attributes, PoolAttributes):
        taps = attributes.kernel[0] * attributes.kernel[1]
        products, terms = 2 * input_bits, taps
    elif isinstance(attributes, ReduceAttributes):
        terms = 1
        for axis in attributes.axes:
            terms *= shapes[0][axis]
        products = 2 * input_bits
    elif isinstance(attributes, LayerNormAttributes):
        products, terms = 2 * input_bits, shapes[0][-1]
    elif operation.kind in (OpKind.ADD, OpKind.SUB, OpKind.MAXIMUM, OpKind.MINIMUM):
        products, terms = input_bits, 2
    else:
        products, terms = 2 * input_bits, 1
    if _has_slope(operation):
        # The element times its slope is as wide as any product.
        products = max(products, 2 * input_bits)
    return _whole_bytes(products + (terms - 1).bit_length() + 2)


def _has_slope(operation: Operation) -> bool:
    fused = operation.activation
    return fused is not None and fused.function in (Function.LEAKY_RELU, Function.PRELU)


def _whole_bytes(bits: int) -> int:
    return min(8 * ceil_div(bits, 8), MAX_BITS)


def stored_bytes(elements: int, bits: int, runs: int = 1) -> int:
    """Bytes of ``elements`` in ``runs`` equal runs, each rounded up alone.

    Elements of 8 bits and more take whole bytes each; narrower ones are packed.

    >>> stored_bytes(10, 12), stored_bytes(9, 4), stored_bytes(9, 4, runs=3)
    (20, 5, 6)
    """
    if bits >= 8:
        return elements * ceil_div(bits, 8)
    return ceil_div(elements // runs * bits, 8) * runs
