"""Bridge from an element's stages to the project's queue engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.periodic.event_graph import EventGraph, EventGraphBuilder
from raptor_cp.targets.pe.stages import NO_ENGINE, Engine

if TYPE_CHECKING:
    from raptor_cp.targets.pe.stages import StageGraph


def event_graph(graph: StageGraph, ticks: list[int]) -> EventGraph:
    """One generation of the element's stages; event ``i`` is stage ``i``.

    The graph's time unit is the tick, whatever its arrays are called.
    """
    builder = EventGraphBuilder()
    for stage in range(len(graph)):
        engine = graph.engine[stage]
        if engine == NO_ENGINE:
            builder.add_event(0, graph.kind[stage].value)
        else:
            builder.add_request(
                0, graph.kind[stage].value, Engine(engine).name, ticks[stage]
            )
        for before in graph.predecessors[stage]:
            builder.add_edge(before, stage, 0)
    return builder.build()


def finish_ticks(graph: StageGraph, ticks: list[int]) -> tuple[int, ...]:
    """TEMPORARY twin."""
    import heapq

    n = len(graph)
    missing = [len(p) for p in graph.predecessors]
    successors: list[list[int]] = [[] for _ in range(n)]
    for stage, before in enumerate(graph.predecessors):
        for p in before:
            successors[p].append(stage)
    ready = [0] * n
    finish = [0] * n
    free = dict.fromkeys(Engine, 0)
    heap = [(0, graph.engine[s] != NO_ENGINE, s) for s in range(n) if not missing[s]]
    heapq.heapify(heap)
    while heap:
        now, _, s = heapq.heappop(heap)
        engine = graph.engine[s]
        if engine == NO_ENGINE:
            finish[s] = now
        else:
            finish[s] = max(now, free[Engine(engine)]) + ticks[s]
            free[Engine(engine)] = finish[s]
        for t in successors[s]:
            ready[t] = max(ready[t], finish[s])
            missing[t] -= 1
            if not missing[t]:
                heapq.heappush(heap, (ready[t], graph.engine[t] != NO_ENGINE, t))
    return tuple(finish)
