"""GoogLeNet (Szegedy et al., 2015), as published and with batch normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

#: Channels of (1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection); table 1.
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(net: NetworkBuilder, image: Tensor) -> Tensor:
    """GoogLeNet of the paper: response normalisation, biases, 5x5 branches."""
    return _googlenet(net, image, norm=False)


def googlenet_bn(net: NetworkBuilder, image: Tensor) -> Tensor:
    """The common variant: batch normalisation, 3x3 in place of 5x5, no LRN."""
    return _googlenet(net, image, norm=True)


def _googlenet(net: NetworkBuilder, image: Tensor, *, norm: bool) -> Tensor:
    x = _conv(net, image, 64, 7, 2, norm, "conv1")
    x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="pool1")
    if not norm:
        x = net.lrn(x, 5, name="norm1")
    x = _conv(net, x, 64, 1, 1, norm, "conv2.reduce")
    x = _conv(net, x, 192, 3, 1, norm, "conv2")
    if not norm:
        x = net.lrn(x, 5, name="norm2")
    x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="pool2")
    for label, widths in MODULES.items():
        x = _inception(net, x, widths, norm, f"inception{label}")
        if label in ("3b", "4e"):
            size = 2 if norm and label == "4e" else 3
            name = f"pool{label[0]}"
            x = net.max_pool(x, size, stride=2, ceil_mode=True, name=name)
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 1000, name="fc")


def _inception(
    net: NetworkBuilder, x: Tensor, widths: tuple[int, ...], norm: bool, name: str
) -> Tensor:
    one, reduce3, three, reduce5, five, projection = widths
    branch1 = _conv(net, x, one, 1, 1, norm, f"{name}.1x1")
    branch3 = _conv(net, x, reduce3, 1, 1, norm, f"{name}.3x3_reduce")
    branch3 = _conv(net, branch3, three, 3, 1, norm, f"{name}.3x3")
    branch5 = _conv(net, x, reduce5, 1, 1, norm, f"{name}.5x5_reduce")
    branch5 = _conv(net, branch5, five, 3 if norm else 5, 1, norm, f"{name}.5x5")
    pooled = net.max_pool(x, 3, pad=1, name=f"{name}.pool")
    pooled = _conv(net, pooled, projection, 1, 1, norm, f"{name}.pool_proj")
    return net.concat((branch1, branch3, branch5, pooled), name=f"{name}.concat")


def _conv(
    net: NetworkBuilder,
    x: Tensor,
    channels: int,
    kernel: int,
    stride: int,
    norm: bool,
    name: str,
) -> Tensor:
    return net.conv(
        x,
        channels,
        kernel,
        stride=stride,
        pad=kernel // 2,
        bias=not norm,
        norm=norm,
        activation=RELU,
        name=name,
    )
