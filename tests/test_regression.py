"""Regression runs: tolerances, JUnit XML, history; a failing scenario ends nothing."""

from __future__ import annotations

import json
import multiprocessing
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from raptor_cp import regression
from raptor_cp.cli.app import app
from raptor_cp.errors import MalformedInput
from raptor_cp.interruption import Stop
from raptor_cp.regression import (
    FIGURES,
    RegressionCase,
    expected_path,
    history_run,
    junit_document,
    recorded_figures,
    regress,
    regress_all,
)
from raptor_cp.reports.history import (
    HistoryEntry,
    HistoryRun,
    Trend,
    append_run,
    history_html,
    read_history,
)
from raptor_cp.reports.junit import JunitCase, junit_xml
from raptor_cp.tolerance import Tolerance, parse_tolerances

if TYPE_CHECKING:
    from pathlib import Path

CHAIN = """\
schema: raptor-cp/1
name: NAME
network:
  tasks:
    - {id: a, execution_ns: 500, weights: [u]}
    - {id: b, execution_ns: 700, weights: [v]}
  edges: [{src: a, dst: b, bytes: 8}]
  weights: [{id: u, slots: 3}, {id: v, slots: 4}]
target: {kind: table, cores: 2, slots_per_core: 5}
pipeline: {stages: 2}
"""


def scenario(folder: Path, name: str = "chain", time: int = 700) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(CHAIN.replace("NAME", name).replace("700", str(time)))
    return path


def change(path: Path, **figures: object) -> None:
    """Change a recorded result."""
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | figures))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["regress", *arguments])


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = scenario(tmp_path)
    assert regress(path, update=True).passed
    return path


# Tolerances


@pytest.mark.parametrize(
    ("text", "old", "inside", "outside"),
    [
        ("0", 100, (100,), (99, 101)),
        ("1%", 1000, (990, 1000, 1010), (989, 1011)),
        ("0.1 %", 10**15, (10**15 + 10**12,), (10**15 + 10**12 + 1,)),
        (5, -10, (-15, -5), (-16, -4)),
        ("100%", 0, (0,), (1,)),
    ],
)
def test_tolerances_are_decided_exactly(
    text: object, old: int, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    tolerance = Tolerance.parse(text, "x")
    assert all(tolerance.allows(old, new) for new in inside)
    assert not any(tolerance.allows(old, new) for new in outside)
    again = Tolerance.parse(str(tolerance), "x")
    assert again == tolerance


@pytest.mark.parametrize("text", ["", "-1", "1e3", "%", "nan", "1%%", True, None, 1.5])
def test_what_is_no_tolerance(text: object) -> None:
    with pytest.raises(MalformedInput, match="not a tolerance"):
        Tolerance.parse(text, "x")


def test_a_figure_within_its_tolerance_is_the_same(chain: Path) -> None:
    path = expected_path(chain, "chain")
    found = json.loads(path.read_text())["interval_ns"]
    change(path, interval_ns=found + 5)
    exact = regress(chain)
    assert [d.key for d in exact.differences] == ["interval_ns"]
    assert regress(chain, tolerances={"interval_ns": Tolerance.parse(5, "")}).passed
    low = regress(chain, tolerances=parse_tolerances(["interval_ns=4"]))
    assert low.differences[0].expected == f"{found + 5} (tolerance 4)"
    assert low.differences[0].found == str(found)
    change(path, tolerances={"interval_ns": "1%"})
    assert regress(chain).passed
    assert not regress(chain, tolerances=parse_tolerances(["interval_ns=0"])).passed
    # a figure that is no longer there is a difference whatever the tolerance
    change(path, slots_needed=7, tolerances={"slots_needed": "100%"})
    assert "slots_needed" in [d.key for d in regress(chain).differences]


def test_an_update_keeps_tolerances_and_records_given_ones(chain: Path) -> None:
    path = expected_path(chain, "chain")
    change(path, interval_ns=1, tolerances={"interval_ns": "2%"})
    assert regress(chain, update=True, tolerances=parse_tolerances(["mvmul=3"])).passed
    document = json.loads(path.read_text())
    assert document["tolerances"] == {"interval_ns": "2%", "mvmul": "3"}
    assert document["interval_ns"] != 1
    path.write_text("{")
    with pytest.raises(MalformedInput, match="--update"):
        regress(chain)
    assert regress(chain, update=True).passed  # what the message says to do


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("interval=1%", "did you mean 'interval_ns'"),
        ("interval_ns", "FIGURE=TOLERANCE"),
        ("interval_ns=x", "not a tolerance"),
        ("verdict=1", "no such figure"),
    ],
)
def test_a_wrong_tolerance_is_one_sentence(
    chain: Path, argument: str, part: str
) -> None:
    result = run(str(chain), "--tolerance", argument)
    assert result.exit_code == 2
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1
    name, _, value = argument.partition("=")
    change(expected_path(chain, "chain"), tolerances={name: value})
    assert run(str(chain)).exit_code == 2


def test_all_figures_are_figures_of_the_record(chain: Path) -> None:
    result = regress(chain).result
    assert result is not None
    assert set(FIGURES) <= set(recorded_figures(result))


# Runs of many


def test_a_failing_scenario_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = scenario(tmp_path, "good")
    regress(good, update=True)
    slow = scenario(tmp_path, "slower")
    regress(slow, update=True)
    scenario(tmp_path, "slower", time=900)
    new = scenario(tmp_path, "new")
    broken = tmp_path / "broken.yaml"
    broken.write_text("schema: raptor-cp/1\n")
    paths = [broken, slow, new, tmp_path / "absent.yaml", good]
    cases = regress_all(paths)
    assert [case.exit_code for case in cases] == [2, 1, 1, 2, 0]
    result = run(*map(str, paths), "--json", "--junit", str(tmp_path / "j" / "j.xml"))
    assert result.exit_code == 2
    assert "1 of 5 scenarios as expected" in result.stderr
    rows = json.loads(result.stdout)
    assert [row["passed"] for row in rows] == [False, False, False, False, True]
    assert "absent.yaml" in rows[3]["error"]
    assert {d["key"] for d in rows[1]["differences"]} >= {"interval_ns"}
    suite = ElementTree.parse(tmp_path / "j" / "j.xml").getroot()
    check_junit(suite)
    assert suite.attrib["tests"] == "5"
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("2", "2")

    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(regression, "schedule", bug)
    (case,) = regress_all([good])
    assert case.exit_code == 4
    assert "ZeroDivisionError: surprise" in str(case.error)


def test_folders_and_files_together(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    for name in ("one", "two"):
        regress(scenario(folder, name), update=True)
    alone = scenario(tmp_path)
    regress(alone, update=True)
    result = run(str(folder), str(alone), "--json")
    assert result.exit_code == 0
    names = [row["scenario"] for row in json.loads(result.stdout)]
    assert names == ["one", "two", "chain"]


def test_a_stop_leaves_the_rest_out(tmp_path: Path) -> None:
    stop = Stop()
    paths = [scenario(tmp_path, name) for name in ("one", "two", "three")]
    cases = regress_all(paths, on_case=lambda case: stop.request(), stop=stop)
    assert [case.scenario for case in cases] == ["one"]
    assert not expected_path(paths[0], "two").exists()


# JUnit XML

_ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "disabled", "errors"},
    "testsuite": {
        "name", "tests", "failures", "errors", "group", "time", "skipped",
        "timestamp", "hostname", "id", "package", "file", "log", "url", "version",
    },
    "testcase": {"name", "assertions", "time", "classname", "status"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
}  # fmt: skip
_CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped"},
    "failure": set(),
    "error": set(),
    "skipped": set(),
}  # type: dict[str, set[str]]


def check_junit(element: ElementTree.Element) -> None:
    """The rules of the common JUnit schema that a reader depends on."""
    assert set(element.attrib) <= _ATTRIBUTES[element.tag]
    if element.tag == "testcase":
        assert {"name", "classname", "time"} <= set(element.attrib)
        assert len(element) <= 1
    if "time" in element.attrib:
        assert re.fullmatch(r"\d+\.\d{3}", element.attrib["time"])
    if element.tag in ("testsuites", "testsuite"):
        cases = list(element.iter("testcase"))
        assert element.attrib["tests"] == str(len(cases))
        for name, tag in (("failures", "failure"), ("errors", "error")):
            count = sum(case.find(tag) is not None for case in cases)
            assert element.attrib[name] == str(count)
    for child in element:
        assert child.tag in _CHILDREN[element.tag]
        check_junit(child)


@given(st.lists(st.tuples(st.text(), st.text(), st.sampled_from(["", "f", "e", "s"]))))
def test_any_text_is_legal_xml(rows: list[tuple[str, str, str]]) -> None:
    cases = [
        JunitCase(
            name, "c", 0.0,
            failure=f"x{text}" if kind == "f" else "",
            error=f"x{text}" if kind == "e" else "",
            skipped=f"x{text}" if kind == "s" else "",
        )
        for name, text, kind in rows
    ]  # fmt: skip
    root = ElementTree.fromstring(junit_xml("suite", cases))
    check_junit(root)
    assert root.attrib["failures"] == str(sum(kind == "f" for _, _, kind in rows))


def test_what_differs_stands_in_the_failure(chain: Path) -> None:
    change(expected_path(chain, "chain"), interval_ns=1, mvmul=3)
    root = ElementTree.fromstring(junit_document([regress(chain)]))
    failure = root.find(".//failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("interval_ns: expected 1, found ")
    assert failure.text is not None
    assert "mvmul: expected 3, found null" in failure.text


# History


def entry(
    name: str = "a", value: float | None = 1, passed: bool = True
) -> HistoryEntry:
    return HistoryEntry(name, passed, 0.25, {"interval_ns": value})


def history(*values: float | None) -> list[HistoryRun]:
    return [
        HistoryRun(f"2026-01-{n + 1:02}T00:00:00+00:00", "1.0", (entry(value=v),))
        for n, v in enumerate(values)
    ]


def test_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "h.jsonl"
    runs = history(5, None, 7.5)
    for one in runs:
        append_run(path, one)
    assert read_history(path) == (tuple(runs), 0)
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    runs = history(1, 2, 3)
    append_run(path, runs[0])
    with path.open("ab") as stream:
        stream.write(runs[1].to_line().encode()[:40])
    append_run(path, runs[2])
    found, torn = read_history(path)
    assert found == (runs[0], runs[2])
    assert torn == 1
    assert "1 line of the history could not be read" in history_html(found, torn)


def _append_many(path: Path, count: int) -> None:
    for one in history(*range(count)):
        append_run(path, one)


def test_runs_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(path, 25)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    runs, torn = read_history(path)
    assert (len(runs), torn) == (50, 0)


def test_somebody_elses_file_is_left_alone(tmp_path: Path, chain: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    result = run(str(chain), "--history-file", str(path))
    assert result.exit_code == 2
    assert "left alone" in result.stderr
    assert path.read_text() == "mine\n"


class _Page(HTMLParser):
    """Tags that are open must be closed, in order."""

    VOID = frozenset({"meta", "circle", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href")
            assert value is None or "javascript" not in value
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_the_page_stands_alone_and_repeats_itself() -> None:
    runs = history(1000, None, 1100, 990)
    text = history_html(runs)
    assert text == history_html(runs)
    page = _Page(text)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "http" not in re.sub("http-equiv", "", text)
    assert page.tags.count("svg") == 2  # interval and seconds
    assert page.tags.count("polyline") == 3  # the gap divides the first
    assert "-10.00 %" in page.texts
    assert "first 1,000, last 990, least 990, most 1,100" in text
    assert _Page(history_html([])).texts.count("No runs yet.") == 1


def test_names_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>\"'&{{ 7*7 }}"
    bad = HistoryEntry(evil, False, 1.0, {evil: 3})
    text = history_html([HistoryRun(evil, evil, (bad, entry("b")))])
    page = _Page(text)
    assert "script" not in page.tags
    assert "{{ 7*7 }}" in text
    assert "&lt;script&gt;" in text


def test_sparklines_lie_inside_their_picture() -> None:
    for values in ([5], [5, 5], [1, None, 3], [None, 2**60, 1, 0]):
        trend = Trend.of("x", values)
        for line in trend.points:
            for point in line.split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 160
                assert 0 <= y <= 28
    assert Trend.of("x", [None]).points == ()
    assert Trend.of("x", [10, 11]).change == pytest.approx(0.1)
    assert Trend.of("x", [0, 11]).change is None


def test_the_command_appends_and_draws(tmp_path: Path, chain: Path) -> None:
    page = tmp_path / "out" / "history.html"
    for _ in range(2):
        assert run(str(chain), "--history", str(page)).exit_code == 0
    runs, torn = read_history(tmp_path / "out" / "history.jsonl")
    assert (len(runs), torn) == (2, 0)
    assert runs[0].entries[0].figures == runs[1].entries[0].figures
    assert runs[0].entries[0].figures["interval_ns"] > 0  # type: ignore[operator]
    assert "2 of 2 runs as expected" in page.read_text()
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "history.html",
        "history.jsonl",
    ]


def test_the_page_cannot_replace_the_history(tmp_path: Path, chain: Path) -> None:
    result = run(str(chain), "--history", str(tmp_path / "h.jsonl"))
    assert result.exit_code == 2
    assert "HTML page" in result.stderr


def test_two_scenarios_of_one_name_have_no_history() -> None:
    case = RegressionCase("same", (), True)
    with pytest.raises(MalformedInput, match="one name"):
        history_run([case, case], "now")
