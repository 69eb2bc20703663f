"""Model files of the PIMCOMP compiler: counts, widths, capacity, errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray, weight_demand
from raptor_cp.network import zoo
from raptor_cp.network.attributes import OpKind
from raptor_cp.network.pimcomp_import import import_pimcomp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raptor_cp.network.structure import Network

NAMES = ("alexnet", "googlenet", "mobilenetv2", "resnet18", "squeezenet", "vgg16")
#: Crossbars of the chip arch-a: 168 cores of 96.
SLOTS = 168 * 96
ARRAY = MatrixArray(128, 128, 2)
#: With 16-bit weights in slices of two bits.
SLICED = {"vgg16": 67_576, "alexnet": 29_810}


def crossbars(network: Network) -> int:
    return sum(demand.slots for demand in weight_demand(network, ARRAY))


def counted(path: Path, columns: int) -> tuple[int, int]:
    """(MACs, crossbars) of a file, by its own numbers.

    ``columns``: weights side by side on a crossbar.  Groups of fewer rows than a
    crossbar has share one, as many as fit on its rows and columns.
    """
    macs = slots = 0
    for node in json.loads(path.read_text())["node_list"]:
        param = node.get("param") or {}
        if node["operation"] == "OP_CONV":
            groups = param.get("group", 1)
            kernel = param["kernel_h"] * param["kernel_w"]
            rows = param["input_channel"] // groups * kernel
            _, channels, height, width = node["output_dim"]
            own = channels // groups
            macs += channels * height * width * rows
        elif node["operation"] == "OP_FC":
            groups, rows, own = 1, param["num_input"], param["num_output"]
            macs += rows * own
        else:
            continue
        together = max(1, min(128 // rows, groups)) if groups > 1 else 1
        if together > 1:
            together = max(1, min(together, columns // own)) if own <= columns else 1
        if together == 1:
            slots += groups * -(-rows // 128) * -(-own // columns)
        else:
            whole, rest = divmod(groups, together)
            slots += whole * -(-together * own // columns) + (rest > 0)
    return macs, slots


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [None, 16])
def test_macs_and_crossbars_are_those_of_the_file(
    name: str, bits: int | None, shared_data: Path
) -> None:
    path = shared_data / "pimcomp" / f"{name}.json"
    network = import_pimcomp(path, weight_bits=bits)
    columns = 128 * 2 // (bits or 2)
    assert (network.macs, crossbars(network)) == counted(path, columns)
    # The files have 224 x 224 pixels, where AlexNet's paper has 227 x 227.
    built = zoo.build(name, (1, 3, 224, 224), weight_bits=bits or 2)
    assert crossbars(network) == crossbars(built)
    assert network.macs == built.macs


@pytest.mark.parametrize("name", NAMES)
def test_all_schedule_under_the_compilers_convention(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    scenario = tmp_path / "s.yaml"
    model = shared_data / "pimcomp" / f"{name}.json"
    runner = CliRunner()
    result = runner.invoke(app, ["import", str(model), "-o", str(scenario)])
    assert result.exit_code == 0, result.output
    assert "PIMCOMP's convention" in result.stderr
    fast = ("search.queue_evaluations=1", "search.beam=1", "pipeline.stages=3")
    result = runner.invoke(
        app,
        ["schedule", str(scenario), "--no-program", "--no-solver", "--json"]
        + ["--out", str(tmp_path / "run")]
        + [part for entry in fast for part in ("--set", entry)],
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["verdict"] == "FEASIBLE"


@pytest.mark.parametrize("name", sorted(SLICED))
def test_bit_sliced_weights_are_refused_with_numbers(
    name: str, shared_data: Path, tmp_path: Path
) -> None:
    scenario = tmp_path / "s.yaml"
    model = shared_data / "pimcomp" / f"{name}.json"
    runner = CliRunner()
    arguments = ["import", str(model), "-o", str(scenario), "--weight-bits", "16"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for command in (
        ["check", str(scenario)],
        ["schedule", str(scenario), "--out", str(tmp_path / "run")],
    ):
        result = runner.invoke(app, command)
        assert result.exit_code == 1
        assert f"need {SLICED[name]} slots" in result.stderr
        assert f"{SLOTS:,}" in result.stderr


def test_alexnet_in_one_group_needs_54_crossbars_more(tmp_path: Path) -> None:
    """The files that torchvision exports: 64, 192, 384, 256 and 256 channels."""
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from raptor_cp.network.onnx_import import import_onnx

    layers = [(64, 3, 11, 4, 2), (192, 64, 5, 1, 2), (384, 192, 3, 1, 1)]
    layers += [(256, 384, 3, 1, 1), (256, 256, 3, 1, 1)]
    dense = [(4096, 9216), (4096, 4096), (1000, 4096)]
    nodes, value = [], "x"
    weights: list[tuple[str, tuple[int, ...]]] = []
    for index, (channels, depth, kernel, stride, pad) in enumerate(layers):
        nodes.append(
            helper.make_node(
                "Conv",
                [value, f"w{index}"],
                [f"c{index}"],
                strides=[stride] * 2,
                pads=[pad] * 4,
            )
        )
        value = f"c{index}"
        weights.append((f"w{index}", (channels, depth, kernel, kernel)))
        if index in (0, 1, 4):
            nodes.append(
                helper.make_node(
                    "MaxPool",
                    [value],
                    [f"p{index}"],
                    kernel_shape=[3, 3],
                    strides=[2, 2],
                )
            )
            value = f"p{index}"
    nodes.append(helper.make_node("Flatten", [value], ["f"]))
    value = "f"
    for index, size in enumerate(dense):
        nodes.append(
            helper.make_node("Gemm", [value, f"d{index}"], [f"g{index}"], transB=1)
        )
        value = f"g{index}"
        weights.append((f"d{index}", size))
    tensors = []
    for name, shape in weights:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensors.append(tensor)  # without elements: only shapes are read
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "alexnet",
        [info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [info(value, TensorProto.FLOAT, None)],
        tensors,
    )
    path = tmp_path / "alexnet.onnx"
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset)
    path.write_bytes(made.SerializeToString())
    assert crossbars(import_onnx(path)) == 29_864


# -- operations -----------------------------------------------------------------------


def file_of(folder: Path, *nodes: dict[str, object]) -> Path:
    """A model file; nodes read the one before unless they say otherwise."""
    named = []
    for index, node in enumerate(nodes):
        before = [f"n{index - 1}"] if index else []
        named.append({"name": f"n{index}", "provider": before, **node})
    path = folder / "model.json"
    path.write_text(json.dumps({"node_list": named}))
    return path


def source(*shape: int) -> dict[str, object]:
    return {"operation": "OP_INPUT", "output_dim": list(shape)}


def conv_node(**param: int) -> dict[str, object]:
    defaults = {
        "input_channel": 4,
        "output_channel": 6,
        "kernel_h": 3,
        "kernel_w": 3,
        "stride_h": 1,
        "stride_w": 1,
    }
    return {"operation": "OP_CONV", "param": {**defaults, **param}}


MAP = source(1, 4, 6, 5)


@pytest.mark.parametrize(
    ("nodes", "kinds", "macs"),
    [
        ([MAP, conv_node(pad_h0=1, pad_h1=1)], ["conv"], 6 * 36 * 18),
        (
            [MAP, conv_node(group=2, output_channel=8)],
            ["conv"],
            8 * 18 * 12,
        ),
        ([MAP, conv_node(), {"operation": "OP_RELU"}], ["conv"], 6 * 36 * 12),
        (
            [MAP, conv_node(), {"operation": "OP_BN"}, {"operation": "OP_TANH"}],
            ["conv"],
            6 * 36 * 12,
        ),
        (
            [MAP, {"operation": "OP_CLIP", "param": {"min": 0, "max": 6}}],
            ["activation"],
            0,
        ),
        (
            [MAP, {"operation": "OP_ELTWISE", "provider": ["n0", "n0"]}],
            ["add"],
            0,
        ),
        (
            [
                MAP,
                {
                    "operation": "OP_ELTWISE",
                    "provider": ["n0", "n0"],
                    "param": {"eletype": 4},
                },
            ],
            ["sub"],
            0,
        ),
        ([MAP, {"operation": "OP_CONCAT", "provider": ["n0", "n0"]}], ["concat"], 0),
        (
            [
                MAP,
                {"operation": "OP_FLATTEN", "output_dim": [1, 120]},
                {"operation": "OP_FC", "param": {"num_input": 120, "num_output": 7}},
                {"operation": "OP_DROPOUT"},
                {"operation": "OP_SOFTMAX"},
            ],
            ["view", "gemm", "softmax"],
            840,
        ),
        (
            [MAP, {"operation": "OP_FC", "param": {"num_input": 120, "num_output": 7}}],
            ["view", "gemm"],
            840,
        ),
        (
            [MAP, {"operation": "OP_POOL", "param": {"global": 1, "pool_method": 1}}],
            ["reduce"],
            0,
        ),
        (
            [MAP, {"operation": "OP_POOL", "param": {"kernel_h": 2, "kernel_w": 2}}],
            ["pool"],
            0,
        ),
        ([MAP, {"operation": "OP_LRN"}], ["lrn"], 0),
        (
            [MAP, {"operation": "OP_SHUFFLE", "param": {"split_factor": 2}}],
            ["view", "transpose", "view"],
            0,
        ),
        ([MAP, {"operation": "OP_PAD", "param": {"pad_2_h": 1}}], ["pad"], 0),
    ],
)
def test_operations(
    nodes: list[dict[str, object]], kinds: list[str], macs: int, tmp_path: Path
) -> None:
    network = import_pimcomp(file_of(tmp_path, *nodes))
    assert [operation.kind.value for operation in network.operations] == kinds
    assert network.macs == macs


def test_widths_are_the_compilers_or_chosen(tmp_path: Path) -> None:
    path = file_of(tmp_path, {**MAP, "bitwidth": 8}, conv_node())
    network = import_pimcomp(path)
    weight = network.operations[0].weight
    assert weight is not None
    assert (weight.bits, network.tensors["n0"].bits) == (2, 8)
    assert "PIMCOMP's convention" in network.notes[0]
    network = import_pimcomp(path, cell_bits=4)
    weight = network.operations[0].weight
    assert weight is not None
    assert weight.bits == 4
    network = import_pimcomp(path, weight_bits=16, activation_bits=12)
    weight = network.operations[0].weight
    assert weight is not None
    assert (weight.bits, network.tensors["n0"].bits) == (16, 12)
    assert network.notes == ()


def _bad_json(folder: Path) -> Path:
    path = folder / "model.json"
    path.write_text('{"node_list": [')
    return path


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (_bad_json, "not JSON"),
        (lambda f: file_of(f), "no list of nodes"),
        (
            lambda f: file_of(f, MAP, {"operation": "OP_LSTM"}, {"operation": "OP_X"}),
            "",
        ),
        (
            lambda f: file_of(f, MAP, {"name": "n0", "operation": "OP_RELU"}),
            "same name",
        ),
        (lambda f: file_of(f, MAP, {**conv_node(), "provider": ["n9"]}), "no node"),
        (lambda f: file_of(f, MAP, conv_node(input_channel=5)), "channels"),
        (lambda f: file_of(f, MAP, conv_node(kernel_h=9)), ""),
        (lambda f: file_of(f, MAP, {**conv_node(), "provider": ["n1"]}), "cycle"),
        (
            lambda f: file_of(f, MAP, {**conv_node(), "output_dim": [1, 6, 9, 9]}),
            "contradicts",
        ),
        (lambda f: file_of(f, source(1, 4, 0, 5), conv_node()), "shape"),
        (lambda f: file_of(f, {"operation": "OP_INPUT"}, conv_node()), "shape"),
    ],
)
def test_broken_files_are_one_sentence(
    make: Callable[[Path], Path], word: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(MalformedInput) as caught:
        import_pimcomp(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert word in sentence
    for command in ("network", "import"):
        result = CliRunner().invoke(app, [command, str(path)])
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1


def test_every_unknown_node_is_listed(tmp_path: Path) -> None:
    path = file_of(tmp_path, MAP, {"operation": "OP_LSTM"}, {"operation": "OP_X"})
    with pytest.raises(MalformedInput, match="OP_LSTM 'n1'; OP_X 'n2'"):
        import_pimcomp(path)


def test_softmax_and_pools_of_the_shipped_files(shared_data: Path) -> None:
    """Views and dropout cost nothing; every other node is an operation."""
    for name in NAMES:
        path = shared_data / "pimcomp" / f"{name}.json"
        nodes = json.loads(path.read_text())["node_list"]
        network = import_pimcomp(path)
        by_kind = [op.kind for op in network.operations]
        for operation, kind in (
            ("OP_CONV", OpKind.CONV),
            ("OP_FC", OpKind.GEMM),
            ("OP_CONCAT", OpKind.CONCAT),
            ("OP_ELTWISE", OpKind.ADD),
        ):
            wanted = sum(node["operation"] == operation for node in nodes)
            assert by_kind.count(kind) == wanted
