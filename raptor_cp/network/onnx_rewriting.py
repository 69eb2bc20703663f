"""Replacing nodes of a source graph, and removing those that only rename values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raptor_cp.network.onnx_nodes import (
    Node,
    SourceGraph,
    captured,
    element_bits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class GraphEditor:
    """A source graph under change; positions keep the topological order."""

    def __init__(self, graph: SourceGraph) -> None:
        self.graph = graph
        self._nodes: list[Node | None] = list(graph.nodes)
        self._maker: dict[str, int] = {}
        self._readers: dict[str, dict[int, None]] = {}
        self._outputs = frozenset(graph.outputs)
        for index, node in enumerate(graph.nodes):
            self._enter(index, node)

    def nodes(self) -> list[Node]:
        """The nodes as they are now."""
        return [node for node in self._nodes if node is not None]

    def alive(self, node: Node) -> bool:
        """True if ``node`` is still part of the graph."""
        index = self._maker.get(node.output)
        return index is not None and self._nodes[index] is node

    def producer(self, name: str) -> Node | None:
        """The node that computes ``name``."""
        index = self._maker.get(name)
        return None if index is None else self._nodes[index]

    def readers(self, name: str) -> list[Node]:
        """The nodes that read ``name``, in order."""
        found = (self._nodes[index] for index in sorted(self._readers.get(name, ())))
        return [node for node in found if node is not None]

    def sole_reader(self, name: str) -> Node | None:
        """The one node that reads ``name``, if nothing else does."""
        readers = self.readers(name)
        if name in self._outputs or len(readers) != 1:
            return None
        return readers[0]

    def is_output(self, name: str) -> bool:
        """True if ``name`` leaves the network."""
        return name in self._outputs

    def replace(self, old: Node, new: Node) -> None:
        """Put ``new``, which produces the same values, in the place of ``old``."""
        index = self._maker[old.output]
        self._leave(index, old)
        self._nodes[index] = new
        self._enter(index, new)

    def finish(self) -> None:
        """Write the nodes that outputs depend on back to the graph."""
        wanted = set(self._outputs)
        kept = []
        for node in reversed(self.nodes()):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
                wanted.update(captured(node))
        self.graph.nodes = kept[::-1]

    def _enter(self, index: int, node: Node) -> None:
        for name in node.outputs:
            if name:
                self._maker[name] = index
        for name in node.inputs:
            if name:
                self._readers.setdefault(name, {})[index] = None

    def _leave(self, index: int, node: Node) -> None:
        for name in node.inputs:
            if name:
                self._readers[name].pop(index, None)


#: Operators whose first output is their first input.
_RENAMES = frozenset(
    {
        "Cast",
        "CastLike",
        "DequantizeLinear",
        "Dropout",
        "DynamicQuantizeLinear",
        "Identity",
        "QuantizeLinear",
    }
)


def remove_renames(graph: SourceGraph) -> None:
    """Drop Identity, Dropout, Cast, QuantizeLinear and DequantizeLinear.

    Quantised values keep the width they are stored with: the rounding belongs to
    whatever stores the value.
    """
    root: dict[str, str] = {}
    merged: dict[str, tuple[str, ...]] = {}
    kept: list[Node] = []
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    for node in graph.nodes:
        extra = [name for name in node.outputs[1:] if name in read]
        renames = node.operator in _RENAMES and node.domain in ("", "com.microsoft")
        if renames and not any(graph.computed(name) for name in extra):
            source = root.get(node.inputs[0], node.inputs[0])
            root[node.output] = source
            merged[source] = (*merged.get(source, ()), *node.merged, node.name)
            bits = _stored_width(graph, node)
            if bits is not None:
                graph.bits[source] = min(bits, graph.bits.get(source, bits))
            continue
        kept.append(node.with_inputs(root.get(name, name) for name in node.inputs))
    graph.nodes = [
        replace(node, merged=(*node.merged, *merged[node.output]))
        if node.output in merged
        else node
        for node in kept
    ]
    graph.outputs = _unique(root.get(name, name) for name in graph.outputs)


def _stored_width(graph: SourceGraph, node: Node) -> int | None:
    if node.operator == "DequantizeLinear":
        return element_bits(graph.values[node.inputs[0]].dtype)
    if node.operator in ("QuantizeLinear", "DynamicQuantizeLinear"):
        return element_bits(graph.values[node.output].dtype)
    return None


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
