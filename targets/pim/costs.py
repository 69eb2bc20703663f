"""What a task costs on the PIM chip: the time of its instruction sequence.

The sequence (:func:`instruction_profile`) is what code generation emits for the
work; communication is not part of it.  Equal slices are priced once.  The docs page
"PIM costs" describes every sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.work import ExplicitWork, SliceWork, Work
from raptor_cp.network.attributes import (
    Activation,
    ConvAttributes,
    OpKind,
    PoolAttributes,
)
from raptor_cp.targets.pim.functions import NOT_EXPRESSIBLE
from raptor_cp.targets.pim.matrix_costs import Machine, emit_matrix
from raptor_cp.targets.pim.profile import Profile, ProfileBuilder, profile_ns
from raptor_cp.targets.pim.vector_costs import emit_vector
from raptor_cp.units import checked_ns
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Hashable

    from raptor_cp.network.operations import Operation

#: Kinds that only move data or whose slices differ at the borders: priced by place.
_PLACED = frozenset({OpKind.PAD, OpKind.GATHER, OpKind.CONCAT, OpKind.RESIZE})


def instruction_profile(work: SliceWork, machine: Machine) -> Profile:
    """The instructions of ``work``, communication apart, in a fixed order.

    Raises:
        MalformedInput: a weight wider than a crossbar row.
    """
    builder = ProfileBuilder()
    if work.operation.weight is not None:
        emit_matrix(machine, builder, work)
    else:
        emit_vector(machine, builder, work)
    return builder.finish()


def refusals(operation: Operation) -> tuple[str, ...]:
    """What the instruction set cannot express in ``operation``, one phrase each.

    Such an operation is scheduled with documented vector costs; code generation
    refuses it by name.
    """
    functions = []
    for activation in (operation.attributes, operation.activation):
        if (
            isinstance(activation, Activation)
            and activation.function in NOT_EXPRESSIBLE
        ):
            functions.append(activation.function.value)
    names = {
        OpKind.LAYER_NORM: "LayerNormalization",
        OpKind.LRN: "local response normalisation",
        OpKind.DIV: "division",
    }
    if operation.kind in names:
        functions.append(names[operation.kind])
    return tuple(functions)


class CostModel:
    """Prices work on one chip, equal slices once."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[Hashable, int] = {}
        # Keys hold the identity of operations: keep them alive.
        self._operations: dict[int, Operation] = {}

    def price(self, work: Work) -> int | Unavailable:
        """Execution time (ns) of one task, or why there is none.

        Raises:
            MalformedInput: the time is outside the supported range.
        """
        if isinstance(work, ExplicitWork):
            return max(work.execution_ns)
        if not isinstance(work, SliceWork):
            return Unavailable("command lists run on the pe target only")
        key = self._key(work)
        known = self._known.get(key)
        if known is None:
            profile = instruction_profile(work, self.machine)
            known = profile_ns(self.machine.timing, profile)
            checked_ns(known, "execution time", where=work.operation.name)
            self._known[key] = known
        return known

    def _key(self, work: SliceWork) -> Hashable:
        operation, box = work.operation, work.output
        self._operations[id(operation)] = operation
        attributes = operation.attributes
        place = box.row_start if operation.kind in _PLACED else -1
        if isinstance(attributes, ConvAttributes | PoolAttributes):
            stride, pad = attributes.strides[0], attributes.pads[0]
            reach = attributes.dilations[0] * (attributes.kernel[0] - 1)
            first = box.row_start * stride - pad
            last = (box.row_stop - 1) * stride - pad + reach
            if first < 0 or last >= work.input_shapes[0][2]:
                place = box.row_start
        return (
            id(operation),
            work.role,
            place,
            box.row_stop - box.row_start,
            box.column_stop - box.column_start,
            box.channel_start,
            box.channel_stop,
            work.row_tiles,
            work.partials,
            work.input_bits,
            work.output_bits,
            work.accumulator_bits,
        )
