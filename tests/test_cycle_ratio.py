"""Cycle ratio against brute force and Howard's method; its limits and refusals."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from raptor_cp.periodic import cycle_ratio
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.dependency_order import (
    TokenFreeCycle,
    topological_order,
    within_generation_span_ns,
)
from raptor_cp.periodic.event_graph import EventGraph, EventGraphBuilder
from raptor_cp.periodic.howard import howard_cycle_ratio
from raptor_cp.periodic.unavailable import Unavailable
from raptor_cp.units import MAX_NS

Edge = tuple[int, int, int, int]


def graph_of(events: int, edges: list[Edge]) -> EventGraph:
    builder = EventGraphBuilder()
    for event in range(events):
        builder.add_event(event % 3, "step", link="a" if event % 2 else "")
    for edge in edges:
        builder.add_edge(*edge)
    return builder.build()


def random_graph(rng: random.Random, most: int, *, token_free: float) -> EventGraph:
    """Zero delays, parallel edges, self-loops, requests and far distances included."""
    builder = EventGraphBuilder()
    events = rng.randint(1, most)
    for _ in range(events):
        if rng.random() < 0.2:
            builder.add_request(0, "request", "memory", rng.choice([0, 5]))
        else:
            builder.add_event(0, "step")
    for _ in range(rng.randint(0, 2 * events + 1)):
        source, target = rng.randrange(events), rng.randrange(events)
        forwards = source < target or rng.random() < token_free
        distance = rng.choice([0, 0, 1, 2, 3] if forwards else [1, 1, 2, 7])
        delay = rng.choice([0, 0, 1, 2, rng.randint(0, 100), rng.randint(0, 10**9)])
        builder.add_edge(source, target, delay, distance)
    return builder.build()


def brute_force(graph: EventGraph) -> tuple[bool, Fraction | None]:
    """Whether a token-free cycle exists, and the best ratio of all the others."""
    parallel: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for edge in range(graph.edge_count):
        source, target = int(graph.edge_src[edge]), int(graph.edge_dst[edge])
        delay = int(graph.edge_delay_ns[edge] + graph.service_ns[source])
        parallel.setdefault((source, target), []).append(
            (delay, int(graph.edge_distance[edge]))
        )
    token_free, best = False, None
    for cycle in nx.simple_cycles(nx.DiGraph(list(parallel))):
        hops = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        for chosen in itertools.product(*(parallel[hop] for hop in hops)):
            delay = sum(d for d, _ in chosen)
            distance = sum(d for _, d in chosen)
            if distance == 0:
                token_free = True
            elif best is None or Fraction(delay, distance) > best:
                best = Fraction(delay, distance)
    return token_free, best


def check_bracket(graph: EventGraph, answer: CycleRatio) -> None:
    assert answer.ratio_ns <= answer.upper_ns <= answer.ratio_ns + 1
    assert answer.tests <= 64
    assert answer.recurrence_edges == graph.recurrence_edge_count
    assert answer.max_sweeps <= answer.recurrence_edges + 1
    if answer.witness is None:
        assert answer.ratio_ns == 0
    else:
        assert answer.witness.ratio_ns == answer.ratio_ns


def test_equals_brute_force_on_a_thousand_graphs() -> None:
    rng = random.Random(1)
    seen = {"token-free": 0, "bounded": 0, "zero": 0, "acyclic": 0}
    for _ in range(1000):
        graph = random_graph(rng, 7, token_free=0.03)
        token_free, best = brute_force(graph)
        answer = maximum_cycle_ratio(graph)
        if token_free:
            assert isinstance(answer, TokenFreeCycle)
            assert isinstance(howard_cycle_ratio(graph), TokenFreeCycle)
            seen["token-free"] += 1
            continue
        assert isinstance(answer, CycleRatio)
        check_bracket(graph, answer)
        assert answer.exact
        assert answer.ratio_ns == (best or 0)
        assert howard_cycle_ratio(graph) == answer.ratio_ns
        key = "acyclic" if best is None else "bounded" if best else "zero"
        seen[key] += 1
        assert answer.bounded == (key == "bounded")
    assert min(seen.values()) >= 10, seen


def test_equals_howard_on_larger_graphs() -> None:
    rng = random.Random(2)
    for _ in range(300):
        graph = random_graph(rng, 60, token_free=0.0)
        answer = maximum_cycle_ratio(graph)
        assert isinstance(answer, CycleRatio)
        check_bracket(graph, answer)
        assert howard_cycle_ratio(graph) == answer.ratio_ns


def test_witness_is_a_cycle_of_the_graph_with_its_totals() -> None:
    rng = random.Random(3)
    found = 0
    for _ in range(200):
        graph = random_graph(rng, 30, token_free=0.0)
        answer = maximum_cycle_ratio(graph)
        assert isinstance(answer, CycleRatio)
        witness = answer.witness
        if witness is None:
            continue
        found += 1
        edges = witness.edges
        assert len(edges) == witness.edge_count
        assert all(a.target == b.source for a, b in itertools.pairwise(edges))
        assert edges[-1].target == edges[0].source
        assert edges[0].source == min(edge.source for edge in edges)
        assert witness.delay_ns == sum(edge.delay_ns for edge in edges)
        assert witness.distance == sum(edge.distance for edge in edges)
        real = set(
            zip(
                graph.edge_src.tolist(),
                graph.edge_dst.tolist(),
                (graph.edge_delay_ns + graph.service_ns[graph.edge_src]).tolist(),
                graph.edge_distance.tolist(),
                strict=True,
            )
        )
        for e in edges:
            assert (e.source, e.target, e.delay_ns, e.distance) in real
        assert maximum_cycle_ratio(graph) == answer
    assert found > 100


def test_two_event_cycle_of_zero_delay() -> None:
    answer = maximum_cycle_ratio(graph_of(2, [(0, 1, 0, 1), (1, 0, 0, 1)]))
    assert isinstance(answer, CycleRatio)
    assert answer.ratio_ns == 0
    assert not answer.bounded


@pytest.mark.parametrize("delay", [0, 4])
def test_token_free_cycle_is_reported_whatever_its_delay(delay: int) -> None:
    long_way = [(event, (event + 1) % 6, delay, 0) for event in range(6)]
    short_cut = [(4, 3, delay, 0)]
    answer = maximum_cycle_ratio(graph_of(6, long_way + short_cut))
    assert isinstance(answer, TokenFreeCycle)
    assert answer.events == (3, 4)
    assert answer.delay_ns == 2 * delay
    assert answer.shortest
    assert "step@0[a]#3 -> step@1#4 -> step@0[a]#3" in answer.reason


def test_no_recurrence_is_unbounded_throughput() -> None:
    answer = maximum_cycle_ratio(graph_of(3, [(0, 1, 5, 0), (1, 2, 5, 3)]))
    assert isinstance(answer, CycleRatio)
    assert answer.ratio_ns == 0
    assert answer.upper_ns == 0
    assert not answer.bounded


def test_service_counts_as_delay() -> None:
    builder = EventGraphBuilder()
    entry = builder.add_event(0, "entry")
    load = builder.add_request(0, "load", "memory", 40)
    builder.add_edge(entry, load, 15)
    builder.add_edge(load, entry, 5, 2)
    answer = maximum_cycle_ratio(builder.build())
    assert isinstance(answer, CycleRatio)
    assert answer.ratio_ns == Fraction(15 + 40 + 5, 2)


def test_long_witness_is_cut_but_totals_are_complete() -> None:
    events = 500
    edges = [(event, event + 1, 3, 0) for event in range(events - 1)]
    answer = maximum_cycle_ratio(graph_of(events, [*edges, (events - 1, 0, 3, 1)]))
    assert isinstance(answer, CycleRatio)
    assert answer.witness is not None
    assert len(answer.witness.edges) == 128
    assert answer.witness.edge_count == events
    assert answer.witness.delay_ns == 3 * events
    assert answer.witness.cores == (0, 1, 2)
    assert answer.witness.links == ("a",)
    assert answer.witness.to_dict()["totals"] == {
        "delay_ns": 1500,
        "distance": 1,
        "edges": 500,
        "cores": [0, 1, 2],
        "links": ["a"],
    }


def test_times_beyond_the_numeric_range_are_unavailable() -> None:
    events = 1200
    edges = [(event, event + 1, MAX_NS, 0) for event in range(events - 1)]
    loops = [(event, event, MAX_NS, 1) for event in range(events)]
    answer = maximum_cycle_ratio(graph_of(events, edges + loops))
    assert isinstance(answer, Unavailable)
    assert "numeric range" in answer.reason


def test_bracket_closes_where_exact_arithmetic_does_not_fit() -> None:
    far = 2**17 + 1
    edges = [(event, event, MAX_NS - event, far) for event in range(12)]
    answer = maximum_cycle_ratio(graph_of(12, edges))
    assert isinstance(answer, CycleRatio)
    check_bracket(graph_of(12, edges), answer)
    assert not answer.exact
    assert answer.ratio_ns == Fraction(MAX_NS, far)
    assert answer.upper_ns == MAX_NS // far + 1


def test_bisection_alone_closes_the_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(4)
    for _ in range(100):
        graph = random_graph(rng, 20, token_free=0.0)
        expected = howard_cycle_ratio(graph)
        assert isinstance(expected, Fraction)
        # So few tests that every one of them has to bisect.
        most = int(graph.total_delay_ns()).bit_length() + 2
        monkeypatch.setattr(cycle_ratio, "MAX_TESTS", most)
        answer = maximum_cycle_ratio(graph)
        assert isinstance(answer, CycleRatio)
        assert answer.tests <= most
        assert answer.ratio_ns <= expected <= answer.upper_ns <= answer.ratio_ns + 1


def test_span_is_the_longest_path_of_one_generation() -> None:
    rng = random.Random(5)
    for _ in range(50):
        graph = random_graph(rng, 20, token_free=0.0)
        order = topological_order(graph)
        assert isinstance(order, np.ndarray)
        dag: nx.DiGraph[int] = nx.DiGraph()
        end = graph.event_count
        for event in range(end):
            dag.add_edge(event, end, weight=int(graph.service_ns[event]))
        for edge in np.flatnonzero(graph.edge_distance == 0):
            source, target = int(graph.edge_src[edge]), int(graph.edge_dst[edge])
            weight = int(graph.edge_delay_ns[edge] + graph.service_ns[source])
            if dag.has_edge(source, target):
                weight = max(weight, dag[source][target]["weight"])
            dag.add_edge(source, target, weight=weight)
        longest = nx.dag_longest_path_length(dag, weight="weight")
        assert within_generation_span_ns(graph, order) == longest


def test_sweeps_alone_detect_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the early exit, R + 1 sweeps must come to the same answers."""
    monkeypatch.setattr(cycle_ratio, "_probe", cycle_ratio._probe.py_func)
    monkeypatch.setattr(cycle_ratio, "_cycle_of_predecessors", lambda *_: -1)
    rng = random.Random(6)
    full = 0
    for _ in range(150):
        graph = random_graph(rng, 8, token_free=0.0)
        answer = maximum_cycle_ratio(graph)
        assert isinstance(answer, CycleRatio)
        check_bracket(graph, answer)
        assert howard_cycle_ratio(graph) == answer.ratio_ns
        full += answer.max_sweeps == answer.recurrence_edges + 1
    assert full > 50
