"""Operations that move elements: concat, transpose, slice, gather, pad, resize.

Softmax is here too: its operand is materialised by copies, and the native program has
one ``vsoftmax`` for each position (the simulator's copy leaves it out).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.axes import box_ranges
from raptor_cp.graph.projection import needed_boxes
from raptor_cp.graph.work import Box
from raptor_cp.network.attributes import (
    ConcatAttributes,
    GatherAttributes,
    PadAttributes,
    ResizeAttributes,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
)
from raptor_cp.network.operations import Tensor
from raptor_cp.targets.pim.codegen_storage import pieces_of
from raptor_cp.targets.pim.coordinates import (
    in_memory,
    logical,
    memory_axes,
    source_index,
)
from raptor_cp.targets.pim.emission import Text
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.lowering_common import (
    Needs,
    NotEmitted,
    Operand,
    Places,
    function_needs,
    known,
    width,
)
from raptor_cp.targets.pim.lowering_vector import emit_function
from raptor_cp.targets.pim.matrix_costs import Machine, batches
from raptor_cp.targets.pim.vector_costs import chooses_channels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.graph.work import SliceWork
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]
    Coordinates = tuple[Ints, Ints, Ints]


def move_needs(
    work: SliceWork, numbers: OperationNumbers, machine: Machine, slopes: Ints | None
) -> Needs:
    """Only a function behind a move needs constants.

    Raises:
        NotEmitted: there is none.
    """
    attributes = work.operation.attributes
    match attributes:
        case ConcatAttributes() | TransposeAttributes() | SliceAttributes():
            pass
        case GatherAttributes() if attributes.indices is not None:
            pass
        case PadAttributes() if attributes.mode == "constant" and not attributes.value:
            pass
        case ResizeAttributes() if attributes.mode == "nearest":
            pass
        case SoftmaxAttributes() if not attributes.log:
            if memory_axes(len(work.output_shape))[-1] != attributes.axis:
                raise NotEmitted("a softmax along another axis than the innermost")
        case _:
            raise NotEmitted(work.operation.kind.value)
    needs = Needs()
    length = batches(machine, work, 2).length
    function_needs(needs, work, numbers, length, slopes)
    return needs


def emit_move_task(places: Places) -> list[Records]:
    """All instructions of a task."""
    attributes = places.work.operation.attributes
    if isinstance(attributes, ConcatAttributes):
        found = _emit_concat(places, attributes)
    elif isinstance(attributes, PadAttributes):
        found = _emit_pad(places, attributes)
    elif isinstance(attributes, SoftmaxAttributes):
        found = _emit_softmax(places)
    else:
        found = _emit_mapped(places)
    return found + emit_function(places)


def _addresses(operand: Operand, at: Coordinates) -> Ints:
    """Addresses of elements of an operand."""
    rows, columns, channels = at
    distinct, index = np.unique(rows, return_inverse=True)
    starts = np.array([operand.row(int(row)) for row in distinct], np.int64)
    return np.asarray(
        starts[index.reshape(-1)]
        + columns * operand.column_stride
        + channels * operand.element,
        np.int64,
    )


def _copies(target: Ints, source: Ints, size: int) -> Records:
    text = Text(target.size)
    text.copy(known(target), known(source), size)
    return text.records()


def _copy_box(
    places: Places, operand: Operand, box: Box, shift: tuple[int, int, int]
) -> Records:
    """``box`` of an operand to the output, ``shift`` further."""
    work = places.work
    target = _moved(box, shift)
    frames = [places.out.box]
    for block in operand.blocks:
        own = _moved(
            block.box, [s - o for s, o in zip(shift, operand.shift, strict=True)]
        )
        if own.contains(target):
            frames.append(own)
            break
    else:
        raise InternalError("a moved box in several blocks")
    pieces = pieces_of(target, width(work.output_bits), frames)
    out = places.out
    targets = (
        out.address
        + (pieces.rows - out.box.row_start) * out.row_stride
        + (pieces.columns - out.box.column_start) * out.column_stride
        + (pieces.channels - out.box.channel_start) * out.element
    )
    sources = _addresses(
        operand,
        (
            pieces.rows - shift[0],
            pieces.columns - shift[1],
            pieces.channels - shift[2],
        ),
    )
    return _copies(np.asarray(targets, np.int64), sources, pieces.size)


def _moved(box: Box, shift: Sequence[int]) -> Box:
    return Box(*(value + shift[i // 2] for i, value in enumerate(box.bounds)))


def _needed(work: SliceWork, index: int) -> tuple[Box, ...]:
    return needed_boxes(
        work.operation, index, work.output, work.input_shapes, work.output_shape
    )


def _emit_concat(places: Places, attributes: ConcatAttributes) -> list[Records]:
    work = places.work
    found, before = [], 0
    for index, shape in enumerate(work.input_shapes):
        logical = [0] * len(shape)
        logical[attributes.axis] = before
        shift = in_memory(
            tuple(np.array([value]) for value in logical), work.output_shape
        )
        for box in _needed(work, index):
            found.append(
                _copy_box(
                    places,
                    places.inputs[index],
                    box,
                    (int(shift[0][0]), int(shift[1][0]), int(shift[2][0])),
                )
            )
        before += shape[attributes.axis]
    return found


def _emit_pad(places: Places, attributes: PadAttributes) -> list[Records]:
    work = places.work
    box = work.output
    rows, columns, channels = box.shape
    text = Text(rows)
    starts = [places.out_row(row) for row in range(box.row_start, box.row_stop)]
    size = columns * channels * width(work.output_bits)
    text.fill(known(np.array(starts, np.int64)), size)
    found = [text.records()]
    shift = in_memory(
        tuple(np.array([value]) for value in attributes.before), work.output_shape
    )
    for needed in _needed(work, 0):
        found.append(
            _copy_box(
                places,
                places.inputs[0],
                needed,
                (int(shift[0][0]), int(shift[1][0]), int(shift[2][0])),
            )
        )
    return found


def _emit_softmax(places: Places) -> list[Records]:
    work = places.work
    box = work.output
    rows, columns, channels = box.shape
    text = Text(rows)
    size = columns * channels * width(work.output_bits)
    operand = places.inputs[0]
    if not operand.dense(columns, channels):
        raise NotEmitted("an operand that does not lie in one piece")
    span = range(box.row_start, box.row_stop)
    targets = np.array([places.out_row(row) for row in span], np.int64)
    offset = box.channel_start * operand.element
    sources = np.array([operand.row(row) + offset for row in span], np.int64)
    text.widths(work.input_bits, work.output_bits)
    text.copy(known(targets), known(sources), size)
    positions = np.arange(rows * columns, dtype=np.int64)
    step = channels * width(work.output_bits)
    exponent = Text(rows * columns)
    at = known(targets[positions // columns] + positions % columns * step)
    exponent.vector(Opcode.VSOFTMAX, at, at, length=channels)
    return [text.records(), exponent.records()]


# -- index maps ------------------------------------------------------------------


def _emit_mapped(places: Places) -> list[Records]:
    """One copy for each run that stays contiguous."""
    work, operand = places.work, places.inputs[0]
    shape = work.input_shapes[0]
    run = _run_length(work)
    box = work.output
    _, columns, channels = box.shape
    flat = np.arange(0, box.elements, run, dtype=np.int64)
    at = (
        box.row_start + flat // (columns * channels),
        box.column_start + flat // channels % columns,
        box.channel_start + flat % channels,
    )
    source = in_memory(
        source_index(
            work.operation.attributes,
            logical(at, work.output_shape),
            shape,
            work.output_shape,
        ),
        shape,
    )
    element = width(work.output_bits)
    targets = places.out_row(box.row_start) + flat * element
    return [_copies(targets, _addresses(operand, source), run * element)]


def _run_length(work: SliceWork) -> int:
    """Elements of one copy, as the cost model has it."""
    attributes = work.operation.attributes
    channels = work.output.shape[2]
    shape = work.input_shapes[0]
    if isinstance(attributes, TransposeAttributes):
        run = 1
        for axis in reversed(memory_axes(len(attributes.permutation))):
            if attributes.permutation[axis] != axis:
                break
            start, stop = box_ranges(work.output, work.output_shape)[axis]
            run *= stop - start
            if stop - start < shape[axis]:
                break
        return run
    if isinstance(attributes, ResizeAttributes):
        return channels
    if chooses_channels(work):
        return 1
    return 1 if channels < Tensor("x", shape).extent.channels else channels
