"""A network layer by layer: what each costs on crossbars, what costs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.graph.crossbars import weight_demand
from raptor_cp.graph.views import is_runtime_free

if TYPE_CHECKING:
    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.structure import Network


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One operation.

    Attributes:
        name, kind: of the operation; a fused function is added to the kind.
        shape: of its output.
        macs: multiply-accumulates of one inference.
        parameters: trained constants.
        weight_bits: bits of a weight; 0 without a constant matrix.
        slots: weight slots (crossbars); 0 without a constant matrix.
        mvmuls: matrix products of one inference, unsplit.
        folded: source nodes that it took over.
        free: it takes no time: its elements stay where they are.
    """

    name: str
    kind: str
    shape: Shape
    macs: int
    parameters: int
    weight_bits: int
    slots: int
    mvmuls: int
    folded: tuple[str, ...]
    free: bool

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "macs": self.macs,
            "parameters": self.parameters,
            "weight_bits": self.weight_bits,
            "crossbars": self.slots,
            "mvmuls": self.mvmuls,
            "folded": list(self.folded),
            "free": self.free,
        }


def network_table(network: Network, array: MatrixArray) -> tuple[LayerRow, ...]:
    """One row for each operation, in network order.

    Raises:
        MalformedInput: one weight is wider than a crossbar row.
    """
    demand = {entry.operation: entry for entry in weight_demand(network, array)}
    rows = []
    for operation in network.operations:
        needs = demand.get(operation.name)
        kind = operation.kind.value
        if operation.activation is not None:
            kind += f"+{operation.activation.function.value}"
        rows.append(
            LayerRow(
                name=operation.name,
                kind=kind,
                shape=network.tensors[operation.output].shape,
                macs=network.operation_macs(operation),
                parameters=operation.parameters,
                weight_bits=operation.weight.bits if operation.weight else 0,
                slots=needs.slots if needs else 0,
                mvmuls=needs.mvmuls if needs else 0,
                folded=operation.folded,
                free=is_runtime_free(operation),
            )
        )
    return tuple(rows)
