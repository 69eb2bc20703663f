"""One point, run: whatever happens in it becomes a record.

This runs in a worker.  The payload holds the scenario itself; the files it refers to
are checked first, so that a record never describes other content than its identity.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput, RaptorError
from raptor_cp.sweeps.identity import (
    Fingerprints,
    changed_file,
    program_version,
    read_payload,
)
from raptor_cp.sweeps.records import Outcome, PointFigures
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.result import ScheduleResult
    from raptor_cp.schedules import Schedule

_FINGERPRINTS = Fingerprints()
#: A worker of a cluster may have several threads; a run is meant to have the process.
_ONE_AT_A_TIME = threading.Lock()


def run_payload(payload: str) -> dict[str, object]:
    """Run a point; never raises for anything that the point does.

    Args:
        payload: of a :class:`~raptor_cp.sweeps.identity.ResolvedPoint`.

    Returns:
        :meth:`~raptor_cp.sweeps.records.PointFigures.to_dict`.
    """
    with _ONE_AT_A_TIME:
        begin = time.perf_counter()
        try:
            figures = _run(payload, begin)
            json.dumps(figures.to_dict(), allow_nan=False)
        except RaptorError as error:
            figures = _failure(str(error), error.exit_code, begin)
        except MemoryError:
            figures = _failure("out of memory", 4, begin)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            figures = _failure(f"{place}{error.strerror or error}", 2, begin)
        except Exception as error:
            figures = _failure(
                f"internal error: {type(error).__name__}: {error}; please report it",
                4,
                begin,
            )
        return figures.to_dict()


def _run(payload: str, begin: float) -> PointFigures:
    from raptor_cp.scheduler import schedule

    loaded, document = read_payload(payload)
    if document["version"] != program_version():
        raise MalformedInput(
            "the worker has another version of raptor-cp",
            value=program_version(),
            expected=str(document["version"]),
        )
    files = document["files"]
    if not isinstance(files, Mapping):
        raise TypeError("files is not a mapping")
    changed = changed_file(files, _FINGERPRINTS)
    if changed is not None:
        raise MalformedInput(
            "the file is not what it was when the sweep began",
            where=changed,
            hint="run the sweep again",
        )
    result = schedule(loaded, program=bool(document["program"]))
    return figures_of(result, time.perf_counter() - begin)


def figures_of(result: ScheduleResult, seconds: float) -> PointFigures:
    """What is recorded of a run that ended."""
    certificate, schedule = result.certificate, result.schedule
    gap = None if certificate is None else certificate.gap_interval
    unknown = result.verdict is Verdict.UNKNOWN
    summary = json.loads(json.dumps(result.summary(), allow_nan=False))
    return PointFigures(
        Outcome.UNANSWERED if unknown else Outcome.ANSWERED,
        str(result.verdict),
        result.interval_ns,
        result.latency_ns,
        None if certificate is None else certificate.bound_interval_ns,
        float(gap) if gap is not None and math.isfinite(gap) else None,
        None if schedule is None else len(schedule.placement.stages),
        None if schedule is None else sum(1 for t in schedule.placement.order if t),
        None if schedule is None else _weight_slots(schedule),
        tuple(e.name for e in result.expectations() if not e.held),
        None if result.program is None else str(result.program.outcome),
        result.reason if unknown else "",
        result.exit_code,
        round(seconds, 3),
        summary,
    )


def _weight_slots(schedule: Schedule) -> int:
    """Slots in use: each core holds the union of the weights of its tasks."""
    graph = schedule.problem.graph
    return sum(
        int(graph.weight_slots[weight])
        for tasks in schedule.placement.order
        for weight in {int(w) for task in tasks for w in graph.task_weights(task)}
    )


def _failure(error: str, exit_code: int, begin: float) -> PointFigures:
    seconds = round(time.perf_counter() - begin, 3)
    sentence = " ".join(error.split())
    return PointFigures.failure(sentence, exit_code, seconds)
