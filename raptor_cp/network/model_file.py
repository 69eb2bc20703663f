"""Model files by what they hold: ONNX or a PIMCOMP node list."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_import import OnnxOptions, import_onnx
from raptor_cp.network.pimcomp_import import CELL_BITS, import_pimcomp

if TYPE_CHECKING:
    from raptor_cp.network.structure import Network


def is_pimcomp(path: Path) -> bool:
    """True if the file starts like a JSON document."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return path.suffix == ".json"
    try:
        with path.open("rb") as file:
            head = file.read(64).removeprefix(BOM_UTF8)
    except OSError:
        return path.suffix == ".json"
    return head.lstrip()[:1] in (b"{", b"[")


def import_model(
    path: str | Path,
    options: OnnxOptions | None = None,
    *,
    cell_bits: int = CELL_BITS,
) -> Network:
    """The network in a model file.

    Args:
        options: how to read it; shapes are for ONNX files only.
        cell_bits: bits of a crossbar cell, for PIMCOMP files.

    Raises:
        MalformedInput: see :func:`import_onnx` and :func:`import_pimcomp`.
    """
    options = options or OnnxOptions()
    path = Path(path)
    if not is_pimcomp(path):
        return import_onnx(path, options)
    if options.dims or options.input_shapes or options.vector:
        raise MalformedInput(
            "a PIMCOMP file has fixed shapes and operations",
            where=str(path),
            expected="no --dim, --input-shape or --allow-unsupported",
        )
    return import_pimcomp(
        path,
        weight_bits=options.weight_bits,
        activation_bits=options.activation_bits,
        cell_bits=cell_bits,
    )
