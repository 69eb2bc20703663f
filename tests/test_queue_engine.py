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
            self.ready[event, generation] = self.env.now
            done = 0
            server = int(self.graph.server[event])
            if server >= 0:
                yield self.arbitration(event)
                begin = max(self.free[server], self.env.now)
                self.free[server] = begin + int(self.graph.service_ns[event])
                done = self.free[server] - self.env.now
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
