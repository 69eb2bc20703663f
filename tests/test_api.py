"""The public Python API: each operation of the command line is one call."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import raptor_cp as rc

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "scenarios" / "tiny-residual.yaml"


def test_names_are_calls_even_after_all_submodules_are_imported() -> None:
    script = (
        "import pkgutil, importlib, raptor_cp as rc\n"
        "for m in pkgutil.walk_packages(rc.__path__, 'raptor_cp.'):\n"
        "    if not m.name.endswith('__main__'):\n"
        "        importlib.import_module(m.name)\n"
        "import types\n"
        "for name in rc.__all__:\n"
        "    assert not isinstance(getattr(rc, name), types.ModuleType), name\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_import_loads_no_heavy_library() -> None:
    script = (
        "import sys, raptor_cp\n"
        "heavy = {'numpy', 'ortools', 'numba', 'onnx', 'matplotlib', 'pandas', 'rich',"
        " 'typer', 'pydantic', 'networkx', 'jinja2'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_schedule_certificate_and_document() -> None:
    result = rc.schedule(TINY)
    assert result.verdict is rc.Verdict.FEASIBLE
    assert result.certificate is not None
    assert result.certificate.gap == result.certificate.gap_interval
    document = result.to_dict()
    assert json.loads(json.dumps(document))["interval_ns"] == result.interval_ns
    assert result.program is None


def test_overrides_as_mapping_and_as_texts_are_the_same() -> None:
    by_text = rc.load(TINY, ["pipeline.stages=1", "network.weight_bits=8"])
    by_mapping = rc.load(TINY, {"pipeline.stages": 1, "network.weight_bits": 8})
    assert by_text == by_mapping
    assert rc.load(by_text) == by_text
    assert rc.load(TINY, "pipeline.stages=1") == rc.load(TINY, ["pipeline.stages=1"])


def test_scenario_as_mapping() -> None:
    document = {
        "schema": "raptor-cp/1",
        "name": "mapping",
        "network": {"zoo": "tiny-residual"},
        "target": {"kind": "pim", "config": "arch-a", "cores": 8},
        "pipeline": {"stages": 2},
    }
    result = rc.check(document, overrides={"pipeline.stages": 1})
    assert result.schedule is not None
    assert len(result.schedule.placement.stages) == 1
    with pytest.raises(rc.MalformedInput, match="schema"):
        rc.check({"name": "x"})


def test_run_folder_verify_and_diagnose(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = rc.schedule(TINY, out=out)
    assert result.program is not None
    assert result.program.outcome == "built"
    assert rc.verify(out, orders=1).equal
    timing = rc.diagnose(out / "program", "arch-a")
    assert timing.to_dict()["schema"]


def test_out_that_is_no_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(rc.MalformedInput):
        rc.schedule(TINY, out=tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_compare_rows() -> None:
    rows = rc.compare([TINY], methods=["heuristic"])
    assert [(row.scenario, row.method) for row in rows] == [
        ("tiny-residual", "heuristic")
    ]
    with pytest.raises(rc.MalformedInput, match="method"):
        rc.compare(TINY, methods=["magic"])


def test_networks_and_kernels() -> None:
    assert rc.read_network("tiny-residual").name == "tiny-residual"
    with pytest.raises(rc.MalformedInput):
        rc.read_network("no-such-network")
    assert rc.dispatch("gemm_composite").report.to_dict()


def test_sweep_from_a_mapping(tmp_path: Path) -> None:
    document = {
        "schema": "raptor-cp/sweep/1",
        "name": "two",
        "scenarios": [str(TINY)],
        "grid": {"pipeline.stages": [1, 2]},
    }
    report = rc.sweep(document, tmp_path / "two.sqlite", workers=1)
    assert [record.figures.stages for record in report.records] == [1, 2]
    assert rc.sweep(document, tmp_path / "two.sqlite", workers=1).ran == 0


def test_infeasible_is_an_answer() -> None:
    result = rc.check(ROOT / "scenarios" / "vgg16-arch-a-infeasible.yaml")
    assert result.verdict is rc.Verdict.INFEASIBLE
    assert "INFEASIBLE" in repr(result)
    assert "67576" in repr(result)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def test_notebook_forms_are_short_whole_and_escaped() -> None:
    result = rc.check(TINY, overrides={"name": "a.b"})
    assert len(repr(result)) < 200
    for thing in (result.schedule, result.search, result.loaded):
        assert len(repr(thing)) < 1500
    parser = _Text()
    parser.feed(result._repr_html_())
    assert not parser.open
    assert "a.b: FEASIBLE" in parser.text
    assert f"{result.interval_ns:,} ns" in parser.text
    assert "<b>" not in rc_html("<b>")


def rc_html(name: str) -> str:
    from raptor_cp.reports.notebook import result_html

    summary = dict.fromkeys(
        ("reason", "interval_ns", "latency_ns", "timing", "cores_used", "program")
    )
    return result_html(
        {**summary, "scenario": name, "verdict": "X", "certificate": None}, []
    )
