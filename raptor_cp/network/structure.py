"""The network: operations in topological order, checked as a whole."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import MatMulAttributes, OpKind
from raptor_cp.network.shapes import infer_shape, matrix_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.network.operations import Operation, Tensor
    from raptor_cp.network.values import ValueSource


@dataclass(frozen=True, slots=True)
class Network:
    """A validated directed acyclic graph of operations.

    ``operations`` may be given in any order and are kept in the topological order
    that takes, among ready operations, the one given first.

    Args:
        name: shown in reports.
        inputs: names of tensors that arrive with each inference.
        outputs: names of tensors that leave with each inference.
        operations: the nodes; at least one.
        tensors: every tensor named above, by name.
        constants: tensors that are operands but computed by nobody (position
            embeddings, lookup tables); full rank, ``(1, C, 1, 1)`` not ``(C,)``.
        notes: what the reader of a file approximated or assumed, for reports.
        values: where trained numbers come from; None where there are none.

    Raises:
        MalformedInput: unknown or doubly produced tensors, duplicate names, a
            cycle (the shortest is named), an empty network, batch other than 1,
            results that nobody uses, shapes that contradict the operations.
    """

    def __repr__(self) -> str:
        return (
            f"<Network {self.name!r}: {len(self.operations)} operations, "
            f"{self.macs:,} MACs, {self.parameters:,} parameters>"
        )

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    tensors: Mapping[str, Tensor]
    constants: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    values: ValueSource | None = field(default=None, repr=False, compare=False)
    _producer: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = dict(self.tensors)
        _check_names(self, tensors)
        ordered = _topological(self.operations, self.name)
        object.__setattr__(self, "operations", ordered)
        object.__setattr__(self, "tensors", MappingProxyType(tensors))
        producer = {op.output: index for index, op in enumerate(ordered)}
        object.__setattr__(self, "_producer", MappingProxyType(producer))
        _check_uses(self)
        _check_shapes(self)

    def producer(self, tensor: str) -> Operation | None:
        """The operation that computes ``tensor``; None for inputs and constants."""
        index = self._producer.get(tensor)
        return None if index is None else self.operations[index]

    def consumers(self) -> dict[str, tuple[int, ...]]:
        """For each tensor the indices of the operations that read it, ascending."""
        readers: dict[str, list[int]] = {name: [] for name in self.tensors}
        for index, operation in enumerate(self.operations):
            for name in dict.fromkeys(operation.inputs):
                readers[name].append(index)
        return {name: tuple(indices) for name, indices in readers.items()}

    def operation_macs(self, operation: Operation) -> int:
        """Multiply-accumulates of one inference; 0 for what has no products."""
        out = self.tensors[operation.output].shape
        weight = operation.weight
        if operation.kind is OpKind.CONV_TRANSPOSE and weight is not None:
            positions = prod(self.tensors[operation.inputs[0]].shape[2:])
            return positions * weight.rows * weight.columns * weight.groups
        if operation.kind is OpKind.CONV and weight is not None:
            return prod(out[2:]) * weight.rows * weight.columns * weight.groups
        if operation.kind is OpKind.GEMM and weight is not None:
            return prod(out) * weight.rows
        if isinstance(operation.attributes, MatMulAttributes):
            shapes = [self.tensors[name].shape for name in operation.inputs]
            _, _, inner, _ = matrix_shapes(operation.attributes, shapes[0], shapes[1])
            return prod(out) * inner
        return 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return sum(self.operation_macs(operation) for operation in self.operations)

    @property
    def parameters(self) -> int:
        """Trained constants of all operations, and the constant tensors."""
        constants = sum(self.tensors[name].elements for name in self.constants)
        return constants + sum(op.parameters for op in self.operations)


def _check_names(network: Network, tensors: Mapping[str, Tensor]) -> None:
    where = f"network {network.name!r}"
    if not network.operations:
        raise MalformedInput(
            "the network is empty", where=where, expected="at least one operation"
        )
    for key, names in (("inputs", network.inputs), ("outputs", network.outputs)):
        if not names:
            raise MalformedInput(
                f"the network has no {key}", where=where, expected="at least one"
            )
    for key, tensor in tensors.items():
        if key != tensor.name:
            raise MalformedInput(
                "a tensor is filed under another name",
                where=where,
                value=key,
                expected=repr(tensor.name),
            )
    made_by: dict[str, str] = {}
    sources = [(n, "the network inputs") for n in network.inputs]
    sources += [(n, "the constants") for n in network.constants]
    sources += [(op.output, f"operation {op.name!r}") for op in network.operations]
    for name, source in sources:
        if name in made_by:
            raise MalformedInput(
                f"the tensor comes from {made_by[name]} and from {source}",
                where=f"{where}, tensor {name!r}",
                expected="one producer",
            )
        made_by[name] = source
    seen: dict[str, None] = {}
    for operation in network.operations:
        if operation.name in seen:
            raise MalformedInput(
                "two operations have the same name",
                where=where,
                value=operation.name,
                expected="unique operation names",
            )
        seen[operation.name] = None
        for name in (*operation.inputs, *operation.outputs):
            if name not in tensors or name not in made_by:
                raise MalformedInput(
                    "unknown tensor",
                    where=f"{where}, operation {operation.name!r}",
                    value=name,
                    expected="a network input, a constant or an operation's output",
                )
    for name in (*network.inputs, *network.constants, *network.outputs):
        if name not in tensors or name not in made_by:
            raise MalformedInput(
                "unknown tensor",
                where=where,
                value=name,
                expected="a tensor of the network",
            )
    for name in tensors:
        if name not in made_by:
            raise MalformedInput(
                "nothing produces the tensor",
                where=where,
                value=name,
                expected="a network input, a constant or an operation's output",
            )


def _topological(operations: Sequence[Operation], name: str) -> tuple[Operation, ...]:
    maker = {op.output: index for index, op in enumerate(operations)}
    followers: list[list[int]] = [[] for _ in operations]
    missing = [0] * len(operations)
    for index, operation in enumerate(operations):
        for source in dict.fromkeys(operation.inputs):
            if source in maker:
                followers[maker[source]].append(index)
                missing[index] += 1
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(operations):
        stuck = [index for index, count in enumerate(missing) if count > 0]
        cycle = _shortest_cycle(stuck, followers)
        names = [operations[index].name for index in (*cycle, cycle[0])]
        raise MalformedInput(
            f"the operations form a cycle: {' -> '.join(names)}",
            where=f"network {name!r}",
            expected="an acyclic network",
        )
    return tuple(operations[index] for index in order)


def _shortest_cycle(
    nodes: Sequence[int], followers: Sequence[Sequence[int]]
) -> list[int]:
    """A shortest cycle, the first found from the lowest node."""
    best: list[int] = []
    for start in nodes:
        parent = {start: start}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            if start in followers[node]:
                path = [node]
                while path[-1] != start:
                    path.append(parent[path[-1]])
                path.reverse()
                if not best or len(path) < len(best):
                    best = path
                break
            for follower in followers[node]:
                if follower not in parent:
                    parent[follower] = node
                    queue.append(follower)
    return best


def _check_uses(network: Network) -> None:
    outputs = dict.fromkeys(network.outputs)
    for name, readers in network.consumers().items():
        if not readers and name not in outputs:
            maker = network.producer(name)
            raise MalformedInput(
                "nobody uses the tensor",
                where=f"network {network.name!r}",
                value=name,
                expected="an operation that reads it, or a network output",
                hint=f"remove operation {maker.name!r}" if maker else "",
            )


def _check_shapes(network: Network) -> None:
    for tensor in network.tensors.values():
        tensor.extent  # noqa: B018  raises for a batch other than 1
    for operation in network.operations:
        where = f"operation {operation.name!r}"
        inferred = infer_shape(
            operation.kind,
            operation.attributes,
            [network.tensors[name].shape for name in operation.inputs],
            operation.weight,
            where=where,
        )
        declared = network.tensors[operation.output].shape
        if inferred != declared:
            raise MalformedInput(
                f"the shape of output {operation.output!r} contradicts its inputs",
                where=where,
                value=declared,
                expected=str(inferred),
            )
