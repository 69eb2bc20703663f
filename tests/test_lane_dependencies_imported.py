"""Lanes of imported blocks wait for exactly the lanes whose elements they read.

The oracle knows nothing of this project's operations: it disturbs one element of a
stored value after the other and lets the onnx library's evaluator tell which elements
of the next stored value change.  Weights and data are positive, so that every
disturbance shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.graph.crossbars import MatrixArray
from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.views import is_runtime_free, root_of
from raptor_cp.graph.work import SliceWork, TaskRole
from raptor_cp.network.onnx_import import import_onnx
from tests.chips import Chip, flat_price
from tests.onnx_models import model, node, saved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.network.structure import Network

    Box = tuple[int, int, int, int, int, int]
    Constants = dict[str, NDArray[np.generic]]

#: What a disturbed element grows by.
_DISTURBANCE = np.float32(1e4)


class Layers:
    """A block under construction; values are named by hand."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Constants = {}

    def positive(self, *shape: int) -> str:
        """A new constant above zero."""
        name = f"constant{len(self.constants)}"
        draw = np.random.default_rng([len(self.constants), *shape])
        self.constants[name] = draw.uniform(0.5, 1.5, shape).astype(np.float32)
        return name

    def ints(self, *values: int) -> str:
        """A new constant of integers."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.asarray(values, np.int64)
        return name

    def add(
        self, operator: str, inputs: Sequence[str], output: str, **attributes: object
    ) -> str:
        """Any node."""
        call = node(operator, list(inputs), [output], **attributes)  # type: ignore[arg-type]
        self.nodes.append(call)
        return output

    def conv(
        self,
        x: str,
        output: str,
        depth: int,
        channels: int,
        kernel: tuple[int, int] = (1, 1),
        *,
        stride: int = 1,
        group: int = 1,
        pad: bool = True,
        relu: bool = True,
    ) -> str:
        """Convolution, normalisation and ReLU."""
        rows, columns = (kernel[0] // 2, kernel[1] // 2) if pad else (0, 0)
        weight = self.positive(channels, depth // group, *kernel)
        self.add(
            "Conv",
            [x, weight],
            f"{output}_c" if relu else output,
            group=group,
            strides=[stride, stride],
            pads=[rows, columns, rows, columns],
        )
        if not relu:
            return output
        vectors = [self.positive(channels) for _ in range(4)]
        self.add("BatchNormalization", [f"{output}_c", *vectors], f"{output}_n")
        return self.add("Relu", [f"{output}_n"], output)

    def pool(
        self, operator: str, x: str, output: str, stride: int = 1, **more: object
    ) -> str:
        """Three by three."""
        return self.add(
            operator,
            [x],
            output,
            kernel_shape=[3, 3],
            strides=[stride, stride],
            pads=[1, 1, 1, 1],
            **more,
        )

    def shuffle(self, x: str, output: str, shape: Sequence[int], groups: int) -> str:
        """Reshape, transpose, reshape."""
        _, channels, rows, columns = shape
        split = self.ints(1, groups, channels // groups, rows, columns)
        self.add("Reshape", [x, split], f"{output}_s")
        self.add("Transpose", [f"{output}_s"], f"{output}_t", perm=[0, 2, 1, 3, 4])
        return self.add("Reshape", [f"{output}_t", self.ints(*shape)], output)


def densenet() -> tuple[Layers, Mapping[str, Sequence[int]]]:
    """Two dense layers in pre-activation order and a transition."""
    net = Layers()
    x = net.conv("x", "stem", 3, 4, (3, 3))
    depth = 4
    for index in range(2):
        vectors = [net.positive(depth) for _ in range(4)]
        net.add("BatchNormalization", [x, *vectors], f"n{index}")
        net.add("Relu", [f"n{index}"], f"r{index}")
        inner = net.conv(f"r{index}", f"i{index}", depth, 4)
        grown = net.conv(inner, f"g{index}", 4, 2, (3, 3), relu=False)
        x = net.add("Concat", [x, grown], f"k{index}", axis=1)
        depth += 2
    vectors = [net.positive(depth) for _ in range(4)]
    net.add("BatchNormalization", [x, *vectors], "tn")
    net.add("Relu", ["tn"], "tr")
    net.conv("tr", "tc", depth, 4, relu=False)
    net.add("AveragePool", ["tc"], "y", kernel_shape=[2, 2], strides=[2, 2])
    return net, {"x": (1, 3, 6, 4)}


def inception_v1() -> tuple[Layers, Mapping[str, Sequence[int]]]:
    """Four branches."""
    net = Layers()
    x = net.conv("x", "stem", 3, 4, (3, 3))
    one = net.conv(x, "one", 4, 3)
    three = net.conv(net.conv(x, "reduce3", 4, 2), "three", 2, 3, (3, 3))
    five = net.conv(net.conv(x, "reduce5", 4, 2), "five", 2, 2, (5, 5))
    pooled = net.conv(net.pool("MaxPool", x, "pool"), "project", 4, 2)
    net.add("Concat", [one, three, five, pooled], "joined", axis=1)
    net.conv("joined", "y", 10, 4)
    return net, {"x": (1, 3, 5, 4)}


def inception_v3() -> tuple[Layers, Mapping[str, Sequence[int]]]:
    """Factorised convolutions, nested concatenations, a reduction block."""
    net = Layers()
    x = net.conv("x", "stem", 3, 4, (3, 3))
    a = net.conv(net.conv(x, "a1", 4, 2, (1, 7)), "a2", 2, 2, (7, 1))
    b = net.conv(x, "b", 4, 2)
    b1 = net.conv(b, "b1", 2, 2, (1, 3))
    b2 = net.conv(b, "b2", 2, 2, (3, 1))
    fork = net.add("Concat", [b1, b2], "fork", axis=1)
    mean = net.pool("AveragePool", x, "mean", count_include_pad=1)
    c = net.conv(mean, "c", 4, 2)
    net.add("Concat", [a, fork, c], "mixed", axis=1)
    r = net.conv("mixed", "r", 8, 3, (3, 3), stride=2)
    p = net.pool("MaxPool", "mixed", "p", 2)
    net.add("Concat", [r, p], "y", axis=1)
    return net, {"x": (1, 3, 6, 4)}


def shufflenet_v1() -> tuple[Layers, Mapping[str, Sequence[int]]]:
    """A unit with group convolutions, one with a stride and a concatenation."""
    net = Layers()
    x = net.conv("x", "stem", 3, 6, (3, 3))
    a = net.conv(x, "a", 6, 6, group=3)
    s = net.shuffle(a, "s", (1, 6, 4, 4), 3)
    d = net.conv(s, "d", 6, 6, (3, 3), group=6, relu=False)
    e = net.conv(d, "e", 6, 6, group=3, relu=False)
    net.add("Add", [x, e], "sum")
    u = net.add("Relu", ["sum"], "u")
    f = net.conv(u, "f", 6, 6, group=3)
    t = net.shuffle(f, "t", (1, 6, 4, 4), 3)
    g = net.conv(t, "g", 6, 6, (3, 3), group=6, stride=2, relu=False)
    h = net.conv(g, "h", 6, 6, group=3, relu=False)
    m = net.pool("AveragePool", u, "m", 2)
    net.add("Concat", [m, h], "k", axis=1)
    net.add("Relu", ["k"], "y")
    return net, {"x": (1, 3, 4, 4)}


def shufflenet_v2() -> tuple[Layers, Mapping[str, Sequence[int]]]:
    """Split, one half through convolutions, concatenation, shuffle; twice."""
    net = Layers()
    x = net.conv("x", "stem", 3, 4, (3, 3))
    for index in range(2):
        left, right = f"left{index}", f"right{index}"
        halves = net.ints(2, 2)
        net.nodes.append(node("Split", [x, halves], [left, right], axis=1))
        a = net.conv(right, f"a{index}", 2, 2)
        d = net.conv(a, f"d{index}", 2, 2, (3, 3), group=2, relu=False)
        e = net.conv(d, f"e{index}", 2, 2)
        k = net.add("Concat", [left, e], f"k{index}", axis=1)
        x = net.shuffle(k, f"s{index}", (1, 4, 5, 4), 2)
    net.conv(x, "y", 4, 5)
    return net, {"x": (1, 3, 5, 4)}


BLOCKS = {
    "densenet": densenet,
    "inception_v1": inception_v1,
    "inception_v3": inception_v3,
    "shufflenet_v1": shufflenet_v1,
    "shufflenet_v2": shufflenet_v2,
}


class Oracle:
    """Which elements of one stored value depend on which of another."""

    def __init__(self, proto: onnx.ModelProto, stored: set[str]) -> None:
        self.proto, self.stored = proto, stored
        self.makers = {out: n for n in proto.graph.node for out in n.output}
        self.constants = {t.name: t for t in proto.graph.initializer}
        everything = onnx.ModelProto.FromString(proto.SerializeToString())
        known = {o.name for o in everything.graph.output}
        for name in sorted(set(self.makers) - known):
            info = helper.make_empty_tensor_value_info(name)
            everything.graph.output.append(info)
        feeds = {
            i.name: np.random.default_rng(5)
            .uniform(1, 2, [d.dim_value for d in i.type.tensor_type.shape.dim])
            .astype(np.float32)
            for i in proto.graph.input
        }
        names = [o.name for o in everything.graph.output]
        found = ReferenceEvaluator(everything).run(None, feeds)
        values = zip(names, found, strict=True)
        self.values = {**feeds, **{n: np.asarray(v) for n, v in values}}

    def changes(self, target: str) -> dict[str, NDArray[np.bool_]]:
        """For each stored value that ``target`` reads: [*its shape, *target's]."""
        nodes, sources = self._part(target)
        inputs = [
            helper.make_tensor_value_info(n, 1, list(self.values[n].shape))
            for n in sources
        ]
        used = {name for n in nodes for name in n.input}
        graph = helper.make_graph(
            nodes,
            "part",
            inputs,
            [helper.make_empty_tensor_value_info(target)],
            [t for name, t in self.constants.items() if name in used],
        )
        part = helper.make_model(graph, opset_imports=list(self.proto.opset_import))
        evaluator = ReferenceEvaluator(part)
        feeds = {name: self.values[name] for name in sources}

        def run(values: dict[str, NDArray[np.generic]]) -> NDArray[np.generic]:
            found: Sequence[object] = list(evaluator.run(None, values))
            return np.asarray(found[0])

        base = run(feeds)
        result = {}
        for name in sources:
            moved = np.zeros((*self.values[name].shape, *base.shape), np.bool_)
            for place in np.ndindex(*self.values[name].shape):
                changed = self.values[name].copy()
                changed[place] += _DISTURBANCE
                moved[(*place, ...)] = run({**feeds, name: changed}) != base
            result[name] = moved
        return result

    def _part(self, target: str) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes between ``target`` and the stored values it is computed of."""
        inside: list[int] = []
        sources: dict[str, None] = {}
        order: dict[int, int] = {}
        order.update((id(n), i) for i, n in enumerate(self.proto.graph.node))
        open_values = [target]
        while open_values:
            name = open_values.pop()
            if name in self.constants:
                continue
            if name in self.stored and name != target:
                sources[name] = None
                continue
            maker = self.makers[name]
            if order[id(maker)] not in inside:
                inside.append(order[id(maker)])
                open_values += list(maker.input)
        return [self.proto.graph.node[i] for i in sorted(inside)], list(sources)


def in_memory_order(moved: NDArray[np.bool_], rank: int) -> NDArray[np.bool_]:
    """[rows, columns, channels] of the source, then of the target (maps, grouped)."""
    source, target = moved.shape[:rank], moved.shape[rank:]
    maps = (-1, *source[-2:], int(np.prod(target[:-2])), *target[-2:])
    return moved.reshape(maps).transpose(1, 2, 0, 4, 5, 3)


def part_of(array: NDArray[np.bool_], box: Sequence[int]) -> NDArray[np.bool_]:
    a, b, c, d, e, f = box
    return array[a:b, c:d, e:f]


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize(
    ("cores", "per_core", "slots"), [(3, 1, 64), (5, 3, 64), (40, 2, 5)]
)
def test_lanes_wait_for_what_they_read(
    name: str, cores: int, per_core: int, slots: int, tmp_path: Path
) -> None:
    net, inputs = BLOCKS[name]()
    proto = model(net.nodes, inputs, net.constants)
    network = import_onnx(saved(proto, tmp_path))
    chip = Chip(cores=cores, slots_per_core=slots, array=MatrixArray(8, 8, 2))
    options = LoweringOptions(lanes_per_core=per_core)
    result = lower_network(network, chip, flat_price, options)
    assert isinstance(result, Lowering)
    loose = check(network, result.graph, proto)
    assert not loose, loose


def check(network: Network, graph: ComputeGraph, proto: onnx.ModelProto) -> list[str]:
    """Every element read arrives; returns transfers of which nothing is read."""
    value_of = {name: name for name in network.inputs}
    for node_ in proto.graph.node:
        value_of[node_.name] = node_.output[0]
    computing = [op for op in network.operations if not is_runtime_free(op)]
    stored = {value_of[op.output] for op in computing} | set(network.inputs)
    oracle = Oracle(proto, stored)
    tensor_of = {value: tensor for tensor, value in value_of.items()}
    arriving: dict[tuple[int, str], list[tuple[int, Box]]] = {}
    for number, move in enumerate(graph.transfers):
        publication = graph.publications[move.publication]
        assert move.box is not None
        key = (move.consumer, publication.tensor)
        arriving.setdefault(key, []).append((number, move.box))
    for access in graph.baseline:
        if access.kind is not BaselineKind.OUTPUT and access.box is not None:
            key = (access.task, access.tensor)
            arriving.setdefault(key, []).append((-1, access.box))
    loose = []
    group = {name: index for index, name in enumerate(graph.operations)}
    for operation in computing:
        lanes: dict[Box, list[int]] = {}
        for task in graph.tasks_of(group[operation.name]).tolist():
            work = graph.tasks[task].work
            assert isinstance(work, SliceWork)
            if work.role is not TaskRole.REDUCE:
                lanes.setdefault(work.output.bounds, []).append(task)
        changes = oracle.changes(value_of[operation.output])
        roots = {root_of(network, name) for name in operation.inputs}
        assert roots == {tensor_of[name] for name in changes}
        for source, moved in changes.items():
            tensor = tensor_of[source]
            ordered = in_memory_order(moved, oracle.values[source].ndim)
            outward = np.moveaxis(ordered, (3, 4, 5), (0, 1, 2))
            for box, tasks in lanes.items():
                read = np.asarray(part_of(outward, box).any(axis=(0, 1, 2)))
                came = np.zeros_like(read)
                for task in tasks:
                    for number, piece in arriving.get((task, tensor), []):
                        part_of(came, piece)[...] = True
                        if number >= 0 and not np.any(part_of(read, piece)):
                            loose.append(f"{operation.name} {box} <- {tensor} {piece}")
                missing = np.argwhere(read & ~came)
                assert not missing.size, (operation.name, box, tensor, missing[0])
    return loose


def test_the_oracle_sees_what_moves() -> None:
    """A shuffle of six channels in two groups, element by element."""
    net = Layers()
    net.shuffle("x", "y", (1, 6, 1, 1), 2)
    proto = model(net.nodes, {"x": (1, 6, 1, 1)}, net.constants)
    moved = Oracle(proto, {"x", "y"}).changes("y")["x"].reshape(6, 6)
    assert [row.nonzero()[0].tolist() for row in moved] == [
        [0],
        [2],
        [4],
        [1],
        [3],
        [5],
    ]
