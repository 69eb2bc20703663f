"""Residual networks (He et al., 2016): ResNet-18/34/50/101 and a tiny one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor


def resnet18(net: NetworkBuilder, image: Tensor) -> Tensor:
    """ResNet-18."""
    return _resnet(net, image, (2, 2, 2, 2), bottleneck=False)


def resnet34(net: NetworkBuilder, image: Tensor) -> Tensor:
    """ResNet-34."""
    return _resnet(net, image, (3, 4, 6, 3), bottleneck=False)


def resnet50(net: NetworkBuilder, image: Tensor) -> Tensor:
    """ResNet-50, strides in the 3x3 convolutions."""
    return _resnet(net, image, (3, 4, 6, 3), bottleneck=True)


def resnet101(net: NetworkBuilder, image: Tensor) -> Tensor:
    """ResNet-101, strides in the 3x3 convolutions."""
    return _resnet(net, image, (3, 4, 23, 3), bottleneck=True)


def tiny_residual(net: NetworkBuilder, image: Tensor) -> Tensor:
    """One basic block of each form, small enough to trace by hand."""
    x = net.conv(image, 8, 3, pad=1, norm=True, activation=RELU, name="stem")
    x = _basic(net, x, 8, 1, "block1")
    x = _basic(net, x, 16, 2, "block2")
    x = net.flatten(net.global_average_pool(x, name="pool"), name="flatten")
    return net.gemm(x, 10, name="fc")


def _resnet(
    net: NetworkBuilder, image: Tensor, depths: tuple[int, ...], *, bottleneck: bool
) -> Tensor:
    x = net.conv(
        image, 64, 7, stride=2, pad=3, norm=True, activation=RELU, name="conv1"
    )
    x = net.max_pool(x, 3, stride=2, pad=1, name="maxpool")
    block = _bottleneck if bottleneck else _basic
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(net, x, 64 << stage, stride, f"layer{stage + 1}.{index}")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _basic(
    net: NetworkBuilder, x: Tensor, width: int, stride: int, name: str
) -> Tensor:
    y = net.conv(
        x,
        width,
        3,
        stride=stride,
        pad=1,
        norm=True,
        activation=RELU,
        name=f"{name}.conv1",
    )
    y = net.conv(y, width, 3, pad=1, norm=True, name=f"{name}.conv2")
    shortcut = _shortcut(net, x, width, stride, name)
    return net.add(y, shortcut, activation=RELU, name=f"{name}.add")


def _bottleneck(
    net: NetworkBuilder, x: Tensor, width: int, stride: int, name: str
) -> Tensor:
    y = net.conv(x, width, 1, norm=True, activation=RELU, name=f"{name}.conv1")
    y = net.conv(
        y,
        width,
        3,
        stride=stride,
        pad=1,
        norm=True,
        activation=RELU,
        name=f"{name}.conv2",
    )
    y = net.conv(y, 4 * width, 1, norm=True, name=f"{name}.conv3")
    shortcut = _shortcut(net, x, 4 * width, stride, name)
    return net.add(y, shortcut, activation=RELU, name=f"{name}.add")


def _shortcut(
    net: NetworkBuilder, x: Tensor, channels: int, stride: int, name: str
) -> Tensor:
    if x.shape[1] == channels and stride == 1:
        return x
    return net.conv(x, channels, 1, stride=stride, norm=True, name=f"{name}.downsample")
