"""Elements of the constants of an ONNX file, one at a time."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_folding import RANDOM
from raptor_cp.network.onnx_inlining import inlined

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    from numpy.typing import NDArray

    from raptor_cp.network.values import Floats

    Values = NDArray[np.generic]


class NotReadable(Exception):
    """A number that the file does not give; the reason."""


class ConstantReader:
    """Constants by value name: stored ones, and those that nodes compute of them.

    External data are read when they are asked for.

    Raises:
        MalformedInput: the file cannot be parsed as a whole (2 GB are protobuf's
            limit; larger models keep their weights beside the file).
    """

    def __init__(self, path: Path) -> None:
        import onnx

        self._path = path
        try:
            model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # protobuf's DecodeError has no public base class
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MalformedInput(
                f"the weights cannot be read: {reason}",
                where=str(path),
                expected="a file below 2 GB, or external data",
            ) from None
        model = inlined(model, str(path))
        self._opsets = list(model.opset_import)
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        self._collect(model.graph)
        self._kept: dict[str, Values] = {}

    def value(self, name: str) -> Floats:
        """The elements of a constant as real numbers.

        Raises:
            NotReadable: it is no constant, or its elements are not there.
        """
        return np.asarray(self._elements(name), np.float64)

    def optional(self, name: str) -> Floats:
        """A constant, or zero where it is absent."""
        return self.value(name).reshape(-1) if name else np.zeros(1)

    def _collect(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self._tensors.setdefault(tensor.name, tensor)
        for node in graph.node:
            for name in node.output:
                if name:
                    self._makers.setdefault(name, node)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._collect(attribute.g)

    def _elements(self, name: str) -> Values:
        if name in self._tensors:
            return self._stored(self._tensors[name])
        if name in self._kept:
            return self._kept[name]
        maker = self._makers.get(name)
        if maker is None:
            raise NotReadable(f"{name!r} is no constant" if name else "it is absent")
        if maker.op_type in RANDOM or maker.op_type == "DynamicQuantizeLinear":
            raise NotReadable(f"{name!r} is computed by {maker.op_type}")
        feeds = {n: self._elements(n) for n in maker.input if n}
        self._kept[name] = self._computed(maker, feeds)[list(maker.output).index(name)]
        return self._kept[name]

    def _stored(self, tensor: onnx.TensorProto) -> Values:
        import onnx
        from onnx import numpy_helper

        invalid: type[Exception] = onnx.checker.ValidationError
        try:
            value = numpy_helper.to_array(tensor, str(self._path.parent))
        except (OSError, ValueError, TypeError, KeyError, invalid) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NotReadable(f"{tensor.name!r}: {reason}") from None
        return np.asarray(value)

    def _computed(self, node: onnx.NodeProto, feeds: dict[str, Values]) -> list[Values]:
        from onnx import helper, numpy_helper
        from onnx.reference import ReferenceEvaluator

        graph = helper.make_graph(
            [node],
            "constant",
            [],
            [helper.make_empty_tensor_value_info(n) for n in node.output if n],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in feeds.items()],
        )
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                model = helper.make_model(graph, opset_imports=self._opsets)
                found = ReferenceEvaluator(model).run(None, {})
        except Exception as error:  # the evaluator raises whatever its code raises
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NotReadable(f"{node.op_type} is not evaluated: {reason}") from None
        return [np.asarray(value) for value in found]
