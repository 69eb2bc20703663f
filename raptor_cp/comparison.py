"""Solver against heuristic over scenarios (``raptor-cp compare``).

Methods of pipeline scenarios: ``heuristic`` (no solver), ``cp-sat`` (the solver's
seed joins the search), ``both`` (the better of these two full runs).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.interruption import Interrupted
from raptor_cp.scheduler import schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raptor_cp.interruption import Stop
    from raptor_cp.result import ScheduleResult
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.scheduler import SchedulerObserver

PIPELINE_METHODS = ("heuristic", "cp-sat", "both")
LATENCY_METHODS = ("peft", "heft", "cp-sat")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One scenario by one method; times are ns but for ``seconds``.

    Attributes:
        bound_ns: no schedule of this graph on this chip has a smaller interval (or
            completion, in latency mode).
        gap: (interval - bound) / bound.
        static_objective_ns: best static objective that the run has seen; in latency
            mode the completion without queues, which bound and gap are about.
        static_bound_ns: bound of the static objective.
        static_choice_ns: what the candidate with the least static estimate costs on
            the queues; None without a queue estimate.
    """

    scenario: str
    method: str
    verdict: str
    interval_ns: int | None
    latency_ns: int | None
    bound_ns: int | None
    gap: float | None
    queue_evaluations: int
    packings: int
    seconds: float
    static_objective_ns: int | None = None
    static_bound_ns: int | None = None
    static_choice_ns: int | None = None

    def to_dict(self) -> dict[str, object]:
        """One element of ``compare --json``."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def gain(self) -> float | None:
        """Share of the static choice's interval that queue costs saved."""
        if not self.static_choice_ns or self.interval_ns is None:
            return None
        return 1 - self.interval_ns / self.static_choice_ns


def compare(
    loaded: LoadedScenario,
    methods: Sequence[str] | None = None,
    on_row: Callable[[ComparisonRow], None] | None = None,
    *,
    observer: Callable[[str], SchedulerObserver] | None = None,
    stop: Stop | None = None,
) -> list[ComparisonRow]:
    """Run a scenario by every method.

    Args:
        loaded: the scenario.
        methods: which; all of its mode when None.
        on_row: called with each row when it is known.
        observer: progress hooks for the run of each method.
        stop: ends the comparison early: the rows that are finished are returned.

    Raises:
        MalformedInput: an unknown method, or a wrong scenario.
    """
    known = PIPELINE_METHODS if loaded.scenario.mode == "pipeline" else LATENCY_METHODS
    wanted = list(methods or known)
    for method in wanted:
        if method not in known:
            raise MalformedInput(
                f"no such method in {loaded.scenario.mode} mode",
                where="--method",
                value=method,
                expected=f"one of {', '.join(known)}",
            )
    runs: dict[str, ComparisonRow] = {}
    rows: list[ComparisonRow] = []

    def run(method: str) -> ScheduleResult:
        watch = None if observer is None else observer(method)
        result = schedule(_with_method(loaded, method), watch, stop=stop)
        if result.interrupted:
            raise Interrupted(f"{loaded.scenario.name}, {method}: interrupted")
        return result

    for method in wanted:
        try:
            row = _row(run, method, runs)
        except Interrupted:
            break
        rows.append(row)
        if on_row is not None:
            on_row(row)
    return rows


def _row(
    run: Callable[[str], ScheduleResult], method: str, runs: dict[str, ComparisonRow]
) -> ComparisonRow:
    if method != "both":
        if method not in runs:
            begin = time.perf_counter()
            result = run(method)
            seconds = time.perf_counter() - begin
            runs[method] = _measured(result, method, seconds)
        return runs[method]
    pair = [_row(run, single, runs) for single in ("heuristic", "cp-sat")]
    best = min(
        pair, key=lambda r: (r.interval_ns is None, r.interval_ns or 0, r.method)
    )
    bounds = [r.bound_ns for r in pair if r.bound_ns is not None]
    bound = max(bounds, default=None)
    static = [r.static_objective_ns for r in pair if r.static_objective_ns is not None]
    static_bounds = [r.static_bound_ns for r in pair if r.static_bound_ns is not None]
    return ComparisonRow(
        best.scenario,
        "both",
        best.verdict,
        best.interval_ns,
        best.latency_ns,
        bound,
        (best.interval_ns - bound) / bound if best.interval_ns and bound else None,
        sum(r.queue_evaluations for r in pair),
        sum(r.packings for r in pair),
        sum(r.seconds for r in pair),
        min(static, default=None),
        max(static_bounds, default=None),
        best.static_choice_ns,
    )


def _with_method(loaded: LoadedScenario, method: str) -> LoadedScenario:
    scenario = loaded.scenario
    if scenario.mode == "latency":
        # the solver's makespan model stands beside either list scheduler
        change: dict[str, object] = {
            "latency": scenario.latency.model_copy(update={"method": method})
        }
    elif method == "heuristic":
        change = {
            "solver": scenario.solver.model_copy(update={"enabled": False}),
            "search": scenario.search.model_copy(update={"seeds": ("dp",)}),
        }
    else:
        change = {
            "solver": scenario.solver.model_copy(update={"enabled": True}),
            "search": scenario.search.model_copy(update={"seeds": ("dp", "cp-sat")}),
        }
    return loaded.model_copy(update={"scenario": scenario.model_copy(update=change)})


def _measured(result: ScheduleResult, method: str, seconds: float) -> ComparisonRow:
    certificate, search = result.certificate, result.search
    return ComparisonRow(
        result.loaded.scenario.name,
        method,
        result.verdict,
        result.interval_ns,
        result.latency_ns,
        None if certificate is None else certificate.bound_interval_ns,
        None if certificate is None else certificate.gap_interval,
        0 if search is None else search.budget.queue_evaluations.used,
        0 if search is None else search.budget.packings.used,
        round(seconds, 3),
        result.static_latency_ns if search is None else result.best_static_ns,
        None if certificate is None else certificate.bound_static,
        result.static_choice_ns,
    )
