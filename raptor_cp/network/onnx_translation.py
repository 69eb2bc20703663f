"""From a source graph to a network: values, names, widths, and what is refused.

Each operator has a handler (modules ``onnx_ops_*``) that appends operations to a
:class:`NetworkBuilder`.  A handler that cannot raises :class:`Refusal`; the walk goes
on with a stand-in of the right shape, so that one error names every such node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import Activation, Function, OpKind
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.onnx_nodes import (
    MICROSOFT,
    OWN_DOMAIN,
    QUANTISED,
    WIDE_FLOATS,
    Info,
    Node,
    SourceGraph,
    element_bits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raptor_cp.network.onnx_nodes import Shape
    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network

#: Width of floating-point weights and values unless the user says otherwise.
DEFAULT_BITS = 16


class Refusal(Exception):
    """An operator, or a use of it, that has no counterpart; the reason."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value: a tensor of the network, read under the shape the model gives it.

    Both have the same elements in the same logical order.  The tensor may have
    further dimensions of one: ``(1, C, L)`` is held as ``(1, C, L, 1)`` by
    one-dimensional convolutions, ``(h, S, d)`` as ``(1, h, S, d)``.
    """

    tensor: Tensor
    shape: Shape

    def axis(self, axis: int) -> int:
        """The tensor's axis for an axis of the model's shape.

        Raises:
            Refusal: the tensor has no such axis.
        """
        rank = len(self.shape)
        if not -rank <= axis < rank:
            raise Refusal(f"axis {axis} of a shape with {rank} dimensions")
        axis %= rank
        own = self.tensor.shape
        if own[:rank] == self.shape and prod(own[rank:]) == 1:
            return axis
        if own == (1, *self.shape):
            return axis + 1
        before, size = prod(self.shape[:axis]), self.shape[axis]
        for index, found in enumerate(own):
            if found == size and prod(own[:index]) == before:
                return index
        raise Refusal(f"axis {axis} of {self.shape} is no axis of {own}")


Result = Held | dict[str, Held]
HANDLERS: dict[str, Callable[[Translator, Node], Result]] = {}


def handles(
    *kinds: str,
) -> Callable[
    [Callable[[Translator, Node], Result]], Callable[[Translator, Node], Result]
]:
    """Register a handler for operators, ``domain:Operator`` unless standard."""

    def register(
        handler: Callable[[Translator, Node], Result],
    ) -> Callable[[Translator, Node], Result]:
        for kind in kinds:
            if kind in HANDLERS:
                raise KeyError(f"two handlers of {kind}")
            HANDLERS[kind] = handler
        return handler

    return register


def own(operator: str) -> str:
    """The key of an operator of ours."""
    return f"{OWN_DOMAIN}:{operator}"


def microsoft(operator: str) -> str:
    """The key of a contributed operator of ONNX Runtime."""
    return f"{MICROSOFT}:{operator}"


@dataclass(frozen=True, slots=True)
class Widths:
    """Widths that the user asks for; None for those of the file."""

    weight_bits: int | None = None
    activation_bits: int | None = None


class Translator:
    """Turns nodes into operations.

    Args:
        graph: renames removed, patterns merged.
        name: of the network.
        widths: see :class:`Widths`.
        vector: map elementwise-like unsupported nodes to vector work.
        where: the file, for errors.
    """

    def __init__(
        self,
        graph: SourceGraph,
        name: str,
        widths: Widths,
        *,
        vector: bool,
        where: str,
    ) -> None:
        self.graph = graph
        self.net = NetworkBuilder(name)
        self.net.notes += graph.notes
        self.widths = widths
        self.vector = vector
        self.where = where
        self.held: dict[str, Held] = {}
        self.slices: dict[tuple[str, int, int], Tensor] = {}
        self.refused: list[tuple[Node, str]] = []
        self.uses = Counter(name for node in graph.nodes for name in node.inputs)
        self.uses.update(graph.outputs)
        #: Which node each operation comes from, which value each constant is.
        self.origins: dict[str, Node] = {}
        self.constant_names: dict[str, str] = {}
        self._constants: dict[str, Tensor] = {}
        #: Values that are the same tensor, by its name.
        self._names: dict[str, dict[str, None]] = {}
        self._defaulted: set[str] = set()
        self._unknown: set[str] = set()

    def run(self) -> Network:
        """The network.

        Raises:
            MalformedInput: unsupported nodes (all of them are listed), and what
                the operators themselves reject.
        """
        self._inputs()
        for node in self.graph.nodes:
            self._visit(node)
        if self.refused:
            raise self._refusal()
        outputs = []
        for name in self.graph.outputs:
            held = self.held[name]
            self._begin_moving(held.tensor)
            self.net.location = f"{self.where}, output {name!r}"
            outputs.append(self.plain(held, f"{name}.output"))
        self.net.location = ""
        for kind in ("weights", "values"):
            if kind in self._defaulted:
                option = "weight" if kind == "weights" else "activation"
                self.net.notes.append(
                    f"floating-point {kind} are taken as {DEFAULT_BITS}-bit fixed "
                    f"point ({option}_bits changes it)"
                )
        return self.net.finish(*dict.fromkeys(outputs))

    # -- values ----------------------------------------------------------------------

    def value(self, node: Node, index: int = 0) -> Held:
        """Input ``index`` of a node, computed or constant."""
        name = node.given(index)
        if not name:
            raise Refusal(f"input {index} is missing")
        if name in self.held:
            return self.held[name]
        info = self.graph.values[name]
        return Held(self.constant(name, canonical(self.shape(name))), info.shape or ())

    def constant(self, name: str, shape: Shape) -> Tensor:
        """A constant operand of the model as a tensor of ``shape``."""
        key = f"{name} {shape}"
        if key not in self._constants:
            info = self.graph.values[name]
            if not shape:
                raise Refusal("a constant without dimensions where data are expected")
            bits = self.net.activation_bits
            self.net.activation_bits = self._width(name, info)
            unique = self.unique(name or "constant")
            self._constants[key] = self.net.constant(shape, unique)
            self.constant_names[unique] = name
            self.net.activation_bits = bits
        return self._constants[key]

    def info(self, name: str) -> Info:
        """What is known of a value."""
        return self.graph.values[name]

    def shape(self, name: str) -> Shape:
        """The model's shape of a value."""
        shape = self.graph.values[name].shape
        if shape is None:
            raise Refusal("its output shape depends on data")
        return shape

    def single_use(self, name: str) -> bool:
        """True if nothing else reads the tensor behind ``name``, now or later.

        Nodes from which nothing comes give a tensor a second name.
        """
        held = self.held.get(name)
        names = self._names.get(held.tensor.name, {}) if held is not None else {}
        if name not in names:
            return self.uses[name] == 1
        # Each further name was made by a node that read one of the others.
        return sum(self.uses[n] for n in names) - (len(names) - 1) == 1

    def plain(self, held: Held, name: str) -> Tensor:
        """The value as a tensor of its own shape: a view if it is held otherwise."""
        wanted = canonical(held.shape)
        return self.viewed(held.tensor, wanted, name)

    def viewed(self, tensor: Tensor, shape: Shape, name: str) -> Tensor:
        """``tensor`` under another shape; free."""
        if tensor.shape == shape:
            return tensor
        bits, self.net.activation_bits = self.net.activation_bits, tensor.bits
        result = self.net.reshape(tensor, shape, name=self.unique(f"{name}.view"))
        self.net.activation_bits = bits
        return result

    def unique(self, name: str) -> str:
        """``name``, or the first of ``name_2``, ... that is free."""
        result, number = name, 1
        while self.net.holds(result):
            number += 1
            result = f"{name}_{number}"
        return result

    def moves(self, held: Held) -> None:
        """What follows keeps the elements of ``held``, and so their width."""
        self._begin_moving(held.tensor)

    def _begin_moving(self, tensor: Tensor) -> None:
        self.net.activation_bits = tensor.bits

    # -- widths ----------------------------------------------------------------------

    def weights(self, name: str) -> None:
        """Weights that follow are those of constant ``name``."""
        if self.widths.weight_bits is not None:
            self.net.weight_bits = self.widths.weight_bits
            return
        info = self.graph.values[name]
        bits = info.bits or element_bits(info.dtype)
        if info.bits is None and info.dtype in WIDE_FLOATS:
            self._defaulted.add("weights")
            bits = DEFAULT_BITS
        self.net.weight_bits = bits or DEFAULT_BITS

    def _width(self, name: str, info: Info) -> int:
        own_bits = element_bits(info.dtype)
        quantised = self.graph.bits.get(name) or info.bits
        counts = info.dtype not in (*WIDE_FLOATS, *QUANTISED) and own_bits
        if quantised is None and counts and own_bits in (32, 64):
            return own_bits  # indices and masks: no choice of the user's
        if self.widths.activation_bits is not None:
            return self.widths.activation_bits
        if quantised is not None:
            return quantised
        if info.dtype in WIDE_FLOATS or own_bits is None:
            self._defaulted.add("values")
            return DEFAULT_BITS
        return own_bits

    # -- the walk ----------------------------------------------------------------------

    def _inputs(self) -> None:
        for name in self.graph.inputs:
            shape = self.graph.shape(name)
            readers = [n for n in self.graph.nodes if name in n.inputs]
            series = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "QLinearConv"}
            own_shape = canonical(shape)
            in_series = any(node.operator in series for node in readers)
            if in_series and len(shape) == 3 and shape[0] == 1:
                own_shape = (*shape, 1)
            self.net.activation_bits = self._width(name, self.info(name))
            self.net.location = f"{self.where}, input {name!r}"
            self.held[name] = Held(self.net.input(own_shape, name), shape)
            self._names[name] = {name: None}

    def _visit(self, node: Node) -> None:
        self.net.location = f"{self.where}, {node.where}"
        if node.kind in HANDLERS and not self._unknown.isdisjoint(node.inputs):
            # What it reads has no shape: a refused node in front is to blame.
            self._stand_in(node)
            return
        try:
            self._check(node)
            handler = HANDLERS.get(node.kind)
            if handler is None:
                raise Refusal(_unknown(node))
            before = self.net.count
            self._put(node, handler(self, node))
            self.origins.update(dict.fromkeys(self.net.added_since(before), node))
        except Refusal as refusal:
            self._refuse(node, str(refusal))
        except MalformedInput:
            if not self.refused:
                raise
            # It may read a stand-in: what is wrong in front is wrong enough.
            self._stand_in(node)

    def _check(self, node: Node) -> None:
        for name in node.outputs:
            if name and name in self.uses:
                if self.graph.values[name].shape == ():
                    raise Refusal("its output is a 0-d tensor (no dimensions)")
                if node.kind in HANDLERS:
                    self.shape(name)
        self.net.activation_bits = self._width(node.output, self.info(node.output))

    def _put(self, node: Node, result: Result) -> None:
        results = result if isinstance(result, dict) else {node.output: result}
        for name, held in results.items():
            expected = self.graph.values[name].shape
            if expected is not None and held.shape != expected:
                raise MalformedInput(
                    f"the shape of {name!r} is understood as {held.shape}",
                    where=self.net.location,
                    expected=f"{expected}, as the onnx library infers",
                )
            self.held[name] = held
            self._names.setdefault(held.tensor.name, {})[name] = None
            self.net.absorb(held.tensor, node.merged)
        for name in node.outputs[1:]:
            if name and name in self.uses and name not in results:
                raise Refusal(f"its further output {name!r} is used")

    def _refuse(self, node: Node, reason: str) -> None:
        if self.vector and self._stands_in(node):
            return
        self.refused.append((node, reason))
        self._stand_in(node)

    def _stand_in(self, node: Node) -> None:
        """Constants in the place of what ``node`` computes."""
        self._unknown.update(
            name for name in node.outputs if name and not self.info(name).shape
        )
        for name in node.outputs:
            if not name:
                continue
            shape = self.graph.values[name].shape
            shape = shape or (1,)
            unique = self.unique(f"{name} (unsupported)")
            self.held[name] = Held(self.net.constant(canonical(shape), unique), shape)

    def _stands_in(self, node: Node) -> bool:
        """Vector work in the place of an elementwise-like node."""
        sources = self._elementwise(node)
        if not sources:
            return False
        shape = canonical(self.graph.shape(node.output))
        name = self.unique(node.name)
        tensors = [
            self.plain(self.held[s], f"{name}.{i}") for i, s in enumerate(sources)
        ]
        whole = next(x for x in tensors if x.shape == shape)
        for index, x in enumerate(tensors):
            if x is not whole:
                step = self.unique(f"{name}.operand{index}")
                whole = self.net.binary(OpKind.DIV, whole, x, name=step)
        result = self.net.activate(
            whole, Activation(Function.EXP), fold=False, name=name
        )
        self.held[node.output] = Held(result, self.graph.shape(node.output))
        self.net.absorb(result, node.merged)
        self.net.notes.append(
            f"{node.where}: unsupported, taken as vector work of "
            f"{len(tensors)} operand(s) (allow_unsupported: vector)"
        )
        return True

    def _elementwise(self, node: Node) -> list[str]:
        """Computed inputs of a node that works element by element; else none."""
        shape = self.graph.values[node.output].shape
        used = [name for name in node.outputs if name and name in self.uses]
        if not shape or used != [node.output]:
            return []
        if any(hasattr(value, "initializer") for value in node.attributes.values()):
            return []
        names = [n for n in dict.fromkeys(node.inputs) if n and n in self.held]
        sizes = [self.graph.values[name].shape for name in names]
        if shape not in sizes:
            return []
        for size in sizes:
            if size is None or len(size) > len(shape):
                return []
            tail = shape[len(shape) - len(size) :]
            if any(a not in (1, b) for a, b in zip(size, tail, strict=True)):
                return []
        return names

    def _refusal(self) -> MalformedInput:
        count = len(self.refused)
        listed = "; ".join(
            f"{node.kind} {node.name!r} ({reason})" for node, reason in self.refused
        )
        hints = []
        if not self.vector and any(self._elementwise(n) for n, _ in self.refused):
            hints.append(
                "--allow-unsupported vector prices the elementwise ones as vector work"
            )
        return MalformedInput(
            f"{count} unsupported node{'s' if count > 1 else ''}: {listed}",
            where=self.where,
            hint="; ".join(hints),
        )


def canonical(shape: Sequence[int]) -> Shape:
    """The shape a tensor of the network has: batch 1 from three dimensions on."""
    given = tuple(shape)
    return (1, *given) if len(given) >= 3 and given[0] != 1 else given


def _unknown(node: Node) -> str:
    if node.operator in ("If", "Loop", "Scan"):
        return "a subgraph: control flow that depends on data"
    if node.domain:
        return f"no operator of domain {node.domain!r} that is known"
    return "no counterpart"
