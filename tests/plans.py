"""Small pipelines whose plans are easy to follow by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.realization.plan import (
    CorePlan,
    CrossStage,
    ExecutionPlan,
    Item,
    Load,
    Policy,
    Run,
    Store,
)
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import evaluate
from tests.instances import costs_of, mesh_resources

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.schedules import Schedule


def pipeline(
    stages: int,
    skips: Sequence[tuple[int, int]] = (),
    *,
    work_ns: int = 1000,
    size: int = 64,
) -> Schedule:
    """``stages`` cores, one task and one stage each, in a row, with skip edges."""
    names = tuple(f"op{i}" for i in range(stages))
    tasks = tuple(Task(n, i, 0, ExplicitWork((work_ns,))) for i, n in enumerate(names))
    publications = tuple(
        Publication(i, f"t{i}", 8, None, size) for i in range(stages - 1)
    )
    edges = [(i, i + 1) for i in range(stages - 1)] + sorted(skips)
    transfers = tuple(Transfer(s, d, size) for s, d in edges)
    graph = ComputeGraph(
        "row",
        names,
        tasks,
        (),
        publications,
        transfers,
        (BaselineAccess(0, BaselineKind.INPUT, "in", size),),
    )
    problem = Problem(graph, costs_of(graph), mesh_resources(stages, 1))
    cut = tuple(Stage(i, (i,), (i,)) for i in range(stages))
    placement = Placement.in_task_order(np.arange(stages, dtype=np.int32), stages, cut)
    return evaluate(problem, placement)


def hand_made(
    schedule: Schedule,
    texts: Mapping[int, Sequence[Item]],
    banks: Mapping[int, int],
    stages: Mapping[int, int] | None = None,
) -> ExecutionPlan:
    """A plan from texts written by hand."""
    stage_of = stages or {core: core for core in texts}
    return ExecutionPlan(
        schedule,
        Policy.DOUBLE_BUFFER,
        CrossStage.MEMORY,
        tuple(CorePlan(c, stage_of[c], tuple(t)) for c, t in sorted(texts.items())),
        (),
        tuple(sorted(banks.items())),
    )


def load(transfer: int) -> Load:
    """A load of 64 bytes."""
    return Load(transfer, None, 64, 1)


def store(publication: int) -> Store:
    """A store of 64 bytes."""
    return Store(publication, None, 64, 1)


def run(task: int) -> Run:
    """One task."""
    return Run((task,))
