"""Core budgets for fixed stages: minimise the largest cost, then use least cores.

One Boolean for each breakpoint of each curve (the least budget that reaches a cost),
exactly one for each stage; the objective counts ranks of costs, so ns never enter
the model.  Stages with equal budgets become one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.models.instances import UNAVAILABLE
from raptor_cp.models.solving import (
    MAX_COEFFICIENT,
    SolveBudget,
    SolverClaim,
    SolveRecord,
    SolveSettings,
    fits,
    solve_confirmed,
)
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.models.instances import BudgetInstance, IntArray


@dataclass(frozen=True, slots=True)
class BudgetResult:
    """Answer of :class:`CoreBudgetModel`.

    Attributes:
        verdict: OPTIMAL means: least largest cost, and least cores for it.
        budgets: [S] cores of each stage; empty without a solution.
        cost_ns: the largest stage cost; None without a solution.
        records: the solves.
        note: why the verdict is not a proof, when it is not.
    """

    verdict: Verdict
    budgets: tuple[int, ...] = ()
    cost_ns: int | None = None
    records: tuple[SolveRecord, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Option:
    literal: cp_model.IntVar
    cores: int
    rank: int


class CoreBudgetModel:
    """One method for each rule; build, then :meth:`solve`."""

    def __init__(self, instance: BudgetInstance) -> None:
        self.instance = instance
        self.blocks = _blocks(instance)
        self.block_of = {s: b for b, block in enumerate(self.blocks) for s in block}
        finite = np.unique(instance.cost_ns)
        self.values: IntArray = finite[finite < UNAVAILABLE]
        self.breakpoints = [self._breakpoints(block) for block in self.blocks]
        self.model = cp_model.CpModel()
        self.options: list[list[_Option]] = []

    def _breakpoints(self, block: tuple[int, ...]) -> list[tuple[int, int]]:
        """(cores, rank) where the block's curve falls, allowed budgets only."""
        instance = self.instance
        step = 1
        if instance.multiple_of:
            step = int(np.lcm.reduce([instance.multiple_of[s] for s in block]))
        curve = instance.cost_ns[list(block)].max(axis=0)
        points: list[tuple[int, int]] = []
        best = int(UNAVAILABLE)
        for cores in range(step, instance.cores + 1, step):
            cost = int(curve[cores - 1])
            if cost < best:
                points.append((cores, int(np.searchsorted(self.values, cost))))
                best = cost
        return points

    def build(self) -> None:
        """All variables, rules and the objective."""
        self.one_budget_each()
        self.total_of_the_chip()
        self.totals_of_some_stages()
        self.largest_cost_then_cores()

    def one_budget_each(self) -> None:
        """Every stage takes exactly one breakpoint of its curve."""
        for points in self.breakpoints:
            options = [
                _Option(self.model.new_bool_var(""), cores, rank)
                for cores, rank in points
            ]
            self.model.add_exactly_one(option.literal for option in options)
            self.options.append(options)

    def total_of_the_chip(self) -> None:
        """All budgets and the spare cores fit on the chip."""
        self._at_most(
            tuple(range(self.instance.stages)),
            self.instance.cores - self.instance.spare,
        )

    def totals_of_some_stages(self) -> None:
        """Stages that live on one chip share its cores."""
        for stages, limit in self.instance.totals:
            self._at_most(stages, limit)

    def largest_cost_then_cores(self) -> None:
        """Lexicographic: rank of the largest cost first, then cores in use."""
        top = self.model.new_int_var(0, len(self.values) - 1, "")
        for options in self.options:
            ranks = cp_model.LinearExpr.weighted_sum(
                [o.literal for o in options], [o.rank for o in options]
            )
            self.model.add(top >= ranks)
        everything = tuple(range(self.instance.stages))
        self.model.minimize(top * (self.instance.cores + 1) + self._cores(everything))

    def _cores(self, stages: tuple[int, ...]) -> cp_model.LinearExpr:
        literals, cores = [], []
        for stage in stages:
            for option in self.options[self.block_of[stage]]:
                literals.append(option.literal)
                cores.append(option.cores)
        return cp_model.LinearExpr.weighted_sum(literals, cores)

    def _at_most(self, stages: tuple[int, ...], limit: int) -> None:
        self.model.add(self._cores(stages) <= limit)

    def solve(
        self,
        budget: SolveBudget,
        settings: SolveSettings | None = None,
        limit: float | None = None,
    ) -> BudgetResult:
        """Solve, confirm, validate.

        Raises:
            InternalError: the solver's answer breaks a rule.
        """
        if any(not points for points in self.breakpoints):
            return BudgetResult(Verdict.INFEASIBLE, note="a stage fits no budget")
        if not fits(sum(len(points) for points in self.breakpoints)):
            return BudgetResult(Verdict.UNKNOWN, note="too many breakpoints")
        if len(self.values) * (self.instance.cores + 1) > MAX_COEFFICIENT:
            return BudgetResult(Verdict.UNKNOWN, note="too many distinct costs")
        self.build()
        outcome = solve_confirmed(
            self.model,
            budget,
            what="core budgets",
            settings=settings or SolveSettings(symmetry_level=0),
            limit=limit,
        )
        records = tuple(r for r in (outcome.record, outcome.confirmation) if r)
        solution = outcome.solution
        if solution is None or outcome.record.status is SolverClaim.INFEASIBLE:
            return BudgetResult(outcome.verdict, (), None, records, outcome.note)
        chosen = [
            next(o.cores for o in options if solution.true(o.literal))
            for options in self.options
        ]
        budgets = tuple(chosen[self.block_of[s]] for s in range(self.instance.stages))
        wrong = validate_budgets(self.instance, budgets)
        if wrong:
            raise InternalError(f"core budgets: {wrong[0]}")
        return BudgetResult(
            outcome.verdict,
            budgets,
            cost_of_budgets(self.instance, budgets),
            records,
            outcome.note,
        )


def cost_of_budgets(instance: BudgetInstance, budgets: tuple[int, ...]) -> int:
    """Largest stage cost (ns) under budgets."""
    return max(int(instance.cost_ns[s, k - 1]) for s, k in enumerate(budgets))


def validate_budgets(instance: BudgetInstance, budgets: tuple[int, ...]) -> list[str]:
    """Check budgets without the solver; one sentence for each violation."""
    if len(budgets) != instance.stages or min(budgets) < 1:
        return ["not every stage has a core"]
    wrong = []
    if sum(budgets) + instance.spare > instance.cores:
        wrong.append(f"{sum(budgets)} cores and {instance.spare} spare ones are used")
    for stages in instance.equal:
        if len({budgets[s] for s in stages}) > 1:
            wrong.append(f"stages {stages} have different budgets")
    for stages, limit in instance.totals:
        if sum(budgets[s] for s in stages) > limit:
            wrong.append(f"stages {stages} use more than {limit} cores")
    for stage, number in enumerate(instance.multiple_of):
        if budgets[stage] % number:
            wrong.append(f"stage {stage} is not a multiple of {number} cores")
    if not wrong and cost_of_budgets(instance, budgets) >= UNAVAILABLE:
        wrong.append("a stage does not fit its budget")
    return wrong


def _blocks(instance: BudgetInstance) -> list[tuple[int, ...]]:
    """Stages joined by equality, each block ascending, blocks by first stage."""
    leader = list(range(instance.stages))

    def root(stage: int) -> int:
        while leader[stage] != stage:
            stage = leader[stage]
        return stage

    for stages in instance.equal:
        for stage in stages[1:]:
            one, other = root(stages[0]), root(stage)
            leader[max(one, other)] = min(one, other)
    members: dict[int, list[int]] = {}
    for stage in range(instance.stages):
        members.setdefault(root(stage), []).append(stage)
    return [tuple(members[key]) for key in sorted(members)]
