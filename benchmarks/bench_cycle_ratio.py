"""Maximum cycle ratio on a pipeline of 168 cores with a million edges.

Run: ``python benchmarks/bench_cycle_ratio.py [edges ...]``.  Prints one line per size:
the bounded bisection/Dinkelbach analysis next to Howard's policy iteration.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.event_graph import EventGraph
from raptor_cp.periodic.howard import howard_cycle_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

CORES = 168


def pipeline_graph(edges: int, seed: int = 0, cores: int = CORES) -> EventGraph:
    """One serial chain a core, random messages forwards, one wrap edge a core."""
    rng = np.random.default_rng(seed)
    length = max(2, edges // (2 * cores))
    events = cores * length
    chain = np.arange(events).reshape(cores, length)
    serial_src, serial_dst = chain[:, :-1].ravel(), chain[:, 1:].ravel()
    messages = edges - serial_src.size - cores
    # A message never goes backwards in the common linear order of the generation:
    # ``at`` positions rise, whatever the cores are.
    at = rng.integers(0, length - 1, messages)
    later = np.minimum(at + 1 + rng.integers(0, 50, messages), length - 1)
    source = chain[rng.integers(0, cores, messages), at]
    target = chain[rng.integers(0, cores, messages), later]
    return EventGraph.from_arrays(
        core=np.repeat(np.arange(cores), length),
        kind=np.zeros(events, np.int64),
        kind_labels=("step",),
        edge_src=np.concatenate([serial_src, source, chain[:, -1]]),
        edge_dst=np.concatenate([serial_dst, target, chain[:, 0]]),
        edge_delay_ns=rng.integers(1, 5000, edges),
        edge_distance=np.repeat([0, 1], [edges - cores, cores]),
    )


def best_of(runs: int, work: Callable[[], CycleRatio | object]) -> tuple[float, object]:
    """Least wall time in seconds of ``runs`` calls, and the last answer."""
    best = float("inf")
    answer: object = None
    for _ in range(runs):
        begin = time.perf_counter()
        answer = work()
        best = min(best, time.perf_counter() - begin)
    return best, answer


def main(sizes: list[int]) -> None:
    """Print the table."""
    small = pipeline_graph(2_000)
    maximum_cycle_ratio(small)
    howard_cycle_ratio(small)
    print(
        f"{'edges':>10} {'R':>5} {'tests':>6} {'sweeps':>7} {'ratio s':>9} "
        f"{'Howard s':>9} {'interval ns':>14} {'equal':>6}"
    )
    for edges in sizes:
        graph = pipeline_graph(edges)
        seconds, answer = best_of(3, lambda graph=graph: maximum_cycle_ratio(graph))
        other_seconds, other = best_of(1, lambda graph=graph: howard_cycle_ratio(graph))
        assert isinstance(answer, CycleRatio)
        print(
            f"{graph.edge_count:>10} {answer.recurrence_edges:>5} {answer.tests:>6} "
            f"{answer.total_sweeps:>7} {seconds:>9.3f} {other_seconds:>9.3f} "
            f"{float(answer.ratio_ns):>14.1f} {answer.ratio_ns == other!s:>6}"
        )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [10_000, 100_000, 1_000_000])
