"""Plans carry every dependency, follow one order, and pass their checks."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.realization.checks import check
from raptor_cp.realization.plan import (
    CrossStage,
    ExecutionPlan,
    Load,
    OrderRule,
    Policy,
    Receive,
    Run,
    Send,
    Signal,
    Store,
    Wait,
)
from raptor_cp.realization.realize import realize
from raptor_cp.reports.execution_plan import execution_plan_document
from raptor_cp.schedules import Placement, Problem, Schedule
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import TaskCosts
from tests.instances import random_placement, random_problem
from tests.plans import pipeline

EVERY_FORM = [(p, c, o) for p in Policy for c in CrossStage for o in OrderRule]


def random_schedule(seed: int) -> Schedule:
    """Up to 8 operations on up to 11 cores, 0 to 5 stages, some tasks of no time."""
    rng = np.random.default_rng(seed)
    operations = int(rng.integers(3, 9))
    problem = random_problem(
        rng, operations=operations, cores=int(rng.integers(5, 12)), extra_share=0.4
    )
    if rng.random() < 0.3:
        times = problem.costs.execution_ns.copy()
        times[rng.random(times.size) < 0.5] = 0
        problem = Problem(problem.graph, TaskCosts(times), problem.resources)
    stages = int(rng.integers(0, min(operations, 6)))
    return evaluate(problem, random_placement(rng, problem, stages))


def assert_complete(plan: ExecutionPlan) -> None:
    """Every dependency is carried exactly once, before its consumer runs."""
    graph = plan.schedule.problem.graph
    core_of = plan.schedule.placement.core_of.tolist()
    stage_of = {text.core: text.stage for text in plan.cores}
    available: dict[int, list[set[tuple[str, int]]]] = {}
    loads: Counter[tuple[str, int]] = Counter()
    stores: Counter[tuple[int, int | None]] = Counter()
    edge_stores: Counter[int] = Counter()
    ran: list[int] = []
    for text in plan.cores:
        have: set[tuple[str, int]] = set()
        order: list[int] = []
        for item in text.items:
            if isinstance(item, Load):
                for kind in ("transfer", "baseline", "edge"):
                    number = getattr(item, kind)
                    if number is not None:
                        have.add((kind, number))
                        loads[kind, number] += 1
            elif isinstance(item, Receive):
                direct = plan.direct[item.direct]
                assert direct.destination == text.core
                have.update(("transfer", t) for t in direct.transfers)
                loads.update(("transfer", t) for t in direct.transfers)
                if direct.edge is not None:
                    have.add(("edge", direct.edge))
            elif isinstance(item, Send):
                direct = plan.direct[item.direct]
                producer = (
                    graph.extra_edges[direct.edge][0]
                    if direct.edge is not None
                    else graph.publications[direct.publication or 0].producer
                )
                assert producer in order, "sent before it was computed"
            elif isinstance(item, Store):
                if item.publication is not None:
                    stores[item.publication, item.consumer] += 1
                    assert graph.publications[item.publication].producer in order
                if item.edge is not None:
                    edge_stores[item.edge] += 1
                    assert graph.extra_edges[item.edge][0] in order
            elif isinstance(item, Run):
                operations = {graph.tasks[t].operation for t in item.tasks}
                assert len(operations) == 1
                for task in item.tasks:
                    order.append(task)
                    available.setdefault(task, []).append(set(have))
        assert tuple(order) == plan.schedule.placement.order[text.core]
        ran.extend(order)
    assert sorted(ran) == list(range(graph.task_count))
    through_memory: set[tuple[int, int | None]] = set()
    for number, move in enumerate(graph.transfers):
        source = graph.publications[move.publication]
        w, r = core_of[source.producer], core_of[move.consumer]
        if w == r:
            assert loads["transfer", number] == 0
            continue
        assert ("transfer", number) in available[move.consumer][0]
        assert loads["transfer", number] == 1
        if stage_of[w] != stage_of[r] and plan.cross_stage is CrossStage.MEMORY:
            through_memory.add((move.publication, number if source.scalar else None))
    assert stores == Counter(dict.fromkeys(through_memory, 1))
    for number, (tail, head, size) in enumerate(graph.extra_edges):
        w, r = core_of[tail], core_of[head]
        if w != r and size:
            assert ("edge", number) in available[head][0]
            crosses = stage_of[w] != stage_of[r]
            stored = crosses and plan.cross_stage is CrossStage.MEMORY
            assert edge_stores[number] == int(stored)
    for number, access in enumerate(graph.baseline):
        if access.kind is not BaselineKind.OUTPUT:
            assert ("baseline", number) in available[access.task][0]


@given(st.integers(0, 10**6), st.sampled_from(EVERY_FORM))
def test_random_plans_are_complete_and_sound(
    seed: int, form: tuple[Policy, CrossStage, OrderRule]
) -> None:
    plan = realize(random_schedule(seed), *form)
    assert_complete(plan)
    report = check(plan)
    assert report.faults == ()


def test_hundreds_of_plans_of_each_policy_pass_the_checks() -> None:
    chains = 0
    for seed in range(200):
        schedule = random_schedule(seed)
        for policy in Policy:
            plan = realize(schedule, policy)
            assert check(plan).faults == (), (seed, policy)
            chains += bool(plan.chains)
    assert chains > 30, "signal-only chains were hardly tried"


@given(st.integers(0, 10**6))
def test_every_core_follows_one_linear_order(seed: int) -> None:
    schedule = random_schedule(seed)
    plan = realize(schedule, cross_stage=CrossStage.DIRECT)
    positions = [t.position for t in plan.direct]
    assert positions == sorted(set(positions))
    for text in plan.cores:
        mine = [i.direct for i in text.items if isinstance(i, Send | Receive)]
        assert mine == sorted(mine)


@pytest.mark.parametrize("policy", [Policy.DOUBLE_BUFFER, Policy.RELEASE])
def test_signals_stand_where_the_policy_wants_them(policy: Policy) -> None:
    plan = realize(pipeline(3), policy)
    middle = plan.cores[1].items
    names = [
        f"{type(i).__name__}-{i.purpose}"
        if isinstance(i, Signal | Wait)
        else type(i).__name__
        for i in middle
    ]
    tail = (
        ["Store", "Wait-free", "Signal-ready"]
        if policy is Policy.DOUBLE_BUFFER
        else ["Wait-free", "Store", "Signal-ready"]
    )
    assert names == ["Signal-free", "Wait-ready", "Load", "Run", *tail]


def test_point_to_point_needs_two_registers_a_core() -> None:
    for seed in range(40):
        for policy in (Policy.DOUBLE_BUFFER, Policy.RELEASE):
            used = realize(random_schedule(seed), policy).registers_used()
            assert all(len(registers) <= 2 for registers in used.values())


def test_latency_mode_is_all_direct_and_has_no_signals() -> None:
    rng = np.random.default_rng(5)
    problem = random_problem(rng, operations=6, cores=5)
    plan = realize(evaluate(problem, random_placement(rng, problem)))
    assert check(plan).faults == ()
    assert_complete(plan)
    assert plan.banks == ()
    assert plan.direct
    for text in plan.cores:
        assert not any(isinstance(i, Signal | Wait) for i in text.items)


def test_one_payload_for_all_readers_on_a_core() -> None:
    plan = realize(random_schedule(1), cross_stage=CrossStage.DIRECT)
    ends = [
        (t.publication, t.destination) for t in plan.direct if t.publication is not None
    ]
    assert len(ends) == len(set(ends))


def test_cores_that_nothing_joins_are_coupled() -> None:
    """Otherwise they run at rates of their own and no interval exists."""
    for seed in range(60):
        schedule = random_schedule(seed)
        plan = realize(schedule)
        if not schedule.placement.stages:
            continue
        joined = {text.core: {text.core} for text in plan.cores}
        links = [
            (text.core, item.core)
            for text in plan.cores
            for item in text.items
            if isinstance(item, Signal)
        ] + [(t.source, t.destination) for t in plan.direct]
        for one, other in links:
            both = joined[one] | joined[other]
            for core in both:
                joined[core] = both
        assert len(next(iter(joined.values()))) == len(plan.cores)


def test_same_schedule_same_document() -> None:
    first, second = random_schedule(11), random_schedule(11)
    assert execution_plan_document(realize(first)) == execution_plan_document(
        realize(second)
    )


def test_document_shows_every_item_in_order() -> None:
    plan = realize(pipeline(3, [(0, 2)]))
    document = execution_plan_document(plan)
    assert document["schema"] == "raptor-cp/execution-plan/1"
    cores = document["cores"]
    assert isinstance(cores, list)
    assert [c["core"] for c in cores] == [0, 1, 2]
    assert [i["kind"] for i in cores[0]["items"]] == [
        "load",
        "run",
        "store",
        "wait",
        "signal",
    ]
    assert cores[2]["registers"] == [0]
    fingerprints = {c["fingerprint"] for c in cores}
    assert len(fingerprints) == 3
    assert all(len(f) == 64 for f in fingerprints)
    assert document["banks"] == [
        {"publication": 0, "banks": 3},
        {"publication": 1, "banks": 2},
    ]


def test_idle_cores_have_no_text() -> None:
    schedule = pipeline(3)
    placement = schedule.placement
    wider = Placement(placement.core_of, (*placement.order, ()), placement.stages)
    assert len(realize(Schedule(**{**vars(schedule), "placement": wider})).cores) == 3


def test_many_transfer_times_are_those_of_one() -> None:
    links = random_problem(np.random.default_rng(5), cores=9).resources.links
    rng = np.random.default_rng(6)
    sizes, sources, targets = rng.integers(0, [[100], [9], [9]], (3, 400))
    times = [
        links.transfer_ns(*each)
        for each in zip(sizes.tolist(), sources.tolist(), targets.tolist(), strict=True)
    ]
    assert links.transfers_ns(sizes, sources, targets).tolist() == times


def test_realizing_leaves_the_collector_as_it_was() -> None:
    schedule = pipeline(3)
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            realize(schedule)
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
