"""The numbers of an ONNX file, in the layout of the network that was made of it.

Weights are read one by one (external data too); constants that the file computes
(a transposed or dequantised weight) are evaluated by the onnx library.  What the
importer folded (normalisation, factors, shifts) is folded here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    Activation,
    ConvAttributes,
    ConvTransposeAttributes,
    Function,
    OpKind,
    ScaleAttributes,
)
from raptor_cp.network.onnx_constants import ConstantReader, NotReadable
from raptor_cp.network.onnx_import import OnnxOptions, prepared_translator
from raptor_cp.network.values import ModelValues

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.network.onnx_nodes import Node, Shape
    from raptor_cp.network.onnx_translation import Translator
    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network
    from raptor_cp.network.values import Floats

#: Operators that fold into what stands in front of them.
_LINEAR = frozenset({"Add", "BatchNormalization", "Div", "Mul", "Sub"})


@dataclass(frozen=True, slots=True)
class OnnxValues:
    """A :class:`~raptor_cp.network.values.ValueSource`: a file, read as it was."""

    path: Path
    options: OnnxOptions

    def read(self) -> ModelValues:
        """The numbers of the file.

        Raises:
            MalformedInput: weights that are missing, or that depend on each
                inference; all operations without numbers are listed.
        """
        translator = prepared_translator(self.path, self.options)
        network = translator.run()
        return _Reader(self.path, translator, network).run()


class _Reader:
    def __init__(self, path: Path, translator: Translator, network: Network) -> None:
        self.path, self.t, self.network = path, translator, network
        self.constants = ConstantReader(path)
        self.result = ModelValues()
        self._makers = {id(node) for node in translator.origins.values()}
        self.readers: dict[str, list[Node]] = {}
        for node in translator.graph.nodes:
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(node)

    def run(self) -> ModelValues:
        failed = []
        for operation in self.network.operations:
            try:
                self._operation(operation)
            except NotReadable as why:
                failed.append(f"{operation.name!r} ({why})")
        for name in self.network.constants:
            try:
                self._tensor(name)
            except NotReadable as why:
                failed.append(f"constant {name!r} ({why})")
        if failed:
            raise MalformedInput(
                f"the file does not give the numbers of {'; '.join(failed)}",
                where=str(self.path),
                expected="constant weights",
                hint="leave out weights: model, and numbers are drawn",
            )
        return self.result

    def _operation(self, operation: Operation) -> None:
        name = operation.name
        scaled = isinstance(operation.attributes, ScaleAttributes)
        slopes = _is_prelu(operation)
        if operation.weight is None and not scaled and not slopes:
            return
        node = self.t.origins[name]
        shape = self.network.tensors[operation.output].shape
        if operation.weight is not None:
            matrix, bias = self._matrix(operation, node)
            axis = len(shape) - 1 if operation.kind is OpKind.GEMM else 1
            factor, shift, end = self._folded(node, operation, shape, axis, own=False)
            columns = factor.reshape(operation.weight.groups, 1, -1)
            self.result.weights[name] = matrix * columns
            if operation.weight.bias:
                self.result.biases[name] = bias * factor + shift
        elif isinstance(operation.attributes, ScaleAttributes):
            axis = operation.attributes.axis
            factor, shift, end = self._folded(node, operation, shape, axis, own=True)
            self.result.scales[name], self.result.biases[name] = factor, shift
        else:
            end = node
        if slopes:
            channels = self.network.tensors[operation.output].extent.channels
            given = self.constants.value(end.given(1)).reshape(-1)
            self.result.scales[name] = np.broadcast_to(given, (channels,))

    def _tensor(self, name: str) -> None:
        source = self.t.constant_names.get(name, "")
        if any(n.operator == "Where" for n in self.readers.get(source, ())):
            raise NotReadable("a mask that chooses is no operand of a sum")
        value = self.constants.value(source)
        self.result.tensors[name] = value.reshape(self.network.tensors[name].shape)

    # -- matrices ------------------------------------------------------------------

    def _matrix(self, operation: Operation, node: Node) -> tuple[Floats, Floats]:
        """``[groups, K, N]`` and the bias, before what follows is folded."""
        weight = operation.weight
        if weight is None:
            raise TypeError("an operation without weights")
        value, scale = self._stored(node)
        channels = weight.groups * weight.columns
        bias = np.zeros(channels)
        match operation.attributes:
            case ConvAttributes(kernel=kernel, groups=groups):
                value = value.reshape(groups, weight.columns, -1, *kernel)
                matrix = value.transpose(0, 3, 4, 2, 1)
            case ConvTransposeAttributes(kernel=kernel, groups=groups):
                value = value.reshape(groups, -1, weight.columns, *kernel)
                matrix = value.transpose(0, 3, 4, 1, 2)
            case _:
                matrix = value.reshape(1, weight.rows, weight.columns)
        index = {"QLinearConv": 8, "Gemm": 2}.get(node.operator, 2)
        takes_bias = node.operator in (
            "Conv",
            "ConvTranspose",
            "FusedConv",
            "Gemm",
            "QLinearConv",
        )
        if takes_bias and node.given(index) and weight.bias:
            own = self.constants.value(node.given(index)).reshape(-1) * scale
            bias = np.array(np.broadcast_to(own, (channels,)))
            if node.operator == "Gemm":
                # A computed or two-dimensional C is an operation of its own.
                folds = own.size in (1, channels)
                bias = bias * node.number("beta", 1.0) if folds else bias
        return matrix.reshape(weight.groups, weight.rows, weight.columns), bias

    def _stored(self, node: Node) -> tuple[Floats, Floats | float]:
        """The weight as the network has it, and the unit of a quantised bias."""
        constant, graph = self.constants, self.t.graph
        match node.operator:
            case "Conv" | "ConvTranspose" | "FusedConv":
                return constant.value(node.inputs[1]), 1.0
            case "QLinearConv":
                scale = constant.value(node.inputs[4]).reshape(-1)
                zero = constant.value(node.inputs[5]).reshape(-1)
                value = constant.value(node.inputs[3])
                along = (-1, *(1,) * (value.ndim - 1))
                value = (value - zero.reshape(along)) * scale.reshape(along)
                return value, scale * constant.value(node.inputs[1]).reshape(-1)
            case "ConvInteger":
                zero = constant.optional(node.given(3))
                value = constant.value(node.inputs[1])
                along = (-1, *(1,) * (value.ndim - 1))
                return value - zero.reshape(along), 1.0
            case "Gemm" if not node.domain:
                first = not graph.computed(node.inputs[0])
                value = constant.value(node.inputs[0 if first else 1])
                flipped = bool(node.integer("transA" if first else "transB", 0))
                value = value.T if flipped != first else value
                return value * node.number("alpha", 1.0), 1.0
            case "MatMul" | "MatMulInteger":
                first = not graph.computed(node.inputs[0])
                value = constant.value(node.inputs[0 if first else 1])
                if node.operator == "MatMulInteger":
                    value = value - constant.optional(node.given(2 if first else 3))
                return _matrix_of(value, first), 1.0
            case "QLinearMatMul":
                first = not graph.computed(node.inputs[0])
                index = 0 if first else 3
                value = constant.value(node.inputs[index])
                scale = constant.value(node.inputs[index + 1])
                zero = constant.value(node.inputs[index + 2])
                return _matrix_of((value - zero) * scale, first), 1.0
        raise NotReadable(f"weights of {node.kind} are not read")

    # -- what was folded -----------------------------------------------------------

    def _folded(
        self,
        node: Node,
        operation: Operation,
        shape: Shape,
        axis: int,
        *,
        own: bool,
    ) -> tuple[Floats, Floats, Node]:
        """(factor, shift) along ``axis`` of the linear nodes behind ``node``.

        ``own``: ``node`` itself is the first of them.  The last node returned is the
        one behind, which may be a function with numbers of its own.
        """
        absorbed = set(operation.folded)
        source = self.t.graph.shape(node.output)
        factor, shift = np.ones(source), np.zeros(source)
        current, end = node.output, node
        if own:
            factor, shift = self._applied(node, factor, shift)
        while len(self.readers.get(current, ())) == 1:
            follower = end = self.readers[current][0]
            if absorbed & {follower.name, follower.output}:
                if follower.operator not in _LINEAR:
                    break  # a function
                if not self._constant_but_one(follower):
                    break
                factor, shift = self._applied(follower, factor, shift)
            elif self._made(follower):
                break
            else:  # nothing came of it: a neutral number, another shape of the same
                wanted = self.t.graph.shape(follower.output)
                if prod(wanted) != factor.size:
                    break
                factor, shift = factor.reshape(wanted), shift.reshape(wanted)
            current = follower.output
        return _vector(factor, shape, axis), _vector(shift, shape, axis), end

    def _made(self, node: Node) -> bool:
        """True if an operation of its own came of ``node``."""
        return id(node) in self._makers

    def _constant_but_one(self, node: Node) -> bool:
        return sum(self.t.graph.computed(name) for name in node.inputs if name) == 1

    def _applied(
        self, node: Node, factor: Floats, shift: Floats
    ) -> tuple[Floats, Floats]:
        """``node`` behind ``x * factor + shift``."""
        if node.operator == "BatchNormalization":
            gamma, beta, mean, variance = (
                self.constants.value(name).reshape(-1, *(1,) * (factor.ndim - 2))
                for name in node.inputs[1:5]
            )
            slope = gamma / np.sqrt(variance + node.number("epsilon", 1e-5))
            return factor * slope, (shift - mean) * slope + beta
        first = not self.t.graph.computed(node.inputs[0])
        number = self.constants.value(node.inputs[0 if first else 1])
        wide = tuple(np.broadcast_shapes(factor.shape, number.shape))
        factor, shift = np.broadcast_to(factor, wide), np.broadcast_to(shift, wide)
        match node.operator:
            case "Add":
                return factor, shift + number
            case "Sub":
                return (-factor, number - shift) if first else (factor, shift - number)
            case "Mul":
                return factor * number, shift * number
            case "Div" if not first:
                return factor / number, shift / number
        raise NotReadable(f"{node.where} is not linear")


def _is_prelu(operation: Operation) -> bool:
    functions = (operation.attributes, operation.activation)
    return any(
        isinstance(f, Activation) and f.function is Function.PRELU for f in functions
    )


def _matrix_of(value: Floats, first: bool) -> Floats:
    if value.ndim == 1:
        return value.reshape(-1, 1)
    value = value.reshape(value.shape[-2:])
    return value.T if first else value


def _vector(values: Floats, shape: Shape, axis: int) -> Floats:
    """The elements along one axis; they must not vary along the others."""
    if values.size != prod(shape):
        raise NotReadable(f"{values.shape} where {shape} is expected")
    along = np.moveaxis(values.reshape(shape), axis, 0).reshape(shape[axis], -1)
    if not (along == along[:, :1]).all():
        raise NotReadable("the constants vary along more than one axis")
    return np.array(along[:, 0], np.float64)
