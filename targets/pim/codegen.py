"""An execution plan as programs, core by core.

A core's text is laid out in *steps*: one for each item of its plan, one for each task
of a run.  First the storage of a core is planned (blocks, constants, scratch, lives in
steps) and placed in local memory; then the records are emitted, in the plan's order,
each item exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.graph.work import Box
from raptor_cp.realization.plan import Load, Receive, Send, Signal, Store, Wait
from raptor_cp.targets.pim.codegen_core import Common as Common
from raptor_cp.targets.pim.codegen_core import CoreStorage, Step
from raptor_cp.targets.pim.codegen_storage import (
    Block,
    addresses_in,
    copy_box,
    pieces_of,
)
from raptor_cp.targets.pim.codegen_transport import (
    BankCounter,
    load_text,
    replicate,
    send_text,
    signal_text,
    store_text,
)
from raptor_cp.targets.pim.emission import PERSISTENT, Text
from raptor_cp.targets.pim.isa import REGISTERS, Opcode
from raptor_cp.targets.pim.lowering_common import (
    NotEmitted,
    Places,
)
from raptor_cp.targets.pim.lowering_matrix import (
    emit_matrix_task,
)
from raptor_cp.targets.pim.lowering_moves import emit_move_task
from raptor_cp.targets.pim.lowering_vector import (
    VECTOR_KINDS,
    emit_vector_task,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.targets.pim.sidecar import Region

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]


class CoreCode(CoreStorage):
    """Storage and instructions of one core.

    Raises:
        NotEmitted: a task has no sequence.
    """

    def emit(self, *, native: bool = False) -> Records:
        """All records; ``native`` keeps ``vsoftmax``.

        Raises:
            NotEmitted: there is no sequence for storage as it lies.
        """
        found = [self._entry()]
        for number, step in enumerate(self.steps):
            try:
                found += self._emit_step(number, step)
            except NotEmitted as why:
                name = f"core {self.core}, step {number}"
                if step.task >= 0:
                    name = self.common.work(step.task).operation.name
                raise NotEmitted(f"{name}: {why}") from why
        records = np.concatenate(found)
        if not native:
            records = _without_softmax(records)
        return records

    def _entry(self) -> Records:
        """Widths, bounds and bank offsets: registers that the text relies on."""
        text = Text()
        text.widths(8, 8)
        for value, register in self.common.bounds.items():
            text.put(Opcode.SLDI, register, r2=value)
        self.banks = BankCounter(PERSISTENT + len(self.common.bounds), self._strides())
        self.banks.emit(text)
        return text.records()

    def _strides(self) -> dict[int, int]:
        """Bank count -> stride of the regions that this core uses."""
        found = {}
        for step in self.steps:
            if isinstance(step.item, Load | Store):
                region = self._region(step.item)
                if region.banks > 1:
                    found[region.banks] = region.stride
        return dict(sorted(found.items()))

    def _region(self, item: Load | Store) -> Region:
        memory, graph = self.common.memory, self.graph
        if item.baseline is not None:
            access = graph.baseline[item.baseline]
            return memory.baseline(BaselineKind(access.kind), access.tensor)
        if isinstance(item, Load) and item.transfer is not None:
            return memory.publication(graph.transfers[item.transfer].publication)
        if isinstance(item, Store) and item.publication is not None:
            return memory.publication(item.publication)
        raise InternalError("an access to no region")

    def _emit_step(self, number: int, step: Step) -> list[Records]:
        item = step.item
        if step.task >= 0:
            found = [
                view.text().records()
                for view in self.views.get(number, [])
                if view.runs > 1
            ]
            found += self._emit_task(number, step.task)
        elif isinstance(item, Load | Store):
            found = [self._emit_access(number, item)]
        elif isinstance(item, Send | Receive):
            found = self._emit_direct(number, item)
        elif isinstance(item, Signal | Wait):
            found = [signal_text(item).records()]
        else:
            raise InternalError("an item of no kind")
        source = self.sources.get(number)
        if source is not None:
            for block in source.copies:
                common = block.box.intersect(source.box)
                if common is not None:
                    found.append(copy_box(common, source.place, block).records())
        return found

    def _emit_task(self, number: int, task: int) -> list[Records]:
        common, needs = self.common, self.needs[task]
        work = common.work(task)
        found: list[Records] = []
        constants = {}
        for name, vector in needs.constants.items():
            if vector.loaded and task in self.raw:
                constants[name] = self._scratch[number, name]
                text = replicate(
                    self.raw[task].address,
                    constants[name],
                    vector.values.size * vector.width,
                    vector.elements * vector.width,
                )
                found.append(text.records())
            else:
                constants[name] = self._constants[vector.pattern, vector.width]
        places = Places(
            work,
            common.numbers[work.operation.name],
            common.machine,
            self.inputs[task],
            self.own[task].place,
            {name: self._scratch[number, name] for name in needs.scratch},
            constants,
            common.bounds,
            self.group_base.get(task, 0),
            common.templates,
        )
        if work.operation.weight is not None:
            return found + emit_matrix_task(places)
        if work.operation.kind in VECTOR_KINDS:
            return found + emit_vector_task(places)
        return found + emit_move_task(places)

    def _emit_access(self, number: int, item: Load | Store) -> Records:
        region = self._region(item)
        frame = Block(
            region.tensor, Box(*region.box), region.element_bytes, 0, 0, region.address
        )
        offset = self.banks.register(region.banks)
        if isinstance(item, Store):
            source, box = self._own_fragment(item)
            pieces = pieces_of(box, source.element, (frame.box, source.place.box))
            return store_text(
                addresses_in(source.place, pieces),
                addresses_in(frame, pieces),
                pieces.size,
                offset,
            ).records()
        arriving = self.sources.get(number)
        if arriving is None:  # biases of one operation: no tensor of the network
            access = self.graph.baseline[item.baseline or 0]
            raw = self.raw[access.task]
            first = self.common.work(access.task).output.channel_start
            return load_text(
                np.array([raw.address]),
                np.array([region.address + first * region.element_bytes]),
                raw.size,
                offset,
            ).records()
        box = arriving.box
        pieces = pieces_of(box, arriving.element, (frame.box, arriving.place.box))
        return load_text(
            addresses_in(arriving.place, pieces),
            addresses_in(frame, pieces),
            pieces.size,
            offset,
        ).records()

    def _emit_direct(self, number: int, item: Send | Receive) -> list[Records]:
        direct = self.common.plan.direct[item.direct]
        if isinstance(item, Receive):
            place = self.sources[number].place
            box = self.sources[number].box
            return [
                send_text(
                    Opcode.RECV,
                    place.at(box.row_start, box.column_start, box.channel_start),
                    box.elements * place.element,
                    direct.source,
                ).records()
            ]
        source, box = self._own_fragment(item)
        block, found = source.place, []
        packed = self.staging.get(number)
        if packed is not None:
            found.append(copy_box(box, block, packed).records())
            block = packed
        found.append(
            send_text(
                Opcode.SEND,
                block.at(box.row_start, box.column_start, box.channel_start),
                box.elements * block.element,
                direct.destination,
            ).records()
        )
        return found


def _without_softmax(records: Records) -> Records:
    """The simulator's copy: ``vsoftmax`` and its addresses left out."""
    where = np.flatnonzero(records["opcode"] == Opcode.VSOFTMAX)
    if not where.size:
        return records
    gone = np.concatenate([where, where - 1, where - 2])
    return np.delete(records, gone)


def registers_left(bounds: int, counters: int) -> bool:
    """True if bounds and bank counters fit beside the operand registers."""
    return PERSISTENT + bounds + counters <= REGISTERS
