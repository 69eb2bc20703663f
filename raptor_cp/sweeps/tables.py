"""Results of sweeps as rows: CSV, Parquet (extra ``tables``)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.reports.files import write_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.sweeps.records import PointRecord

#: Columns before and after those of the overrides, and their Parquet types.
_FIRST = {"position": "Int64", "scenario": "string", "workload": "string"}
_FIGURES = {
    "outcome": "string",
    "verdict": "string",
    "interval_ns": "Int64",
    "latency_ns": "Int64",
    "bound_ns": "Int64",
    "gap": "Float64",
    "stages": "Int64",
    "cores_used": "Int64",
    "weight_slots": "Int64",
    "failed_expectations": "string",
    "program": "string",
    "exit_code": "Int64",
    "seconds": "Float64",
    "error": "string",
}
_LAST = {"on_front": "boolean", "id": "string"}

Cell = str | int | float | bool | None


def override_keys(records: Sequence[PointRecord]) -> list[str]:
    """Key paths of all overrides, in the order in which they first appear."""
    return list(dict.fromkeys(key for record in records for key in record.overrides))


def rows(
    records: Sequence[PointRecord], front: Collection[str] | None = None
) -> list[dict[str, Cell]]:
    """One row for each record: a column for each override, then the figures.

    Args:
        records: of a report.
        front: identities of the points on the Pareto front; None leaves the column
            out.
    """
    keys = override_keys(records)
    result: list[dict[str, Cell]] = []
    for record in records:
        figures = record.to_dict()
        figures["failed_expectations"] = " ".join(record.figures.failed_expectations)
        row = {name: _cell(figures[name]) for name in _FIRST}
        row |= {key: _cell(record.overrides.get(key)) for key in keys}
        row |= {name: _cell(figures[name]) for name in _FIGURES}
        if front is not None:
            row["on_front"] = record.id in front
        row["id"] = record.id
        result.append(row)
    return result


def csv_text(
    records: Sequence[PointRecord], front: Collection[str] | None = None
) -> str:
    """:func:`rows` as CSV with a header; empty cells for what is not known."""
    stream = io.StringIO()
    names = [*_FIRST, *override_keys(records), *_FIGURES]
    names += ["id"] if front is None else ["on_front", "id"]
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(records, front))
    return stream.getvalue()


def write_parquet(
    path: Path,
    records: Sequence[PointRecord],
    front: Collection[str] | None = None,
) -> None:
    """:func:`rows` as a Parquet file; overrides of mixed types become text.

    Raises:
        MalformedInput: pandas or pyarrow is missing, or the file cannot be written.
    """
    try:
        import pandas as pd
        import pyarrow  # noqa: F401  the engine
    except ImportError:
        raise MalformedInput(
            "Parquet files need pandas and pyarrow",
            where="--parquet",
            hint="pip install raptor-cp[tables]",
        ) from None
    table = rows(records, front)
    keys = override_keys(records)
    types = {**_FIRST, **{key: _column_type([r[key] for r in table]) for key in keys},
             **_FIGURES, **_LAST}  # fmt: skip
    if front is None:
        del types["on_front"]
    frame = pd.DataFrame(
        {
            name: pd.array(
                [_as_type(row[name], kind) for row in table],
                dtype=kind,
            )
            for name, kind in types.items()
        }
    )
    stream = io.BytesIO()
    frame.to_parquet(stream, engine="pyarrow", index=False)
    write_bytes(path, stream.getvalue())


def _cell(value: object) -> Cell:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"a {type(value).__name__} in a table")


def _column_type(values: Sequence[Cell]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(
        -(2**63) <= value < 2**63 for value in values if isinstance(value, int)
    ):
        return "Int64"
    if kinds and kinds <= {int, float}:
        return "Float64"
    return "string"


def _as_type(value: Cell, kind: str) -> Cell:
    if value is None or kind != "string" or isinstance(value, str):
        return value
    return json.dumps(value)
