"""Core clusters and stage-local placement."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import ComputeGraph, ResidentWeight, Task
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.pipeline import placement as placement_module
from raptor_cp.pipeline.core_layout import CoreLayout
from raptor_cp.pipeline.groups import PipelineGroups
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.pipeline.ordered_packing import OrderedPacking
from raptor_cp.pipeline.packing import PackingCounts, PackingExhausted
from raptor_cp.pipeline.placement import (
    Placed,
    PlacementExhausted,
    StageFigures,
    StageMethod,
    StagePlacer,
    _best,
    _StageTask,
)
from raptor_cp.pipeline.stage_assignment import exchange, first_overfull
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import TaskCosts
from raptor_cp.validation import violations
from tests.instances import generator, mesh_links, mesh_resources, random_problem

IndexArray = np.ndarray[tuple[int], np.dtype[np.int32]]


# --- layout -------------------------------------------------------------------


def test_the_chain_follows_the_rows_of_a_mesh() -> None:
    layout = CoreLayout(mesh_links(12, 4))
    assert layout.order == (0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 10**6))
def test_clusters_are_disjoint_and_of_the_right_size(
    cores: int, columns: int, seed: int
) -> None:
    rng = generator(seed)
    left = cores
    budgets: list[int] = []
    while left and len(budgets) < 6:
        budgets.append(int(rng.integers(1, left + 1)))
        left -= budgets[-1]
        if rng.random() < 0.2:
            break
    layout = CoreLayout(mesh_links(cores, columns))
    clusters = layout.clusters(budgets)
    assert [len(c) for c in clusters] == budgets
    used = [core for cluster in clusters for core in cluster]
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(cores))
    assert clusters == CoreLayout(mesh_links(cores, columns)).clusters(budgets)
    chain = layout._intervals(tuple(budgets))
    assert layout.spread(clusters) <= layout.spread(chain)


def test_clusters_on_a_real_mesh_are_compact_and_adjacent() -> None:
    links = mesh_links(168, 14)
    layout = CoreLayout(links)
    clusters = layout.clusters([21] * 8)
    chain = layout._intervals((21,) * 8)
    assert layout.spread(clusters) < 0.8 * layout.spread(chain)
    step = int(layout.distance[0, 1])
    for before, after in pairwise(clusters):
        assert int(layout.distance[np.ix_(before, after)].min()) <= 2 * step


@pytest.mark.parametrize("budgets", [(), (0, 2), (3, 2)])
def test_impossible_budgets(budgets: tuple[int, ...]) -> None:
    with pytest.raises(InternalError, match="on a chip of 4 cores"):
        CoreLayout(mesh_links(4)).clusters(budgets)


# --- placement ----------------------------------------------------------------


def _placer(problem: Problem) -> StagePlacer:
    return StagePlacer(
        StaticEvaluator(problem),
        IndexedResidentWeights.of(problem),
        CoreLayout(problem.resources.links),
    )


def _random_vector(rng: np.random.Generator, problem: Problem) -> StageVector:
    groups, cores = len(problem.graph.operations), problem.resources.cores
    stages = int(rng.integers(1, min(groups, cores) + 1))
    cuts = np.sort(rng.choice(groups - 1, stages - 1, replace=False)) + 1
    budgets = np.ones(stages, dtype=np.int64)
    for _ in range(int(rng.integers(0, cores - stages + 1))):
        budgets[rng.integers(0, stages)] += 1
    return StageVector((0, *cuts.tolist()), tuple(budgets.tolist()))


def _first_fit(problem: Problem, tasks: list[int], cores: int) -> IndexArray | None:
    """The first core with room, by plain sets."""
    graph = problem.graph
    held: list[set[int]] = [set() for _ in range(cores)]
    found = []
    for task in tasks:
        for core in range(cores):
            union = held[core] | set(graph.tasks[task].weights)
            if sum(graph.weights[w].slots for w in union) <= _capacity(problem):
                held[core] = union
                found.append(core)
                break
        else:
            return None
    return np.array(found, dtype=np.int32)


def _capacity(problem: Problem) -> int:
    return problem.resources.slots_per_core


def _retained(problem: Problem, vector: StageVector) -> list[IndexArray | None]:
    graph = problem.graph
    return [
        _first_fit(
            problem,
            [t for t in range(graph.task_count) if a <= graph.tasks[t].operation < b],
            budget,
        )
        for (a, b), budget in zip(
            vector.segments(len(graph.operations)), vector.budgets, strict=True
        )
    ]


def _exhausted(*_: object) -> PackingExhausted:
    return PackingExhausted(1, PackingCounts(7, 5, 3))


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**6))
def test_placements_pass_the_validator(seed: int) -> None:
    """Roomy or tight, uniform or not: what is placed is legal, and the figures
    that ranked it are those of the evaluator."""
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=int(rng.integers(1, 7)),
        cores=int(rng.integers(1, 10)),
        slots=int(rng.integers(3, 9)) if seed % 3 else None,
        uneven_cores=bool(rng.random() < 0.3),
    )
    vector = _random_vector(rng, problem)
    retained = _retained(problem, vector)
    placer = _placer(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement_module, "pack_resident", _exhausted)
        outcome = placer.place(vector, retained)
        if isinstance(outcome, PlacementExhausted):
            assert retained[outcome.stage] is None
            assert outcome.counts == PackingCounts(7, 5, 3)
            return
        again = _placer(problem).place(vector, retained)
    assert isinstance(again, Placed)
    assert again.placement.key() == outcome.placement.key()
    schedule = placer.evaluator.schedule(outcome.placement)
    assert violations(schedule) == ()
    assert [len(s.cores) for s in outcome.placement.stages] == list(vector.budgets)
    summary = schedule.summary
    assert tuple(f.span_ns for f in outcome.figures) == summary.stage_spans_ns
    assert tuple(f.load_ns for f in outcome.figures) == summary.stage_loads_ns
    demand = np.array(summary.core_work_ns) + placer.evaluator.transfer_demand(
        outcome.placement.core_of, placer.evaluator.stage_of_task(outcome.placement)
    )
    for stage, figure in zip(outcome.placement.stages, outcome.figures, strict=True):
        assert figure.demand_ns == int(demand[list(stage.cores)].max())


def _plain_greedy(
    problem: Problem, tasks: range, cores: tuple[int, ...], rule: int, limit: int
) -> list[int] | None:
    """The three greedy rules again, with sets and dictionaries."""
    graph, links = problem.graph, problem.resources.links
    preds = {t: {} for t in tasks}  # type: dict[int, dict[int, int]]
    for tail, head, data in graph.to_networkx().edges(data=True):
        if tail in preds and head in preds:
            preds[head][tail] = data["bytes"]
    at: dict[int, int] = {}
    finish: dict[int, int] = {}
    held: dict[int, set[int]] = {c: set() for c in cores}
    ready = dict.fromkeys(cores, 0)
    load = dict.fromkeys(cores, 0)
    demand = dict.fromkeys(cores, 0)
    for task in tasks:
        best = None
        for position, core in enumerate(cores):
            union = held[core] | set(graph.tasks[task].weights)
            if sum(graph.weights[w].slots for w in union) > _capacity(problem):
                continue
            extra = sum(graph.weights[w].slots for w in union - held[core])
            times = {
                p: links.transfer_ns(size, at[p], core)
                for p, size in preds[task].items()
            }
            work = problem.costs.on(task, core)
            start = max([ready[core], *(finish[p] + t for p, t in times.items())])
            key = {
                0: (start + work, load[core] + work, extra),
                1: (demand[core] + work + sum(times.values()), extra, start + work),
                2: (max(load[core] + work - limit, 0), extra, start + work),
            }[rule]
            if best is None or (*key, position) < best[0]:
                best = ((*key, position), core, times, start + work, union)
        if best is None:
            return None
        _, core, times, end, union = best
        at[task], finish[task], ready[core], held[core] = core, end, end, union
        load[core] += problem.costs.on(task, core)
        demand[core] += problem.costs.on(task, core)
        for source, time in times.items():
            demand[at[source]] += time
            demand[core] += time
    return [cores.index(at[t]) for t in tasks]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_greedy_rules_equal_their_plain_twin(seed: int) -> None:
    rng = generator(seed)
    problem = random_problem(
        rng,
        operations=5,
        cores=5,
        slots=int(rng.integers(4, 12)),
        uneven_cores=bool(seed % 2),
    )
    placer = _placer(problem)
    cluster = np.array([4, 0, 3], dtype=np.int32)
    nothing = np.zeros(problem.graph.task_count, dtype=np.int64)
    stage = _StageTask(placer, 1, 4, cluster, nothing)
    for rule in range(3):
        local, checks = stage._greedy(rule, 60)
        expected = _plain_greedy(
            problem, range(stage.begin, stage.end), (4, 0, 3), rule, 60
        )
        assert checks <= 3 * (stage.end - stage.begin)
        if expected is None:
            assert local.size == 0 < stage.end - stage.begin
        else:
            assert local.tolist() == expected


def _tight() -> Problem:
    """Slots 2, 2, 3, 1 on two cores of 4: only {3, 1} and {2, 2} fit, and tasks in
    order with equal times go to different cores first."""
    tasks = tuple(Task(f"t{i}", i, 0, ExplicitWork((10,)), (i,)) for i in range(4))
    graph = ComputeGraph(
        "tight",
        tuple(f"O{i}" for i in range(4)),
        tasks,
        tuple(ResidentWeight(f"w{i}", s, i) for i, s in enumerate((2, 2, 3, 1))),
        (),
        (),
    )
    costs = TaskCosts(np.full(4, 10, dtype=np.int64))
    return Problem(graph, costs, mesh_resources(2, 4))


def test_the_retained_assignment_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "pack_resident", _exhausted)
    problem = _tight()
    retained = np.array([0, 0, 1, 1], dtype=np.int32)
    outcome = _placer(problem).place(StageVector((0,), (2,)), [retained])
    assert isinstance(outcome, Placed)
    assert outcome.methods == (StageMethod.RETAINED,)
    assert outcome.placement.core_of.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_exhausted_search_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "pack_resident", _exhausted)
    outcome = _placer(_tight()).place(StageVector((0,), (2,)), [None])
    assert isinstance(outcome, PlacementExhausted)
    assert (outcome.stage, outcome.groups, outcome.cores) == (0, (0, 4), 2)
    assert outcome.counts == PackingCounts(7, 5, 3)
    assert outcome.verdict == "UNKNOWN"
    assert outcome.checks > 0


def test_illegal_retained_assignments_are_refused() -> None:
    placer = _placer(_tight())
    for local, text in (
        ([0, 0, 0, 1], "core 0 is above its capacity"),
        ([0, 0, 1, 2], "outside its 2 cores"),
        ([0, 0, 1], "3 tasks"),
    ):
        with pytest.raises(InternalError, match=text):
            placer.place(StageVector((0,), (2,)), [np.array(local, dtype=np.int32)])


def test_span_decides_within_one_percent_of_demand() -> None:
    none = np.zeros(0, dtype=np.int32)

    def option(method: StageMethod, *figures: int) -> object:
        return (method, none, StageFigures(*figures))

    arrival = option(StageMethod.ARRIVAL, 1010, 500, 300)
    demand = option(StageMethod.DEMAND, 1000, 501, 200)
    retained = option(StageMethod.RETAINED, 1011, 100, 100)
    assert _best([arrival, demand, retained])[0] is StageMethod.ARRIVAL  # type: ignore[list-item]
    same = option(StageMethod.REUSE, 1000, 501, 199)
    assert _best([demand, same, retained])[0] is StageMethod.REUSE  # type: ignore[list-item]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10**6))
def test_exchanging_cores_never_lengthens_transfers(cores: int, seed: int) -> None:
    rng = generator(seed)
    links = mesh_links(cores)
    messages = rng.integers(0, 3, (cores, cores))
    units = rng.integers(0, 9, (cores, cores)) * messages
    np.fill_diagonal(messages, 0)
    np.fill_diagonal(units, 0)

    def total(seat: IndexArray) -> int:
        pairs = np.ix_(seat, seat)
        shared = links.handshake_ns[pairs] * messages + links.unit_ns[pairs] * units
        return int(shared.sum())

    seat = exchange(messages, units, links.handshake_ns, links.unit_ns, 50)
    assert sorted(seat.tolist()) == list(range(cores))
    assert total(seat) <= total(np.arange(cores, dtype=np.int32))
    for a in range(cores):  # a local optimum: no exchange of two is better
        for b in range(a):
            other = seat.copy()
            other[a], other[b] = seat[b], seat[a]
            assert total(other) >= total(seat)


def test_first_overfull_core() -> None:
    weights = IndexedResidentWeights.of(_tight())
    arguments = (
        weights.task_class,
        weights.class_ptr,
        weights.class_idx,
        weights.slots,
        weights.capacity,
    )
    for local, full in (([0, 0, 1, 1], -1), ([1, 1, 1, 0], 1)):
        assert first_overfull(*arguments, np.array(local, dtype=np.int32), 2) == full


def test_the_placement_runs_tasks_in_task_order() -> None:
    problem = random_problem(generator(1), operations=5, cores=4)
    outcome = _placer(problem).place(StageVector((0, 2), (2, 2)), [None, None])
    assert isinstance(outcome, Placed)
    expected = Placement.in_task_order(
        outcome.placement.core_of, 4, outcome.placement.stages
    )
    assert outcome.placement.order == expected.order


# --- with the packers ---------------------------------------------------------


def test_the_shared_constructor_recovers_a_failed_stage() -> None:
    outcome = _placer(_tight()).place(StageVector((0,), (2,)), [None])
    assert isinstance(outcome, Placed)
    assert outcome.methods == (StageMethod.CONSTRUCTED,)
    assert outcome.placement.core_of.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])


def test_a_refuted_budget_is_infeasible() -> None:
    problem = _tight()
    outcome = _placer(problem).place(StageVector((0, 1), (1, 1)), [None, None])
    assert isinstance(outcome, PlacementExhausted)
    assert (outcome.stage, outcome.verdict) == (1, "INFEASIBLE")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_static_objective_is_that_of_the_partition(seed: int) -> None:
    """A schedule of ordered packings costs what the curves and spans say."""
    rng = generator(seed)
    problem = random_problem(rng, operations=5, cores=8, slots=9)
    vector = _random_vector(rng, problem)
    weights, groups = IndexedResidentWeights.of(problem), PipelineGroups.of(problem)
    packing = OrderedPacking.of(groups, weights)
    core_of = np.zeros(problem.graph.task_count, dtype=np.int32)
    stages, expected, first_core = [], 0, 0
    for index, (first, last) in enumerate(vector.segments(groups.count)):
        budget = vector.budgets[index]
        local = packing.assignment(first, last, budget)
        if local is None:
            return
        core_of[list(groups.tasks(first, last))] = local + first_core
        cores = tuple(range(first_core, first_core + budget))
        stages.append(Stage(index, tuple(range(first, last)), cores))
        first_core += budget
        curve = int(packing.curve(first, last, budget)[budget])
        expected = max(expected, curve, int(groups.spans[first, last]))
    placement = Placement.in_task_order(core_of, problem.resources.cores, tuple(stages))
    summary = StaticEvaluator(problem).schedule(placement).summary
    assert summary.static_objective_ns == expected
    assert summary.memory_service_ns == groups.traffic.memory_service(vector.starts)
