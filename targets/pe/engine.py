"""Bridge from an element's stages to the project's queue engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.periodic.event_graph import EventGraph
from raptor_cp.periodic.unavailable import Unavailable
from raptor_cp.targets.pe.stages import Engine, StageKind

if TYPE_CHECKING:
    from raptor_cp.targets.pe.stages import StageGraph

_KINDS = tuple(StageKind)


def event_graph(graph: StageGraph, ticks: list[int]) -> EventGraph:
    """One generation of the element's stages; event ``i`` is stage ``i``.

    The graph's time unit is the tick, whatever its arrays are called.
    """
    number = {kind: i for i, kind in enumerate(_KINDS)}
    counts = [len(before) for before in graph.predecessors]
    stages = len(graph)
    source = np.fromiter(
        (p for before in graph.predecessors for p in before), np.int64, sum(counts)
    )
    target = np.repeat(np.arange(stages), counts)
    return EventGraph.from_arrays(
        core=np.zeros(stages, np.int64),
        kind=[number[kind] for kind in graph.kind],
        kind_labels=[kind.value for kind in _KINDS],
        server=graph.engine,
        server_labels=[engine.name for engine in Engine],
        service_ns=ticks,
        edge_src=source,
        edge_dst=target,
        edge_delay_ns=np.zeros(len(source), np.int64),
        edge_distance=np.zeros(len(source), np.int64),
    )


def run_stages(
    graph: StageGraph, ticks: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Serve all stages in order of arrival, ties by stage number.

    Returns:
        When each stage was ready, and when it finished, in ticks.

    Raises:
        InternalError: the engine could not run the graph.
    """
    # Its kernels are compiled at import: only those who run stages wait for that.
    from raptor_cp.periodic.queue_engine import execute

    if not len(graph):
        return (), ()
    execution = execute(event_graph(graph, ticks))
    if isinstance(execution, Unavailable):
        raise InternalError(f"the element's stages cannot run: {execution.reason}")
    if not execution.completed:
        raise InternalError("some of the element's stages wait for ever")
    return (
        tuple(execution.ready_ns[:, 0].tolist()),
        tuple(execution.finish_ns[:, 0].tolist()),
    )
