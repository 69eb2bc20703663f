"""Small stand-ins for a chip and its prices, for tests of the lowering."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.graph.crossbars import MatrixArray
from raptor_cp.graph.work import SliceWork, TaskRole, Work

if TYPE_CHECKING:
    from raptor_cp.graph.planning import DirectLinks


@dataclass(frozen=True)
class FreeLinks:
    """Transfers that cost nothing."""

    def transfer_ns(self, size: int, source: int, destination: int) -> int:
        """0 ns."""
        return 0


@dataclass(frozen=True)
class Chip:
    """168 cores of 96 crossbars, 128 x 128 cells of 2 bits, unless told otherwise."""

    cores: int = 168
    slots_per_core: int = 96
    array: MatrixArray | None = field(default_factory=lambda: MatrixArray(128, 128, 2))
    links: DirectLinks = field(default_factory=FreeLinks)


def flat_price(work: Work) -> int:
    """3 us per row tile and position, 1 ns per 10 elements of anything else."""
    if not isinstance(work, SliceWork):
        return 1
    rows, columns, _ = work.output.shape
    tiles = work.row_tiles[1] - work.row_tiles[0]
    if work.operation.weight is not None and work.role is not TaskRole.REDUCE:
        return rows * columns * tiles * 3000
    return work.output.elements // 10 + 1
