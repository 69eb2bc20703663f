"""Queue engine speed: processed events per second, next to a SimPy model.

Run: ``python benchmarks/bench_queue_engine.py [cores ...]``.  The graph has the shape
of a realized pipeline: every core loads through the one memory controller, computes,
passes messages to its neighbour, stores, and waits for its neighbour's permission.
The SimPy model executes the same graph with the same result (asserted).
"""

from __future__ import annotations

import sys
import time

import numpy as np
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

GENERATIONS = 16


def pipeline_graph(cores: int, transfers: int = 40, seed: int = 0) -> EventGraph:
    """``transfers`` load/compute/send/store rounds on each of ``cores`` cores."""
    rng = np.random.default_rng(seed)
    builder = EventGraphBuilder()
    received: list[int] = []
    first_entry = -1
    for core in range(cores):
        entry = builder.add_event(core, "entry")
        if core == 0:
            first_entry = entry
        last, switch = entry, -1
        sent: list[int] = []
        for index in range(transfers):
            start = builder.add_event(core, "start")
            builder.add_edge(last, start, 1)
            dispatch = builder.add_event(core, "dispatch")
            builder.add_edge(start, dispatch, 0)
            if switch >= 0:
                builder.add_edge(switch, dispatch, 0)
            access = Access.READ if index % 4 else Access.WRITE
            switch = builder.add_request(
                core, "memory", "controller", int(rng.integers(0, 40)), access
            )
            builder.add_edge(dispatch, switch, 15)
            commit = builder.add_event(core, "commit")
            builder.add_edge(switch, commit, int(rng.integers(1, 20)))
            compute = builder.add_event(core, "compute")
            builder.add_edge(commit, compute, int(rng.integers(200, 9000)))
            if received:
                builder.add_edge(received[index], compute, 9)
            message = builder.add_event(core, "message", link=f"{core}->{core + 1}")
            builder.add_edge(compute, message, 4)
            builder.add_edge(switch, message, 0)
            sent.append(message)
            last = compute
        builder.add_edge(last, entry, 2, distance=1)
        if received:
            # Two banks: the producer may be one generation ahead.
            builder.add_edge(entry, first_entry, 4, distance=2)
        builder.mark_completion(last)
        received = sent
        first_entry = entry
    return builder.build()


class SimPyModel:
    """One process per event over SimPy stores; FIFO servers by arbitration events."""

    def __init__(self, graph: EventGraph, generations: int) -> None:
        self.env = simpy.Environment()
        self.service = graph.service_ns.tolist()
        self.server = graph.server.tolist()
        self.free = [0] * len(graph.server_labels)
        self.generations = generations
        self.finish = np.full((graph.event_count, generations), -1, np.int64)
        self.channels = [simpy.Store(self.env) for _ in range(graph.edge_count)]
        self.delay = graph.edge_delay_ns.tolist()
        self.incoming: list[list[int]] = [[] for _ in range(graph.event_count)]
        self.outgoing: list[list[int]] = [[] for _ in range(graph.event_count)]
        for edge in range(graph.edge_count):
            self.incoming[graph.edge_dst[edge]].append(edge)
            self.outgoing[graph.edge_src[edge]].append(edge)
            for _ in range(graph.edge_distance[edge]):
                self.channels[edge].put(None)
        for event in range(graph.event_count):
            self.env.process(self.life(event))

    def life(self, event):  # type: ignore[no-untyped-def]
        """Join the incoming edges, queue, finish; once per generation."""
        env, server = self.env, self.server[event]
        for generation in range(self.generations):
            for edge in self.incoming[event]:
                yield self.channels[edge].get()
            done = env.now
            if server >= 0:
                turn = simpy.Event(env)
                turn._ok, turn._value = True, None
                env.schedule(turn, priority=1_000_000 + event)
                yield turn
                done = max(self.free[server], done) + self.service[event]
                self.free[server] = done
            self.finish[event, generation] = done
            for edge in self.outgoing[event]:
                after = done - env.now + self.delay[edge]
                if after:
                    token = env.timeout(after)
                    token.callbacks.append(self.delivery(edge))
                else:
                    self.channels[edge].put(None)

    def delivery(self, edge):  # type: ignore[no-untyped-def]
        """A callback that puts one token into a channel."""
        channel = self.channels[edge]
        return lambda _event: channel.put(None)


def timed_execution(graph: EventGraph, generations: int) -> tuple[float, Execution]:
    """Best of three warm runs, seconds."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        answer = execute(graph, generations=generations)
        best = min(best, time.perf_counter() - begin)
    if not isinstance(answer, Execution):
        raise SystemExit(str(answer))
    return best, answer


def main(sizes: list[int]) -> None:
    """Print the tables."""
    execute(pipeline_graph(2, 2), generations=2)
    measure_queue(pipeline_graph(2, 2))
    print("side by side with SimPy, the same times asserted")
    graph = pipeline_graph(12, 20)
    begin = time.perf_counter()
    model = SimPyModel(graph, GENERATIONS)
    model.env.run()
    simpy_seconds = time.perf_counter() - begin
    seconds, answer = timed_execution(graph, GENERATIONS)
    np.testing.assert_array_equal(answer.finish_ns, model.finish)
    events = answer.processed_events
    print(
        f"  {events} events: SimPy {events / simpy_seconds:,.0f}/s, "
        f"engine {events / seconds:,.0f}/s, ratio {simpy_seconds / seconds:.0f}x"
    )
    print(
        f"{'cores':>6} {'V':>9} {'E':>9} {'events':>10} {'seconds':>8} "
        f"{'events/s':>12} {'window interval ns':>19}"
    )
    for cores in sizes:
        graph = pipeline_graph(cores)
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            measured = measure_queue(graph, TieOrder.EVENT_INDEX)
            best = min(best, time.perf_counter() - begin)
        if not isinstance(measured, QueueMeasurement):
            raise SystemExit(str(measured))
        window = measured.window
        interval = window.interval_ns if isinstance(window, Window) else None
        print(
            f"{cores:>6} {graph.event_count:>9} {graph.edge_count:>9} "
            f"{measured.processed_events:>10} {best:>8.3f} "
            f"{measured.processed_events / best:>12,.0f} "
            f"{float(interval) if interval is not None else 'unavailable':>19}"
        )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [4, 42, 168, 1000])
