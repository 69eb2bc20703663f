"""``raptor-cp import`` and ``raptor-cp network``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.preparation import read_network
from raptor_cp.scenario import load

onnx = pytest.importorskip("onnx")
SQUEEZENET = (
    Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
)
PIMCOMP = ("alexnet", "googlenet", "mobilenetv2", "resnet18", "squeezenet", "vgg16")


def test_import_writes_a_scenario_that_reads_the_model(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    result = CliRunner().invoke(app, ["import", str(SQUEEZENET), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert read_network(load(out)).macs == 349_151_936


def test_import_of_no_model_writes_nothing(tmp_path: Path) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "s.yaml"
    model.write_text("not a model")
    result = CliRunner().invoke(app, ["import", str(model), "-o", str(out)])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


def test_network_counts_what_an_independent_compiler_counts() -> None:
    result = CliRunner().invoke(app, ["network", "resnet18", "--json"])
    assert result.exit_code == 0, result.output
    assert "132500" in json.dumps(json.loads(result.stdout))


@pytest.mark.parametrize("name", PIMCOMP)
def test_another_compilers_files_schedule(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.yaml"
    model = shared_data / "pimcomp" / f"{name}.json"
    runner = CliRunner()
    result = runner.invoke(app, ["import", str(model), "-o", str(out)])
    assert result.exit_code == 0, result.output
    result = runner.invoke(app, ["check", str(out), "--no-solver"])
    assert result.exit_code == 0, result.output


def test_bit_sliced_vgg_is_refused_with_numbers(
    shared_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "s.yaml"
    model = shared_data / "pimcomp" / "vgg16.json"
    runner = CliRunner()
    runner.invoke(app, ["import", str(model), "-o", str(out)])
    result = runner.invoke(app, ["check", str(out), "--set", "network.weight_bits=16"])
    assert result.exit_code == 1
    assert "67576" in result.stderr
