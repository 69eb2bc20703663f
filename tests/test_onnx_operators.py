"""Every operator: shape, MACs, crossbars, and values against the onnx evaluator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx.reference import ReferenceEvaluator

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray, weight_demand
from raptor_cp.network.attributes import GatherAttributes, ResizeAttributes
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx
from tests.network_floats import run, same_elements
from tests.onnx_models import model, node, saved, weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network

#: 16-bit weights on 2-bit cells: four columns of 16 rows.
ARRAY = MatrixArray(16, 32, 2)


@dataclass(frozen=True)
class Case:
    """One small model and what must come of it."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Sequence[int]]
    constants: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    macs: int = 0
    crossbars: int = 0
    opset: int = 17
    positive: bool = False
    outputs: tuple[str, ...] = ("y",)
    values: bool = True


def feeds_of(case: Case) -> dict[str, NDArray[np.float32]]:
    feeds = {name: weights(*shape, seed=9) for name, shape in case.inputs.items()}
    if case.positive:
        feeds = {name: np.abs(x) + np.float32(0.1) for name, x in feeds.items()}
    return feeds


def check(case: Case, folder: Path) -> Network:
    proto = model(
        case.nodes, case.inputs, case.constants, case.outputs, opset=case.opset
    )
    network = import_onnx(saved(proto, folder))
    feeds = feeds_of(case)
    expected = ReferenceEvaluator(proto).run(None, feeds)
    shapes = [network.tensors[name].shape for name in network.outputs]
    assert shapes == [_canonical(np.asarray(y).shape) for y in expected]
    if case.kinds:
        assert tuple(op.kind.value for op in network.operations) == case.kinds
    assert network.macs == case.macs
    assert sum(d.slots for d in weight_demand(network, ARRAY)) == case.crossbars
    if case.values:
        for found, wanted in zip(run(network, proto, feeds), expected, strict=True):
            assert same_elements(found, np.asarray(wanted))
    return network


def _canonical(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *shape) if len(shape) >= 3 and shape[0] != 1 else shape


def ints(*values: int) -> NDArray[np.int64]:
    return np.asarray(values, np.int64)


MAP = {"x": (1, 4, 6, 5)}
W = {"w": weights(8, 4, 3, 3), "b": weights(8)}

CONVOLUTIONS = [
    Case(
        "conv",
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1])],
        MAP,
        W,
        ("conv",),
        8 * 36 * 30,
        3 * 2,
    ),
    Case(
        "conv_strided_asymmetric",
        [node("Conv", ["x", "w"], ["y"], strides=[2, 1], pads=[1, 0, 0, 2])],
        MAP,
        W,
        ("conv",),
        8 * 36 * 3 * 5,
        6,
    ),
    Case(
        "conv_dilated",
        [node("Conv", ["x", "w"], ["y"], dilations=[2, 2], pads=[2, 2, 2, 2])],
        MAP,
        W,
        ("conv",),
        8 * 36 * 30,
        6,
    ),
    *(
        Case(
            f"conv_{mode.lower()}",
            [node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[2, 2])],
            MAP,
            W,
            ("conv",),
            8 * 36 * rows * columns,
            6,
        )
        for mode, rows, columns in (
            ("SAME_UPPER", 3, 3),
            ("SAME_LOWER", 3, 3),
            ("VALID", 2, 2),
        )
    ),
    Case(
        "conv_groups",
        [node("Conv", ["x", "w"], ["y"], group=2)],
        MAP,
        {"w": weights(8, 2, 3, 3)},
        ("conv",),
        8 * 18 * 12,
        2 * 2 * 1,  # two groups of 18 rows (two tiles) x 4 columns
    ),
    Case(
        "conv_depthwise",
        [node("Conv", ["x", "w"], ["y"], group=4, pads=[1, 1, 1, 1])],
        MAP,
        {"w": weights(4, 1, 3, 3)},
        ("conv",),
        4 * 9 * 30,
        4,  # one group of 9 rows fills a row tile of 16
    ),
    Case(
        "conv_1d",
        [node("Conv", ["x", "w", "b"], ["y"], strides=[2], pads=[1, 2])],
        {"x": (1, 4, 11)},
        {"w": weights(6, 4, 3), "b": weights(6)},
        ("conv", "view"),
        6 * 12 * 6,
        2,
    ),
    Case(
        "conv_1d_chain",
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1]),
            node("BatchNormalization", ["a", "g", "h", "m", "v"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("MaxPool", ["r"], ["p"], kernel_shape=[2], strides=[2]),
            node("GlobalAveragePool", ["p"], ["q"]),
            node("Flatten", ["q"], ["y"]),
        ],
        {"x": (1, 4, 12)},
        {
            "w": weights(6, 4, 3),
            "g": weights(6, seed=1),
            "h": weights(6, seed=2),
            "m": weights(6, seed=3),
            "v": np.abs(weights(6, seed=4)),
        },
        ("conv", "pool", "reduce", "view"),
        6 * 12 * 12,
        2,
    ),
    Case(
        "pad_and_conv",
        [
            node("Pad", ["x", "p"], ["a"]),
            node("Conv", ["a", "w"], ["y"], strides=[2, 2]),
        ],
        MAP,
        {**W, "p": ints(0, 0, 0, 1, 0, 0, 1, 2)},
        ("conv",),
        8 * 36 * 3 * 3,
        6,
    ),
    Case(
        "conv_transpose",
        [
            node(
                "ConvTranspose",
                ["x", "w", "b"],
                ["y"],
                strides=[2, 2],
                pads=[1, 1, 1, 1],
                output_padding=[1, 1],
            )
        ],
        MAP,
        {"w": weights(4, 6, 3, 3), "b": weights(6)},
        ("conv_transpose",),
        30 * 36 * 6,
        3 * 2,
    ),
    Case(
        "conv_transpose_same",
        [
            node(
                "ConvTranspose",
                ["x", "w"],
                ["y"],
                strides=[2, 2],
                auto_pad="SAME_UPPER",
            )
        ],
        MAP,
        {"w": weights(4, 6, 3, 3)},
        ("conv_transpose",),
        30 * 36 * 6,
        6,
    ),
]

PRODUCTS = [
    Case(
        "gemm",
        [node("Gemm", ["x", "w", "c"], ["y"], alpha=0.5, beta=2.0)],
        {"x": (1, 20)},
        {"w": weights(20, 10), "c": weights(10)},
        ("gemm",),
        200,
        2 * 3,
    ),
    Case(
        "gemm_transposed_weight",
        [node("Gemm", ["x", "w", "c"], ["y"], transB=1)],
        {"x": (3, 20)},
        {"w": weights(10, 20), "c": weights(10)},
        ("gemm",),
        600,
        6,
    ),
    Case(
        "gemm_transposed_data",
        [node("Gemm", ["x", "w"], ["y"], transA=1, alpha=3.0)],
        {"x": (20, 3)},
        {"w": weights(20, 10)},
        ("transpose", "gemm"),
        600,
        6,
    ),
    Case(
        "gemm_constant_on_the_left",
        [node("Gemm", ["w", "x"], ["y"], transA=1)],
        {"x": (20, 3)},
        {"w": weights(20, 10)},
        ("transpose", "gemm", "transpose"),
        600,
        6,
    ),
    Case(
        "gemm_computed",
        [node("Gemm", ["x", "z"], ["y"], transB=1, alpha=0.25)],
        {"x": (5, 6), "z": (7, 6)},
        {},
        ("matmul",),
        210,
    ),
    Case(
        "gemm_bias_matrix",
        [node("Gemm", ["x", "w", "c"], ["y"])],
        {"x": (3, 20)},
        {"w": weights(20, 10), "c": weights(3, 10)},
        ("gemm", "add"),
        600,
        6,
    ),
    Case(
        "matmul_constant",
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "c"], ["y"])],
        {"x": (1, 7, 20)},
        {"w": weights(20, 10), "c": weights(10)},
        ("gemm",),
        1400,
        6,
    ),
    Case(
        "matmul_constant_left",
        [node("MatMul", ["w", "x"], ["y"])],
        {"x": (1, 20, 3)},
        {"w": weights(10, 20)},
        ("transpose", "gemm", "transpose"),
        600,
        6,
    ),
    Case(
        "matmul_dynamic",
        [node("MatMul", ["x", "z"], ["y"])],
        {"x": (1, 4, 5), "z": (1, 5, 6)},
        {},
        ("matmul",),
        120,
    ),
    Case(
        "matmul_batched",
        [node("MatMul", ["x", "z"], ["y"])],
        {"x": (1, 3, 4, 5), "z": (1, 3, 5, 6)},
        {},
        ("matmul",),
        360,
    ),
    Case(
        "matmul_vector",
        [node("MatMul", ["x", "w"], ["y"])],
        {"x": (20,)},
        {"w": weights(20, 10)},
        ("gemm",),
        200,
        6,
    ),
]

POOLS = [
    Case(
        "max_pool_ceil",
        [
            node(
                "MaxPool",
                ["x"],
                ["y"],
                kernel_shape=[3, 3],
                strides=[2, 2],
                ceil_mode=1,
            )
        ],
        MAP,
        {},
        ("pool",),
    ),
    Case(
        "max_pool_dilated_pads",
        [
            node(
                "MaxPool",
                ["x"],
                ["y"],
                kernel_shape=[2, 2],
                dilations=[2, 1],
                pads=[1, 1, 0, 0],
            )
        ],
        MAP,
        {},
        ("pool",),
    ),
    *(
        Case(
            f"average_pool_count_{count}",
            [
                node(
                    "AveragePool",
                    ["x"],
                    ["y"],
                    kernel_shape=[3, 3],
                    strides=[2, 2],
                    pads=[1, 1, 1, 1],
                    count_include_pad=count,
                )
            ],
            MAP,
            {},
            ("pool",),
        )
        for count in (0, 1)
    ),
    Case("global_average", [node("GlobalAveragePool", ["x"], ["y"])], MAP),
    Case("global_max", [node("GlobalMaxPool", ["x"], ["y"])], MAP),
]

MOVES = [
    Case(
        "concat_split",
        [
            node("Split", ["x", "s"], ["a", "b"], axis=1),
            node("Concat", ["b", "a"], ["y"], axis=1),
        ],
        MAP,
        {"s": ints(1, 3)},
        ("slice", "slice", "concat"),
    ),
    Case(
        "split_attribute",
        [
            node("Split", ["x"], ["a", "b"], axis=1, split=[1, 3]),
            node("Concat", ["b", "a"], ["y"], axis=1),
        ],
        MAP,
        {},
        ("slice", "slice", "concat"),
        opset=11,
    ),
    Case(
        "slice_steps",
        [node("Slice", ["x", "s", "e", "a", "t"], ["y"])],
        MAP,
        {"s": ints(-3, 0), "e": ints(100, 5), "a": ints(-2, 3), "t": ints(1, 2)},
        ("slice", "slice"),
    ),
    Case(
        "slice_attributes",
        [node("Slice", ["x"], ["y"], starts=[1], ends=[3], axes=[2])],
        MAP,
        {},
        ("slice",),
        opset=9,
    ),
    Case(
        "pad_constant",
        [node("Pad", ["x", "p", "v"], ["y"])],
        MAP,
        {"p": ints(0, 0, 1, 2, 0, 0, 0, 1), "v": np.asarray(2.0, np.float32)},
        ("pad",),
    ),
    Case(
        "pad_reflect_negative",
        [node("Pad", ["x", "p"], ["y"], mode="reflect")],
        MAP,
        {"p": ints(0, 0, 2, 0, 0, 0, 0, 1)},
        ("pad",),
    ),
    Case(
        "gather_fixed",
        [node("Gather", ["x", "i"], ["y"], axis=1)],
        MAP,
        {"i": ints(3, 0, -2)},
        ("gather",),
    ),
    Case(
        "gather_scalar",
        [node("Gather", ["x", "i"], ["y"], axis=1)],
        {"x": (1, 7, 4)},
        {"i": np.asarray(0, np.int64)},
        ("slice", "view"),
    ),
    Case(
        "transpose",
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 1, 3])],
        MAP,
        {},
        ("transpose",),
    ),
    Case(
        "transpose_of_units",
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 1])],
        {"x": (1, 7, 1)},
        {},
        ("view",),
    ),
    Case(
        "transpose_to_front",
        [node("Transpose", ["x"], ["y"], perm=[2, 0, 1])],
        {"x": (1, 7, 3)},
        {},
        ("view", "transpose"),
    ),
    Case(
        "reshape_zero_minus_one",
        [node("Reshape", ["x", "s"], ["y"])],
        MAP,
        {"s": ints(0, 2, -1, 5)},
        ("view",),
    ),
    Case("flatten", [node("Flatten", ["x"], ["y"])], MAP, {}, ("view",)),
    Case(
        "squeeze_unsqueeze",
        [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u", "b"], ["y"])],
        {"x": (1, 6, 1)},
        {"a": ints(0), "b": ints(3)},
    ),
    Case(
        "expand",
        [node("Expand", ["x", "s"], ["y"])],
        {"x": (1, 4, 1, 1)},
        {"s": ints(1, 4, 2, 3)},
        ("gather", "gather"),
    ),
    Case(
        "tile",
        [node("Tile", ["x", "s"], ["y"])],
        {"x": (1, 2, 2, 3)},
        {"s": ints(1, 2, 1, 2)},
        ("gather", "gather"),
    ),
    *(
        Case(
            f"depth_to_space_{mode}",
            [node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)],
            {"x": (1, 8, 2, 3)},
            {},
            ("view", "transpose", "view"),
        )
        for mode in ("DCR", "CRD")
    ),
    Case(
        "space_to_depth",
        [node("SpaceToDepth", ["x"], ["y"], blocksize=2)],
        {"x": (1, 2, 4, 6)},
        {},
        ("view", "transpose", "view"),
    ),
    Case(
        "resize_scales",
        [node("Resize", ["x", "", "s"], ["y"])],
        MAP,
        {"s": np.asarray([1, 1, 2, 2], np.float32)},
        ("resize",),
        values=False,
    ),
    Case(
        "resize_sizes_linear",
        [node("Resize", ["x", "", "", "s"], ["y"], mode="linear")],
        MAP,
        {"s": ints(1, 4, 9, 5)},
        ("resize",),
        values=False,
    ),
]

REDUCTIONS = [
    *(
        Case(
            f"{operator}_{keep}",
            [node(operator, ["x"], ["y"], axes=[2, 3], keepdims=keep)],
            MAP,
        )
        for operator in (
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
        )
        for keep in (0, 1)
    ),
    Case(
        "reduce_sum_input_axes",
        [node("ReduceSum", ["x", "a"], ["y"], keepdims=0)],
        {"x": (1, 5, 6)},
        {"a": ints(-1)},
    ),
    Case(
        "reduce_opset_18",
        [node("ReduceMean", ["x", "a"], ["y"])],
        MAP,
        {"a": ints(1)},
        ("reduce",),
        opset=18,
    ),
    Case("softmax", [node("Softmax", ["x"], ["y"], axis=1)], MAP, {}, ("softmax",)),
    Case(
        "softmax_coerced",
        [node("Softmax", ["x"], ["y"], axis=1)],
        {"x": (1, 3, 4)},
        {},
        ("view", "softmax", "view"),
        opset=11,
        values=False,  # the library's evaluator has the new meaning only
    ),
    Case("log_softmax", [node("LogSoftmax", ["x"], ["y"])], MAP, {}, ("softmax",)),
    Case(
        "lrn",
        [node("LRN", ["x"], ["y"], size=3, alpha=0.1, bias=2.0)],
        MAP,
        {},
        ("lrn",),
        values=False,  # the library's evaluator normalises the first channel only
    ),
    Case(
        "layer_norm",
        [node("LayerNormalization", ["x", "gamma", "beta"], ["y"])],
        {"x": (1, 5, 12)},
        {"gamma": weights(12), "beta": weights(12, seed=2)},
        ("layer_norm",),
    ),
    Case(
        "instance_norm",
        [node("InstanceNormalization", ["x", "gamma", "beta"], ["y"])],
        MAP,
        {"gamma": weights(4), "beta": weights(4, seed=2)},
        ("layer_norm",),
    ),
    Case(
        "batch_norm_alone",
        [node("BatchNormalization", ["x", "g", "h", "m", "v"], ["y"])],
        MAP,
        {
            "g": weights(4, seed=1),
            "h": weights(4, seed=2),
            "m": weights(4, seed=3),
            "v": np.abs(weights(4, seed=4)),
        },
        ("scale",),
    ),
]

FUNCTIONS = [
    Case(operator, [node(operator, ["x"], ["y"])], MAP, {}, ("activation",))
    for operator in (
        "Abs",
        "Elu",
        "Erf",
        "Exp",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Neg",
        "Relu",
        "Sigmoid",
        "Softplus",
        "Tanh",
    )
]
FUNCTIONS += [
    Case(
        operator,
        [node(operator, ["x"], ["y"])],
        MAP,
        {},
        ("activation",),
        positive=True,
    )
    for operator in ("Log", "Reciprocal", "Sqrt")
]
FUNCTIONS += [
    Case(
        "gelu",
        [node("Gelu", ["x"], ["y"])],
        MAP,
        {},
        ("activation",),
        opset=20,
    ),
    Case("mish", [node("Mish", ["x"], ["y"])], MAP, {}, ("activation",), opset=18),
    Case(
        "clip_inputs",
        [node("Clip", ["x", "l", "h"], ["y"])],
        MAP,
        {"l": np.asarray(-0.5, np.float32), "h": np.asarray(0.75, np.float32)},
        ("activation",),
    ),
    Case(
        "clip_below",
        [node("Clip", ["x", "l"], ["y"])],
        MAP,
        {"l": np.asarray(-0.5, np.float32)},
        ("maximum",),
    ),
    Case(
        "clip_attributes",
        [node("Clip", ["x"], ["y"], min=0.0, max=6.0)],
        MAP,
        {},
        ("activation",),
        opset=9,
    ),
    *(
        Case(
            f"pow_{exponent}",
            [node("Pow", ["x", "e"], ["y"])],
            MAP,
            {"e": np.asarray(exponent, np.float32)},
            positive=True,
        )
        for exponent in (2.0, 3.0, 0.5, -1.0, 1.0)
        if exponent != 1.0
    ),
]

OPERANDS = [
    *(
        Case(
            f"{operator}_two",
            [node(operator, ["x", "z"], ["y"])],
            {"x": (1, 4, 6, 5), "z": (1, 4, 6, 5)},
        )
        for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
    ),
    *(
        Case(
            f"{operator}_broadcast",
            [node(operator, ["x", "z"], ["y"])],
            {"x": (1, 4, 6, 5), "z": (1, 4, 1, 1)},
        )
        for operator in ("Add", "Mul")
    ),
    *(
        Case(
            f"{operator}_number_{side}",
            [node(operator, ["x", "k"] if side else ["k", "x"], ["y"])],
            MAP,
            {"k": np.asarray([2.5], np.float32)},
            positive=True,
        )
        for operator in ("Add", "Sub", "Mul", "Div", "Max", "Min")
        for side in (0, 1)
    ),
    *(
        Case(
            f"{operator}_channels_{side}",
            [node(operator, ["x", "k"] if side else ["k", "x"], ["y"])],
            MAP,
            {"k": weights(4, 1, 1)},
            positive=True,
        )
        for operator in ("Mul", "Div")
        for side in (0, 1)
    ),
    Case(
        "position_embedding",
        [node("Add", ["x", "k"], ["y"])],
        {"x": (1, 5, 6)},
        {"k": weights(1, 5, 6)},
        ("add",),
    ),
    Case(
        "sum_of_three",
        [node("Sum", ["x", "z", "x"], ["y"])],
        {"x": (1, 4), "z": (1, 4)},
        {},
        ("add", "add"),
    ),
]

FOLDS = [
    Case(
        "conv_scale_shift_relu",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Mul", ["a", "k"], ["b"]),
            node("Add", ["b", "s"], ["c"]),
            node("Div", ["c", "d"], ["e"]),
            node("Relu", ["e"], ["y"]),
        ],
        MAP,
        {
            "w": W["w"],
            "k": weights(8, 1, 1, seed=1),
            "s": weights(1, 8, 1, 1, seed=2),
            "d": np.asarray(2.0, np.float32),
        },
        ("conv",),
        8 * 36 * 12,
        6,
    ),
    Case(
        "norm_scale_shift_relu",
        [
            node("BatchNormalization", ["x", "g", "h", "m", "v"], ["n"]),
            node("Mul", ["n", "k"], ["b"]),
            node("Add", ["b", "s"], ["c"]),
            node("Relu", ["c"], ["y"]),
        ],
        MAP,
        {
            "g": weights(4, seed=1),
            "h": weights(4, seed=2),
            "m": weights(4, seed=3),
            "v": np.abs(weights(4, seed=4)),
            "k": weights(4, 1, 1, seed=5),
            "s": weights(4, 1, 1, seed=6),
        },
        ("scale",),
    ),
    Case(
        "not_what_others_read",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Relu", ["a"], ["r"]),
            node("Add", ["a", "r"], ["y"]),
        ],
        MAP,
        W,
        ("conv", "activation", "add"),
        8 * 36 * 12,
        6,
    ),
    Case(
        "residual_relu",
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Add", ["a", "z"], ["s"]),
            node("Relu", ["s"], ["y"]),
        ],
        {"x": (1, 4, 6, 5), "z": (1, 8, 6, 5)},
        W,
        ("conv", "add"),
        8 * 36 * 30,
        6,
    ),
]

ALL = [
    *CONVOLUTIONS,
    *PRODUCTS,
    *POOLS,
    *MOVES,
    *REDUCTIONS,
    *FUNCTIONS,
    *OPERANDS,
    *FOLDS,
]


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_operator(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_embedding(tmp_path: Path) -> None:
    proto = model(
        [node("Gather", ["table", "ids"], ["e"]), node("Relu", ["e"], ["y"])],
        {"ids": (1, 5)},
        {"table": weights(20, 6)},
        types={"ids": onnx.TensorProto.INT64},
    )
    network = import_onnx(saved(proto, tmp_path))
    assert network.tensors[network.outputs[0]].shape == (1, 5, 6)
    assert network.tensors["ids"].bits == 64
    feeds = {"ids": np.asarray([[3, 0, 19, 7, 3]])}
    expected = list(ReferenceEvaluator(proto).run(None, feeds))
    assert same_elements(run(network, proto, feeds)[0], np.asarray(expected[0]))


def test_shape_arithmetic_is_folded(tmp_path: Path) -> None:
    """x.view(x.size(0), -1), the way PyTorch writes it, with a symbolic batch."""
    proto = model(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axis"], ["u"]),
            node("Concat", ["u", "rest"], ["target"], axis=0),
            node("Reshape", ["x", "target"], ["f"]),
            node("Gemm", ["f", "w"], ["y"]),
        ],
        {"x": ("batch", 4, 3, 3)},
        {
            "zero": np.asarray(0, np.int64),
            "axis": ints(0),
            "rest": ints(-1),
            "w": weights(36, 5),
        },
    )
    path = saved(proto, tmp_path)
    network = import_onnx(path, OnnxOptions(dims={"batch": 1}))
    assert [op.kind.value for op in network.operations] == ["view", "gemm"]
    whole = OnnxOptions(input_shapes={"x": (1, 4, 3, 3)})
    assert import_onnx(path, whole).macs == network.macs == 180


def test_constant_condition_takes_one_branch(tmp_path: Path) -> None:
    def branch(operator: str) -> onnx.GraphProto:
        out = f"out_{operator}"
        inner = node(operator, ["x"], [out], name=f"in_{operator}")
        info = onnx.helper.make_tensor_value_info(out, 1, None)
        return onnx.helper.make_graph([inner], operator, [], [info])

    proto = model(
        [
            node(
                "If",
                ["c"],
                ["r"],
                then_branch=branch("Relu"),
                else_branch=branch("Exp"),
            ),
            node("Neg", ["r"], ["y"]),
        ],
        {"x": (1, 4)},
        {"c": np.asarray(True)},
    )
    network = import_onnx(saved(proto, tmp_path))
    functions = [op.attributes.function.value for op in network.operations]  # type: ignore[union-attr]
    assert functions == ["relu", "neg"]
    assert any("then_branch" in note for note in network.notes)


def test_renaming_nodes_cost_nothing(tmp_path: Path) -> None:
    case = Case(
        "renames",
        [
            node("Identity", ["x"], ["a"]),
            node("Dropout", ["a"], ["d"]),
            node("Conv", ["d", "w"], ["c"]),
            node("Identity", ["c"], ["i"]),
            node("Relu", ["i"], ["y"]),
        ],
        MAP,
        W,
        ("conv",),
        8 * 36 * 12,
        6,
    )
    network = check(case, tmp_path)
    assert network.operations[0].folded == ("node_i", "node_y")


def test_widths_can_be_chosen(tmp_path: Path) -> None:
    proto = model([node("Conv", ["x", "w"], ["y"])], MAP, W)
    path = saved(proto, tmp_path)
    plain = import_onnx(path)
    assert plain.operations[0].weight is not None
    assert plain.operations[0].weight.bits == plain.tensors["x"].bits == 16
    assert sum("16-bit" in note for note in plain.notes) == 2
    chosen = import_onnx(path, OnnxOptions(weight_bits=4, activation_bits=8))
    assert chosen.operations[0].weight is not None
    assert chosen.operations[0].weight.bits == 4
    assert {tensor.bits for tensor in chosen.tensors.values()} == {8}
    assert chosen.notes == ()


@pytest.mark.parametrize(
    "rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
)
@pytest.mark.parametrize(
    "mode",
    [
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
    ],
)
@pytest.mark.parametrize(
    ("scales", "sizes"),
    [
        ((2, 3), None),
        ((0.5, 2), None),
        ((1.5, 1), None),
        (None, (3, 7)),
        (None, (9, 2)),
        (None, (12, 10)),
    ],
)
def test_nearest_resize_on_every_grid(
    rounding: str,
    mode: str,
    scales: tuple[float, ...] | None,
    sizes: tuple[int, ...] | None,
    tmp_path: Path,
) -> None:
    """Sampled where the library samples; other grids than the plain one are gathers."""
    factors = np.asarray([1, 1, *(scales or ())], np.float32)
    wanted = ints(1, 4, *(sizes or ()))
    inputs = ["x", "", "s"] if scales else ["x", "", "", "n"]
    proto = model(
        [
            node(
                "Resize",
                inputs,
                ["y"],
                mode="nearest",
                nearest_mode=rounding,
                coordinate_transformation_mode=mode,
            )
        ],
        MAP,
        {"s": factors} if scales else {"n": wanted},
        opset=19,
    )
    network = import_onnx(saved(proto, tmp_path))
    feeds = {"x": weights(*MAP["x"], seed=9)}
    expected = list(ReferenceEvaluator(proto).run(None, feeds))
    found = feeds["x"].astype(np.float64)
    for operation in network.operations:
        shape = network.tensors[operation.output].shape
        match operation.attributes:
            case GatherAttributes(axis=axis, indices=indices):
                found = np.take(found, indices or (), axis=axis)
            case ResizeAttributes(size=(height, width)):
                rows = np.arange(height) * found.shape[2] // height
                columns = np.arange(width) * found.shape[3] // width
                found = found[:, :, rows][:, :, :, columns]
        assert found.shape == shape
    assert same_elements(found, np.asarray(expected[0]))


def test_nothing_is_folded_into_what_others_read_under_another_name(
    tmp_path: Path,
) -> None:
    """A slice of everything gives a value a second name; a skip reads the first."""
    case = Case(
        "second_name",
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Slice", ["a", "zero", "eight", "one"], ["s"]),
            node("BatchNormalization", ["s", "g", "h", "m", "v"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("Add", ["r", "a"], ["y"]),
        ],
        MAP,
        {
            **W,
            "zero": ints(0),
            "eight": ints(8),
            "one": ints(1),
            "g": weights(8, seed=1),
            "h": weights(8, seed=2),
            "m": weights(8, seed=3),
            "v": np.abs(weights(8, seed=4)),
        },
        ("conv", "scale", "add"),
        8 * 36 * 30,
        6,
    )
    check(case, tmp_path)


@pytest.mark.parametrize(
    ("shape", "legal"),
    [((4, 1, 1), True), ((1,), True), ((1, 5), False), ((4, 6, 5), False)],
)
def test_slopes_of_prelu_are_those_of_channels(
    shape: tuple[int, ...], legal: bool, tmp_path: Path
) -> None:
    proto = model([node("PRelu", ["x", "s"], ["y"])], MAP, {"s": weights(*shape)})
    path = saved(proto, tmp_path)
    if legal:
        assert import_onnx(path).operations[0].kind.value == "activation"
        return
    with pytest.raises(MalformedInput, match=r"PRelu 'node_y' \(its slopes vary"):
        import_onnx(path)
