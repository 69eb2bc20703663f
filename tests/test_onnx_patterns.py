"""Functions, normalisations and attention that exporters write as small operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from raptor_cp.network.attributes import (
    Activation,
    Function,
    LayerNormAttributes,
    MatMulAttributes,
    ViewAttributes,
)
from raptor_cp.network.onnx_import import import_onnx
from tests.network_floats import run, same_elements
from tests.onnx_models import model, node, saved, weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network

    Constants = dict[str, NDArray[np.generic]]


def number(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    return np.asarray(values, np.int64)


def imported(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, NDArray[np.generic]],
    folder: Path,
    *,
    opset: int = 17,
) -> Network:
    """The network, once its values agree with the library's evaluator."""
    proto = model(nodes, inputs, constants, opset=opset)
    network = import_onnx(saved(proto, folder))
    feeds = {name: weights(*shape, seed=4) for name, shape in inputs.items()}
    expected = list(ReferenceEvaluator(proto).run(None, feeds))
    found = run(network, proto, feeds)
    assert same_elements(found[0], np.asarray(expected[0]))
    return network


GELU_ERF = [
    node("Div", ["x", "root"], ["a"]),
    node("Erf", ["a"], ["b"]),
    node("Add", ["b", "one"], ["c"]),
    node("Mul", ["x", "c"], ["d"]),
    node("Mul", ["d", "half"], ["y"]),
]
GELU_HALF_FIRST = [
    node("Mul", ["x", "half"], ["h"]),
    node("Div", ["x", "root"], ["a"]),
    node("Erf", ["a"], ["b"]),
    node("Add", ["one", "b"], ["c"]),
    node("Mul", ["h", "c"], ["y"]),
]
GELU_TANH = [
    node("Pow", ["x", "three"], ["p"]),
    node("Mul", ["p", "cubic"], ["q"]),
    node("Add", ["x", "q"], ["r"]),
    node("Mul", ["r", "slope"], ["s"]),
    node("Tanh", ["s"], ["t"]),
    node("Add", ["t", "one"], ["u"]),
    node("Mul", ["x", "half"], ["h"]),
    node("Mul", ["h", "u"], ["y"]),
]
HARD_SWISH = [
    node("Add", ["x", "three"], ["a"]),
    node("Clip", ["a", "zero", "six"], ["b"]),
    node("Mul", ["x", "b"], ["c"]),
    node("Div", ["c", "six"], ["y"]),
]
HARD_SWISH_SIGMOID = [
    node("HardSigmoid", ["x"], ["a"], alpha=1 / 6),
    node("Mul", ["a", "x"], ["y"]),
]
SILU = [node("Sigmoid", ["x"], ["a"]), node("Mul", ["x", "a"], ["y"])]
MISH = [
    node("Softplus", ["x"], ["a"]),
    node("Tanh", ["a"], ["b"]),
    node("Mul", ["x", "b"], ["y"]),
]
MISH_EXPLODED = [
    node("Exp", ["x"], ["e"]),
    node("Add", ["e", "one"], ["f"]),
    node("Log", ["f"], ["a"]),
    node("Tanh", ["a"], ["b"]),
    node("Mul", ["x", "b"], ["y"]),
]
NUMBERS = {
    "root": number(2**0.5),
    "one": number(1),
    "half": number(0.5),
    "three": number(3),
    "six": number(6),
    "zero": number(0),
    "cubic": number(0.044715),
    "slope": number((2 / np.pi) ** 0.5),
}


@pytest.mark.parametrize(
    ("nodes", "function"),
    [
        (GELU_ERF, Function.GELU),
        (GELU_HALF_FIRST, Function.GELU),
        (GELU_TANH, Function.GELU),
        (HARD_SWISH, Function.HARD_SWISH),
        (HARD_SWISH_SIGMOID, Function.HARD_SWISH),
        (SILU, Function.SILU),
        (MISH, Function.MISH),
        (MISH_EXPLODED, Function.MISH),
    ],
)
def test_functions(
    nodes: Sequence[onnx.NodeProto], function: Function, tmp_path: Path
) -> None:
    network = imported(nodes, {"x": (1, 7, 9)}, NUMBERS, tmp_path)
    assert len(network.operations) == 1
    attributes = network.operations[0].attributes
    assert isinstance(attributes, Activation)
    assert attributes.function is function
    assert len(network.operations[0].folded) == len(nodes) - 1


def test_function_folds_into_the_product_in_front(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["z", "w"], ["m"]), node("Add", ["m", "bias"], ["x"])]
    nodes += [onnx.NodeProto.FromString(n.SerializeToString()) for n in GELU_ERF]
    constants = {**NUMBERS, "w": weights(9, 12), "bias": weights(12, seed=1)}
    network = imported(nodes, {"z": (1, 7, 9)}, constants, tmp_path)
    assert [op.kind.value for op in network.operations] == ["gemm"]
    assert network.operations[0].activation == Activation(Function.GELU)


def test_almost_a_function_stays_what_it_is(tmp_path: Path) -> None:
    """x * sigmoid(1.702 x) is no SiLU."""
    nodes = [
        node("Mul", ["x", "k"], ["a"]),
        node("Sigmoid", ["a"], ["b"]),
        node("Mul", ["x", "b"], ["y"]),
    ]
    network = imported(nodes, {"x": (1, 9)}, {"k": number(1.702)}, tmp_path)
    # The sigmoid folds into the product with the number.
    assert [op.kind.value for op in network.operations] == ["mul", "mul"]


def test_inner_values_that_others_read_stay(tmp_path: Path) -> None:
    nodes = [*SILU[:1], node("Mul", ["x", "a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    network = imported(nodes, {"x": (1, 9)}, {}, tmp_path)
    assert [op.kind.value for op in network.operations] == ["activation", "mul", "add"]


def layer_norm(
    source: str, result: str, *, power: bool, affine: bool, opset: int = 17
) -> list[onnx.NodeProto]:
    """The normalisation as PyTorch exports it."""

    def mean(source: str, result: str) -> onnx.NodeProto:
        if opset < 18:
            return node("ReduceMean", [source], [result], axes=[-1])
        return node("ReduceMean", [source, "axes"], [result])

    square = (
        node("Pow", ["d", "two"], ["p"]) if power else node("Mul", ["d", "d"], ["p"])
    )
    nodes = [
        mean(source, "m"),
        node("Sub", [source, "m"], ["d"]),
        square,
        mean("p", "v"),
        node("Add", ["v", "epsilon"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["d", "r"], ["n" if affine else result]),
    ]
    if affine:
        nodes.append(node("Mul", ["n", "gamma"], ["g"]))
        nodes.append(node("Add", ["g", "beta"], [result]))
    return nodes


NORM: dict[str, NDArray[np.generic]] = {
    "two": number(2),
    "epsilon": number(1e-5),
    "axes": ints(-1),
    "gamma": weights(12, seed=1),
    "beta": weights(12, seed=2),
}


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("opset", [13, 18])
def test_layer_norm(power: bool, affine: bool, opset: int, tmp_path: Path) -> None:
    nodes = layer_norm("x", "y", power=power, affine=affine, opset=opset)
    network = imported(nodes, {"x": (1, 5, 12)}, NORM, tmp_path, opset=opset)
    assert [op.kind.value for op in network.operations] == ["layer_norm"]
    norm = network.operations[0]
    assert isinstance(norm.attributes, LayerNormAttributes)
    assert (norm.attributes.axis, norm.attributes.bias) == (2, True)
    assert norm.attributes.epsilon == pytest.approx(1e-5)
    assert norm.vector_parameters == (24 if affine else 0)


def test_layer_norm_as_tensorflow_writes_it(tmp_path: Path) -> None:
    """x * (gamma / root) + (beta - mean * gamma / root)."""
    nodes = [
        node("ReduceMean", ["x"], ["m"], axes=[2]),
        node("Sub", ["x", "m"], ["d"]),
        node("Mul", ["d", "d"], ["p"]),
        node("ReduceMean", ["p"], ["v"], axes=[2]),
        node("Add", ["v", "epsilon"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Reciprocal", ["r"], ["i"]),
        node("Mul", ["i", "gamma"], ["s"]),
        node("Mul", ["x", "s"], ["a"]),
        node("Mul", ["m", "s"], ["b"]),
        node("Sub", ["beta", "b"], ["c"]),
        node("Add", ["a", "c"], ["y"]),
    ]
    network = imported(nodes, {"x": (1, 5, 12)}, NORM, tmp_path)
    assert [op.kind.value for op in network.operations] == ["layer_norm"]


def test_root_mean_square_norm(tmp_path: Path) -> None:
    nodes = [
        node("Pow", ["x", "two"], ["p"]),
        node("ReduceMean", ["p"], ["v"], axes=[-1]),
        node("Add", ["v", "epsilon"], ["e"]),
        node("Sqrt", ["e"], ["r"]),
        node("Div", ["x", "r"], ["n"]),
        node("Mul", ["n", "gamma"], ["y"]),
    ]
    constants = {k: v for k, v in NORM.items() if k != "beta"}
    network = imported(nodes, {"x": (1, 5, 12)}, constants, tmp_path)
    attributes = network.operations[0].attributes
    assert isinstance(attributes, LayerNormAttributes)
    assert not attributes.bias
    assert network.operations[0].vector_parameters == 12


def test_exploded_softmax(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMax", ["x"], ["m"], axes=[-1]),
        node("Sub", ["x", "m"], ["d"]),
        node("Exp", ["d"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["s"]),
        node("Div", ["e", "s"], ["y"]),
    ]
    network = imported(nodes, {"x": (1, 5, 12)}, NORM, tmp_path)
    assert [op.kind.value for op in network.operations] == ["softmax"]


# -- attention ------------------------------------------------------------------------

TOKENS, HEADS, SIZE = 5, 3, 4
WIDTH = HEADS * SIZE


def project(name: str, source: str = "x") -> list[onnx.NodeProto]:
    return [
        node("MatMul", [source, f"w{name}"], [f"{name}0"]),
        node("Add", [f"{name}0", f"c{name}"], [name]),
    ]


def projections(*names: str, width: int = WIDTH) -> Constants:
    result: Constants = {}
    for index, name in enumerate(names):
        result[f"w{name}"] = weights(WIDTH, width, seed=10 + index) * np.float32(0.3)
        result[f"c{name}"] = weights(width, seed=20 + index)
    return result


SHAPES: Constants = {
    "split": ints(1, TOKENS, HEADS, SIZE),
    "join": ints(1, TOKENS, WIDTH),
    "scale": number(SIZE**0.5),
}
CONTEXT = [
    node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
    node("Reshape", ["ot", "join"], ["oj"]),
    node("MatMul", ["oj", "wo"], ["y"]),
]


def fresh(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    return [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]


def attention_of(network: Network) -> tuple[MatMulAttributes, MatMulAttributes]:
    products = [op.attributes for op in network.operations if op.kind.value == "matmul"]
    first, second = products
    assert isinstance(first, MatMulAttributes)
    assert isinstance(second, MatMulAttributes)
    return first, second


def test_attention_of_bert(tmp_path: Path) -> None:
    nodes = [*project("q"), *project("k"), *project("v")]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=order))
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Div", ["s", "scale"], ["sc"]),
        node("Softmax", ["sc"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
    ]
    nodes += fresh(CONTEXT)
    constants = {**SHAPES, **projections("q", "k", "v"), "wo": weights(WIDTH, WIDTH)}
    network = imported(nodes, {"x": (1, TOKENS, WIDTH)}, constants, tmp_path)
    kinds = [op.kind.value for op in network.operations]
    assert sorted(kinds) == sorted(
        ["gemm", "gemm", "gemm", "matmul", "softmax", "matmul", "gemm"]
    )
    scores, context = attention_of(network)
    assert scores.scale == pytest.approx(SIZE**-0.5)
    assert scores == MatMulAttributes(transpose_b=True, heads=HEADS, scale=scores.scale)
    assert context == MatMulAttributes(heads=HEADS, merge_heads=True)
    macs = 4 * TOKENS * WIDTH**2 + 2 * TOKENS**2 * WIDTH
    assert network.macs == macs


def test_attention_of_vit_with_one_projection(tmp_path: Path) -> None:
    """(1, S, 3D) to (3, 1, h, S, d), then one Gather each."""
    nodes = project("qkv")
    nodes += [
        node("Reshape", ["qkv", "split"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[2, 0, 3, 1, 4]),
        node("Gather", ["t", "zero"], ["q"], axis=0),
        node("Gather", ["t", "one"], ["k"], axis=0),
        node("Gather", ["t", "two"], ["v"], axis=0),
        node("Mul", ["q", "factor"], ["qf"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("Mul", ["kt", "factor"], ["kf"]),
        node("MatMul", ["qf", "kf"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
    ]
    nodes += fresh(CONTEXT)
    constants = {
        **projections("qkv", width=3 * WIDTH),
        "split": ints(1, TOKENS, 3, HEADS, SIZE),
        "join": ints(1, TOKENS, WIDTH),
        "zero": np.asarray(0, np.int64),
        "one": np.asarray(1, np.int64),
        "two": np.asarray(2, np.int64),
        "factor": number(SIZE**-0.25),
        "wo": weights(WIDTH, WIDTH),
    }
    network = imported(nodes, {"x": (1, TOKENS, WIDTH)}, constants, tmp_path)
    kinds = [op.kind.value for op in network.operations]
    assert kinds.count("slice") == 3
    assert kinds.count("transpose") == 0
    scores, context = attention_of(network)
    assert scores.scale == pytest.approx(SIZE**-0.5)
    assert scores.transpose_b
    assert context.merge_heads


def test_attention_with_the_batch_in_the_middle(tmp_path: Path) -> None:
    """PyTorch's MultiheadAttention: (S, 1, D) to (h, S, d)."""
    nodes = [*project("q"), *project("k"), *project("v")]
    for name, order in (("q", [1, 0, 2]), ("k", [1, 2, 0]), ("v", [1, 0, 2])):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=order))
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[1, 0, 2]),
        node("Reshape", ["ot", "join"], ["oj"]),
        node("Gemm", ["oj", "wo"], ["y"]),
    ]
    constants = {
        **projections("q", "k", "v"),
        "split": ints(TOKENS, HEADS, SIZE),
        "join": ints(TOKENS, WIDTH),
        "wo": weights(WIDTH, WIDTH),
    }
    network = imported(nodes, {"x": (TOKENS, 1, WIDTH)}, constants, tmp_path)
    kinds = [op.kind.value for op in network.operations if op.kind.value != "view"]
    assert kinds.count("transpose") == 0
    _, context = attention_of(network)
    assert context.merge_heads
    assert context.heads == HEADS


def test_masked_attention(tmp_path: Path) -> None:
    """A mask that is added, and one that chooses."""
    nodes = [*project("q"), *project("k")]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1])):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=order))
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Add", ["s", "mask"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    mask = np.triu(np.full((TOKENS, TOKENS), -1e9, np.float32), 1)
    constants = {**SHAPES, **projections("q", "k"), "mask": mask}
    network = imported(nodes, {"x": (1, TOKENS, WIDTH)}, constants, tmp_path)
    assert [op.kind.value for op in network.operations][-3:] == [
        "matmul",
        "add",
        "softmax",
    ]


def test_attention_with_a_scale_computed_from_shapes(tmp_path: Path) -> None:
    """scaled_dot_product_attention as PyTorch exports it: 1/sqrt(d) of Shape nodes."""
    nodes = [*project("q"), *project("k"), *project("v")]
    for name in ("q", "k", "v"):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=[0, 2, 1, 3]))
    nodes += [
        node("Shape", ["qt"], ["shape"]),
        node("Slice", ["shape", "minus", "end"], ["size"]),
        node("Cast", ["size"], ["real"], to=1),
        node("Sqrt", ["real"], ["root"]),
        node("Div", ["unit", "root"], ["inverse"]),
        node("Cast", ["inverse"], ["factor"], to=1),
        node("Sqrt", ["factor"], ["half"]),
        node("Mul", ["qt", "half"], ["qf"]),
        node("Transpose", ["kt"], ["ktt"], perm=[0, 1, 3, 2]),
        node("Mul", ["ktt", "half"], ["kf"]),
        node("MatMul", ["qf", "kf"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
    ]
    nodes += fresh(CONTEXT)
    constants = {
        **SHAPES,
        **projections("q", "k", "v"),
        "wo": weights(WIDTH, WIDTH),
        "minus": ints(-1),
        "end": ints(2**63 - 1),
        "unit": np.asarray([1.0], np.float32),
    }
    network = imported(nodes, {"x": (1, TOKENS, WIDTH)}, constants, tmp_path)
    kinds = [op.kind.value for op in network.operations if op.kind.value != "view"]
    assert sorted(kinds) == sorted([*["gemm"] * 4, "matmul", "softmax", "matmul"])
    scores, context = attention_of(network)
    assert scores.scale == pytest.approx(SIZE**-0.5)
    assert context.merge_heads


def test_causal_attention_of_gpt2(tmp_path: Path) -> None:
    """One projection, split in three, a mask that chooses."""
    nodes = [
        node("Gemm", ["x", "wqkv", "cqkv"], ["qkv2"]),
        node("Reshape", ["qkv2", "rows"], ["qkv"]),
        node("Split", ["qkv", "thirds"], ["q", "k", "v"], axis=2),
    ]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=order))
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Div", ["s", "scale"], ["sc"]),
        node("Where", ["mask", "sc", "low"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
    ]
    nodes += fresh(CONTEXT)
    constants = {
        **SHAPES,
        **projections("qkv", width=3 * WIDTH),
        "rows": ints(1, TOKENS, 3 * WIDTH),
        "thirds": ints(WIDTH, WIDTH, WIDTH),
        "mask": np.tril(np.ones((1, 1, TOKENS, TOKENS), np.bool_)),
        "low": number(-1e9),
        "wo": weights(WIDTH, WIDTH),
    }
    proto = model(nodes, {"x": (TOKENS, WIDTH)}, constants)
    network = import_onnx(saved(proto, tmp_path))
    kinds = [op.kind.value for op in network.operations if op.kind.value != "view"]
    assert kinds.count("transpose") == 0
    assert kinds.count("matmul") == 2
    assert kinds.count("softmax") == 1
    assert kinds.count("add") == 1  # the mask, priced as a sum
    scores, context = attention_of(network)
    assert scores.scale == pytest.approx(SIZE**-0.5)
    assert (scores.heads, context.merge_heads) == (HEADS, True)
    assert network.macs == 4 * TOKENS * WIDTH**2 + 2 * TOKENS**2 * WIDTH


@pytest.mark.parametrize("name", ["relu6", "minimum", "no_division"])
def test_further_forms_of_hard_swish(name: str, tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "three"], ["a"])]
    if name == "minimum":
        nodes += [node("Relu", ["a"], ["r"]), node("Min", ["r", "six"], ["b"])]
    else:
        nodes += [node("Clip", ["a", "zero", "six"], ["b"])]
    if name == "no_division":
        nodes += [node("Mul", ["b", "sixth"], ["c"]), node("Mul", ["c", "x"], ["y"])]
    else:
        nodes += [node("Div", ["b", "six"], ["c"]), node("Mul", ["x", "c"], ["y"])]
    constants = {**NUMBERS, "sixth": number(1 / 6)}
    network = imported(nodes, {"x": (1, 4, 6, 5)}, constants, tmp_path)
    (only,) = network.operations
    assert isinstance(only.attributes, Activation)
    assert only.attributes.function is Function.HARD_SWISH


def test_further_form_of_gelu(tmp_path: Path) -> None:
    """x * 0.5 * (1 + erf(x * 0.7071)), the products in another order."""
    nodes = [
        node("Mul", ["x", "root2"], ["a"]),
        node("Erf", ["a"], ["b"]),
        node("Mul", ["b", "half"], ["c"]),
        node("Add", ["half", "c"], ["d"]),
        node("Mul", ["d", "x"], ["y"]),
    ]
    constants = {**NUMBERS, "root2": number(2**-0.5)}
    network = imported(nodes, {"x": (1, 7, 9)}, constants, tmp_path)
    (only,) = network.operations
    assert isinstance(only.attributes, Activation)
    assert only.attributes.function is Function.GELU


def test_layer_norm_over_channels_of_a_map(tmp_path: Path) -> None:
    """ConvNeXt: channels last by a transpose, normalised, and back."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        *layer_norm("t", "u", power=True, affine=True),
        node("Transpose", ["u"], ["y"], perm=[0, 3, 1, 2]),
    ]
    network = imported(nodes, {"x": (1, 12, 3, 4)}, NORM, tmp_path)
    kinds = [op.kind.value for op in network.operations]
    assert kinds.count("layer_norm") == 1
    assert "sub" not in kinds


def test_encoder_block(tmp_path: Path) -> None:
    """Attention, two exploded normalisations, an exploded GELU: nothing is left."""
    nodes = [*project("q"), *project("k"), *project("v")]
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(node("Transpose", [f"{name}s"], [f"{name}t"], perm=order))
    nodes += [
        node("MatMul", ["qt", "kt"], ["s"]),
        node("Div", ["s", "scale"], ["sc"]),
        node("Softmax", ["sc"], ["p"], axis=-1),
        node("MatMul", ["p", "vt"], ["o"]),
        node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        node("Reshape", ["ot", "join"], ["oj"]),
        node("MatMul", ["oj", "wo"], ["om"]),
        node("Add", ["om", "x"], ["first"]),
    ]
    prefixed = []
    for prefix, source, result in (("1", "first", "n1"), ("2", "second", "y")):
        for call in layer_norm(source, result, power=True, affine=True):
            renamed = fresh([call])[0]
            own = {
                o
                for c in layer_norm("a", "b", power=True, affine=True)
                for o in c.output
            }
            for names in (renamed.input, renamed.output):
                for index, name in enumerate(names):
                    if name in own and name != result:
                        names[index] = f"{prefix}{name}"
            prefixed.append((prefix, renamed))
    nodes += [call for prefix, call in prefixed if prefix == "1"]
    nodes += [
        node("MatMul", ["n1", "up"], ["h0"]),
        node("Add", ["h0", "cup"], ["h"]),
        node("Div", ["h", "root"], ["ga"]),
        node("Erf", ["ga"], ["gb"]),
        node("Add", ["gb", "one"], ["gc"]),
        node("Mul", ["h", "gc"], ["gd"]),
        node("Mul", ["gd", "half"], ["g"]),
        node("MatMul", ["g", "down"], ["d0"]),
        node("Add", ["d0", "n1"], ["second"]),
    ]
    nodes += [call for prefix, call in prefixed if prefix == "2"]
    constants: Constants = {
        **SHAPES,
        **NORM,
        **projections("q", "k", "v"),
        "root": NUMBERS["root"],
        "one": NUMBERS["one"],
        "half": NUMBERS["half"],
        "wo": weights(WIDTH, WIDTH),
        "up": weights(WIDTH, 20),
        "cup": weights(20),
        "down": weights(20, WIDTH),
    }
    network = imported(nodes, {"x": (1, TOKENS, WIDTH)}, constants, tmp_path)
    assert sorted(op.kind.value for op in network.operations) == sorted(
        [*["gemm"] * 6, *["matmul"] * 2, "softmax", *["add"] * 2, *["layer_norm"] * 2]
    )


# -- views ----------------------------------------------------------------------------


def test_patches_become_tokens_without_a_move(tmp_path: Path) -> None:
    """(1, C, H, W) to (1, H*W, C) and back is free: channels lie innermost."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
        node("Reshape", ["c", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["t", "m"], ["g"]),
        node("Transpose", ["g"], ["b"], perm=[0, 2, 1]),
        node("Reshape", ["b", "map"], ["y"]),
    ]
    constants: Constants = {
        "w": weights(6, 3, 2, 2),
        "flat": ints(1, 6, -1),
        "m": weights(6, 6),
        "map": ints(1, 6, 3, 2),
    }
    network = imported(nodes, {"x": (1, 3, 6, 4)}, constants, tmp_path)
    assert [op.kind.value for op in network.operations] == [
        "conv",
        "view",
        "gemm",
        "view",
    ]
    for index in (1, 3):
        attributes = network.operations[index].attributes
        assert isinstance(attributes, ViewAttributes)
        assert attributes.channels_last


def test_channel_shuffle_is_kept(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", ["x", "split"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["t", "join"], ["y"]),
    ]
    constants: Constants = {
        "split": ints(1, 2, 3, 4, 5),
        "join": ints(1, 6, 4, 5),
    }
    network = imported(nodes, {"x": (1, 6, 4, 5)}, constants, tmp_path)
    assert [op.kind.value for op in network.operations] == ["view", "transpose", "view"]


# -- quantised models -----------------------------------------------------------------


def test_qlinear_operators_give_widths(tmp_path: Path) -> None:
    scale, zero = number(0.1), np.asarray(3, np.uint8)
    constants: Constants = {
        "s": scale,
        "z": zero,
        "w": np.ones((8, 4, 3, 3), np.int8),
        "sw": scale,
        "zw": np.asarray(0, np.int8),
        "b": np.zeros(8, np.int32),
        "m": np.ones((8, 10), np.int8),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("QLinearConv", ["xq", "s", "z", "w", "sw", "zw", "s", "z", "b"], ["c"]),
        node("Reshape", ["c", "shape"], ["f"]),
        node("QLinearMatMul", ["f", "s", "z", "m", "sw", "zw", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    constants["shape"] = ints(-1, 8)
    proto = model(nodes, {"x": (1, 4, 5, 5)}, constants)
    network = import_onnx(saved(proto, tmp_path))
    assert [op.kind.value for op in network.operations] == ["conv", "view", "gemm"]
    bits = [op.weight.bits for op in network.operations if op.weight is not None]
    assert bits == [8, 8]
    assert {tensor.bits for tensor in network.tensors.values()} == {8}
    assert network.macs == 9 * 8 * 36 + 9 * 80
    assert network.notes == ()


@pytest.mark.parametrize(("dtype", "bits"), [("INT8", 8), ("INT4", 4)])
def test_quantise_dequantise_gives_widths(
    dtype: str, bits: int, tmp_path: Path
) -> None:
    kind = getattr(onnx.TensorProto, dtype)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "s"], ["wd"]),
        node("Conv", ["xd", "wd"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        node("DequantizeLinear", ["rq", "s", "z"], ["y"]),
    ]
    constants: Constants = {"s": number(0.1), "z": np.asarray(0, np.int8)}
    proto = model(nodes, {"x": (1, 4, 5, 5)}, constants, opset=21)
    values = np.ones(8 * 36, np.int8)
    proto.graph.initializer.append(
        onnx.helper.make_tensor("w", kind, (8, 4, 3, 3), values)
    )
    network = import_onnx(saved(proto, tmp_path))
    assert [op.kind.value for op in network.operations] == ["conv"]
    conv = network.operations[0]
    assert conv.weight is not None
    assert conv.weight.bits == bits
    assert network.tensors["x"].bits == network.tensors[conv.output].bits == 8


def test_integer_convolution(tmp_path: Path) -> None:
    """ConvInteger: 8-bit operands, 32-bit sums that a cast and a factor follow."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z", "zw"], ["i"], pads=[1, 1, 1, 1]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["f", "s"], ["m"]),
        node("Relu", ["m"], ["y"]),
    ]
    constants: Constants = {
        "w": np.ones((8, 4, 3, 3), np.uint8),
        "zw": np.asarray(128, np.uint8),
    }
    network = import_onnx(saved(model(nodes, {"x": (1, 4, 5, 5)}, constants), tmp_path))
    assert [op.kind.value for op in network.operations] == ["conv"]
    conv = network.operations[0]
    assert conv.weight is not None
    assert conv.weight.bits == 8
    assert network.tensors["x"].bits == 8
    assert network.macs == 8 * 36 * 25


def test_dynamic_quantisation(tmp_path: Path) -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=1),
        node("Mul", ["s", "sw"], ["k"]),
        node("Mul", ["f", "k"], ["m"]),
        node("Add", ["m", "c"], ["y"]),
    ]
    constants: Constants = {
        "w": np.ones((12, 10), np.int8),
        "sw": number(0.1),
        "c": weights(10),
    }
    proto = model(nodes, {"x": (1, 12)}, constants)
    network = import_onnx(saved(proto, tmp_path))
    assert [op.kind.value for op in network.operations] == ["gemm"]
    gemm = network.operations[0]
    assert gemm.weight is not None
    assert (gemm.weight.bits, gemm.weight.bias) == (8, True)
    assert network.tensors["x"].bits == 8


def test_half_precision_is_16_bits(tmp_path: Path) -> None:
    half = onnx.TensorProto.FLOAT16
    proto = model(
        [node("Conv", ["x", "w"], ["y"])],
        {"x": (1, 4, 5, 5)},
        {"w": weights(8, 4, 3, 3).astype(np.float16)},
        types={"x": half, "y": half},
    )
    network = import_onnx(saved(proto, tmp_path))
    assert {tensor.bits for tensor in network.tensors.values()} == {16}
    assert network.notes == ()


def test_both_operands_of_a_product_are_one_slice(tmp_path: Path) -> None:
    nodes = [
        node("Slice", ["x", "five", "eight", "one"], ["s"]),
        node("Transpose", ["s"], ["t"], perm=[1, 0]),
        node("MatMul", ["s", "t"], ["y"]),
    ]
    limits: Constants = {"five": ints(5), "eight": ints(8), "one": ints(1)}
    network = imported(nodes, {"x": (7, 8)}, limits, tmp_path)
    kinds = [op.kind.value for op in network.operations if op.kind.value != "view"]
    assert kinds == ["slice", "matmul"]
