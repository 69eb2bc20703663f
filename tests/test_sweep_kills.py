"""Sweeps survive kill -9 of workers and of the driver, with each point once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raptor_cp.sweeps import load_sweep, read_results
from raptor_cp.sweeps.execution import run_payload
from raptor_cp.sweeps.identity import resolve
from tests.sweep_files import numbered, write_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

if not Path("/proc/self/stat").exists():
    pytest.skip("needs /proc to find workers", allow_module_level=True)

#: Seconds in which something must move; generous, for busy machines.
PATIENCE_S = 120


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == parent and fields[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def done(database: Path) -> int:
    if not database.is_file():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=60)) as run:
            (count,) = run.execute("SELECT count(*) FROM results").fetchone()
            return int(count)
    except sqlite3.OperationalError:  # before the first transaction
        return 0


class Driver:
    """``raptor-cp sweep`` as a process that is started again when it was killed."""

    def __init__(self, sweep: Path, database: Path, workers: int) -> None:
        self._command = [
            sys.executable, "-m", "raptor_cp.cli", "sweep", str(sweep),
            "--out", str(database), "--workers", str(workers),
        ]  # fmt: skip
        self._database = database
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stderr=subprocess.PIPE)

    def restart(self) -> None:
        self.end()
        self.process = self._start()

    def end(self) -> int:
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert b"rror" not in errors, errors
        return self.process.returncode

    def wait_for(self, points: int) -> bool:
        """Until so many points are done; False when the sweep ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while done(self._database) < points:
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.01)
        return True


@contextlib.contextmanager
def driving(sweep: Path, database: Path, workers: int) -> Iterator[Driver]:
    driver = Driver(sweep, database, workers)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()


def survive(
    folder: Path, points: int, kills: int, driver_kills: int, *, workers: int, seed: int
) -> None:
    """Kill at random moments; then every figure is that of an undisturbed sweep."""
    chance = random.Random(seed)
    path = write_sweep(folder, numbered(points))
    database = folder / "results.sqlite"
    victims = ["driver"] * driver_kills + ["worker"] * (kills - driver_kills)
    chance.shuffle(victims)
    moments = sorted(chance.sample(range(points * 9 // 10), kills))
    orphans: list[int] = []
    killed = 0
    with driving(path, database, workers) as driver:
        for victim, moment in zip(victims, moments, strict=True):
            assert driver.wait_for(moment)
            time.sleep(chance.uniform(0, 0.05))
            running = children(driver.process.pid)
            if victim == "driver":
                driver.process.kill()
                driver.restart()
                orphans += running
            else:
                deadline = time.monotonic() + PATIENCE_S
                while not running and time.monotonic() < deadline:
                    time.sleep(0.01)
                    running = children(driver.process.pid)
                os.kill(chance.choice(running), signal.SIGKILL)
            killed += 1
        assert driver.end() == 0
    assert killed == kills
    with contextlib.closing(sqlite3.connect(database)) as run:
        (ever,) = run.execute("SELECT seq FROM sqlite_sequence").fetchone()
        count, distinct = run.execute(
            "SELECT count(*), count(DISTINCT point) FROM results"
        ).fetchone()
        assert run.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    # ``ever`` counts insertions since the file was made: none was done twice.
    assert (ever, count, distinct) == (points, points, points)
    for orphan in orphans:
        wait_gone(orphan)
    report = read_results(database)
    assert report.counts()["answered"] == points
    found = [without_seconds(record.figures.to_dict()) for record in report.records]
    calm = [run_payload(point.payload) for point in resolve(load_sweep(path))]
    assert found == [without_seconds(figures) for figures in calm]


def without_seconds(figures: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in figures.items() if name != "seconds"}


def wait_gone(process: int) -> None:
    """A worker ends when its driver is gone."""
    deadline = time.monotonic() + 20
    while b"raptor_cp" in command_of(process):
        assert time.monotonic() < deadline, f"worker {process} outlived its driver"
        time.sleep(0.05)


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def test_few_points_survive_kills(tmp_path: Path) -> None:
    survive(tmp_path, points=24, kills=3, driver_kills=1, workers=1, seed=1)


@pytest.mark.slow
def test_500_points_survive_20_kills(tmp_path: Path) -> None:
    survive(tmp_path, points=500, kills=20, driver_kills=8, workers=2, seed=2026)
