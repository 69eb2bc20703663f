"""The nine light models that the onnx package ships: sizes, counts, capacity.

Counts are made twice: here from the file by the library's own shape inference, and
by the importer.
"""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from raptor_cp.cli.app import app
from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray, weight_demand
from raptor_cp.network.attributes import OpKind
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx

if TYPE_CHECKING:
    from raptor_cp.network.structure import Network

onnx = pytest.importorskip("onnx")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
#: Crossbars of the chip arch-a: 168 cores of 96.
SLOTS = 168 * 96
#: 16-bit weights on 2-bit cells: 16 columns of 128 rows.
ARRAY = MatrixArray(128, 128, 2)

#: Multiply-accumulates and parameters in millions (the networks' papers, torchvision
#: and the release of each; SqueezeNet is version 1.1, Inception v2 BN-Inception).
PUBLISHED = {
    "light_densenet121": (2834, 7.98),
    "light_resnet50": (4089, 25.53),
    "light_squeezenet": (349, 1.235),
    "light_vgg19": (19632, 143.67),
    "light_bvlc_alexnet": (655, 60.97),
    "light_inception_v1": (1430, 6.99),
    "light_inception_v2": (2020, 11.2),
}
NAMES = sorted((*PUBLISHED, "light_shufflenet", "light_zfnet512"))
#: Of these the whole chip does not hold the weights.
TOO_LARGE = ("light_bvlc_alexnet", "light_vgg19", "light_zfnet512")


class Counted:
    """What a file holds, by whole-model shape inference."""

    def __init__(self, path: Path) -> None:
        model = onnx.shape_inference.infer_shapes(onnx.load(path))
        self.nodes = Counter(node.op_type for node in model.graph.node)
        shapes = {
            info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
            for info in (
                *model.graph.value_info,
                *model.graph.output,
                *model.graph.input,
            )
        }
        shapes.update((t.name, tuple(t.dims)) for t in model.graph.initializer)
        self.outputs = [shapes[o.name] for o in model.graph.output]
        self.macs = self.crossbars = 0
        self.grouped = False
        for node in model.graph.node:
            output = shapes[node.output[0]]
            if node.op_type == "Conv":
                weight = shapes[node.input[1]]
                groups = next((a.i for a in node.attribute if a.name == "group"), 1)
                rows, columns = prod(weight[1:]), weight[0] // groups
                self.macs += prod(output) * rows
                self.grouped |= groups > 1 and rows < 128
            elif node.op_type == "Gemm":
                flags = {a.name: a.i for a in node.attribute}
                weight = shapes[node.input[1]]
                rows, columns = weight[::-1] if flags.get("transB") else weight
                groups = 1
                self.macs += prod(output) * rows
            else:
                continue
            self.crossbars += groups * -(-rows // 128) * -(-columns // 16)


def imported(name: str) -> Network:
    return import_onnx(LIGHT / f"{name}.onnx")


def test_there_are_nine() -> None:
    assert sorted(p.stem for p in LIGHT.glob("*.onnx")) == NAMES


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes_are_the_published_ones(name: str) -> None:
    network = imported(name)
    macs, parameters = PUBLISHED[name]
    assert network.macs == pytest.approx(macs * 1e6, rel=0.01)
    assert network.parameters == pytest.approx(parameters * 1e6, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_counts_and_shapes_are_those_of_the_file(name: str) -> None:
    network, counted = imported(name), Counted(LIGHT / f"{name}.onnx")
    assert network.macs == counted.macs
    found = [network.tensors[tensor].shape for tensor in network.outputs]
    assert found == counted.outputs
    stored = onnx.TensorProto.FromString(
        (LIGHT / f"{name}_output_0.pb").read_bytes()
    )  # what the network computes for a certain input
    assert found == [tuple(stored.dims)]
    nodes = counted.nodes
    kinds = Counter(operation.kind for operation in network.operations)
    assert kinds[OpKind.CONV] == nodes["Conv"]
    assert kinds[OpKind.GEMM] == nodes["Gemm"]
    assert kinds[OpKind.POOL] == nodes["MaxPool"] + nodes["AveragePool"]
    assert kinds[OpKind.REDUCE] == nodes["GlobalAveragePool"]
    assert kinds[OpKind.CONCAT] == nodes["Concat"]
    assert kinds[OpKind.LRN] == nodes["LRN"]
    assert kinds[OpKind.SOFTMAX] == nodes["Softmax"]
    assert kinds[OpKind.TRANSPOSE] == nodes["Transpose"]
    assert kinds[OpKind.ADD] == nodes["Sum"] + nodes["Add"] - _biases(network)
    crossbars = sum(demand.slots for demand in weight_demand(network, ARRAY))
    if counted.grouped:
        assert crossbars < counted.crossbars  # groups share crossbars
    else:
        assert crossbars == counted.crossbars


def _biases(network: Network) -> int:
    """Add nodes that became the bias of what stands in front of them."""
    folded = {name for op in network.operations for name in op.folded}
    model = onnx.load(LIGHT / f"{network.name}.onnx")
    adds = [node for node in model.graph.node if node.op_type in ("Add", "Sum")]
    return sum(bool({n.name, n.output[0]} & folded) for n in adds)


@pytest.mark.parametrize("name", NAMES)
def test_each_schedules_or_is_refused_with_numbers(name: str, tmp_path: Path) -> None:
    scenario, run = tmp_path / "s.yaml", tmp_path / "run"
    runner = CliRunner()
    file = LIGHT / f"{name}.onnx"
    result = runner.invoke(app, ["import", str(file), "-o", str(scenario)])
    assert result.exit_code == 0, result.output
    fast = ("search.queue_evaluations=1", "search.beam=1", "pipeline.stages=3")
    result = runner.invoke(
        app,
        ["schedule", str(scenario), "--no-program", "--no-solver", "--json"]
        + ["--out", str(run)]
        + [part for entry in fast for part in ("--set", entry)],
    )
    document = json.loads(result.stdout)
    need = sum(d.slots for d in weight_demand(imported(name), ARRAY))
    if name in TOO_LARGE:
        assert need > SLOTS
        assert result.exit_code == 1
        assert document["verdict"] == "INFEASIBLE"
        assert f"{need}" in result.stdout
        assert f"{SLOTS}" in result.stdout
    else:
        assert need <= SLOTS
        assert result.exit_code == 0, result.output
        assert document["verdict"] == "FEASIBLE"
        assert document["interval_ns"] > 0


def test_what_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    text = tmp_path / "a.onnx"
    text.write_text("not a model")
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    cut = tmp_path / "b.onnx"
    cut.write_bytes(whole[: len(whole) // 2])
    for path in (text, cut, tmp_path / "none.onnx"):
        with pytest.raises(MalformedInput) as caught:
            import_onnx(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_numbers_of_a_light_model_are_read() -> None:
    """Its weights are constants that nodes make."""
    network = import_onnx(LIGHT / "light_squeezenet.onnx", OnnxOptions(values=True))
    assert network.values is not None
    values = network.values.read()
    weighted = [op for op in network.operations if op.weight is not None]
    assert list(values.weights) == [op.name for op in weighted]
    for operation in weighted:
        weight = operation.weight
        assert weight is not None
        shape = (weight.groups, weight.rows, weight.columns)
        assert values.weights[operation.name].shape == shape
