"""Imported networks on floating-point numbers, weights taken from the ONNX model.

Reads what the importer made of a model (attributes, layouts, folds) and applies it;
only weights and vectors come from the source nodes, found by their names.
"""

from __future__ import annotations

from math import erf, prod
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from raptor_cp.network.attributes import (
    Activation,
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    ElementwiseAttributes,
    Function,
    GatherAttributes,
    LayerNormAttributes,
    LrnAttributes,
    MatMulAttributes,
    OpKind,
    PadAttributes,
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
    ScaleAttributes,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
    ViewAttributes,
)
from tests.network_oracle import logical_order, memory_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network

    Array = NDArray[np.float64]

#: Source operators whose constants fold into weights, biases and scales.
_LINEAR = ("Add", "BatchNormalization", "Div", "Mul", "Sub")


def run(
    network: Network, proto: onnx.ModelProto, feeds: Mapping[str, NDArray[np.generic]]
) -> list[Array]:
    """Values of the network's outputs."""
    return _Run(network, proto).run(feeds)


class _Run:
    def __init__(self, network: Network, proto: onnx.ModelProto) -> None:
        self.network = network
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        self.nodes = {node.name: node for node in proto.graph.node}
        self.constants = {
            t.name: np.asarray(numpy_helper.to_array(t), np.float64)
            for t in proto.graph.initializer
        }
        infos = (*inferred.graph.value_info, *inferred.graph.output)
        self.shapes = {
            info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
            for info in infos
        }

    def run(self, feeds: Mapping[str, NDArray[np.generic]]) -> list[Array]:
        values: dict[str, Array] = {}
        for name in self.network.inputs:
            shape = self.network.tensors[name].shape
            values[name] = np.asarray(feeds[name], np.float64).reshape(shape)
        for name in self.network.constants:
            shape = self.network.tensors[name].shape
            values[name] = self.constants[name].reshape(shape)
        for operation in self.network.operations:
            inputs = [values[name] for name in operation.inputs]
            result = self.computed(operation, inputs)
            shape = self.network.tensors[operation.output].shape
            assert result.shape == shape, (operation.name, result.shape, shape)
            values[operation.output] = result
        return [values[name] for name in self.network.outputs]

    def computed(self, operation: Operation, inputs: Sequence[Array]) -> Array:
        shape = self.network.tensors[operation.output].shape
        result = self.raw(operation, inputs, shape)
        if operation.kind in (OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.GEMM):
            result = self.linear((operation.name, *operation.folded), result)
        if operation.kind is OpKind.SCALE:
            result = self.linear((operation.name, *operation.folded), result)
        if operation.activation is not None:
            result = apply(operation.activation, result)
        return result

    def linear(self, names: Sequence[str], x: Array) -> Array:
        """Constants of source nodes, applied in the model's own shapes."""
        own = x.shape
        current = ""
        for name in names:
            node = self.nodes.get(name)
            if node is None or (current and current not in node.input):
                break
            current = node.output[0]
            if node.op_type not in _LINEAR:
                continue
            x = x.reshape(self.shapes[node.output[0]])
            given = [self.constants.get(n) for n in node.input]
            if node.op_type == "BatchNormalization":
                scale, shift, mean, variance = (
                    np.asarray(v).reshape(-1, *(1,) * (x.ndim - 2)) for v in given[1:5]
                )
                epsilon = next(
                    (a.f for a in node.attribute if a.name == "epsilon"), 1e-5
                )
                x = (x - mean) / np.sqrt(variance + epsilon) * scale + shift
            else:
                left, right = (x if v is None else v for v in given)
                x = {
                    "Add": np.add,
                    "Sub": np.subtract,
                    "Mul": np.multiply,
                    "Div": np.divide,
                }[node.op_type](left, right)
            x = x.reshape(own)
        return x

    def raw(
        self, operation: Operation, inputs: Sequence[Array], shape: Sequence[int]
    ) -> Array:
        x, attributes = inputs[0], operation.attributes
        match attributes:
            case ConvAttributes():
                return self.conv(operation, attributes, x, shape)
            case ConvTransposeAttributes():
                return self.conv_transpose(operation, attributes, x, shape)
            case PoolAttributes():
                return pool(attributes, x, shape)
            case MatMulAttributes():
                return matmul(attributes, inputs[0], inputs[1])
            case ElementwiseAttributes():
                return binary(operation.kind, attributes, inputs)
            case ReduceAttributes():
                axes = attributes.axes
                reduced = {
                    ReduceFunction.MEAN: lambda: x.mean(axis=axes),
                    ReduceFunction.SUM: lambda: x.sum(axis=axes),
                    ReduceFunction.MAX: lambda: x.max(axis=axes),
                    ReduceFunction.MIN: lambda: x.min(axis=axes),
                }[attributes.function]()
                return np.asarray(reduced).reshape(shape)
            case ConcatAttributes():
                return np.concatenate(list(inputs), axis=attributes.axis)
            case SliceAttributes():
                cut = [slice(None)] * x.ndim
                parts = zip(
                    attributes.axes,
                    attributes.starts,
                    attributes.stops,
                    attributes.steps,
                    strict=True,
                )
                for axis, start, stop, step in parts:
                    cut[axis] = slice(start, stop, step)
                return x[tuple(cut)]
            case PadAttributes():
                sides = list(zip(attributes.before, attributes.after, strict=True))
                if attributes.mode == "constant":
                    return np.pad(x, sides, constant_values=attributes.value)
                return np.pad(x, sides, mode=attributes.mode)  # type: ignore[call-overload, no-any-return]
            case ViewAttributes():
                if not attributes.channels_last:
                    return x.reshape(shape)
                target = memory_order(np.zeros(shape)).shape
                return logical_order(memory_order(x).reshape(target), shape)
            case TransposeAttributes():
                return x.transpose(attributes.permutation)
            case GatherAttributes(indices=None):
                indices = inputs[1].astype(np.int64)
                return np.take(x, indices, axis=attributes.axis)
            case GatherAttributes():
                taken = np.take(x, attributes.indices or (), axis=attributes.axis)
                return taken.reshape(shape)
            case SoftmaxAttributes():
                powers = np.exp(x - x.max(axis=attributes.axis, keepdims=True))
                result = powers / powers.sum(axis=attributes.axis, keepdims=True)
                return np.asarray(np.log(result) if attributes.log else result)
            case LayerNormAttributes():
                return self.layer_norm(operation, attributes, x)
            case LrnAttributes():
                return lrn(attributes, x)
            case Activation():
                return apply(attributes, x)
            case ScaleAttributes():
                return x
        if operation.kind is OpKind.GEMM:
            return self.gemm(operation, x)
        raise NotImplementedError(operation.kind)

    def weight(
        self, operation: Operation
    ) -> tuple[onnx.NodeProto, Array, Array | None]:
        node = self.nodes[operation.name]
        constants = [self.constants[n] for n in node.input if n in self.constants]
        return node, constants[0], constants[1] if len(constants) > 1 else None

    def conv(
        self,
        operation: Operation,
        attributes: ConvAttributes,
        x: Array,
        shape: Sequence[int],
    ) -> Array:
        _, matrix, bias = self.weight(operation)
        kernel = matrix.reshape(*matrix.shape[:2], *attributes.kernel)
        result = np.zeros(shape)
        top, left, bottom, right = attributes.pads
        padded = np.pad(x[0], ((0, 0), (top, bottom), (left, right)))
        outputs, depth = kernel.shape[0] // attributes.groups, kernel.shape[1]
        for row in range(shape[2]):
            for column in range(shape[3]):
                rows = row * attributes.strides[0] + attributes.dilations[
                    0
                ] * np.arange(attributes.kernel[0])
                columns = column * attributes.strides[1] + attributes.dilations[
                    1
                ] * np.arange(attributes.kernel[1])
                window = padded[:, rows][:, :, columns]
                for group in range(attributes.groups):
                    own = slice(group * outputs, (group + 1) * outputs)
                    part = window[group * depth : (group + 1) * depth]
                    result[0, own, row, column] = (kernel[own] * part).sum((1, 2, 3))
        if bias is not None:
            result += bias.reshape(1, -1, 1, 1)
        return result

    def conv_transpose(
        self,
        operation: Operation,
        attributes: ConvTransposeAttributes,
        x: Array,
        shape: Sequence[int],
    ) -> Array:
        _, matrix, bias = self.weight(operation)
        kernel = matrix.reshape(*matrix.shape[:2], *attributes.kernel)
        result = np.zeros(shape)
        depth, outputs = x.shape[1] // attributes.groups, kernel.shape[1]
        for channel in range(x.shape[1]):
            group = channel // depth
            for y, z in np.ndindex(*x.shape[2:]):
                for i, j in np.ndindex(*attributes.kernel):
                    row = y * attributes.strides[0] - attributes.pads[0]
                    column = z * attributes.strides[1] - attributes.pads[1]
                    row += i * attributes.dilations[0]
                    column += j * attributes.dilations[1]
                    if 0 <= row < shape[2] and 0 <= column < shape[3]:
                        own = slice(group * outputs, (group + 1) * outputs)
                        result[0, own, row, column] += (
                            x[0, channel, y, z] * kernel[channel, :, i, j]
                        )
        if bias is not None:
            result += bias.reshape(1, -1, 1, 1)
        return result

    def gemm(self, operation: Operation, x: Array) -> Array:
        node, matrix, bias = self.weight(operation)
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        alpha, beta = given.get("alpha", 1.0), given.get("beta", 1.0)
        weight = operation.weight
        assert weight is not None
        first = node.input[0] in self.constants
        flipped = given.get("transA" if first else "transB", 0)
        matrix = matrix.reshape((1,) * (2 - matrix.ndim) + matrix.shape)
        if matrix.ndim > 2:
            matrix = matrix.reshape(matrix.shape[-2:])
        if bool(flipped) != first:
            matrix = matrix.T
        result = x @ matrix.reshape(weight.rows, weight.columns) * alpha
        if weight.bias and bias is not None:
            result = result + beta * bias.reshape(-1)
        return np.asarray(result)

    def layer_norm(
        self, operation: Operation, attributes: LayerNormAttributes, x: Array
    ) -> Array:
        axes = tuple(range(attributes.axis, x.ndim))
        centred = x - x.mean(axis=axes, keepdims=True) if attributes.bias else x
        power = (centred**2).mean(axis=axes, keepdims=True)
        result = centred / np.sqrt(power + attributes.epsilon)
        node = self.nodes[operation.name]
        names: Sequence[str] = ("gamma", "beta") if operation.vector_parameters else ()
        if node.op_type.endswith("Normalization") and operation.vector_parameters:
            names = node.input[1:]
        vectors = [self.constants[n] for n in names if n in self.constants]
        for vector, combine in zip(vectors, (np.multiply, np.add), strict=False):
            shape = (-1, *(1,) * (x.ndim - 2)) if vector.size == x.shape[1] else None
            wide = vector if vector.size == x.shape[-1] else vector.reshape(shape or -1)
            result = combine(result, wide)
        return np.asarray(result)


def apply(activation: Activation, x: Array) -> Array:
    """A function of one element."""
    alpha, beta = activation.alpha, activation.beta
    sigmoid = 1 / (1 + np.exp(-x))
    softplus = np.logaddexp(0, x)
    hard = np.clip(x / 6 + 0.5, 0, 1)
    error = np.vectorize(erf, otypes=[float])
    results: dict[Function, Callable[[], Array]] = {
        Function.RELU: lambda: np.maximum(x, 0),
        Function.CLIP: lambda: np.clip(x, alpha, beta),
        Function.LEAKY_RELU: lambda: np.where(x < 0, alpha * x, x),
        Function.ELU: lambda: np.where(x < 0, alpha * np.expm1(x), x),
        Function.SIGMOID: lambda: sigmoid,
        Function.HARD_SIGMOID: lambda: np.clip(alpha * x + beta, 0, 1),
        Function.TANH: lambda: np.tanh(x),
        Function.GELU: lambda: x * 0.5 * (1 + error(x / np.sqrt(2))),
        Function.SILU: lambda: x * sigmoid,
        Function.HARD_SWISH: lambda: x * hard,
        Function.SOFTPLUS: lambda: softplus,
        Function.MISH: lambda: x * np.tanh(softplus),
        Function.EXP: lambda: np.exp(x),
        Function.LOG: lambda: np.log(x),
        Function.SQRT: lambda: np.sqrt(x),
        Function.RECIPROCAL: lambda: 1 / x,
        Function.ERF: lambda: error(x),
        Function.NEG: lambda: -x,
        Function.ABS: lambda: np.abs(x),
        Function.SQUARE: lambda: x * x,
    }
    with np.errstate(all="ignore"):
        return np.asarray(results[activation.function]())


def pool(attributes: PoolAttributes, x: Array, shape: Sequence[int]) -> Array:
    """A window that leaves the padding sees fewer elements."""
    result = np.zeros(shape)
    bottom, right = (x.shape[2 + a] + attributes.pads[2 + a] for a in range(2))
    for row, column in np.ndindex(*shape[2:]):
        rows = row * attributes.strides[0] - attributes.pads[0]
        columns = column * attributes.strides[1] - attributes.pads[1]
        own_rows = rows + attributes.dilations[0] * np.arange(attributes.kernel[0])
        own_columns = columns + attributes.dilations[1] * np.arange(
            attributes.kernel[1]
        )
        inside = [r for r in own_rows if 0 <= r < x.shape[2]]
        across = [c for c in own_columns if 0 <= c < x.shape[3]]
        window = x[0][:, inside][:, :, across]
        if attributes.function is PoolFunction.MAX:
            result[0, :, row, column] = window.max((1, 2))
            continue
        count = len(inside) * len(across)
        if attributes.count_include_pad:
            count = int((own_rows < bottom).sum() * (own_columns < right).sum())
        result[0, :, row, column] = window.sum((1, 2)) / count
    return result


def matmul(attributes: MatMulAttributes, a: Array, b: Array) -> Array:
    """As the attributes' docstring says."""
    heads = attributes.heads

    def stacked(x: Array, flip: bool) -> Array:
        if heads > 1 and x.ndim == 3:
            x = x.reshape(1, x.shape[1], heads, -1).transpose(0, 2, 1, 3)
        return x.swapaxes(-1, -2) if flip else x

    left = stacked(a, attributes.transpose_a)
    result = left @ stacked(b, attributes.transpose_b) * attributes.scale
    if attributes.merge_heads:
        joined = result.transpose(0, 2, 1, 3)
        result = joined.reshape(1, joined.shape[1], -1)
    return np.asarray(result)


def binary(
    kind: OpKind, attributes: ElementwiseAttributes, inputs: Sequence[Array]
) -> Array:
    """Two tensors, or a tensor and a number."""
    function = {
        OpKind.ADD: np.add,
        OpKind.SUB: np.subtract,
        OpKind.MUL: np.multiply,
        OpKind.DIV: np.divide,
        OpKind.MAXIMUM: np.maximum,
        OpKind.MINIMUM: np.minimum,
    }[kind]
    if attributes.scalar is None:
        return np.asarray(function(inputs[0], inputs[1]))
    operands = (inputs[0], np.asarray(attributes.scalar))
    return np.asarray(
        function(*(operands[::-1] if attributes.scalar_first else operands))
    )


def lrn(attributes: LrnAttributes, x: Array) -> Array:
    """Over neighbouring channels."""
    before = (attributes.size - 1) // 2
    after = attributes.size - 1 - before
    squares = np.stack(
        [
            (x[:, max(c - before, 0) : c + after + 1] ** 2).sum(axis=1)
            for c in range(x.shape[1])
        ],
        axis=1,
    )
    scale = attributes.bias + attributes.alpha / attributes.size * squares
    return np.asarray(x / scale**attributes.beta)


def same_elements(found: Array, expected: NDArray[np.generic]) -> bool:
    """Equal up to single precision, in the model's own shape."""
    if prod(found.shape) != expected.size:
        return False
    return np.allclose(found.reshape(expected.shape), expected, rtol=2e-3, atol=2e-3)
