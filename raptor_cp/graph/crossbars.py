"""How a constant matrix lies on crossbars: row tiles, columns, weight slots.

A K x N matrix becomes ``ceil(K / array.rows)`` row tiles; each row tile spreads
over ``ceil(N / array.columns_for(bits))`` crossbars.  One array group is one row
tile across ALL columns: one ``mvmul`` runs it.  So cutting rows keeps the number
of ``mvmul`` an output position needs, cutting columns multiplies it.

Grouped (and depthwise) convolutions are packed block-diagonally: as many groups
as fit the rows of a crossbar share one row tile, and every such bundle has its
own columns.  A bundle's off-diagonal cells hold zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.network.operations import WeightShape
    from raptor_cp.network.structure import Network


@dataclass(frozen=True, slots=True)
class MatrixArray:
    """Geometry of one weight slot (crossbar)."""

    rows: int
    columns: int
    cell_bits: int

    def columns_for(self, weight_bits: int) -> int:
        """Weights of one row that fit side by side: floor(columns*cell/weight)."""
        return self.columns * self.cell_bits // weight_bits


@dataclass(frozen=True, slots=True)
class TileGrid:
    """The array groups of one operation.

    ``bundles`` column blocks, each of ``bundle_columns`` output channels (the last
    one may have fewer) and of ``row_tiles`` row tiles; a plain matrix is one
    bundle.  One output position takes ``bundles * row_tiles`` ``mvmul``.

    Attributes:
        rows: K, rows of one group.
        bundle_groups: groups of a convolution that share a row tile.
        columns_per_crossbar: weights of one row that fit one crossbar.
    """

    rows: int
    channels: int
    row_tiles: int
    bundles: int
    bundle_groups: int
    bundle_columns: int
    columns_per_crossbar: int
    array_rows: int

    @classmethod
    def of(cls, weight: WeightShape, array: MatrixArray, where: str = "") -> TileGrid:
        """Tile ``weight`` on crossbars of geometry ``array``.

        Raises:
            MalformedInput: one weight is wider than a whole crossbar row.

        >>> from raptor_cp.network.operations import WeightShape
        >>> grid = TileGrid.of(WeightShape(576, 64, bits=16), MatrixArray(128, 128, 2))
        >>> grid.row_tiles, grid.slots
        (5, 20)
        >>> depthwise = WeightShape(9, 1, groups=32, bits=16)
        >>> grid = TileGrid.of(depthwise, MatrixArray(128, 128, 2))
        >>> grid.bundles, grid.bundle_groups, grid.slots
        (3, 14, 3)
        """
        per_crossbar = array.columns_for(weight.bits)
        if per_crossbar < 1:
            raise MalformedInput(
                "one weight is wider than a crossbar row",
                where=where,
                value=weight.bits,
                expected=f"at most {array.columns * array.cell_bits} bits",
            )
        together = max(1, array.rows // weight.rows) if weight.groups > 1 else 1
        together = min(together, weight.groups)
        return cls(
            rows=weight.rows,
            channels=weight.columns * weight.groups,
            row_tiles=ceil_div(weight.rows, array.rows),
            bundles=ceil_div(weight.groups, together),
            bundle_groups=together,
            bundle_columns=together * weight.columns,
            columns_per_crossbar=per_crossbar,
            array_rows=array.rows,
        )

    @property
    def slots(self) -> int:
        """Weight slots of the whole matrix."""
        return self.slots_of(0, self.channels, (0, self.row_tiles))

    @property
    def mvmuls(self) -> int:
        """``mvmul`` instructions of one output position, unsplit."""
        return self.bundles * self.row_tiles

    def crossbars(self, start: int, stop: int) -> tuple[int, ...]:
        """Crossbars of one row tile in each bundle that channels [start, stop) meet."""
        sizes = []
        for bundle in range(
            start // self.bundle_columns, ceil_div(stop, self.bundle_columns)
        ):
            first = max(start, bundle * self.bundle_columns)
            last = min(stop, (bundle + 1) * self.bundle_columns)
            sizes.append(ceil_div(last - first, self.columns_per_crossbar))
        return tuple(sizes)

    def slots_of(self, start: int, stop: int, row_tiles: tuple[int, int]) -> int:
        """Weight slots of channels [start, stop) and a range of row tiles."""
        tiles = row_tiles[1] - row_tiles[0]
        width = self.bundle_columns
        whole = (stop - start) // width
        if start % width == 0 and whole > 0:
            tail = (stop - start) % width
            crossbars = whole * ceil_div(width, self.columns_per_crossbar)
            crossbars += ceil_div(tail, self.columns_per_crossbar)
            return tiles * crossbars
        return tiles * sum(self.crossbars(start, stop))

    def matrix_rows(self, row_tiles: tuple[int, int]) -> tuple[int, int]:
        """Rows [first, last) of the matrix that a range of row tiles holds."""
        return (
            row_tiles[0] * self.array_rows,
            min(row_tiles[1] * self.array_rows, self.rows),
        )


@dataclass(frozen=True, slots=True)
class WeightDemand:
    """Weight slots that one operation needs at least, all of its weights once.

    ``mvmuls``: matrix products of one inference when nothing is split.
    """

    operation: str
    slots: int
    mvmuls: int


def output_positions(network: Network, name: str) -> int:
    """Positions (rows x columns) of a tensor: one matrix product each."""
    rows, columns, _ = network.tensors[name].extent
    return rows * columns


def weight_demand(network: Network, array: MatrixArray) -> tuple[WeightDemand, ...]:
    """Weight slots per weighted operation, in network order; nothing is lowered.

    The sum is what the chip must have (``cores * slots_per_core``) whatever the
    placement: lanes share weights, so the union is counted.

    Raises:
        MalformedInput: one weight is wider than a crossbar row.
    """
    demands = []
    for operation in network.operations:
        if operation.weight is None:
            continue
        grid = TileGrid.of(operation.weight, array, f"operation {operation.name!r}")
        positions = output_positions(network, operation.output)
        demands.append(
            WeightDemand(operation.name, grid.slots, positions * grid.mvmuls)
        )
    return tuple(demands)
