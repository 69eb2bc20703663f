"""Every documented budget: its figure in the reports, and that its limit bites.

First part: runs of several scenarios are written to disk, and each limit of the
scheduling spec is compared with the figure that the reports give.  Second part: for
each limit an instance that reaches it, or would exceed it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.periodic.analysis import OrderAnalysis, analyse_order
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.event_graph import EventGraph, EventGraphBuilder
from raptor_cp.periodic.queue_engine import (
    QueueMeasurement,
    TieOrder,
    event_limit,
    measure_queue,
)
from raptor_cp.periodic.recurrence import prove_recurrence
from raptor_cp.periodic.unavailable import Unavailable as NoTiming
from raptor_cp.periodic.witness import MAX_WITNESS_EDGES
from raptor_cp.pipeline.beam import Candidate, Scored, SearchResult, refine
from raptor_cp.pipeline.budgets import StagePacking
from raptor_cp.pipeline.groups import StageLimits
from raptor_cp.pipeline.minimum_resource import SegmentTables
from raptor_cp.pipeline.neighbourhood import Move, StageVector
from raptor_cp.pipeline.packing import (
    CheckBudget,
    PackingExhausted,
    RecoveryUse,
    pack_resident,
)
from raptor_cp.pipeline.partition import QualityGrid
from raptor_cp.pipeline.search_budget import SearchBudget
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.realization import events as events_module
from raptor_cp.realization.events import extract_events
from raptor_cp.realization.neutral_events import NeutralTimes
from raptor_cp.realization.plan import CorePlan, Item, Purpose, Run, Signal
from raptor_cp.realization.realize import realize
from raptor_cp.run_output import write_run
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.schedules import Placement, Problem, Schedule
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import RealizedCost, Unavailable
from raptor_cp.units import MAX_NS
from raptor_cp.verdict import Verdict
from tests.instances import costs_of, generator, mesh_resources, random_problem
from tests.periodic_pipelines import PipelineShape, pipeline
from tests.plans import pipeline as small_pipeline

ROOT = Path(__file__).resolve().parents[1]
SCENARIOS = (
    "tiny-residual",
    "audio-cnn-small-chip",
    "squeezenet-arch-b",
    "mobilenetv2-arch-a",
)


@dataclass(frozen=True)
class Reports:
    """What a run wrote."""

    name: str
    selection: dict[str, Any]
    periodic: dict[str, Any]

    def details(self) -> list[dict[str, int]]:
        """Counted work of every candidate that has timing."""
        found = [c["details"] for c in self.selection["candidates"] if c["eligible"]]
        assert found, self.name
        return found


@pytest.fixture(scope="module", params=SCENARIOS)
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reports:
    folder = tmp_path_factory.mktemp("budgets") / "run"
    path = ROOT / "scenarios" / f"{request.param}.yaml"
    loaded = load(path, ("search.accept_initial=true",))
    write_run(schedule(loaded), folder)
    documents = [
        json.loads((folder / "reports" / f"pipeline_{name}.json").read_text())
        for name in ("selection", "periodic")
    ]
    return Reports(request.param, *documents)


BUDGETS = {
    "queue_evaluations": 32,
    "packings": 128,
    "beam": 2,
    "placements_per_round": 2,
    "shortlist": 64,
    "spare_units": 16,
    "packing_deviations": 16,
    "core_candidate_checks": 65_536,
}


def test_counted_budgets_of_the_search(reports: Reports) -> None:
    budgets = reports.selection["budgets"]
    for name, limit in BUDGETS.items():
        assert budgets[name]["limit"] <= limit, name
        assert 0 <= budgets[name]["used"] <= budgets[name]["limit"], name
    evaluations = budgets["queue_evaluations"]["used"]
    assert len(reports.selection["candidates"]) <= evaluations <= 32
    assert budgets["shortlist"]["limit"] == 2 * budgets["queue_evaluations"]["limit"]
    assert budgets["packings"]["used"] >= 1


def test_at_most_two_new_placements_descend_from_a_round(reports: Reports) -> None:
    """Recomputed from the parents: rounds hold one or two neighbours."""
    budgets = reports.selection["budgets"]
    moved = [c for c in reports.selection["candidates"] if c["parent"] is not None]
    assert len(moved) <= 2 * budgets["rounds"]["used"]


def test_recurrence_analysis_of_every_candidate(reports: Reports) -> None:
    for figures in reports.details():
        assert 0 < figures["bisection_tests"] <= 64
        assert figures["largest_sweeps"] <= figures["recurrence_edges"] + 1
        assert 0 < figures["recurrence_edges"] <= 2 * figures["cores"]


def test_queue_execution_of_every_candidate(reports: Reports) -> None:
    for figures in reports.details():
        limit = 16 * (figures["events"] + figures["edges"])
        for order in ("event_index", "reversed"):
            assert 0 < figures[f"generations_{order}"] <= 64
            assert 0 < figures[f"processed_events_{order}"] <= limit
            assert figures[f"attempts_{order}"] >= 1


def test_extraction_of_every_candidate(reports: Reports) -> None:
    for figures in reports.details():
        assert 0 < figures["largest_visits"] <= 1_000_000
        assert figures["largest_visits"] <= figures["visits"]
        assert 0 < figures["non_work_events"] <= 2_000_000


def test_periodic_report(reports: Reports) -> None:
    periodic = reports.periodic
    recurrence = periodic["recurrence"]
    assert periodic["selection_eligible"] is False
    assert recurrence["tests"] <= 64
    assert recurrence["recurrence_edges"] <= 2 * len(periodic["core_work_ns"])
    assert recurrence["largest_sweeps"] <= recurrence["recurrence_edges"] + 1
    edges = recurrence["totals"]["edges"]
    assert len(recurrence["witness"]) == min(edges, 128)
    limit = 16 * (periodic["events"] + periodic["edges"])
    for order in periodic["queues"]:
        for attempt in order["attempts"]:
            assert attempt["processed_events"] <= limit
            assert attempt["generations"] <= 64


def test_phases_separate_what_the_spec_separates(reports: Reports) -> None:
    counts = reports.selection["phase_counts"]
    assert set(reports.selection["phases"]) == set(counts)
    needed = (
        "neighbourhood scoring",
        "constructive packing",
        "realization",
        "graph checks",
        "event extraction",
        "dependency-witness analysis",
        "queue execution",
    )
    assert [n for n in needed if n not in counts] == []
    used = reports.selection["budgets"]["queue_evaluations"]["used"]
    assert counts["graph checks"] == used
    assert counts["queue execution"] == 2 * counts["dependency-witness analysis"]


# Limits that bite, one instance each.


class AnyCut:
    def allows_cut(self, group: int) -> bool:
        return True


class CountingModel:
    """A large neighbourhood; every placement differs, or none succeeds."""

    def __init__(self, fails: bool) -> None:
        self.problem = random_problem(generator(7), cores=6)
        self.fails, self.placed = fails, 0

    def propose(self, parent: Candidate, move: Move) -> Scored | None:
        budgets = tuple(1 if kept is None else kept for kept in move.kept)
        return Scored(sum(move.starts), (), StageVector(move.starts, budgets), "any")

    def place(self, vector: StageVector) -> Schedule | None:
        self.placed += 1
        return None if self.fails else self.schedule(self.placed)

    def cost(self, schedule: Schedule) -> RealizedCost:
        return RealizedCost("queue", 1000, 1000, True)

    def schedule(self, number: int) -> Schedule:
        cores, tasks = 6, self.problem.graph.task_count
        digits = [(number // cores**t) % cores for t in range(tasks)]
        core_of = np.array(digits, dtype=np.int32)
        return evaluate(self.problem, Placement.in_task_order(core_of, cores))


def searched(model: CountingModel, budget: SearchBudget) -> SearchResult:
    initial = (StageVector((0, 3), (3, 3)), model.schedule(0))
    return refine(initial, [], model, budget, groups=150, depth=8, limits=AnyCut())


def test_search_reaches_32_evaluations_2_placements_and_2c_proposals() -> None:
    result = searched(CountingModel(fails=False), SearchBudget())
    used = {name: entry["used"] for name, entry in result.budget.to_dict().items()}
    assert result.termination == "queue evaluations"
    assert used["queue_evaluations"] == len(result.candidates) == 32
    assert used["placements_per_round"] == 2
    assert used["shortlist"] == 64
    assert used["beam"] == 2
    with pytest.raises(InternalError, match="exceeded"):
        result.budget.queue_evaluations.take()


def test_search_reaches_128_packings() -> None:
    model = CountingModel(fails=True)
    result = searched(model, SearchBudget())
    assert result.termination == "packings"
    assert model.placed == result.budget.packings.used == 128
    with pytest.raises(InternalError, match="exceeded"):
        result.budget.packings.take()


@pytest.mark.parametrize(
    "key", ["search.queue_evaluations=33", "search.packings=129", "search.beam=3"]
)
def test_scenario_cannot_raise_a_budget(key: str) -> None:
    with pytest.raises(MalformedInput, match=key.split("=")[0]):
        load(ROOT / "scenarios" / "tiny-residual.yaml", (key,))


def in_pairs(cores: int) -> IndexedResidentWeights:
    """One weight more than fit two to a core; no lower bound sees it."""
    count = 2 * cores + 1
    graph = ComputeGraph(
        "pairs",
        tuple(f"op{i}" for i in range(count)),
        tuple(Task(f"t{i}", i, 0, ExplicitWork((1,)), (i,)) for i in range(count)),
        tuple(ResidentWeight(f"w{i}", 34, i) for i in range(count)),
        (),
        (),
    )
    problem = Problem(graph, costs_of(graph), mesh_resources(cores, 100))
    return IndexedResidentWeights.of(problem)


@pytest.mark.parametrize(
    ("cores", "deviations", "checks"), [(20, 16, None), (100, None, 65_536)]
)
def test_packing_recovery_ends_at_16_deviations_or_65536_checks(
    cores: int, deviations: int | None, checks: int | None
) -> None:
    weights, budget, use = in_pairs(cores), CheckBudget(), RecoveryUse()
    tasks = range(2 * cores + 1)
    outcome = pack_resident(
        weights, tasks, cores, np.ones(len(tasks), np.int64), budget
    )
    use.note(outcome)
    assert isinstance(outcome, PackingExhausted)
    assert outcome.verdict is Verdict.UNKNOWN  # no claim of infeasibility
    assert budget.spent
    assert outcome.counts.deviations == use.deviations == (deviations or use.deviations)
    assert outcome.counts.recovery_checks == use.checks == (checks or use.checks)
    assert use.deviations <= 16
    assert use.checks <= 65_536
    report = SearchBudget()
    report.recovery.note(outcome)
    assert report.to_dict()["packing_deviations"]["used"] == use.deviations
    assert report.to_dict()["core_candidate_checks"]["used"] == use.checks


def test_quality_grid_has_at_most_16_units() -> None:
    seen = set()
    for cores in range(3, 120):
        packing = StagePacking.of(random_problem(generator(3), cores=cores))
        tables = SegmentTables.of(packing, StageLimits.of(packing.groups))
        seen.add(QualityGrid(packing, tables, 2).units)
    assert max(seen) == 16


def rising_loops(count: int, inner: int) -> EventGraph:
    """Separate cycles whose ratios rise: each test finds only the next one.

    A path without a cycle makes the first bracket as wide as int64 allows.
    """
    builder = EventGraphBuilder()
    for number in range(count):
        event = builder.add_event(number, "loop")
        builder.add_edge(event, event, (number + 1) << 34, distance=1)
    steps = [builder.add_event(count, "step") for _ in range(inner)]
    for source, target in pairwise(steps):
        builder.add_edge(source, target, MAX_NS)
    return builder.build()


@pytest.mark.parametrize(
    ("count", "inner", "least"), [(10, 0, 10), (200, 0, 20), (200, 1000, 60)]
)
def test_bracket_closes_within_64_tests(count: int, inner: int, least: int) -> None:
    found = maximum_cycle_ratio(rising_loops(count, inner))
    assert isinstance(found, CycleRatio)
    assert least <= found.tests <= 64  # improvements alone would take ``count``
    assert found.max_sweeps <= found.recurrence_edges + 1
    assert found.upper_ns - found.ratio_ns <= 1
    assert found.ratio_ns <= count << 34 <= found.upper_ns


@pytest.mark.parametrize("edges", [1, 2, 5, 40])
def test_sweeps_are_at_most_recurrences_plus_one(edges: int) -> None:
    """Whatever the order in which recurrence edges are relaxed, R + 1 suffice."""
    builder = EventGraphBuilder()
    for core in range(edges):
        builder.add_event(core, "step")
    for core in range(edges):
        delay = 10 if core < edges - 1 else 0
        builder.add_edge(core, (core + 1) % edges, delay, distance=1)
    found = maximum_cycle_ratio(builder.build())
    assert isinstance(found, CycleRatio)
    assert found.ratio_ns == Fraction(10 * (edges - 1), edges)
    assert found.max_sweeps <= edges + 1 == found.recurrence_edges + 1


def test_sweeps_of_recurrences_in_reverse_reach_the_limit() -> None:
    """Each sweep carries a value over one more recurrence edge."""
    count = 30
    builder = EventGraphBuilder()
    for core in range(count):
        builder.add_event(core, "step")
    for core in range(count - 1, 0, -1):
        builder.add_edge(core, core - 1, 10, distance=1)
    builder.add_edge(0, count - 1, 0, distance=1)
    found = maximum_cycle_ratio(builder.build())
    assert isinstance(found, CycleRatio)
    assert found.recurrence_edges == count
    assert count - 1 <= found.max_sweeps <= count + 1


def deep(seed: int) -> EventGraph:
    """A deep pipeline with much contention: it does not recur soon."""
    shape = PipelineShape(16, skips=30, service=80, spread=30)
    return pipeline(shape, seed)


def test_executions_end_at_64_generations() -> None:
    stopped = 0
    for seed in range(8):
        graph = deep(seed)
        found = analyse_order(graph, TieOrder.EVENT_INDEX, continuations=0)
        assert isinstance(found, OrderAnalysis)
        for attempt in found.attempts:
            assert attempt.generations <= 64
            assert attempt.processed_events <= event_limit(graph)
        exact = found.exact_interval_ns
        if isinstance(exact, NoTiming) and "64 generations" in exact.reason:
            stopped += 1
            assert not found.recurrence_established
            assert max(a.generations for a in found.attempts) == 64
    assert stopped > 0


def test_executions_end_at_16_times_the_graph() -> None:
    stopped = 0
    for seed in range(8):
        graph = deep(seed)
        limit = event_limit(graph)
        assert limit == 16 * (graph.event_count + graph.edge_count)
        measured = measure_queue(graph)
        assert isinstance(measured, QueueMeasurement)
        assert measured.processed_events <= limit
        proof = prove_recurrence(graph)
        if isinstance(proof, NoTiming):
            stopped += f"16(V+E) = {limit} processed events" in proof.reason
    assert stopped > 0


def test_witness_prints_128_edges_of_a_longer_cycle() -> None:
    builder = EventGraphBuilder()
    for step in range(300):
        builder.add_event(step, "step")
    for step in range(300):
        builder.add_edge(step, (step + 1) % 300, 7, distance=int(step == 299))
    found = maximum_cycle_ratio(builder.build())
    assert isinstance(found, CycleRatio)
    assert found.witness is not None
    document: dict[str, Any] = found.witness.to_dict()
    assert len(document["witness"]) == MAX_WITNESS_EDGES == 128
    assert document["totals"]["edges"] == 300
    assert document["totals"]["delay_ns"] == 2100
    assert len(document["totals"]["cores"]) == 300


def with_items(items: tuple[Item, ...], cores: int) -> object:
    """What extraction says about a plan whose cores all have these items."""
    plan = realize(small_pipeline(2))
    texts = tuple(CorePlan(core, 0, items) for core in range(cores))
    times = NeutralTimes(plan.schedule.problem)
    return extract_events(replace(plan, cores=texts, direct=()), times)


def test_a_core_has_at_most_a_million_visits() -> None:
    refused = with_items((Run((0,) * 1_000_001),), 1)
    assert isinstance(refused, Unavailable)
    assert "core 0 has 1000001 operation visits" in refused.reason
    assert "more than 1000000" in refused.reason
    # The total may be larger: the allowance is that of each core.
    both = with_items((Run((0,) * 1_000_000),), 2)
    assert isinstance(both, events_module.PlanEvents)
    assert both.largest_visits == 1_000_000
    assert both.visits == 2_000_000


def test_a_candidate_has_at_most_two_million_events_besides_runs() -> None:
    signals: tuple[Item, ...] = (Signal(1, 0, Purpose.READY),) * 999_999
    refused = with_items(signals, 3)
    assert isinstance(refused, Unavailable)
    assert refused.reason == "3000003 events besides runs, more than 2000000"


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("name", ["MAX_VISITS_PER_CORE", "MAX_NON_WORK_EVENTS"])
def test_exceeded_extraction_stops_the_comparison(
    name: str, seeded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the search stopped before it had a second candidate."""
    monkeypatch.setattr(events_module, name, 3)
    overrides = () if seeded else ("solver.enabled=false",)
    result = schedule(load(ROOT / "scenarios" / "tiny-residual.yaml", overrides))
    assert result.verdict is Verdict.UNKNOWN
    assert "candidates cannot be compared" in result.reason
    write_run(result, tmp_path / "run")
    text = (tmp_path / "run" / "reports" / "pipeline_selection.json").read_text()
    document = json.loads(text)
    assert document["reason"] == "stopped"
    assert document["stops"][0]["property"] == "timing"
    assert "more than 3" in document["stops"][0]["explanation"]


@pytest.mark.parametrize(
    "name", ["greedy-fails-cp-sat-packs", "gemm-primitive-pe", "tiny-residual"]
)
def test_single_candidate_is_realized_once_and_not_gated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "scenarios" / f"{name}.yaml"
    overrides = ("pipeline.stages=1", "solver.enabled=false") if "tiny" in name else ()
    single = schedule(load(path, overrides))
    assert single.search is not None
    assert single.selection is not None
    assert single.cost is not None
    assert single.search.termination == "single-candidate"
    assert single.selection.reason == "single"
    assert single.search.budget.queue_evaluations.used == 0
    assert single.phase_counts["realization"] == 1
    assert "queue execution" not in single.phase_counts
    assert single.cost.timing == "queue"
    assert single.interval_ns == single.cost.larger_ns
    monkeypatch.setattr(events_module, "MAX_VISITS_PER_CORE", 0)
    unavailable = schedule(load(path, overrides))
    assert unavailable.schedule is not None
    assert unavailable.cost is not None
    assert "operation visits" in unavailable.cost.failures[0]
