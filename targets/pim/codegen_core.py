"""What one core holds: the steps of its text, and storage for all of them.

Storage is planned first (blocks, constants, scratch, lives in steps), then placed in
local memory as a whole; instructions come after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.graph.work import Box, SliceWork, TaskRole
from raptor_cp.realization.plan import Load, Receive, Run, Send, Store
from raptor_cp.targets.pim.allocation import Buffer, MemoryExhausted, allocate
from raptor_cp.targets.pim.codegen_storage import (
    Block,
    Demand,
    Source,
    View,
    gathered,
    plan_blocks,
)
from raptor_cp.targets.pim.lowering_common import (
    ConstantVector,
    Needs,
    NotEmitted,
    Operand,
    width,
)
from raptor_cp.targets.pim.lowering_groups import array_groups
from raptor_cp.targets.pim.lowering_matrix import (
    matrix_needs,
)
from raptor_cp.targets.pim.lowering_moves import move_needs
from raptor_cp.targets.pim.lowering_vector import (
    VECTOR_KINDS,
    vector_needs,
)
from raptor_cp.targets.pim.sidecar import ArrayGroup, OperationNumbers, Preload

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np
    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import CorePlan, ExecutionPlan, Item
    from raptor_cp.targets.pim.codegen_memory import GlobalMemory
    from raptor_cp.targets.pim.codegen_operands import OperandMap
    from raptor_cp.targets.pim.emission import Template
    from raptor_cp.targets.pim.matrix_costs import Machine
    from raptor_cp.targets.pim.quantization import Quantization

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
            # The factors of a SCALE are no slopes of the function behind it.
            slopes = None if scale is not None else held.scales.get(name)
            return vector_needs(work, numbers, self.machine, inputs, scale, slopes)
        return move_needs(work, numbers, self.machine, held.scales.get(name))

    def out_element(self, work: SliceWork) -> int:
        """Bytes of an element that a task produces."""
        if work.role is TaskRole.PARTIAL:
            return width(work.accumulator_bits)
        return width(work.output_bits)


@dataclass(frozen=True, slots=True)
class Step:
    """An item of the plan; of a run, one of its tasks (-1 for the other items)."""

    item: Item
    task: int = -1


@dataclass(slots=True, eq=False)
class RawConstants:
    """Loaded biases of one task, before they are repeated along a vector."""

    task: int
    step: int
    size: int
    address: int = -1


class CoreStorage:
    """Steps, blocks, constants, scratch and array groups of one core.

    Raises:
        NotEmitted: a task has no sequence.
    """

    def __init__(self, common: Common, text: CorePlan) -> None:
        self.common, self.text = common, text
        self.core = text.core
        self.steps: list[Step] = []
        for item in text.items:
            if isinstance(item, Run):
                self.steps.extend(Step(item, task) for task in item.tasks)
            else:
                self.steps.append(Step(item))
        self.graph = common.plan.schedule.problem.graph
        self.sources: dict[int, Source] = {}  #: by step
        self.own: dict[int, Source] = {}  #: by task
        self.raw: dict[int, RawConstants] = {}  #: by task
        self.staging: dict[int, Block] = {}  #: packed payloads, by step
        self.views: dict[int, list[View]] = {}  #: operands behind views, by step
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
        self.blocks, served = plan_blocks(demands, list(self.sources.values()))
        self._served: dict[tuple[int, int], list[Block]] = {}
        for demand, block in zip(demands, served, strict=True):
            own = self._served.setdefault((demand.task, demand.index), [])
            if block not in own:
                own.append(block)
        self._hold_constants()
        for number, step in enumerate(self.steps):
            if step.task >= 0:
                self.inputs[step.task] = self._operands(number, step.task)
                self.needs[step.task] = self._needs(step.task)
            elif isinstance(step.item, Send | Store):
                self._read_own(number, step.item)

    def _demands(self, number: int, task: int) -> list[Demand]:
        common = self.common
        work = common.work(task)
        if work.role is TaskRole.REDUCE:
            element = width(work.accumulator_bits)
            return [
                Demand(tensor, work.output, element, number, True, task, index)
                for index, tensor in enumerate(common.partials[task])
            ]
        return [
            Demand(
                entry.root,
                box,
                width(common.network.tensors[entry.root].bits),
                number,
                entry.rowwise,
                task,
                index,
            )
            for index, entry in enumerate(common.maps[task])
            for box in entry.boxes
        ]

    def _source(self, number: int, step: Step) -> Source | None:
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
                self.raw[access.task] = RawConstants(access.task, number, access.size)
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

    def _needs(self, task: int) -> Needs:
        try:
            return self.common.needs(task, self.inputs[task])
        except NotEmitted as why:
            name = self.common.work(task).operation.name
            raise NotEmitted(f"{name}: {why}") from why

    def _operands(self, number: int, task: int) -> list[Operand]:
        common = self.common
        work = common.work(task)
        if work.role is TaskRole.REDUCE:
            return [
                Operand(self._served[task, index], work.output)
                for index in range(len(common.partials[task]))
            ]
        found = []
        for index, entry in enumerate(common.maps[task]):
            blocks = self._served.get((task, index), [])
            if entry.places is None:
                found.append(Operand(blocks, entry.hull, entry.shift))
                continue
            view = gathered(entry, blocks[0], number)
            self.views.setdefault(number, []).append(view)
            found.append(Operand([view.block], entry.needed))
        return found

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
        targets: list[Block | RawConstants | tuple[int, str] | tuple[str, int]] = []

        def add(
            target: Block | RawConstants | tuple[int, str] | tuple[str, int],
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
        for views in self.views.values():
            for view in views:
                if view.runs > 1:
                    block = view.block
                    name = f"{block.tensor} (view)"
                    add(block, name, block.size, block.first, block.last)
        for block in self.staging.values():
            add(block, f"{block.tensor} (packed)", block.size, block.first, block.last)
        found = allocate(buffers, self.common.machine.local_memory_bytes)
        if isinstance(found, MemoryExhausted):
            return found
        for target, address in zip(targets, found.addresses, strict=True):
            if isinstance(target, Block | RawConstants):
                target.address = address
            elif isinstance(target[0], int):
                self._scratch[target[0], str(target[1])] = address
            else:
                self._constants[str(target[0]), int(target[1])] = address
        for views in self.views.values():
            for view in views:
                view.settle()
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
