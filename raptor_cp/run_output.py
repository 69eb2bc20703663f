"""Writes a result as a run folder: all of it, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from raptor_cp.reports.files import write_json, write_text
from raptor_cp.reports.selection_report import selection_document
from raptor_cp.run_folder import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.result import ScheduleResult


def write_run(result: ScheduleResult, folder: Path) -> None:
    """Replace ``folder`` by the run.

    Raises:
        MalformedInput: the folder holds something that is no run.
        OSError: it cannot be written; the old run is then still there.
    """
    scenario = result.loaded.scenario.to_dict()
    with replacing(folder) as fresh:
        write_text(
            fresh / "scenario.yaml",
            yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True, width=88),
        )
        write_json(fresh / "result.json", _without_schedule(result))
        if result.schedule is not None:
            write_json(fresh / "schedule.json", result.schedule_document())
        if result.search is not None and result.selection is not None:
            reports = fresh / "reports"
            reports.mkdir()
            write_json(
                reports / "pipeline_selection.json",
                selection_document(
                    result.loaded.scenario.name,
                    result.search,
                    result.selection,
                    result.phases,
                ),
            )


def _without_schedule(result: ScheduleResult) -> dict[str, object]:
    document = result.to_dict()
    del document["schedule"]
    return document
