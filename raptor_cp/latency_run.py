"""``mode: latency``: list scheduling of one inference, and how good it is.

Order of things (scheduling spec, "Capacity and recovery"): the list scheduler with its
reservations; when its bounded search is exhausted, the solver's packing has the last
word: an assignment to reserve, or the proof that none exists; then the evaluator, the
validator, and a certificate of the completion.  With ``search.timing: queue`` the
schedule is realized and one inference runs on the queues; the certificate is about
the evaluator's completion, which knows no queues.

Methods are ``peft``, ``heft``, and ``cp-sat``: PEFT, improved by the solver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
from raptor_cp.realized import realized_completion
from raptor_cp.result import ScheduleResult
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import CompletionEstimator
from raptor_cp.validation import validate
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.latency.list_scheduling import LatencyScheduler
    from raptor_cp.phases import Phases
    from raptor_cp.preparation import Prepared
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.target import RealizedCompletion, SchedulingTarget

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
) -> ScheduleResult:
    """Schedule one inference.

    Args:
        loaded: the scenario: method, solver budget.
        target: the chip; its facts are in ``prepared.problem`` already.
        prepared: graph, costs and resources.
        observer: progress hooks.
        phases: where time is counted.
        stop: polled between steps; the best schedule so far is kept.

    Returns:
        A result with a verdict in every case: OPTIMAL when the schedule completes at
        the proved bound, INFEASIBLE with the proof, UNKNOWN when every bounded search
        for a placement is exhausted.

    Raises:
        MalformedInput: an unknown method.
        Interrupted: the stop was requested before there was a schedule.
        InternalError: the schedule failed its own validation.
    """
    stop = stop or Stop()
    problem, method = prepared.problem, str(loaded.scenario.latency.method)
    solving = method == SOLVER_METHOD
    notes = list(prepared.notes)
    observer.phase("list scheduling")
    with phases.timed("indices"):
        scheduler = latency_scheduler(
            PeftScheduler.name if solving else method, problem
        )
        evaluator = StaticEvaluator(problem)
        limits = StageLimits.of(PipelineGroups.of(problem))
        prover = Prover(
            loaded, problem, limits, phases, stop=stop, on_solve=observer.solved
        )
    with phases.timed("list scheduling"):
        found = scheduler.schedule()
    if isinstance(found, LatencyFailure):
        observer.phase("proofs")
        with phases.timed("weight packing"):
            recovered = _last_word(scheduler, found, problem, prover)
        if not isinstance(recovered, ListSchedule):
            if recovered is None:
                stop.check("proofs")
            verdict = Verdict.UNKNOWN if recovered is None else Verdict.INFEASIBLE
            reason = (
                f"{found.reason}; infeasibility is not proved"
                if recovered is None
                else recovered.reason
            )
            return ScheduleResult(
                loaded,
                verdict,
                reason,
                infeasibility=recovered,
                splits=prepared.splits,
                notes=(*notes, *prover.notes),
                phases=phases.to_dict(),
                phase_counts=dict(phases.counts),
                solver=prover.records(),
            )
        notes.append(
            "every reservation of the list scheduler failed; the weights are where "
            "the solver's packing has them"
        )
        found = recovered
    with phases.timed("evaluation"):
        schedule = evaluator.schedule(found.placement)
    observer.completing(schedule.summary.completion_ns)
    observer.phase("certificate")
    with phases.timed("certificate"):
        answer = bound_latency(
            problem,
            schedule,
            evaluator,
            prover.budget,
            settings=prover.settings,
            improve=solving,
        )
    observer.completing(answer.best.summary.completion_ns)
    reason = f"{found.method}, weights placed by {found.reservation}"
    observer.phase("queue completion")
    completion = _on_queues(schedule, loaded, target, phases)
    if solving:
        # Interrupted: the best alternative by the evaluator is all that is asked.
        known = (answer.best,) if stop.requested else answer.known or (answer.best,)
        for other in known:
            if other is schedule:
                continue
            queued = _on_queues(other, loaded, target, phases)
            if _earlier(other, queued, schedule, completion):
                schedule, completion = other, queued
                reason = f"{found.method}, improved by the solver"
    if completion is not None and completion.reason:
        notes.append(f"no queue completion: {completion.reason}")
    with phases.timed("validation"):
        validate(schedule)
    certificate = answer.certificate(schedule)
    if stop.requested:
        reason += "; the run was interrupted: the best schedule so far"
    return ScheduleResult(
        loaded,
        Verdict.OPTIMAL if certificate.optimal else Verdict.FEASIBLE,
        reason,
        schedule,
        certificate=certificate,
        splits=prepared.splits,
        notes=(*notes, *prover.notes),
        phases=phases.to_dict(),
        phase_counts=dict(phases.counts),
        solver=prover.records(),
        completion=completion,
        interrupted=stop.requested,
    )


def _on_queues(
    schedule: Schedule,
    loaded: LoadedScenario,
    target: SchedulingTarget,
    phases: Phases,
) -> RealizedCompletion | None:
    """One inference on the queues; None when the scenario or target has none."""
    wanted = loaded.scenario.search.timing == "queue"
    if not wanted or not isinstance(target, CompletionEstimator):
        return None
    return realized_completion(schedule, target, phases)


def _earlier(
    new: Schedule,
    new_completion: RealizedCompletion | None,
    old: Schedule,
    old_completion: RealizedCompletion | None,
) -> bool:
    """Whether a schedule is better: on the queues if they are known, then without."""
    unknown = (1, 0)
    keys = []
    for schedule, queued in ((new, new_completion), (old, old_completion)):
        larger = None if queued is None else queued.larger_ns
        keys.append(
            (unknown if larger is None else (0, larger), schedule.summary.completion_ns)
        )
    return keys[0] < keys[1]


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
