"""Progress of a run on a terminal: phases, and counts of the real budgets."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from raptor_cp.scheduler import SchedulerObserver

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from raptor_cp.pipeline.beam import Candidate
    from raptor_cp.pipeline.search_budget import SearchBudget


class SearchProgress(SchedulerObserver):
    """Bars on standard error; nothing at all when it is no terminal."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._progress: Progress | None = None
        self._best: int | None = None

    def __enter__(self) -> SearchProgress:
        if self._screen.is_terminal and not self._screen.quiet:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._screen,
                transient=True,
            )
            self._progress.start()
            self._evaluations = self._progress.add_task("preparing", total=None)
            self._packings = self._progress.add_task("packings", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def phase(self, name: str) -> None:
        if self._progress is not None:
            self._progress.update(self._evaluations, description=name)

    def packed(self, budget: SearchBudget) -> None:
        self._show(budget)

    def evaluated(self, candidate: Candidate, budget: SearchBudget) -> None:
        larger = None if candidate.cost is None else candidate.cost.larger_ns
        if larger is not None and (self._best is None or larger < self._best):
            self._best = larger
        self._show(budget)

    def _show(self, budget: SearchBudget) -> None:
        if self._progress is None:
            return
        best = "" if self._best is None else f", best {self._best / 1e6:.3f} ms"
        for task, counter, text in (
            (self._evaluations, budget.queue_evaluations, f"evaluations{best}"),
            (self._packings, budget.packings, "packings"),
        ):
            self._progress.update(
                task, description=text, completed=counter.used, total=counter.limit
            )
