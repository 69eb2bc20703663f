"""The instruction diagnostic against the simulator's results and an oracle."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer import Typer
from typer.testing import CliRunner

from raptor_cp.cli.periodic import periodic
from raptor_cp.errors import MalformedInput, Unresolved
from raptor_cp.periodic.queue_engine import (
    Execution,
    Stop,
    TieOrder,
    TokenExecution,
    event_limit,
    execute,
)
from raptor_cp.periodic.unavailable import Unavailable
from raptor_cp.targets.pim.artifact import (
    CoreProgram,
    Program,
    make_program,
    read_program,
    write_program,
)
from raptor_cp.targets.pim.config import PimConfig, load_config
from raptor_cp.targets.pim.diagnostic import (
    DiagnosticOptions,
    InstructionDiagnostic,
    WaitSemantics,
    diagnose,
)
from raptor_cp.targets.pim.event_types import EventOptions, InstructionEvents
from raptor_cp.targets.pim.free_running import FreeRunningEstimate
from raptor_cp.targets.pim.instruction_events import build_events
from raptor_cp.targets.pim.instruction_scan import scan_core
from raptor_cp.targets.pim.isa import RECORD, VECTOR, Opcode
from raptor_cp.targets.pim.timing import PimTiming
from tests.pim_programs import Oracle, random_program

if TYPE_CHECKING:
    from pathlib import Path

MICRO = ["m1_mvm", "m2_ld_mvm_vec_st", "m3_sendrecv", "m4_pipe2", "m5_syncwait"]
KEYS = {
    "schema",
    "cores",
    "instructions",
    "events",
    "edges",
    "interval_ns",
    "recurrence",
    "core_work_ns",
    "memory_service_ns",
    "within_generation_span_ns",
    "single_generation_ns",
    "memory_controller",
    "unmodelled",
    "energy_pj",
}


@pytest.fixture(scope="module")
def chip() -> PimConfig:
    return load_config("arch-c")


def as_program(folder: Path, document: dict[str, Any]) -> Program:
    path = folder / "program.json"
    path.write_text(json.dumps(document))
    return read_program(path)


def small(cores: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    count = max(cores) + 1
    first = {"op": "setbw", "ibiw": 8, "obiw": 8}
    return {
        "config": {
            "core_cnt": count,
            "array_group_map": {f"core{core}": [1] for core in range(count)},
        },
        **{f"core{core}": [first, *text] for core, text in cores.items()},
    }


def finish_times(
    events: InstructionEvents, order: TieOrder, generations: int = 1
) -> list[list[int]]:
    done = execute(events.graph, order, generations=generations)
    assert isinstance(done, Execution)
    times: list[list[int]] = done.finish_ns[events.exit_event].tolist()
    return times


@pytest.mark.parametrize("controller", [False, True])
@pytest.mark.parametrize("name", MICRO)
def test_micro_programs_agree_with_the_simulator(
    shared_data: Path, name: str, controller: bool
) -> None:
    folder = shared_data / "pimsim"
    known = json.loads((folder / "results.json").read_text())["programs"][name]
    config = load_config(folder / "lat.json")
    program = read_program(folder / f"{name}.json", config)
    result = diagnose(program, config, DiagnosticOptions(memory_controller=controller))
    assert result.single_generation_ns == (known["latency_ns"],) * 2
    period = known["steady_period_ns"]
    assert isinstance(result.interval_ns, Fraction)
    assert abs(result.interval_ns - period) <= max(2, period / 100)
    timing = PimTiming.from_config(config)
    events = build_events(program, timing, EventOptions(memory_controller=controller))
    finished = [row[0] for row in finish_times(events, TieOrder.EVENT_INDEX)]
    assert finished == known["finish_ns_per_core"]
    assert json.loads(json.dumps(result.to_dict())).keys() >= KEYS


def test_whole_network_of_another_compiler(shared_data: Path) -> None:
    folder = shared_data / "pimsim" / "squeezenet-program"
    known = json.loads((folder / "results.json").read_text())
    config = load_config(folder / "config.json")
    program = read_program(folder / "program.gz", config)
    result = diagnose(program, config, DiagnosticOptions(memory_controller=True))
    assert result.instructions == 1_199_238
    assert isinstance(result.single_generation_ns, tuple)
    for latency in result.single_generation_ns:
        assert abs(latency - known["latency_ns"]) <= known["latency_ns"] / 5000
    # The cores run freely: there is no interval of the chip, only of each core.
    assert isinstance(result.controller, FreeRunningEstimate)
    assert result.interval_ns == result.controller.slowest_ns
    assert any("run freely" in note for note in result.unmodelled)
    events = build_events(
        program, PimTiming.from_config(config), EventOptions(memory_controller=True)
    )
    run = TokenExecution(
        events.graph, TieOrder.EVENT_INDEX, event_limit=event_limit(events.graph)
    )
    while run.advance() is Stop.CHECKPOINT:
        pass
    until = known["sim_time_ms_mode_0"] * 1e6
    times = run.completion_times_ns()
    rounds = ((times >= 0) & (times <= until)).sum(axis=1)
    expected = [known["rounds_per_core_mode_0"][str(core)] for core in events.cores]
    assert np.abs(rounds - expected).max() <= 1
    assert (rounds != expected).sum() <= 2


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_one_generation_equals_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, chip: PimConfig, seed: int
) -> None:
    document = random_program(seed)
    program = as_program(tmp_path_factory.mktemp("p"), document)
    timing = PimTiming.from_config(chip)
    events = build_events(program, timing, EventOptions(memory_controller=True))
    for order in TieOrder:
        reverse = order is TieOrder.REVERSED
        expected = Oracle(document, chip).run(1, reverse=reverse)
        found = finish_times(events, order)
        assert found == [expected[core] for core in events.cores]


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_many_generations_equal_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, chip: PimConfig, seed: int
) -> None:
    # Without the memory nothing depends on ties.
    document = random_program(seed, memory=False)
    program = as_program(tmp_path_factory.mktemp("p"), document)
    events = build_events(program, PimTiming.from_config(chip), EventOptions())
    expected = Oracle(document, chip).run(9)
    found = finish_times(events, TieOrder.EVENT_INDEX, 9)
    assert found == [expected[core] for core in events.cores]


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_graph_answers_are_consistent(
    tmp_path_factory: pytest.TempPathFactory, chip: PimConfig, seed: int
) -> None:
    program = as_program(tmp_path_factory.mktemp("p"), random_program(seed))
    result = diagnose(program, chip, DiagnosticOptions(memory_controller=True))
    base = diagnose(program, chip)
    assert isinstance(result.interval_ns, Fraction)
    assert isinstance(base.interval_ns, Fraction)
    assert result.interval_ns >= base.interval_ns >= result.core_work_ns
    assert base.interval_ns >= result.memory_service_ns
    assert isinstance(base.single_generation_ns, tuple)
    assert isinstance(result.single_generation_ns, tuple)
    # A queue can only delay what the base graph already orders.
    assert min(result.single_generation_ns) >= max(base.single_generation_ns)
    assert base.recurrence == result.recurrence
    assert base.dynamic_energy_pj == result.dynamic_energy_pj


def test_scan_agrees_with_scalar_formulas(chip: PimConfig) -> None:
    generator = np.random.default_rng(11)
    timing = PimTiming.from_config(chip)
    codes = [*sorted(VECTOR), Opcode.LMV, Opcode.LLDI, Opcode.MVMUL]
    rows = [(int(Opcode.SETBW), 0, 0, 0, 0, 16, 32, 0)]
    total, energy = timing.issue_ns(0), 0.0
    for _ in range(300):
        code = codes[int(generator.integers(len(codes)))]
        length = int(generator.integers(0, 3000))
        group = int(generator.integers(2))
        second = 4 if code is Opcode.MVMUL else 0
        rows.append((int(code), 0, 0, 0, second, 0, group, length))
        if code is Opcode.MVMUL:
            crossbars = (1, 5)[group]
            total += timing.mvmul_occupancy_ns(crossbars, 4, 16, 32)
            energy += timing.mvmul_energy_pj(crossbars, 4, 16, 32)
        elif code is Opcode.LMV:
            total += timing.lmv_occupancy_ns(length)
        elif code is Opcode.LLDI:
            total += timing.lldi_occupancy_ns(length)
        else:
            total += timing.vector_occupancy_ns(code, length, 16, 32)
            energy += timing.vector_energy_pj(code, length, 16, 32)
        total += timing.issue_ns(0)
    records = np.array(rows, dtype=RECORD)
    core = CoreProgram(0, np.array([1, 5]), len(records), held=records)
    scan = scan_core(core, timing, issue=True)
    assert scan.work_ns == total
    assert scan.gap_ns.tolist() == [0, total]
    assert scan.energy_pj == pytest.approx(energy)


def test_widths_follow_the_latest_setbw(tmp_path: Path, chip: PimConfig) -> None:
    vector = {"op": "vvadd", "rd": 0, "rs1": 1, "rs2": 2, "len": 640}
    wide = {"op": "setbw", "ibiw": 32, "obiw": 32}
    timing = PimTiming.from_config(chip)
    program = as_program(tmp_path, small({0: [vector, wide, vector]}))
    scan = scan_core(program.cores[0], timing, issue=True)
    assert scan.work_ns == 4 * timing.issue_ns(0) + sum(
        timing.vector_occupancy_ns(Opcode.VVADD, 640, bits, bits) for bits in (8, 32)
    )


def test_switch_queue_delays_what_follows_a_payload(
    tmp_path: Path, chip: PimConfig
) -> None:
    document = small(
        {
            0: [
                {"op": "send", "rd": 0, "core": 1, "size": 4096},
                {"op": "ld", "rd": 0, "rs1": 1, "size": 32},
            ],
            1: [{"op": "recv", "rd": 0, "core": 0, "size": 4096}],
        }
    )
    program = as_program(tmp_path, document)
    latencies = []
    for queues in (True, False):
        timing = PimTiming.from_config(chip)
        events = build_events(program, timing, EventOptions(network_queues=queues))
        latencies.append(finish_times(events, TieOrder.EVENT_INDEX)[0][0])
    payload = PimTiming.from_config(chip).link_ns(0, 1, 4096)
    # The load starts 2 ns after the payload was queued.
    assert latencies[0] - latencies[1] == payload - 2


def test_without_issue_only_execution_counts(tmp_path: Path, chip: PimConfig) -> None:
    text = [
        {"op": "sldi", "rd": 1, "imm": 0},
        {"op": "lmv", "rd": 0, "rs1": 1, "len": 640},
        {"op": "sync", "core": 1, "event_register": 0},
    ]
    other = [{"op": "wait", "event_register": 0, "wait_value": 1}]
    program = as_program(tmp_path, small({0: text, 1: other}))
    timing = PimTiming.from_config(chip)
    result = diagnose(program, chip, DiagnosticOptions(issue=False))
    assert (
        result.single_generation_ns
        == (timing.lmv_ns(640) + max(timing.sync_ns(), timing.link_ns(0, 1)),) * 2
    )
    assert any("issue" in note for note in result.unmodelled)


def runaway() -> dict[str, Any]:
    """Core 0 signals without waiting for anything."""
    slow = {"op": "lmv", "rd": 0, "rs1": 1, "len": 64000}
    return small(
        {
            0: [{"op": "sync", "core": 1, "event_register": 3}],
            1: [{"op": "wait", "event_register": 3, "wait_value": 1}, slow],
        }
    )


def test_exact_waits_need_proof(tmp_path: Path, chip: PimConfig) -> None:
    program = as_program(tmp_path, runaway())
    assert diagnose(program, chip).available
    result = diagnose(
        program, chip, DiagnosticOptions(wait_semantics=WaitSemantics.EXACT)
    )
    assert isinstance(result.interval_ns, Unavailable)
    assert "event register 3 of core 1" in result.interval_ns.reason


def test_exact_waits_with_a_signal_back(tmp_path: Path, chip: PimConfig) -> None:
    document = runaway()
    document["core0"].append({"op": "wait", "event_register": 0, "wait_value": 1})
    document["core1"].append({"op": "sync", "core": 0, "event_register": 0})
    program = as_program(tmp_path, document)
    exact = diagnose(
        program, chip, DiagnosticOptions(wait_semantics=WaitSemantics.EXACT)
    )
    assert exact.interval_ns == diagnose(program, chip).interval_ns


def test_registers_of_several_sources(tmp_path: Path, chip: PimConfig) -> None:
    signal = {"op": "sync", "core": 2, "event_register": 0}
    both = {"op": "wait", "event_register": 0, "wait_value": 2}
    program = as_program(tmp_path, small({0: [signal], 1: [signal], 2: [both]}))
    result = diagnose(program, chip)
    assert result.available
    assert any("cannot mix" in note for note in result.unmodelled)
    one = {"op": "wait", "event_register": 0, "wait_value": 1}
    program = as_program(tmp_path, small({0: [signal], 1: [signal], 2: [one, one]}))
    with pytest.raises(Unresolved, match="2 waits and 2 signalling cores"):
        build_events(program, PimTiming.from_config(chip), EventOptions())


@pytest.mark.parametrize(("signals", "value"), [(0, 1), (1, 2), (2, 1), (1, 2**31 - 1)])
def test_unequal_signal_counts_are_unavailable(
    tmp_path: Path, chip: PimConfig, signals: int, value: int
) -> None:
    relu = {"op": "vrelu", "rd": 0, "rs1": 1, "len": 16}
    signal = {"op": "sync", "core": 1, "event_register": 0}
    wait = {"op": "wait", "event_register": 0, "wait_value": value}
    program = as_program(tmp_path, small({0: [relu] + [signal] * signals, 1: [wait]}))
    result = diagnose(program, chip)
    assert isinstance(result.interval_ns, Unavailable)
    assert f"gets {signals} signals" in result.interval_ns.reason


def test_several_waits_of_one_source(tmp_path: Path, chip: PimConfig) -> None:
    relu = {"op": "vrelu", "rd": 0, "rs1": 1, "len": 6400}
    signal = {"op": "sync", "core": 1, "event_register": 0}
    waits = [
        {"op": "wait", "event_register": 0, "wait_value": value} for value in (1, 2)
    ]
    document = small(
        {0: [signal, relu, signal, relu, signal], 1: [waits[0], relu, waits[1]]}
    )
    program = as_program(tmp_path, document)
    events = build_events(program, PimTiming.from_config(chip), EventOptions())
    (group,) = events.groups
    assert [len(signals) for signals in group.signals] == [1, 2]
    expected = Oracle(document, chip).run(5)
    assert finish_times(events, TieOrder.EVENT_INDEX, 5) == [expected[0], expected[1]]


def test_deadlock_is_named(tmp_path: Path, chip: PimConfig) -> None:
    text = {}
    for core, other in ((0, 1), (1, 0)):
        text[core] = [
            {"op": "send", "rd": 0, "core": other, "size": 64},
            {"op": "recv", "rd": 0, "core": other, "size": 64},
        ]
    result = diagnose(as_program(tmp_path, small(text)), chip)
    assert isinstance(result.interval_ns, Unavailable)
    assert "wait for each other" in result.interval_ns.reason
    assert "permission@" in result.interval_ns.reason


def test_unsupported_chips_are_unavailable(tmp_path: Path, chip: PimConfig) -> None:
    program = as_program(tmp_path, runaway())
    wide = replace(chip, core=replace(chip.core, rob_size=4))
    result = diagnose(program, wide)
    assert isinstance(result.interval_ns, Unavailable)
    assert "rob_size is 4" in result.interval_ns.reason
    document = json.loads(json.dumps(result.to_dict()))
    assert document.keys() >= KEYS
    assert "rob_size" in document["recurrence"]["unavailable"]


def test_times_beyond_the_range_are_unavailable(
    tmp_path: Path, chip: PimConfig
) -> None:
    huge = {"op": "ld", "rd": 0, "rs1": 1, "size": 2**31 - 1}
    many = [{"op": "vvadd", "rd": 0, "rs1": 1, "len": 2**31 - 1}] * 3
    for text in ([huge] * 100, many):
        result = diagnose(as_program(tmp_path, small({0: text})), chip)
        if isinstance(result.interval_ns, Unavailable):
            assert "numeric range" in result.interval_ns.reason
        else:
            assert result.interval_ns < 2**62


def test_softmax_has_no_timed_work(tmp_path: Path, chip: PimConfig) -> None:
    relu = {"op": "vrelu", "rd": 0, "rs1": 1, "len": 64}
    softmax = {"op": "vsoftmax", "rd": 0, "rs1": 1, "len": 64}
    plain = diagnose(as_program(tmp_path, small({0: [relu]})), chip)
    mixed = diagnose(as_program(tmp_path, small({0: [softmax, relu]})), chip)
    assert mixed.interval_ns == plain.interval_ns
    assert mixed.dynamic_energy_pj == plain.dynamic_energy_pj
    assert any("1 vsoftmax" in note for note in mixed.unmodelled)


@pytest.mark.parametrize("period", [2, 3])
def test_slower_clocks_stay_close_to_the_fast_one(
    tmp_path: Path, chip: PimConfig, period: int
) -> None:
    slow = replace(chip, core=replace(chip.core, period_ns=Fraction(period)))
    program = as_program(tmp_path, random_program(5))
    fast_result, slow_result = diagnose(program, chip), diagnose(program, slow)
    assert isinstance(fast_result.interval_ns, Fraction)
    assert isinstance(slow_result.interval_ns, Fraction)
    assert slow_result.interval_ns > fast_result.interval_ns
    assert any("clock phase" in note for note in slow_result.unmodelled)


def test_diagnosis_is_deterministic_and_form_independent(
    tmp_path: Path, chip: PimConfig
) -> None:
    program = as_program(tmp_path, random_program(23, steps=60))
    write_program(program, tmp_path / "folder")
    options = DiagnosticOptions(memory_controller=True)

    def report(source: Program) -> str:
        result: InstructionDiagnostic = diagnose(source, chip, options)
        return json.dumps(result.to_dict())

    assert report(program) == report(read_program(tmp_path / "folder"))


def test_graphs_of_up_to_128_events_are_shown(tmp_path: Path, chip: PimConfig) -> None:
    shown: dict[int, bool] = {}
    send = {"op": "send", "rd": 0, "core": 1, "size": 8}
    receive = {"op": "recv", "rd": 0, "core": 0, "size": 8}
    signal = {"op": "sync", "core": 1, "event_register": 0}
    wait = {"op": "wait", "event_register": 0, "wait_value": 1}
    for pairs in range(39, 44):
        for signals in range(3):
            ours = [send] * pairs + [signal] * signals
            theirs = [receive] * pairs + [wait] * signals
            program = as_program(tmp_path, small({0: ours, 1: theirs}))
            result = diagnose(program, chip)
            shown[result.events] = "timing_graph" in result.to_dict()
    assert {128, 129} <= shown.keys()
    assert shown == {events: events <= 128 for events in shown}


def test_static_energy_is_power_times_the_interval(
    tmp_path: Path, chip: PimConfig
) -> None:
    result = diagnose(as_program(tmp_path, random_program(23, steps=20)), chip)
    assert isinstance(result.interval_ns, Fraction)
    energy = result.to_dict()["energy_pj"]
    powered = replace(result, static_power_mw=2.5).to_dict()["energy_pj"]
    assert isinstance(energy, dict)
    assert isinstance(powered, dict)
    assert energy["dynamic"] == powered["dynamic"] > 0
    assert powered["static"] == pytest.approx(2.5 * float(result.interval_ns))
    assert powered["total"] == powered["dynamic"] + powered["static"]


@settings(max_examples=150)
@given(data=st.data())
def test_fuzzed_programs_never_crash(
    tmp_path_factory: pytest.TempPathFactory, chip: PimConfig, data: st.DataObject
) -> None:
    program = as_program(tmp_path_factory.mktemp("p"), random_program(17, steps=40))
    streams = {core.core: core.records.copy() for core in program.cores}
    for _ in range(data.draw(st.integers(1, 6))):
        records = streams[data.draw(st.sampled_from(sorted(streams)))]
        raw = records.view(np.uint8).reshape(-1)
        bit = data.draw(st.integers(0, 8 * len(raw) - 1))
        raw[bit // 8] ^= 1 << bit % 8
    groups = {core.core: core.array_groups for core in program.cores}
    with contextlib.suppress(MalformedInput):
        changed = make_program(
            {core: (groups[core], records) for core, records in streams.items()},
            program.core_count,
        )
        for semantics in WaitSemantics:
            options = DiagnosticOptions(
                memory_controller=True, wait_semantics=semantics
            )
            json.dumps(diagnose(changed, chip, options).to_dict(), allow_nan=False)


class TestCommand:
    """``raptor-cp periodic``."""

    @pytest.fixture
    def run(self) -> Any:
        app = Typer()
        app.command()(periodic)
        runner = CliRunner()

        def invoke(*words: str) -> Any:
            return runner.invoke(app, list(words))

        return invoke

    def test_report_on_standard_output(self, run: Any, tmp_path: Path) -> None:
        as_program(tmp_path, runaway())
        result = run(
            str(tmp_path / "program.json"),
            "--pim-target-config",
            "arch-c",
            "--model-memory-controller",
            "--no-model-network-queues",
            "--core-count",
            "2",
            "--crossbar-count",
            "1",
            "--crossbar-size",
            "1024",
        )
        assert result.exit_code == 0
        document = json.loads(result.stdout)
        assert document["schema"] == "raptor-cp/periodic/1"
        assert len(document["timing_graph"]["events"]) == document["events"]
        assert len(document["timing_graph"]["edges"]) == document["edges"]

    def test_exit_codes(self, run: Any, tmp_path: Path) -> None:
        path = tmp_path / "program.json"
        as_program(tmp_path, runaway())
        config = ("--pim-target-config", "arch-c")
        result = run(str(path), *config, "--wait-semantics", "exact")
        assert result.exit_code == 3
        assert "unavailable" in json.loads(result.stdout)["interval_ns"]
        for words in (
            (str(path), *config, "--wait-semantics", "fuzzy"),
            (str(path), "--pim-target-config", "arch-q"),
            (str(tmp_path / "absent"), *config),
            (str(path), *config, "--core-count", "1"),
        ):
            result = run(*words)
            assert result.exit_code == 2
            assert result.stdout == ""
