"""``raptor-cp network``: a network layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.model_options import (
    ActivationBits,
    AllowUnsupported,
    Dims,
    InputShapes,
    WeightBits,
    onnx_options,
)
from raptor_cp.cli.options import Json
from raptor_cp.cli.running import (
    answer_width,
    console,
    print_json,
    reported,
    say,
    visible,
)

if TYPE_CHECKING:
    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.graph.network_table import LayerRow
    from raptor_cp.network.onnx_import import OnnxOptions
    from raptor_cp.network.structure import Network

Source = Annotated[
    str,
    typer.Argument(
        help="ONNX or PIMCOMP file, scenario file, or the name of a built-in network."
    ),
]
Config = Annotated[
    str,
    typer.Option(
        "--config", help="Chip whose crossbars are counted: a name or a file."
    ),
]


@reported
def network(
    source: Source,
    config: Config = "arch-a",
    dim: Dims = None,
    input_shape: InputShapes = None,
    weight_bits: WeightBits = None,
    activation_bits: ActivationBits = None,
    allow_unsupported: AllowUnsupported = None,
    json: Json = False,
) -> None:
    """Show the layers of a network: shapes, MACs, weights, crossbars, what is free."""
    from rich.markup import escape

    from raptor_cp.graph.network_table import network_table

    options = onnx_options(
        dim, input_shape, weight_bits, activation_bits, allow_unsupported
    )
    read, array = _read(source, config, options)
    rows = network_table(read, array)
    if json:
        print_json(_document(read, rows))
        return
    _print(read, tuple(_visible(row) for row in rows))
    screen = console()
    for note in read.notes:
        say(screen, f"note: {escape(note)}", 0)


def _read(
    source: str, config: str, options: OnnxOptions
) -> tuple[Network, MatrixArray]:
    from raptor_cp.errors import MalformedInput
    from raptor_cp.network import zoo
    from raptor_cp.network.model_file import import_model
    from raptor_cp.preparation import read_network
    from raptor_cp.scenario import load
    from raptor_cp.targets.registry import create

    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        loaded = load(path)
        array = create(loaded).resources().array
        if array is None:
            raise MalformedInput(
                "the target of the scenario has no crossbars",
                where=source,
                expected="a pim target",
            )
        return read_network(loaded, cell_bits=array.cell_bits), array
    chip = _crossbars(config)
    if source in zoo.names() and not path.exists():
        built = zoo.build(
            source,
            options.input_shapes.get("input"),
            weight_bits=options.weight_bits or 16,
            activation_bits=options.activation_bits or 16,
        )
        return built, chip
    if not path.exists() and not path.suffix:
        zoo.build(source)  # says which names there are
    return import_model(path, options, cell_bits=chip.cell_bits), chip


def _crossbars(config: str) -> MatrixArray:
    from raptor_cp.errors import InternalError
    from raptor_cp.scenario import loads
    from raptor_cp.targets.registry import create

    text = (
        "schema: raptor-cp/1\nname: crossbars\nnetwork: {zoo: tiny-residual}\n"
        "target: {kind: pim}\n"
    )
    loaded = loads(text, folder=Path())
    target = loaded.scenario.target.model_copy(update={"config": config})
    scenario = loaded.scenario.model_copy(update={"target": target})
    array = create(loaded.model_copy(update={"scenario": scenario})).resources().array
    if array is None:
        raise InternalError("a pim target without crossbars")
    return array


def _document(network: Network, rows: tuple[LayerRow, ...]) -> dict[str, object]:
    return {
        "name": network.name,
        "inputs": {name: list(network.tensors[name].shape) for name in network.inputs},
        "outputs": {
            name: list(network.tensors[name].shape) for name in network.outputs
        },
        "macs": network.macs,
        "parameters": network.parameters,
        "crossbars": sum(row.slots for row in rows),
        "mvmuls": sum(row.mvmuls for row in rows),
        "layers": [row.to_dict() for row in rows],
        "notes": list(network.notes),
    }


def _print(network: Network, rows: tuple[LayerRow, ...]) -> None:
    name_width = min(max([5, *(len(row.name) for row in rows)]), 48)
    kind_width = max([len(_operations(rows)), *(len(row.kind) for row in rows)])
    shapes = ["x".join(str(size) for size in row.shape) for row in rows]
    shape_width = max([6, *(len(shape) for shape in shapes)])
    widths = (name_width, kind_width, shape_width)

    def wide(cells: tuple[str, ...], numbers: tuple[str, ...], remark: str) -> str:
        left = "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True))
        # A space at least: numbers of a trillion are wider than their columns.
        sized = zip(numbers, _NUMBERS, strict=True)
        right = "".join(f" {n}".rjust(w) for n, w in sized)
        return f"{left} {right}  {remark}".rstrip()

    most = max([6, *(len(_remark(row)) for row in rows)])
    fits = sum(widths) + sum(_NUMBERS) + most + 7 <= answer_width()
    if not fits and answer_width() >= _COMPACT:
        _print_compact(network, rows, shapes)
        return
    line = wide if fits else _record
    if fits:
        print(wide(("layer", "kind", "output"), _HEADS, "folded"))
    for row, shape in zip(rows, shapes, strict=True):
        numbers = (
            _count(row.macs),
            _count(row.parameters),
            _count(row.weight_bits),
            _count(row.slots),
            _count(row.mvmuls),
        )
        name = row.name if len(row.name) <= name_width else _cut(row.name, name_width)
        print(line((name, row.kind, shape), numbers, _remark(row)))
    totals = (
        _count(network.macs),
        _count(network.parameters),
        "",
        _count(sum(row.slots for row in rows)),
        _count(sum(row.mvmuls for row in rows)),
    )
    free = sum(row.free for row in rows)
    print(line(("total", _operations(rows), ""), totals, f"{free} free"))


def _visible(row: LayerRow) -> LayerRow:
    """The row with control characters of its names as escapes, each on one line."""
    from dataclasses import replace

    def plain(name: str) -> str:
        return visible(name).replace("\n", "\\n")

    return replace(row, name=plain(row.name), folded=tuple(map(plain, row.folded)))


def _operations(rows: tuple[LayerRow, ...]) -> str:
    return f"{len(rows)} ops"


def _remark(row: LayerRow) -> str:
    parts = ["free"] if row.free else []
    parts += [", ".join(row.folded)] if row.folded else []
    return "; ".join(parts)


def _print_compact(
    network: Network, rows: tuple[LayerRow, ...], shapes: list[str]
) -> None:
    """Short numbers; what was folded stands below its layer."""
    import textwrap

    rest = sum(_SHORT) + _KIND + _SHAPE + 2
    name_width = min(max([5, *(len(row.name) for row in rows)]), _COMPACT - rest)

    def line(cells: tuple[str, str, str], numbers: tuple[str, ...]) -> str:
        lengths = (name_width, _KIND, _SHAPE)
        left = " ".join(
            (c if len(c) <= w else _cut(c, w)).ljust(w)
            for c, w in zip(cells, lengths, strict=True)
        )
        right = "".join(n.rjust(w) for n, w in zip(numbers, _SHORT, strict=True))
        return f"{left}{right}".rstrip()

    print(line(("layer", "kind", "output"), ("MACs", "weights", "crossbars", "mvmul")))
    for row, shape in zip(rows, shapes, strict=True):
        counts = (row.macs, row.parameters, row.slots, row.mvmuls)
        numbers = ("free", "", "", "") if row.free else tuple(map(_short, counts))
        print(line((row.name, row.kind, shape), numbers))
        if row.folded:
            print(
                textwrap.fill(
                    "folded: " + ", ".join(row.folded),
                    answer_width(),
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,
                )
            )
    counts = (
        network.macs,
        network.parameters,
        sum(row.slots for row in rows),
        sum(row.mvmuls for row in rows),
    )
    free = sum(row.free for row in rows)
    cells = ("total", _operations(rows), f"{free} free")
    print(line(cells, tuple(map(_short, counts))))
    bits = sorted({row.weight_bits for row in rows if row.weight_bits})
    if bits:
        print(
            f"weights of {', '.join(map(str, bits))} bits; k, M, G are powers of 1000"
        )


#: Columns of the compact table, and of its parts.
_COMPACT, _KIND, _SHAPE = 80, 14, 16
_SHORT = (7, 8, 10, 7)


def _short(value: int) -> str:
    """At most six characters: 99,999 or 124.7M."""
    if value < 100_000:
        return _count(value)
    for unit in "kMGTP":
        scaled = value / 1000
        value = round(scaled)
        if value < 1000:
            digits = 2 if scaled < 10 else 1
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:,}P"


_HEADS = ("MACs", "weights", "bits", "crossbars", "mvmul")
_NUMBERS = (16, 14, 6, 11, 12)


def _record(cells: tuple[str, ...], numbers: tuple[str, ...], remark: str) -> str:
    """A layer over several lines, where its row is wider than the screen."""
    import textwrap

    parts = [
        f"{number} {head}"
        for number, head in zip(numbers, _HEADS, strict=True)
        if number not in ("", "-")
    ]
    texts = ["  ".join(c for c in cells if c), ", ".join(parts), remark]
    return "\n".join(
        textwrap.fill(
            text, answer_width(), initial_indent="    " if number else "",
            subsequent_indent="      ", break_on_hyphens=False,
        )
        for number, text in enumerate(texts)
        if text
    )  # fmt: skip


def _count(value: int) -> str:
    return f"{value:,}" if value else "-"


def _cut(name: str, width: int) -> str:
    return "..." + name[-(width - 3) :]
