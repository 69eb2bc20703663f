"""Which operations to fuse into composites, for the least dispatch cycles.

Given the operations of a kernel in program order and the dispatch knobs of an
element, choose composites and single-op commands.  A composite may not exceed the
cap, some operations may not be fused, and every tensor that stays live beyond a
composite costs it a tracked handle.  The answer is advice to the kernel's author;
nothing is ever split automatically (dispatch-cost spec, D7).

Two readings: *contiguous* cuts the program order into runs (also solved exactly by
dynamic programming, with which the solver's answer must agree), *free* groups any
operations whose dependencies allow the groups to run one after the other.

A tensor counts as a handle of a composite when it is listed in ``state`` and
touched, or written inside and accessed outside later on.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import networkx as nx
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.models.fusion_problem import (
    COMPOSITE_BYTES,
    HANDLE_BYTES,
    DispatchKnobs,
    FusableOperation,
    FusionPlan,
    FusionProblem,
    PlannedCommand,
    check_plan,
    plan_by_dynamic_program,
)
from raptor_cp.models.solving import (
    MAX_COEFFICIENT,
    Solution,
    SolveBudget,
    SolveOutcome,
    SolveRecord,
    SolveSettings,
    fits,
    solve_confirmed,
)
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_DEFAULT_SETTINGS = SolveSettings()


def propose_fusion(
    operations: Sequence[FusableOperation],
    knobs: DispatchKnobs,
    *,
    state: Iterable[str] = (),
    contiguous: bool = True,
    budget: SolveBudget | None = None,
    settings: SolveSettings = _DEFAULT_SETTINGS,
) -> FusionPlan:
    """The cheapest legal way to issue ``operations``.

    Args:
        operations: in program order.
        knobs: of the element.
        state: tensors that live beyond the operations and must be tracked.
        contiguous: keep the program order and fuse neighbours only.
        budget: deterministic solver time; default 2.
        settings: of the first solve.

    Raises:
        MalformedInput: an operation that can be issued in no way.
        InternalError: solver and dynamic program disagree, or an invalid plan.
    """
    problem = FusionProblem(tuple(operations), knobs, frozenset(state))
    budget = SolveBudget(2.0) if budget is None else budget
    if not problem.operations:
        return FusionPlan(Verdict.OPTIMAL, (), Fraction(0), "nothing to issue")
    chain = plan_by_dynamic_program(problem)
    if contiguous:
        return _contiguous(problem, chain, budget, settings)
    return _free(problem, chain, budget, settings)


def _contiguous(
    problem: FusionProblem,
    chain: tuple[PlannedCommand, ...] | None,
    budget: SolveBudget,
    settings: SolveSettings,
) -> FusionPlan:
    count = len(problem.operations)
    arcs = [
        command
        for end in range(1, count + 1)
        for begin in problem.begins(end)
        for command in problem.runs(begin, end)
    ]
    scale = _scale(command.cycles for command in arcs)
    if scale is None or not fits(len(arcs)):
        return _by_dynamic_program_alone(problem, chain)
    model = cp_model.CpModel()
    chosen = [model.new_bool_var(f"arc{i}") for i in range(len(arcs))]
    for point in range(count + 1):
        # One unit of flow from the first cut point to the last one.
        leaving = [
            x for x, a in zip(chosen, arcs, strict=True) if a.operations[0] == point
        ]
        entering = [
            x
            for x, a in zip(chosen, arcs, strict=True)
            if a.operations[-1] + 1 == point
        ]
        source = int(point == 0) - int(point == count)
        model.add(sum(leaving) - sum(entering) == source)
    model.minimize(
        sum(int(a.cycles * scale) * x for x, a in zip(chosen, arcs, strict=True))
    )
    outcome = _ask(model, budget, "command fusion (contiguous)", settings)

    def read(solution: Solution) -> tuple[PlannedCommand, ...]:
        return tuple(a for x, a in zip(chosen, arcs, strict=True) if solution.true(x))

    plan = _answer(problem, outcome, read, chain)
    exact = None if chain is None else check_plan(problem, chain)
    if plan.verdict in (Verdict.OPTIMAL, Verdict.INFEASIBLE) and plan.cycles != exact:
        raise InternalError(
            f"command fusion: solver {plan.cycles}, dynamic program {exact}"
        )
    if plan.verdict in (Verdict.OPTIMAL, Verdict.INFEASIBLE):
        return plan
    return _by_dynamic_program_alone(problem, chain, plan.records)


def _by_dynamic_program_alone(
    problem: FusionProblem,
    chain: tuple[PlannedCommand, ...] | None,
    records: tuple[SolveRecord, ...] = (),
) -> FusionPlan:
    proof = "exact dynamic program; the solver did not confirm it"
    if chain is None:
        return FusionPlan(Verdict.INFEASIBLE, (), None, proof, records)
    return FusionPlan(
        Verdict.OPTIMAL, chain, check_plan(problem, chain), proof, records
    )


def _free(
    problem: FusionProblem,
    chain: tuple[PlannedCommand, ...] | None,
    budget: SolveBudget,
    settings: SolveSettings,
) -> FusionPlan:
    model = _FreeModel(problem)
    if model.scale is None or not fits(model.booleans()):
        return _incumbent(problem, chain, "too large for the solver; nothing is proved")
    model.build()
    if chain is not None:
        model.hint(chain)
        settings = settings.single()
    outcome = _ask(model.model, budget, "command fusion (free)", settings)
    return _answer(problem, outcome, model.read, chain)


class _FreeModel:
    """Groups of operations, each led by its first member in program order."""

    def __init__(self, problem: FusionProblem) -> None:
        self._problem = problem
        self._count = len(problem.operations)
        knobs = problem.knobs
        self._singles = [problem.single(i) for i in range(self._count)]
        self.scale = _scale(
            [
                knobs.fixed_per_cmd_cycles,
                knobs.byte_cycles_recip,
                knobs.byte_cycles_recip * knobs.max_composite_logical_bytes,
                *(s.cycles for s in self._singles if s is not None),
            ]
        )
        self._edges = _reduced(problem.dependencies, self._count)
        self.model = cp_model.CpModel()
        self._member: dict[tuple[int, int], cp_model.IntVar] = {}
        self._single: dict[int, cp_model.IntVar] = {}

    def booleans(self) -> int:
        """How many variables :meth:`build` makes, about."""
        pairs = self._count * (self._count + 1) // 2
        handles = self._count * len(self._problem.accessors)
        return pairs + handles + sum(first + 1 for first, _ in self._edges)

    def build(self) -> None:
        """Add every rule and the objective."""
        self._add_choice()
        self._add_order()
        cost = self._add_composites()
        scale = self.scale or 1
        cost.extend(
            int(single.cycles * scale) * self._single[i]
            for i, single in enumerate(self._singles)
            if single is not None
        )
        self.model.minimize(sum(cost))

    def _add_choice(self) -> None:
        # Each operation is in one group, or issued alone.
        model, operations = self.model, self._problem.operations
        for i in range(self._count):
            if self._singles[i] is not None:
                self._single[i] = model.new_bool_var(f"single{i}")
            for leader in range(i + 1):
                if operations[i].fusable and operations[leader].fusable:
                    self._member[leader, i] = model.new_bool_var(f"in{leader},{i}")
        for i in range(self._count):
            ways = [
                x
                for leader in range(i + 1)
                if (x := self._member.get((leader, i))) is not None
            ]
            if i in self._single:
                ways.append(self._single[i])
            model.add_exactly_one(ways)
        for (leader, i), x in self._member.items():
            if i != leader:
                model.add_implication(x, self._member[leader, leader])

    def _add_order(self) -> None:
        # Groups must be able to run one after the other: members share a place,
        # and a dependency between two groups needs a later place.
        model = self.model
        place = [
            model.new_int_var(0, self._count - 1, f"at{i}") for i in range(self._count)
        ]
        for (leader, i), x in self._member.items():
            if i != leader:
                model.add(place[i] == place[leader]).only_enforce_if(x)
        for first, second in self._edges:
            together: list[cp_model.IntVar] = []
            for leader in range(first + 1):
                one = self._member.get((leader, first))
                other = self._member.get((leader, second))
                if one is None or other is None:
                    continue
                both = model.new_bool_var(f"both{leader},{first},{second}")
                model.add_implication(both, one)
                model.add_implication(both, other)
                together.append(both)
            model.add(place[first] <= place[second])
            apart = model.new_bool_var(f"apart{first},{second}")
            model.add_exactly_one([apart, *together])
            model.add(place[first] + 1 <= place[second]).only_enforce_if(apart)

    def _add_composites(self) -> list[cp_model.LinearExpr | int]:
        # Bytes of each group under the cap, priced by the formula.
        problem, model = self._problem, self.model
        knobs, scale = problem.knobs, self.scale or 1
        fixed = int(knobs.fixed_per_cmd_cycles * scale)
        per_byte = int(knobs.byte_cycles_recip * scale)
        cost: list[cp_model.LinearExpr | int] = []
        for leader in range(self._count):
            leads = self._member.get((leader, leader))
            if leads is None:
                continue
            members = {
                i: x
                for i in range(leader, self._count)
                if (x := self._member.get((leader, i))) is not None
            }
            tracked = [
                flag
                for handle in problem.accessors
                if (flag := self._tracked(leader, handle, members)) is not None
            ]
            size = (
                COMPOSITE_BYTES * leads
                + sum(
                    problem.operations[i].logical_bytes * x for i, x in members.items()
                )
                + HANDLE_BYTES * sum(tracked)
            )
            model.add(size <= knobs.max_composite_logical_bytes)
            cost.append(fixed * leads + per_byte * size)
        return cost

    def _tracked(
        self, leader: int, handle: str, members: dict[int, cp_model.IntVar]
    ) -> cp_model.IntVar | None:
        # A lower bound is enough: bytes are never worth having.
        problem, model = self._problem, self.model
        touching = problem.accessors[handle]
        own = [i for i in touching if i in members]
        if not own:
            return None
        flag = model.new_bool_var(f"tracks{leader},{handle}")
        if handle in problem.state:
            for i in own:
                model.add_implication(members[i], flag)
            return flag
        for i in own:
            if handle not in problem.operations[i].writes:
                continue
            for later in touching:
                if later > i:
                    outside = members.get(later)
                    clause = [members[i].negated(), flag]
                    model.add_bool_or(clause if outside is None else [*clause, outside])
        return flag

    def hint(self, plan: tuple[PlannedCommand, ...]) -> None:
        """Start the search from a known plan."""
        grouped = {
            (command.operations[0], i)
            for command in plan
            if command.composite
            for i in command.operations
        }
        alone = {c.operations[0] for c in plan if not c.composite}
        for key, x in self._member.items():
            self.model.add_hint(x, key in grouped)
        for i, x in self._single.items():
            self.model.add_hint(x, i in alone)

    def read(self, solution: Solution) -> tuple[PlannedCommand, ...]:
        """The plan of a solution, in an order that respects the dependencies."""
        commands: list[PlannedCommand] = []
        for leader in range(self._count):
            x = self._single.get(leader)
            if x is not None and solution.true(x):
                found = self._singles[leader]
            elif (leader, leader) in self._member and solution.true(
                self._member[leader, leader]
            ):
                found = self._problem.composite(
                    [
                        i
                        for i in range(leader, self._count)
                        if (leader, i) in self._member
                        and solution.true(self._member[leader, i])
                    ]
                )
            else:
                continue
            if found is None:
                raise InternalError("command fusion: the solver broke the cap")
            commands.append(found)
        return _ordered(commands, self._problem.dependencies)


def _ordered(
    commands: list[PlannedCommand], dependencies: tuple[tuple[int, int], ...]
) -> tuple[PlannedCommand, ...]:
    owner = {i: n for n, command in enumerate(commands) for i in command.operations}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(commands)))
    graph.add_edges_from(
        (owner[a], owner[b]) for a, b in dependencies if owner[a] != owner[b]
    )
    try:
        order = list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible as problem:
        raise InternalError("command fusion: groups wait for each other") from problem
    return tuple(commands[number] for number in order)


def _reduced(
    dependencies: tuple[tuple[int, int], ...], count: int
) -> list[tuple[int, int]]:
    """Dependencies that do not follow from others."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(dependencies)
    return sorted(nx.transitive_reduction(graph).edges)


def _scale(costs: Iterable[Fraction]) -> int | None:
    """Factor that makes all costs integers; None when they grow too large."""
    listed = list(costs)
    scale = math.lcm(*(cost.denominator for cost in listed))
    return scale if all(cost * scale <= MAX_COEFFICIENT for cost in listed) else None


def _ask(
    model: cp_model.CpModel, budget: SolveBudget, what: str, settings: SolveSettings
) -> SolveOutcome:
    """Solve, and confirm a claim by a second solve with presolve off."""
    return solve_confirmed(model, budget, what=what, settings=settings)


def _answer(
    problem: FusionProblem,
    outcome: SolveOutcome,
    read: Callable[[Solution], tuple[PlannedCommand, ...]],
    incumbent: tuple[PlannedCommand, ...] | None,
) -> FusionPlan:
    """The solver's plan, validated, or the incumbent when that is no worse."""
    records = tuple(r for r in (outcome.record, outcome.confirmation) if r is not None)
    if outcome.verdict is Verdict.INFEASIBLE:
        if incumbent is not None:
            raise InternalError("command fusion: infeasible, but a plan is known")
        return FusionPlan(
            Verdict.INFEASIBLE,
            (),
            None,
            "infeasible in two solves, the second without presolve",
            records,
        )
    note = outcome.note or "best plan found; optimality is not proved"
    if outcome.solution is None:
        return _incumbent(problem, incumbent, note, records)
    commands = read(outcome.solution)
    cycles = check_plan(problem, commands)
    known = None if incumbent is None else check_plan(problem, incumbent)
    if outcome.verdict is Verdict.OPTIMAL:
        if known is not None and known < cycles:
            raise InternalError("command fusion: a better plan than the optimum")
        proof = "optimal in one solve, no better plan in a second without presolve"
        return FusionPlan(Verdict.OPTIMAL, commands, cycles, proof, records)
    if known is not None and known <= cycles:
        return _incumbent(problem, incumbent, note, records)
    return FusionPlan(Verdict.FEASIBLE, commands, cycles, note, records)


def _incumbent(
    problem: FusionProblem,
    incumbent: tuple[PlannedCommand, ...] | None,
    note: str,
    records: tuple[SolveRecord, ...] = (),
) -> FusionPlan:
    if incumbent is None:
        return FusionPlan(Verdict.UNKNOWN, (), None, note, records)
    cycles = check_plan(problem, incumbent)
    return FusionPlan(Verdict.FEASIBLE, incumbent, cycles, note, records)
