"""Writes a result as a run folder: all of it, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from raptor_cp.periodic.timeline import Timeline
from raptor_cp.reports.chip import chip_document
from raptor_cp.reports.execution_plan import execution_plan_document
from raptor_cp.reports.files import write_json, write_text
from raptor_cp.reports.html_page import report_html
from raptor_cp.reports.perfetto import trace_events
from raptor_cp.reports.periodic_report import periodic_document
from raptor_cp.reports.run_documents import RunDocuments
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
    scenario = result.loaded.relocated(folder)
    with replacing(folder) as fresh:
        if result.program is not None and result.program.write is not None:
            result.program.write(fresh / "program")
        write_text(
            fresh / "scenario.yaml",
            yaml.safe_dump(scenario, sort_keys=False, allow_unicode=True, width=88),
        )
        write_json(fresh / "result.json", _without_schedule(result))
        if result.schedule is not None:
            write_json(fresh / "schedule.json", result.schedule_document())
        reports = fresh / "reports"
        reports.mkdir()
        if result.schedule is not None:
            resources = result.schedule.problem.resources
            write_json(reports / "chip.json", chip_document(resources))
        if result.plan is not None:
            write_json(
                reports / "execution_plan.json", execution_plan_document(result.plan)
            )
        if result.plan is not None and result.periodic is not None:
            write_json(
                reports / "pipeline_periodic.json",
                periodic_document(result.plan, result.periodic),
            )
        if isinstance(result.timeline, Timeline):
            name = result.loaded.scenario.name
            write_json(reports / "timeline.json", result.timeline.to_dict())
            write_text(
                fresh / "trace.perfetto.json",
                trace_events(result.timeline, name).text(),
            )
        if result.search is not None and result.selection is not None:
            write_json(
                reports / "pipeline_selection.json",
                selection_document(
                    result.loaded.scenario.name,
                    result.search,
                    result.selection,
                    result.phases,
                    result.attempts,
                    result.phase_counts,
                ),
            )
        write_text(fresh / "report.html", report_html(RunDocuments.read(fresh)))


def _without_schedule(result: ScheduleResult) -> dict[str, object]:
    document = result.to_dict()
    del document["schedule"]
    return document
