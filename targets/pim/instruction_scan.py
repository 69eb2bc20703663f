"""One pass over a core's instructions: local work becomes weighted gaps.

With reorder-buffer capacity one everything between two communication
instructions is serial, so a run of scalar, vector, matrix and copy instructions
is one number.  What stays are the communication items, each with the ns of issue
and local work since the item before (scheduling spec, "Post-codegen instruction
diagnostic").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.targets.pim import timing_arrays as arrays
from raptor_cp.targets.pim.artifact_checks import opcode_mask
from raptor_cp.targets.pim.isa import (
    COMMUNICATION,
    SCALAR,
    SLOT_ONLY,
    VECTOR,
    VECTOR_BINARY,
    WIDE_RESULT,
    Opcode,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.targets.pim.artifact import CoreProgram
    from raptor_cp.targets.pim.timing import PimTiming

    Ints = NDArray[np.int64]

_COMMUNICATES = opcode_mask(COMMUNICATION)
_SLOT = opcode_mask(SLOT_ONLY)
_SCALAR = opcode_mask(SCALAR)
_VECTOR = opcode_mask(VECTOR)
_BINARY = opcode_mask(VECTOR_BINARY)
_WIDE = opcode_mask(WIDE_RESULT)


class Item(IntEnum):
    """What a position of a core's communication sequence is."""

    ENTRY = 0
    EXIT = 1
    LD = int(Opcode.LD)
    ST = int(Opcode.ST)
    SEND = int(Opcode.SEND)
    RECV = int(Opcode.RECV)
    WAIT = int(Opcode.WAIT)
    SYNC = int(Opcode.SYNC)


@dataclass(frozen=True, slots=True, eq=False)
class CoreScan:
    """The communication sequence of one core: ENTRY, its instructions, EXIT.

    Arrays have one entry per position.

    Attributes:
        core: id.
        kind: :class:`Item` values.
        gap_ns: issue and local work before the position, since the commit of
            the one before; at EXIT up to the last commit of the core.
        size: bytes of LD, ST, SEND, RECV; peer: core of SEND, RECV, SYNC.
        register, value: of SYNC and WAIT.
        wrap_ns: issue slots after the last commit, before the text repeats.
        work_ns: issue and local work of one generation.
        instructions: all of them; softmax: vsoftmax instructions (no timed work).
        ends_in_slot: the last instruction has no unit (latency mode never ends).
        energy_pj: dynamic energy of local instructions and fetch.
    """

    core: int
    kind: Ints
    gap_ns: Ints
    size: Ints
    peer: Ints
    register: Ints
    value: Ints
    wrap_ns: int
    work_ns: int
    instructions: int
    softmax: int
    ends_in_slot: bool
    energy_pj: float


def scan_core(program: CoreProgram, timing: PimTiming, *, issue: bool) -> CoreScan:
    """Scan a core that has at least one instruction.

    Args:
        program: checked instructions.
        timing: the chip.
        issue: charge issue slots and retirement (off: execution times only).

    Raises:
        Unresolved: a time leaves the supported numeric range.
    """
    records = program.records
    opcode = np.ascontiguousarray(records["opcode"])
    weight = np.zeros(len(opcode), dtype=np.int64)
    energy = _weigh_local(program, records, opcode, timing, weight, issue=issue)
    softmax = opcode == Opcode.VSOFTMAX
    slots = _SLOT[opcode]
    if issue:
        weight += timing.period_ns
        weight[softmax] = 0
    # A sum beyond the range must not wrap before it is noticed.
    arrays.in_range(int(weight.sum(dtype=np.float64)), f"core {program.core}")
    total = np.cumsum(weight)
    units = np.flatnonzero(~(slots | softmax))
    last_unit = int(total[units[-1]]) if len(units) else 0
    where = np.flatnonzero(_COMMUNICATES[opcode])
    before = np.concatenate(([0], total[where]))
    ends = np.append(before, last_unit)
    communication = records[where]
    code = opcode[where].astype(np.int64)
    generic1 = communication["generic1"].astype(np.int64)
    generic2 = communication["generic2"].astype(np.int64)
    generic3 = communication["generic3"].astype(np.int64)
    second = communication["r2_or_imm"].astype(np.int64)
    events = (code == Opcode.SYNC) | (code == Opcode.WAIT)
    peers = (code != Opcode.LD) & (code != Opcode.ST) & (code != Opcode.WAIT)
    energy += timing.slot_energy_pj * (len(opcode) - int(softmax.sum()))
    energy += timing.scalar_energy_pj * int(_SCALAR[opcode].sum())

    def padded(values: Ints) -> Ints:
        return np.concatenate(([0], values, [0]))

    kind = padded(code)
    kind[-1] = Item.EXIT
    return CoreScan(
        core=program.core,
        kind=kind,
        gap_ns=np.diff(ends, prepend=0),
        size=padded(np.where(events, 0, generic3)),
        peer=padded(np.where(peers, second, -1)),
        register=padded(np.where(events, generic1, -1)),
        value=padded(np.where(code == Opcode.WAIT, generic2, 0)),
        wrap_ns=int(total[-1]) - last_unit,
        work_ns=int(total[-1]),
        instructions=len(opcode),
        softmax=int(softmax.sum()),
        ends_in_slot=bool(slots[-1]),
        energy_pj=energy,
    )


def _weigh_local(
    program: CoreProgram,
    records: NDArray[np.void],
    opcode: NDArray[np.uint8],
    timing: PimTiming,
    weight: Ints,
    *,
    issue: bool,
) -> float:
    """Fill in the time of local instructions; return their dynamic energy (pJ)."""
    energy = 0.0
    local = timing.local

    def put(where: Ints, execution: Ints, last: Ints | None = None) -> None:
        weight[where] = (
            arrays.occupancy_ns(timing, execution, last) if issue else execution
        )

    for code in (Opcode.LMV, Opcode.LLDI):
        where = np.flatnonzero(opcode == code)
        if len(where):
            length = records["generic3"][where].astype(np.int64)
            beats = float(arrays.ceil_div_array(length, local.width).sum())
            energy += beats * local.write_energy_pj
            if code is Opcode.LMV:
                put(where, arrays.lmv_ns(timing, length))
                energy += beats * local.read_energy_pj
            else:
                put(where, arrays.local_write_ns(timing, length))

    vectors = np.flatnonzero(_VECTOR[opcode])
    products = np.flatnonzero(opcode == Opcode.MVMUL)
    if not len(vectors) and not len(products):
        return energy
    widths = np.flatnonzero(opcode == Opcode.SETBW)
    input_bits = records["generic1"][widths].astype(np.int64)
    output_bits = records["generic2"][widths].astype(np.int64)

    if len(vectors):
        state = np.searchsorted(widths, vectors) - 1
        codes = opcode[vectors]
        length = records["generic3"][vectors].astype(np.int64)
        binary, wide = _BINARY[codes], _WIDE[codes]
        ibiw, obiw = input_bits[state], output_bits[state]
        put(vectors, *arrays.vector_ns(timing, binary, wide, length, ibiw, obiw))
        source = arrays.bytes_of(ibiw) * length
        result = np.where(wide, arrays.bytes_of(obiw) * length, source)
        chunks = arrays.ceil_div_array(length, timing.vector_width)
        reads = (arrays.ceil_div_array(source, local.width) * (1 + binary)).sum()
        writes = arrays.ceil_div_array(result, local.width).sum()
        energy += float(chunks.sum()) * timing.vector_chunk_energy_pj
        energy += float(reads) * local.read_energy_pj
        energy += float(writes) * local.write_energy_pj

    if len(products):
        state = np.searchsorted(widths, products) - 1
        crossbars = program.array_groups[records["generic2"][products]]
        mbiw = records["r2_or_imm"][products].astype(np.int64)
        ibiw, obiw = input_bits[state], output_bits[state]
        put(products, *arrays.mvmul_ns(timing, crossbars, mbiw, ibiw, obiw))
        if issue:
            weight[products] += timing.period_ns  # the register before the unit
        unit = timing.matrix
        passes = ibiw // unit.dac_resolution * unit.dac_times
        columns = unit.cell_bits * unit.cols // mbiw
        read = arrays.ceil_div_array(unit.rows * 8 * arrays.bytes_of(ibiw), local.width)
        written = arrays.ceil_div_array(
            columns * arrays.bytes_of(obiw) * crossbars, local.width
        )
        energy += float((passes * crossbars).sum()) * unit.pass_energy_pj
        energy += float(read.sum()) * local.read_energy_pj
        energy += float(written.sum()) * local.write_energy_pj
    return energy
