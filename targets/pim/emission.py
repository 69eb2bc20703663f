"""Instruction templates: sequences with open addresses, repeated as whole arrays.

A :class:`Text` collects *slots*; a slot is one instruction whose fields are numbers
or arrays over ``count`` repetitions (the output positions of a row, the pieces of a
copy), with a mask for repetitions that lack it.  :meth:`Text.template` lays the
repetitions behind each other.  Addresses are a symbol plus a known offset; a
:class:`Template` becomes records when its symbols get values, for many rows at once.

Registers: 0, 1, 2 hold operand addresses and are set right before their use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.targets.pim.isa import RECORD, VECTOR_BINARY, Opcode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Records = NDArray[np.void]
    Field = int | NDArray[np.int64]

DESTINATION, FIRST, SECOND = 0, 1, 2
#: Registers from here on persist: bounds, bank offsets, counters.
PERSISTENT = 3
NO_SYMBOL = -1


class Ref(NamedTuple):
    """An address: value of ``symbol`` plus ``offset`` bytes."""

    symbol: int
    offset: Field = 0

    def plus(self, more: Field) -> Ref:
        """The address ``more`` bytes further."""
        return Ref(self.symbol, self.offset + more)


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """``records`` [L]; ``symbols`` [L] index of the value added to an immediate."""

    records: Records
    symbols: NDArray[np.int16]

    def at(self, values: Ints, group_base: int = 0) -> Records:
        """[R*L] records for R rows of symbol values ``values`` [R, S]."""
        rows, length = values.shape[0], self.records.size
        result = np.empty((rows, length), RECORD)
        result[:] = self.records
        open_ones = np.flatnonzero(self.symbols >= 0)
        if open_ones.size:
            shifts = values[:, self.symbols[open_ones]]
            result["r2_or_imm"][:, open_ones] += shifts.astype(np.int32)
        if group_base:
            products = np.flatnonzero(self.records["opcode"] == Opcode.MVMUL)
            result["generic2"][:, products] += group_base
        return result.reshape(-1)


def joined(templates: Sequence[Template]) -> Template:
    """Templates behind each other."""
    return Template(
        np.concatenate([t.records for t in templates]),
        np.concatenate([t.symbols for t in templates]),
    )


class Text:
    """Collects slots.

    Args:
        count: repetitions of every slot.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._slots: list[tuple[tuple[Field, ...], int, NDArray[np.bool_] | None]] = []
        self._widths: tuple[int, int] | None = None
        self.mask: NDArray[np.bool_] | None = None

    def put(
        self,
        opcode: Opcode,
        rd: int = 0,
        rs1: int = 0,
        r2: Field = 0,
        generic: tuple[Field, Field, Field] = (0, 0, 0),
        symbol: int = NO_SYMBOL,
    ) -> None:
        """One instruction, where the current ``mask`` has it."""
        fields = (int(opcode), rd, rs1, r2, *generic)
        self._slots.append((fields, symbol, self.mask))

    def address(self, register: int, ref: Ref) -> None:
        """``sldi``."""
        self.put(Opcode.SLDI, register, r2=ref.offset, symbol=ref.symbol)

    def widths(self, ibiw: int, obiw: int) -> None:
        """``setbw``, unless these widths are set already."""
        if self._widths != (ibiw, obiw):
            self._widths = (ibiw, obiw)
            self.put(Opcode.SETBW, generic=(ibiw, obiw, 0))

    def vector(
        self,
        opcode: Opcode,
        target: Ref,
        source: Ref,
        second: Ref | int = 0,
        *,
        length: Field,
    ) -> None:
        """A vector instruction; ``second`` is a register for a bound."""
        self.address(DESTINATION, target)
        self.address(FIRST, source)
        register = second if isinstance(second, int) else SECOND
        if opcode in VECTOR_BINARY:
            if isinstance(second, int):
                raise InternalError(f"{opcode.mnemonic} without a second operand")
            self.address(SECOND, second)
        self.put(opcode, DESTINATION, FIRST, register, (0, 0, length))

    def copy(self, target: Ref, source: Ref, size: Field) -> None:
        """``lmv``."""
        self.address(DESTINATION, target)
        self.address(FIRST, source)
        self.put(Opcode.LMV, DESTINATION, FIRST, generic=(0, 0, size))

    def fill(self, target: Ref, size: Field, value: int = 0) -> None:
        """``lldi``."""
        self.address(DESTINATION, target)
        self.put(Opcode.LLDI, DESTINATION, r2=value, generic=(0, 0, size))

    def product(self, target: Ref, source: Ref, group: int, weight_bits: int) -> None:
        """``mvmul``."""
        self.address(DESTINATION, target)
        self.address(FIRST, source)
        self.put(Opcode.MVMUL, DESTINATION, FIRST, weight_bits, (0, group, 0))

    def template(self) -> Template:
        """All slots of the first repetition, then of the second, ..."""
        shape = (self.count, len(self._slots))
        records = np.zeros(shape, RECORD)
        symbols = np.empty(len(self._slots), np.int16)
        present = np.ones(shape, np.bool_)
        names = ("opcode", "rd", "rs1", "r2_or_imm", "generic1", "generic2", "generic3")
        for index, (fields, symbol, mask) in enumerate(self._slots):
            column = records[:, index]
            for name, value in zip(names, fields, strict=True):
                if not isinstance(value, int) or value:
                    column[name] = value
            symbols[index] = symbol
            if mask is not None:
                present[:, index] = mask
        kept = present.reshape(-1)
        return Template(records.reshape(-1)[kept], np.tile(symbols, self.count)[kept])

    def records(self) -> Records:
        """The records of a text without symbols."""
        template = self.template()
        if (template.symbols >= 0).any():
            raise InternalError("a text with open addresses")
        return template.records


def fixed(address: Field) -> Ref:
    """A known address."""
    return Ref(NO_SYMBOL, address)
