"""Where a task's operands come from: roots behind views, boxes, element maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.graph.crossbars import TileGrid
from raptor_cp.graph.projection import needed_boxes
from raptor_cp.graph.views import is_runtime_free, root_box
from raptor_cp.graph.work import Box, TaskRole
from raptor_cp.network.attributes import OpKind, ViewAttributes
from raptor_cp.targets.pim.lowering_common import NotEmitted

if TYPE_CHECKING:
    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.graph.work import SliceWork
    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network


@dataclass(frozen=True, slots=True)
class OperandMap:
    """One input of a task in terms of the tensor that holds its elements.

    Attributes:
        root: that tensor.
        boxes: what the task reads of it.
        shift: root coordinates of the operand's element (0, 0, 0).
        flat: extent of the operand when it is a view that keeps memory order.
        extent: (rows, columns, channels) of the root.
    """

    root: str
    boxes: tuple[Box, ...]
    shift: tuple[int, int, int]
    flat: tuple[int, int, int] | None
    extent: tuple[int, int, int]

    @property
    def hull(self) -> Box:
        """Smallest box that holds all of them; empty when nothing is read."""
        if not self.boxes:
            return Box(0, 0, 0, 0, 0, 0)
        return Box(
            min(b.row_start for b in self.boxes),
            max(b.row_stop for b in self.boxes),
            min(b.column_start for b in self.boxes),
            max(b.column_stop for b in self.boxes),
            min(b.channel_start for b in self.boxes),
            max(b.channel_stop for b in self.boxes),
        )


def stored_boxes(entry: OperandMap) -> tuple[Box, ...]:
    """Boxes of the root that a reader needs in local memory, a dense block each.

    A view that keeps memory order is read as one range of it; boxes of unequal
    columns or channels become one, since rows must follow each other at one stride.
    """
    if not entry.boxes:
        return ()
    hull = entry.hull
    if entry.flat is not None:
        return (_range_of(hull, entry.extent),)
    if any(box.bounds[2:] != hull.bounds[2:] for box in entry.boxes):
        return (hull,)
    return entry.boxes


def _range_of(box: Box, extent: tuple[int, int, int]) -> Box:
    """The smallest box around ``box`` that is one piece of its tensor's memory."""
    columns = (box.column_start, box.column_stop)
    channels = (box.channel_start, box.channel_stop)
    if box.shape[0] > 1:
        columns = (0, extent[1])
    if box.shape[0] > 1 or box.shape[1] > 1:
        channels = (0, extent[2])
    return Box(box.row_start, box.row_stop, *columns, *channels)


def operand_maps(
    network: Network, work: SliceWork, array: MatrixArray
) -> list[OperandMap]:
    """Every input of a task that computes from tensors (not a REDUCE).

    Raises:
        NotEmitted: a view that puts elements into another order.
    """
    operation = work.operation
    rows = None
    if operation.weight is not None and work.role is TaskRole.PARTIAL:
        grid = TileGrid.of(operation.weight, array, operation.name)
        rows = grid.matrix_rows(work.row_tiles)
    found = []
    for index, name in enumerate(operation.inputs):
        needed = needed_boxes(
            operation, index, work.output, work.input_shapes, work.output_shape, rows
        )
        root, shift, flat = _element_map(network, name, operation.kind)
        boxes = tuple(
            dict.fromkeys(
                root_box(network, name, box, operation.kind)[1] for box in needed
            )
        )
        extent = tuple(network.tensors[root].extent)
        found.append(
            OperandMap(root, boxes, shift, flat, (extent[0], extent[1], extent[2]))
        )
    return found


def _element_map(
    network: Network, name: str, reader: OpKind
) -> tuple[str, tuple[int, int, int], tuple[int, int, int] | None]:
    """Root, shift and flat extent of an operand."""
    own = network.tensors[name].extent
    shift = (0, 0, 0)
    flat: tuple[int, int, int] | None = None
    maker = network.producer(name)
    while maker is not None and is_runtime_free(maker):
        output = network.tensors[name]
        source = network.tensors[maker.inputs[0]]
        if isinstance(maker.attributes, ViewAttributes):
            if not _same_coordinates(output, source):
                free = output.extent.rows == output.extent.columns == 1
                kept = maker.attributes.channels_last or (
                    _in_memory_order(output) and _in_memory_order(source)
                )
                if not kept and not (reader is OpKind.GEMM and free):
                    raise NotEmitted(f"view {maker.name!r} reorders elements")
                if shift != (0, 0, 0):
                    raise NotEmitted(f"a slice of the view {maker.name!r}")
                flat = (own.rows, own.columns, own.channels)
        else:
            if flat is not None:
                raise NotEmitted(f"a view of the slice {maker.name!r}")
            corner = root_box(network, name, Box(0, 1, 0, 1, 0, 1), reader)[1]
            before = root_box(network, source.name, Box(0, 1, 0, 1, 0, 1), reader)[1]
            shift = (
                shift[0] + corner.row_start - before.row_start,
                shift[1] + corner.column_start - before.column_start,
                shift[2] + corner.channel_start - before.channel_start,
            )
        name = source.name
        maker = network.producer(name)
    return name, shift, flat


def _same_coordinates(one: Tensor, other: Tensor) -> bool:
    """Equal (row, column, channel) means the same element."""
    if one.extent != other.extent:
        return False
    maps = (len(one.shape) >= 4) + (len(other.shape) >= 4)
    return maps != 1 or (_in_memory_order(one) and _in_memory_order(other))


def _in_memory_order(tensor: Tensor) -> bool:
    """The logical order of elements is that in memory."""
    extent = tensor.extent
    return (
        len(tensor.shape) < 4
        or extent.channels == 1
        or extent.rows == extent.columns == 1
    )
