"""Networks for phones: MobileNetV2 and ShuffleNetV2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU, RELU6

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

#: (expansion, channels, repeats, first stride); table 2 of the paper.
MOBILENETV2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
#: (channels, units) of stages 2 to 4 at width x1.0; table 5 of the paper.
SHUFFLENETV2_STAGES = ((116, 4), (232, 8), (464, 4))


def mobilenetv2(net: NetworkBuilder, image: Tensor) -> Tensor:
    """MobileNetV2 at width 1.0 (Sandler et al., 2018)."""
    x = net.conv(
        image, 32, 3, stride=2, pad=1, norm=True, activation=RELU6, name="stem"
    )
    number = 0
    for expansion, channels, repeats, first_stride in MOBILENETV2_STAGES:
        for index in range(repeats):
            number += 1
            stride = first_stride if index == 0 else 1
            name = f"block{number}"
            x = _inverted_residual(net, x, expansion, channels, stride, name)
    x = net.conv(x, 1280, 1, norm=True, activation=RELU6, name="head")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _inverted_residual(
    net: NetworkBuilder,
    x: Tensor,
    expansion: int,
    channels: int,
    stride: int,
    name: str,
) -> Tensor:
    hidden = expansion * x.shape[1]
    y = x
    if expansion > 1:
        y = net.conv(y, hidden, 1, norm=True, activation=RELU6, name=f"{name}.expand")
    y = net.conv(
        y,
        hidden,
        3,
        stride=stride,
        pad=1,
        groups=hidden,
        norm=True,
        activation=RELU6,
        name=f"{name}.depthwise",
    )
    y = net.conv(y, channels, 1, norm=True, name=f"{name}.project")
    if stride == 1 and x.shape[1] == channels:
        y = net.add(y, x, name=f"{name}.add")
    return y


def shufflenetv2(net: NetworkBuilder, image: Tensor) -> Tensor:
    """ShuffleNetV2 at width x1.0 (Ma et al., 2018)."""
    x = net.conv(
        image, 24, 3, stride=2, pad=1, norm=True, activation=RELU, name="conv1"
    )
    x = net.max_pool(x, 3, stride=2, pad=1, name="maxpool")
    for stage, (channels, units) in enumerate(SHUFFLENETV2_STAGES, 2):
        x = _shuffle_down(net, x, channels // 2, f"stage{stage}.0")
        for index in range(1, units):
            x = _shuffle_unit(net, x, channels // 2, f"stage{stage}.{index}")
    x = net.conv(x, 1024, 1, norm=True, activation=RELU, name="conv5")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _shuffle_down(net: NetworkBuilder, x: Tensor, half: int, name: str) -> Tensor:
    left = _depthwise(net, x, 2, f"{name}.left.depthwise")
    left = net.conv(
        left, half, 1, norm=True, activation=RELU, name=f"{name}.left.point"
    )
    right = _shuffle_branch(net, x, half, 2, name)
    joined = net.concat((left, right), name=f"{name}.concat")
    return net.channel_shuffle(joined, 2, name=f"{name}.shuffle")


def _shuffle_unit(net: NetworkBuilder, x: Tensor, half: int, name: str) -> Tensor:
    kept, changed = net.split(x, (half, half), name=f"{name}.split")
    right = _shuffle_branch(net, changed, half, 1, name)
    joined = net.concat((kept, right), name=f"{name}.concat")
    return net.channel_shuffle(joined, 2, name=f"{name}.shuffle")


def _shuffle_branch(
    net: NetworkBuilder, x: Tensor, half: int, stride: int, name: str
) -> Tensor:
    x = net.conv(x, half, 1, norm=True, activation=RELU, name=f"{name}.right.point1")
    x = _depthwise(net, x, stride, f"{name}.right.depthwise")
    return net.conv(x, half, 1, norm=True, activation=RELU, name=f"{name}.right.point2")


def _depthwise(net: NetworkBuilder, x: Tensor, stride: int, name: str) -> Tensor:
    channels = x.shape[1]
    return net.conv(
        x, channels, 3, stride=stride, pad=1, groups=channels, norm=True, name=name
    )
