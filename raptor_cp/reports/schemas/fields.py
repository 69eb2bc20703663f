"""Building blocks of the report schemas (JSON Schema 2020-12).

Records are closed: a key that a report has and its schema does not is an error, so
every key of a report has its sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

#: One JSON Schema.
Schema: TypeAlias = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def integer(meaning: str, least: int | None = 0) -> Schema:
    """A whole number."""
    found: Schema = {"description": meaning, "type": "integer"}
    return found if least is None else found | {"minimum": least}


def number(meaning: str) -> Schema:
    """A number that need not be whole."""
    return {"description": meaning, "type": "number"}


def text(meaning: str) -> Schema:
    """A string."""
    return {"description": meaning, "type": "string"}


def boolean(meaning: str) -> Schema:
    """True or false."""
    return {"description": meaning, "type": "boolean"}


def constant(value: object, meaning: str) -> Schema:
    """Always the same."""
    return {"description": meaning, "const": value}


def choice(meaning: str, *values: str) -> Schema:
    """One of some words."""
    return {"description": meaning, "enum": list(values)}


def several(meaning: str, items: Schema) -> Schema:
    """A list."""
    return {"description": meaning, "type": "array", "items": items}


def positions(meaning: str) -> Schema:
    """A list of positions from 0 (task ids, core numbers, ...)."""
    return several(meaning, {"type": "integer", "minimum": 0})


def texts(meaning: str) -> Schema:
    """A list of strings."""
    return several(meaning, {"type": "string"})


def named(meaning: str, values: Schema) -> Schema:
    """An object whose keys are names or numbers of the run, not of the format."""
    return {
        "description": meaning,
        "type": "object",
        "additionalProperties": values,
    }


def record(
    meaning: str, keys: Mapping[str, Schema], *, optional: tuple[str, ...] = ()
) -> Schema:
    """A closed object; all keys are required but the optional ones."""
    return {
        "description": meaning,
        "type": "object",
        "properties": dict(keys),
        "required": [key for key in keys if key not in optional],
        "additionalProperties": False,
    }


def either(meaning: str, *forms: Schema) -> Schema:
    """One of several forms."""
    return {"description": meaning, "anyOf": list(forms)}


def or_null(schema: Schema, when: str = "") -> Schema:
    """The form, or null."""
    meaning = str(schema.get("description", ""))
    return either(
        meaning + (f"; null {when}" if when else ""), schema, {"type": "null"}
    )


UNAVAILABLE = record(
    "A figure that is not known",
    {"unavailable": text("why, one sentence")},
)


def or_unavailable(schema: Schema) -> Schema:
    """The figure, or ``{"unavailable": reason}``."""
    meaning = str(schema.get("description", ""))
    return either(f"{meaning}, or why there is none", schema, UNAVAILABLE)


def document(
    name: str,
    meaning: str,
    keys: Mapping[str, Schema],
    *,
    optional: tuple[str, ...] = (),
) -> Schema:
    """A whole report."""
    return {
        "$schema": DIALECT,
        "$id": f"raptor-cp-{name}-1",
        "title": name,
        **record(meaning, keys, optional=optional),
    }
