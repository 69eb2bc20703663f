"""Inception-v3 (Szegedy et al., 2016) without the auxiliary classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder, Pads, Pair
    from raptor_cp.network.operations import Tensor


def inceptionv3(net: NetworkBuilder, image: Tensor) -> Tensor:
    """Inception-v3: modules A, B, C, D, E of the usual implementations."""
    x = _conv(net, image, 32, 3, "stem1", stride=2)
    x = _conv(net, x, 32, 3, "stem2")
    x = _conv(net, x, 64, 3, "stem3", pad=1)
    x = net.max_pool(x, 3, stride=2, name="pool1")
    x = _conv(net, x, 80, 1, "stem4")
    x = _conv(net, x, 192, 3, "stem5")
    x = net.max_pool(x, 3, stride=2, name="pool2")
    for label, pool_width in (("5b", 32), ("5c", 64), ("5d", 64)):
        x = _module_a(net, x, pool_width, f"mixed{label}")
    x = _module_b(net, x, "mixed6a")
    for label, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        x = _module_c(net, x, width, f"mixed{label}")
    x = _module_d(net, x, "mixed7a")
    for label in ("7b", "7c"):
        x = _module_e(net, x, f"mixed{label}")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _module_a(net: NetworkBuilder, x: Tensor, pool_width: int, name: str) -> Tensor:
    one = _conv(net, x, 64, 1, f"{name}.1x1")
    five = _conv(net, x, 48, 1, f"{name}.5x5_1")
    five = _conv(net, five, 64, 5, f"{name}.5x5_2", pad=2)
    double = _conv(net, x, 64, 1, f"{name}.3x3_1")
    double = _conv(net, double, 96, 3, f"{name}.3x3_2", pad=1)
    double = _conv(net, double, 96, 3, f"{name}.3x3_3", pad=1)
    pooled = _pool_branch(net, x, pool_width, name)
    return net.concat((one, five, double, pooled), name=f"{name}.concat")


def _module_b(net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
    three = _conv(net, x, 384, 3, f"{name}.3x3", stride=2)
    double = _conv(net, x, 64, 1, f"{name}.double_1")
    double = _conv(net, double, 96, 3, f"{name}.double_2", pad=1)
    double = _conv(net, double, 96, 3, f"{name}.double_3", stride=2)
    pooled = net.max_pool(x, 3, stride=2, name=f"{name}.pool")
    return net.concat((three, double, pooled), name=f"{name}.concat")


def _module_c(net: NetworkBuilder, x: Tensor, width: int, name: str) -> Tensor:
    row, column = (1, 7), (7, 1)
    one = _conv(net, x, 192, 1, f"{name}.1x1")
    seven = _conv(net, x, width, 1, f"{name}.7x7_1")
    seven = _conv(net, seven, width, row, f"{name}.7x7_2", pad=(0, 3))
    seven = _conv(net, seven, 192, column, f"{name}.7x7_3", pad=(3, 0))
    double = _conv(net, x, width, 1, f"{name}.double_1")
    double = _conv(net, double, width, column, f"{name}.double_2", pad=(3, 0))
    double = _conv(net, double, width, row, f"{name}.double_3", pad=(0, 3))
    double = _conv(net, double, width, column, f"{name}.double_4", pad=(3, 0))
    double = _conv(net, double, 192, row, f"{name}.double_5", pad=(0, 3))
    pooled = _pool_branch(net, x, 192, name)
    return net.concat((one, seven, double, pooled), name=f"{name}.concat")


def _module_d(net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
    three = _conv(net, x, 192, 1, f"{name}.3x3_1")
    three = _conv(net, three, 320, 3, f"{name}.3x3_2", stride=2)
    seven = _conv(net, x, 192, 1, f"{name}.7x7_1")
    seven = _conv(net, seven, 192, (1, 7), f"{name}.7x7_2", pad=(0, 3))
    seven = _conv(net, seven, 192, (7, 1), f"{name}.7x7_3", pad=(3, 0))
    seven = _conv(net, seven, 192, 3, f"{name}.7x7_4", stride=2)
    pooled = net.max_pool(x, 3, stride=2, name=f"{name}.pool")
    return net.concat((three, seven, pooled), name=f"{name}.concat")


def _module_e(net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
    one = _conv(net, x, 320, 1, f"{name}.1x1")
    three = _conv(net, x, 384, 1, f"{name}.3x3_1")
    double = _conv(net, x, 448, 1, f"{name}.double_1")
    double = _conv(net, double, 384, 3, f"{name}.double_2", pad=1)
    parts = [one]
    for label, branch in (("3x3", three), ("double", double)):
        parts.append(_conv(net, branch, 384, (1, 3), f"{name}.{label}_a", pad=(0, 1)))
        parts.append(_conv(net, branch, 384, (3, 1), f"{name}.{label}_b", pad=(1, 0)))
    parts.append(_pool_branch(net, x, 192, name))
    return net.concat(parts, name=f"{name}.concat")


def _pool_branch(net: NetworkBuilder, x: Tensor, width: int, name: str) -> Tensor:
    pooled = net.average_pool(x, 3, pad=1, count_include_pad=True, name=f"{name}.pool")
    return _conv(net, pooled, width, 1, f"{name}.pool_proj")


def _conv(
    net: NetworkBuilder,
    x: Tensor,
    channels: int,
    kernel: Pair,
    name: str,
    *,
    stride: int = 1,
    pad: Pads = 0,
) -> Tensor:
    return net.conv(
        x,
        channels,
        kernel,
        stride=stride,
        pad=pad,
        norm=True,
        activation=RELU,
        name=name,
    )
