"""Instruction profiles: which instructions a piece of work becomes, and how often.

A profile is what code generation must emit for the work (communication apart), so
its time is the time of the program: every unit instruction takes its occupancy plus
one issue period, every scalar instruction and every ``setbw`` one period.  Operand
addresses are set by one ``sldi`` each right before their use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.targets.pim.isa import SLOT_ONLY, VECTOR, VECTOR_BINARY, Opcode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raptor_cp.targets.pim.timing import PimTiming


@dataclass(frozen=True, slots=True)
class InstructionCount:
    """``count`` instructions of one form.

    Attributes:
        opcode: which instruction.
        count: how many of them.
        length: elements of a vector instruction, bytes of ``lmv`` and ``lldi``,
            crossbars of the group of an ``mvmul``; 0 for scalar ones.
        ibiw: input element width, bits (vector instructions and ``mvmul``).
        obiw: output element width, bits.
        mbiw: weight width of an ``mvmul``, bits.
    """

    opcode: Opcode
    count: int
    length: int = 0
    ibiw: int = 0
    obiw: int = 0
    mbiw: int = 0


Profile = tuple[InstructionCount, ...]

#: Operand addresses of an instruction: one ``sldi`` each.
ADDRESSES = {
    Opcode.MVMUL: 2,
    Opcode.LMV: 2,
    Opcode.LLDI: 1,
    Opcode.VSOFTMAX: 2,
    **{opcode: 3 if opcode in VECTOR_BINARY else 2 for opcode in VECTOR},
}


class ProfileBuilder:
    """Collects instructions; equal ones are counted together."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Opcode, int, int, int, int], int] = {}
        self._slots = 0
        self._widths = 0

    def mvmul(self, count: int, crossbars: int, widths: tuple[int, int, int]) -> None:
        """Matrix products; ``widths`` are (ibiw, obiw, mbiw) in bits."""
        ibiw, obiw, mbiw = widths
        self._add(Opcode.MVMUL, count, crossbars, ibiw, obiw, mbiw)

    def vector(
        self, opcode: Opcode, count: int, length: int, ibiw: int, obiw: int = 0
    ) -> None:
        """Vector operations on ``length`` elements; ``obiw`` 0 means ``ibiw``."""
        self._add(opcode, count, length, ibiw, obiw or ibiw)

    def copy(self, count: int, size: int) -> None:
        """Local copies (``lmv``) of ``size`` bytes."""
        self._add(Opcode.LMV, count, size)

    def fill(self, count: int, size: int) -> None:
        """Local fills (``lldi``) of ``size`` bytes."""
        self._add(Opcode.LLDI, count, size)

    def set_widths(self, count: int) -> None:
        """``setbw`` instructions."""
        self._widths += count

    def merge(self, profile: Profile) -> None:
        """Add a finished profile."""
        for item in profile:
            if item.opcode is Opcode.SETBW:
                self._widths += item.count
            elif item.opcode is not Opcode.SLDI:
                self._add(
                    item.opcode,
                    item.count,
                    item.length,
                    item.ibiw,
                    item.obiw,
                    item.mbiw,
                )

    def finish(self) -> Profile:
        """All instructions, scalar ones included, in a fixed order."""
        result = [
            InstructionCount(opcode, count, length, ibiw, obiw, mbiw)
            for (opcode, length, ibiw, obiw, mbiw), count in sorted(
                self._counts.items()
            )
        ]
        if self._widths:
            result.append(InstructionCount(Opcode.SETBW, self._widths))
        if self._slots:
            result.append(InstructionCount(Opcode.SLDI, self._slots))
        return tuple(result)

    def _add(
        self,
        opcode: Opcode,
        count: int,
        length: int,
        ibiw: int = 0,
        obiw: int = 0,
        mbiw: int = 0,
    ) -> None:
        if count <= 0 or length <= 0:
            return
        key = (opcode, length, ibiw, obiw, mbiw)
        self._counts[key] = self._counts.get(key, 0) + count
        self._slots += count * ADDRESSES[opcode]


def instruction_ns(timing: PimTiming, item: InstructionCount) -> int:
    """Time (ns) of ONE instruction of this form, its issue period included.

    ``vsoftmax`` is not an instruction of the public machine: no timed work.
    """
    opcode = item.opcode
    if opcode in SLOT_ONLY:
        return timing.period_ns
    if opcode is Opcode.VSOFTMAX:
        return 0
    issue = timing.issue_ns(0)
    if opcode is Opcode.MVMUL:
        return issue + timing.mvmul_occupancy_ns(
            item.length, item.mbiw, item.ibiw, item.obiw
        )
    if opcode is Opcode.LMV:
        return issue + timing.lmv_occupancy_ns(item.length)
    if opcode is Opcode.LLDI:
        return issue + timing.lldi_occupancy_ns(item.length)
    return issue + timing.vector_occupancy_ns(opcode, item.length, item.ibiw, item.obiw)


def profile_ns(timing: PimTiming, profile: Iterable[InstructionCount]) -> int:
    """Serial time (ns) of a profile on one core."""
    return sum(item.count * instruction_ns(timing, item) for item in profile)


def count_of(profile: Iterable[InstructionCount], opcode: Opcode) -> int:
    """How many instructions of one opcode a profile has."""
    return sum(item.count for item in profile if item.opcode is opcode)
