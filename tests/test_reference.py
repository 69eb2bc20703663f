"""The integer reference against definitions written out loop by loop."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.widths import Accumulators
from raptor_cp.network.attributes import (
    RELU,
    Activation,
    Function,
    OpKind,
    PoolFunction,
    ReduceFunction,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.zoo import build
from raptor_cp.targets.pim.quantization import input_values, quantized
from raptor_cp.targets.pim.reference import evaluate
from raptor_cp.targets.pim.reference_operators import (
    logical_order,
    matrix_product,
    memory_order,
)
from raptor_cp.targets.pim.sidecar import softmax, wrapped
from tests.network_oracle import compute as oracle

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network
    from raptor_cp.targets.pim.quantization import Quantization
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]

POLICIES = list(Accumulators)


def inputs_of(network: Network, generation: int = 0) -> dict[str, Ints]:
    return {name: input_values(network, name, generation) for name in network.inputs}


def values_of(
    network: Network, policy: Accumulators = Accumulators.EXACT
) -> tuple[dict[str, Ints], Quantization]:
    chosen = quantized(network, policy)
    return evaluate(network, chosen, inputs_of(network)), chosen


def finished(sums: int, numbers: OperationNumbers, *, relu: bool = False) -> int:
    """Requantisation of one element, in Python integers."""

    def wrap(value: int, bits: int) -> int:
        half = 1 << (8 * -(-bits // 8) - 1)
        return (value + half) % (2 * half) - half

    if not numbers.exact:
        value = wrap(sums, numbers.output_bits)
        return max(value, 0) if relu else value
    rounding = (1 << numbers.shift) >> 1
    value = wrap(sums + rounding, numbers.accumulator_bits) >> numbers.shift
    return min(max(value, numbers.lower), numbers.upper)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_convolutions_equal_loops(data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    depth, columns = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    size = (draw(st.integers(3, 6)), draw(st.integers(3, 6)))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    stride = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    pad = (
        draw(st.integers(2, 3)),
        draw(st.integers(2, 3)),
        draw(st.integers(0, 2)),
        draw(st.integers(0, 2)),
    )
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    bits, policy = draw(st.sampled_from([8, 12, 16])), draw(st.sampled_from(POLICIES))
    relu = draw(st.booleans())
    builder = NetworkBuilder("conv", weight_bits=8, activation_bits=bits)
    x = builder.input((1, groups * depth, *size))
    y = builder.conv(
        x,
        groups * columns,
        kernel,
        stride=stride,
        pad=pad,
        dilation=dilation,
        groups=groups,
        bias=True,
        activation=RELU if relu else None,
        name="y",
    )
    network = builder.finish(y)
    values, chosen = values_of(network, policy)
    given_values, found = values["input"], values[y.name]
    (numbers,) = chosen.operations
    for row, column, channel in product(*(range(n) for n in found.shape)):
        group = channel // columns
        total = int(chosen.biases["y"][channel])
        for i, j, c in product(range(kernel[0]), range(kernel[1]), range(depth)):
            r = row * stride[0] - pad[0] + i * dilation[0]
            q = column * stride[1] - pad[1] + j * dilation[1]
            if 0 <= r < size[0] and 0 <= q < size[1]:
                weight = chosen.weights["y"][
                    group, (i * kernel[1] + j) * depth + c, channel % columns
                ]
                total += int(given_values[r, q, group * depth + c]) * int(weight)
        assert found[row, column, channel] == finished(total, numbers, relu=relu)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("function", list(PoolFunction))
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling_equals_loops(
    policy: Accumulators, function: PoolFunction, include: bool, ceil_mode: bool
) -> None:
    builder = NetworkBuilder("pool")
    x = builder.input((1, 2, 6, 5))
    y = builder.pool(
        function,
        x,
        3,
        stride=2,
        pad=(1, 1, 0, 1),
        ceil_mode=ceil_mode,
        count_include_pad=include,
        name="y",
    )
    network = builder.finish(y)
    values, chosen = values_of(network, policy)
    (numbers,) = chosen.operations
    given_values, found = values["input"], values["y"]
    for row, column, channel in product(*(range(n) for n in found.shape)):
        inside, counted = [], 0
        for i, j in product(range(3), range(3)):
            r, q = row * 2 - 1 + i, column * 2 - 1 + j
            if 0 <= r < 6 and 0 <= q < 5:
                inside.append(int(given_values[r, q, channel]))
            counted += -1 <= r < 6 and -1 <= q < 6
        expected = max(inside)
        if function is PoolFunction.AVERAGE:
            count = counted if include else len(inside)
            if numbers.exact:
                expected = (sum(inside) * numbers.reciprocal(count)) >> numbers.shift
                assert abs(expected - sum(inside) / count) <= 1
            else:
                expected = int(wrapped(np.array([sum(inside)]), 8)[0])
        assert found[row, column, channel] == expected


def moving_networks() -> list[tuple[str, NetworkBuilder, Tensor]]:
    result = []

    def start(name: str) -> tuple[NetworkBuilder, Tensor]:
        builder = NetworkBuilder(name)
        return builder, builder.input((1, 6, 4, 3))

    builder, x = start("concat")
    result.append(("concat", builder, builder.concat((x, x), axis=1)))
    builder, x = start("slice")
    result.append(("slice", builder, builder.slice(x, 1, 1, 6, 2)))
    builder, x = start("transpose")
    result.append(("transpose", builder, builder.transpose(x, (0, 2, 3, 1))))
    builder, x = start("pad")
    result.append(("pad", builder, builder.pad(x, (0, 1, 1, 0), (0, 0, 2, 1))))
    builder, x = start("edge")
    padded = builder.pad(x, (0, 0, 1, 1), (0, 0, 1, 0), mode="edge")
    result.append(("edge", builder, padded))
    builder, x = start("resize")
    result.append(("resize", builder, builder.resize(x, (9, 5))))
    builder, x = start("gather")
    result.append(("gather", builder, builder.gather(x, (2, 0, 5), axis=1)))
    builder, x = start("view")
    view = builder.reshape(x, (1, 12, 6), channels_last=True)
    result.append(("view", builder, view))
    builder, x = start("reshape")
    result.append(("reshape", builder, builder.reshape(x, (1, 8, 9))))
    builder, x = start("shuffle")
    result.append(("shuffle", builder, builder.channel_shuffle(x, 2)))
    return result


@pytest.mark.parametrize("index", range(10))
def test_moves_equal_the_definition(index: int) -> None:
    _, builder, y = moving_networks()[index]
    network = builder.finish(y)
    values, _ = values_of(network)
    logical = {"input": logical_order(values["input"], (1, 6, 4, 3)).astype(float)}
    for operation in network.operations:
        shape = network.tensors[operation.output].shape
        parts = [logical[name] for name in operation.inputs]
        logical[operation.output] = oracle(operation, parts, shape)
    expected = memory_order(logical[y.name].astype(np.int64))
    assert values[y.name].tolist() == expected.tolist()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("heads", [1, 2])
def test_products_of_computed_tensors(policy: Accumulators, heads: int) -> None:
    builder = NetworkBuilder("matmul")
    a = builder.input((1, 5, 6), "a")
    b = builder.input((1, 4, 6), "b")
    y = builder.matmul(a, b, transpose_b=True, heads=heads, scale=0.5)
    network = builder.finish(y)
    values, chosen = values_of(network, policy)
    (numbers,) = chosen.operations
    left, right = values["a"][:, 0], values["b"][:, 0]
    width = 6 // heads
    for row, column, head in product(range(5), range(4), range(heads)):
        part = slice(head * width, (head + 1) * width)
        total = int(left[row, part] @ right[column, part])
        place = (row, column, head) if heads > 1 else (row, 0, column)
        assert values[y.name][place] == finished(total, numbers)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "kind", [OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.MAXIMUM, OpKind.MINIMUM]
)
def test_elementwise_operations(policy: Accumulators, kind: OpKind) -> None:
    builder = NetworkBuilder("binary")
    a, b = builder.input((1, 3, 4, 4), "a"), builder.input((1, 3, 4, 4), "b")
    y = builder.binary(kind, a, b, activation=RELU)
    network = builder.finish(y)
    values, chosen = values_of(network, policy)
    (numbers,) = chosen.operations
    for p, q, found in zip(
        values["a"].ravel().tolist(),
        values["b"].ravel().tolist(),
        values[y.name].ravel().tolist(),
        strict=True,
    ):
        if kind in (OpKind.ADD, OpKind.SUB):
            p, q = p << numbers.input_shifts[0], q << numbers.input_shifts[1]
            total = p + q if kind is OpKind.ADD else p - q
            assert found == finished(total, numbers, relu=True)
        elif kind is OpKind.MUL:
            assert found == finished(p * q, numbers, relu=True)
        elif kind is OpKind.MAXIMUM:
            assert found == max(p, q, 0)
        else:
            excess = max(int(wrapped(np.array([p - q]), 8)[0]), 0)
            assert found == max(int(wrapped(np.array([p - excess]), 8)[0]), 0)


def test_a_gemm_behind_a_flatten_reads_memory_order() -> None:
    builder = NetworkBuilder("flat")
    x = builder.input((1, 3, 2, 2))
    y = builder.gemm(builder.flatten(x), 4, bias=False, name="y")
    values, chosen = values_of(builder.finish(y))
    (numbers,) = chosen.operations
    sums = values["input"].reshape(-1) @ chosen.weights["y"][0].astype(np.int64)
    assert values["y"].ravel().tolist() == [
        finished(total, numbers) for total in sums.tolist()
    ]


def test_reductions_functions_and_softmax() -> None:
    builder = NetworkBuilder("mixed")
    x = builder.input((1, 4, 3, 3))
    top = builder.reduce(ReduceFunction.MAX, x, (2, 3), name="top")
    mean = builder.global_average_pool(x, name="mean")
    leaky = Activation(Function.LEAKY_RELU, 0.25)
    bent = builder.activate(x, leaky, fold=False, name="bent")
    soft = builder.softmax(builder.flatten(mean), name="soft")
    network = builder.finish(top, bent, soft)
    values, _ = values_of(network)
    x_values = values["input"]
    assert values["top"].ravel().tolist() == x_values.max(axis=(0, 1)).tolist()
    exact = x_values.mean(axis=(0, 1))
    assert np.abs(values["mean"].ravel() - exact).max() <= 1
    assert (
        values["bent"].tolist()
        == np.where(x_values > 0, x_values, x_values >> 2).tolist()
    )
    expected = softmax(values["mean"].reshape(1, 1, -1), 8)
    assert values["soft"].tolist() == expected.tolist()


def test_products_beyond_53_bits_wrap_exactly() -> None:
    x = np.array([[2**40, -(2**41), 3]], np.int64)
    weights = np.array([[2**24, 1], [2**22, -5], [7, 2**20]], np.int64)
    exact = [
        sum(int(a) * int(b) for a, b in zip(x[0], w, strict=True)) for w in weights.T
    ]
    wrap = [(value + 2**63) % 2**64 - 2**63 for value in exact]
    assert matrix_product(x, weights)[0].tolist() == wrap


def test_the_choice_of_integers_is_deterministic_and_local() -> None:
    network = build("resnet18", (1, 3, 32, 32))
    one, again = quantized(network), quantized(network)
    assert one.operations == again.operations
    assert all((one.weights[k] == again.weights[k]).all() for k in one.weights)
    assert (one.weights["fc"] != quantized(network, seed=1).weights["fc"]).any()
    first, second = inputs_of(network), inputs_of(network, 1)
    assert (first["input"] != second["input"]).any()


@pytest.mark.parametrize("policy", POLICIES)
def test_deep_networks_keep_their_range(policy: Accumulators) -> None:
    network = build("resnet18", (1, 3, 32, 32))
    values, _ = values_of(network, policy)
    for operation in network.operations:
        value = values[operation.output]
        assert value.min() >= -128
        assert value.max() <= 127
        if value.size > 100:
            assert value.std() > 4, operation.name


def test_operations_without_an_integer_definition_are_refused_by_name() -> None:
    builder = NetworkBuilder("norm")
    y = builder.layer_norm(builder.input((1, 4, 8)), name="norm")
    with pytest.raises(MalformedInput, match="layer_norm has no integer definition"):
        values_of(builder.finish(y))
    builder = NetworkBuilder("gelu")
    x = builder.input((1, 4, 8))
    y = builder.activate(x, Activation(Function.GELU), fold=False, name="gelu")
    with pytest.raises(MalformedInput, match="'gelu'"):
        values_of(builder.finish(y))


def test_an_input_of_another_shape_is_refused() -> None:
    network = build("tiny-residual")
    with pytest.raises(MalformedInput, match="no values of the input's shape"):
        evaluate(network, quantized(network), {})
