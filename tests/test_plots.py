"""Plots against image baselines (``--update-images`` records them anew)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images

import raptor_cp as rc
from raptor_cp.comparison import ComparisonRow
from raptor_cp.periodic.timeline import Timeline
from raptor_cp.reports import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from raptor_cp.result import ScheduleResult

HERE = Path(__file__).resolve().parent
BASELINES = HERE / "plot_baselines"
TINY = HERE.parent / "scenarios" / "tiny-residual.yaml"
#: Root mean square of grey levels: fonts are matplotlib's own, rasterizers differ.
TOLERANCE = 6.0


@pytest.fixture(scope="module")
def tiny() -> ScheduleResult:
    return rc.check(TINY)


def _compare(ax: Axes, name: str, request: pytest.FixtureRequest, tmp: Path) -> None:
    baseline = BASELINES / f"{name}.png"
    drawn = tmp / f"{name}.png"
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    with mpl.rc_context({"svg.hashsalt": "raptor-cp"}):
        figure.savefig(drawn, dpi=60, metadata={"Software": None})
    if request.config.getoption("--update-images"):
        BASELINES.mkdir(exist_ok=True)
        baseline.write_bytes(drawn.read_bytes())
    difference = compare_images(str(baseline), str(drawn), TOLERANCE)
    assert difference is None, difference


def _rows() -> list[ComparisonRow]:
    return [
        ComparisonRow(name, method, "FEASIBLE", value, None, 100, 0.0, 1, 1, 1.0)
        for name, values in (("first", (190, 170, 165)), ("second", (140, 150, 140)))
        for method, value in zip(("heuristic", "cp-sat", "both"), values, strict=True)
    ]


@pytest.mark.parametrize("what", list(plots.CoreFigure))
def test_placement(
    what: plots.CoreFigure,
    tiny: ScheduleResult,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    assert tiny.schedule is not None
    ax = plots.placement(tiny.schedule, what)
    _compare(ax, f"placement-{what}", request, tmp_path)


def test_timeline(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    result = rc.schedule(TINY, overrides={"pipeline.cross_stage": "direct"})
    assert isinstance(result.timeline, Timeline)
    ax = plots.timeline(result.timeline)
    assert set(ax.get_legend_handles_labels()[1]) >= {"run", "send", "receive"}
    _compare(ax, "timeline", request, tmp_path)


def test_cost_curves(
    tiny: ScheduleResult, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert tiny.schedule is not None
    ax = plots.cost_curves(tiny.schedule)
    stages = tiny.schedule.placement.stages
    assert len(ax.get_legend_handles_labels()[1]) == len(stages)
    _compare(ax, "cost-curves", request, tmp_path)


def test_solver_vs_heuristic(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    ax = plots.solver_vs_heuristic(_rows())
    assert [bar.get_height() for bar in ax.patches] == [1.9, 1.4, 1.7, 1.5, 1.65, 1.4]  # type: ignore[attr-defined]
    _compare(ax, "solver-vs-heuristic", request, tmp_path)


def test_pareto_front(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    points = [(10.0, 5.0), (20.0, 4.0), (20.0, 6.0), (30.0, 3.9), (40.0, 2.0)]
    ax = plots.pareto_front(points, [points[0], points[1], points[3], points[4]])
    _compare(ax, "pareto-front", request, tmp_path)


def test_every_plot_draws_into_given_axes(tiny: ScheduleResult) -> None:
    assert tiny.schedule is not None
    axes = Figure().subplots(2, 2)
    assert plots.placement(tiny.schedule, ax=axes[0, 0]) is axes[0, 0]
    assert plots.cost_curves(tiny.schedule, axes[0, 1]) is axes[0, 1]
    assert plots.solver_vs_heuristic(_rows(), axes[1, 0]) is axes[1, 0]
    assert plots.pareto_front([(1, 1)], [(1, 1)], axes[1, 1]) is axes[1, 1]


def test_a_missing_answer_has_no_bar() -> None:
    rows = [
        ComparisonRow("a", "heuristic", "UNKNOWN", None, None, None, None, 0, 0, 1.0),
        ComparisonRow("a", "cp-sat", "FEASIBLE", 20, None, 10, 1.0, 0, 0, 1.0),
    ]
    assert len(plots.solver_vs_heuristic(rows).patches) == 1


def test_nothing_to_draw_is_said(tiny: ScheduleResult) -> None:
    assert tiny.schedule is not None
    with pytest.raises(rc.MalformedInput, match="one of load, slots, stage"):
        plots.placement(tiny.schedule, "colour")
    with pytest.raises(rc.MalformedInput, match="rows"):
        plots.solver_vs_heuristic([])
    with pytest.raises(rc.MalformedInput, match="points"):
        plots.pareto_front([], [])
    latency = rc.check(TINY, overrides={"mode": "latency"})
    assert latency.schedule is not None
    with pytest.raises(rc.MalformedInput, match="stages"):
        plots.cost_curves(latency.schedule)
