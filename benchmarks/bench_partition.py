"""Initial partition speed: prefix DP with all segment curves.

Run: ``python benchmarks/bench_partition.py``.  Bar: G=150 groups, T=2,000 tasks,
P=168 cores, S=32 stages in at most 2 s, curves of all segments included.  Capacities
are chosen so that the weights fill a given share of the chip: the fuller it is, the
more cells only the reuse-first constructor can price.
"""

from __future__ import annotations

import time

import numpy as np

from raptor_cp.graph.compute_graph import (
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.pipeline.budgets import StagePacking
from raptor_cp.pipeline.partition import (
    InitialPartition,
    PartitionFailure,
    initial_partition,
)
from raptor_cp.schedules import Problem
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts

CASES = ((1, 0.0, "one set"), (6, 0.0, "column blocks"), (6, 0.2, "overlapping sets"))


def network(
    groups: int, tasks: int, seed: int, blocks: int, overlap: float
) -> tuple[ComputeGraph, TaskCosts]:
    """A chain of operations with skip connections; lanes read row windows.

    ``blocks`` weights an operation; a lane holds one of them in turn and each other
    one with probability ``overlap``.
    """
    rng = np.random.default_rng(seed)
    lanes = np.full(groups, tasks // groups)
    lanes[: tasks % groups] += 1
    members: list[Task] = []
    weights: list[ResidentWeight] = []
    publications: list[Publication] = []
    transfers: list[Transfer] = []
    first = np.concatenate([[0], np.cumsum(lanes)])
    for group in range(groups):
        size = int(rng.integers(1, 40))
        held = list(range(len(weights), len(weights) + blocks))
        weights += [
            ResidentWeight(f"w{w}", max(1, size // (1 + w % 2)), group) for w in held
        ]
        duration = int(rng.integers(1_000, 200_000))
        sources = {group - 1, max(0, group - 4)} if group else set()
        for lane in range(int(lanes[group])):
            own = held[lane % blocks]
            mine = [w for w in held if w == own or rng.random() < overlap]
            task = len(members)
            work = ExplicitWork((duration,))
            members.append(Task(f"g{group}.{lane}", group, lane, work, tuple(mine)))
            box = (lane, lane + 1, 0, 1, 0, 1)
            publications.append(Publication(task, f"t{group}", 8, box, 256))
            for source in sorted(sources):
                low = max(0, lane - 1)
                high = min(int(lanes[source]), lane + 2)
                for row in range(min(low, high - 1), high):
                    transfers.append(Transfer(int(first[source]) + row, task, 256))
    graph = ComputeGraph(
        "bench",
        tuple(f"g{group}" for group in range(groups)),
        tuple(members),
        tuple(weights),
        tuple(publications),
        tuple(transfers),
    )
    work_ns = [t.work.execution_ns[0] for t in members]  # type: ignore[union-attr]
    return graph, TaskCosts(np.array(work_ns, dtype=np.int64))


def problem_of(
    graph: ComputeGraph, costs: TaskCosts, cores: int, fill: float
) -> Problem:
    """Capacity such that the distinct weights fill ``fill`` of the chip, or less
    when the largest task needs more room."""
    largest = int(graph.task_slots().max())
    capacity = max(largest, int(graph.weight_slots.sum() / fill / cores))
    zero = np.zeros((cores, cores), dtype=np.int64)
    return Problem(
        graph,
        costs,
        Resources(cores, capacity, LinkModel(zero, zero, 8), MemoryModel(8, 1, 1)),
    )


def measure(name: str, problem: Problem, depth: int) -> None:
    """Build everything from the problem and print the phases."""
    start = time.perf_counter()
    packing = StagePacking.of(problem)
    _ = packing.groups.spans, packing.groups.traffic
    indexed = time.perf_counter()
    found = initial_partition(packing, depth)
    end = time.perf_counter()
    if isinstance(found, PartitionFailure):
        result = f"{found.verdict}, {found.questions} questions: {found.reason}"
    else:
        result = (
            f"{found.method}, {len(found.stages)} stages, {found.objective_ns} ns, "
            f"{found.questions} questions"
        )
    print(
        f"{name:28s} index+spans {indexed - start:6.3f} s  partition "
        f"{end - indexed:6.3f} s  total {end - start:6.3f} s  {result}"
    )


def main() -> None:
    """Warm the kernels, then measure."""
    graph, costs = network(10, 40, 0, 2, 0.0)
    warm = problem_of(graph, costs, 8, 0.9)
    assert isinstance(initial_partition(StagePacking.of(warm), 4), InitialPartition)
    for blocks, overlap, name in CASES:
        graph, costs = network(150, 2_000, 1, blocks, overlap)
        seen = -1
        for fill in (0.35, 0.8, 0.93, 0.99):
            problem = problem_of(graph, costs, 168, fill)
            if problem.resources.slots_per_core == seen:
                continue
            seen = problem.resources.slots_per_core
            slots = 168 * seen
            real = int(graph.weight_slots.sum()) / slots
            measure(f"{name}, {real:.0%} full", problem, 32)


if __name__ == "__main__":
    main()
