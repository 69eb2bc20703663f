"""Pareto fronts against the definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.sweeps import Outcome, PointFigures, PointRecord, front_of, pareto_front
from raptor_cp.sweeps.pareto import default_objectives, objectives_of

POINTS = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.tuples(*[st.integers(0, 5)] * size), max_size=25)
)


def by_definition(points: list[tuple[int, ...]]) -> list[int]:
    def dominated(point: tuple[int, ...]) -> bool:
        return any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )

    return [index for index, point in enumerate(points) if not dominated(point)]


@given(POINTS)
def test_front_is_what_the_definition_says(points: list[tuple[int, ...]]) -> None:
    assert pareto_front(points) == by_definition(points)


def record(position: int, workload: str = "w", **figures: int | None) -> PointRecord:
    found = PointFigures(Outcome.ANSWERED, "FEASIBLE", stages=1, **figures)  # type: ignore[arg-type]
    overrides = {"target.cores": position, "mode": "pipeline"}
    return PointRecord(str(position), position, "s", workload, overrides, found)


def test_workloads_are_not_compared_and_unknown_figures_stay_out() -> None:
    records = [
        record(0, interval_ns=10, cores_used=4),
        record(1, interval_ns=20, cores_used=4),
        record(2, "v", interval_ns=20, cores_used=4),
        record(3, interval_ns=None, cores_used=1),
        PointRecord("4", 4, "s", "w", {}, PointFigures.failure("no", 4)),
        PointRecord("5", 5, "s", "w", {}, PointFigures(Outcome.ANSWERED, "INFEASIBLE")),
    ]
    assert [r.position for r in front_of(records, ("interval_ns", "cores"))] == [0, 2]
    front = front_of(records, ("interval_ns", "target.cores"))
    assert [r.position for r in front] == [0, 2]


def test_objectives() -> None:
    pipeline = [record(0, interval_ns=1)]
    assert default_objectives(pipeline) == ("interval_ns", "cores")
    assert default_objectives([record(0, latency_ns=1)]) == ("latency_ns", "cores")
    assert objectives_of("auto", pipeline) == ("interval_ns", "cores")
    assert objectives_of("gap, target.cores", pipeline) == ("gap", "target.cores")
    with pytest.raises(MalformedInput, match="no such objective") as caught:
        objectives_of("interval", pipeline)
    assert "target.cores" in str(caught.value)
    # an override that is no number takes nobody to the front
    assert front_of(pipeline, objectives_of("mode", pipeline)) == []
