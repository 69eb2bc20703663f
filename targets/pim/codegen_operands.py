"""Where a task's operands come from: roots behind views, boxes, places of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.crossbars import TileGrid
from raptor_cp.graph.projection import needed_boxes
from raptor_cp.graph.views import is_runtime_free
from raptor_cp.graph.work import Box, TaskRole
from raptor_cp.network.attributes import ConvAttributes, OpKind
from raptor_cp.targets.pim.coordinates import before_view, elements_of, place_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.graph.work import SliceWork
    from raptor_cp.network.operations import Operation, Tensor
    from raptor_cp.network.structure import Network
    from raptor_cp.targets.pim.coordinates import Coordinates

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class OperandMap:
    """One input of a task in terms of the tensor that holds its elements.

    Attributes:
        root: that tensor.
        boxes: what the task reads of it.
        needed: hull of what the task reads of its operand, in the operand's own
            coordinates.
        shift: root coordinates of the operand's element (0, 0, 0), where all elements
            keep their place up to a shift; then ``places`` is None.
        places: otherwise the place in the root of every element that is read.
        numbers: which elements of ``needed`` those are, in its memory order.
        rowwise: the reader wants whole rows at one stride.
    """

    root: str
    boxes: tuple[Box, ...]
    needed: Box
    shift: tuple[int, int, int] = (0, 0, 0)
    places: Coordinates | None = None
    numbers: Ints | None = None
    rowwise: bool = True

    @property
    def hull(self) -> Box:
        """Smallest box that holds all of them; empty when nothing is read."""
        return _hull(self.boxes)


def _hull(boxes: tuple[Box, ...]) -> Box:
    if not boxes:
        return Box(0, 0, 0, 0, 0, 0)
    return Box(
        min(b.row_start for b in boxes),
        max(b.row_stop for b in boxes),
        min(b.column_start for b in boxes),
        max(b.column_stop for b in boxes),
        min(b.channel_start for b in boxes),
        max(b.channel_stop for b in boxes),
    )


def _range_of(box: Box, root: Tensor) -> Box:
    """The smallest box around ``box`` that is one piece of its tensor's memory."""
    columns = (box.column_start, box.column_stop)
    channels = (box.channel_start, box.channel_stop)
    if box.shape[0] > 1:
        columns = (0, root.extent.columns)
    if box.shape[0] > 1 or box.shape[1] > 1:
        channels = (0, root.extent.channels)
    return Box(box.row_start, box.row_stop, *columns, *channels)


def operand_maps(
    network: Network, work: SliceWork, array: MatrixArray
) -> list[OperandMap]:
    """Every input of a task that computes from tensors (not a REDUCE).

    Raises:
        NotEmitted: an operation in between does more than move elements.
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
        found.append(_operand_map(network, operation, name, needed))
    return found


def _operand_map(
    network: Network, reader: Operation, name: str, needed: tuple[Box, ...]
) -> OperandMap:
    views = _views(network, name)
    root = network.tensors[views[-1].inputs[0] if views else name]
    whole = reader.weight is None
    if not views or not needed:
        boxes = _one_stride(needed)
        rowwise = whole or len(boxes) > 1
        return OperandMap(root.name, boxes, _hull(needed), rowwise=rowwise)
    hull = _hull(needed)
    at = own = elements_of(hull)
    for view in views:
        output = network.tensors[view.output]
        source = network.tensors[view.inputs[0]]
        matrix = reader.kind is OpKind.GEMM
        at = before_view(view, at, output, source, matrix=matrix)
    moved = [there - here for there, here in zip(at, own, strict=True)]
    if all((axis == axis[0]).all() for axis in moved):
        shift = (int(moved[0][0]), int(moved[1][0]), int(moved[2][0]))
        # Exact, where the graph's boxes may cover more.
        boxes = _one_stride(
            tuple(
                Box(*(end + shift[i // 2] for i, end in enumerate(box.bounds)))
                for box in needed
            )
        )
        rowwise = whole or len(boxes) > 1
        if _reads_kernel_rows(reader):
            # A kernel row is one piece only where channels follow each other.
            rowwise |= root.extent.channels != network.tensors[name].extent.channels
        return OperandMap(root.name, boxes, hull, shift, rowwise=rowwise)
    inside = _inside(hull, own, needed)
    at = (at[0][inside], at[1][inside], at[2][inside])
    numbers = np.flatnonzero(inside)
    moved_by = place_of(at, root.extent) - numbers
    dense = bool((moved_by == moved_by[0]).all())
    box = Box(*(int(end) for axis in at for end in (axis.min(), axis.max() + 1)))
    if dense:
        box = _range_of(box, root)
    return OperandMap(
        root.name, (box,), hull, places=at, numbers=numbers, rowwise=dense
    )


def _inside(hull: Box, at: Coordinates, needed: tuple[Box, ...]) -> NDArray[np.bool_]:
    """Which elements of the hull are really read: between boxes nobody brings any."""
    found = np.full(at[0].size, needed == (hull,))
    for box in needed if needed != (hull,) else ():
        bounds = (box.bounds[0:2], box.bounds[2:4], box.bounds[4:6])
        part = np.full(at[0].size, True)
        for axis, (start, stop) in zip(at, bounds, strict=True):
            part &= (start <= axis) & (axis < stop)
        found |= part
    return found


def _views(network: Network, name: str) -> list[Operation]:
    """Runtime-free operations between a tensor and its root, last one first."""
    found = []
    maker = network.producer(name)
    while maker is not None and is_runtime_free(maker):
        found.append(maker)
        maker = network.producer(maker.inputs[0])
    return found


def _one_stride(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """Boxes of unequal columns or channels become one: rows follow at one stride."""
    hull = _hull(boxes)
    if any(box.bounds[2:] != hull.bounds[2:] for box in boxes):
        return (hull,)
    return boxes


def _reads_kernel_rows(reader: Operation) -> bool:
    attributes = reader.attributes
    return isinstance(attributes, ConvAttributes) and max(attributes.kernel) > 1
