"""Progress of a run on a terminal: phases, and counts of the real budgets.

Everything fits in 80 columns and, where the terminal's encoding is not Unicode, in
ASCII.  Nothing at all is shown when standard error is no terminal, or a terminal
that cannot move its cursor.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from raptor_cp.scheduler import SchedulerObserver

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from raptor_cp.pipeline.beam import Candidate
    from raptor_cp.pipeline.search_budget import Counter, SearchBudget

_BAR_WIDTH = 20
_NAME_WIDTH = 20


class SearchProgress(SchedulerObserver):
    """A line for the phase, and bars for the budgets that are in use.

    Args:
        screen: where; standard error.
    """

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._best: int | None = None
        self._phase = self._completing = ""

    def __enter__(self) -> SearchProgress:
        if self._screen.is_interactive and not self._screen.quiet:
            from rich.progress import (
                BarColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=_BAR_WIDTH),
                TextColumn("{task.fields[count]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[best]}"),
                console=self._screen,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, title: str) -> SearchProgress:
        """The next of several runs begins; the bars start again."""
        self._best = None
        self._completing = ""
        if self._progress is not None:
            for bar in self._bars.values():
                self._progress.remove_task(bar)
            self._bars.clear()
            self._show("run", title)
        return self

    def phase(self, name: str) -> None:
        self._phase = name
        self._show("phase", name, best=self._completing)

    def completing(self, completion_ns: int) -> None:
        self._completing = f"best {completion_ns / 1e6:,.3f} ms"
        self._show("phase", self._phase, best=self._completing)

    def solved(self, solves: int, spent: float, limit: float) -> None:
        self._show(
            "solver", f"solver, {solves} solves", f"{spent:.2f}/{limit:g}", spent, limit
        )

    def packed(self, budget: SearchBudget) -> None:
        self._counters(budget)

    def evaluated(self, candidate: Candidate, budget: SearchBudget) -> None:
        larger = None if candidate.cost is None else candidate.cost.larger_ns
        if larger is not None and (self._best is None or larger < self._best):
            self._best = larger
        self._counters(budget)

    def _counters(self, budget: SearchBudget) -> None:
        best = "" if self._best is None else f"best {self._best / 1e6:,.3f} ms"
        self._counter("evaluations", budget.queue_evaluations, best)
        self._counter("packings", budget.packings)

    def _counter(self, name: str, counter: Counter, best: str = "") -> None:
        count = f"{counter.used}/{counter.limit}"
        self._show(name, name, count, counter.used, counter.limit, best)

    def _show(
        self,
        key: str,
        text: str,
        count: str = "",
        done: float = 0,
        total: float | None = None,
        best: str = "",
    ) -> None:
        if self._progress is None:
            return
        if key not in self._bars:
            self._bars[key] = self._progress.add_task("", total=None, count="", best="")
        self._progress.update(
            self._bars[key],
            description=_fitted(text),
            completed=done,
            total=total,
            count=f"{count:>9}",
            best=best,
        )


def _fitted(text: str) -> str:
    """A description of constant width, so that the bars stand below one another."""
    from rich.markup import escape

    from raptor_cp.cli.running import printable

    text = printable(text)
    if len(text) > _NAME_WIDTH:
        text = text[: _NAME_WIDTH - 2] + ".."
    return escape(text.ljust(_NAME_WIDTH))
