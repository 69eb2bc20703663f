"""Opening ONNX files: what cannot be read is refused in one sentence."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_inlining import inlined
from raptor_cp.network.onnx_wire import DamagedMessage, without_payload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import onnx

#: Oldest operator set that is read: operators changed their meaning before.
OLDEST_OPSET = 7
#: The names of the standard operator set.
STANDARD_DOMAINS = ("", "ai.onnx")

_FORMATS = (
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or a Keras file)"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
)


def require_onnx(where: str) -> None:
    """Say how to get the onnx package when it is missing."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise MalformedInput(
            "reading ONNX files needs the onnx package, which is not installed",
            where=where,
            hint="install it with: pip install 'raptor-cp[onnx]'",
        ) from None


def read_model(path: Path) -> onnx.ModelProto:
    """The model in ``path`` without its weights; model-local functions inlined.

    Raises:
        MalformedInput: no such file, no ONNX model, a damaged one, an operator set
            that is too old or too new, or the onnx package is missing.
    """
    where = str(path)
    if not path.is_file():
        pipe = "is no regular file" if path.exists() else "no such file"
        raise MalformedInput(
            "is a folder" if path.is_dir() else pipe,
            where=where,
            expected="an ONNX file",
        )
    require_onnx(where)
    from importlib import import_module

    import onnx

    decode_error: type[Exception] = import_module("google.protobuf.message").DecodeError
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(_structure(path))
    except (DamagedMessage, decode_error, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else "unreadable"
        raise MalformedInput(
            f"not an ONNX model, or a damaged one: {reason}",
            where=where,
            expected="a complete protobuf file as exporters write it",
        ) from None
    if not model.HasField("graph") or not model.ir_version:
        raise MalformedInput(
            "no ONNX model: the file has no graph",
            where=where,
            expected="a ModelProto with ir_version and graph",
        )
    if not all(isinstance(text, str) for text in _texts(model.graph)):
        raise MalformedInput(
            "a damaged ONNX model: a name is no UTF-8 text",
            where=where,
            expected="a complete protobuf file as exporters write it",
        )
    _check_opset(model, where)
    return inlined(model, where)


def _structure(path: Path) -> bytes:
    size = path.stat().st_size
    if size == 0:
        raise DamagedMessage("the file is empty")
    with path.open("rb") as file:
        head = file.read(512)
        for magic, name in _FORMATS:
            if head.startswith(magic):
                raise DamagedMessage(f"it is {name}")
        if head[4:8] == b"TFL3":
            raise DamagedMessage("it is a TensorFlow Lite file")
        if _is_text(head):
            raise DamagedMessage("it is a text file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return without_payload(data)


def _is_text(head: bytes) -> bool:
    # A model starts with the tag of its version: 0x08, a control character.
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return False
        text = head[: error.start].decode("utf-8")
    return all(c.isprintable() or c in "\t\r\n\f" for c in text)


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Names of a graph; protobuf gives bytes where they are no text."""
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("g"):
                yield from _texts(attribute.g)


def _check_opset(model: onnx.ModelProto, where: str) -> None:
    from onnx.defs import onnx_opset_version

    versions = {entry.domain: entry.version for entry in model.opset_import}
    version = max((versions.get(d, 0) for d in STANDARD_DOMAINS), default=0)
    if not any(d in versions for d in STANDARD_DOMAINS):
        used = {n.domain for n in model.graph.node}
        if used and not used & set(STANDARD_DOMAINS):
            return
        version = 1  # what files before opset imports mean
    newest = onnx_opset_version()
    if version < OLDEST_OPSET:
        raise MalformedInput(
            "the operator set is too old",
            where=where,
            value=version,
            expected=f"opset {OLDEST_OPSET} to {newest}",
            hint="convert the file with onnx.version_converter",
        )
    if version > newest:
        raise MalformedInput(
            "the operator set is newer than the installed onnx package",
            where=where,
            value=version,
            expected=f"opset {OLDEST_OPSET} to {newest}",
            hint="upgrade the onnx package",
        )
