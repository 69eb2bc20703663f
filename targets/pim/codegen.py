"""An execution plan as programs, core by core.

A core's text is laid out in *steps*: one for each item of its plan, one for each task
of a run.  First the storage of a core is planned (blocks, constants, scratch, lives in
steps) and placed in local memory; then the records are emitted, in the plan's order,
each item exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.graph.work import Box, SliceWork, TaskRole
from raptor_cp.realization.plan import Load, Receive, Run, Send, Signal, Store, Wait
from raptor_cp.targets.pim.allocation import Buffer, MemoryExhausted, allocate
from raptor_cp.targets.pim.codegen_storage import (
    Block,
    Demand,
    Source,
    addresses_in,
    copy_box,
    pieces_of,
    plan_blocks,
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
    ConstantVector,
    Needs,
    Operand,
    Places,
    width,
)
from raptor_cp.targets.pim.lowering_matrix import (
    array_groups,
    emit_matrix_task,
    matrix_needs,
)
from raptor_cp.targets.pim.lowering_moves import emit_move_task, move_needs
from raptor_cp.targets.pim.lowering_vector import (
    VECTOR_KINDS,
    emit_vector_task,
    vector_needs,
)
from raptor_cp.targets.pim.sidecar import ArrayGroup, OperationNumbers, Preload

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import CorePlan, ExecutionPlan, Item
    from raptor_cp.targets.pim.codegen_memory import GlobalMemory
    from raptor_cp.targets.pim.codegen_operands import OperandMap
    from raptor_cp.targets.pim.emission import Template
    from raptor_cp.targets.pim.matrix_costs import Machine
    from raptor_cp.targets.pim.quantization import Quantization
    from raptor_cp.targets.pim.sidecar import Region

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]


@dataclass(slots=True, eq=False)
class Common:
    """What the cores of one program share.

    Attributes:
        bounds: value of a bound -> the register that holds it on every core.
        maps: task -> its operands.
        partials: REDUCE task -> tensors of its partial sums, in order.
        made: task -> tensor that it produces.
        published: publication -> producing task.
        templates: instruction templates that tasks of several cores share.
    """

    plan: ExecutionPlan
    network: Network
    machine: Machine
    numbers: dict[str, OperationNumbers]
    quantization: Quantization
    memory: GlobalMemory
    loaded: bool
    bounds: dict[int, int]
    maps: dict[int, list[OperandMap]]
    partials: dict[int, list[str]]
    made: dict[int, str]
    templates: dict[Hashable, Template] = field(default_factory=dict)

    def work(self, task: int) -> SliceWork:
        """What a task does."""
        work = self.plan.schedule.problem.graph.tasks[task].work
        if not isinstance(work, SliceWork):
            raise InternalError("a task without an operation")
        return work

    def needs(self, task: int, inputs: list[Operand]) -> Needs:
        """Scratch and constants of a task.

        Raises:
            NotEmitted: there is no sequence for it.
        """
        work = self.work(task)
        name = work.operation.name
        numbers, held = self.numbers[name], self.quantization
        if work.operation.weight is not None:
            return matrix_needs(
                work,
                numbers,
                self.machine,
                held.biases.get(name),
                held.scales.get(name),
            )
        if work.operation.kind in VECTOR_KINDS:
            scale = None
            if name in held.scales and name in held.biases:
                scale = (held.scales[name], held.biases[name])
            slopes = held.scales.get(name)
            return vector_needs(work, numbers, self.machine, inputs, scale, slopes)
        return move_needs(work, numbers, self.machine, held.scales.get(name))

    def out_element(self, work: SliceWork) -> int:
        """Bytes of an element that a task produces."""
        if work.role is TaskRole.PARTIAL:
            return width(work.accumulator_bits)
        return width(work.output_bits)


@dataclass(frozen=True, slots=True)
class _Step:
    item: Item
    task: int = -1


@dataclass(slots=True, eq=False)
class _Raw:
    """Loaded biases of one task, before they are repeated along a vector."""

    task: int
    step: int
    size: int
    address: int = -1


class CoreCode:
    """Storage and instructions of one core.

    Raises:
        NotEmitted: a task has no sequence.
    """

    def __init__(self, common: Common, text: CorePlan) -> None:
        self.common, self.text = common, text
        self.core = text.core
        self.steps: list[_Step] = []
        for item in text.items:
            if isinstance(item, Run):
                self.steps.extend(_Step(item, task) for task in item.tasks)
            else:
                self.steps.append(_Step(item))
        self.graph = common.plan.schedule.problem.graph
        self.sources: dict[int, Source] = {}  #: by step
        self.own: dict[int, Source] = {}  #: by task
        self.raw: dict[int, _Raw] = {}  #: by task
        self.staging: dict[int, Block] = {}  #: packed payloads, by step
        self.inputs: dict[int, list[Operand]] = {}
        self.needs: dict[int, Needs] = {}
        self.groups: list[ArrayGroup] = []
        self.group_base: dict[int, int] = {}
        self.preloads: list[Preload] = []
        self.patterns: dict[str, Ints] = {}
        self.local_bytes = 0
        self._scratch: dict[tuple[int, str], int] = {}
        self._constants: dict[tuple[str, int], int] = {}
        self._plan_storage()
        self._plan_groups()

    # -- storage ------------------------------------------------------------------

    def _plan_storage(self) -> None:
        demands: list[Demand] = []
        for number, step in enumerate(self.steps):
            if step.task >= 0:
                demands += self._demands(number, step.task)
            source = self._source(number, step)
            if source is not None:
                self.sources[number] = source
                if step.task >= 0:
                    self.own[step.task] = source
        self.blocks = plan_blocks(demands, list(self.sources.values()))
        self._hold_constants()
        for number, step in enumerate(self.steps):
            if step.task >= 0:
                self.inputs[step.task] = self._operands(step.task)
                self.needs[step.task] = self.common.needs(
                    step.task, self.inputs[step.task]
                )
            elif isinstance(step.item, Send | Store):
                self._read_own(number, step.item)

    def _demands(self, number: int, task: int) -> list[Demand]:
        common = self.common
        work = common.work(task)
        if work.role is TaskRole.REDUCE:
            element = width(work.accumulator_bits)
            return [
                Demand(tensor, work.output, element, number)
                for tensor in common.partials[task]
            ]
        return [
            Demand(
                entry.root,
                box,
                width(common.network.tensors[entry.root].bits),
                number,
            )
            for entry in common.maps[task]
            for box in entry.boxes
        ]

    def _source(self, number: int, step: _Step) -> Source | None:
        graph, item = self.graph, step.item
        if step.task >= 0:
            work = self.common.work(step.task)
            element = self.common.out_element(work)
            return Source(self.common.made[step.task], work.output, element, number)
        if isinstance(item, Load) and item.transfer is not None:
            move = graph.transfers[item.transfer]
            made = graph.publications[move.publication]
            return self._moved(made.tensor, move.box, made.payload_bits, number)
        if isinstance(item, Load) and item.baseline is not None:
            access = graph.baseline[item.baseline]
            if access.box is None:
                self.raw[access.task] = _Raw(access.task, number, access.size)
                return None
            bits = self.common.network.tensors[access.tensor].bits
            return self._moved(access.tensor, access.box, bits, number)
        if isinstance(item, Receive):
            direct = self.common.plan.direct[item.direct]
            if direct.publication is None:
                raise InternalError("a direct transfer of no publication")
            made = graph.publications[direct.publication]
            return self._moved(made.tensor, direct.box, made.payload_bits, number)
        return None

    def _moved(
        self, tensor: str, box: tuple[int, ...] | None, bits: int, number: int
    ) -> Source:
        if box is None:
            raise InternalError(f"an opaque fragment of {tensor!r}")
        return Source(tensor, Box(*box), width(bits), number)

    def _hold_constants(self) -> None:
        """Resident constant tensors live for ever."""
        arrived = {source.tensor for source in self.sources.values()}
        for tensor in self.common.network.constants:
            if tensor not in arrived:
                for block in self.blocks.get(tensor, []):
                    block.first, block.last = 0, len(self.steps)

    def _operands(self, task: int) -> list[Operand]:
        common = self.common
        work = common.work(task)
        if work.role is TaskRole.REDUCE:
            return [
                Operand(self.blocks[tensor], work.output)
                for tensor in common.partials[task]
            ]
        return [
            Operand(
                self.blocks[entry.root] if entry.boxes else [],
                entry.hull,
                entry.shift,
                entry.flat,
                entry.extent,
            )
            for entry in common.maps[task]
        ]

    def _read_own(self, number: int, item: Send | Store) -> None:
        """Sends and stores read the block of the task that made the result."""
        source, box = self._own_fragment(item)
        block = source.place
        block.last = max(block.last, number)
        if isinstance(item, Send) and box.runs_within(block.box) > 1:
            self.staging[number] = Block(
                source.tensor, box, source.element, number, number
            )

    def _own_fragment(self, item: Send | Store) -> tuple[Source, Box]:
        if isinstance(item, Send):
            direct = self.common.plan.direct[item.direct]
            publication, box = direct.publication, direct.box
        elif item.publication is not None:
            publication = item.publication
            box = self.graph.publications[publication].box
        elif item.baseline is not None:
            access = self.graph.baseline[item.baseline]
            if access.box is None:
                raise InternalError("an output without a box")
            return self.own[access.task], Box(*access.box)
        else:
            raise InternalError("a store of no result")
        if publication is None or box is None:
            raise InternalError("an opaque result")
        return self.own[self.graph.publications[publication].producer], Box(*box)

    def _plan_groups(self) -> None:
        """Array groups of the weights that the core holds."""
        base: dict[int, int] = {}
        for step in self.steps:
            if step.task < 0:
                continue
            for weight in self.graph.task_weights(step.task).tolist():
                if weight not in base:
                    base[weight] = len(self.groups)
                    self.groups += array_groups(
                        self.common.work(step.task),
                        self.common.machine.array,
                        self.core,
                        len(self.groups),
                    )
                self.group_base[step.task] = base[weight]

    def place(self) -> MemoryExhausted | None:
        """Give every block, constant and scratch buffer its address."""
        end = len(self.steps)
        buffers: list[Buffer] = []
        held: dict[tuple[str, int], ConstantVector] = {}
        targets: list[Block | _Raw | tuple[int, str] | tuple[str, int]] = []

        def add(
            target: Block | _Raw | tuple[int, str] | tuple[str, int],
            name: str,
            size: int,
            first: int,
            last: int,
        ) -> None:
            targets.append(target)
            buffers.append(Buffer(f"core {self.core}: {name}", size, first, last))

        for number, step in enumerate(self.steps):
            if step.task < 0:
                continue
            needs = self.needs[step.task]
            operation = self.common.work(step.task).operation.name
            for name, size in needs.scratch.items():
                add((number, name), f"{operation} ({name})", size, number, number)
            for name, vector in needs.constants.items():
                if vector.loaded and step.task in self.raw:
                    size = vector.elements * vector.width
                    add((number, name), f"{operation} ({name})", size, number, number)
                    continue
                key = (vector.pattern, vector.width)
                known = held.get(key)
                if known is None or known.elements < vector.elements:
                    held[key] = vector
        for key, vector in held.items():
            add(key, key[0], vector.elements * vector.width, 0, end)
        for raw in self.raw.values():
            step_of = next(n for n, s in enumerate(self.steps) if s.task == raw.task)
            add(raw, "loaded constants", raw.size, raw.step, step_of)
        for tensor, blocks in self.blocks.items():
            for block in blocks:
                add(block, tensor, block.size, block.first, block.last)
        for block in self.staging.values():
            add(block, f"{block.tensor} (packed)", block.size, block.first, block.last)
        found = allocate(buffers, self.common.machine.local_memory_bytes)
        if isinstance(found, MemoryExhausted):
            return found
        for target, address in zip(targets, found.addresses, strict=True):
            if isinstance(target, Block | _Raw):
                target.address = address
            elif isinstance(target[0], int):
                self._scratch[target[0], str(target[1])] = address
            else:
                self._constants[str(target[0]), int(target[1])] = address
        self.local_bytes = found.used
        self._preload(held)
        return None

    def _preload(self, held: dict[tuple[str, int], ConstantVector]) -> None:
        for key, vector in held.items():
            self.patterns[vector.pattern] = vector.values
            self.preloads.append(
                Preload(
                    self.core,
                    self._constants[key],
                    vector.width,
                    vector.elements,
                    vector.pattern,
                )
            )
        for tensor in self.common.network.constants:
            values = self.common.quantization.tensors[tensor]
            for block in self.blocks.get(tensor, []):
                if block.last < len(self.steps):
                    continue
                box = block.box
                pattern = f"tensor:{tensor}:{box.bounds}"
                self.patterns[pattern] = values[
                    box.row_start : box.row_stop,
                    box.column_start : box.column_stop,
                    box.channel_start : box.channel_stop,
                ].reshape(-1)
                self.preloads.append(
                    Preload(
                        self.core, block.address, block.element, box.elements, pattern
                    )
                )

    # -- instructions ---------------------------------------------------------------

    def emit(self, *, native: bool = False) -> Records:
        """All records; ``native`` keeps ``vsoftmax``."""
        found = [self._entry()]
        for number, step in enumerate(self.steps):
            found += self._emit_step(number, step)
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

    def _emit_step(self, number: int, step: _Step) -> list[Records]:
        item = step.item
        if step.task >= 0:
            found = self._emit_task(number, step.task)
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
