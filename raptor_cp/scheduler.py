"""The main job: scenario in, selected schedule and reports out.

The order of things is that of the scheduling spec, "Default throughput selection":
prepare once, one legal initial partition (constructive, CP-SAT has the last word when
every heuristic packing failed), bounded refinement, selection, and a certificate that
says how far from the optimum the answer is at most.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.interruption import Interrupted, Stop
from raptor_cp.latency_run import run_latency
from raptor_cp.phases import Phases
from raptor_cp.pipeline.beam import (
    INTERRUPTED,
    STOPPED,
    Observer,
    SearchResult,
    refine,
)
from raptor_cp.pipeline.budgets import StagePacking, with_idle_cores
from raptor_cp.pipeline.core_layout import CoreLayout
from raptor_cp.pipeline.groups import PipelineGroups, StageLimits
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.pipeline.partition import (
    InitialPartition,
    PartitionFailure,
    initial_partition,
)
from raptor_cp.pipeline.placement import StagePlacer
from raptor_cp.pipeline.search_budget import SearchBudget
from raptor_cp.pipeline.search_model import PipelineModel
from raptor_cp.pipeline.selection import Selection, select, select_interrupted
from raptor_cp.pipeline.weights import IndexedResidentWeights
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.proving import Prover
from raptor_cp.realization.checks import check
from raptor_cp.realization.cost import plan_analysis, reported_cost
from raptor_cp.realization.timeline import steady_timeline
from raptor_cp.realized import PlanForm, plan_forms, realized_cost, single_plan
from raptor_cp.result import ScheduleResult
from raptor_cp.static_cost import static_cost
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import ProgramBackend
from raptor_cp.targets.registry import create
from raptor_cp.validation import validate
from raptor_cp.verdict import Unavailable, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.infeasibility import Infeasibility
    from raptor_cp.models.certificate import Certificate
    from raptor_cp.periodic.analysis import PeriodicAnalysis
    from raptor_cp.periodic.timeline import Timeline
    from raptor_cp.pipeline.ordered_packing import IndexArray
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.schedules import Schedule
    from raptor_cp.target import BackendResult, RealizedCost, SchedulingTarget


class SchedulerObserver(Observer):
    """Progress hooks; the base class ignores everything."""

    def phase(self, name: str) -> None:
        """A phase of the run begins."""

    def solved(self, solves: int, spent: float, limit: float) -> None:
        """A solve ended: how many so far, deterministic time spent, its limit."""

    def completing(self, completion_ns: int) -> None:
        """Latency mode: a schedule is known that completes in so many ns."""


def schedule(
    loaded: LoadedScenario,
    observer: SchedulerObserver | None = None,
    *,
    program: bool = False,
    stop: Stop | None = None,
) -> ScheduleResult:
    """Schedule a scenario.

    Args:
        loaded: from :func:`raptor_cp.scenario.load`.
        observer: progress hooks.
        program: emit a program for the selected schedule where the target can;
            ``result.program.write(folder)`` writes it.
        stop: when it is requested the run ends with the best schedule so far and
            ``result.interrupted``; see :mod:`raptor_cp.interruption`.

    Returns:
        A result with a verdict in every case: nothing that the user could cause
        raises, except malformed input.  An interrupted run that has no schedule yet
        is UNKNOWN.

    Raises:
        MalformedInput: the scenario, its network or its target is wrong.
        InternalError: a schedule failed its own validation.
    """
    phases = Phases()
    try:
        return _run(
            loaded, observer or SchedulerObserver(), phases, program, stop or Stop()
        )
    except Interrupted as error:
        return ScheduleResult(
            loaded,
            Verdict.UNKNOWN,
            str(error),
            phases=phases.to_dict(),
            phase_counts=dict(phases.counts),
            interrupted=True,
        )


def _run(
    loaded: LoadedScenario,
    watch: SchedulerObserver,
    phases: Phases,
    program: bool,
    stop: Stop,
) -> ScheduleResult:
    watch.phase("target")
    stop.check("start")
    with phases.timed("target"):
        target = create(loaded)
    watch.phase("lowering")
    stop.check("target")
    with phases.timed("lowering"):
        prepared = prepare(loaded, target)
    if not isinstance(prepared, Prepared):
        return ScheduleResult(
            loaded,
            Verdict.INFEASIBLE,
            prepared.reason,
            infeasibility=prepared,
            phases=phases.to_dict(),
            phase_counts=dict(phases.counts),
        )
    stop.check("lowering")
    if loaded.scenario.mode == "latency":
        return run_latency(
            loaded, target, prepared, watch, phases, stop, program=program
        )
    return _PipelineRun(loaded, target, prepared, watch, phases, program, stop).run()


class _PipelineRun:
    """One pipeline run, step by step; holds what the steps share."""

    def __init__(
        self,
        loaded: LoadedScenario,
        target: SchedulingTarget,
        prepared: Prepared,
        observer: SchedulerObserver,
        phases: Phases,
        emit: bool,
        stop: Stop,
    ) -> None:
        self.emit, self.stop = emit, stop
        self.loaded, self.scenario = loaded, loaded.scenario
        self.target, self.prepared = target, prepared
        self.observer, self.phases = observer, phases
        self.problem = prepared.problem
        self.notes = list(prepared.notes)
        search = self.scenario.search
        self.budget = SearchBudget(
            search.queue_evaluations, search.packings, search.beam
        )
        recovery = self.budget.recovery
        with phases.timed("indices"):
            self.groups = PipelineGroups.of(self.problem)
            weights = IndexedResidentWeights.of(self.problem)
            self.packing = StagePacking(self.groups, weights, recovery)
            self.limits = stage_limits(loaded, self.groups)
            self.evaluator = StaticEvaluator(self.problem)
            layout = CoreLayout(self.problem.resources.links)
            placer = StagePlacer(self.evaluator, weights, layout, recovery)
            self.model = PipelineModel(
                self.packing, self.limits, placer, self._cost, phases.timed
            )
        self.prover = Prover(
            loaded,
            self.problem,
            self.limits,
            phases,
            stop=stop,
            on_solve=observer.solved,
        )

    def run(self) -> ScheduleResult:
        """All steps; every way out is a result with a verdict."""
        depth = self.scenario.pipeline.stages
        self.observer.phase("initial partition")
        self.stop.check("lowering")
        with self.phases.timed("initial partition"):
            found = initial_partition(self.packing, depth, self.limits)
        self.observer.phase("proofs")
        seed = self.prover.joint(depth)
        if isinstance(found, PartitionFailure):
            if found.verdict is Verdict.INFEASIBLE:
                return self._refused(self.prover.explain(found))
            if seed is None:
                return self._no_partition(found)
            self.notes.append(
                "every heuristic packing failed; the initialized schedule is the "
                "solver's packing"
            )
            initial = self._placed(self._with_idle_cores(seed[0]), seed[1])
        else:
            self.budget.spare_units = found.units
            initial = self._placed(found.vector, found.retained)
        seeds = []
        if seed is not None and isinstance(found, InitialPartition):
            extra = self._seed(*seed)
            seeds = [] if extra is None else [extra]
        self.observer.phase("search")
        with self.phases.timed("search"):
            result = refine(
                initial,
                seeds,
                self.model,
                self.budget,
                groups=self.groups.count,
                depth=depth,
                limits=self.limits,
                observer=self.observer,
                stop=self.stop,
            )
        return self._select(result)

    def _cost(self, schedule: Schedule) -> RealizedCost:
        with self.phases.timed("cost evaluation"):
            if self.scenario.search.timing == "static":
                return static_cost(schedule)
            return realized_cost(
                schedule,
                self.target,
                self.scenario.pipeline,
                self.phases,
                self.budget.queue_evaluations,
            )

    def _placed(
        self, vector: StageVector, retained: Sequence[IndexArray]
    ) -> tuple[StageVector, Schedule]:
        """The initialized schedule: its retained assignment cannot be lost."""
        self.budget.packings.take()
        placed = self.model.place(vector, list(retained))
        if placed is None:
            raise InternalError("a retained assignment could not be placed")
        return vector, placed

    def _seed(
        self, vector: StageVector, retained: Sequence[IndexArray]
    ) -> tuple[StageVector, Schedule] | None:
        """An extra root of the first round: costs one packing of the budget."""
        if not self.prover.wants_seed or self.budget.packings.left == 0:
            return None
        self.budget.packings.take()
        vector = self._with_idle_cores(vector)
        placed = self.model.place(vector, list(retained))
        return None if placed is None else (vector, placed)

    def _with_idle_cores(self, vector: StageVector) -> StageVector:
        """The solver asks for no more cores than it needs; hand out the rest."""
        segments = vector.segments(self.groups.count)
        budgets = with_idle_cores(
            vector.budgets,
            [self.packing.curve(i, j) for i, j in segments],
            [self.groups.load_ns(i, j) for i, j in segments],
            self.problem.resources.cores - sum(vector.budgets),
            ranges=[self.limits.core_range(i, j) for i, j in segments],
        )
        return StageVector(vector.starts, budgets)

    def _select(self, search: SearchResult) -> ScheduleResult:
        """Select, build, and select again without a candidate that does not fit."""
        costs = [candidate.cost for candidate in search.candidates]
        remaining = [candidate.index for candidate in search.candidates]
        attempts: list[dict[str, object]] = []
        while remaining:
            if search.termination == INTERRUPTED:
                selection = select_interrupted(costs, remaining)
            else:
                selection = select(
                    costs,
                    remaining=remaining,
                    accept_initial=self.scenario.search.accept_initial,
                    stopped=search.termination.startswith(STOPPED),
                )
            if selection.chosen is None:
                return self._incomparable(search, selection)
            chosen = search.candidates[selection.chosen]
            cost = chosen.cost
            with self.phases.timed("validation"):
                validate(chosen.schedule)
            plan, periodic, timeline, form = self._final_plan(chosen.schedule, cost)
            if cost is None:  # a single candidate is not gated; its figure comes after
                cost = (
                    static_cost(chosen.schedule)
                    if self.scenario.search.timing == "static"
                    else reported_cost(periodic, form)
                )
            program = self._program(plan)
            if program is not None:
                attempts.append(
                    {
                        "candidate": selection.chosen,
                        "outcome": program.outcome,
                        "reasons": list(program.reasons),
                    }
                )
                if program.outcome == "rejected":
                    remaining.remove(selection.chosen)
                    continue
            if selection.reason == "accepted-initial":
                self.notes.append("timing: unproved; the initialized schedule was kept")
            self.observer.phase("certificate")
            certificate = self.prover.certificate(chosen.schedule, cost)
            return self._result(
                Verdict.OPTIMAL if certificate.gap_interval == 0 else Verdict.FEASIBLE,
                _chosen_because(selection),
                schedule=chosen.schedule,
                cost=cost,
                certificate=certificate,
                search=search,
                selection=selection,
                plan=plan,
                periodic=periodic,
                timeline=timeline,
                program=program,
                attempts=tuple(attempts),
            )
        causes = "; ".join(
            f"candidate {a['candidate']}: {', '.join(map(str, _listed(a)))}"
            for a in attempts
        )
        return self._result(
            Verdict.UNKNOWN,
            f"no candidate could be built: {causes}",
            search=search,
            selection=Selection(None, None, "exhausted"),
            attempts=tuple(attempts),
        )

    def _incomparable(
        self, search: SearchResult, selection: Selection
    ) -> ScheduleResult:
        candidate, prop, why = selection.stops[0]
        reason = (
            f"candidates cannot be compared: candidate {candidate}, {prop}: {why}; "
            "--accept-initial keeps the initialized schedule"
        )
        return self._result(Verdict.UNKNOWN, reason, search=search, selection=selection)

    def _program(self, plan: ExecutionPlan) -> BackendResult | None:
        """The plan as a program, where the target emits programs and one is wanted."""
        if not self.emit or not isinstance(self.target, ProgramBackend):
            return None
        if self.stop.requested:
            self.notes.append("program: left out, the run was interrupted")
            return None
        lowering = self.scenario.lowering
        self.observer.phase("program")
        with self.phases.timed("program"):
            return self.target.lower(
                plan,
                self.prepared.network,
                accumulators=lowering.accumulators,
                constants_resident=lowering.constants == "resident",
            )

    def _final_plan(
        self, schedule: Schedule, cost: RealizedCost | None
    ) -> tuple[
        ExecutionPlan, PeriodicAnalysis | Unavailable, Timeline | Unavailable, str
    ]:
        """Realize the selected schedule again, from the unchanged graph.

        A single candidate (``cost`` None) is realized here for the first time.

        Raises:
            InternalError: the plan fails one of the graph checks.
        """
        pipeline = self.scenario.pipeline
        with self.phases.timed("final plan"):
            if cost is None:
                plan, name = single_plan(schedule, pipeline, self.phases)
            else:
                name = cost.form or plan_forms(pipeline)[0][0].name
                plan = PlanForm.named(name).realize(schedule)
            faults = check(plan).faults
            if faults:
                raise InternalError(f"{faults[0].check}: {faults[0].message}")
            events = self.target.extract_events(plan)
            if isinstance(events, Unavailable):
                return plan, events, events, name
            analysis = plan_analysis(events)
        with self.phases.timed("timeline"):
            timeline = steady_timeline(plan, events, analysis)
        return plan, analysis, timeline, name

    def _no_partition(self, failure: PartitionFailure) -> ScheduleResult:
        proof = self.prover.infeasibility()
        if proof is not None:
            return self._refused(proof)
        self.stop.check("proofs")
        return self._result(
            Verdict.UNKNOWN, f"{failure.reason}; infeasibility is not proved"
        )

    def _refused(self, proof: Infeasibility) -> ScheduleResult:
        return self._result(Verdict.INFEASIBLE, proof.reason, infeasibility=proof)

    def _result(
        self,
        verdict: Verdict,
        reason: str,
        *,
        schedule: Schedule | None = None,
        cost: RealizedCost | None = None,
        certificate: Certificate | None = None,
        infeasibility: Infeasibility | None = None,
        search: SearchResult | None = None,
        selection: Selection | None = None,
        plan: ExecutionPlan | None = None,
        periodic: PeriodicAnalysis | Unavailable | None = None,
        timeline: Timeline | Unavailable | None = None,
        program: BackendResult | None = None,
        attempts: tuple[dict[str, object], ...] = (),
    ) -> ScheduleResult:
        answer = self.prover.answer
        return ScheduleResult(
            self.loaded,
            verdict,
            reason,
            schedule=schedule,
            cost=cost,
            certificate=certificate,
            infeasibility=infeasibility,
            search=search,
            selection=selection,
            splits=self.prepared.splits,
            notes=(*self.notes, *self.prover.notes),
            phases=self.phases.to_dict(),
            phase_counts=dict(self.phases.counts),
            solver=self.prover.records(),
            joint_static_ns=None if answer is None else answer.objective_ns,
            plan=plan,
            periodic=periodic,
            timeline=timeline,
            program=program,
            attempts=attempts,
            # A proof is whole; everything else might have become better.
            interrupted=self.stop.requested and infeasibility is None,
        )


def stage_limits(loaded: LoadedScenario, groups: PipelineGroups) -> StageLimits:
    """Side constraints of a scenario, operation names resolved to groups.

    Raises:
        MalformedInput: an operation that the graph does not have.
    """
    constraints = loaded.scenario.pipeline.constraints
    names = {name: i for i, name in enumerate(groups.problem.graph.operations)}

    def group(name: str, key: str) -> int:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise MalformedInput(
                "no operation of this name is scheduled",
                where=f"pipeline.constraints.{key}",
                value=name,
                expected="an operation of the network",
                hint=f"did you mean {near[0]!r}?" if near else "",
            )
        return names[name]

    forbidden = [group(n, "forbidden_cuts") + 1 for n in constraints.forbidden_cuts]
    return StageLimits.of(
        groups,
        forbidden_cuts=[cut for cut in forbidden if cut < groups.count],
        together=[
            [group(name, "together") for name in members]
            for members in constraints.together
        ],
        max_cut_bytes=constraints.max_cut_bytes,
        cores={
            group(name, "cores"): (limits.min, limits.max)
            for name, limits in constraints.cores.items()
        },
    )


def _listed(attempt: dict[str, object]) -> list[object]:
    reasons = attempt["reasons"]
    return list(reasons) if isinstance(reasons, list) else [reasons]


def _chosen_because(selection: Selection) -> str:
    return {
        "single": "the only candidate",
        "initialized": "no candidate is better than the initialized schedule",
        "separated": "better than the initialized schedule beyond the 2.1 % margin",
        "near-equivalent": "the best candidate is within the 2.1 % margin of the "
        "initialized schedule, which is kept",
        "accepted-initial": "the initialized schedule, accepted without comparison",
        "interrupted": "the run was interrupted: the best candidate so far",
    }[selection.reason]
