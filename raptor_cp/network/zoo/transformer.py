"""Transformer encoder blocks: BERT-base (post-norm) and ViT-B/16 (pre-norm)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import Activation, Function

if TYPE_CHECKING:
    from raptor_cp.network.builder import NetworkBuilder
    from raptor_cp.network.operations import Tensor

HEADS = 12
GELU = Activation(Function.GELU)


def bert_base_block(net: NetworkBuilder, tokens: Tensor) -> Tensor:
    """One encoder layer of BERT-base (Devlin et al., 2019), without a mask."""
    x = net.add(_attention(net, tokens), tokens, name="attention.add")
    x = net.layer_norm(x, name="attention.norm")
    y = net.add(_mlp(net, x), x, name="mlp.add")
    return net.layer_norm(y, name="mlp.norm")


def vit_b16_block(net: NetworkBuilder, tokens: Tensor) -> Tensor:
    """One encoder layer of ViT-B/16 (Dosovitskiy et al., 2021)."""
    x = _attention(net, net.layer_norm(tokens, name="attention.norm"))
    x = net.add(x, tokens, name="attention.add")
    y = _mlp(net, net.layer_norm(x, name="mlp.norm"))
    return net.add(y, x, name="mlp.add")


def _attention(net: NetworkBuilder, x: Tensor) -> Tensor:
    width = x.shape[-1]
    query, key, value = (
        net.gemm(x, width, name=f"attention.{part}")
        for part in ("query", "key", "value")
    )
    scores = net.matmul(
        query,
        key,
        transpose_b=True,
        heads=HEADS,
        scale=(width // HEADS) ** -0.5,
        name="attention.scores",
    )
    weights = net.softmax(scores, name="attention.softmax")
    context = net.matmul(
        weights, value, heads=HEADS, merge_heads=True, name="attention.context"
    )
    return net.gemm(context, width, name="attention.output")


def _mlp(net: NetworkBuilder, x: Tensor) -> Tensor:
    width = x.shape[-1]
    x = net.gemm(x, 4 * width, activation=GELU, name="mlp.up")
    return net.gemm(x, width, name="mlp.down")
