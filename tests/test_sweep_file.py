"""Sweep files: order of points, and every wrong one is one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.sweeps import load_sweep, sweep_from_mapping
from raptor_cp.sweeps.sweep_file import MAX_POINTS, SCHEMA, json_schema
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEAD = f"schema: {SCHEMA}\nscenarios: [a.yaml, b.yaml]\n"


def sweep(folder: Path, text: str, name: str = "s.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_grid_then_list_for_each_scenario_last_key_fastest(tmp_path: Path) -> None:
    found = load_sweep(
        sweep(
            tmp_path,
            HEAD + "grid: {x.a: [1, 2], y: [[3], {z: 4}]}\npoints: [{x.a: 9}, {}]\n"
            "set: {w: true}\nname: n\nprogram: true\n",
        )
    )
    each: list[dict[str, object]] = [
        {"x.a": 1, "y": (3,)},
        {"x.a": 1, "y": {"z": 4}},
        {"x.a": 2, "y": (3,)},
        {"x.a": 2, "y": {"z": 4}},
        {"x.a": 9},
        {},
    ]
    assert [(p.scenario, p.overrides) for p in found.points] == [
        (tmp_path / name, overrides)
        for name in ("a.yaml", "b.yaml")
        for overrides in each
    ]
    assert (found.name, found.common, found.program) == ("n", {"w": True}, True)


def test_without_overrides_each_scenario_is_a_point(tmp_path: Path) -> None:
    found = load_sweep(sweep(tmp_path, HEAD, "my sweep (1).yaml"))
    assert [dict(point.overrides) for point in found.points] == [{}, {}]
    assert found.name == "my-sweep--1-"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[1]", ["a sweep is a mapping", SCHEMA]),
        ("", ["a sweep is a mapping"]),
        ("scenarios: [a.yaml]", ["schema version", SCHEMA]),
        ("schema: raptor-cp/1\nscenarios: [a.yaml]", ["s.yaml:1", "schema version"]),
        (f"schema: {SCHEMA}", ["scenarios", "missing"]),
        (f"schema: {SCHEMA}\nscenarios: []", ["s.yaml:2", "scenarios", "at least 1"]),
        (HEAD + "gird: {}", ["s.yaml:3", "'gird'", "did you mean 'grid'?"]),
        (HEAD + "grid: {a.b: 3}", ["s.yaml:3", "grid.a.b", "3"]),
        (HEAD + "grid: {a.b: []}", ["grid.a.b", "at least 1"]),
        (HEAD + "grid: {a=b: [1]}", ["grid"]),
        (HEAD + "grid: {a: [.nan]}", ["grid", "finite numbers"]),
        (HEAD + "points: [{a: 2026-01-01}]", ["points", "quote dates"]),
        (HEAD + "points: {a: 1}", ["points"]),
        (HEAD + "points: [3]", ["points.0", "3"]),
        (HEAD + "program: yes please", ["program", "'yes please'"]),
        (HEAD + "name: ../x", ["name", "'../x'"]),
        (HEAD + "grid: {a: [1], a: [2]}", ["stands twice"]),
        (HEAD + "grid: {a: [1", ["not legal YAML"]),
    ],
)
def test_wrong_file_is_one_sentence(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    with pytest.raises(MalformedInput) as caught:
        load_sweep(sweep(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_too_many_points(tmp_path: Path) -> None:
    values = list(range(400))
    with pytest.raises(MalformedInput, match="too many points") as caught:
        sweep_from_mapping(
            {
                "schema": SCHEMA,
                "scenarios": ["a.yaml"],
                "grid": {"a": values, "b": values},
            },
            tmp_path,
        )
    assert f"{MAX_POINTS:,}" in str(caught.value)


def test_mapping_and_file_mean_the_same(tmp_path: Path) -> None:
    document = {"schema": SCHEMA, "scenarios": ["a.yaml"], "grid": {"x": [1, 2]}}
    path = sweep(
        tmp_path, f"schema: {SCHEMA}\nscenarios: [a.yaml]\ngrid: {{x: [1, 2]}}",
        "sweep.yaml",
    )  # fmt: skip
    assert sweep_from_mapping(document, tmp_path) == load_sweep(path)


def test_shipped_sweeps_are_legal() -> None:
    for path in sorted((ROOT / "scenarios" / "sweeps").glob("*.yaml")):
        found = load_sweep(path)
        assert found.name == path.stem
        assert all(point.scenario.is_file() for point in found.points)


def test_schema_of_sweep_files_accepts_the_shipped_ones() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    for path in sorted((ROOT / "scenarios" / "sweeps").glob("*.yaml")):
        jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())
