"""Chains of reshapes and transposes: which of them move nothing, which are heads.

Exporters write ``(1, C, H, W) -> (1, H*W, C)`` and the heads of attention as chains
of Reshape, Transpose, Squeeze and Gather.  A chain is followed element by element
(on element numbers), so every way to write it is understood:

* a chain that keeps the logical or the memory order becomes one view,
* a chain in front of a MatMul that cuts a sequence ``(1, S, h*d)`` into heads, and
  one behind it that joins them, become part of the MatMul.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.onnx_nodes import OWN_DOMAIN, Info, Node, SourceGraph
from raptor_cp.network.onnx_rewriting import GraphEditor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.network.onnx_nodes import Shape

    Numbers = NDArray[np.int64]

#: Longest chain that is followed, and the most elements of its tensors.
_LONGEST, _LARGEST = 8, 1 << 23

_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
#: The nodes that stand for a view and for a MatMul that reads and writes heads.
VIEW_NODE, HEADS_NODE = "View", "MatMulHeads"


def merge_pads(graph: SourceGraph) -> None:
    """Fold a zero Pad into the convolution behind it."""
    editor = GraphEditor(graph)
    for conv in editor.nodes():
        if conv.operator != "Conv" or conv.domain:
            continue
        pad = editor.producer(conv.inputs[0])
        if pad is None or pad.operator != "Pad" or not editor.sole_reader(pad.output):
            continue
        if conv.text("auto_pad", "NOTSET") != "NOTSET":
            continue
        sides = _zero_pads(graph, pad)
        if sides is None:
            continue
        rank = len(graph.shape(conv.inputs[0])) - 2
        own = conv.integers("pads") or (0,) * (2 * rank)
        total = tuple(a + b for a, b in zip(own, sides, strict=True))
        attributes = {**conv.attributes, "pads": total}
        inputs = (pad.inputs[0], *conv.inputs[1:])
        merged = (*conv.merged, *pad.merged, pad.name)
        editor.replace(
            conv, replace(conv, inputs=inputs, attributes=attributes, merged=merged)
        )
    editor.finish()


def pad_sides(graph: SourceGraph, node: Node) -> tuple[tuple[int, int], ...] | None:
    """(before, after) of every axis of a Pad; None if they depend on data."""
    rank = len(graph.shape(node.inputs[0]))
    values = node.integers("pads")
    if values is None:
        info = graph.constant(node.given(1))
        if info is None or info.value is None:
            return None
        values = tuple(int(v) for v in info.value.reshape(-1))
    axes: Sequence[int] = range(rank)
    if node.given(3):
        chosen = graph.constant(node.given(3))
        if chosen is None or chosen.value is None:
            return None
        axes = [int(a) % rank for a in chosen.value.reshape(-1)]
    sides = [(0, 0)] * rank
    for index, axis in enumerate(axes):
        sides[axis] = (values[index], values[index + len(axes)])
    return tuple(sides)


def pad_value(graph: SourceGraph, node: Node) -> float | None:
    """The constant that a Pad adds; None if it is not known."""
    if not node.given(2):
        return node.number("value", 0.0)
    info = graph.constant(node.given(2))
    return None if info is None else info.scalar


def _zero_pads(graph: SourceGraph, pad: Node) -> tuple[int, ...] | None:
    if pad.text("mode", "constant") != "constant" or pad_value(graph, pad) != 0.0:
        return None
    sides = pad_sides(graph, pad)
    if sides is None or len(sides) < 3 or any(min(side) < 0 for side in sides):
        return None
    if any(side != (0, 0) for side in sides[:2]):
        return None
    spatial = sides[2:]
    return (*(before for before, _ in spatial), *(after for _, after in spatial))


def merge_views(graph: SourceGraph) -> None:
    """Replace chains that keep the order of elements by one view each."""
    editor = GraphEditor(graph)
    for anchor in reversed(editor.nodes()):
        if not editor.alive(anchor) or anchor.operator not in (*_RESHAPES, "Transpose"):
            continue
        chain = _chain(editor, anchor.output, heads=False)
        for start in range(len(chain)):
            part = chain[start:]
            if not any(node.operator == "Transpose" for node in part):
                break
            view = _view(graph, part)
            if view is not None:
                editor.replace(anchor, view)
                break
    editor.finish()


def _view(graph: SourceGraph, chain: Sequence[Node]) -> Node | None:
    entry, last = chain[0].inputs[0], chain[-1]
    source = graph.shape(entry)
    if prod(source) > _LARGEST:
        return None
    numbers = _numbers(graph, chain)
    if numbers is None:
        return None
    if (numbers.reshape(-1) == np.arange(numbers.size)).all():
        channels_last = False
    else:
        start = _memory(np.arange(numbers.size).reshape(source))
        stop = _memory(numbers)
        if start is None or stop is None or not (start == stop).all():
            return None
        channels_last = True
    names = [node.name for node in chain[:-1]]
    for node in chain:
        names += node.merged
    return Node(
        operator=VIEW_NODE,
        domain=OWN_DOMAIN,
        name=last.name,
        inputs=(entry,),
        outputs=last.outputs,
        attributes={"channels_last": int(channels_last)},
        merged=tuple(names),
    )


def _memory(numbers: Numbers) -> Numbers | None:
    """Elements in the order they lie in memory, channels innermost."""
    if numbers.ndim <= 2:
        return numbers.reshape(-1)
    if numbers.shape[0] != 1:
        return None
    if numbers.ndim == 3:
        return numbers.reshape(-1)
    flat = numbers.reshape(-1, *numbers.shape[-2:])
    return np.ascontiguousarray(flat.transpose(1, 2, 0)).reshape(-1)


def _chain(editor: GraphEditor, name: str, *, heads: bool) -> list[Node]:
    """Nodes from some value to ``name`` that only move elements."""
    chain: list[Node] = []
    graph = editor.graph
    while len(chain) < _LONGEST:
        node = editor.producer(name)
        if node is None or node.domain or graph.values[name].shape is None:
            break
        legal = node.operator in _RESHAPES or node.operator == "Transpose"
        if heads:
            legal = legal or node.operator in ("Gather", "Slice", "Split")
            legal = legal or _factor(graph, node) is not None
        source = next((n for n in node.inputs if graph.computed(n)), "")
        if not legal or not source or source != node.inputs[0]:
            break
        if any(graph.computed(other) for other in node.inputs[1:]):
            break
        chain.append(node)
        name = source
    return chain[::-1]


def _numbers(graph: SourceGraph, chain: Sequence[Node]) -> Numbers | None:
    """Where each element of the chain's output comes from, by logical number."""
    source = graph.shape(chain[0].inputs[0])
    numbers: Numbers = np.arange(prod(source), dtype=np.int64).reshape(source)
    for index, node in enumerate(chain):
        follower = chain[index + 1].inputs[0] if index + 1 < len(chain) else ""
        output = follower or node.output
        moved = _moved(graph, node, numbers, output)
        if moved is None:
            return None
        numbers = moved
    return numbers


def _moved(
    graph: SourceGraph, node: Node, numbers: Numbers, output: str
) -> Numbers | None:
    shape = graph.shape(output)
    match node.operator:
        case "Transpose":
            return numbers.transpose(node.integers("perm") or None)
        case "Gather":
            info = graph.constant(node.given(1))
            if info is None or info.value is None:
                return None
            indices = np.asarray(info.value, np.int64)
            return np.take(numbers, indices, axis=node.integer("axis", 0))
        case "Split":
            axis = node.integer("axis", 0) % numbers.ndim
            start = 0
            for name in node.outputs:
                size = graph.shape(name)[axis]
                if name == output:
                    return np.take(numbers, range(start, start + size), axis=axis)
                start += size
            return None
        case "Slice":
            parts = slice_parts(graph, node)
            if parts is None:
                return None
            cut = [slice(None)] * numbers.ndim
            for axis, start, stop, step in parts:
                cut[axis] = slice(start, stop, step)
            return numbers[tuple(cut)]
    return numbers.reshape(shape) if numbers.size == prod(shape) else None


def slice_parts(
    graph: SourceGraph, node: Node
) -> tuple[tuple[int, int, int, int], ...] | None:
    """(axis, start, stop, step) of a Slice; None if unknown or backwards."""
    shape = graph.shape(node.inputs[0])
    lists: list[tuple[int, ...] | None] = []
    for index, name in enumerate(("starts", "ends", "axes", "steps"), 1):
        values = node.integers(name)
        if node.given(index):
            info = graph.constant(node.given(index))
            if info is None or info.value is None:
                return None
            values = tuple(int(v) for v in info.value.reshape(-1))
        lists.append(values)
    starts, stops, axes, steps = lists
    if starts is None or stops is None:
        return None
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    parts = []
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        if step < 1:
            return None
        size = shape[axis % len(shape)]
        begin, end, _ = slice(start, stop, step).indices(size)
        parts.append((axis % len(shape), begin, end, step))
    return tuple(parts)


# -- attention ---------------------------------------------------------------------


def merge_heads(graph: SourceGraph) -> None:
    """Let MatMuls of two computed values read and write heads directly."""
    editor = GraphEditor(graph)
    for node in editor.nodes():
        if node.operator != "MatMul" or node.domain or not editor.alive(node):
            continue
        if not all(graph.computed(name) for name in node.inputs):
            continue
        merged = _heads(editor, node)
        if merged is not None:
            editor.replace(node, merged)
            _absorb_scale(editor, merged)
    for node in editor.nodes():
        if node.operator == HEADS_NODE and editor.alive(node):
            _absorb_join(editor, node)
    editor.finish()


def _heads(editor: GraphEditor, node: Node) -> Node | None:
    graph = editor.graph
    shapes = [graph.shape(name) for name in node.inputs]
    if min(len(shape) for shape in shapes) < 2:
        return None
    batches = [prod(shape[:-2]) for shape in shapes]
    heads = max(batches)
    if any(batch not in (1, heads) for batch in batches) or len(set(batches)) > 1:
        return None
    inputs: list[str] = []
    flags: dict[str, object] = {"heads": heads}
    scale = 1.0
    found = False
    for side, name in zip("ab", node.inputs, strict=True):
        operand = _operand(editor, name, heads)
        if operand is None:
            inputs.append(name)
            continue
        source, channels, transposed, factor = operand
        inputs.append(source)
        scale *= factor
        found = True
        flags[f"transpose_{side}"] = int(transposed)
        if channels is not None:
            flags[f"offset_{side}"], flags[f"width_{side}"] = channels
    if not found:
        return None
    return replace(
        node,
        operator=HEADS_NODE,
        domain=OWN_DOMAIN,
        inputs=tuple(inputs),
        attributes={**flags, "scale": scale},
    )


Channels = tuple[int, int]
Operand = tuple[str, Channels | None, bool, float]


def _operand(editor: GraphEditor, name: str, heads: int) -> Operand | None:
    """(source, channels or None, transposed, factor) of a MatMul operand.

    Channels (first, number) are given when the source is a sequence that is read
    head by head, and None when the source has the matrices of the operand.
    """
    graph = editor.graph
    chain = _chain(editor, name, heads=True)
    for start in range(len(chain)):
        part = chain[start:]
        entry = part[0].inputs[0]
        shape = graph.shape(entry)
        if prod(shape) > _LARGEST:
            continue
        numbers = _numbers(graph, part)
        if numbers is None:
            continue
        factor = prod(_factor(graph, node) or 1.0 for node in part)
        found = _sequence(numbers, shape, heads)
        if found is not None:
            return (entry, *found, factor)
    # Something that only swaps or scales the matrices.
    for start in range(len(chain)):
        part = chain[start:]
        entry, shape = part[0].inputs[0], graph.shape(part[0].inputs[0])
        target = graph.shape(name)
        if prod(shape) > _LARGEST or prod(shape[:-2]) != heads or len(shape) < 2:
            continue
        numbers = _numbers(graph, part)
        if numbers is None or numbers.size != prod(shape):
            continue
        factor = prod(_factor(graph, node) or 1.0 for node in part)
        own = np.arange(numbers.size).reshape(-1, *shape[-2:])
        moved = numbers.reshape(-1, *target[-2:])
        if moved.shape == own.shape and (moved == own).all():
            return entry, None, False, factor
        swapped = own.swapaxes(1, 2)
        if moved.shape == swapped.shape and (moved == swapped).all():
            return entry, None, True, factor
    return None


def _sequence(
    numbers: Numbers, shape: Shape, heads: int
) -> tuple[Channels, bool] | None:
    """(channels, transposed) if ``numbers`` are heads of a sequence."""
    width = shape[-1]
    length = prod(shape) // width
    if len([size for size in shape[:-1] if size != 1]) > 1:
        return None
    stacked = numbers.reshape(heads, *numbers.shape[-2:])
    offset = int(stacked.flat[0])
    sequence = np.arange(length * width).reshape(length, width)
    for transposed, axis in ((False, 2), (True, 1)):
        size = stacked.shape[axis]
        if stacked.shape[3 - axis] != length or offset + heads * size > width:
            continue
        part = sequence[:, offset : offset + heads * size]
        cut = part.reshape(length, heads, size)
        order = (1, 2, 0) if transposed else (1, 0, 2)
        if (cut.transpose(order) == stacked).all():
            return (offset, heads * size), transposed
    return None


def _factor(graph: SourceGraph, node: Node) -> float | None:
    """The number that a node multiplies by, if that is all it does."""
    if node.domain or node.operator not in ("Mul", "Div") or len(node.inputs) != 2:
        return None
    first, second = (graph.constant(name) for name in node.inputs)
    if node.operator == "Div" and first is not None:
        return None
    info: Info | None = second if second is not None else first
    number = info.scalar if info is not None else None
    if number is None or number == 0 or not np.isfinite(number):
        return None
    return 1 / number if node.operator == "Div" else number


def _absorb_scale(editor: GraphEditor, node: Node) -> None:
    """Fold a product with a number behind a MatMul into its scale."""
    reader = editor.sole_reader(node.output)
    factor = None if reader is None else _factor(editor.graph, reader)
    if reader is None or factor is None:
        return
    attributes = {**node.attributes, "scale": node.number("scale", 1.0) * factor}
    _take_over(editor, node, reader, attributes, (reader.name, *reader.merged))


def _absorb_join(editor: GraphEditor, node: Node) -> None:
    """Fold the chain that joins heads to a sequence into the MatMul."""
    graph = editor.graph
    heads = node.integer("heads", 1)
    shape = graph.shape(node.output)
    rows, columns = shape[-2:]
    if heads == 1 or prod(shape) > _LARGEST:
        return
    joined = np.arange(prod(shape)).reshape(heads, rows, columns).transpose(1, 0, 2)
    numbers: Numbers = np.arange(prod(shape)).reshape(shape)
    names: list[str] = []
    name = node.output
    for _ in range(_LONGEST):
        reader = editor.sole_reader(name)
        if reader is None or reader.domain:
            return
        if reader.operator not in (*_RESHAPES, "Transpose"):
            return
        moved = _moved(graph, reader, numbers, reader.output)
        if moved is None:
            return
        numbers = moved
        names += [reader.name, *reader.merged]
        name = reader.output
        target = numbers.shape
        sequence = target[-1] == heads * columns
        if sequence and (numbers.reshape(joined.shape) == joined).all():
            attributes = {**node.attributes, "merge_heads": 1}
            _take_over(editor, node, reader, attributes, tuple(names))
            return


def _take_over(
    editor: GraphEditor,
    node: Node,
    last: Node,
    attributes: dict[str, object],
    names: tuple[str, ...],
) -> None:
    """Put ``node`` in the place of ``last``, the end of a chain it absorbs."""
    new = replace(
        node,
        outputs=last.outputs,
        attributes=attributes,
        merged=(*node.merged, *names),
    )
    editor.replace(last, new)
