"""Instruction timing: the closed forms of the public configuration and edges."""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.config import PimConfig, load_config
from raptor_cp.targets.pim.isa import VECTOR, VECTOR_BINARY, WIDE_RESULT, Opcode
from raptor_cp.targets.pim.timing import PimTiming

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data" / "pimsim"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="reference data ../shared not present"
)


def cd(a: int, b: int) -> int:
    return -(-a // b)


@pytest.fixture(scope="module")
def reference() -> PimTiming:
    """The simulator's own 64-core chip (spec 'closed forms')."""
    return PimTiming.from_config(load_config(SHARED / "lat.json"))


@functools.cache
def with_period(period: Fraction | int) -> PimTiming:
    config = load_config("arch-a")
    return PimTiming.from_config(
        replace(config, core=replace(config.core, period_ns=Fraction(period)))
    )


@needs_shared
class TestClosedForms:
    """Occupancies at 8 bits, 128x128 crossbars, two ADCs, 1 ns clock."""

    def test_mvmul(self, reference: PimTiming) -> None:
        assert reference.mvmul_cycles(8) == 5168
        assert reference.mvmul_cycles(16) == 10304
        assert reference.mvmul_occupancy_ns(4, 8, 8, 8) == 5194
        for x in range(1, 65):
            assert reference.mvmul_occupancy_ns(x, 8, 8, 8) == 16 + 5168 + 2 * x + 2

    @pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 65, 512, 1024, 2048, 100_003])
    def test_vectors(self, reference: PimTiming, n: int) -> None:
        for opcode in sorted(VECTOR):
            two = opcode in VECTOR_BINARY
            expected = (3 if two else 2) * cd(n, 64) + 4 * cd(n, 16) + 1
            assert reference.vector_occupancy_ns(opcode, n, 8, 8) == expected

    @pytest.mark.parametrize("n", [65, 128, 500, 4096])
    def test_local_moves(self, reference: PimTiming, n: int) -> None:
        assert reference.lmv_occupancy_ns(n) == 2 * cd(n, 64) + 1
        assert reference.lldi_occupancy_ns(n) == cd(n, 64) + 1
        assert reference.lldi_occupancy_ns(64) == 3

    @pytest.mark.parametrize("n", [1, 8, 9, 16, 64, 128, 512, 5000])
    def test_memory(self, reference: PimTiming, n: int) -> None:
        # A last step of one period commits a period later (measured).
        load = 15 + cd(n, 16) + cd(n, 64) + (1 if n > 64 else 2)
        store = cd(n, 64) + 15 * cd(n, 8) + cd(n, 16) + 2
        for core in (0, 63):
            assert reference.ld_occupancy_ns(core, n) == load
            assert reference.st_occupancy_ns(core, n) == store

    def test_transfers(self, reference: PimTiming) -> None:
        there, back = reference.link_ns(0, 1), reference.link_ns(1, 0)
        assert (there, back) == (4, 9)
        for n in (1, 64, 256, 512):
            send = reference.send_occupancy_ns(0, 1, n)
            assert send == there + back + cd(n, 64) + (1 if n > 64 else 2)
            whole = there + back + 2 * cd(n, 64) + cd(n, 8) * there
            assert reference.transfer_ns(0, 1, n) == whole

    def test_signals_and_issue(self, reference: PimTiming) -> None:
        assert reference.occupancy_ns(reference.sync_ns(), Opcode.SYNC) == 3
        assert reference.occupancy_ns(0, Opcode.WAIT) == 2
        assert reference.first_start_ns(0) == 3
        assert reference.first_start_ns(4) == 7
        assert reference.issue_ns(0) == 1
        assert reference.issue_ns(3) == 4

    def test_micro_program_latency(self, reference: PimTiming) -> None:
        # m1_mvm: setbw, sldi, sldi, mvmul, vrelu
        start = reference.first_start_ns(3)
        commit = start + reference.mvmul_occupancy_ns(4, 8, 8, 8)
        start = commit + reference.issue_ns(0)
        finish = start + reference.vector_occupancy_ns(Opcode.VRELU, 16, 8, 8)
        assert finish == 5208


def test_result_width_follows_the_operation() -> None:
    timing = with_period(1)
    narrow = timing.vector_ns(Opcode.VVMUL, 256, 8, 8)
    wide = timing.vector_ns(Opcode.VVMUL, 256, 8, 32)
    assert wide - narrow == timing.local_write_ns(1024) - timing.local_write_ns(256)
    for opcode in sorted(VECTOR - WIDE_RESULT):
        assert timing.vector_ns(opcode, 256, 8, 32) == timing.vector_ns(
            opcode, 256, 8, 8
        )


def test_converters_divide_with_floor() -> None:
    config = load_config("arch-a")
    matrix = replace(config.core.matrix, adc_count=100, dac_count=100)
    timing = PimTiming.from_config(
        replace(config, core=replace(config.core, matrix=matrix))
    )
    # 128 // 100 = one pass, not two
    assert timing.matrix.dac_times == 1
    assert timing.matrix.back_cycles == 20 + 2
    three_bits = replace(config.core.matrix, dac_resolution=3)
    timing = PimTiming.from_config(
        replace(config, core=replace(config.core, matrix=three_bits))
    )
    assert timing.mvmul_cycles(8) == 9 + 162 + (2 - 1) * 162


def test_serial_matrix_unit() -> None:
    config = load_config("arch-a")
    matrix = replace(config.core.matrix, pipeline_mode=False)
    timing = PimTiming.from_config(
        replace(config, core=replace(config.core, matrix=matrix))
    )
    assert timing.mvmul_cycles(8) == (9 + 162) * 8


def test_fractional_matrix_clock_rounds_once() -> None:
    config = load_config("arch-a")
    matrix = replace(config.core.matrix, period_ns=Fraction(25, 32))
    timing = PimTiming.from_config(
        replace(config, core=replace(config.core, matrix=matrix))
    )
    front = 1 + 9 + 1  # ceil(7 / 0.78125) = 9
    cycles = front + 162 + 7 * 162
    assert timing.mvmul_cycles(8) == cycles
    exact = cycles * Fraction(25, 32) + 16 * 20 + 30
    assert timing.mvmul_ns(1, 8, 8, 8) == cd(exact.numerator, exact.denominator)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_commit_edges_of_slower_clocks(period: int) -> None:
    timing = with_period(period)
    assert timing.first_start_ns(2) == 5 * period
    assert timing.occupancy_ns(timing.sync_ns(), Opcode.SYNC) == 3 * period
    assert timing.occupancy_ns(4 * period, Opcode.VVADD) == 5 * period
    assert timing.occupancy_ns(4 * period + 1, Opcode.VVADD) == 6 * period
    assert timing.occupancy_ns(4 * period, Opcode.ST) == 6 * period
    assert timing.occupancy_ns(4 * period - 1, Opcode.ST) == 5 * period
    assert timing.occupancy_ns(4 * period, Opcode.MVMUL) == 6 * period
    # no clock scales the vector unit or the memories
    plain = with_period(1)
    assert timing.vector_ns(Opcode.VVADD, 512, 8, 8) == plain.vector_ns(
        Opcode.VVADD, 512, 8, 8
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(Opcode)), st.integers(1, 7))
def test_commit_is_an_edge_after_the_end(
    execution: int, opcode: Opcode, period: int
) -> None:
    timing = with_period(period)
    occupancy = timing.occupancy_ns(execution, opcode)
    assert occupancy % period == 0
    assert execution + period <= occupancy <= execution + 3 * period


def test_what_cannot_be_timed_is_said() -> None:
    config = load_config("arch-a")
    assert PimTiming.from_config(config).unavailable == ()
    out_of_order = replace(config, core=replace(config.core, rob_size=4))
    (reason,) = PimTiming.from_config(out_of_order).unavailable
    assert "rob_size is 4" in reason
    odd = replace(config, core=replace(config.core, period_ns=Fraction(25, 32)))
    (reason,) = PimTiming.from_config(odd).unavailable
    assert "0.78125 ns" in reason


def test_rates_beyond_the_numeric_range_are_refused() -> None:
    config = load_config("arch-a")

    def with_memory(period: Fraction) -> PimConfig:
        memory = replace(config.global_memory, period_ns=period)
        return replace(config, global_memory=memory)

    with pytest.raises(MalformedInput, match="numeric range"):
        PimTiming.from_config(with_memory(Fraction(2**25)))
    with pytest.raises(MalformedInput, match="not a timed vector"):
        PimTiming.from_config(config).vector_ns(Opcode.LD, 1, 8, 8)


def test_energy() -> None:
    timing = PimTiming.from_config(load_config("arch-a"))
    one = 22.24 * 7 + 8 * (1.135 * 20 * 16)
    assert timing.mvmul_energy_pj(1, 8, 8, 8) == pytest.approx(8 * one)
    assert timing.mvmul_energy_pj(3, 8, 16, 8) == pytest.approx(3 * 16 * one)
    assert timing.link_energy(0, 1, 64) == 200.0
    assert timing.static_energy_pj(10, 1000) == 11_000.0
