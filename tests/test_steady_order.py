"""The linear order that repeats fastest: legal, exact in its rate, never worse."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import raptor_cp as rc
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.event_graph import EventGraphBuilder
from raptor_cp.realization import steady_order
from raptor_cp.realization.list_schedule import OrderItems
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realization.realize import realize
from raptor_cp.realization.steady_order import (
    RATE_GENERATIONS,
    StageCoupling,
    steady_positions,
)
from raptor_cp.scheduler import schedule
from raptor_cp.targets.registry import create
from raptor_cp.verdict import Unavailable

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"


@st.composite
def pipelines(draw: st.DrawFn, most: int = 12) -> tuple[OrderItems, StageCoupling]:
    """Random tasks on cores of one to three stages, transfers, coupled neighbours."""
    stages = draw(st.integers(1, 3))
    stage_of = sorted(
        draw(st.lists(st.integers(0, stages - 1), min_size=1, max_size=min(5, most)))
    )
    stage_of = [sorted(set(stage_of)).index(s) for s in stage_of]
    cores = len(stage_of)
    numbers = range(cores)
    core_of = [*numbers]
    core_of += draw(st.lists(st.sampled_from(numbers), max_size=most - cores))
    core_of.sort(key=lambda c: stage_of[c])
    tasks = len(core_of)
    source, target = [], []
    moves: list[tuple[int, int]] = []
    for a, b in itertools.combinations(range(tasks), 2):
        if stage_of[core_of[a]] != stage_of[core_of[b]]:
            continue
        if core_of[a] == core_of[b]:
            source.append(a)
            target.append(b)
        elif len(moves) < most and draw(st.booleans()):
            moves.append((a, b))
    for number, (a, b) in enumerate(moves):
        source += [a, tasks + number]
        target += [tasks + number, b]
    ends = [(c, c) for c in core_of] + [(core_of[a], core_of[b]) for a, b in moves]
    times = draw(st.lists(st.integers(1, 50), min_size=len(ends), max_size=len(ends)))
    stage = [stage_of[core_of[t]] for t in range(tasks)]
    stage += [stage_of[core_of[a]] for a, _ in moves]
    items = OrderItems(
        np.array(ends, np.int64),
        np.array(times, np.int64),
        np.arange(len(ends), dtype=np.int64),
        np.array(source, np.int64),
        np.array(target, np.int64),
        np.array(stage, np.int64),
        cores,
    )
    pairs = [
        (w, r)
        for w in numbers
        for r in numbers
        if stage_of[r] == stage_of[w] + 1 and draw(st.booleans())
    ]
    waits = st.lists(st.integers(0, 20), min_size=cores, max_size=cores)
    coupling = StageCoupling.of(
        pairs, np.array(draw(waits), np.int64), np.array(draw(waits), np.int64)
    )
    return items, coupling


def _rate(items: OrderItems, coupling: StageCoupling, order: list[int]) -> Fraction:
    """The interval of an order as a maximum cycle ratio: an independent method."""
    graph = EventGraphBuilder()
    entry = [graph.add_event(c, "entry") for c in range(items.cores)]
    start = [graph.add_event(c, "start") for c in range(items.cores)]
    last = list(start)
    for core in range(items.cores):
        graph.add_edge(entry[core], start[core], int(coupling.entry_ns[core]))
    weight = dict.fromkeys(start, 0)
    for item in order:
        event = graph.add_event(int(items.ends[item, 0]), "item")
        weight[event] = int(items.duration_ns[item])
        for core in set(items.ends[item].tolist()):
            graph.add_edge(last[core], event, weight[last[core]])
            last[core] = event
    end = []
    for core in range(items.cores):
        event = graph.add_event(core, "exit")
        graph.add_edge(
            last[core], event, weight[last[core]] + int(coupling.exit_ns[core])
        )
        graph.add_edge(event, entry[core], 0, 1)
        end.append(event)
    for writer, reader in zip(
        coupling.writer.tolist(), coupling.reader.tolist(), strict=True
    ):
        graph.add_edge(end[writer], entry[reader], 0)
        graph.add_edge(end[reader], end[writer], 0, 1)
    answer = maximum_cycle_ratio(graph.build())
    assert isinstance(answer, CycleRatio)
    return answer.ratio_ns


def _order(position: np.ndarray) -> list[int]:
    return [int(i) for i in np.argsort(position, kind="stable")]


@given(pipelines())
def test_order_is_a_linear_extension(case: tuple[OrderItems, StageCoupling]) -> None:
    items, coupling = case
    position, _ = steady_positions(items, coupling)
    assert sorted(position.tolist()) == list(range(items.count))
    assert (position[items.source] < position[items.target]).all()


@given(pipelines())
def test_expected_interval_is_that_of_the_order(
    case: tuple[OrderItems, StageCoupling],
) -> None:
    items, coupling = case
    position, expected = steady_positions(items, coupling)
    exact = _rate(items, coupling, _order(position))
    # Measured from a cold start over a window: off by at most one transient.
    window = RATE_GENERATIONS - RATE_GENERATIONS // 2
    total = int(items.duration_ns.sum() + (coupling.entry_ns + coupling.exit_ns).sum())
    assert abs(expected - exact) <= 1 + Fraction(total, window)


@given(pipelines())
def test_no_rule_alone_repeats_faster(case: tuple[OrderItems, StageCoupling]) -> None:
    items, coupling = case
    _, expected = steady_positions(items, coupling)
    stages = int(items.stage.max()) + 1
    rates = steady_order._Rates(items, coupling, stages)
    window = RATE_GENERATIONS - RATE_GENERATIONS // 2
    for position in steady_order._orders(
        items, coupling, items.positions(blocking=True), stages
    ):
        assert (position[items.source] < position[items.target]).all()
        assert expected <= -(-rates.total_ns(rates.by_stage(position)) // window)


@given(pipelines(most=3))
def test_brute_force_is_never_beaten(case: tuple[OrderItems, StageCoupling]) -> None:
    items, coupling = case
    assume(items.count <= 6)
    position, _ = steady_positions(items, coupling)
    before = list(zip(items.source.tolist(), items.target.tolist(), strict=True))
    best = min(
        _rate(items, coupling, list(order))
        for order in itertools.permutations(range(items.count))
        if all(order.index(a) < order.index(b) for a, b in before)
    )
    assert _rate(items, coupling, _order(position)) >= best


def test_a_sender_computes_on_while_its_receiver_is_busy() -> None:
    """Two results for a receiver that needs both: the first must not be sent at once.

    Sent at once, the sender waits until the receiver has computed (20), then
    computes the second (10).  Sent together, the receiver never waits.
    """
    items = OrderItems(
        np.array([(0, 0), (0, 0), (1, 1), (0, 1), (0, 1)], np.int64),
        np.array([10, 10, 20, 1, 1], np.int64),
        np.array([2, 3, 4, 0, 1], np.int64),
        np.array([0, 0, 1, 3, 4], np.int64),
        np.array([1, 3, 4, 2, 2], np.int64),
        np.zeros(5, np.int64),
        2,
    )
    alone = StageCoupling.none(2)
    early = _order(items.positions(blocking=True))
    late, expected = steady_positions(items, alone)
    assert _rate(items, alone, early) == 32
    assert _rate(items, alone, _order(late)) == expected == 22


def test_nothing_to_order_and_cycles() -> None:
    empty = np.zeros(0, np.int64)
    none = OrderItems(np.zeros((0, 2), np.int64), empty, empty, empty, empty, empty, 1)
    assert steady_positions(none, StageCoupling.none(1))[0].size == 0
    cycle = OrderItems(
        np.zeros((2, 2), np.int64),
        np.ones(2, np.int64),
        np.arange(2, dtype=np.int64),
        np.array([0, 1], np.int64),
        np.array([1, 0], np.int64),
        np.zeros(2, np.int64),
        1,
    )
    assert steady_positions(cycle, StageCoupling.none(1))[0].min() == -1


@pytest.mark.parametrize("name", ["tiny-residual", "squeezenet-arch-b"])
@pytest.mark.parametrize("way", list(CrossStage))
def test_expected_interval_of_a_plan_is_near_its_recurrence(
    name: str, way: CrossStage
) -> None:
    loaded = rc.load(SCENARIOS / f"{name}.yaml", ["search.queue_evaluations=1"])
    found = schedule(loaded).schedule
    assert found is not None
    plan = realize(found, Policy.DOUBLE_BUFFER, way, OrderRule.STEADY)
    assert plan.expected_ns is not None
    events = create(loaded).extract_events(plan)
    assert not isinstance(events, Unavailable)
    answer = maximum_cycle_ratio(events.graph)
    assert isinstance(answer, CycleRatio)
    service = int(events.graph.service_by_server().max(initial=0))
    least = max(float(answer.ratio_ns), service)
    assert plan.expected_ns == pytest.approx(least, rel=0.1)


def test_auto_evaluates_the_form_that_is_expected_to_be_faster() -> None:
    costs = {}
    for way in ("memory", "direct", "auto"):
        result = rc.schedule(
            SCENARIOS / "squeezenet-arch-b.yaml",
            overrides={
                "pipeline.cross_stage": way,
                "search.queue_evaluations": 1,
                "solver.enabled": False,
            },
        )
        assert result.plan is not None
        costs[way] = (result.plan.cross_stage, result.plan.expected_ns)
    assert costs["auto"] == min(
        (costs["memory"], costs["direct"]), key=lambda c: c[1] or 0
    )
