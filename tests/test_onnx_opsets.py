"""The same network in every operator set, 7 to the newest: the same import.

Operators changed how they take their parameters (attributes, then inputs); each call
is written as the operator set wants it, and the library's checker says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx.defs import get_schema, onnx_opset_version
from onnx.reference import ReferenceEvaluator

from raptor_cp.network.onnx_file import OLDEST_OPSET
from raptor_cp.network.onnx_import import import_onnx
from tests.network_floats import run, same_elements
from tests.onnx_models import model, node, saved, weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation

OPSETS = range(OLDEST_OPSET, onnx_opset_version() + 1)


class Calls:
    """A network under construction, in the words of one operator set."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self._count = 0

    def constant(self, value: object) -> str:
        """A new initialiser."""
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def ints(self, *values: int) -> str:
        """A new initialiser of integers."""
        return self.constant(np.asarray(values, np.int64))

    def real(self, value: float) -> str:
        """A new initialiser of one number."""
        return self.constant(np.asarray(value, np.float32))

    def call(self, operator: str, *inputs: str, **attributes: object) -> str:
        """A node with one output."""
        self._count += 1
        output = f"v{self._count}"
        made = node(operator, list(inputs), [output], **attributes)  # type: ignore[arg-type]
        self.nodes.append(made)
        return output

    def takes(self, operator: str, attribute: str) -> bool:
        """True if the operator set has the parameter as an attribute."""
        return attribute in get_schema(operator, self.opset, "").attributes

    def either(
        self, operator: str, x: str, name: str, *values: int, **more: int
    ) -> str:
        """A parameter that became an input."""
        if self.takes(operator, name):
            return self.call(operator, x, **{name: list(values)}, **more)
        return self.call(operator, x, self.ints(*values), **more)


def classifier(c: Calls) -> str:
    """Convolutions, normalisation, pools, a residual, a classifier."""
    x = c.call(
        "Conv", "x", c.constant(weights(6, 4, 3, 3)), pads=[1, 1, 1, 1], strides=[2, 1]
    )
    vectors = [c.constant(np.abs(weights(6, seed=s)) + 0.5) for s in range(4)]
    n = c.call("BatchNormalization", x, *(v for v in vectors))
    r = c.call("Relu", n)
    d = c.call("Conv", r, c.constant(weights(6, 1, 3, 3)), group=6, pads=[1] * 4)
    if c.takes("Clip", "min"):
        d = c.call("Clip", d, min=0.0, max=6.0)
    else:
        d = c.call("Clip", d, c.real(0), c.real(6))
    a = c.call("Add", r, d)
    m = c.call("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
    g = c.call("GlobalAveragePool", m)
    f = c.call("Flatten", g)
    w, b = c.constant(weights(5, 6)), c.constant(weights(5))
    return c.call("Gemm", f, w, b, transB=1)


def moves(c: Calls) -> str:
    """Split, slice, pad, transpose, concatenate, reshape, squeeze."""
    if c.takes("Slice", "starts"):
        s = c.call("Slice", "x", starts=[1], ends=[5], axes=[2])
    else:
        s = c.call("Slice", "x", c.ints(1), c.ints(5), c.ints(2))
    sides = (0, 0, 1, 0, 0, 0, 1, 0)
    p = c.either("Pad", s, "pads", *sides)
    t = c.call("Transpose", p, perm=[0, 1, 3, 2])
    c.nodes.append(
        node("Split", [t], ["left", "right"], axis=1, split=[1, 3])
        if c.takes("Split", "split")
        else node("Split", [t, c.ints(1, 3)], ["left", "right"], axis=1)
    )
    k = c.call("Concat", "right", "left", axis=1)
    shaped = c.call("Reshape", k, c.ints(0, 2, -1, 6))
    u = c.either("Unsqueeze", shaped, "axes", 1)
    q = c.either("Squeeze", u, "axes", 1)
    return c.call("Gather", q, c.ints(1, 0), axis=1)


def reductions(c: Calls) -> str:
    """Means, sums, maxima over axes, a softmax."""
    m = c.either("ReduceMean", "x", "axes", 2, keepdims=1)
    s = c.either("ReduceSum", m, "axes", 3, keepdims=0)
    t = c.call("Reshape", s, c.ints(1, 4))
    p = c.call("Softmax", t, axis=1)
    top = c.either("ReduceMax", "x", "axes", 2, 3, keepdims=0)
    return c.call("Add", p, top)


def products(c: Calls) -> str:
    """Constant and computed products, a number, functions of one element."""
    f = c.call("Reshape", "x", c.ints(1, 4, 30))
    a = c.call("MatMul", f, c.constant(weights(30, 8)))
    b = c.call("Add", a, c.constant(weights(8)))
    t = c.call("Transpose", b, perm=[0, 2, 1])
    s = c.call("MatMul", b, t)
    e = c.call("Mul", s, c.real(0.25))
    g = c.call("Sigmoid", e)
    h = c.call("LeakyRelu", c.call("Sub", c.call("Tanh", e), g), alpha=0.125)
    return c.call("Div", h, c.real(2))


def upscaled(c: Calls) -> str:
    """Nearest neighbours: Upsample, then two forms of Resize."""
    factors = np.asarray([1, 1, 2, 2], np.float32)
    if c.opset < 9:
        u = c.call("Upsample", "x", scales=factors.tolist(), mode="nearest")
    elif c.opset < 10:
        u = c.call("Upsample", "x", c.constant(factors), mode="nearest")
    elif c.opset < 11:
        u = c.call("Resize", "x", c.constant(factors), mode="nearest")
    else:
        roi = "" if c.opset >= 13 else c.constant(np.zeros(0, np.float32))
        u = c.call("Resize", "x", roi, c.constant(factors), mode="nearest")
    return c.call("Conv", u, c.constant(weights(2, 4, 1, 1)))


#: Networks, their operations, multiply-accumulates, shape of the output.
NETWORKS: dict[Callable[[Calls], str], tuple[str, int, tuple[int, ...]]] = {
    classifier: (
        "conv+relu conv+clip add pool reduce view gemm",
        6 * 36 * 15 + 6 * 9 * 15 + 30,
        (1, 5),
    ),
    moves: (
        "slice pad transpose slice slice concat view view view gather",
        0,
        (1, 2, 10, 6),
    ),
    reductions: ("reduce reduce view view softmax reduce view add", 0, (1, 4)),
    products: (
        "view gemm matmul activation activation sub+leaky_relu div",
        4 * 30 * 8 + 4 * 8 * 4,
        (1, 4, 4),
    ),
    upscaled: ("resize conv", 2 * 4 * 12 * 10, (1, 2, 12, 10)),
}


def _kind(operation: Operation) -> str:
    fused = operation.activation
    return operation.kind.value + (f"+{fused.function.value}" if fused else "")


@pytest.mark.parametrize("build", NETWORKS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_set(
    build: Callable[[Calls], str], opset: int, tmp_path: Path
) -> None:
    calls = Calls(opset)
    output = build(calls)
    proto = model(
        calls.nodes, {"x": (1, 4, 6, 5)}, calls.constants, [output], opset=opset
    )
    kinds, macs, shape = NETWORKS[build]
    for size in shape:
        proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = size
    onnx.checker.check_model(proto, full_check=True)
    network = import_onnx(saved(proto, tmp_path))
    assert " ".join(_kind(operation) for operation in network.operations) == kinds
    assert network.macs == macs
    assert network.tensors[network.outputs[0]].shape == shape
    if build is upscaled:
        return  # the plain interpreter has no resize; test_onnx_functional does it
    if build is classifier and opset < 14:
        return  # the library's evaluator takes the normalisation for a training one
    feeds = {"x": np.abs(weights(1, 4, 6, 5, seed=9))}
    expected = list(ReferenceEvaluator(proto).run(None, feeds))
    assert same_elements(run(network, proto, feeds)[0], np.asarray(expected[0]))
