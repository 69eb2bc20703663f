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

from raptor_cp.errors import InternalError
from raptor_cp.models.greedy_packing import GreedyPacker
from raptor_cp.models.instances import validate_packing
from raptor_cp.models.packing_bounds import (
    IMPOSSIBLE,
    CoreBound,
    core_bound,
    incompatible_clique,
)
from raptor_cp.models.packing_models import (
    CountModel,
    PackingModel,
    PatternModel,
    RepresentativesModel,
    TaskKinds,
)
from raptor_cp.models.pattern_bound import (
    KIND_LIMIT,
    PatternBound,
    PatternKinds,
    pattern_bound,
)
from raptor_cp.models.solving import (
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
