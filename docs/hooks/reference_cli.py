"""The command line reference, from the commands' signatures.

Read from the annotations, not from the parser that typer builds of them: that one
changes between releases of typer.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from markdown_cells import cell, table
from typer.models import ArgumentInfo, OptionInfo

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument or option of a command, as a reader needs it."""

    names: tuple[str, ...]
    value: str  #: word for its value; empty for a flag
    is_argument: bool
    required: bool
    several: bool
    meaning: str


def cli_reference() -> str:
    """Markdown of every command, in the order of ``raptor-cp --help``."""
    commands = public_commands()
    rows = [
        [f"[`{name}`](#raptor-cp-{name})", cell(_help(call).split("\n\n")[0])]
        for name, call in commands
    ]
    parts = [table(("command", "what it does"), rows)]
    parts.extend(_command(name, call) for name, call in commands)
    return "\n\n".join(parts) + "\n"


def public_commands() -> list[tuple[str, Callable[..., object]]]:
    """Names and functions of the commands that ``raptor-cp --help`` lists."""
    from raptor_cp.cli.app import app

    found = []
    for info in app.registered_commands:
        if info.callback is not None and not info.hidden:
            name = info.name or info.callback.__name__.rstrip("_").replace("_", "-")
            found.append((name, info.callback))
    return found


def parameters(call: Callable[..., object]) -> list[Parameter]:
    """All of a command's parameters, in order; hidden ones left out."""
    plain = inspect.unwrap(call)
    hints = typing.get_type_hints(plain, include_extras=True)
    found = []
    for name, parameter in inspect.signature(plain).parameters.items():
        kind, *extras = typing.get_args(hints[name]) or (hints[name],)
        infos = [e for e in extras if isinstance(e, ArgumentInfo | OptionInfo)]
        info = infos[0] if infos else OptionInfo()
        if not info.hidden:
            found.append(_parameter(name, kind, info, parameter.default))
    return found


def _command(name: str, call: Callable[..., object]) -> str:
    given = parameters(call)
    arguments = [p for p in given if p.is_argument]
    options = [p for p in given if not p.is_argument]
    words = [f"raptor-cp {name}", *(["[OPTIONS]"] if options else [])]
    for argument in arguments:
        word = argument.value + ("..." if argument.several else "")
        words.append(word if argument.required else f"[{word}]")
    parts = [f"## raptor-cp {name}", _help(call), f"```text\n{' '.join(words)}\n```"]
    if arguments:
        rows = [[f"`{p.value}`", p.meaning] for p in arguments]
        parts.append(table(("argument", "meaning"), rows))
    if options:
        rows = [
            [
                ", ".join(f"`{n}`" for n in p.names)
                + (f" `{p.value}`" if p.value else ""),
                p.meaning,
            ]
            for p in options
        ]
        parts.append(table(("option", "meaning"), rows))
    return "\n\n".join(parts)


def _help(call: Callable[..., object]) -> str:
    text = inspect.getdoc(inspect.unwrap(call)) or ""
    return text.replace("\b\n", "").replace("``", "`")


def _parameter(
    name: str, annotation: object, info: ArgumentInfo | OptionInfo, default: object
) -> Parameter:
    kind, several = _bare(annotation)
    is_argument = isinstance(info, ArgumentInfo)
    flag = kind is bool and not is_argument
    declared = [*(info.param_decls or ())]
    if isinstance(info.default, str) and info.default.startswith("-"):
        # Inside Annotated, the first word of Option(...) is a name, not a default.
        declared.insert(0, info.default)
    names = [part for text in declared for part in text.split("/")]
    if not names and not is_argument:
        dashed = name.rstrip("_").replace("_", "-")
        names = [f"--{dashed}"] + ([f"--no-{dashed}"] if flag else [])
    value = "" if flag else info.metavar or _word(name, kind, is_argument)
    required = default is inspect.Parameter.empty
    notes = []
    if required and not is_argument:
        notes.append("required")
    low, high = info.min, info.max
    if low is not None or high is not None:
        notes.append(f"{low:g} to {high:g}" if high is not None else f"from {low:g}")
    if flag and default is True and len(names) > 1:
        notes.append("on by default")
    shown = info.show_default is not False and not flag and not required
    if shown and default not in (None, ""):
        notes.append(f"default `{_plain(default)}`")
    text = info.help or ""
    if several and not is_argument and "repeated" not in text:
        notes.append("may be repeated")
    meaning = cell(text) + (f" ({'; '.join(notes)})" if notes else "")
    return Parameter(tuple(names), value, is_argument, required, several, meaning)


def _bare(annotation: object) -> tuple[object, bool]:
    """The type of one value, and whether there may be several."""
    several = False
    while True:
        origin, args = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            annotation = next(a for a in args if a is not type(None))
        elif origin is list:
            several, annotation = True, args[0]
        else:
            return annotation, several


def _word(name: str, kind: object, is_argument: bool) -> str:
    if is_argument:
        return name.upper()
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    words: dict[object, str] = {int: "N", float: "X", str: "TEXT"}
    return words.get(kind, "PATH")


def _plain(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)
