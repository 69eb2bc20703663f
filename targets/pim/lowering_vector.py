"""Elementwise operations, pooling, reductions, functions.

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
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
)
from raptor_cp.network.operations import Tensor
from raptor_cp.targets.pim.emission import Ref, Text
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.lowering_common import (
    EMITTED_FUNCTIONS,
    ConstantVector,
    Needs,
    NotEmitted,
    Operand,
    Places,
    aligned,
    bias_vector,
    finish,
    finish_needs,
    function_steps,
    known,
    repeated,
    run_steps,
    width,
)
from raptor_cp.targets.pim.matrix_costs import Batches, Machine, batches
from raptor_cp.targets.pim.profile import ProfileBuilder, profile_ns

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
) -> Needs:
    """Scratch and constants of a task; ``scale``: factors and biases of a SCALE.

    Raises:
        NotEmitted: there is no sequence.
    """
    needs = Needs()
    kind, attributes = work.operation.kind, work.operation.attributes
    for function in (attributes, work.operation.activation):
        if (
            isinstance(function, Activation)
            and function.function not in EMITTED_FUNCTIONS
        ):
            raise NotEmitted(f"function {function.function.value}")
    wide, narrow = max(work.accumulator_bits, work.output_bits), work.input_bits
    if isinstance(attributes, ElementwiseAttributes):
        _elementwise_needs(needs, work, numbers, machine)
    elif kind is OpKind.SCALE and scale is not None:
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
        _pool_needs(needs, work, numbers, machine, inputs[0])
    elif isinstance(attributes, ReduceAttributes):
        _reduce_needs(needs, work, numbers, machine, inputs[0])
    elif kind is not OpKind.ACTIVATION:
        raise NotEmitted(kind.value)
    return needs


def emit_vector_task(places: Places) -> list[Records]:
    """All instructions of a task."""
    work = places.work
    kind, attributes = work.operation.kind, work.operation.attributes
    if isinstance(attributes, PoolAttributes):
        return _emit_pool(places, attributes)
    if isinstance(attributes, ReduceAttributes):
        return _emit_reduce(places, attributes)
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
            return Ref(FIRST_INPUT + index, self.at * operand.column_stride)
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
    if attributes.scalar_first and kind in (OpKind.SUB,):
        raise NotEmitted("a scalar first operand")
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
    held = {name: known(address) for name, address in places.constants.items()}
    first = frame.operand(0)
    second = held["scalar"] if "scalar" in held else frame.operand(1)
    if kind in (OpKind.MAXIMUM, OpKind.MINIMUM):
        text.widths(narrow, narrow)
        if kind is OpKind.MAXIMUM:
            text.vector(Opcode.VVMAX, out, first, second, length=length)
        else:
            over = known(places.scratch["first"])
            text.vector(Opcode.VVSUB, over, first, second, length=length)
            text.vector(Opcode.VVMAX, over, over, held["zero"], length=length)
            text.vector(Opcode.VVSUB, out, first, over, length=length)
        steps = function_steps(places, work.operation.activation)
        run_steps(text, steps, out, out, out, length)
        return [frame.records()]
    if not exact:
        opcode = {
            OpKind.ADD: Opcode.VVADD,
            OpKind.SUB: Opcode.VVSUB,
            OpKind.MUL: Opcode.VVMUL,
        }[kind]
        text.widths(narrow, narrow)
        text.vector(opcode, out, first, second, length=length)
        finish(text, places, out, out, length, None, None)
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
        text.vector(opcode, total, total, second, length=length)
    finish(text, places, total, out, length, held["bias"], held["shift"])
    return [frame.records()]


def _emit_scale(places: Places) -> list[Records]:
    work = places.work
    parts = batches(places.machine, work, 4)
    frame, length = _Frame(places, parts), parts.length
    total = known(places.scratch["sum"])
    held = {name: known(address) for name, address in places.constants.items()}
    frame.text.widths(work.input_bits, places.wide)
    frame.text.vector(
        Opcode.VVMUL, total, frame.operand(0), held["scale"], length=length
    )
    finish(
        frame.text,
        places,
        total,
        frame.out,
        length,
        held.get("bias"),
        held.get("shift"),
    )
    return [frame.records()]


def _emit_activation(places: Places) -> list[Records]:
    work = places.work
    parts = batches(places.machine, work, 3)
    frame = _Frame(places, parts)
    attributes = work.operation.attributes
    frame.text.widths(work.input_bits, work.output_bits)
    if isinstance(attributes, Activation):
        steps = function_steps(places, attributes)
        steps += function_steps(places, work.operation.activation)
        source, out = frame.operand(0), frame.out
        run_steps(frame.text, steps, source, out, out, parts.length)
    return [frame.records()]


def emit_function(places: Places, parts: Batches | None = None) -> list[Records]:
    """The fused function of an operation that otherwise only moves or compares."""
    activation = places.work.operation.activation
    if activation is None:
        return []
    parts = parts or batches(places.machine, places.work, 2)
    frame = _Frame(places, parts)
    frame.text.widths(places.narrow, places.narrow)
    steps = function_steps(places, activation)
    run_steps(frame.text, steps, frame.out, frame.out, frame.out, parts.length)
    return [frame.records()]


# -- pooling --------------------------------------------------------------------------


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
                [
                    self.attributes.kernel[0] * self.attributes.kernel[1]
                    if self.attributes.count_include_pad
                    else len(self.rows[row]) * len(window)
                    for window in self.columns
                ]
                for row in rows
            ]
        )
        values, index = np.unique(sizes, return_inverse=True)
        table = np.array([numbers.reciprocal(int(v)) for v in values], np.int64)
        flat = table[index.reshape(-1)]
        return np.repeat(flat, self.channels)

    def row_key(self, row: int) -> str:
        """Rows of equal windows share their reciprocals."""
        return "all" if self.attributes.count_include_pad else str(len(self.rows[row]))


def _pool_needs(
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


def _emit_pool(places: Places, attributes: PoolAttributes) -> list[Records]:
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
    return found + emit_function(places)


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
    scale_steps(text, places, (total, total, scale, out), parts.length, pool.bits)
    return text.records()


def scale_steps(
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


# -- reductions -----------------------------------------------------------------------


def _reduce_needs(
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


def _emit_reduce(places: Places, attributes: ReduceAttributes) -> list[Records]:
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
            scale_steps(
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
    return [text.records(), *emit_function(places)]
