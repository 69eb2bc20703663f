"""The integers of a network: shifts, bounds, weights, biases.

Networks carry shapes, not trained values; programs get repeatable random ones, drawn
from a stream that depends only on the operation's name.  Scales are powers of two,
chosen so that finished elements of random data use their range.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.views import is_runtime_free
from raptor_cp.graph.widths import Accumulators, accumulator_bits
from raptor_cp.network.attributes import (
    Activation,
    ElementwiseAttributes,
    Function,
    MatMulAttributes,
    OpKind,
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
)
from raptor_cp.network.shapes import matrix_shapes
from raptor_cp.targets.pim.sidecar import OperationNumbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network

    Ints = NDArray[np.int64]


def numbers_of(network: Network, policy: Accumulators) -> dict[str, OperationNumbers]:
    """Numbers of every operation that takes time, by name."""
    result = {}
    for operation in network.operations:
        if is_runtime_free(operation):
            continue
        inputs = [network.tensors[name] for name in operation.inputs]
        bits = max(tensor.bits for tensor in inputs)
        output = network.tensors[operation.output].bits
        shapes = [tensor.shape for tensor in inputs]
        wide = max(accumulator_bits(operation, bits, shapes, policy), output)
        result[operation.name] = _numbers(operation, shapes, bits, output, wide)
    return result


def _numbers(
    operation: Operation, shapes: list[Shape], bits: int, output: int, wide: int
) -> OperationNumbers:
    lower, upper = -(1 << (output - 1)), (1 << (output - 1)) - 1
    slope = slope_shift = 0
    for function in (operation.attributes, operation.activation):
        if not isinstance(function, Activation):
            continue
        if function.function is Function.RELU:
            lower = 0
        elif function.function is Function.CLIP:
            # 8 is the end of the range, so that ReLU6 clips three quarters up.
            unit = (1 << (output - 1)) / 8
            lower = max(lower, int(function.alpha * unit))
            upper = min(upper, int(function.beta * unit))
        elif function.function in (Function.LEAKY_RELU, Function.PRELU):
            slope_shift = output - 2
            slope = round((function.alpha or 0.25) * (1 << slope_shift))
    shift = 0
    shifts: tuple[int, ...] = ()
    exact = wide > output
    attributes = operation.attributes
    if exact and operation.kind in (OpKind.ADD, OpKind.SUB):
        shift, shifts = 2, (1, 1)
    elif exact and operation.kind in (OpKind.MUL, OpKind.SCALE):
        shift = bits - 1
    elif exact and operation.weight is not None:
        terms = operation.weight.rows
        shift = operation.weight.bits - 1 + (terms - 1).bit_length() // 2
    elif exact and isinstance(attributes, MatMulAttributes):
        inner = matrix_shapes(attributes, shapes[0], shapes[1])[2]
        shift = bits - 1 + (inner - 1).bit_length() // 2
    else:
        shift = _average_shift(operation, shapes, output, exact=exact)
    scalar = 0
    if isinstance(attributes, ElementwiseAttributes) and attributes.scalar is not None:
        unit = (1 << (bits - 1)) / 8
        scalar = max(lower, min(upper, round(attributes.scalar * unit)))
    return OperationNumbers(
        operation.name,
        bits,
        output,
        wide,
        shift,
        shifts,
        lower,
        upper,
        scalar,
        slope,
        slope_shift,
    )


def _average_shift(
    operation: Operation, shapes: list[Shape], bits: int, *, exact: bool
) -> int:
    """Shift of an average: of its reciprocal, or by its size when sums are narrow."""
    attributes = operation.attributes
    count = 1
    if isinstance(attributes, PoolAttributes):
        if attributes.function is PoolFunction.AVERAGE:
            count = attributes.kernel[0] * attributes.kernel[1]
        else:
            return 0
    elif isinstance(attributes, ReduceAttributes):
        if attributes.function is not ReduceFunction.MEAN:
            return 0
        for axis in attributes.axes:
            count *= shapes[0][axis]
    else:
        return 0
    log = count.bit_length() - 1
    return bits - 2 + log if exact else log


def _stream(name: str) -> np.random.Generator:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.PCG64(seed))


def weights_of(operation: Operation) -> NDArray[np.signedinteger]:
    """[groups, K, N] weights, in the narrowest type that holds them."""
    weight = operation.weight
    if weight is None:
        raise ValueError(f"{operation.name} has no weight")
    half = 1 << (weight.bits - 1)
    kinds: tuple[type[np.signedinteger], ...] = (np.int8, np.int16, np.int32, np.int64)
    kind = next(k for k in kinds if np.dtype(k).itemsize * 8 >= weight.bits)
    shape = (weight.groups, weight.rows, weight.columns)
    values = _stream(operation.name).integers(-half, half, shape, dtype=kind)
    return np.asarray(values, kind)


def biases_of(operation: Operation, numbers: OperationNumbers, channels: int) -> Ints:
    """[channels] biases in units of the accumulator, a sixteenth of the range."""
    reach = max(1, 1 << max(numbers.shift + numbers.output_bits - 5, 0))
    stream = _stream(operation.name + "/bias")
    return np.asarray(stream.integers(-reach, reach + 1, channels), np.int64)


def scales_of(operation: Operation, numbers: OperationNumbers, channels: int) -> Ints:
    """[channels] factors of a SCALE, around one."""
    half = 1 << (numbers.input_bits - 1)
    stream = _stream(operation.name + "/scale")
    return np.asarray(stream.integers(half // 2, half, channels), np.int64)


def tensor_values(name: str, shape: tuple[int, int, int], bits: int) -> Ints:
    """[rows, columns, channels] elements of a constant tensor."""
    half = 1 << (bits - 1)
    return np.asarray(_stream(name).integers(-half, half, shape), np.int64)
