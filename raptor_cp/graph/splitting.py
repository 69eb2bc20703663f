"""Capacity-driven splitting: cutting what a core cannot hold.

A weight that needs more slots than a core has is cut into pieces:

* between bundles of a grouped convolution: nothing is lost;
* by rows (K): every piece makes partial sums that a REDUCE task adds up, and the
  number of ``mvmul`` stays what it was;
* by columns: every column piece runs the ``mvmul`` of all its row tiles again, so
  the number is multiplied.  It happens where one row tile across all columns is
  more than a core, or where the caller's price says that it is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

from raptor_cp.graph.crossbars import MatrixArray, TileGrid, weight_demand
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.network.structure import Network

#: Above this share of the chip's weight slots, pieces are shaped to fill cores
#: before they are shaped to be few: packing is what fails first there.
TIGHT_SHARE = Fraction(3, 5)


class ColumnSplits(StrEnum):
    """When columns may be cut although rows could be."""

    NEVER = "never"  #: not even there: such a weight is a capacity conflict
    NEEDED = "needed"  #: only where one row tile exceeds a core
    CHEAPEST = "cheapest"  #: also where it is cheaper than the row cut


@dataclass(frozen=True, slots=True)
class Piece:
    """Output channels [start, stop) and row tiles [first, last) of one weight."""

    channel_start: int
    channel_stop: int
    row_tiles: tuple[int, int]
    slots: int

    @property
    def channels(self) -> tuple[int, int]:
        """Its output channels."""
        return (self.channel_start, self.channel_stop)


@dataclass(frozen=True, slots=True)
class CapacityConflict:
    """Proved: something indivisible needs more weight slots than there are.

    Attributes:
        subject: the operation or task, or ``""`` for the whole network.
        need: weight slots it needs at least.
        capacity: weight slots there are: of one core, or of the chip.
        reason: one sentence.
        operations: (operation, slots) of the largest demands, most first.
    """

    subject: str
    need: int
    capacity: int
    reason: str
    operations: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OperationSplit:
    """How one operation's weight was cut.

    ``unsplit_mvmuls`` and ``mvmuls`` count one inference; they differ only where
    columns were cut, and ``reason`` says why.
    """

    operation: str
    pieces: tuple[Piece, ...]
    unsplit_mvmuls: int
    mvmuls: int
    reason: str = ""

    @property
    def row_pieces(self) -> int:
        """Pieces along the rows, where that differs between columns the most."""
        columns: dict[tuple[int, int], int] = {}
        for piece in self.pieces:
            columns[piece.channels] = columns.get(piece.channels, 0) + 1
        return max(columns.values())

    @property
    def deviates(self) -> bool:
        """True if the split changed the number of ``mvmul``."""
        return self.mvmuls != self.unsplit_mvmuls


@dataclass(frozen=True, slots=True)
class SplitReport:
    """All weighted operations, in network order."""

    operations: tuple[OperationSplit, ...]

    @property
    def mvmuls(self) -> int:
        """``mvmul`` of one inference."""
        return sum(split.mvmuls for split in self.operations)

    @property
    def unsplit_mvmuls(self) -> int:
        """``mvmul`` of one inference if nothing were split."""
        return sum(split.unsplit_mvmuls for split in self.operations)

    @property
    def deviations(self) -> tuple[OperationSplit, ...]:
        """Operations whose ``mvmul`` count the split changed."""
        return tuple(split for split in self.operations if split.deviates)


def even_ranges(total: int, parts: int) -> list[tuple[int, int]]:
    """``parts`` consecutive ranges of [0, total) whose sizes differ by at most 1.

    >>> even_ranges(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    cuts = [part * total // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


def row_cut(
    grid: TileGrid, capacity: int, *, tight: bool = False
) -> list[Piece] | None:
    """Pieces that cut rows only (and between bundles); None when that cannot fit."""
    if grid.slots <= capacity:
        return [Piece(0, grid.channels, (0, grid.row_tiles), grid.slots)]
    per_tile = ceil_div(grid.bundle_columns, grid.columns_per_crossbar)
    if per_tile > capacity:
        return None
    whole = per_tile * grid.row_tiles
    if whole <= capacity:
        sizes = _sizes(grid.bundles, whole, capacity, tight)
        return [
            _piece(grid, first * grid.bundle_columns, last * grid.bundle_columns)
            for first, last in _ranges(sizes)
        ]
    pieces = []
    for bundle in range(grid.bundles):
        start = bundle * grid.bundle_columns
        stop = min(start + grid.bundle_columns, grid.channels)
        sizes = _sizes(grid.row_tiles, per_tile, capacity, tight)
        pieces += [_piece(grid, start, stop, tiles) for tiles in _ranges(sizes)]
    return pieces


#: Column counts that are tried beyond the smallest possible one.
COLUMN_CANDIDATES = 8


def column_cuts(
    grid: TileGrid, capacity: int, *, tight: bool = False
) -> list[list[Piece]]:
    """Candidate cuts into column pieces, rows cut as well where still too large.

    Columns are shared out evenly over 1, 2, ... column pieces as far as one row
    tile of a piece fits a core; where one row tile exceeds a core there is also the
    cut that fills cores and leaves the rest.  The count goes up to where no rows
    are cut any more, at most ``COLUMN_CANDIDATES`` steps.
    """
    per_tile = ceil_div(grid.bundle_columns, grid.columns_per_crossbar)
    fewest = max(ceil_div(per_tile, capacity), 1)
    no_rows = ceil_div(per_tile, max(1, capacity // grid.row_tiles))
    cuts = []
    for count in range(fewest, min(no_rows, fewest + COLUMN_CANDIDATES) + 1):
        even = [last - first for first, last in even_ranges(per_tile, count)]
        cuts.append(_columns_to_pieces(grid, capacity, even, tight))
    if fewest > 1:
        full = [capacity] * (per_tile // capacity)
        if per_tile % capacity:
            full.append(per_tile % capacity)
        cuts.append(_columns_to_pieces(grid, capacity, full, tight))
    return cuts


def core_equivalents(pieces: Iterable[Piece], capacity: int) -> Fraction:
    """Cores that the pieces would take if each core held equal pieces only."""
    return sum((Fraction(1, capacity // p.slots) for p in pieces), Fraction(0))


def _columns_to_pieces(
    grid: TileGrid, capacity: int, widths: Sequence[int], tight: bool
) -> list[Piece]:
    pieces = []
    for bundle in range(grid.bundles):
        start = bundle * grid.bundle_columns
        end = min(start + grid.bundle_columns, grid.channels)
        for width in widths:
            stop = min(start + width * grid.columns_per_crossbar, end)
            if start >= stop:
                break
            sizes = _sizes(grid.row_tiles, width, capacity, tight)
            pieces += [_piece(grid, start, stop, tiles) for tiles in _ranges(sizes)]
            start = stop
    return pieces


def mvmuls_per_position(grid: TileGrid, pieces: Iterable[Piece]) -> int:
    """``mvmul`` of one output position when ``pieces`` run it."""
    total = 0
    for piece in pieces:
        first = piece.channel_start // grid.bundle_columns
        last = ceil_div(piece.channel_stop, grid.bundle_columns)
        total += (last - first) * (piece.row_tiles[1] - piece.row_tiles[0])
    return total


def _piece(
    grid: TileGrid, start: int, stop: int, tiles: tuple[int, int] | None = None
) -> Piece:
    stop = min(stop, grid.channels)
    row_tiles = tiles or (0, grid.row_tiles)
    return Piece(start, stop, row_tiles, grid.slots_of(start, stop, row_tiles))


def _ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    result, start = [], 0
    for size in sizes:
        result.append((start, start + size))
        start += size
    return result


def _sizes(units: int, slots: int, capacity: int, tight: bool) -> list[int]:
    """How many units of ``slots`` each piece gets, at most ``capacity`` a piece.

    Few and even pieces where there is room.  On a tight chip the shape that would
    waste the fewest cores if cores held nothing else: Fraction(1, pieces a core).
    """
    most = capacity // slots
    fewest = ceil_div(units, most)
    even = [[b - a for a, b in even_ranges(units, n)] for n in _counts(fewest, units)]
    if not tight:
        return even[0]
    full = [most] * (units // most) + ([units % most] if units % most else [])

    def waste(sizes: Sequence[int]) -> Fraction:
        return sum(
            (Fraction(1, capacity // (size * slots)) for size in sizes), Fraction(0)
        )

    return min([*even, full], key=lambda s: (waste(s), len(s), max(s)))


def _counts(fewest: int, units: int) -> range:
    return range(fewest, min(fewest + 3, units + 1))


def chip_conflict(
    network: Network, array: MatrixArray, cores: int, slots_per_core: int
) -> CapacityConflict | None:
    """Refuse before lowering what no placement can hold; None when it may fit.

    The union of all weights is a lower bound of the slots needed.

    Raises:
        MalformedInput: one weight is wider than a crossbar row.
    """
    demands = weight_demand(network, array)
    need = sum(demand.slots for demand in demands)
    capacity = cores * slots_per_core
    if need <= capacity:
        return None
    largest = sorted(demands, key=lambda d: -d.slots)[:8]
    return CapacityConflict(
        subject="",
        need=need,
        capacity=capacity,
        reason=(
            f"the weights of {network.name!r} need {need} slots, the chip has "
            f"{cores} cores x {slots_per_core} = {capacity}"
        ),
        operations=tuple((demand.operation, demand.slots) for demand in largest),
    )


def task_conflicts(
    graph: ComputeGraph, slots_per_core: int
) -> tuple[CapacityConflict, ...]:
    """Tasks that no core can hold, in task order (explicit graphs have them)."""
    return tuple(
        CapacityConflict(
            subject=graph.tasks[task].name,
            need=need,
            capacity=slots_per_core,
            reason=(
                f"task {graph.tasks[task].name!r} needs {need} weight slots at once, "
                f"a core has {slots_per_core}"
            ),
        )
        for task, need in enumerate(graph.task_slots().tolist())
        if need > slots_per_core
    )
