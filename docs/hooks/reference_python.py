"""The reference of the Python API: signatures and docstrings of ``raptor_cp``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Sections of a docstring, and whether their lines are ``name: meaning``.
_SECTIONS = {"Args:": True, "Raises:": True, "Attributes:": True, "Returns:": False}


def python_reference() -> str:
    """Markdown: the functions of ``raptor_cp`` in its own order."""
    import raptor_cp

    parts = []
    for name in raptor_cp.__all__:
        call = getattr(raptor_cp, name)
        if inspect.isfunction(call):
            parts.append(f"### {name}")
            parts.append(f"```text\nrc.{name}{_signature(call)}\n```")
            parts.extend(_docstring(inspect.getdoc(call) or ""))
    return "\n\n".join(parts) + "\n"


def _signature(call: Callable[..., object]) -> str:
    signature = inspect.signature(call)
    one_line = str(signature).replace("'", "")
    if len(one_line) <= 66:
        return one_line
    lines, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            lines.append("    *,")
            star = True
        lines.append(f"    {parameter},".replace("'", ""))
    returned = str(signature.return_annotation).replace("'", "")
    return "\n".join(["(", *lines, f") -> {returned}"])


def _docstring(text: str) -> Iterator[str]:
    """Paragraphs and lists of a docstring; examples are left out."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        head = lines[0].strip()
        if head.startswith(">>>"):
            continue
        if head not in _SECTIONS:
            yield _inline(" ".join(line.strip() for line in lines))
            continue
        items = _items(lines[1:])
        if _SECTIONS[head]:
            items = [
                re.sub(r"^(\*{0,2}\w+): ", r"`\1`: ", item, count=1) for item in items
            ]
        title = {"Args:": "Arguments"}.get(head, head.rstrip(":"))
        if len(items) == 1:
            yield f"*{title}*: {_inline(items[0])}"
        else:
            yield f"*{title}*:\n\n" + "\n".join(f"* {_inline(i)}" for i in items)


def _items(lines: list[str]) -> list[str]:
    """Entries of a section: deeper lines continue the entry before."""
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    items: list[str] = []
    for line in lines:
        if len(line) - len(line.lstrip()) == indent:
            items.append(line.strip())
        else:
            items[-1] += f" {line.strip()}"
    return items


def _inline(text: str) -> str:
    text = re.sub(r":(?:func|class|meth|mod):`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")
