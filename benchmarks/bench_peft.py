"""Latency mode at size: PEFT, HEFT and the bounds on a large random graph.

Run: ``python benchmarks/bench_peft.py [--tasks N --edges N --cores N]``.  Bar: 5,000
tasks, 20,000 edges, 168 cores in at most 10 s, every step of the reservation included.
The second line of each method is a chip on which the first step fails, so that the
weights are reserved before the tasks are placed.  Kernels are warmed on a small graph.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from raptor_cp.graph.explicit import GivenEdge, GivenTask, explicit_graph
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.latency.bounds import completion_bound
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.latency.methods import METHODS
from raptor_cp.schedules import Problem
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts


def layered(
    tasks: int, edges: int, cores: int, fill: float, uneven: bool, seed: int = 1
) -> Problem:
    """A random graph in layers; weights fill a share of a square mesh."""
    rng = np.random.Generator(np.random.PCG64(seed))
    sets = max(1, tasks // 12)
    given = [
        GivenTask(f"t{n}", ExplicitWork((1,)), None, (f"w{n * sets // tasks}",))
        for n in range(tasks)
    ]
    pairs: dict[tuple[int, int], int] = {}
    reach = max(16, tasks // 20)  # room for the edges asked for
    while len(pairs) < edges:
        target = int(rng.integers(1, tasks))
        source = max(0, target - int(rng.integers(1, reach)))
        pairs[source, target] = int(rng.integers(1, 4096))
    slots = rng.integers(4, 33, sets)
    graph = explicit_graph(
        "layers",
        given,
        [GivenEdge(f"t{s}", f"t{t}", size) for (s, t), size in sorted(pairs.items())],
        [(f"w{n}", int(size)) for n, size in enumerate(slots)],
    )
    across = int(np.ceil(np.sqrt(cores)))
    row, column = np.divmod(np.arange(cores, dtype=np.int64), across)
    hops = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    links = LinkModel(4 * hops, hops + (hops > 0), 8, 8, 1, 1)
    capacity = max(int(slots.max()), int(slots.sum() / (fill * cores)))
    time_ns = rng.integers(100, 5_000, tasks)
    table = time_ns[:, None] + rng.integers(0, 500, (tasks, cores)) if uneven else None
    costs = TaskCosts(time_ns if table is None else table.max(axis=1), table)
    chip = Resources(cores, capacity, links, MemoryModel(8, 1, 1))
    return Problem(graph, costs, chip)


def measure(problem: Problem, what: str) -> None:
    """One line for each method, and one for the bounds."""
    for name, method in METHODS.items():
        begin = time.perf_counter()
        outcome = method(problem).schedule()
        seconds = time.perf_counter() - begin
        if not isinstance(outcome, ListSchedule):
            print(f"{what:24} {name:5} {seconds:7.3f} s  {outcome.reason}")
            continue
        completion = evaluate(problem, outcome.placement).summary.completion_ns
        print(
            f"{what:24} {name:5} {seconds:7.3f} s  {completion:>12,} ns  "
            f"weights: {outcome.reservation}"
        )
    begin = time.perf_counter()
    bound = completion_bound(problem)
    seconds = time.perf_counter() - begin
    print(f"{what:24} bound {seconds:7.3f} s  {bound.ns:>12,} ns  {bound.argument}")


def main() -> None:
    """Parse the size, warm up, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5_000)
    parser.add_argument("--edges", type=int, default=20_000)
    parser.add_argument("--cores", type=int, default=168)
    options = parser.parse_args()
    for fill in (0.1, 0.9):
        small = layered(60, 150, 9, fill, uneven=False)
        for method in METHODS.values():
            method(small).schedule()
        completion_bound(small)
    for fill in (0.1, 0.9):
        for uneven in (False, True):
            problem = layered(options.tasks, options.edges, options.cores, fill, uneven)
            kind = "unlike" if uneven else "like"
            measure(problem, f"{kind} cores, {fill:.0%} full")


if __name__ == "__main__":
    main()
