"""Timelines of plans, and their traces: whole, without overlaps, exact in sum."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import raptor_cp as rc
from raptor_cp.periodic.timeline import SliceKind, Timeline, Track, TrackKind
from raptor_cp.realization.cost import plan_analysis
from raptor_cp.realization.events import extract_events
from raptor_cp.realization.neutral_events import NeutralTimes
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy, Receive, Run
from raptor_cp.realization.realize import realize
from raptor_cp.realization.timeline import single_timeline, steady_timeline
from raptor_cp.reports.perfetto import trace_events
from raptor_cp.targets.registry import create
from raptor_cp.verdict import Unavailable
from tests.test_realization import random_schedule

if TYPE_CHECKING:
    from raptor_cp.result import ScheduleResult

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
KINDS = list(SliceKind)


def _timeline(result: ScheduleResult) -> Timeline:
    assert isinstance(result.timeline, Timeline)
    return result.timeline


@pytest.fixture(scope="module", params=["memory", "direct"])
def tiny(request: pytest.FixtureRequest) -> ScheduleResult:
    return rc.schedule(
        SCENARIOS / "tiny-residual.yaml",
        overrides={"pipeline.cross_stage": request.param},
    )


def assert_whole(timeline: Timeline) -> None:
    """Sorted, inside the window, no overlap; a core's slices fill the window."""
    start, end = timeline.start_ns, timeline.start_ns + timeline.duration_ns
    assert (timeline.duration_ns > 0).all()
    assert (start >= 0).all()
    assert (end <= timeline.window_ns).all()
    assert (np.diff(timeline.track) >= 0).all()
    for number, track in enumerate(timeline.tracks):
        mine = np.flatnonzero(timeline.track == number)
        assert (start[mine][1:] >= end[mine][:-1]).all(), track.name
        if track.kind is TrackKind.CORE:
            assert int(timeline.duration_ns[mine].sum()) == timeline.window_ns
    for column in (timeline.flow_source, timeline.flow_target):
        assert ((column >= 0) & (column < timeline.slice_count)).all()


def test_window_is_the_proved_interval(tiny: ScheduleResult) -> None:
    timeline = _timeline(tiny)
    assert_whole(timeline)
    assert timeline.proved
    assert tiny.cost is not None
    assert math.ceil(timeline.interval_ns) == tiny.cost.interval_ns  # rounded up


def test_every_run_of_the_plan_is_shown_once_a_generation(
    tiny: ScheduleResult,
) -> None:
    timeline, plan = _timeline(tiny), tiny.plan
    assert plan is not None
    run = KINDS.index(SliceKind.RUN)
    costs = plan.schedule.problem.costs
    for number, text in enumerate(plan.cores):
        assert timeline.tracks[number] == Track(
            f"core {text.core}", TrackKind.CORE, text.core
        )
        shown = (timeline.track == number) & (timeline.kind == run)
        work = sum(
            costs.on(task, text.core)
            for item in text.items
            if isinstance(item, Run)
            for task in item.tasks
        )
        assert int(timeline.duration_ns[shown].sum()) == work * timeline.generations


def test_flows_join_a_send_and_its_receive(tiny: ScheduleResult) -> None:
    timeline, plan = _timeline(tiny), tiny.plan
    assert plan is not None
    legal = {("send", "receive"), ("store", "load")}
    found = {
        (
            str(KINDS[timeline.kind[source]]),
            str(KINDS[timeline.kind[target]]),
        )
        for source, target in zip(
            timeline.flow_source, timeline.flow_target, strict=True
        )
    }
    assert found
    assert found <= legal
    same = timeline.generation[timeline.flow_source]
    assert (same == timeline.generation[timeline.flow_target]).all()
    receives = sum(
        isinstance(item, Receive) for text in plan.cores for item in text.items
    )
    if receives:
        assert ("send", "receive") in found


def test_shared_memory_is_busy_for_the_service_of_a_generation() -> None:
    result = rc.schedule(SCENARIOS / "tiny-residual.yaml")
    timeline = _timeline(result)
    (memory,) = [n for n, t in enumerate(timeline.tracks) if t.kind is TrackKind.MEMORY]
    busy = int(timeline.duration_ns[timeline.track == memory].sum())
    assert not isinstance(result.periodic, Unavailable)
    assert result.periodic is not None
    assert busy == result.periodic.service_ns * timeline.generations
    assert (timeline.counter_track == memory).all()
    assert (timeline.counter_value >= 0).all()
    assert (np.diff(timeline.counter_ns) > 0).all()


@pytest.mark.parametrize("seed", range(40))
def test_random_plans(seed: int) -> None:
    policies, ways = list(Policy), list(CrossStage)
    schedule = random_schedule(seed)
    policy, way = policies[seed % len(policies)], ways[seed % len(ways)]
    plan = realize(schedule, policy, way, OrderRule.STEADY)
    events = extract_events(plan, NeutralTimes(schedule.problem))
    assert not isinstance(events, Unavailable)
    timeline = steady_timeline(plan, events, plan_analysis(events))
    if isinstance(timeline, Timeline):
        assert_whole(timeline)
    alone = single_timeline(plan, events)
    assert isinstance(alone, Timeline)
    start, end = alone.start_ns, alone.start_ns + alone.duration_ns
    assert int(end.max(initial=0)) <= alone.window_ns
    for number in range(len(alone.tracks)):
        mine = alone.track == number
        assert (start[mine][1:] >= end[mine][:-1]).all()


def test_document_reads_back(tiny: ScheduleResult) -> None:
    timeline = _timeline(tiny)
    document = json.loads(json.dumps(timeline.to_dict()))
    again = Timeline.from_dict(document, "here")
    assert again.to_dict() == timeline.to_dict()
    for broken in ({}, {**document, "schema": "x"}, {**document, "track": "no"}):
        with pytest.raises(rc.MalformedInput, match="here"):
            Timeline.from_dict(broken, "here")


def test_unproved_intervals_give_an_unproved_window(tiny: ScheduleResult) -> None:
    assert tiny.plan is not None
    events = create(tiny.loaded).extract_events(tiny.plan)
    assert not isinstance(events, Unavailable)
    assert tiny.periodic is not None
    assert not isinstance(tiny.periodic, Unavailable)
    first = tiny.periodic.orders[0]
    assert not isinstance(first, Unavailable)
    unproved = replace(first, proofs=(), exact_interval_ns=Unavailable("not proved"))
    analysis = replace(tiny.periodic, orders=(unproved, unproved))
    timeline = steady_timeline(tiny.plan, events, analysis)
    assert isinstance(timeline, Timeline)
    assert not timeline.proved
    assert_whole(timeline)


# Traces


def assert_legal_trace(document: dict[str, Any]) -> Counter[str]:
    """The rules of the format that viewers rely on."""
    events = document["traceEvents"]
    count = Counter(str(event["ph"]) for event in events)
    named = {
        (e["pid"], e["tid"])
        for e in events
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    slices: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] > 0
            begin = round(event["ts"] * 1000)
            slices.setdefault((event["pid"], event["tid"]), []).append(
                (begin, begin + round(event["dur"] * 1000))
            )
    assert slices.keys() <= named
    for rows in slices.values():
        rows.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(rows))
    ends: dict[int, list[str]] = {}
    moments: dict[int, list[int]] = {}
    for event in events:
        if event["ph"] in ("s", "f"):
            moment = round(event["ts"] * 1000)
            ends.setdefault(event["id"], []).append(event["ph"])
            moments.setdefault(event["id"], []).append(moment)
            assert any(a <= moment < b for a, b in slices[event["pid"], event["tid"]])
            if event["ph"] == "f":
                assert event["bp"] == "e"
    # An arrow that ends before it begins is not drawn; file order breaks ties.
    assert all(both == ["s", "f"] for both in ends.values())
    assert all(begin <= end for begin, end in moments.values())
    last: dict[tuple[int, str], float] = {}
    for event in events:
        if event["ph"] == "C":
            key = (event["pid"], event["name"])
            assert event["ts"] > last.get(key, -1)
            last[key] = event["ts"]
    return count


def test_trace_has_every_slice_flow_and_counter(tiny: ScheduleResult) -> None:
    timeline = _timeline(tiny)
    trace = trace_events(timeline, "tiny")
    count = assert_legal_trace(json.loads(trace.text()))
    assert count["X"] == timeline.slice_count
    assert count["s"] == count["f"] == len(timeline.flow_source)
    assert count["C"] == len(timeline.counter_ns)
    assert json.loads(trace.text()) == trace.document()
    names = {e["name"] for e in trace.document()["traceEvents"] if e["ph"] == "X"}  # type: ignore[attr-defined]
    assert any("conv" in name for name in names)


def test_a_hundred_thousand_slices_make_a_legal_trace() -> None:
    tracks, each = 200, 600
    size = tracks * each
    zeros = np.zeros(size, np.int32)
    timeline = Timeline(
        tracks=tuple(Track(f"core {c}", TrackKind.CORE, c) for c in range(tracks)),
        labels=("conv",),
        track=np.repeat(np.arange(tracks, dtype=np.int32), each),
        start_ns=np.tile(np.arange(each, dtype=np.int64) * 7, tracks),
        duration_ns=np.full(size, 7, np.int64),
        kind=zeros,
        generation=zeros,
        label=zeros,
        flow_source=np.zeros(0, np.int32),
        flow_target=np.zeros(0, np.int32),
        counter_track=np.zeros(0, np.int32),
        counter_ns=np.zeros(0, np.int64),
        counter_value=np.zeros(0, np.int32),
        window_ns=7 * each,
        interval_ns=7.0 * each,
        generations=1,
        proved=True,
    )
    text = trace_events(timeline, "large").text()
    assert len(text) < 120 * size
    assert assert_legal_trace(json.loads(text))["X"] == size >= 10**5


def test_run_folder_has_timeline_and_trace(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        rc.schedule(SCENARIOS / "tiny-residual.yaml", out=tmp_path / folder)
    for name in ("trace.perfetto.json", "reports/timeline.json"):
        one = (tmp_path / "one" / name).read_bytes()
        assert one == (tmp_path / "two" / name).read_bytes()
    document = json.loads((tmp_path / "one/trace.perfetto.json").read_text("utf-8"))
    assert_legal_trace(document)
