"""Convolutions and fully connected layers: operands, products, requantisation.

Per output position the operand vector (im2col) where it does not lie in one piece,
then one ``mvmul`` per row tile; per batch the sums of the row tiles and ``finish``.
The instruction counts are those of :mod:`raptor_cp.targets.pim.matrix_costs`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.axes import split_range
from raptor_cp.graph.work import TaskRole
from raptor_cp.network.attributes import ConvAttributes, GemmAttributes
from raptor_cp.targets.pim.emission import Ref, Template, Text, joined
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.lowering_common import (
    Needs,
    NotEmitted,
    Places,
    aligned,
    bias_vector,
    finish,
    finish_needs,
    function_needs,
    width,
)
from raptor_cp.targets.pim.lowering_groups import Bundle, shape_of
from raptor_cp.targets.pim.matrix_costs import Machine, batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.work import SliceWork
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]

ACC, OPERAND, OUT = range(3)  #: symbols; named ones and input rows come behind
#: Constants and scratch that finishing uses, one symbol each.
FINISHING = ("bias", "shift", "product", "negative", "slope", "slope_shift")
ROWS = OUT + 1 + len(FINISHING)


def matrix_needs(
    work: SliceWork,
    numbers: OperationNumbers,
    machine: Machine,
    bias: Ints | None,
    slopes: Ints | None,
) -> Needs:
    """Scratch and constants of a task with a weight.

    Raises:
        NotEmitted: a kind of operation without a sequence.
    """
    if not isinstance(work.operation.attributes, ConvAttributes | GemmAttributes):
        raise NotEmitted(work.operation.kind.value)
    needs = Needs()
    if work.role is TaskRole.REDUCE:
        parts = batches(machine, work, 3)
        wide = max(work.accumulator_bits, work.output_bits)
        needs.scratch["sum"] = aligned(parts.length * width(wide))
    else:
        shape = shape_of(work, machine)
        parts = shape.parts
        needs.scratch["sum"] = shape.tiles * shape.accumulator
        if _gathers(work):
            needs.scratch["operand"] = shape.operand * len(shape.bundles)
    if work.role is not TaskRole.PARTIAL:
        vector = None
        if bias is not None:
            vector = bias_vector(bias, work, numbers, parts.length)
        finish_needs(needs, work, numbers, parts.length, vector)
        function_needs(needs, work, numbers, parts.length, slopes)
    return needs


def _named(places: Places) -> list[int]:
    """Values of the symbols of :data:`FINISHING`."""
    held = {**places.constants, **places.scratch}
    return [held.get(name, 0) for name in FINISHING]


def _finishing(places: Places) -> dict[str, Ref]:
    """Symbols of what the task has of :data:`FINISHING`."""
    held = {**places.constants, **places.scratch}
    return {
        name: Ref(OUT + 1 + index)
        for index, name in enumerate(FINISHING)
        if name in held
    }


def _gathers(work: SliceWork) -> bool:
    """Operand vectors have to be put together."""
    attributes = work.operation.attributes
    return isinstance(attributes, ConvAttributes) and not (
        attributes.kernel == (1, 1) and not any(attributes.pads)
    )


def emit_matrix_task(places: Places) -> list[Records]:
    """All instructions of a task with a weight."""
    if places.work.role is TaskRole.REDUCE:
        return _emit_sums(places)
    return _Products(places).emit()


class _Products:
    """A COMPUTE or PARTIAL task."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.work = work = places.work
        self.shape = shape_of(work, places.machine)
        self.operand = places.inputs[0]
        self.attributes = work.operation.attributes
        self.channels = work.output.shape[2]
        self.wide = width(work.accumulator_bits)
        partial = work.role is TaskRole.PARTIAL
        self.result = width(work.accumulator_bits if partial else work.output_bits)

    def emit(self) -> list[Records]:
        if self.shape.per_lane:
            return self._emit_lane()
        found = []
        rows = range(self.work.output.row_start, self.work.output.row_stop)
        for inside, group in groupby(rows, self._inside):
            members = list(group)
            template = self._cached(("row", inside), inside)
            values = np.array([self._values(row) for row in members], np.int64)
            found.append(template.at(values, self.places.group_base))
        return found

    def _emit_lane(self) -> list[Records]:
        """Products of all rows, then one batch."""
        box = self.work.output
        before = Text()
        before.widths(self.work.input_bits, self.work.accumulator_bits)
        found = [before.records()]
        rows = range(box.row_start, box.row_stop)
        for inside, group in groupby(rows, self._inside):
            members = list(group)
            template = self._cached(("products", inside), inside)
            values = np.array([self._values(row) for row in members], np.int64)
            passed = np.array(members, np.int64) - box.row_start
            values[:, ACC] += passed * box.shape[1] * self.channels * self.wide
            if self._straight:
                values[:, ACC] = [self.places.out_row(row) for row in members]
            found.append(template.at(values, self.places.group_base))
        after = Text()
        self._sums(after, 0)
        template = after.template()
        values = np.array([self._values(box.row_start)], np.int64)
        found.append(template.at(values))
        return found

    @property
    def _straight(self) -> bool:
        """Products are the task's output: nothing follows them."""
        return self.shape.tiles == 1 and self.shape.spill == 0 and self._chain_is_empty

    @property
    def _chain_is_empty(self) -> bool:
        if self.work.role is TaskRole.PARTIAL:
            return True
        exact = self.places.wide > self.places.narrow
        function = self.work.operation.activation is not None
        return not exact and not function and "bias" not in self.places.constants

    def _cached(
        self, kind: tuple[str, tuple[bool, ...]], inside: tuple[bool, ...]
    ) -> Template:
        box = self.work.output
        key = (
            kind,
            id(self.work.operation),
            box.bounds[2:],
            self.work.role,
            self.work.row_tiles,
            self.shape.parts,
            self.operand.column_stride,
            "bias" in self.places.constants,
        )
        found = self.places.templates.get(key)
        if found is None:
            found = self._row(inside, alone=kind[0] == "row")
            self.places.templates[key] = found
        return found

    def _inside(self, row: int) -> tuple[bool, ...]:
        """For each kernel row in use, whether it meets the input."""
        attributes = self.attributes
        if not isinstance(attributes, ConvAttributes):
            return (True,)
        size = self.work.input_shapes[0][2]
        return tuple(0 <= y < size for y in self._input_rows(row))

    def _input_rows(self, row: int) -> list[int]:
        attributes = self.attributes
        if not isinstance(attributes, ConvAttributes):
            return [row]
        first = row * attributes.strides[0] - attributes.pads[0]
        return [
            first + ky * attributes.dilations[0] for ky in range(*self._kernel_rows)
        ]

    @property
    def _kernel_rows(self) -> tuple[int, int]:
        attributes = self.attributes
        if not isinstance(attributes, ConvAttributes):
            return (0, 1)
        depth = self.work.input_shapes[0][1] // attributes.groups
        return split_range(self.shape.used, (*attributes.kernel, depth))[0]

    def _values(self, row: int) -> list[int]:
        places = self.places
        inputs = [
            self.operand.row(y) if inside else 0
            for y, inside in zip(self._input_rows(row), self._inside(row), strict=True)
        ]
        return [
            places.scratch["sum"],
            places.scratch.get("operand", 0),
            places.out_row(row),
            *_named(places),
            *inputs,
        ]

    def _row(self, inside: tuple[bool, ...], *, alone: bool) -> Template:
        """One output row; ``alone``: with its own batches."""
        columns = self.work.output.shape[1]
        length = self.channels
        per_row = alone and self.shape.parts.length != length
        before, body, after = Text(), Text(columns), Text()
        if alone and (per_row or columns == 1):
            before.widths(self.work.input_bits, self.work.accumulator_bits)
        self._pad_rows(before, inside)
        at: Ints = np.arange(columns, dtype=np.int64)
        if alone and not per_row and columns > 1:
            body.widths(self.work.input_bits, self.work.accumulator_bits)
        self._position(body, inside, at, spread=per_row or not alone or columns == 1)
        if alone and not per_row and columns > 1:
            self._sums(body, at * length * self.result)
        elif alone:
            self._sums(after, 0)
        return joined([before.template(), body.template(), after.template()])

    def _position(
        self, text: Text, inside: tuple[bool, ...], at: Ints, *, spread: bool
    ) -> None:
        """Operands and products of a position; ``spread``: each has its own sums."""
        work, shape = self.work, self.shape
        element = width(work.input_bits)
        step = self.channels * self.wide if spread or self._straight else 0
        weight = work.operation.weight
        bits = 0 if weight is None else weight.bits
        for number, bundle in enumerate(shape.bundles):
            if _gathers(work):
                self._gather(text, number, bundle, inside, at)
            for tile in range(shape.tiles):
                place = tile * shape.grid.array_rows
                if _gathers(work):
                    many = bundle.groups if shape.grid.bundle_groups > 1 else 1
                    source = Ref(
                        OPERAND, number * shape.operand + place * many * element
                    )
                else:
                    source = self._in_place(bundle, at).plus(place * element)
                own = (bundle.channel_start - work.output.channel_start) * self.wide
                target = OUT if self._straight and not self.shape.per_lane else ACC
                text.product(
                    Ref(target, at * step + own + tile * shape.accumulator),
                    source,
                    number * shape.tiles + tile,
                    bits,
                )

    def _in_place(self, bundle: Bundle, at: Ints) -> Ref:
        """The operand where it was stored."""
        attributes, element = self.attributes, width(self.work.input_bits)
        if not isinstance(attributes, ConvAttributes):
            return Ref(ROWS, self.shape.used[0] * element)
        depth = self.work.input_shapes[0][1] // attributes.groups
        channel = bundle.group_start * depth + self.shape.used[0]
        stride = attributes.strides[1] * self.operand.column_stride
        return Ref(ROWS, at * stride + channel * element)

    def _kernel_row(self, ky: int, groups: int) -> tuple[int, int]:
        """Elements [start, stop) of a kernel row that are used, of a bundle."""
        attributes = self.attributes
        if not isinstance(attributes, ConvAttributes):
            raise InternalError("a kernel row of no convolution")
        in_row = attributes.kernel[1] * (
            self.work.input_shapes[0][1] // attributes.groups
        )
        start = max(self.shape.used[0] - ky * in_row, 0)
        stop = min(self.shape.used[1] - ky * in_row, in_row)
        return start * groups, stop * groups

    def _place_of(self, ky: int, groups: int) -> int:
        """Bytes from the operand's start to a kernel row's first used element."""
        total = 0
        for other in range(self._kernel_rows[0], ky):
            start, stop = self._kernel_row(other, groups)
            total += stop - start
        return total * width(self.work.input_bits)

    def _pad_rows(self, text: Text, inside: tuple[bool, ...]) -> None:
        """Kernel rows that are padding for the whole output row."""
        if not _gathers(self.work):
            return
        element = width(self.work.input_bits)
        for ky, present in zip(range(*self._kernel_rows), inside, strict=True):
            if present:
                continue
            for number, bundle in enumerate(self.shape.bundles):
                start, stop = self._kernel_row(ky, bundle.groups)
                place = number * self.shape.operand + self._place_of(ky, bundle.groups)
                text.fill(Ref(OPERAND, place), (stop - start) * element)

    def _gather(
        self,
        text: Text,
        number: int,
        bundle: Bundle,
        inside: tuple[bool, ...],
        at: Ints,
    ) -> None:
        """im2col of one bundle: padding left, copies, padding right."""
        attributes = self.attributes
        if not isinstance(attributes, ConvAttributes):
            return
        element = width(self.work.input_bits)
        size = self.work.input_shapes[0][3]
        taps, stride = attributes.kernel[1], attributes.strides[1]
        dilation = attributes.dilations[1]
        one = self.work.input_shapes[0][1] // attributes.groups
        depth = one * bundle.groups
        separate = attributes.groups > 1 or dilation > 1
        first = at * stride - attributes.pads[1]
        reach = first[:, None] + np.arange(taps)[None, :] * dilation
        left = (reach < 0).sum(axis=1) * depth
        right = (taps - (reach >= size).sum(axis=1)) * depth
        for index, ky in enumerate(range(*self._kernel_rows)):
            if not inside[index]:
                continue
            start, stop = self._kernel_row(ky, bundle.groups)
            low = np.maximum(start, left)
            high = np.minimum(stop, right)
            nothing = low >= high
            place = number * self.shape.operand + self._place_of(ky, bundle.groups)
            self._fill(text, place, nothing, np.full_like(low, stop - start))
            some = ~nothing
            self._fill(text, place, some & (low > start), low - start)
            after = place + (high - start) * element
            self._fill(text, after, some & (stop > high), stop - high)
            spans = [(low, high)]
            if separate:
                spans = [
                    (np.maximum(low, t * depth), np.minimum(high, (t + 1) * depth))
                    for t in range(taps)
                ]
            for begin, end in spans:
                tap, channel = begin // depth, begin % depth
                column = (first + tap * dilation) * self.operand.column_stride
                channel = channel + bundle.group_start * one
                text.mask = some & (begin < end)
                text.copy(
                    Ref(OPERAND, place + (begin - start) * element),
                    Ref(ROWS + index, column + channel * element),
                    (end - begin) * element,
                )
                text.mask = None

    def _fill(
        self, text: Text, place: int | Ints, mask: NDArray[np.bool_], length: Ints
    ) -> None:
        if mask.any():
            text.mask = mask
            text.fill(Ref(OPERAND, place), length * width(self.work.input_bits))
            text.mask = None

    def _sums(self, text: Text, out_offset: int | Ints) -> None:
        """Sums of the row tiles, then the finished elements of a batch."""
        work, shape, length = self.work, self.shape, self.shape.parts.length
        bits = work.accumulator_bits
        text.widths(bits, bits)
        total, out = Ref(ACC), Ref(OUT, out_offset)
        partial = work.role is TaskRole.PARTIAL
        for tile in range(1, shape.tiles):
            last = tile == shape.tiles - 1 and self._chain_is_empty
            other = Ref(ACC, tile * shape.accumulator)
            target = out if last else total
            text.vector(Opcode.VVADD, target, total, other, length=length)
        if self._chain_is_empty:
            if shape.tiles == 1 and not self._straight:
                text.copy(out, total, length * self.result)
            return
        if not partial:
            finish(text, self.places, total, out, length, _finishing(self.places))


def _emit_sums(places: Places) -> list[Records]:
    """A REDUCE task: partial sums of all pieces, then finished elements."""
    work, machine = places.work, places.machine
    parts = batches(machine, work, 3)
    box = work.output
    bits = places.wide
    _, columns, channels = box.shape
    step = channels * width(bits)
    text = Text(columns if parts.length == channels and columns > 1 else 1)
    at: int | Ints = 0
    if text.count > 1:
        at = np.arange(columns, dtype=np.int64)
    total, out = Ref(ACC), Ref(OUT, at * channels * width(work.output_bits))
    text.widths(bits, bits)
    held = places.constants
    finishing = (
        places.wide > places.narrow
        or "bias" in held
        or work.operation.activation is not None
    )
    for number in range(1, work.partials):
        first = Ref(ROWS, at * step) if number == 1 else total
        target = out if number == work.partials - 1 and not finishing else total
        other = Ref(ROWS + number, at * step)
        text.vector(Opcode.VVADD, target, first, other, length=parts.length)
    finish(text, places, total, out, parts.length, _finishing(places))
    rows = [box.row_start]
    if parts.count > 1:
        rows = list(range(box.row_start, box.row_stop))
    for operand in places.inputs:
        if not operand.dense_rows((box.row_start, box.row_stop), columns, channels):
            raise NotEmitted("partial sums that do not lie in one piece")
    values = np.array(
        [
            [
                places.scratch["sum"],
                0,
                places.out_row(row),
                *_named(places),
                *(
                    operand.row(row) + box.channel_start * operand.element
                    for operand in places.inputs
                ),
            ]
            for row in rows
        ],
        np.int64,
    )
    return [text.template().at(values)]
