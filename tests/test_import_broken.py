"""Every broken model file is one sentence and exit code 2 in every command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from raptor_cp.cli.app import app
from tests.onnx_models import model, node, weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAP = {"x": (1, 4, 6, 5)}
WEIGHT = {"w": weights(8, 4, 3, 3)}


def conv() -> onnx.NodeProto:
    return node("Conv", ["x", "w"], ["y"])


def truncated() -> bytes:
    whole = bytes(model([conv()], MAP, WEIGHT).SerializeToString())
    return whole[: len(whole) // 2]


def text() -> bytes:
    return b"import torch\nmodel = torch.nn.Linear(3, 4)\n"


def cycle() -> onnx.ModelProto:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    return model(nodes, MAP, outputs=["b"])


def missing_initialisers() -> onnx.ModelProto:
    return model([node("Conv", ["x", "w", "b"], ["y"])], MAP)


def zero_dimension() -> onnx.ModelProto:
    return model([conv()], {"x": (1, 4, 0, 5)}, WEIGHT)


def dynamic_dimension() -> onnx.ModelProto:
    return model([conv()], {"x": ("batch", 4, "height", 5)}, WEIGHT)


def no_shape() -> onnx.ModelProto:
    proto = model([conv()], MAP, WEIGHT)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    return proto


def zero_d_input() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], {"x": ()})


def zero_d_tensor() -> onnx.ModelProto:
    nodes = [
        node("ReduceMean", ["x"], ["m"], keepdims=0),
        node("Add", ["x", "m"], ["y"]),
    ]
    return model(nodes, MAP)


def duplicate_values() -> onnx.ModelProto:
    proto = model([node("Relu", ["x"], ["a"]), node("Exp", ["x"], ["y"])], MAP)
    proto.graph.node[1].output[0] = "a"
    return proto


def duplicate_nodes() -> onnx.ModelProto:
    proto = model([node("Relu", ["x"], ["a"]), node("Exp", ["a"], ["y"])], MAP)
    proto.graph.node[1].name = proto.graph.node[0].name
    return proto


def loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["cond"], ["cond_out"]),
            helper.make_node("Relu", ["state"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("cond_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, None),
        ],
    )
    call = node("Loop", ["", "true", "x"], ["y"], body=body)
    return model([call], MAP, {"true": np.asarray(True)})


def computed_if() -> onnx.ModelProto:
    def branch(operator: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"out_{operator}", TensorProto.FLOAT, None)
        inner = helper.make_node(operator, ["x"], [out.name])
        return helper.make_graph([inner], operator, [], [out])

    call = node(
        "If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Exp")
    )
    return model([call], {**MAP, "c": (1,)}, types={"c": TensorProto.BOOL})


def integer_convolution() -> onnx.ModelProto:
    return model(
        [conv()],
        MAP,
        {"w": np.ones((8, 4, 3, 3), np.int8)},
        types={"x": TensorProto.INT8, "y": TensorProto.INT8},
    )


def unsupported() -> onnx.ModelProto:
    return model([node("NonZero", ["x"], ["y"])], MAP)


def no_graph() -> bytes:
    empty = onnx.ModelProto(ir_version=8, producer_name="nobody")
    return bytes(empty.SerializeToString())


def no_output() -> onnx.ModelProto:
    proto = model([conv()], MAP, WEIGHT)
    del proto.graph.output[:]
    return proto


BROKEN: dict[Callable[[], onnx.ModelProto | bytes], str] = {
    truncated: "damaged",
    text: "text file",
    no_graph: "graph",
    no_output: "no output",
    cycle: "node_a -> node_b -> node_a",
    missing_initialisers: "'w' (read by 'node_y'), 'b'",
    zero_dimension: "zero",
    dynamic_dimension: "--dim batch=1 --dim height=1",
    no_shape: "--input-shape",
    zero_d_input: "0-d",
    zero_d_tensor: "0-d",
    duplicate_values: "two values have the name 'a'",
    duplicate_nodes: "two nodes have the name 'node_a'",
    loop: "Loop 'node_y' (a subgraph",
    computed_if: "If 'node_y' (a subgraph",
    integer_convolution: "QLinear",
    unsupported: "NonZero 'node_y'",
}


def written(content: onnx.ModelProto | bytes, folder: Path) -> Path:
    path = folder / "model.onnx"
    data = content if isinstance(content, bytes) else content.SerializeToString()
    path.write_bytes(data)
    return path


def refused(arguments: Sequence[str]) -> str:
    """The one sentence of a command that refuses its file."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def refused_by_all(path: Path) -> str:
    """The sentence that every command gives; nothing is written."""
    folder = path.parent
    scenario = folder / "s.yaml"
    scenario.write_text(
        f"schema: raptor-cp/1\nname: broken\nnetwork: {{onnx: {path.name}}}\n"
        "target: {kind: pim}\nmode: pipeline\n"
    )
    out = folder / "out.yaml"
    sentences = {
        refused(["network", str(path)]),
        refused(["network", str(path), "--json"]),
        refused(["import", str(path), "-o", str(out)]),
        refused(["check", str(scenario)]),
        refused(["schedule", str(scenario), "--out", str(folder / "run"), "--quiet"]),
    }
    assert not out.exists()
    assert not (folder / "run").exists()
    # A path may be written in another way; what is said about it is the same.
    told = {
        s.replace(str(path.resolve()), "F").replace(str(path), "F") for s in sentences
    }
    assert len(told) == 1, told
    return told.pop()


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_one_sentence(
    make: Callable[[], onnx.ModelProto | bytes], tmp_path: Path
) -> None:
    sentence = refused_by_all(written(make(), tmp_path))
    assert BROKEN[make] in sentence
    assert "F" in sentence


# -- weights beside the file ----------------------------------------------------------


def external(
    folder: Path, location: str, size: int, *, there: int | None, length: bool = True
) -> Path:
    """A product with ``size`` bytes of weights in another file, ``there`` of them."""
    rows = size // 4096
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (1, rows)})
    tensor = proto.graph.initializer.add()
    tensor.name, tensor.data_type = "w", TensorProto.FLOAT
    tensor.dims.extend((rows, 1024))
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": "0"}
    if length:
        entries["length"] = str(size)
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    if there is not None:
        with (folder / location).open("wb") as file:
            file.truncate(there)
    return written(proto, folder)


@pytest.mark.parametrize("length", [True, False])
def test_external_data_must_be_whole(tmp_path: Path, length: bool) -> None:
    path = external(tmp_path, "w.bin", 1 << 20, there=(1 << 20) - 1, length=length)
    assert "truncated" in refused_by_all(path)


def test_external_data_must_be_there(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", 1 << 20, there=None)
    assert "'w.bin'" in refused_by_all(path)


@pytest.mark.parametrize(
    "location",
    ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "C:\\w.bin", "..\\w.bin"],
)
def test_external_data_stay_in_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(1 << 20))
    inner = tmp_path / "inner"
    inner.mkdir()
    path = external(inner, location, 1 << 20, there=None)
    assert "outside the model's folder" in refused_by_all(path)


def test_external_sizes_must_fit_the_shape(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin", 1 << 20, there=1 << 20)
    proto = onnx.ModelProto.FromString(path.read_bytes())
    entries = proto.graph.initializer[0].external_data
    for key, value, word in (
        ("length", "12", "shorter than its shape"),
        ("length", "-1", "no number of bytes"),
        ("offset", "a lot", "no number of bytes"),
        ("offset", "99999999", "truncated"),
    ):
        kept = [(e.key, e.value) for e in entries]
        next(e for e in entries if e.key == key).value = value
        assert word in refused_by_all(written(proto, tmp_path))
        for entry, (_, old) in zip(entries, kept, strict=True):
            entry.value = old


# Not getrusage: its maximum is handed down from the process that forked.
_LIMITED = """
import sys
from raptor_cp.cli.app import app
sys.argv = ["raptor-cp", *sys.argv[1:]]
try:
    app()
finally:
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    print(f"peak {peak.split()[1]}", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, kilobytes of RSS")
@pytest.mark.parametrize("command", ["network --json", "import"])
def test_three_gigabytes_beside_the_file(tmp_path: Path, command: str) -> None:
    """Whole or one byte short: an answer within 500 MB of memory."""
    size = 3 << 30
    for there, code in ((size, 0), (size - 1, 2)):
        path = external(tmp_path, "w.bin", size, there=there)
        done = subprocess.run(
            [sys.executable, "-c", _LIMITED, *command.split(), str(path)],
            check=False,
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert done.returncode == code, done.stderr
        peak = int(done.stderr.split("peak")[-1])
        assert peak < 500_000
        if command == "network --json" and not code:
            assert json.loads(done.stdout)["macs"] == size // 4
        (tmp_path / "w.bin").unlink()


# -- what is no fault -----------------------------------------------------------------


def test_narrow_models_are_no_fault(tmp_path: Path) -> None:
    half = TensorProto.FLOAT16
    proto = model(
        [conv()],
        MAP,
        {"w": weights(8, 4, 3, 3).astype(np.float16)},
        types={"x": half, "y": half},
    )
    result = CliRunner().invoke(app, ["network", str(written(proto, tmp_path))])
    assert result.exit_code == 0
    assert " 16 " in result.stdout
    assert "note" not in result.stderr
    scale, zero = np.float32(0.1), np.asarray(0, np.int8)
    proto = model(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("QLinearConv", ["q", "s", "z", "w", "s", "z", "s", "z"], ["c"]),
            node("DequantizeLinear", ["c", "s", "z"], ["y"]),
        ],
        MAP,
        {"w": np.ones((8, 4, 3, 3), np.int8), "s": np.asarray(scale), "z": zero},
    )
    result = CliRunner().invoke(app, ["network", str(written(proto, tmp_path))])
    assert result.exit_code == 0
    assert " 8 " in result.stdout
