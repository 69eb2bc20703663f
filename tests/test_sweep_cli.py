"""``raptor-cp sweep``: tables, exports, exit codes, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.sweeps import load_sweep, read_results, run_sweep
from tests.conftest import ROOT
from tests.sweep_files import write_sweep
from tests.test_sweep_run import run_here

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
name: chain
grid: {target.link_ns: [1, 2], pipeline.stages: [1, 2]}
points: [{pipeline.stages: 9}]
"""


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raptor_cp.sweeps.driver.run_local", run_here)


def sweep(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sweep that has been run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path, TEXT)
    run_sweep(load_sweep(path))
    return path


def test_run_says_what_there_is_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_sweep(tmp_path, TEXT)
    code, out, err = sweep(path)
    assert (code, out) == (3, "")
    assert "chain: 5 of 5 points done: 4 answered (0 infeasible), 1 failed" in err
    assert "stages=9" in err
    assert "more stages than cores" in err
    assert "sweeps/chain.sqlite" in err
    assert read_results(tmp_path / "sweeps" / "chain.sqlite").total == 5
    code, out, err = sweep(path, "--json")
    document = json.loads(out)
    assert (code, document["sweep"], document["counts"]["failed"]) == (3, "chain", 1)
    assert sweep(path, "--quiet") == (3, "", "")


def test_show_is_a_table_in_file_order(done: Path) -> None:
    for argument in (done, "sweeps/chain.sqlite"):
        code, out, err = sweep(argument, "--show")
        assert code == 0
        lines = out.splitlines()
        assert lines[0].split() == [
            "point", "verdict", "interval", "gap", "st", "cores", "slots",
        ]  # fmt: skip
        starts = [line.split("  ")[0].split(" FEA")[0] for line in lines[1:5]]
        assert starts == [
            "link_ns=1 stages=1", "link_ns=1 stages=2",
            "link_ns=2 stages=1", "link_ns=2 stages=2",
        ]  # fmt: skip
        assert "failed" in lines[5]
        assert max(map(len, lines)) <= 80
        assert "5 of 5" in err


def test_show_without_results_and_without_a_file(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, TEXT)
    code, out, err = sweep(path, "--show", "--out", tmp_path / "none.sqlite")
    assert (code, out) == (2, "")
    assert "no results yet" in err
    assert sweep(tmp_path / "missing.yaml", "--show")[0] == 2
    assert sweep(tmp_path / "missing.yaml")[0] == 2


def test_modes_side_by_side_and_a_cluster_with_workers(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, "grid: {mode: [latency, pipeline]}")
    out = sweep(path, "--out", tmp_path / "r.sqlite", "--workers", 1, "--dask", "x")
    assert out[0] == 2
    assert "--workers or --dask, not both" in out[2]
    assert sweep(path, "--out", tmp_path / "r.sqlite")[0] == 0
    lines = sweep(tmp_path / "r.sqlite", "--show")[1].splitlines()
    assert "int./lat." in lines[0]
    assert [line.split()[2:4] for line in lines[1:]] == [["100", "ns"], ["52", "ns"]]


def test_csv(done: Path, tmp_path: Path) -> None:
    code, out, _ = sweep(done, "--show", "--csv", "-", "--pareto", "auto")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["position"] for row in rows] == list("01234")
    assert [row["target.link_ns"] for row in rows] == ["1", "1", "2", "2", ""]
    assert rows[4]["outcome"] == "failed"
    assert rows[4]["interval_ns"] == ""
    assert {row["on_front"] for row in rows} == {"True", "False"}
    sweep(done, "--show", "--csv", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("position,scenario,workload,")


def test_pareto_shows_the_front_only(done: Path) -> None:
    code, out, err = sweep(done, "--show", "--pareto", "interval_ns,cores")
    assert code == 0
    assert 1 < len(out.splitlines()) < 6
    assert "Pareto front of interval_ns and cores" in err
    document = json.loads(sweep(done, "--show", "--json", "--pareto", "auto")[1])
    assert document["pareto"]["objectives"] == ["interval_ns", "cores"]
    known = [point["id"] for point in document["points"]]
    assert set(document["pareto"]["points"]) <= set(known)
    code, _, err = sweep(done, "--show", "--pareto", "beauty")
    assert code == 2
    assert "no such objective" in err


def test_parquet(done: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert sweep(done, "--show", "--parquet", tmp_path / "a.parquet")[0] == 0
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert list(frame["target.link_ns"][:4]) == [1, 1, 2, 2]
    assert frame["interval_ns"].isna().sum() == 1
    assert str(frame["interval_ns"].dtype) == "Int64"


def test_parquet_of_mixed_and_deep_overrides(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    target = "{kind: table, cores: 2}"
    path = write_sweep(
        tmp_path,
        f"points: [{{target: {target}}}, {{pipeline.stages: 1}}, "
        "{pipeline.stages: x}, {solver.enabled: false}, "
        "{solver.deterministic_time: 1}, {solver.deterministic_time: 2.5}]",
    )
    run_sweep(load_sweep(path), tmp_path / "r.sqlite")
    sweep(tmp_path / "r.sqlite", "--show", "--parquet", tmp_path / "a.parquet")
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert json.loads(frame["target"][0]) == {"kind": "table", "cores": 2}
    assert list(frame["pipeline.stages"].dropna()) == ["1", "x"]
    assert str(frame["solver.enabled"].dtype) == "boolean"
    assert list(frame["solver.deterministic_time"].dropna()) == [1.0, 2.5]


def test_parquet_without_pandas_is_one_sentence(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    code, out, err = sweep(done, "--show", "--parquet", tmp_path / "a.parquet")
    assert (code, out) == (2, "")
    assert "pip install raptor-cp[tables]" in err


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_keeps_what_is_done(tmp_path: Path, signal_: signal.Signals) -> None:
    links = list(range(1, 2000))
    path = write_sweep(tmp_path, f"grid: {{target.link_ns: {links}}}")
    database = tmp_path / "r.sqlite"
    command = [sys.executable, "-m", "raptor_cp.cli", "sweep", str(path)]
    environment = {**os.environ, "LANG": "C", "LC_ALL": "C"}
    process = subprocess.Popen(
        [*command, "--out", str(database), "--workers", "1"],
        stderr=subprocess.PIPE,
        env=environment,
    )
    deadline = time.monotonic() + 60
    while not database.is_file() or not read_results_or_none(database):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal_)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 3, errors
    assert b"interrupted: the points that are done stay" in errors
    assert b"Traceback" not in errors
    report = read_results(database)
    assert 0 < len(report.records) < 1999
    assert not (tmp_path / "r.sqlite.lock").exists()


def read_results_or_none(database: Path) -> int:
    from raptor_cp.errors import MalformedInput

    try:
        return len(read_results(database).records)
    except MalformedInput:
        return 0


def test_shipped_sweep_runs(tmp_path: Path) -> None:
    path = ROOT / "scenarios" / "sweeps" / "cores-and-stages.yaml"
    code, _, err = sweep(path, "--out", tmp_path / "r.sqlite")
    assert code == 0, err
    assert "13 of 13 points done: 13 answered (1 infeasible)" in err
