"""How many recurrences are proved, from which start, and how fast.

Run: ``python -m benchmarks.bench_recurrence [graphs per row] [continuations]`` from
the repository root.  Rows are synthetic pipelines of the tests; both tie orders must be
proved.  Paced intervals are compared with generations 200 to 400 of the cold execution.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from raptor_cp.periodic.analysis import OrderAnalysis, analyse
from raptor_cp.periodic.queue_engine import Execution, execute
from raptor_cp.periodic.recurrence import RecurrenceProof, Start, prove_recurrence
from tests.periodic_pipelines import PipelineShape, pipeline


def long_run_ns(order: OrderAnalysis, shape: PipelineShape, seed: int) -> float:
    """Mean interval of the slowest core long after the cold start."""
    graph = pipeline(shape, seed)
    run = execute(graph, order.order, generations=420)
    if not isinstance(run, Execution):
        raise SystemExit(str(run))
    times = run.finish_ns[graph.completion]
    return float((times[:, 400] - times[:, 200]).max()) / 200


def row(stages: int, release: bool, service: int, graphs: int, more: int) -> None:
    """One line of the table."""
    before = after = 0
    starts: Counter[str] = Counter()
    farthest = seconds = 0.0
    for seed in range(graphs):
        shape = PipelineShape(
            stages,
            release=release,
            skips=30,
            service=service,
            spread=5 if seed % 2 else 30,
        )
        graph = pipeline(shape, seed)
        begin = time.perf_counter()
        answer = analyse(graph, continuations=more)
        seconds = max(seconds, time.perf_counter() - begin)
        after += answer.recurrence_established
        cold = 0
        for order in answer.orders:
            if not isinstance(order, OrderAnalysis):
                raise SystemExit(str(order))
            proof = prove_recurrence(graph, order.order)
            cold += isinstance(proof, RecurrenceProof)
            starts[order.start or "unproved"] += 1
            if order.start is Start.PACED:
                exact = float(order.proofs[0].interval_ns)
                apart = abs(exact / long_run_ns(order, shape, seed) - 1)
                farthest = max(farthest, apart)
        before += cold == 2
    names = [*Start, "unproved"]
    print(
        f"{stages:>6} {'release' if release else 'double':>8} {service:>8} "
        f"{before:>7} {after:>6} "
        + " ".join(f"{starts[name]:>9}" for name in names)
        + f" {100 * farthest:>8.2f} {1000 * seconds:>9.0f}",
        flush=True,
    )


def main(graphs: int, more: int) -> None:
    """Print the table."""
    analyse(pipeline(PipelineShape(4), 0))
    print(f"{graphs} graphs a row; the starts count tie orders")
    print(
        f"{'stages':>6} {'signals':>8} {'memory %':>8} {'before':>7} {'after':>6} "
        f"{'cold':>9} {'continued':>9} {'paced':>9} {'unproved':>9} "
        f"{'paced %':>8} {'worst ms':>9}"
    )
    for stages in (4, 8, 16, 32):
        for release in (False, True):
            for service in (10, 30, 80):
                row(stages, release, service, graphs, more)


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(given[0] if given else 20, given[1] if len(given) > 1 else 1)
