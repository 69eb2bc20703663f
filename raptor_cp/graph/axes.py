"""Index ranges along the logical axes of a tensor, and their boxes in memory.

``Ranges`` holds one half-open ``(start, stop)`` per axis of a logical shape such
as ``(1, C, H, W)``; a :class:`~raptor_cp.graph.work.Box` holds rows, columns and
channels (``Tensor.extent``).  Conversions return the smallest cover: every element
of the argument lies in the result.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from raptor_cp.graph.work import Box

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.network.attributes import Shape

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def whole_ranges(shape: Shape) -> Ranges:
    """All elements."""
    return tuple((0, size) for size in shape)


def split_range(linear: Range, sizes: Sequence[int]) -> Ranges:
    """Ranges along ``sizes`` (row-major) that cover a range of linear indices.

    >>> split_range((6, 8), (3, 4))
    ((1, 2), (2, 4))
    >>> split_range((3, 5), (3, 4))
    ((0, 2), (0, 4))
    """
    start, stop = linear
    result: list[Range] = []
    for axis in range(len(sizes)):
        inner = prod(sizes[axis + 1 :])
        first, last = start // inner, (stop - 1) // inner
        result.append((first, last + 1))
        if last > first:
            result.extend((0, s) for s in sizes[axis + 1 :])
            break
        start -= first * inner
        stop -= first * inner
    return tuple(result)


def join_ranges(ranges: Sequence[Range], sizes: Sequence[int]) -> Range:
    """The linear (row-major) hull of ranges along ``sizes``.

    >>> join_ranges(((1, 2), (2, 4)), (3, 4))
    (6, 8)
    """
    start = stop = 0
    for (first, last), size in zip(ranges, sizes, strict=True):
        start = start * size + first
        stop = stop * size + last - 1
    return (start, stop + 1)


def box_ranges(box: Box, shape: Shape) -> Ranges:
    """Ranges along the logical axes that cover ``box``."""
    rows = (box.row_start, box.row_stop)
    columns = (box.column_start, box.column_stop)
    channels = (box.channel_start, box.channel_stop)
    rank = len(shape)
    if rank == 4:
        return ((0, 1), channels, rows, columns)
    if rank == 3:
        return ((0, 1), rows, channels)
    if rank == 2:
        return (rows, channels)
    if rank == 1:
        return (channels,)
    return ((0, 1), *split_range(channels, shape[1:-2]), rows, columns)


def ranges_box(ranges: Ranges, shape: Shape) -> Box:
    """The box that covers ``ranges`` of a tensor of ``shape``."""
    rank = len(shape)
    if rank == 4:
        _, channels, rows, columns = ranges
    elif rank == 3:
        (_, rows, channels), columns = ranges, (0, 1)
    elif rank == 2:
        (rows, channels), columns = ranges, (0, 1)
    elif rank == 1:
        (channels,), rows, columns = ranges, (0, 1), (0, 1)
    else:
        rows, columns = ranges[-2], ranges[-1]
        channels = join_ranges(ranges[1:-2], shape[1:-2])
    return Box(*rows, *columns, *channels)


def reshaped_ranges(ranges: Ranges, shape: Shape, source: Shape) -> Ranges:
    """Ranges along ``source`` that cover ``ranges`` of the same elements as ``shape``.

    Both shapes list the same elements in row-major order.  Axes are aligned in
    blocks of equal size, so that an axis that survives keeps its exact range.

    >>> reshaped_ranges(((0, 1), (4, 8)), (1, 12), (1, 3, 4))
    ((0, 1), (1, 2), (0, 4))
    """
    result: list[Range] = []
    i = j = 0
    while i < len(shape) or j < len(source):
        i_start, j_start = i, j
        left = shape[i] if i < len(shape) else 1
        right = source[j] if j < len(source) else 1
        i += i < len(shape)
        j += j < len(source)
        while left != right:
            if left < right:
                left *= shape[i]
                i += 1
            else:
                right *= source[j]
                j += 1
        block = join_ranges(ranges[i_start:i], shape[i_start:i])
        if j > j_start:
            result.extend(split_range(block, source[j_start:j]))
    return tuple(result)
