"""What the ONNX reader knows of values and nodes.

Values are either computed (they depend on the network inputs) or constants.  Of a
constant the shape is always known, its elements only when they are few: weights are
never read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import onnx
    from numpy.typing import NDArray

    Values = NDArray[np.generic]

Shape = tuple[int, ...]
AttributeValue = object

#: Largest constants whose elements are looked at.
LARGEST_CONSTANT = 1 << 16

#: Operators of ours that patterns are replaced by.
OWN_DOMAIN = "raptor_cp"
#: The domain of the contributed operators of ONNX Runtime.
MICROSOFT = "com.microsoft"

# onnx.TensorProto.DataType, which is fixed by the format.
FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL = range(1, 10)
FLOAT16, DOUBLE, UINT32, UINT64, COMPLEX64, COMPLEX128, BFLOAT16 = range(10, 17)
UINT4, INT4, FLOAT4, UINT2, INT2 = 21, 22, 23, 25, 26

_BITS = {
    **dict.fromkeys((UINT2, INT2), 2),
    **dict.fromkeys((UINT4, INT4, FLOAT4), 4),
    **dict.fromkeys((UINT8, INT8, BOOL, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((UINT16, INT16, FLOAT16, BFLOAT16), 16),
    **dict.fromkeys((INT32, UINT32, FLOAT), 32),
    **dict.fromkeys((INT64, UINT64, DOUBLE), 64),
}
#: Element types that quantised models store.
QUANTISED = (UINT2, INT2, UINT4, INT4, UINT8, INT8, UINT16, INT16)
#: Element types whose width on the chip is a choice.
WIDE_FLOATS = (FLOAT, DOUBLE)


def element_bits(dtype: int) -> int | None:
    """Bits of an element; None for strings, complex numbers and the unknown."""
    return _BITS.get(dtype)


@dataclass(frozen=True, slots=True)
class Info:
    """What is known of a value.

    Attributes:
        shape: its dimensions; None where they depend on data.
        dtype: element type, an ``onnx.TensorProto.DataType``.
        constant: it does not depend on the network inputs.
        value: elements of a small constant.
        bits: width of the elements it was dequantised from.
    """

    shape: Shape | None
    dtype: int
    constant: bool = False
    value: Values | None = None
    bits: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements; 0 where the shape is unknown."""
        if self.shape is None:
            return 0
        result = 1
        for size in self.shape:
            result *= size
        return result

    @property
    def scalar(self) -> float | None:
        """The one element of a constant."""
        if self.value is None or self.value.size != 1:
            return None
        return float(self.value.reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    Attributes:
        operator: its type, such as ``Conv``.
        domain: "" for the standard operators.
        name: unique; the node's, or that of its first output.
        inputs, outputs: value names; "" for an absent one.
        attributes: by name.
        opset: version of the operator set.
        merged: names of further nodes that it stands for.
    """

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    opset: int = 0
    merged: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The operator, with its domain unless it is standard."""
        return f"{self.domain}:{self.operator}" if self.domain else self.operator

    @property
    def output(self) -> str:
        """The first output that is there."""
        return next((name for name in self.outputs if name), "")

    @property
    def where(self) -> str:
        """The node as errors name it."""
        return f"node {self.name!r} ({self.operator})"

    def given(self, index: int) -> str:
        """Name of input ``index``, "" if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def has(self, name: str) -> bool:
        """True if the attribute is set."""
        return name in self.attributes

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else self._wrong(name, "an integer")

    def number(self, name: str, default: float) -> float:
        """A number attribute."""
        value = self.attributes.get(name, default)
        if isinstance(value, int | float):
            return float(value)
        return self._wrong(name, "a number")

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else self._wrong(name, "a text")

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None if absent."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            return value
        return self._wrong(name, "a list of integers")

    def with_inputs(self, inputs: Iterable[str]) -> Node:
        """The same call on other values."""
        return replace(self, inputs=tuple(inputs))

    def _wrong(self, name: str, expected: str) -> NoReturn:
        raise MalformedInput(
            f"attribute {name!r} has the wrong type",
            where=self.where,
            value=self.attributes.get(name),
            expected=expected,
        )


@dataclass(slots=True)
class SourceGraph:
    """A graph with all shapes known and all constants folded.

    Attributes:
        name: of the graph.
        inputs, outputs: names of computed values.
        nodes: those that outputs depend on, in topological order.
        values: what is known of each value.
        bits: widths that quantisation gave to computed values.
        notes: what was assumed, for reports.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    nodes: list[Node]
    values: dict[str, Info]
    bits: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def computed(self, name: str) -> bool:
        """True if ``name`` is a value that depends on the network inputs."""
        return bool(name) and not self.values[name].constant

    def constant(self, name: str) -> Info | None:
        """What is known of ``name`` if it is a constant."""
        info = self.values.get(name) if name else None
        return info if info is not None and info.constant else None

    def shape(self, name: str) -> Shape:
        """The shape of a value that has one."""
        shape = self.values[name].shape
        if shape is None:
            raise MalformedInput(
                "the shape depends on data", where=f"value {name!r}", value=None
            )
        return shape


def plain_attributes(node: onnx.NodeProto) -> dict[str, AttributeValue]:
    """Attributes as Python values; lists become tuples, bytes become text."""
    from onnx.helper import get_attribute_value

    result: dict[str, AttributeValue] = {}
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            continue
        value = get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, list) or (
            hasattr(value, "__iter__") and not isinstance(value, str)
        ):
            value = tuple(
                v.decode("utf-8", "replace") if isinstance(v, bytes) else v
                for v in value
            )
        result[attribute.name] = value
    return result


def captured(node: Node) -> Iterator[str]:
    """Values of the graph that subgraphs of ``node`` read."""
    for value in node.attributes.values():
        for part in value if isinstance(value, tuple) else (value,):
            if hasattr(part, "initializer") and hasattr(part, "node"):
                yield from _free(part)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Values that a node reads, those of its subgraphs included."""
    for name in node.input:
        if name:
            yield name
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from _free(attribute.g)
        for graph in attribute.graphs:
            yield from _free(graph)


def _free(graph: onnx.GraphProto) -> Iterator[str]:
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(name for node in graph.node for name in node.output)
    for node in graph.node:
        yield from (name for name in reads(node) if name not in own)
    yield from (v.name for v in graph.output if v.name not in own)
