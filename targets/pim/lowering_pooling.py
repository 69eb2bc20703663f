"""Pooling and reductions: windows of channel vectors, averages by reciprocals.

The instruction counts are those of :mod:`raptor_cp.targets.pim.vector_costs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.network.attributes import (
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
)
from raptor_cp.targets.pim.emission import Ref, Text
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.lowering_common import (
    ConstantVector,
    Needs,
    NotEmitted,
    Operand,
    Places,
    aligned,
    known,
    repeated,
    width,
)
from raptor_cp.targets.pim.matrix_costs import Machine, batches
from raptor_cp.targets.pim.profile import ProfileBuilder, profile_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.work import SliceWork
    from raptor_cp.targets.pim.sidecar import OperationNumbers

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]


def _windows(
    outputs: tuple[int, int], attributes: PoolAttributes, axis: int, size: int
) -> list[list[int]]:
    """Input positions inside the input, for each output position."""
    result = []
    for position in range(*outputs):
        first = position * attributes.strides[axis] - attributes.pads[axis]
        taps = (
            first + tap * attributes.dilations[axis]
            for tap in range(attributes.kernel[axis])
        )
        inside = [tap for tap in taps if 0 <= tap < size]
        if not inside:
            raise NotEmitted("a pooling window without an element")
        result.append(inside)
    return result


def _counted(
    outputs: tuple[int, int],
    attributes: PoolAttributes,
    axis: int,
    size: int,
    inside: list[list[int]],
) -> list[int]:
    """Elements along one axis that an average counts, for each output position.

    With ``count_include_pad`` the padding counts, but not what a last window reaches
    behind it (ceil mode).
    """
    if not attributes.count_include_pad:
        return [len(window) for window in inside]
    end = size + attributes.pads[axis + 2]
    result = []
    for position in range(*outputs):
        first = position * attributes.strides[axis] - attributes.pads[axis]
        taps = range(attributes.kernel[axis])
        step = attributes.dilations[axis]
        result.append(sum(first + tap * step < end for tap in taps))
    return result


class _Pool:
    """Windows of a pooling task, and which of the two orders is cheaper."""

    def __init__(self, work: SliceWork, machine: Machine) -> None:
        attributes = work.operation.attributes
        if not isinstance(attributes, PoolAttributes):
            raise NotEmitted("pooling")
        box = work.output
        _, _, rows, columns = work.input_shapes[0]
        self.attributes = attributes
        self.average = attributes.function is PoolFunction.AVERAGE
        self.rows = _windows((box.row_start, box.row_stop), attributes, 0, rows)
        self.columns = _windows(
            (box.column_start, box.column_stop), attributes, 1, columns
        )
        self.counted = (
            _counted((box.row_start, box.row_stop), attributes, 0, rows, self.rows),
            _counted(
                (box.column_start, box.column_stop),
                attributes,
                1,
                columns,
                self.columns,
            ),
        )
        wide = max(work.accumulator_bits, work.input_bits)
        self.bits = wide if self.average else work.input_bits
        self.input_columns, self.channels = columns, box.shape[2]
        self.first_row = min(rows[0] for rows in self.rows)
        self.stop_row = max(rows[-1] for rows in self.rows) + 1
        self.along = self._prefers_rows(machine)

    def _prefers_rows(self, machine: Machine) -> bool:
        """Whole rows first, then along the row; as the cost model decides."""
        opcode = Opcode.VVADD if self.average else Opcode.VVMAX
        taps = [len(window) for window in self.columns]
        costs = []
        for factor_rows in (True, False):
            builder = ProfileBuilder()
            for window in self.rows:
                high = len(window)
                counts = taps
                if factor_rows:
                    builder.vector(
                        opcode, high - 1, self.input_columns * self.channels, self.bits
                    )
                else:
                    counts = [high * tap for tap in taps]
                builder.vector(
                    opcode, sum(n - 1 for n in counts), self.channels, self.bits
                )
                builder.vector(Opcode.VMV, counts.count(1), self.channels, self.bits)
            costs.append(profile_ns(machine.timing, builder.finish()))
        return costs[0] <= costs[1]

    def scales(self, numbers: OperationNumbers, rows: list[int]) -> Ints:
        """[rows * columns * channels] reciprocals of the window sizes."""
        sizes = np.array(
            [
                [self.counted[0][row] * count for count in self.counted[1]]
                for row in rows
            ]
        )
        values, index = np.unique(sizes, return_inverse=True)
        table = np.array([numbers.reciprocal(int(v)) for v in values], np.int64)
        flat = table[index.reshape(-1)]
        return np.repeat(flat, self.channels)

    def row_key(self, row: int) -> str:
        """Rows of equal windows share their reciprocals."""
        return str(self.counted[0][row])


def pool_needs(
    needs: Needs,
    work: SliceWork,
    numbers: OperationNumbers,
    machine: Machine,
    operand: Operand,
) -> None:
    pool = _Pool(work, machine)
    parts = batches(machine, work, 2)
    rows, columns, channels = work.output.shape
    element = width(pool.bits)
    if pool.along:
        needs.scratch["line"] = aligned(operand.first.box.shape[1] * channels * element)
    if not pool.average:
        return
    if pool.bits != work.input_bits:
        needs.scratch["wide"] = aligned(
            (pool.stop_row - pool.first_row)
            * operand.first.box.shape[1]
            * channels
            * element
        )
    lane = parts.count == 1
    needs.scratch["sum"] = aligned((rows if lane else 1) * columns * channels * element)
    sets = [list(range(rows))] if lane else [[row] for row in range(rows)]
    for group in sets:
        key = "lane" if lane and rows > 1 else pool.row_key(group[0])
        values = pool.scales(numbers, group)
        if (values == values[0]).all():
            vector = repeated(
                f"value:{values[0]}", int(values[0]), values.size, pool.bits
            )
        else:
            box = work.output.bounds
            name = f"reciprocals:{numbers.name}:{box}:{key}"
            vector = ConstantVector(name, values, values.size, element)
        needs.constants[f"scale-{key}"] = vector
    needs.constants["shift"] = repeated(
        f"value:{numbers.shift}", numbers.shift, parts.length, pool.bits
    )


def emit_pool(places: Places, attributes: PoolAttributes) -> list[Records]:
    work, operand = places.work, places.inputs[0]
    pool = _Pool(work, places.machine)
    opcode = Opcode.VVADD if pool.average else Opcode.VVMAX
    box, element = work.output, width(pool.bits)
    _, columns, channels = box.shape
    held_columns = operand.first.box.shape[1]
    offset = box.channel_start * operand.element
    found: list[Records] = []
    widened = pool.average and pool.bits != work.input_bits
    stride = operand.column_stride
    if (widened or pool.along) and not operand.dense(held_columns, channels):
        raise NotEmitted("a pooled row that does not lie in one piece")
    first_column = operand.first.box.column_start - operand.shift[1]
    if widened:
        stride = channels * element
        text = Text()
        text.widths(work.input_bits, pool.bits)
        register = places.bounds[(1 << (work.input_bits - 1)) - 1]
        length = held_columns * channels
        text.vector(Opcode.VRSU, Ref(0), Ref(1), register, length=length)
        template = text.template()
        rows = range(pool.first_row, pool.stop_row)
        used = sorted({row for window in pool.rows for row in window})
        values = [
            [
                places.scratch["wide"] + (row - rows[0]) * length * element,
                operand.row(row) + offset + first_column * operand.column_stride,
            ]
            for row in used
        ]
        found.append(template.at(np.array(values, np.int64)))

    def source_row(row: int) -> int:
        """Address of column 0 of an input row."""
        if not widened:
            return operand.row(row) + offset
        place = (row - pool.first_row) * held_columns - first_column
        return places.scratch["wide"] + place * channels * element

    lane = batches(places.machine, work, 2).count == 1
    out_bits = pool.bits if pool.average else work.output_bits
    for number, window in enumerate(pool.rows):
        text = Text()
        if number == 0 or (pool.average and not lane):
            text.widths(pool.bits, pool.bits)
        lines = [source_row(row) for row in window]
        if pool.along and len(window) > 1:
            start = first_column * stride
            line = places.scratch["line"]
            text.vector(
                opcode,
                known(line),
                known(lines[0] + start),
                known(lines[1] + start),
                length=held_columns * channels,
            )
            for other in lines[2:]:
                text.vector(
                    opcode,
                    known(line),
                    known(line),
                    known(other + start),
                    length=held_columns * channels,
                )
            lines = [line - start]
        found.append(text.records())
        if pool.average:
            target = places.scratch["sum"]
            target += number * columns * channels * element if lane else 0
        else:
            target = places.out_row(box.row_start + number)
        found.append(
            _line(
                opcode,
                pool.columns,
                lines,
                stride,
                target,
                channels * width(out_bits),
                channels,
            )
        )
        if pool.average and not lane:
            found.append(_scaled(places, pool, number, 1))
    if pool.average and lane:
        found.append(_scaled(places, pool, 0, len(pool.rows)))
    return found


def _line(
    opcode: Opcode,
    windows: list[list[int]],
    lines: list[int],
    stride: int,
    target: int,
    step: int,
    channels: int,
) -> Records:
    """Combine the window of each output position of a row."""
    count = len(windows)
    text = Text(count)
    out = known(target + np.arange(count, dtype=np.int64) * step)
    sizes = np.array([len(window) * len(lines) for window in windows])
    sources = np.zeros((int(sizes.max()), count), np.int64)
    for index, window in enumerate(windows):
        found = [line + tap * stride for line in lines for tap in window]
        sources[: len(found), index] = found
    text.mask = sizes == 1
    if text.mask.any():
        text.vector(Opcode.VMV, out, known(sources[0]), length=channels)
    for number in range(1, len(sources)):
        text.mask = sizes > number
        first = known(sources[0]) if number == 1 else out
        text.vector(opcode, out, first, known(sources[number]), length=channels)
    text.mask = None
    return text.records()


def _scaled(places: Places, pool: _Pool, number: int, rows: int) -> Records:
    """Sums times reciprocals, shifted, narrowed: one batch, or a row of them."""
    work = places.work
    parts = batches(places.machine, work, 2)
    box = work.output
    _, columns, channels = box.shape
    single = parts.length == channels and columns > 1
    text = Text(columns if single else 1)
    at: int | Ints = 0
    if single:
        at = np.arange(columns, dtype=np.int64) * channels
    key = "lane" if rows > 1 else pool.row_key(number)
    total = known(places.scratch["sum"] + at * width(pool.bits))
    scale = known(places.constants[f"scale-{key}"] + at * width(pool.bits))
    out = known(places.out_row(box.row_start + number) + at * width(work.output_bits))
    _scale_steps(text, places, (total, total, scale, out), parts.length, pool.bits)
    return text.records()


def _scale_steps(
    text: Text,
    places: Places,
    refs: tuple[Ref, Ref, Ref, Ref],
    length: int,
    bits: int,
) -> None:
    """``vvmul``, ``vvsra``, and ``vrsu`` where sums are wider.

    ``refs``: sums, where to work, reciprocals, finished elements.
    """
    source, total, scale, out = refs
    shift = known(places.constants["shift"])
    narrow = places.work.output_bits
    text.widths(bits, bits)
    text.vector(Opcode.VVMUL, total, source, scale, length=length)
    wider = bits != narrow
    target = total if wider else out
    text.vector(Opcode.VVSRA, target, total, shift, length=length)
    if wider:
        text.widths(bits, narrow)
        register = places.bounds[places.numbers.upper]
        text.vector(Opcode.VRSU, out, total, register, length=length)


def reduce_needs(
    needs: Needs,
    work: SliceWork,
    numbers: OperationNumbers,
    machine: Machine,
    operand: Operand,
) -> None:
    attributes = work.operation.attributes
    if not isinstance(attributes, ReduceAttributes):
        return
    mean = attributes.function is ReduceFunction.MEAN
    if not mean and attributes.function is not ReduceFunction.MAX:
        raise NotEmitted(f"reduction {attributes.function.value}")
    like, channels = operand.like, work.output.shape[2]
    if like.shape[2] != channels:
        raise NotEmitted("a reduction along channels")
    if not operand.dense(like.shape[1], channels):
        raise NotEmitted("a reduced row that does not lie in one piece")
    wide = max(work.accumulator_bits, work.input_bits) if mean else work.input_bits
    parts = batches(machine, work, 2)
    rows, columns, _ = like.shape
    needs.scratch["sum"] = aligned(
        max(rows if wide != work.input_bits else 1, work.output.shape[0])
        * columns
        * channels
        * width(wide)
    )
    if mean:
        count = 1
        for axis in attributes.axes:
            count *= work.input_shapes[0][axis]
        value = numbers.reciprocal(count)
        needs.constants["scale"] = repeated(f"value:{value}", value, parts.length, wide)
        needs.constants["shift"] = repeated(
            f"value:{numbers.shift}", numbers.shift, parts.length, wide
        )


def emit_reduce(places: Places, attributes: ReduceAttributes) -> list[Records]:
    work, operand = places.work, places.inputs[0]
    mean = attributes.function is ReduceFunction.MEAN
    opcode = Opcode.VVADD if mean else Opcode.VVMAX
    bits = max(work.accumulator_bits, work.input_bits) if mean else work.input_bits
    rows, columns, channels = operand.like.shape
    out_rows, out_columns, _ = work.output.shape
    if out_rows not in (1, rows) or out_columns not in (1, columns):
        raise NotEmitted("a reduction that is cut along what it reduces")
    length, element = columns * channels, width(bits)
    start = operand.like.row_start - operand.shift[0]
    offset = work.output.channel_start * operand.element
    offset += (operand.like.column_start - operand.shift[1]) * operand.column_stride
    inputs = [operand.row(start + row) + offset for row in range(rows)]
    total, text = places.scratch["sum"], Text()
    lines = inputs
    if bits != work.input_bits:
        register = places.bounds[(1 << (work.input_bits - 1)) - 1]
        text.widths(work.input_bits, bits)
        lines = [total + row * length * element for row in range(rows)]
        for line, source in zip(lines, inputs, strict=True):
            text.vector(
                Opcode.VRSU, known(line), known(source), register, length=length
            )
    text.widths(bits, bits)
    if out_rows < rows:
        for row in range(1, rows):
            first = lines[0] if row == 1 else total
            text.vector(
                opcode, known(total), known(first), known(lines[row]), length=length
            )
        lines = [total]
    if out_columns < columns:
        for row, line in enumerate(lines):
            target = total + row * channels * element
            for column in range(1, columns):
                first = line if column == 1 else target
                other = line + column * channels * element
                text.vector(
                    opcode, known(target), known(first), known(other), length=channels
                )
        lines = [total + row * channels * element for row in range(len(lines))]
    out = places.out_row(work.output.row_start)
    if mean:
        parts = batches(places.machine, work, 2)
        for batch in range(parts.count):
            at = batch * parts.length
            _scale_steps(
                text,
                places,
                (
                    known(lines[0] + at * element),
                    known(total + at * element),
                    known(places.constants["scale"]),
                    known(out + at * width(work.output_bits)),
                ),
                parts.length,
                bits,
            )
    else:
        text.copy(known(out), known(lines[0]), work.output.elements * element)
    return [text.records()]
