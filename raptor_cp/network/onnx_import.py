"""ONNX files as networks.

Only shapes, attributes and small constants are read: weights stay on disk, whatever
their size.  ``docs/import.md`` lists operators and patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_graph import InputShapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.network.onnx_nodes import SourceGraph
    from raptor_cp.network.onnx_translation import Translator
    from raptor_cp.network.structure import Network


@dataclass(frozen=True, slots=True)
class OnnxOptions:
    """How a file is read.

    Attributes:
        dims: values of symbolic dimensions, by name.
        input_shapes: whole shapes of inputs, by name.
        weight_bits, activation_bits: widths; None for those of the file
            (quantised models), and 16 for floating point.
        vector: price elementwise-like unsupported nodes as vector work.
        values: the network knows the numbers of the file, see
            :class:`raptor_cp.network.onnx_values.OnnxValues`; they are read when
            they are needed.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    weight_bits: int | None = None
    activation_bits: int | None = None
    vector: bool = False
    values: bool = False


def import_onnx(path: str | Path, options: OnnxOptions | None = None) -> Network:
    """The network in an ONNX file (opset 7 or newer).

    ``Network.notes`` tells what was assumed.

    Raises:
        MalformedInput: no readable model, unknown dimensions, contradictions, or
            unsupported nodes: all of them in one error.
    """
    options = options or OnnxOptions()
    path = Path(path)
    translator = prepared_translator(path, options)
    try:
        network = translator.run()
        if not options.values:
            return network
        from raptor_cp.network.onnx_values import OnnxValues

        return replace(network, values=OnnxValues(path, options))
    except MalformedInput as error:
        if str(path) in str(error):
            raise
        raise MalformedInput(
            error.what,
            where=f"{path}: {error.where}" if error.where else str(path),
            **({} if error.value is MalformedInput._ABSENT else {"value": error.value}),
            expected=error.expected,
            hint=error.hint,
        ) from None


def prepared_translator(path: Path, options: OnnxOptions) -> Translator:
    """What makes the network of a file.

    Raises:
        MalformedInput: as :func:`import_onnx`, but for what single nodes say.
    """
    from raptor_cp.network import onnx_ops_elementwise, onnx_ops_windows  # noqa: F401
    from raptor_cp.network.onnx_translation import Translator, Widths

    widths = Widths(options.weight_bits, options.activation_bits)
    return Translator(
        source_graph(path, options),
        path.stem,
        widths,
        vector=options.vector,
        where=str(path),
    )


def source_graph(path: Path, options: OnnxOptions | None = None) -> SourceGraph:
    """The graph of a file with constants folded and patterns merged."""
    from raptor_cp.network.onnx_cones import merge_functions
    from raptor_cp.network.onnx_external import check_external_data
    from raptor_cp.network.onnx_file import read_model
    from raptor_cp.network.onnx_graph import read_graph
    from raptor_cp.network.onnx_moves import merge_heads, merge_pads, merge_views
    from raptor_cp.network.onnx_rewriting import remove_renames

    options = options or OnnxOptions()
    model = read_model(path)
    check_external_data(model, path)
    given = InputShapes(options.dims, options.input_shapes)
    graph = read_graph(model, path.parent, given, str(path))
    remove_renames(graph)
    merge_functions(graph)
    merge_pads(graph)
    merge_heads(graph)
    merge_views(graph)
    return graph
