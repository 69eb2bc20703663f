"""The built-in networks by name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.zoo import (
    audio,
    densenet,
    googlenet,
    inception,
    mobile,
    plain,
    resnet,
    squeezenet,
    transformer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """A built-in network.

    ``layers`` appends its operations behind the input and returns the result.
    """

    name: str
    summary: str
    input_shape: Shape
    layers: Callable[[NetworkBuilder, Tensor], Tensor]


_IMAGE = (1, 3, 224, 224)

ZOO: dict[str, ZooEntry] = {
    entry.name: entry
    for entry in (
        ZooEntry("alexnet", "AlexNet, two groups", (1, 3, 227, 227), plain.alexnet),
        ZooEntry("audio-m5", "M5, raw audio", (1, 1, 8000, 1), audio.audio_m5),
        ZooEntry(
            "bert-base-block",
            "BERT-base encoder layer",
            (1, 128, 768),
            transformer.bert_base_block,
        ),
        ZooEntry("densenet121", "DenseNet-121", _IMAGE, densenet.densenet121),
        ZooEntry("ds-cnn", "DS-CNN, keyword spotting", (1, 1, 49, 10), audio.ds_cnn),
        ZooEntry("googlenet", "GoogLeNet", _IMAGE, googlenet.googlenet),
        ZooEntry(
            "googlenet-bn",
            "GoogLeNet with batch normalisation",
            _IMAGE,
            googlenet.googlenet_bn,
        ),
        ZooEntry(
            "inceptionv3", "Inception-v3", (1, 3, 299, 299), inception.inceptionv3
        ),
        ZooEntry("mobilenetv2", "MobileNetV2 1.0", _IMAGE, mobile.mobilenetv2),
        ZooEntry("resnet18", "ResNet-18", _IMAGE, resnet.resnet18),
        ZooEntry("resnet34", "ResNet-34", _IMAGE, resnet.resnet34),
        ZooEntry("resnet50", "ResNet-50", _IMAGE, resnet.resnet50),
        ZooEntry("resnet101", "ResNet-101", _IMAGE, resnet.resnet101),
        ZooEntry("shufflenetv2", "ShuffleNetV2 x1.0", _IMAGE, mobile.shufflenetv2),
        ZooEntry("squeezenet", "SqueezeNet 1.1", _IMAGE, squeezenet.squeezenet),
        ZooEntry(
            "tiny-residual",
            "two residual blocks, for tests",
            (1, 3, 8, 8),
            resnet.tiny_residual,
        ),
        ZooEntry("vgg16", "VGG-16", _IMAGE, plain.vgg16),
        ZooEntry(
            "vit-b16-block",
            "ViT-B/16 encoder layer",
            (1, 197, 768),
            transformer.vit_b16_block,
        ),
    )
}


def names() -> tuple[str, ...]:
    """Names of the built-in networks."""
    return tuple(ZOO)


def build(
    name: str,
    input_shape: Sequence[int] | None = None,
    *,
    weight_bits: int = 8,
    activation_bits: int = 8,
) -> Network:
    """A built-in network.

    Args:
        name: one of :func:`names`.
        input_shape: another shape of the input, of the same rank; None for the
            published one.
        weight_bits, activation_bits: bits per weight and per tensor element.

    Raises:
        MalformedInput: unknown name, an input shape of another rank, or one that
            the layers cannot work on.

    >>> build("resnet18").macs
    1814073344
    """
    entry = ZOO.get(name)
    if entry is None:
        close = get_close_matches(name, ZOO, n=1, cutoff=0.4)
        raise MalformedInput(
            "unknown network",
            where="network.zoo",
            value=name,
            expected=f"one of {', '.join(ZOO)}",
            hint=f"did you mean {close[0]!r}?" if close else "",
        )
    shape = entry.input_shape if input_shape is None else tuple(input_shape)
    if len(shape) != len(entry.input_shape) or shape[0] != 1:
        raise MalformedInput(
            f"the input does not fit {name!r}",
            where="network.input",
            value=shape,
            expected=f"a shape like {entry.input_shape}, batch 1",
        )
    net = NetworkBuilder(name, weight_bits=weight_bits, activation_bits=activation_bits)
    return net.finish(entry.layers(net, net.input(shape)))
