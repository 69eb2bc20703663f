"""Scenario files: every kind of wrong input is one sentence with its place."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import json_schema, load, load_or_builtin, loads, scenario_files
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

BASE = """\
schema: raptor-cp/1
name: t
network: {zoo: resnet18}
target: {kind: pim}
"""


def complaint(text: str) -> str:
    with pytest.raises(MalformedInput) as caught:
        loads(text, name="s.yaml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("s.yaml")
    assert caught.value.exit_code == 2
    return message


@pytest.mark.parametrize(
    ("extra", "line", "parts"),
    [
        ("search: {beem: 2}", 5, ["search.beem", "unknown key", "'beam'"]),
        ("serach: {beam: 2}", 5, ["serach", "unknown key", "'search'"]),
        ("pipeline:\n  stages: two", 6, ["pipeline.stages", "'two'", "integer"]),
        ("pipeline: {stages: 0}", 5, ["pipeline.stages", "0", "1"]),
        ("pipeline: {stages: true}", 5, ["pipeline.stages", "True", "integer"]),
        ("pipeline: {stages: 2.5}", 5, ["pipeline.stages", "2.5", "integer"]),
        ("search: {beam: 3}", 5, ["search.beam", "3", "2"]),
        ("search: {queue_evaluations: 33}", 5, ["queue_evaluations", "33", "32"]),
        ("search: {packings: 129}", 5, ["search.packings", "129", "128"]),
        ("search: {seeds: [cp-sat]}", 5, ["search", "dp"]),
        ("solver: {deterministic_time: .nan}", 5, ["deterministic_time", "nan"]),
        ("solver: {deterministic_time: .inf}", 5, ["deterministic_time", "inf"]),
        ("mode: fast", 5, ["mode", "'fast'", "'pipeline'"]),
        ("lowering: 3", 5, ["lowering", "3"]),
        ("expect: {verdict: MAYBE}", 5, ["expect.verdict", "'MAYBE'"]),
        ("mode: latency\nmode: latency", 6, ["stands twice", "'mode'"]),
        ("pipeline: [1", 6, ["not legal YAML"]),
        ("? [a]\n: 1", 5, ["key must be a word"]),
        (
            "pipeline: {constraints: {cores: {a: {min: 3, max: 2}}}}",
            5,
            ["constraints.cores.a", "min 3 is above max 2"],
        ),
    ],
)
def test_wrong_value_names_place_value_and_expectation(
    extra: str, line: int, parts: list[str]
) -> None:
    message = complaint(BASE + extra + "\n")
    assert message.startswith(f"s.yaml:{line}: "), message
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("{kind: pim, cores: 0}", ["target.cores", "0", "1"]),
        ("{kind: foo}", ["target", "pim, pe or table"]),
        ("{kind: pim, confg: x}", ["target.confg", "'config'"]),
        ("{kind: table}", ["target.cores", "missing"]),
        ("{kind: table, cores: 2, link_ns: [[0, -1]]}", ["link_ns.0.1", "-1"]),
        ("3", ["target"]),
    ],
)
def test_wrong_target(target: str, parts: list[str]) -> None:
    message = complaint(BASE.replace("{kind: pim}", target))
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize(
    ("network", "parts"),
    [
        ("{tasks: []}", ["network.tasks", "at least 1"]),
        ("{operations: []}", ["network.operations", "at least 1"]),
        ("{tasks: [{id: a, execution_ns: -5}]}", ["execution_ns", "-5"]),
        (
            "{tasks: [{id: a, execution_ns: 99999999999999999999999}]}",
            ["execution_ns", "99999999999999999999999", "4398046511104"],
        ),
        ("{tasks: [{id: a, execution_ns: .nan}]}", ["execution_ns", "nan"]),
        ("{tasks: [{id: a}]}", ["exactly one of execution_ns and commands"]),
        ("{zoo: a, onnx: b}", ["onnx", "unknown key"]),
        ("{zo: resnet18}", ["network", "zoo, onnx"]),
    ],
)
def test_wrong_network(network: str, parts: list[str]) -> None:
    message = complaint(BASE.replace("{zoo: resnet18}", network))
    for part in parts:
        assert part in message, message


def test_schema_version_is_required() -> None:
    assert "raptor-cp/1" in complaint("name: t\n")
    assert "raptor-cp/1" in complaint(BASE.replace("raptor-cp/1", "raptor-cp/9"))
    assert "mapping" in complaint("[1, 2]\n")
    assert "mapping" in complaint("")


def test_nested_aliases_do_not_explode() -> None:
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{after}: &{after} [{', '.join(['*' + before] * 10)}]\n"
    assert "too many" in complaint(text)
    assert "deep" in complaint("[" * 5000 + "]" * 5000)


def test_unreadable_files(tmp_path: Path) -> None:
    for path, part in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "folder"),
    ):
        with pytest.raises(MalformedInput, match=part) as caught:
            load(path)
        assert str(path) in str(caught.value)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"schema: \xff\xfe")
    with pytest.raises(MalformedInput, match="not UTF-8"):
        load(binary)


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_sentence(text: str) -> None:
    # almost no text is a scenario, so this almost always raises, and only this
    with pytest.raises(MalformedInput) as caught:
        loads("x: 1\n" + text)
    assert "\n" not in str(caught.value)


def test_overrides_are_yaml_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE)
    loaded = load(path, ("pipeline.stages=3", "search.seeds=[dp]", "name=other"))
    assert loaded.scenario.pipeline.stages == 3
    assert loaded.scenario.search.seeds == ("dp",)
    assert loaded.scenario.name == "other"
    for text, part in (
        ("pipeline.stages", "key.path=value"),
        ("=3", "key.path=value"),
        ("pipeline.stages=x", "'x'"),
        ("name.x=1", "plain value"),
        ("pipeline.stagez=1", "'stages'"),
        ("pipeline.stages=[1", "not legal YAML"),
    ):
        with pytest.raises(MalformedInput) as caught:
            load(path, (text,))
        assert part in str(caught.value)


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE)
    assert load(path).path("a/b.json") == tmp_path / "a" / "b.json"


def test_resolved_scenario_loads_back_equal() -> None:
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        scenario = load(path).scenario
        again = loads(yaml.safe_dump(scenario.to_dict(), sort_keys=False)).scenario
        assert again == scenario, path.name


def test_builtin_scenario_is_the_shipped_one() -> None:
    assert (
        load_or_builtin(None).scenario
        == load(ROOT / "scenarios" / "resnet18-arch-a.yaml").scenario
    )


def test_committed_schema_is_current() -> None:
    committed = json.loads((ROOT / "scenarios" / "schema.json").read_text())
    assert committed == json_schema()


def test_scenario_names_are_file_names() -> None:
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        assert load(path).scenario.name == path.stem


def test_folders_of_scenarios(tmp_path: Path) -> None:
    assert len(scenario_files([ROOT / "scenarios"])) >= 8
    with pytest.raises(MalformedInput, match="no scenario files"):
        scenario_files([tmp_path])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_file_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE)
    path.chmod(0)
    with pytest.raises(MalformedInput, match="cannot be read"):
        load(path)
