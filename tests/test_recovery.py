"""Backend recovery: a candidate that does not fit is rejected and selection repeats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.realization import events
from raptor_cp.reports.schemas import SCHEMAS
from raptor_cp.run_output import write_run
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.target import BackendResult
from raptor_cp.targets.pim.target import PimTarget
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.result import ScheduleResult
    from raptor_cp.schedules import Schedule

TINY = load(ROOT / "scenarios" / "tiny-residual.yaml", ("search.queue_evaluations=4",))


def run(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[str]
) -> tuple[ScheduleResult, list[Schedule]]:
    """Schedule with a backend that answers ``outcomes`` in turn."""
    seen: list[Schedule] = []

    def lower(self: PimTarget, plan: object, *_: object, **__: object) -> BackendResult:
        seen.append(plan.schedule)  # type: ignore[attr-defined]
        outcome = outcomes[min(len(seen), len(outcomes)) - 1]
        return BackendResult(outcome, () if outcome == "built" else ("too large",))

    monkeypatch.setattr(PimTarget, "lower", lower)
    return schedule(TINY, program=True), seen


def test_only_the_selected_candidate_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, seen = run(monkeypatch, ["built"])
    assert len(seen) == 1
    assert seen[0] is result.schedule
    assert [a["outcome"] for a in result.attempts] == ["built"]


def test_rejected_candidates_are_tried_once_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, seen = run(monkeypatch, ["rejected", "rejected", "built"])
    assert result.verdict.has_solution
    tried = [a["candidate"] for a in result.attempts]
    assert len(tried) == len(set(tried)) == 3
    assert [a["outcome"] for a in result.attempts] == ["rejected", "rejected", "built"]
    assert len({id(s) for s in seen}) == 3


def test_when_all_fail_one_diagnostic_lists_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, seen = run(monkeypatch, ["rejected"])
    assert result.exit_code == 1  # the scenario expects FEASIBLE
    assert result.verdict == "UNKNOWN"
    assert result.search is not None
    assert len(seen) == len(result.search.candidates)
    for candidate in result.search.candidates:
        assert f"candidate {candidate.index}: too large" in result.reason


def test_refusal_is_not_the_candidates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    result, seen = run(monkeypatch, ["refused"])
    assert len(seen) == 1
    assert result.verdict.has_solution
    assert result.program is not None
    assert result.program.outcome == "refused"


def test_without_a_program_the_backend_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lower(*_: object, **__: object) -> BackendResult:
        raise AssertionError("the backend was asked")

    monkeypatch.setattr(PimTarget, "lower", lower)
    result = schedule(TINY)
    assert result.program is None
    assert result.plan is not None


def test_when_all_fail_the_selection_report_has_the_attempts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result, seen = run(monkeypatch, ["rejected"])
    write_run(result, tmp_path / "run")
    report = tmp_path / "run" / "reports" / "pipeline_selection.json"
    document = json.loads(report.read_text())
    jsonschema.validate(document, SCHEMAS["pipeline-selection"])
    assert document["chosen"] is None
    assert document["reason"] == "exhausted"
    assert [a["reasons"] for a in document["attempts"]] == [["too large"]] * len(seen)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "The backend rejected every candidate" in page


@pytest.mark.parametrize("accepted", [False, True])
def test_unavailable_timing_is_exit_3_and_never_called_a_queue_figure(
    accepted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(events, "MAX_VISITS_PER_CORE", 3)
    folder = tmp_path / "run"
    words = ["schedule", str(ROOT / "scenarios" / "tiny-residual.yaml"), "--no-solver"]
    words += ["--set", "expect={}", "--out", str(folder)]
    outcome = CliRunner().invoke(app, words + ["--accept-initial"] * accepted)
    selection = json.loads((folder / "reports" / "pipeline_selection.json").read_text())
    stopped = {(stop["candidate"], stop["property"]) for stop in selection["stops"]}
    assert {(0, "timing"), (0, "recurrence")} <= stopped
    assert (folder / "program").exists() == accepted
    figures = json.loads((folder / "result.json").read_text())
    if accepted:
        assert outcome.exit_code == 0
        assert figures["timing"] == "static"
        assert "(timing: static)" in outcome.stderr
        assert "timing: unproved" in outcome.stderr
    else:
        assert outcome.exit_code == 3
        assert figures["timing"] is None
