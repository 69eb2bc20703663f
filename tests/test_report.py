"""The HTML report: whole, escaped, without a network, the same for equal runs."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import raptor_cp as rc
from raptor_cp.cli.app import app
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = ROOT / "scenarios"
HOSTILE = "<script>alert(1)</script>]]>&amp;\"'`"

TWO = {
    "schema": "raptor-cp/1",
    "name": "two",
    "network": {
        "tasks": [
            {"id": HOSTILE, "execution_ns": 100, "weights": ["w"]},
            {"id": "b", "execution_ns": 80, "weights": ["w"]},
        ],
        "edges": [{"src": HOSTILE, "dst": "b", "bytes": 64}],
        "weights": [{"id": "w", "slots": 2}],
    },
    "target": {"kind": "table", "cores": 2, "slots_per_core": 4},
    "pipeline": {"stages": 2},
}
TINY = SCENARIOS / "tiny-residual.yaml"
EVERY = (
    *("certificate", "interval", "bottleneck", "stages", "placement", "timeline"),
    *("breakdown", "recurrence", "search", "scenario", "notes"),
)

#: Runs, and the sections that say why they are not there.
RUNS: dict[str, tuple[object, dict[str, object], set[str]]] = {
    "pipeline": (TINY, {}, set()),
    "direct": (TINY, {"pipeline.cross_stage": "direct"}, set()),
    "static": (TINY, {"search.timing": "static"}, set()),
    "single": (TINY, {"pipeline.stages": 1}, set()),
    "latency": (TINY, {"mode": "latency"}, {"stages", "recurrence", "search"}),
    "table": (TWO, {}, set()),
    "kernel": (SCENARIOS / "gqa-decode-pe.yaml", {}, set()),
    "infeasible": (
        SCENARIOS / "vgg16-arch-a-infeasible.yaml",
        {},
        set(EVERY) - {"scenario", "notes"},
    ),
}


class Page(HTMLParser):
    """What the rules below need to know about a page."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words += data + " "


def assert_sound(text: str) -> Page:
    """Rules that hold for every page."""
    page = Page(text)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        assert after <= before + 1, "a heading level is left out"
    names = [tag for tag, _ in page.tags]
    for landmark in ("header", "nav", "main", "footer"):
        assert names.count(landmark) == 1
    assert "script" not in names
    assert "iframe" not in names
    anchors = [given for tag, given in page.tags if tag == "a"]
    assert all(str(given["href"]).startswith("#") for given in anchors)
    assert {str(given["href"])[1:] for given in anchors} <= set(page.ids)
    assert names.count("table") == names.count("caption")
    for tag, given in page.tags:
        assert not any(name.startswith("on") for name in given)
        for name in ("src", "href", "action", "data"):
            assert str(given.get(name) or "#")[:1] == "#" or (tag == "link"), given
        if tag == "svg":
            assert given["role"] == "img"
            assert set(str(given["aria-labelledby"]).split()) <= set(page.ids)
        if tag == "th":
            assert given["scope"] in ("row", "col")
    outside = re.findall(r"(?:https?:)?//[a-z]", text)
    assert not outside
    assert "url(" not in text
    assert "@import" not in text
    return page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, (scenario, overrides, _) in RUNS.items():
        rc.schedule(scenario, overrides=overrides, out=folder / name, program=False)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_has_a_sound_page(name: str, runs: Path) -> None:
    text = (runs / name / "report.html").read_text("utf-8")
    page = assert_sound(text)
    absent = RUNS[name][2]
    sections = {str(given.get("id")) for tag, given in page.tags if tag == "section"}
    assert set(EVERY) - sections == absent
    assert absent <= set(page.ids), "a section that is left out says why"
    result = json.loads((runs / name / "result.json").read_text("utf-8"))
    assert result["verdict"] in page.words
    if result["interval_ns"] is not None:
        assert f"{result['interval_ns']:,} ns" in page.words
    assert "None" not in page.words
    assert "nan" not in page.words.split()


def test_names_are_text_and_never_markup(runs: Path) -> None:
    text = (runs / "table" / "report.html").read_text("utf-8")
    assert "<script>" not in text
    page = assert_sound(text)
    assert HOSTILE in page.words


def test_parts_of_the_interval_sum_to_it(runs: Path) -> None:
    text = (runs / "pipeline" / "report.html").read_text("utf-8")
    timeline = json.loads((runs / "pipeline/reports/timeline.json").read_text("utf-8"))
    section = text[text.index('id="breakdown"') : text.index('id="recurrence"')]
    rows = re.findall(r'<th scope="row".*?</tr>', section, re.DOTALL)
    numbers = [
        int(re.findall(r">\s*([\d,]+)\s*</td>", row)[0].replace(",", ""))
        for row in rows
    ]
    assert numbers[-1] == sum(numbers[:-1]) == timeline["window_ns"]


def test_equal_runs_have_equal_pages(runs: Path, tmp_path: Path) -> None:
    rc.schedule(TINY, out=tmp_path / "again", program=False)
    again = (tmp_path / "again" / "report.html").read_bytes()
    assert again == (runs / "pipeline" / "report.html").read_bytes()


def test_report_is_made_from_the_folder_alone(runs: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(runs / "pipeline", moved)
    (moved / "report.html").unlink()
    runner = CliRunner()
    result = runner.invoke(app, ["report", str(moved)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(moved / "report.html")
    again = (moved / "report.html").read_bytes()
    assert again == (runs / "pipeline" / "report.html").read_bytes()
    other = tmp_path / "deep" / "page.html"
    assert rc.report(moved, other) == other
    assert other.read_bytes() == again


@pytest.mark.parametrize("missing", ["timeline.json", "chip.json", "all"])
def test_a_folder_with_fewer_files_still_has_a_page(
    missing: str, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "pipeline", run)
    if missing == "all":
        shutil.rmtree(run / "reports")
    else:
        (run / "reports" / missing).unlink()
    assert_sound(rc.report(run).read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[]"),
        ("result.json", "{}"),
        ("schedule.json", "{}"),
        ("schedule.json", "[" * 100_000),
        ("reports/timeline.json", "{}"),
        ("reports/pipeline_periodic.json", '{"queues": 3}'),
        ("reports/pipeline_selection.json", "null"),
    ],
)
def test_broken_folders_are_one_sentence(
    name: str, content: str, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "pipeline", run)
    before = (run / "report.html").read_bytes()
    (run / name).write_text(content)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert (run / "report.html").read_bytes() == before


def test_no_run_folder_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        with pytest.raises(rc.MalformedInput, match="not a run folder"):
            rc.report(place)


@pytest.mark.slow
def test_page_of_a_large_network_is_small(tmp_path: Path) -> None:
    scenario = SCENARIOS / "resnet50-arch-a.yaml"
    rc.schedule(scenario, out=tmp_path / "run", program=False)
    assert (tmp_path / "run" / "report.html").stat().st_size <= 3 * 2**20
