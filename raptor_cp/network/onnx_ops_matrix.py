"""Convolutions and matrix products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from raptor_cp.network.onnx_moves import HEADS_NODE
from raptor_cp.network.onnx_nodes import QUANTISED
from raptor_cp.network.onnx_translation import (
    Held,
    Refusal,
    Translator,
    canonical,
    handles,
    microsoft,
    own,
)
from raptor_cp.network.shapes import auto_pads

if TYPE_CHECKING:
    from raptor_cp.network.onnx_nodes import Node, Shape
    from raptor_cp.network.operations import Tensor

Pads = tuple[int, int, int, int]


def as_map(t: Translator, held: Held, name: str) -> Tensor:
    """A feature map: ``(1, C, H, W)``, or ``(1, C, L, 1)`` for ``(1, C, L)``.

    Raises:
        Refusal: another number of spatial dimensions, or a batch other than 1.
    """
    shape = held.shape
    if len(shape) == 5:
        raise Refusal("three spatial dimensions")
    if len(shape) not in (3, 4):
        raise Refusal(f"no feature map: shape {shape}")
    if shape[0] != 1:
        raise Refusal(f"batch {shape[0]}: one inference at a time")
    wanted = (*shape, 1) if len(shape) == 3 else shape
    return t.viewed(held.tensor, wanted, name)


def pair(
    values: tuple[int, ...] | None, rank: int, default: int = 1
) -> tuple[int, int]:
    """(rows, columns) of an attribute with one entry per spatial dimension."""
    if values is None:
        return (default, default)
    if len(values) != rank - 2:
        raise Refusal(f"{len(values)} values for {rank - 2} spatial dimensions")
    return (values[0], values[1]) if rank == 4 else (values[0], 1 if default else 0)


def window_pads(
    t: Translator,
    node: Node,
    shape: Shape,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
) -> Pads:
    """(top, left, bottom, right) of a window operator."""
    rank = len(shape)
    mode = node.text("auto_pad", "NOTSET")
    if mode != "NOTSET":
        size = (shape[2], shape[3] if rank == 4 else 1)
        return auto_pads(mode, size, kernel, strides, dilations, where=t.net.location)
    pads = node.integers("pads") or (0,) * (2 * (rank - 2))
    if len(pads) != 2 * (rank - 2):
        raise Refusal(f"{len(pads)} pads for {rank - 2} spatial dimensions")
    if rank == 3:
        return (pads[0], 0, pads[1], 0)
    return (pads[0], pads[1], pads[2], pads[3])


def _require_float(t: Translator, name: str) -> None:
    if t.info(name).dtype in QUANTISED and name not in t.graph.bits:
        raise Refusal(
            "integer data: quantised models use QLinear operators or "
            "QuantizeLinear and DequantizeLinear"
        )


def _constant_weight(t: Translator, name: str) -> Shape:
    if t.graph.computed(name):
        raise Refusal("its weights are computed, not constant")
    t.weights(name)
    return t.shape(name)


@handles("Conv", microsoft("FusedConv"))
def conv(t: Translator, node: Node) -> Held:
    """Conv(X, W, B)."""
    _require_float(t, node.inputs[0])
    result = _conv(t, node, node.given(1), node.given(2))
    activation = node.text("activation", "")
    if activation:
        from raptor_cp.network.onnx_ops_elementwise import fused_activation

        return fused_activation(t, node, result, activation)
    return result


@handles("QLinearConv")
def qlinear_conv(t: Translator, node: Node) -> Held:
    """QLinearConv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, B)."""
    return _conv(t, node, node.given(3), node.given(8))


@handles("ConvInteger")
def conv_integer(t: Translator, node: Node) -> Held:
    """ConvInteger(x, w, x_zero, w_zero): 32-bit sums."""
    return _conv(t, node, node.given(1), "")


def _conv(t: Translator, node: Node, weight: str, bias: str) -> Held:
    name = t.unique(node.name)
    held = t.value(node)
    x = as_map(t, held, f"{name}.input")
    rank = len(held.shape)
    kernel_shape = _constant_weight(t, weight)
    kernel = _kernel(node, kernel_shape, rank)
    groups = node.integer("group", 1)
    if groups < 1 or x.shape[1] != kernel_shape[1] * groups:
        raise Refusal(
            f"{groups} group(s) of {kernel_shape[1]} channels do not make the "
            f"{x.shape[1]} channels of the input"
        )
    if kernel_shape[0] % groups:
        raise Refusal(f"{groups} groups do not divide {kernel_shape[0]} outputs")
    if bias and t.graph.computed(bias):
        raise Refusal("its bias is computed, not constant")
    strides = pair(node.integers("strides"), rank)
    dilations = pair(node.integers("dilations"), rank)
    result = t.net.conv(
        x,
        kernel_shape[0],
        kernel,
        stride=strides,
        pad=window_pads(t, node, held.shape, kernel, strides, dilations),
        dilation=dilations,
        groups=groups,
        bias=bool(bias),
        name=name,
    )
    return Held(result, result.shape[: len(held.shape)])


def _kernel(node: Node, weight: Shape, rank: int) -> tuple[int, int]:
    if len(weight) != rank:
        raise Refusal(f"a weight of shape {weight} for data with {rank} dimensions")
    declared = node.integers("kernel_shape")
    if declared is not None and declared != weight[2:]:
        raise Refusal(f"kernel_shape {declared} for a weight of shape {weight}")
    return pair(weight[2:], rank)


@handles("ConvTranspose")
def conv_transpose(t: Translator, node: Node) -> Held:
    """ConvTranspose(X, W, B); W is (C, M/groups, kH, kW)."""
    name = t.unique(node.name)
    held = t.value(node)
    x = as_map(t, held, f"{name}.input")
    rank = len(held.shape)
    weight = _constant_weight(t, node.given(1))
    kernel = _kernel(node, weight, rank)
    if node.given(2) and t.graph.computed(node.given(2)):
        raise Refusal("its bias is computed, not constant")
    groups = node.integer("group", 1)
    strides = pair(node.integers("strides"), rank)
    dilations = pair(node.integers("dilations"), rank)
    extra = pair(node.integers("output_padding"), rank, 0)
    wanted = t.shape(node.output)
    size = wanted[2:] if rank == 4 else (wanted[2], 1)
    sides: list[tuple[int, int]] = []
    explicit = node.integers("pads")
    mode = node.text("auto_pad", "NOTSET")
    for axis in range(2):
        if axis >= rank - 2:
            sides.append((0, 0))
            continue
        if explicit is not None and mode == "NOTSET" and not node.has("output_shape"):
            sides.append((explicit[axis], explicit[axis + rank - 2]))
            continue
        span = dilations[axis] * (kernel[axis] - 1) + 1
        reach = (x.shape[2 + axis] - 1) * strides[axis] + span + extra[axis]
        total = reach - size[axis]
        if total < 0:
            grown = list(extra)
            grown[axis] -= total
            extra, total = (grown[0], grown[1]), 0
        half = total // 2
        upper = mode == "SAME_UPPER"
        sides.append((half, total - half) if upper else (total - half, half))
    result = t.net.conv_transpose(
        x,
        weight[1] * groups,
        kernel,
        stride=strides,
        pad=(sides[0][0], sides[1][0], sides[0][1], sides[1][1]),
        dilation=dilations,
        groups=groups,
        output_padding=extra,
        bias=bool(node.given(2)),
        name=name,
    )
    return Held(result, result.shape[: len(held.shape)])


# -- matrix products ----------------------------------------------------------------


def _times_constant(
    t: Translator, name: str, held: Held, rows: int, columns: int, *, bias: bool
) -> Held:
    """Last axis of ``held`` times a constant matrix."""
    if held.shape[-1] != rows:
        raise Refusal(f"{rows} weights for {held.shape[-1]} features")
    x = held.tensor
    if x.shape[-1] != rows or len(x.shape) > 3:
        # Positions in a row: only the last axis is special.
        count = prod(held.shape) // rows
        flats: dict[int, Shape] = {1: (rows,), 2: (count, rows)}
        flat = flats.get(len(held.shape), (1, count, rows))
        x = t.viewed(x, flat, f"{name}.input")
    result = t.net.gemm(x, columns, bias=bias, name=name)
    return Held(result, (*held.shape[:-1], columns))


def _swapped(t: Translator, held: Held, name: str) -> Held:
    """The two last axes exchanged: a view if one of them is 1."""
    shape = (*held.shape[:-2], held.shape[-1], held.shape[-2])
    t.moves(held)
    if 1 in shape[-2:]:
        return Held(t.viewed(held.tensor, canonical(shape), name), shape)
    x = t.plain(held, name)
    order = list(range(len(x.shape)))
    order[-2:] = order[-1], order[-2]
    return Held(t.net.transpose(x, order, name=t.unique(f"{name}.transpose")), shape)


@handles("Gemm", microsoft("QGemm"))
def gemm(t: Translator, node: Node) -> Held:
    """alpha * A' * B' + beta * C, the factors folded into the constants."""
    quantised = bool(node.domain)
    second = node.given(3 if quantised else 1)
    third = node.given(6 if quantised else 2)
    first = node.inputs[0]
    flip_a, flip_b = bool(node.integer("transA", 0)), bool(node.integer("transB", 0))
    name = t.unique(node.name)
    bits = t.net.activation_bits
    alpha = node.number("alpha", 1.0)
    computed = t.graph.computed(first), t.graph.computed(second)
    constant_bias = bool(third) and not t.graph.computed(third)
    if not quantised:
        _require_float(t, first)
    if computed == (True, True):
        a, b = t.value(node), t.value(node, 1)
        product = t.net.matmul(
            t.plain(a, f"{name}.a"),
            t.plain(b, f"{name}.b"),
            transpose_a=flip_a,
            transpose_b=flip_b,
            scale=alpha,
            name=name,
        )
        result = Held(product, product.shape)
        constant_bias = False
    elif computed[0]:
        weight = _constant_weight(t, second)
        rows, columns = weight[::-1] if flip_b else weight
        held = t.value(node)
        if flip_a:
            held = _swapped(t, held, f"{name}.a")
        t.net.activation_bits = bits
        folds = constant_bias and _is_row(t.shape(third), columns)
        result = _times_constant(t, name, held, rows, columns, bias=folds)
        constant_bias = folds
    else:
        weight = _constant_weight(t, first)
        columns, rows = weight[::-1] if flip_a else weight
        held = t.value(node, 3 if quantised else 1)
        if not flip_b:
            held = _swapped(t, held, f"{name}.b")
        t.net.activation_bits = bits
        result = _times_constant(t, name, held, rows, columns, bias=False)
        result = _swapped(t, result, name)
        constant_bias = False
    if third and not constant_bias:
        shape = t.shape(third)
        other = (
            t.plain(t.held[third], f"{name}.c")
            if t.graph.computed(third)
            else t.constant(third, (1,) * (2 - len(shape)) + shape)
        )
        t.net.activation_bits = bits
        joined = t.net.add(result.tensor, other, name=t.unique(f"{name}.sum"))
        result = Held(joined, joined.shape)
    return result


def _is_row(shape: Shape, columns: int) -> bool:
    return prod(shape) in (1, columns) and (not shape or shape[-1] in (1, columns))


@handles("MatMul")
def matmul(t: Translator, node: Node) -> Held:
    """MatMul(A, B) as in numpy."""
    return _product(t, node, node.inputs[0], node.given(1))


@handles("MatMulInteger")
def matmul_integer(t: Translator, node: Node) -> Held:
    """MatMulInteger(A, B, a_zero, b_zero): 32-bit sums."""
    return _product(t, node, node.inputs[0], node.given(1))


@handles("QLinearMatMul")
def qlinear_matmul(t: Translator, node: Node) -> Held:
    """QLinearMatMul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)."""
    return _product(t, node, node.inputs[0], node.given(3))


def _product(t: Translator, node: Node, first: str, second: str) -> Held:
    name = t.unique(node.name)
    bits = t.net.activation_bits
    computed = t.graph.computed(first), t.graph.computed(second)
    shapes = t.shape(first), t.shape(second)
    if computed[0] and not computed[1] and _is_matrix(shapes[1]):
        weight = _constant_weight(t, second)
        columns = weight[-1] if len(weight) > 1 else 1
        rows = weight[-2] if len(weight) > 1 else weight[0]
        result = _times_constant(t, name, t.held[first], rows, columns, bias=False)
        return Held(result.tensor, t.shape(node.output))
    if computed[1] and not computed[0] and _is_matrix(shapes[0]):
        weight = _constant_weight(t, first)
        columns = weight[-2] if len(weight) > 1 else 1
        rows = weight[-1]
        held = t.held[second]
        if len(held.shape) == 1:
            held = Held(t.viewed(held.tensor, (1, rows), name), (1, rows))
        else:
            held = _swapped(t, held, f"{name}.b")
        t.net.activation_bits = bits
        result = _times_constant(t, name, held, rows, columns, bias=False)
        swapped = _swapped(t, result, name)
        return Held(swapped.tensor, t.shape(node.output))
    a, b = (
        t.held[n] if c else Held(t.constant(n, canonical(s)), s)
        for n, c, s in zip((first, second), computed, shapes, strict=True)
    )
    left = _matrices(t, a, f"{name}.a", vector_row=True)
    right = _matrices(t, b, f"{name}.b", vector_row=False)
    t.net.activation_bits = bits
    tensor = t.net.matmul(left, right, name=name)
    return Held(tensor, t.shape(node.output))


def _is_matrix(shape: Shape) -> bool:
    return prod(shape[:-2]) == 1


def _matrices(t: Translator, held: Held, name: str, *, vector_row: bool) -> Tensor:
    if len(held.shape) == 1:
        size = held.shape[0]
        return t.viewed(held.tensor, (1, size) if vector_row else (size, 1), name)
    return t.plain(held, name)


@handles(own(HEADS_NODE))
def matmul_heads(t: Translator, node: Node) -> Held:
    """A MatMul whose operands are heads of sequences, see ``onnx_moves``."""
    name = t.unique(node.name)
    bits = t.net.activation_bits
    heads = node.integer("heads", 1)
    tensors = []
    for index, side in enumerate("ab"):
        held = t.value(node, index)
        flip = bool(node.integer(f"transpose_{side}", 0))
        if node.has(f"offset_{side}"):
            tensors.append(_channels(t, node, held, index, flip))
        else:
            shape = held.shape[-2:]
            wanted = (1, heads, *shape) if heads > 1 else (1, *shape)
            tensors.append(t.viewed(held.tensor, wanted, f"{name}.{side}"))
    t.net.activation_bits = bits
    result = t.net.matmul(
        tensors[0],
        tensors[1],
        transpose_a=bool(node.integer("transpose_a", 0)),
        transpose_b=bool(node.integer("transpose_b", 0)),
        heads=heads,
        merge_heads=bool(node.integer("merge_heads", 0)),
        scale=node.number("scale", 1.0),
        name=name,
    )
    return Held(result, t.shape(node.output))


def _channels(t: Translator, node: Node, held: Held, index: int, flip: bool) -> Tensor:
    """The channels of a sequence that hold the heads of operand ``index``."""
    width = held.shape[-1]
    length = prod(held.shape) // width
    side = "ab"[index]
    offset = node.integer(f"offset_{side}", 0)
    size = node.integer(f"width_{side}", width)
    name = f"{node.name}.{side}"
    key = (node.inputs[index], offset, size)
    if key not in t.slices:
        x = t.viewed(held.tensor, (1, length, width), name)
        if (offset, size) == (0, width):
            return x
        t.moves(held)
        t.slices[key] = t.net.slice(
            x, 2, offset, offset + size, name=t.unique(f"{name}.channels")
        )
    return t.slices[key]
