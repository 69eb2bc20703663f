"""Plan events on the PIM chip equal the instruction events of the same program."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.periodic.analysis import OrderAnalysis, analyse
from raptor_cp.realization import events as events_module
from raptor_cp.realization.events import KINDS, PlanEvents
from raptor_cp.realization.plan import (
    CrossStage,
    ExecutionPlan,
    Load,
    Policy,
    Run,
    Send,
    Signal,
    Store,
    Wait,
)
from raptor_cp.realization.realize import realize
from raptor_cp.schedules import Problem, Schedule
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import TaskCosts
from raptor_cp.targets.pim.artifact import (
    Program,
    ProgramForm,
    make_program,
    write_program,
)
from raptor_cp.targets.pim.config import PimConfig, load_config
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.event_types import EventOptions
from raptor_cp.targets.pim.instruction_events import build_events
from raptor_cp.targets.pim.isa import RECORD, Opcode
from raptor_cp.targets.pim.plan_events import (
    MEMORY_SLOTS,
    TRANSFER_SLOTS,
    plan_events,
)
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Unavailable
from tests.instances import random_graph, random_placement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.periodic.event_graph import EventGraph
    from raptor_cp.targets.pim.timing import PimTiming

CORES = 9


@pytest.fixture(scope="module")
def chip() -> PimTarget:
    return PimTarget(load_config("arch-a", core_count=CORES))


def fill_lengths(tasks: int) -> list[int]:
    """A ``lldi`` of this many bytes stands for each task."""
    return [64 + 4096 * (1 + task % 7) for task in range(tasks)]


def schedule_on(chip: PimTarget, seed: int) -> Schedule:
    """A random schedule whose tasks are single ``lldi`` instructions."""
    rng = np.random.default_rng(seed)
    operations = int(rng.integers(3, 8))
    graph = random_graph(rng, operations=operations, extra_share=0.0)
    timing = chip.timing
    times = [
        timing.issue_ns(1) + timing.lldi_occupancy_ns(length)
        for length in fill_lengths(graph.task_count)
    ]
    problem = Problem(
        graph, TaskCosts(np.array(times, dtype=np.int64)), chip.resources()
    )
    stages = int(rng.integers(1, min(operations, 5)))
    return evaluate(problem, random_placement(rng, problem, stages))


def program_of(plan: ExecutionPlan) -> Program:
    """The instructions a plan stands for, addresses left at zero."""
    lengths = fill_lengths(plan.schedule.problem.graph.task_count)
    streams = {}
    for text in plan.cores:
        rows: list[tuple[int, ...]] = []
        for item in text.items:
            rows.extend(_instructions(plan, item, lengths))
        records: NDArray[np.void] = np.array(rows, dtype=RECORD)
        streams[text.core] = (np.zeros(0, dtype=np.int64), records)
    return make_program(streams, CORES)


def _instructions(
    plan: ExecutionPlan, item: object, lengths: list[int]
) -> Iterator[tuple[int, ...]]:
    """Records (opcode, rd, rs1, flags, r2_or_imm, generic1, generic2, generic3)."""
    slot = (Opcode.SLDI, 0, 0, 0, 0, 0, 0, 0)
    if isinstance(item, Load | Store):
        opcode = Opcode.LD if isinstance(item, Load) else Opcode.ST
        for _ in range(item.runs):
            yield from [slot] * MEMORY_SLOTS
            yield (opcode, 0, 2, 0, 0, 0, 0, ceil_div(item.size, item.runs))
    elif isinstance(item, Run):
        for task in item.tasks:
            yield slot
            yield (Opcode.LLDI, 0, 0, 0, 0, 0, 0, lengths[task])
    elif isinstance(item, Signal):
        yield (Opcode.SYNC, 0, 0, 0, item.core, item.register, 0, 0)
    elif isinstance(item, Wait):
        yield (Opcode.WAIT, 0, 0, 0, 0, item.register, item.count, 0)
    else:
        direct = plan.direct[item.direct]  # type: ignore[attr-defined]
        sending = isinstance(item, Send)
        peer = direct.destination if sending else direct.source
        yield from [slot] * TRANSFER_SLOTS
        opcode = Opcode.SEND if sending else Opcode.RECV
        yield (opcode, 0, 0, 0, peer, 0, 0, direct.size)


def exact(graph: EventGraph) -> tuple[Fraction, list[Fraction]]:
    """Cycle ratio, and the proved interval of both tie orders."""
    found = analyse(graph)
    intervals = []
    for order in found.orders:
        assert isinstance(order, OrderAnalysis)
        assert isinstance(order.exact_interval_ns, Fraction)
        intervals.append(order.exact_interval_ns)
    ratio = found.recurrence
    assert not isinstance(ratio, Unavailable)
    return ratio.ratio_ns, intervals  # type: ignore[union-attr]


def events_of(plan: ExecutionPlan, timing: PimTiming) -> PlanEvents:
    found = plan_events(plan, timing)
    assert isinstance(found, PlanEvents)
    return found


@pytest.mark.parametrize("cross", list(CrossStage))
@pytest.mark.parametrize("policy", list(Policy))
def test_same_intervals_as_the_instruction_diagnostic(
    chip: PimTarget, policy: Policy, cross: CrossStage
) -> None:
    """An independent reading of the same recipe, instruction by instruction."""
    for seed in range(8):
        plan = realize(schedule_on(chip, seed), policy, cross)
        mine = events_of(plan, chip.timing)
        other = build_events(
            program_of(plan), chip.timing, EventOptions(memory_controller=True)
        )
        assert mine.requests == other.requests
        assert mine.graph.service_by_server().sum() == other.memory_service_ns
        ratio, intervals = exact(mine.graph)
        other_ratio, other_intervals = exact(other.graph)
        assert ratio == other_ratio, seed
        # Ties of simultaneous arrivals are broken by event number.
        for found in intervals:
            assert min(other_intervals) * Fraction(99, 100) <= found
            assert found <= max(other_intervals) * Fraction(101, 100)


@pytest.mark.parametrize("policy", list(Policy))
def test_the_simulator_runs_the_plan_at_the_estimated_rate(
    chip: PimTarget, pimsim: Path, tmp_path: Path, policy: Policy
) -> None:
    for seed in range(4):
        plan = realize(schedule_on(chip, seed), policy)
        cost = chip.estimate_realized_schedule_cost(plan)
        assert cost.larger_ns is not None
        program = tmp_path / f"{seed}.json"
        write_program(program_of(plan), program, ProgramForm.JSON)
        until = max(0.1, 200 * cost.larger_ns / 1e6)
        config = write_simulator_config(
            chip.config, tmp_path, sim_mode=0, sim_time_ms=until
        )
        done = subprocess.run(
            [pimsim, program, config], capture_output=True, text=True, timeout=300
        )
        rounds = [int(n) for n in re.findall(r"rounds:\s+(\d+) samples", done.stdout)]
        expected = until * 1e6 / cost.larger_ns
        # Filling the pipeline costs about a round for each stage.
        stages = len(plan.schedule.placement.stages)
        assert expected * 0.99 - stages <= min(rounds) <= expected * 1.01 + 1


def test_at_most_two_recurrence_edges_a_core(chip: PimTarget) -> None:
    for seed in range(10):
        plan = realize(schedule_on(chip, seed))
        graph = events_of(plan, chip.timing).graph
        assert graph.recurrence_edge_count <= 2 * len(plan.cores)
        assert len(graph.completion) == len(plan.cores)


def test_work_and_counts(chip: PimTarget) -> None:
    plan = realize(schedule_on(chip, 3))
    found = events_of(plan, chip.timing)
    summary = plan.schedule.summary
    graph = found.graph
    work = dict(zip(graph.work_core.tolist(), graph.work_ns.tolist(), strict=True))
    assert work == {c: summary.core_work_ns[c] for c in work}
    assert int(graph.service_by_server()[0]) == summary.memory_service_ns
    runs = int((graph.kind == KINDS.index("run")).sum())
    assert found.non_work_events == graph.event_count - runs
    assert found.largest_visits <= found.visits


def test_requests_are_joined_without_losing_service(
    chip: PimTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = schedule_on(chip, 2)
    graph = schedule.problem.graph
    finer = replace(
        graph,
        transfers=tuple(replace(m, runs=min(m.size, 13)) for m in graph.transfers),
        baseline=tuple(replace(a, runs=min(a.size, 5)) for a in graph.baseline),
    )
    problem = replace(schedule.problem, graph=finer)
    plan = realize(evaluate(problem, schedule.placement))
    single = events_of(plan, chip.timing)
    assert single.request_events == single.requests
    monkeypatch.setattr(events_module, "REQUEST_LIMIT", 40)
    joined = events_of(plan, chip.timing)
    assert joined.requests == single.requests
    assert joined.request_events < single.request_events
    assert (
        joined.graph.service_by_server().tolist()
        == single.graph.service_by_server().tolist()
    )
    assert joined.busy == single.busy
    # Without contention nothing else can differ.
    first, second = exact(joined.graph)[0], exact(single.graph)[0]
    assert abs(first - second) <= Fraction(5, 100) * second


def test_limits_are_unavailable_with_a_reason(
    chip: PimTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = realize(schedule_on(chip, 0))
    monkeypatch.setattr(events_module, "MAX_NON_WORK_EVENTS", 10)
    found = plan_events(plan, chip.timing)
    assert isinstance(found, Unavailable)
    assert "events besides runs, more than 10" in found.reason
    monkeypatch.setattr(events_module, "MAX_VISITS_PER_CORE", 3)
    found = plan_events(plan, chip.timing)
    assert isinstance(found, Unavailable)
    assert "operation visits in one generation, more than 3" in found.reason


def test_the_documented_limits() -> None:
    assert events_module.MAX_VISITS_PER_CORE == 1_000_000
    assert events_module.MAX_NON_WORK_EVENTS == 2_000_000


def test_other_reorder_buffers_are_unavailable(chip: PimTarget) -> None:
    config: PimConfig = replace(chip.config, core=replace(chip.config.core, rob_size=4))
    found = plan_events(realize(schedule_on(chip, 0)), PimTarget(config).timing)
    assert isinstance(found, Unavailable)
    assert "rob_size is 4" in found.reason
