"""Sizes of matrix tasks: bundles, row tiles, buffers, and the array groups they use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.graph.crossbars import TileGrid
from raptor_cp.network.attributes import ConvAttributes
from raptor_cp.targets.pim.lowering_common import (
    aligned,
    width,
)
from raptor_cp.targets.pim.matrix_costs import Batches, Machine, batches
from raptor_cp.targets.pim.sidecar import ArrayGroup
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.graph.work import SliceWork

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Bundle:
    """One column block of a task: its channels and convolution groups."""

    channel_start: int
    channel_stop: int
    group_start: int
    groups: int
    crossbars: int


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Sizes of a matrix task.

    ``used``: rows of the matrix; ``accumulator``: bytes of one row tile's buffer;
    ``operand``: bytes of one bundle's operand; ``spill``: bytes that an ``mvmul``
    writes past its channels.
    """

    grid: TileGrid
    bundles: tuple[Bundle, ...]
    parts: Batches
    tiles: int
    used: tuple[int, int]
    accumulator: int
    operand: int
    spill: int

    @property
    def per_lane(self) -> bool:
        """One batch of several rows."""
        return self.parts.count == 1


def shape_of(work: SliceWork, machine: Machine) -> Shape:
    """Sizes of a COMPUTE or PARTIAL task."""
    weight = work.operation.weight
    if weight is None:
        raise InternalError(f"{work.operation.name} has no weight")
    grid = TileGrid.of(weight, machine.array, work.operation.name)
    tiles = work.row_tiles[1] - work.row_tiles[0]
    bundles = bundles_of(work, grid)
    parts = batches(machine, work, tiles + 2)
    used = grid.matrix_rows(work.row_tiles)
    together = max(bundle.groups for bundle in bundles)
    spill = max(
        bundle.channel_start + bundle.crossbars * grid.columns_per_crossbar
        for bundle in bundles
    )
    spill = max(spill - work.output.channel_stop, 0)
    wide = width(work.accumulator_bits)
    return Shape(
        grid,
        bundles,
        parts,
        tiles,
        used,
        aligned((parts.length + spill) * wide),
        aligned((used[1] - used[0]) * together * width(work.input_bits)),
        spill * wide,
    )


def bundles_of(work: SliceWork, grid: TileGrid) -> tuple[Bundle, ...]:
    """Column blocks that the task's channels meet, ascending."""
    weight, box = work.operation.weight, work.output
    if weight is None:
        return ()
    first = box.channel_start // grid.bundle_columns
    last = ceil_div(box.channel_stop, grid.bundle_columns)
    result = []
    for number in range(first, last):
        start = max(box.channel_start, number * grid.bundle_columns)
        stop = min(box.channel_stop, (number + 1) * grid.bundle_columns)
        own = start // weight.columns
        result.append(
            Bundle(
                start,
                stop,
                own,
                ceil_div(stop, weight.columns) - own,
                ceil_div(stop - start, grid.columns_per_crossbar),
            )
        )
    return tuple(result)


def array_groups(
    work: SliceWork, array: MatrixArray, core: int, base: int
) -> list[ArrayGroup]:
    """Array groups of a task's weight piece, bundle by bundle, tile by tile."""
    operation = work.operation
    weight, attributes = operation.weight, operation.attributes
    if weight is None:
        return []
    grid = TileGrid.of(weight, array, operation.name)
    depth = weight.rows
    if isinstance(attributes, ConvAttributes):
        depth //= attributes.kernel[0] * attributes.kernel[1]
    result: list[ArrayGroup] = []
    for bundle in bundles_of(work, grid):
        for tile in range(*work.row_tiles):
            start, stop = grid.matrix_rows((tile, tile + 1))
            packed = grid.bundle_groups > 1
            result.append(
                ArrayGroup(
                    core,
                    base + len(result),
                    operation.name,
                    start,
                    stop,
                    bundle.channel_start,
                    bundle.channel_stop,
                    (stop - start) * (bundle.groups if packed else 1),
                    bundle.channel_stop - bundle.channel_start,
                    bundle.crossbars,
                    bundle.groups if packed else 1,
                    depth,
                )
            )
    return result
