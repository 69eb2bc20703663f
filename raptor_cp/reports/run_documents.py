"""The documents of a run folder that its report is made from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.periodic.timeline import Timeline
from raptor_cp.reports.json_view import JsonView
from raptor_cp.run_folder import MARKER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESULT = "result.json"
SCHEDULE = "schedule.json"
SCENARIO = "scenario.yaml"
SELECTION = "reports/pipeline_selection.json"
PERIODIC = "reports/pipeline_periodic.json"
TIMELINE = "reports/timeline.json"
CHIP = "reports/chip.json"


@dataclass(frozen=True, slots=True)
class RunDocuments:
    """What a run folder says; None for files that the run does not have.

    Attributes:
        scenario: text of the resolved scenario.
        result: ``result.json``.
        schedule: ``schedule.json``.
        chip: ``reports/chip.json``.
        selection: ``reports/pipeline_selection.json``.
        periodic: ``reports/pipeline_periodic.json``.
        timeline: ``reports/timeline.json``.
    """

    scenario: str
    result: JsonView
    schedule: JsonView | None
    chip: JsonView | None
    selection: JsonView | None
    periodic: JsonView | None
    timeline: Timeline | None

    @classmethod
    def of(
        cls,
        scenario: str,
        documents: Mapping[str, Mapping[str, object]],
        timeline: Timeline | None,
    ) -> RunDocuments:
        """Documents by the names of their files; the timeline stands apart."""

        def view(name: str) -> JsonView | None:
            found = documents.get(name)
            return None if found is None else JsonView(found, name)

        return cls(
            scenario,
            JsonView(documents[RESULT], RESULT),
            view(SCHEDULE),
            view(CHIP),
            view(SELECTION),
            view(PERIODIC),
            timeline,
        )

    @classmethod
    def read(cls, folder: Path) -> RunDocuments:
        """Read a run folder.

        Raises:
            MalformedInput: not a run folder, or one of its files is broken.
        """
        if not (folder / MARKER).is_file() or not (folder / RESULT).is_file():
            raise MalformedInput(
                "not a run folder",
                where=str(folder),
                expected=f"{MARKER} and {RESULT}, as schedule writes them",
            )
        documents = {}
        for name in (RESULT, SCHEDULE, CHIP, SELECTION, PERIODIC, TIMELINE):
            found = _read(folder / name)
            if found is not None:
                documents[name] = found
        timeline = documents.pop(TIMELINE, None)
        try:
            scenario = (folder / SCENARIO).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            raise MalformedInput(
                "cannot be read", where=str(folder / SCENARIO)
            ) from None
        return cls.of(
            scenario,
            documents,
            None if timeline is None else Timeline.from_dict(timeline, TIMELINE),
        )


def _read(path: Path) -> dict[str, object] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        raise MalformedInput(
            "cannot be read", where=str(path), expected="JSON"
        ) from None
    if not isinstance(document, dict):
        raise MalformedInput("no JSON object", where=str(path))
    return document
