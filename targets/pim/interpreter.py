"""Executes the programs of all cores on integers.

Every core runs its text for a number of rounds (generations).  Cores meet in
``send``/``recv`` (rendezvous), in ``sync``/``wait`` (counting event registers) and in
global memory; which core runs next is a seeded choice, so that a program whose result
depends on speed shows it.  Semantics: execution model, "Integer semantics".
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim import interpreter_kernel as kernel
from raptor_cp.targets.pim.interpreter_clocks import Clocks, signal_sources
from raptor_cp.targets.pim.interpreter_kernel import Fault, Stop
from raptor_cp.targets.pim.interpreter_memory import (
    FaultKind,
    GlobalMemory,
    ProgramFault,
)
from raptor_cp.targets.pim.isa import EVENT_REGISTERS, Opcode
from raptor_cp.targets.pim.sidecar import softmax, table_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.targets.pim.artifact import CoreProgram

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

_COLUMNS = ("opcode", "rd", "rs1", "r2_or_imm", "generic1", "generic2", "generic3")


class CoreOrder(StrEnum):
    """Which core runs next."""

    RANDOM = "random"  #: any that can, after each communication instruction
    GREEDY = "greedy"  #: the first of a permutation that can, as far as it can


@dataclass(frozen=True, slots=True, eq=False)
class GroupMatrix:
    """What an array group holds: ``weights`` [K, N].

    ``width``: columns of its crossbars; a product writes that many elements, of which
    those behind N are undefined.
    """

    weights: NDArray[np.signedinteger]
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class CoreImage:
    """One core before round 0.

    Attributes:
        program: its instructions.
        local_bytes: size of its local memory.
        groups: the array groups, by number.
        preloads: (address, bytes) of resident constants.
    """

    program: CoreProgram
    local_bytes: int
    groups: tuple[GroupMatrix, ...] = ()
    preloads: tuple[tuple[int, Bytes], ...] = ()


@dataclass(slots=True, eq=False)
class _Core:
    number: int
    text: NDArray[np.int32]
    state: Ints
    memory: Bytes
    written: Bytes
    groups: Ints
    weights: NDArray[np.signedinteger]
    generation: int = 0
    tokens: list[int] = field(default_factory=lambda: [0] * EVENT_REGISTERS)
    #: peer of the SEND or RECV, or register of the WAIT, that it stands at.
    blocked: tuple[Opcode, int] | None = None

    @property
    def row(self) -> NDArray[np.int32]:
        return np.asarray(self.text[int(self.state[kernel.PC])])

    def fault(self, kind: FaultKind, what: str) -> ProgramFault:
        instruction = int(self.state[kernel.PC])
        return ProgramFault(
            kind,
            what,
            core=self.number,
            generation=self.generation,
            instruction=instruction,
            mnemonic=Opcode(int(self.text[instruction, 0])).mnemonic,
        )


class Interpreter:
    """A chip that executes a program.

    Args:
        cores: images of the cores that have instructions.
        memory: global memory, constants in place.

    Raises:
        MalformedInput: a preload outside its core's memory, or fewer matrices than
            array groups.
    """

    def __init__(self, cores: Sequence[CoreImage], memory: GlobalMemory) -> None:
        self._memory = memory
        kind = _weight_kind(cores)
        self._cores = {image.program.core: _core(image, kind) for image in cores}
        longest = 8
        for core in self._cores.values():
            longest = max(longest, core.memory.size, int(core.groups.max(initial=0)))
        longest = min(longest, max(_longest(core) for core in self._cores.values()))
        self._buffers = tuple(np.zeros(longest, np.int64) for _ in range(3))
        signals = [
            (number, target, register)
            for number, core in self._cores.items()
            for target, register in _signals(core)
        ]
        self._clocks = Clocks(max(self._cores, default=0) + 1, signal_sources(signals))
        memory.clocks = self._clocks
        self._limit = 0
        #: instructions executed that other cores could see.
        self.events = 0

    def run(
        self,
        generations: int,
        order: CoreOrder = CoreOrder.RANDOM,
        seed: int = 0,
        *,
        alone: bool = False,
    ) -> None:
        """Execute rounds 0 to ``generations - 1`` of every core.

        Args:
            generations: rounds.
            order, seed: which core goes next.
            alone: no core begins a round before all have ended the one before.

        Raises:
            ProgramFault: at the first thing that is wrong.
        """
        queue = _queue(order, seed, list(self._cores))
        for limit in range(1 if alone else generations, generations + 1):
            self._limit = limit
            for number in self._cores:
                queue.add(number)
            while queue:
                core = self._cores[queue.take()]
                for woken in self._advance(core):
                    queue.add(woken)
            stuck = [c for c in self._cores.values() if c.generation < limit]
            if stuck:
                raise _deadlock(stuck)
        for core in self._cores.values():
            for register, count in enumerate(core.tokens):
                if count:
                    raise ProgramFault(
                        FaultKind.SIGNALS,
                        f"core {core.number}: {count} signals of event register "
                        f"{register} are left after {generations} rounds",
                    )

    # -- one core -----------------------------------------------------------------

    def _advance(self, core: _Core) -> list[int]:
        """Run up to and including one event; the cores that can go on then."""
        left, right, result = self._buffers
        while core.generation < self._limit:
            stop = kernel.run_core(
                core.text,
                core.state,
                core.memory,
                core.written,
                core.groups,
                core.weights,
                left,
                right,
                result,
            )
            if stop == Stop.END:
                core.generation += 1
                core.state[kernel.PC] = 0
                continue
            if stop == Stop.FAULT:
                raise _kernel_fault(core)
            row = core.row
            opcode = Opcode(int(row[kernel.OPCODE]))
            if opcode in (Opcode.VSIGM, Opcode.VTANH, Opcode.VSOFTMAX):
                self._function(core, opcode, row)
                core.state[kernel.PC] += 1
                continue
            self.events += 1
            return self._event(core, opcode, row)
        return []

    def _event(self, core: _Core, opcode: Opcode, row: NDArray[np.int32]) -> list[int]:
        own = core.number
        if opcode is Opcode.SYNC:
            peer = self._cores[int(row[kernel.IMMEDIATE])]
            register = int(row[kernel.FIRST])
            if not self._clocks.signal(own, peer.number, register, core.generation):
                raise core.fault(
                    FaultKind.RACE,
                    f"event register {register} of core {peer.number} has several "
                    "sources, and nothing orders this signal behind the wait of the "
                    "round before",
                )
            peer.tokens[register] += 1
            core.state[kernel.PC] += 1
            if peer.blocked == (Opcode.WAIT, register) and _satisfied(peer):
                return [own, self._pass(peer)]
            return [own]
        if opcode is Opcode.WAIT:
            if _satisfied(core):
                return [self._pass(core)]
            core.blocked = (Opcode.WAIT, int(row[kernel.FIRST]))
            return []
        if opcode in (Opcode.SEND, Opcode.RECV):
            return self._meet(core, opcode, row)
        if opcode is Opcode.LD:
            self._load(core, row)
        else:
            self._store(core, row)
        core.state[kernel.PC] += 1
        return [own]

    def _pass(self, core: _Core) -> int:
        """Take the tokens of the WAIT a core stands at, and go on."""
        row = core.row
        register, count = int(row[kernel.FIRST]), int(row[kernel.SECOND])
        self._clocks.wait(core.number, register, count)
        core.tokens[register] -= count
        core.state[kernel.PC] += 1
        core.blocked = None
        return core.number

    def _meet(self, core: _Core, opcode: Opcode, row: NDArray[np.int32]) -> list[int]:
        peer = self._cores[int(row[kernel.IMMEDIATE])]
        other = Opcode.RECV if opcode is Opcode.SEND else Opcode.SEND
        if peer.blocked != (other, core.number):
            core.blocked = (opcode, peer.number)
            return []
        sender, receiver = (core, peer) if opcode is Opcode.SEND else (peer, core)
        sent, wanted = int(sender.row[kernel.THIRD]), int(receiver.row[kernel.THIRD])
        if sent != wanted:
            raise receiver.fault(
                FaultKind.SIZE,
                f"expects {wanted} bytes, core {sender.number} sends {sent} "
                f"(instruction {int(sender.state[kernel.PC])})",
            )
        if sent:
            data = _local(sender, int(sender.state[sender.row[kernel.RD]]), sent)
            self._deposit(receiver, int(receiver.state[receiver.row[kernel.RD]]), data)
        self._clocks.meet(sender.number, receiver.number)
        for end in (sender, receiver):
            end.state[kernel.PC] += 1
            end.blocked = None
        return [core.number, peer.number]

    def _load(self, core: _Core, row: NDArray[np.int32]) -> None:
        size = int(row[kernel.THIRD])
        if size == 0:
            return
        address = _global_address(core, int(row[kernel.RS1]))
        instruction = int(core.state[kernel.PC])
        try:
            data = self._memory.load(
                core.number, core.generation, instruction, address, size
            )
        except ProgramFault as fault:
            raise core.fault(fault.kind, fault.what) from None
        self._deposit(core, int(core.state[row[kernel.RD]]), data)

    def _store(self, core: _Core, row: NDArray[np.int32]) -> None:
        size = int(row[kernel.THIRD])
        if size == 0:
            return
        data = _local(core, int(core.state[row[kernel.RS1]]), size)
        address = _global_address(core, int(row[kernel.RD]))
        instruction = int(core.state[kernel.PC])
        try:
            self._memory.store(core.number, core.generation, instruction, address, data)
        except ProgramFault as fault:
            raise core.fault(fault.kind, fault.what) from None

    def _deposit(self, core: _Core, address: int, data: Bytes) -> None:
        _check_local(core, address, data.size)
        core.memory[address : address + data.size] = data
        core.written[address : address + data.size] = 1

    def _function(self, core: _Core, opcode: Opcode, row: NDArray[np.int32]) -> None:
        length, bits = int(row[kernel.THIRD]), int(core.state[kernel.INPUT_BITS])
        width = (bits + 7) // 8
        values = self._buffers[0]
        state, memory, written = core.state, core.memory, core.written
        source, target = int(state[row[kernel.RS1]]), int(state[row[kernel.RD]])
        if not kernel.read_elements(
            memory, written, source, width, length, values, state
        ):
            raise _kernel_fault(core)
        if opcode is Opcode.VSOFTMAX:
            result = softmax(values[:length], bits)
        else:
            result = table_function(opcode.mnemonic, values[:length], bits)
            width = (int(state[kernel.OUTPUT_BITS]) + 7) // 8
        if not kernel.write_elements(
            memory, written, target, width, length, result, state
        ):
            raise _kernel_fault(core)


class _Random:
    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)
        self._ready: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._ready)

    def add(self, core: int) -> None:
        self._ready.append(core)

    def take(self) -> int:
        index = self._choose.randrange(len(self._ready))
        self._ready[index], self._ready[-1] = self._ready[-1], self._ready[index]
        return self._ready.pop()


class _Greedy:
    """Fixed priorities: rising core numbers, falling ones, or a permutation."""

    def __init__(self, seed: int, cores: list[int]) -> None:
        order = sorted(cores, reverse=seed == 1)
        if seed > 1:
            random.Random(seed).shuffle(order)
        self._order = order
        self._rank = {core: rank for rank, core in enumerate(order)}
        self._heap: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, core: int) -> None:
        heapq.heappush(self._heap, self._rank[core])

    def take(self) -> int:
        return self._order[heapq.heappop(self._heap)]


def _queue(order: CoreOrder, seed: int, cores: list[int]) -> _Random | _Greedy:
    return _Random(seed) if order is CoreOrder.RANDOM else _Greedy(seed, cores)


def _weight_kind(cores: Sequence[CoreImage]) -> np.dtype[np.signedinteger]:
    """The narrowest type that holds every weight: one kernel for all cores."""
    size = 1
    for image in cores:
        for group in image.groups:
            low = int(group.weights.min(initial=0))
            high = int(group.weights.max(initial=0))
            while not -(1 << (8 * size - 1)) <= low <= high < 1 << (8 * size - 1):
                size *= 2
    return np.dtype(f"i{size}")


def _core(image: CoreImage, kind: np.dtype[np.signedinteger]) -> _Core:
    program = image.program
    if len(image.groups) != len(program.array_groups):
        raise MalformedInput(
            "not one matrix for each array group",
            where=f"core {program.core}",
            value=len(image.groups),
            expected=str(len(program.array_groups)),
        )
    records = program.records
    text = np.empty((len(records), len(_COLUMNS)), np.int32)
    for column, name in enumerate(_COLUMNS):
        text[:, column] = records[name]
    memory = np.zeros(image.local_bytes, np.uint8)
    written = np.zeros(image.local_bytes, np.uint8)
    for address, data in image.preloads:
        if address < 0 or address + data.size > memory.size:
            raise MalformedInput(
                "a resident constant outside the local memory",
                where=f"core {program.core}",
                value=(address, address + data.size),
                expected=f"addresses below {memory.size}",
            )
        memory[address : address + data.size] = data
        written[address : address + data.size] = 1
    groups = np.zeros((max(len(image.groups), 1), 4), np.int64)
    start = 0
    for index, group in enumerate(image.groups):
        rows, columns = group.weights.shape
        groups[index] = (start, rows, columns, max(group.width, columns))
        start += rows * columns
    flat = [group.weights.astype(kind).reshape(-1) for group in image.groups]
    weights = np.concatenate([*flat, np.zeros(1, kind)])
    state = np.zeros(kernel.STATE_SIZE, np.int64)
    return _Core(program.core, text, state, memory, written, groups, weights)


def _signals(core: _Core) -> list[tuple[int, int]]:
    """(target, register) of every SYNC in a core's text, without repetition."""
    rows = core.text[core.text[:, kernel.OPCODE] == Opcode.SYNC]
    pairs = rows[:, [kernel.IMMEDIATE, kernel.FIRST]].tolist()
    return list(dict.fromkeys((int(target), int(place)) for target, place in pairs))


def _longest(core: _Core) -> int:
    """Elements that the kernel's buffers must hold for one core's instructions."""
    sizes = core.text[:, kernel.THIRD].astype(np.int64)
    longest = min(int(sizes.max(initial=8)), max(core.memory.size, 8))
    return max(longest, int(core.groups[:, 1:].max(initial=8)))


def _satisfied(core: _Core) -> bool:
    row = core.row
    return core.tokens[int(row[kernel.FIRST])] >= int(row[kernel.SECOND])


def _global_address(core: _Core, register: int) -> int:
    high, low = int(core.state[register]), int(core.state[register + 1])
    return (high << 32) + (low & 0xFFFFFFFF)


def _check_local(core: _Core, address: int, size: int) -> None:
    if address < 0 or address + size > core.memory.size:
        raise core.fault(
            FaultKind.RANGE,
            f"local bytes {address} to {address + size}, the memory has "
            f"{core.memory.size}",
        )


def _local(core: _Core, address: int, size: int) -> Bytes:
    """Written bytes of a local memory."""
    _check_local(core, address, size)
    written = core.written[address : address + size]
    if not written.all():
        byte = address + int(np.argmin(written))
        raise core.fault(
            FaultKind.UNWRITTEN, f"reads local byte {byte}, which nobody wrote"
        )
    return core.memory[address : address + size]


def _kernel_fault(core: _Core) -> ProgramFault:
    value = int(core.state[kernel.FAULT_VALUE])
    match Fault(int(core.state[kernel.FAULT])):
        case Fault.UNWRITTEN:
            kind, what = (
                FaultKind.UNWRITTEN,
                f"reads local byte {value}, which nobody wrote",
            )
        case Fault.RANGE:
            kind = FaultKind.RANGE
            what = f"local byte {value}, the memory has {core.memory.size}"
        case Fault.OFFSET:
            kind, what = FaultKind.UNDEFINED, f"operand offset {value}"
        case Fault.SHIFT:
            kind, what = FaultKind.UNDEFINED, f"shifts by {value}"
        case Fault.WIDTH:
            kind, what = FaultKind.UNDEFINED, "no element width is set"
        case _:
            kind, what = FaultKind.UNDEFINED, f"opcode {value}"
    return core.fault(kind, what)


def _deadlock(stuck: Sequence[_Core]) -> ProgramFault:
    parts = []
    for core in stuck:
        opcode, peer = core.blocked or (Opcode.NOP, -1)
        where = f"core {core.number} at instruction {int(core.state[kernel.PC])}"
        where += f" of round {core.generation}: "
        if opcode is Opcode.WAIT:
            have, need = core.tokens[peer], int(core.row[kernel.SECOND])
            parts.append(f"{where}wait for event register {peer} ({have} of {need})")
        else:
            preposition = "to" if opcode is Opcode.SEND else "from"
            parts.append(f"{where}{opcode.mnemonic} {preposition} core {peer}")
    first = stuck[0]
    fault = ProgramFault(FaultKind.DEADLOCK, "nobody can go on: " + "; ".join(parts))
    fault.core, fault.generation = first.number, first.generation
    fault.instruction = int(first.state[kernel.PC])
    return fault
