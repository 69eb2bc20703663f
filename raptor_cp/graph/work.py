"""What one task does, in target-neutral terms.

A target prices a task from its :data:`Work`; the core never looks inside beyond
the boxes.  Feature maps are (rows, columns, channels) boxes over HWC storage,
sequences are (tokens, 1, features): see ``Tensor.extent``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor_cp.network.operations import Operation


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """Half-open box of a tensor's (rows, columns, channels) extent, in elements."""

    row_start: int
    row_stop: int
    column_start: int
    column_stop: int
    channel_start: int
    channel_stop: int

    @classmethod
    def whole(cls, extent: tuple[int, int, int]) -> Box:
        """The box that covers a tensor of ``extent``."""
        rows, columns, channels = extent
        return cls(0, rows, 0, columns, 0, channels)

    @property
    def bounds(self) -> tuple[int, int, int, int, int, int]:
        """The six limits as a plain tuple."""
        return (
            self.row_start,
            self.row_stop,
            self.column_start,
            self.column_stop,
            self.channel_start,
            self.channel_stop,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(rows, columns, channels) of the box."""
        return (
            self.row_stop - self.row_start,
            self.column_stop - self.column_start,
            self.channel_stop - self.channel_start,
        )

    @property
    def elements(self) -> int:
        """Number of elements; 0 for an empty box."""
        rows, columns, channels = self.shape
        return max(rows, 0) * max(columns, 0) * max(channels, 0)

    def intersect(self, other: Box) -> Box | None:
        """Common part, or None when the boxes do not meet."""
        common = Box(
            max(self.row_start, other.row_start),
            min(self.row_stop, other.row_stop),
            max(self.column_start, other.column_start),
            min(self.column_stop, other.column_stop),
            max(self.channel_start, other.channel_start),
            min(self.channel_stop, other.channel_stop),
        )
        return common if min(common.shape) > 0 else None

    def contains(self, other: Box) -> bool:
        """True when ``other`` lies inside this box."""
        return self.intersect(other) == other

    def runs_within(self, frame: Box) -> int:
        """Contiguous HWC runs of this box when it is stored inside ``frame``.

        >>> Box(0, 2, 0, 4, 0, 8).runs_within(Box(0, 9, 0, 4, 0, 8))
        1
        >>> Box(0, 2, 0, 4, 0, 8).runs_within(Box(0, 9, 0, 4, 0, 16))
        8
        """
        rows, columns, channels = self.shape
        _, frame_columns, frame_channels = frame.shape
        if channels != frame_channels:
            return rows * columns
        return 1 if columns == frame_columns else rows


class TaskRole(StrEnum):
    """Which part of an operation a task computes."""

    COMPUTE = "compute"  #: the whole reduction, finished output
    PARTIAL = "partial"  #: some row tiles (K split); output is a partial sum
    REDUCE = "reduce"  #: adds partial sums and finishes the output


@dataclass(frozen=True, slots=True)
class SliceWork:
    """A slice of a network operation: all that a target needs to price and emit it.

    Attributes:
        operation: the network operation.
        output: the box of the operation's output that this task produces.
        role: whole reduction, partial sum, or the reduction of partial sums.
        row_tiles: half-open range of row tiles (array rows) used, for matrix
            operations; ``(0, 0)`` otherwise.
        partials: number of partial sums added, for REDUCE; otherwise 0.
        input_shapes: logical shapes of the operation's inputs, in order.
        output_shape: logical shape of the operation's output.
        input_bits: bits of an element of the widest input.
        output_bits: bits of an element of the (finished) output.
        accumulator_bits: bits of a partial sum: what PARTIAL publishes.
    """

    operation: Operation
    output: Box
    role: TaskRole = TaskRole.COMPUTE
    row_tiles: tuple[int, int] = (0, 0)
    partials: int = 0
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shape: tuple[int, ...] = ()
    input_bits: int = 8
    output_bits: int = 8
    accumulator_bits: int = 32


@dataclass(frozen=True, slots=True)
class ExplicitWork:
    """Given execution times (ns): one for all cores, or one for each core."""

    execution_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommandWork:
    """A command list for a target that issues commands (``pe``)."""

    commands: tuple[object, ...]


Work = SliceWork | ExplicitWork | CommandWork
