"""Chains of layers without branches: AlexNet and VGG-16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def alexnet(net: NetworkBuilder, image: Tensor) -> Tensor:
    """AlexNet with its two-group convolutions (Krizhevsky et al., 2012)."""
    x = net.conv(image, 96, 11, stride=4, bias=True, activation=RELU, name="conv1")
    x = net.max_pool(net.lrn(x, 5, name="norm1"), 3, stride=2, name="pool1")
    x = net.conv(x, 256, 5, pad=2, groups=2, bias=True, activation=RELU, name="conv2")
    x = net.max_pool(net.lrn(x, 5, name="norm2"), 3, stride=2, name="pool2")
    for index, (channels, groups) in enumerate(((384, 1), (384, 2), (256, 2)), 3):
        x = net.conv(
            x,
            channels,
            3,
            pad=1,
            groups=groups,
            bias=True,
            activation=RELU,
            name=f"conv{index}",
        )
    x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="pool5")
    return _classifier(net, x, ("fc6", "fc7", "fc8"))


def vgg16(net: NetworkBuilder, image: Tensor) -> Tensor:
    """VGG-16, configuration D (Simonyan and Zisserman, 2015)."""
    x = image
    for stage, widths in enumerate(VGG16_STAGES, 1):
        for index, channels in enumerate(widths, 1):
            name = f"conv{stage}_{index}"
            x = net.conv(x, channels, 3, pad=1, bias=True, activation=RELU, name=name)
        x = net.max_pool(x, 2, stride=2, name=f"pool{stage}")
    return _classifier(net, x, ("fc6", "fc7", "fc8"))


def _classifier(net: NetworkBuilder, x: Tensor, names: tuple[str, ...]) -> Tensor:
    x = net.flatten(x, name="flatten")
    for name in names[:-1]:
        x = net.gemm(x, 4096, activation=RELU, name=name)
    return net.gemm(x, 1000, name=names[-1])
