"""DenseNet-121 (Huang et al., 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

GROWTH = 32
DEPTHS = (6, 12, 24, 16)


def densenet121(net: NetworkBuilder, image: Tensor) -> Tensor:
    """DenseNet-121; normalisations in front of a convolution stay operations."""
    x = net.conv(
        image, 64, 7, stride=2, pad=3, norm=True, activation=RELU, name="conv0"
    )
    x = net.max_pool(x, 3, stride=2, pad=1, name="pool0")
    for block, depth in enumerate(DEPTHS, 1):
        parts = [x]
        for index in range(1, depth + 1):
            parts.append(_dense_layer(net, parts, f"block{block}.{index}"))
        x = net.concat(parts, name=f"block{block}.concat")
        if block < len(DEPTHS):
            name = f"transition{block}"
            x = _norm_relu(net, x, name)
            x = net.conv(x, x.shape[1] // 2, 1, name=f"{name}.conv")
            x = net.average_pool(x, 2, stride=2, name=f"{name}.pool")
    x = _norm_relu(net, x, "final")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _dense_layer(net: NetworkBuilder, parts: list[Tensor], name: str) -> Tensor:
    x = net.concat(parts, name=f"{name}.concat") if len(parts) > 1 else parts[0]
    x = _norm_relu(net, x, name)
    x = net.conv(x, 4 * GROWTH, 1, norm=True, activation=RELU, name=f"{name}.conv1")
    return net.conv(x, GROWTH, 3, pad=1, name=f"{name}.conv2")


def _norm_relu(net: NetworkBuilder, x: Tensor, name: str) -> Tensor:
    x = net.batch_norm(x, name=f"{name}.norm")
    return net.activate(x, RELU, name=f"{name}.relu")
