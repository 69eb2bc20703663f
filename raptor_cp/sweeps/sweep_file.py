"""Sweep files: which scenarios, with which values replaced (``raptor-cp/sweep/1``).

::

    schema: raptor-cp/sweep/1
    name: cores-and-stages
    scenarios: [../tiny-residual.yaml]
    set: {solver.enabled: false}           # for every point, before its own overrides
    grid:                                  # every combination
      target.cores: [6, 12]
      pipeline.stages: [2, 3]
    points:                                # these as well
      - {target.cores: 24, pipeline.stages: 6}
    program: false

Paths are relative to the sweep file.  Keys are those of ``--set``; a value may be a
whole section (``target: [{kind: pim, config: arch-a}, ...]``), so values that belong
together change together.  The points are, for each scenario in turn, the combinations
of the grid (the last key changes fastest), then the list.  Without both there is one
point for each scenario, as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import Model, Name
from raptor_cp.yaml_source import YamlSource, yaml_text

SCHEMA = "raptor-cp/sweep/1"
#: A larger sweep is a slip of the pen more often than a wish.
MAX_POINTS = 100_000

KeyPath = Annotated[str, Field(pattern=r"^[^.=\s][^=\s]*$", max_length=200)]
SweepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class SweepDocument(Model):
    """What a sweep file holds."""

    schema_: Literal["raptor-cp/sweep/1"] = Field(alias="schema")
    name: SweepName | None = None
    scenarios: tuple[Name, ...] = Field(min_length=1)
    set_: dict[KeyPath, object] = Field(default={}, alias="set")
    grid: dict[KeyPath, Annotated[tuple[object, ...], Field(min_length=1)]] = Field(
        default={}
    )
    points: tuple[dict[KeyPath, object], ...] = ()
    program: bool = False

    @field_validator("set_", "grid", "points")
    @classmethod
    def _plain(cls, value: object) -> object:
        _check_plain(value)
        return value


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One scenario with some values replaced.

    Attributes:
        scenario: the file.
        overrides: its own, by key path, in the order in which they are applied.
    """

    scenario: Path
    overrides: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep as its file says; nothing of its scenarios has been read.

    Attributes:
        name: names the results file.
        points: in the order of the sweep file.
        common: overrides of every point, applied before its own.
        program: emit a program for every point; its outcome is recorded.
    """

    name: str
    points: tuple[SweepPoint, ...]
    common: Mapping[str, object]
    program: bool = False


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep file.

    Raises:
        MalformedInput: unreadable or not a legal sweep; a scenario file that is
            missing is found by :func:`raptor_cp.sweeps.run_sweep`.
    """
    path = Path(path)
    return _sweep(YamlSource.read(path), path.resolve().parent, path.stem)


def sweep_from_mapping(
    document: Mapping[str, object], folder: str | Path | None = None
) -> Sweep:
    """Like :func:`load_sweep`, from the content of a sweep file.

    Args:
        folder: where relative paths start; the working directory when None.

    Raises:
        MalformedInput: not a legal sweep.
    """
    source = YamlSource.parse(yaml_text(document, "<sweep>"), "<sweep>")
    return _sweep(source, Path(folder or ".").resolve(), "sweep")


def json_schema() -> dict[str, object]:
    """JSON Schema of sweep files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "raptor-cp-sweep-1",
        **SweepDocument.model_json_schema(by_alias=True),
    }


def _sweep(source: YamlSource, folder: Path, name: str) -> Sweep:
    document = _validated(source)
    choices = [
        [(key, value) for value in values] for key, values in document.grid.items()
    ]
    combinations = math.prod(len(choice) for choice in choices) if choices else 0
    each = combinations + len(document.points) or 1
    if each * len(document.scenarios) > MAX_POINTS:
        raise MalformedInput(
            "too many points",
            where=source.name,
            value=each * len(document.scenarios),
            expected=f"at most {MAX_POINTS:,}",
        )
    overrides: list[Mapping[str, object]] = []
    if choices:
        overrides.extend(map(dict, itertools.product(*choices)))
    overrides.extend(document.points)
    points = tuple(
        SweepPoint(folder / scenario, given)
        for scenario in document.scenarios
        for given in overrides or [{}]
    )
    return Sweep(document.name or _as_name(name), points, document.set_,
                 document.program)  # fmt: skip


def _validated(source: YamlSource) -> SweepDocument:
    data = source.data
    if not isinstance(data, Mapping):
        raise MalformedInput(
            "a sweep is a mapping",
            where=source.name,
            value=data,
            expected=f"keys schema: {SCHEMA}, scenarios, grid, points",
        )
    if data.get("schema") != SCHEMA:
        raise MalformedInput(
            "unknown or missing schema version",
            where=source.place(("schema",)),
            value=data.get("schema"),
            expected=SCHEMA,
        )
    try:
        return SweepDocument.model_validate(data)
    except ValidationError as error:
        raise source.explain(error, SweepDocument) from None


def _as_name(stem: str) -> str:
    """A file's stem as a name: other characters become hyphens."""
    text = "".join(
        c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem
    )
    return (text.lstrip("._-") or "sweep")[:100]


def _check_plain(value: object) -> None:
    """Values must survive JSON: they are part of a point's identity and record."""
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float) and math.isfinite(value):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError("keys that are words")
            _check_plain(item)
        return
    if isinstance(value, tuple | list):
        for item in value:
            _check_plain(item)
        return
    raise ValueError(
        "finite numbers, texts, true, false, null, lists and mappings (quote dates)"
    )
