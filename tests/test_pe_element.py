"""The element on the queue engine: oracle, back-pressure, hazards, reports."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    GemmCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    PeCommand,
    PeCpuOverheadCmd,
    Scope,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import PeCostModel
from raptor_cp.targets.pe.element import ProcessingElement, element_cost
from raptor_cp.targets.pe.kernel import run_live
from raptor_cp.targets.pe.kernels import KERNELS
from raptor_cp.targets.pe.report import DispatchReport, dispatch_report
from raptor_cp.targets.pe.sensitivity import parse_sweep, plot_sensitivity, sweep
from raptor_cp.targets.pe.stages import NO_ENGINE, Engine, StageKind
from raptor_cp.targets.pe.topology import PeAttributes, Rate, Tiling
from raptor_cp.targets.pe.trace import trace_events

if TYPE_CHECKING:
    from raptor_cp.targets.pe.timeline import ElementTimeline

Span = tuple[Fraction | int, Fraction | int]
ONE = Fraction(1)
#: Round figures: one unit a cycle, no set-up, dispatch 40 / 8 and no byte costs.
SIMPLE = PeAttributes(
    scheduler_queue_depth=4,
    cost_model=PeCostModel(byte_cycles_recip=Fraction(0)),
    dma=Rate(ONE, Fraction(0)),
    gemm=Rate(ONE, Fraction(0)),
    math=Rate(ONE, Fraction(0)),
    tcm=Rate(ONE, Fraction(0)),
    tiling=Tiling(4, 4, 4, 2),
)


def tensor(name: str, *shape: int, far: bool = False) -> TensorHandle:
    space = MemorySpace.HBM if far else MemorySpace.TCM
    return TensorHandle(name, shape, space=space)


def oracle(element: ProcessingElement, scale: int) -> tuple[int, ...]:
    """Finish times by a plain event loop over the element's stages."""
    graph = element.stages
    count = len(graph)
    missing = [len(before) for before in graph.predecessors]
    after: list[list[int]] = [[] for _ in range(count)]
    for stage, before in enumerate(graph.predecessors):
        for p in before:
            after[p].append(stage)
    ready, finish = [0] * count, [0] * count
    free = dict.fromkeys(range(5), 0)
    heap = [
        (0, graph.engine[s] != NO_ENGINE, s) for s in range(count) if not missing[s]
    ]
    heapq.heapify(heap)
    while heap:
        now, _, stage = heapq.heappop(heap)
        engine = graph.engine[stage]
        finish[stage] = now
        if engine != NO_ENGINE:
            length = int(graph.cycles[stage] * scale)
            finish[stage] = free[engine] = max(now, free[engine]) + length
        for s in after[stage]:
            ready[s] = max(ready[s], finish[stage])
            missing[s] -= 1
            if not missing[s]:
                heapq.heappush(heap, (ready[s], graph.engine[s] != NO_ENGINE, s))
    return tuple(finish)


def spans(timeline: ElementTimeline, kind: StageKind) -> list[Span]:
    return [
        (timeline.cycles(timeline.start[i]), timeline.cycles(timeline.finish[i]))
        for i, found in enumerate(timeline.kind)
        if found is kind
    ]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("depth", [1, 3, 16])
def test_the_queue_engine_agrees_with_a_plain_event_loop(name: str, depth: int) -> None:
    attributes = replace(PeAttributes(), scheduler_queue_depth=depth)
    log = run_live(KERNELS[name], attributes).op_log
    element = ProcessingElement(attributes)
    for command in log.commands:
        element.issue(command)
    timeline = element.timeline()
    assert timeline.finish == oracle(element, timeline.scale)


@pytest.mark.parametrize("name", KERNELS)
def test_a_server_serves_one_stage_at_a_time_in_order_of_arrival(name: str) -> None:
    timeline = run_live(KERNELS[name], PeAttributes()).timeline
    for engine in Engine:
        served = sorted(
            (timeline.start[i], timeline.finish[i], timeline.ready[i])
            for i, by in enumerate(timeline.engine)
            if by == engine
        )
        for before, after in pairwise(served):
            assert before[1] <= after[0]
            assert before[2] <= after[2]
        for start, _, ready in served:
            assert ready <= start


def test_the_cpu_issues_in_order_and_pays_before_it_pushes() -> None:
    x, y = tensor("x", 4, 4), tensor("y", 4, 4)
    element = ProcessingElement(SIMPLE)
    element.issue(CopyCmd(x, y))
    element.issue(PeCpuOverheadCmd(5))
    element.issue(CompositeCmd((OpSpec("f", {"x": x}, tensor("z", 4, 4)),)))
    timeline = element.timeline()
    assert spans(timeline, StageKind.DISPATCH) == [(0, 8), (8, 13), (13, 53)]
    assert [end for _, end in spans(timeline, StageKind.PUSH)] == [8, 53]
    assert timeline.dispatch_cycles == 48
    assert timeline.explicit_cycles == 5


def test_a_full_queue_holds_the_cpu_up() -> None:
    # Copies of 32 bytes take 32 cycles each on one port; issue takes 8.
    element = ProcessingElement(replace(SIMPLE, scheduler_queue_depth=2))
    for i in range(5):
        element.issue(CopyCmd(tensor(f"s{i}", 4, 4), tensor(f"d{i}", 4, 4)))
    timeline = element.timeline()
    pushes = [end for _, end in spans(timeline, StageKind.PUSH)]
    copies = spans(timeline, StageKind.COPY)
    assert copies == [(8 + 32 * i, 40 + 32 * i) for i in range(5)]
    # Command k waits for command k - 2 to retire.
    assert pushes == [8, 16, 40, 72, 104]
    report = dispatch_report("copies", timeline)
    assert report.cpu.queue_full == (40 - 24) + (72 - 48) + (104 - 80)
    assert any("holds the CPU up" in line for line in report.findings())


def test_places_in_the_queue_return_in_order() -> None:
    # The second command is done long before the first, but its place comes later.
    element = ProcessingElement(replace(SIMPLE, scheduler_queue_depth=2))
    element.issue(DmaReadCmd(tensor("far", 64, 64, far=True), tensor("near", 64, 64)))
    element.issue(CopyCmd(tensor("a", 2, 2), tensor("b", 2, 2)))
    element.issue(CopyCmd(tensor("c", 2, 2), tensor("d", 2, 2)))
    element.issue(CopyCmd(tensor("e", 2, 2), tensor("f", 2, 2)))
    timeline = element.timeline()
    pushes = [end for _, end in spans(timeline, StageKind.PUSH)]
    assert pushes == [8, 16, 8200, 8208]


def test_a_slow_cpu_starves_the_engines() -> None:
    element = ProcessingElement(SIMPLE)
    for i in range(6):
        element.issue(CopyCmd(tensor(f"s{i}", 1, 2), tensor(f"d{i}", 1, 2)))
    report = dispatch_report("copies", element.timeline())
    (tcm,) = [use for use in report.engines if use.engine == "TCM"]
    # 4 cycles of work every 8 cycles of issue.
    assert tcm.busy == 24
    assert tcm.starved == 8 + 5 * 4
    assert report.saturated == "CPU"
    assert report.cpu.queue_full == 0
    assert any("the CPU starves TCM" in line for line in report.findings())


def test_read_after_write_write_after_read_and_write_after_write() -> None:
    a, b, c = tensor("a", 4, 4), tensor("b", 4, 4), tensor("c", 4, 4)
    far = tensor("far", 4, 4, far=True)
    element = ProcessingElement(SIMPLE)
    element.issue(DmaReadCmd(far, a))  # DMA 8..40
    element.issue(CopyCmd(a, b))  # after the load
    element.issue(DmaReadCmd(far, a))  # after the copy has read a
    element.issue(CopyCmd(c, a))  # after the second load
    timeline = element.timeline()
    loads, copies = spans(timeline, StageKind.DMA_READ), spans(timeline, StageKind.COPY)
    assert copies[0][0] == loads[0][1] == 40
    assert loads[1][0] == copies[0][1] == 72
    assert copies[1][0] == loads[1][1]


def test_independent_commands_overlap() -> None:
    element = ProcessingElement(SIMPLE)
    element.issue(DmaReadCmd(tensor("far", 4, 4, far=True), tensor("a", 4, 4)))
    element.issue(CopyCmd(tensor("c", 4, 4), tensor("d", 4, 4)))
    timeline = element.timeline()
    assert spans(timeline, StageKind.COPY)[0][0] == 16


def test_tiles_of_fused_operations_follow_each_other() -> None:
    # Two elementwise operations over three tiles: tile 0 of the second starts once
    # tile 0 of the first is stored, not after all of the first.
    x, y, z = tensor("x", 12, 4), tensor("y", 12, 4), tensor("z", 12, 4)
    ops = (OpSpec("f", {"x": x}, y), OpSpec("g", {"y": y}, z))
    element = ProcessingElement(SIMPLE)
    element.issue(CompositeCmd(ops))
    timeline = element.timeline()
    fetches, stores = spans(timeline, StageKind.FETCH), spans(timeline, StageKind.STORE)
    assert len(fetches) == len(stores) == 6
    assert stores[0][1] <= fetches[3][0] < stores[2][1]


def test_an_operation_for_the_whole_waits_for_every_tile() -> None:
    x, y, z = tensor("x", 12, 4), tensor("y", 12, 4), tensor("z", 12, 4)
    ops = (OpSpec("f", {"x": x}, y), OpSpec("g", {"y": y}, z, scope=Scope.WHOLE))
    element = ProcessingElement(SIMPLE)
    element.issue(CompositeCmd(ops))
    timeline = element.timeline()
    fetches, stores = spans(timeline, StageKind.FETCH), spans(timeline, StageKind.STORE)
    assert len(fetches) == 4
    assert fetches[3][0] == stores[2][1]


def test_stages_of_a_tiled_gemm() -> None:
    a, b = tensor("a", 8, 12, far=True), tensor("b", 12, 4, far=True)
    c = tensor("c", 8, 4, far=True)
    op = OpSpec("gemm", {"a": a, "b": b}, c, {"m": 8, "k": 12, "n": 4})
    element = ProcessingElement(SIMPLE)
    element.issue(CompositeCmd((op,), (c,)))
    timeline = element.timeline()
    counts = {
        kind: len(spans(timeline, kind))
        for kind in (
            StageKind.DMA_READ,
            StageKind.FETCH,
            StageKind.GEMM,
            StageKind.STORE,
            StageKind.DMA_WRITE,
        )
    }
    # Two output tiles, three steps each, two operands a step.
    assert list(counts.values()) == [12, 6, 6, 2, 2]
    work = sum(end - start for start, end in spans(timeline, StageKind.GEMM))
    assert work == 8 * 12 * 4
    # Only the composite itself is charged.
    assert timeline.dispatch_cycles == 40


def test_border_tiles_are_smaller() -> None:
    a, b, c = tensor("a", 5, 6), tensor("b", 6, 7), tensor("c", 5, 7)
    element = ProcessingElement(SIMPLE)
    element.issue(CompositeCmd((OpSpec("gemm", {"a": a, "b": b}, c),)))
    timeline = element.timeline()
    lengths = [end - start for start, end in spans(timeline, StageKind.GEMM)]
    assert sum(lengths) == 5 * 6 * 7
    assert lengths == [64, 32, 48, 24, 16, 8, 12, 6]


def test_staging_buffers_limit_how_far_loads_run_ahead() -> None:
    a, b, c = tensor("a", 4, 64, far=True), tensor("b", 64, 4), tensor("c", 4, 4)
    op = OpSpec("gemm", {"a": a, "b": b}, c)
    for buffers in (1, 2, 3):
        slow = replace(
            SIMPLE,
            gemm=Rate(Fraction(1, 100), Fraction(0)),
            tiling=Tiling(4, 4, 4, buffers),
        )
        element = ProcessingElement(slow)
        element.issue(CompositeCmd((op,)))
        timeline = element.timeline()
        reads = spans(timeline, StageKind.DMA_READ)
        fetches = spans(timeline, StageKind.FETCH)
        for step in range(buffers, 16):
            assert reads[step][0] >= fetches[step - buffers][1]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_stores_after_its_last_part(axis: int) -> None:
    x = tensor("x", 8, 12)
    out = tensor("out", 1, 12) if axis == 0 else tensor("out", 8, 1)
    element = ProcessingElement(SIMPLE)
    element.issue(CompositeCmd((OpSpec("sum", {"x": x}, out, {"axis": axis}),)))
    timeline = element.timeline()
    assert len(spans(timeline, StageKind.MATH)) == 6
    stores = spans(timeline, StageKind.STORE)
    assert len(stores) == (3 if axis == 0 else 2)
    assert sum(end - start for start, end in stores) == out.nbytes


def test_element_cost_is_exact_and_shows_dispatch_apart() -> None:
    x, y, z = tensor("x", 4, 4), tensor("y", 4, 4), tensor("z", 4, 4)
    commands: list[PeCommand] = [GemmCmd(x, y, z, 4, 4, 4), MathCmd("add", (z, x), y)]
    element = replace(
        PeAttributes(), clock_freq_ghz=Fraction(3), cost_model=PeCostModel()
    )
    cost = element_cost(commands, element)
    assert cost.dispatch_cycles == 16 + Fraction(40 + 30, 16)
    assert cost.dispatch_ns == cost.dispatch_cycles / 3
    assert cost.total_ns == cost.total_cycles / 3
    assert cost.total_cycles > cost.dispatch_cycles
    assert element_cost([], element).total_cycles == 0


def test_times_beyond_the_range_are_refused() -> None:
    element = ProcessingElement(
        replace(SIMPLE, cost_model=PeCostModel(Fraction(1, 10**13 + 1)))
    )
    element.issue(CompositeCmd(()))
    element.issue(PeCpuOverheadCmd(10**6))
    with pytest.raises(MalformedInput, match="time range"):
        element.timeline()


def test_waiting_for_what_was_never_issued() -> None:
    with pytest.raises(MalformedInput, match="no such command"):
        ProcessingElement(SIMPLE).wait(0)


# Reports.


@pytest.mark.parametrize("name", KERNELS)
def test_all_time_is_accounted_for(name: str) -> None:
    timeline = run_live(KERNELS[name], PeAttributes()).timeline
    report = dispatch_report(name, timeline)
    cpu = report.cpu
    parts = (cpu.dispatch, cpu.explicit, cpu.queue_full, cpu.waiting, cpu.done)
    assert sum(parts) == report.total_cycles
    assert min(parts) >= 0
    for use in report.engines:
        whole = (use.busy, use.starved, use.blocked, use.without_work)
        assert sum(whole) == report.total_cycles
        assert min(whole) >= 0
    assert report.dispatch_cycles == timeline.dispatch_cycles
    assert sum(row.commands for row in report.rows) == len(timeline.commands)
    json.dumps(report.to_dict(), allow_nan=False)


def test_shares_of_fixed_and_bytes() -> None:
    report = dispatch_report(
        "gemm", run_live(KERNELS["gemm_composite"], PeAttributes()).timeline
    )
    assert report.fixed_share == Fraction(40) / Fraction(347, 8)
    data = report.to_dict()
    assert data["dispatch_cycles_exact"] == "347/8"
    assert data["dispatch_ns"] == 43
    assert data["logical_bytes"] == 54


def test_the_report_of_nothing() -> None:
    report = dispatch_report("nothing", ProcessingElement(SIMPLE).timeline())
    assert report.total_cycles == 0
    assert report.findings() == ()
    assert report.to_dict()["fixed_share"] == 0.0


def test_rounding_happens_once() -> None:
    element = replace(PeAttributes(), clock_freq_ghz=Fraction(2))
    timeline = run_live(KERNELS["gqa_decode_opt3"], element).timeline
    report: DispatchReport = dispatch_report("opt3", timeline)
    assert report.ns(report.total_cycles) == round(report.total_cycles / 2)


def test_sweep_over_the_knobs() -> None:
    logs = {
        name: run_live(KERNELS[name], PeAttributes(), {"tiles": 2}).op_log
        for name in ("gqa_decode_opt2", "gqa_decode_opt3")
    }
    grid = parse_sweep("R=0.25,0.0625,0.03125,FIXED_SINGLE=8,40")
    result = sweep(logs, PeAttributes(), grid)
    assert len(result.rows) == 6
    assert {row.fixed_composite for row in result.rows} == {Fraction(40)}
    for row in result.rows:
        assert row.dispatch_cycles[1] > row.dispatch_cycles[0]
    again = run_live(KERNELS["gqa_decode_opt2"], PeAttributes(), {"tiles": 2}).timeline
    (default,) = [
        r
        for r in result.rows
        if (r.byte_cycles_recip, r.fixed_single) == (Fraction(1, 16), Fraction(8))
    ]
    assert default.dispatch_cycles[0] == again.dispatch_cycles
    assert default.total_cycles[0] == again.total_cycles
    json.dumps(result.to_dict())


@pytest.mark.parametrize(
    "text", ["", "0.25", "Q=1", "R=", "R=x", "R=-1", "R=nan", "R=1,R=2", "R=1,,2"]
)
def test_bad_sweeps(text: str) -> None:
    with pytest.raises(MalformedInput):
        parse_sweep(text)


def test_too_many_points() -> None:
    values = [Fraction(i) for i in range(101)]
    with pytest.raises(MalformedInput, match="too many points"):
        sweep({}, PeAttributes(), {"R": values, "FIXED_SINGLE": values})


def test_plot_has_a_line_for_each_kernel_and_pair() -> None:
    pytest.importorskip("matplotlib")
    log = run_live(KERNELS["gqa_decode_opt2"], PeAttributes(), {"tiles": 1}).op_log
    result = sweep(
        {"a": log}, PeAttributes(), parse_sweep("R=0.1,0.2,FIXED_SINGLE=1,2")
    )
    assert len(plot_sensitivity(result).lines) == 2


def test_trace_shows_every_stage_and_the_cpus_waits() -> None:
    timeline = run_live(KERNELS["gemm_primitive"], PeAttributes()).timeline
    document = trace_events(timeline, "gemm_primitive")
    events = document["traceEvents"]
    assert isinstance(events, list)
    shown = [event for event in events if event["ph"] == "X"]
    stages = sum(engine != NO_ENGINE for engine in timeline.engine)
    extra = len(timeline.cpu_queue_stalls()) + len(timeline.cpu_waits())
    assert len(shown) == stages + extra
    assert {event["name"] for event in shown} >= {"queue full", "wait"}
    last = max(event["ts"] + event["dur"] for event in shown)
    assert last == pytest.approx(float(timeline.total_cycles) / 1000)
    assert json.dumps(document) == json.dumps(trace_events(timeline, "gemm_primitive"))
