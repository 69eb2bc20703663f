"""Recurrence proofs replayed, compared with the cycle ratio, and their limits."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.periodic.analysis import (
    OrderAnalysis,
    PeriodicAnalysis,
    analyse,
    analyse_order,
)
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.dependency_order import TokenFreeCycle
from raptor_cp.periodic.event_graph import Access, EventGraph, EventGraphBuilder
from raptor_cp.periodic.queue_engine import (
    Execution,
    QueueMeasurement,
    TieOrder,
    Window,
    execute,
    measure_queue,
)
from raptor_cp.periodic.recurrence import RecurrenceProof, Start, prove_recurrence
from raptor_cp.periodic.unavailable import Unavailable

SEEDS = st.integers(0, 10**6)


def random_pipeline(seed: int, *, servers: int, slower: dict[int, int]) -> EventGraph:
    """Cores in a row: requests, work, messages forwards, permissions backwards.

    Each core is serial and repeats; ``servers`` is 0 for a server of its own for
    every request, so that nothing contends.  ``slower[i]`` is added to the i-th time.
    """
    rng = random.Random(seed)
    builder = EventGraphBuilder()
    cores = rng.randint(1, 5)
    drawn = 0

    def time_ns(most: int) -> int:
        nonlocal drawn
        value = rng.choice([0, rng.randint(0, most)]) + slower.get(drawn, 0)
        drawn += 1
        return value

    entries: list[int] = []
    ends: list[int] = []
    for core in range(cores):
        entry = builder.add_event(core, "entry", start_ns=rng.choice([0, 4]))
        last = entry
        middle = entry
        for step in range(rng.randint(1, 4)):
            server = f"memory {step % servers}" if servers else f"own {core}.{step}"
            request = builder.add_request(
                core, "request", server, time_ns(30), rng.choice(list(Access)[1:])
            )
            builder.add_edge(last, request, time_ns(5))
            last = builder.add_event(core, "commit")
            builder.add_edge(request, last, time_ns(60))
            middle = request if step == 0 else middle
        if ends:
            builder.add_edge(ends[-1], middle, time_ns(9))
            builder.add_edge(entry, ends[-1], time_ns(9), rng.choice([0, 1, 1, 2]))
        builder.add_edge(last, entry, 1 + time_ns(3), 1)
        builder.mark_completion(last)
        entries.append(entry)
        ends.append(last)
    return builder.build()


def executable(graph: EventGraph) -> CycleRatio | None:
    ratio = maximum_cycle_ratio(graph)
    return ratio if isinstance(ratio, CycleRatio) else None


def test_proofs_replay_for_64_more_generations() -> None:
    proofs = 0
    longest = 0
    for seed in range(150):
        graph = random_pipeline(seed, servers=1 + seed % 2, slower={})
        for order in TieOrder:
            proof = prove_recurrence(graph, order)
            if isinstance(proof, Unavailable):
                continue
            proofs += 1
            longest = max(longest, proof.period_generations)
            begin, period = proof.transient_generations, proof.period_generations
            # The end of a bounded run lacks the contention of later generations.
            run = execute(graph, order, generations=begin + period + 64 + 70)
            assert isinstance(run, Execution)
            for times in (run.ready_ns, run.finish_ns):
                early = times[:, begin : begin + 64]
                late = times[:, begin + period : begin + period + 64]
                np.testing.assert_array_equal(late, early + proof.period_ns)
    assert proofs > 150
    assert longest > 1


def test_exact_interval_is_never_below_the_cycle_ratio() -> None:
    contended = 0
    for seed in range(300):
        graph = random_pipeline(seed, servers=1, slower={})
        ratio = executable(graph)
        if ratio is None:
            continue
        for order in TieOrder:
            proof = prove_recurrence(graph, order)
            if isinstance(proof, RecurrenceProof):
                assert proof.interval_ns >= ratio.ratio_ns
                contended += proof.interval_ns > ratio.ratio_ns
    assert contended > 20


def test_exact_interval_equals_the_cycle_ratio_without_contention() -> None:
    proofs = 0
    for seed in range(300):
        graph = random_pipeline(seed, servers=0, slower={})
        ratio = executable(graph)
        proof = prove_recurrence(graph)
        if ratio is None or isinstance(proof, Unavailable):
            continue
        proofs += 1
        # A request's own server also bounds its rate, by its service alone.
        served = Fraction(int(graph.service_ns.max()))
        assert proof.interval_ns == max(ratio.ratio_ns, served)
    assert proofs > 150


@given(seed=SEEDS, which=st.integers(0, 30), more=st.integers(1, 100))
@settings(deadline=None, max_examples=150)
def test_slower_is_never_faster_without_arbitration(
    seed: int, which: int, more: int
) -> None:
    before = random_pipeline(seed, servers=0, slower={})
    after = random_pipeline(seed, servers=0, slower={which: more})
    left = execute(before, generations=12)
    right = execute(after, generations=12)
    assert isinstance(left, Execution)
    assert isinstance(right, Execution)
    if left.completed:
        assert (left.finish_ns <= right.finish_ns).all()
    slow, fast = prove_recurrence(after), prove_recurrence(before)
    if isinstance(slow, RecurrenceProof) and isinstance(fast, RecurrenceProof):
        assert fast.interval_ns <= slow.interval_ns


@given(seed=SEEDS, servers=st.integers(0, 2), order=st.sampled_from(TieOrder))
@settings(deadline=None, max_examples=150)
def test_combined_analysis_agrees_with_its_pieces(
    seed: int, servers: int, order: TieOrder
) -> None:
    graph = random_pipeline(seed, servers=servers, slower={})
    combined = analyse_order(graph, order)
    assert isinstance(combined, OrderAnalysis)
    assert combined.processed_events <= 16 * (graph.event_count + graph.edge_count)
    assert combined.generations <= 64
    assert combined.stored_bytes <= 256 * 2**20
    if isinstance(combined.exact_interval_ns, Fraction):
        exact = combined.exact_interval_ns
        proof = prove_recurrence(graph, order)
        if len(combined.proofs) == 1 and isinstance(proof, RecurrenceProof):
            (found,) = combined.proofs
            assert found.start is Start.COLD
            assert found.interval_ns == proof.interval_ns
            assert found.period_generations == proof.period_generations
            # What was merged is never further ahead than what stayed.
            assert found.transient_generations <= proof.transient_generations
            assert found.processed_events <= proof.processed_events
        if isinstance(combined.window, Window):
            assert abs(combined.window.interval_ns - exact) * 100 <= exact
            measured = measure_queue(graph, order)
            assert isinstance(measured, QueueMeasurement)
            assert isinstance(measured.window, Window)
            assert (
                measured.window.first_generation <= combined.window.first_generation
                or len(combined.proofs) > 1
            )


def uncoupled(intervals: list[int]) -> EventGraph:
    builder = EventGraphBuilder()
    for core, interval in enumerate(intervals):
        step = builder.add_event(core, "step")
        builder.add_edge(step, step, interval, 1)
    return builder.build()


def test_uncoupled_parts_are_proved_one_by_one() -> None:
    graph = uncoupled([7, 1000, 13])
    assert isinstance(prove_recurrence(graph), Unavailable)
    answer = analyse(graph)
    assert answer.recurrence_established
    order = answer.orders[0]
    assert isinstance(order, OrderAnalysis)
    assert len(order.proofs) == 3
    assert order.exact_interval_ns == 1000
    assert isinstance(order.window, Window)
    assert order.window.interval_ns == 1000
    assert answer.interval_ns == 1000


def test_accidental_agreement_in_the_transient_is_passed_over() -> None:
    """A core starts at its own pace until the credit of a slower one runs out."""
    builder = EventGraphBuilder()
    fast, slow = builder.add_event(0, "fast"), builder.add_event(1, "slow")
    builder.add_edge(fast, fast, 10, 1)
    builder.add_edge(slow, slow, 100, 1)
    builder.add_edge(fast, slow, 0)
    builder.add_edge(slow, fast, 0, 8)
    builder.mark_completion(fast)
    graph = builder.build()
    alone = measure_queue(graph)
    assert isinstance(alone, QueueMeasurement)
    assert isinstance(alone.window, Window)
    assert alone.window.interval_ns == 10
    combined = analyse_order(graph, TieOrder.EVENT_INDEX)
    assert isinstance(combined, OrderAnalysis)
    assert isinstance(combined.window, Window)
    assert combined.exact_interval_ns == 100
    assert combined.window.interval_ns == 100


def test_producer_without_back_pressure_is_unproved() -> None:
    builder = EventGraphBuilder()
    fast, slow = builder.add_event(0, "fast"), builder.add_event(1, "slow")
    builder.add_edge(fast, fast, 10, 1)
    builder.add_edge(slow, slow, 25, 1)
    builder.add_edge(fast, slow, 0)
    proof = prove_recurrence(builder.build())
    assert isinstance(proof, Unavailable)
    assert "no state was seen twice" in proof.reason


def test_stored_states_are_limited() -> None:
    builder = EventGraphBuilder()
    # 5 against 6 ns: many generations pass until the credits are used up.
    issue = builder.add_event(0, "issue")
    run = builder.add_request(0, "run", "engine", 6)
    builder.add_edge(issue, issue, 5, 1)
    builder.add_edge(issue, run, 0)
    builder.add_edge(run, issue, 0, 3)
    graph = builder.build()
    limited = prove_recurrence(graph, byte_limit=5000)
    assert isinstance(limited, Unavailable)
    assert "stored states would exceed 5000 bytes" in limited.reason
    proof = prove_recurrence(graph)
    assert isinstance(proof, RecurrenceProof)
    assert proof.interval_ns == 6
    assert proof.stored_bytes > 5000
    assert proof.transient_generations > 8


def test_zero_delay_graph_recurs_at_interval_zero() -> None:
    graph = uncoupled([0])
    proof = prove_recurrence(graph)
    assert isinstance(proof, RecurrenceProof)
    assert proof.interval_ns == 0
    answer = analyse(graph)
    assert answer.interval_ns == 0
    assert isinstance(answer.recurrence, CycleRatio)
    assert not answer.recurrence.bounded


def test_analysis_reports_every_bound() -> None:
    builder = EventGraphBuilder()
    entry = builder.add_event(3, "entry")
    load = builder.add_request(3, "load", "memory", 30, Access.READ)
    other = builder.add_event(5, "entry")
    store = builder.add_request(5, "store", "memory", 50, Access.WRITE)
    builder.add_edge(entry, load, 5)
    builder.add_edge(load, entry, 5, 1)
    builder.add_edge(other, store, 5)
    builder.add_edge(store, other, 5, 1)
    builder.add_core_work(3, 20)
    builder.add_core_work(5, 33)
    answer = analyse(builder.build())
    assert isinstance(answer.recurrence, CycleRatio)
    assert answer.recurrence.ratio_ns == 60
    assert (answer.core_work_ns, answer.core_work_core) == (33, 5)
    assert (answer.service_ns, answer.service_by_server) == (80, (("memory", 80),))
    assert answer.within_generation_span_ns == 55
    # Event order: load 5..35, store 35..85; reversed: store 5..55, load 55..85.
    assert answer.single_generation_ns == (85, 85)
    assert answer.interval_ns == 80
    assert answer.recurrence_established
    intervals = answer.queue_intervals_ns
    assert isinstance(intervals, tuple)
    assert min(intervals) >= 80
    report = json.loads(json.dumps(answer.to_dict()))
    assert report["interval_ns"] == 80
    assert report["recurrence"]["totals"]["delay_ns"] == 60
    assert report["core_work_ns"] == {"max": 33, "core": 5}
    assert [queue["tie_order"] for queue in report["queues"]] == list(TieOrder)


def test_analysis_of_a_graph_that_cannot_run() -> None:
    builder = EventGraphBuilder()
    left, right = builder.add_event(0, "left"), builder.add_event(1, "right")
    builder.add_edge(left, right, 3)
    builder.add_edge(right, left, 4)
    answer: PeriodicAnalysis = analyse(builder.build())
    assert isinstance(answer.recurrence, TokenFreeCycle)
    for part in (
        answer.interval_ns,
        answer.queue_intervals_ns,
        answer.single_generation_ns,
        answer.within_generation_span_ns,
    ):
        assert isinstance(part, Unavailable)
        assert "left@0#0 -> right@1#1 -> left@0#0" in part.reason
    assert not answer.recurrence_established
    report = json.loads(json.dumps(answer.to_dict()))
    assert report["recurrence"]["token_free_cycle"] == ["left@0#0", "right@1#1"]
    assert "unavailable" in report["interval_ns"]


@pytest.mark.parametrize("order", TieOrder)
def test_same_graph_same_answer(order: TieOrder) -> None:
    for seed in range(20):
        graph = random_pipeline(seed, servers=1, slower={})
        assert analyse_order(graph, order) == analyse_order(graph, order)
