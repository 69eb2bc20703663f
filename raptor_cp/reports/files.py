"""Report files: the same content gives the same bytes, and no reader sees a half.

A file is written under a temporary name beside its place and renamed into it, so a
killed run leaves the old file or none.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError, MalformedInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def json_text(document: object) -> str:
    """JSON with a line for every record, keys in the order of the document.

    What holds only values, or lists of values, stands on one line; everything
    else is indented by one space.  Ends with a newline.

    >>> print(json_text({"a": 1, "rows": [{"id": 0, "of": [1, 2]}, {"id": 1}]}), end="")
    {
     "a": 1,
     "rows": [
      {"id": 0, "of": [1, 2]},
      {"id": 1}
     ]
    }

    Raises:
        InternalError: something that JSON has no form for, NaN and infinities
            included.
    """
    try:
        return _render(document, 0) + "\n"
    except (TypeError, ValueError) as error:
        raise InternalError(f"a report holds what JSON cannot: {error}") from error


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write :func:`json_text` of a document; see :func:`write_bytes`."""
    write_bytes(path, json_text(document).encode("utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text as it is; see :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; missing folders are made.

    Raises:
        MalformedInput: the place cannot be written to.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.write_bytes(content)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise MalformedInput(
            f"cannot be written: {error.strerror or error}", where=str(path)
        ) from error


def _render(value: object, indent: int) -> str:
    if not _deep(value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [
            f"{pad}{json.dumps(_key(key), ensure_ascii=False)}: "
            f"{_render(item, indent + 1)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if not isinstance(value, list | tuple):
        raise TypeError(f"a {type(value).__name__}")
    rows = [pad + _render(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key {key!r} is not a string")
    return key


def _deep(value: object) -> bool:
    """Holds an object inside a list or object, or a list of lists in an object."""
    if isinstance(value, dict):
        for key, item in value.items():
            _key(key)
            if isinstance(item, dict) or _nested(item):
                return True
        return False
    return _nested(value)


def _nested(value: object) -> bool:
    return isinstance(value, list | tuple) and any(
        isinstance(item, dict | list | tuple) for item in value
    )
