"""Local memory: first fit by offset over lifetimes in a core's text.

Buffers live from a first to a last step of the text, both inclusive; two buffers may
share bytes only if their lives do not meet.  Buffers are placed in the order in which
their lives begin (larger first), each at the lowest free offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Local addresses are signed 32-bit numbers.
ADDRESS_LIMIT = 2**31
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Buffer:
    """``size`` bytes needed from step ``first`` to step ``last``."""

    name: str
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """``addresses`` in the order of the buffers; ``used`` bytes in all."""

    addresses: tuple[int, ...]
    used: int


@dataclass(frozen=True, slots=True)
class MemoryExhausted:
    """A buffer has no place.

    Attributes:
        name: the first buffer that has none.
        needed: bytes up to its end at the lowest free offset.
        limit: bytes there are; ``configured`` tells the memory's size from the
            signed 32-bit range of addresses.
    """

    name: str
    needed: int
    limit: int
    configured: bool

    @property
    def reason(self) -> str:
        """One sentence."""
        what = "the configured local memory" if self.configured else "32-bit addresses"
        return f"{self.name} needs {self.needed:,} bytes of {self.limit:,}: {what}"


def allocate(
    buffers: Sequence[Buffer], capacity: int | None = None
) -> Allocation | MemoryExhausted:
    """Place all buffers.

    Args:
        buffers: in any order; sizes above 0.
        capacity: bytes of the memory; None where only the address range limits.

    >>> allocate([Buffer("a", 8, 0, 1), Buffer("b", 8, 2, 3), Buffer("c", 4, 1, 2)])
    Allocation(addresses=(0, 0, 8), used=12)
    """
    configured = capacity is not None and capacity <= ADDRESS_LIMIT
    limit = capacity if configured and capacity is not None else ADDRESS_LIMIT
    order = sorted(
        range(len(buffers)),
        key=lambda i: (buffers[i].first, -buffers[i].size, i),
    )
    addresses = [0] * len(buffers)
    active: list[tuple[int, int, int]] = []  # (start, end, last), by start
    used = 0
    for index in order:
        buffer = buffers[index]
        active = [entry for entry in active if entry[2] >= buffer.first]
        place = 0
        at = len(active)
        for number, (start, end, _) in enumerate(active):
            if start - place >= buffer.size:
                at = number
                break
            place = max(place, -(-end // ALIGNMENT) * ALIGNMENT)
        end = place + buffer.size
        if end > limit:
            return MemoryExhausted(buffer.name, end, limit, configured)
        active.insert(at, (place, end, buffer.last))
        addresses[index] = place
        used = max(used, end)
    return Allocation(tuple(addresses), used)
