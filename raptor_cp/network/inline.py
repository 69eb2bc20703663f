"""Networks written layer by layer in a scenario file.

Each layer is a mapping with ``op`` and the keys of that kind; ``name`` defaults to
the kind and its position, ``inputs`` (one name or a list) to the layer before.
Activations and ``batch_norm`` fold into a producer that nobody else reads.

>>> layers = [
...     {"op": "conv", "name": "stem", "channels": 8, "kernel": 3, "pad": 1},
...     {"op": "relu"},
...     {"op": "global_average_pool"},
...     {"op": "flatten"},
...     {"op": "gemm", "channels": 10},
... ]
>>> network = network_from_layers(layers, input_shape=(1, 3, 16, 16))
>>> [operation.kind.value for operation in network.operations]
['conv', 'reduce', 'view', 'gemm']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    BINARY_KINDS,
    Activation,
    Function,
    OpKind,
    PoolFunction,
    ReduceFunction,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.layer_entry import LayerEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network

#: Keys that every layer may have.
COMMON_KEYS = ("op", "name", "inputs")
_WINDOW = ("kernel", "stride", "pad", "dilation")


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How layers of one ``op`` are read: legal keys, inputs (0: any), builder."""

    keys: tuple[str, ...]
    inputs: int
    build: Callable[[NetworkBuilder, LayerEntry, list[Tensor]], Tensor]


def network_from_layers(
    layers: Sequence[Mapping[str, object]],
    *,
    input_shape: Sequence[int] | Mapping[str, Sequence[int]],
    name: str = "inline",
    outputs: Sequence[str] | None = None,
    weight_bits: int = 8,
    activation_bits: int = 8,
    where: str = "operations",
) -> Network:
    """The network of ``layers``, in their order.

    Args:
        input_shape: of the one input, called ``input``; or shapes by input name.
        outputs: layers whose results leave the network; None for the last one.
        where: key path of the list, for errors such as ``operations[3].kernel``.

    Raises:
        MalformedInput: unknown kinds, keys or layers, wrong types or values, and
            everything that :class:`Network` rejects.
    """
    if not layers:
        raise MalformedInput(
            "the network is empty", where=where, expected="at least one layer"
        )
    net = NetworkBuilder(name, weight_bits=weight_bits, activation_bits=activation_bits)
    shapes = input_shape if isinstance(input_shape, Mapping) else {"input": input_shape}
    results = {key: net.input(tuple(shape), key) for key, shape in shapes.items()}
    entries = [_entry(layer, i, where) for i, layer in enumerate(layers)]
    previous = next(iter(shapes))
    sources: list[tuple[str, ...]] = []
    for entry in entries:
        sources.append(entry.inputs(previous))
        previous = entry.name
    wanted = tuple(outputs) if outputs is not None else (entries[-1].name,)
    uses = Counter(source for names in sources for source in names)
    uses.update(wanted)
    positions = {entry.name: entry.where for entry in reversed(entries)}
    for entry, names in zip(entries, sources, strict=True):
        net.location = entry.where
        if entry.name in results:
            raise MalformedInput(
                "the name is taken",
                where=f"{entry.where}.name",
                value=entry.name,
                expected="unique layer names",
            )
        inputs = [_resolve(source, entry, results, positions) for source in names]
        entry.sole_reader = all(uses[source] == 1 for source in names)
        results[entry.name] = _build(net, entry, inputs)
    net.location = ""
    for output in wanted:
        if output not in results:
            raise MalformedInput(
                "unknown output", where="outputs", value=output, expected="a layer"
            )
    return net.finish(*(results[output] for output in wanted))


def _entry(layer: Mapping[str, object], index: int, where: str) -> LayerEntry:
    place = f"{where}[{index}]"
    if not isinstance(layer, Mapping):
        raise MalformedInput(
            "not a layer", where=place, value=layer, expected="a mapping with 'op'"
        )
    op = layer.get("op")
    kind = LAYER_KINDS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise MalformedInput(
            "unknown kind of layer" if "op" in layer else "no kind of layer",
            where=f"{place}.op",
            value=op,
            expected=f"one of {', '.join(LAYER_KINDS)}",
            hint=_nearest(op, LAYER_KINDS),
        )
    legal = (*COMMON_KEYS, *kind.keys)
    for key in layer:
        if key not in legal:
            raise MalformedInput(
                f"unknown key of {op!r}",
                where=f"{place}.{key}",
                expected=f"one of {', '.join(legal)}",
                hint=_nearest(key, legal),
            )
    return LayerEntry(layer, place, f"{op}_{index}")


def _nearest(value: object, legal: Sequence[str] | Mapping[str, object]) -> str:
    close = get_close_matches(str(value), list(legal), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _resolve(
    source: str,
    entry: LayerEntry,
    results: Mapping[str, Tensor],
    positions: Mapping[str, str],
) -> Tensor:
    if source in results:
        return results[source]
    if source in positions:
        raise MalformedInput(
            f"layer {source!r} comes later ({positions[source]}) or is itself: a cycle",
            where=f"{entry.where}.inputs",
            expected="layers before this one",
        )
    raise MalformedInput(
        "unknown layer",
        where=f"{entry.where}.inputs",
        value=source,
        expected="a network input or an earlier layer",
        hint=_nearest(source, results),
    )


def _build(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    kind = LAYER_KINDS[entry.op]
    if kind.inputs and len(inputs) != kind.inputs:
        raise MalformedInput(
            f"wrong number of inputs of {entry.op!r}",
            where=f"{entry.where}.inputs",
            value=len(inputs),
            expected=str(kind.inputs),
        )
    return kind.build(net, entry, inputs)


def _conv(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    return net.conv(
        inputs[0],
        entry.integer("channels"),
        entry.pair("kernel"),
        stride=entry.pair("stride", 1),
        pad=entry.pads(),
        dilation=entry.pair("dilation", 1),
        groups=entry.integer("groups", 1),
        bias=entry.flag("bias", default=True),
        activation=entry.activation(),
        name=entry.name,
    )


def _depthwise(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    x = inputs[0]
    channels = x.shape[1] if len(x.shape) == 4 else 1
    return net.conv(
        x,
        channels * entry.integer("multiplier", 1),
        entry.pair("kernel"),
        stride=entry.pair("stride", 1),
        pad=entry.pads(),
        dilation=entry.pair("dilation", 1),
        groups=channels,
        bias=entry.flag("bias", default=True),
        activation=entry.activation(),
        name=entry.name,
    )


def _conv_transpose(
    net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]
) -> Tensor:
    return net.conv_transpose(
        inputs[0],
        entry.integer("channels"),
        entry.pair("kernel"),
        stride=entry.pair("stride", 1),
        pad=entry.explicit_pads(),
        dilation=entry.pair("dilation", 1),
        groups=entry.integer("groups", 1),
        output_padding=entry.pair("output_padding", 0, minimum=0),
        bias=entry.flag("bias", default=True),
        activation=entry.activation(),
        name=entry.name,
    )


def _gemm(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    return net.gemm(
        inputs[0],
        entry.integer("channels"),
        bias=entry.flag("bias", default=True),
        activation=entry.activation(),
        name=entry.name,
    )


def _matmul(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    return net.matmul(
        inputs[0],
        inputs[1],
        transpose_a=entry.flag("transpose_a"),
        transpose_b=entry.flag("transpose_b"),
        heads=entry.integer("heads", 1),
        merge_heads=entry.flag("merge_heads"),
        scale=entry.number("scale", 1.0),
        name=entry.name,
    )


def _binary(
    kind: OpKind,
) -> Callable[[NetworkBuilder, LayerEntry, list[Tensor]], Tensor]:
    def build(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
        scalar = entry.has("scalar")
        if len(inputs) != (1 if scalar else 2):
            raise MalformedInput(
                f"wrong number of inputs of {entry.op!r}",
                where=f"{entry.where}.inputs",
                value=len(inputs),
                expected="two layers, or one and a scalar",
            )
        return net.binary(
            kind,
            inputs[0],
            entry.number("scalar") if scalar else inputs[1],
            scalar_first=entry.flag("scalar_first"),
            activation=entry.activation(),
            name=entry.name,
        )

    return build


def _pool(
    function: PoolFunction,
) -> Callable[[NetworkBuilder, LayerEntry, list[Tensor]], Tensor]:
    def build(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
        return net.pool(
            function,
            inputs[0],
            entry.pair("kernel"),
            stride=entry.pair("stride", 1),
            pad=entry.pads(),
            dilation=entry.pair("dilation", 1),
            ceil_mode=entry.flag("ceil_mode"),
            count_include_pad=entry.flag("count_include_pad"),
            name=entry.name,
        )

    return build


def _activation(
    function: Function,
) -> Callable[[NetworkBuilder, LayerEntry, list[Tensor]], Tensor]:
    def build(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
        return net.activate(
            inputs[0],
            Activation(function, entry.number("alpha", 0.0), entry.number("beta", 0.0)),
            fold=entry.sole_reader,
            name=entry.name,
        )

    return build


def _relu6(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    activation = Activation(Function.CLIP, 0.0, 6.0)
    return net.activate(inputs[0], activation, fold=entry.sole_reader, name=entry.name)


def _slice(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
    return net.slice(
        inputs[0],
        entry.integer("axis", 1, minimum=0),
        entry.integer("start", 0, minimum=0),
        entry.integer("stop"),
        entry.integer("step", 1),
        name=entry.name,
    )


def _reduce(
    function: ReduceFunction,
) -> Callable[[NetworkBuilder, LayerEntry, list[Tensor]], Tensor]:
    def build(net: NetworkBuilder, entry: LayerEntry, inputs: list[Tensor]) -> Tensor:
        return net.reduce(
            function,
            inputs[0],
            entry.integers("axes", minimum=0),
            keep_dims=entry.flag("keep_dims", default=True),
            name=entry.name,
        )

    return build


#: The kinds of layers, by the value of ``op``.
LAYER_KINDS: dict[str, LayerKind] = {
    "conv": LayerKind(("channels", *_WINDOW, "groups", "bias", "activation"), 1, _conv),
    "depthwise_conv": LayerKind(
        (*_WINDOW, "multiplier", "bias", "activation"), 1, _depthwise
    ),
    "conv_transpose": LayerKind(
        ("channels", *_WINDOW, "groups", "output_padding", "bias", "activation"),
        1,
        _conv_transpose,
    ),
    "gemm": LayerKind(("channels", "bias", "activation"), 1, _gemm),
    "matmul": LayerKind(
        ("transpose_a", "transpose_b", "heads", "merge_heads", "scale"), 2, _matmul
    ),
    **{
        kind.value: LayerKind(
            ("scalar", "scalar_first", "activation"), 0, _binary(kind)
        )
        for kind in BINARY_KINDS
    },
    **{
        f"{function.value}_pool": LayerKind(
            (*_WINDOW, "ceil_mode", "count_include_pad"), 1, _pool(function)
        )
        for function in PoolFunction
    },
    "global_average_pool": LayerKind(
        (), 1, lambda net, e, x: net.global_average_pool(x[0], name=e.name)
    ),
    **{
        f"reduce_{function.value}": LayerKind(
            ("axes", "keep_dims"), 1, _reduce(function)
        )
        for function in ReduceFunction
    },
    "concat": LayerKind(
        ("axis",),
        0,
        lambda net, e, x: net.concat(
            x, axis=e.integer("axis", 1, minimum=0), name=e.name
        ),
    ),
    "slice": LayerKind(("axis", "start", "stop", "step"), 1, _slice),
    "pad": LayerKind(
        ("before", "after"),
        1,
        lambda net, e, x: net.pad(
            x[0],
            e.integers("before", minimum=0),
            e.integers("after", minimum=0),
            name=e.name,
        ),
    ),
    "reshape": LayerKind(
        ("shape", "channels_last"),
        1,
        lambda net, e, x: net.reshape(
            x[0],
            e.integers("shape"),
            channels_last=e.flag("channels_last"),
            name=e.name,
        ),
    ),
    "flatten": LayerKind((), 1, lambda net, e, x: net.flatten(x[0], name=e.name)),
    "transpose": LayerKind(
        ("permutation",),
        1,
        lambda net, e, x: net.transpose(
            x[0], e.integers("permutation", minimum=0), name=e.name
        ),
    ),
    "channel_shuffle": LayerKind(
        ("groups",),
        1,
        lambda net, e, x: net.channel_shuffle(x[0], e.integer("groups"), name=e.name),
    ),
    "softmax": LayerKind(
        ("axis",),
        1,
        lambda net, e, x: net.softmax(
            x[0], axis=e.optional_integer("axis"), name=e.name
        ),
    ),
    "layer_norm": LayerKind(
        ("axis",),
        1,
        lambda net, e, x: net.layer_norm(
            x[0], axis=e.optional_integer("axis"), name=e.name
        ),
    ),
    "batch_norm": LayerKind(
        (),
        1,
        lambda net, e, x: net.batch_norm(x[0], fold=e.sole_reader, name=e.name),
    ),
    "lrn": LayerKind(
        ("size",), 1, lambda net, e, x: net.lrn(x[0], e.integer("size"), name=e.name)
    ),
    "resize": LayerKind(
        ("size",), 1, lambda net, e, x: net.resize(x[0], e.pair("size"), name=e.name)
    ),
    **{
        function.value: LayerKind(("alpha", "beta"), 1, _activation(function))
        for function in Function
    },
    "relu6": LayerKind((), 1, _relu6),
}
