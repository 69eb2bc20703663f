"""Options of the commands that read model files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.network.onnx_import import OnnxOptions

Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=VALUE",
        help="Value of a symbolic dimension; may be repeated.",
        show_default=False,
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=1,3,224,224",
        help="Shape of an input; may be repeated.",
        show_default=False,
    ),
]
WeightBits = Annotated[
    int | None,
    typer.Option(
        "--weight-bits",
        min=1,
        max=64,
        help="Bits per weight (default: the file's).",
        show_default=False,
    ),
]
ActivationBits = Annotated[
    int | None,
    typer.Option(
        "--activation-bits",
        min=1,
        max=64,
        help="Bits per value (default: the file's).",
        show_default=False,
    ),
]
AllowUnsupported = Annotated[
    Literal["vector"] | None,
    typer.Option(
        "--allow-unsupported",
        help="Price elementwise-like unsupported nodes as vector work.",
        show_default=False,
    ),
]
ModelWeights = Annotated[
    Literal["drawn", "model"],
    typer.Option(
        "--weights",
        help="Numbers of the program: drawn, or those of an ONNX file.",
    ),
]


def onnx_options(
    dims: Sequence[str] | None,
    shapes: Sequence[str] | None,
    weight_bits: int | None,
    activation_bits: int | None,
    allow_unsupported: str | None,
) -> OnnxOptions:
    """The options as given.

    Raises:
        MalformedInput: no ``NAME=VALUE``, no positive integers, a name twice.
    """
    from raptor_cp.network.onnx_import import OnnxOptions

    sizes = _named("--dim", dims)
    for name, values in sizes.items():
        if len(values) != 1:
            raise MalformedInput(
                "one value expected", where="--dim", value=name, expected="NAME=VALUE"
            )
    return OnnxOptions(
        dims={name: values[0] for name, values in sizes.items()},
        input_shapes=_named("--input-shape", shapes),
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        vector=allow_unsupported == "vector",
    )


def _named(option: str, texts: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    result: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        # Names of inputs may contain "=" themselves: the last one counts.
        name, separator, listed = text.rpartition("=")
        sizes = [part.strip() for part in listed.replace("x", ",").split(",")]
        legal = all(_is_size(s) for s in sizes)
        if not name or not separator or not legal:
            raise MalformedInput(
                "not a name and positive integers",
                where=option,
                value=text,
                expected="NAME=VALUE" if option == "--dim" else "NAME=1,3,224,224",
            )
        if name in result:
            raise MalformedInput("given twice", where=option, value=name)
        result[name] = tuple(int(size) for size in sizes)
    return result


def _is_size(text: str) -> bool:
    digits = text.isascii() and text.isdigit() and len(text) < 20
    return digits and 0 < int(text) < 2**31
