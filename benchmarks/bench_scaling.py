"""Scaling of every row of the spec's table "Complexity and limits".

Run: ``python -m benchmarks.bench_scaling [row ...]`` from the repository root; under
a minute.  For each row each variable of its formula is doubled while the others
stay; the table shows the counted work, the time, and, per doubling, by which factor
the formula, the work and the time grow (geometric mean over the sizes).  A formula
grows as its fastest term does, whatever the constants of the others.  A row holds
where time grows by no more than the formula: a factor of at most 1.3 times as much.
Small instances have constant parts, so smaller factors are usual.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling_instances import (
    concatenated,
    fitting_weights,
    layered,
    long_views,
    pipelined,
    recurring,
    slots_and_lanes,
    zero_links,
)
from raptor_cp.graph.projection import needed_by_input
from raptor_cp.graph.views import root_box
from raptor_cp.graph.work import Box
from raptor_cp.periodic.cycle_ratio import CycleRatio, maximum_cycle_ratio
from raptor_cp.periodic.queue_engine import execute
from raptor_cp.pipeline.budgets import StagePacking
from raptor_cp.pipeline.core_layout import CoreLayout
from raptor_cp.pipeline.groups import CutTraffic, PipelineGroups, StageLimits
from raptor_cp.pipeline.minimum_resource import MinimumResource, SegmentTables
from raptor_cp.pipeline.neighbourhood import StageVector, moves
from raptor_cp.pipeline.packing import pack_resident
from raptor_cp.pipeline.partition import InitialPartition, initial_partition
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.schedules import Placement
from raptor_cp.static_evaluation import StaticEvaluator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

IndexArray = NDArray[np.int32]

#: Time of a row may grow by this much more per doubling than its formula.
TOLERANCE = 1.3
#: Shortest time of one measurement, seconds: calls are repeated until then.
SHORTEST = 0.02


@dataclass(frozen=True)
class Point:
    """One instance: what is done, what the formula says, what is counted.

    Attributes:
        work: does it and returns the counted work.
        terms: values of the terms of the row's formula.
    """

    work: Callable[[], int]
    terms: tuple[float, ...]


@dataclass(frozen=True)
class Series:
    """A row with one variable that doubles."""

    row: str
    variable: str
    counted: str
    sizes: Sequence[int]
    point: Callable[[int], Point]


def log2(value: float) -> float:
    """At least 1, for formulas with a logarithm."""
    return max(math.log2(value), 1.0)


# -- rows of the table -----------------------------------------------------------


def evaluation() -> Iterator[Series]:
    """Schedule evaluation: (T + E) log T + P."""

    def point(tasks: int, width: int, cores: int) -> Point:
        problem = layered(tasks // 16, 16, width, cores=cores)
        evaluator = StaticEvaluator(problem)
        edges = len(problem.graph.transfers)
        placement = Placement.in_task_order(
            evaluator_cores(problem.graph.task_count, cores), cores
        )
        evaluator.schedule(placement)

        def work() -> int:
            evaluator.schedule(placement)
            return tasks + edges

        return Point(work, ((tasks + edges) * log2(tasks), cores))

    name, counted = "schedule evaluation", "tasks + edges"
    yield Series(
        name, "T", counted, (2048, 4096, 8192, 16384), lambda t: point(t, 2, 64)
    )
    yield Series(name, "E", counted, (2, 4, 8, 16), lambda w: point(4096, w, 64))
    yield Series(name, "P", counted, (64, 128, 256, 512), lambda p: point(1024, 2, p))


def weight_indexing() -> Iterator[Series]:
    """Weight indexing: up to R W comparisons."""

    def point(tasks: int, references: int, weights: int) -> Point:
        problem = layered(tasks // 16, 16, 1, weights=weights, references=references)

        def work() -> int:
            index = IndexedResidentWeights.of(problem)
            return tasks * references + index.class_bits.size

        return Point(work, (tasks * references * weights,))

    name, counted = "weight indexing", "references + bitset words"
    yield Series(name, "R", counted, (2, 4, 8, 16), lambda r: point(4096, r, 512))
    yield Series(
        name, "W", counted, (512, 1024, 2048, 4096), lambda w: point(2048, 4, w)
    )


def weight_bounds() -> Iterator[Series]:
    """Weight lower bounds: R + W."""

    def point(tasks: int, references: int, weights: int) -> Point:
        problem = layered(tasks // 16, 16, 1, weights=weights, references=references)
        index = IndexedResidentWeights.of(problem)

        def work() -> int:
            index.bound(range(tasks))
            return tasks * references + weights

        return Point(work, (tasks * references, weights))

    name, counted = "weight lower bounds", "references + weights"
    yield Series(name, "R", counted, (4, 8, 16, 32), lambda r: point(2048, r, 512))
    yield Series(
        name, "W", counted, (2048, 4096, 8192, 16384), lambda w: point(1024, 4, w)
    )


def best_fit() -> Iterator[Series]:
    """Constructive best fit: T log T + P R + P W."""

    def point(weights: int, lanes: int, cores: int) -> Point:
        problem = fitting_weights(weights, lanes, cores)
        index = IndexedResidentWeights.of(problem)
        tasks = weights * lanes
        costs = problem.costs.execution_ns

        def work() -> int:
            outcome = pack_resident(index, range(tasks), cores, costs)
            # Step 1 checks every core for each class, step 2 for each task.
            return outcome.counts.first_checks + tasks * cores  # type: ignore[union-attr]

        return Point(work, (tasks * log2(tasks), cores * tasks, cores * weights))

    name, counted = "constructive best fit", "core-candidate checks"
    yield Series(name, "T", counted, (16, 32, 64, 128), lambda n: point(64, n, 64))
    yield Series(name, "P", counted, (32, 64, 128, 256), lambda p: point(128, 16, p))
    yield Series(name, "W", counted, (64, 128, 256, 512), lambda w: point(w, 8, 128))


def joint_dp() -> Iterator[Series]:
    """Joint initialization DP: G^2 Q K + S G^2 Q^2, K one ordered-packing query."""

    def point(groups: int, units: int, stages: int) -> Point:
        problem = layered(groups, 1280 // groups, 1, cores=stages + units, weights=64)
        packing = StagePacking.of(problem)
        _ = packing.groups.spans, packing.groups.traffic

        def work() -> int:
            found = initial_partition(packing, stages)
            if not isinstance(found, InitialPartition) or found.units != units:
                raise SystemExit(f"unexpected partition: {found}")
            return groups**2 * units + stages * groups**2 * units**2

        query = 1280 * log2(1280)
        terms = groups**2 * units * query, stages * groups**2 * units**2
        return Point(work, terms)

    name, counted = "joint initialization DP", "cells + transitions at most"
    yield Series(name, "G", counted, (40, 80, 160, 320), lambda g: point(g, 16, 8))
    yield Series(name, "Q", counted, (2, 4, 8, 16), lambda q: point(160, q, 8))
    yield Series(name, "S", counted, (4, 8, 16, 32), lambda s: point(160, 16, s))


def completion() -> Iterator[Series]:
    """Feasibility completion: G^2 P K + S G^2."""

    def point(groups: int, cores: int, stages: int) -> Point:
        problem = layered(groups, 1280 // groups, 1, cores=cores, weights=64)
        packing = StagePacking.of(problem)
        tables = SegmentTables.of(packing, StageLimits.of(packing.groups))

        def work() -> int:
            answer = MinimumResource(packing, tables, stages).run()
            return stages * groups**2 + answer.questions

        query = 1280 * log2(1280)
        return Point(work, (groups**2 * cores * query, stages * groups**2))

    name, counted = "feasibility completion", "transitions + questions"
    yield Series(name, "G", counted, (40, 80, 160, 320), lambda g: point(g, 128, 8))
    yield Series(name, "P", counted, (32, 64, 128, 256), lambda p: point(120, p, 8))
    yield Series(name, "S", counted, (4, 8, 16, 32), lambda s: point(120, 128, s))


def memory_service() -> Iterator[Series]:
    """Neighbourhood memory service: T + F for a partition."""

    def point(tasks: int, width: int) -> Point:
        problem = layered(32, tasks // 32, width)
        groups = PipelineGroups.of(problem)
        starts = tuple(range(0, 32, 4))

        def work() -> int:
            CutTraffic.of(groups).memory_service(starts)
            return tasks + len(problem.graph.transfers)

        return Point(work, (tasks, len(problem.graph.transfers)))

    name, counted = "neighbourhood memory service", "tasks + demands"
    yield Series(
        name, "T + F", counted, (4096, 8192, 16384, 32768), lambda t: point(t, 2)
    )
    yield Series(name, "F", counted, (2, 4, 8, 16), lambda w: point(4096, w))


def clustering() -> Iterator[Series]:
    """Topology clustering: P^2."""

    def point(cores: int) -> Point:
        links = zero_links(cores)

        def work() -> int:
            layout = CoreLayout(links)
            layout.clusters([cores // 8] * 8)
            return cores * cores

        return Point(work, (cores * cores,))

    sizes = (64, 128, 256, 512, 1024)
    yield Series("topology clustering", "P", "pairs of cores", sizes, point)


def concat_cost() -> Iterator[Series]:
    """Concat cost extraction: A D."""

    def point(inputs: int, rank: int) -> Point:
        operation, box, shapes, output = concatenated(inputs, rank)

        def work() -> int:
            blocks = list(needed_by_input(operation, box, shapes, output))
            return len(blocks) * rank

        return Point(work, (inputs * rank,))

    name, counted = "concat cost extraction", "inputs x rank"
    yield Series(name, "A", counted, (256, 512, 1024, 2048), lambda a: point(a, 4))
    yield Series(name, "D", counted, (2, 4), lambda d: point(1024, d))


def priorities() -> Iterator[Series]:
    """Cached pipeline priorities: T + D, D operations of the bodies of all lanes."""

    def point(tasks: int, lanes: int) -> Point:
        problem = layered(tasks // lanes, lanes, 1)

        def work() -> int:
            groups = PipelineGroups.of(problem)
            return tasks + groups.count

        return Point(work, (tasks, tasks // lanes))

    name, counted = "cached pipeline priorities", "tasks + groups"
    sizes = (8192, 16384, 32768, 65536)
    yield Series(name, "T", counted, sizes, lambda t: point(t, 64))
    yield Series(name, "D", counted, (64, 32, 16, 8), lambda n: point(32768, n))


def projections() -> Iterator[Series]:
    """Exact projections: Q + L for Q slot visits and L producer lanes."""

    def point(consumers: int, lanes: int) -> Point:
        visit = slots_and_lanes(consumers, lanes)
        return Point(visit, (visit(), lanes))

    name, counted = "exact projections", "slot visits"
    yield Series(name, "Q", counted, (1024, 2048, 4096, 8192), lambda q: point(q, 1024))
    yield Series(name, "L", counted, (1024, 2048, 4096, 8192), lambda n: point(1024, n))


def tracing() -> Iterator[Series]:
    """Conservative producer tracing: linear in the projection DAG."""

    def point(views: int) -> Point:
        network, tensor = long_views(views)

        def work() -> int:
            root_box(network, tensor, Box(0, 8, 0, 8, 0, 4))
            return views

        return Point(work, (views,))

    sizes = (256, 512, 1024, 2048)
    yield Series("conservative producer tracing", "length", "views", sizes, point)


# -- formulas of the text --------------------------------------------------------


def periodic_rows() -> Iterator[Series]:
    """Cycle ratio: L (R + 1) (V + E); queues: K (E + V log V)."""

    def ratio(cores: int, length: int) -> Point:
        graph = recurring(cores, length)
        size = graph.event_count + graph.edge_count

        def work() -> int:
            found = maximum_cycle_ratio(graph)
            if not isinstance(found, CycleRatio):
                raise SystemExit(str(found))
            return found.total_sweeps * size

        return Point(work, ((cores + 1) * size,))

    def queues(cores: int, transfers: int, generations: int) -> Point:
        graph = pipelined(cores, transfers)
        events, edges = graph.event_count, graph.edge_count

        def work() -> int:
            found = execute(graph, generations=generations)
            return found.processed_events  # type: ignore[union-attr]

        return Point(work, (generations * edges, generations * events * log2(events)))

    name, counted = "maximum cycle ratio", "sweeps x (V + E)"
    sizes = (1024, 2048, 4096, 8192)
    yield Series(name, "V + E", counted, sizes, lambda n: ratio(32, n))
    yield Series(name, "R", counted, (16, 32, 64, 128), lambda r: ratio(r, 65536 // r))
    name, counted = "queue execution", "processed events"
    yield Series(name, "V, E", counted, (40, 80, 160, 320), lambda n: queues(32, n, 8))
    yield Series(name, "K", counted, (4, 8, 16, 32), lambda k: queues(32, 80, k))


def neighbourhood() -> Iterator[Series]:
    """Moves of a parent: G + S^2 log P."""

    def point(groups: int, stages: int, cores: int) -> Point:
        starts = tuple(range(0, groups, groups // stages))[:stages]
        parent = StageVector(starts, (cores // stages,) * stages)
        limits = AnyCut()

        def work() -> int:
            return sum(1 for _ in moves(parent, groups, stages + 1, limits))

        return Point(work, (groups, stages**2 * log2(cores)))

    name, counted = "moves of a parent", "moves"
    sizes = (256, 512, 1024, 2048)
    yield Series(name, "G", counted, sizes, lambda g: point(g, 8, 128))
    yield Series(name, "S", counted, (4, 8, 16, 32), lambda s: point(128, s, 256))
    yield Series(name, "P", counted, (64, 256, 1024, 4096), lambda p: point(128, 8, p))


class AnyCut:
    """Every cut is allowed."""

    def allows_cut(self, group: int) -> bool:
        """Always."""
        return group >= 0


ROWS: dict[str, Callable[[], Iterator[Series]]] = {
    "evaluation": evaluation,
    "indexing": weight_indexing,
    "bounds": weight_bounds,
    "best-fit": best_fit,
    "dp": joint_dp,
    "completion": completion,
    "service": memory_service,
    "clustering": clustering,
    "concat": concat_cost,
    "priorities": priorities,
    "projections": projections,
    "tracing": tracing,
    "periodic": periodic_rows,
    "neighbourhood": neighbourhood,
}


def evaluator_cores(tasks: int, cores: int) -> IndexArray:
    """Tasks round the cores."""
    return (np.arange(tasks) % cores).astype(np.int32)


def seconds(point: Point) -> tuple[float, int]:
    """Least time of one call over three measurements, and the counted work."""
    counted = point.work()
    begin = time.perf_counter()
    point.work()
    once = time.perf_counter() - begin
    calls = max(1, math.ceil(SHORTEST / max(once, 1e-9)))
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(calls):
            point.work()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best, counted


def per_doubling(first: float, last: float, doublings: int) -> float:
    """Geometric mean of the growth."""
    return math.exp(math.log(last / max(first, 1e-12)) / doublings)


def measure(series: Series) -> bool:
    """One line of the table; whether the row holds."""
    points = [series.point(size) for size in series.sizes]
    points[0].work()  # compiles kernels
    times, counts = zip(*(seconds(point) for point in points), strict=True)
    doublings = len(points) - 1
    formula = max(
        per_doubling(first, last, doublings)
        for first, last in zip(points[0].terms, points[-1].terms, strict=True)
    )
    counted = per_doubling(counts[0], counts[-1], doublings)
    took = per_doubling(times[0], times[-1], doublings)
    holds = took <= TOLERANCE * formula
    print(
        f"{series.row:29} {series.variable:7} {series.counted:27} "
        f"{counts[0]:>9} {counts[-1]:>10} "
        f"{1e3 * times[0]:>8.2f} {1e3 * times[-1]:>8.2f} "
        f"{formula:>7.2f} {counted:>6.2f} {took:>6.2f}  {'yes' if holds else 'NO'}",
        flush=True,
    )
    return holds


def main(names: Sequence[str]) -> None:
    """Measure the rows asked for, or all."""
    print(
        f"{'row':29} {'doubled':7} {'counted':27} {'first':>9} {'last':>10} "
        f"{'ms first':>8} {'ms last':>8} {'formula':>7} {'work':>6} {'time':>6}  holds"
    )
    begin = time.perf_counter()
    failed = 0
    for name in names or ROWS:
        for series in ROWS[name]():
            failed += not measure(series)
    print(f"{failed} do not hold; {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
