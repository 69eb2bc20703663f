"""The formulas of :mod:`~raptor_cp.targets.pim.timing` over numpy arrays.

All inputs are int64 arrays of one length (or scalars); all results are int64 ns.
Each function first checks, with exact integers and the largest inputs, that no
element can leave the supported range, so that nothing ever wraps around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import Unresolved
from raptor_cp.targets.pim.isa import MAX_BIT_WIDTH
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.targets.pim.timing import MemoryRate, PimTiming

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def ceil_div_array(dividend: Ints, divisor: int) -> Ints:
    """``ceil(dividend / divisor)`` of non-negative values."""
    return (dividend + (divisor - 1)) // divisor


def in_range(largest: int, what: str) -> None:
    """Refuse a time that is not supported.

    Raises:
        Unresolved: ``largest`` (ns, an exact bound) exceeds ``MAX_NS``.
    """
    if largest > MAX_NS:
        raise Unresolved(
            f"{what} may take {largest} ns: timing is outside the supported numeric "
            f"range ({MAX_NS} ns)"
        )


def bytes_of(bits: Ints) -> Ints:
    """Whole bytes of elements of ``bits`` bits."""
    return ceil_div_array(bits, 8)


def local_read_ns(timing: PimTiming, size: Ints) -> Ints:
    """Reads of the cores' own memories."""
    in_range(timing.local_read_ns(_largest(size)), "a local read")
    return _ns(timing, _beats(timing.local, size) * timing.local.read_ticks)


def local_write_ns(timing: PimTiming, size: Ints) -> Ints:
    """Writes to the cores' own memories."""
    in_range(timing.local_write_ns(_largest(size)), "a local write")
    return _ns(timing, _beats(timing.local, size) * timing.local.write_ticks)


def memory_read_ns(timing: PimTiming, size: Ints) -> Ints:
    """Service of global reads."""
    in_range(timing.memory_read_ns(_largest(size)), "a global read")
    return _ns(timing, _beats(timing.memory, size) * timing.memory.read_ticks)


def memory_write_ns(timing: PimTiming, size: Ints) -> Ints:
    """Service of global writes."""
    in_range(timing.memory_write_ns(_largest(size)), "a global write")
    return _ns(timing, _beats(timing.memory, size) * timing.memory.write_ticks)


def lmv_ns(timing: PimTiming, length: Ints) -> Ints:
    """Local copies."""
    in_range(timing.lmv_ns(_largest(length)), "a local copy")
    rates = timing.local.read_ticks + timing.local.write_ticks
    return _ns(timing, _beats(timing.local, length) * rates)


def vector_ns(
    timing: PimTiming, binary: Bools, wide: Bools, length: Ints, ibiw: Ints, obiw: Ints
) -> tuple[Ints, Ints]:
    """Vector operations: (whole, last step); ``binary`` reads two sources,
    ``wide`` writes elements of ``obiw`` bits.
    """
    most = _largest(length)
    widest = most * (MAX_BIT_WIDTH // 8)
    chunk = timing.vector_chunk_ns
    in_range(
        3 * max(timing.local_read_ns(widest), timing.local_write_ns(widest))
        + (most // timing.vector_width + 1) * chunk,
        "a vector operation",
    )
    source = bytes_of(ibiw) * length
    result = np.where(wide, bytes_of(obiw) * length, source)
    read = _beats(timing.local, source) * (timing.local.read_ticks * (1 + binary))
    write = _beats(timing.local, result) * timing.local.write_ticks
    chunks = ceil_div_array(length, timing.vector_width)
    return _ns(timing, read + write) + chunks * chunk, _ns(timing, write)


def mvmul_ns(
    timing: PimTiming, crossbars: Ints, mbiw: Ints, ibiw: Ints, obiw: Ints
) -> tuple[Ints, Ints]:
    """Matrix-vector products: (whole, last step)."""
    unit = timing.matrix
    in_range(
        timing.mvmul_ns(_largest(crossbars), 1, MAX_BIT_WIDTH, MAX_BIT_WIDTH),
        "a matrix product",
    )
    read = _beats(timing.local, unit.rows * 8 * bytes_of(ibiw))
    columns = unit.cell_bits * unit.cols // mbiw
    written = _beats(timing.local, columns * bytes_of(obiw) * crossbars)
    write = written * timing.local.write_ticks
    passes = ibiw // unit.dac_resolution * unit.dac_times
    both = unit.front_cycles + unit.back_cycles
    if unit.pipelined:
        cycles = both + (passes - 1) * max(unit.front_cycles, unit.back_cycles)
    else:
        cycles = both * passes
    ticks = read * timing.local.read_ticks + cycles * unit.tick + write
    return _ns(timing, ticks), _ns(timing, write)


def link_ns(timing: PimTiming, source: Ints, target: Ints, size: Ints) -> Ints:
    """Messages; ``timing.cores`` as source or target is the global memory."""
    flits = ceil_div_array(size, timing.bus_width)
    slowest = int(timing.latency_ns.max(initial=0))
    in_range(_largest(flits) * slowest, "a message")
    return flits * timing.latency_ns[source, target]


def occupancy_ns(
    timing: PimTiming,
    execution_ns: Ints,
    last_ns: Ints | None = None,
    *,
    late: bool = False,
    outside: bool = False,
) -> Ints:
    """Start to commit, as :meth:`PimTiming.occupancy_ns`.

    ``late`` for ST, SYNC and WAIT, ``outside`` for LD; MVMUL takes a period more.
    """
    period = timing.period_ns
    if late:
        return (execution_ns // period + 2) * period
    strict = np.zeros(len(execution_ns), dtype=np.bool_)
    if not outside:
        strict |= execution_ns <= period
    if last_ns is not None:
        strict |= last_ns < period + outside
    edges = np.where(
        strict, execution_ns // period + 2, ceil_div_array(execution_ns, period) + 1
    )
    return edges * period


def retire_ns(timing: PimTiming, last_ns: Ints) -> Ints:
    """Least delay from the end of a SEND or RECV to its commit."""
    period = timing.period_ns
    return np.where(last_ns > period, period, period + 1)


def _largest(values: Ints) -> int:
    return int(values.max(initial=0))


def _beats(memory: MemoryRate, size: Ints) -> Ints:
    return ceil_div_array(size, memory.width)


def _ns(timing: PimTiming, ticks: Ints) -> Ints:
    return ticks if timing.scale == 1 else ceil_div_array(ticks, timing.scale)
