"""Time and energy of every instruction, as pure integer functions.

A :class:`PimTiming` is built once from a :class:`~raptor_cp.targets.pim.config.
PimConfig`; after that all times are whole ns (int) and all energies pJ (float).
Two times are told apart everywhere:

* *execution*: from the start of the unit to the end of its work;
* *occupancy*: from start to commit, when the next instruction can issue.  With
  reorder-buffer capacity one a core runs one non-scalar instruction at a time, so
  occupancies and issue slots simply add up.

Rates that are not whole ns per cycle (a matrix clock of 0.78125 ns, say) are
kept exactly and rounded up once per instruction.  Formulas and quirks are those
of the public simulator; the docs page "PIM target" lists them with the reasons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.isa import VECTOR, VECTOR_BINARY, WIDE_RESULT, Opcode
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from raptor_cp.targets.pim.config import MatrixConfig, MemoryConfig, PimConfig

#: Ticks per beat, cycle or chunk stay below this, so that int64 products of
#: 32-bit sizes hold.
_MAX_RATE = 2**24
#: Ticks per ns, so that MAX_NS in ticks still fits int64.
_MAX_SCALE = 2**20


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """``width`` bytes a beat; read and write cost in ticks (1/scale ns) a beat."""

    width: int
    read_ticks: int
    write_ticks: int
    read_energy_pj: float
    write_energy_pj: float


@dataclass(frozen=True, slots=True)
class MatrixRate:
    """What one ``mvmul`` needs: see :meth:`PimTiming.mvmul_cycles`."""

    rows: int
    cols: int
    cell_bits: int
    tick: int
    front_cycles: int
    back_cycles: int
    dac_resolution: int
    dac_times: int
    pipelined: bool
    pass_energy_pj: float


@dataclass(frozen=True, slots=True, eq=False)
class PimTiming:
    """All timing of one chip.

    Attributes:
        cores: P.
        period_ns: core clock; whole ns (see ``unavailable`` when it is not).
        scale: ticks per ns in the memory and matrix rates.
        vector_chunk_ns: ns per ``vector_width`` elements; no clock scales it.
        latency_ns: [P+1, P+1] int64 ns per flit, global memory at index P.
        link_energy_pj: [P+1, P+1] float64 pJ per flit.
        static_power_mw: (per existing core, global memory).
        unavailable: reasons why whole programs cannot be timed; empty normally.
            The formulas are still defined (costs for scheduling need them).
    """

    cores: int
    period_ns: int
    scale: int
    vector_width: int
    vector_chunk_ns: int
    vector_chunk_energy_pj: float
    local: MemoryRate
    memory: MemoryRate
    matrix: MatrixRate
    bus_width: int
    latency_ns: NDArray[np.int64]
    link_energy_pj: NDArray[np.float64]
    static_power_mw: tuple[float, float]
    slot_energy_pj: float
    scalar_energy_pj: float
    unavailable: tuple[str, ...]

    @classmethod
    def from_config(cls, config: PimConfig) -> PimTiming:
        """Convert cycles to ns once.

        Raises:
            MalformedInput: a rate is outside the supported numeric range.
        """
        core, matrix = config.core, config.core.matrix
        scale = math.lcm(
            core.local_memory.period_ns.denominator,
            config.global_memory.period_ns.denominator,
            matrix.period_ns.denominator,
        )
        if scale > _MAX_SCALE:
            raise MalformedInput(
                "the memory and matrix periods have no common time step",
                where=config.name,
                value=scale,
                expected=f"at most {_MAX_SCALE} steps a ns",
            )
        reasons = []
        if core.rob_size != 1:
            reasons.append(
                f"rob_size is {core.rob_size}: only a reorder buffer of capacity one "
                "keeps the serial order that this timing describes"
            )
        if core.period_ns.denominator != 1:
            reasons.append(
                f"the core period of {float(core.period_ns):g} ns is not a whole "
                "number of ns"
            )
        core_period = float(core.period_ns)
        return cls(
            cores=config.core_count,
            period_ns=math.ceil(core.period_ns),
            scale=scale,
            vector_width=core.vector_width,
            vector_chunk_ns=_rate(core.vector_latency_cycle, "vector_latency_cycle"),
            vector_chunk_energy_pj=core.vector_alu_energy_pj
            + 2 * core.vector_register_read_energy_pj
            + core.vector_register_write_energy_pj,
            local=_memory_rate(core.local_memory, scale, "local memory"),
            memory=_memory_rate(config.global_memory, scale, "global memory"),
            matrix=_matrix_rate(matrix, scale),
            bus_width=config.bus_width,
            latency_ns=config.network.latency_ns,
            link_energy_pj=config.network.energy_pj,
            static_power_mw=(
                core.static_power_mw + core.local_memory.static_power_mw,
                config.global_memory.static_power_mw,
            ),
            slot_energy_pj=core_period
            * (
                core.fetch_power_mw + core.decode_power_mw + core.register_read_power_mw
            ),
            scalar_energy_pj=core_period
            * (core.scalar_power_mw + core.register_write_power_mw),
            unavailable=tuple(reasons),
        )

    # -- memories ---------------------------------------------------------------

    def local_read_ns(self, size: int) -> int:
        """Read ``size`` bytes of the core's own memory."""
        return self._ns(self._local_read(size))

    def local_write_ns(self, size: int) -> int:
        """Write ``size`` bytes to the core's own memory."""
        return self._ns(self._local_write(size))

    def memory_read_ns(self, size: int) -> int:
        """Service of a global read: how long the controller is held."""
        return self._ns(ceil_div(size, self.memory.width) * self.memory.read_ticks)

    def memory_write_ns(self, size: int) -> int:
        """Service of a global write: how long the controller is held."""
        return self._ns(ceil_div(size, self.memory.width) * self.memory.write_ticks)

    # -- local instructions: execution time -------------------------------------

    def vector_ns(self, opcode: Opcode, length: int, ibiw: int, obiw: int) -> int:
        """A vector operation on ``length`` elements; widths in bits."""
        if opcode not in VECTOR:
            raise MalformedInput("not a timed vector operation", value=opcode.mnemonic)
        reads = 2 if opcode in VECTOR_BINARY else 1
        source = ceil_div(ibiw, 8) * length
        result = ceil_div(obiw, 8) * length if opcode in WIDE_RESULT else source
        ticks = reads * self._local_read(source) + self._local_write(result)
        return (
            self._ns(ticks) + ceil_div(length, self.vector_width) * self.vector_chunk_ns
        )

    def mvmul_cycles(self, ibiw: int) -> int:
        """Matrix cycles of one product, whatever the group's size.

        Front stage (converters, crossbar, sample and hold) and back stage (ADCs,
        shift-adders, output buffer) overlap between passes when pipelined.
        """
        unit = self.matrix
        passes = ibiw // unit.dac_resolution * unit.dac_times
        both = unit.front_cycles + unit.back_cycles
        if not unit.pipelined:
            return both * passes
        return both + (passes - 1) * max(unit.front_cycles, unit.back_cycles)

    def mvmul_ns(self, crossbars: int, mbiw: int, ibiw: int, obiw: int) -> int:
        """A matrix-vector product on a group of ``crossbars`` crossbars."""
        unit = self.matrix
        # The factor 8 on the read is the simulator's own.
        read = self._local_read(unit.rows * ceil_div(ibiw, 8) * 8)
        columns = unit.cell_bits * unit.cols // mbiw
        write = self._local_write(columns * ceil_div(obiw, 8) * crossbars)
        return self._ns(read + self.mvmul_cycles(ibiw) * unit.tick + write)

    def lmv_ns(self, length: int) -> int:
        """Copy ``length`` bytes inside the local memory."""
        return self._ns(self._local_read(length) + self._local_write(length))

    def lldi_ns(self, length: int) -> int:
        """Fill ``length`` bytes of the local memory."""
        return self.local_write_ns(length)

    def sync_ns(self) -> int:
        """Hand a signal to the switch: one core period."""
        return self.period_ns

    # -- links and communication ------------------------------------------------

    def link_ns(self, source: int, target: int, size: int = 1) -> int:
        """A message of ``size`` bytes; flits are not pipelined.

        ``cores`` stands for the global memory; size 1 is a control message.
        """
        return ceil_div(size, self.bus_width) * int(self.latency_ns[source, target])

    def ld_ns(self, core: int, size: int) -> int:
        """A global load without queueing; the data travel back free."""
        request = self.link_ns(core, self.cores)
        return request + self.memory_read_ns(size) + self.local_write_ns(size)

    def st_ns(self, core: int, size: int) -> int:
        """A global store without queueing."""
        payload = self.link_ns(core, self.cores, size)
        return self.local_read_ns(size) + payload + self.memory_write_ns(size)

    def handshake_ns(self, source: int, target: int) -> int:
        """Permission of a transfer: one control message each way."""
        return self.link_ns(source, target) + self.link_ns(target, source)

    def send_ns(self, source: int, target: int, size: int) -> int:
        """A SEND whose RECV already waits; the payload leaves afterwards."""
        return self.handshake_ns(source, target) + self.local_read_ns(size)

    def transfer_ns(self, source: int, target: int, size: int) -> int:
        """Start of a SEND to the end of its waiting RECV."""
        return (
            self.send_ns(source, target, size)
            + self.link_ns(source, target, size)
            + self.local_write_ns(size)
        )

    # -- issue and commit -------------------------------------------------------

    def first_start_ns(self, slots: int) -> int:
        """Start of a core's first unit instruction after ``slots`` scalar slots."""
        return (3 + slots) * self.period_ns

    def issue_ns(self, slots: int) -> int:
        """From a commit to the next start with ``slots`` scalar slots between."""
        return (1 + slots) * self.period_ns

    def occupancy_ns(
        self, execution_ns: int, opcode: Opcode, last_ns: int | None = None
    ) -> int:
        """Start to commit of an instruction that starts on a clock edge.

        Commit is the first edge at or after the end plus one period.  It is the
        first edge strictly after the end for ST, SYNC and WAIT, for whatever ends
        within its first period, and where the last step is so short that the clock
        is ahead of it: shorter than a period for vectors and products, at most a
        period for LD, SEND and RECV (measured).  MVMUL passes one more register,
        a period before its unit starts.

        Args:
            execution_ns: from start to end.
            opcode: the instruction.
            last_ns: the last local access, where it is a step of its own.
        """
        period = self.period_ns
        before = period if opcode is Opcode.MVMUL else 0
        outside = opcode in (Opcode.LD, Opcode.SEND, Opcode.RECV)
        late = (
            opcode in (Opcode.ST, Opcode.SYNC, Opcode.WAIT)
            or (execution_ns <= period and not outside)
            or (last_ns is not None and last_ns < period + outside)
        )
        if late:
            return before + (execution_ns // period + 2) * period
        return before + (ceil_div(execution_ns, period) + 1) * period

    def vector_occupancy_ns(
        self, opcode: Opcode, length: int, ibiw: int, obiw: int
    ) -> int:
        """Start to commit of a vector operation."""
        execution = self.vector_ns(opcode, length, ibiw, obiw)
        width = ceil_div(obiw if opcode in WIDE_RESULT else ibiw, 8)
        return self.occupancy_ns(execution, opcode, self.local_write_ns(width * length))

    def mvmul_occupancy_ns(
        self, crossbars: int, mbiw: int, ibiw: int, obiw: int
    ) -> int:
        """Start to commit of a matrix-vector product."""
        execution = self.mvmul_ns(crossbars, mbiw, ibiw, obiw)
        columns = self.matrix.cell_bits * self.matrix.cols // mbiw
        written = self.local_write_ns(columns * ceil_div(obiw, 8) * crossbars)
        return self.occupancy_ns(execution, Opcode.MVMUL, written)

    def lmv_occupancy_ns(self, length: int) -> int:
        """Start to commit of a local copy."""
        return self.occupancy_ns(self.lmv_ns(length), Opcode.LMV)

    def lldi_occupancy_ns(self, length: int) -> int:
        """Start to commit of a local fill."""
        return self.occupancy_ns(self.lldi_ns(length), Opcode.LLDI)

    def ld_occupancy_ns(self, core: int, size: int) -> int:
        """Start to commit of an uncontended global load."""
        execution = self.ld_ns(core, size)
        return self.occupancy_ns(execution, Opcode.LD, self.local_write_ns(size))

    def send_occupancy_ns(self, source: int, target: int, size: int) -> int:
        """Start to commit of a SEND whose RECV already waits."""
        execution = self.send_ns(source, target, size)
        return self.occupancy_ns(execution, Opcode.SEND, self.local_read_ns(size))

    def retire_ns(self, last_ns: int) -> int:
        """Least delay from the end of a LD, SEND or RECV to its commit."""
        return self.period_ns if last_ns > self.period_ns else self.period_ns + 1

    def st_occupancy_ns(self, core: int, size: int) -> int:
        """Start to commit of an uncontended global store."""
        return self.occupancy_ns(self.st_ns(core, size), Opcode.ST)

    # -- energy -----------------------------------------------------------------

    def vector_energy_pj(
        self, opcode: Opcode, length: int, ibiw: int, obiw: int
    ) -> float:
        """Dynamic energy of a vector operation, local memory included."""
        reads = 2 if opcode in VECTOR_BINARY else 1
        source = ceil_div(ibiw, 8) * length
        result = ceil_div(obiw, 8) * length if opcode in WIDE_RESULT else source
        chunks = ceil_div(length, self.vector_width)
        return (
            chunks * self.vector_chunk_energy_pj
            + reads * self.local_read_energy_pj(source)
            + self.local_write_energy_pj(result)
        )

    def mvmul_energy_pj(self, crossbars: int, mbiw: int, ibiw: int, obiw: int) -> float:
        """Dynamic energy of a matrix-vector product, local memory included."""
        unit = self.matrix
        passes = ibiw // unit.dac_resolution * unit.dac_times
        columns = unit.cell_bits * unit.cols // mbiw
        return (
            passes * unit.pass_energy_pj * crossbars
            + self.local_read_energy_pj(unit.rows * ceil_div(ibiw, 8) * 8)
            + self.local_write_energy_pj(columns * ceil_div(obiw, 8) * crossbars)
        )

    def local_read_energy_pj(self, size: int) -> float:
        """Dynamic energy of a local read."""
        return ceil_div(size, self.local.width) * self.local.read_energy_pj

    def local_write_energy_pj(self, size: int) -> float:
        """Dynamic energy of a local write."""
        return ceil_div(size, self.local.width) * self.local.write_energy_pj

    def memory_energy_pj(self, size: int, *, write: bool) -> float:
        """Dynamic energy of a global access at the memory."""
        rate = self.memory.write_energy_pj if write else self.memory.read_energy_pj
        return ceil_div(size, self.memory.width) * rate

    def link_energy(self, source: int, target: int, size: int = 1) -> float:
        """Dynamic energy (pJ) of one message."""
        flits = ceil_div(size, self.bus_width)
        return flits * float(self.link_energy_pj[source, target])

    def static_energy_pj(self, cores: int, interval_ns: float) -> float:
        """Static energy of ``cores`` existing cores and the memory (mW * ns = pJ)."""
        per_core, memory = self.static_power_mw
        return (cores * per_core + memory) * interval_ns

    # -- inside -----------------------------------------------------------------

    def _local_read(self, size: int) -> int:
        return ceil_div(size, self.local.width) * self.local.read_ticks

    def _local_write(self, size: int) -> int:
        return ceil_div(size, self.local.width) * self.local.write_ticks

    def _ns(self, ticks: int) -> int:
        return ceil_div(ticks, self.scale)


def _ticks(cycles: int, period_ns: Fraction, scale: int) -> int:
    return cycles * period_ns.numerator * (scale // period_ns.denominator)


def _rate(value: int, what: str) -> int:
    if value > _MAX_RATE:
        raise MalformedInput(
            f"{what} is outside the supported numeric range",
            value=value,
            expected=f"at most {_MAX_RATE} time steps",
        )
    return value


def _memory_rate(memory: MemoryConfig, scale: int, what: str) -> MemoryRate:
    period = memory.period_ns
    return MemoryRate(
        width=memory.data_width,
        read_ticks=_rate(
            _ticks(memory.read_latency_cycle, period, scale), f"{what} read"
        ),
        write_ticks=_rate(
            _ticks(memory.write_latency_cycle, period, scale), f"{what} write"
        ),
        read_energy_pj=memory.read_energy_pj,
        write_energy_pj=memory.write_energy_pj,
    )


def _matrix_rate(matrix: MatrixConfig, scale: int) -> MatrixRate:
    read_cycles = math.ceil(matrix.xbar_latency_ns / matrix.period_ns)
    front = matrix.dac_latency_cycle + read_cycles + matrix.sample_hold_latency_cycle
    shift = matrix.shift_adder_latency_cycle + matrix.output_buffer_latency_cycle
    # The simulator divides with floor here although it means to round up.
    adc_times = matrix.xbar_cols // matrix.adc_count
    dac_times = matrix.xbar_rows // matrix.dac_count
    converter = matrix.adc_latency_cycle
    back = converter + shift + (adc_times - 1) * max(converter, shift)
    dac = matrix.dac_dynamic_power_mw * matrix.dac_latency_cycle * matrix.dac_count
    hold = (
        matrix.sample_hold_dynamic_power_mw
        * matrix.sample_hold_latency_cycle
        * matrix.xbar_cols
    )
    columns = (
        matrix.adc_dynamic_power_mw * converter * matrix.adc_count
        + matrix.shift_adder_dynamic_power_mw * matrix.shift_adder_latency_cycle
        + matrix.output_buffer_dynamic_power_mw * matrix.output_buffer_latency_cycle
    )
    period = float(matrix.period_ns)
    read = matrix.xbar_read_power_mw * float(matrix.xbar_latency_ns)
    return MatrixRate(
        rows=matrix.xbar_rows,
        cols=matrix.xbar_cols,
        cell_bits=matrix.cell_precision,
        tick=_rate(_ticks(1, matrix.period_ns, scale), "matrix period"),
        front_cycles=front,
        back_cycles=back,
        dac_resolution=matrix.dac_resolution,
        dac_times=dac_times,
        pipelined=matrix.pipeline_mode,
        pass_energy_pj=period * (dac + hold) + read + adc_times * period * columns,
    )
