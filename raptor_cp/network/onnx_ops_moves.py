"""Operators that move elements or only rename them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.onnx_moves import VIEW_NODE, pad_sides, pad_value, slice_parts
from raptor_cp.network.onnx_ops_matrix import as_map
from raptor_cp.network.onnx_sampling import nearest_indices
from raptor_cp.network.onnx_translation import (
    Held,
    Refusal,
    Translator,
    canonical,
    handles,
    microsoft,
    own,
)

if TYPE_CHECKING:
    from raptor_cp.network.onnx_nodes import Node, Shape
    from raptor_cp.network.operations import Tensor

#: Longest axis whose elements are listed one by one.
LONGEST_AXIS = 1 << 20


def reshaped(t: Translator, held: Held, shape: Shape, name: str) -> Held:
    """``held`` under another shape of the same logical order; free."""
    wanted = canonical(shape)
    if held.tensor.shape == wanted or canonical(held.shape) == wanted:
        return Held(held.tensor, shape)
    t.moves(held)
    x = t.net.reshape(held.tensor, wanted, name=t.unique(name))
    return Held(x, shape)


@handles("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(t: Translator, node: Node) -> Held:
    """A view: runtime free."""
    return reshaped(t, t.value(node), t.shape(node.output), node.name)


@handles(own(VIEW_NODE))
def view(t: Translator, node: Node) -> Held:
    """A chain of reshapes and transposes that moves nothing."""
    held, shape = t.value(node), t.shape(node.output)
    if not node.integer("channels_last", 0):
        return reshaped(t, held, shape, node.name)
    x = t.plain(held, f"{node.name}.input")
    t.moves(held)
    result = t.net.reshape(
        x, canonical(shape), channels_last=True, name=t.unique(node.name)
    )
    return Held(result, shape)


@handles("Identity")
def identity(t: Translator, node: Node) -> Held:
    """The same value."""
    return t.value(node)


@handles("Transpose")
def transpose(t: Translator, node: Node) -> Held:
    """Permute the axes."""
    held = t.value(node)
    rank = len(held.shape)
    order = node.integers("perm") or tuple(range(rank))[::-1]
    shape = tuple(held.shape[axis] for axis in order)
    moving = [axis for axis in order if held.shape[axis] != 1]
    if moving == sorted(moving):
        return reshaped(t, held, shape, node.name)
    t.moves(held)
    x = t.plain(held, f"{node.name}.input")
    if len(x.shape) == rank and canonical(shape) != shape:
        x = t.viewed(x, (1, *x.shape), f"{node.name}.input")
    extra = len(x.shape) - rank
    own_order = (*range(extra), *(axis + extra for axis in order))
    return Held(t.net.transpose(x, own_order, name=t.unique(node.name)), shape)


@handles("Concat", microsoft("QLinearConcat"))
def concat(t: Translator, node: Node) -> Held:
    """Join along an axis; parts may be constant."""
    if node.domain:  # (Y_scale, Y_zero, then (X, X_scale, X_zero) for each part)
        names = list(node.inputs[2::3])
    else:
        names = [name for name in node.inputs if name]
    parts = [
        t.held[name]
        if name in t.held
        else Held(t.constant(name, canonical(t.shape(name))), t.shape(name))
        for name in names
    ]
    if len(parts) == 1:
        return parts[0]
    bits = t.net.activation_bits
    axis = node.integer("axis", 1)
    first = parts[0]
    axis = axis % len(first.shape)
    layouts = {
        _layout(part) if part.tensor.shape != canonical(part.shape) else (0, 0)
        for part in parts
    }
    if len(layouts) == 1 and None not in layouts:
        tensors = [part.tensor for part in parts]
    else:
        tensors = [t.plain(p, f"{node.name}.{i}") for i, p in enumerate(parts)]
    shape = t.shape(node.output)
    offset = len(tensors[0].shape) - len(first.shape)
    if layouts == {(0, 1)}:
        offset = 0
    if any(len(x.shape) != len(tensors[0].shape) for x in tensors):
        # Some parts have a first dimension of one, others do not.
        tensors = [
            _full(t, x, p, f"{node.name}.{i}")
            for i, (x, p) in enumerate(zip(tensors, parts, strict=True))
        ]
        offset = 1
    t.net.activation_bits = bits
    result = t.net.concat(tensors, axis=axis + offset, name=t.unique(node.name))
    return Held(result, shape)


def _layout(held: Held) -> tuple[int, int] | None:
    """(leading, trailing) dimensions of one around the model's shape."""
    own_shape = held.tensor.shape
    if own_shape == (*held.shape, 1):
        return (0, 1)
    if own_shape == (1, *held.shape):
        return (1, 0)
    return None


def _full(t: Translator, x: Tensor, held: Held, name: str) -> Tensor:
    return t.viewed(x, (1, *held.shape), name)


@handles("Split")
def split(t: Translator, node: Node) -> dict[str, Held]:
    """One slice for each part that is used."""
    held = t.value(node)
    axis = node.integer("axis", 0) % len(held.shape)
    result: dict[str, Held] = {}
    start = 0
    for index, name in enumerate(node.outputs):
        shape = t.shape(name)
        stop = start + shape[axis]
        if name in t.uses:
            label = f"{node.name}.{index}" if len(node.outputs) > 1 else node.name
            result[name] = _sliced(t, held, axis, start, stop, 1, label)
        start = stop
    return result


@handles("Slice")
def slice_(t: Translator, node: Node) -> Held:
    """Ranges with positive steps."""
    parts = slice_parts(t.graph, node)
    if parts is None:
        raise Refusal("its limits are not constant, or it runs backwards")
    held = t.value(node)
    for number, (axis, start, stop, step) in enumerate(parts):
        name = node.name if number == len(parts) - 1 else f"{node.name}.{number}"
        held = _sliced(t, held, axis, start, stop, step, name)
    return held


def _sliced(
    t: Translator, held: Held, axis: int, start: int, stop: int, step: int, name: str
) -> Held:
    if (start, step) == (0, 1) and stop == held.shape[axis]:
        return held
    if stop <= start:
        raise Refusal("an empty slice")
    own_axis = held.axis(axis)
    t.moves(held)
    x = held.tensor
    if x.shape[own_axis] != held.shape[axis]:
        x, own_axis = t.plain(held, name), axis
        own_axis += len(x.shape) - len(held.shape)
    result = t.net.slice(x, own_axis, start, stop, step, name=t.unique(name))
    size = -(-(stop - start) // step)
    return Held(result, (*held.shape[:axis], size, *held.shape[axis + 1 :]))


@handles("Pad")
def pad(t: Translator, node: Node) -> Held:
    """Constant, edge, reflected and wrapped elements; negative pads cut."""
    held = t.value(node)
    sides = pad_sides(t.graph, node)
    mode = node.text("mode", "constant")
    if sides is None:
        raise Refusal("its pads are not constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise Refusal(f"mode {mode!r}")
    value = pad_value(t.graph, node)
    if mode == "constant" and value is None:
        raise Refusal("its value is not constant")
    for axis, (before, after) in enumerate(sides):
        if min(before, after) < 0:
            size = held.shape[axis]
            start, stop = max(0, -before), size - max(0, -after)
            held = _sliced(t, held, axis, start, stop, 1, f"{node.name}.cut{axis}")
    if all(max(side) <= 0 for side in sides):
        return held
    x = held.tensor
    begin, end = [0] * len(x.shape), [0] * len(x.shape)
    for axis, (before, after) in enumerate(sides):
        if max(before, after) > 0:
            own_axis = held.axis(axis)
            begin[own_axis], end[own_axis] = max(before, 0), max(after, 0)
    result = t.net.pad(
        x, begin, end, mode=mode, value=value or 0.0, name=t.unique(node.name)
    )
    return Held(result, t.shape(node.output))


@handles("Gather")
def gather(t: Translator, node: Node) -> Held:
    """Fixed entries, or entries chosen by another value (an embedding)."""
    data, indices = node.inputs[0], node.given(1)
    name = t.unique(node.name)
    shape = t.shape(node.output)
    axis = node.integer("axis", 0)
    bits = t.net.activation_bits
    fixed = t.graph.constant(indices)
    if fixed is None:
        held = t.held[indices]
        source = t.value(node)
        x = t.plain(source, f"{name}.data")
        extra = len(x.shape) - len(source.shape)
        own_axis = axis % len(source.shape) + extra
        t.net.activation_bits = bits
        result = t.net.gather(
            x, t.plain(held, f"{name}.indices"), axis=own_axis, name=name
        )
        return Held(result, shape)
    if fixed.value is None:
        raise Refusal("too many constant indices")
    if not t.graph.computed(data):
        raise Refusal("its data are constant")
    held = t.held[data]
    axis %= len(held.shape)
    size = held.shape[axis]
    chosen = [int(i) % size for i in np.asarray(fixed.value).reshape(-1)]
    x = t.plain(held, f"{name}.data")
    own_axis = axis + len(x.shape) - len(held.shape)
    t.moves(held)
    if len(chosen) == size and chosen == list(range(size)):
        return reshaped(t, held, shape, name)
    spread = chosen[-1] + 1 - chosen[0]
    if len(chosen) == spread and chosen == list(range(chosen[0], chosen[-1] + 1)):
        part = t.net.slice(x, own_axis, chosen[0], chosen[-1] + 1, name=name)
    else:
        part = t.net.gather(x, chosen, axis=own_axis, name=name)
    sized = (*held.shape[:axis], len(chosen), *held.shape[axis + 1 :])
    return reshaped(t, Held(part, sized), shape, f"{name}.shape")


@handles("Expand", "Tile")
def expand(t: Translator, node: Node) -> Held:
    """Repeat elements: a gather of the same ones, or a concatenation."""
    held, shape = t.value(node), t.shape(node.output)
    if prod(shape) == prod(held.shape):
        return reshaped(t, held, shape, node.name)
    aligned = (1,) * (len(shape) - len(held.shape)) + held.shape
    held = reshaped(t, held, aligned, f"{node.name}.aligned")
    for axis, (have, want) in enumerate(zip(aligned, shape, strict=True)):
        if have == want:
            continue
        t.moves(held)
        x = t.plain(held, f"{node.name}.input")
        own_axis = axis + len(x.shape) - len(held.shape)
        if want > LONGEST_AXIS:
            raise Refusal(f"it repeats elements to more than {LONGEST_AXIS:,}")
        indices = list(range(have)) * (want // have)
        x = t.net.gather(
            x, indices, axis=own_axis, name=t.unique(f"{node.name}.{axis}")
        )
        held = Held(x, (*held.shape[:axis], want, *held.shape[axis + 1 :]))
    return held


@handles("DepthToSpace", "SpaceToDepth")
def depth_space(t: Translator, node: Node) -> Held:
    """View, transpose, view."""
    held, shape = t.value(node), t.shape(node.output)
    x = as_map(t, held, f"{node.name}.input")
    block = node.integer("blocksize", 1)
    _, channels, rows, columns = x.shape
    if node.operator == "SpaceToDepth":
        split_shape = (1, channels, rows // block, block, columns // block, block)
        crd = node.text("mode", "DCR") == "CRD"
        order = (0, 1, 3, 5, 2, 4) if crd else (0, 3, 5, 1, 2, 4)
    elif node.text("mode", "DCR") == "DCR":
        split_shape = (1, block, block, channels // block**2, rows, columns)
        order = (0, 3, 4, 1, 5, 2)
    else:
        split_shape = (1, channels // block**2, block, block, rows, columns)
        order = (0, 1, 4, 2, 5, 3)
    t.moves(held)
    parts = t.net.reshape(x, split_shape, name=t.unique(f"{node.name}.split"))
    moved = t.net.transpose(parts, order, name=t.unique(node.name))
    return Held(t.net.reshape(moved, shape, name=t.unique(f"{node.name}.join")), shape)


@handles("Resize", "Upsample")
def resize(t: Translator, node: Node) -> Held:
    """Nearest, on any grid; linear, whose grid is not kept.

    Nearest neighbours on another grid than ``position * size // wanted`` are entries
    that are gathered.
    """
    held, shape = t.value(node), t.shape(node.output)
    mode = node.text("mode", "nearest")
    if mode not in ("nearest", "linear"):
        raise Refusal(f"mode {mode!r}")
    if node.text("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise Refusal("it crops")
    if shape == held.shape:
        return held
    if shape[:2] != held.shape[:2]:
        raise Refusal("it changes the channels")
    x = as_map(t, held, f"{node.name}.input")
    size = (shape[2], shape[3] if len(shape) == 4 else 1)
    grids: list[tuple[int, ...]] = []
    for axis in (2, 3):
        have, want = x.shape[axis], size[axis - 2]
        if want > LONGEST_AXIS:
            raise Refusal(f"its side is larger than {LONGEST_AXIS:,}")
        plain = tuple(position * have // want for position in range(want))
        found = plain
        if mode == "nearest" and axis < len(shape):
            scale = _scale(t, node, axis, len(shape))
            chosen = nearest_indices(node, have, want, scale)
            if chosen is None:
                raise Refusal("a sampling grid that is not known")
            found = chosen
        grids.append(() if found == plain else found)
    if not any(grids):
        result = t.net.resize(x, size, mode=mode, name=t.unique(node.name))
        return Held(result, shape)
    for axis, grid in enumerate(grids, 2):
        have, want = x.shape[axis], size[axis - 2]
        entries = grid or tuple(position * have // want for position in range(want))
        if entries != tuple(range(have)):
            t.moves(held)
            label = t.unique(f"{node.name}.{axis}")
            x = t.net.gather(x, entries, axis=axis, name=label)
    return Held(x, shape)


def _scale(t: Translator, node: Node, axis: int, rank: int) -> float | None:
    """The factor along one axis, None where sizes are given."""
    given = node.attributes.get("scales")
    if isinstance(given, tuple) and axis < len(given):
        return float(given[axis])
    upsample = node.operator == "Upsample" or node.opset < 11
    name = node.given(1 if upsample else 2)
    info = t.graph.constant(name)
    if info is None or info.value is None or not info.value.size:
        return None
    values = [float(v) for v in info.value.reshape(-1)]
    axes = [a % rank for a in node.integers("axes") or range(rank)]
    return dict(zip(axes, values, strict=False)).get(axis)
