"""Network tables for a mesh: ns per flit between cores and to the memory.

pimsim-nn wants a full pairwise table.  The rule used here is affine in the
Manhattan distance, core ``i`` of a ``rows x columns`` layout being at row
``i // columns``, column ``i % columns``::

    latency(a, b) = core_base_ns + per_hop_ns * hops(a, b)      a != b
    latency(a, memory) = memory_base_ns + memory_per_hop_ns * hops(a, corner)

where the memory hangs on core 0's corner.  Known tables as instances of it: the
uniform table published for the 168-core chip (10 ns between any two cores,
100 ns to the memory) is ``MeshRule(10, 0, 100, 0)``; the simulator's 64-core
table has ``MeshRule(2, 2, 15, 0)`` as its lower envelope and is irregular above.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.config import GLOBAL_MEMORY_ID, MAX_CORES, NetworkTable

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class MeshRule:
    """Coefficients of the affine rule, ns per flit; energies pJ per flit."""

    core_base_ns: int
    per_hop_ns: int
    memory_base_ns: int
    memory_per_hop_ns: int = 0
    core_energy_pj: int = 0
    memory_energy_pj: int = 0


#: The rule of the shipped arch-* configurations: see docs/pim-target.md.
SHIPPED_RULE = MeshRule(
    core_base_ns=1,
    per_hop_ns=1,
    memory_base_ns=100,
    core_energy_pj=100,
    memory_energy_pj=100,
)


def mesh_network(layout: tuple[int, int], cores: int, rule: MeshRule) -> NetworkTable:
    """Dense table for ``cores`` cores, row by row in ``layout`` (rows, columns).

    >>> mesh_network((2, 2), 4, MeshRule(2, 2, 15)).latency_ns[0].tolist()
    [0, 4, 4, 6, 15]

    Raises:
        MalformedInput: the layout has fewer places than there are cores.
    """
    rows, columns = layout
    if rows < 1 or columns < 1 or not 1 <= cores <= min(rows * columns, MAX_CORES):
        raise MalformedInput(
            "the cores do not fit the layout",
            value=(layout, cores),
            expected=f"1 to rows * columns cores, at most {MAX_CORES}",
        )
    index = np.arange(cores, dtype=np.int64)
    row, column = index // columns, index % columns
    hops = abs(row[:, None] - row) + abs(column[:, None] - column)
    latency = np.zeros((cores + 1, cores + 1), dtype=np.int64)
    latency[:cores, :cores] = rule.core_base_ns + rule.per_hop_ns * hops
    np.fill_diagonal(latency, 0)
    to_memory = rule.memory_base_ns + rule.memory_per_hop_ns * (row + column)
    latency[:cores, cores] = latency[cores, :cores] = to_memory
    energy = np.full((cores + 1, cores + 1), float(rule.core_energy_pj))
    energy[:, cores] = energy[cores, :] = rule.memory_energy_pj
    np.fill_diagonal(energy, 0.0)
    return NetworkTable(latency, energy)


def network_json(table: NetworkTable, memory_id: int = GLOBAL_MEMORY_ID) -> str:
    """The simulator's text form of a table: compact JSON, rows and columns in order."""
    ids = [str(core) for core in range(table.cores)] + [str(memory_id)]

    def rows(values: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
        return {
            source: {
                target: value
                for target, value in zip(ids, row, strict=True)
                if target != source
            }
            for source, row in zip(ids, values, strict=True)
        }

    energies = [
        [int(value) if value == int(value) else value for value in row]
        for row in table.energy_pj.tolist()
    ]
    document = {"latency": rows(table.latency_ns.tolist()), "energy": rows(energies)}
    return json.dumps(document, separators=(",", ":")) + "\n"
