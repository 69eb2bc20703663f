"""Completion of one inference: the optimum on small graphs, a bound on any.

Bounds without a solver come first (:mod:`raptor_cp.latency.bounds`), then the one of
shared slots (:mod:`raptor_cp.models.latency_slots`).  When they do not settle the
question and the model is small enough, CP-SAT gets the incumbent as a hint: it may
find a better schedule, prove that there is none, or raise the bound.
What it finds becomes a placement again and is evaluated and validated without it;
what it claims is confirmed by a second solve of another kind.

All times are ns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.latency.bounds import completion_bound
from raptor_cp.models.latency_improve import improve_latency
from raptor_cp.models.latency_model import LatencyModel
from raptor_cp.models.latency_slots import shared_slots_bound
from raptor_cp.models.solving import (
    SolveBudget,
    SolveOutcome,
    SolverClaim,
    SolveRecord,
    SolveSettings,
    confirm,
    confirm_bound,
    fits,
    solve,
)
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.latency.bounds import CompletionBound
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.static_evaluation import StaticEvaluator

#: Constraints on pairs of cores that a model may have.
_PAIR_LIMIT = 40_000
#: Share of the deterministic time for the first solve; the rest confirms.
_FIRST_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class LatencyCertificate:
    """How far the completion of one inference is from the optimum at most.

    Attributes:
        completion_ns: of the schedule.
        bound_ns: no schedule of this graph on this chip completes earlier.
        best_ns: completion of the best schedule that is known (of the solver, say).
        proof: what the bound rests on: ``path``, ``work``, ``copies``, ``slots``
            or ``cp-sat``.
        note: one sentence when something was not proved; empty otherwise.
    """

    completion_ns: int
    bound_ns: int
    best_ns: int
    proof: str
    note: str = ""

    @property
    def gap(self) -> float:
        """(completion - bound) / bound."""
        if self.bound_ns == 0:
            return 0.0 if self.completion_ns == 0 else float("inf")
        return (self.completion_ns - self.bound_ns) / self.bound_ns

    @property
    def optimal(self) -> bool:
        """Nothing completes earlier."""
        return self.completion_ns == self.bound_ns

    # The fields that reports of both modes read.  In latency mode the objective and
    # the figure that is bounded for any schedule are one: the completion.
    @property
    def ours_static(self) -> int:
        """The completion (ns)."""
        return self.completion_ns

    @property
    def bound_static(self) -> int:
        """Its bound (ns)."""
        return self.bound_ns

    @property
    def bound_interval_ns(self) -> int:
        """Its bound (ns)."""
        return self.bound_ns

    @property
    def gap_static(self) -> float:
        """Its gap."""
        return self.gap

    @property
    def gap_interval(self) -> float:
        """Its gap."""
        return self.gap

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        return {
            "objective": "completion_ns",
            "completion_ns": self.completion_ns,
            "bound_ns": self.bound_ns,
            "best_ns": self.best_ns,
            "gap": self.gap,
            "proof": self.proof,
            "note": self.note,
        }

    def sentences(self) -> list[str]:
        """As a person reads it."""
        if self.optimal:
            lines = [
                f"completion without queues {self.completion_ns:,} ns is optimal "
                f"({self.proof})"
            ]
        else:
            lines = [
                f"completion without queues {self.completion_ns:,} ns; no schedule "
                f"completes before {self.bound_ns:,} ns ({self.proof}): gap "
                f"{self.gap:.2%}"
            ]
            if self.best_ns < self.completion_ns:
                lines.append(f"a schedule of {self.best_ns:,} ns is known")
        if self.note:
            lines.append(self.note)
        return lines


@dataclass(frozen=True, eq=False)
class LatencyAnswer:
    """Answer of :func:`bound_latency`.

    Attributes:
        verdict: OPTIMAL: ``best`` completes at the proved bound; FEASIBLE otherwise.
        best: the incumbent, or the better schedule that the solver found.
        bound_ns: no schedule completes earlier.
        proof: argument of the bound.
        records: the solves.
        note: why there is no more, when there is not.
        known: all schedules that were found on a large graph, by completion.
    """

    verdict: Verdict
    best: Schedule
    bound_ns: int
    proof: str
    records: tuple[SolveRecord, ...] = ()
    note: str = ""
    known: tuple[Schedule, ...] = ()

    def certificate(self, schedule: Schedule) -> LatencyCertificate:
        """The certificate of a schedule of the same problem."""
        return LatencyCertificate(
            schedule.summary.completion_ns,
            self.bound_ns,
            min(self.best.summary.completion_ns, schedule.summary.completion_ns),
            self.proof,
            self.note,
        )


def bound_latency(
    problem: Problem,
    incumbent: Schedule,
    evaluator: StaticEvaluator,
    budget: SolveBudget,
    *,
    settings: SolveSettings | None = None,
    limit: float | None = None,
    improve: bool = False,
) -> LatencyAnswer:
    """Bound the completion of one inference, and improve the incumbent if possible.

    Args:
        problem: graph, costs and chip.
        incumbent: a legal schedule of it in latency mode.
        evaluator: of the problem.
        budget: deterministic time of the run; none left: bounds without the solver.
        settings: seed of the solves (one worker: the model has a hint).
        limit: deterministic time of all solves here; default: all that remains.
        improve: also look for better schedules where the exact model is too large.

    Raises:
        InternalError: the incumbent beats a bound, or a solution breaks a rule.
    """
    bound = completion_bound(problem)
    completion = incumbent.summary.completion_ns
    _not_beaten(completion, bound)
    if completion == bound.ns:
        return LatencyAnswer(Verdict.OPTIMAL, incumbent, bound.ns, bound.argument)

    def without(note: str) -> LatencyAnswer:
        return LatencyAnswer(
            Verdict.FEASIBLE, incumbent, bound.ns, bound.argument, note=note
        )

    granted = budget.grant(limit)
    if granted <= 0:
        return without("no solver time: the bound is a counting argument")
    by_slots = shared_slots_bound(problem, bound, completion)
    if by_slots is not None and by_slots > bound.ns:
        bound = replace(bound, slots_ns=by_slots)
        _not_beaten(completion, bound)
        if completion == bound.ns:
            return LatencyAnswer(Verdict.OPTIMAL, incumbent, bound.ns, bound.argument)
    if (
        not fits(LatencyModel.size(problem))
        or LatencyModel.pairs(problem) > _PAIR_LIMIT
    ):
        note = "the graph is too large for the solver's model of completion"
        if not improve:
            return without(f"{note}; the method cp-sat looks for better schedules")
        return _improved(
            problem,
            incumbent,
            evaluator,
            budget,
            granted,
            (settings or SolveSettings()).single(),
            bound,
            f"{note}: copies and windows were tried, which raises no bound",
        )
    part = budget.share(granted)
    answer = _Solving(
        LatencyModel(problem, bound, incumbent),
        incumbent,
        evaluator,
        part,
        (settings or SolveSettings()).single(),
    ).run()
    budget.absorb(part)
    return answer


def _improved(
    problem: Problem,
    incumbent: Schedule,
    evaluator: StaticEvaluator,
    budget: SolveBudget,
    granted: float,
    settings: SolveSettings,
    bound: CompletionBound,
    note: str,
) -> LatencyAnswer:
    part = budget.share(granted)
    known = improve_latency(problem, incumbent, evaluator, part, settings)
    budget.absorb(part)
    best = known[0]
    completion = best.summary.completion_ns
    _not_beaten(completion, bound)
    return LatencyAnswer(
        Verdict.OPTIMAL if completion == bound.ns else Verdict.FEASIBLE,
        best,
        bound.ns,
        bound.argument,
        part.records,
        note,
        known,
    )


def _not_beaten(completion: int, bound: CompletionBound) -> None:
    if completion < bound.ns:
        raise InternalError(
            f"a schedule of {completion} ns beats the bound of {bound.ns} ns "
            f"({bound.argument})"
        )


class _Solving:
    """One solve, its confirmation, and what may be said afterwards."""

    def __init__(
        self,
        model: LatencyModel,
        incumbent: Schedule,
        evaluator: StaticEvaluator,
        budget: SolveBudget,
        settings: SolveSettings,
    ) -> None:
        self.model, self.evaluator = model, evaluator
        self.best, self.budget, self.settings = incumbent, budget, settings
        self.bound_ns, self.proof = model.bound.ns, model.bound.argument

    def run(self) -> LatencyAnswer:
        outcome = solve(
            self.model.model,
            self.budget,
            what="completion of one inference",
            settings=self.settings,
            limit=_FIRST_SHARE * self.budget.total,
        )
        self._improve(outcome)
        note = ""
        if outcome.record.status is SolverClaim.OPTIMAL:
            outcome = confirm(
                self.model.model, outcome, self.budget, settings=self.settings
            )
            note = outcome.note
            self._improve(outcome)
            if outcome.verdict is Verdict.OPTIMAL:
                self._raise(outcome.record.objective)
        elif outcome.record.status is SolverClaim.INFEASIBLE:
            # The incumbent is a solution: the solver contradicts itself.
            note = "the solver refused a schedule that is legal: no claim is made"
        elif outcome.record.bound is not None and self._better(outcome.record.bound):
            confirmed = confirm_bound(
                self.model.model,
                outcome.record.bound,
                self.budget,
                what="completion of one inference",
                settings=self.settings,
            )
            if confirmed:
                self._raise(outcome.record.bound)
            else:
                note = "the solver's better bound was not confirmed in the budget"
        completion = self.best.summary.completion_ns
        if completion < self.bound_ns:
            raise InternalError(
                f"a schedule of {completion} ns beats the bound of {self.bound_ns} ns"
            )
        optimal = completion == self.bound_ns
        return LatencyAnswer(
            Verdict.OPTIMAL if optimal else Verdict.FEASIBLE,
            self.best,
            self.bound_ns,
            self.proof,
            self.budget.records,
            note,
        )

    def _better(self, bound: int) -> bool:
        return bound * self.model.unit > self.bound_ns

    def _raise(self, bound: int | None) -> None:
        if bound is not None and self._better(bound):
            self.bound_ns, self.proof = bound * self.model.unit, "cp-sat"

    def _improve(self, outcome: SolveOutcome) -> None:
        """Keep a solution's schedule when it completes earlier."""
        if outcome.solution is None:
            return
        found = self.evaluator.schedule(self.model.placement(outcome.solution))
        wrong = violations(found)
        if wrong:
            raise InternalError(f"completion model: {wrong[0]}")
        if found.summary.completion_ns < self.best.summary.completion_ns:
            self.best = found
