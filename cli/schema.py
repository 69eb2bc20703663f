"""``raptor-cp schema``: the JSON Schema of scenario files."""

from __future__ import annotations

from raptor_cp.cli.running import print_json, reported


@reported
def schema() -> None:
    """Print the JSON Schema of scenario files."""
    from raptor_cp.scenario import json_schema

    print_json(json_schema())
