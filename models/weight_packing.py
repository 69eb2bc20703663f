"""Packing with shared weights: an assignment, a proof that there is none, or UNKNOWN.

A core holds the union of the resident weights of its tasks.  The question is asked
in this order, cheapest first: counting bounds and cliques (proofs without a
solver), greedy packing, then a fixed portfolio of CP-SAT models inside one
deterministic budget.  Tasks with the same weights (and load, when there is a load
limit) are one *kind*; without a limit, kinds inside another kind's weights need no
packing of their own.

Every assignment is validated without the solver.  INFEASIBLE from the solver is
confirmed by a second solve of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.models.greedy_packing import GreedyPacker
from raptor_cp.models.instances import validate_packing
from raptor_cp.models.packing_bounds import (
    IMPOSSIBLE,
    CoreBound,
    core_bound,
    incompatible_clique,
    reachable_capacity,
)
from raptor_cp.models.pattern_bound import (
    KIND_LIMIT,
    PatternBound,
    PatternKinds,
    pattern_bound,
)
from raptor_cp.models.solving import (
    MAX_COEFFICIENT,
    Solution,
    SolveBudget,
    SolveOutcome,
    SolverClaim,
    SolveRecord,
    SolveSettings,
    confirm,
    fits,
    scale_divisor,
    solve,
)
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raptor_cp.models.instances import IntArray, PackingInstance

#: Cliques are only searched for among so many kinds (pairs of sets are compared).
_CLIQUE_LIMIT = 400
#: Pattern models: with few patterns they are asked first, with many not at all.
_FEW_PATTERNS = 300
_MOST_PATTERNS = 1_200
#: The representatives model has a Boolean for each pair of kinds.
_REPRESENTATIVES_LIMIT = 160


@dataclass(frozen=True, eq=False)
class PackingResult:
    """Answer of :func:`pack`.

    Attributes:
        verdict: FEASIBLE (validated), INFEASIBLE (proved) or UNKNOWN.
        core_of: [T] core of each task; None without an assignment.
        load_ns: largest core load of the assignment; None without one.
        method: what gave the answer: ``counting``, ``clique``, ``greedy``,
            ``patterns``, or the name of a solver model.
        bound: best lower bound on the cores, with its argument.
        records: the solves.
        note: why there is no answer, when there is none.
    """

    verdict: Verdict
    bound: CoreBound
    core_of: IntArray | None = None
    load_ns: int | None = None
    method: str = ""
    records: tuple[SolveRecord, ...] = ()
    note: str = ""


@dataclass(frozen=True, eq=False)
class TaskKinds:
    """Tasks that are the same to the packing.

    Attributes:
        weights: weights of each kind, ascending.
        load_ns: load of one task of each kind (0 without a load limit).
        members: tasks of each kind; without a limit also those it covers.
    """

    weights: tuple[tuple[int, ...], ...]
    load_ns: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, instance: PackingInstance) -> TaskKinds:
        """Kinds by first task; empty weight sets stay only under a load limit."""
        limited = instance.load_limit_ns is not None
        found: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for task in range(instance.tasks):
            load = int(instance.load_ns[task]) if limited else 0
            found.setdefault((instance.weights_of(task), load), []).append(task)
        if not limited:
            found = _maximal(found)
        return cls(
            tuple(weights for weights, _ in found),
            tuple(load for _, load in found),
            tuple(tuple(members) for members in found.values()),
        )

    @property
    def count(self) -> int:
        """Number of kinds."""
        return len(self.members)

    def copies(self, kind: int, limited: bool) -> int:
        """How often a kind has to be placed."""
        return len(self.members[kind]) if limited else 1


def _maximal(
    found: dict[tuple[tuple[int, ...], int], list[int]],
) -> dict[tuple[tuple[int, ...], int], list[int]]:
    """Move the members of covered weight sets to a set that covers them."""
    keys = sorted(found, key=lambda key: -len(key[0]))  # stable: first task first
    kept: dict[tuple[tuple[int, ...], int], list[int]] = {}
    holders: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for key in keys:
        weights = key[0]
        candidates = holders.get(weights[0], []) if weights else list(kept)[:1]
        cover = next((c for c in candidates if set(weights) <= set(c[0])), None)
        if cover is not None:
            kept[cover].extend(found[key])
            continue
        kept[key] = list(found[key])
        for weight in weights:
            holders.setdefault(weight, []).append(key)
    return kept


class CountModel:
    """How many tasks of each kind on each core, and which weights it holds.

    Exact: tasks of a kind are interchangeable.  Loads are scaled down (rounded
    down, the limit too) only when they leave the solver's safe range; a solution is
    then checked with the true loads by the validator.
    """

    def __init__(
        self,
        instance: PackingInstance,
        kinds: TaskKinds,
        clique: tuple[int, ...] = (),
        *,
        ordered: bool = False,
    ) -> None:
        self.instance, self.kinds = instance, kinds
        self.clique = clique[: instance.cores]
        self.model = cp_model.CpModel()
        self.limited = instance.load_limit_ns is not None
        self.used = sorted({w for weights in kinds.weights for w in weights})
        self._load, self._limit = _scaled_loads(instance, kinds)
        self.number: list[list[cp_model.IntVar]] = []
        self.holds: dict[int, list[cp_model.IntVar]] = {}
        self.variables()
        self.every_task_is_placed()
        self.tasks_bring_their_weights()
        self.capacity_of_a_core()
        self.load_of_a_core()
        self.clique_is_spread()
        if ordered:
            self.fill_in_first_fit_order()

    @staticmethod
    def size(instance: PackingInstance, kinds: TaskKinds) -> int:
        """Variables that the model will have."""
        weights = {w for held in kinds.weights for w in held}
        return (kinds.count + len(weights)) * instance.cores

    def variables(self) -> None:
        """Counts for each kind and core, one Boolean for each weight and core."""
        cores = range(self.instance.cores)
        for kind in range(self.kinds.count):
            most = self._most(kind)
            self.number.append([self.model.new_int_var(0, most, "") for _ in cores])
        for weight in self.used:
            self.holds[weight] = [self.model.new_bool_var("") for _ in cores]

    def every_task_is_placed(self) -> None:
        """The counts of a kind add up to its tasks."""
        for kind, counts in enumerate(self.number):
            copies = self.kinds.copies(kind, self.limited)
            if copies == 1:
                self.model.add_exactly_one(counts)
            else:
                self.model.add(sum(counts) == copies)

    def tasks_bring_their_weights(self) -> None:
        """A core that has a task of a kind holds all its weights."""
        for kind, counts in enumerate(self.number):
            most = self._most(kind)
            for weight in self.kinds.weights[kind]:
                for count, held in zip(counts, self.holds[weight], strict=True):
                    if most == 1:
                        self.model.add_implication(count, held)
                    else:
                        self.model.add(count <= most * held)

    def capacity_of_a_core(self) -> None:
        """The union fits; no core can use more than the reachable capacity."""
        sizes = [int(self.instance.slots[w]) for w in self.used]
        reach = reachable_capacity(
            np.array(sizes, dtype=np.int64), self.instance.capacity
        )
        for core in range(self.instance.cores):
            row = [self.holds[w][core] for w in self.used]
            self.model.add(cp_model.LinearExpr.weighted_sum(row, sizes) <= reach)

    def load_of_a_core(self) -> None:
        """The work of a core stays below the limit."""
        if not self.limited:
            return
        for core in range(self.instance.cores):
            row = [counts[core] for counts in self.number]
            self.model.add(
                cp_model.LinearExpr.weighted_sum(row, self._load) <= self._limit
            )

    def clique_is_spread(self) -> None:
        """Kinds that pairwise exclude each other sit on cores 0, 1, 2, ..."""
        for core, kind in enumerate(self.clique):
            self.model.add(self.number[kind][core] >= 1)

    def fill_in_first_fit_order(self) -> None:
        """Branch kind by kind, most demanding first, as many as fit, core by core."""
        slots = self.instance.slots
        order = sorted(
            range(self.kinds.count),
            key=lambda k: (
                -sum(int(slots[w]) for w in self.kinds.weights[k]),
                -self.kinds.load_ns[k],
                k,
            ),
        )
        self.model.add_decision_strategy(
            [count for kind in order for count in self.number[kind]],
            cp_model.CHOOSE_FIRST,
            cp_model.SELECT_MAX_VALUE,
        )

    def _most(self, kind: int) -> int:
        copies = self.kinds.copies(kind, self.limited)
        load = self._load[kind]
        return min(copies, self._limit // load) if load else copies

    def assignment(self, solution: Solution) -> IntArray:
        """[T] core of each task."""
        core_of = np.full(self.instance.tasks, -1, dtype=np.int64)
        for kind, counts in enumerate(self.number):
            members = list(self.kinds.members[kind])
            if not self.limited:
                counts_of = [solution.value(c) for c in counts]
                core_of[members] = counts_of.index(1)
                continue
            for core, count in enumerate(counts):
                for _ in range(solution.value(count)):
                    core_of[members.pop(0)] = core
        return core_of


class RepresentativesModel:
    """Asymmetric representatives: kind j sits on the core led by some i <= j.

    No core has a number, so there is no symmetry between cores.  Without a load
    limit only.
    """

    def __init__(self, instance: PackingInstance, kinds: TaskKinds) -> None:
        self.instance, self.kinds = instance, kinds
        slots = instance.slots
        self.order = sorted(
            range(kinds.count),
            key=lambda k: (-sum(int(slots[w]) for w in kinds.weights[k]), k),
        )
        self.model = cp_model.CpModel()
        self.led: dict[tuple[int, int], cp_model.IntVar] = {}
        self.variables()
        self.every_kind_has_a_leader()
        self.leaders_lead_themselves()
        self.union_of_a_core_fits()
        self.model.add(
            sum(self.led[i, i] for i in range(kinds.count)) <= instance.cores
        )

    @staticmethod
    def size(kinds: TaskKinds) -> int:
        """Variables that the model will have, about."""
        weights = len({w for held in kinds.weights for w in held})
        return kinds.count * (kinds.count + 1) // 2 + kinds.count * weights

    def variables(self) -> None:
        """led[i, j] where both fit on one core; kinds in order of size."""
        for j in range(self.kinds.count):
            for i in range(j + 1):
                if i == j or self._union([i, j]) <= self.instance.capacity:
                    self.led[i, j] = self.model.new_bool_var("")

    def every_kind_has_a_leader(self) -> None:
        """Exactly one core for each kind."""
        for j in range(self.kinds.count):
            self.model.add_exactly_one(
                self.led[i, j] for i in range(j + 1) if (i, j) in self.led
            )

    def leaders_lead_themselves(self) -> None:
        """A kind can only join a core whose leader is on it."""
        for (i, j), literal in self.led.items():
            if i != j:
                self.model.add_implication(literal, self.led[i, i])

    def union_of_a_core_fits(self) -> None:
        """Capacity over the union of what a leader leads."""
        for i in range(self.kinds.count):
            held: dict[int, cp_model.IntVar] = {}
            for j in range(i, self.kinds.count):
                if (i, j) not in self.led:
                    continue
                for weight in self._weights(j):
                    if weight not in held:
                        held[weight] = self.model.new_bool_var("")
                    self.model.add_implication(self.led[i, j], held[weight])
            self.model.add(
                cp_model.LinearExpr.weighted_sum(
                    list(held.values()), [int(self.instance.slots[w]) for w in held]
                )
                <= self.instance.capacity
            )

    def _weights(self, position: int) -> tuple[int, ...]:
        return self.kinds.weights[self.order[position]]

    def _union(self, positions: list[int]) -> int:
        held = sorted({w for p in positions for w in self._weights(p)})
        return int(self.instance.slots[held].sum())

    def assignment(self, solution: Solution) -> IntArray:
        """[T] core of each task; cores in the order of their leaders."""
        core_of = np.full(self.instance.tasks, -1, dtype=np.int64)
        number: dict[int, int] = {}
        for (i, j), literal in sorted(self.led.items()):
            if solution.true(literal):
                core = number.setdefault(i, len(number))
                core_of[list(self.kinds.members[self.order[j]])] = core
        return core_of


class PatternModel:
    """How often each known pattern (tasks of each kind that share a core) is used.

    Any solution is a packing; that there is none among these patterns is a proof
    only when they are exhaustive.
    """

    def __init__(
        self, instance: PackingInstance, kinds: TaskKinds, patterns: IntArray
    ) -> None:
        self.instance, self.kinds, self.patterns = instance, kinds, patterns
        self.limited = instance.load_limit_ns is not None
        self.model = cp_model.CpModel()
        self.times = [
            self.model.new_int_var(0, instance.cores, "") for _ in range(len(patterns))
        ]
        self.every_task_is_covered()
        self.model.add(sum(self.times) <= instance.cores)

    def every_task_is_covered(self) -> None:
        """At least as many places as tasks, for each kind."""
        for kind in range(self.kinds.count):
            column = self.patterns[:, kind].tolist()
            self.model.add(
                cp_model.LinearExpr.weighted_sum(self.times, column)
                >= self.kinds.copies(kind, self.limited)
            )

    def assignment(self, solution: Solution) -> IntArray:
        """[T] core of each task; places that are not needed stay empty."""
        core_of = np.full(self.instance.tasks, -1, dtype=np.int64)
        left = [list(members) for members in self.kinds.members]
        core = 0
        for pattern, times in zip(self.patterns.tolist(), self.times, strict=True):
            for _ in range(solution.value(times)):
                for kind, count in enumerate(pattern):
                    taken = left[kind][:count] if self.limited else left[kind]
                    if count and taken:
                        core_of[taken] = core
                        left[kind] = left[kind][len(taken) :]
                core += 1
        return core_of


PackingModel = CountModel | RepresentativesModel | PatternModel


def pack(
    instance: PackingInstance,
    budget: SolveBudget,
    *,
    settings: SolveSettings | None = None,
    limit: float | None = None,
    greedy: bool = True,
) -> PackingResult:
    """Decide one packing.

    Args:
        instance: tasks, weights, cores, load limit.
        budget: of the run.
        settings: seed and workers of the solves.
        limit: deterministic time of the whole portfolio; default: all that remains.
        greedy: try greedy packing before the solver.

    Raises:
        InternalError: an assignment of the solver breaks a rule.
    """
    refuted, bound = _refuted_by_counting(instance)
    if refuted is not None:
        return refuted
    if greedy:
        found = GreedyPacker(instance).fewest(
            instance.load_limit_ns, instance.cores, enough=instance.cores
        )
        if found is not None:
            return _feasible(
                instance, bound, found.core_of.astype(np.int64), "greedy", ()
            )
    kinds = TaskKinds.of(instance)
    clique, refuted = _refuted_by_clique(instance, kinds, bound)
    if refuted is not None:
        return refuted
    patterns = _patterns(instance, kinds, instance.cores)
    if patterns is not None and patterns.cores > instance.cores:
        better = CoreBound(patterns.cores, "patterns")
        return PackingResult(Verdict.INFEASIBLE, better, method="patterns")
    portfolio = _Portfolio(
        instance, kinds, clique, bound, budget, settings or SolveSettings(), limit
    )
    portfolio.patterns = patterns
    return portfolio.run()


def _patterns(
    instance: PackingInstance, kinds: TaskKinds, cores: int
) -> PatternBound | None:
    """The pattern bound, where it applies: loads, or weights that nobody shares."""
    if not 1 <= kinds.count <= KIND_LIMIT:
        return None
    used = sorted({w for weights in kinds.weights for w in weights})
    local = {weight: number for number, weight in enumerate(used)}
    slots = instance.slots[used] if used else instance.slots[:0]
    held = [local[w] for weights in kinds.weights for w in weights]
    limit = instance.load_limit_ns
    if limit is None and len(held) != len(used):
        return None
    count = [kinds.copies(k, limit is not None) for k in range(kinds.count)]
    load = kinds.load_ns
    if limit is None:
        load = tuple(
            sum(int(instance.slots[w]) for w in weights) for weights in kinds.weights
        )
        limit = instance.capacity
    return pattern_bound(
        PatternKinds(
            load=np.array(load, dtype=np.int64),
            count=np.array(count, dtype=np.int64),
            weight_ptr=np.cumsum([0, *(len(w) for w in kinds.weights)]),
            weight_idx=np.array(held, dtype=np.int64),
            slots=np.array(slots),
            capacity=instance.capacity,
            limit=limit,
        ),
        cores,
    )


def counting_bound(instance: PackingInstance) -> CoreBound:
    """Best bound on the cores without the solver, patterns included."""
    bound = core_bound(instance)
    if bound.cores >= IMPOSSIBLE:
        return bound
    patterns = _patterns(instance, TaskKinds.of(instance), 0)
    if patterns is None or patterns.cores <= bound.cores:
        return bound
    return CoreBound(patterns.cores, "patterns")


def proved_infeasible(instance: PackingInstance) -> CoreBound | None:
    """The counting or clique argument against a packing, None when there is none."""
    refuted, bound = _refuted_by_counting(instance)
    if refuted is not None:
        return refuted.bound
    _, refuted = _refuted_by_clique(instance, TaskKinds.of(instance), bound)
    return None if refuted is None else refuted.bound


def _refuted_by_counting(
    instance: PackingInstance,
) -> tuple[PackingResult | None, CoreBound]:
    bound = core_bound(instance)
    if bound.cores <= instance.cores:
        return None, bound
    return PackingResult(Verdict.INFEASIBLE, bound, method="counting"), bound


def _refuted_by_clique(
    instance: PackingInstance, kinds: TaskKinds, bound: CoreBound
) -> tuple[tuple[int, ...], PackingResult | None]:
    """Kinds that pairwise exclude each other, and the answer when they decide."""
    if kinds.count > _CLIQUE_LIMIT or kinds.count == 0:
        return (), None
    first = [members[0] for members in kinds.members]
    clique = incompatible_clique(instance.only(first))
    if len(clique) <= instance.cores:
        return clique, None
    witnesses = tuple(sorted(first[k] for k in clique))
    better = CoreBound(len(clique), "clique", witnesses)
    return clique, PackingResult(Verdict.INFEASIBLE, better, method="clique")


def _feasible(
    instance: PackingInstance,
    bound: CoreBound,
    core_of: IntArray,
    method: str,
    records: tuple[SolveRecord, ...],
) -> PackingResult:
    wrong = validate_packing(instance, core_of)
    if wrong:
        raise InternalError(f"weight packing by {method}: {wrong[0]}")
    load = np.zeros(instance.cores, dtype=np.int64)
    np.add.at(load, core_of, instance.load_ns)
    return PackingResult(
        Verdict.FEASIBLE, bound, core_of, int(load.max()), method, records
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """One solve of the portfolio: model, settings, share of the time."""

    name: str
    settings: SolveSettings
    share: float


class _Portfolio:
    """Models in a fixed order inside one deterministic budget."""

    def __init__(
        self,
        instance: PackingInstance,
        kinds: TaskKinds,
        clique: tuple[int, ...],
        bound: CoreBound,
        budget: SolveBudget,
        settings: SolveSettings,
        limit: float | None,
    ) -> None:
        self.instance, self.kinds, self.clique = instance, kinds, clique
        self.bound, self.budget = bound, budget
        self.base = replace(settings, symmetry_level=0)
        self.limit = budget.grant(limit)
        self.patterns: PatternBound | None = None
        self.records: list[SolveRecord] = []
        self.note = ""

    def steps(self) -> Iterator[_Step]:
        """The plan; shares of the limit, what is left over goes to later steps."""
        light = replace(self.base, light_presolve=True)
        # Without the full linearization pattern models stay open for seconds.
        full = replace(self.base, linearization_level=2)
        columns = 0 if self.patterns is None else len(self.patterns.patterns)
        if 0 < columns <= _FEW_PATTERNS:
            yield _Step("patterns", full, 0.4)
        yield _Step("first-fit", replace(light.single(), fixed_search=True), 0.1)
        yield _Step("counts", full, 0.3)
        if _FEW_PATTERNS < columns <= _MOST_PATTERNS:
            yield _Step("patterns", full, 0.4)
        limited = self.instance.load_limit_ns is not None
        if not limited and self.kinds.count <= _REPRESENTATIVES_LIMIT:
            yield _Step("representatives", self.base, 0.3)
        yield _Step("counts", replace(light, linearization_level=0), 0.3)

    def run(self) -> PackingResult:
        size = CountModel.size(self.instance, self.kinds)
        if not fits(size):
            return self._unknown(f"{size} variables are too many for the solver")
        spent_before = self.budget.spent
        for step in self.steps():
            left = self.limit - (self.budget.spent - spent_before)
            granted = min(left, max(step.share * self.limit, 1e-3))
            if granted < 1e-3:
                break
            result = self._try(step, granted)
            if result is not None:
                return result
        return self._unknown(self.note or "the solver's time is spent")

    def _model(self, name: str) -> PackingModel | None:
        if name == "patterns":
            if self.patterns is None:
                return None
            return PatternModel(self.instance, self.kinds, self.patterns.patterns)
        if name == "representatives":
            if not fits(RepresentativesModel.size(self.kinds)):
                return None
            return RepresentativesModel(self.instance, self.kinds)
        ordered = name == "first-fit"
        clique = () if ordered else self.clique
        return CountModel(self.instance, self.kinds, clique, ordered=ordered)

    def _try(self, step: _Step, granted: float) -> PackingResult | None:
        model = self._model(step.name)
        if model is None:
            return None
        outcome = solve(
            model.model,
            self.budget,
            what=f"weight packing ({step.name})",
            settings=step.settings,
            limit=granted,
        )
        self.records.append(outcome.record)
        if outcome.solution is None:
            if outcome.record.status is not SolverClaim.INFEASIBLE:
                return None
            some = self.patterns is None or not self.patterns.exhaustive
            if some and step.name == "patterns":
                return None  # there may be others
            return self._confirm(model, outcome, step)
        return self._placed(model, outcome.solution, step.name)

    def _placed(
        self, model: PackingModel, solution: Solution, name: str
    ) -> PackingResult | None:
        core_of = model.assignment(solution)
        if self._was_scaled and validate_packing(self.instance, core_of):
            self.note = "loads were rounded for the solver: its answer does not hold"
            return None
        return _feasible(self.instance, self.bound, core_of, name, tuple(self.records))

    def _confirm(
        self, model: PackingModel, outcome: SolveOutcome, step: _Step
    ) -> PackingResult | None:
        outcome = confirm(
            model.model,
            outcome,
            self.budget,
            settings=step.settings,
            limit=self.limit,
        )
        if outcome.confirmation is not None:
            self.records.append(outcome.confirmation)
        if outcome.verdict is Verdict.INFEASIBLE:
            return PackingResult(
                Verdict.INFEASIBLE,
                self.bound,
                method=step.name,
                records=tuple(self.records),
            )
        self.note = outcome.note
        if outcome.solution is not None:
            # A validated assignment settles it, whatever the first solve said.
            return self._placed(model, outcome.solution, step.name)
        return self._unknown(self.note)

    @property
    def _was_scaled(self) -> bool:
        limit = self.instance.load_limit_ns
        return limit is not None and scale_divisor(limit) > 1

    def _unknown(self, note: str) -> PackingResult:
        return PackingResult(
            Verdict.UNKNOWN, self.bound, records=tuple(self.records), note=note
        )


def _scaled_loads(instance: PackingInstance, kinds: TaskKinds) -> tuple[list[int], int]:
    """Loads of the kinds and the limit, below 2**31, in a common unit."""
    limit = instance.load_limit_ns
    if limit is None:
        return [0] * kinds.count, MAX_COEFFICIENT
    reach = reachable_capacity(instance.load_ns, limit)
    positive = [load for load in kinds.load_ns if load]
    step = int(np.gcd.reduce(positive)) if positive else 1
    divisor = max(step, scale_divisor(max(reach, 1)))
    if divisor > step:  # no exact unit is small enough
        return [load // divisor for load in kinds.load_ns], reach // divisor
    return [load // step for load in kinds.load_ns], reach // step
