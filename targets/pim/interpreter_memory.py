"""Global memory with a memory of its own: who wrote each byte, in which round.

All signals of a program have distance zero, so a load of round k must find what its
writer stored in round k.  An older stamp is a stale read; a younger one means that
the data were overwritten while somebody still had to read them.

The host takes an output as it is stored.  Inputs: a ``paced`` host serves every core
the input of the core's own round, as the host contract says.  A ``strict`` host has
one input in each bank: it puts input k there when the first load of round k asks for
it, as late as possible, and a core that lags so far behind that its own input was
replaced is a fault: such a program needs a host that holds the faster cores.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput, RaptorError
from raptor_cp.targets.pim.interpreter_clocks import Access

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from raptor_cp.targets.pim.interpreter_clocks import Clocks
    from raptor_cp.targets.pim.sidecar import Region

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

#: Stamp of bytes that are valid in every round.
ALWAYS = -1
NOBODY = -1
HOST = -2


class FaultKind(StrEnum):
    """What a program did wrong."""

    UNWRITTEN = "unwritten"  #: read of memory nobody wrote
    STALE = "stale"  #: read of an earlier round's data
    OVERWRITTEN = "overwritten"  #: data replaced while still to be read
    RACE = "race"  #: an access that no signal orders
    SIZE = "size"  #: the two ends of a transfer disagree
    RANGE = "range"  #: an address outside its memory or region
    DEADLOCK = "deadlock"  #: nobody can go on
    SIGNALS = "signals"  #: signals that nobody waited for
    OUTPUT = "output"  #: an output that was not stored where the host reads it
    UNDEFINED = "undefined"  #: an instruction without a defined result


class ProgramFault(RaptorError):
    """The program is wrong whatever it computes.

    Attributes:
        kind: which detector found it.
        core, generation, instruction: where; -1 where that has no meaning.
    """

    exit_code = 1

    def __init__(
        self,
        kind: FaultKind,
        what: str,
        *,
        core: int = -1,
        generation: int = -1,
        instruction: int = -1,
        mnemonic: str = "",
    ) -> None:
        self.kind, self.what = kind, what
        self.core, self.generation, self.instruction = core, generation, instruction
        where = ""
        if core >= 0:
            where = f"core {core}, round {generation}, instruction {instruction}"
            where += f" ({mnemonic}): " if mnemonic else ": "
        super().__init__(where + what)


def as_bytes(values: Ints, width: int) -> Bytes:
    """Values as signed little-endian integers of ``width`` bytes."""
    wide = np.ascontiguousarray(values, np.dtype("<i8")).reshape(-1, 1)
    return wide.view(np.uint8)[:, :width].reshape(-1)


def from_bytes(data: Bytes, width: int) -> Ints:
    """Inverse of :func:`as_bytes`."""
    raw = data.reshape(-1, width)
    wide = np.zeros((raw.shape[0], 8), np.uint8)
    wide[:, :width] = raw
    shift = 64 - 8 * width
    values = wide.view(np.dtype("<i8"))[:, 0]
    return np.asarray((values << shift) >> shift, np.int64)


class GlobalMemory:
    """See the module.

    Args:
        size: bytes.
        regions: what lies where; loads and stores must stay inside one bank of one
            region.  Without regions any address below ``size`` is good.
        inputs: (tensor, round) -> [rows, columns, channels] of a network input.
        strict: see the module.

    Raises:
        MalformedInput: a region outside the memory, or two that overlap.
    """

    def __init__(
        self,
        size: int,
        regions: Sequence[Region] = (),
        inputs: Callable[[str, int], Ints] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self._data = np.zeros(size, np.uint8)
        self._writer = np.full(size, NOBODY, np.int32)
        self._round = np.zeros(size, np.int32)
        self._place = np.full(size, -1, np.int32)
        self._epoch = np.zeros(size, np.int32)
        #: Set by the interpreter that uses this memory.
        self.clocks: Clocks | None = None
        self._regions = tuple(regions)
        self._inputs = inputs
        self._strict = strict
        self._present = [-1] * len(self._regions)
        #: region index -> round -> (bytes, stored already)
        self.outputs: dict[int, dict[int, tuple[Bytes, NDArray[np.bool_]]]] = {}
        banks = [
            (first, first + region.size, index, bank)
            for index, region in enumerate(self._regions)
            for bank in range(region.banks)
            for first in (region.address + bank * region.stride,)
        ]
        self._banks = sorted(banks)
        self._starts = [bank[0] for bank in self._banks]
        reached = 0
        for first, stop, index, _ in self._banks:
            region = self._regions[index]
            if first < reached or stop > size:
                raise MalformedInput(
                    "a region overlaps another one or leaves the memory",
                    where=f"global memory, {region.kind} {region.tensor!r}",
                    value=(first, stop),
                    expected=f"bytes between {reached} and {size}",
                )
            reached = stop

    def place_constant(self, region: Region, values: Ints) -> None:
        """What the host puts in place before round 0."""
        data = as_bytes(values.reshape(-1), region.element_bytes)
        for bank in range(region.banks):
            self._put(region.address + bank * region.stride, data, ALWAYS)

    def load(
        self, core: int, generation: int, instruction: int, address: int, size: int
    ) -> Bytes:
        """What a core reads in its round ``generation``.

        Raises:
            ProgramFault: unwritten, stale, overwritten, unordered or out of range;
                without the place of the instruction, which the caller adds.
        """
        index, bank = self._bank(address, size)
        if index >= 0 and self._regions[index].kind == "input":
            self._supply(index, generation)
        where = slice(address, address + size)
        writers = self._writer[where]
        if (writers == NOBODY).any():
            byte = address + int(np.argmax(writers == NOBODY))
            raise ProgramFault(
                FaultKind.UNWRITTEN,
                f"reads byte {byte} of global memory{self._name(index)}, which nobody "
                "wrote",
            )
        stamps = self._round[where]
        wrong = (stamps != generation) & (stamps != ALWAYS)
        if wrong.any():
            offset = int(np.argmax(wrong))
            found, byte = int(stamps[offset]), address + offset
            author = self._author(byte)
            if found > generation:
                raise ProgramFault(
                    FaultKind.OVERWRITTEN,
                    f"byte {byte} of global memory{self._name(index)} was overwritten "
                    f"by {author} in round {found} while round {generation} was still "
                    "to be read",
                )
            raise ProgramFault(
                FaultKind.STALE,
                f"byte {byte} of global memory{self._name(index)} is still that of "
                f"round {found}, stored by {author}",
            )
        if self.clocks is not None:
            offset = self.clocks.unordered(core, writers, self._epoch[where])
            if offset >= 0:
                byte = address + offset
                raise ProgramFault(
                    FaultKind.RACE,
                    f"no signal orders it behind the store of byte {byte} of global "
                    f"memory{self._name(index)} by {self._author(byte)} of this round",
                )
            epoch = self.clocks.tick(core)
            if index < 0 or self._regions[index].kind not in ("input", "constant"):
                access = Access(
                    core, epoch, generation, instruction, address, address + size
                )
                self.clocks.load((index, bank), access)
        return self._data[where]

    def store(
        self, core: int, generation: int, instruction: int, address: int, data: Bytes
    ) -> None:
        """What a core writes.

        Raises:
            ProgramFault: out of range, not writable, unordered, or an output in a
                wrong bank.
        """
        index, bank = self._bank(address, data.size)
        if index >= 0:
            region = self._regions[index]
            if region.kind in ("input", "constant"):
                raise ProgramFault(
                    FaultKind.RANGE, f"stores into the {region.kind} {region.tensor!r}"
                )
            if region.kind == "output":
                self._take(index, bank, generation, address, data)
        epoch = 0
        if self.clocks is not None:
            stop = address + data.size
            overtaken = self.clocks.store(core, (index, bank), address, stop)
            if overtaken is not None:
                raise ProgramFault(
                    FaultKind.RACE,
                    f"no signal orders it behind the load of bytes {address} to {stop} "
                    f"of global memory{self._name(index)} by core {overtaken.core}, "
                    f"instruction {overtaken.instruction}, in round "
                    f"{overtaken.generation}",
                )
            epoch = self.clocks.tick(core)
        self._put(address, data, generation, core, instruction)
        self._epoch[address : address + data.size] = epoch

    def _put(
        self,
        address: int,
        data: Bytes,
        generation: int,
        core: int = HOST,
        instruction: int = -1,
    ) -> None:
        where = slice(address, address + data.size)
        self._data[where] = data
        self._writer[where] = core
        self._round[where] = generation
        self._place[where] = instruction

    def _supply(self, index: int, generation: int) -> None:
        present = self._present[index]
        if self._inputs is None or generation == present:
            return
        if self._strict and generation < present:
            return
        region = self._regions[index]
        rows, row_stop, columns, column_stop, channels, channel_stop = region.box
        values = self._inputs(region.tensor, generation)
        part = values[rows:row_stop, columns:column_stop, channels:channel_stop]
        first = region.address + generation % region.banks * region.stride
        data = as_bytes(part.reshape(-1), region.element_bytes)
        self._put(first, data, generation)
        self._present[index] = generation

    def _take(
        self, index: int, bank: int, generation: int, address: int, data: Bytes
    ) -> None:
        region = self._regions[index]
        if bank != generation % region.banks:
            raise ProgramFault(
                FaultKind.OUTPUT,
                f"stores output {region.tensor!r} in bank {bank}; the host reads bank "
                f"{generation % region.banks} of {region.banks} after that round",
            )
        rounds = self.outputs.setdefault(index, {})
        if generation not in rounds:
            rounds[generation] = (
                np.zeros(region.size, np.uint8),
                np.zeros(region.size, np.bool_),
            )
        held, stored = rounds[generation]
        offset = address - region.address - bank * region.stride
        held[offset : offset + data.size] = data
        stored[offset : offset + data.size] = True

    def _bank(self, address: int, size: int) -> tuple[int, int]:
        """(region, bank) that holds the bytes; (-1, 0) without regions."""
        if not self._regions:
            if address < 0 or address + size > self._data.size:
                raise ProgramFault(
                    FaultKind.RANGE,
                    f"bytes {address} to {address + size} of global memory, which has "
                    f"{self._data.size}",
                )
            return -1, 0
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            _, stop, index, bank = self._banks[number]
            if address + size <= stop:
                return index, bank
        raise ProgramFault(
            FaultKind.RANGE,
            f"bytes {address} to {address + size} of global memory are not inside one "
            "bank of one region",
        )

    def _name(self, index: int) -> str:
        if index < 0:
            return ""
        region = self._regions[index]
        return f" ({region.kind} {region.tensor!r})"

    def _author(self, byte: int) -> str:
        writer = int(self._writer[byte])
        if writer == HOST:
            return "the host"
        return f"core {writer}, instruction {int(self._place[byte])},"
