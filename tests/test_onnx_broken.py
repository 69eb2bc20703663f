"""What cannot be read is one clear sentence; memory stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx
from raptor_cp.network.onnx_wire import DamagedMessage, without_payload
from tests.onnx_models import model, node, saved, weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAP = {"x": (1, 4, 6, 5)}
WEIGHT = {"w": weights(8, 4, 3, 3)}


def refused(path: Path, options: OnnxOptions | None = None) -> str:
    with pytest.raises(MalformedInput) as caught:
        import_onnx(path, options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.startswith(str(path))
    return sentence


def sentence_of(path: Path, options: OnnxOptions | None = None) -> str:
    """The error, or "" if there is none."""
    try:
        import_onnx(path, options)
    except MalformedInput as error:
        return str(error)
    return ""


def of(proto: onnx.ModelProto, folder: Path, options: OnnxOptions | None = None) -> str:
    return refused(saved(proto, folder), options)


def conv(**attributes: object) -> onnx.NodeProto:
    return node("Conv", ["x", "w"], ["y"], **attributes)  # type: ignore[arg-type]


# -- files ----------------------------------------------------------------------------


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = model([conv()], MAP, WEIGHT).SerializeToString()
    path = tmp_path / "model.onnx"
    for size in (0, 1, 2, 3, 10, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path)


def test_random_bytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    path = tmp_path / "model.onnx"
    for size in (5, 100, 5000):
        for _ in range(20):
            path.write_bytes(generator.bytes(size))
            refused(path)


def test_damaged_bytes_never_trace_back(tmp_path: Path) -> None:
    whole = bytearray(model([conv()], MAP, WEIGHT).SerializeToString())
    generator = np.random.default_rng(2)
    path = tmp_path / "model.onnx"
    for _ in range(300):
        changed = bytearray(whole)
        for place in generator.integers(0, 260, size=2):
            changed[place] = int(generator.integers(256))
        path.write_bytes(bytes(changed))
        assert "\n" not in sentence_of(path)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"import torch\nmodel = torch.nn.Linear(3, 4)\n", "text"),
        ("ir_version: 8  # f\u00fcr alle".encode(), "text"),
        (b"", "empty"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "LFS"),
        (b"\x1c\x00\x00\x00TFL3\x00\x00", "TensorFlow Lite"),
    ],
)
def test_other_files(content: bytes, word: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert word in refused(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "none.onnx")
    assert "folder" in refused(tmp_path)


def test_operator_sets(tmp_path: Path) -> None:
    assert "too old" in of(model([conv()], MAP, WEIGHT, opset=6), tmp_path)
    proto = model([conv()], MAP, WEIGHT)
    proto.opset_import[0].version = 10_000
    assert "newer" in of(proto, tmp_path)


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(model([conv()], MAP, WEIGHT), tmp_path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "raptor-cp[onnx]" in refused(path)


# -- graphs ---------------------------------------------------------------------------


def test_cycle(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    sentence = of(model(nodes, MAP, outputs=["b"]), tmp_path)
    assert "cycle" in sentence
    assert "node_a -> node_b -> node_a" in sentence


def test_every_missing_value_is_named(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Conv", ["a", "v", "bias"], ["y"]),
    ]
    sentence = of(model(nodes, MAP), tmp_path)
    for name in ("'w'", "'v'", "'bias'"):
        assert name in sentence


@pytest.mark.parametrize("which", ["value", "node", "initialiser"])
def test_duplicate_names(which: str, tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Exp", ["x"], ["b"])]
    nodes.append(node("Add", ["a", "b"], ["y"]))
    proto = model(nodes, MAP)
    if which == "value":
        proto.graph.node[1].output[0] = "a"
    elif which == "node":
        proto.graph.node[1].name = proto.graph.node[0].name
    else:
        for _ in range(2):
            tensor = helper.make_tensor("w", TensorProto.FLOAT, (1,), [1.0])
            proto.graph.initializer.append(tensor)
    assert "two" in of(proto, tmp_path)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        (("N", 4, 6, 5), "--dim N=1"),
        ((1, 4, 0, 5), "zero"),
        ((), "0-d"),
        ((2, 4, 6, 5), "batch"),
    ],
)
def test_input_shapes(shape: Sequence[int | str], word: str, tmp_path: Path) -> None:
    assert word in of(model([conv()], {"x": shape}, WEIGHT), tmp_path)


def test_unknown_dimension_without_a_name(tmp_path: Path) -> None:
    proto = model([conv()], MAP, WEIGHT)
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert "--input-shape x=1,4,6,5" in of(proto, tmp_path)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert "not in the file" in of(proto, tmp_path)


def test_options_that_fit_nothing(tmp_path: Path) -> None:
    path = saved(model([conv()], {"x": ("batch", 4, 6, 5)}, WEIGHT), tmp_path)
    wrong_dim = refused(path, OnnxOptions(dims={"bath": 1}))
    assert "did you mean 'batch'?" in wrong_dim
    assert "no such input" in refused(path, OnnxOptions(input_shapes={"z": (1,)}))
    shape = OnnxOptions(input_shapes={"x": (1, 4, 6)})
    assert "another number of dimensions" in refused(path, shape)
    assert import_onnx(path, OnnxOptions(dims={"batch": 1})).macs == 3456


def test_computed_0d_tensor(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", ["x"], ["m"], keepdims=0),
        node("Add", ["x", "m"], ["y"]),
    ]
    assert "0-d" in of(model(nodes, MAP), tmp_path)


def test_contradictions_name_the_node(tmp_path: Path) -> None:
    sentence = of(model([conv()], MAP, {"w": weights(8, 3, 3, 3)}), tmp_path)
    assert "'node_y'" in sentence
    sentence = of(model([conv()], {"x": (1, 4, 2, 2)}, WEIGHT), tmp_path)
    assert "'node_y'" in sentence


def test_integer_data_in_a_float_operator(tmp_path: Path) -> None:
    proto = model(
        [conv()],
        MAP,
        {"w": np.ones((8, 4, 3, 3), np.int8)},
        types={"x": TensorProto.INT8, "y": TensorProto.INT8},
    )
    assert "QLinear" in of(proto, tmp_path)


def loop() -> onnx.NodeProto:
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
    return node("Loop", ["", "true", "x"], ["l"], body=body)


def branch(operator: str) -> onnx.GraphProto:
    out = helper.make_tensor_value_info(f"out_{operator}", TensorProto.FLOAT, None)
    inner = helper.make_node(operator, ["l"], [out.name])
    return helper.make_graph([inner], operator, [], [out])


def test_every_unsupported_node_is_listed(tmp_path: Path) -> None:
    yes, no = branch("Relu"), branch("Exp")
    nodes = [
        loop(),
        node("If", ["c"], ["i"], then_branch=yes, else_branch=no),
        node("Sin", ["x"], ["s"]),
        node("NonZero", ["s"], ["z"]),
        node("Reshape", ["s", "z"], ["r"]),
        node("Mystery", ["i"], ["m"], domain="some.where"),
        node("Conv", ["x", "k"], ["v"]),
        node("Add", ["m", "r"], ["a"]),
        node("Cos", ["a"], ["y"]),
    ]
    proto = model(
        nodes,
        {**MAP, "c": (1,), "k": (8, 4, 3, 3)},
        {"true": np.asarray(True)},
        outputs=["y", "v"],
        types={"c": TensorProto.BOOL},
        domains=["some.where"],
    )
    sentence = of(proto, tmp_path)
    for words in (
        "Loop 'node_l' (a subgraph",
        "If 'node_i' (a subgraph",
        "Sin 'node_s' (no counterpart)",
        "NonZero 'node_z' (",
        "some.where:Mystery 'node_m' (no operator of domain 'some.where'",
        "Conv 'node_v' (its weights are computed",
        "Cos 'node_y' (",
    ):
        assert words in sentence
    assert "--allow-unsupported vector" in sentence


def test_vector_work_in_the_place_of_elementwise_nodes(tmp_path: Path) -> None:
    nodes = [
        conv(),
        node("Sin", ["y"], ["s"]),
        node("Mod", ["s", "z"], ["o"], fmod=1),
        node("TopK", ["o", "two"], ["t", "u"]),
    ]
    inputs = {**MAP, "z": (1, 8, 1, 1)}
    constants: dict[str, NDArray[np.generic]] = {
        **WEIGHT,
        "two": np.asarray([2], np.int64),
    }
    vector = OnnxOptions(vector=True)
    sentence = of(model(nodes, inputs, constants, outputs=["t"]), tmp_path, vector)
    assert "1 unsupported node: TopK" in sentence
    path = saved(model(nodes[:3], inputs, constants, outputs=["o"]), tmp_path)
    network = import_onnx(path, vector)
    kinds = [op.kind.value for op in network.operations]
    assert kinds == ["conv", "activation", "div", "activation"]
    notes = [note for note in network.notes if "vector work" in note]
    assert len(notes) == 2
    assert "'node_s' (Sin)" in notes[0]
    assert "2 operand(s)" in notes[1]


# -- size -----------------------------------------------------------------------------


def _external(path: Path, size: int) -> None:
    """A model whose weights lie in a file of their own, ``size`` bytes of it."""
    rows = size // 4 // 1024
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Shape", ["x"], ["s"]),
            node("Concat", ["s", "one"], ["t"], axis=0),
            node("Reshape", ["a", "short"], ["y"]),
        ],
        {"x": (1, rows)},
        {"one": np.asarray([1], np.int64)},
    )
    for name, dims, offset, length, dtype in (
        ("w", (rows, 1024), 0, size, TensorProto.FLOAT),
        ("short", (2,), size, 16, TensorProto.INT64),
    ):
        tensor = proto.graph.initializer.add()
        tensor.name, tensor.data_type = name, dtype
        tensor.dims.extend(dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights.bin"),
            ("offset", str(offset)),
            ("length", str(length)),
        ):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    path.write_bytes(proto.SerializeToString())
    with (path.parent / "weights.bin").open("wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(np.asarray([1, -1], np.int64).tobytes())


# Not getrusage: its maximum is handed down from the process that forked.
_MEASURED = """
import json, sys
from raptor_cp.network.onnx_import import import_onnx
network = import_onnx(sys.argv[1])
with open("/proc/self/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM"))
print(json.dumps({"macs": network.macs, "peak_mib": int(peak.split()[1]) / 1024}))
"""


def _measured(path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    result: dict[str, float] = json.loads(done.stdout)
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, kilobytes of RSS")
def test_three_gigabytes_outside(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _external(path, 3 << 30)
    result = _measured(path)
    assert result["macs"] == (3 << 30) // 4
    assert result["peak_mib"] < 500


@pytest.mark.skipif(sys.platform != "linux", reason="sparse files, kilobytes of RSS")
def test_three_gigabytes_inside(tmp_path: Path) -> None:
    """Larger than protobuf itself can read: only headers are looked at."""
    rows = 3 << 18
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (1, rows)}, {})
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 1024])
    payload = rows * 4096
    head = tensor.SerializeToString() + b"\x4a" + _varint(payload)
    graph = proto.graph.SerializeToString()
    inner = len(head) + payload
    total = len(graph) + 1 + len(_varint(inner)) + inner
    proto.ClearField("graph")
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(proto.SerializeToString() + b"\x3a" + _varint(total) + graph)
        file.write(b"\x2a" + _varint(inner) + head)
        file.truncate(file.tell() + payload)
    result = _measured(path)
    assert result["macs"] == rows * 1024
    assert result["peak_mib"] < 500


def test_missing_weights_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    _external(path, 1 << 20)
    (tmp_path / "weights.bin").unlink()
    assert "'weights.bin'" in refused(path)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def test_small_payloads_are_kept_and_large_ones_skipped() -> None:
    proto = model([conv()], MAP, WEIGHT)
    data = proto.SerializeToString()
    assert without_payload(data) == data
    small = onnx.ModelProto.FromString(without_payload(data, large=100))
    assert not small.graph.initializer[0].raw_data
    assert list(small.graph.initializer[0].dims) == [8, 4, 3, 3]
    assert small.graph.node == proto.graph.node
    with pytest.raises(DamagedMessage):
        without_payload(data[:-1])


@pytest.mark.slow
def test_the_librarys_own_cases() -> None:
    """Every operator case of the library imports, or is one sentence."""
    import tempfile
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    imported = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for case in cases:
            assert case.model is not None
            path.write_bytes(case.model.SerializeToString())
            for vector in (False, True):
                sentence = sentence_of(path, OnnxOptions(vector=vector))
                assert "\n" not in sentence, case.name
                imported += not sentence
    assert imported > 500
