"""Geometry of the drawings in the HTML report: heat maps, timelines, searches, bars.

Only numbers and texts; the template writes the SVG, and the style sheet its colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.periodic.timeline import TrackKind
from raptor_cp.reports.accounting import PARTS, Part, slice_parts
from raptor_cp.reports.html_text import TimeUnit, coordinate, duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.periodic.timeline import Timeline

#: Steps of the heat map's scale; the style sheet has a colour for each.
LEVELS = 10
#: Width of wide drawings in their own units.
WIDTH = 1000.0
#: Rows of a timeline at most, and bars that stand alone in it.
MAX_ROWS, MAX_BARS = 512, 40_000

#: Classes of what is drawn the same way.
_GROUPS = {
    Part.COMPUTING: "run",
    Part.RECEIVING: "move",
    Part.SENDING: "move",
    Part.LOADING: "memory",
    Part.STORING: "memory",
    Part.SIGNALLING: "signal",
    Part.WAITING_MEMORY: "wait",
    Part.WAITING_CORE: "wait",
    Part.WAITING_SIGNAL: "wait",
    Part.OUTSIDE: "wait",
}


def part_class(part: Part) -> str:
    """Class of the style sheet for a part of a core's time."""
    return _GROUPS[part]


@dataclass(frozen=True, slots=True)
class Cell:
    """One core in a heat map: place, step of the scale (-1 idle), texts."""

    x: int
    y: int
    level: int
    mark: str
    title: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cores where they lie on the chip; a cell is 10 units wide.

    Attributes:
        title: what is shown.
        description: the same in words, for who cannot see it.
        width, height: in units.
        cells: one for each core.
        low, high: texts at the ends of the scale.
    """

    title: str
    description: str
    width: int
    height: int
    cells: tuple[Cell, ...]
    low: str
    high: str


CELL = 10


def heat_map(
    title: str,
    description: str,
    places: Sequence[tuple[int, int]],
    shares: Sequence[float | None],
    marks: Sequence[str],
    titles: Sequence[str],
    ends: tuple[str, str],
) -> HeatMap:
    """Lay out a heat map.

    Args:
        title: what is shown.
        description: the same in words.
        places: (row, column) of each core.
        shares: 0 to 1 of the scale; None for idle cores.
        marks: short text in each cell.
        titles: long text of each cell.
        ends: texts at the ends of the scale.
    """
    cells = tuple(
        Cell(
            column * CELL,
            row * CELL,
            -1 if share is None else min(LEVELS - 1, int(share * LEVELS)),
            mark,
            text,
        )
        for (row, column), share, mark, text in zip(
            places, shares, marks, titles, strict=True
        )
    )
    return HeatMap(
        title,
        description,
        CELL * (1 + max(column for _, column in places)),
        CELL * (1 + max(row for row, _ in places)),
        cells,
        *ends,
    )


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a timeline: its middle, its name where it has room, its title."""

    y: str
    top: str
    name: str
    title: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Bars:
    """All bars of one class as one path of thick lines."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class TimelineDrawing:
    """Rows of cores over time.

    Attributes:
        width, height: in units.
        left: where time begins.
        pitch, thickness: of rows and of their bars.
        rows, bars, ticks: what is drawn.
        separators: places of lines between stages.
        left_out: cores that are not shown.
    """

    width: str
    height: str
    left: str
    pitch: str
    thickness: str
    rows: tuple[Row, ...]
    bars: tuple[Bars, ...]
    ticks: tuple[Tick, ...]
    separators: tuple[str, ...]
    unit: str
    left_out: int


_LEFT, _TOP, _RIGHT = 96.0, 26.0, 8.0


def timeline_drawing(
    timeline: Timeline,
    stage_of: Mapping[int, int],
    titles: Mapping[int, str],
    chosen: int | None,
) -> TimelineDrawing:
    """Draw the cores of a timeline, stage by stage, and the shared memory below.

    Args:
        timeline: what is drawn.
        stage_of: stage of each core; empty in latency mode.
        titles: what a row says when it is pointed at, by core.
        chosen: the core that is marked.
    """
    cores = [n for n, t in enumerate(timeline.tracks) if t.kind is TrackKind.CORE]
    core_of = [track.core for track in timeline.tracks]
    cores.sort(key=lambda n: (stage_of.get(core_of[n], -1), core_of[n]))
    shown = cores[:MAX_ROWS]
    memory = [n for n, t in enumerate(timeline.tracks) if t.kind is TrackKind.MEMORY]
    pitch = 18.0 if len(shown) <= 24 else 11.0 if len(shown) <= 64 else 7.0
    rows: list[Row] = []
    separators, y, last = [], _TOP, -2
    middle: dict[int, float] = {}
    for number in [*shown, *memory]:
        core = core_of[number]
        stage = stage_of.get(core, -1)
        fresh = core >= 0 and stage != last and stage >= 0
        is_memory = core < 0
        if (fresh or is_memory) and rows:
            y += 5
            separators.append(coordinate(y - 2.5))
        middle[number] = y + pitch / 2
        name = ""
        if is_memory:
            name = "memory"
        elif fresh:
            name = f"stage {stage}"
        elif not stage_of and (pitch > 7 or len(rows) % 8 == 0):
            name = f"core {core}"
        title = titles.get(core, timeline.tracks[number].name)
        rows.append(
            Row(
                coordinate(y + pitch / 2), coordinate(y), name, title,
                chosen is not None and core == chosen,
            )
        )  # fmt: skip
        last = stage
        y += pitch
    scale = (WIDTH - _LEFT - _RIGHT) / timeline.window_ns
    return TimelineDrawing(
        coordinate(WIDTH),
        coordinate(y + 6),
        coordinate(_LEFT),
        coordinate(pitch),
        coordinate(pitch - (1.5 if pitch < 10 else 3)),
        tuple(rows),
        _bars(timeline, middle, scale),
        *_ticks(timeline.window_ns, scale, _LEFT),
        tuple(separators),
        TimeUnit.fitting([timeline.window_ns]).name,
        len(cores) - len(shown),
    )


def _bars(
    timeline: Timeline, middle: Mapping[int, float], scale: float
) -> tuple[Bars, ...]:
    """Bars of every class; what is drawn closer than a hair is drawn together."""
    groups = [*dict.fromkeys(_GROUPS.values()), "served"]
    class_of_part = np.array([groups.index(_GROUPS[part]) for part in PARTS])
    group = class_of_part[slice_parts(timeline)]
    is_memory = np.array([t.kind is TrackKind.MEMORY for t in timeline.tracks])
    group = np.where(is_memory[timeline.track], groups.index("served"), group)
    hair = 0.1 if timeline.slice_count <= MAX_BARS else 1.0
    start = timeline.start_ns * scale
    end = start + timeline.duration_ns * scale
    bars = []
    for number, kind in enumerate(groups):
        if kind == "wait":  # the empty row is waiting
            continue
        parts: list[str] = []
        for track, y in middle.items():
            mine = np.flatnonzero((group == number) & (timeline.track == track))
            spans: list[list[float]] = []
            for begin, stop in zip(
                start[mine].tolist(), end[mine].tolist(), strict=True
            ):
                if spans and begin - spans[-1][1] < hair:
                    spans[-1][1] = stop
                else:
                    spans.append([begin, stop])
            parts.extend(
                f"M{coordinate(_LEFT + begin)} {coordinate(y)}"
                f"h{coordinate(max(stop - begin, 0.2))}"
                for begin, stop in spans
            )
        if parts:
            bars.append(Bars(kind, "".join(parts)))
    return tuple(bars)


def _ticks(window_ns: int, scale: float, left: float) -> tuple[tuple[Tick, ...]]:
    """Round times, four to nine of them."""
    unit = TimeUnit.fitting([window_ns])
    raw = window_ns / 6
    power = 10 ** math.floor(math.log10(max(raw, 1)))
    step = max(1, round(next(m * power for m in (1, 2, 5, 10) if m * power >= raw)))
    return (
        tuple(
            Tick(coordinate(left + ns * scale), f"{ns / unit.ns:g}")
            for ns in range(0, window_ns + 1, step)
        ),
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a bar: place, width, class, title."""

    x: str
    width: str
    kind: str
    title: str


def core_bar(timeline: Timeline, core: int) -> tuple[Piece, ...]:
    """The slices of one core, each with its title; hairs are drawn together."""
    track = next(
        n
        for n, t in enumerate(timeline.tracks)
        if t.kind is TrackKind.CORE and t.core == core
    )
    parts = slice_parts(timeline)
    scale = WIDTH / timeline.window_ns
    pieces: list[Piece] = []
    right = -1.0
    for row in np.flatnonzero(timeline.track == track).tolist():
        begin = timeline.start_ns[row] * scale
        width = timeline.duration_ns[row] * scale
        part = PARTS[int(parts[row])]
        if part_class(part) == "wait" or (width < 0.5 and begin - right < 0.5):
            continue
        right = begin + width
        label = timeline.labels[int(timeline.label[row])]
        pieces.append(
            Piece(
                coordinate(begin),
                coordinate(max(width, 0.6)),
                part_class(part),
                f"{part}: {label}, {duration(int(timeline.duration_ns[row]))}",
            )
        )
    return tuple(pieces)


def stacked_bar(parts: Mapping[Part, int], total: int) -> tuple[Piece, ...]:
    """Parts of a time as one bar of ``WIDTH``."""
    pieces, x = [], 0.0
    for part, ns in parts.items():
        width = WIDTH * ns / total
        pieces.append(
            Piece(
                coordinate(x),
                coordinate(width),
                part_class(part),
                f"{part}: {duration(ns)}",
            )
        )
        x += width
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate in the drawing of a search."""

    x: str
    y: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class SearchDrawing:
    """Intervals of candidates in the order of their evaluation.

    Attributes:
        width, height: in units.
        points: candidates with an interval.
        links: lines from parents.
        best: the line of the best so far.
        ticks: of the interval.
    """

    width: str
    height: str
    points: tuple[Point, ...]
    links: tuple[tuple[str, str, str, str], ...]
    best: str
    ticks: tuple[Tick, ...]
    unit: str


def search_drawing(
    intervals: Sequence[float | None],
    parents: Sequence[int | None],
    kinds: Sequence[str],
    titles: Sequence[str],
) -> SearchDrawing | None:
    """Lay out a search; None without two candidates that have an interval.

    Args:
        intervals: ns, by evaluation index.
        parents: evaluation index of each one's parent.
        kinds: class of each point.
        titles: what it says when it is pointed at.
    """
    known = [(n, v) for n, v in enumerate(intervals) if v is not None]
    if len(known) < 2:
        return None
    width, height, left, top, bottom = 640.0, 220.0, 64.0, 14.0, 22.0
    low, high = min(v for _, v in known), max(v for _, v in known)
    spread = (high - low) or high or 1.0
    low, high = max(0.0, low - 0.08 * spread), high + 0.08 * spread
    across = (width - left - 14) / max(1, len(intervals) - 1)

    def at(number: int, value: float) -> tuple[float, float]:
        share = (value - low) / (high - low)
        return left + 4 + number * across, height - bottom - share * (
            height - top - bottom
        )

    points, links, least = [], [], math.inf
    best: list[str] = []
    for number, value in known:
        x, y = at(number, value)
        points.append(
            Point(coordinate(x), coordinate(y), kinds[number], titles[number])
        )
        parent = parents[number]
        if parent is not None and 0 <= parent < len(intervals):
            above = intervals[parent]
            if above is not None:
                px, py = at(parent, above)
                links.append(
                    (coordinate(px), coordinate(py), coordinate(x), coordinate(y))
                )
        if value < least:
            if best:
                best.append(f"H{coordinate(x)}V{coordinate(y)}")
            else:
                best.append(f"M{coordinate(x)} {coordinate(y)}")
            least = value
    best.append(f"H{coordinate(width - 10)}")
    unit = TimeUnit.fitting([high])
    ticks = tuple(
        Tick(coordinate(at(0, value)[1]), f"{value / unit.ns:.3g}")
        for value in (low + (high - low) * k / 4 for k in range(5))
    )
    return SearchDrawing(
        coordinate(width), coordinate(height), tuple(points), tuple(links),
        "".join(best), ticks, unit.name,
    )  # fmt: skip


def cycle_path(places: Mapping[int, tuple[int, int]], cores: Sequence[int]) -> str:
    """A closed line through the cells of cores, in order."""
    steps = [cores[0]]
    for core in cores[1:]:
        if core != steps[-1]:
            steps.append(core)
    points = [places[core] for core in steps if core in places]
    if len(points) < 2:
        return ""
    half = CELL / 2
    texts = [
        f"{coordinate(column * CELL + half)} {coordinate(row * CELL + half)}"
        for row, column in points
    ]
    return "M" + "L".join(texts) + "Z"
