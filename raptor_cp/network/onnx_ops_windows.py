"""Pooling, reductions and normalisations."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from raptor_cp.network.attributes import (
    Activation,
    Function,
    PoolFunction,
    ReduceFunction,
)
from raptor_cp.network.onnx_nodes import BOOL
from raptor_cp.network.onnx_ops_matrix import as_map, pair, window_pads
from raptor_cp.network.onnx_ops_moves import reshaped
from raptor_cp.network.onnx_translation import (
    Held,
    Refusal,
    Translator,
    handles,
    microsoft,
    own,
)

if TYPE_CHECKING:
    from raptor_cp.network.onnx_nodes import Node

_REDUCE = {
    "ReduceMean": ReduceFunction.MEAN,
    "ReduceSum": ReduceFunction.SUM,
    "ReduceMax": ReduceFunction.MAX,
    "ReduceMin": ReduceFunction.MIN,
    "ReduceL1": ReduceFunction.SUM,
    "ReduceL2": ReduceFunction.SUM,
    "ReduceSumSquare": ReduceFunction.SUM,
}
#: Applied to the elements before a reduction, and to the result.
_BEFORE = {
    "ReduceL1": Function.ABS,
    "ReduceL2": Function.SQUARE,
    "ReduceSumSquare": Function.SQUARE,
}
_AFTER = {"ReduceL2": Function.SQRT}


@handles("MaxPool", "AveragePool", microsoft("QLinearAveragePool"))
def pool(t: Translator, node: Node) -> Held:
    """Windows with pads, dilation, ceil_mode and count_include_pad."""
    held = t.value(node)
    if node.integer("channels_last", 0):
        raise Refusal("channels last")
    maximum = node.operator == "MaxPool"
    x = as_map(t, held, f"{node.name}.input")
    rank = len(held.shape)
    declared = node.integers("kernel_shape")
    if declared is None:
        raise Refusal("no kernel_shape")
    kernel = pair(declared, rank)
    strides = pair(node.integers("strides"), rank)
    dilations = pair(node.integers("dilations"), rank)
    result = t.net.pool(
        PoolFunction.MAX if maximum else PoolFunction.AVERAGE,
        x,
        kernel,
        stride=strides,
        pad=window_pads(t, node, held.shape, kernel, strides, dilations),
        dilation=dilations,
        ceil_mode=bool(node.integer("ceil_mode", 0)),
        count_include_pad=bool(node.integer("count_include_pad", 0)),
        name=t.unique(node.name),
    )
    return Held(result, result.shape[:rank])


@handles("GlobalAveragePool", "GlobalMaxPool", microsoft("QLinearGlobalAveragePool"))
def global_pool(t: Translator, node: Node) -> Held:
    """One value for each channel."""
    held = t.value(node)
    if node.integer("channels_last", 0):
        raise Refusal("channels last")
    x = as_map(t, held, f"{node.name}.input")
    maximum = node.operator == "GlobalMaxPool"
    function = ReduceFunction.MAX if maximum else ReduceFunction.MEAN
    result = t.net.reduce(function, x, (2, 3), name=t.unique(node.name))
    return Held(result, result.shape[: len(held.shape)])


@handles(*_REDUCE)
def reduce(t: Translator, node: Node) -> Held:
    """Reductions over constant axes; norms are functions around a sum."""
    held = t.value(node)
    rank = len(held.shape)
    axes = node.integers("axes")
    if node.given(1):
        info = t.graph.constant(node.given(1))
        if info is None or info.value is None:
            raise Refusal("its axes are not constant")
        axes = tuple(int(axis) for axis in info.value.reshape(-1))
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            return held
        axes = tuple(range(rank))
    axes = tuple(sorted({axis % rank for axis in axes}))
    x = held.tensor
    before, after = _BEFORE.get(node.operator), _AFTER.get(node.operator)
    if before is not None:
        fold = t.single_use(node.inputs[0])
        name = t.unique(f"{node.name}.{before.value}")
        x = t.net.activate(x, Activation(before), fold=fold, name=name)
        held = Held(x, held.shape)
    shape = t.shape(node.output)
    try:
        own_axes = {held.axis(axis) for axis in axes}
    except Refusal:
        own_axes = set()
    if len(own_axes) != len(axes) or len(x.shape) < rank:
        x = t.plain(held, f"{node.name}.input")
        own_axes = {axis + len(x.shape) - rank for axis in axes}
    moved = [axis for axis in sorted(own_axes) if x.shape[axis] != 1]
    if not moved:
        return reshaped(t, held, shape, node.name)
    result = t.net.reduce(
        _REDUCE[node.operator], x, moved, keep_dims=True, name=t.unique(node.name)
    )
    if after is not None:
        name = t.unique(f"{node.name}.{after.value}")
        result = t.net.activate(result, Activation(after), name=name)
    kept = tuple(1 if a in axes else size for a, size in enumerate(held.shape))
    return reshaped(t, Held(result, kept), shape, f"{node.name}.shape")


@handles("Softmax", "LogSoftmax", own("Softmax"), microsoft("QLinearSoftmax"))
def softmax(t: Translator, node: Node) -> Held:
    """Along one axis; before opset 13 over all axes from ``axis`` on."""
    held = t.value(node)
    rank = len(held.shape)
    whole = not node.domain and node.opset < 13
    axis = node.integer("axis", 1 if whole else -1) % rank
    log = node.operator == "LogSoftmax"
    name = t.unique(node.name)
    if whole:
        wide = [a for a in range(axis, rank) if held.shape[a] != 1]
        if len(wide) > 1:
            outer = prod(held.shape[:axis])
            flat = reshaped(t, held, (outer, prod(held.shape[axis:])), f"{name}.flat")
            x = t.net.softmax(flat.tensor, axis=1, log=log, name=name)
            flat = Held(x, flat.shape)
            return reshaped(t, flat, held.shape, f"{name}.shape")
        axis = wide[0] if wide else axis
    x = t.net.softmax(held.tensor, axis=held.axis(axis), log=log, name=name)
    return Held(x, held.shape)


@handles("BatchNormalization")
def batch_norm(t: Translator, node: Node) -> Held:
    """Folded into the convolution or product in front, or a SCALE."""
    if node.integer("training_mode", 0):
        raise Refusal("training mode")
    if any(t.graph.computed(name) for name in node.inputs[1:]):
        raise Refusal("its statistics are computed, not constant")
    held = t.value(node)
    axis = held.axis(1 if len(held.shape) > 1 else 0)
    name = t.unique(node.name)
    if t.single_use(node.inputs[0]):
        folded = t.net.fold_constant(held.tensor, axis, shift=True, name=name)
        if folded is not None:
            return Held(folded, held.shape)
    return Held(t.net.scale(held.tensor, axis, name=name), held.shape)


@handles("LayerNormalization", own("LayerNormalization"))
def layer_norm(t: Translator, node: Node) -> Held:
    """Over the last axes, then scale and shift."""
    held = t.value(node)
    rank = len(held.shape)
    axis = node.integer("axis", -1) % rank
    name = t.unique(node.name)
    if node.domain:
        bias = bool(node.attributes.get("bias", True))
        parameters = node.integer("parameters", 0)
    else:
        if any(t.graph.computed(name) for name in node.inputs[1:]):
            raise Refusal("its scale is computed, not constant")
        bias = bool(node.given(2))
        sizes = [t.info(n).elements for n in node.inputs[1:] if n]
        parameters = sum(sizes)
    x = held.tensor
    own_axis = held.axis(axis)
    if prod(x.shape[own_axis:]) != prod(held.shape[axis:]):
        x = t.plain(held, f"{name}.input")
        own_axis = axis + len(x.shape) - rank
    result = t.net.layer_norm(
        x,
        axis=own_axis,
        epsilon=node.number("epsilon", 1e-5),
        bias=bias,
        parameters=parameters,
        name=name,
    )
    return Held(result, held.shape)


@handles("RMSNormalization", microsoft("SimplifiedLayerNormalization"))
@handles("SimplifiedLayerNormalization")
def rms_norm(t: Translator, node: Node) -> Held:
    """Over the last axes, without a mean and without a shift."""
    held = t.value(node)
    axis = node.integer("axis", -1) % len(held.shape)
    x = t.plain(held, f"{node.name}.input")
    own_axis = axis + len(x.shape) - len(held.shape)
    result = t.net.layer_norm(
        x,
        axis=own_axis,
        epsilon=node.number("epsilon", 1e-5),
        bias=False,
        name=t.unique(node.name),
    )
    return Held(result, held.shape)


@handles(microsoft("SkipLayerNormalization"))
def skip_layer_norm(t: Translator, node: Node) -> Held:
    """LayerNormalization(input + skip (+ bias))."""
    first, second = t.value(node), t.value(node, 1)
    name = t.unique(node.name)
    x = t.net.add(
        t.plain(first, f"{name}.input"),
        t.plain(second, f"{name}.skip"),
        name=t.unique(f"{name}.sum"),
    )
    result = t.net.layer_norm(
        x, epsilon=node.number("epsilon", 1e-12), bias=bool(node.given(3)), name=name
    )
    return Held(result, t.shape(node.output))


@handles("InstanceNormalization", "GroupNormalization")
def group_norm(t: Translator, node: Node) -> Held:
    """Normalise each group of channels, then scale and shift channels."""
    held = t.value(node)
    x = as_map(t, held, f"{node.name}.input")
    _, channels, rows, columns = x.shape
    instance = node.operator == "InstanceNormalization"
    groups = channels if instance else node.integer("num_groups", 1)
    epsilon = node.number("epsilon", 1e-5)
    name = t.unique(node.name)
    bits = t.net.activation_bits
    if groups == channels:
        result = t.net.layer_norm(
            x, axis=2, epsilon=epsilon, parameters=2 * channels, name=name
        )
        return Held(result, held.shape)
    split = t.viewed(x, (1, groups, channels // groups, rows, columns), name)
    t.net.activation_bits = bits
    normal = t.net.layer_norm(
        split, axis=2, epsilon=epsilon, bias=False, parameters=0, name=name
    )
    joined = t.viewed(normal, x.shape, name)
    result = t.net.scale(joined, 1, name=t.unique(f"{name}.scale"))
    return Held(result, held.shape)


@handles("MeanVarianceNormalization")
def mean_variance(t: Translator, node: Node) -> Held:
    """Over the last axes."""
    held = t.value(node)
    rank = len(held.shape)
    axes = sorted(axis % rank for axis in node.integers("axes") or (0, 2, 3))
    wide = [axis for axis in axes if held.shape[axis] != 1]
    if not wide or wide != list(range(wide[0], rank)):
        raise Refusal("its axes are not the last ones")
    x = t.plain(held, f"{node.name}.input")
    result = t.net.layer_norm(
        x,
        axis=wide[0] + len(x.shape) - rank,
        bias=False,
        parameters=0,
        name=t.unique(node.name),
    )
    return Held(result, held.shape)


@handles("LRN")
def lrn(t: Translator, node: Node) -> Held:
    """Local response normalisation over channels."""
    held = t.value(node)
    if len(held.shape) != 4:
        raise Refusal(f"no feature map: shape {held.shape}")
    x = as_map(t, held, f"{node.name}.input")
    result = t.net.lrn(
        x,
        node.integer("size", 1),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        bias=node.number("bias", 1.0),
        name=t.unique(node.name),
    )
    return Held(result, held.shape)


#: Attributes of Attention that do not change its work, or are looked at.
_ATTENTION = (
    "is_causal",
    "kv_num_heads",
    "q_num_heads",
    "qk_matmul_output_mode",
    "scale",
    "softcap",
    "softmax_precision",
)


@handles("Attention")
def attention(t: Translator, node: Node) -> Held:
    """softmax(Q K' * scale + mask) V without a cache, as many keys as queries."""
    if any(node.given(i) for i in (4, 5, 6)) or node.integer("is_causal", 0):
        raise Refusal("a cache or a causal mask")
    further = [name for name in node.attributes if name not in _ATTENTION]
    if further:
        raise Refusal(f"attribute {further[0]!r}")
    if node.number("softcap", 0.0):
        raise Refusal("a soft cap")
    query, key, value = (t.value(node, index) for index in range(3))
    stacked = len(query.shape) == 4
    heads = query.shape[1] if stacked else node.integer("q_num_heads", 1)
    if (key.shape[1] if stacked else node.integer("kv_num_heads", heads)) != heads:
        raise Refusal("fewer heads of keys than of queries")
    name = t.unique(node.name)
    bits = t.net.activation_bits
    size = query.shape[-1] if stacked else query.shape[-1] // heads
    scores = t.net.matmul(
        t.plain(query, f"{name}.query"),
        t.plain(key, f"{name}.key"),
        transpose_b=True,
        heads=heads,
        scale=node.number("scale", size**-0.5),
        name=f"{name}.scores",
    )
    if node.given(3):
        mask_shape = t.shape(node.inputs[3])
        if t.info(node.inputs[3]).dtype == BOOL:
            t.net.notes.append(
                f"{node.where}: the mask that chooses is priced as added"
            )
        ranked = (1,) * (4 - len(mask_shape)) + mask_shape
        if t.graph.computed(node.inputs[3]):
            mask = t.viewed(t.value(node, 3).tensor, ranked, f"{name}.mask")
        else:
            mask = t.constant(node.inputs[3], ranked)
        t.net.activation_bits = bits
        scores = t.net.add(scores, mask, name=f"{name}.masked")
    weights = t.net.softmax(scores, name=f"{name}.softmax")
    result = t.net.matmul(
        weights,
        t.plain(value, f"{name}.value"),
        heads=heads,
        merge_heads=not stacked and heads > 1,
        name=name,
    )
    shape = t.shape(node.output)
    return reshaped(t, Held(result, shape), shape, f"{name}.shape")
