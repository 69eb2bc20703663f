"""The numbers of a trained model as integers.

* An element of ``b`` bits is a fixed-point number with ``b - 4`` binary places: it
  counts in units of ``2^(4-b)``, from -8 to 8, as the table functions and immediate
  operands do.  What table functions return (sigmoid, tanh, softmax) has ``b - 1``
  places.  Elements outside their range are clamped where results are requantised.
* The weights of an operation are multiplied by the largest power of two that keeps all
  of them in their width, and rounded to nearest (ties to even); so are factors of
  unfolded normalisations and slopes.  Biases have the unit of the partial sums.
* Shifts are the difference of binary places; they round to nearest.

The rule needs exact accumulators: sums that wrap have no scale.
"""

from __future__ import annotations

from dataclasses import replace
from math import frexp, log2
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.views import is_runtime_free
from raptor_cp.graph.widths import Accumulators
from raptor_cp.network.attributes import (
    Activation,
    ElementwiseAttributes,
    Function,
    MatMulAttributes,
    OpKind,
    SoftmaxAttributes,
    ViewAttributes,
)
from raptor_cp.targets.pim.reference_operators import logical_order, memory_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network
    from raptor_cp.network.values import Floats, ModelValues
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]

#: Bits in front of the binary point, the sign included.
INTEGER_BITS = 4

_TABLES = (Function.SIGMOID, Function.TANH)
_JOINING = (OpKind.CONCAT, OpKind.MAXIMUM, OpKind.MINIMUM)


class ModelIntegers:
    """Integers of a model's numbers, one operation after the other.

    Args:
        network: the operations are asked for in its order.
        values: its numbers.
        policy: must be exact.

    Raises:
        MalformedInput: accumulators as narrow as activations.
    """

    def __init__(
        self, network: Network, values: ModelValues, policy: Accumulators
    ) -> None:
        if policy is not Accumulators.EXACT:
            raise MalformedInput(
                "weights of a model need exact accumulators",
                where=f"network {network.name!r}",
                value=f"accumulators: {policy.value}",
                expected="accumulators: exact, or no weights: model",
            )
        self._network, self._values = network, values
        self._places = {
            name: network.tensors[name].bits - INTEGER_BITS
            for name in (*network.inputs, *network.constants)
        }

    def places(self, tensor: str) -> int:
        """Binary places of the elements of a tensor."""
        return self._places[tensor]

    def moved(self, operation: Operation) -> None:
        """An operation that only moves elements, or none at all."""
        self._places[operation.output] = self._places[operation.inputs[0]]

    def numbers(
        self, operation: Operation, drawn: OperationNumbers
    ) -> tuple[
        OperationNumbers,
        NDArray[np.signedinteger] | None,
        Ints | None,
        Ints | None,
    ]:
        """Numbers, weights, biases and scales; ``drawn``: those of drawn weights.

        Raises:
            MalformedInput: operands in different units that cannot be aligned.
        """
        name, network = operation.name, self._network
        inputs = [self._places[tensor] for tensor in operation.inputs]
        output = network.tensors[operation.output].bits - INTEGER_BITS
        numbers, weights, biases, scales = drawn, None, None, None
        if operation.weight is not None:
            real = self._values.weights[name]
            if operation.kind is OpKind.GEMM:
                real = real[:, self._row_order(operation)]
            bits = operation.weight.bits
            shift = _headroom(real, bits) + inputs[0] - output
            numbers = replace(drawn, shift=_legal(shift, drawn))
            weights = _stored(real, numbers.shift + output - inputs[0], bits)
            if operation.weight.bias:
                biases = self._biases(name, numbers, output)
        elif operation.kind is OpKind.SCALE:
            bits = drawn.output_bits
            real = self._values.scales[name]
            shift = _headroom(real, bits) + inputs[0] - output
            numbers = replace(drawn, shift=_legal(shift, drawn))
            scales = _rounded(real, numbers.shift + output - inputs[0], bits)
            biases = self._biases(name, numbers, output)
        elif operation.kind in (OpKind.ADD, OpKind.SUB):
            common = max(inputs)
            shifts = tuple(common - places for places in inputs)
            shifts = shifts if len(shifts) == 2 else (shifts[0], shifts[0])
            shift = _legal(common - output, drawn)
            numbers = replace(drawn, input_shifts=shifts, shift=shift)
        elif operation.kind is OpKind.MUL:
            numbers = self._product(operation, drawn, inputs, output)
        elif isinstance(operation.attributes, MatMulAttributes):
            scale = operation.attributes.scale
            shift = sum(inputs) - output - (round(log2(scale)) if scale > 0 else 0)
            numbers = replace(drawn, shift=_legal(shift, drawn))
        else:
            if operation.kind in _JOINING and len(set(inputs)) > 1:
                raise MalformedInput(
                    "operands in different units",
                    where=f"operation {name!r}",
                    value=inputs,
                    expected="equal numbers of binary places",
                    hint="leave out weights: model, and numbers are drawn",
                )
            output = inputs[0]
        for function in (operation.attributes, operation.activation):
            if not isinstance(function, Activation):
                continue
            if function.function in _TABLES:
                output = drawn.output_bits - 1
            if function.function is Function.PRELU:
                real = self._values.scales[name]
                scales = _rounded(real, drawn.slope_shift, drawn.output_bits)
        if isinstance(operation.attributes, SoftmaxAttributes):
            output = drawn.output_bits - 1
        self._places[operation.output] = output
        return numbers, weights, biases, scales

    def tensor(self, name: str) -> Ints:
        """A constant tensor as ``[rows, columns, channels]``."""
        tensor = self._network.tensors[name]
        whole = _rounded(self._values.tensors[name], self._places[name], tensor.bits)
        return memory_order(whole)

    def _product(
        self,
        operation: Operation,
        drawn: OperationNumbers,
        inputs: list[int],
        output: int,
    ) -> OperationNumbers:
        attributes = operation.attributes
        scalar = (
            attributes.scalar if isinstance(attributes, ElementwiseAttributes) else None
        )
        if scalar is None:
            return replace(drawn, shift=_legal(sum(inputs) - output, drawn))
        factor = np.array([scalar])
        shift = _headroom(factor, drawn.output_bits) + inputs[0] - output
        shift = _legal(shift, drawn)
        places = shift + output - inputs[0]
        rounded = int(_rounded(factor, places, drawn.output_bits)[0])
        return replace(drawn, shift=shift, scalar=rounded)

    def _biases(self, name: str, numbers: OperationNumbers, output: int) -> Ints:
        # A bias at the end of the range of results saturates all of them.
        bits = min(numbers.output_bits + numbers.shift, numbers.accumulator_bits - 1)
        return _rounded(self._values.biases[name], numbers.shift + output, bits)

    def _row_order(self, operation: Operation) -> Ints:
        """For each row of a GEMM in memory order its number in logical order.

        Only a flatten in front makes a difference: the elements stay as they lie.
        """
        network, tensor = self._network, operation.inputs[0]
        extent = network.tensors[tensor].extent
        rows = np.arange(extent.channels)
        if extent.rows * extent.columns != 1:
            return rows
        numbers = rows.reshape(network.tensors[tensor].shape)
        # Backwards through views that keep the logical order.
        maker = network.producer(tensor)
        while maker is not None and is_runtime_free(maker):
            source = network.tensors[maker.inputs[0]]
            flat = source.extent.rows * source.extent.columns == 1
            view = maker.attributes
            if not isinstance(view, ViewAttributes) or (
                view.channels_last and not flat
            ):
                break
            numbers = numbers.reshape(source.shape)
            maker = network.producer(source.name) if flat else None
        return memory_order(numbers).reshape(-1)


def _legal(shift: int, numbers: OperationNumbers) -> int:
    return min(max(shift, 0), numbers.accumulator_bits - 2)


def _headroom(values: Floats, bits: int) -> int:
    """The largest binary places with which all values fit ``bits`` bits."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return bits - 1
    places = bits - 1 - frexp(largest)[1]
    top = (1 << (bits - 1)) - 1
    return places if round(largest * 2.0**places) <= top else places - 1


def _rounded(values: Floats, places: int, bits: int) -> Ints:
    half = 2 ** (bits - 1)
    scaled = np.rint(np.nan_to_num(values) * 2.0**places)
    # 2^63 - 1 is no floating-point number: clamp as integers where it matters.
    limit = float(half - 1) if bits <= 53 else float(half - (1 << (bits - 53)))
    return np.asarray(np.clip(scaled, -float(half), limit), np.int64)


def _stored(values: Floats, places: int, bits: int) -> NDArray[np.signedinteger]:
    width = next(w for w in (8, 16, 32, 64) if w >= bits)
    return _rounded(values, places, bits).astype(f"i{width // 8}")


def real_values(values: Ints, shape: tuple[int, ...], places: int) -> Floats:
    """Integers in memory order as real numbers in their logical shape."""
    return logical_order(values, shape) / 2.0**places
