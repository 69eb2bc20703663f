"""The plan-level estimate agrees with the instruction diagnostic of its own program."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from raptor_cp.periodic.analysis import OrderAnalysis, PeriodicAnalysis
from raptor_cp.periodic.queue_engine import TieOrder
from raptor_cp.preparation import read_network
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.targets.pim.artifact import read_program
from raptor_cp.targets.pim.diagnostic import (
    ControllerEstimate,
    DiagnosticOptions,
    InstructionDiagnostic,
    diagnose,
)
from raptor_cp.targets.pim.functional import verify_run
from raptor_cp.targets.pim.input_banks import input_distances
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.sidecar import read_sidecar
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.registry import create
from raptor_cp.verdict import Unavailable
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.targets.pim.artifact import Program
    from raptor_cp.targets.pim.sidecar import Sidecar

TOLERANCE = 0.02
Number = int | Fraction | Unavailable
QUICK = {"tiny-residual", "audio-cnn-small-chip"}


def is_pim(path: Path) -> bool:
    text = path.read_text()
    return "kind: pim" in text and "verdict: FEASIBLE" in text


SCENARIOS = [
    pytest.param(
        path, id=path.stem, marks=() if path.stem in QUICK else (pytest.mark.slow,)
    )
    for path in sorted((ROOT / "scenarios").glob("*.yaml"))
    if is_pim(path)
]
#: What these networks have that the instruction set does not (no fault of a schedule).
REFUSED = {
    "bert-block-arch-a": ("LayerNormalization", "gelu"),
    "bert-block-latency": ("LayerNormalization", "gelu"),
    "vit-block-arch-c": ("LayerNormalization", "gelu"),
}


def agree(estimated: PeriodicAnalysis, measured: InstructionDiagnostic) -> None:
    """Every figure that both have, within the tolerance."""
    pairs: dict[str, tuple[Number, Number]] = {
        "core work": (estimated.core_work_ns, measured.core_work_ns),
        "memory service": (estimated.service_ns, measured.memory_service_ns),
        "span": (
            estimated.within_generation_span_ns,
            measured.within_generation_span_ns,
        ),
    }
    pairs["cycle ratio"] = (
        estimated.recurrence.ratio_ns,  # type: ignore[union-attr]
        measured.recurrence.ratio_ns,  # type: ignore[union-attr]
    )
    alone, ours = measured.single_generation_ns, estimated.single_generation_ns
    assert isinstance(alone, tuple)
    assert isinstance(ours, tuple)
    pairs["shortest generation"] = min(ours), min(alone)
    pairs["longest generation"] = max(ours), max(alone)
    queues = measured.controller
    assert isinstance(queues, ControllerEstimate), queues
    for tie, order in zip(TieOrder, estimated.orders, strict=True):
        # Windows are compared with windows: proofs can begin after the last one.
        assert isinstance(order, OrderAnalysis)
        pairs[f"queues, {tie}"] = order.interval_ns, queues.interval_ns
    for name, (plan, program) in pairs.items():
        assert isinstance(plan, int | Fraction), (name, plan)
        assert isinstance(program, int | Fraction), (name, program)
        assert float(plan) == pytest.approx(float(program), rel=TOLERANCE), name


def same_registers(plan: ExecutionPlan, program: Program) -> None:
    """SYNCs and WAITs of the program are those that the plan summarises."""
    waits: dict[tuple[int, int], int] = {}
    signals: dict[tuple[int, int], int] = {}
    for core in program.active_cores:
        records = core.records
        for record in records[records["opcode"] == Opcode.WAIT]:
            key = (core.core, int(record["generic1"]))
            assert key not in waits, "one WAIT a register and generation"
            waits[key] = int(record["generic2"])
        for record in records[records["opcode"] == Opcode.SYNC]:
            key = (int(record["r2_or_imm"]), int(record["generic1"]))
            signals[key] = signals.get(key, 0) + 1
    assert waits == signals
    planned = {
        (core, register)
        for core, own in plan.registers_used().items()
        for register in own
    }
    assert planned == set(waits)


def strict_host_is_enough(plan: ExecutionPlan, sidecar: Sidecar) -> None:
    """A host that holds one input in each bank has a round to replace it."""
    if sidecar.alone:
        return  # the host begins every round
    distances = input_distances(plan)
    inputs = [region for region in sidecar.regions if region.kind == "input"]
    assert {region.tensor for region in inputs} == set(distances)
    for region in inputs:
        distance = distances[region.tensor]
        assert distance is not None
        assert region.banks > distance


@pytest.mark.parametrize("path", SCENARIOS)
def test_estimates_of_scenarios_are_those_of_their_programs(
    path: Path, tmp_path: Path
) -> None:
    loaded = load(path)
    result = schedule(loaded, program=True)
    assert result.program is not None
    expected = REFUSED.get(path.stem, ())
    for word in expected:
        assert any(word in reason for reason in result.program.reasons), word
    if expected:
        assert result.program.outcome == "refused"
        return
    assert result.program.outcome == "built", result.program.reasons
    assert result.program.write is not None
    result.program.write(tmp_path / "program")
    target = create(loaded)
    assert isinstance(target, PimTarget)
    program = read_program(tmp_path / "program", target.config)
    measured = diagnose(
        program, target.config, DiagnosticOptions(memory_controller=True)
    )
    assert isinstance(result.periodic, PeriodicAnalysis)
    agree(result.periodic, measured)
    assert result.plan is not None
    same_registers(result.plan, program)
    strict_host_is_enough(result.plan, read_sidecar(tmp_path / "program"))
    if path.stem in QUICK:
        verified = verify_run(
            tmp_path,
            read_network(loaded),
            array=target.machine.array,
            strict_host=True,
        )
        assert verified.equal, verified
