"""The evaluator's kernels against the definitions, worked by hand and in Python."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.memory_demand import access_ns
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import StaticEvaluator, evaluate
from raptor_cp.target import AccessKind, LinkModel, MemoryModel, Resources, TaskCosts
from raptor_cp.validation import violations
from tests.instances import (
    generator,
    random_placement,
    random_problem,
    small_memory,
)


def _links(cores: int) -> LinkModel:
    apart = 1 - np.eye(cores, dtype=np.int64)
    return LinkModel(10 * apart, 2 * apart, link_width=4)


def _diamond(scalar: bool = False) -> Problem:
    """a -> b, c (two lanes of one operation) -> d; 8 bytes each; 100 ns each."""
    tasks = tuple(
        Task(name, operation, lane, ExplicitWork((100,)), (operation,))
        for name, operation, lane in (
            ("a", 0, 0),
            ("b", 1, 0),
            ("c", 1, 1),
            ("d", 2, 0),
        )
    )
    graph = ComputeGraph(
        "diamond",
        ("A", "B", "C"),
        tasks,
        tuple(ResidentWeight(f"w{g}", 1, g) for g in range(3)),
        (
            Publication(0, "x", 8, None, 8, 3, scalar),
            Publication(1, "y", 8, (0, 1, 0, 8, 0, 1), 8),
            Publication(2, "y", 8, (1, 2, 0, 8, 0, 1), 8),
        ),
        (Transfer(0, 1, 8), Transfer(0, 2, 8), Transfer(1, 3, 8), Transfer(2, 3, 8)),
        (BaselineAccess(0, BaselineKind.INPUT, "in", 5),),
    )
    memory = MemoryModel(4, 7, 5, read_fixed_ns=1, write_fixed_ns=2)
    chip = Resources(4, 8, _links(4), memory)
    return Problem(graph, TaskCosts(np.full(4, 100, dtype=np.int64)), chip)


def test_latency_mode_by_hand() -> None:
    problem = _diamond()
    core_of = np.array([0, 0, 1, 0], dtype=np.int32)
    schedule = evaluate(problem, Placement.in_task_order(core_of, 4))
    direct = 10 + 2 * 2
    summary = schedule.summary
    assert schedule.start_ns.tolist() == [0, 100, 114, 228]
    assert schedule.slot.tolist() == [0, 1, 0, 2]
    assert schedule.last_tasks == (3, 2, None, None)
    assert summary.serial_work_ns == 400
    assert summary.core_work_ns == (300, 100, 0, 0)
    assert summary.transfer_work_ns == 2 * direct
    assert summary.critical_path_ns == summary.completion_ns == 300 + 2 * direct
    assert summary.memory_service_ns == 2 * 7  # the input: two beats
    assert summary.stage_spans_ns == summary.stage_loads_ns == ()
    assert summary.static_objective_ns == 300


def test_completion_has_the_core_order_and_the_critical_path_has_not() -> None:
    problem = _diamond()
    one_core = np.zeros(4, dtype=np.int32)
    summary = evaluate(problem, Placement.in_task_order(one_core, 4)).summary
    assert (summary.critical_path_ns, summary.completion_ns) == (300, 400)
    assert summary.transfer_work_ns == 0


@pytest.mark.parametrize("scalar", [False, True])
def test_pipeline_by_hand(scalar: bool) -> None:
    """One store for two readers; a scalar one is stored for each, run by run."""
    problem = _diamond(scalar)
    stages = (Stage(0, (0,), (0, 3)), Stage(1, (1, 2), (1, 2)))
    core_of = np.array([0, 1, 2, 1], dtype=np.int32)
    placement = Placement.in_task_order(core_of, 4, stages)
    summary = evaluate(problem, placement).summary
    store, load = (3 * 5, 2 * 7) if scalar else (2 * 5, 2 * 7)
    stores = 2 if scalar else 1
    assert summary.memory_service_ns == stores * store + 2 * load + 2 * 7
    crossing = (store + (6 if scalar else 2)) + (load + 1)
    assert summary.transfer_work_ns == 2 * crossing + 14
    assert summary.stage_loads_ns == (100, 200)
    assert summary.stage_spans_ns == (100, 214)
    assert summary.static_objective_ns == 200
    assert summary.static_interval_ns == 214
    assert summary.completion_ns == 100 + crossing + 214


def test_repeated_loads_on_one_core_stay_several() -> None:
    problem = _diamond()
    stages = (Stage(0, (0,), (0,)), Stage(1, (1, 2), (1,)))
    core_of = np.array([0, 1, 1, 1], dtype=np.int32)
    summary = evaluate(problem, Placement.in_task_order(core_of, 4, stages)).summary
    assert summary.memory_service_ns == 2 * 5 + 2 * (2 * 7) + 2 * 7


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_random_placements_pass_the_independent_validator(seed: int) -> None:
    rng = generator(seed)
    operations = int(rng.integers(1, 7))
    problem = random_problem(
        rng,
        operations=operations,
        cores=int(rng.integers(operations, 9)),
        uneven_cores=bool(seed % 2),
    )
    for stages in (0, int(rng.integers(1, operations + 1))):
        placement = random_placement(rng, problem, stages)
        assert violations(evaluate(problem, placement)) == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_paths_equal_networkx(seed: int) -> None:
    """The longest paths again, by a library that knows nothing of schedules."""
    rng = generator(seed)
    problem = random_problem(rng, operations=5, uneven_cores=True)
    placement = random_placement(rng, problem, 3)
    evaluator = StaticEvaluator(problem)
    schedule = evaluator.schedule(placement)
    times = evaluator.edge_times(
        placement.core_of, evaluator.stage_of_task(placement)
    ).tolist()
    work = [problem.costs.on(t, int(c)) for t, c in enumerate(placement.core_of)]
    paths: nx.DiGraph[int] = nx.DiGraph()
    for task, time in enumerate(work):
        paths.add_edge(-1, task, weight=time)
    for index, (tail, head) in enumerate(problem.graph.to_networkx().edges):
        paths.add_edge(tail, head, weight=times[index] + work[head])
    longest = nx.dag_longest_path_length(paths)
    assert longest == schedule.summary.critical_path_ns
    for sequence in placement.order:
        for tail, head in itertools.pairwise(sequence):
            delay = work[head]
            if paths.has_edge(tail, head):
                delay = max(delay, paths.edges[tail, head]["weight"])
            paths.add_edge(tail, head, weight=delay)
    longest = nx.dag_longest_path_length(paths)
    assert longest == schedule.summary.completion_ns


@given(
    st.lists(st.tuples(st.integers(1, 999), st.integers(1, 9)), min_size=1, max_size=5),
    st.sampled_from(list(AccessKind)),
)
def test_access_times_of_arrays(
    demands: list[tuple[int, int]], kind: AccessKind
) -> None:
    memory = small_memory()
    size, runs = (
        np.array(column, dtype=np.int64) for column in zip(*demands, strict=True)
    )
    service, core = access_ns(memory, size, runs, kind)
    for index, demand in enumerate(demands):
        expected = memory.access(demand[0], kind, demand[1])
        assert (service[index], core[index]) == (expected.service_ns, expected.core_ns)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_incident_transfer_demand(seed: int) -> None:
    rng = generator(seed)
    problem = random_problem(rng, operations=4)
    graph, chip = problem.graph, problem.resources
    placement = random_placement(rng, problem, 2)
    evaluator = StaticEvaluator(problem)
    stage = evaluator.stage_of_task(placement)
    core = placement.core_of
    expected = [0] * chip.cores
    for tail, head, data in graph.to_networkx().edges(data=True):
        if stage[tail] == stage[head]:
            time = chip.links.transfer_ns(
                data["bytes"], int(core[tail]), int(core[head])
            )
            expected[core[tail]] += time
            expected[core[head]] += time
    stored = set()
    for move in graph.transfers:
        source = graph.publications[move.publication]
        if stage[source.producer] != stage[move.consumer]:
            load = chip.memory.access(move.size, AccessKind.READ, move.runs)
            expected[core[move.consumer]] += load.core_ns
            if source.scalar or move.publication not in stored:
                stored.add(move.publication)
                runs = source.runs if source.scalar else 1
                store = chip.memory.access(source.size, AccessKind.WRITE, runs)
                expected[core[source.producer]] += store.core_ns
    for tail, head, size in graph.extra_edges:
        if size and stage[tail] != stage[head]:
            expected[core[tail]] += chip.memory.access(size, AccessKind.WRITE).core_ns
            expected[core[head]] += chip.memory.access(size, AccessKind.READ).core_ns
    for access in graph.baseline:
        kind = (
            AccessKind.WRITE if access.kind is BaselineKind.OUTPUT else AccessKind.READ
        )
        time = chip.memory.access(access.size, kind, access.runs).core_ns
        expected[core[access.task]] += time
    assert evaluator.transfer_demand(core, stage).tolist() == expected


def test_a_placement_of_another_problem_is_refused() -> None:
    problem = _diamond()
    good = np.zeros(4, dtype=np.int32)
    for order in (
        ((0, 1, 2), (), (), ()),
        ((0, 1, 2, 3, 3), (), (), ()),
        ((0, 1, 2), (3,), (), ()),
        ((0, 1, 2, 3), ()),
        ((0, 1, 2, 9), (), (), ()),
    ):
        with pytest.raises(InternalError):
            evaluate(problem, Placement(good, order))
    with pytest.raises(InternalError, match="contradicts the dependencies of 4 tasks"):
        evaluate(problem, Placement(good, ((3, 0, 1, 2), (), (), ())))
