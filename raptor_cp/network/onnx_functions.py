"""What small ONNX operators compute, in numpy; and the functions we know.

Used to recognise patterns by evaluating them, never to run a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.network.attributes import RELU, RELU6, Activation, Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.network.onnx_nodes import Node

Array = NDArray[np.float64]


def _erf(x: Array) -> Array:
    """Error function, Abramowitz and Stegun 7.1.26: within 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    series = t * (
        0.254829592
        + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    result: Array = np.sign(x) * (1.0 - series * np.exp(-x * x))
    return result


def _sigmoid(x: Array) -> Array:
    result: Array = 1.0 / (1.0 + np.exp(-x))
    return result


def _softplus(x: Array) -> Array:
    result: Array = np.logaddexp(0.0, x)
    return result


def _gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1.0 + _erf(x / np.sqrt(2.0)))
    return result


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0.0, 1.0)


def _clip(node: Node, x: list[Array]) -> Array:
    low = node.number("min", -np.inf)
    high = node.number("max", np.inf)
    if len(x) > 1 and not np.isnan(x[1]).all():
        low = float(x[1])
    if len(x) > 2 and not np.isnan(x[2]).all():
        high = float(x[2])
    return np.clip(x[0], low, high)


def _elu(node: Node, x: list[Array]) -> Array:
    alpha = node.number("alpha", 1.0)
    return np.where(x[0] < 0, alpha * np.expm1(np.minimum(x[0], 0)), x[0])


#: Elementwise operators: (node, operands) to the result.
ELEMENT_FUNCTIONS: dict[str, Callable[[Node, list[Array]], Array]] = {
    "Abs": lambda n, x: np.abs(x[0]),
    "Add": lambda n, x: x[0] + x[1],
    "Clip": _clip,
    "Div": lambda n, x: x[0] / x[1],
    "Elu": _elu,
    "Erf": lambda n, x: _erf(x[0]),
    "Exp": lambda n, x: np.exp(x[0]),
    "HardSigmoid": lambda n, x: _hard_sigmoid(
        x[0], n.number("alpha", 0.2), n.number("beta", 0.5)
    ),
    "LeakyRelu": lambda n, x: np.where(x[0] < 0, n.number("alpha", 0.01) * x[0], x[0]),
    "Log": lambda n, x: np.log(x[0]),
    "Max": lambda n, x: np.maximum(x[0], x[-1]),
    "Min": lambda n, x: np.minimum(x[0], x[-1]),
    "Mul": lambda n, x: x[0] * x[1],
    "Neg": lambda n, x: -x[0],
    "Pow": lambda n, x: np.power(x[0], x[1]),
    "Reciprocal": lambda n, x: 1.0 / x[0],
    "Relu": lambda n, x: np.maximum(x[0], 0.0),
    "Sigmoid": lambda n, x: _sigmoid(x[0]),
    "Softplus": lambda n, x: _softplus(x[0]),
    "Sqrt": lambda n, x: np.sqrt(x[0]),
    "Sub": lambda n, x: x[0] - x[1],
    "Tanh": lambda n, x: np.tanh(x[0]),
}

#: Reductions of the last axis.
REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "ReduceMax": lambda x: np.asarray(x.max(axis=-1)),
    "ReduceMean": lambda x: np.asarray(x.mean(axis=-1)),
    "ReduceSum": lambda x: np.asarray(x.sum(axis=-1)),
}

#: Functions that a cone is compared with.
KNOWN_FUNCTIONS: tuple[tuple[Activation, Callable[[Array], Array]], ...] = (
    (RELU, lambda x: np.maximum(x, 0.0)),
    (RELU6, lambda x: np.clip(x, 0.0, 6.0)),
    (Activation(Function.GELU), _gelu),
    (Activation(Function.SILU), lambda x: x * _sigmoid(x)),
    (
        Activation(Function.HARD_SWISH),
        lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5),
    ),
    (Activation(Function.MISH), lambda x: x * np.tanh(_softplus(x))),
    (
        Activation(Function.HARD_SIGMOID, 1 / 6, 0.5),
        lambda x: _hard_sigmoid(x, 1 / 6, 0.5),
    ),
    (Activation(Function.HARD_SIGMOID, 0.2, 0.5), lambda x: _hard_sigmoid(x, 0.2, 0.5)),
    (Activation(Function.SIGMOID), _sigmoid),
    (Activation(Function.SOFTPLUS), _softplus),
    (Activation(Function.TANH), np.tanh),
    (Activation(Function.ABS), np.abs),
)
