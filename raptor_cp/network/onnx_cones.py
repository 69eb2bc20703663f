"""Functions and normalisations written out as many small operators.

Exporters explode GELU, HardSwish, LayerNormalization, softmax and others in many
ways.  Instead of one template for each way, the small operators between one value
and another (a *cone* with a single entry) are evaluated on a few numbers, and the
numbers tell which function they compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.onnx_functions import (
    ELEMENT_FUNCTIONS,
    KNOWN_FUNCTIONS,
    REDUCTIONS,
    Array,
)
from raptor_cp.network.onnx_nodes import OWN_DOMAIN, Node, SourceGraph
from raptor_cp.network.onnx_rewriting import GraphEditor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Longest chain of operators that is tried.
_LARGEST_CONE = 40
#: Rows and features of the sample that normalisations are recognised on.
_ROWS, _FEATURES = 24, 8

#: The node that stands for a recognised function.
FUNCTION_NODE = "Function"


@dataclass(frozen=True, slots=True)
class Cone:
    """Nodes between ``entry`` and the output of the last of them."""

    nodes: tuple[Node, ...]
    entry: str

    @property
    def reduces(self) -> bool:
        """True if it combines elements of a row."""
        return any(node.operator in REDUCTIONS for node in self.nodes)


def merge_functions(graph: SourceGraph) -> None:
    """Replace recognised cones by one node each, the largest first."""
    editor = GraphEditor(graph)
    for anchor in reversed(editor.nodes()):
        if not editor.alive(anchor) or not _fits(graph, anchor):
            continue
        for cone in reversed(list(_cones(editor, anchor))):
            found = _recognised(graph, cone)
            if found is not None:
                editor.replace(anchor, found)
                break
    editor.finish()


def _fits(graph: SourceGraph, node: Node) -> bool:
    if node.domain or len(node.outputs) != 1:
        return False
    if node.operator not in ELEMENT_FUNCTIONS and node.operator not in REDUCTIONS:
        return False
    info = graph.values[node.output]
    return info.shape is not None and len(info.shape) > 0


def _cones(editor: GraphEditor, anchor: Node) -> Iterator[Cone]:
    """Cones that end in ``anchor``, growing."""
    graph = editor.graph
    inside = [anchor]
    names = {anchor.output}
    while len(inside) <= _LARGEST_CONE:
        leaves = dict.fromkeys(
            name
            for node in inside
            for name in node.inputs
            if name and graph.computed(name) and name not in names
        )
        if len(leaves) == 1 and len(inside) > 1:
            yield Cone(tuple(reversed(inside)), next(iter(leaves)))
        for name in leaves:
            maker = editor.producer(name)
            if maker is None or not _fits(graph, maker) or editor.is_output(name):
                continue
            if all(reader.output in names for reader in editor.readers(name)):
                inside.append(maker)
                names.add(name)
                break
        else:
            return


def _recognised(graph: SourceGraph, cone: Cone) -> Node | None:
    last = cone.nodes[-1]
    if graph.values[cone.entry].shape != graph.values[last.output].shape:
        return None
    found = _normalisation(graph, cone) if cone.reduces else _function(graph, cone)
    if found is None:
        return None
    operator, attributes = found
    names = [node.name for node in cone.nodes[:-1]]
    for node in cone.nodes:
        names += node.merged
    return Node(
        operator=operator,
        domain=OWN_DOMAIN,
        name=last.name,
        inputs=(cone.entry,),
        outputs=last.outputs,
        attributes=attributes,
        merged=tuple(names),
    )


Found = tuple[str, dict[str, object]]


def _function(graph: SourceGraph, cone: Cone) -> Found | None:
    x = np.concatenate([np.linspace(-12.0, 12.0, 97), [-0.05, 0.05]])
    y = _evaluated(graph, cone, x)
    if y is None or y.shape != x.shape or not np.isfinite(y).all():
        return None
    for activation, reference in KNOWN_FUNCTIONS:
        if np.allclose(y, reference(x), rtol=2e-3, atol=2e-3):
            return FUNCTION_NODE, {"activation": activation}
    return None


def _normalisation(graph: SourceGraph, cone: Cone) -> Found | None:
    shape = graph.shape(cone.entry)
    rank = len(shape)
    axes = {
        _axes(graph, node, rank) for node in cone.nodes if node.operator in REDUCTIONS
    }
    if len(axes) != 1:
        return None
    reduced = next(iter(axes))
    first = rank - len(reduced)
    if not reduced or reduced != tuple(range(first, rank)):
        return None
    generator = np.random.default_rng(3)
    scale = generator.uniform(2.0, 9.0, (_ROWS, 1))
    x = generator.normal(size=(_ROWS, _FEATURES)) * scale
    x += generator.uniform(-3.0, 3.0, (_ROWS, 1))
    y = _evaluated(graph, cone, x, prod(shape[first:]))
    if y is None or y.shape != x.shape or not np.isfinite(y).all():
        return None
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    if np.allclose(y, powers / powers.sum(axis=1, keepdims=True), atol=1e-5):
        return ("Softmax", {"axis": rank - 1}) if len(reduced) == 1 else None
    centred = x - x.mean(axis=1, keepdims=True)
    parameters = sum(
        info.elements
        for node in cone.nodes
        for name in node.inputs
        if (info := graph.constant(name)) is not None and info.elements > 1
    )
    common = {"axis": first, "parameters": parameters, "epsilon": _epsilon(graph, cone)}
    normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    if _affine(normal, y, shifted=True):
        return "LayerNormalization", {**common, "bias": True}
    rooted = x / np.sqrt((x**2).mean(axis=1, keepdims=True))
    if _affine(rooted, y, shifted=False):
        return "LayerNormalization", {**common, "bias": False}
    return None


def _affine(x: Array, y: Array, *, shifted: bool) -> bool:
    """True if every column of ``y`` is a line of that column of ``x``."""
    for column in range(x.shape[1]):
        base = [x[:, column], np.ones(len(x))] if shifted else [x[:, column]]
        matrix = np.stack(base, axis=1)
        line, *_ = np.linalg.lstsq(matrix, y[:, column], rcond=None)
        if abs(float(line[0])) < 1e-6:
            return False
        if not np.allclose(matrix @ line, y[:, column], rtol=1e-2, atol=1e-2):
            return False
    return True


def _axes(graph: SourceGraph, node: Node, rank: int) -> tuple[int, ...]:
    axes = node.integers("axes")
    if axes is None:
        info = graph.constant(node.given(1))
        if info is None or info.value is None:
            return ()
        axes = tuple(int(axis) for axis in info.value.reshape(-1))
    if not node.integer("keepdims", 1):
        return ()
    return tuple(sorted(axis % rank for axis in axes))


def _epsilon(graph: SourceGraph, cone: Cone) -> float:
    for node in cone.nodes:
        if node.operator == "Add":
            for name in node.inputs:
                info = graph.constant(name)
                number = info.scalar if info is not None else None
                if number is not None and 0 < number <= 1e-2:
                    return number
    return 1e-5


def _evaluated(
    graph: SourceGraph, cone: Cone, x: Array, features: int = 1
) -> Array | None:
    """The cone's output for ``x``; parameter vectors get arbitrary values."""
    values: dict[str, Array] = {cone.entry: x}
    generator = np.random.default_rng(5)
    for node in _in_order(cone):
        operands: list[Array] = []
        for index, name in enumerate(node.inputs):
            info = graph.constant(name)
            if not name:
                operands.append(np.asarray(np.nan))
            elif info is None:
                operands.append(values[name])
            elif info.scalar is not None:
                operands.append(np.asarray(info.scalar))
            elif node.operator in REDUCTIONS and index == 1:
                continue
            elif 1 < info.elements <= features:
                values[name] = generator.uniform(0.5, 2.0, _FEATURES)
                operands.append(values[name])
            else:
                return None
        with np.errstate(all="ignore"):
            values[node.output] = _result(node, operands)
    return values[cone.nodes[-1].output]


def _in_order(cone: Cone) -> Sequence[Node]:
    """The nodes so that each comes after what it reads."""
    waiting, done, order = list(cone.nodes), {cone.entry}, []
    inside = {node.output for node in cone.nodes}
    while waiting:
        for node in waiting:
            if all(name in done or name not in inside for name in node.inputs):
                waiting.remove(node)
                order.append(node)
                done.add(node.output)
                break
    return order


def _result(node: Node, operands: list[Array]) -> Array:
    if node.operator in REDUCTIONS:
        reduced = REDUCTIONS[node.operator](operands[0])
        return np.asarray(reduced)[..., None]
    return np.asarray(ELEMENT_FUNCTIONS[node.operator](node, operands))
