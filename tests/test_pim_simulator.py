"""Timing against a real simulator binary: ``pytest --pimsim PATH``."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from raptor_cp.periodic.queue_engine import Stop, TieOrder, TokenExecution, execute
from raptor_cp.periodic.unavailable import Unavailable
from raptor_cp.scenario import loads
from raptor_cp.scheduler import schedule
from raptor_cp.targets.pim.artifact import read_program
from raptor_cp.targets.pim.config import PimConfig, load_config
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.diagnostic import (
    ControllerEstimate,
    DiagnosticOptions,
    diagnose,
)
from raptor_cp.targets.pim.event_types import EventOptions
from raptor_cp.targets.pim.instruction_events import build_events
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.pim.timing import PimTiming
from raptor_cp.targets.registry import create
from tests.pim_programs import random_program

if TYPE_CHECKING:
    from pathlib import Path

#: (name, changes to core_config): two profiles, then latencies of each part.
PROFILES: dict[str, tuple[str, dict[str, Any]]] = {
    "arch-a": ("arch-a", {}),
    "arch-c": ("arch-c", {}),
    "processor": ("arch-a", {"period": 3}),
    "local-memory": ("arch-a", {"local_memory_config": {"read_latency_cycle": 7}}),
    "vector": ("arch-a", {"vector_latency_cycle": 11, "vector_width": 16}),
}
GENERATIONS = 40


def profile(name: str) -> PimConfig:
    """A configuration with some core keys changed, document and all."""
    base, changes = PROFILES[name]
    config = load_config(base)
    document = copy.deepcopy(dict(config.document))
    core: dict[str, Any] = document["chip_config"]["core_config"]  # type: ignore[index]
    local = config.core.local_memory
    for key, value in changes.items():
        if key == "local_memory_config":
            core[key].update(value)
            local = replace(local, **value)
        else:
            core[key] = value
    plain = {k: v for k, v in changes.items() if k.startswith("vector")}
    period = Fraction(changes.get("period", 1))
    return replace(
        config,
        document=document,
        core=replace(config.core, local_memory=local, period_ns=period, **plain),
    )


def simulate(
    binary: Path, program: Path, config: PimConfig, folder: Path, mode: int, ms: float
) -> str:
    written = write_simulator_config(config, folder, sim_mode=mode, sim_time_ms=ms)
    done = subprocess.run(
        [binary, program, written],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("name", sorted(PROFILES))
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(pimsim: Path, tmp_path: Path, name: str, seed: int) -> None:
    config = profile(name)
    path = tmp_path / "program.json"
    path.write_text(json.dumps(random_program(seed)))
    program = read_program(path, config)
    timing = PimTiming.from_config(config)
    events = build_events(program, timing, EventOptions(memory_controller=True))
    spans = []
    for order in TieOrder:
        alone = execute(events.graph, order)
        assert not isinstance(alone, Unavailable)
        spans.append(int(alone.finish_ns[events.exit_event].max()))
    text = simulate(pimsim, path, config, tmp_path, 1, 1.0)
    found = re.search(r"latency:\s+([\d.e+-]+) ms", text)
    assert found is not None
    latency = round(float(found[1]) * 1e6)
    slack = max(2, latency / 100)
    assert min(spans) - slack <= latency <= max(spans) + slack

    until = max(0.1, GENERATIONS * max(spans) / 1e6)
    text = simulate(pimsim, path, config, tmp_path, 0, until)
    rounds = [int(count) for count in re.findall(r"rounds:\s+(\d+) samples", text)]
    run = TokenExecution(
        events.graph, TieOrder.EVENT_INDEX, generations=max(rounds) + 2
    )
    while run.advance() is Stop.CHECKPOINT:
        pass
    times = run.completion_times_ns()
    ours = ((times >= 0) & (times <= until * 1e6)).sum(axis=1).tolist()
    # A round is counted at the fetch of its last instruction: up to one early.
    for mine, theirs in zip(ours, rounds, strict=True):
        assert abs(mine - theirs) <= max(1.0, theirs / 100)


# -- whole networks ------------------------------------------------------------------

NETWORKS = [
    ("tiny-residual", "[1, 3, 32, 32]", 3),
    ("resnet18", "[1, 3, 32, 32]", 4),
    ("squeezenet", "[1, 3, 48, 48]", 5),
    ("mobilenetv2", "[1, 3, 32, 32]", 4),
    ("googlenet-bn", "[1, 3, 32, 32]", 6),
    ("shufflenetv2", "[1, 3, 32, 32]", 4),
]
SCENARIO = """
schema: raptor-cp/1
name: whole
network: {{zoo: {zoo}, input: {size}, weight_bits: 8, activation_bits: 8}}
target: {{kind: pim, config: arch-a}}
mode: pipeline
pipeline: {{stages: {stages}, cross_stage: {cross_stage}, synchronization: {policy}}}
search: {{timing: static}}
solver: {{enabled: false}}
"""
#: Rounds between two observations of the steady state.
STEADY_ROUNDS = 12


@pytest.mark.slow
@pytest.mark.parametrize(("zoo", "size", "stages"), NETWORKS)
@pytest.mark.parametrize(
    ("policy", "cross_stage"), [("double-buffer", "memory"), ("release", "direct")]
)
def test_whole_networks(
    pimsim: Path,
    tmp_path: Path,
    zoo: str,
    size: str,
    stages: int,
    policy: str,
    cross_stage: str,
) -> None:
    """Every core ends its round; latency and interval are those of the diagnostic."""
    loaded = loads(
        SCENARIO.format(
            zoo=zoo, size=size, stages=stages, policy=policy, cross_stage=cross_stage
        )
    )
    result = schedule(loaded, program=True)
    assert result.program is not None
    assert result.program.write is not None, result.program.reasons
    path = tmp_path / "program"
    result.program.write(path)
    target = create(loaded)
    assert isinstance(target, PimTarget)
    config = target.config
    program = read_program(path, config)
    found = diagnose(program, config, DiagnosticOptions(memory_controller=True))
    alone, queues = found.single_generation_ns, found.controller
    assert isinstance(alone, tuple)
    assert isinstance(queues, ControllerEstimate)

    text = simulate(pimsim, path, config, tmp_path, 1, 1.5 * max(alone) / 1e6)
    assert len(re.findall(r"core:\s*\d+ finish", text)) >= len(program.active_cores)
    match = re.search(r"latency:\s+([\d.e+-]+) ms", text)
    assert match is not None
    latency = round(float(match[1]) * 1e6)
    slack = max(2, latency / 100)
    assert min(alone) - slack <= latency <= max(alone) + slack

    # Rounds are whole numbers; their mean over the cores tells parts of one.
    interval = float(queues.best_ns)
    instants = [max(alone) + n * interval for n in (4, 4 + STEADY_ROUNDS)]
    rounds = []
    for until in instants:
        text = simulate(pimsim, path, config, tmp_path, 0, until / 1e6)
        found_rounds = re.findall(r"rounds:\s+(\d+) samples", text)
        rounds.append([int(n) for n in found_rounds if n != "0"])
        assert len(rounds[-1]) == len(program.active_cores)
    events = build_events(
        program, PimTiming.from_config(config), EventOptions(memory_controller=True)
    )
    run = TokenExecution(
        events.graph, TieOrder.EVENT_INDEX, generations=max(rounds[-1]) + 2
    )
    while run.advance() is Stop.CHECKPOINT:
        pass
    times = run.completion_times_ns()
    ours = [((times >= 0) & (times <= until)).sum(axis=1) for until in instants]
    passed = [after - before for before, after in zip(*rounds, strict=True)]
    mean = sum(passed) / len(passed)
    # A round is counted at the fetch of its last instruction, which may wait long.
    assert mean == pytest.approx(float((ours[1] - ours[0]).mean()), abs=0.25)
    # While buffers still fill, the first stages run ahead of the interval.
    assert mean == pytest.approx(STEADY_ROUNDS, rel=0.06)
