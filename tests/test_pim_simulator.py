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
from raptor_cp.targets.pim.artifact import read_program
from raptor_cp.targets.pim.config import PimConfig, load_config
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.event_types import EventOptions
from raptor_cp.targets.pim.instruction_events import build_events
from raptor_cp.targets.pim.timing import PimTiming
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
