"""Imported models as programs: what the program computes is what onnx computes.

Weights and inputs are small multiples of powers of two, so that the library's
evaluation in single precision and the program's fixed point are both exact; where an
operator itself rounds (averages over three elements, sigmoid), units of difference
are allowed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator

from raptor_cp.graph.lowering import LoweringOptions
from raptor_cp.graph.views import root_of
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx
from raptor_cp.targets.pim.backend import Built, Refused, build_program
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.functional import verify_program
from raptor_cp.targets.pim.quantization import quantized
from raptor_cp.targets.pim.reference import evaluate
from raptor_cp.targets.pim.reference_operators import logical_order, memory_order
from raptor_cp.targets.pim.target import PimTarget
from tests.codegen_oracle import placed_at_random
from tests.onnx_models import model, node, saved
from tests.onnx_programs import executed, fixed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network

    Ints = NDArray[np.int64]

BITS = 16


def steps(*shape: int, seed: int = 0, step: float = 0.25, most: int = 2) -> object:
    """Multiples of ``step``, up to ``most`` of them, many of them zero."""
    draw = np.random.default_rng([seed, *shape])
    return (draw.integers(-most, most + 1, size=shape) * step).astype(np.float32)


def number(value: float) -> NDArray[np.float32]:
    return np.asarray(value, np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    return np.asarray(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A model; ``units``: allowed difference, in units of the output."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Sequence[int]]
    constants: Mapping[str, object] = field(default_factory=dict)
    units: int = 0
    opset: int = 17
    outputs: tuple[str, ...] = ("y",)
    #: Binary places of the output, where they are not those of its width.
    output_places: int = 0
    #: Words of the refusal, where the program may not be emitted.
    refused: str = ""


MAP = {"x": (1, 4, 7, 6)}
NORM = {
    "g": np.asarray([1, -1, 0.5, 2, 1, 0.5], np.float32),
    "h": steps(6, seed=2),
    "m": steps(6, seed=3),
    "v": np.asarray([1, 4, 0.25, 1, 4, 1], np.float32),
}
W = {"w": steps(6, 4, 3, 3), "b": steps(6, seed=1)}


def norm(source: str, result: str) -> onnx.NodeProto:
    names = [source, "g", "h", "m", "v"]
    return node("BatchNormalization", names, [result], epsilon=0.0)


CASES = [
    Case(
        "conv_asymmetric_pads",
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1, 0, 2, 1], strides=[2, 1])],
        MAP,
        W,
    ),
    *(
        Case(
            f"conv_{mode.lower()}",
            [node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[2, 2])],
            MAP,
            W,
        )
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    Case(
        "conv_groups_dilated",
        [
            node(
                "Conv",
                ["x", "w", "b"],
                ["y"],
                group=2,
                dilations=[2, 1],
                pads=[2, 1, 2, 1],
            )
        ],
        MAP,
        {"w": steps(6, 2, 3, 3), "b": W["b"]},
    ),
    Case(
        "conv_depthwise",
        [
            node("Conv", ["x", "d"], ["a"], group=4, pads=[1, 1, 1, 1]),
            node("Clip", ["a", "zero", "six"], ["c"]),
            node("Conv", ["c", "p"], ["y"]),
        ],
        MAP,
        {
            "d": steps(4, 1, 3, 3),
            "p": steps(6, 4, 1, 1),
            "zero": number(0),
            "six": number(6),
        },
    ),
    Case(
        "conv_1d",
        [node("Conv", ["x", "w", "b"], ["y"], strides=[2], pads=[1, 2])],
        {"x": (1, 4, 11)},
        {"w": steps(6, 4, 3), "b": W["b"]},
    ),
    Case(
        "conv_transpose",
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])],
        MAP,
        {"w": steps(4, 3, 2, 2)},
        refused="conv_transpose",
    ),
    Case(
        "folds",
        [
            node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
            norm("a", "n"),
            node("Mul", ["n", "k"], ["s"]),
            node("Sub", ["c", "s"], ["t"]),
            node("Relu", ["t"], ["y"]),
        ],
        MAP,
        {**W, **NORM, "k": steps(6, 1, 1, seed=5, most=4), "c": number(0.5)},
    ),
    Case(
        "folds_behind_a_pad",
        [
            node("Pad", ["x", "p"], ["q"]),
            node("Conv", ["q", "w", "b"], ["a"]),
            norm("a", "n"),
            node("Relu", ["n"], ["y"]),
        ],
        MAP,
        {**W, **NORM, "p": ints(0, 0, 1, 0, 0, 0, 0, 2)},
    ),
    Case(
        "unfolded_normalisation",
        [
            node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]),
            norm("p", "n"),
            node("Relu", ["n"], ["y"]),
        ],
        {"x": (1, 6, 5, 4)},
        NORM,
    ),
    Case(
        "residual",
        [
            node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["r"]),
            node("Conv", ["r", "v"], ["c"], pads=[1, 1, 1, 1]),
            node("Conv", ["x", "s"], ["d"]),
            node("Add", ["c", "d"], ["e"]),
            node("Relu", ["e"], ["y"]),
        ],
        MAP,
        {
            **W,
            "v": steps(6, 6, 3, 3, seed=7, most=1, step=0.125),
            "s": steps(6, 4, 1, 1),
        },
    ),
    Case(
        "inception",
        [
            node("Conv", ["x", "p"], ["a"]),
            node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            node(
                "MaxPool",
                ["x"],
                ["m"],
                kernel_shape=[3, 3],
                pads=[1, 1, 1, 1],
            ),
            node("Concat", ["a", "c", "m"], ["k"], axis=1),
            node("Relu", ["k"], ["y"]),
        ],
        MAP,
        {**W, "p": steps(3, 4, 1, 1)},
    ),
    Case(
        "split_shuffle",
        [
            node("Conv", ["x", "w"], ["q"], pads=[1, 1, 1, 1]),
            node("Split", ["q", "halves"], ["a", "c"], axis=1),
            node("Conv", ["a", "p"], ["e"]),
            node("Concat", ["c", "e"], ["k"], axis=1),
            node("Reshape", ["k", "two"], ["r"]),
            node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3, 4]),
            node("Reshape", ["t", "one"], ["z"]),
            node("Conv", ["z", "o"], ["y"]),
        ],
        MAP,
        {
            "w": steps(6, 4, 3, 3),
            "halves": ints(3, 3),
            "p": steps(3, 3, 1, 1, step=0.5),
            "two": ints(1, 2, 3, 7, 6),
            "one": ints(1, 6, 7, 6),
            "o": steps(4, 6, 1, 1, most=1),
        },
    ),
    Case(
        "dense",
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Concat", ["x", "a"], ["c"], axis=1),
            node("BatchNormalization", ["c", "g", "h", "m", "v"], ["n"], epsilon=0.0),
            node("Relu", ["n"], ["r"]),
            node("Conv", ["r", "p"], ["d"]),
            node("Concat", ["c", "d"], ["y"], axis=1),
        ],
        MAP,
        {
            "w": W["w"],
            **{key: np.concatenate([value, value])[:10] for key, value in NORM.items()},
            "p": steps(5, 10, 1, 1, most=1),
        },
    ),
    Case(
        "max_pool_ceil",
        [
            node(
                "MaxPool",
                ["x"],
                ["y"],
                kernel_shape=[3, 2],
                strides=[2, 2],
                pads=[0, 1, 1, 0],
                ceil_mode=1,
            )
        ],
        MAP,
    ),
    *(
        Case(
            f"average_pool_{count}",
            [
                node(
                    "AveragePool",
                    ["x"],
                    ["y"],
                    kernel_shape=[3, 3],
                    strides=[2, 1],
                    pads=[1, 1, 1, 1],
                    count_include_pad=count,
                )
            ],
            MAP,
            units=1,
        )
        for count in (0, 1)
    ),
    Case(
        "average_pool_exact",
        [node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])],
        MAP,
    ),
    Case(
        "global_average_gemm",
        [
            node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]),
            node("GlobalAveragePool", ["a"], ["p"]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "m", "c"], ["y"], transB=1, alpha=0.5, beta=2.0),
        ],
        {"x": (1, 4, 4, 4)},
        {**W, "m": steps(5, 6), "c": steps(5)},
    ),
    Case(
        "reduce_mean",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("ReduceMean", ["a"], ["y"], axes=[2, 3], keepdims=0),
        ],
        MAP,
        W,
        units=1,
    ),
    Case(
        "flatten_in_logical_order",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Flatten", ["a"], ["f"]),
            node("Gemm", ["f", "m", "c"], ["g"]),
            node("Relu", ["g"], ["y"]),
        ],
        MAP,
        {"w": W["w"], "m": steps(120, 7, most=1), "c": steps(7)},
    ),
    Case(
        "flatten_twice",
        [
            node("Reshape", ["x", "s"], ["f"]),
            node("MatMul", ["f", "m"], ["g"]),
            node("Add", ["c", "g"], ["y"]),
        ],
        {"x": (1, 4, 3, 2)},
        {"s": ints(-1), "m": steps(24, 7), "c": steps(7)},
    ),
    *(
        Case(
            f"gemm_{a}{b}",
            [
                node("MatMul", ["x", "w"], ["f"]),
                node("Gemm", ["f", "m"], ["y"], transA=a, transB=b, alpha=2.0),
            ],
            {"x": (6, 9) if a else (5, 9)},
            {
                "w": steps(9, 5 if a else 6, most=1),
                "m": steps(*((3, 6) if b else (6, 3)), most=1),
            },
        )
        for a in (0, 1)
        for b in (0, 1)
    ),
    Case(
        "gemm_constant_left",
        [
            node("MatMul", ["x", "w"], ["f"]),
            node("Gemm", ["m", "f", "c"], ["y"], transA=1),
        ],
        {"x": (6, 9)},
        {"w": steps(9, 5, most=1), "m": steps(6, 3, most=1), "c": steps(3, 1)},
        refused="node_y.sum: an operand broadcast along channels",
    ),
    Case(
        "matmul_transposed_weight",
        [
            node("Transpose", ["m"], ["mt"], perm=[1, 0]),
            node("MatMul", ["x", "mt"], ["a"]),
            node("Add", ["a", "c"], ["b"]),
            node("Div", ["b", "two"], ["y"]),
        ],
        {"x": (1, 5, 12)},
        {"m": steps(7, 12), "c": steps(7), "two": number(2)},
    ),
    Case(
        "matmul_computed",
        [
            node("MatMul", ["x", "q"], ["a"]),
            node("MatMul", ["x", "k"], ["b"]),
            node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
            node("MatMul", ["a", "t"], ["y"]),
        ],
        {"x": (1, 5, 8)},
        {"q": steps(8, 4, most=1), "k": steps(8, 4, most=1, seed=3)},
        refused="node_y: matmul",
    ),
    Case(
        "position_embedding",
        [node("MatMul", ["x", "m"], ["a"]), node("Add", ["a", "p"], ["y"])],
        {"x": (1, 5, 8)},
        {"m": steps(8, 6), "p": steps(1, 5, 6)},
    ),
    *(
        Case(
            f"operand_{operator}",
            [
                node("Conv", ["x", "w"], ["a"]),
                node(operator, ["a", "z"], ["y"]),
            ],
            {**MAP, "z": (1, 6, 5, 4)},
            W,
        )
        for operator in ("Add", "Sub", "Mul", "Max", "Min")
    ),
    *(
        Case(
            f"number_{operator}_{first}",
            [
                node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
                node(operator, ["k", "a"] if first else ["a", "k"], ["y"]),
            ],
            MAP,
            {"k": number(0.75)},
        )
        for operator in ("Add", "Sub", "Mul", "Max", "Min")
        for first in (0, 1)
    ),
    Case(
        "squeeze_and_excite",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("GlobalAveragePool", ["a"], ["p"]),
            node("Conv", ["p", "s"], ["e"]),
            node("Mul", ["a", "e"], ["y"]),
        ],
        {"x": (1, 4, 6, 6)},
        {"w": W["w"], "s": steps(6, 6, 1, 1, most=1)},
        units=1,
    ),
    Case(
        "leaky",
        [
            node("Conv", ["x", "w", "b"], ["a"]),
            node("LeakyRelu", ["a"], ["y"], alpha=0.125),
        ],
        MAP,
        W,
    ),
    Case(
        "prelu",
        [node("Conv", ["x", "w", "b"], ["a"]), node("PRelu", ["a", "k"], ["y"])],
        MAP,
        {**W, "k": np.asarray([0.5, 0.25, 0, 0.125, 0.5, 0.75]).reshape(6, 1, 1)},
    ),
    *(
        Case(
            operator,
            [node("Conv", ["x", "w", "b"], ["a"]), node(operator, ["a"], ["y"])],
            MAP,
            W,
            units=2,
            output_places=BITS - 1,
        )
        for operator in ("Sigmoid", "Tanh")
    ),
    Case(
        "softmax",
        [
            node("MatMul", ["x", "m"], ["a"]),
            node("Softmax", ["a"], ["y"], axis=-1),
        ],
        {"x": (1, 12)},
        {"m": steps(12, 10)},
        units=2,
        output_places=BITS - 1,
    ),
    Case(
        "resize_nearest",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("Resize", ["a", "", "r"], ["u"], mode="nearest"),
            node("Conv", ["u", "p"], ["y"]),
        ],
        MAP,
        {
            "w": W["w"],
            "r": np.asarray([1, 1, 2, 2], np.float32),
            "p": steps(2, 6, 1, 1, most=1),
        },
    ),
    Case(
        "slice_pad_gather",
        [
            node("Slice", ["x", "s", "e", "a", "t"], ["c"]),
            node("Pad", ["c", "p"], ["d"]),
            node("Gather", ["d", "i"], ["g"], axis=1),
            node("Conv", ["g", "o"], ["y"]),
        ],
        MAP,
        {
            "s": ints(1, 0),
            "e": ints(100, 5),
            "a": ints(2, 3),
            "t": ints(2, 1),
            "p": ints(0, 0, 1, 0, 0, 0, 0, 1),
            "i": ints(3, 0, 2),
            "o": steps(2, 3, 1, 1),
        },
    ),
    Case(
        "depth_to_space",
        [
            node("Conv", ["x", "w"], ["a"]),
            node("DepthToSpace", ["a"], ["y"], blocksize=2),
        ],
        MAP,
        {"w": steps(8, 4, 3, 3)},
    ),
    Case(
        "quantise_dequantise",
        [
            node("QuantizeLinear", ["x", "unit", "zero"], ["xq"]),
            node("DequantizeLinear", ["xq", "unit", "zero"], ["xd"]),
            node("DequantizeLinear", ["w", "quarter", "zero"], ["wd"]),
            node("Conv", ["xd", "wd", "b"], ["c"], pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["r"]),
            node("QuantizeLinear", ["r", "unit", "zero"], ["rq"]),
            node("DequantizeLinear", ["rq", "unit", "zero"], ["y"]),
        ],
        MAP,
        {
            "unit": number(2**-4),
            "zero": np.asarray(0, np.int8),
            "quarter": number(0.25),
            "w": np.asarray(steps(6, 4, 3, 3, step=1)).astype(np.int8),
            "b": W["b"],
        },
        opset=21,
    ),
    Case(
        "qlinear",
        [
            node("QuantizeLinear", ["x", "unit", "zero"], ["xq"]),
            node(
                "QLinearConv",
                ["xq", "unit", "zero", "w", "sw", "zw", "unit", "zero", "b"],
                ["c"],
            ),
            node("DequantizeLinear", ["c", "unit", "zero"], ["y"]),
        ],
        MAP,
        {
            "unit": number(2**-4),
            "zero": np.asarray(0, np.int8),
            "sw": np.asarray([1, 0.5, 0.25, 1, 0.5, 0.25], np.float32),
            "zw": np.zeros(6, np.int8),
            "w": np.asarray(steps(6, 4, 3, 3, step=1, most=1)).astype(np.int8),
            "b": np.arange(-3, 3).astype(np.int32),
        },
        units=1,  # ties: the program rounds up, onnx to even
        opset=21,
    ),
    Case(
        "two_outputs",
        [node("Conv", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])],
        MAP,
        W,
        outputs=("a", "y"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_program_computes_what_onnx_computes(case: Case, tmp_path: Path) -> None:
    constants = {n: np.asarray(v) for n, v in case.constants.items()}
    constants = {
        n: v.astype(np.float32) if v.dtype == np.float64 else v
        for n, v in constants.items()
    }
    proto = model(case.nodes, case.inputs, constants, case.outputs, opset=case.opset)
    path = saved(proto, tmp_path)
    network = import_onnx(path, OnnxOptions(values=True))
    feeds = {
        name: np.asarray(steps(*shape, seed=9, step=0.5), np.float32)
        for name, shape in case.inputs.items()
    }
    expected = [np.asarray(y) for y in ReferenceEvaluator(proto).run(None, feeds)]
    assert max(float(np.abs(y).max()) for y in expected) < 8
    wanted = [
        fixed(y, case.output_places or network.tensors[name].bits - 4)
        for name, y in zip(network.outputs, expected, strict=True)
    ]
    inputs = {}
    for name, x in feeds.items():
        tensor = network.tensors[name]
        inputs[name] = memory_order(fixed(x, tensor.bits - 4).reshape(tensor.shape))
    found = evaluate(network, quantized(network), inputs)
    for name, values in zip(network.outputs, wanted, strict=True):
        compare(found[name], values, network, name, case.units)
    target = PimTarget(load_config("arch-a", core_count=5))
    plan = placed_at_random(
        network, target, random.Random(3), 2, LoweringOptions(max_lanes=3)
    )
    assert plan is not None
    built = build_program(plan, target, network)
    if isinstance(built, Refused) and case.refused:
        assert case.refused in built.reason
        return
    assert isinstance(built, Built), built
    stored = executed(built, network, target, inputs)
    for name, values in zip(network.outputs, wanted, strict=True):
        root = root_of(network, name)
        assert (stored[root] == found[root]).all()
        if root == name:
            compare(stored[root], values, network, name, case.units)
    verified = verify_program(
        network, built.program(native=True), built.sidecar, generations=3
    )
    assert verified.equal, verified


def compare(found: Ints, wanted: Ints, network: Network, name: str, units: int) -> None:
    logical = logical_order(found, network.tensors[name].shape)
    difference = np.abs(logical.reshape(wanted.shape) - wanted)
    assert difference.max() <= units, (name, int(difference.max()))
