"""The command line: answers, exit codes, machine output, wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from raptor_cp.cli.app import app
from raptor_cp.run_folder import MARKER
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = ROOT / "scenarios"
TINY = str(SCENARIOS / "tiny-residual.yaml")

CHAIN = """\
schema: raptor-cp/1
name: chain
network:
  tasks:
    - {id: a, execution_ns: 5, weights: [u]}
    - {id: b, execution_ns: 7, weights: [v]}
  edges: [{src: a, dst: b, bytes: 8}]
  weights: [{id: u, slots: 3}, {id: v, slots: 4}]
target:
  {kind: table, cores: 2, slots_per_core: 5,
   memory: {width: 4, read_ns: 1, write_ns: 1}}
pipeline: {stages: 2}
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    return path


def test_schedule_writes_a_run_folder(chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run("schedule", str(chain), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "FEASIBLE" in result.stderr
    names = set(files(out))
    assert {MARKER, "scenario.yaml", "schedule.json", "result.json"} <= names
    assert "reports/pipeline_selection.json" in names
    document = json.loads((out / "schedule.json").read_text())
    assert [stage["groups"] for stage in document["stages"]] in ([[0], [1]], [[0, 1]])
    again = run("schedule", str(out / "scenario.yaml"), "--out", str(tmp_path / "two"))
    assert again.exit_code == 0
    assert (tmp_path / "two" / "schedule.json").read_bytes() == (
        out / "schedule.json"
    ).read_bytes()


def test_json_is_alone_on_standard_output(chain: Path, tmp_path: Path) -> None:
    result = run("schedule", str(chain), "--json", "--out", str(tmp_path / "run"))
    document = json.loads(result.stdout)
    assert document["schema"] == "raptor-cp/result/1"
    assert document["verdict"] == "FEASIBLE" or document["verdict"] == "OPTIMAL"
    quiet = run("schedule", str(chain), "--quiet", "--out", str(tmp_path / "run"))
    assert quiet.output == ""


def test_infeasible_is_exit_1_unless_expected(chain: Path, tmp_path: Path) -> None:
    chain.write_text(CHAIN.replace("slots_per_core: 5", "slots_per_core: 3"))
    out = str(tmp_path / "run")
    result = run("schedule", str(chain), "--out", out)
    assert result.exit_code == 1
    assert "needs 4 weight slots" in result.stderr
    chain.write_text(chain.read_text() + "expect: {verdict: INFEASIBLE}\n")
    assert run("schedule", str(chain), "--out", out).exit_code == 0


def test_failed_expectation_is_exit_1(chain: Path, tmp_path: Path) -> None:
    chain.write_text(CHAIN + "expect: {interval_ns: {max: 1}}\n")
    result = run("schedule", str(chain), "--out", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "expected" in result.stderr


def test_unknown_is_exit_3(tmp_path: Path) -> None:
    result = run(
        "schedule",
        str(SCENARIOS / "greedy-fails-cp-sat-packs.yaml"),
        "--no-solver",
        "--set",
        "expect={}",
        "--out",
        str(tmp_path / "run"),
    )
    assert result.exit_code == 3
    assert "UNKNOWN" in result.stderr
    assert "not proved" in result.stderr


def test_solver_packs_what_no_heuristic_packs(tmp_path: Path) -> None:
    path = str(SCENARIOS / "greedy-fails-cp-sat-packs.yaml")
    result = run("schedule", path, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "every heuristic packing failed" in result.stderr


def test_vgg_is_refused_with_its_numbers() -> None:
    result = run("check", str(SCENARIOS / "vgg16-arch-a-infeasible.yaml"), "--json")
    assert result.exit_code == 0  # the scenario expects it
    proof = json.loads(result.stdout)["infeasibility"]
    assert (proof["slots_needed"], proof["slots_available"]) == (67576, 16128)
    assert proof["operations"][0] == {"operation": "fc6", "slots": 50176}
    assert proof["levers"]


WRONG = [
    ("stages: 2", "stages: 3", "pipeline.stages"),
    ("cores: 2", "cores: 0", "target.cores"),
    ("execution_ns: 5", "execution_ns: -1", "execution_ns"),
    ("execution_ns: 5", "execution_ns: -1", "execution_ns"),
    ("execution_ns: 5", "execution_ns: .nan", "execution_ns"),
    ("execution_ns: 5", "execution_ns: 9223372036854775808", "execution_ns"),
    ("execution_ns: 5", "execution_ns: five", "execution_ns"),
    ("execution_ns: 5", "execution_ns: [1, 2, 3]", "one for each of the 2 cores"),
    ("dst: b", "dst: c", "unknown task"),
    ("dst: b, bytes: 8}", "dst: b}, {src: b, dst: a}", "cycle: a -> b -> a"),
    ("weights: [u]", "weights: [x]", "unknown weight"),
    ("id: b", "id: a", "two tasks have one name"),
    ("kind: table", "kind: tabel", "pim, pe or table"),
    ("pipeline:", "pipline:", "'pipeline'"),
    ("raptor-cp/1", "raptor-cp/2", "schema"),
    ("pipeline: {stages: 2}", "search: {packings: 129}", "128"),
    ("pipeline: {stages: 2}", "search: {queue_evaluations: 33}", "32"),
    ("pipeline: {stages: 2}", "search: {beam: 3}", "search.beam"),
    (
        "pipeline: {stages: 2}",
        "pipeline: {stages: 2, constraints: {forbidden_cuts: [z]}}",
        "forbidden_cuts",
    ),
]


@pytest.mark.parametrize(("old", "new", "part"), WRONG)
def test_wrong_input_is_one_sentence_and_exit_2(
    chain: Path, tmp_path: Path, old: str, new: str, part: str
) -> None:
    assert old in CHAIN
    chain.write_text(CHAIN.replace(old, new, 1))
    out = tmp_path / "run"
    result = run("schedule", str(chain), "--out", str(out), "--json")
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert part in lines[0]
    assert not out.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chain.yaml"]


def test_empty_network_and_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        "schema: raptor-cp/1\nname: e\nnetwork: {tasks: []}\n"
        "target: {kind: table, cores: 1}\n"
    )
    assert "network.tasks" in run("schedule", str(path)).stderr
    missing = run("schedule", str(tmp_path / "none.yaml"))
    assert missing.exit_code == 2
    assert "no such file" in missing.stderr


def test_foreign_out_folder_is_refused_before_any_work(
    chain: Path, tmp_path: Path
) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "x").write_text("1")
    result = run("schedule", str(chain), "--out", str(tmp_path / "keep"))
    assert result.exit_code == 2
    assert "left alone" in result.stderr
    assert files(tmp_path / "keep") == {"x": b"1"}


def test_check_writes_nothing(chain: Path, tmp_path: Path) -> None:
    result = run("check", str(chain), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["certificate"]["bound_interval_ns"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["chain.yaml"]


def test_compare_has_three_methods_and_the_seed_never_loses() -> None:
    result = run("compare", TINY, "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["method"] for row in rows] == ["heuristic", "cp-sat", "both"]
    keys = {
        "scenario", "method", "verdict", "interval_ns", "latency_ns", "bound_ns",
        "gap", "queue_evaluations", "packings", "seconds",
    }  # fmt: skip
    assert all(keys <= set(row) for row in rows)
    assert rows[1]["static_objective_ns"] <= rows[0]["static_objective_ns"]
    assert rows[2]["interval_ns"] == min(r["interval_ns"] for r in rows[:2])
    for row in rows:
        assert row["bound_ns"] <= row["interval_ns"]
        assert row["gap"] == pytest.approx(
            row["interval_ns"] / row["bound_ns"] - 1, rel=1e-9
        )
    csv = run("compare", TINY, "--csv", "--method", "heuristic")
    assert csv.stdout.splitlines()[0].startswith("scenario,method,verdict")
    assert run("compare", TINY, "--method", "magic").exit_code == 2


def test_regress_records_and_finds_differences(chain: Path, tmp_path: Path) -> None:
    assert run("regress", str(chain)).exit_code == 1  # nothing recorded
    assert run("regress", str(chain), "--update").exit_code == 0
    assert run("regress", str(chain)).exit_code == 0
    recorded = tmp_path / "expected" / "chain.json"
    recorded.write_text(recorded.read_text().replace('"stages"', '"phases"'))
    result = run("regress", str(chain), "--json")
    assert result.exit_code == 1
    keys = [d["key"] for d in json.loads(result.stdout)[0]["differences"]]
    assert keys == ["phases", "stages"]
    recorded.write_text("{")
    assert run("regress", str(chain)).exit_code == 2


def test_listings() -> None:
    zoo = json.loads(run("zoo", "--json").stdout)
    assert {"resnet18", "vgg16", "mobilenetv2"} <= {row["name"] for row in zoo}
    assert "resnet18" in run("zoo").stdout
    kinds = [row["kind"] for row in json.loads(run("targets", "--json").stdout)]
    assert kinds == sorted(kinds)
    assert {"pim", "table", "pe"} <= set(kinds)
    schema = json.loads(run("schema").stdout)
    assert schema == json.loads((SCENARIOS / "schema.json").read_text())


def process(*arguments: str, folder: Path, **environment: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "raptor_cp.cli", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_same_bytes_with_another_hash_seed_and_folder(
    chain: Path, tmp_path: Path
) -> None:
    runs = []
    for number, seed in enumerate(("1", "4242")):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        out = process("schedule", TINY, "--json", folder=folder, PYTHONHASHSEED=seed)
        document = json.loads(out)
        assert document.pop("phases")
        written = files(folder / "runs" / "tiny-residual")
        for name in ("result.json", "reports/pipeline_selection.json"):
            report = json.loads(written.pop(name))
            assert report.pop("phases")
            written[name] = json.dumps(report).encode()
        runs.append((json.dumps(document), written))
    assert runs[0] == runs[1]


def test_plain_ascii_output_without_a_terminal(chain: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raptor_cp.cli", "schedule", str(chain)],
        cwd=tmp_path,
        env={**os.environ, "LANG": "C", "LC_ALL": "C", "NO_COLOR": "1"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    text = done.stderr.decode("ascii")
    assert "\x1b" not in text


def test_names_of_links_are_not_importable(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u\n"
        "found = [n for n in ('models', 'targets', 'cli') if u.find_spec(n)]\n"
        "assert not found, found\n"
        "import raptor_cp.models, raptor_cp.targets, raptor_cp.cli\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_start_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, raptor_cp, raptor_cp.cli.app\n"
        "heavy = {'ortools', 'numba', 'onnx', 'matplotlib', 'pandas', 'networkx'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
