"""Small ONNX models for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Shape = Sequence[int | str]

FLOAT = TensorProto.FLOAT


def weights(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Reproducible values around zero."""
    generator = np.random.default_rng([seed, *shape])
    return generator.normal(size=shape).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    constants: Mapping[str, NDArray[np.generic]] | None = None,
    outputs: Sequence[str] = ("y",),
    *,
    opset: int = 17,
    types: Mapping[str, int] | None = None,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; nodes without a name are named after their first output."""
    types = types or {}
    for node in nodes:
        if not node.name:
            node.name = f"node_{node.output[0]}"
    graph = helper.make_graph(
        list(nodes),
        "test",
        [
            helper.make_tensor_value_info(name, types.get(name, FLOAT), list(shape))
            for name, shape in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, types.get(name, FLOAT), None)
            for name in outputs
        ],
        [
            numpy_helper.from_array(np.asarray(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in domains]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def saved(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """The model as a file."""
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


node = helper.make_node
