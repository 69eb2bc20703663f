"""The scenario reference, from the pydantic models and ``scenario-keys.yaml``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml
from markdown_cells import cell, table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Schema = dict[str, object]

#: Sections of the page: heading, key path, models in the order of reading.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Top level", "", ("Scenario",)),
    (
        "Network",
        "network",
        (
            "ZooNetwork",
            "OnnxNetwork",
            "PimcompNetwork",
            "InlineNetwork",
            "KernelNetwork",
            "ExplicitNetwork",
            "ExplicitTask",
            "ExplicitWeight",
            "ExplicitEdge",
        ),
    ),
    (
        "Target",
        "target",
        ("PimTarget", "PeTarget", "TableTarget", "TableMemory", "PluginTarget"),
    ),
    ("Pipeline", "pipeline", ("Pipeline", "Constraints", "CoreLimits")),
    ("Latency", "latency", ("Latency",)),
    ("Lowering", "lowering", ("Lowering",)),
    ("Search", "search", ("Search",)),
    ("Solver", "solver", ("Solver",)),
    ("Expect", "expect", ("Expect", "Range")),
)

#: Where a model stands, for its heading.
PLACES = {
    "ZooNetwork": "network: {zoo: ...}",
    "OnnxNetwork": "network: {onnx: ...}",
    "PimcompNetwork": "network: {pimcomp: ...}",
    "InlineNetwork": "network: {operations: [...]}",
    "KernelNetwork": "network: {kernel: ...}",
    "ExplicitNetwork": "network: {tasks: [...]}",
    "ExplicitTask": "network.tasks[]",
    "ExplicitWeight": "network.weights[]",
    "ExplicitEdge": "network.edges[]",
    "PimTarget": "target: {kind: pim}",
    "PeTarget": "target: {kind: pe}",
    "TableTarget": "target: {kind: table}",
    "TableMemory": "target.memory",
    "PluginTarget": "target: {kind: NAME, options: ...}",
    "Constraints": "pipeline.constraints",
    "CoreLimits": "pipeline.constraints.cores.OPERATION",
    "Range": "expect.stages, expect.interval_ns, ...",
}


def scenario_reference(folder: Path) -> str:
    """Markdown of all keys; ``folder`` holds ``scenario-keys.yaml``."""
    from raptor_cp.scenario import Scenario

    schema: Schema = Scenario.model_json_schema(by_alias=True)
    models = definitions(schema)
    texts = key_texts(folder)
    parts: list[str] = []
    for heading, key, names in SECTIONS:
        title = f"## {heading}" + (f" (`{key}`)" if key else "")
        parts.append(f"{title} {{ #{key or 'top-level'} }}")
        for name in names:
            if name in PLACES:
                parts.append(f"### `{PLACES[name]}`")
            parts.append(_description(models[name]))
            parts.append(_table(models[name], texts[name]))
            if name == "InlineNetwork":
                parts.append(_inline_layers())
            if name == "ZooNetwork":
                parts.append(_zoo())
    return "\n\n".join(part for part in parts if part) + "\n"


def definitions(schema: Schema) -> dict[str, Schema]:
    """Models by name, the whole scenario as ``Scenario``."""
    found = schema["$defs"]
    if not isinstance(found, dict):
        raise TypeError("a schema without definitions")
    return {"Scenario": schema, **found}


def key_texts(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """What is said about each key, by model."""
    text = (folder / "scenario-keys.yaml").read_text("utf-8")
    texts: Mapping[str, Mapping[str, str]] = yaml.safe_load(text)
    return texts


def _description(model: Schema) -> str:
    text = str(model.get("description", "")).split("\n\n", 1)
    if model.get("title") == "Scenario":
        return ""
    return " ".join(text[0].replace("``", "`").split())


def _table(model: Schema, texts: Mapping[str, str]) -> str:
    properties = model["properties"]
    required = model.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise TypeError("not the schema of a model")
    rows = []
    for key, entry in properties.items():
        default = "required" if key in required else _default(entry)
        rows.append([f"`{key}`", cell(type_of(entry)), default, texts[key]])
    return table(("key", "type", "default", "meaning"), rows)


def _default(entry: Schema) -> str:
    value = entry.get("default")
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, dict):
        return "see below"
    return f"`{json.dumps(value)}`" if isinstance(value, list) else f"`{_yaml(value)}`"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_of(entry: Schema) -> str:
    """A type as a person says it, limits included."""
    if "const" in entry:
        return str(entry["const"])
    if "enum" in entry:
        choices = entry["enum"]
        return ", ".join(map(str, choices)) if isinstance(choices, list) else ""
    if "$ref" in entry:
        return "mapping"
    for key in ("anyOf", "oneOf"):
        if key in entry:
            options = entry[key]
            if not isinstance(options, list):
                raise TypeError(f"{key} without a list")
            kinds = [type_of(o) for o in options if o.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    kind = entry.get("type")
    if kind == "array":
        pair, items = entry.get("prefixItems"), entry.get("items")
        if isinstance(pair, list):
            return f"[{', '.join(type_of(item) for item in pair)}]"
        return f"list: {type_of(items)}" if isinstance(items, dict) else "list"
    if kind == "object":
        values = entry.get("additionalProperties")
        if isinstance(values, dict) and values:
            return f"name: {type_of(values)}"
        return "mapping"
    if kind in ("integer", "number"):
        return _number(entry)
    if kind == "string":
        return "text, letters digits . _ -" if "pattern" in entry else "text"
    return {"boolean": "true, false"}.get(str(kind), "any value")


#: Limits so wide that they only keep numbers in range.
_WIDE = {2**31 - 1, 2**42}


def _number(entry: Schema) -> str:
    word = "integer" if entry["type"] == "integer" else "number"
    low, high = entry.get("minimum"), entry.get("maximum")
    if "exclusiveMinimum" in entry:
        low = f"above {entry['exclusiveMinimum']}"
    if high in _WIDE:
        high = None
    if low is not None and high is not None:
        return f"{word}, {low} to {high}"
    if low is not None:
        return f"{word}, from {low}"
    return word if high is None else f"{word}, up to {high}"


def _inline_layers() -> str:
    from raptor_cp.network.inline import COMMON_KEYS, LAYER_KINDS

    rows = []
    for name, kind in LAYER_KINDS.items():
        inputs = "any" if kind.inputs == 0 else str(kind.inputs)
        rows.append([f"`{name}`", inputs, ", ".join(f"`{key}`" for key in kind.keys)])
    common = ", ".join(f"`{key}`" for key in COMMON_KEYS)
    return (
        "#### Inline layers { #inline-layers }\n\n"
        f"Every layer may have {common}. `name` defaults to the kind and its position, "
        "`inputs` (one name or a list; the network's input is `input`) to the layer "
        "before. Activations and `batch_norm` fold into a producer that nobody else "
        "reads.\n\n" + table(("`op`", "inputs", "further keys"), rows)
    )


def _zoo() -> str:
    from raptor_cp.network.zoo import ZOO

    rows = [
        [f"`{name}`", entry.summary, " x ".join(map(str, entry.input_shape))]
        for name, entry in ZOO.items()
    ]
    return table(("network", "what", "input"), rows)
