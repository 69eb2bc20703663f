"""SqueezeNet 1.1 (Iandola et al., 2016, and the authors' release 1.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

#: (squeeze, expand) channels of fire modules 2 to 9.
FIRES = (
    (16, 64),
    (16, 64),
    (32, 128),
    (32, 128),
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
)


def squeezenet(net: NetworkBuilder, image: Tensor) -> Tensor:
    """SqueezeNet 1.1: fire modules, no fully connected layer."""
    x = net.conv(image, 64, 3, stride=2, bias=True, activation=RELU, name="conv1")
    x = net.max_pool(x, 3, stride=2, ceil_mode=True, name="pool1")
    for number, (squeeze, expand) in enumerate(FIRES, 2):
        x = _fire(net, x, squeeze, expand, f"fire{number}")
        if number in (3, 5):
            x = net.max_pool(x, 3, stride=2, ceil_mode=True, name=f"pool{number}")
    x = net.conv(x, 1000, 1, bias=True, activation=RELU, name="conv10")
    return net.flatten(net.global_average_pool(x, name="pool10"), name="flatten")


def _fire(
    net: NetworkBuilder, x: Tensor, squeeze: int, expand: int, name: str
) -> Tensor:
    x = net.conv(x, squeeze, 1, bias=True, activation=RELU, name=f"{name}.squeeze1x1")
    small = net.conv(x, expand, 1, bias=True, activation=RELU, name=f"{name}.expand1x1")
    large = net.conv(
        x, expand, 3, pad=1, bias=True, activation=RELU, name=f"{name}.expand3x3"
    )
    return net.concat((small, large), name=f"{name}.concat")
