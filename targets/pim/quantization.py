"""Integers for a network: weights, biases, power-of-two scales.

A network says shapes, not values.  Where it knows the numbers of a trained model
(``Network.values``), they are used: :mod:`raptor_cp.targets.pim.model_weights`.
Otherwise :func:`quantized` chooses them: weights are drawn
uniformly over their whole width, and every shift is chosen from the statistics of
such weights so that results use their width without clamping too often.  The choice
depends on the network, the accumulator policy and the seed alone, each operation's
on its own name: code generation and the reference call the same function.

Activations of ``b`` bits count in units of ``2^(4-b)``, as the table functions do;
immediate operands and the bounds of a clip are rounded to that unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING
from zlib import crc32

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
    ScaleAttributes,
)
from raptor_cp.network.shapes import matrix_shapes
from raptor_cp.targets.pim.model_weights import ModelIntegers
from raptor_cp.targets.pim.sidecar import OperationNumbers

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation, WeightShape
    from raptor_cp.network.structure import Network
    from raptor_cp.network.values import ModelValues

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """All integers of a network; the fields as in the sidecar of a program.

    Attributes:
        accumulators: width policy of partial sums.
        operations: numbers of every operation that computes, in network order.
        weights: operation -> [groups, K, N], narrow signed integers.
        biases: operation -> [channels].
        scales: operation -> [channels]: SCALE factors, PReLU slopes.
        tensors: constant tensor -> [rows, columns, channels].
    """

    accumulators: Accumulators
    operations: tuple[OperationNumbers, ...]
    weights: dict[str, NDArray[np.signedinteger]]
    biases: dict[str, Ints]
    scales: dict[str, Ints]
    tensors: dict[str, Ints]


def quantized(
    network: Network, accumulators: Accumulators = Accumulators.EXACT, *, seed: int = 0
) -> Quantization:
    """Integers for ``network``; the same for the same arguments.

    Raises:
        MalformedInput: numbers of a trained model that are missing or cannot be used.
    """
    if network.values is not None:
        return _of_model(network, network.values.read(), accumulators)
    operations = []
    weights: dict[str, NDArray[np.signedinteger]] = {}
    biases: dict[str, Ints] = {}
    scales: dict[str, Ints] = {}
    for operation in network.operations:
        if is_runtime_free(operation):
            continue
        numbers = _numbers(network, operation, accumulators)
        operations.append(numbers)
        draw = _generator(operation.name, seed)
        if operation.weight is not None:
            weights[operation.name] = _weights(operation.weight, draw)
            if operation.weight.bias:
                channels = operation.weight.columns * operation.weight.groups
                biases[operation.name] = _biases(numbers, channels, draw)
        if isinstance(operation.attributes, ScaleAttributes):
            shape = network.tensors[operation.output].shape
            channels = shape[operation.attributes.axis]
            scales[operation.name] = _slopes(numbers, channels, draw)
            biases[operation.name] = _biases(numbers, channels, draw)
        elif _function(operation) is Function.PRELU:
            channels = network.tensors[operation.output].extent.channels
            scales[operation.name] = _slopes(numbers, channels, draw)
    tensors = {}
    for name in network.constants:
        tensor = network.tensors[name]
        half = 1 << (min(tensor.bits, 63) - 1)
        drawn = _generator(name, seed).integers(-half, half, size=tensor.extent)
        tensors[name] = np.asarray(drawn, np.int64)
    return Quantization(
        accumulators, tuple(operations), weights, biases, scales, tensors
    )


def _of_model(
    network: Network, values: ModelValues, accumulators: Accumulators
) -> Quantization:
    integers = ModelIntegers(network, values, accumulators)
    operations = []
    weights: dict[str, NDArray[np.signedinteger]] = {}
    biases: dict[str, Ints] = {}
    scales: dict[str, Ints] = {}
    for operation in network.operations:
        if is_runtime_free(operation):
            integers.moved(operation)
            continue
        drawn = _numbers(network, operation, accumulators)
        numbers, matrix, bias, scale = integers.numbers(operation, drawn)
        operations.append(numbers)
        for held, value in ((biases, bias), (scales, scale)):
            if value is not None:
                held[operation.name] = value
        if matrix is not None:
            weights[operation.name] = matrix
    tensors = {name: integers.tensor(name) for name in network.constants}
    return Quantization(
        accumulators, tuple(operations), weights, biases, scales, tensors
    )


def input_values(network: Network, tensor: str, generation: int, seed: int = 0) -> Ints:
    """[rows, columns, channels] of a network input, other ones each generation."""
    described = network.tensors[tensor]
    half = 1 << (min(described.bits, 63) - 1)
    draw = np.random.default_rng([seed, crc32(tensor.encode()), generation, 1])
    return np.asarray(draw.integers(-half, half, size=described.extent), np.int64)


def _generator(name: str, seed: int) -> Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


def _function(operation: Operation) -> Function | None:
    """The function of an operation: its own, or the fused one."""
    if isinstance(operation.attributes, Activation):
        return operation.attributes.function
    return operation.activation.function if operation.activation is not None else None


def _numbers(
    network: Network, operation: Operation, policy: Accumulators
) -> OperationNumbers:
    tensors = [network.tensors[name] for name in operation.inputs]
    shapes = [tensor.shape for tensor in tensors]
    narrow = max(tensor.bits for tensor in tensors)
    output = network.tensors[operation.output].bits
    wide = accumulator_bits(operation, narrow, shapes, policy)
    exact = wide > output
    lower, upper = _bounds(operation, output)
    slope_shift = output - 1
    slope = 0
    for activation in (operation.attributes, operation.activation):
        if (
            isinstance(activation, Activation)
            and activation.function is Function.LEAKY_RELU
        ):
            slope = fixed_point(activation.alpha, slope_shift, output)
    input_shifts: tuple[int, ...] = ()
    if operation.kind in (OpKind.ADD, OpKind.SUB):
        # Different scales of the operands: the second counts twice.
        input_shifts = (0, len(tensors) - 1) if exact else (0, 0)
    shift = _shift(network, operation, wide, output) if exact else 0
    return OperationNumbers(
        operation.name,
        narrow,
        output,
        wide,
        shift=shift,
        input_shifts=input_shifts,
        lower=lower,
        upper=upper,
        scalar=_scalar(operation, shift, output),
        slope=slope,
        slope_shift=slope_shift,
    )


def _bounds(operation: Operation, bits: int) -> tuple[int, int]:
    half = 1 << (bits - 1)
    for activation in (operation.attributes, operation.activation):
        if isinstance(activation, Activation):
            if activation.function is Function.RELU:
                return 0, half - 1
            if activation.function is Function.CLIP:
                return (
                    fixed_point(activation.alpha, bits - 4, bits),
                    fixed_point(activation.beta, bits - 4, bits),
                )
    return -half, half - 1


def fixed_point(value: float, fraction: int, bits: int) -> int:
    """``value`` in units of ``2^-fraction``, clamped to ``bits`` bits."""
    half = 1 << (bits - 1)
    scaled = value * 2.0**fraction
    if not -half <= scaled <= half - 1:  # infinite bounds are legal
        return -half if scaled < 0 else half - 1
    return round(scaled)


def _scalar(operation: Operation, shift: int, bits: int) -> int:
    attributes = operation.attributes
    if not isinstance(attributes, ElementwiseAttributes) or attributes.scalar is None:
        return 0
    if operation.kind is OpKind.MUL:
        # Without a shift a factor below one half would erase everything.
        return fixed_point(attributes.scalar, shift, bits) or 1
    return fixed_point(attributes.scalar, bits - 4, bits)


def _shift(network: Network, operation: Operation, wide: int, output: int) -> int:
    """Right shift of wide sums."""
    shapes = [network.tensors[name].shape for name in operation.inputs]
    attributes, weight = operation.attributes, operation.weight
    shift = 0
    if weight is not None:
        # K uniform products have sqrt(K) times the deviation of one.
        shift = weight.bits - 2 + (weight.rows - 1).bit_length() // 2
    elif isinstance(attributes, MatMulAttributes):
        _, _, inner, _ = matrix_shapes(attributes, shapes[0], shapes[1])
        shift = output - 2 + (inner - 1).bit_length() // 2
        if attributes.scale > 0:
            shift -= round(log2(attributes.scale))
    elif operation.kind is OpKind.MUL:
        shift = output - 2
        scalar = (
            attributes.scalar if isinstance(attributes, ElementwiseAttributes) else None
        )
        if scalar is not None:
            while shift > 0 and abs(scalar) * 2.0**shift > (1 << (output - 1)) - 1:
                shift -= 1
    elif isinstance(attributes, ScaleAttributes):
        shift = output - 2
    elif operation.kind in (OpKind.ADD, OpKind.SUB):
        shift = 1
    elif (
        isinstance(attributes, PoolAttributes)
        and attributes.function is PoolFunction.AVERAGE
    ) or (
        isinstance(attributes, ReduceAttributes)
        and attributes.function is ReduceFunction.MEAN
    ):
        # The product sum * M keeps one bit of headroom.
        shift = wide - output - 2
    return min(max(shift, 0), wide - 2)


def _weights(weight: WeightShape, draw: Generator) -> NDArray[np.signedinteger]:
    half = 1 << (weight.bits - 1)
    width = next(w for w in (8, 16, 32, 64) if w >= weight.bits)
    shape = (weight.groups, weight.rows, weight.columns)
    drawn = draw.integers(-half, half - 1, size=shape, dtype=np.int64, endpoint=True)
    return drawn.astype(f"i{width // 8}")


def _biases(numbers: OperationNumbers, channels: int, draw: Generator) -> Ints:
    bits = max(1, min(numbers.output_bits - 2 + numbers.shift, 62))
    half = 1 << (bits - 1)
    return np.asarray(draw.integers(-half, half, size=channels), np.int64)


def _slopes(numbers: OperationNumbers, channels: int, draw: Generator) -> Ints:
    half = 1 << (numbers.output_bits - 1)
    return np.asarray(draw.integers(-half, half, size=channels), np.int64)
