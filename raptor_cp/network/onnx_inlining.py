"""Model-local functions and branches of an ONNX model, made ready for one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import onnx

#: Most nodes that functions may be written out as: calls of calls grow exponentially.
MOST_NODES = 100_000


def inlined(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model without functions of its own; branches of If have names of their own.

    Names of a branch are its own, so two branches may use the same: all but the
    first are renamed in the order of the file.

    Raises:
        MalformedInput: functions that call themselves, are there twice, have other
            parameters than their calls, or are too many nodes when written out.
    """
    if model.functions:
        import onnx
        from onnx.inliner import inline_local_functions

        _check_growth(model, where)
        try:
            model = inline_local_functions(model)
        except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else "unreadable"
            # The library's own assertions begin with a place in its source.
            raise MalformedInput(
                "functions of the model cannot be written out: "
                + reason.rpartition("failed: ")[2],
                where=where,
                expected="functions as the calls need them, none calling itself",
            ) from None
    made = set(_made(model.graph))
    made.update(value.name for value in model.graph.input)
    nodes = {node.name for node in model.graph.node if node.name}
    _rename_branches(model.graph, made, nodes)
    return model


def _check_growth(model: onnx.ModelProto, where: str) -> None:
    functions = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: list[onnx.NodeProto]) -> int | None:
        """Nodes that these become; None while a called function is unknown."""
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in functions and key not in sizes:
                return None
            total += min(sizes.get(key, 1), MOST_NODES + 1)
        return total

    # Callees first; functions that call themselves are left, and named later on.
    for _ in range(len(functions)):
        found = {
            key: total
            for key, function in functions.items()
            if key not in sizes and (total := size(_all(function.node))) is not None
        }
        if not found:
            break
        sizes.update(found)
    total = size(_all(model.graph.node))
    if total is not None and total > MOST_NODES:
        raise MalformedInput(
            "functions of the model are too large when they are written out",
            where=where,
            expected=f"at most {MOST_NODES:,} nodes",
        )


def _all(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes and those of their subgraphs."""
    result: list[onnx.NodeProto] = []
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        result.append(node)
        for graph in _graphs(node):
            waiting += graph.node
    return result


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of values that a graph defines, inputs excepted."""
    for tensor in graph.initializer:
        yield tensor.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from (name for name in node.output if name)


def _rename_branches(graph: onnx.GraphProto, values: set[str], nodes: set[str]) -> None:
    for node in graph.node:
        if node.op_type != "If":
            continue
        for branch in _graphs(node):
            changed = {}
            for name in dict.fromkeys(_made(branch)):
                changed[name] = _free(name, values)
            _rename(branch, {a: b for a, b in changed.items() if a != b})
            for inner in branch.node:
                if inner.name:
                    inner.name = _free(inner.name, nodes)
            _rename_branches(branch, values, nodes)


def _free(name: str, taken: set[str]) -> str:
    result, number = name, 1
    while result in taken:
        number += 1
        result = f"{name}_{number}"
    taken.add(result)
    return result


def _rename(graph: onnx.GraphProto, changed: Mapping[str, str]) -> None:
    """Replace names of values in a graph, and where its subgraphs read them."""
    if not changed:
        return
    for tensor in graph.initializer:
        tensor.name = changed.get(tensor.name, tensor.name)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        sparse.values.name = changed.get(name, name)
    for value in (*graph.value_info, *graph.output):
        value.name = changed.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [changed.get(name, name) for name in node.input]
        node.output[:] = [changed.get(name, name) for name in node.output]
        for inner in _graphs(node):
            own = {*_made(inner), *(value.name for value in inner.input)}
            _rename(inner, {a: b for a, b in changed.items() if a not in own})
