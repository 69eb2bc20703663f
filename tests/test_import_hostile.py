"""Files made to break the reader: one sentence, soon, without much memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

from raptor_cp.cli.app import app
from raptor_cp.cli.running import visible
from raptor_cp.network.attributes import Activation
from raptor_cp.network.onnx_import import import_onnx
from raptor_cp.network.onnx_wire import DEEPEST
from raptor_cp.network.pimcomp_import import MOST_BYTES
from tests.onnx_models import model, node, saved

ROOT = Path(__file__).resolve().parents[1]
MAP = {"x": (1, 3, 16, 16)}
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def run(*arguments: object) -> str:
    """The sentence of a refusal."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def refused(proto: onnx.ModelProto, folder: Path) -> str:
    return run("network", saved(proto, folder))


def integers(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(values, np.int64)


# -- nodes -----------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["Relu", "Constant"])
def test_node_without_output(operator: str, tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["y"])], MAP)
    inputs = [] if operator == "Constant" else ["x"]
    proto.graph.node.append(node(operator, inputs, []))
    assert f"the node '{operator}' has no output" in refused(proto, tmp_path)


def test_transpose_of_fewer_axes(tmp_path: Path) -> None:
    proto = model([node("Transpose", ["x"], ["y"], perm=[0, 1])], MAP)
    assert "perm is no order of the axes" in refused(proto, tmp_path)


@pytest.mark.parametrize("index", [3, -4])
def test_gather_beyond_its_data(index: int, tmp_path: Path) -> None:
    nodes = [node("Gather", ["x", "i"], ["y"], axis=1)]
    sentence = refused(model(nodes, MAP, {"i": integers(0, index)}), tmp_path)
    assert f"an index lies outside the data (got {index})" in sentence


def test_gather_of_a_few_elements_of_a_long_axis(tmp_path: Path) -> None:
    proto = model(
        [node("Gather", ["x", "i"], ["y"], axis=1)],
        {"x": (1, 10**11)},
        {"i": integers(0, 10**11 - 1)},
    )
    read = import_onnx(saved(proto, tmp_path))
    assert read.tensors[read.outputs[0]].shape == (1, 2)


@pytest.mark.parametrize(
    ("operator", "size"), [("Tile", (1, 10**9, 1, 1)), ("Expand", (10**9, 3, 16, 16))]
)
def test_elements_repeated_without_end(
    operator: str, size: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [node(operator, ["x", "s"], ["y"])]
    sentence = refused(model(nodes, MAP, {"s": integers(*size)}), tmp_path)
    assert "it repeats elements to more than 1,048,576" in sentence


def test_image_enlarged_without_end(tmp_path: Path) -> None:
    nodes = [node("Resize", ["x", "", "", "s"], ["y"])]
    constants = {"s": integers(1, 3, 16, 10**9)}
    assert "side is larger" in refused(model(nodes, MAP, constants), tmp_path)


def test_result_larger_than_any_tensor(tmp_path: Path) -> None:
    nodes = [node("Tile", ["x", "s"], ["y"])]
    constants = {"s": integers(1, 10**15, 1, 1)}
    sentence = refused(model(nodes, MAP, constants), tmp_path)
    assert "the output 'y' is too large" in sentence


def test_padding_that_removes_more_than_there_is(tmp_path: Path) -> None:
    nodes = [node("Pad", ["x", "p"], ["y"])]
    constants = {"p": integers(0, 0, -20, 0, 0, 0, 0, 0)}
    sentence = refused(model(nodes, MAP, constants), tmp_path)
    assert "dimension below zero" in sentence


def test_weights_of_an_unknown_type(tmp_path: Path) -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])], MAP, {"w": np.ones((16, 4))})
    proto.graph.initializer[0].data_type = 77
    assert "data type 77" in refused(proto, tmp_path)


def test_numbers_of_a_trillion_stay_apart(tmp_path: Path) -> None:
    weights = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT)
    weights.dims.extend([4, 10**12])
    proto = model([node("MatMul", ["x", "w"], ["y"])], {"x": (1, 4)})
    proto.graph.initializer.append(weights)
    shown = CliRunner().invoke(app, ["network", str(saved(proto, tmp_path))]).stdout
    assert " 4,000,000,000,000 4,000,000,000,000 " in shown


# -- functions and branches ------------------------------------------------------------


def calling(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    """A model that calls the last one."""
    proto = model(
        [node(functions[-1].name, ["x"], ["y"], domain="own")], MAP, domains=["own"]
    )
    proto.functions.extend(functions)
    return proto


def function(name: str, *calls: str) -> onnx.FunctionProto:
    values = ["a", *(f"v{i}" for i in range(1, len(calls))), "b"]
    inner = [
        node(call, [x], [y], domain="own" if call.startswith("F") else "")
        for call, x, y in zip(calls, values[:-1], values[1:], strict=True)
    ]
    return helper.make_function("own", name, ["a"], ["b"], inner, OPSETS)


def test_functions_that_call_themselves(tmp_path: Path) -> None:
    for broken in (calling(function("F", "F")),
                   calling(function("F0", "F1"), function("F1", "F0"))):  # fmt: skip
        assert "must not be recursive" in refused(broken, tmp_path)


def test_functions_of_exponential_size(tmp_path: Path) -> None:
    tower = [function("F0", "Exp")]
    tower += [function(f"F{i}", f"F{i - 1}", f"F{i - 1}") for i in range(1, 40)]
    assert "at most 100,000 nodes" in refused(calling(*tower), tmp_path)
    read = import_onnx(saved(calling(*tower[:4]), tmp_path))
    assert len(read.operations) == 8


def test_functions_called_with_other_parameters(tmp_path: Path) -> None:
    proto = calling(function("F", "Relu"))
    proto.graph.node[0].input.append("x")
    sentence = refused(proto, tmp_path)
    assert "cannot be written out: Number of actual parameters" in sentence
    twice = calling(function("F", "Relu"), function("F", "Relu"))
    assert "multiple local functions" in refused(twice, tmp_path)


def branch(operator: str, constant: float = 1.0) -> onnx.GraphProto:
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    inner = [
        node(operator, ["x"], ["inner"], name="same"),
        node("Mul", ["inner", "factor"], ["out"], name="product"),
    ]
    factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [constant])
    return helper.make_graph(inner, operator, [], [out], [factor])


def conditional(output: str, **branches: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", ["c"], [output], **branches)


def test_branches_with_the_same_names(tmp_path: Path) -> None:
    proto = model(
        [
            conditional("p", then_branch=branch("Relu"), else_branch=branch("Exp")),
            conditional("q", then_branch=branch("Tanh"), else_branch=branch("Exp")),
            node("Add", ["p", "q"], ["y"]),
        ],
        MAP,
        {"c": np.asarray(True)},
    )
    read = import_onnx(saved(proto, tmp_path))
    functions = [
        op.attributes.function.value
        for op in read.operations
        if isinstance(op.attributes, Activation)
    ]
    assert functions == ["relu", "tanh"]


def test_condition_without_a_branch(tmp_path: Path) -> None:
    proto = model(
        [conditional("y", else_branch=branch("Exp"))], MAP, {"c": np.asarray(True)}
    )
    assert "no then_branch that gives its outputs" in refused(proto, tmp_path)
    two = model(
        [conditional("y", then_branch=branch("Exp"), else_branch=branch("Exp"))],
        MAP,
        {"c": np.asarray(True)},
    )
    two.graph.node[0].output.append("z")
    assert "a subgraph with 2 output(s)" in refused(two, tmp_path)


def test_large_subgraphs_nested_without_end(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(content)) + content

    def _varint(value: int) -> bytes:
        low = bytes([value & 127 | (128 if value > 127 else 0)])
        return low + (_varint(value >> 7) if value > 127 else b"")

    graph = field(5, field(9, bytes(100_000)))
    for _ in range(max(1000, DEEPEST)):
        graph = field(1, field(5, field(6, graph)))
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + field(7, graph))
    assert "nested more than 100 deep" in run("network", path)


# -- node lists ------------------------------------------------------------------------


def test_node_list_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b"{")
    os.truncate(path, MOST_BYTES + 10)  # no bytes on disk
    assert "too large for a node list" in run("network", path)


def test_number_of_thousands_of_digits(tmp_path: Path) -> None:
    path = tmp_path / "digits.json"
    path.write_text('{"node_list": [' + "9" * 5000 + "]}")
    assert "a number has thousands of digits" in run("network", path)
    proto = saved(model([node("Relu", ["x"], ["y"])], MAP), tmp_path)
    assert "positive integers" in run("network", proto, "--dim", "N=" + "9" * 5000)


RELU: list[dict[str, object]] = [
    {"name": "a", "operation": "OP_INPUT", "output_dim": [1, 3, 4, 4]},
    {"name": "b", "operation": "OP_RELU", "provider": ["a"]},
]


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    path.write_text(json.dumps({"node_list": RELU}), "utf-8-sig")
    assert CliRunner().invoke(app, ["network", str(path)]).exit_code == 0


def test_impossible_shapes_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    nodes = [{**RELU[0], "output_dim": [1, 10**30]}, RELU[1]]
    path.write_text(json.dumps({"node_list": nodes}))
    sentence = run("network", path)
    assert str(path) in sentence
    assert "too large" in sentence


def test_long_chain_of_nodes_that_do_nothing(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(5000)]
    chain = [
        {"name": name, "operation": "OP_IDENTITY", "provider": [before]}
        for before, name in zip(["b", *names], names, strict=False)
    ]
    path = tmp_path / "chain.json"
    path.write_text(json.dumps({"node_list": [*RELU, *chain]}))
    assert CliRunner().invoke(app, ["network", str(path)]).exit_code == 0


# -- names and places ------------------------------------------------------------------


def test_control_characters_of_names_are_escaped(tmp_path: Path) -> None:
    name = "[bold]a\x1b[31m\n\u202e日本"
    nodes = [node("Relu", ["x"], ["h"], name=name), node("Exp", ["h"], ["y"], name="b")]
    path = saved(model(nodes, MAP), tmp_path)
    shown = CliRunner().invoke(app, ["network", str(path)]).stdout
    assert "[bold]a\\x1b[31m\\n\\u202e日本  " in shown
    assert len(shown.splitlines()) == 4
    unknown = model([node("Fo\x1b[31mo", ["x"], ["y"])], MAP)
    assert "\x1b" not in refused(unknown, tmp_path)
    assert visible("ä [x] \x00\r") == "ä [x] \\x00\\r"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    assert "is no regular file" in run("network", path)
    assert "is no regular file" in run("import", path)


def test_output_that_is_no_file(tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"])], MAP), tmp_path)
    sentence = run("import", path, "--force", "-o", os.devnull)
    assert "is a folder or a device" in sentence
    assert "is a folder" in run("import", path, "--force", "-o", tmp_path)
    assert "folder does not exist" in run("import", path, "-o", tmp_path / "no" / "s")
    assert not (tmp_path / "no").exists()


def test_link_to_a_model_keeps_the_weights_beside_it(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], MAP, {"w": np.ones((16, 4), np.float32)}
    )
    store = tmp_path / "store"
    store.mkdir()
    place = saved(proto, store)
    onnx.save(
        proto, place, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (store / "w.bin").rename(tmp_path / "w.bin")
    link = tmp_path / "model.onnx"
    link.symlink_to(place)
    output = tmp_path / "s.yaml"
    result = CliRunner().invoke(app, ["import", str(link), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert "onnx: model.onnx\n" in output.read_text()


def test_scenario_on_a_screen_without_its_characters(tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"])], MAP), tmp_path, "日本.onnx")
    done = subprocess.run(
        [sys.executable, "-m", "raptor_cp.cli", "import", path.name],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    document = yaml.safe_load(done.stdout)
    assert document["network"] == {"onnx": "日本.onnx"}
