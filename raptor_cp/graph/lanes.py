"""How many lanes an operation gets, and which part of its output each one makes.

An operation's lanes are proportional to its share of the network's work::

    wanted = clamp(ceil(lanes_per_core * cores * work / total), 1, max_lanes)

Lanes are ranges of output rows (tokens, of a sequence).  Where there are fewer
rows than wanted lanes, output channels are cut as well: at multiples of
``CHANNEL_QUANTUM`` for operations whose channels are independent, between bundles
for grouped convolutions.  The channels of a plain matrix operation are never cut
for balance: an ``mvmul`` takes the same time however few columns it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.graph.splitting import Piece, even_ranges
from raptor_cp.network.attributes import (
    BINARY_KINDS,
    ConcatAttributes,
    MatMulAttributes,
    OpKind,
    ReduceAttributes,
)
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.graph.crossbars import TileGrid
    from raptor_cp.network.attributes import Shape
    from raptor_cp.network.operations import Extent, Operation

#: Whole bytes at every element width, whole chunks on vector units of 16.
CHANNEL_QUANTUM = 16

_CHANNELWISE = frozenset(
    {*BINARY_KINDS, OpKind.POOL, OpKind.ACTIVATION, OpKind.SCALE, OpKind.RESIZE}
)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """``lanes_per_core`` tasks for every core an operation would deserve."""

    cores: int
    lanes_per_core: int = 2
    max_lanes: int = 64

    def wanted(self, work: int, total: int) -> int:
        """Lanes of an operation with ``work`` of ``total`` ns."""
        share = ceil_div(self.lanes_per_core * self.cores * work, max(total, 1))
        return max(1, min(share, self.max_lanes))


def channels_are_independent(operation: Operation, input_shape: Shape) -> bool:
    """True if an output channel needs no more than the same input channel."""
    if operation.kind in _CHANNELWISE:
        return True
    attributes = operation.attributes
    if isinstance(attributes, ReduceAttributes):
        channel_axis = 1 if len(input_shape) == 4 else len(input_shape) - 1
        return channel_axis not in attributes.axes
    if isinstance(attributes, ConcatAttributes):
        return len(input_shape) == 4 and attributes.axis != 1
    return False


def row_lanes(wanted: int, pieces: int, rows: int) -> int:
    """Row lanes of an operation whose weight has ``pieces``: they split work too."""
    return max(1, min(ceil_div(wanted, pieces), rows))


def channel_ranges(
    operation: Operation, extent: Extent, shapes: Sequence[Shape], wanted: int
) -> list[tuple[int, int]]:
    """Channel ranges of an operation without a weight.

    Products of two computed tensors are cut between heads first: a lane then reads
    (and rearranges) the operands of its own heads only.  Otherwise there is one
    range unless rows are few.
    """
    whole = [(0, extent.channels)]
    attributes = operation.attributes
    if isinstance(attributes, MatMulAttributes) and attributes.heads > 1:
        heads = attributes.heads
        width = extent.channels // heads
        parts = even_ranges(heads, min(wanted, heads))
        return [(first * width, last * width) for first, last in parts]
    if wanted <= extent.rows or not channels_are_independent(operation, shapes[0]):
        return whole
    units = extent.channels // CHANNEL_QUANTUM
    count = min(wanted // extent.rows, units)
    if count < 2:
        return whole
    cuts = [
        (first * CHANNEL_QUANTUM, last * CHANNEL_QUANTUM)
        for first, last in even_ranges(units, count)
    ]
    cuts[-1] = (cuts[-1][0], extent.channels)
    return cuts


def bundle_lanes(
    grid: TileGrid, pieces: Sequence[Piece], rows: int, wanted: int
) -> list[Piece]:
    """Cut an unsplit grouped weight between bundles when rows are too few."""
    parts = min(wanted // max(rows, 1), grid.bundles)
    if len(pieces) != 1 or parts < 2:
        return list(pieces)
    result = []
    for first, last in even_ranges(grid.bundles, parts):
        start = first * grid.bundle_columns
        stop = min(last * grid.bundle_columns, grid.channels)
        tiles = (0, grid.row_tiles)
        result.append(Piece(start, stop, tiles, grid.slots_of(start, stop, tiles)))
    return result
