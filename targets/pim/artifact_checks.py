"""What a program must fulfil before anything looks at its timing or its data.

All checks are vectorised over the records of one core; what couples cores (pairs
of SEND and RECV, targets without a program) is collected core by core and
checked at the end.  After :meth:`ProgramChecks.finish` every index that later
kernels use is known to be in range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.isa import (
    EVENT_REGISTERS,
    MAX_BIT_WIDTH,
    OPCODE_COUNT,
    REGISTERS,
    SLOT_ONLY,
    VECTOR,
    Opcode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def opcode_mask(opcodes: Iterable[Opcode]) -> NDArray[np.bool_]:
    """``[256]`` lookup table: is the opcode one of these?"""
    mask = np.zeros(256, dtype=np.bool_)
    mask[[int(opcode) for opcode in opcodes]] = True
    return mask


_KNOWN = np.arange(256) < OPCODE_COUNT
_SIZED = opcode_mask(
    VECTOR
    | {Opcode.VSOFTMAX, Opcode.LD, Opcode.ST, Opcode.LLDI, Opcode.LMV}
    | {Opcode.SEND, Opcode.RECV}
)
_WIDTH_USERS = opcode_mask(VECTOR | {Opcode.VSOFTMAX, Opcode.MVMUL})
_SECOND_SOURCE = opcode_mask(
    VECTOR | {Opcode.VSOFTMAX, Opcode.SADD, Opcode.SSUB, Opcode.SMUL}
)
_PEERS = opcode_mask({Opcode.SEND, Opcode.RECV, Opcode.SYNC})
_EVENTS = opcode_mask({Opcode.SYNC, Opcode.WAIT})
_SLOT_ONLY = opcode_mask(SLOT_ONLY)


#: Instructions that are looked at together: damage at the beginning of a huge file is
#: found without reading the rest, and no temporary grows with the file.
BLOCK = 2**20


def _one(opcode: Opcode) -> NDArray[np.bool_]:
    return opcode_mask({opcode})


class ProgramChecks:
    """Collects one program core by core.

    Args:
        name: shown in messages.
        core_count: declared number of cores; ids are below it.
    """

    def __init__(self, name: str, core_count: int) -> None:
        self._name = name
        self._core_count = core_count
        self._programmed: set[int] = set()
        self._targets: dict[tuple[int, int], tuple[str, int]] = {}
        self._sends: dict[tuple[int, int], int] = {}
        self._receives: dict[tuple[int, int], int] = {}
        self._first = 0  #: index of the block's first instruction
        self._has_widths = False

    def add_core(
        self, core: int, groups: NDArray[np.int64], records: NDArray[np.void]
    ) -> None:
        """Check one core's instructions.

        Raises:
            MalformedInput: names core, instruction index, value and expectation.
        """
        self._has_widths = False
        if len(records):
            self._programmed.add(core)
        for first in range(0, len(records), BLOCK):
            self._first = first
            self._add_block(core, groups, records[first : first + BLOCK])

    def _add_block(
        self, core: int, groups: NDArray[np.int64], records: NDArray[np.void]
    ) -> None:
        opcode = records["opcode"]
        self._refuse(core, ~_KNOWN[opcode], opcode, "unknown opcode", "0 to 32")
        self._refuse(
            core,
            opcode == Opcode.NOP,
            opcode,
            "nop is not executable (the simulator crashes on it)",
            "another instruction",
        )
        for field in ("rd", "rs1"):
            values = records[field]
            self._refuse(
                core, values >= REGISTERS, values, f"no such register {field}", "0..31"
            )
        self._check_pairs(core, opcode, records)
        second = records["r2_or_imm"]
        self._refuse(
            core,
            _SECOND_SOURCE[opcode] & ((second < 0) | (second >= REGISTERS)),
            second,
            "no such register rs2",
            "0..31",
        )
        size = records["generic3"]
        self._refuse(
            core, _SIZED[opcode] & (size < 0), size, "negative length or size", ">= 0"
        )
        self._check_widths(core, opcode, records)
        self._check_groups(core, opcode, groups, records)
        self._check_events(core, opcode, records)
        self._collect_peers(core, opcode, records)

    def finish(self) -> None:
        """Check what couples cores.

        Raises:
            MalformedInput: a peer without a program, or unequal SEND and RECV counts.
        """
        for (core, peer), (mnemonic, index) in sorted(self._targets.items()):
            if peer not in self._programmed:
                raise MalformedInput(
                    f"{mnemonic} addresses a core without a program",
                    where=f"{self._name}: core {core}, instruction {index}",
                    value=peer,
                    expected="a core that has instructions",
                )
        for core, peer in sorted(self._sends.keys() | self._receives.keys()):
            sent = self._sends.get((core, peer), 0)
            received = self._receives.get((core, peer), 0)
            if sent != received:
                raise MalformedInput(
                    "a SEND without its RECV"
                    if sent > received
                    else "a RECV without its SEND",
                    where=f"{self._name}: core {core} to core {peer}",
                    value=f"{sent} SEND, {received} RECV",
                    expected="as many RECV as SEND",
                )

    def _refuse(
        self,
        core: int,
        wrong: NDArray[np.bool_],
        values: NDArray[np.integer],
        what: str,
        expected: str,
    ) -> None:
        """Raise for the first instruction that is ``wrong``."""
        if wrong.any():
            index = int(np.argmax(wrong))
            raise MalformedInput(
                what,
                where=f"{self._name}: core {core}, instruction {self._first + index}",
                value=int(values[index]),
                expected=expected,
            )

    def _check_pairs(
        self, core: int, opcode: NDArray[np.uint8], records: NDArray[np.void]
    ) -> None:
        # A global address is a register pair, high half first.
        for name, field in ((Opcode.LD, "rs1"), (Opcode.ST, "rd")):
            values = records[field]
            self._refuse(
                core,
                _one(name)[opcode] & (values >= REGISTERS - 1),
                values,
                f"{name.mnemonic} needs a register pair in {field}",
                "0..30",
            )

    def _check_widths(
        self, core: int, opcode: NDArray[np.uint8], records: NDArray[np.void]
    ) -> None:
        sets = opcode == Opcode.SETBW
        for field, label in (("generic1", "ibiw"), ("generic2", "obiw")):
            values = records[field]
            self._refuse(
                core,
                sets & ((values < 1) | (values > MAX_BIT_WIDTH)),
                values,
                f"setbw with a meaningless {label}",
                f"1 to {MAX_BIT_WIDTH} bits",
            )
        if self._has_widths:
            return
        users = _WIDTH_USERS[opcode]
        self._has_widths = bool(sets.any())
        if users.any():
            first = int(np.argmax(users))
            if not sets[:first].any():
                place = self._first + first
                raise MalformedInput(
                    f"{Opcode(int(opcode[first])).mnemonic} before any setbw",
                    where=f"{self._name}: core {core}, instruction {place}",
                    expected="setbw first: without it widths are 0 and so is the time",
                )

    def _check_groups(
        self,
        core: int,
        opcode: NDArray[np.uint8],
        groups: NDArray[np.int64],
        records: NDArray[np.void],
    ) -> None:
        products = opcode == Opcode.MVMUL
        group = records["generic2"]
        expected = (
            f"0 to {len(groups) - 1}, the core's array groups"
            if len(groups)
            else "an array group in config.array_group_map; the core has none"
        )
        self._refuse(
            core,
            products & ((group < 0) | (group >= len(groups))),
            group,
            "mvmul on an array group that does not exist",
            expected,
        )
        width = records["r2_or_imm"]
        self._refuse(
            core,
            products & ((width < 1) | (width > MAX_BIT_WIDTH)),
            width,
            "mvmul with a meaningless mbiw",
            f"1 to {MAX_BIT_WIDTH} bits",
        )

    def _check_events(
        self, core: int, opcode: NDArray[np.uint8], records: NDArray[np.void]
    ) -> None:
        register = records["generic1"]
        self._refuse(
            core,
            _EVENTS[opcode] & ((register < 0) | (register >= EVENT_REGISTERS)),
            register,
            "no such event register",
            f"0..{EVENT_REGISTERS - 1}",
        )
        value = records["generic2"]
        self._refuse(
            core,
            (opcode == Opcode.WAIT) & (value < 0),
            value,
            "negative wait value",
            ">= 0",
        )

    def _collect_peers(
        self, core: int, opcode: NDArray[np.uint8], records: NDArray[np.void]
    ) -> None:
        where = np.flatnonzero(_PEERS[opcode])
        peer = records["r2_or_imm"][where]
        codes = opcode[where]
        wrong = (peer < 0) | (peer >= self._core_count) | (peer == core)
        if wrong.any():
            first = int(np.argmax(wrong))
            mnemonic = Opcode(int(codes[first])).mnemonic
            place = self._first + int(where[first])
            raise MalformedInput(
                f"{mnemonic} addresses a core that cannot take part",
                where=f"{self._name}: core {core}, instruction {place}",
                value=int(peer[first]),
                expected=f"another core, 0 to {self._core_count - 1}",
            )
        for code, counts, outgoing in (
            (Opcode.SEND, self._sends, True),
            (Opcode.RECV, self._receives, False),
            (Opcode.SYNC, None, True),
        ):
            chosen = codes == code
            ids, first_at, number = np.unique(
                peer[chosen], return_index=True, return_counts=True
            )
            index = self._first + where[chosen][first_at]
            for other, position, count in zip(
                ids.tolist(), index.tolist(), number.tolist(), strict=True
            ):
                self._targets.setdefault((core, other), (code.mnemonic, position))
                if counts is not None:
                    pair = (core, other) if outgoing else (other, core)
                    counts[pair] = counts.get(pair, 0) + count
