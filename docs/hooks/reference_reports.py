"""The report reference, from the JSON Schemas of the reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from markdown_cells import cell, table

if TYPE_CHECKING:
    from collections.abc import Iterator

Schema = dict[str, object]


def reports_reference() -> str:
    """Markdown of every key of every document."""
    from raptor_cp.reports.schemas import FILES, SCHEMAS

    parts: list[str] = []
    elsewhere = {name: name for name in SCHEMAS if name not in FILES.values()}
    for file, name in {**FILES, **elsewhere}.items():
        schema = SCHEMAS[name]
        parts.append(f"## {file} {{ #{name} }}")
        parts.append(
            f"{_sentence(schema)}. [JSON Schema](../schemas/{name}.json){{ download }}"
        )
        rows = [
            [f"`{path}`", cell(kind), cell(meaning)]
            for path, kind, meaning in Keys().of(schema, "")
        ]
        parts.append(table(("key", "type", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


class Keys:
    """Rows of one document; a record that comes again is not listed twice."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, schema: Schema, path: str) -> Iterator[tuple[str, str, str]]:
        """Path, type and meaning of every key below ``schema``."""
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        required = schema.get("required", [])
        for key, entry in properties.items():
            place = f"{path}.{key}" if path else key
            absent = isinstance(required, list) and key not in required
            meaning = _sentence(entry)
            for inner, _ in records(entry):
                text = _identity(inner)
                if text in self._known:
                    meaning += f" (keys as in `{self._known[text]}`)"
                    break
            yield place, kind_of(entry), meaning + (" (optional)" if absent else "")
            for inner, suffix in records(entry):
                text = _identity(inner)
                if text not in self._known:
                    self._known[text] = place + suffix
                    yield from self.of(inner, place + suffix)


def records(schema: Schema) -> Iterator[tuple[Schema, str]]:
    """Records inside a key, with what stands between the key and their own keys."""
    if "properties" in schema:
        if schema["properties"] and set(_mapping(schema["properties"])) != {
            "unavailable"
        }:
            label = _label(schema)
            yield schema, label
        return
    for option in _list(schema.get("anyOf")):
        yield from records(option)
    items = schema.get("items")
    if isinstance(items, dict):
        for inner, suffix in records(items):
            yield inner, "[]" + suffix
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        for inner, suffix in records(values):
            yield inner, ".NAME" + suffix


def kind_of(schema: Schema) -> str:
    """The type in a few words."""
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join(map(str, _list(schema["enum"])))
    options = _list(schema.get("anyOf"))
    if options:
        kinds = [
            "reason"
            if set(_mapping(o.get("properties", {}))) == {"unavailable"}
            else kind_of(o)
            for o in options
        ]
        return " or ".join(dict.fromkeys(kinds))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind == "array":
        items = schema.get("items")
        inner = kind_of(items) if isinstance(items, dict) else ""
        return f"list of {inner}" if "list" not in inner and inner else "list"
    return str(kind or "any")


def _label(schema: Schema) -> str:
    """Variants of a record are told apart by their constant ``kind`` or ``ph``."""
    properties = _mapping(schema["properties"])
    if "title" in schema:
        return f" ({schema['title']})"
    for key in ("kind", "ph"):
        entry = properties.get(key)
        if isinstance(entry, dict):
            words = [entry["const"]] if "const" in entry else _list(entry["enum"])
            return f" ({'/'.join(map(str, words))})"
    return ""


def _identity(schema: Schema) -> str:
    """What makes two records the same: everything but the sentence about them."""
    return json.dumps({**schema, "description": ""}, sort_keys=True)


def _sentence(schema: Schema) -> str:
    return str(schema.get("description", ""))


def _list(value: object) -> list[Schema]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Schema:
    return value if isinstance(value, dict) else {}
