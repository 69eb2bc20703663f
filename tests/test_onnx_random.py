"""Random ONNX models: what is imported computes what the library computes.

Numbers are multiples of powers of two, few enough places for both single precision
and 16-bit fixed point, so that the comparison is exact.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from raptor_cp.graph.lowering import LoweringOptions
from raptor_cp.graph.views import is_runtime_free, root_of
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx
from raptor_cp.targets.pim.backend import Built, build_program
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.lowering_common import NotEmitted
from raptor_cp.targets.pim.quantization import quantized
from raptor_cp.targets.pim.reference import evaluate
from raptor_cp.targets.pim.reference_operators import logical_order, memory_order
from raptor_cp.targets.pim.target import PimTarget
from tests.codegen_oracle import placed_at_random
from tests.onnx_models import model, node, saved
from tests.onnx_programs import executed, fixed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

#: Models tried, and every how manyth becomes a program.
SEEDS, PROGRAMS = 120, 2


class RandomModel:
    """Layers one after the other, with skips; every value stays below 8."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.draw = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self.feeds: dict[str, NDArray[np.float32]] = {}
        self.values: dict[str, NDArray[np.float32]] = {}
        self.places = {"x": 1}
        shape = self.first_shape()
        values = self.draw.integers(-3, 4, shape) * 0.5
        self.feeds["x"] = self.values["x"] = values.astype(np.float32)

    def first_shape(self) -> tuple[int, ...]:
        """Of the network input."""
        return (1, self.choose.choice([2, 3, 4, 6]), self._size(), self._size())

    def kinds(self) -> list[Callable[[str, list[str]], str | None]]:
        """Layers, some more often than others."""
        return [
            *[self.conv] * 4,
            *(self.pool, self.join, self.norm, self.function),
            *(self.split, self.shuffle, self.cut, self.scaled, self.resized),
        ]

    def grow(self, layers: int) -> onnx.ModelProto:
        """Add layers; the model's outputs are what nobody reads."""
        maps = ["x"]
        for _ in range(layers):
            x = maps[-1] if self.choose.random() < 0.7 else self.choose.choice(maps)
            made = self.choose.choice(self.kinds())(x, maps)
            if made is not None:
                maps.append(made)
        if self.choose.random() < 0.5:
            self.classify(maps[-1])
        read = {name for call in self.nodes for name in call.input}
        made_here = [name for call in self.nodes for name in call.output]
        outputs = [name for name in made_here if name not in read]
        shape = self.values["x"].shape
        return model(self.nodes, {"x": shape}, self.constants, outputs)

    def _size(self) -> int:
        return self.choose.randint(3, 7)

    def constant(self, value: object) -> str:
        """A new initialiser."""
        name = f"k{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def sparse(self, *shape: int, step: float = 0.25) -> str:
        """Mostly zeros, the rest plus or minus a step or two."""
        kept = self.draw.random(shape) < min(1.0, 10 / max(1, int(np.prod(shape[1:]))))
        values = self.draw.integers(-2, 3, shape) * kept * step
        return self.constant(values.astype(np.float32))

    def add(
        self, places: int, operator: str, inputs: list[str], **attributes: object
    ) -> str | None:
        """A node, unless its values would be too large or too fine."""
        name = f"v{len(self.nodes)}"
        call = node(operator, inputs, [name], name=f"n{name}", **attributes)  # type: ignore[arg-type]
        known = {n: self.values[n] for n in inputs if n in self.values}
        info = helper.make_empty_tensor_value_info
        graph = helper.make_graph(
            [call],
            "one",
            [helper.make_tensor_value_info(n, 1, v.shape) for n, v in known.items()],
            [info(name)],
            [
                onnx.numpy_helper.from_array(self.constants[n], n)
                for n in dict.fromkeys(inputs)
                if n in self.constants
            ],
        )
        opset = [helper.make_opsetid("", 17)]
        one = helper.make_model(graph, opset_imports=opset)
        inferred = onnx.shape_inference.infer_shapes(one, data_prop=True)
        dims = inferred.graph.output[0].type.tensor_type.shape.dim
        shape = tuple(dim.dim_value for dim in dims)
        if places > 10 or min(shape) < 1:
            return None
        try:
            found: list[object] = list(ReferenceEvaluator(one).run(None, known))
        except ValueError:  # a pool's window without an element
            return None
        result = np.asarray(found[0], np.float32)
        if result.shape != shape or np.abs(result).max() >= 7:
            return None
        self.nodes.append(call)
        self.values[name] = result
        self.places[name] = places
        return name

    # -- layers ------------------------------------------------------------------------

    def conv(self, x: str, maps: list[str]) -> str | None:
        """Any convolution that the window fits."""
        _, depth, height, width = self.values[x].shape
        kernel = [self.choose.choice([1, 2, 3]) for _ in range(2)]
        pads = [self.choose.randint(0, k - 1) for k in kernel * 2]
        dilations = [self.choose.choice([1, 1, 2]) for _ in range(2)]
        groups = self.choose.choice([g for g in (1, 1, 2, 3, depth) if depth % g == 0])
        channels = groups * self.choose.randint(1, 3)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        if (
            reach[0] > height + pads[0] + pads[2]
            or reach[1] > width + pads[1] + pads[3]
        ):
            return None
        inputs = [x, self.sparse(channels, depth // groups, *kernel)]
        if self.choose.random() < 0.5:
            inputs.append(self.sparse(channels))
        auto = self.choose.choice(["", "", "SAME_UPPER", "SAME_LOWER", "VALID"])
        placing = {"auto_pad": auto} if auto and dilations == [1, 1] else {"pads": pads}
        return self.add(
            self.places[x] + 2,
            "Conv",
            inputs,
            group=groups,
            strides=[self.choose.choice([1, 1, 2]) for _ in range(2)],
            dilations=dilations,
            **placing,
        )

    def pool(self, x: str, maps: list[str]) -> str | None:
        """Maxima of any window, averages of four elements."""
        _, _, height, width = self.values[x].shape
        if min(height, width) < 3:
            return None
        if self.choose.random() < 0.4:
            two = [2, 2]
            return self.add(
                self.places[x] + 2, "AveragePool", [x], kernel_shape=two, strides=two
            )
        kernel = [self.choose.choice([2, 3]) for _ in range(2)]
        # The evaluator mixes up the axes of uneven pads.
        pads = [self.choose.randint(0, k - 1) for k in kernel] * 2
        return self.add(
            self.places[x],
            "MaxPool",
            [x],
            kernel_shape=kernel,
            pads=pads,
            strides=[self.choose.choice([1, 2]) for _ in range(2)],
            ceil_mode=self.choose.randint(0, 1),
        )

    def join(self, x: str, maps: list[str]) -> str | None:
        """Sum, difference, product, maximum, or concatenation of two values."""
        shape = self.values[x].shape
        same = [m for m in maps if self.values[m].shape == shape]
        alike = [m for m in maps if self.values[m].shape[2:] == shape[2:]]
        operator = self.choose.choice(["Add", "Sub", "Mul", "Max", "Min", "Concat"])
        if operator == "Concat":
            other = self.choose.choice(alike)
            places = max(self.places[x], self.places[other])
            return self.add(places, operator, [x, other], axis=1)
        other = self.choose.choice(same)
        places = max(self.places[x], self.places[other])
        if operator == "Mul":
            places = self.places[x] + self.places[other]
        return self.add(places, operator, [x, other])

    def norm(self, x: str, maps: list[str]) -> str | None:
        """Normalisation with powers of two, folded or not."""
        channels = self.values[x].shape[1]
        vectors = [self.sparse(channels, step=0.5) for _ in range(3)]
        variance = self.draw.choice([0.25, 1.0, 4.0], channels).astype(np.float32)
        inputs = [x, *vectors, self.constant(variance)]
        return self.add(self.places[x] + 3, "BatchNormalization", inputs, epsilon=0.0)

    def function(self, x: str, maps: list[str]) -> str | None:
        """Rectifications and limits."""
        match self.choose.choice(["relu", "relu", "clip", "leaky"]):
            case "relu":
                return self.add(self.places[x], "Relu", [x])
            case "clip":
                limits = [self.constant(np.float32(v)) for v in (-1.5, 2.25)]
                return self.add(max(self.places[x], 2), "Clip", [x, *limits])
        return self.add(self.places[x] + 2, "LeakyRelu", [x], alpha=0.25)

    def split(self, x: str, maps: list[str]) -> str | None:
        """Some channels, rows or columns of a value."""
        shape = self.values[x].shape
        axis = self.choose.choice([1, 1, 2, 3])
        if shape[axis] < 2:
            return None
        start = self.choose.randrange(shape[axis] - 1)
        stop = self.choose.randint(start + 1, shape[axis])
        ends = [np.asarray([v], np.int64) for v in (start, stop, axis)]
        return self.add(self.places[x], "Slice", [x, *map(self.constant, ends)])

    def shuffle(self, x: str, maps: list[str]) -> str | None:
        """Channels of two groups interleaved."""
        shape = self.values[x].shape
        if shape[1] % 2:
            return None
        split = np.asarray([1, 2, shape[1] // 2, *shape[2:]], np.int64)
        parts = self.add(self.places[x], "Reshape", [x, self.constant(split)])
        if parts is None:
            return None
        swapped = self.add(self.places[x], "Transpose", [parts], perm=[0, 2, 1, 3, 4])
        if swapped is None:
            return None
        whole = self.constant(np.asarray(shape, np.int64))
        return self.add(self.places[x], "Reshape", [swapped, whole])

    def cut(self, x: str, maps: list[str]) -> str | None:
        """Zeros around a map, or chosen channels of it."""
        shape = self.values[x].shape
        if self.choose.random() < 0.5:
            sides = [0, 0, *(self.choose.randint(0, 2) for _ in range(2))] * 2
            pads = self.constant(np.asarray(sides, np.int64))
            return self.add(self.places[x], "Pad", [x, pads])
        chosen = [self.choose.randrange(shape[1]) for _ in range(shape[1])]
        indices = self.constant(np.asarray(chosen, np.int64))
        return self.add(self.places[x], "Gather", [x, indices], axis=1)

    def scaled(self, x: str, maps: list[str]) -> str | None:
        """A number or a vector of channels, from either side."""
        channels = self.values[x].shape[1]
        operator = self.choose.choice(["Add", "Sub", "Mul"])
        if self.choose.random() < 0.5:
            number = self.choose.choice([0.5, -0.75, 1.5])
            other = self.constant(np.float32(number))
        else:
            other = self.sparse(channels, 1, 1, step=0.5)
        inputs = [x, other] if self.choose.random() < 0.7 else [other, x]
        more = 2 if operator == "Mul" else 0
        return self.add(max(self.places[x] + more, 2), operator, inputs)

    def resized(self, x: str, maps: list[str]) -> str | None:
        """Nearest neighbours, twice as many or another number."""
        _, channels, height, width = self.values[x].shape
        if max(height, width) > 8:
            return None
        size = (2 * height, 2 * width)
        if self.choose.random() < 0.4:
            size = (self._size(), self._size())
        sizes = self.constant(np.asarray([1, channels, *size], np.int64))
        return self.add(self.places[x], "Resize", [x, "", "", sizes])

    def classify(self, x: str) -> None:
        """A flatten and a product, the constant on the right."""
        flat = self.add(self.places[x], "Flatten", [x])
        if flat is None:
            return
        features = self.values[flat].shape[1]
        turned = self.choose.randint(0, 1)
        outputs = self.choose.randint(1, 4)
        weight = self.sparse(outputs, features)
        if not turned:
            self.constants[weight] = np.ascontiguousarray(self.constants[weight].T)
        inputs = [flat, weight, self.sparse(outputs)]
        self.add(self.places[flat] + 2, "Gemm", inputs, transB=turned)


class RandomSequence(RandomModel):
    """Tokens of features: products from both sides, residuals, transposes, series."""

    def first_shape(self) -> tuple[int, ...]:
        """(1, S, D), or without the batch."""
        shape = (self._size(), self.choose.choice([4, 6, 8]))
        return (1, *shape) if self.choose.random() < 0.7 else shape

    def kinds(self) -> list[Callable[[str, list[str]], str | None]]:
        """Layers, some more often than others."""
        return [
            *[self.product] * 3,
            *(self.turned, self.residual, self.shifted, self.part, self.series),
            *(self.function, self.scores, self.batch, self.gathered),
        ]

    def classify(self, x: str) -> None:
        """A sequence ends in whatever it ends in."""

    def product(self, x: str, maps: list[str]) -> str | None:
        """A constant matrix on the right or on the left, or a Gemm with factors."""
        shape = self.values[x].shape
        places = self.places[x] + 2
        columns = self.choose.randint(2, 8)
        if len(shape) == 2 and self.choose.random() < 0.6:
            flips = [self.choose.randint(0, 1) for _ in range(2)]
            rows = shape[0] if flips[0] else shape[1]
            sizes = (columns, rows) if flips[1] else (rows, columns)
            inputs = [x, self.sparse(*sizes)]
            if self.choose.random() < 0.7:
                inputs.append(self.sparse(columns))
            factors = {"alpha": self.choose.choice([0.5, 1.0, 2.0]), "beta": 0.5}
            flags = {"transA": flips[0], "transB": flips[1]}
            return self.add(places + 1, "Gemm", inputs, **flags, **factors)
        if self.choose.random() < 0.3:
            return self.add(places, "MatMul", [self.sparse(columns, shape[-2]), x])
        return self.add(places, "MatMul", [x, self.sparse(shape[-1], columns)])

    def turned(self, x: str, maps: list[str]) -> str | None:
        """The two last axes exchanged."""
        order = [1, 0] if self.values[x].ndim == 2 else [0, 2, 1]
        return self.add(self.places[x], "Transpose", [x], perm=order)

    def residual(self, x: str, maps: list[str]) -> str | None:
        """Two sequences of one shape."""
        shape = self.values[x].shape
        other = self.choose.choice([m for m in maps if self.values[m].shape == shape])
        operator = self.choose.choice(["Add", "Sub", "Mul", "Max"])
        places = max(self.places[x], self.places[other])
        if operator == "Mul":
            places = self.places[x] + self.places[other]
        return self.add(places, operator, [x, other])

    def shifted(self, x: str, maps: list[str]) -> str | None:
        """A vector of features, or a whole constant (a position embedding)."""
        shape = self.values[x].shape
        whole = self.choose.random() < 0.5
        other = self.sparse(*(shape if whole else shape[-1:]), step=0.5)
        operator = self.choose.choice(["Add", "Sub", "Mul"])
        more = 1 if operator == "Mul" else 0
        return self.add(max(self.places[x] + more, 1), operator, [x, other])

    def part(self, x: str, maps: list[str]) -> str | None:
        """A range of tokens or features, and both orders of a concatenation."""
        rank = self.values[x].ndim
        axis = self.choose.choice([rank - 2, rank - 1])
        size = self.values[x].shape[axis]
        if size < 2:
            return None
        start = self.choose.randrange(size - 1)
        ends = [np.asarray([v], np.int64) for v in (start, size, axis)]
        cut = self.add(self.places[x], "Slice", [x, *map(self.constant, ends)])
        if cut is None or self.choose.random() < 0.5:
            return cut
        parts = [cut, x] if self.choose.random() < 0.5 else [x, cut]
        return self.add(self.places[x], "Concat", parts, axis=axis)

    def gathered(self, x: str, maps: list[str]) -> str | None:
        """Chosen tokens or features."""
        rank = self.values[x].ndim
        axis = self.choose.choice([rank - 2, rank - 1])
        size = self.values[x].shape[axis]
        chosen = [self.choose.randrange(size) for _ in range(self.choose.randint(2, 6))]
        indices = self.constant(np.asarray(chosen, np.int64))
        return self.add(self.places[x], "Gather", [x, indices], axis=axis)

    def series(self, x: str, maps: list[str]) -> str | None:
        """A one-dimensional convolution over (1, channels, steps)."""
        shape = self.values[x].shape
        if len(shape) != 3 or shape[2] < 2:
            return None
        inputs = [x, self.sparse(self.choose.randint(2, 6), shape[1], 2)]
        pads = [self.choose.randint(0, 1) for _ in range(2)]
        stride = [self.choose.choice([1, 2])]
        return self.add(self.places[x] + 2, "Conv", inputs, pads=pads, strides=stride)

    def scores(self, x: str, maps: list[str]) -> str | None:
        """A product of two computed values."""
        other = self.turned(x, maps)
        if other is None:
            return None
        return self.add(2 * self.places[x], "MatMul", [x, other])

    def batch(self, x: str, maps: list[str]) -> str | None:
        """A dimension of one more or less in front."""
        shape = self.values[x].shape
        wanted = shape[1:] if len(shape) == 3 else (1, *shape)
        target = self.constant(np.asarray(wanted, np.int64))
        return self.add(self.places[x], "Reshape", [x, target])


@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS // 6))
@pytest.mark.parametrize("kind", [RandomModel, RandomSequence])
def test_random_models(kind: type[RandomModel], start: int, tmp_path: Path) -> None:
    target = PimTarget(load_config("arch-a", core_count=6))
    outcomes = [
        outcome(kind(seed), seed, target, tmp_path)
        for seed in range(start, start + SEEDS // 6)
    ]
    assert outcomes.count("program") >= 3


def outcome(
    built: RandomModel, seed: int, target: PimTarget, folder: Path
) -> str | None:
    """What became of a model of 2 to 8 layers; every comparison is asserted."""
    proto = built.grow(2 + seed % 7)
    if not proto.graph.node:
        return None
    path = saved(proto, folder, f"m{seed}.onnx")
    network = import_onnx(path, OnnxOptions(values=True))
    names = [o.name for o in proto.graph.output]
    if len(network.outputs) != len(names):
        return None  # two outputs are one tensor under two names
    feed = fixed(built.feeds["x"], 12)
    inputs = {"x": memory_order(feed.reshape(network.tensors["x"].shape))}
    found = evaluate(network, quantized(network), inputs)
    for tensor, name in zip(network.outputs, names, strict=True):
        described = network.tensors[tensor]
        assert described.bits == 16
        wanted = fixed(built.values[name], 12)
        logical = logical_order(found[tensor], described.shape).reshape(wanted.shape)
        wrong = np.argwhere(logical != wanted)
        assert not wrong.size, (seed, tensor, wrong[0])
    if seed % PROGRAMS or all(is_runtime_free(op) for op in network.operations):
        return "numbers"
    options = LoweringOptions(max_lanes=3)
    plan = placed_at_random(network, target, random.Random(seed), 2, options)
    if plan is None:
        return "numbers"
    program = build_program(plan, target, network)
    if not isinstance(program, Built):
        return "numbers"
    try:
        stored = executed(program, network, target, inputs)
    except NotEmitted:
        return "numbers"
    for tensor in network.outputs:
        root = root_of(network, tensor)
        if root not in network.inputs:
            assert (stored[root] == found[root]).all(), (seed, tensor)
    return "program"
