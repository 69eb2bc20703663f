"""``raptor-cp schema``: the JSON Schemas of the files that users write."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from raptor_cp.cli.running import print_json, reported


class Subject(StrEnum):
    """What a schema is of."""

    SCENARIO = "scenario"
    SWEEP = "sweep"


@reported
def schema(
    of: Annotated[
        Subject, typer.Argument(help="Scenario files or sweep files.")
    ] = Subject.SCENARIO,
) -> None:
    """Print the JSON Schema of scenario files, or of sweep files."""
    if of is Subject.SWEEP:
        from raptor_cp.sweeps import sweep_file

        print_json(sweep_file.json_schema())
        return
    from raptor_cp.scenario import json_schema

    print_json(json_schema())
