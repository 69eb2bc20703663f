"""Where an element of a tensor comes from: logical indices and places in memory.

Elements lie in memory as (row, column, channel), channels innermost; operations that
move elements are defined on logical indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.attributes import (
    GatherAttributes,
    ResizeAttributes,
    SliceAttributes,
    TransposeAttributes,
    ViewAttributes,
)
from raptor_cp.targets.pim.lowering_common import NotEmitted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.work import Box
    from raptor_cp.network.attributes import Attributes
    from raptor_cp.network.operations import Extent, Operation, Tensor

    Ints = NDArray[np.int64]
    Coordinates = tuple[Ints, Ints, Ints]


def memory_axes(rank: int) -> list[int]:
    """Logical axes from the outermost to the innermost in memory."""
    if rank <= 3:
        return list(range(rank))
    return [rank - 2, rank - 1, *range(1, rank - 2)]


def logical(at: Coordinates, shape: tuple[int, ...]) -> tuple[Ints, ...]:
    """Logical indices of elements given by (row, column, channel)."""
    rows, columns, channels = at
    zero = np.zeros_like(rows)
    rank = len(shape)
    if rank == 1:
        return (channels,)
    if rank == 2:
        return (rows, channels)
    if rank == 3:
        return (zero, rows, channels)
    inner = np.unravel_index(channels, shape[1:-2])
    return (zero, *(np.asarray(axis, np.int64) for axis in inner), rows, columns)


def in_memory(index: tuple[Ints, ...], shape: tuple[int, ...]) -> Coordinates:
    """(row, column, channel) of elements given by logical indices."""
    zero = np.zeros_like(index[0])
    rank = len(shape)
    if rank == 1:
        return (zero, zero, index[0])
    if rank == 2:
        return (index[0], zero, index[1])
    if rank == 3:
        return (index[1], zero, index[2])
    channels = zero
    for axis, size in zip(index[1:-2], shape[1:-2], strict=True):
        channels = channels * size + axis
    return (index[-2], index[-1], channels)


def source_index(
    attributes: Attributes,
    index: tuple[Ints, ...],
    shape: tuple[int, ...],
    output_shape: tuple[int, ...],
) -> tuple[Ints, ...]:
    """Logical indices of the input (``shape``) for those of the output.

    Raises:
        NotEmitted: the operation does not only move elements.
    """
    found = list(index)
    match attributes:
        case TransposeAttributes():
            for axis, source in enumerate(attributes.permutation):
                found[source] = index[axis]
        case SliceAttributes():
            for axis, start, step in zip(
                attributes.axes, attributes.starts, attributes.steps, strict=True
            ):
                found[axis] = start + index[axis] * step
        case GatherAttributes() if attributes.indices is not None:
            if attributes.drop_axis:
                only = np.full_like(index[0], attributes.indices[0])
                found.insert(attributes.axis, only)
            else:
                taken = np.array(attributes.indices, np.int64)
                found[attributes.axis] = taken[index[attributes.axis]]
        case ResizeAttributes():
            for axis in (2, 3):
                found[axis] = index[axis] * shape[axis] // output_shape[axis]
        case ViewAttributes():
            flat = np.zeros_like(index[0])
            for along, size in zip(index, output_shape, strict=True):
                flat = flat * size + along
            axes = np.unravel_index(flat, shape)
            found = [np.asarray(part, np.int64) for part in axes]
        case _:
            raise NotEmitted("an operation that does more than move elements")
    return tuple(found)


def place_of(at: Coordinates, extent: Extent) -> Ints:
    """Number of each element in memory order."""
    rows, columns, channels = at
    return np.asarray(
        (rows * extent.columns + columns) * extent.channels + channels, np.int64
    )


def elements_of(box: Box) -> Coordinates:
    """All elements of a box, in memory order."""
    rows, columns, channels = np.meshgrid(
        np.arange(box.row_start, box.row_stop),
        np.arange(box.column_start, box.column_stop),
        np.arange(box.channel_start, box.channel_stop),
        indexing="ij",
    )
    return rows.reshape(-1), columns.reshape(-1), channels.reshape(-1)


def before_view(
    view: Operation, at: Coordinates, output: Tensor, source: Tensor, *, matrix: bool
) -> Coordinates:
    """Places in the source of a runtime-free operation for places in its output.

    ``matrix``: the reader is a product with a constant matrix, whose rows were put
    into memory order, so that a flatten in front of it moves nothing.
    """
    attributes = view.attributes
    extent = output.extent
    if isinstance(attributes, ViewAttributes):
        flat = extent.rows == extent.columns == 1
        if attributes.channels_last or (matrix and flat):
            place = place_of(at, extent)
            axes = np.unravel_index(place, tuple(source.extent))
            rows, columns, channels = (np.asarray(axis, np.int64) for axis in axes)
            return rows, columns, channels
    index = logical(at, output.shape)
    return in_memory(
        source_index(attributes, index, source.shape, output.shape), source.shape
    )
