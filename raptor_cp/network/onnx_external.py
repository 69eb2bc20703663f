"""Weights beside an ONNX file: they must be where the file says, in full.

Only names and sizes are looked at; nothing is read.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_nodes import element_bits
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import onnx


def check_external_data(model: onnx.ModelProto, path: Path) -> None:
    """Raise MalformedInput unless all external data of ``path`` can be there.

    Files outside the model's folder are refused: a model must not make its reader
    open whatever it names.
    """
    sizes: dict[str, int] = {}
    for tensor in _external(model.graph):
        where = f"{path}, tensor {tensor.name!r}"
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        plain = posixpath.normpath(location.replace("\\", "/"))
        if not location or plain.startswith(("/", "..")) or plain[1:2] == ":":
            raise MalformedInput(
                "its data lie outside the model's folder",
                where=where,
                value=location,
                expected="a relative path inside the folder",
            )
        if location not in sizes:
            file = path.parent / location
            if not file.is_file():
                raise MalformedInput(
                    "the file with its data is missing",
                    where=where,
                    value=location,
                    expected=f"a file in {path.parent}",
                )
            sizes[location] = file.stat().st_size
        start = _number(entries, "offset", 0, where)
        needed = ceil_div(_elements(tensor) * (element_bits(tensor.data_type) or 0), 8)
        length = _number(entries, "length", needed, where)
        if length < needed:
            raise MalformedInput(
                "its data are shorter than its shape",
                where=where,
                value=f"{length} bytes",
                expected=f"{needed} bytes for shape {tuple(tensor.dims)}",
            )
        if start + length > sizes[location]:
            raise MalformedInput(
                f"the file {location!r} with its data is truncated",
                where=where,
                value=f"{sizes[location]} bytes",
                expected=f"at least {start + length} bytes",
            )


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise MalformedInput(
            f"the {key} of its data is no number of bytes",
            where=where,
            value=text,
            expected="a non-negative integer",
        )
    return int(text)


def _elements(tensor: onnx.TensorProto) -> int:
    result = 1
    for size in tensor.dims:
        result *= size
    return max(result, 0)


def _external(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    tensors = list(graph.initializer)
    for sparse in graph.sparse_initializer:
        tensors += (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            if attribute.HasField("g"):
                yield from _external(attribute.g)
            for nested in attribute.graphs:
                yield from _external(nested)
    yield from (tensor for tensor in tensors if tensor.data_location == 1)
