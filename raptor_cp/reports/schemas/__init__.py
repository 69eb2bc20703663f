"""JSON Schemas of the documents in a run folder, and of recorded results.

>>> sorted(SCHEMAS)[:2]
['chip', 'execution-plan']
>>> FILES["schedule.json"]
'schedule'
"""

from __future__ import annotations

from raptor_cp.reports.schemas.chip import CHIP
from raptor_cp.reports.schemas.common import registry
from raptor_cp.reports.schemas.execution_plan import EXECUTION_PLAN
from raptor_cp.reports.schemas.expected import EXPECTED
from raptor_cp.reports.schemas.fields import Schema
from raptor_cp.reports.schemas.periodic import PIPELINE_PERIODIC
from raptor_cp.reports.schemas.result import RESULT, RUN_MARKER
from raptor_cp.reports.schemas.schedule import SCHEDULE
from raptor_cp.reports.schemas.selection import PIPELINE_SELECTION
from raptor_cp.reports.schemas.timeline import TIMELINE
from raptor_cp.reports.schemas.trace import TRACE

#: Schemas by name.
SCHEMAS: dict[str, Schema] = registry(
    RESULT,
    SCHEDULE,
    PIPELINE_SELECTION,
    EXECUTION_PLAN,
    PIPELINE_PERIODIC,
    TIMELINE,
    CHIP,
    TRACE,
    RUN_MARKER,
    EXPECTED,
)

#: Files of a run folder and the schema that each follows.
FILES: dict[str, str] = {
    "run.json": "run",
    "result.json": "result",
    "schedule.json": "schedule",
    "reports/pipeline_selection.json": "pipeline-selection",
    "reports/execution_plan.json": "execution-plan",
    "reports/pipeline_periodic.json": "pipeline-periodic",
    "reports/timeline.json": "timeline",
    "reports/chip.json": "chip",
    "trace.perfetto.json": "trace",
}

__all__ = ["FILES", "SCHEMAS", "Schema"]
