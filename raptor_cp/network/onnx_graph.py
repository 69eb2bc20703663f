"""From an ONNX model to a graph with known shapes and folded constants."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import MAX_ELEMENTS
from raptor_cp.network.onnx_folding import (
    RANDOM,
    condition,
    folded,
    infer_outputs,
    shape_constant,
    tensor_info,
)
from raptor_cp.network.onnx_nodes import (
    FLOAT,
    STRING,
    Info,
    Node,
    SourceGraph,
    captured,
    plain_attributes,
    reads,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from raptor_cp.network.onnx_nodes import Shape


@dataclass(frozen=True, slots=True)
class InputShapes:
    """What the user says about dimensions.

    Attributes:
        dims: values of symbolic dimensions, by name.
        shapes: whole shapes of inputs, by name; they win.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def read_graph(
    model: onnx.ModelProto, folder: Path, given: InputShapes, where: str
) -> SourceGraph:
    """The part of a model that its outputs depend on.

    Args:
        model: weights may be missing, see :mod:`raptor_cp.network.onnx_wire`.
        folder: where external data lie; read for small constants only.
        where: the file, for errors.

    Raises:
        MalformedInput: duplicate or missing values, a cycle, unknown dimensions,
            inputs that contradict an operator.
    """
    return _Reader(model, folder, where).run(given)


class _Reader:
    def __init__(self, model: onnx.ModelProto, folder: Path, where: str) -> None:
        self.model = model
        self.folder = folder
        self.where = where
        self.opsets = list(model.opset_import)
        self.values: dict[str, Info] = {}
        self.nodes: list[Node] = []
        self.notes: list[str] = []
        self.node_names: dict[str, None] = {}
        self.declared = {
            info.name: info for info in (*model.graph.value_info, *model.graph.output)
        }

    def run(self, given: InputShapes) -> SourceGraph:
        graph = self.model.graph
        self._check_names(graph)
        for tensor in graph.initializer:
            self.values[tensor.name] = tensor_info(tensor, self.folder)
        for sparse in graph.sparse_initializer:
            info = Info(tuple(sparse.dims), sparse.values.data_type, constant=True)
            self.values[sparse.values.name] = info
        inputs = self._inputs(given)
        self._walk(graph)
        outputs = self._outputs()
        nodes = self._live(outputs)
        used = {name for node in nodes for name in node.inputs} | set(outputs)
        for name in inputs:
            if name not in used:
                self.notes.append(f"input {name!r} is left out: nothing depends on it")
        return SourceGraph(
            name=graph.name or "onnx",
            inputs=[name for name in inputs if name in used],
            outputs=outputs,
            nodes=nodes,
            values=self.values,
            notes=self.notes,
        )

    # -- what the file must hold ---------------------------------------------------

    def _check_names(self, graph: onnx.GraphProto) -> None:
        made: dict[str, str] = {}
        constants = [t.name for t in graph.initializer]
        constants += [t.values.name for t in graph.sparse_initializer]
        # Up to IR version 3 initialisers are listed as inputs, too.
        arriving = [v.name for v in graph.input if v.name not in set(constants)]
        sources = [(name, "an initialiser") for name in constants]
        sources += [(name, "a graph input") for name in arriving]
        for node in graph.node:
            label = f"node {node.name or node.op_type!r}"
            sources += [(name, label) for name in node.output if name]
        for name, source in sources:
            if name in made:
                raise MalformedInput(
                    f"two values have the name {name!r}: {made[name]} and {source}",
                    where=self.where,
                    expected="unique value names",
                )
            made[name] = source
        seen: dict[str, str] = {}
        for node in graph.node:
            if node.name and node.name in seen:
                raise MalformedInput(
                    f"two nodes have the name {node.name!r}: {seen[node.name]} and "
                    f"{node.op_type}",
                    where=self.where,
                    expected="unique node names",
                )
            seen[node.name] = node.op_type
        missing: dict[str, str] = {}
        for node in graph.node:
            for name in reads(node):
                if name not in made:
                    missing.setdefault(name, f"{node.name or node.op_type!r}")
        if missing:
            listed = ", ".join(f"{n!r} (read by {by})" for n, by in missing.items())
            raise MalformedInput(
                f"values that nothing produces: {listed}",
                where=self.where,
                expected="an initialiser, a graph input or a node for each",
            )

    def _inputs(self, given: InputShapes) -> list[str]:
        values = [v for v in self.model.graph.input if v.name not in self.values]
        names = [value.name for value in values]
        for name in given.shapes:
            if name not in names:
                raise MalformedInput(
                    "no such input",
                    where=f"{self.where}, input shape",
                    value=name,
                    expected=f"one of {', '.join(names)}",
                    hint=_nearest(name, names),
                )
        symbols = {
            dimension.dim_param: None
            for value in values
            for dimension in value.type.tensor_type.shape.dim
            if dimension.dim_param
        }
        for name in given.dims:
            if name not in symbols:
                listed = ", ".join(symbols)
                raise MalformedInput(
                    "no such symbolic dimension",
                    where=f"{self.where}, dim",
                    value=name,
                    expected=f"one of {listed}"
                    if symbols
                    else "no --dim: none is free",
                    hint=_nearest(name, list(symbols)),
                )
        for value in values:
            shape = self._input_shape(value, given)
            self.values[value.name] = Info(shape, value.type.tensor_type.elem_type)
        return names

    def _input_shape(self, value: onnx.ValueInfoProto, given: InputShapes) -> Shape:
        where = f"{self.where}, input {value.name!r}"
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or tensor.elem_type == STRING:
            raise MalformedInput(
                "the input is no numeric tensor", where=where, expected="a tensor"
            )
        own = [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or "?")
            for d in tensor.shape.dim
        ]
        listed = "[" + ", ".join(str(size) for size in own) + "]"
        chosen = given.shapes.get(value.name)
        if chosen is not None:
            shape = tuple(chosen)
            if tensor.HasField("shape") and len(shape) != len(own):
                raise MalformedInput(
                    "the given shape has another number of dimensions",
                    where=where,
                    value=shape,
                    expected=f"a shape like {listed}",
                )
        elif not tensor.HasField("shape"):
            raise MalformedInput(
                "the shape is not in the file",
                where=where,
                hint=f"give it: --input-shape {value.name}=1,3,224,224",
            )
        else:
            sizes = [given.dims.get(d, d) if isinstance(d, str) else d for d in own]
            unknown = list(dict.fromkeys(s for s in sizes if isinstance(s, str)))
            if unknown:
                options = " ".join(f"--dim {name}=1" for name in unknown if name != "?")
                whole = ",".join("1" if isinstance(s, str) else str(s) for s in sizes)
                hint = options or f"--input-shape {value.name}={whole}"
                raise MalformedInput(
                    f"dimensions of {listed} are not known: {', '.join(unknown)}",
                    where=where,
                    hint=f"give them, for example: {hint}",
                )
            shape = tuple(int(size) for size in sizes)
        if not shape:
            raise MalformedInput(
                "the input has no dimensions (a 0-d tensor)",
                where=where,
                expected="one or more dimensions",
            )
        if min(shape) < 1:
            raise MalformedInput(
                "a dimension is zero or negative",
                where=where,
                value=shape,
                expected="at least 1",
                hint=f"give the shape: --input-shape {value.name}=...",
            )
        data = any(n.input and n.input[0] == value.name for n in self.model.graph.node)
        if data and len(shape) >= 4 and shape[0] != 1:
            one = ",".join(str(size) for size in (1, *shape[1:]))
            raise MalformedInput(
                "the batch dimension is not 1",
                where=where,
                value=shape,
                expected="one inference at a time",
                hint=f"--input-shape {value.name}={one}",
            )
        return shape

    def _outputs(self) -> list[str]:
        names = []
        for value in self.model.graph.output:
            info = self.values.get(value.name)
            if info is None:
                raise MalformedInput(
                    "nothing produces the output",
                    where=self.where,
                    value=value.name,
                    expected="a value of the graph",
                )
            if info.constant:
                self.notes.append(
                    f"output {value.name!r} is left out: it does not depend on inputs"
                )
            elif value.name not in names:
                names.append(value.name)
        if not names:
            raise MalformedInput(
                "no output depends on an input",
                where=self.where,
                expected="a network that computes something",
            )
        return names

    # -- the walk ------------------------------------------------------------------

    def _walk(self, graph: onnx.GraphProto) -> None:
        for index in self._ordered(graph.node):
            self._visit(graph.node[index])

    def _ordered(self, nodes: Sequence[onnx.NodeProto]) -> list[int]:
        maker = {name: i for i, n in enumerate(nodes) for name in n.output if name}
        followers: list[list[int]] = [[] for _ in nodes]
        missing = [0] * len(nodes)
        for index, node in enumerate(nodes):
            sources = [maker[name] for name in reads(node) if name in maker]
            for source in dict.fromkeys(sources):
                followers[source].append(index)
                missing[index] += 1
        ready = [index for index, count in enumerate(missing) if count == 0]
        order = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for follower in followers[index]:
                missing[follower] -= 1
                if missing[follower] == 0:
                    heapq.heappush(ready, follower)
        if len(order) < len(nodes):
            stuck = {i for i, count in enumerate(missing) if count > 0}
            path = [min(stuck)]
            while path.count(path[-1]) < 2:
                sources = [maker[n] for n in reads(nodes[path[-1]]) if n in maker]
                path.append(min(source for source in sources if source in stuck))
            cycle = path[path.index(path[-1]) :][::-1]
            names = [nodes[i].name or nodes[i].output[0] for i in cycle]
            raise MalformedInput(
                f"the nodes form a cycle: {' -> '.join(names)}",
                where=self.where,
                expected="an acyclic graph",
            )
        return order

    def _visit(self, proto: onnx.NodeProto) -> None:
        if proto.domain == "ai.onnx":
            proto.domain = ""
        attributes = plain_attributes(proto)
        outputs = [name for name in proto.output if name]
        if not outputs:
            raise MalformedInput(
                f"the node {proto.name or proto.op_type!r} has no output",
                where=self.where,
                expected="a name for what it computes",
            )
        where = (
            f"{self.where}, node {proto.name or proto.output[0]!r} ({proto.op_type})"
        )
        if proto.op_type == "Constant" and not proto.domain:
            self.values[outputs[0]] = self._constant(proto)
            return
        inputs = {name: self.values[name] for name in proto.input if name}
        first = next(iter(inputs.values()), None)
        if proto.op_type in ("Shape", "Size") and first and first.shape is not None:
            self.values[outputs[0]] = shape_constant(proto, first.shape)
            return
        if proto.op_type == "If" and first is not None and first.constant:
            taken = condition(first)
            if taken is not None:
                self._inline(proto, taken)
                return
        self._record(proto, attributes, inputs, where)

    def _record(
        self,
        proto: onnx.NodeProto,
        attributes: Mapping[str, object],
        inputs: Mapping[str, Info],
        where: str,
    ) -> None:
        outputs = [name for name in proto.output if name]
        found: dict[str, Info] = {}
        control = proto.op_type in ("If", "Loop", "Scan")
        if not control and all(info.shape is not None for info in inputs.values()):
            found = infer_outputs(proto, inputs, self.opsets, where)
        infos = {name: self._or_declared(name, found) for name in outputs}
        constant = all(info.constant for info in inputs.values())
        if constant and not control and proto.op_type not in RANDOM:
            self.values.update(folded(proto, inputs, infos, self.opsets))
            return
        self.values.update(infos)
        if proto.op_type == "DynamicQuantizeLinear":
            # Scale and zero point of each inference: parameters, not data.
            for name in outputs[1:]:
                self.values[name] = Info((), infos[name].dtype, constant=True)
        for name in outputs:
            shape = infos[name].shape
            if shape is not None and min(shape, default=1) < 1:
                sign = "of zero" if 0 in shape else "below zero"
                raise MalformedInput(
                    f"the output {name!r} has a dimension {sign}",
                    where=where,
                    value=shape,
                    expected="at least 1",
                )
            if infos[name].elements > MAX_ELEMENTS:
                raise MalformedInput(
                    f"the output {name!r} is too large",
                    where=where,
                    value=shape,
                    expected=f"at most {MAX_ELEMENTS:,} elements",
                )
        name = proto.name or outputs[0]
        self.nodes.append(
            Node(
                operator=proto.op_type,
                domain=proto.domain,
                name=name,
                inputs=tuple(proto.input),
                outputs=tuple(proto.output),
                attributes=attributes,
                opset=self._opset(proto.domain),
            )
        )

    def _or_declared(self, name: str, found: Mapping[str, Info]) -> Info:
        info = found.get(name)
        if info is not None and info.shape is not None:
            return info
        declared = self.declared.get(name)
        if declared is None or not declared.type.tensor_type.HasField("shape"):
            return info or Info(None, FLOAT)
        dims = declared.type.tensor_type.shape.dim
        dtype = declared.type.tensor_type.elem_type
        if not all(d.HasField("dim_value") for d in dims):
            return Info(None, dtype)
        return Info(tuple(d.dim_value for d in dims), dtype)

    def _opset(self, domain: str) -> int:
        for entry in self.opsets:
            if entry.domain == domain or {entry.domain, domain} == {"", "ai.onnx"}:
                return int(entry.version)
        return 1

    def _constant(self, proto: onnx.NodeProto) -> Info:
        from onnx import numpy_helper
        from onnx.helper import make_tensor

        for attribute in proto.attribute:
            match attribute.name:
                case "value":
                    return tensor_info(attribute.t, self.folder)
                case "sparse_value":
                    sparse = attribute.sparse_tensor
                    return Info(tuple(sparse.dims), sparse.values.data_type, True)
                case "value_float" | "value_int":
                    number = attribute.f if attribute.HasField("f") else attribute.i
                    dtype = 1 if attribute.HasField("f") else 7
                    tensor = make_tensor("", dtype, (), [number])
                case "value_floats" | "value_ints":
                    numbers = list(attribute.floats or attribute.ints)
                    dtype = 1 if attribute.name == "value_floats" else 7
                    tensor = make_tensor("", dtype, (len(numbers),), numbers)
                case _:
                    continue
            value = numpy_helper.to_array(tensor)
            return Info(value.shape, tensor.data_type, True, value)
        return Info((), STRING, True)

    def _inline(self, proto: onnx.NodeProto, taken: bool) -> None:
        wanted = "then_branch" if taken else "else_branch"
        branches = [a.g for a in proto.attribute if a.name == wanted]
        if not branches or len(branches[0].output) != len(proto.output):
            raise MalformedInput(
                f"no {wanted} that gives its outputs",
                where=f"{self.where}, node {proto.name or proto.output[0]!r} (If)",
                expected=f"a subgraph with {len(proto.output)} output(s)",
            )
        branch = branches[0]
        for tensor in branch.initializer:
            self.values[tensor.name] = tensor_info(tensor, self.folder)
        self._walk(branch)
        for outer, inner in zip(proto.output, branch.output, strict=True):
            if not outer:
                continue
            info = self.values[inner.name]
            self.values[outer] = info
            if not info.constant:
                name = f"{proto.name or proto.output[0]}.{wanted}"
                self.nodes.append(
                    Node("Identity", "", name, (inner.name,), (outer,), {}, 13)
                )
        self.notes.append(
            f"{proto.name or proto.output[0]!r}: the condition is constant, "
            f"{wanted} is taken"
        )

    def _live(self, outputs: Sequence[str]) -> list[Node]:
        wanted = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if wanted.isdisjoint(node.outputs):
                continue
            kept.append(node)
            wanted.update(name for name in node.inputs if name)
            wanted.update(captured(node))
        return kept[::-1]


def _nearest(name: str, legal: Sequence[str]) -> str:
    close = get_close_matches(name, legal, n=1)
    return f"did you mean {close[0]!r}?" if close else ""
