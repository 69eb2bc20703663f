"""Model files of the PIMCOMP compiler: a JSON list of nodes.

Precision: that compiler gives a weight one crossbar cell, whatever its width, so a
crossbar of 128 x 128 cells holds 128 columns of weights.  A network read this way
has weights as wide as a cell (``weight_bits`` absent).  With ``weight_bits: 16`` the
weights are cut into slices of the cell's width, as everywhere else in this project:
on 2-bit cells eight times as many columns.  Activations are as wide as the file says
(``bitwidth``).
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    RELU,
    Activation,
    Function,
    OpKind,
    PoolFunction,
    ReduceFunction,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.pimcomp_nodes import PimcompNode, read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network

#: Largest file that is read: a node list of a real network has some hundred kilobytes.
MOST_BYTES = 8 << 20

#: Bits of a cell of the chips that the compiler ships.
CELL_BITS = 2

_ACTIVATIONS = (RELU, Activation(Function.TANH), Activation(Function.SIGMOID))
_FUNCTIONS = {
    "OP_RELU": RELU,
    "OP_TANH": Activation(Function.TANH),
    "OP_SIGMOID": Activation(Function.SIGMOID),
}
#: What the compiler writes for a sum (and for a product, undistinguished) and for
#: a difference.
_SUM, _DIFFERENCE = 2, 4
_VIEWS = ("OP_FLATTEN", "OP_RESHAPE", "OP_SQUEEZE", "OP_UNSQUEEZE")
#: Nodes that change nothing at inference time.
_NOTHING = ("OP_DROPOUT", "OP_IDENTITY")


def import_pimcomp(
    path: str | Path,
    *,
    weight_bits: int | None = None,
    activation_bits: int | None = None,
    cell_bits: int = CELL_BITS,
) -> Network:
    """The network in a PIMCOMP model file.

    Args:
        weight_bits: bits per weight; None for the compiler's convention, weights as
            wide as a cell.
        activation_bits: bits of values; None for the file's ``bitwidth``.
        cell_bits: bits of a crossbar cell of the chip.

    Raises:
        MalformedInput: no readable node list, unknown operations (all are listed),
            shapes that contradict the nodes.
    """
    path = Path(path)
    nodes = read_nodes(_document(path), str(path))
    _require_known(nodes, path)
    bits = activation_bits or min((n.bits for n in nodes if n.bits), default=16)
    try:
        return _Reader(path, nodes, weight_bits, cell_bits, bits).run()
    except MalformedInput as error:
        if str(path) in str(error):
            raise
        raise MalformedInput(
            error.what,
            where=f"{path}: {error.where}" if error.where else str(path),
            **({} if error.value is MalformedInput._ABSENT else {"value": error.value}),
            expected=error.expected,
            hint=error.hint,
        ) from None


def _document(path: Path) -> object:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "not a text file" if isinstance(error, ValueError) else error.strerror
        raise MalformedInput(
            f"cannot be read: {reason}", where=str(path), expected="a JSON file"
        ) from None
    if len(data) > MOST_BYTES:
        raise MalformedInput(
            "the file is too large for a node list",
            where=str(path),
            expected=f"at most {MOST_BYTES >> 20} MB",
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        syntax = isinstance(error, json.JSONDecodeError | RecursionError)
        reason = str(error) if syntax else "a number has thousands of digits"
        raise MalformedInput(
            f"not JSON: {reason}", where=str(path), expected="a PIMCOMP model file"
        ) from None


def _require_known(nodes: Sequence[PimcompNode], path: Path) -> None:
    unknown = [node for node in nodes if node.operation not in _LAYERS]
    if unknown:
        listed = "; ".join(f"{node.operation} {node.name!r}" for node in unknown)
        count = len(unknown)
        raise MalformedInput(
            f"{count} unsupported node{'s' if count > 1 else ''}: {listed}",
            where=str(path),
            expected=f"operations {', '.join(sorted(_LAYERS))}",
        )


class _Reader:
    def __init__(
        self,
        path: Path,
        nodes: Sequence[PimcompNode],
        weight_bits: int | None,
        cell_bits: int,
        activation_bits: int,
    ) -> None:
        self.path = path
        self.nodes = nodes
        self.net = NetworkBuilder(
            path.stem,
            weight_bits=weight_bits or cell_bits,
            activation_bits=activation_bits,
        )
        if weight_bits is None:
            self.net.notes.append(
                f"weights are as wide as a cell ({cell_bits} bit): PIMCOMP's convention"
                " (weight_bits changes it)"
            )
        self.results: dict[str, Tensor] = {}
        self.uses: Counter[str] = Counter()
        #: The node whose result a node passes on: itself, or one in front.
        self.root: dict[str, str] = {}

    def run(self) -> Network:
        """The network.

        Raises:
            MalformedInput: see :func:`import_pimcomp`.
        """
        order = _ordered(self.nodes, str(self.path))
        root = self.root
        for node in order:
            passes = node.operation in _NOTHING
            root[node.name] = root[node.providers[0]] if passes else node.name
        self.uses.update(
            root[provider]
            for node in self.nodes
            if node.operation not in _NOTHING
            for provider in node.providers
        )
        read = {provider for node in self.nodes for provider in node.providers}
        outputs = dict.fromkeys(
            root[node.name] for node in self.nodes if node.name not in read
        )
        self.uses.update(list(outputs))
        for node in order:
            self.net.location = node.where
            if node.operation in _NOTHING:
                self.results[node.name] = self.results[root[node.name]]
                self.net.absorb(self.results[node.name], (node.name,))
                continue
            providers = [self.results[root[p]] for p in node.providers]
            self.results[node.name] = _LAYERS[node.operation](self, node, providers)
            node.check_output(self.results[node.name].shape)
        self.net.location = ""
        return self.net.finish(*(self.results[name] for name in outputs))

    def alone(self, node: PimcompNode) -> bool:
        """True if nobody else reads what ``node`` reads."""
        return all(self.uses[self.root[p]] == 1 for p in node.providers)


def _ordered(nodes: Sequence[PimcompNode], where: str) -> list[PimcompNode]:
    index = {node.name: i for i, node in enumerate(nodes)}
    followers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for provider in dict.fromkeys(node.providers):
            followers[index[provider]].append(i)
            missing[i] += 1
    ready = [i for i, count in enumerate(missing) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for follower in followers[i]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(nodes):
        done = {node.name for node in order}
        stuck = [node.name for node in nodes if node.name not in done]
        raise MalformedInput(
            f"the nodes form a cycle among {', '.join(stuck)}",
            where=where,
            expected="an acyclic graph",
        )
    return order


def _input(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    if node.output is None:
        raise MalformedInput(
            "the input has no shape", where=node.where, expected="output_dim"
        )
    return reader.net.input(node.output, node.name)


def _fused(node: PimcompNode) -> Activation | None:
    """The activation or the limits that a convolution applies to its sums."""
    if node.flag("with_clip"):
        limits = node.number("clip_min"), node.number("clip_max")
        return Activation(Function.CLIP, *limits)
    if not node.flag("with_act"):
        return None
    kind = node.integer("act_type")
    if not 0 <= kind < len(_ACTIVATIONS):
        raise MalformedInput(
            "unknown activation",
            where=f"{node.where}.act_type",
            value=kind,
            expected="0 (ReLU), 1 (tanh) or 2 (sigmoid)",
        )
    return _ACTIVATIONS[kind]


def _conv(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    channels = node.parameter("input_channel")
    if len(x[0].shape) != 4 or x[0].shape[1] != channels:
        raise MalformedInput(
            "the input has another number of channels",
            where=f"{node.where}.param.input_channel",
            value=channels,
            expected=f"{x[0].shape[1]}, from shape {x[0].shape}"
            if len(x[0].shape) == 4
            else "a feature map in front",
        )
    return reader.net.conv(
        x[0],
        node.parameter("output_channel"),
        node.pair("kernel"),
        stride=node.pair("stride", 1),
        pad=node.pads(),
        dilation=node.pair("dilation", 1),
        groups=node.parameter("group", 1),
        bias=bool(node.parameter("with_bias", 0, minimum=0)),
        norm=node.flag("with_bn"),
        activation=_fused(node),
        name=node.name,
    )


def _fc(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    net, rows = reader.net, node.parameter("num_input")
    source = x[0]
    if len(source.shape) > 2:
        source = net.flatten(source, name=f"{node.name}.flatten")
    if source.shape[-1] != rows:
        raise MalformedInput(
            "the input has another number of features",
            where=f"{node.where}.param.num_input",
            value=rows,
            expected=str(source.shape[-1]),
        )
    return net.gemm(
        source,
        node.parameter("num_output"),
        bias=bool(node.parameter("with_bias", 0, minimum=0)) or node.flag("with_bn"),
        activation=_fused(node),
        name=node.name,
    )


def _pool(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    net = reader.net
    average = bool(node.parameter("pool_method", 0, minimum=0))
    if node.parameter("global", 0, minimum=0):
        function = ReduceFunction.MEAN if average else ReduceFunction.MAX
        return net.reduce(function, x[0], (2, 3), name=node.name)
    function_of = PoolFunction.AVERAGE if average else PoolFunction.MAX
    return net.pool(
        function_of,
        x[0],
        node.pair("kernel"),
        stride=node.pair("stride", 1),
        pad=node.pads(),
        name=node.name,
    )


def _eltwise(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    kind = node.parameter("eletype", _SUM, minimum=0)
    kinds = {_SUM: OpKind.ADD, _DIFFERENCE: OpKind.SUB}
    if kind not in kinds or len(x) < 2:
        raise MalformedInput(
            "unknown elementwise operation",
            where=f"{node.where}.param.eletype",
            value=kind,
            expected="2 (sum) or 4 (difference) of two or more nodes",
        )
    result = x[0]
    for number, operand in enumerate(x[1:], 2):
        name = node.name if number == len(x) else f"{node.name}.{number}"
        result = reader.net.binary(kinds[kind], result, operand, name=name)
    return result


def _concat(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    axis = 1 if len(x[0].shape) != 3 else 2
    return reader.net.concat(x, axis=axis, name=node.name)


def _function(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    fold = reader.alone(node)
    function = _FUNCTIONS[node.operation]
    return reader.net.activate(x[0], function, fold=fold, name=node.name)


def _clip(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    limits = node.limit("min"), node.limit("max")
    function = Activation(Function.CLIP, *limits)
    fold = reader.alone(node)
    return reader.net.activate(x[0], function, fold=fold, name=node.name)


def _norm(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    return reader.net.batch_norm(x[0], fold=reader.alone(node), name=node.name)


def _view(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    if node.output is None:
        raise MalformedInput(
            "the shape is missing", where=node.where, expected="output_dim"
        )
    return reader.net.reshape(x[0], node.output, name=node.name)


def _softmax(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    return reader.net.softmax(x[0], axis=min(1, len(x[0].shape) - 1), name=node.name)


def _lrn(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    # The file does not say the window; AlexNet and GoogLeNet have five channels.
    return reader.net.lrn(x[0], node.parameter("size", 5), name=node.name)


def _shuffle(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    groups = node.parameter("split_factor")
    return reader.net.channel_shuffle(x[0], groups, name=node.name)


def _pad(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    axes = range(len(x[0].shape))
    before = [node.parameter(f"pad_{axis}_h", 0, minimum=0) for axis in axes]
    after = [node.parameter(f"pad_{axis}_w", 0, minimum=0) for axis in axes]
    return reader.net.pad(x[0], before, after, name=node.name)


def _matmul(reader: _Reader, node: PimcompNode, x: list[Tensor]) -> Tensor:
    if len(x) == 2:
        return reader.net.matmul(x[0], x[1], name=node.name)
    if node.output is None:
        raise MalformedInput(
            "the shape is missing", where=node.where, expected="output_dim"
        )
    return reader.net.gemm(x[0], node.output[-1], bias=False, name=node.name)


#: Builders of every operation.
_LAYERS: dict[str, Callable[[_Reader, PimcompNode, list[Tensor]], Tensor]] = {
    "OP_BN": _norm,
    "OP_CLIP": _clip,
    "OP_CONCAT": _concat,
    "OP_CONV": _conv,
    "OP_ELTWISE": _eltwise,
    "OP_FC": _fc,
    "OP_INPUT": _input,
    "OP_LRN": _lrn,
    "OP_MATMUL": _matmul,
    "OP_PAD": _pad,
    "OP_POOL": _pool,
    "OP_SHUFFLE": _shuffle,
    "OP_SOFTMAX": _softmax,
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(_NOTHING, lambda reader, node, x: x[0]),
    **dict.fromkeys(_VIEWS, _view),
}
