"""Typed reading of the nodes of a PIMCOMP model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from raptor_cp.network.attributes import Shape


@dataclass(frozen=True, slots=True)
class PimcompNode:
    """One entry of ``node_list``.

    Attributes:
        operation: such as ``OP_CONV``.
        providers: names of the nodes it reads.
        output: declared shape of its result; None if absent.
        bits: declared width of its values; 0 if absent.
        where: file and position, for errors.
    """

    name: str
    operation: str
    providers: tuple[str, ...]
    output: Shape | None
    bits: int
    where: str
    entry: Mapping[str, object]

    def flag(self, key: str) -> bool:
        """A 0 or 1 of the node itself; 0 if absent."""
        return bool(self.entry.get(key, 0))

    def integer(self, key: str) -> int:
        """An integer of the node itself."""
        value = self.entry.get(key)
        if type(value) is not int:
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str) -> float:
        """A finite number of the node itself."""
        return self._number(key, self.entry.get(key))

    def limit(self, key: str) -> float:
        """A finite number among the parameters."""
        return self._number(f"param.{key}", self._parameters().get(key))

    def parameter(
        self, key: str, default: int | None = None, *, minimum: int = 1
    ) -> int:
        """An integer among the parameters."""
        value = self._parameters().get(key, default)
        if type(value) is not int or not minimum <= value < 2**31:
            raise self._wrong(
                f"param.{key}", value, f"an integer of at least {minimum}"
            )
        return value

    def pair(self, stem: str, default: int | None = None) -> tuple[int, int]:
        """(height, width) from ``<stem>_h`` and ``<stem>_w``."""
        return (
            self.parameter(f"{stem}_h", default),
            self.parameter(f"{stem}_w", default),
        )

    def pads(self) -> tuple[int, int, int, int]:
        """(top, left, bottom, right) from ``pad_h0``, ``pad_w0``, ..."""
        names = ("pad_h0", "pad_w0", "pad_h1", "pad_w1")
        top, left, bottom, right = (self.parameter(n, 0, minimum=0) for n in names)
        return (top, left, bottom, right)

    def check_output(self, shape: Shape) -> None:
        """Raise MalformedInput if the declared shape is another one."""
        if self.output is not None and self.output != shape:
            raise MalformedInput(
                "the declared shape contradicts the node's parameters",
                where=f"{self.where}.output_dim",
                value=self.output,
                expected=str(shape),
            )

    def _parameters(self) -> Mapping[str, object]:
        value = self.entry.get("param", {})
        if not isinstance(value, Mapping):
            raise self._wrong("param", value, "a mapping")
        return value

    def _number(self, key: str, value: object) -> float:
        wrong = isinstance(value, bool) or not isinstance(value, int | float)
        if wrong or not isfinite(float(str(value))):
            raise self._wrong(key, value, "a finite number")
        return float(str(value))

    def _wrong(self, key: str, value: object, expected: str) -> MalformedInput:
        where = f"{self.where}.{key}"
        if value is None:
            return MalformedInput("missing", where=where, expected=expected)
        return MalformedInput(
            "wrong value", where=where, value=value, expected=expected
        )


def read_nodes(document: object, where: str) -> tuple[PimcompNode, ...]:
    """The nodes of a model file, in its order.

    Raises:
        MalformedInput: no node list, nodes without name or operation, duplicate
            names, providers that are no nodes.
    """
    entries = document.get("node_list") if isinstance(document, Mapping) else document
    if not isinstance(entries, list) or not entries:
        raise MalformedInput(
            "no list of nodes",
            where=where,
            value=type(document).__name__,
            expected="a JSON mapping with a non-empty 'node_list'",
        )
    nodes = [_node(entry, f"{where}: node {i}") for i, entry in enumerate(entries)]
    names: dict[str, None] = {}
    for node in nodes:
        if node.name in names:
            raise MalformedInput(
                "two nodes have the same name",
                where=node.where,
                value=node.name,
                expected="unique names",
            )
        names[node.name] = None
    for node in nodes:
        for provider in node.providers:
            if provider not in names:
                raise MalformedInput(
                    "the provider is no node",
                    where=f"{node.where}.provider",
                    value=provider,
                    expected="the name of a node",
                )
        if not node.providers and node.operation != "OP_INPUT":
            raise MalformedInput(
                "the node reads nothing",
                where=f"{node.where}.provider",
                expected="at least one node",
            )
    return tuple(nodes)


def _node(entry: object, where: str) -> PimcompNode:
    if not isinstance(entry, Mapping):
        raise MalformedInput(
            "not a node", where=where, value=entry, expected="a mapping"
        )
    name, operation = entry.get("name"), entry.get("operation")
    if not isinstance(name, str) or not name:
        raise MalformedInput("no name", where=where, value=name, expected="a text")
    where = f"{where} {name!r}"
    if not isinstance(operation, str):
        raise MalformedInput(
            "no operation", where=where, value=operation, expected="such as OP_CONV"
        )
    providers = entry.get("provider", [])
    legal = isinstance(providers, list) and all(isinstance(p, str) for p in providers)
    if not legal:
        raise MalformedInput(
            "not a list of names",
            where=f"{where}.provider",
            value=providers,
            expected="names of nodes",
        )
    shape = entry.get("output_dim")
    if shape is not None and (
        not isinstance(shape, list)
        or not all(type(size) is int and size > 0 for size in shape)
    ):
        raise MalformedInput(
            "not a shape",
            where=f"{where}.output_dim",
            value=shape,
            expected="a list of positive integers",
        )
    bits = entry.get("bitwidth", 0)
    if type(bits) is not int or not 0 <= bits <= 64:
        raise MalformedInput(
            "impossible width",
            where=f"{where}.bitwidth",
            value=bits,
            expected="1 to 64 bits",
        )
    return PimcompNode(
        name=name,
        operation=operation,
        providers=tuple(providers),
        output=None if shape is None else tuple(shape),
        bits=bits,
        where=where,
        entry=entry,
    )
