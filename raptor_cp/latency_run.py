"""``mode: latency``: list scheduling of one inference, and how good it is.

Order of things (scheduling spec, "Capacity and recovery"): the list scheduler with its
reservations; when its bounded search is exhausted, the solver's packing has the last
word: an assignment to reserve, or the proof that none exists; then the evaluator, the
validator, and a certificate of the completion.  With ``search.timing: queue`` the
schedule is realized and one inference runs on the queues; the certificate is about
the evaluator's completion, which knows no queues.  Then the backend: a schedule that
it rejects for its own sake (a memory that is too small) gives way to the next best.

Methods are ``peft``, ``heft``, and ``cp-sat``: PEFT, improved by the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from raptor_cp.errors import InternalError
from raptor_cp.infeasibility import Infeasibility
from raptor_cp.interruption import Stop
from raptor_cp.latency.list_scheduling import LatencyFailure, ListSchedule
from raptor_cp.latency.methods import latency_scheduler
from raptor_cp.latency.peft import PeftScheduler
from raptor_cp.models.instances import packing_instance
from raptor_cp.models.latency_bound import bound_latency
from raptor_cp.models.weight_packing import pack
from raptor_cp.pipeline.groups import PipelineGroups, StageLimits
from raptor_cp.proving import Prover
from raptor_cp.realization.checks import check
from raptor_cp.realization.cost import plan_analysis
from raptor_cp.realization.timeline import single_timeline
from raptor_cp.realized import completion_form, realized_completion
from raptor_cp.result import ScheduleResult
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import CompletionEstimator, ProgramBackend
from raptor_cp.validation import validate
from raptor_cp.verdict import Unavailable, Verdict

if TYPE_CHECKING:
    from raptor_cp.latency.list_scheduling import LatencyOutcome, LatencyScheduler
    from raptor_cp.models.latency_bound import LatencyAnswer, LatencyCertificate
    from raptor_cp.periodic.analysis import PeriodicAnalysis
    from raptor_cp.periodic.timeline import Timeline
    from raptor_cp.phases import Phases
    from raptor_cp.preparation import Prepared
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.target import BackendResult, RealizedCompletion, SchedulingTarget

SOLVER_METHOD = "cp-sat"
#: Share of the solver's deterministic time for the packing that has the last word.
_PACKING_SHARE = 0.5


class RunObserver(Protocol):
    """What is told where the run is."""

    def phase(self, name: str) -> None:
        """A phase of the run begins."""
        ...

    def solved(self, solves: int, spent: float, limit: float) -> None:
        """A solve ended: how many so far, deterministic time spent, its limit."""
        ...

    def completing(self, completion_ns: int) -> None:
        """A schedule is known that completes in so many ns."""
        ...


def run_latency(
    loaded: LoadedScenario,
    target: SchedulingTarget,  # the main job's call is the same for both modes
    prepared: Prepared,
    observer: RunObserver,
    phases: Phases,
    stop: Stop | None = None,
    *,
    program: bool = False,
) -> ScheduleResult:
    """Schedule one inference.

    Args:
        loaded: the scenario: method, solver budget.
        target: the chip; its facts are in ``prepared.problem`` already.
        prepared: graph, costs and resources.
        observer: progress hooks.
        phases: where time is counted.
        stop: polled between steps; the best schedule so far is kept.
        program: emit a program for the schedule where the target can.

    Returns:
        A result with a verdict in every case: OPTIMAL when the schedule completes at
        the proved bound, INFEASIBLE with the proof, UNKNOWN when every bounded search
        for a placement is exhausted, or no schedule could be built.

    Raises:
        MalformedInput: an unknown method.
        Interrupted: the stop was requested before there was a schedule.
        InternalError: the schedule or its plan failed its own validation.
    """
    run = _LatencyRun(loaded, target, prepared, observer, phases, stop or Stop())
    return run.run(emit=program)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A schedule that the run may keep."""

    schedule: Schedule
    completion: RealizedCompletion | None
    reason: str

    @property
    def key(self) -> tuple[bool, int, int]:
        """Better first: on the queues if they are known, then without."""
        queued = None if self.completion is None else self.completion.larger_ns
        return queued is None, queued or 0, self.schedule.summary.completion_ns


class _LatencyRun:
    """One run, step by step; holds what the steps share."""

    def __init__(
        self,
        loaded: LoadedScenario,
        target: SchedulingTarget,
        prepared: Prepared,
        observer: RunObserver,
        phases: Phases,
        stop: Stop,
    ) -> None:
        self.loaded, self.target, self.prepared = loaded, target, prepared
        self.observer, self.phases, self.stop = observer, phases, stop
        self.problem = prepared.problem
        self.notes = list(prepared.notes)
        method = str(loaded.scenario.latency.method)
        self.solving = method == SOLVER_METHOD
        observer.phase("list scheduling")
        with phases.timed("indices"):
            self.scheduler = latency_scheduler(
                PeftScheduler.name if self.solving else method, self.problem
            )
            self.evaluator = StaticEvaluator(self.problem)
            limits = StageLimits.of(PipelineGroups.of(self.problem))
            self.prover = Prover(
                loaded, self.problem, limits, phases, stop=stop,
                on_solve=observer.solved,
            )  # fmt: skip

    def run(self, *, emit: bool) -> ScheduleResult:
        """List schedule, certificate, queues, program."""
        with self.phases.timed("list scheduling"):
            listed = self.scheduler.schedule()
        found: ListSchedule | Infeasibility | None = None
        if isinstance(listed, ListSchedule):
            found = listed
        else:
            self.observer.phase("proofs")
            with self.phases.timed("weight packing"):
                found = _last_word(self.scheduler, listed, self.problem, self.prover)
        if not isinstance(found, ListSchedule):
            return self._not_placed(listed, found)
        if found is not listed:
            self.notes.append(
                "every reservation of the list scheduler failed; the weights are "
                "where the solver's packing has them"
            )
        with self.phases.timed("evaluation"):
            schedule = self.evaluator.schedule(found.placement)
        self.observer.completing(schedule.summary.completion_ns)
        self.observer.phase("certificate")
        with self.phases.timed("certificate"):
            answer = bound_latency(
                self.problem,
                schedule,
                self.evaluator,
                self.prover.budget,
                settings=self.prover.settings,
                improve=self.solving,
            )
        self.observer.completing(answer.best.summary.completion_ns)
        candidates = self._candidates(found, schedule, answer)
        return self._built(candidates, answer, listed, emit=emit)

    def _not_placed(
        self, listed: LatencyOutcome, proof: Infeasibility | None
    ) -> ScheduleResult:
        if proof is not None:
            return self._result(
                Verdict.INFEASIBLE, proof.reason, listed, infeasibility=proof
            )
        self.stop.check("proofs")
        why = listed.reason if isinstance(listed, LatencyFailure) else "no placement"
        return self._result(
            Verdict.UNKNOWN, f"{why}; infeasibility is not proved", listed
        )

    def _candidates(
        self, found: ListSchedule, schedule: Schedule, answer: LatencyAnswer
    ) -> list[_Candidate]:
        """What may be kept, the best first; the list schedule wins a tie."""
        self.observer.phase("queue completion")
        own = f"{found.method}, weights placed by {found.reservation}"
        candidates = [_Candidate(schedule, self._on_queues(schedule), own)]
        if self.solving:
            # Interrupted: the best alternative by the evaluator is all that is asked.
            short = self.stop.requested or not answer.known
            candidates += [
                _Candidate(
                    other,
                    self._on_queues(other),
                    f"{found.method}, improved by the solver",
                )
                for other in ((answer.best,) if short else answer.known)
                if other is not schedule
            ]
        return sorted(candidates, key=lambda candidate: candidate.key)

    def _on_queues(self, schedule: Schedule) -> RealizedCompletion | None:
        """One inference on the queues; None when the scenario or target has none."""
        wanted = self.loaded.scenario.search.timing == "queue"
        if not wanted or not isinstance(self.target, CompletionEstimator):
            return None
        return realized_completion(schedule, self.target, self.phases)

    def _built(
        self,
        candidates: list[_Candidate],
        answer: LatencyAnswer,
        listed: LatencyOutcome,
        *,
        emit: bool,
    ) -> ScheduleResult:
        """The best candidate that the backend does not reject for its own sake."""
        attempts: list[dict[str, object]] = []
        for number, chosen in enumerate(candidates):
            with self.phases.timed("validation"):
                validate(chosen.schedule)
            plan, events = self._plan(chosen)
            program = self._program(plan) if emit else None
            if program is not None:
                reasons = list(program.reasons)
                attempts.append(
                    {
                        "candidate": number,
                        "outcome": program.outcome,
                        "reasons": reasons,
                    }
                )
                if program.outcome == "rejected":
                    self.notes.append(
                        f"schedule of {chosen.schedule.summary.completion_ns:,} ns: "
                        f"rejected by the backend: {'; '.join(reasons)}"
                    )
                    continue
            completion = chosen.completion
            if completion is not None and completion.reason:
                self.notes.append(f"no queue completion: {completion.reason}")
            certificate = answer.certificate(chosen.schedule)
            reason = chosen.reason
            if self.stop.requested:
                reason += "; the run was interrupted: the best schedule so far"
            return self._result(
                Verdict.OPTIMAL if certificate.optimal else Verdict.FEASIBLE,
                reason,
                listed,
                schedule=chosen.schedule,
                certificate=certificate,
                completion=completion,
                plan=plan,
                events=events,
                program=program,
                attempts=tuple(attempts),
            )
        causes = "; ".join(
            dict.fromkeys(str(reason) for a in attempts for reason in _reasons(a))
        )
        return self._result(
            Verdict.UNKNOWN,
            f"no schedule could be built: {causes}",
            listed,
            attempts=tuple(attempts),
        )

    def _plan(
        self, chosen: _Candidate
    ) -> tuple[ExecutionPlan, PlanEvents | Unavailable | None]:
        """The schedule, realized again from the unchanged graph, and its events.

        Raises:
            InternalError: the plan fails one of the graph checks.
        """
        with self.phases.timed("final plan"):
            plan = completion_form(chosen.completion).realize(chosen.schedule)
            faults = check(plan).faults
            if faults:
                raise InternalError(f"{faults[0].check}: {faults[0].message}")
            if chosen.completion is None:
                return plan, None
            return plan, self.target.extract_events(plan)

    def _program(self, plan: ExecutionPlan) -> BackendResult | None:
        """The plan as a program, where the target emits programs."""
        if not isinstance(self.target, ProgramBackend):
            return None
        if self.stop.requested:
            self.notes.append("program: left out, the run was interrupted")
            return None
        lowering = self.loaded.scenario.lowering
        self.observer.phase("program")
        with self.phases.timed("program"):
            return self.target.lower(
                plan,
                self.prepared.network,
                accumulators=lowering.accumulators,
                constants_resident=lowering.constants == "resident",
            )

    def _result(
        self,
        verdict: Verdict,
        reason: str,
        listed: LatencyOutcome,
        *,
        schedule: Schedule | None = None,
        certificate: LatencyCertificate | None = None,
        infeasibility: Infeasibility | None = None,
        completion: RealizedCompletion | None = None,
        plan: ExecutionPlan | None = None,
        events: PlanEvents | Unavailable | None = None,
        program: BackendResult | None = None,
        attempts: tuple[dict[str, object], ...] = (),
    ) -> ScheduleResult:
        periodic: PeriodicAnalysis | Unavailable | None = None
        timeline: Timeline | Unavailable | None = None
        if isinstance(events, Unavailable):
            periodic = timeline = events
        elif plan is not None and events is not None:
            with self.phases.timed("timeline"):
                timeline = single_timeline(plan, events)
                periodic = plan_analysis(events)
        return ScheduleResult(
            self.loaded,
            verdict,
            reason,
            schedule,
            certificate=certificate,
            infeasibility=infeasibility,
            splits=self.prepared.splits,
            notes=(*self.notes, *self.prover.notes),
            phases=self.phases.to_dict(),
            phase_counts=dict(self.phases.counts),
            solver=self.prover.records(),
            plan=plan,
            periodic=periodic,
            timeline=timeline,
            program=program,
            attempts=attempts,
            completion=completion,
            listed=listed,
            # A proof is whole; everything else might have become better.
            interrupted=self.stop.requested and infeasibility is None,
        )


def _reasons(attempt: dict[str, object]) -> list[object]:
    reasons = attempt["reasons"]
    return reasons if isinstance(reasons, list) else [reasons]


def _last_word(
    scheduler: LatencyScheduler,
    failure: LatencyFailure,
    problem: Problem,
    prover: Prover,
) -> ListSchedule | Infeasibility | None:
    """A schedule on the solver's packing, the proof that none exists, or None."""
    answer = pack(
        packing_instance(problem),
        prover.budget,
        settings=prover.settings,
        limit=_PACKING_SHARE * prover.budget.total,
    )
    if answer.core_of is not None:
        outcome = scheduler.schedule(answer.core_of.astype("int32"))
        return outcome if isinstance(outcome, ListSchedule) else None
    proved = Verdict.INFEASIBLE in (answer.verdict, failure.verdict)
    if not proved:
        return None
    explained = prover.infeasibility()
    if explained is not None:
        return explained
    resources = problem.resources
    by_counting = failure.verdict is Verdict.INFEASIBLE
    return Infeasibility(
        failure.reason
        if by_counting
        else f"no placement of the weights on {resources.cores} cores exists",
        "counting bound"
        if by_counting
        else f"CP-SAT ({answer.method}), confirmed by a second solve",
        int(problem.graph.weight_slots.sum()),
        resources.cores * resources.slots_per_core,
        (),
        (f"more than {resources.cores} cores", "more weight slots on each core"),
    )
