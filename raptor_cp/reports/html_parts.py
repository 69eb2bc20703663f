"""Building blocks of the HTML report: tables, figures, whole sections as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor_cp.reports.html_drawings import (
        HeatMap,
        Piece,
        SearchDrawing,
        TimelineDrawing,
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table; ``share`` (0 to 1) draws a bar behind the text."""

    text: str
    share: float | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """Head of a column; ``number`` lines it up on the right."""

    text: str
    number: bool = False
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of each row is its head.

    Attributes:
        caption: says what the table shows.
        heads: one for each column.
        rows: of as many cells.
        foot: a last row that sums up; empty for none.
        marked: positions of rows that stand out.
    """

    caption: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[Cell, ...] = ()
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the large numbers at the top."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Placement:
    """Heat maps of the chip, and the same as a table."""

    maps: tuple[HeatMap, ...]
    path: str
    table: Table
    note: str


@dataclass(frozen=True, slots=True)
class TimelineSection:
    """The cores over time, the marked core in large, its longest slices."""

    sentence: str
    drawing: TimelineDrawing
    description: str
    core: int
    bar: tuple[Piece, ...]
    longest: Table
    legend: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of one core goes."""

    sentence: str
    bar: tuple[Piece, ...]
    description: str
    table: Table


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The critical cycle, step by step."""

    sentence: str
    steps: Table | None


@dataclass(frozen=True, slots=True)
class SearchSection:
    """Candidates and budgets."""

    sentence: str
    drawing: SearchDrawing | None
    description: str
    candidates: Table
    budgets: Table
    attempts: Table | None


@dataclass(frozen=True, slots=True)
class Absent:
    """A section that does not apply, and why."""

    anchor: str
    title: str
    why: str


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """A row of a table."""
    return tuple(Cell(text) if isinstance(text, str) else text for text in texts)
