"""The backend: a realized schedule as a program, or why there is none.

* :class:`Built`: every core has its place in memory; records are made while they are
  written, one core at a time.
* :class:`Refused`: the instruction set (or code generation) cannot express something;
  the schedule stands, any other candidate would be refused as well.
* :class:`Rejected`: an address space is exhausted by this candidate; another one may
  fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.views import is_runtime_free
from raptor_cp.graph.widths import Accumulators
from raptor_cp.graph.work import SliceWork, TaskRole
from raptor_cp.network.attributes import (
    OpKind,
)
from raptor_cp.targets.pim.allocation import MemoryExhausted
from raptor_cp.targets.pim.artifact import (
    Program,
    ProgramWriter,
    make_program,
    read_program,
)
from raptor_cp.targets.pim.codegen import Common, CoreCode, registers_left
from raptor_cp.targets.pim.codegen_memory import ReadersApart, plan_memory
from raptor_cp.targets.pim.codegen_operands import operand_maps
from raptor_cp.targets.pim.costs import refusals
from raptor_cp.targets.pim.emission import PERSISTENT
from raptor_cp.targets.pim.lowering_common import NotEmitted
from raptor_cp.targets.pim.quantization import quantized
from raptor_cp.targets.pim.sidecar import (
    HOST_CONTRACT,
    HOST_CONTRACT_ALONE,
    Sidecar,
    network_digest,
    write_sidecar,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.targets.pim.target import PimTarget

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]

#: Folder, inside the program's, of the native program where it is another one.
NATIVE = "native"


@dataclass(frozen=True, slots=True)
class Refused:
    """What cannot be expressed, one phrase each, with the operation's name."""

    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        """One sentence."""
        return "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class Rejected:
    """This candidate does not fit; ``core`` is None for the global memory."""

    reason: str
    core: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A program that can be written.

    Attributes:
        sidecar: weights, numbers, addresses, host contract.
        cores: storage and text of the active cores, ascending.
        core_count: cores of the chip.
    """

    sidecar: Sidecar
    cores: tuple[CoreCode, ...]
    core_count: int

    def array_groups(self, code: CoreCode) -> Ints:
        """Crossbars of each array group of a core."""
        return np.array([group.crossbars for group in code.groups], np.int64)

    def records(self, *, native: bool = False) -> Iterator[tuple[int, Ints, Records]]:
        """(core, crossbars of its array groups, records) of every active core."""
        for code in self.cores:
            yield code.core, self.array_groups(code), code.emit(native=native)

    def program(self, *, native: bool = False) -> Program:
        """The checked program in memory.

        Raises:
            MalformedInput: an emitted program does not pass its own checks (a bug).
        """
        streams = {
            core: (groups, records)
            for core, groups, records in self.records(native=native)
        }
        return make_program(streams, self.core_count, self.sidecar.network)

    def write(self, folder: Path) -> Program:
        """Write the program and its sidecar; returns it as read and checked.

        The simulator's copy is written into ``folder``; where the network has
        softmax, the native program stands in ``folder/native``.

        Raises:
            OSError: the folder cannot be written.
        """
        self._write(folder, native=False)
        write_sidecar(self.sidecar, folder)
        if self.sidecar.host_operations:
            self._write(folder / NATIVE, native=True)
        return read_program(folder)

    def _write(self, folder: Path, *, native: bool) -> None:
        writer = ProgramWriter(folder, self.core_count)
        for core, groups, records in self.records(native=native):
            writer.write_core(core, groups, records)
        writer.close()


def build_program(
    plan: ExecutionPlan,
    target: PimTarget,
    network: Network | None,
    *,
    accumulators: Accumulators = Accumulators.EXACT,
    constants_resident: bool = True,
    seed: int = 0,
) -> Built | Refused | Rejected:
    """Generate code for a realized schedule.

    Args:
        plan: what every core does; its checks have passed.
        target: the chip.
        network: the network the plan's graph was lowered from; None for explicit
            tasks, which have no instructions.
        accumulators, constants_resident: as the graph was lowered.
        seed: of the weights.
    """
    if network is None:
        return Refused(("explicit tasks have no instructions",))
    reasons = _refusals(plan, network, constants_resident=constants_resident)
    if reasons:
        return Refused(reasons)
    graph = plan.schedule.problem.graph
    memory = plan_memory(plan, network)
    if isinstance(memory, MemoryExhausted | ReadersApart):
        return Rejected(memory.reason, None)
    quantization = quantized(network, accumulators, seed=seed)
    numbers = {entry.name: entry for entry in quantization.operations}
    bounds: dict[int, int] = {}
    for entry in quantization.operations:
        widest = (1 << (entry.input_bits - 1)) - 1
        top = (1 << (entry.output_bits - 1)) - 1
        for value in (entry.lower, entry.upper, widest, top):
            bounds.setdefault(value, PERSISTENT + len(bounds))
    counters = 2 * max(region.banks for region in memory.regions).bit_length() + 2
    if not registers_left(len(bounds), counters):
        return Refused(("more bounds of elements than registers",))
    partials: dict[int, list[str]] = {}
    made: dict[int, str] = {}
    for publication in graph.publications:
        made[publication.producer] = publication.tensor
    for move in graph.transfers:
        names = partials.setdefault(move.consumer, [])
        tensor = graph.publications[move.publication].tensor
        if tensor not in names:
            names.append(tensor)
    maps = {}
    failed: dict[str, None] = {}
    for index, task in enumerate(graph.tasks):
        work = task.work
        if not isinstance(work, SliceWork):
            return Refused(("explicit tasks have no instructions",))
        if work.role is not TaskRole.PARTIAL:
            made[index] = work.operation.output
        try:
            if work.role is not TaskRole.REDUCE:
                maps[index] = operand_maps(network, work, target.machine.array)
        except NotEmitted as why:
            failed[f"{work.operation.name}: {why}"] = None
    if failed:
        return Refused(tuple(failed))
    common = Common(
        plan,
        network,
        target.machine,
        numbers,
        quantization,
        memory,
        not constants_resident,
        bounds,
        maps,
        partials,
        made,
    )
    cores = []
    for text in plan.cores:
        try:
            code = CoreCode(common, text)
        except NotEmitted as why:
            return Refused((str(why),))
        exhausted = code.place()
        if exhausted is not None:
            return Rejected(exhausted.reason, text.core)
        cores.append(code)
    sidecar = _sidecar(common, cores, accumulators, plan)
    return Built(sidecar, tuple(cores), plan.schedule.problem.resources.cores)


def _refusals(
    plan: ExecutionPlan, network: Network, *, constants_resident: bool
) -> tuple[str, ...]:
    """What is known without planning storage."""
    found: dict[str, None] = {}
    for operation in network.operations:
        name = operation.name
        for what in refusals(operation):
            found[f"{name}: {what}"] = None
        if is_runtime_free(operation):
            continue
        names = (*operation.inputs, operation.output)
        if min(network.tensors[tensor].bits for tensor in names) < 8:
            found[f"{name}: sub-byte storage is not addressable"] = None
        if max(network.tensors[tensor].bits for tensor in names) > 31:
            found[f"{name}: elements of more than 31 bits"] = None
        if not constants_resident and operation.vector_parameters:
            found[f"{name}: factors loaded every inference"] = None
    for store in (item for text in plan.cores for item in text.items):
        if getattr(store, "consumer", None) is not None:
            found["a scalar projection"] = None
        if getattr(store, "edge", None) is not None:
            found["explicit edges carry no tensor"] = None
    return tuple(found)


def _sidecar(
    common: Common,
    cores: list[CoreCode],
    accumulators: Accumulators,
    plan: ExecutionPlan,
) -> Sidecar:
    network, held = common.network, common.quantization
    patterns: dict[str, Ints] = {}
    for code in cores:
        patterns.update(code.patterns)
    tensors = dict(held.tensors)
    for region in common.memory.regions:
        if region.kind == "constant" and region.tensor not in tensors:
            name = region.tensor.removesuffix("/constants")
            numbers = common.numbers[name]
            rounding = (1 << numbers.shift) >> 1 if numbers.exact else 0
            tensors[region.tensor] = (held.biases[name] + rounding).reshape(1, 1, -1)
    alone = not plan.schedule.placement.stages
    return Sidecar(
        network=network.name,
        digest=network_digest(network),
        accumulators=accumulators.value,
        constants="loaded" if common.loaded else "resident",
        core_count=plan.schedule.problem.resources.cores,
        operations=held.operations,
        groups=tuple(group for code in cores for group in code.groups),
        regions=common.memory.regions,
        preloads=tuple(preload for code in cores for preload in code.preloads),
        local_bytes=tuple((code.core, code.local_bytes) for code in cores),
        global_bytes=common.memory.size,
        host_operations=tuple(
            operation.name
            for operation in network.operations
            if operation.kind is OpKind.SOFTMAX
        ),
        host_contract=HOST_CONTRACT_ALONE if alone else HOST_CONTRACT,
        alone=alone,
        weights=held.weights,
        biases=held.biases,
        scales=held.scales,
        tensors=tensors,
        patterns=dict(sorted(patterns.items())),
    )
