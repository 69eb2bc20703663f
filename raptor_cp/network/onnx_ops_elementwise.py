"""Operators that work element by element."""

from __future__ import annotations

from math import inf, isfinite, prod
from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU, Activation, Function, OpKind
from raptor_cp.network.onnx_cones import FUNCTION_NODE
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
    from raptor_cp.network.onnx_nodes import Info, Node, Shape
    from raptor_cp.network.operations import Tensor

#: Masked scores are at most this; the softmax behind makes zeros of them.
_MASKED = -1e4

_SIMPLE = {
    "Abs": Function.ABS,
    "Erf": Function.ERF,
    "Exp": Function.EXP,
    "Gelu": Function.GELU,
    "HardSwish": Function.HARD_SWISH,
    "Log": Function.LOG,
    "Mish": Function.MISH,
    "Neg": Function.NEG,
    "PRelu": Function.PRELU,
    "Reciprocal": Function.RECIPROCAL,
    "Relu": Function.RELU,
    "Sigmoid": Function.SIGMOID,
    "Softplus": Function.SOFTPLUS,
    "Sqrt": Function.SQRT,
    "Tanh": Function.TANH,
}
_KINDS = {
    "Add": OpKind.ADD,
    "Sub": OpKind.SUB,
    "Mul": OpKind.MUL,
    "Div": OpKind.DIV,
    "Max": OpKind.MAXIMUM,
    "Min": OpKind.MINIMUM,
    "Sum": OpKind.ADD,
    "Mean": OpKind.ADD,
}


# -- functions of one element ---------------------------------------------------------


def activate(t: Translator, node: Node, held: Held, function: Activation) -> Held:
    """Apply a function, folded into the producer where nobody else reads it."""
    fold = t.single_use(node.inputs[0])
    x = t.net.activate(held.tensor, function, fold=fold, name=t.unique(node.name))
    return Held(x, held.shape)


def fused_activation(t: Translator, node: Node, held: Held, name: str) -> Held:
    """The activation attribute of a fused operator."""
    parameters = node.attributes.get("activation_params")
    values = parameters if isinstance(parameters, tuple) else ()
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if name == "Clip" and len(numbers) == 2:
        function = _clip(numbers[0], numbers[1])
    elif name == "LeakyRelu":
        function = Activation(Function.LEAKY_RELU, (numbers or [0.01])[0])
    elif name in _SIMPLE:
        function = Activation(_SIMPLE[name])
    else:
        raise Refusal(f"fused activation {name}")
    x = t.net.activate(held.tensor, function, name=t.unique(f"{node.name}.activation"))
    return Held(x, held.shape)


@handles(*_SIMPLE, microsoft("Gelu"), microsoft("FastGelu"), microsoft("QuickGelu"))
def simple(t: Translator, node: Node) -> Held:
    """Functions without parameters (the slopes of PRelu are constants)."""
    if node.operator == "QuickGelu":
        raise Refusal("x * sigmoid(alpha x) has no counterpart")
    if node.operator == "PRelu" and t.graph.computed(node.given(1)):
        raise Refusal("its slope is computed, not constant")
    function = Function.GELU if node.operator == "FastGelu" else _SIMPLE[node.operator]
    held = t.value(node)
    if node.operator == "PRelu" and not _along_channels(t, held, node.given(1)):
        raise Refusal("its slopes vary along another axis than the channels")
    if node.operator == "FastGelu" and node.given(1):
        held = _with_constant(t, node, OpKind.ADD, held, node.inputs[1], False)
        x = t.net.activate(
            held.tensor, Activation(function), name=t.unique(f"{node.name}.function")
        )
        return Held(x, held.shape)
    return activate(t, node, held, Activation(function))


@handles(own(FUNCTION_NODE))
def recognised(t: Translator, node: Node) -> Held:
    """A function that was written as several operators."""
    function = node.attributes["activation"]
    if not isinstance(function, Activation):
        raise TypeError("a function node without its activation")
    return activate(t, node, t.value(node), function)


@handles("LeakyRelu", microsoft("QLinearLeakyRelu"))
def leaky_relu(t: Translator, node: Node) -> Held:
    """x, or alpha * x below zero."""
    slope = node.number("alpha", 0.01)
    return activate(t, node, t.value(node), Activation(Function.LEAKY_RELU, slope))


@handles(microsoft("QLinearSigmoid"))
def qlinear_sigmoid(t: Translator, node: Node) -> Held:
    """Sigmoid of quantised data."""
    return activate(t, node, t.value(node), Activation(Function.SIGMOID))


@handles("Elu", "Celu")
def elu(t: Translator, node: Node) -> Held:
    """Exponential linear unit; Celu differs in its slope only."""
    alpha = node.number("alpha", 1.0)
    if node.operator == "Celu" and alpha != 1.0:
        raise Refusal("a Celu with alpha other than 1")
    return activate(t, node, t.value(node), Activation(Function.ELU, alpha))


@handles("HardSigmoid")
def hard_sigmoid(t: Translator, node: Node) -> Held:
    """max(0, min(1, alpha * x + beta))."""
    slope, offset = node.number("alpha", 0.2), node.number("beta", 0.5)
    function = Activation(Function.HARD_SIGMOID, slope, offset)
    return activate(t, node, t.value(node), function)


@handles("Swish")
def swish(t: Translator, node: Node) -> Held:
    """x * sigmoid(alpha * x)."""
    if node.number("alpha", 1.0) != 1.0:
        raise Refusal("a Swish with alpha other than 1")
    return activate(t, node, t.value(node), Activation(Function.SILU))


@handles("Clip")
def clip(t: Translator, node: Node) -> Held:
    """Limits as attributes (to opset 10) or as inputs."""
    low, high = node.number("min", -inf), node.number("max", inf)
    for index in (1, 2):
        name = node.given(index)
        if not name:
            continue
        info = t.graph.constant(name)
        number = info.scalar if info is not None else None
        if number is None:
            raise Refusal("its limits are not constant")
        low, high = (number, high) if index == 1 else (low, number)
    low = -inf if low <= -3e38 else low
    high = inf if high >= 3e38 else high
    held = t.value(node)
    if (low, high) == (-inf, inf):
        return held
    if isfinite(low) != isfinite(high) and low != 0.0:
        kind, limit = (OpKind.MAXIMUM, low) if isfinite(low) else (OpKind.MINIMUM, high)
        x = t.net.binary(kind, held.tensor, limit, name=t.unique(node.name))
        return Held(x, held.shape)
    return activate(t, node, held, _clip(low, high))


def _clip(low: float, high: float) -> Activation:
    if low == 0.0 and not isfinite(high):
        return RELU
    return Activation(Function.CLIP, low, high)


@handles("Pow")
def power(t: Translator, node: Node) -> Held:
    """Small constant exponents."""
    info = t.graph.constant(node.given(1))
    exponent = info.scalar if info is not None else None
    held = t.value(node)
    simple_powers = {0.5: Function.SQRT, -1.0: Function.RECIPROCAL}
    if exponent == 1.0:
        return held
    if exponent == 2.0:
        x = t.net.mul(held.tensor, held.tensor, name=t.unique(node.name))
        return Held(x, held.shape)
    if exponent in simple_powers:
        return activate(t, node, held, Activation(simple_powers[exponent]))
    if exponent == 3.0:
        label = t.unique(f"{node.name}.square")
        square = t.net.mul(held.tensor, held.tensor, name=label)
        return Held(
            t.net.mul(square, held.tensor, name=t.unique(node.name)), held.shape
        )
    raise Refusal("an exponent other than 2, 3, 1/2 and -1")


# -- two operands ---------------------------------------------------------------------


@handles("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
def elementwise(t: Translator, node: Node) -> Held:
    """Two or more operands, numbers and constant vectors folded where possible."""
    kind = _KINDS[node.operator]
    names = list(node.inputs)
    if len(names) == 1:
        return t.value(node)
    if len(names) > 2 or node.operator == "Mean":
        return _many(t, node, kind, names)
    first, second = names
    if t.graph.computed(first) and t.graph.computed(second):
        return _two(t, node.name, kind, t.held[first], t.held[second])
    if t.graph.computed(first):
        return _with_constant(t, node, kind, t.held[first], second, False)
    return _with_constant(t, node, kind, t.held[second], first, True)


@handles(microsoft("QLinearAdd"), microsoft("QLinearMul"))
def qlinear_binary(t: Translator, node: Node) -> Held:
    """(A, A_scale, A_zero, B, B_scale, B_zero, C_scale, C_zero)."""
    kind = OpKind.ADD if node.operator == "QLinearAdd" else OpKind.MUL
    first, second = node.inputs[0], node.given(3)
    if t.graph.computed(first) and t.graph.computed(second):
        return _two(t, node.name, kind, t.held[first], t.held[second])
    if t.graph.computed(first):
        return _with_constant(t, node, kind, t.held[first], second, False)
    return _with_constant(t, node, kind, t.held[second], first, True)


@handles(microsoft("BiasGelu"))
def bias_gelu(t: Translator, node: Node) -> Held:
    """gelu(x + bias)."""
    held = _with_constant(t, node, OpKind.ADD, t.value(node), node.inputs[1], False)
    x = t.net.activate(
        held.tensor,
        Activation(Function.GELU),
        name=t.unique(f"{node.name}.gelu"),
    )
    return Held(x, held.shape)


def _many(t: Translator, node: Node, kind: OpKind, names: list[str]) -> Held:
    held = t.value(node, 0)
    for index in range(1, len(names)):
        last = index == len(names) - 1 and node.operator != "Mean"
        name = node.name if last else f"{node.name}.{index}"
        held = _two(t, name, kind, held, t.value(node, index))
    if node.operator == "Mean":
        x = t.net.mul(held.tensor, 1 / len(names), name=t.unique(node.name))
        held = Held(x, held.shape)
    return held


def _two(t: Translator, name: str, kind: OpKind, a: Held, b: Held) -> Held:
    """Two tensors, in the layout they share or else in the model's."""
    same = a.shape == b.shape and a.tensor.shape == b.tensor.shape
    bits = t.net.activation_bits
    left = a.tensor if same else t.plain(a, f"{name}.a")
    right = b.tensor if same else t.plain(b, f"{name}.b")
    shape = _broadcast(a.shape, b.shape)
    rank = len(canonical(shape))
    if not same:
        left = _ranked(t, left, rank, f"{name}.a")
        right = _ranked(t, right, rank, f"{name}.b")
    t.net.activation_bits = bits
    return Held(t.net.binary(kind, left, right, name=t.unique(name)), shape)


def _ranked(t: Translator, x: Tensor, rank: int, name: str) -> Tensor:
    """Leading dimensions of one, so that both operands have the same rank."""
    missing = rank - len(x.shape)
    return t.viewed(x, (1,) * missing + x.shape, name) if missing > 0 else x


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    return tuple(max(x, y) for x, y in zip(left, right, strict=True))


def _with_constant(
    t: Translator, node: Node, kind: OpKind, held: Held, name: str, first: bool
) -> Held:
    """A tensor and a constant; ``first``: the constant stands on the left."""
    info = t.info(name)
    if info.elements == 1:
        if len(info.shape or ()) <= len(held.shape):
            return _with_number(t, node, kind, held, info, first)
    elif kind in (OpKind.ADD, OpKind.SUB, OpKind.MUL) or (
        kind is OpKind.DIV and not first
    ):
        axis = _vector_axis(info.shape or (), held.shape)
        if axis is not None:
            linear = _along(t, node, kind, held, axis)
            if linear is not None:
                return linear
    return _with_tensor(t, node, kind, held, name, first)


def _with_number(
    t: Translator, node: Node, kind: OpKind, held: Held, info: Info, first: bool
) -> Held:
    number = info.scalar
    x = held.tensor
    label = t.unique(node.name)
    shift = kind in (OpKind.ADD, OpKind.SUB)
    neutral = {OpKind.ADD: 0.0, OpKind.SUB: 0.0, OpKind.MUL: 1.0, OpKind.DIV: 1.0}
    keeps = not first or kind in (OpKind.ADD, OpKind.MUL)
    if keeps and number == neutral.get(kind):
        return held
    linear = kind in (OpKind.ADD, OpKind.SUB, OpKind.MUL) or not first
    linear = linear and kind not in (OpKind.MAXIMUM, OpKind.MINIMUM)
    if linear and t.single_use(_computed_input(t, node)):
        folded = t.net.fold_constant(x, None, shift=shift, name=label)
        if folded is not None:
            return Held(folded, held.shape)
    if kind is OpKind.MAXIMUM and number == 0.0:
        return activate(t, node, held, RELU)
    scalar = 1.0 if number is None or not isfinite(number) else number
    result = t.net.binary(kind, x, scalar, scalar_first=first, name=label)
    return Held(result, held.shape)


def _computed_input(t: Translator, node: Node) -> str:
    return next(name for name in node.inputs if t.graph.computed(name))


def _vector_axis(constant: Shape, shape: Shape) -> int | None:
    """The one axis of ``shape`` along which a constant varies."""
    if len(constant) > len(shape):
        return None
    aligned = (1,) * (len(shape) - len(constant)) + constant
    axes = [axis for axis, size in enumerate(aligned) if size != 1]
    if len(axes) != 1 or aligned[axes[0]] != shape[axes[0]]:
        return None
    return axes[0]


def _along(
    t: Translator, node: Node, kind: OpKind, held: Held, axis: int
) -> Held | None:
    """A linear function along one axis: folded, or a SCALE."""
    try:
        own_axis = held.axis(axis)
    except Refusal:
        return None
    if held.tensor.shape[own_axis] != held.shape[axis]:
        return None
    name = t.unique(node.name)
    shift = kind in (OpKind.ADD, OpKind.SUB)
    if t.single_use(_computed_input(t, node)):
        folded = t.net.fold_constant(held.tensor, own_axis, shift=shift, name=name)
        if folded is not None:
            return Held(folded, held.shape)
    if shift and not _is_channel(held, own_axis):
        return None
    x = t.net.scale(held.tensor, own_axis, vectors=1, name=name)
    return Held(x, held.shape)


def _along_channels(t: Translator, held: Held, name: str) -> bool:
    """True for a constant number, or one number for each channel."""
    if t.info(name).elements == 1:
        return True
    axis = _vector_axis(t.shape(name), held.shape)
    if axis is None:
        return False
    try:
        own_axis = held.axis(axis)
    except Refusal:
        return False
    return _is_channel(held, own_axis)


def _is_channel(held: Held, axis: int) -> bool:
    rank = len(held.tensor.shape)
    return axis == (1 if rank >= 4 else rank - 1)


def _with_tensor(
    t: Translator, node: Node, kind: OpKind, held: Held, name: str, first: bool
) -> Held:
    constant_shape = t.shape(name)
    shape = _broadcast(held.shape, constant_shape)
    rank = len(canonical(shape))
    label = t.unique(node.name)
    bits = t.net.activation_bits
    x = _ranked(t, t.plain(held, f"{label}.x"), rank, f"{label}.x")
    other = t.constant(name, (1,) * (rank - len(constant_shape)) + constant_shape)
    t.net.activation_bits = bits
    operands = (other, x) if first else (x, other)
    return Held(t.net.binary(kind, *operands, name=label), shape)


@handles("Where")
def where(t: Translator, node: Node) -> Held:
    """Masked scores in front of a softmax: a sum with the mask."""
    condition, yes, no = node.inputs[0], node.given(1), node.given(2)
    kept, masked = (no, yes) if t.graph.computed(no) else (yes, no)
    info = t.graph.constant(masked)
    number = info.scalar if info is not None else None
    readers = [n for n in t.graph.nodes if node.output in n.inputs]
    softmax = readers and all(n.operator == "Softmax" for n in readers)
    if number is None or number > _MASKED or not softmax or not t.graph.computed(kept):
        raise Refusal("a choice between values, other than a mask before a softmax")
    held = t.held[kept]
    if t.graph.computed(condition):
        return _two(t, node.name, OpKind.ADD, held, t.held[condition])
    if prod(t.shape(condition)) == 1:
        return held
    return _with_tensor(t, node, OpKind.ADD, held, condition, False)
