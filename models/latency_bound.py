"""Completion of one inference: the optimum on small graphs, a bound on any.

Bounds without a solver come first (:mod:`raptor_cp.latency.bounds`).  When they do
not settle the question and the model is small enough, CP-SAT gets the incumbent as a
hint: it may find a better schedule, prove that there is none, or raise the bound.
What it finds becomes a placement again and is evaluated and validated without it;
what it claims is confirmed by a second solve of another kind.

All times are ns.  Where a horizon exceeds the solver's safe range, the model counts
in units of several ns: durations and delays are rounded down, so that its bound times
the unit still holds, and its solutions are orders that the evaluator times exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.latency.bounds import CompletionBound, completion_bound
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.models.solving import (
    Solution,
    SolveBudget,
    SolveOutcome,
    SolverClaim,
    SolveRecord,
    SolveSettings,
    confirm,
    confirm_bound,
    fits,
    scale_divisor,
    solve,
)
from raptor_cp.schedule import Placement, Schedule
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from raptor_cp.schedule import Problem
    from raptor_cp.static_evaluation import StaticEvaluator

    IntArray = NDArray[np.int64]

#: Constraints on pairs of cores that a model may have.
_PAIR_LIMIT = 40_000
#: Cores are put in the order of their first task up to this many Booleans.
_ORDERED_LIMIT = 4_000
#: Share of the deterministic time for the first solve; the rest confirms.
_FIRST_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class LatencyCertificate:
    """How far the completion of one inference is from the optimum at most.

    Attributes:
        completion_ns: of the schedule.
        bound_ns: no schedule of this graph on this chip completes earlier.
        best_ns: completion of the best schedule that is known (of the solver, say).
        proof: what the bound rests on: ``path``, ``work``, ``copies`` or ``cp-sat``.
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
                f"completion {self.completion_ns:,} ns is optimal ({self.proof})"
            ]
        else:
            lines = [
                f"completion {self.completion_ns:,} ns; no schedule completes before "
                f"{self.bound_ns:,} ns ({self.proof}): gap {self.gap:.2%}"
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
    """

    verdict: Verdict
    best: Schedule
    bound_ns: int
    proof: str
    records: tuple[SolveRecord, ...] = ()
    note: str = ""

    def certificate(self, schedule: Schedule) -> LatencyCertificate:
        """The certificate of a schedule of the same problem."""
        return LatencyCertificate(
            schedule.summary.completion_ns,
            self.bound_ns,
            min(self.best.summary.completion_ns, schedule.summary.completion_ns),
            self.proof,
            self.note,
        )


class LatencyModel:
    """Optional intervals on cores, delays between cores, weights that fit.

    Args:
        problem: graph, costs and chip.
        bound: solver-free bounds: earliest starts and latest ends.
        incumbent: a legal schedule: the hint, and the horizon.
    """

    def __init__(
        self, problem: Problem, bound: CompletionBound, incumbent: Schedule
    ) -> None:
        self.problem, self.bound = problem, bound
        self.costs = LatencyCosts.of(problem)
        self.horizon_ns = incumbent.summary.completion_ns
        self.unit = scale_divisor(max(self.horizon_ns, 1))
        self.horizon = self.horizon_ns // self.unit
        self.duration = (self.costs.execution_ns // self.unit).tolist()
        self.model = cp_model.CpModel()
        self.on: list[list[cp_model.IntVar]] = []
        self.start: list[cp_model.IntVar] = []
        self.end: list[cp_model.LinearExprT] = []
        self.holds: dict[tuple[int, int], cp_model.IntVar] = {}
        self.same: dict[tuple[int, int], cp_model.IntVar] = {}
        self.variables()
        self.every_task_has_a_core()
        self.tasks_of_a_core_take_turns()
        self.results_arrive()
        self.weights_of_a_core_fit()
        self.all_cores_together_are_enough()
        self.like_cores_are_interchangeable()
        self.completion()
        self.hint(incumbent)

    @staticmethod
    def size(problem: Problem) -> int:
        """Variables that the model will have, about."""
        graph, cores = problem.graph, problem.resources.cores
        per_core = graph.task_count + len(graph.weights)
        return per_core * cores + graph.task_count + int(graph.edge_dst.size)

    @staticmethod
    def pairs(problem: Problem) -> int:
        """Constraints on pairs of cores: none when all links are alike."""
        cores = problem.resources.cores
        return 0 if _like_links(problem) else int(problem.graph.edge_dst.size) * cores**2

    def variables(self) -> None:
        """A core for each task; a start between its head and its tail."""
        # The path of an optimum on this core: what starts later ends too late.
        for task, lengths in enumerate(self.duration):
            self.on.append([self.model.new_bool_var("") for _ in lengths])
            least = int(self.bound.head_ns[task].min()) // self.unit
            rest = self.costs.execution_ns[task] + self.bound.tail_ns[task]
            latest = max(least, (self.horizon_ns - int(rest.min())) // self.unit)
            self.start.append(self.model.new_int_var(least, latest, ""))
            self.end.append(
                self.start[task]
                + (
                    lengths[0]
                    if len(set(lengths)) == 1
                    else cp_model.LinearExpr.weighted_sum(self.on[task], lengths)
                )
            )

    def every_task_has_a_core(self) -> None:
        """Exactly one."""
        for literals in self.on:
            self.model.add_exactly_one(literals)

    def tasks_of_a_core_take_turns(self) -> None:
        """No overlap of the intervals that are present on a core."""
        for core in range(self.costs.cores):
            self.model.add_no_overlap(
                self.model.new_optional_fixed_size_interval_var(
                    self.start[task], self.duration[task][core], literals[core], ""
                )
                for task, literals in enumerate(self.on)
            )

    def results_arrive(self) -> None:
        """A task starts after its inputs, later when they come from another core."""
        for source, target, size in self._edges():
            self.model.add(self.start[target] >= self.end[source])
            delays = self.costs.transfer_ns(size) // self.unit
            away = ~np.eye(self.costs.cores, dtype=np.bool_)
            if not delays[away].any():
                continue
            least = int(delays[away].min())
            same = self._same(source, target)
            self.model.add(
                self.start[target] >= self.end[source] + least
            ).only_enforce_if(~same)
            for tail, head in np.argwhere(away & (delays > least)).tolist():
                self.model.add(
                    self.start[target] >= self.end[source] + int(delays[tail, head])
                ).only_enforce_if(self.on[source][tail], self.on[target][head])

    def weights_of_a_core_fit(self) -> None:
        """A core holds the union of its tasks' weights."""
        graph, capacity = self.problem.graph, self.problem.resources.slots_per_core
        used = sorted({w for task in graph.tasks for w in task.weights})
        sizes = graph.weight_slots[used].tolist()
        if sum(sizes) <= capacity:
            return
        for core in range(self.costs.cores):
            for weight in used:
                self.holds[weight, core] = self.model.new_bool_var("")
            for task, literals in enumerate(self.on):
                for weight in graph.tasks[task].weights:
                    self.model.add_implication(
                        literals[core], self.holds[weight, core]
                    )
            row = [self.holds[weight, core] for weight in used]
            # A weight above the capacity is on no core; the coefficient stays small.
            fit = [min(size, capacity + 1) for size in sizes]
            self.model.add(cp_model.LinearExpr.weighted_sum(row, fit) <= capacity)

    def all_cores_together_are_enough(self) -> None:
        """Redundant: at no time do more tasks run than there are cores."""
        if not self.costs.alike:
            return
        intervals = [
            self.model.new_fixed_size_interval_var(start, self.duration[task][0], "")
            for task, start in enumerate(self.start)
        ]
        self.model.add_cumulative(intervals, [1] * len(intervals), self.costs.cores)

    def like_cores_are_interchangeable(self) -> None:
        """Cores that nothing tells apart are used in the order of their first task."""
        if not self._interchangeable:
            return
        for task, literals in enumerate(self.on):
            for core in range(1, self.costs.cores):
                earlier = [self.on[t][core - 1] for t in range(task)]
                if core > task:
                    self.model.add(literals[core] == 0)
                elif self.costs.tasks * self.costs.cores <= _ORDERED_LIMIT:
                    self.model.add_bool_or(*earlier, ~literals[core])

    def completion(self) -> None:
        """The end of the last task, least."""
        least = -(-self.bound.ns // self.unit) if self.unit == 1 else 0
        last = self.model.new_int_var(min(least, self.horizon), self.horizon, "")
        for task, end in enumerate(self.end):
            tail = int(self.bound.tail_ns[task].min()) // self.unit
            self.model.add(last >= end + tail)
        self.last = last
        self.model.minimize(last)

    def hint(self, incumbent: Schedule) -> None:
        """The incumbent in full, its cores renumbered when they are alike."""
        core_of = incumbent.placement.core_of.tolist()
        if self._interchangeable:
            number: dict[int, int] = {}
            core_of = [number.setdefault(core, len(number)) for core in core_of]
        for task, literals in enumerate(self.on):
            for core, literal in enumerate(literals):
                self.model.add_hint(literal, core == core_of[task])
            self.model.add_hint(
                self.start[task], int(incumbent.start_ns[task]) // self.unit
            )
        tasks = self.problem.graph.tasks
        for (weight, core), literal in self.holds.items():
            held = any(
                core_of[t] == core and weight in task.weights
                for t, task in enumerate(tasks)
            )
            self.model.add_hint(literal, held)
        for (source, target), same in self.same.items():
            self.model.add_hint(same, core_of[source] == core_of[target])
        self.model.add_hint(self.last, self.horizon)

    def placement(self, solution: Solution) -> Placement:
        """Cores of a solution, tasks of a core by (start, end, id)."""
        cores = self.costs.cores
        core_of = np.empty(len(self.on), dtype=np.int32)
        keys = []
        for task, literals in enumerate(self.on):
            core = next(c for c, on in enumerate(literals) if solution.true(on))
            core_of[task] = core
            start = solution.value(self.start[task])
            keys.append((start, start + self.duration[task][core], task))
        core_of.setflags(write=False)
        order: list[list[int]] = [[] for _ in range(cores)]
        for _, _, task in sorted(keys):
            order[int(core_of[task])].append(task)
        return Placement(core_of, tuple(tuple(tasks) for tasks in order))

    @property
    def _interchangeable(self) -> bool:
        return self.costs.alike and _like_links(self.problem)

    def _edges(self) -> Iterator[tuple[int, int, int]]:
        ptr = self.costs.succ_ptr.tolist()
        for source in range(self.costs.tasks):
            for edge in range(ptr[source], ptr[source + 1]):
                yield (
                    source,
                    int(self.costs.succ_dst[edge]),
                    int(self.costs.succ_bytes[edge]),
                )

    def _same(self, source: int, target: int) -> cp_model.IntVar:
        """True only when both tasks are on one core."""
        same = self.model.new_bool_var("")
        self.same[source, target] = same
        for first, second in zip(self.on[source], self.on[target], strict=True):
            self.model.add_implication(first, second).only_enforce_if(same)
            self.model.add_implication(second, first).only_enforce_if(same)
        return same


def bound_latency(
    problem: Problem,
    incumbent: Schedule,
    evaluator: StaticEvaluator,
    budget: SolveBudget,
    *,
    settings: SolveSettings | None = None,
    limit: float | None = None,
) -> LatencyAnswer:
    """Bound the completion of one inference, and improve the incumbent if possible.

    Args:
        problem: graph, costs and chip.
        incumbent: a legal schedule of it in latency mode.
        evaluator: of the problem.
        budget: deterministic time of the run; none left: bounds without the solver.
        settings: seed of the solves (one worker: the model has a hint).
        limit: deterministic time of all solves here; default: all that remains.

    Raises:
        InternalError: the incumbent beats a bound, or a solution breaks a rule.
    """
    bound = completion_bound(problem)
    completion = incumbent.summary.completion_ns
    if completion < bound.ns:
        raise InternalError(
            f"a schedule of {completion} ns beats the bound of {bound.ns} ns "
            f"({bound.argument})"
        )
    if completion == bound.ns:
        return LatencyAnswer(Verdict.OPTIMAL, incumbent, bound.ns, bound.argument)

    def without(note: str) -> LatencyAnswer:
        return LatencyAnswer(
            Verdict.FEASIBLE, incumbent, bound.ns, bound.argument, note=note
        )

    granted = budget.grant(limit)
    if granted <= 0:
        return without("no solver time: the bound is a counting argument")
    if not fits(LatencyModel.size(problem)) or LatencyModel.pairs(problem) > _PAIR_LIMIT:
        return without("the graph is too large for the solver's model of completion")
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


def _like_links(problem: Problem) -> bool:
    """Every pair of different cores has the same link."""
    links, cores = problem.resources.links, problem.resources.cores
    away = ~np.eye(cores, dtype=np.bool_)
    return all(
        np.unique(matrix[away]).size <= 1
        for matrix in (links.handshake_ns, links.unit_ns)
    )
