"""Operations, shape inference, validation, the builder and inline layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.network import (
    RELU,
    Activation,
    ConvAttributes,
    ElementwiseAttributes,
    Extent,
    Function,
    GatherAttributes,
    MatMulAttributes,
    Network,
    Operation,
    OpKind,
    PadAttributes,
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
    SliceAttributes,
    Tensor,
    TransposeAttributes,
    ViewAttributes,
    WeightShape,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.inline import LAYER_KINDS, network_from_layers
from raptor_cp.network.shapes import auto_pads, broadcast_shapes, infer_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

Layer = dict[str, object]


# --- tensors ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "extent"),
    [
        ((10,), (1, 1, 10)),
        ((7, 10), (7, 1, 10)),
        ((1, 7, 10), (7, 1, 10)),
        ((1, 3, 8, 9), (8, 9, 3)),
        ((1, 2, 5, 8, 9), (8, 9, 10)),
    ],
)
def test_extent_is_rows_columns_channels(
    shape: tuple[int, ...], extent: tuple[int, int, int]
) -> None:
    tensor = Tensor("x", shape)
    assert tensor.extent == Extent(*extent)
    rows, columns, channels = tensor.extent
    assert rows * columns * channels == tensor.elements


def test_sub_byte_tensors_round_up_once() -> None:
    assert Tensor("x", (1, 3), 4).size_bytes == 2
    assert Tensor("x", (1, 3), 16).size_bytes == 6


@pytest.mark.parametrize("shape", [(), (0,), (1, -1), (1, 2**50), (1, True)])
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MalformedInput, match="tensor 'x'"):
        Tensor("x", shape)


def test_a_batch_is_refused_with_its_shape() -> None:
    with pytest.raises(MalformedInput, match=r"batch.*\(2, 3, 4, 4\)"):
        _ = Tensor("x", (2, 3, 4, 4)).extent


# --- shapes -----------------------------------------------------------------------

_SIZES = st.integers(1, 12)


def _window_oracle(
    size: int, kernel: int, stride: int, begin: int, end: int, dilation: int
) -> int:
    """Positions by trying every start on the padded axis."""
    span = dilation * (kernel - 1)
    return sum(
        1
        for start in range(0, size + begin + end, stride)
        if start + span < size + begin + end
    )


@given(
    size=_SIZES,
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    begin=st.integers(0, 3),
    end=st.integers(0, 3),
    dilation=st.integers(1, 3),
)
def test_convolution_counts_the_windows_that_fit(
    size: int, kernel: int, stride: int, begin: int, end: int, dilation: int
) -> None:
    attributes = ConvAttributes(
        (kernel, 1), (stride, 1), (begin, 0, end, 0), (dilation, 1)
    )
    expected = _window_oracle(size, kernel, stride, begin, end, dilation)
    weight = WeightShape(2 * kernel, 5)
    if expected == 0:
        with pytest.raises(MalformedInput, match="does not fit"):
            infer_shape(OpKind.CONV, attributes, [(1, 2, size, 4)], weight)
    else:
        shape = infer_shape(OpKind.CONV, attributes, [(1, 2, size, 4)], weight)
        assert shape == (1, 5, expected, 4)


@given(
    size=_SIZES,
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    begin=st.integers(0, 3),
    end=st.integers(0, 3),
)
def test_ceil_mode_adds_a_partial_window_that_starts_on_data(
    size: int, kernel: int, stride: int, begin: int, end: int
) -> None:
    if max(begin, end) >= kernel or size + begin + end < kernel:
        return
    attributes = PoolAttributes(
        PoolFunction.MAX,
        (kernel, 1),
        (stride, 1),
        (begin, 0, end, 0),
        ceil_mode=True,
    )
    shape = infer_shape(OpKind.POOL, attributes, [(1, 1, size, 1)])
    full = _window_oracle(size, kernel, stride, begin, end, 1)
    covered = (full - 1) * stride + kernel >= size + begin + end
    starts_on_data = full * stride < size + begin
    whole_on_data = (full - 1) * stride < size + begin
    expected = full if covered or not starts_on_data else full + 1
    if not whole_on_data:
        expected = full - 1
    assert shape[2] == expected


@given(size=_SIZES, kernel=st.integers(1, 5), stride=st.integers(1, 4))
def test_same_padding_gives_ceil_of_size_over_stride(
    size: int, kernel: int, stride: int
) -> None:
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        pads = auto_pads(mode, (size, size), (kernel, kernel), (stride, stride))
        attributes = ConvAttributes((kernel, kernel), (stride, stride), pads)
        shape = infer_shape(
            OpKind.CONV, attributes, [(1, 1, size, size)], WeightShape(kernel**2, 1)
        )
        assert shape[2:] == (-(-size // stride),) * 2
        low, high = pads[0], pads[2]
        assert 0 <= (high - low if mode == "SAME_UPPER" else low - high) <= 1


@given(
    first=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    second=st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_broadcasting_is_that_of_numpy(first: list[int], second: list[int]) -> None:
    shapes = [tuple(first), tuple(second)]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(MalformedInput, match="broadcast"):
            broadcast_shapes(shapes)
    else:
        assert broadcast_shapes(shapes) == expected


@given(data=st.data())
def test_slices_pads_transposes_and_reductions_are_those_of_numpy(
    data: st.DataObject,
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    array = np.zeros(shape, dtype=np.int8)
    axis = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, shape[axis]))
    step = data.draw(st.integers(1, 3))
    cut = SliceAttributes((axis,), (start,), (stop,), (step,))
    index = tuple(
        slice(start, stop, step) if i == axis else slice(None)
        for i in range(len(shape))
    )
    assert infer_shape(OpKind.SLICE, cut, [shape]) == array[index].shape
    pads = [data.draw(st.integers(0, 2)) for _ in shape]
    padded = np.pad(array, [(p, 1) for p in pads])
    attributes = PadAttributes(tuple(pads), (1,) * len(shape))
    assert infer_shape(OpKind.PAD, attributes, [shape]) == padded.shape
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    turned = infer_shape(OpKind.TRANSPOSE, TransposeAttributes(order), [shape])
    assert turned == array.transpose(order).shape
    keep = data.draw(st.booleans())
    mean = ReduceAttributes(ReduceFunction.MEAN, (axis,), keep)
    reduced = array.max(axis=axis, keepdims=keep).shape or (1,)
    assert infer_shape(OpKind.REDUCE, mean, [shape]) == reduced
    indices = (start, stop - 1)
    gathered = infer_shape(OpKind.GATHER, GatherAttributes(axis, indices), [shape])
    assert gathered == np.take(array, indices, axis=axis).shape


@given(
    batch=st.integers(1, 3),
    m=_SIZES,
    k=_SIZES,
    n=_SIZES,
    flip=st.tuples(st.booleans(), st.booleans()),
)
def test_matmul_is_that_of_numpy(
    batch: int, m: int, k: int, n: int, flip: tuple[bool, bool]
) -> None:
    first = (1, batch, k, m) if flip[0] else (1, batch, m, k)
    second = (1, batch, n, k) if flip[1] else (1, batch, k, n)
    attributes = MatMulAttributes(*flip)
    shape = infer_shape(OpKind.MATMUL, attributes, [first, second])
    assert shape == (1, batch, m, n)


def test_heads_are_read_from_the_channels_of_sequences() -> None:
    scores = MatMulAttributes(transpose_b=True, heads=12)
    sequence, stacked = (1, 128, 768), (1, 12, 128, 64)
    assert infer_shape(OpKind.MATMUL, scores, [sequence] * 2) == (1, 12, 128, 128)
    assert infer_shape(OpKind.MATMUL, scores, [stacked] * 2) == (1, 12, 128, 128)
    merged = MatMulAttributes(heads=12, merge_heads=True)
    weights = (1, 12, 128, 128)
    assert infer_shape(OpKind.MATMUL, merged, [weights, sequence]) == sequence


def test_conv_transpose_inverts_convolution_sizes() -> None:
    net = NetworkBuilder("n")
    x = net.input((1, 8, 7, 9))
    y = net.conv_transpose(x, 4, 3, stride=2, pad=1, output_padding=1)
    assert y.shape == (1, 4, 14, 18)
    network = net.finish(y)
    assert network.macs == 7 * 9 * 8 * 4 * 9


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs", "match"),
    [
        (OpKind.VIEW, ViewAttributes((1, 5)), [(1, 4)], "another number"),
        (OpKind.TRANSPOSE, TransposeAttributes((0, 0)), [(1, 4)], "permutation"),
        (OpKind.CONV, ConvAttributes((1, 1)), [(1, 4, 1, 1)], "weight missing"),
        (OpKind.MATMUL, MatMulAttributes(), [(2, 3), (4, 5)], "inner dimensions"),
        (OpKind.MATMUL, MatMulAttributes(heads=3), [(1, 2, 4)] * 2, "heads"),
        (OpKind.GATHER, GatherAttributes(0, (4,)), [(4, 2)], "leaves the tensor"),
        (
            OpKind.SLICE,
            SliceAttributes((0,), (1,), (9,), (1,)),
            [(4, 2)],
            "leaves the tensor",
        ),
    ],
)
def test_contradictions_are_named(
    kind: OpKind, attributes: ViewAttributes, inputs: list[tuple[int, ...]], match: str
) -> None:
    with pytest.raises(MalformedInput, match=match):
        infer_shape(kind, attributes, inputs, where="here")


@pytest.mark.parametrize(
    "arguments",
    [((0, 3),), ((3, 3), (0, 1)), ((3, 3), (1, 1), (-1, 0, 0, 0)), ((3,),)],
)
def test_impossible_windows_are_refused(arguments: tuple[tuple[int, int]]) -> None:
    with pytest.raises(MalformedInput, match="wrong values"):
        ConvAttributes(*arguments)


# --- networks ---------------------------------------------------------------------


def _relu(name: str, source: str, result: str) -> Operation:
    return Operation(name, OpKind.ACTIVATION, (source,), (result,), RELU)


def _add(name: str, first: str, second: str, result: str) -> Operation:
    return Operation(
        name, OpKind.ADD, (first, second), (result,), ElementwiseAttributes()
    )


def _network(*operations: Operation, tensors: str, outputs: tuple[str, ...]) -> Network:
    shapes = {name: Tensor(name, (1, 4)) for name in tensors.split()}
    return Network("test", ("x",), outputs, operations, shapes)


def test_operations_are_sorted_and_ready_ones_keep_their_order() -> None:
    network = _network(
        _add("last", "b", "a", "c"),
        _relu("second", "x", "b"),
        _relu("first", "x", "a"),
        tensors="x a b c",
        outputs=("c",),
    )
    assert [op.name for op in network.operations] == ["second", "first", "last"]
    assert network.consumers()["x"] == (0, 1)
    producer = network.producer("c")
    assert producer is not None
    assert producer.name == "last"
    assert network.producer("x") is None


def test_the_shortest_cycle_is_named() -> None:
    with pytest.raises(MalformedInput, match="cycle: p -> q -> p;"):
        _network(
            _add("a", "x", "tc", "ta"),
            _relu("b", "ta", "tb"),
            _relu("c", "tb", "tc"),
            _add("p", "tc", "tq", "tp"),
            _relu("q", "tp", "tq"),
            tensors="x ta tb tc tp tq",
            outputs=("tq",),
        )


def test_an_operation_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(MalformedInput, match="cycle: a -> a"):
        _network(_add("a", "x", "t", "t"), tensors="x t", outputs=("t",))


@pytest.mark.parametrize(
    ("operations", "tensors", "outputs", "match"),
    [
        ([], "x", ("x",), "empty"),
        ([_relu("a", "x", "y")], "x y", (), "no outputs"),
        ([_relu("a", "z", "y")], "x y", ("y",), "unknown tensor.*'z'"),
        ([_relu("a", "x", "y")], "x y", ("z",), "unknown tensor.*'z'"),
        ([_relu("a", "x", "y")], "x y w", ("y",), "nothing produces.*'w'"),
        (
            [_relu("a", "x", "y"), _relu("a", "x", "z")],
            "x y z",
            ("y", "z"),
            "same name.*'a'",
        ),
        (
            [_relu("a", "x", "y"), _relu("b", "x", "y")],
            "x y",
            ("y",),
            "from operation 'a' and from operation 'b'",
        ),
        (
            [_relu("a", "x", "y"), _relu("b", "x", "z")],
            "x y z",
            ("y",),
            "nobody uses.*'z'.*remove operation 'b'",
        ),
    ],
)
def test_malformed_networks_are_refused(
    operations: list[Operation], tensors: str, outputs: tuple[str, ...], match: str
) -> None:
    with pytest.raises(MalformedInput, match=match):
        _network(*operations, tensors=tensors, outputs=outputs)


def test_declared_shapes_must_follow_from_the_inputs() -> None:
    tensors = {"x": Tensor("x", (1, 4)), "y": Tensor("y", (1, 5))}
    with pytest.raises(MalformedInput, match=r"operation 'a'.*\(1, 5\).*\(1, 4\)"):
        Network("n", ("x",), ("y",), (_relu("a", "x", "y"),), tensors)


def test_operations_check_their_attributes_and_weight() -> None:
    with pytest.raises(MalformedInput, match="attributes do not belong"):
        Operation("a", OpKind.SOFTMAX, ("x",), ("y",), RELU)
    with pytest.raises(MalformedInput, match="weight missing"):
        Operation("a", OpKind.CONV, ("x",), ("y",), ConvAttributes((1, 1)))
    with pytest.raises(MalformedInput, match="weight given"):
        replace(_relu("a", "x", "y"), weight=WeightShape(1, 1))
    with pytest.raises(MalformedInput, match="number of outputs"):
        replace(_relu("a", "x", "y"), outputs=("y", "z"))


# --- the builder ------------------------------------------------------------------


def test_normalisation_and_activation_fold_into_the_convolution() -> None:
    net = NetworkBuilder("n", weight_bits=4)
    x = net.conv(net.input((1, 3, 8, 8)), 8, 3, pad=1, groups=1, name="conv")
    x = net.activate(net.batch_norm(x, name="bn"), RELU, name="relu")
    network = net.finish(x)
    (operation,) = network.operations
    assert operation.activation == RELU
    assert operation.folded == ("bn", "relu")
    assert operation.output == "relu"
    assert operation.weight == WeightShape(27, 8, 1, bias=True, bits=4)
    assert network.parameters == 27 * 8 + 8


def test_a_residual_sum_absorbs_its_activation() -> None:
    net = NetworkBuilder("n")
    x = net.input((1, 3, 8, 8))
    y = net.add(net.conv(x, 3, 3, pad=1), x, name="sum")
    network = net.finish(net.activate(y, RELU))
    assert [op.kind for op in network.operations] == [OpKind.CONV, OpKind.ADD]
    assert network.operations[1].activation == RELU


def test_nothing_folds_into_a_result_that_somebody_reads() -> None:
    net = NetworkBuilder("n")
    y = net.conv(net.input((1, 3, 8, 8)), 3, 3, pad=1)
    first = net.max_pool(y, 2, stride=2)
    second = net.max_pool(net.activate(y, RELU), 2, stride=2)
    network = net.finish(net.add(first, second))
    assert OpKind.ACTIVATION in [op.kind for op in network.operations]


def test_a_folded_tensor_cannot_be_read_afterwards() -> None:
    net = NetworkBuilder("n")
    y = net.conv(net.input((1, 3, 8, 8)), 3, 3, pad=1)
    net.activate(y, RELU)
    with pytest.raises(MalformedInput, match="folded away"):
        net.max_pool(y, 2)


def test_a_second_activation_stays_an_operation() -> None:
    net = NetworkBuilder("n")
    x = net.conv(net.input((1, 3, 8, 8)), 3, 3, activation=RELU)
    network = net.finish(net.activate(x, Activation(Function.TANH)))
    assert [op.kind for op in network.operations] == [OpKind.CONV, OpKind.ACTIVATION]


def test_channel_shuffle_is_view_transpose_view() -> None:
    net = NetworkBuilder("n")
    x = net.channel_shuffle(net.input((1, 8, 4, 5)), 2)
    kinds = [op.kind for op in net.finish(x).operations]
    assert kinds == [OpKind.VIEW, OpKind.TRANSPOSE, OpKind.VIEW]


def test_split_is_one_slice_per_part() -> None:
    net = NetworkBuilder("n")
    parts = net.split(net.input((1, 8, 4, 4)), (3, 5))
    assert [part.shape[1] for part in parts] == [3, 5]
    with pytest.raises(MalformedInput, match="do not add up"):
        net.split(parts[0], (1, 1))


def test_constants_are_parameters_and_have_no_producer() -> None:
    net = NetworkBuilder("n")
    positions = net.constant((1, 5, 8), "positions")
    network = net.finish(net.add(net.input((1, 5, 8)), positions))
    assert network.parameters == 40
    assert network.producer("positions") is None


# --- inline layers ----------------------------------------------------------------


def _inline(*layers: Mapping[str, object], shape: tuple[int, ...]) -> Network:
    return network_from_layers(layers, input_shape=shape)


def test_inline_layers_make_a_residual_network() -> None:
    network = _inline(
        {"op": "conv", "name": "stem", "channels": 8, "kernel": 3, "pad": 1},
        {"op": "conv", "channels": 8, "kernel": [3, 3], "pad": [1, 1], "bias": False},
        {"op": "batch_norm"},
        {"op": "add", "name": "sum", "inputs": ["batch_norm_2", "stem"]},
        {"op": "relu"},
        {"op": "max_pool", "kernel": 3, "stride": 2, "ceil_mode": True},
        {"op": "global_average_pool"},
        {"op": "flatten"},
        {"op": "gemm", "channels": 10, "name": "fc"},
        {"op": "softmax"},
        shape=(1, 3, 8, 8),
    )
    kinds = [op.kind for op in network.operations]
    assert kinds == [
        OpKind.CONV,
        OpKind.CONV,
        OpKind.ADD,
        OpKind.POOL,
        OpKind.REDUCE,
        OpKind.VIEW,
        OpKind.GEMM,
        OpKind.SOFTMAX,
    ]
    assert network.operations[2].activation == RELU
    assert network.tensors["max_pool_5"].shape == (1, 8, 4, 4)
    assert network.tensors["softmax_9"].shape == (1, 10)


def test_inline_activation_with_two_readers_does_not_fold() -> None:
    network = _inline(
        {"op": "conv", "name": "c", "channels": 3, "kernel": 1},
        {"op": "relu", "name": "r"},
        {"op": "mul", "inputs": ["c", "r"]},
        shape=(1, 3, 4, 4),
    )
    kinds = [op.kind for op in network.operations]
    assert kinds == [OpKind.CONV, OpKind.ACTIVATION, OpKind.MUL]


def test_inline_networks_may_have_several_inputs_and_outputs() -> None:
    layers: list[Layer] = [
        {"op": "add", "name": "sum", "inputs": ["left", "right"]},
        {"op": "mul", "name": "half", "scalar": 0.5},
    ]
    network = network_from_layers(
        layers,
        input_shape={"left": (1, 4), "right": (1, 4)},
        outputs=("sum", "half"),
    )
    assert network.inputs == ("left", "right")
    assert network.outputs == ("sum", "half")


#: One working layer of each kind, on an input of (1, 4, 6, 6).
SAMPLES: dict[str, Layer] = {
    "conv": {"channels": 4, "kernel": 3, "pad": "SAME_UPPER", "groups": 2},
    "depthwise_conv": {"kernel": 3, "multiplier": 2},
    "conv_transpose": {"channels": 2, "kernel": 2, "stride": 2},
    "gemm": {"channels": 5},
    "matmul": {"inputs": ["input", "input"], "transpose_b": True},
    "max_pool": {"kernel": 2, "stride": [2, 2]},
    "average_pool": {"kernel": 2, "pad": 1, "count_include_pad": True},
    "concat": {"inputs": ["input", "input"]},
    "slice": {"start": 1, "stop": 3},
    "pad": {"before": [0, 0, 1, 1], "after": [0, 0, 2, 2]},
    "reshape": {"shape": [1, 36, 4], "channels_last": True},
    "transpose": {"permutation": [0, 2, 3, 1]},
    "channel_shuffle": {"groups": 2},
    "lrn": {"size": 5},
    "resize": {"size": 12},
    **{kind: {"scalar": 2} for kind in ("add", "sub", "mul", "div")},
    **{kind: {"scalar": 2} for kind in ("maximum", "minimum")},
    **{f"reduce_{function}": {"axes": [1]} for function in ReduceFunction},
}


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_every_inline_kind_builds(kind: str) -> None:
    layer: Layer = {"op": kind, **SAMPLES.get(kind, {})}
    network = _inline(layer, shape=(1, 4, 6, 6))
    assert network.operations


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        ({}, r"operations\[1\]\.op: no kind"),
        ({"op": "konv"}, r"operations\[1\]\.op.*did you mean 'conv'"),
        ({"op": 3}, r"operations\[1\]\.op.*got 3"),
        ({"op": "conv"}, r"operations\[1\]\.channels: missing"),
        (
            {"op": "conv", "channels": 4, "kernal": 3},
            r"operations\[1\]\.kernal.*did you mean 'kernel'",
        ),
        (
            {"op": "conv", "channels": 4, "kernel": 0},
            r"operations\[1\]\.kernel.*got 0.*at least 1",
        ),
        ({"op": "conv", "channels": 4, "kernel": [3]}, r"\.kernel.*\[3\]"),
        ({"op": "conv", "channels": 4, "kernel": 9}, r"operations\[1\]\.kernel"),
        ({"op": "conv", "channels": 4, "kernel": 3, "pad": "same"}, r"\.pad.*same"),
        ({"op": "conv", "channels": 4, "kernel": 3, "groups": 3}, r"\[1\]\.groups"),
        ({"op": "conv", "channels": 4, "kernel": 3, "bias": 1}, r"\.bias.*got 1"),
        (
            {"op": "conv", "channels": 4, "kernel": 3, "activation": "rely"},
            r"\.activation.*'rely'",
        ),
        ({"op": "add"}, r"operations\[1\]\.inputs.*got 1"),
        ({"op": "add", "inputs": ["stem", "stm"]}, r"'stm'.*did you mean 'stem'"),
        ({"op": "add", "inputs": ["stem", "later"]}, r"later.*operations\[2\].*cycle"),
        ({"op": "relu", "inputs": []}, r"operations\[1\]\.inputs.*\[\]"),
        ({"op": "relu", "inputs": 4}, r"operations\[1\]\.inputs.*got 4"),
        ({"op": "relu", "name": "stem"}, r"\.name.*taken.*'stem'"),
        ({"op": "mul", "scalar": float("nan")}, r"\.scalar.*nan"),
        ({"op": "slice", "stop": 9}, r"operations\[1\]\.stops.*leaves"),
        ({"op": "reshape", "shape": [1, 7]}, r"operations\[1\]\.shape.*\(1, 7\)"),
        ({"op": "concat", "axis": 4}, r"operations\[1\]\.axis.*got 4"),
    ],
)
def test_wrong_layers_are_refused_with_their_key_path(layer: Layer, match: str) -> None:
    stem: Layer = {"op": "conv", "name": "stem", "channels": 4, "kernel": 1}
    with pytest.raises(MalformedInput, match=match):
        _inline(stem, layer, {"op": "tanh", "name": "later"}, shape=(1, 4, 6, 6))


def test_an_empty_list_of_layers_is_refused() -> None:
    with pytest.raises(MalformedInput, match="empty"):
        _inline(shape=(1, 4))


def test_unknown_outputs_are_refused() -> None:
    with pytest.raises(MalformedInput, match=r"outputs.*'nothing'"):
        network_from_layers(
            [{"op": "relu"}], input_shape=(1, 4), outputs=("nothing", "relu_0")
        )
