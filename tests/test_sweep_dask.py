"""Sweeps on a Dask cluster, one of whose workers is killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.interruption import Stop
from raptor_cp.sweeps import Outcome, PointFigures, SweepObserver, load_sweep, run_sweep
from raptor_cp.sweeps.dask_workers import run_on_dask
from tests.sweep_files import numbered, write_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distributed import LocalCluster

    from raptor_cp.sweeps import SweepReport
    from raptor_cp.sweeps.identity import ResolvedPoint

pytest.importorskip("distributed", reason="no dask: pip install raptor-cp[dask]")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    from distributed import LocalCluster

    with LocalCluster(
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
