"""``raptor-cp import``: a model file becomes a scenario."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.model_options import (
    ActivationBits,
    AllowUnsupported,
    Dims,
    InputShapes,
    ModelWeights,
    WeightBits,
    onnx_options,
)
from raptor_cp.cli.running import console, reported, say

if TYPE_CHECKING:
    from raptor_cp.network.onnx_import import OnnxOptions

ModelFile = Annotated[Path, typer.Argument(help="ONNX or PIMCOMP (JSON) file.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Scenario file to write (default: standard output).",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        help="Name of the scenario (default: the file's).", show_default=False
    ),
]
Config = Annotated[
    str, typer.Option("--config", help="Chip: a built-in name, or a file.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


@reported
def import_(
    file: ModelFile,
    output: Output = None,
    name: Name = None,
    config: Config = "arch-a",
    dim: Dims = None,
    input_shape: InputShapes = None,
    weight_bits: WeightBits = None,
    activation_bits: ActivationBits = None,
    allow_unsupported: AllowUnsupported = None,
    weights: ModelWeights = "drawn",
    force: Force = False,
) -> None:
    """Write a scenario that schedules a model file; the file itself is not copied."""
    import yaml
    from rich.markup import escape

    from raptor_cp.errors import MalformedInput
    from raptor_cp.preparation import read_network
    from raptor_cp.reports.files import write_text
    from raptor_cp.scenario import loads
    from raptor_cp.targets.registry import create

    if output is not None and output.exists() and not force:
        raise MalformedInput(
            "the file exists", where=str(output), hint="--force replaces it"
        )
    if output is not None and output.exists() and not output.is_file():
        raise MalformedInput(
            "is a folder or a device", where=str(output), expected="a file to write"
        )
    if output is not None and not output.parent.is_dir():
        raise MalformedInput(
            "its folder does not exist", where=str(output), expected="a folder to write"
        )
    options = onnx_options(
        dim, input_shape, weight_bits, activation_bits, allow_unsupported
    )
    folder = (output.parent if output is not None else Path()).resolve()
    document: dict[str, object] = {
        "schema": "raptor-cp/1",
        "name": _legal(name or file.stem),
        "network": _network(file, folder, options, weights),
        "target": {"kind": "pim", "config": _config(config, folder)},
        "mode": "pipeline",
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=88)
    # What was written must load, and its network must be readable.
    loaded = loads(text, name=str(output or "<scenario>"), folder=folder)
    array = create(loaded).resources().array
    network = read_network(loaded, cell_bits=array.cell_bits if array else None)
    if network.values is not None:
        network.values.read()  # now, not after a search
    if output is None:
        print(_for_stdout(text, document), end="")
    else:
        write_text(output, text)
    screen = console()
    say(
        screen,
        f"{escape(network.name)}: {len(network.operations)} operations, "
        f"{network.macs:,} MACs, {network.parameters:,} parameters",
        0,
    )
    for note in network.notes:
        say(screen, f"note: {escape(note)}", 0)
    if output is not None:
        say(screen, f"wrote {escape(str(output))}", 0)


def _network(
    file: Path, folder: Path, options: OnnxOptions, weights: str
) -> dict[str, object]:
    from raptor_cp.errors import MalformedInput
    from raptor_cp.network.model_file import is_pimcomp

    json = is_pimcomp(file)
    entry: dict[str, object] = {"pimcomp" if json else "onnx": _relative(file, folder)}
    if options.dims:
        entry["dims"] = dict(options.dims)
    if options.input_shapes:
        shapes = options.input_shapes.items()
        entry["input_shapes"] = {name: list(shape) for name, shape in shapes}
    if options.vector:
        entry["allow_unsupported"] = "vector"
    if weights != "drawn":
        entry["weights"] = weights
    if json and len(entry) > 1:
        raise MalformedInput(
            "a PIMCOMP file has fixed shapes and operations, and no weights",
            where=str(file),
            expected="no --dim, --input-shape, --allow-unsupported or --weights",
        )
    if options.weight_bits is not None:
        entry["weight_bits"] = options.weight_bits
    if options.activation_bits is not None:
        entry["activation_bits"] = options.activation_bits
    return entry


def _for_stdout(text: str, document: dict[str, object]) -> str:
    """The scenario with escapes where standard output has not all its characters."""
    import yaml

    try:
        text.encode((sys.stdout.encoding if sys.stdout else None) or "utf-8")
    except UnicodeEncodeError:
        return yaml.safe_dump(document, sort_keys=False, width=88)
    return text


def _relative(file: Path, folder: Path) -> str:
    import os

    # A link stays a link: weights may lie beside it, not beside what it leads to.
    path = file.parent.resolve() / file.name
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def _config(config: str, folder: Path) -> str:
    from raptor_cp.targets.pim.config import builtin_configs

    if config in builtin_configs() or not Path(config).is_file():
        return config
    return _relative(Path(config), folder)


def _legal(name: str) -> str:
    """``name`` with other characters than a scenario name may have replaced."""
    kept = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name
    )
    kept = kept.lstrip("._-")[:100]
    return kept or "model"
