"""``raptor-cp import`` and ``raptor-cp network``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.preparation import read_network
from raptor_cp.scenario import load

onnx = pytest.importorskip("onnx")

from tests.onnx_models import model, node, saved, weights  # noqa: E402

SQUEEZENET = (
    Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
)


WIDE = "layer kind output MACs weights bits crossbars mvmul folded"
HEAD = "layer kind output MACs weights crossbars mvmul"


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


def answered(*arguments: str, code: int = 0, columns: int = 0) -> tuple[str, str]:
    """What a command writes on standard output and on standard error."""
    env = {"COLUMNS": str(columns)} if columns else None
    result = CliRunner().invoke(app, list(arguments), env=env)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def small(folder: Path) -> Path:
    """Folds, a view, a free slice, a product."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1], name="first_layer"),
        node("BatchNormalization", ["a", "g", "g", "g", "v"], ["n"], name="norm"),
        node("Relu", ["n"], ["r"], name="relu"),
        node("Slice", ["r", "zero", "four", "one"], ["s"], name="cut"),
        node("GlobalAveragePool", ["s"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "m", "c"], ["y"], name="classes"),
    ]
    constants = {
        "w": weights(6, 4, 3, 3),
        "b": weights(6),
        "g": np.ones(6, np.float32),
        "v": np.ones(6, np.float32),
        "zero": np.asarray([0]),
        "four": np.asarray([4]),
        "one": np.asarray([1]),
        "m": weights(4, 5),
        "c": weights(5),
    }
    return saved(model(nodes, {"x": (1, 4, 8, 8)}, constants), folder)


def test_table_of_a_file(tmp_path: Path) -> None:
    path = small(tmp_path)
    wide, notes = answered("network", str(path))
    rows = [line.split() for line in wide.splitlines()]
    assert " ".join(rows[0]) == WIDE
    first = "first_layer conv+relu 1x6x8x8 13,824 222 16 1 64 norm, relu"
    assert " ".join(rows[1]) == first
    assert rows[2] == ["cut", "slice", "1x4x8x8", *"-----", "free"]
    assert rows[4] == ["flat", "view", "1x4", *"-----", "free"]
    assert rows[5] == ["classes", "gemm", "1x5", "20", "25", "16", "1", "1"]
    assert rows[6] == ["total", "5", "ops", "13,844", "247", "2", "65", "2", "free"]
    assert notes.count("note: ") == 2


def test_table_in_80_columns(tmp_path: Path) -> None:
    narrow, _ = answered("network", str(small(tmp_path)), columns=80)
    lines = narrow.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[0].split()) == HEAD
    first = "first_layer conv+relu 1x6x8x8 13,824 222 1 64"
    assert " ".join(lines[1].split()) == first
    assert lines[2] == "  folded: norm, relu"
    assert lines[3].split() == ["cut", "slice", "1x4x8x8", "free"]
    total = "total 5 ops 2 free 13,844 247 2 65"
    assert " ".join(lines[-2].split()) == total


@pytest.mark.parametrize("columns", [80, 100, 60])
def test_no_line_is_longer_than_the_screen(columns: int) -> None:
    text, _ = answered("network", str(SQUEEZENET), columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "1x512x13x13" in text


def test_document_of_a_file(tmp_path: Path) -> None:
    text, _ = answered("network", str(small(tmp_path)), "--json")
    document = json.loads(text)
    assert document["inputs"] == {"x": [1, 4, 8, 8]}
    assert document["outputs"] == {"classes": [1, 5]}
    assert (document["macs"], document["parameters"]) == (13_844, 247)
    assert (document["crossbars"], document["mvmuls"]) == (2, 65)
    assert document["layers"][0]["folded"] == ["norm", "relu"]
    assert [layer["free"] for layer in document["layers"]] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert len(document["notes"]) == 2


def unsupported(folder: Path) -> Path:
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv"),
        node("Sin", ["a"], ["b"], name="wave"),
        node("Mod", ["b", "z"], ["c"], fmod=1, name="rest"),
        node("NonZero", ["c"], ["y"], name="places"),
    ]
    inputs = {"x": (1, 4, 6, 5), "z": (1, 8, 1, 1)}
    proto = model(nodes, inputs, {"w": weights(8, 4, 3, 3)}, outputs=["c", "y"])
    return saved(proto, folder)


def test_unsupported_nodes_are_listed_with_operator_name_and_reason(
    tmp_path: Path,
) -> None:
    path = unsupported(tmp_path)
    out = tmp_path / "s.yaml"
    for arguments in (["network", str(path)], ["import", str(path), "-o", str(out)]):
        _, error = answered(*arguments, code=2)
        assert "3 unsupported nodes: " in error
        for words in ("Sin 'wave' (", "Mod 'rest' (", "NonZero 'places' ("):
            assert words in error
        assert "--allow-unsupported vector" in error
        _, error = answered(*arguments, "--allow-unsupported", "vector", code=2)
        assert "1 unsupported node: NonZero 'places' (" in error
        assert "Sin" not in error
    assert not out.exists()


def test_vector_work_is_listed_and_scheduled(tmp_path: Path) -> None:
    path = unsupported(tmp_path)
    proto = onnx.ModelProto.FromString(path.read_bytes())
    del proto.graph.node[3], proto.graph.output[1]
    path = saved(proto, tmp_path)
    scenario, run = tmp_path / "s.yaml", tmp_path / "run"
    option = ("--allow-unsupported", "vector")
    _, notes = answered("import", str(path), "-o", str(scenario), *option)
    for words in (
        "'wave' (Sin): unsupported, taken",
        "'rest' (Mod): unsupported, taken",
    ):
        assert words in notes
    fast = ("--no-solver", "--set", "pipeline.stages=2", "--out", str(run))
    _, said = answered("schedule", str(scenario), *fast)
    assert "program: refused" in said
    result = json.loads((run / "result.json").read_text())
    assert any("'wave' (Sin)" in note for note in result["notes"])


def test_weights_of_the_file_are_scheduled_and_verified(tmp_path: Path) -> None:
    path = small(tmp_path)
    scenario, run = tmp_path / "s.yaml", tmp_path / "run"
    answered("import", str(path), "-o", str(scenario), "--weights", "model")
    assert "weights: model" in scenario.read_text()
    answered("schedule", str(scenario), "--no-solver", "--out", str(run))
    text, _ = answered("verify", str(run), "--json")
    assert json.loads(text)["equal"]
    # 2^4 * w rounded: the largest weight of the product is between 1 and 2.
    with np.load(run / "program" / "weights.npz") as stored:
        found = {tuple(a.shape): a for a in stored.values()}
    matrix = found[1, 4, 5].astype(np.float64)
    real = weights(4, 5)
    scale = 2.0 ** np.round(np.log2(np.abs(matrix).max() / np.abs(real).max()))
    assert np.abs(matrix / scale - real).max() <= 0.5 / scale


def test_weights_that_the_file_does_not_give_are_refused(tmp_path: Path) -> None:
    proto = onnx.ModelProto.FromString(small(tmp_path).read_bytes())
    for tensor in proto.graph.initializer:
        if tensor.name in ("w", "m"):
            tensor.ClearField("raw_data")
    path = saved(proto, tmp_path)
    out = tmp_path / "s.yaml"
    arguments = ("import", str(path), "-o", str(out))
    _, error = answered(*arguments, "--weights", "model", code=2)
    assert "'first_layer' ('w': " in error
    assert "'classes' ('m': " in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()
    answered(*arguments)  # shapes are all that drawn numbers need


def test_weights_of_the_file_need_exact_sums(tmp_path: Path) -> None:
    scenario = tmp_path / "s.yaml"
    path = small(tmp_path)
    answered("import", str(path), "-o", str(scenario), "--weights", "model")
    narrow = ("--set", "lowering.accumulators=activation")
    _, error = answered("check", str(scenario), *narrow, code=2)
    assert "lowering.accumulators" in error
