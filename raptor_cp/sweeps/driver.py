"""Runs what of a sweep is not done yet, and records it point by point."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput, Unresolved
from raptor_cp.interruption import Stop
from raptor_cp.sweeps.database import SweepDatabase, check_ours
from raptor_cp.sweeps.identity import resolve
from raptor_cp.sweeps.local_workers import default_workers, run_local
from raptor_cp.sweeps.locking import locked
from raptor_cp.sweeps.records import Outcome, PointFigures

if TYPE_CHECKING:
    from raptor_cp.sweeps.identity import ResolvedPoint
    from raptor_cp.sweeps.records import SweepReport
    from raptor_cp.sweeps.sweep_file import Sweep


class SweepObserver:
    """Progress hooks; the base class ignores everything."""

    def began(self, total: int, done: int, failed: int) -> None:
        """Distinct points, those that need no run, and those of them that failed."""

    def recorded(self, point: ResolvedPoint, figures: PointFigures) -> None:
        """A point is on the disk."""

    def worker_died(self, cause: str) -> None:
        """A worker ended by itself or was killed; it is replaced."""


def default_database(sweep: Sweep) -> Path:
    """``sweeps/<name>.sqlite`` in the working directory."""
    return Path("sweeps") / f"{sweep.name}.sqlite"


def run_sweep(
    sweep: Sweep,
    database: str | Path | None = None,
    *,
    workers: int | None = None,
    dask: str | None = None,
    retry_failed: bool = False,
    observer: SweepObserver | None = None,
    stop: Stop | None = None,
) -> SweepReport:
    """Run the points of a sweep that have no result.

    Each point is recorded in a transaction of its own when it is done, so the call may
    be killed at any time and made again.  Points of an earlier run count by what they
    are, not by where they stand: see :mod:`raptor_cp.sweeps.identity`.

    Args:
        sweep: from :func:`raptor_cp.sweeps.load_sweep`.
        database: the results file; :func:`default_database` when None.
        workers: local processes; all processors when None.
        dask: address of a Dask scheduler, instead of local processes.
        retry_failed: run points again that failed; an answer, or the lack of one
            (verdict UNKNOWN), would be the same.
        observer: progress hooks, called in this thread.
        stop: when it is requested, points that are being worked on are given up.

    Returns:
        The state of the sweep, also when it was interrupted or its cluster was lost.

    Raises:
        MalformedInput: a scenario file is missing, every point is malformed, another
            process writes the results file, or it cannot be written; the cluster
            cannot be reached.
        InternalError: local workers do not start.
    """
    if workers is not None and workers < 1:
        raise MalformedInput("no workers", where="workers", value=workers,
                             expected="at least 1")  # fmt: skip
    watch, stop = observer or SweepObserver(), stop or Stop()
    path = default_database(sweep) if database is None else Path(database)
    check_ours(path)
    points = resolve(sweep)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MalformedInput(
            f"cannot be made: {error.strerror}", where=str(path.parent)
        ) from None
    with locked(path), SweepDatabase(path, sweep.name) as results:
        results.enrol(points)
        return _Run(results, points, watch, retry_failed).run(workers, dask, stop)


def read_results(database: str | Path) -> SweepReport:
    """The state of a sweep from its results file, while it runs or after.

    Raises:
        MalformedInput: no such file, or not a results file.
    """
    with SweepDatabase(Path(database)) as results:
        return results.report()


class _Run:
    """One call of :func:`run_sweep` with its results file open."""

    def __init__(
        self,
        results: SweepDatabase,
        points: list[ResolvedPoint],
        watch: SweepObserver,
        retry_failed: bool,
    ) -> None:
        self._results, self._watch = results, watch
        self._done, self._ran = results.done(), 0
        # The first of equal points stands for all.
        distinct = {point.id: point for point in reversed(points)}
        ordered = sorted(distinct.values(), key=lambda point: point.position)
        self._pending = [
            point
            for point in ordered
            if point.id not in self._done
            or (retry_failed and self._done[point.id] is Outcome.FAILED)
        ]
        waiting = {point.id for point in self._pending}
        kept = [p for p in ordered if p.id not in waiting]
        failed = sum(1 for p in kept if self._done[p.id] is Outcome.FAILED)
        watch.began(len(ordered), len(kept), failed)

    def run(self, workers: int | None, dask: str | None, stop: Stop) -> SweepReport:
        note = ""
        for point in self._pending:
            if point.error:
                self._deliver(point, PointFigures.failure(point.error, 2))
        runnable = [point for point in self._pending if not point.error]
        if runnable and not stop.requested:
            try:
                self._work(runnable, workers, dask, stop)
            except Unresolved as error:
                note = str(error)
        interrupted = stop.requested and self._ran < len(self._pending)
        return self._results.report(ran=self._ran, interrupted=interrupted, note=note)

    def _work(
        self,
        points: list[ResolvedPoint],
        workers: int | None,
        dask: str | None,
        stop: Stop,
    ) -> None:
        if dask is None:
            run_local(
                points,
                self._deliver,
                stop,
                workers=workers or default_workers(),
                on_death=self._watch.worker_died,
            )
            return
        from raptor_cp.sweeps.dask_workers import run_on_dask

        run_on_dask(points, self._deliver, stop, address=dask)

    def _deliver(self, point: ResolvedPoint, figures: PointFigures) -> None:
        self._results.record(point.id, figures, again=point.id in self._done)
        self._ran += 1
        self._watch.recorded(point, figures)
