"""A plain interpreter of emitted programs, and small networks to emit.

One Python generator per core executes its records on byte memories.  It fails on reads
of bytes that nobody wrote and on accesses to another bank than the round's; padding
that an ``mvmul`` writes past its columns counts as unwritten.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.views import root_of
from raptor_cp.realization.realize import realize
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import evaluate as evaluate_placement
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.quantization import input_values, quantized
from raptor_cp.targets.pim.reference import evaluate
from raptor_cp.targets.pim.sidecar import softmax, table_function, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raptor_cp.graph.widths import Accumulators
    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.targets.pim.backend import Built
    from raptor_cp.targets.pim.codegen import CoreCode
    from raptor_cp.targets.pim.target import PimTarget

    Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

_SUMS = {Opcode.VVADD: np.add, Opcode.VVSUB: np.subtract, Opcode.VVMAX: np.maximum}
_WIDE = {
    Opcode.VVMUL: np.multiply,
    Opcode.VVSLL: np.left_shift,
    Opcode.VVSRA: np.right_shift,
}


class Memory:
    """Bytes, and which of them were written."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)
        self.written = np.zeros(size, np.bool_)

    def read(self, address: int, count: int, bits: int) -> Ints:
        """``count`` signed elements."""
        size = (bits + 7) // 8
        stop = address + count * size
        if address < 0 or not self.written[address:stop].all():
            raise AssertionError(f"read of bytes that nobody wrote: {address}..{stop}")
        padded = np.zeros((count, 8), np.uint8)
        padded[:, :size] = self.data[address:stop].reshape(count, size)
        return wrapped(padded.view(np.int64).reshape(-1), 8 * size)

    def write(self, address: int, values: Ints, bits: int) -> None:
        """Elements, cut to their bytes."""
        size = (bits + 7) // 8
        stop = address + values.size * size
        assert 0 <= address <= stop <= self.data.size, "write outside the memory"
        raw = np.ascontiguousarray(values, np.int64).view(np.uint8).reshape(-1, 8)
        self.data[address:stop] = raw[:, :size].reshape(-1)
        self.written[address:stop] = True


class World:
    """Global memory, signals and messages of all cores."""

    def __init__(
        self, built: Built, target: PimTarget, inputs: list[dict[str, Ints]]
    ) -> None:
        self.sidecar, self.inputs = built.sidecar, inputs
        self.array = target.machine.array
        self.memory = Memory(self.sidecar.global_bytes)
        self.signals: dict[tuple[int, int], int] = defaultdict(int)
        self.messages: dict[tuple[int, int], deque[Ints]] = defaultdict(deque)
        self.outputs: dict[tuple[int, str], Memory] = {}
        for region in self.sidecar.regions:
            if region.kind == "constant":
                values = self.sidecar.tensors[region.tensor].reshape(-1)
                self.memory.write(region.address, values, 8 * region.element_bytes)

    def load(self, round_: int, address: int, size: int) -> Ints:
        """Bytes that a core loads; inputs are those of the core's own round."""
        region, place = self._region(round_, address, size)
        if region.kind != "input":
            return self.memory.read(address, size, 8)
        held = Memory(region.size)
        values = self.inputs[round_][region.tensor].reshape(-1)
        held.write(0, values, 8 * region.element_bytes)
        return held.read(place, size, 8)

    def store(self, round_: int, address: int, values: Ints) -> None:
        """Bytes that a core stores; every byte of an output once a round."""
        region, place = self._region(round_, address, values.size)
        if region.kind != "output":
            self.memory.write(address, values, 8)
            return
        key = (round_, region.tensor)
        held = self.outputs.setdefault(key, Memory(region.size))
        assert not held.written[place : place + values.size].any(), "stored twice"
        held.write(place, values, 8)

    def _region(self, round_: int, address: int, size: int):  # type: ignore[no-untyped-def]
        for region in self.sidecar.regions:
            start = region.address + round_ % region.banks * region.stride
            if start <= address and address + size <= start + region.size:
                return region, address - start
        raise AssertionError(f"address {address} is in no region of round {round_}")


def run_core(code: CoreCode, world: World, rounds: int) -> Iterator[None]:
    """One core; yields wherever another one may go on."""
    sidecar = world.sidecar
    memory = Memory(code.local_bytes)
    for preload in code.preloads:
        bits = 8 * preload.element_bytes
        memory.write(preload.address, sidecar.preload_values(preload), bits)
    matrices = [sidecar.group_matrix(group) for group in code.groups]
    register = [0] * 32
    ibiw = obiw = 0
    records = code.emit(native=True).tolist()
    for round_ in range(rounds):
        for number, rd, rs1, _, second, one, two, three in records:
            opcode = Opcode(number)
            if opcode is Opcode.SLDI:
                register[rd] = second
            elif opcode is Opcode.SADDI:
                register[rd] = register[rs1] + second
            elif opcode is Opcode.SMULI:
                register[rd] = register[rs1] * second
            elif opcode is Opcode.SADD:
                register[rd] = register[rs1] + register[second]
            elif opcode is Opcode.SSUB:
                register[rd] = register[rs1] - register[second]
            elif opcode is Opcode.SMUL:
                register[rd] = register[rs1] * register[second]
            elif opcode is Opcode.SETBW:
                ibiw, obiw = one, two
            elif opcode is Opcode.MVMUL:
                group = code.groups[two]
                operand = memory.read(register[rs1], group.rows, ibiw)
                full = group.crossbars * world.array.columns_for(second)
                result = np.zeros(full, np.int64)
                result[: group.columns] = operand @ matrices[two]
                size = (obiw + 7) // 8
                memory.write(register[rd], result, obiw)
                end = register[rd] + full * size
                memory.written[register[rd] + group.columns * size : end] = False
            elif opcode in _SUMS:
                left = memory.read(register[rs1], three, ibiw)
                right = memory.read(register[second], three, ibiw)
                memory.write(register[rd], _SUMS[opcode](left, right), ibiw)
            elif opcode in _WIDE:
                left = memory.read(register[rs1], three, ibiw)
                right = memory.read(register[second], three, ibiw)
                memory.write(register[rd], _WIDE[opcode](left, right), obiw)
            elif opcode is Opcode.VVDMUL:
                left = memory.read(register[rs1], three, ibiw)
                right = memory.read(register[second], three, ibiw)
                product = np.array([left @ right])
                memory.write(register[rd], product, obiw)
            elif opcode in (Opcode.LD, Opcode.ST):
                yield
                if opcode is Opcode.LD:
                    values = world.load(round_, register[rs1 + 1], three)
                    memory.write(register[rd], values, 8)
                else:
                    values = memory.read(register[rs1], three, 8)
                    world.store(round_, register[rd + 1], values)
            elif opcode is Opcode.SYNC:
                world.signals[second, one] += 1
                yield
            elif opcode is Opcode.WAIT:
                while world.signals[code.core, one] < two:
                    yield
                world.signals[code.core, one] -= two
            elif opcode is Opcode.SEND:
                queue = world.messages[code.core, second]
                queue.append(memory.read(register[rd], three, 8))
                while queue:
                    yield
            elif opcode is Opcode.RECV:
                queue = world.messages[second, code.core]
                while not queue:
                    yield
                values = queue.popleft()
                assert values.size == three, "a message of another size"
                memory.write(register[rd], values, 8)
            elif opcode is Opcode.LLDI:
                memory.write(register[rd], np.full(three, second, np.int64), 8)
            else:
                bits = 8 if opcode is Opcode.LMV else ibiw
                values = memory.read(register[rs1], three, bits)
                memory.write(register[rd], *_unary(opcode, values, ibiw, obiw))
                if opcode in (Opcode.VRSU, Opcode.VRSL):
                    bound = np.minimum if opcode is Opcode.VRSU else np.maximum
                    memory.write(register[rd], bound(values, register[second]), obiw)


def _unary(opcode: Opcode, values: Ints, ibiw: int, obiw: int) -> tuple[Ints, int]:
    if opcode is Opcode.LMV:
        return values, 8
    if opcode is Opcode.VRELU:
        return np.maximum(values, 0), ibiw
    if opcode in (Opcode.VTANH, Opcode.VSIGM):
        return table_function(opcode.mnemonic, values, ibiw), obiw
    if opcode is Opcode.VSOFTMAX:
        return softmax(values, ibiw), ibiw
    if opcode in (Opcode.VRSU, Opcode.VRSL):
        return values[:0], obiw
    assert opcode is Opcode.VMV, opcode
    return values, ibiw


def check_program(
    built: Built,
    network: Network,
    target: PimTarget,
    accumulators: Accumulators,
    *,
    rounds: int = 3,
    seed: int = 0,
) -> None:
    """Assert that the program computes the network, under a random core order."""
    inputs = [
        {name: input_values(network, name, number) for name in network.inputs}
        for number in range(rounds)
    ]
    world = World(built, target, inputs)
    choose = random.Random(seed)
    live = [run_core(code, world, rounds) for code in built.cores]
    idle = 0
    while live:
        core = choose.choice(live)
        idle += 1
        for _ in range(choose.randint(1, 20)):
            try:
                next(core)
            except StopIteration:
                live.remove(core)
                idle = 0
                break
        assert idle < 500_000, "deadlock"
    numbers = quantized(network, accumulators)
    for round_ in range(rounds):
        wanted = evaluate(network, numbers, inputs[round_])
        for name in network.outputs:
            root = root_of(network, name)
            tensor = network.tensors[root]
            held = world.outputs[round_, root]
            found = held.read(0, tensor.elements, tensor.bits)
            np.testing.assert_array_equal(found, wanted[root].reshape(-1))


def placed_at_random(
    network: Network,
    target: PimTarget,
    choose: random.Random,
    stages: int,
    options: LoweringOptions | None = None,
) -> ExecutionPlan | None:
    """Groups cut into stages anywhere, tasks on any core that holds their weights."""
    lowered = lower_network(network, target.resources(), target.work_ns, options)
    if not isinstance(lowered, Lowering):
        return None
    graph, resources = lowered.graph, target.resources()
    groups = len(graph.operations)
    stages = min(stages, groups, resources.cores)
    cuts = sorted(choose.sample(range(1, groups), stages - 1)) if stages > 1 else []
    cores = list(range(resources.cores))
    choose.shuffle(cores)
    core_of = np.zeros(graph.task_count, np.int32)
    parts: list[Stage] = []
    for index in range(stages):
        own = sorted(cores[index::stages])
        first = ([0, *cuts])[index]
        last = ([*cuts, groups])[index]
        used: dict[int, set[int]] = {core: set() for core in own}
        for task, entry in enumerate(graph.tasks):
            if not first <= entry.operation < last:
                continue
            fitting = [
                core
                for core in own
                if sum(graph.weights[w].slots for w in used[core] | set(entry.weights))
                <= resources.slots_per_core
            ]
            if not fitting:
                return None
            core_of[task] = core = choose.choice(fitting)
            used[core] |= set(entry.weights)
        parts.append(Stage(index, tuple(range(first, last)), tuple(own)))
    problem = Problem(graph, target.costs(graph), resources)
    placement = Placement.in_task_order(core_of, resources.cores, tuple(parts))
    return realize(evaluate_placement(problem, placement))
