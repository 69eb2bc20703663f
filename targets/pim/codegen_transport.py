"""Instructions of everything that is no task: memory, transfers, signals, banks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.realization.plan import Signal, Wait
from raptor_cp.targets.pim.emission import DESTINATION, FIRST, SECOND, Text, fixed
from raptor_cp.targets.pim.isa import Opcode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class BankCounter:
    """Persistent registers that count generations and hold bank offsets.

    The counter is as wide as the largest number of banks; registers start at zero and
    persist, so that round k uses bank ``k mod banks`` without any prologue.

    Args:
        first: first free register.
        strides: number of banks (a power of two) -> bytes from bank to bank.
    """

    def __init__(self, first: int, strides: dict[int, int]) -> None:
        self._strides = strides
        bits = max(strides, default=1).bit_length() - 1
        self._bits = list(range(first, first + bits))
        self._offsets = {
            banks: first + bits + index for index, banks in enumerate(strides)
        }
        self._carry = first + bits + len(strides)
        self.used = bits + len(strides) + (2 if bits else 0)

    def register(self, banks: int) -> int | None:
        """Register with the current bank's offset; None for a single bank."""
        return self._offsets.get(banks)

    def emit(self, text: Text) -> None:
        """Offsets of this round, then the counter of the next one."""
        carry, product = self._carry, self._carry + 1
        for banks, offset in self._offsets.items():
            own = self._bits[: banks.bit_length() - 1]
            text.put(Opcode.SADDI, offset, own[-1])
            for bit in reversed(own[:-1]):
                text.put(Opcode.SMULI, offset, offset, 2)
                text.put(Opcode.SADD, offset, offset, bit)
            text.put(Opcode.SMULI, offset, offset, self._strides[banks])
        if self._bits:
            text.put(Opcode.SLDI, carry, r2=1)
        for bit in self._bits:
            # Half adder: sum = bit + carry - 2 * bit * carry.
            text.put(Opcode.SMUL, product, bit, carry)
            text.put(Opcode.SADD, bit, bit, carry)
            text.put(Opcode.SMULI, carry, product, 2)
            text.put(Opcode.SSUB, bit, bit, carry)
            text.put(Opcode.SADDI, carry, product)


def _global_address(text: Text, address: Ints, offset: int | None) -> None:
    """The two words of a global address, in registers 1 and 2."""
    text.put(Opcode.SLDI, FIRST)
    if offset is None:
        text.address(SECOND, fixed(address))
    else:
        text.put(Opcode.SADDI, SECOND, offset, address)


def load_text(local: Ints, memory: Ints, size: int, offset: int | None) -> Text:
    """One ``ld`` for each pair of addresses."""
    text = Text(local.size)
    text.address(DESTINATION, fixed(local))
    _global_address(text, memory, offset)
    text.put(Opcode.LD, DESTINATION, FIRST, generic=(0, 0, size))
    return text


def store_text(local: Ints, memory: Ints, size: int, offset: int | None) -> Text:
    """One ``st`` for each pair of addresses."""
    text = Text(local.size)
    text.address(DESTINATION, fixed(local))
    _global_address(text, memory, offset)
    text.put(Opcode.ST, FIRST, DESTINATION, generic=(0, 0, size))
    return text


def send_text(opcode: Opcode, local: int, size: int, peer: int) -> Text:
    """A ``send`` or ``recv``; both address fields name the payload."""
    text = Text()
    text.address(DESTINATION, fixed(local))
    text.put(opcode, DESTINATION, DESTINATION, peer, (0, 0, size))
    return text


def signal_text(item: Signal | Wait) -> Text:
    """A ``sync`` or ``wait``."""
    text = Text()
    if isinstance(item, Signal):
        text.put(Opcode.SYNC, r2=item.core, generic=(item.register, 0, 0))
    else:
        text.put(Opcode.WAIT, generic=(item.register, item.count, 0))
    return text


def replicate(source: int, target: int, size: int, total: int) -> Text:
    """``size`` bytes repeated over ``total``, by doubling."""
    text = Text()
    text.copy(fixed(target), fixed(source), size)
    done = size
    while done < total:
        part = min(done, total - done)
        text.copy(fixed(target + done), fixed(target), part)
        done += part
    return text
