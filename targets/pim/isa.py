"""The instruction set: opcodes, the 20-byte record, and which field means what.

Record layout (little-endian): ``u8 opcode, u8 rd, u8 rs1, u8 flags,
i32 r2_or_imm, i32 generic1, i32 generic2, i32 generic3``.  What the generic
fields hold depends on the class of the instruction; :data:`JSON_FIELDS` is the
one table that says so, and both readers and both writers follow it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

#: One instruction; files hold a plain sequence of these after the header.
RECORD = np.dtype(
    [
        ("opcode", "<u1"),
        ("rd", "<u1"),
        ("rs1", "<u1"),
        ("flags", "<u1"),
        ("r2_or_imm", "<i4"),
        ("generic1", "<i4"),
        ("generic2", "<i4"),
        ("generic3", "<i4"),
    ]
)
#: First bytes of a binary file, then u32 version and u32 instruction count.
MAGIC = b"PIMB"
VERSION = 1
HEADER_BYTES = 12
#: Registers a core has; also the number of event registers (execution model 1.4).
REGISTERS = 32
EVENT_REGISTERS = 32
#: Widest element that has a meaning on this machine, bits.
MAX_BIT_WIDTH = 64


class Opcode(IntEnum):
    """Binary opcodes."""

    NOP = 0
    SLDI = 1
    SLD = 2
    SADD = 3
    SSUB = 4
    SMUL = 5
    SADDI = 6
    SMULI = 7
    SETBW = 8
    MVMUL = 9
    VVADD = 10
    VVSUB = 11
    VVMUL = 12
    VVDMUL = 13
    VVMAX = 14
    VVSLL = 15
    VVSRA = 16
    VAVG = 17
    VRELU = 18
    VTANH = 19
    VSIGM = 20
    VSOFTMAX = 21
    VMV = 22
    VRSU = 23
    VRSL = 24
    LD = 25
    ST = 26
    LLDI = 27
    LMV = 28
    SEND = 29
    RECV = 30
    WAIT = 31
    SYNC = 32

    @property
    def mnemonic(self) -> str:
        """Name in the JSON form, e.g. ``"mvmul"``."""
        return self.name.lower()


OPCODE_COUNT = len(Opcode)
#: Mnemonic to opcode.
MNEMONICS = {opcode.mnemonic: opcode for opcode in Opcode}

SCALAR = frozenset(
    {
        Opcode.SLDI,
        Opcode.SLD,
        Opcode.SADD,
        Opcode.SSUB,
        Opcode.SMUL,
        Opcode.SADDI,
        Opcode.SMULI,
    }
)
#: One issue slot each, no unit: scalars and SETBW (which ends in decode).
SLOT_ONLY = SCALAR | {Opcode.SETBW}
#: Two source vectors.
VECTOR_BINARY = frozenset(
    {
        Opcode.VVADD,
        Opcode.VVSUB,
        Opcode.VVMUL,
        Opcode.VVDMUL,
        Opcode.VVMAX,
        Opcode.VVSLL,
        Opcode.VVSRA,
    }
)
#: One source vector.  VSOFTMAX is not of the public machine: no timed work.
VECTOR_UNARY = frozenset(
    {
        Opcode.VAVG,
        Opcode.VRELU,
        Opcode.VTANH,
        Opcode.VSIGM,
        Opcode.VMV,
        Opcode.VRSU,
        Opcode.VRSL,
    }
)
VECTOR = VECTOR_BINARY | VECTOR_UNARY
#: Vector operations that write elements of the output width.
WIDE_RESULT = frozenset(
    {
        Opcode.VVMUL,
        Opcode.VVSLL,
        Opcode.VVSRA,
        Opcode.VTANH,
        Opcode.VSIGM,
        Opcode.VRSU,
        Opcode.VRSL,
    }
)
#: Instructions through which cores or the chip's memory see each other.
COMMUNICATION = frozenset(
    {Opcode.LD, Opcode.ST, Opcode.SEND, Opcode.RECV, Opcode.WAIT, Opcode.SYNC}
)

_OFFSET = {"offset.offset_select": "generic1", "offset.offset_value": "generic2"}
_TWO = {"rd": "rd", "rs1": "rs1"}
_IMMEDIATE = {"imm": "r2_or_imm"}


def _fields(opcode: Opcode) -> dict[str, str]:
    """Where the JSON keys of one opcode live in a record."""
    if opcode is Opcode.SLDI:
        return {"rd": "rd", **_IMMEDIATE}
    if opcode in (Opcode.SADDI, Opcode.SMULI):
        return {**_TWO, **_IMMEDIATE}
    if opcode is Opcode.SLD:
        return {**_TWO, "offset_value": "generic2"}
    if opcode in SCALAR:
        return {**_TWO, "rs2": "r2_or_imm"}
    if opcode is Opcode.SETBW:
        return {"ibiw": "generic1", "obiw": "generic2"}
    if opcode is Opcode.MVMUL:
        return {**_TWO, "mbiw": "r2_or_imm", "relu": "generic1", "group": "generic2"}
    if opcode in VECTOR or opcode is Opcode.VSOFTMAX:
        return {**_TWO, "rs2": "r2_or_imm", **_OFFSET, "len": "generic3"}
    if opcode in (Opcode.LD, Opcode.ST):
        return {**_TWO, **_OFFSET, "size": "generic3"}
    if opcode is Opcode.LLDI:
        return {"rd": "rd", **_IMMEDIATE, **_OFFSET, "len": "generic3"}
    if opcode is Opcode.LMV:
        return {**_TWO, **_OFFSET, "len": "generic3"}
    if opcode in (Opcode.SEND, Opcode.RECV):
        return {**_TWO, "core": "r2_or_imm", **_OFFSET, "size": "generic3"}
    if opcode is Opcode.SYNC:
        return {"core": "r2_or_imm", "event_register": "generic1"}
    if opcode is Opcode.WAIT:
        return {"event_register": "generic1", "wait_value": "generic2"}
    return {}


#: Per opcode: JSON key (dotted where nested) -> record field.
JSON_FIELDS: dict[Opcode, dict[str, str]] = {
    opcode: _fields(opcode) for opcode in Opcode
}
