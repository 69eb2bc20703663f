"""History of regression runs: a file of JSON lines, and a page that shows it.

One line is one run (schema ``raptor-cp/history/1``)::

    time       UTC, ISO 8601
    version    of raptor-cp
    complete   false when the run was interrupted
    scenarios  [{scenario, passed, seconds, figures: {name: number or null}}]

A line is appended in one write under a lock, so that neither a kill nor a second
run at the same time can mix lines; a line torn by a full disk is taken back.  The
page stands alone: no script, no other file, no network.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SCHEMA = "raptor-cp/history/1"

#: Size of a sparkline in CSS pixels, and the room around its line.
_WIDTH, _HEIGHT, _MARGIN = 160, 28, 3


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One scenario in one run.

    Attributes:
        scenario: its name.
        passed: as expected and as recorded.
        seconds: wall time of the run.
        figures: numbers (ns, weight slots, instructions); None where there is none.
    """

    scenario: str
    passed: bool
    seconds: float
    figures: Mapping[str, int | float | None]


@dataclass(frozen=True, slots=True)
class HistoryRun:
    """One regression run.

    Attributes:
        time: UTC, ISO 8601; only shown.
        version: of raptor-cp.
        entries: the scenarios that were run, in order.
        complete: False when the run was interrupted.
    """

    time: str
    version: str
    entries: tuple[HistoryEntry, ...]
    complete: bool = True

    def to_line(self) -> str:
        """The run as one line of JSON, without its end."""
        document = {
            "schema": SCHEMA,
            "time": self.time,
            "version": self.version,
            "complete": self.complete,
            "scenarios": [
                {
                    "scenario": entry.scenario,
                    "passed": entry.passed,
                    "seconds": round(entry.seconds, 3),
                    "figures": dict(entry.figures),
                }
                for entry in self.entries
            ],
        }
        return json.dumps(document, allow_nan=False)

    @classmethod
    def from_line(cls, line: str) -> HistoryRun:
        """Read :meth:`to_line`.

        Raises:
            ValueError: it is something else.
        """
        document = json.loads(line)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"no line of schema {SCHEMA}")
        try:
            entries = tuple(
                HistoryEntry(
                    str(row["scenario"]),
                    bool(row["passed"]),
                    float(row["seconds"]),
                    {str(k): _number(v) for k, v in row["figures"].items()},
                )
                for row in document["scenarios"]
            )
            return cls(
                str(document["time"]),
                str(document["version"]),
                entries,
                bool(document["complete"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"incomplete line: {error!r}") from error


def append_run(path: Path, run: HistoryRun) -> None:
    """Add a run at the end of a history; the file and its folder are made.

    Raises:
        MalformedInput: the file is something else, or cannot be written.
    """
    content = (run.to_line() + "\n").encode("utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            with _locked(handle):
                size = os.fstat(handle).st_size
                if size:
                    _check_start(handle, path)
                    if os.pread(handle, 1, size - 1) != b"\n":
                        content = b"\n" + content  # after a line that was torn
                if os.write(handle, content) != len(content):
                    os.ftruncate(handle, size)
                    raise OSError(None, "the disk is full")
                os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise MalformedInput(
            f"cannot be written: {error.strerror or error}", where=str(path)
        ) from error


def read_history(path: Path) -> tuple[tuple[HistoryRun, ...], int]:
    """(runs in order, lines that could not be read).

    Raises:
        MalformedInput: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MalformedInput(
            f"cannot be read: {error.strerror or error}", where=str(path)
        ) from error
    runs, torn = [], 0
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            runs.append(HistoryRun.from_line(line))
        except ValueError:
            torn += 1
    return tuple(runs), torn


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure of one scenario over the runs, as the page shows it.

    Attributes:
        name: of the figure.
        values: one for each run; None where there is none.
        points: the line of the sparkline, in runs that belong together.
        last_x: place of the last value in the sparkline; None without values.
        last_y: the same, downwards.
    """

    name: str
    values: tuple[int | float | None, ...]
    points: tuple[str, ...]
    last_x: float | None
    last_y: float | None

    @classmethod
    def of(cls, name: str, values: Sequence[int | float | None]) -> Trend:
        """Lay out the sparkline."""
        known = [v for v in values if v is not None]
        if not known:
            return cls(name, tuple(values), (), None, None)
        low, high = min(known), max(known)
        step = (_WIDTH - 2 * _MARGIN) / max(1, len(values) - 1)
        places: list[tuple[float, float] | None] = []
        for number, value in enumerate(values):
            if value is None:
                places.append(None)
                continue
            share = (value - low) / (high - low) if high > low else 0.5
            y = _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)
            places.append((round(_MARGIN + number * step, 1), round(y, 1)))
        last = [place for place in places if place is not None][-1]
        lines: list[list[str]] = [[]]
        for place in places:
            if place is None:
                lines.append([])
            else:
                lines[-1].append(f"{place[0]:g},{place[1]:g}")
        joined = tuple(" ".join(line) for line in lines if line)
        return cls(name, tuple(values), joined, *last)

    @property
    def known(self) -> list[int | float]:
        """The values that there are."""
        return [v for v in self.values if v is not None]

    @property
    def change(self) -> float | None:
        """Share by which the last value differs from the one before it."""
        if len(self.known) < 2 or not self.known[-2]:
            return None
        return float(self.known[-1] / self.known[-2] - 1)

    @staticmethod
    def text(value: int | float) -> str:
        """Whole numbers with all digits, seconds with three places."""
        return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"

    @property
    def sentence(self) -> str:
        """What the sparkline shows, for who cannot see it."""
        known = self.known
        if not known:
            return f"{self.name}: no values"
        return (
            f"{self.name} over {len(self.values)} runs: first {self.text(known[0])}, "
            f"last {self.text(known[-1])}, least {self.text(min(known))}, most "
            f"{self.text(max(known))}"
        )


def history_html(runs: Sequence[HistoryRun], torn: int = 0) -> str:
    """The page: a section for each scenario, a row for each figure, newest run last.

    The same runs give the same bytes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("raptor_cp.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    sections = [_section(name, runs) for name in _names(runs)]
    return environment.get_template("history.html.j2").render(
        runs=runs,
        sections=sections,
        torn=torn,
        width=_WIDTH,
        height=_HEIGHT,
    )


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    passed: tuple[bool | None, ...]
    trends: tuple[Trend, ...]


def _section(name: str, runs: Sequence[HistoryRun]) -> _Section:
    found = [
        next((entry for entry in run.entries if entry.scenario == name), None)
        for run in runs
    ]
    names: dict[str, None] = {}
    for entry in found:
        if entry is not None:
            names.update(dict.fromkeys(entry.figures))
    trends = [
        Trend.of(
            figure,
            [None if entry is None else entry.figures.get(figure) for entry in found],
        )
        for figure in names
    ]
    seconds = [None if entry is None else entry.seconds for entry in found]
    return _Section(
        name,
        tuple(None if entry is None else entry.passed for entry in found),
        (*(t for t in trends if t.known), Trend.of("seconds", seconds)),
    )


def _names(runs: Sequence[HistoryRun]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(entry.scenario for entry in run.entries))
    return list(names)


def _number(value: object) -> int | float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value


def _check_start(handle: int, path: Path) -> None:
    """A wrong file name must not put lines into somebody's file."""
    if SCHEMA.encode() not in os.pread(handle, 200, 0):
        raise MalformedInput(
            "is no history of regression runs, so it is left alone",
            where=str(path),
            expected=f"JSON lines of schema {SCHEMA}",
        )


@contextlib.contextmanager
def _locked(handle: int) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # no such locks here; the single write has to do
        yield
        return
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)
