"""Pareto fronts of sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.sweeps.records import OBJECTIVES, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.sweeps.records import PointRecord

DEFAULT_OBJECTIVES = ("interval_ns", "cores")
LATENCY_OBJECTIVES = ("latency_ns", "cores")


def pareto_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other point dominates, in the given order.

    A point dominates another when it is nowhere larger and somewhere smaller; equal
    points are on the front together.

    >>> pareto_front([(4, 1), (2, 2), (3, 2), (1, 5), (2, 2)])
    [0, 1, 3, 4]
    """
    # Ordered by value, a point can only be dominated by one that comes before it;
    # and when any dominates it, so does one of the front (dominance is transitive).
    order = sorted(range(len(points)), key=lambda i: (tuple(points[i]), i))
    front: list[int] = []
    for index in order:
        point = points[index]
        if not any(_dominates(points[other], point) for other in front):
            front.append(index)
    return sorted(front)


def default_objectives(records: Sequence[PointRecord]) -> tuple[str, ...]:
    """Interval against cores; completion where nothing has an interval."""
    if any(record.figures.interval_ns is not None for record in records):
        return DEFAULT_OBJECTIVES
    return LATENCY_OBJECTIVES


def objectives_of(text: str, records: Sequence[PointRecord]) -> tuple[str, ...]:
    """Objectives from ``interval_ns,cores``; ``auto`` chooses.

    Raises:
        MalformedInput: a name that is neither a figure nor an override.
    """
    if text.strip() == "auto":
        return default_objectives(records)
    names = tuple(name.strip() for name in text.split(","))
    overrides = {key for record in records for key in record.overrides}
    for name in names:
        if name not in OBJECTIVES and name not in overrides:
            known = [*OBJECTIVES, *sorted(overrides)]
            raise MalformedInput(
                "no such objective",
                where="--pareto",
                value=name,
                expected=f"auto, or some of {', '.join(known)} with commas between",
            )
    return names


def front_of(
    records: Sequence[PointRecord], objectives: Sequence[str]
) -> list[PointRecord]:
    """The records that are on the front of their workload, in their order.

    Only points that have a schedule and all the figures take part; points of
    different workloads are not compared.
    """
    groups: dict[str, list[tuple[PointRecord, list[float]]]] = {}
    for record in records:
        if record.figures.outcome is not Outcome.ANSWERED:
            continue
        values = [record.figure(name) for name in objectives]
        found = [value for value in values if value is not None]
        if record.figures.stages is not None and len(found) == len(values):
            groups.setdefault(record.workload, []).append((record, found))
    chosen = [
        group[index][0]
        for group in groups.values()
        for index in pareto_front([values for _, values in group])
    ]
    return sorted(chosen, key=lambda record: record.position)


def _dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)
