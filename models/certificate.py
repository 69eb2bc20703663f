"""How far from the optimum a schedule is at most; see ``docs/certificates.md``.

Two figures, each with its bound:

* the static objective, max over stages of max(core load, dependency span), bounded
  by the joint model (:mod:`raptor_cp.models.pipeline_joint`);
* the initiation interval, bounded for ANY schedule of the graph on the chip by
  counting arguments alone.

``gap = (ours - bound) / bound``; null when a side is unknown or the bound is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.models.instances import JointInstance, packing_instance
from raptor_cp.models.packing_bounds import SegmentBounds
from raptor_cp.target import AccessKind
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raptor_cp.graph.compute_graph import BaselineAccess
    from raptor_cp.models.pipeline_joint import JointResult
    from raptor_cp.schedules import Problem, Schedule

#: The static objective, as reports print it.
OBJECTIVE = "max over stages of max(largest core load, dependency span), ns"
#: Cells of the grid on which overlapping reads are counted once.
_GRID_LIMIT = 2_000_000


@dataclass(frozen=True, slots=True)
class IntervalBound:
    """Lower bounds (ns) on the interval of every schedule, each on its own.

    Attributes:
        work_ns: least load of the fullest core that no counting argument excludes
            when all tasks are spread over all cores under the weight capacity.
        longest_task_ns: the longest task; it runs once for every inference.
        memory_ns: every network input read once, every output stored once.
    """

    work_ns: int
    longest_task_ns: int
    memory_ns: int

    @property
    def bound_ns(self) -> int:
        """The largest of them."""
        return max(self.work_ns, self.longest_task_ns, self.memory_ns)

    @property
    def reason(self) -> str:
        """Name of the binding term."""
        if self.bound_ns == self.work_ns:
            return "work of the cores"
        if self.bound_ns == self.longest_task_ns:
            return "longest task"
        return "network inputs and outputs"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What every report says about its schedule.

    Attributes:
        objective: the static objective in words.
        ours_static: its value for this schedule (ns); None without stages.
        bound_static: no schedule of this depth has a smaller one; None when unknown.
        gap_static: (ours - bound) / bound.
        interval_ns: initiation interval of this schedule; None when unavailable.
        bound_interval_ns: no schedule of the graph on the chip has a smaller one.
        gap_interval: (ours - bound) / bound.
        proof: what the bounds rest on.
    """

    objective: str
    ours_static: int | None
    bound_static: int | None
    gap_static: float | None
    interval_ns: int | None
    bound_interval_ns: int | None
    gap_interval: float | None
    proof: str

    @property
    def gap(self) -> float | None:
        """How far the interval is from the optimum at most: ``gap_interval``."""
        return self.gap_interval

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports, in this order."""
        return {name: getattr(self, name) for name in self.__slots__}

    def sentences(self) -> list[str]:
        """The certificate as a person reads it."""
        lines = []
        if self.ours_static is not None and self.bound_static is not None:
            lines.append(
                _sentence(
                    "static objective",
                    self.ours_static,
                    self.bound_static,
                    self.gap_static,
                )
            )
        if self.interval_ns is not None and self.bound_interval_ns is not None:
            lines.append(
                _sentence(
                    "interval",
                    self.interval_ns,
                    self.bound_interval_ns,
                    self.gap_interval,
                )
            )
        lines.append(f"bounds by {self.proof}")
        return lines


def certify(
    schedule: Schedule, interval_ns: int | None, joint: JointResult | None
) -> Certificate:
    """Certificate of a schedule.

    Args:
        schedule: evaluated and valid.
        interval_ns: its initiation interval; None when timing is unavailable or in
            latency mode.
        joint: answer of the joint model for the same graph, chip and depth; None
            when it was not asked.

    Raises:
        InternalError: the schedule beats a bound that was proved.
    """
    ours = static_objective(schedule) if schedule.placement.stages else None
    bound = None if joint is None else joint.bound_ns
    if ours is not None and bound is not None and ours < bound:
        raise InternalError(f"static objective {ours} ns is below its bound {bound} ns")
    interval = interval_bound(schedule.problem)
    proof = "counting"
    if joint is not None and bound is not None:
        proof = joint.proof
        if joint.verdict is Verdict.OPTIMAL:
            proof += ", optimum reached by the joint model"
    return Certificate(
        objective=OBJECTIVE,
        ours_static=ours,
        bound_static=bound,
        gap_static=relative_gap(ours, bound),
        interval_ns=interval_ns,
        bound_interval_ns=interval.bound_ns,
        gap_interval=relative_gap(interval_ns, interval.bound_ns),
        proof=proof,
    )


def relative_gap(ours: int | None, bound: int | None) -> float | None:
    """(ours - bound) / bound; None when unknown, when the bound is 0, or negative.

    A negative gap means that a time estimate undercuts a hard bound: then the
    estimate, not the bound, is in doubt, and no gap is stated.
    """
    if ours is None or bound is None or bound <= 0 or ours < bound:
        return None
    return float(Fraction(ours - bound, bound))


def interval_bound(problem: Problem) -> IntervalBound:
    """Bounds on the interval of every schedule of ``problem``."""
    packing = packing_instance(problem)
    whole = JointInstance(
        packing=packing,
        group_ptr=np.array([0, packing.tasks], dtype=np.int32),
        edge_src=np.zeros(0, dtype=np.int32),
        edge_dst=np.zeros(0, dtype=np.int32),
        depth=1,
    )
    bounds = SegmentBounds(whole)
    longest = int(packing.load_ns.max(initial=0))
    total = int(packing.load_ns.sum())
    low = max(longest, ceil_div(total, packing.cores))
    high = max(low, total)
    if int(bounds.least_cores(high)[0, 1]) > packing.cores:
        high = low  # nothing fits: no schedule, any bound holds
    while low < high:
        middle = (low + high) // 2
        if int(bounds.least_cores(middle)[0, 1]) <= packing.cores:
            high = middle
        else:
            low = middle + 1
    return IntervalBound(low, longest, unavoidable_memory_ns(problem))


def unavoidable_memory_ns(problem: Problem) -> int:
    """Memory service (ns) that no placement avoids.

    Every element of a network input is read at least once (several tasks on one
    core might share a load, so overlaps count once), every output is stored.
    """
    memory = problem.resources.memory
    reads: dict[str, list[BaselineAccess]] = {}
    total = 0
    for access in problem.graph.baseline:
        if access.kind is BaselineKind.OUTPUT:
            time = memory.access(access.size, AccessKind.WRITE, access.runs)
            total += time.service_ns
        else:
            reads.setdefault(access.tensor, []).append(access)
    for accesses in reads.values():
        size = _distinct_bytes(accesses)
        total += memory.access(size, AccessKind.READ).service_ns if size else 0
    return total


def _distinct_bytes(accesses: list[BaselineAccess]) -> int:
    """Bytes that are read at least once, rounded down."""
    largest = max(access.size for access in accesses)
    boxes = [access.box for access in accesses if access.box is not None]
    if len(boxes) < len(accesses):
        return largest
    edges = [
        np.unique([b[axis + side] for b in boxes for side in (0, 1)])
        for axis in (0, 2, 4)
    ]
    shape = tuple(max(0, e.size - 1) for e in edges)
    if int(np.prod(shape)) > _GRID_LIMIT or 0 in shape:
        return largest
    covered = np.zeros(shape, dtype=np.bool_)
    for box in boxes:
        cells = tuple(
            slice(
                int(np.searchsorted(e, box[axis])),
                int(np.searchsorted(e, box[axis + 1])),
            )
            for e, axis in zip(edges, (0, 2, 4), strict=True)
        )
        covered[cells] = True
    lengths = [np.diff(e) for e in edges]
    volume = int(np.einsum("ijk,i,j,k->", covered.astype(np.int64), *lengths))
    density = min(
        Fraction(access.size, max(1, _volume(box)))
        for access, box in zip(accesses, boxes, strict=True)
    )
    return max(largest, int(volume * density))


def _volume(box: tuple[int, int, int, int, int, int]) -> int:
    return (box[1] - box[0]) * (box[3] - box[2]) * (box[5] - box[4])


def static_objective(schedule: Schedule) -> int:
    """max over stages of max(core load, dependency span), from the placement alone."""
    problem, placement = schedule.problem, schedule.placement
    graph, costs = problem.graph, problem.costs
    core_of = placement.core_of.tolist()
    stage_of_core = placement.stage_of_core(problem.resources.cores).tolist()
    time = [costs.on(task, core) for task, core in enumerate(core_of)]
    load: dict[int, int] = {}
    for task, core in enumerate(core_of):
        load[core] = load.get(core, 0) + time[task]
    path = list(time)
    for task, core in enumerate(core_of):
        stage = stage_of_core[core]
        for edge in range(int(graph.pred_ptr[task]), int(graph.pred_ptr[task + 1])):
            source = int(graph.pred_src[edge])
            if stage_of_core[core_of[source]] == stage:
                path[task] = max(path[task], path[source] + time[task])
    return max(max(load.values()), max(path))


def validate_certificate(certificate: Certificate, schedule: Schedule) -> list[str]:
    """Recompute what can be recomputed without a solver; one sentence a fault.

    Bounds are checked from below (they are at least the elementary ones) and from
    above (no schedule beats them).
    """
    wrong = []
    ours = static_objective(schedule) if schedule.placement.stages else None
    if certificate.ours_static != ours:
        wrong.append(f"static objective is {ours}, not {certificate.ours_static}")
    pairs: Iterable[tuple[str, int | None, int | None, float | None]] = (
        ("static", ours, certificate.bound_static, certificate.gap_static),
        (
            "interval",
            certificate.interval_ns,
            certificate.bound_interval_ns,
            certificate.gap_interval,
        ),
    )
    for name, value, bound, gap in pairs:
        if gap != relative_gap(value, bound):
            wrong.append(f"the {name} gap is {relative_gap(value, bound)}, not {gap}")
    static_bound = certificate.bound_static
    if ours is not None and static_bound is not None and static_bound > ours:
        wrong.append("the schedule beats the static bound")
    work = packing_instance(schedule.problem).load_ns
    elementary = max(
        ceil_div(int(work.sum()), schedule.problem.resources.cores),
        int(work.max(initial=0)),
    )
    busiest = max(schedule.summary.core_work_ns, default=0)
    stated = certificate.bound_interval_ns
    memory = unavoidable_memory_ns(schedule.problem)
    if stated is not None and not elementary <= stated <= max(busiest, memory):
        wrong.append(
            f"interval bound {stated} is outside {elementary} to {max(busiest, memory)}"
        )
    return wrong


def _sentence(what: str, ours: int, bound: int, gap: float | None) -> str:
    if gap is None:
        return f"{what} {ours:,} ns, bound {bound:,} ns"
    if gap == 0:
        return f"{what} {ours:,} ns is optimal (bound {bound:,} ns)"
    return (
        f"{what} {ours:,} ns, at most {100 * gap:.2f} % above the optimum "
        f"(bound {bound:,} ns)"
    )
