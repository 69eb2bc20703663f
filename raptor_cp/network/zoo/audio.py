"""Keyword spotting: DS-CNN on spectrograms and M5 on raw waveforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import RELU

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor


def ds_cnn(net: NetworkBuilder, spectrum: Tensor) -> Tensor:
    """DS-CNN, small (Zhang et al., "Hello Edge", 2017): 49 frames of 10 bands."""
    x = net.conv(
        spectrum,
        64,
        (10, 4),
        stride=2,
        pad="SAME_UPPER",
        norm=True,
        activation=RELU,
        name="conv1",
    )
    for index in range(1, 5):
        x = net.conv(
            x,
            64,
            3,
            pad="SAME_UPPER",
            groups=64,
            norm=True,
            activation=RELU,
            name=f"block{index}.depthwise",
        )
        x = net.conv(
            x, 64, 1, norm=True, activation=RELU, name=f"block{index}.pointwise"
        )
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 12, name="fc")


def audio_m5(net: NetworkBuilder, waveform: Tensor) -> Tensor:
    """M5 (Dai et al., 2017) at width 32: one-dimensional, (1, 1, samples, 1)."""
    x = waveform
    layers = ((32, 80, 16), (32, 3, 1), (64, 3, 1), (64, 3, 1))
    for index, (channels, kernel, stride) in enumerate(layers, 1):
        x = net.conv(
            x,
            channels,
            (kernel, 1),
            stride=(stride, 1),
            norm=True,
            activation=RELU,
            name=f"conv{index}",
        )
        x = net.max_pool(x, (4, 1), stride=(4, 1), name=f"pool{index}")
    x = net.global_average_pool(x, name="avgpool")
    return net.gemm(net.flatten(x, name="flatten"), 35, name="fc")
