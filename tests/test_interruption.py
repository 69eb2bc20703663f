"""Ctrl-C and SIGTERM: the best schedule so far, whole folders or none, exit code 3.

The processes are real and so are the signals; the moments are exact (see
``signal_driver.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ortools.sat.python import cp_model

import raptor_cp
from raptor_cp.interruption import Interrupted, Stop, shielded, stopping_on_signals
from raptor_cp.models.solving import (
    SolveBudget,
    SolverClaim,
    SolveSettings,
    solve,
    solve_confirmed,
)
from raptor_cp.scenario import load
from raptor_cp.scheduler import SchedulerObserver, schedule
from raptor_cp.validation import validate
from raptor_cp.verdict import Verdict
from tests.conftest import ROOT
from tests.terminal import on_terminal
from tests.test_schedule_json import check as check_schedule_document

if TYPE_CHECKING:
    from raptor_cp.pipeline.beam import Candidate
    from raptor_cp.pipeline.search_budget import SearchBudget

SCENARIOS = ROOT / "scenarios"
TINY = str(SCENARIOS / "tiny-residual.yaml")
LATENCY = str(SCENARIOS / "peft-paper.yaml")
INT, TERM = int(signal.SIGINT), int(signal.SIGTERM)

#: name -> (moment, signals, arguments)
JOBS: dict[str, tuple[str, list[int], list[str]]] = {
    "whole": ("never", [], ["schedule", TINY]),
    **{
        f"early {phase}": (f"phase {phase}", [INT], ["schedule", TINY])
        for phase in ("target", "lowering", "initial partition")
    },
    "early term": ("phase lowering", [TERM], ["schedule", TINY]),
    **{
        f"best {phase}": (f"phase {phase}", [INT], ["schedule", TINY])
        for phase in ("proofs", "search", "program", "certificate", "run folder")
    },
    "best evaluated 1": ("evaluated 1", [INT], ["schedule", TINY]),
    "best evaluated 7": ("evaluated 7", [TERM], ["schedule", TINY, "--json"]),
    "best evaluated 32": ("evaluated 32", [INT], ["schedule", TINY]),
    "best latency": ("phase list scheduling", [INT], ["schedule", LATENCY]),
    "best schedule.json": ("file schedule.json", [INT], ["schedule", TINY]),
    "best result.json": ("file result.json", [TERM], ["schedule", TINY]),
    "twice search": ("phase search", [INT, INT], ["schedule", TINY]),
    "twice mixed": ("evaluated 2", [TERM, INT], ["schedule", TINY]),
    "twice schedule.json": ("file schedule.json", [INT, INT], ["schedule", TINY]),
    "swap": ("rename 1", [INT, INT], ["schedule", TINY]),
    "swap between": ("rename 2", [INT, INT], ["schedule", TINY]),
    "check": ("phase proofs", [INT], ["check", TINY]),
    "check early": ("phase lowering", [INT], ["check", TINY]),
    "compare": ("begin 2", [INT], ["compare", TINY, "--json"]),
    "regress": (
        "begin 2", [INT],
        ["regress", LATENCY, TINY, "--json", "--junit", "junit.xml"],
    ),
}  # fmt: skip
OLD = {"run.json": '{"schema": "raptor-cp/run/1"}\n', "old": "kept"}


class Outcome:
    """What a job has left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = int((folder / "exit").read_text())
        self.stdout = (folder / "stdout").read_text()
        self.stderr = (folder / "stderr").read_text()

    @property
    def run(self) -> Path:
        (found,) = (self.folder / "runs").iterdir()
        return found

    def untouched(self) -> bool:
        return {p.name: p.read_text() for p in self.run.iterdir()} == OLD

    def check_whole(self) -> dict[str, object]:
        """Every file of the run folder is there, readable, of the same run."""
        text = (self.run / "schedule.json").read_text()
        check_schedule_document(text)
        document, result = json.loads(text), json.loads(
            (self.run / "result.json").read_text()
        )  # fmt: skip
        assert not (self.run / "old").exists()
        assert document["verdict"] == result["verdict"]
        assert document["verdict"] in ("FEASIBLE", "OPTIMAL")
        assert document["certificate"] == result["certificate"]
        certificate = result["certificate"]
        if result["interval_ns"] is not None:
            assert certificate["bound_interval_ns"] <= result["interval_ns"]
            assert certificate["bound_static"] <= certificate["ours_static"]
            report = self.run / "reports" / "pipeline_selection.json"
            selection = json.loads(report.read_text())
            assert selection["reason"] == result["selection"]
            assert selection["termination"] == result["termination"]
            chosen = selection["candidates"][selection["chosen"]]
            tied = (chosen["interval_ns"], chosen["alternative_ns"])
            assert max(tied) == result["interval_ns"]
            assert [s["groups"] for s in chosen["stages"]] == [
                s["groups"] for s in document["stages"]
            ]
        load(self.run / "scenario.yaml")
        assert isinstance(result, dict)
        return result


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    base = tmp_path_factory.mktemp("signals")
    jobs = []
    for number, (moment, signals, arguments) in enumerate(JOBS.values()):
        folder = base / str(number)
        folder.mkdir()
        if arguments[0] == "schedule":
            run = folder / "runs" / Path(arguments[1]).stem
            run.mkdir(parents=True)
            for file, content in OLD.items():
                (run / file).write_text(content)
        jobs.append(
            {
                "moment": moment,
                "signals": signals,
                "args": arguments,
                "folder": str(folder),
            }
        )
    (base / "jobs.json").write_text(json.dumps(jobs))
    driver = [sys.executable, str(ROOT / "tests" / "signal_driver.py")]
    subprocess.run([*driver, str(base / "jobs.json")], check=True, timeout=300)
    return {name: Outcome(base / str(number)) for number, name in enumerate(JOBS)}


def named(prefix: str) -> list[str]:
    return [name for name in JOBS if name.startswith(prefix)]


def test_without_a_signal_nothing_is_interrupted(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["whole"]
    assert done.code == 0, done.stderr
    result = done.check_whole()
    assert not result["interrupted"]
    assert result["program"] == "built"


@pytest.mark.parametrize("name", named("early"))
def test_before_there_is_a_schedule_nothing_is_written(
    outcomes: dict[str, Outcome], name: str
) -> None:
    left = outcomes[name]
    assert left.code == 3, left.stderr
    assert re.fullmatch(r"error: interrupted.*no schedule yet\n", left.stderr)
    assert left.stdout == ""
    assert left.untouched()


@pytest.mark.parametrize("name", named("best"))
def test_the_best_schedule_so_far_is_kept(
    outcomes: dict[str, Outcome], name: str
) -> None:
    left = outcomes[name]
    assert left.code == 3, left.stderr
    result = left.check_whole()
    assert "interrupted" in left.stderr
    assert "Traceback" not in left.stderr
    assert [p.name for p in (left.folder / "runs").iterdir()] == [left.run.name]
    # While the folder is written the answer is there already.
    assert result["interrupted"] is not name.endswith((".json", "run folder"))
    if result["program"] is None:
        assert not (left.run / "program").exists()


def test_what_is_said_about_an_interrupted_search(
    outcomes: dict[str, Outcome],
) -> None:
    left = outcomes["best evaluated 7"]
    result = left.check_whole()
    assert result["selection"] == result["termination"] == "interrupted"
    budgets = result["budgets"]
    assert isinstance(budgets, dict)
    assert budgets["queue_evaluations"]["used"] == 7
    report = json.loads((left.run / "reports/pipeline_selection.json").read_text())
    candidates = report["candidates"]
    assert len(candidates) == 7
    larger = [max(c["interval_ns"], c["alternative_ns"]) for c in candidates]
    assert result["interval_ns"] == min(larger)
    assert json.loads(left.stdout)["interval_ns"] == min(larger)
    first = outcomes["best proofs"].check_whole()
    assert first["interval_ns"] == larger[0]
    assert any("program: left out" in note for note in first["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", named("twice"))
def test_a_second_signal_ends_at_once_and_leaves_no_half(
    outcomes: dict[str, Outcome], name: str
) -> None:
    left = outcomes[name]
    assert left.code == 3
    assert left.stderr == "error: interrupted\n"
    assert left.untouched()
    assert [p.name for p in (left.folder / "runs").iterdir()] == [left.run.name]


@pytest.mark.parametrize("name", named("swap"))
def test_the_moment_of_the_swap_is_not_divided(
    outcomes: dict[str, Outcome], name: str
) -> None:
    left = outcomes[name]
    assert left.code == 3
    left.check_whole()
    assert [p.name for p in (left.folder / "runs").iterdir()] == [left.run.name]


def test_check_ends_early_with_a_bound(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["check"].code == 3
    assert "bound" in outcomes["check"].stderr
    assert outcomes["check early"].code == 3
    assert "no schedule yet" in outcomes["check early"].stderr


def test_finished_rows_are_printed(outcomes: dict[str, Outcome]) -> None:
    compare, regress = outcomes["compare"], outcomes["regress"]
    assert compare.code == regress.code == 3
    assert [row["method"] for row in json.loads(compare.stdout)] == ["heuristic"]
    assert "interrupted: 1 rows are finished" in compare.stderr
    assert [c["scenario"] for c in json.loads(regress.stdout)] == ["peft-paper"]
    assert "1 of 2 were not run" in regress.stderr
    junit = (regress.folder / "junit.xml").read_text()
    assert 'skipped="1"' in junit


# The Python API


class _StopAt(SchedulerObserver):
    def __init__(self, stop: Stop, count: int) -> None:
        self.stop, self.count = stop, count

    def evaluated(self, candidate: Candidate, budget: SearchBudget) -> None:
        if candidate.index + 1 == self.count:
            self.stop.request()


def test_a_stop_of_the_caller() -> None:
    stop = Stop()
    result = schedule(load(Path(TINY)), _StopAt(stop, 3), stop=stop)
    assert result.interrupted
    assert result.exit_code == 3
    assert result.search is not None
    assert result.schedule is not None
    assert len(result.search.candidates) == 3
    validate(result.schedule)


def test_a_stop_before_the_start() -> None:
    stop = Stop()
    stop.request()
    result = schedule(load(Path(TINY)), stop=stop)
    assert (result.verdict, result.schedule) == (Verdict.UNKNOWN, None)
    assert result.interrupted
    assert result.exit_code == 3
    with pytest.raises(Interrupted, match="start"):
        stop.check("start")


def test_the_public_call_takes_a_stop(tmp_path: Path) -> None:
    stop = Stop()
    stop.request()
    result = raptor_cp.schedule(TINY, out=tmp_path / "run", stop=stop)
    assert result.interrupted
    assert not (tmp_path / "run").exists()


def test_a_proof_is_whole_although_the_run_was_stopped() -> None:
    class Late(SchedulerObserver):
        def phase(self, name: str) -> None:
            if name == "proofs":
                stop.request()

    stop = Stop()
    path = SCENARIOS / "vgg16-arch-a-infeasible.yaml"
    result = schedule(load(path), Late(), stop=stop)
    assert result.verdict is Verdict.INFEASIBLE
    assert not result.interrupted


# Solves


HARD = SolveSettings(presolve=False, symmetry_level=0, linearization_level=0)


def pigeons(count: int) -> cp_model.CpModel:
    """More pigeons than holes, without what would make it easy."""
    model = cp_model.CpModel()
    at = [[model.new_bool_var("") for _ in range(count - 1)] for _ in range(count)]
    for row in at:
        model.add_bool_or(row)
    for hole in range(count - 1):
        for a in range(count):
            for b in range(a):
                model.add_bool_or([~at[a][hole], ~at[b][hole]])
    return model


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_solve_is_ended_from_outside(by_signal: bool) -> None:
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(stopping_on_signals()) if by_signal else Stop()
        budget = SolveBudget(1000.0, stop=stop)
        if by_signal:
            end = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        else:
            end = threading.Timer(0.3, stop.request)
        end.start()
        stack.callback(end.join)
        begin = time.monotonic()
        outcome = solve(pigeons(16), budget, what="pigeons", settings=HARD)
        assert time.monotonic() - begin < 20
        assert outcome.record.status is SolverClaim.UNKNOWN
        assert not outcome.record.reproducible
        assert "interrupted" in outcome.record.note
        assert budget.remaining == 0.0
        after = solve_confirmed(pigeons(3), budget, what="after")
        assert after.verdict is Verdict.UNKNOWN
        assert after.record.note == "interrupted"


def test_records_of_all_solves_are_told() -> None:
    told: list[str] = []
    budget = SolveBudget(10.0, on_solve=lambda record: told.append(record.what))
    part = budget.share(1.0)
    solve(pigeons(3), part, what="part")
    budget.absorb(part)
    solve(pigeons(3), budget, what="whole")
    assert told == ["part", "whole"]


# Signals


def test_handlers_are_put_back_and_the_second_signal_raises() -> None:
    before = [signal.getsignal(number) for number in (INT, TERM)]
    with stopping_on_signals() as stop:
        os.kill(os.getpid(), INT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), TERM)
        reached: list[bool] = []

        def together() -> None:
            with shielded():
                os.kill(os.getpid(), INT)
                reached.append(True)

        with pytest.raises(KeyboardInterrupt):
            together()
        assert reached
    assert [signal.getsignal(number) for number in (INT, TERM)] == before


def test_ignored_signals_stay_ignored() -> None:
    old = signal.signal(INT, signal.SIG_IGN)
    try:
        with stopping_on_signals() as stop:
            os.kill(os.getpid(), INT)
            assert not stop.requested
        assert signal.getsignal(INT) is signal.SIG_IGN
    finally:
        signal.signal(INT, old)


def test_outside_the_main_thread_only_the_caller_stops() -> None:
    seen: list[bool] = []

    def body() -> None:
        with stopping_on_signals() as stop:
            seen.append(stop.requested)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [False]


def test_the_last_resort_ends_what_python_cannot(tmp_path: Path) -> None:
    """Compiled code that holds the interpreter back: the process ends all the same."""
    code = (
        "import hashlib, os, sys, threading, time\n"
        "from raptor_cp.cli.running import interruptible\n"
        "def twice():\n"
        "    for _ in range(2):\n"
        "        time.sleep(0.3); os.kill(os.getpid(), 2)\n"
        "threading.Thread(target=twice, daemon=True).start()\n"
        "with interruptible():\n"
        "    hashlib.pbkdf2_hmac('sha256', b'x', b'y', 10**9)\n"
    )
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 3
    assert done.stderr == b"error: interrupted twice, ended at once\n"
    assert time.monotonic() - begin < 30


# A terminal


def test_bars_count_the_budgets_until_ctrl_c(tmp_path: Path) -> None:
    arguments = ["schedule", str(SCENARIOS / "resnet18-arch-a.yaml")]
    code, seen = on_terminal(
        arguments, tmp_path, until=b"evaluations", send=signal.SIGINT
    )
    assert code == 3, seen.decode(errors="replace")
    assert re.search(rb"\d+/32", seen)
    assert re.search(rb"\d+/128", seen)
    assert b"best" in seen
    assert b"interrupted" in seen
    (run,) = (tmp_path / "runs").iterdir()
    check_schedule_document((run / "schedule.json").read_text())


@pytest.mark.parametrize(
    "environment",
    [
        {
            "LC_ALL": "C",
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "NO_COLOR": "1",
        },
        pytest.param(
            {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}, marks=pytest.mark.slow
        ),
    ],
)
def test_bars_in_ascii(tmp_path: Path, environment: dict[str, str]) -> None:
    code, seen = on_terminal(["schedule", TINY], tmp_path, environment=environment)
    assert code == 0, seen.decode(errors="replace")
    assert b"packings" in seen
    assert seen.isascii()
    assert rb"\u" not in seen
    if "NO_COLOR" in environment:
        assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", seen)


def test_no_bars_where_the_cursor_cannot_move(tmp_path: Path) -> None:
    code, seen = on_terminal(["schedule", TINY], tmp_path, environment={"TERM": "dumb"})
    assert code == 0
    assert b"packings  " not in seen
    assert b"\x1b[2K" not in seen


@pytest.mark.parametrize("number", [INT, TERM])
def test_other_commands_end_with_one_sentence(tmp_path: Path, number: int) -> None:
    """A command without a stop of its own, ended while it works."""
    code = (
        "import os, sys\n"
        "from raptor_cp.network import zoo\n"
        "from raptor_cp.cli.entry import main\n"
        f"zoo.build = lambda name: os.kill(os.getpid(), {number})\n"
        "sys.argv[1:] = ['zoo']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=tmp_path, timeout=60
    )
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr == b"error: interrupted\n"


@pytest.mark.slow
def test_ctrl_c_reaches_the_solver(tmp_path: Path) -> None:
    arguments = ["schedule", str(SCENARIOS / "bert-block-latency.yaml")]
    code, seen = on_terminal(
        [*arguments, "--set", "latency.method=cp-sat"],
        tmp_path,
        until=b"solves",
        send=signal.SIGINT,
    )
    assert code == 3, seen.decode(errors="replace")
    (run,) = (tmp_path / "runs").iterdir()
    check_schedule_document((run / "schedule.json").read_text())
    assert json.loads((run / "result.json").read_text())["termination"] == "interrupted"
