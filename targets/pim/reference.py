"""What a network computes, in integers: the oracle of functional verification.

:func:`evaluate` follows the definition of every operation over whole tensors in
numpy and knows nothing of tasks, cores or instructions.  The integer semantics are
those documented in :mod:`raptor_cp.targets.pim.sidecar`; sums wrap around, so their
order does not matter.

Values are kept in memory order: ``[rows, columns, channels]`` of a tensor's extent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.views import is_runtime_free
from raptor_cp.network.attributes import (
    Activation,
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    ElementwiseAttributes,
    Function,
    GatherAttributes,
    MatMulAttributes,
    OpKind,
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
from raptor_cp.targets.pim import reference_operators as operators
from raptor_cp.targets.pim.quantization import fixed_point
from raptor_cp.targets.pim.reference_operators import (
    logical_order,
    matrix_product,
    memory_order,
)
from raptor_cp.targets.pim.sidecar import softmax, table_function, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network
    from raptor_cp.targets.pim.quantization import Quantization
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]


def evaluate(
    network: Network, quantization: Quantization, inputs: Mapping[str, Ints]
) -> dict[str, Ints]:
    """Every tensor of one inference, in memory order.

    Args:
        network: what to compute.
        quantization: weights and numbers, of the same network.
        inputs: [rows, columns, channels] of each network input.

    Raises:
        MalformedInput: an input of another shape, or an operation that has no
            integer definition (division, LayerNormalization, GELU, ...).
    """
    return _Evaluation(network, quantization, inputs).run()


class _Evaluation:
    def __init__(
        self,
        network: Network,
        quantization: Quantization,
        inputs: Mapping[str, Ints],
    ) -> None:
        self.network = network
        self.numbers = {entry.name: entry for entry in quantization.operations}
        self.quantization = quantization
        self.values: dict[str, Ints] = dict(quantization.tensors)
        for name in network.inputs:
            extent = tuple(network.tensors[name].extent)
            given = inputs.get(name)
            if given is None or given.shape != extent:
                raise MalformedInput(
                    "no values of the input's shape",
                    where=f"network {network.name!r}, input {name!r}",
                    value=None if given is None else given.shape,
                    expected=f"{extent} (rows, columns, channels)",
                )
            self.values[name] = given

    def run(self) -> dict[str, Ints]:
        for operation in self.network.operations:
            if is_runtime_free(operation):
                value = self._view(operation, None)
            else:
                value = self._compute(operation)
            self.values[operation.output] = value
        return self.values

    # -- reading ------------------------------------------------------------------

    def _read(self, tensor: str, reader: OpKind) -> Ints:
        """A tensor as an operation of kind ``reader`` sees it.

        Behind a flatten a GEMM keeps memory order: its matrix was laid out so.
        """
        maker = self.network.producer(tensor)
        if reader is OpKind.GEMM and maker is not None and is_runtime_free(maker):
            return self._view(maker, reader)
        return self.values[tensor]

    def _view(self, operation: Operation, reader: OpKind | None) -> Ints:
        source = operation.inputs[0]
        value = self.values[source] if reader is None else self._read(source, reader)
        output = self.network.tensors[operation.output]
        attributes = operation.attributes
        extent = output.extent
        if isinstance(attributes, ViewAttributes):
            flat = extent.rows == extent.columns == 1
            if attributes.channels_last or (reader is OpKind.GEMM and flat):
                return value.reshape(extent)
        shape = self.network.tensors[source].shape
        moved = self._moved(operation, logical_order(value, shape))
        return memory_order(moved.reshape(output.shape))

    def _logical(self, operation: Operation) -> list[Ints]:
        return [
            logical_order(self.values[name], self.network.tensors[name].shape)
            for name in operation.inputs
        ]

    # -- computing ----------------------------------------------------------------

    def _compute(self, operation: Operation) -> Ints:
        numbers = self.numbers[operation.name]
        attributes = operation.attributes
        output = self.network.tensors[operation.output]
        if operation.weight is not None:
            return self._finish(operation, numbers, self._weighted(operation))
        if operation.kind in (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.MATMUL):
            parts = self._logical(operation)
            if isinstance(attributes, MatMulAttributes):
                sums = operators.matmul(attributes, parts[0], parts[1])
            else:
                sums = _combined(operation, numbers, parts)
            wide = memory_order(sums.reshape(output.shape))
            return self._finish(operation, numbers, wide)
        if isinstance(attributes, ScaleAttributes):
            (x,) = self._logical(operation)
            along = [1] * x.ndim
            along[attributes.axis] = -1
            sums = x * self.quantization.scales[operation.name].reshape(along)
            sums = sums + self.quantization.biases[operation.name].reshape(along)
            return self._finish(operation, numbers, memory_order(sums), bias=False)
        value = self._narrow(operation, numbers)
        return self._functions(operation, numbers, value)

    def _narrow(self, operation: Operation, numbers: OperationNumbers) -> Ints:
        """Operations whose result is not requantised."""
        attributes = operation.attributes
        shape = self.network.tensors[operation.output].shape
        parts = self._logical(operation)
        if isinstance(attributes, PoolAttributes):
            x = self.values[operation.inputs[0]]
            return operators.pool(attributes, numbers, x, shape)
        if isinstance(attributes, ReduceAttributes):
            return memory_order(
                operators.reduce(attributes, numbers, parts[0]).reshape(shape)
            )
        if isinstance(attributes, SoftmaxAttributes) and not attributes.log:
            moved = np.moveaxis(parts[0], attributes.axis, -1)
            result = softmax(moved, numbers.output_bits)
            return memory_order(np.moveaxis(result, -1, attributes.axis))
        if operation.kind in (OpKind.MAXIMUM, OpKind.MINIMUM):
            p, q = _operands(operation, numbers, parts)
            bits = numbers.output_bits
            if operation.kind is OpKind.MAXIMUM:
                return memory_order(np.maximum(p, q))
            excess = np.maximum(wrapped(p - q, bits), 0)
            return memory_order(wrapped(p - excess, bits))
        if isinstance(attributes, Activation):
            return self.values[operation.inputs[0]]
        return memory_order(self._moved(operation, *parts).reshape(shape))

    def _moved(self, operation: Operation, *parts: Ints) -> Ints:
        """Operations that move elements, on logical arrays."""
        x = parts[0]
        match operation.attributes:
            case ViewAttributes(shape=shape, channels_last=channels_last):
                if channels_last:
                    extent = self.network.tensors[operation.output].extent
                    return logical_order(memory_order(x).reshape(extent), shape)
                return x.reshape(shape)
            case ConcatAttributes(axis=axis):
                return np.concatenate(parts, axis=axis)
            case SliceAttributes() as cut:
                where = [slice(None)] * x.ndim
                for axis, start, stop, step in zip(
                    cut.axes, cut.starts, cut.stops, cut.steps, strict=True
                ):
                    where[axis] = slice(start, stop, step)
                return x[tuple(where)]
            case PadAttributes() as pads:
                around = list(zip(pads.before, pads.after, strict=True))
                if pads.mode != "constant":
                    padded = np.pad(x, around, mode=pads.mode)  # type: ignore[call-overload]
                    return np.asarray(padded, np.int64)
                bits = self.network.tensors[operation.output].bits
                value = fixed_point(pads.value, bits - 4, bits)
                return np.pad(x, around, constant_values=value)
            case TransposeAttributes(permutation=permutation):
                return x.transpose(permutation)
            case ResizeAttributes(mode="nearest", size=(height, width)):
                rows = np.arange(height) * x.shape[2] // height
                columns = np.arange(width) * x.shape[3] // width
                return x[:, :, rows][:, :, :, columns]
            case GatherAttributes(indices=indices, axis=axis) if indices is not None:
                return np.take(x, indices, axis=axis)
        raise MalformedInput(
            f"{operation.kind.value} has no integer definition",
            where=f"operation {operation.name!r}",
        )

    def _weighted(self, operation: Operation) -> Ints:
        x = self._read(operation.inputs[0], operation.kind)
        weights = self.quantization.weights[operation.name]
        output = self.network.tensors[operation.output]
        match operation.attributes:
            case ConvAttributes() as attributes:
                return operators.convolution(attributes, x, weights, output.extent)
            case ConvTransposeAttributes() as transposed:
                return operators.transposed_convolution(
                    transposed, x, weights, output.extent
                )
        # The last logical axis is the innermost in memory up to three dimensions.
        if len(output.shape) <= 3:
            return matrix_product(x, weights[0])
        shape = self.network.tensors[operation.inputs[0]].shape
        return memory_order(matrix_product(logical_order(x, shape), weights[0]))

    # -- finishing ----------------------------------------------------------------

    def _finish(
        self,
        operation: Operation,
        numbers: OperationNumbers,
        sums: Ints,
        *,
        bias: bool = True,
    ) -> Ints:
        if bias and operation.name in self.quantization.biases:
            sums = sums + self.quantization.biases[operation.name]
        if not numbers.exact:
            narrow = wrapped(sums, numbers.output_bits)
            return self._functions(operation, numbers, narrow)
        rounding = 1 << (numbers.shift - 1) if numbers.shift else 0
        wide = wrapped(sums + rounding, numbers.accumulator_bits)
        shifted = wide >> numbers.shift
        value = np.asarray(np.clip(shifted, numbers.lower, numbers.upper), np.int64)
        fused = operation.activation
        if fused is not None and fused.function in (Function.RELU, Function.CLIP):
            return value
        return self._functions(operation, numbers, value)

    def _functions(
        self, operation: Operation, numbers: OperationNumbers, value: Ints
    ) -> Ints:
        for activation in (operation.attributes, operation.activation):
            if isinstance(activation, Activation):
                value = self._function(operation, numbers, activation.function, value)
        return value

    def _function(
        self,
        operation: Operation,
        numbers: OperationNumbers,
        function: Function,
        value: Ints,
    ) -> Ints:
        bits = numbers.output_bits
        match function:
            case Function.RELU:
                return np.asarray(np.maximum(value, 0), np.int64)
            case Function.CLIP:
                return np.asarray(
                    np.clip(value, numbers.lower, numbers.upper), np.int64
                )
            case Function.LEAKY_RELU | Function.PRELU:
                slope: Ints = np.array([numbers.slope], np.int64)
                scaled_by = self.quantization.scales
                if operation.name in scaled_by and operation.kind is not OpKind.SCALE:
                    slope = self.quantization.scales[operation.name]
                product = wrapped(value * slope, numbers.accumulator_bits)
                scaled = product >> numbers.slope_shift
                top = (1 << (bits - 1)) - 1
                clamped = np.minimum(scaled, top)
                return np.asarray(np.maximum(value, clamped), np.int64)
            case Function.SIGMOID:
                return table_function("vsigm", value, bits)
            case Function.TANH:
                return table_function("vtanh", value, bits)
        raise MalformedInput(
            f"{function.value} has no integer definition",
            where=f"operation {operation.name!r}",
        )


def _operands(
    operation: Operation, numbers: OperationNumbers, parts: list[Ints]
) -> tuple[Ints, Ints]:
    """The two operands, an immediate one included, in order."""
    attributes = operation.attributes
    if len(parts) == 2:
        return parts[0], parts[1]
    scalar = np.array(numbers.scalar, np.int64)
    if isinstance(attributes, ElementwiseAttributes) and attributes.scalar_first:
        return scalar, parts[0]
    return parts[0], scalar


def _combined(
    operation: Operation, numbers: OperationNumbers, parts: list[Ints]
) -> Ints:
    """Sum, difference or product before requantisation."""
    if operation.kind is OpKind.MUL:
        p, q = _operands(operation, numbers, parts)
        return np.asarray(p * q, np.int64)
    p, q = _operands(operation, numbers, parts)
    if numbers.exact:
        p, q = p << numbers.input_shifts[0], q << numbers.input_shifts[1]
    return np.asarray(p - q if operation.kind is OpKind.SUB else p + q, np.int64)
