"""Regression runs: scenarios against ``expect`` and against recorded results.

A recorded result (``expected/<scenario name>.json`` beside the scenario) holds the
figures of a run that somebody looked at.  Nothing in it depends on the machine, so
every difference is a change of behaviour.  Figures are compared exactly, but for
those that have a tolerance: in the file (``"tolerances": {"interval_ns": "1%"}``) or
given by the caller, who wins.
"""

from __future__ import annotations

import difflib
import json
import math
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, TypeGuard

from raptor_cp.errors import InternalError, MalformedInput, RaptorError
from raptor_cp.interruption import Interrupted, Stop
from raptor_cp.reports.files import write_json
from raptor_cp.reports.history import HistoryEntry, HistoryRun
from raptor_cp.reports.junit import JunitCase, junit_xml
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.tolerance import Tolerance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from raptor_cp.result import ScheduleResult
    from raptor_cp.scheduler import SchedulerObserver

SCHEMA = "raptor-cp/expected/1"

#: Figures that may have a tolerance: numbers, in this order on the history page.
FIGURES = (
    "interval_ns",
    "latency_ns",
    "bound_static_ns",
    "bound_interval_ns",
    "slots_needed",
    "mvmul",
)
_TOLERANCES = "tolerances"


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
        scenario: its name; the file's, when it could not be read.
        differences: empty when it passed.
        recorded: there was a recorded result (or it has been written now).
        result: the run; None when the scenario could not be run.
        figures: what would be recorded of the run.
        seconds: wall time of the run.
        error: why it could not be run or compared; None when it could.
        path: the scenario file.
    """

    scenario: str
    differences: tuple[Difference, ...]
    recorded: bool
    result: ScheduleResult | None = None
    figures: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    error: RaptorError | None = None
    path: Path | None = None

    @property
    def passed(self) -> bool:
        """No difference, and something recorded to compare with."""
        return self.error is None and not self.differences and self.recorded

    @property
    def exit_code(self) -> int:
        """0 passed, 1 different, else the code of the error."""
        if self.error is not None:
            return self.error.exit_code
        return 0 if self.passed else 1

    def to_dict(self) -> dict[str, object]:
        """One element of ``regress --json``."""
        return {
            "scenario": self.scenario,
            "passed": self.passed,
            "recorded": self.recorded,
            "error": None if self.error is None else str(self.error),
            "differences": [
                {"key": d.key, "expected": d.expected, "found": d.found}
                for d in self.differences
            ],
            "figures": {name: self.figures.get(name) for name in FIGURES},
            "seconds": round(self.seconds, 3),
        }


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


def regress(
    scenario: Path,
    *,
    update: bool = False,
    tolerances: Mapping[str, Tolerance] | None = None,
    observer: SchedulerObserver | None = None,
    stop: Stop | None = None,
) -> RegressionCase:
    """Run one scenario and compare it.

    Args:
        scenario: the file.
        update: record what was found instead of comparing with it; ``expect`` is
            checked all the same.  Recorded tolerances are kept, given ones recorded.
        tolerances: by figure; they replace the recorded ones of these figures.
        observer: progress hooks of the run.
        stop: ends the run early.

    Raises:
        MalformedInput: the scenario, the recorded result or a tolerance is wrong.
        Interrupted: the stop was requested; an unfinished run is not compared.
    """
    given = dict(tolerances or {})
    _check_names(given, "--tolerance")
    loaded = load(scenario)
    path = expected_path(scenario, loaded.scenario.name)
    recorded, allowed = _recorded(path, update=update)
    allowed |= given
    begin = time.perf_counter()
    result = schedule(loaded, observer, stop=stop)
    seconds = time.perf_counter() - begin
    if result.interrupted:
        raise Interrupted(f"{loaded.scenario.name}: interrupted, not compared")
    differences = [
        Difference(f"expect.{e.name}", e.expected, e.found)
        for e in result.expectations()
        if not e.held
    ]
    figures = recorded_figures(result)
    if update:
        texts = {name: str(allowed[name]) for name in FIGURES if name in allowed}
        path.parent.mkdir(exist_ok=True)
        write_json(path, {**figures, **({_TOLERANCES: texts} if texts else {})})
    elif recorded is not None:
        differences.extend(_differences(recorded, figures, allowed))
    return RegressionCase(
        loaded.scenario.name,
        tuple(differences),
        update or recorded is not None,
        result,
        figures,
        seconds,
        path=scenario,
    )


def regress_all(
    scenarios: Sequence[Path],
    *,
    update: bool = False,
    tolerances: Mapping[str, Tolerance] | None = None,
    on_case: Callable[[RegressionCase], None] | None = None,
    observer: Callable[[Path], SchedulerObserver] | None = None,
    stop: Stop | None = None,
) -> tuple[RegressionCase, ...]:
    """Run scenarios one after the other; what fails is a case and ends nothing.

    Args:
        scenarios: files, in order.
        update: see :func:`regress`.
        tolerances: see :func:`regress`.
        on_case: called with each case when it is known.
        observer: progress hooks for each file.
        stop: ends the whole run; scenarios that did not finish are not among the
            cases.

    Raises:
        MalformedInput: a tolerance for something that is no figure.
    """
    _check_names(tolerances or {}, "--tolerance")
    cases = []
    for path in scenarios:
        if stop is not None and stop.requested:
            break
        try:
            case = regress(
                path,
                update=update,
                tolerances=tolerances,
                observer=None if observer is None else observer(path),
                stop=stop,
            )
        except Interrupted:
            break
        except RaptorError as error:
            case = RegressionCase(path.stem, (), False, error=error, path=path)
        except Exception as error:
            # A bug in one scenario must not hide the results of the others.
            wrapped = InternalError(f"{path}: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            case = RegressionCase(path.stem, (), False, error=wrapped, path=path)
        cases.append(case)
        if on_case is not None:
            on_case(case)
    return tuple(cases)


def _recorded(
    path: Path, *, update: bool
) -> tuple[dict[str, object] | None, dict[str, Tolerance]]:
    """The recorded result and its tolerances; a broken one may be replaced."""
    try:
        recorded = _read(path)
        return recorded, _recorded_tolerances(recorded or {}, path)
    except MalformedInput:
        if update:
            return None, {}
        raise


def _differences(
    recorded: Mapping[str, object],
    figures: Mapping[str, object],
    allowed: Mapping[str, Tolerance],
) -> list[Difference]:
    found = []
    for key in sorted((recorded.keys() | figures.keys()) - {_TOLERANCES}):
        old, new = recorded.get(key), figures.get(key)
        if old == new:
            continue
        expected = json.dumps(old)
        tolerance = allowed.get(key)
        if tolerance is not None and _number(old) and _number(new):
            if tolerance.allows(old, new):
                continue
            expected += f" (tolerance {tolerance})"
        found.append(Difference(key, expected, json.dumps(new)))
    return found


def _number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def _recorded_tolerances(
    recorded: Mapping[str, object], path: Path
) -> dict[str, Tolerance]:
    given = recorded.get(_TOLERANCES, {})
    if not isinstance(given, dict):
        raise MalformedInput(
            "not a mapping", where=f"{path}: {_TOLERANCES}", value=given
        )
    found = {
        str(name): Tolerance.parse(text, f"{path}: {_TOLERANCES}.{name}")
        for name, text in given.items()
    }
    _check_names(found, f"{path}: {_TOLERANCES}")
    return found


def _check_names(tolerances: Mapping[str, Tolerance], where: str) -> None:
    for name in tolerances:
        if name not in FIGURES:
            near = difflib.get_close_matches(name, FIGURES, n=1)
            raise MalformedInput(
                "no such figure",
                where=where,
                value=name,
                expected=f"one of {', '.join(FIGURES)}",
                hint=f"did you mean {near[0]!r}?" if near else "",
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


def junit_document(cases: Sequence[RegressionCase], left: Sequence[Path] = ()) -> bytes:
    """The cases as JUnit XML; scenarios of an interrupted run are skipped ones.

    Args:
        cases: what was run.
        left: files that were not.
    """
    rows = []
    for case in cases:
        lines = [
            f"{d.key}: expected {d.expected}, found {d.found}" for d in case.differences
        ]
        if case.error is None and not case.recorded:
            lines.append("nothing recorded: run with --update")
        rows.append(
            JunitCase(
                case.scenario,
                "raptor-cp.regress",
                case.seconds,
                failure="\n".join(lines),
                error="" if case.error is None else str(case.error),
            )
        )
    rows.extend(
        JunitCase(path.stem, "raptor-cp.regress", 0.0, skipped="interrupted")
        for path in left
    )
    return junit_xml("raptor-cp regress", rows)


def history_run(
    cases: Sequence[RegressionCase], when: str, *, complete: bool = True
) -> HistoryRun:
    """The cases as a line of the history.

    Args:
        cases: what was run; those with an error have no figures.
        when: time stamp, UTC.
        complete: nothing was left out.

    Raises:
        MalformedInput: two scenarios have one name.
    """
    names = [case.scenario for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise MalformedInput(
                "two scenarios have one name: their figures would be mixed",
                where="--history",
                value=name,
            )
    return HistoryRun(
        when,
        version("raptor-cp"),
        tuple(
            HistoryEntry(
                case.scenario,
                case.passed,
                case.seconds,
                {k: v for k in FIGURES if _number(v := case.figures.get(k))},
            )
            for case in cases
        ),
        complete,
    )
