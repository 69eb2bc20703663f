"""Regression runs: scenarios against ``expect`` and against recorded results.

A recorded result (``expected/<scenario name>.json`` beside the scenario) holds the
figures of a run that somebody looked at.  Nothing in it depends on the machine, so
every difference is a change of behaviour.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.reports.files import write_json
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.result import ScheduleResult

SCHEMA = "raptor-cp/expected/1"


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure that is not what was recorded or expected."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True, eq=False)
class RegressionCase:
    """One scenario.

    Attributes:
        scenario: its name.
        differences: empty when it passed.
        recorded: there was a recorded result (or it has been written now).
        result: the run; None when the scenario could not be run.
    """

    scenario: str
    differences: tuple[Difference, ...]
    recorded: bool
    result: ScheduleResult | None = None

    @property
    def passed(self) -> bool:
        """No difference, and something recorded to compare with."""
        return not self.differences and self.recorded


def expected_path(scenario: Path, name: str) -> Path:
    """Where the recorded result of a scenario file stands."""
    return scenario.parent / "expected" / f"{name}.json"


def recorded_figures(result: ScheduleResult) -> dict[str, object]:
    """What is recorded of a run: the same on every machine."""
    certificate = result.certificate
    stages = () if result.schedule is None else result.schedule.placement.stages
    return {
        "schema": SCHEMA,
        "scenario": result.loaded.scenario.name,
        "verdict": str(result.verdict),
        "interval_ns": result.interval_ns,
        "latency_ns": result.latency_ns,
        "stages": [
            {"groups": [stage.groups[0], stage.groups[-1]], "cores": len(stage.cores)}
            for stage in stages
        ],
        "selection": None if result.selection is None else result.selection.reason,
        "bound_static_ns": None if certificate is None else certificate.bound_static,
        "bound_interval_ns": None
        if certificate is None
        else certificate.bound_interval_ns,
        "slots_needed": None
        if result.infeasibility is None
        else result.infeasibility.slots_needed,
        "mvmul": None if result.splits is None else result.splits.mvmuls,
    }


def regress(scenario: Path, *, update: bool = False) -> RegressionCase:
    """Run one scenario and compare it.

    Args:
        scenario: the file.
        update: record what was found instead of comparing with it; ``expect`` is
            checked all the same.

    Raises:
        MalformedInput: the scenario or the recorded result cannot be read.
    """
    loaded = load(scenario)
    result = schedule(loaded)
    differences = [
        Difference(f"expect.{e.name}", e.expected, e.found)
        for e in result.expectations()
        if not e.held
    ]
    figures = recorded_figures(result)
    path = expected_path(scenario, loaded.scenario.name)
    if update:
        path.parent.mkdir(exist_ok=True)
        write_json(path, figures)
        return RegressionCase(loaded.scenario.name, tuple(differences), True, result)
    recorded = _read(path)
    if recorded is not None:
        for key in sorted(recorded.keys() | figures.keys()):
            old, new = recorded.get(key), figures.get(key)
            if old != new:
                differences.append(Difference(key, json.dumps(old), json.dumps(new)))
    return RegressionCase(
        loaded.scenario.name, tuple(differences), recorded is not None, result
    )


def _read(path: Path) -> dict[str, object] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise MalformedInput(
            f"cannot be read: {error}", where=str(path), hint="record it with --update"
        ) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise MalformedInput(
            "not a recorded result", where=str(path), expected=f"schema {SCHEMA}"
        )
    return document
