"""Running sweeps: resumed, determined, and never ended by one point."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.interruption import Stop
from raptor_cp.sweeps import (
    Outcome,
    PointFigures,
    SweepObserver,
    SweepReport,
    load_sweep,
    read_results,
    run_sweep,
)
from raptor_cp.sweeps.database import SweepDatabase
from raptor_cp.sweeps.execution import run_payload
from raptor_cp.sweeps.identity import resolve
from raptor_cp.sweeps.locking import locked
from tests.sweep_files import SCENARIO, numbered, write_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from raptor_cp.sweeps.identity import ResolvedPoint

#: A worker that dies, or is told to wait, where the link cost says so.
STRANGE_WORKER = """
import json, os, signal, sys, time; sys.path[:] = json.loads(sys.argv[1])
from raptor_cp.sweeps import execution, worker
plain = execution.run_payload
def strange(payload):
    link = json.loads(payload)["scenario"]["target"]["link_ns"]
    if link == 66: os.kill(os.getpid(), signal.SIGSEGV)
    if link == 67: print("out of cheese", file=sys.stderr); os._exit(7)
    if link == 68: print("noise on standard output", flush=True)
    if link == 69: time.sleep(3600)
    return plain(payload)
execution.run_payload = strange
worker.main()
"""


def run_here(
    points: Sequence[ResolvedPoint],
    deliver: Callable[[ResolvedPoint, PointFigures], None],
    stop: Stop,
    *,
    workers: int,
    on_death: Callable[[str], None],
) -> None:
    """All points in this process: what the driver does, without start-up times."""
    for point in points:
        if stop.requested:
            return
        deliver(point, PointFigures.from_dict(run_payload(point.payload)))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raptor_cp.sweeps.driver.run_local", run_here)


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raptor_cp.sweeps.local_workers._PROGRAM", STRANGE_WORKER)


def run(path: Path, database: Path, **options: object) -> SweepReport:
    return run_sweep(load_sweep(path), database, **options)  # type: ignore[arg-type]


def figures(report: SweepReport) -> list[dict[str, object]]:
    points = [record.to_dict() for record in report.records]
    for point in points:
        del point["seconds"]
    return points


def test_figures_are_those_of_schedule_whatever_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raptor_cp.scenario import load
    from raptor_cp.scheduler import schedule

    path = write_sweep(tmp_path, numbered(8))
    two = run(path, tmp_path / "two.sqlite", workers=2)
    monkeypatch.setattr("raptor_cp.sweeps.driver.run_local", run_here)
    one = run(path, tmp_path / "one.sqlite")
    assert figures(one) == figures(two)
    assert (one.ran, one.total, one.exit_code) == (8, 8, 0)
    for record in one.records:
        texts = tuple(f"{key}={value}" for key, value in record.overrides.items())
        result = schedule(load(tmp_path / "chain.yaml", texts))
        found = record.figures
        assert found.interval_ns == result.interval_ns
        assert found.summary["interval_ns"] == result.interval_ns
        assert found.summary["latency_ns"] == found.latency_ns == result.latency_ns
        assert found.stages == found.summary["stages"]
        assert found.cores_used == found.summary["cores_used"]
        assert found.weight_slots == 0


@pytest.mark.usefixtures("here")
def test_done_points_are_not_run_again_and_order_is_the_files(tmp_path: Path) -> None:
    database = tmp_path / "deep" / "r.sqlite"
    first = run(write_sweep(tmp_path, "grid: {pipeline.stages: [3, 1]}"), database)
    assert (first.ran, first.total) == (2, 2)
    more = write_sweep(tmp_path, "grid: {pipeline.stages: [1, 2, 3, 2, 1]}")
    second = run(more, database)
    assert (second.ran, second.total, second.repeated) == (1, 3, 2)
    stages = [record.overrides["pipeline.stages"] for record in second.records]
    assert stages == [1, 2, 3]
    assert [record.position for record in second.records] == [0, 1, 2]
    assert read_results(database).records == second.records
    # a changed scenario is another point; the old results are kept, not shown
    changed = SCENARIO.replace("execution_ns: 50", "execution_ns: 51")
    third = run(
        write_sweep(tmp_path, "grid: {pipeline.stages: [1]}", changed), database
    )
    assert (third.ran, third.total) == (1, 1)
    fourth = run(write_sweep(tmp_path, "grid: {pipeline.stages: [1, 2, 3]}"), database)
    assert (fourth.ran, figures(fourth)) == (0, figures(second))


@pytest.mark.usefixtures("here")
def test_no_failing_point_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sweep(
        tmp_path,
        """
set: {expect: {verdict: FEASIBLE}}
points:
  - {pipeline.stages: 2}
  - {pipeline.stagez: 2}
  - {pipeline.stages: 9}
  - {target.slots_per_core: 1, network.weights: [{id: w, slots: 2}],
     network.tasks.0.weights: [w]}
  - {network: {onnx: missing.onnx}, target: {kind: pim}}
  - {target.link_ns: 13}
""",
    )
    import raptor_cp.scheduler as scheduler

    plain = scheduler.schedule

    def broken(loaded: object, *, program: bool) -> object:
        if getattr(getattr(loaded, "scenario").target, "link_ns", 0) == 13:  # noqa: B009
            raise ZeroDivisionError("of ours")
        return plain(loaded, program=program)  # type: ignore[arg-type]

    monkeypatch.setattr(scheduler, "schedule", broken)
    report = run(path, tmp_path / "r.sqlite")
    found = [record.figures for record in report.records]
    assert [f.outcome for f in found] == [
        Outcome.ANSWERED,
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.ANSWERED,
        Outcome.FAILED,
        Outcome.FAILED,
    ]
    assert [f.exit_code for f in found] == [0, 2, 2, 1, 2, 4]
    assert "stagez" in found[1].error
    assert "more stages than cores" in found[2].error
    assert (found[3].verdict, found[3].failed_expectations) == (
        "INFEASIBLE",
        ("verdict",),
    )
    assert "ZeroDivisionError: of ours" in found[5].error
    assert report.exit_code == 3
    assert report.counts()["expectation_failed"] == 1
    # Again: nothing to do; with --retry-failed: the failed ones, each recorded once.
    assert run(path, tmp_path / "r.sqlite").ran == 0
    monkeypatch.setattr(scheduler, "schedule", plain)
    again = run(path, tmp_path / "r.sqlite", retry_failed=True)
    assert again.ran == 4
    assert [r.figures.outcome for r in again.records][5] is Outcome.ANSWERED
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as connection:
        rows = connection.execute("SELECT count(*), count(DISTINCT point) FROM results")
        assert rows.fetchone() == (6, 6)


@pytest.mark.usefixtures("here")
def test_exit_codes(tmp_path: Path) -> None:
    def code(text: str, name: str) -> int:
        return run(write_sweep(tmp_path, text), tmp_path / name).exit_code

    assert code("points: [{}]", "a.sqlite") == 0
    tight = "{target.slots_per_core: 1, network.weights: [{id: w, slots: 2}], "
    assert code(f"points: [{tight}network.tasks.0.weights: [w]}}]", "b.sqlite") == 0
    assert code("set: {expect: {interval_ns: {max: 1}}}", "c.sqlite") == 1
    both = "set: {expect: {interval_ns: {max: 1}}}\npoints: [{}, {pipeline.stages: 9}]"
    assert code(both, "d.sqlite") == 3


@pytest.mark.usefixtures("here")
def test_stop_keeps_what_is_done(tmp_path: Path) -> None:
    stop = Stop()

    class Stopper(SweepObserver):
        def recorded(self, point: ResolvedPoint, figures: PointFigures) -> None:
            if point.position == 2:
                stop.request()

    path = write_sweep(tmp_path, numbered(8))
    report = run(path, tmp_path / "r.sqlite", observer=Stopper(), stop=stop)
    assert (report.ran, report.missing, report.interrupted) == (3, 5, True)
    assert report.exit_code == 3
    rest = run(path, tmp_path / "r.sqlite")
    assert (rest.ran, rest.missing, rest.exit_code) == (5, 0, 0)


@pytest.mark.usefixtures("strange")
def test_workers_that_die_are_replaced_and_their_points_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raptor_cp.sweeps.local_workers.MAX_ATTEMPTS", 2)
    deaths: list[str] = []

    class Watch(SweepObserver):
        def worker_died(self, cause: str) -> None:
            deaths.append(cause)

    path = write_sweep(tmp_path, "grid: {target.link_ns: [66, 1, 67, 2, 68]}")
    report = run(path, tmp_path / "r.sqlite", workers=2, observer=Watch())
    found = [record.figures for record in report.records]
    answered = [f.outcome is Outcome.ANSWERED for f in found]
    assert answered == [False, True, False, True, True]
    assert "worker died: 2 workers" in found[0].error
    assert "SIGSEGV" in found[0].error
    assert "exit code 7: out of cheese" in found[2].error
    assert found[0].exit_code == found[2].exit_code == 4
    assert len(deaths) == 4
    assert report.exit_code == 3


@pytest.mark.usefixtures("strange")
def test_stop_ends_workers_in_the_middle_of_a_point(tmp_path: Path) -> None:
    stop = Stop()
    path = write_sweep(tmp_path, "grid: {target.link_ns: [1, 69]}")

    class Stopper(SweepObserver):
        def recorded(self, point: ResolvedPoint, figures: PointFigures) -> None:
            threading.Timer(0.3, stop.request).start()

    report = run(path, tmp_path / "r.sqlite", workers=1, observer=Stopper(), stop=stop)
    assert (report.ran, report.interrupted, report.exit_code) == (1, True, 3)


def test_workers_that_do_not_start_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "raptor_cp.sweeps.local_workers._PROGRAM", "raise SystemExit('no numpy here')"
    )
    path = write_sweep(tmp_path, numbered(4))
    with pytest.raises(InternalError, match=r"do not start .*no numpy here"):
        run(path, tmp_path / "r.sqlite", workers=1)
    assert read_results(tmp_path / "r.sqlite").missing == 4


@pytest.mark.usefixtures("here")
def test_second_driver_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    path = write_sweep(tmp_path, numbered(2))
    with locked(database), pytest.raises(MalformedInput) as caught:
        run(path, database)
    assert "another sweep is writing this file" in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    assert run(path, database).ran == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "chain.yaml",
        "r.sqlite",
        "sweep.yaml",
    ]


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from raptor_cp.sweeps.locking import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('held', flush=True); "
        "time.sleep(3600)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "r")], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with (
        pytest.raises(MalformedInput, match=f"process {holder.pid}"),
        locked(tmp_path / "r"),
    ):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert (tmp_path / "r.lock").exists()
    with locked(tmp_path / "r"):
        pass
    assert not (tmp_path / "r.lock").exists()


def test_changed_file_and_other_version_are_not_recorded_as_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"1")
    scenario = (
        "schema: raptor-cp/1\nname: m\nnetwork: {onnx: m.onnx}\ntarget: {kind: pim}\n"
    )
    (point,) = resolve(load_sweep(write_sweep(tmp_path, "", scenario)))
    (tmp_path / "m.onnx").write_bytes(b"22")
    found = PointFigures.from_dict(run_payload(point.payload))
    assert found.outcome is Outcome.FAILED
    assert "not what it was when the sweep began" in found.error
    monkeypatch.setattr("raptor_cp.sweeps.execution.program_version", lambda: "0.0")
    found = PointFigures.from_dict(run_payload(point.payload))
    assert "another version" in found.error


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, numbered(2))
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    other = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
    for foreign in (text, other):
        before = foreign.read_bytes()
        with pytest.raises(MalformedInput, match="left alone"):
            run(path, foreign)
        with pytest.raises(MalformedInput, match="left alone"):
            read_results(foreign)
        assert foreign.read_bytes() == before
    with pytest.raises(MalformedInput, match="is a folder"):
        run(path, tmp_path)
    with pytest.raises(MalformedInput, match="cannot be made"):
        run(path, text / "r.sqlite")
    (tmp_path / "locked.sqlite.lock").mkdir()
    with pytest.raises(MalformedInput, match="cannot be written"):
        run(path, tmp_path / "locked.sqlite")
    with pytest.raises(MalformedInput, match="no results yet"):
        read_results(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()
    (tmp_path / "empty.sqlite").touch()  # a driver killed before it wrote anything
    with pytest.raises(MalformedInput, match="no results yet"):
        read_results(tmp_path / "empty.sqlite")


@pytest.mark.usefixtures("here")
def test_results_of_another_sweep_are_refused(tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    run(write_sweep(tmp_path, "name: one"), database)
    with pytest.raises(MalformedInput, match="results of another sweep"):
        run(write_sweep(tmp_path, "name: two"), database)


@pytest.mark.usefixtures("here")
def test_a_second_result_of_a_point_is_a_bug(tmp_path: Path) -> None:
    database = tmp_path / "r.sqlite"
    report = run(write_sweep(tmp_path, ""), database)
    with (
        SweepDatabase(database, report.name) as results,
        pytest.raises(InternalError, match="done twice"),
    ):
        results.record(report.records[0].id, report.records[0].figures, again=False)
    assert figures(read_results(database)) == figures(report)


def test_no_workers_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="no workers"):
        run(write_sweep(tmp_path, ""), tmp_path / "r.sqlite", workers=0)


def test_figures_survive_json() -> None:
    given = PointFigures(Outcome.ANSWERED, "OPTIMAL", 1, 2, 3, 0.5, 1, 2, 3, ("gap",))
    document: Mapping[str, object] = given.to_dict()
    assert PointFigures.from_dict(document) == given
