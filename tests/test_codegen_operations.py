"""Every emitted operation alone, under both accumulator policies."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from raptor_cp.graph.lowering import LoweringOptions
from raptor_cp.graph.widths import Accumulators
from raptor_cp.network.attributes import (
    BINARY_KINDS,
    RELU,
    RELU6,
    Activation,
    Function,
    OpKind,
    PoolFunction,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.targets.pim.backend import Built, Refused, build_program
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.target import PimTarget
from tests.codegen_oracle import check_program, placed_at_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network

    Layer = Callable[[NetworkBuilder, Tensor], Tensor]

BINARY = [kind for kind in BINARY_KINDS if kind is not OpKind.DIV]
LEAKY = Activation(Function.LEAKY_RELU, 0.2)


def network_of(layer: Layer, bits: int = 8) -> Network:
    """A convolution, the layer, and whatever it ends in."""
    net = NetworkBuilder("one", weight_bits=8, activation_bits=bits)
    x = net.conv(net.input((1, 4, 6, 5)), 6, 3, pad=1)
    return net.finish(layer(net, x))


def checked(network: Network) -> None:
    """Both policies, three placements."""
    target = PimTarget(load_config("arch-a", core_count=5))
    for accumulators in Accumulators:
        options = LoweringOptions(accumulators=accumulators, max_lanes=4)
        for seed in range(3):
            choose = random.Random(seed)
            plan = placed_at_random(network, target, choose, 2, options)
            assert plan is not None
            built = build_program(plan, target, network, accumulators=accumulators)
            assert isinstance(built, Built), built
            check_program(built, network, target, accumulators, seed=seed)


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("scalar_first", [False, True])
def test_immediate_operands(kind: OpKind, scalar_first: bool) -> None:
    checked(
        network_of(lambda net, x: net.binary(kind, x, 0.75, scalar_first=scalar_first))
    )


@pytest.mark.parametrize("kind", BINARY)
def test_two_operands_and_a_function(kind: OpKind) -> None:
    checked(
        network_of(
            lambda net, x: net.binary(kind, x, net.conv(x, 6, 1), activation=LEAKY)
        )
    )


@pytest.mark.parametrize("kind", BINARY)
def test_an_operand_broadcast_over_positions(kind: OpKind) -> None:
    checked(network_of(lambda net, x: net.binary(kind, x, net.global_average_pool(x))))


@pytest.mark.parametrize(
    "function",
    [
        RELU,
        RELU6,
        LEAKY,
        Activation(Function.PRELU),
        Activation(Function.CLIP, -1.0, 2.0),
        Activation(Function.SIGMOID),
        Activation(Function.TANH),
    ],
)
@pytest.mark.parametrize("fold", [False, True])
def test_functions(function: Activation, fold: bool) -> None:
    checked(
        network_of(lambda net, x: net.conv(net.activate(x, function, fold=fold), 3, 1))
    )


def test_unfolded_normalisation() -> None:
    checked(network_of(lambda net, x: net.batch_norm(net.max_pool(x, 2), fold=False)))


@pytest.mark.parametrize(
    "permutation", [(0, 1, 3, 2), (0, 2, 3, 1), (0, 3, 2, 1), (0, 1, 2, 3)]
)
def test_transposes(permutation: tuple[int, ...]) -> None:
    checked(network_of(lambda net, x: net.transpose(x, permutation)))


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_slices(axis: int, step: int) -> None:
    checked(network_of(lambda net, x: net.conv(net.slice(x, axis, 1, 5, step), 5, 1)))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_concatenations_of_slices(axis: int) -> None:
    def layer(net: NetworkBuilder, x: Tensor) -> Tensor:
        one, other = net.split(x, (2, x.shape[axis] - 2), axis=axis)
        return net.concat([other, net.activate(one, RELU), other], axis=axis)

    checked(network_of(layer))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_gathers(axis: int) -> None:
    checked(network_of(lambda net, x: net.gather(x, (3, 0, 2), axis=axis)))


def test_padding_and_resizing() -> None:
    checked(network_of(lambda net, x: net.pad(x, (0, 0, 1, 2), (0, 0, 2, 1))))
    checked(network_of(lambda net, x: net.resize(x, (9, 10))))


def test_sequences() -> None:
    net = NetworkBuilder("sequence", weight_bits=8, activation_bits=8)
    x = net.gemm(net.input((1, 7, 12)), 16)
    x = net.add(x, net.gemm(x, 16, activation=RELU))
    checked(net.finish(net.gemm(net.transpose(x, (0, 2, 1)), 9)))


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped_convolutions(groups: int) -> None:
    def layer(net: NetworkBuilder, x: Tensor) -> Tensor:
        x = net.conv(x, 8, 3, pad=1, groups=2, bias=True)
        return net.conv(x, 4 * groups, 3, stride=2, groups=groups, activation=RELU)

    checked(network_of(layer))


def test_transposed_convolution_is_refused() -> None:
    network = network_of(lambda net, x: net.conv_transpose(x, 4, 2, stride=2))
    target = PimTarget(load_config("arch-a", core_count=5))
    plan = placed_at_random(network, target, random.Random(0), 2)
    assert plan is not None
    found = build_program(plan, target, network)
    assert isinstance(found, Refused)
    assert "conv_transpose" in found.reason


@pytest.mark.parametrize("kernel", [(3, 3), (1, 3), (3, 1)])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_over_channel_slices(kernel: tuple[int, int], groups: int) -> None:
    """ShuffleNet's half of the channels, and a grouped convolution after a split."""

    def layer(net: NetworkBuilder, x: Tensor) -> Tensor:
        left, right = net.split(x, (2, 4), axis=1)
        pad = (kernel[0] // 2, kernel[1] // 2)
        near = net.conv(right, 4, kernel, pad=pad, groups=groups, activation=RELU)
        far = net.conv(right, 2, 3, dilation=2, pad=2)
        cut = net.slice(net.slice(x, 2, 1, 6), 1, 3, 5)
        side = net.conv(cut, 6, kernel, stride=(2, 1), pad=1)
        joined = net.channel_shuffle(net.concat([left, near, far]), 2)
        return net.concat([net.flatten(joined), net.flatten(side)], axis=1)

    checked(network_of(layer))


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("function", list(PoolFunction))
def test_windows_that_reach_beyond_the_padding(
    function: PoolFunction, pad: int, include: bool
) -> None:
    checked(
        network_of(
            lambda net, x: net.pool(
                function,
                x,
                3,
                stride=2,
                pad=pad,
                ceil_mode=True,
                count_include_pad=include,
            )
        )
    )


def test_views_that_reorder_elements() -> None:
    """Flattened maps read by everything but a matrix product are gathered."""

    def layer(net: NetworkBuilder, x: Tensor) -> Tensor:
        flat = net.flatten(x)  # channels outermost, unlike memory
        doubled = net.binary(OpKind.MUL, flat, 0.5, activation=LEAKY)
        again = net.reshape(doubled, (1, 6, 6, 5))
        return net.conv(net.add(again, x), 3, 3, pad=1)

    checked(network_of(layer))


def test_slices_of_views_and_views_of_slices() -> None:
    def layer(net: NetworkBuilder, x: Tensor) -> Tensor:
        flat = net.flatten(x)
        part = net.gemm(net.slice(flat, 1, 20, 90), 5)
        cut = net.flatten(net.slice(net.slice(x, 1, 1, 4), 3, 0, 3))
        return net.concat([part, net.gemm(cut, 5), net.softmax(cut)], axis=1)

    checked(network_of(layer))


def test_views_of_sequences() -> None:
    net = NetworkBuilder("heads", weight_bits=8, activation_bits=8)
    x = net.gemm(net.input((1, 6, 8)), 12)
    heads = net.transpose(net.reshape(x, (1, 6, 3, 4)), (0, 2, 1, 3))
    merged = net.reshape(net.transpose(heads, (0, 2, 1, 3)), (1, 6, 12))
    wide = net.reshape(net.add(merged, x), (1, 9, 8))
    checked(net.finish(net.gemm(wide, 5), net.activate(wide, RELU)))
