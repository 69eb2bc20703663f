"""Plots of schedules and comparisons with matplotlib (extra ``plot``).

Every function draws into ``ax`` and returns it; without one it makes a figure of its
own (``ax.figure.savefig(...)``).  Nothing here touches pyplot's global state.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.periodic.timeline import SliceKind, TrackKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from matplotlib.axes import Axes

    from raptor_cp.comparison import ComparisonRow
    from raptor_cp.periodic.timeline import Timeline
    from raptor_cp.schedules import Schedule

#: Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#F0E442",
    "#000000",
)


_KIND_COLOURS = {
    SliceKind.RUN: COLOURS[0],
    SliceKind.SEND: COLOURS[1],
    SliceKind.RECEIVE: COLOURS[2],
    SliceKind.LOAD: COLOURS[4],
    SliceKind.STORE: COLOURS[5],
    SliceKind.SIGNAL: COLOURS[3],
}


class CoreFigure(StrEnum):
    """What :func:`placement` colours cores by."""

    LOAD = "load"
    SLOTS = "slots"
    STAGE = "stage"


def placement(
    schedule: Schedule,
    what: CoreFigure | str = CoreFigure.LOAD,
    ax: Axes | None = None,
) -> Axes:
    """Heat map of the cores where they lie on the chip.

    Args:
        schedule: what is drawn.
        what: ``load`` (ms of work an inference), ``slots`` (weight slots in use, of
            the capacity) or ``stage`` (number of the owning stage).
        ax: where to draw.

    Raises:
        MalformedInput: ``what`` is none of these.
    """
    figure = _core_figure(what)
    resources = schedule.problem.resources
    positions = _positions(schedule)
    values, label = _core_values(schedule, figure)
    height, width = (positions.max(axis=0) + 1).tolist()
    grid = np.full((height, width), np.nan)
    grid[positions[:, 0], positions[:, 1]] = values
    ax = _axes(ax, (max(4.0, 0.42 * width + 2), max(2.2, 0.42 * height + 1.2)))
    top = float(resources.slots_per_core) if figure is CoreFigure.SLOTS else None
    image = ax.imshow(np.ma.masked_invalid(grid), cmap="viridis", vmin=0, vmax=top)
    ax.figure.colorbar(image, ax=ax, label=label)
    ax.set_xticks(range(width))
    ax.set_yticks(range(height))
    ax.tick_params(labelsize="x-small", length=0)
    ax.set_title(f"{schedule.problem.graph.name}: {label} of each core")
    return ax


def timeline(shown: Timeline, ax: Axes | None = None) -> Axes:
    """What every core does in the steady state, a row for each core.

    Args:
        shown: ``result.timeline``; waiting stays blank.
        ax: where to draw.

    Raises:
        MalformedInput: nothing is in it.
    """
    rows = [n for n, t in enumerate(shown.tracks) if t.kind is TrackKind.CORE]
    if not rows:
        raise MalformedInput("no cores to draw", where="timeline")
    ax = _axes(ax, (9, min(14.0, max(2.5, 0.11 * len(rows) + 1.4))))
    for number, kind in enumerate(SliceKind):
        if kind is SliceKind.WAIT:
            continue
        colour = _KIND_COLOURS.get(kind)
        if colour is None:
            continue
        chosen = (shown.kind == number) & (shown.track < len(rows))
        if not chosen.any():
            continue
        for row in np.unique(shown.track[chosen]).tolist():
            mine = chosen & (shown.track == row)
            bars = np.stack([shown.start_ns[mine], shown.duration_ns[mine]], axis=1)
            ax.broken_barh(
                [(float(a), float(b)) for a, b in bars / 1e6],
                (row - 0.45, 0.9),
                facecolors=colour,
                label=kind.value if row == shown.track[chosen].min() else None,
            )
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, shown.window_ns / 1e6)
    ax.set_xlabel("time (ms)")
    ax.set_ylabel("core")
    step = max(1, len(rows) // 24)
    ax.set_yticks(
        range(0, len(rows), step),
        [str(shown.tracks[row].core) for row in rows[::step]],
        fontsize="x-small",
    )
    ax.set_title(
        f"{shown.generations} generation(s), {shown.interval_ns / 1e6:.3f} ms each"
    )
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def cost_curves(schedule: Schedule, ax: Axes | None = None) -> Axes:
    """What each stage would cost on any number of cores; its own number is marked.

    The cost is max(largest core load, dependency span) of the constructive packing:
    the curve that the partition is chosen by.

    Raises:
        MalformedInput: a schedule without stages.
    """
    from raptor_cp.pipeline.budgets import StagePacking
    from raptor_cp.pipeline.ordered_packing import UNAVAILABLE

    if not schedule.placement.stages:
        raise MalformedInput(
            "no stages to draw curves of", where="schedule", expected="pipeline mode"
        )
    packing = StagePacking.of(schedule.problem)
    ax = _axes(ax, (7, 4.5))
    for stage in schedule.placement.stages:
        curve = packing.curve(stage.groups[0], stage.groups[-1] + 1)
        cores = np.flatnonzero(curve < UNAVAILABLE)
        colour = COLOURS[stage.index % len(COLOURS)]
        style = ("-", "--", ":", "-.")[stage.index // len(COLOURS) % 4]
        ax.plot(
            cores,
            curve[cores] / 1e6,
            style,
            color=colour,
            drawstyle="steps-post",
            label=f"stage {stage.index}",
        )
        own = len(stage.cores)
        if own < len(curve) and curve[own] < UNAVAILABLE:
            ax.plot([own], [curve[own] / 1e6], "o", color=colour)
    ax.set_xlabel("cores")
    ax.set_ylabel("stage cost (ms)")
    ax.set_yscale("log")
    ax.set_title(f"{schedule.problem.graph.name}: cost curves of the stages")
    ax.legend(fontsize="small", ncols=2)
    return ax


def solver_vs_heuristic(rows: Sequence[ComparisonRow], ax: Axes | None = None) -> Axes:
    """Interval (or completion) of every method over its proved lower bound.

    Args:
        rows: of :func:`raptor_cp.compare`; a method without an answer has no bar.
        ax: where to draw.

    Raises:
        MalformedInput: nothing to draw.
    """
    if not rows:
        raise MalformedInput("no comparison rows to draw", where="rows")
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    found = {(row.scenario, row.method): row for row in rows}
    ax = _axes(ax, (max(6.0, 0.9 * len(scenarios) + 2.5), 4.2))
    width = 0.8 / len(methods)
    bounded = True
    for number, method in enumerate(methods):
        for place, scenario in enumerate(scenarios):
            row = found.get((scenario, method))
            if row is None:
                continue
            value = row.interval_ns if row.interval_ns is not None else row.latency_ns
            if value is None:
                continue
            bounded = bounded and bool(row.bound_ns)
            ax.bar(
                place + (number - (len(methods) - 1) / 2) * width,
                value / row.bound_ns if row.bound_ns else 1.0,
                width,
                color=COLOURS[number % len(COLOURS)],
                label=method,
            )
    ax.axhline(1.0, color="#666666", linewidth=1, linestyle=":")
    ax.set_xticks(range(len(scenarios)), scenarios, rotation=30, ha="right")
    ax.set_ylabel("times the proved bound" if bounded else "times the bound, if any")
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    ax.legend(once.values(), once.keys(), fontsize="small")
    ax.set_title("solver and heuristic against the bound")
    return ax


def pareto_front(
    points: Sequence[tuple[float, float]],
    front: Sequence[tuple[float, float]],
    ax: Axes | None = None,
    *,
    labels: tuple[str, str] = ("cores", "interval (ms)"),
) -> Axes:
    """All points of a sweep, and those that no other point dominates as a line.

    Args:
        points: (x, y) of every point that has an answer.
        front: the points that are not dominated.
        ax: where to draw.
        labels: of the two axes.

    Raises:
        MalformedInput: no point has an answer.
    """
    if not points:
        raise MalformedInput("no points to draw", where="points")
    ax = _axes(ax, (6.5, 4.5))
    across, up = [x for x, _ in points], [y for _, y in points]
    ax.scatter(across, up, s=18, color="#999999", label="points")
    line = sorted(front)
    ax.plot(
        [x for x, _ in line],
        [y for _, y in line],
        "o-",
        color=COLOURS[0],
        drawstyle="steps-post",
        label="Pareto front",
    )
    ax.set_xlabel(labels[0])
    ax.set_ylabel(labels[1])
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small")
    return ax


def _core_figure(what: CoreFigure | str) -> CoreFigure:
    try:
        return CoreFigure(what)
    except ValueError:
        raise MalformedInput(
            "unknown figure of a core",
            where="what",
            value=what,
            expected="one of " + ", ".join(CoreFigure),
        ) from None


def _core_values(
    schedule: Schedule, figure: CoreFigure
) -> tuple[npt.NDArray[np.float64], str]:
    problem, order = schedule.problem, schedule.placement.order
    idle = np.array([not tasks for tasks in order])
    if figure is CoreFigure.LOAD:
        values = np.asarray(schedule.summary.core_work_ns, dtype=np.float64) / 1e6
        label = "work (ms)"
    elif figure is CoreFigure.SLOTS:
        graph = problem.graph
        values = np.zeros(len(order))
        for core, tasks in enumerate(order):
            held = {int(w) for task in tasks for w in graph.task_weights(task)}
            values[core] = sum(int(graph.weight_slots[w]) for w in held)
        label = "weight slots in use"
    else:
        stage_of = schedule.placement.stage_of_core(len(order))
        values, label = stage_of.astype(np.float64), "stage"
        idle |= values < 0
    values[idle] = np.nan
    return values, label


def _positions(schedule: Schedule) -> npt.NDArray[np.int64]:
    resources = schedule.problem.resources
    if resources.positions is not None:
        return np.asarray(resources.positions, dtype=np.int64)
    # No coordinates: rows of the nearest square.
    width = int(np.ceil(np.sqrt(resources.cores)))
    cores = np.arange(resources.cores, dtype=np.int64)
    return np.stack([cores // width, cores % width], axis=1)


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MalformedInput(
            "plots need matplotlib", hint="pip install raptor-cp[plot]"
        ) from None
    return Figure(figsize=size, layout="constrained").subplots()
