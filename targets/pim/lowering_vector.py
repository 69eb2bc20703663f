"""Elementwise operations and functions; pooling is in a module of its own.

The instruction counts are those of :mod:`raptor_cp.targets.pim.vector_costs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.attributes import (
    BINARY_KINDS,
    Activation,
    ElementwiseAttributes,
    OpKind,
    PoolAttributes,
    ReduceAttributes,
    ScaleAttributes,
)
from raptor_cp.network.operations import Tensor
from raptor_cp.targets.pim.emission import Ref, Text
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.lowering_common import (
    ConstantVector,
    Needs,
    NotEmitted,
    Operand,
    Places,
    aligned,
    apply_function,
    bias_vector,
    finish,
    finish_needs,
    function_needs,
    known,
    references,
    repeated,
    width,
)
from raptor_cp.targets.pim.lowering_pooling import (
    emit_pool,
    emit_reduce,
    pool_needs,
    reduce_needs,
)
from raptor_cp.targets.pim.matrix_costs import Batches, Machine, batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.work import SliceWork
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]

#: Kinds that this module emits.
VECTOR_KINDS = frozenset(
    {*BINARY_KINDS, OpKind.SCALE, OpKind.POOL, OpKind.REDUCE, OpKind.ACTIVATION}
)
OUT, FIRST_INPUT = 0, 1  #: symbols of row templates


def vector_needs(
    work: SliceWork,
    numbers: OperationNumbers,
    machine: Machine,
    inputs: list[Operand],
    scale: tuple[Ints, Ints] | None,
    slopes: Ints | None,
) -> Needs:
    """Scratch and constants of a task.

    ``scale``: factors and biases of a SCALE; ``slopes``: of a PReLU.

    Raises:
        NotEmitted: there is no sequence.
    """
    needs = Needs()
    kind, attributes = work.operation.kind, work.operation.attributes
    wide, narrow = max(work.accumulator_bits, work.output_bits), work.input_bits
    if isinstance(attributes, ElementwiseAttributes):
        _elementwise_needs(needs, work, numbers, machine)
    elif isinstance(attributes, ScaleAttributes) and scale is not None:
        rank = len(work.output_shape)
        if attributes.axis != (1 if rank == 4 else rank - 1) or rank > 4:
            raise NotEmitted("factors along another axis than the channels")
        parts = batches(machine, work, 4)
        box = work.output
        own = scale[0][box.channel_start : box.channel_stop]
        name = f"scale:{numbers.name}:{box.channel_start}:{box.channel_stop}"
        needs.constants["scale"] = ConstantVector(
            name, own, parts.length, width(narrow), loaded=True
        )
        bias = bias_vector(scale[1], work, numbers, parts.length)
        finish_needs(needs, work, numbers, parts.length, bias)
        needs.scratch["sum"] = aligned(parts.length * width(wide))
    elif isinstance(attributes, PoolAttributes):
        pool_needs(needs, work, numbers, machine, inputs[0])
    elif isinstance(attributes, ReduceAttributes):
        reduce_needs(needs, work, numbers, machine, inputs[0])
    elif kind is not OpKind.ACTIVATION:
        raise NotEmitted(kind.value)
    function_needs(needs, work, numbers, _function_length(work, machine), slopes)
    return needs


def _function_length(work: SliceWork, machine: Machine) -> int:
    """Elements of the vectors that a task's function works on."""
    if isinstance(work.operation.attributes, ElementwiseAttributes):
        return _parts(machine, work).length
    buffers = {OpKind.SCALE: 4, OpKind.ACTIVATION: 3}.get(work.operation.kind, 2)
    return batches(machine, work, buffers).length


def emit_vector_task(places: Places) -> list[Records]:
    """All instructions of a task."""
    work = places.work
    kind, attributes = work.operation.kind, work.operation.attributes
    if isinstance(attributes, PoolAttributes):
        return emit_pool(places, attributes) + emit_function(places)
    if isinstance(attributes, ReduceAttributes):
        return emit_reduce(places, attributes) + emit_function(places)
    if kind is OpKind.SCALE:
        return _emit_scale(places)
    if kind is OpKind.ACTIVATION:
        return _emit_activation(places)
    return _emit_elementwise(places)


# -- batches ------------------------------------------------------------------------


class _Frame:
    """How a task's output is cut into batches, and where a batch's operands are."""

    def __init__(self, places: Places, parts: Batches) -> None:
        box = places.work.output
        rows, columns, self.channels = box.shape
        self.places, self.parts, self.box = places, parts, box
        self.single = parts.length == self.channels and columns > 1
        self.rows = range(box.row_start, box.row_stop)
        if parts.count == 1 and rows > 1:
            self.rows = range(box.row_start, box.row_start + 1)
        self.text = Text(columns if self.single else 1)
        self.at: Ints = np.arange(columns, dtype=np.int64)

    def operand(self, index: int) -> Ref:
        """The batch's elements of an input."""
        operand = self.places.inputs[index]
        rows, columns, _ = self.box.shape
        if self.single:
            one = _extent(self.places.work.input_shapes[index])[1] == 1
            stride = 0 if one else operand.column_stride
            return Ref(FIRST_INPUT + index, self.at * stride)
        several = (self.box.row_start, self.box.row_stop)
        dense = operand.dense(columns, self.channels)
        if len(self.rows) == 1 and rows > 1:
            dense = operand.dense_rows(several, columns, self.channels)
        if not dense:
            raise NotEmitted("an operand that does not lie in one piece")
        return Ref(FIRST_INPUT + index)

    @property
    def out(self) -> Ref:
        """The batch's elements of the output."""
        if not self.single:
            return Ref(OUT)
        element = width(self.places.work.output_bits)
        return Ref(OUT, self.at * self.channels * element)

    def records(self) -> Records:
        """The text of all batches."""
        places, box = self.places, self.box
        values = [
            [
                places.out_row(row),
                *(
                    _row_of(operand, row) + box.channel_start * operand.element
                    for operand in places.inputs
                ),
            ]
            for row in self.rows
        ]
        return self.text.template().at(np.array(values, np.int64))


def _row_of(operand: Operand, row: int) -> int:
    """Address of a row; a broadcast operand has one row for all."""
    one = operand.like.row_stop - operand.like.row_start == 1
    return operand.row(operand.like.row_start - operand.shift[0] if one else row)


# -- elementwise ----------------------------------------------------------------------


def _broadcasts(work: SliceWork) -> bool:
    return len({_extent(shape) for shape in work.input_shapes}) > 1


def _extent(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(Tensor("x", shape).extent)


def _parts(machine: Machine, work: SliceWork) -> Batches:
    rows, columns, channels = work.output.shape
    if _broadcasts(work):
        return Batches(rows * columns, channels)
    return batches(machine, work, 4)


def _elementwise_needs(
    needs: Needs, work: SliceWork, numbers: OperationNumbers, machine: Machine
) -> None:
    attributes, kind = work.operation.attributes, work.operation.kind
    if not isinstance(attributes, ElementwiseAttributes):
        return
    if kind is OpKind.DIV:
        raise NotEmitted("division")
    for shape in work.input_shapes:
        if _extent(shape)[2] != _extent(work.output_shape)[2]:
            raise NotEmitted("an operand broadcast along channels")
    length = _parts(machine, work).length
    narrow, wide = work.input_bits, max(work.accumulator_bits, work.output_bits)
    exact = wide > work.output_bits
    summed = kind in (OpKind.ADD, OpKind.SUB)
    if summed or kind is OpKind.MUL:
        finish_needs(needs, work, numbers, length, None)
    if exact and (summed or kind is OpKind.MUL):
        needs.scratch["first"] = aligned(length * width(wide))
    if exact and summed:
        needs.scratch["second"] = aligned(length * width(wide))
        for index, shift in enumerate(numbers.input_shifts):
            needs.constants[f"align{index}"] = repeated(
                f"value:{shift}", shift, length, narrow
            )
    if kind is OpKind.MINIMUM:
        needs.scratch["first"] = aligned(length * width(narrow))
        needs.constants["zero"] = repeated("value:0", 0, length, narrow)
    if attributes.scalar is not None:
        value, bits = numbers.scalar, narrow
        if exact and summed:
            value, bits = value << numbers.input_shifts[1], wide
        needs.constants["scalar"] = repeated(f"value:{value}", value, length, bits)


def _emit_elementwise(places: Places) -> list[Records]:
    work = places.work
    parts = _parts(places.machine, work)
    frame, length = _Frame(places, parts), parts.length
    text, out = frame.text, frame.out
    kind, narrow, wide = work.operation.kind, work.input_bits, places.wide
    exact = wide > places.narrow
    held = references(places)
    first = frame.operand(0)
    second = held["scalar"] if "scalar" in held else frame.operand(1)
    attributes = work.operation.attributes
    swapped = isinstance(attributes, ElementwiseAttributes) and attributes.scalar_first
    if swapped and not (exact and kind in (OpKind.ADD, OpKind.SUB)):
        first, second = second, first
    if kind in (OpKind.MAXIMUM, OpKind.MINIMUM):
        text.widths(narrow, narrow)
        if kind is OpKind.MAXIMUM:
            text.vector(Opcode.VVMAX, out, first, second, length=length)
        else:
            over = known(places.scratch["first"])
            text.vector(Opcode.VVSUB, over, first, second, length=length)
            text.vector(Opcode.VVMAX, over, over, held["zero"], length=length)
            text.vector(Opcode.VVSUB, out, first, over, length=length)
        act = work.operation.activation
        apply_function(text, places, act, out, out, length, held)
        return [frame.records()]
    if not exact:
        opcode = {
            OpKind.ADD: Opcode.VVADD,
            OpKind.SUB: Opcode.VVSUB,
            OpKind.MUL: Opcode.VVMUL,
        }[kind]
        text.widths(narrow, narrow)
        text.vector(opcode, out, first, second, length=length)
        finish(text, places, out, out, length, held)
        return [frame.records()]
    total = known(places.scratch["first"])
    text.widths(narrow, wide)
    if kind is OpKind.MUL:
        text.vector(Opcode.VVMUL, total, first, second, length=length)
    else:
        text.vector(Opcode.VVSLL, total, first, held["align0"], length=length)
        if "scalar" not in held:
            aside = known(places.scratch["second"])
            text.vector(Opcode.VVSLL, aside, second, held["align1"], length=length)
            second = aside
        text.widths(wide, wide)
        opcode = Opcode.VVSUB if kind is OpKind.SUB else Opcode.VVADD
        if swapped and kind is OpKind.SUB:
            text.vector(opcode, total, second, total, length=length)
        else:
            text.vector(opcode, total, total, second, length=length)
    finish(text, places, total, out, length, held)
    return [frame.records()]


def _emit_scale(places: Places) -> list[Records]:
    work = places.work
    parts = batches(places.machine, work, 4)
    frame, length = _Frame(places, parts), parts.length
    total = known(places.scratch["sum"])
    held = references(places)
    frame.text.widths(work.input_bits, places.wide)
    frame.text.vector(
        Opcode.VVMUL, total, frame.operand(0), held["scale"], length=length
    )
    finish(frame.text, places, total, frame.out, length, held)
    return [frame.records()]


def _emit_activation(places: Places) -> list[Records]:
    work = places.work
    parts = batches(places.machine, work, 3)
    frame = _Frame(places, parts)
    attributes = work.operation.attributes
    frame.text.widths(work.input_bits, work.output_bits)
    if isinstance(attributes, Activation):
        source, out, held = frame.operand(0), frame.out, references(places)
        for activation in (attributes, work.operation.activation):
            apply_function(
                frame.text, places, activation, source, out, parts.length, held
            )
            source = out
    return [frame.records()]


def emit_function(places: Places, parts: Batches | None = None) -> list[Records]:
    """The fused function of an operation that otherwise only moves or compares."""
    activation = places.work.operation.activation
    if activation is None:
        return []
    parts = parts or batches(places.machine, places.work, 2)
    frame = _Frame(places, parts)
    out, held = frame.out, references(places)
    apply_function(frame.text, places, activation, out, out, parts.length, held)
    return [frame.records()]
