"""Executes one core's instructions between two events that others can see.

The kernel works on a core's own state: registers, local memory and a byte map of
what was written.  It stops before every instruction that needs the rest of the chip
(``ld st send recv sync wait``) or numbers the kernel does not have (``vsigm vtanh
vsoftmax``), at the end of the text, and at the first fault.

A vector instruction reads all of its sources before it writes.  Elements are signed
little-endian integers; every write wraps around to its width.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]

#: Columns of a decoded program.
OPCODE, RD, RS1, IMMEDIATE, FIRST, SECOND, THIRD = range(7)
#: Fields of a core's state vector, behind its 32 registers.
PC, INPUT_BITS, OUTPUT_BITS, FAULT, FAULT_VALUE = range(32, 37)
STATE_SIZE = 37


class Stop(IntEnum):
    """Why the kernel stopped."""

    EVENT = 0  #: an instruction for the caller
    END = 1  #: behind the last instruction
    FAULT = 2  #: see the state's FAULT and FAULT_VALUE


class Fault(IntEnum):
    """What an instruction did wrong; the value goes with it."""

    NONE = 0
    UNWRITTEN = 1  #: read of a local byte nobody wrote: its address
    RANGE = 2  #: a local address outside the memory
    OFFSET = 3  #: an operand offset, which has no defined meaning here: its value
    SHIFT = 4  #: a negative shift: its value
    WIDTH = 5  #: no element width set
    OPCODE = 6  #: not an instruction of this machine: the opcode


@njit(cache=True)
def _width(bits: int) -> int:
    return (bits + 7) // 8


@njit(cache=True)
def read_elements(
    memory: Bytes,
    written: Bytes,
    address: int,
    width: int,
    length: int,
    out: Ints,
    state: Ints,
) -> bool:
    """``length`` elements of ``width`` bytes into ``out``; False at a fault."""
    if address < 0 or address + width * length > memory.size:
        state[FAULT] = 2
        state[FAULT_VALUE] = address if address < 0 else address + width * length - 1
        return False
    for index in range(width * length):
        if written[address + index] == 0:
            state[FAULT] = 1
            state[FAULT_VALUE] = address + index
            return False
    sign = 64 - 8 * width
    for element in range(length):
        place = address + element * width
        value = np.int64(0)
        for byte in range(width):
            value |= np.int64(memory[place + byte]) << np.int64(8 * byte)
        out[element] = (value << np.int64(sign)) >> np.int64(sign)
    return True


@njit(cache=True)
def write_elements(
    memory: Bytes,
    written: Bytes,
    address: int,
    width: int,
    length: int,
    values: Ints,
    state: Ints,
) -> bool:
    """``length`` wrapped elements of ``width`` bytes; False at a fault."""
    if address < 0 or address + width * length > memory.size:
        state[FAULT] = 2
        state[FAULT_VALUE] = address if address < 0 else address + width * length - 1
        return False
    for element in range(length):
        place = address + element * width
        value = values[element]
        for byte in range(width):
            memory[place + byte] = np.uint8((value >> np.int64(8 * byte)) & 255)
            written[place + byte] = 1
    return True


@njit(cache=True)
def _word(value: int) -> int:
    """Wrapped to a signed 32-bit register."""
    return ((value + 2147483648) & 4294967295) - 2147483648


@njit(cache=True)
def _scalar(state: Ints, opcode: int, row: NDArray[np.int32]) -> None:
    first = int(state[row[RS1]])
    immediate = int(row[IMMEDIATE])
    if opcode == 1:  # sldi
        value = immediate
    elif opcode == 2:  # sld is defined to write zero to register 0
        state[0] = 0
        return
    elif opcode == 3:
        value = first + int(state[row[IMMEDIATE]])
    elif opcode == 4:
        value = first - int(state[row[IMMEDIATE]])
    elif opcode == 5:
        value = first * int(state[row[IMMEDIATE]])
    elif opcode == 6:
        value = first + immediate
    else:
        value = first * immediate
    state[row[RD]] = _word(value)


@njit(cache=True)
def _product(
    state: Ints,
    memory: Bytes,
    written: Bytes,
    row: NDArray[np.int32],
    groups: Ints,
    weights: NDArray[np.signedinteger],
    left: Ints,
    result: Ints,
) -> bool:
    """mvmul: ``W^T x``; columns behind the true ones hold nothing defined."""
    group = groups[row[SECOND]]
    start, rows = int(group[0]), int(group[1])
    columns, full = int(group[2]), int(group[3])
    width_in, width_out = (
        _width(int(state[INPUT_BITS])),
        _width(int(state[OUTPUT_BITS])),
    )
    source, target = int(state[row[RS1]]), int(state[row[RD]])
    if not read_elements(memory, written, source, width_in, rows, left, state):
        return False
    result[:columns] = 0
    for k in range(rows):
        x = left[k]
        if x != 0:
            base = start + k * columns
            for n in range(columns):
                result[n] += x * np.int64(weights[base + n])
    if not write_elements(memory, written, target, width_out, columns, result, state):
        return False
    spill = target + columns * width_out
    stop = target + full * width_out
    if stop > memory.size:
        state[FAULT] = 2
        state[FAULT_VALUE] = stop - 1
        return False
    for place in range(spill, stop):
        written[place] = 0
    return True


@njit(cache=True)
def _vector(
    state: Ints,
    memory: Bytes,
    written: Bytes,
    opcode: int,
    row: NDArray[np.int32],
    left: Ints,
    right: Ints,
    result: Ints,
) -> bool:
    length = int(row[THIRD])
    width_in, width_out = (
        _width(int(state[INPUT_BITS])),
        _width(int(state[OUTPUT_BITS])),
    )
    if width_in == 0 or width_out == 0:
        state[FAULT] = 5
        state[FAULT_VALUE] = 0
        return False
    source, target = int(state[row[RS1]]), int(state[row[RD]])
    if not read_elements(memory, written, source, width_in, length, left, state):
        return False
    if opcode <= 16:  # two source vectors
        second = int(state[row[IMMEDIATE]])
        if not read_elements(memory, written, second, width_in, length, right, state):
            return False
    width, count = width_in, length
    if opcode == 10:
        for i in range(length):
            result[i] = left[i] + right[i]
    elif opcode == 11:
        for i in range(length):
            result[i] = left[i] - right[i]
    elif opcode == 12:
        width = width_out
        for i in range(length):
            result[i] = left[i] * right[i]
    elif opcode == 13:
        width, count = width_out, 1
        result[0] = 0
        for i in range(length):
            result[0] += left[i] * right[i]
    elif opcode == 14:
        for i in range(length):
            result[i] = max(left[i], right[i])
    elif opcode == 15 or opcode == 16:
        width = width_out
        for i in range(length):
            if right[i] < 0:
                state[FAULT] = 4
                state[FAULT_VALUE] = right[i]
                return False
            if opcode == 15:
                result[i] = left[i] << right[i] if right[i] < 64 else 0
            else:
                result[i] = left[i] >> min(right[i], np.int64(63))
    elif opcode == 17:
        width, count = width_out, 1
        total = np.int64(0)
        for i in range(length):
            total += left[i]
        result[0] = total // np.int64(max(length, 1))
    elif opcode == 18:
        for i in range(length):
            result[i] = max(left[i], np.int64(0))
    elif opcode == 22:
        for i in range(length):
            result[i] = left[i]
    elif opcode == 23:
        width = width_out
        bound = np.int64(state[row[IMMEDIATE]])
        for i in range(length):
            result[i] = min(left[i], bound)
    else:
        width = width_out
        bound = np.int64(state[row[IMMEDIATE]])
        for i in range(length):
            result[i] = max(left[i], bound)
    return bool(write_elements(memory, written, target, width, count, result, state))


@njit(cache=True)
def _local_move(
    state: Ints,
    memory: Bytes,
    written: Bytes,
    opcode: int,
    row: NDArray[np.int32],
    left: Ints,
) -> bool:
    size, target = int(row[THIRD]), int(state[row[RD]])
    if opcode == 28:
        source = int(state[row[RS1]])
        if not read_elements(memory, written, source, 1, size, left, state):
            return False
    else:
        left[:size] = row[IMMEDIATE]
    return bool(write_elements(memory, written, target, 1, size, left, state))


@njit(cache=True)
def run_core(
    text: NDArray[np.int32],
    state: Ints,
    memory: Bytes,
    written: Bytes,
    groups: Ints,
    weights: NDArray[np.signedinteger],
    left: Ints,
    right: Ints,
    result: Ints,
) -> int:
    """Execute from the state's PC until a :class:`Stop`.

    Args:
        text: [instructions, 7] decoded records.
        state: [STATE_SIZE] registers, PC, widths, fault.
        memory, written: [local bytes] contents, and 1 where somebody wrote.
        groups: [array groups, 4] first weight, K, N, columns of its crossbars.
        weights: the matrices of all groups, row by row.
        left, right, result: [elements] buffers for the longest vector.
    """
    pc = int(state[PC])
    while pc < text.shape[0]:
        row = text[pc]
        opcode = int(row[OPCODE])
        good = True
        if 1 <= opcode <= 7:
            _scalar(state, opcode, row)
        elif opcode == 8:
            state[INPUT_BITS] = row[FIRST]
            state[OUTPUT_BITS] = row[SECOND]
        elif opcode == 9:
            good = _product(state, memory, written, row, groups, weights, left, result)
        elif opcode == 0 or opcode > 32:
            good = False
            state[FAULT] = 6
            state[FAULT_VALUE] = opcode
        elif (opcode < 29) and opcode != 9 and row[SECOND] != 0 and row[FIRST] != 0:
            good = False
            state[FAULT] = 3
            state[FAULT_VALUE] = row[SECOND]
        elif 19 <= opcode <= 21 or opcode == 25 or opcode == 26 or opcode > 28:
            state[PC] = pc
            return 0
        elif opcode >= 27:
            good = _local_move(state, memory, written, opcode, row, left)
        else:
            good = _vector(state, memory, written, opcode, row, left, right, result)
        if not good:
            state[PC] = pc
            return 2
        pc += 1
    state[PC] = pc
    return 1
