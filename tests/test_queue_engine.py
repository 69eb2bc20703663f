"""The queue engine against an independent SimPy model, and its limits."""

from __future__ import annotations

import random
from collections.abc import Generator

import numpy as np
import pytest
import simpy

from raptor_cp.periodic.event_graph import Access, EventGraph, EventGraphBuilder
from raptor_cp.periodic.queue_engine import (
    Execution,
    QueueMeasurement,
    TieOrder,
    Window,
    execute,
    measure_queue,
)
from raptor_cp.periodic.unavailable import Unavailable

SimEvents = Generator[simpy.Event, object, None]


def random_graph(seed: int, *, servers: int = 2) -> EventGraph:
    """Executable: an edge without tokens goes forwards in a random permutation.

    Small times make simultaneous arrivals common; zero-size requests, several
    servers, self-loops and far distances all occur.
    """
    rng = random.Random(seed)
    builder = EventGraphBuilder()
    count = rng.randint(1, 14)
    for event in range(count):
        core = rng.randint(-1, 3)
        start = rng.choice([0, 0, 0, 3])
        if servers and rng.random() < 0.5:
            builder.add_request(
                core,
                "request",
                f"server {rng.randrange(servers)}",
                rng.choice([0, 1, 2, 5]),
                Access.READ,
                start_ns=start,
            )
        else:
            builder.add_event(core, f"event {event % 3}", start_ns=start)
    rank = list(range(count))
    rng.shuffle(rank)
    for _ in range(rng.randint(count, 3 * count)):
        source, target = rng.randrange(count), rng.randrange(count)
        distance = rng.choice([0, 0, 0, 1, 2])
        if rank[source] >= rank[target]:
            distance = rng.choice([1, 1, 2, 5])
        builder.add_edge(source, target, rng.choice([0, 0, 1, 2, 7]), distance)
    for event in range(count):
        if rng.random() < 0.5:
            builder.add_edge(event, event, rng.choice([0, 1, 4]), 1)
    return builder.build()


class SimPyModel:
    """The same semantics told differently: one process per event, no shared code.

    A waiting arrival is arbitrated by a SimPy event of a priority below all others,
    so everything else that happens at that instant, zero-delay chains included,
    happens first; the priority itself carries the tie order.
    """

    def __init__(self, graph: EventGraph, order: TieOrder, generations: int) -> None:
        self.env = simpy.Environment()
        self.graph = graph
        self.order = order
        self.generations = generations
        self.free = [0] * len(graph.server_labels)
        shape = (graph.event_count, generations)
        self.ready = np.full(shape, -1, np.int64)
        self.finish = np.full(shape, -1, np.int64)
        self.channels = [simpy.Store(self.env) for _ in range(graph.edge_count)]
        self.incoming: list[list[int]] = [[] for _ in range(graph.event_count)]
        self.outgoing: list[list[int]] = [[] for _ in range(graph.event_count)]
        for edge in range(graph.edge_count):
            self.incoming[graph.edge_dst[edge]].append(edge)
            self.outgoing[graph.edge_src[edge]].append(edge)
            for _ in range(graph.edge_distance[edge]):
                self.channels[edge].put(None)
        for event in range(graph.event_count):
            self.env.process(self.life(event))

    def run(self) -> None:
        self.env.run()

    def life(self, event: int) -> SimEvents:
        early = int(self.graph.start_ns[event])
        for generation in range(self.generations):
            for edge in self.incoming[event]:
                yield self.channels[edge].get()
            if self.env.now < early:
                yield self.env.timeout(early - self.env.now)
            self.ready[event, generation] = int(self.env.now)
            done = 0
            server = int(self.graph.server[event])
            if server >= 0:
                yield self.arbitration(event)
                begin = max(self.free[server], int(self.env.now))
                self.free[server] = begin + int(self.graph.service_ns[event])
                done = self.free[server] - int(self.env.now)
            self.env.process(self.complete(event, generation, done))

    def arbitration(self, event: int) -> simpy.Event:
        rank = event if self.order is TieOrder.EVENT_INDEX else -event
        turn = simpy.Event(self.env)
        turn._ok, turn._value = True, None
        # Resuming costs SimPy nothing: the process continues inside this event.
        self.env.schedule(turn, priority=1_000_000 + rank)  # type: ignore[arg-type]
        return turn

    def complete(self, event: int, generation: int, after: int) -> SimEvents:
        if after:
            yield self.env.timeout(after)
        self.finish[event, generation] = self.env.now
        for edge in self.outgoing[event]:
            self.env.process(self.send(edge))

    def send(self, edge: int) -> SimEvents:
        if self.graph.edge_delay_ns[edge]:
            yield self.env.timeout(int(self.graph.edge_delay_ns[edge]))
        self.channels[edge].put(None)


@pytest.mark.parametrize("order", TieOrder)
@pytest.mark.parametrize("block", range(10))
def test_equals_simpy_event_for_event(order: TieOrder, block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        graph = random_graph(seed, servers=1 + seed % 3)
        generations = 1 + seed % 9
        model = SimPyModel(graph, order, generations)
        model.run()
        ours = execute(graph, order, generations=generations)
        assert isinstance(ours, Execution)
        np.testing.assert_array_equal(ours.ready_ns, model.ready, f"seed {seed}")
        np.testing.assert_array_equal(ours.finish_ns, model.finish, f"seed {seed}")
        assert ours.processed_events == graph.event_count * generations


def pipeline(stages: int, loads: list[int], *, banks: int = 1) -> EventGraph:
    """Stages of one core: load, compute, store, all through one memory."""
    builder = EventGraphBuilder()
    entries: list[int] = []
    stores: list[int] = []
    for core in range(stages):
        entry = builder.add_event(core, "entry")
        load = builder.add_request(core, "load", "memory", 8 + core, Access.READ)
        store = builder.add_request(core, "store", "memory", 20, Access.WRITE)
        builder.add_edge(entry, load, 15)
        builder.add_edge(load, store, loads[core])
        builder.add_edge(store, entry, 3, distance=1)
        if stores:
            builder.add_edge(stores[-1], load, 4)
            builder.add_edge(entry, stores[-1], 4, distance=banks)
        builder.mark_completion(store)
        entries.append(entry)
        stores.append(store)
    return builder.build()


def test_fifo_by_hand() -> None:
    """Two cores load 40 ns each; the second arrives while the first is served."""
    builder = EventGraphBuilder()
    for core in range(2):
        entry = builder.add_event(core, "entry", start_ns=10 * core)
        load = builder.add_request(core, "load", "memory", 40)
        builder.add_edge(entry, load, 0)
        builder.add_edge(load, entry, 0, 1)
    graph = builder.build()
    answer = execute(graph, generations=3)
    assert isinstance(answer, Execution)
    assert answer.ready_ns[[1, 3]].tolist() == [[0, 40, 120], [10, 80, 160]]
    assert answer.finish_ns[[1, 3]].tolist() == [[40, 120, 200], [80, 160, 240]]
    assert answer.max_request_wait_ns == 40
    assert answer.makespan_ns == 240
    measured = measure_queue(graph)
    assert isinstance(measured, QueueMeasurement)
    assert isinstance(measured.window, Window)
    assert measured.window.interval_ns == 80
    # Core 0 waits 40 in each of four generations, core 1 as well.
    assert measured.window.core_waits_ns == ((0, 160), (1, 160))


def test_ties_go_by_event_number_and_reversed() -> None:
    builder = EventGraphBuilder()
    for service in (3, 5, 7):
        builder.add_request(0, "load", "memory", service)
    graph = builder.build()
    first = execute(graph, TieOrder.EVENT_INDEX)
    second = execute(graph, TieOrder.REVERSED)
    assert isinstance(first, Execution)
    assert isinstance(second, Execution)
    assert first.finish_ns[:, 0].tolist() == [3, 8, 15]
    assert second.finish_ns[:, 0].tolist() == [15, 12, 7]


def test_tie_orders_differ_on_random_graphs() -> None:
    """Otherwise the comparison with SimPy would not see the tie order."""
    different = 0
    for seed in range(100):
        graph = random_graph(seed)
        both = [execute(graph, order, generations=4) for order in TieOrder]
        assert isinstance(both[0], Execution)
        assert isinstance(both[1], Execution)
        different += not np.array_equal(both[0].finish_ns, both[1].finish_ns)
    assert different > 20


def test_zero_size_requests_keep_their_place() -> None:
    builder = EventGraphBuilder()
    long = builder.add_request(0, "long", "memory", 100)
    empty = builder.add_request(1, "empty", "memory", 0, start_ns=1)
    last = builder.add_request(2, "last", "memory", 5, start_ns=2)
    answer = execute(builder.build())
    assert isinstance(answer, Execution)
    assert answer.finish_ns[[long, empty, last], 0].tolist() == [100, 100, 105]


def test_credit_edges_are_bounded_queues() -> None:
    """A CPU that issues every ns into a queue of two places of a 10 ns engine."""
    builder = EventGraphBuilder()
    issue = builder.add_event(0, "issue")
    engine = builder.add_request(0, "run", "engine", 10)
    builder.add_edge(issue, issue, 1, 1)
    builder.add_edge(issue, engine, 0)
    builder.add_edge(engine, issue, 0, 2)
    answer = execute(builder.build(), generations=6)
    assert isinstance(answer, Execution)
    assert answer.finish_ns[issue].tolist() == [0, 1, 10, 20, 30, 40]
    assert answer.finish_ns[engine].tolist() == [10, 20, 30, 40, 50, 60]


def test_producer_far_ahead_grows_its_rings() -> None:
    builder = EventGraphBuilder()
    source = builder.add_event(0, "source")
    sinks = [builder.add_event(1, "sink") for _ in range(50)]
    builder.add_edge(source, source, 1, 1)
    for sink in sinks:
        builder.add_edge(source, sink, 0)
        builder.add_edge(sink, sink, 1000, 1)
    answer = execute(builder.build(), generations=40)
    assert isinstance(answer, Execution)
    assert answer.completed
    for sink in sinks:
        # The initial token is there at time 0: the delay counts from then on.
        assert answer.finish_ns[sink].tolist() == [1000 * k for k in range(40)]


def test_token_free_cycle_never_completes() -> None:
    builder = EventGraphBuilder()
    left, right = builder.add_event(0, "left"), builder.add_event(0, "right")
    builder.add_edge(left, right, 0)
    builder.add_edge(right, left, 0)
    graph = builder.build()
    answer = execute(graph)
    assert isinstance(answer, Execution)
    assert not answer.completed
    measured = measure_queue(graph)
    assert isinstance(measured, QueueMeasurement)
    assert isinstance(measured.window, Unavailable)
    assert "wait for ever" in measured.window.reason


@pytest.mark.parametrize("order", TieOrder)
def test_window_of_a_contended_pipeline(order: TieOrder) -> None:
    graph = pipeline(4, [50, 60, 70, 60])
    measured = measure_queue(graph, order)
    assert isinstance(measured, QueueMeasurement)
    assert isinstance(measured.window, Window)
    first = measured.window.first_generation
    long = execute(graph, order, generations=64)
    assert isinstance(long, Execution)
    times = long.finish_ns[graph.completion]
    expected = (times[:, first + 4] - times[:, first]).max() / 4
    assert float(measured.window.interval_ns) == expected


def test_limits_hold_and_are_reported() -> None:
    """At most 64 generations per event, at most 16 (V + E) processed events."""
    stopped = {"generations": 0, "processed": 0, "windows": 0}
    for seed in range(300):
        graph = random_graph(seed, servers=seed % 3)
        for order in TieOrder:
            measured = measure_queue(graph, order)
            assert isinstance(measured, QueueMeasurement)
            limit = 16 * (graph.event_count + graph.edge_count)
            assert measured.processed_events <= limit
            assert measured.generations <= 64
            if isinstance(measured.window, Window):
                stopped["windows"] += 1
            elif "processed events" in measured.window.reason:
                stopped["processed"] += 1
            else:
                assert "64 generations" in measured.window.reason
                stopped["generations"] += 1
    assert min(stopped.values()) > 0, stopped


def test_times_beyond_the_numeric_range_are_unavailable() -> None:
    builder = EventGraphBuilder()
    for _ in range(2**15):
        builder.add_request(0, "load", "memory", 2**42)
    graph = builder.build()
    assert isinstance(execute(graph, generations=32), Unavailable)
    assert isinstance(measure_queue(graph), Unavailable)
    assert isinstance(execute(graph), Execution)
