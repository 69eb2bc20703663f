"""Sweeps on a Dask cluster, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, cast

import pytest

from raptor_cp.errors import MalformedInput, Unresolved
from raptor_cp.interruption import Stop
from raptor_cp.sweeps import Outcome, PointFigures, SweepObserver, load_sweep, run_sweep
from raptor_cp.sweeps.dask_workers import _figures, run_on_dask
from tests.sweep_files import numbered, write_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from distributed import LocalCluster

    from raptor_cp.sweeps import SweepReport
    from raptor_cp.sweeps.identity import ResolvedPoint

pytest.importorskip("distributed", reason="no dask: pip install raptor-cp[dask]")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    import distributed

    start = cast("Callable[..., LocalCluster]", distributed.LocalCluster)
    with start(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as running:
        yield running


def figures(report: SweepReport) -> list[dict[str, object]]:
    points = [record.to_dict() for record in report.records]
    for point in points:
        del point["seconds"]
    return points


def test_figures_are_those_of_local_workers(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    sweep = load_sweep(
        write_sweep(tmp_path, numbered(6) + "points: [{pipeline.stages: 9}]")
    )
    dask = run_sweep(sweep, tmp_path / "dask.sqlite", dask=cluster.scheduler_address)
    local = run_sweep(sweep, tmp_path / "local.sqlite", workers=1)
    assert figures(dask) == figures(local)
    assert (dask.ran, dask.with_outcome(Outcome.FAILED)[0].position) == (7, 6)


def test_killed_worker_costs_no_point(cluster: LocalCluster, tmp_path: Path) -> None:
    killed: list[int] = []

    class Killer(SweepObserver):
        def recorded(self, point: ResolvedPoint, found: PointFigures) -> None:
            if not killed:
                worker = next(iter(cluster.workers.values()))
                killed.append(worker.process.process.pid)
                os.kill(killed[0], signal.SIGKILL)

    sweep = load_sweep(write_sweep(tmp_path, numbered(40)))
    report = run_sweep(
        sweep,
        tmp_path / "r.sqlite",
        dask=cluster.scheduler_address,
        observer=Killer(),
    )
    assert killed
    assert report.counts()["answered"] == report.ran == 40


def test_stop(cluster: LocalCluster, tmp_path: Path) -> None:
    stop = Stop()

    class Stopper(SweepObserver):
        def recorded(self, point: ResolvedPoint, found: PointFigures) -> None:
            stop.request()

    report = run_sweep(
        load_sweep(write_sweep(tmp_path, numbered(40))),
        tmp_path / "r.sqlite",
        dask=cluster.scheduler_address,
        observer=Stopper(),
        stop=stop,
    )
    assert report.interrupted
    assert 0 < report.ran < 40


def test_nobody_there_is_one_sentence() -> None:
    with pytest.raises(MalformedInput, match="no Dask scheduler answers") as caught:
        run_on_dask(
            [], lambda point, found: None, Stop(), address="tcp://127.0.0.1:9",
            timeout_s=0.5,
        )  # fmt: skip
    assert "\n" not in str(caught.value)
    with pytest.raises(MalformedInput, match="no Dask scheduler answers"):
        run_on_dask([], lambda point, found: None, Stop(), address="nonsense:://x",
                    timeout_s=0.5)  # fmt: skip


def test_without_the_package_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MalformedInput, match=r"pip install raptor-cp\[dask\]"):
        run_on_dask([], lambda point, found: None, Stop(), address="tcp://x:1")


class Ended:
    """What is left of a task: a status and an exception."""

    def __init__(self, status: str, error: BaseException | None = None) -> None:
        self.status, self._error = status, error

    def result(self) -> object:
        return None

    def exception(self) -> BaseException | None:
        return self._error

    def add_done_callback(self, call: object) -> None:
        raise NotImplementedError


def test_what_becomes_of_tasks_that_the_cluster_gave_up() -> None:
    from distributed import KilledWorker

    killed = KilledWorker("task", None, 3)  # type: ignore[arg-type]
    assert _figures(Ended("error", killed)).error.startswith("worker died")
    missing = _figures(Ended("error", ModuleNotFoundError("No module 'raptor_cp'")))
    assert "could not run it: ModuleNotFoundError: No module" in missing.error
    assert missing.exit_code == 4
    with pytest.raises(Unresolved, match="cluster was lost"):
        _figures(Ended("cancelled"))
