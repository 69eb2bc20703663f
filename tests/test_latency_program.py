"""Latency mode on a ``pim`` chip, end to end: plan, program, diagnostic, simulator."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

import raptor_cp
from raptor_cp.latency_run import run_latency
from raptor_cp.phases import Phases
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.realization.checks import check
from raptor_cp.run_output import write_run
from raptor_cp.scenario import loads
from raptor_cp.scheduler import schedule
from raptor_cp.target import BackendResult
from raptor_cp.targets.pim.artifact import read_program
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.diagnostic import DiagnosticOptions, diagnose
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.registry import create
from raptor_cp.validation import violations
from raptor_cp.verdict import Unavailable, Verdict
from tests.test_latency_run import Watch, scenario

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.result import ScheduleResult
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.targets.pim.config import PimConfig

#: Small networks of the zoo and by hand: (name, chip, bits).
NETWORKS = {
    "tiny-residual": ("tiny-residual", "arch-a, cores: 12, crossbars_per_core: 8", 8),
    "tiny-residual-16": (
        "tiny-residual",
        "arch-a, cores: 9, crossbars_per_core: 16",
        16,
    ),
    "tiny-residual-b": (
        "tiny-residual",
        "arch-b, cores: 16, crossbars_per_core: 8",
        8,
    ),
    "audio-m5": ("audio-m5", "arch-a, cores: 24, crossbars_per_core: 16", 8),
    "ds-cnn": ("ds-cnn", "arch-a, cores: 24, crossbars_per_core: 16", 8),
}

#: The larger ones take about 20 s each.
CASES = [
    pytest.param(
        name,
        marks=[pytest.mark.slow] if name in ("audio-m5", "tiny-residual-b") else [],
    )
    for name in sorted(NETWORKS)
]


def small(name: str, method: str = "peft") -> LoadedScenario:
    """A network of the table above in latency mode."""
    network, chip, bits = NETWORKS[name]
    return loads(
        f"""
schema: raptor-cp/1
name: {name}
network: {{zoo: {network}, weight_bits: {bits}, activation_bits: {bits}}}
target: {{kind: pim, config: {chip}}}
mode: latency
latency: {{method: {method}}}
"""
    )


def chip_of(loaded: LoadedScenario) -> PimConfig:
    """The chip of a scenario, overrides included."""
    target = create(loaded)
    assert isinstance(target, PimTarget)
    return target.config


def built(loaded: LoadedScenario, folder: Path) -> ScheduleResult:
    """A run with its program, written."""
    result = schedule(loaded, program=True)
    assert result.program is not None, result.reason
    assert result.program.outcome == "built", result.program.reasons
    write_run(result, folder)
    return result


def both_orders(result: ScheduleResult) -> list[int]:
    """Completions of the plan on the queues, the smaller one first."""
    assert result.completion is not None
    found = (result.completion.event_index_ns, result.completion.reversed_ns)
    return sorted(value for value in found if isinstance(value, int))


def single_generation(config: PimConfig, folder: Path) -> tuple[int, int]:
    """What the instruction diagnostic says of one generation of a program."""
    options = DiagnosticOptions(memory_controller=True)
    found = diagnose(read_program(folder / "program", config), config, options)
    assert not isinstance(found.single_generation_ns, Unavailable)
    return found.single_generation_ns


@pytest.mark.parametrize("name", CASES)
def test_program_and_plan_agree(name: str, tmp_path: Path) -> None:
    loaded = small(name)
    result = built(loaded, tmp_path / "run")
    assert result.plan is not None
    assert check(result.plan).faults == ()
    assert result.plan.schedule is result.schedule
    plan = both_orders(result)
    program = sorted(single_generation(chip_of(loaded), tmp_path / "run"))
    for ours, theirs in zip(plan, program, strict=True):
        assert abs(ours - theirs) <= 0.02 * theirs


@pytest.mark.parametrize("name", ["tiny-residual", "tiny-residual-16", "ds-cnn"])
@pytest.mark.parametrize("method", ["peft", "heft"])
def test_the_program_computes_the_network(
    name: str, method: str, tmp_path: Path
) -> None:
    built(small(name, method), tmp_path / "run")
    found = raptor_cp.verify(tmp_path / "run", orders=3)
    assert found.equal, found.difference or found.fault
    assert found.compared > 0


@pytest.mark.parametrize("name", CASES)
def test_the_simulator_confirms_one_inference(
    name: str, pimsim: Path, tmp_path: Path
) -> None:
    loaded = small(name)
    result = built(loaded, tmp_path / "run")
    low, high = both_orders(result)
    config = write_simulator_config(
        chip_of(loaded), tmp_path, sim_mode=1, sim_time_ms=1.0
    )
    done = subprocess.run(
        [pimsim, tmp_path / "run" / "program", config],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = re.search(r"latency:\s+([\d.e+-]+) ms", done.stdout)
    assert found is not None, done.stdout
    latency = round(float(found[1]) * 1e6)
    assert 0.99 * low <= latency <= 1.01 * high


@pytest.mark.slow
def test_resnet18_on_arch_a(tmp_path: Path) -> None:
    loaded = scenario("resnet18-latency")
    result = built(loaded, tmp_path / "run")
    assert result.exit_code == 0
    assert result.latency_ns is not None
    slower = max(single_generation(chip_of(loaded), tmp_path / "run"))
    assert abs(result.latency_ns - slower) <= 0.02 * slower
    found = raptor_cp.verify(tmp_path / "run", orders=1)
    assert found.equal, found.difference or found.fault


def test_what_has_no_instruction_is_refused_by_name(tmp_path: Path) -> None:
    result = schedule(scenario("bert-block-latency"), program=True)
    assert result.verdict is Verdict.FEASIBLE
    assert result.exit_code == 0
    assert result.schedule is not None
    assert violations(result.schedule) == ()
    assert result.program is not None
    assert result.program.outcome == "refused"
    assert "attention.norm: LayerNormalization" in result.program.reasons
    write_run(result, tmp_path / "run")
    assert not (tmp_path / "run" / "program").exists()
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document["program"] == "refused"
    assert "mlp.norm: LayerNormalization" in document["program_reasons"]


def test_the_run_folder(tmp_path: Path) -> None:
    result = built(small("tiny-residual"), tmp_path / "run")
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {
        "program",
        "reports",
        "result.json",
        "scenario.yaml",
        "schedule.json",
        "trace.perfetto.json",
    }
    reports = tmp_path / "run" / "reports"
    plan = json.loads((reports / "execution_plan.json").read_text())
    assert plan["cross_stage"] == "direct"
    assert plan["banks"] == plan["chains"] == []
    assert result.schedule is not None
    order = result.schedule.placement.order
    working = [core for core, tasks in enumerate(order) if tasks]
    assert [core["core"] for core in plan["cores"]] == working
    periodic = json.loads((reports / "pipeline_periodic.json").read_text())
    assert result.completion is not None
    assert periodic["single_generation_ns"] == [
        result.completion.event_index_ns,
        result.completion.reversed_ns,
    ]
    timeline = json.loads((reports / "timeline.json").read_text())
    assert timeline["window_ns"] == result.completion.event_index_ns


def test_published_examples_have_a_plan_and_no_program(tmp_path: Path) -> None:
    for name in ("peft-paper", "heft-paper"):
        result = schedule(scenario(name), program=True)
        assert result.program is None
        assert result.plan is not None
        assert check(result.plan).faults == ()
        write_run(result, tmp_path / name)
        assert (tmp_path / name / "reports" / "execution_plan.json").exists()


class Rejecting(PimTarget):
    """Rejects the first schedules that it is asked to build."""

    def __init__(self, config: PimConfig, rejected: int) -> None:
        super().__init__(config)
        self.left = rejected

    def lower(
        self,
        plan: ExecutionPlan,
        network: Network | None,
        *,
        accumulators: str,
        constants_resident: bool,
    ) -> BackendResult:
        del plan, network, accumulators, constants_resident
        self.left -= 1
        if self.left >= 0:
            return BackendResult("rejected", ("local memory of core 3 is exhausted",))
        return BackendResult("built", write=lambda _: None)


def rejected(times: int, method: str) -> ScheduleResult:
    loaded = small("tiny-residual", method)
    target = Rejecting(chip_of(loaded), times)
    prepared = prepare(loaded, target)
    assert isinstance(prepared, Prepared)
    return run_latency(loaded, target, prepared, Watch(), Phases(), program=True)


def test_a_rejected_schedule_gives_way_to_the_next() -> None:
    whole = rejected(0, "cp-sat")
    assert [a["outcome"] for a in whole.attempts] == ["built"]
    second = rejected(1, "cp-sat")
    assert [a["outcome"] for a in second.attempts] == ["rejected", "built"]
    assert second.verdict.has_solution
    assert whole.latency_ns is not None
    assert second.latency_ns is not None
    assert second.latency_ns >= whole.latency_ns


def test_when_every_schedule_is_rejected_all_causes_are_named() -> None:
    result = rejected(99, "peft")
    assert result.verdict is Verdict.UNKNOWN
    assert result.exit_code == 3
    assert result.schedule is None
    assert "local memory of core 3 is exhausted" in result.reason
    assert len(result.attempts) == 1


def test_no_program_is_made_unasked() -> None:
    result = schedule(small("tiny-residual"))
    assert result.program is None
    assert result.plan is not None
