"""Progress of a sweep on a terminal: how many points, how long, what went wrong.

Quiet when standard error is no terminal, or one that cannot move its cursor.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from raptor_cp.sweeps import Outcome, PointFigures, SweepObserver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from raptor_cp.sweeps.identity import ResolvedPoint


class SweepBar(SweepObserver):
    """Turns what is recorded into a bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", start=False, words="", visible=False)
        self._failed = self._died = 0

    def began(self, total: int, done: int, failed: int) -> None:
        self._failed = failed
        self._progress.start_task(self._task)
        self._progress.update(self._task, total=total, completed=done, visible=True)
        self._words()

    def recorded(self, point: ResolvedPoint, figures: PointFigures) -> None:
        self._failed += figures.outcome is Outcome.FAILED
        self._progress.advance(self._task)
        self._words()

    def worker_died(self, cause: str) -> None:
        self._died += 1
        self._words()

    def _words(self) -> None:
        words = f"{self._failed} failed" if self._failed else ""
        if self._died:
            words += f" workers died: {self._died}"
        self._progress.update(self._task, words=words.strip())


@contextlib.contextmanager
def sweep_progress(screen: Console) -> Iterator[SweepObserver]:
    """An observer that shows a bar while the body runs, where one can be shown."""
    if screen.quiet or not screen.is_interactive:
        yield SweepObserver()
        return
    progress = Progress(
        TextColumn("points"),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
        console=screen,
        transient=True,
    )
    with progress:
        yield SweepBar(progress)
