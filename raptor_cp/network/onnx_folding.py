"""Shapes and constants, one node at a time, by the onnx library's own definitions.

Because every dimension is known when a node is reached, whole-model shape inference
with symbolic propagation is not needed: the library infers each node from concrete
input shapes and from the elements of its small constants.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_nodes import (
    BOOL,
    INT64,
    LARGEST_CONSTANT,
    QUANTISED,
    Info,
    element_bits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from raptor_cp.network.onnx_nodes import Shape, Values

#: Operators whose results nobody can foresee.
RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
#: Operators that keep the width of what they move.
_MOVES = frozenset(
    {
        "Cast",
        "Flatten",
        "Identity",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


def tensor_info(tensor: onnx.TensorProto, folder: Path) -> Info:
    """Shape of a constant, and its elements if they are few and there."""
    info = Info(tuple(tensor.dims), tensor.data_type, constant=True)
    if info.elements > LARGEST_CONSTANT:
        return info
    return Info(info.shape, info.dtype, True, _elements(tensor, folder))


def _elements(tensor: onnx.TensorProto, folder: Path) -> Values | None:
    import onnx
    from onnx import external_data_helper, numpy_helper

    try:
        if external_data_helper.uses_external_data(tensor):
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            external_data_helper.load_external_data_for_tensor(copy, str(folder))
            tensor = copy
        value: Values = np.asarray(numpy_helper.to_array(tensor))
    except (OSError, ValueError, TypeError, KeyError, onnx.checker.ValidationError):
        # Skipped on reading, of no type we know, or the file beside is not there.
        return None
    return value if value.shape == tuple(tensor.dims) else None


def infer_outputs(
    node: onnx.NodeProto,
    inputs: Mapping[str, Info],
    opsets: Sequence[onnx.OperatorSetIdProto],
    where: str,
) -> dict[str, Info]:
    """What the library says of the outputs; empty for operators it does not know.

    Raises:
        MalformedInput: the inputs contradict the operator's definition.
    """
    import onnx
    from onnx import defs, helper, numpy_helper, shape_inference

    version = next((e.version for e in opsets if e.domain == node.domain), 1)
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return {}
    _check_order(node, inputs, where)
    types = {
        name: helper.make_tensor_type_proto(info.dtype, info.shape)
        for name, info in inputs.items()
    }
    data = {
        name: numpy_helper.from_array(np.asarray(info.value, order="C"), name)
        for name, info in inputs.items()
        if info.value is not None and info.dtype in _NUMPY
    }
    try:
        found = shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=list(opsets)
        )
    except (shape_inference.InferenceError, RuntimeError, ValueError) as error:
        raise MalformedInput(
            f"the inputs contradict the operator: {_reason(error)}",
            where=where,
            value={name: info.shape for name, info in inputs.items()},
        ) from None
    except onnx.checker.ValidationError as error:
        integer = any(info.dtype in QUANTISED for info in inputs.values())
        raise MalformedInput(
            f"not a legal call: {_reason(error)}",
            where=where,
            hint="quantised models use QLinear operators, or QuantizeLinear and "
            "DequantizeLinear around operators on floats"
            if integer
            else "",
        ) from None
    return {name: _typed(kind) for name, kind in found.items()}


def _check_order(node: onnx.NodeProto, inputs: Mapping[str, Info], where: str) -> None:
    """What the library lets pass: wrong permutations and positions.

    Raises:
        MalformedInput: a Transpose of other axes, a Gather beyond its data.
    """
    first = next(iter(inputs.values()), None)
    if node.domain or first is None or first.shape is None:
        return
    rank = len(first.shape)
    lists = {a.name: list(a.ints) for a in node.attribute}
    if node.op_type == "Transpose" and lists.get("perm"):
        if sorted(lists["perm"]) != list(range(rank)):
            raise MalformedInput(
                "perm is no order of the axes",
                where=where,
                value=lists["perm"],
                expected=f"each of 0 to {rank - 1} once, for shape {first.shape}",
            )
    elif node.op_type == "Gather" and len(node.input) == 2:
        data, indices = (inputs.get(name) for name in node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if data is None or indices is None or not -rank <= axis < rank:
            return
        values = indices.value
        if data.shape is None or values is None or values.dtype.kind not in "iu":
            return
        size = data.shape[axis]
        outside = [int(i) for i in values.reshape(-1) if not -size <= int(i) < size]
        if outside:
            raise MalformedInput(
                "an index lies outside the data",
                where=where,
                value=outside[0],
                expected=f"{-size} to {size - 1}, on axis {axis} of {data.shape}",
            )


_NUMPY = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})


def _typed(kind: onnx.TypeProto) -> Info:
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return Info(None, kind.tensor_type.elem_type)
    sizes = []
    for dimension in kind.tensor_type.shape.dim:
        if not dimension.HasField("dim_value"):
            return Info(None, kind.tensor_type.elem_type)
        sizes.append(int(dimension.dim_value))
    return Info(tuple(sizes), kind.tensor_type.elem_type)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def folded(
    node: onnx.NodeProto,
    inputs: Mapping[str, Info],
    outputs: Mapping[str, Info],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, Info]:
    """``outputs`` as constants, with their elements where they can be computed."""
    values: Sequence[object] = ()
    if _is_small(inputs, outputs):
        values = _evaluated(node, inputs, outputs, opsets)
    bits = _stored_bits(node, inputs)
    result: dict[str, Info] = {}
    for index, (name, info) in enumerate(outputs.items()):
        value = values[index] if index < len(values) else None
        known = value if isinstance(value, np.ndarray | np.generic) else None
        array = None if known is None else np.asarray(known)
        shape: Shape | None = info.shape if array is None else array.shape
        result[name] = Info(shape, info.dtype, True, array, bits)
    return result


def _is_small(inputs: Mapping[str, Info], outputs: Mapping[str, Info]) -> bool:
    known = all(i.value is not None and i.dtype in _NUMPY for i in inputs.values())
    sizes = [i.elements for i in (*inputs.values(), *outputs.values())]
    return known and max(sizes, default=0) <= LARGEST_CONSTANT


def _evaluated(
    node: onnx.NodeProto,
    inputs: Mapping[str, Info],
    outputs: Mapping[str, Info],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> Sequence[object]:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph(
        [node],
        "constant",
        [helper.make_tensor_value_info(n, i.dtype, i.shape) for n, i in inputs.items()],
        [helper.make_tensor_value_info(n, i.dtype, None) for n, i in outputs.items()],
    )
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            model = helper.make_model(graph, opset_imports=list(opsets))
            evaluator = ReferenceEvaluator(model)
            feeds = {name: info.value for name, info in inputs.items()}
            result = evaluator.run(None, feeds)
    except Exception:
        # The evaluator raises whatever its numpy code raises.  What it cannot
        # evaluate stays a constant of known shape.
        return ()
    return list(result)


def _stored_bits(node: onnx.NodeProto, inputs: Mapping[str, Info]) -> int | None:
    first = next(iter(inputs.values()), None)
    if first is None:
        return None
    if node.op_type == "DequantizeLinear":
        return element_bits(first.dtype)
    return first.bits if node.op_type in _MOVES else None


def shape_constant(node: onnx.NodeProto, shape: Shape) -> Info:
    """The result of Shape or Size."""
    if node.op_type == "Size":
        size = Info(shape, INT64).elements
        return Info((), INT64, True, np.asarray(size, np.int64))
    limits = {a.name: a.i for a in node.attribute}
    part = shape[limits.get("start", 0) : limits.get("end", len(shape))]
    return Info((len(part),), INT64, True, np.asarray(part, np.int64))


def condition(info: Info) -> bool | None:
    """The value of a constant condition."""
    if info.value is None or info.value.size != 1 or info.dtype != BOOL:
        return None
    return bool(info.value.reshape(-1)[0])
