"""Realization and the five graph checks of one large synthetic plan.

Run: ``python -m benchmarks.bench_realization`` from the repository root.  T = 1,536
tasks of 64 operations on 168 cores; every task reads eight rows of the operation
before (a halo), every sixteenth operation also skips three back: F = 12,864
transfers, of which those inside a stage are direct.  The bar for realization in the
spec's order of communication and the checks together is 150 ms; best of five.
"""

from __future__ import annotations

import time

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
from raptor_cp.realization.checks import check
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realization.realize import realize
from raptor_cp.schedules import Placement, Problem, Schedule, Stage
from raptor_cp.static_evaluation import evaluate
from tests.instances import costs_of, generator, mesh_resources

OPERATIONS, LANES, READS, CORES = 64, 24, 8, 168


def synthetic(
    stages: int, operations: int = OPERATIONS, lanes: int = LANES, cores: int = CORES
) -> Schedule:
    """A placed pipeline; lanes of an operation go round the cores of its stage."""
    rng = generator(stages)
    tasks, publications, transfers = [], [], []
    for operation in range(operations):
        for lane in range(lanes):
            number = operation * lanes + lane
            work = ExplicitWork((int(rng.integers(500, 5000)),))
            tasks.append(Task(f"o{operation}.{lane}", operation, lane, work))
            publications.append(
                Publication(
                    number, f"t{operation}", 8, (lane, lane + 1, 0, 1, 0, 1), 64
                )
            )
            sources = [operation - 1] + (
                [operation - 4] if operation % 16 == 15 else []
            )
            for source in sources:
                if source < 0:
                    continue
                first = min(max(lane - READS // 2, 0), max(lanes - READS, 0))
                for row in range(first, min(first + READS, lanes)):
                    transfers.append(Transfer(source * lanes + row, number, 64))
    graph = ComputeGraph(
        "synthetic",
        tuple(f"o{i}" for i in range(operations)),
        tuple(tasks),
        (),
        tuple(publications),
        tuple(transfers),
        tuple(BaselineAccess(i, BaselineKind.INPUT, "in", 64) for i in range(lanes)),
    )
    problem = Problem(graph, costs_of(graph), mesh_resources(cores, 1))
    cut = np.array_split(np.arange(operations), stages)
    owned = np.array_split(np.arange(cores), stages)
    core_of = np.zeros(len(tasks), np.int32)
    for groups, own in zip(cut, owned, strict=True):
        first, last = int(groups[0]) * lanes, (int(groups[-1]) + 1) * lanes
        core_of[first:last] = own[np.arange(last - first) % len(own)]
    places = tuple(
        Stage(i, tuple(groups.tolist()), tuple(own.tolist()))
        for i, (groups, own) in enumerate(zip(cut, owned, strict=True))
    )
    return evaluate(problem, Placement.in_task_order(core_of, cores, places))


def main() -> None:
    """Print one line for each form."""
    print(
        f"{'stages':>6} {'form':24} {'F':>6} {'direct':>6} "
        f"{'realize ms':>10} {'checks ms':>9} {'together':>8}"
    )
    for stages in (4, 8, 16):
        schedule = synthetic(stages)
        for way in (CrossStage.MEMORY, CrossStage.DIRECT):
            for rule in (OrderRule.BLOCKING, OrderRule.STEADY):
                plan = realize(schedule, Policy.DOUBLE_BUFFER, way, rule)
                if check(plan).faults:
                    raise SystemExit("the synthetic plan fails its checks")
                made, checked = [], []
                for _ in range(5):
                    begin = time.perf_counter()
                    plan = realize(schedule, Policy.DOUBLE_BUFFER, way, rule)
                    middle = time.perf_counter()
                    check(plan)
                    made.append(1e3 * (middle - begin))
                    checked.append(1e3 * (time.perf_counter() - middle))
                took = min(made), min(checked)
                fragments = len(schedule.problem.graph.transfers)
                print(
                    f"{stages:>6} {way + '/' + rule:24} {fragments:>6} "
                    f"{len(plan.direct):>6} {took[0]:>10.0f} {took[1]:>9.0f} "
                    f"{sum(took):>8.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
