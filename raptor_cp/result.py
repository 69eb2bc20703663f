"""What the main job returns; everything the command line prints is in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.reports.notebook import StageRow, result_html
from raptor_cp.reports.schedule_json import schedule_document
from raptor_cp.verdict import Unavailable, Verdict

if TYPE_CHECKING:
    from raptor_cp.graph.splitting import SplitReport
    from raptor_cp.infeasibility import Infeasibility
    from raptor_cp.latency.list_scheduling import LatencyOutcome
    from raptor_cp.models.certificate import Certificate
    from raptor_cp.models.latency_bound import LatencyCertificate
    from raptor_cp.periodic.analysis import PeriodicAnalysis
    from raptor_cp.periodic.timeline import Timeline
    from raptor_cp.pipeline.beam import Candidate, SearchResult
    from raptor_cp.pipeline.selection import Selection
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.schedules import Schedule
    from raptor_cp.target import BackendResult, RealizedCompletion, RealizedCost


@dataclass(frozen=True, slots=True)
class Expectation:
    """One line of ``expect`` and whether it held."""

    name: str
    expected: str
    found: str
    held: bool


@dataclass(frozen=True, eq=False)
class ScheduleResult:
    """Outcome of one run.

    Attributes:
        loaded: the scenario and its folder.
        verdict: FEASIBLE or OPTIMAL with a schedule; INFEASIBLE with the proof;
            UNKNOWN when a budget was spent or timing is unproved.
        reason: one sentence.
        schedule: the selected schedule.
        cost: evidence of the selected schedule; None when it was not asked for.
        certificate: how far from the optimum it is at most.
        infeasibility: why nothing fits.
        search: candidates and budgets (pipeline mode).
        selection: how the candidate was chosen.
        splits: how weights were cut.
        notes: what was approximated, not proved, or left out.
        phases: seconds by phase; the only part that differs between equal runs.
        phase_counts: how often each phase was entered.
        solver: records of all solves.
        joint_static_ns: static objective of the solver's own answer.
        plan: the selected schedule, realized again from the unchanged graph.
        periodic: periodic analysis of that plan.
        timeline: what its cores and queues do, for traces and reports.
        program: what the backend made of it; None when no program was asked for.
        attempts: backend attempts in order: candidate, outcome, reasons.
        completion: one inference on the queues (latency mode); None when the queues
            were not asked.
        listed: what the list scheduler found first (latency mode).
        interrupted: the run was asked to end early; what it holds is the best so far.
    """

    loaded: LoadedScenario
    verdict: Verdict
    reason: str
    schedule: Schedule | None = None
    cost: RealizedCost | None = None
    certificate: Certificate | LatencyCertificate | None = None
    infeasibility: Infeasibility | None = None
    search: SearchResult | None = None
    selection: Selection | None = None
    splits: SplitReport | None = None
    notes: tuple[str, ...] = ()
    phases: dict[str, float] = field(default_factory=dict)
    phase_counts: dict[str, int] = field(default_factory=dict)
    solver: tuple[dict[str, object], ...] = ()
    joint_static_ns: int | None = None
    plan: ExecutionPlan | None = None
    periodic: PeriodicAnalysis | Unavailable | None = None
    timeline: Timeline | Unavailable | None = None
    program: BackendResult | None = None
    attempts: tuple[dict[str, object], ...] = ()
    completion: RealizedCompletion | None = None
    listed: LatencyOutcome | None = None
    interrupted: bool = False

    @property
    def interval_ns(self) -> int | None:
        """Initiation interval (ns): the larger tie order, or the static estimate."""
        if self.schedule is None or not self.schedule.placement.stages:
            return None
        if self.cost is not None and self.cost.larger_ns is not None:
            return self.cost.larger_ns
        return self.schedule.summary.static_interval_ns

    @property
    def latency_ns(self) -> int | None:
        """Completion of one inference (ns).

        In latency mode on the queues, the larger tie order, when they were asked and
        have an answer; otherwise the evaluator's, in which nothing queues.
        """
        if self.completion is not None and self.completion.larger_ns is not None:
            return self.completion.larger_ns
        return self.static_latency_ns

    @property
    def static_latency_ns(self) -> int | None:
        """Completion (ns) by the evaluator: what the certificate of latency bounds."""
        return None if self.schedule is None else self.schedule.summary.completion_ns

    @property
    def timing(self) -> str | None:
        """``queue`` or ``static``: where the figures of the run are from."""
        if self.completion is not None:
            return "static" if self.completion.larger_ns is None else "queue"
        if self.cost is None:
            return None
        # Without a figure from the queues, interval_ns is the static one.
        return "static" if self.cost.larger_ns is None else self.cost.timing

    @property
    def termination(self) -> str | None:
        """Why the search ended; None without a search that ran to its end."""
        if self.search is not None:
            return self.search.termination
        return "interrupted" if self.interrupted else None

    @property
    def chosen(self) -> Candidate | None:
        """The selected candidate of the search."""
        if self.search is None or self.selection is None:
            return None
        index = self.selection.chosen
        return None if index is None else self.search.candidates[index]

    @property
    def best_static_ns(self) -> int | None:
        """Least static objective (ns) seen in the run, the solver's seed included."""
        seen = [] if self.joint_static_ns is None else [self.joint_static_ns]
        if self.search is not None:
            seen.extend(
                candidate.schedule.summary.static_objective_ns
                for candidate in self.search.candidates
            )
        return min(seen, default=None)

    @property
    def static_choice_ns(self) -> int | None:
        """Queue interval (ns) of the candidate with the least static estimate."""
        if self.search is None or self.cost is None or self.cost.timing == "static":
            return None
        choice = min(
            self.search.candidates,
            key=lambda c: (c.schedule.summary.static_interval_ns, c.index),
        )
        return None if choice.cost is None else choice.cost.larger_ns

    def expectations(self) -> tuple[Expectation, ...]:
        """Every ``expect`` of the scenario against what was found."""
        expect = self.loaded.scenario.expect
        found: list[Expectation] = []
        if expect.verdict is not None:
            found.append(
                Expectation(
                    "verdict",
                    expect.verdict,
                    self.verdict,
                    self.verdict == expect.verdict
                    or (expect.verdict == "FEASIBLE" and self.verdict.has_solution),
                )
            )
        stages = None if self.schedule is None else len(self.schedule.placement.stages)
        gap = None
        if self.certificate is not None and self.certificate.gap_interval is not None:
            gap = float(self.certificate.gap_interval)
        for name, limits, value in (
            ("stages", expect.stages, stages),
            ("interval_ns", expect.interval_ns, self.interval_ns),
            ("latency_ns", expect.latency_ns, self.latency_ns),
            ("gap", expect.gap, gap),
        ):
            if limits is None:
                continue
            low = "" if limits.min is None else f"{limits.min} <= "
            high = "" if limits.max is None else f" <= {limits.max}"
            held = (
                value is not None
                and (limits.min is None or value >= limits.min)
                and (limits.max is None or value <= limits.max)
            )
            found.append(Expectation(name, f"{low}{name}{high}", str(value), held))
        return tuple(found)

    @property
    def exit_code(self) -> int:
        """0 done, 1 infeasible or an expectation failed, 3 no answer or interrupted."""
        if self.interrupted:
            return 3
        expectations = self.expectations()
        if any(not e.held for e in expectations):
            return 1
        expected = self.loaded.scenario.expect.verdict
        if self.verdict is Verdict.INFEASIBLE:
            return 0 if expected == self.verdict else 1
        if self.verdict is Verdict.UNKNOWN:
            return 0 if expected == self.verdict else 3
        return 0

    def summary(self) -> dict[str, object]:
        """The figures of the run, without the schedule itself."""
        stages = () if self.schedule is None else self.schedule.placement.stages
        return {
            "scenario": self.loaded.scenario.name,
            "verdict": self.verdict,
            "reason": self.reason,
            "timing": self.timing,
            "interval_ns": self.interval_ns,
            "latency_ns": self.latency_ns,
            "static_latency_ns": self.static_latency_ns,
            "queue_completion": None
            if self.completion is None
            else self.completion.to_dict(),
            "stages": len(stages),
            "cores_used": None
            if self.schedule is None
            else sum(1 for tasks in self.schedule.placement.order if tasks),
            "certificate": None
            if self.certificate is None
            else self.certificate.to_dict(),
            "infeasibility": None
            if self.infeasibility is None
            else self.infeasibility.to_dict(),
            "selection": None if self.selection is None else self.selection.reason,
            "interrupted": self.interrupted,
            "termination": self.termination,
            "budgets": None if self.search is None else self.search.budget.to_dict(),
            "list_schedule": None if self.listed is None else self.listed.to_dict(),
            "components": {}
            if self.schedule is None
            else {
                name: int(values.sum())
                for name, values in self.schedule.problem.costs.components
            },
            "mvmul": None if self.splits is None else self.splits.mvmuls,
            "expectations": [
                {"name": e.name, "expected": e.expected, "found": e.found,
                 "held": e.held}
                for e in self.expectations()
            ],
            "program": None if self.program is None else self.program.outcome,
            "program_reasons": []
            if self.program is None
            else list(self.program.reasons),
            "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        parts = [f"{self.loaded.scenario.name}: {self.verdict}"]
        if self.interval_ns is not None:
            parts.append(f"interval {self.interval_ns:,} ns ({self.timing})")
        elif self.latency_ns is not None:
            parts.append(f"one inference {self.latency_ns:,} ns ({self.timing})")
        gap = None if self.certificate is None else self.certificate.gap
        if gap is not None:
            parts.append(f"gap {100 * gap:.2f} %")
        if self.schedule is None:
            parts.append(self.reason)
        return f"<ScheduleResult {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return result_html(self.summary(), self._stage_rows())

    def _stage_rows(self) -> list[StageRow]:
        if self.schedule is None:
            return []
        graph, order = self.schedule.problem.graph, self.schedule.placement.order
        summary = self.schedule.summary
        return [
            StageRow(
                stage.index,
                graph.operations[stage.groups[0]],
                graph.operations[stage.groups[-1]],
                len(stage.cores),
                sum(len(order[core]) for core in stage.cores),
                summary.stage_loads_ns[stage.index],
                summary.stage_spans_ns[stage.index],
            )
            for stage in self.schedule.placement.stages
        ]

    def to_dict(self) -> dict[str, object]:
        """Summary, schedule document, solver records and phase times."""
        return {
            "schema": "raptor-cp/result/1",
            **self.summary(),
            "schedule": None if self.schedule is None else self.schedule_document(),
            "solver": list(self.solver),
            "phases": self.phases,
            "phase_counts": self.phase_counts,
        }

    def schedule_document(self) -> dict[str, object]:
        """``schedule.json``.

        Raises:
            ValueError: there is no schedule.
        """
        if self.schedule is None:
            raise ValueError("a run without a schedule has no schedule document")
        return schedule_document(
            self.schedule,
            self.loaded.scenario.to_dict(),
            self.verdict,
            None if self.certificate is None else self.certificate.to_dict(),
            self.cost,
        )
