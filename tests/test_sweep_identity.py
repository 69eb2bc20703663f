"""A point is what it means: equal content is one point, other content another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import load
from raptor_cp.sweeps import load_sweep
from raptor_cp.sweeps.identity import (
    Fingerprints,
    ResolvedPoint,
    changed_file,
    read_payload,
    resolve,
    workload,
)
from tests.conftest import ROOT
from tests.sweep_files import SCENARIO, write_sweep

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONFIG = ROOT / "targets" / "pim" / "configs"


def points(
    folder: Path, text: str = "", scenario: str = SCENARIO
) -> list[ResolvedPoint]:
    folder.mkdir(exist_ok=True)
    return resolve(load_sweep(write_sweep(folder, text, scenario)))


def test_values_that_mean_the_same_are_one_point(tmp_path: Path) -> None:
    found = points(
        tmp_path,
        "points: [{}, {pipeline.stages: 2}, {pipeline: {stages: 2}}, "
        "{target.slots_per_core: 2147483647}, {pipeline.stages: 3}]",
    )
    assert len({point.id for point in found[:4]}) == 1
    assert found[4].id != found[0].id
    assert [point.position for point in found] == [0, 1, 2, 3, 4]


def test_place_and_comments_do_not_matter_but_content_does(tmp_path: Path) -> None:
    here = points(tmp_path / "a")[0].id
    assert points(tmp_path / "b", "", "# moved\n" + SCENARIO)[0].id == here
    changed = SCENARIO.replace("execution_ns: 50", "execution_ns: 51")
    assert points(tmp_path / "b", "", changed)[0].id != here
    assert points(tmp_path / "b", "program: true")[0].id != here


def test_version_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = points(tmp_path)[0].id
    monkeypatch.setattr("raptor_cp.sweeps.identity.program_version", lambda: "9.9")
    assert points(tmp_path)[0].id != here


def test_files_count_by_content_not_by_name(tmp_path: Path) -> None:
    def of(folder: str, content: bytes, name: str = "model.onnx") -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes(content)
        scenario = (
            f"schema: raptor-cp/1\nname: m\nnetwork: {{onnx: {name}}}\n"
            "target: {kind: pim, config: arch-a}\n"
        )
        return points(tmp_path / folder, "", scenario)[0].id

    first = of("a", b"one")
    assert of("b", b"one", "other.onnx") == first
    assert of("a", b"two") != first
    assert of("a", b"one") == first
    (tmp_path / "a" / "model.onnx").unlink()
    missing = resolve(load_sweep(tmp_path / "a" / "sweep.yaml"))[0]
    assert missing.id != first
    assert not missing.error  # the run says what is wrong


def test_network_table_of_a_chip_counts(tmp_path: Path) -> None:
    document = {
        "chip_config": {"network_config": {"net_config_file_path": "net/table.json"}}
    }
    (tmp_path / "chip.json").write_text(json.dumps(document))
    (tmp_path / "net").mkdir()
    scenario = (
        "schema: raptor-cp/1\nname: m\nnetwork: {zoo: tiny-residual}\n"
        "target: {kind: pim, config: chip.json}\n"
    )
    seen = set()
    for content in ("1", "2"):
        (tmp_path / "net" / "table.json").write_text(content)
        seen.add(points(tmp_path, "", scenario)[0].id)
    assert len(seen) == 2


def test_files_that_options_of_a_plugin_name_count(tmp_path: Path) -> None:
    scenario = SCENARIO.replace(
        "{kind: table, cores: 3, link_ns: 1}",
        '{kind: theirs, options: {costs: [costs.csv, "\\0"], n: 1}}',
    )
    seen = set()
    for content in ("1", "2"):
        (tmp_path / "costs.csv").write_text(content)
        seen.add(points(tmp_path, "", scenario)[0].id)
    assert len(seen) == 2


def test_every_shipped_scenario_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    for path in sorted((ROOT / "scenarios").glob("*.yaml")):
        (tmp_path / "s.yaml").write_text(
            f"schema: raptor-cp/sweep/1\nscenarios: [{json.dumps(str(path))}]\n"
        )
        (point,) = resolve(load_sweep(tmp_path / "s.yaml"))
        loaded, _ = read_payload(point.payload)
        assert loaded == load(path), path.name
        assert point.scenario == path.stem


def test_malformed_point_has_a_sentence_and_an_identity(tmp_path: Path) -> None:
    good, typo, again = points(
        tmp_path, "points: [{}, {pipeline.stagez: 2}, {pipeline.stages: -1}]"
    )
    assert not good.error
    assert "did you mean 'stages'" in typo.error
    assert typo.payload == ""
    assert len({good.id, typo.id, again.id}) == 3


def test_all_points_malformed_is_a_malformed_sweep(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="all 2 points are malformed") as caught:
        points(tmp_path, "grid: {pipeline.stagez: [1, 2]}")
    assert "stagez" in str(caught.value)


def test_missing_scenario_file_is_a_malformed_sweep(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, "")
    (tmp_path / "chain.yaml").unlink()
    with pytest.raises(MalformedInput, match="no such file"):
        resolve(load_sweep(path))


def test_changed_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("a")
    prints = Fingerprints()
    files: Mapping[str, str] = {str(path): prints.of(path)}
    assert changed_file(files, prints) is None
    path.write_text("bc")
    assert changed_file(files, prints) == str(path)
    path.unlink()
    assert changed_file(files, prints) == str(path)


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("{zoo: resnet18}", "resnet18"),
        (
            "{zoo: resnet18, input: [1, 3, 32, 32], weight_bits: 4}",
            "resnet18@1x3x32x32",
        ),
        ("{onnx: a/b.onnx, dims: {n: 2}}", "b.onnx n=2"),
        ("{kernel: gemm, params: {m: 1}}", "gemm m=1"),
        ("{tasks: [{id: a, execution_ns: 1}]}", "chain"),
    ],
)
def test_workload_in_short(tmp_path: Path, network: str, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"schema: raptor-cp/1\nname: chain\nnetwork: {network}\n"
        "target: {kind: table, cores: 3}\n"
    )
    assert workload(load(path).scenario) == expected
