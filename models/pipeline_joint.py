"""Partition, budgets and packing at once: the optimum or a bound of the static cost.

The objective is the maximum over stages of ``max(largest core load, dependency
span)``, ns.  It is bisected from outside by decisions "is there a schedule of cost at
most C?".  One decision is a logic-based decomposition:

* every segment of groups has a proved lower bound on its cores at C
  (:class:`~raptor_cp.models.packing_bounds.SegmentBounds`);
* the exact DP finds the cover that needs fewest cores under these bounds; if that is
  more than the chip has, C is impossible;
* the packing oracle is asked about the segments of that cover only: greedy packing
  first, then counting, then CP-SAT.  A "no" raises the segment's bound, and the DP
  runs again;
* an UNKNOWN counts as "no" for the upper bound and as "yes" for the lower bound.

What is learnt about a segment at one C is kept for every other C it holds for.
Work outside the solver is limited by a counter of its own, solver work by the
budget; no clock is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.models.greedy_packing import GreedyPacker, weight_kinds
from raptor_cp.models.joint_validation import validate_joint
from raptor_cp.models.packing_bounds import IMPOSSIBLE, SegmentBounds, core_bound
from raptor_cp.models.solving import SolveBudget, SolveRecord, SolveSettings
from raptor_cp.models.stage_partition import Segment, fewest_cores_path
from raptor_cp.models.weight_packing import counting_bound, pack
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.models.instances import IntArray, JointInstance

T = TypeVar("T")

#: Work outside the solver in one run, in units of about a nanosecond of CPU time.
WORK_LIMIT = 5_000_000_000
#: Deterministic time of one question to the packing oracle, as a share of the limit.
_QUESTION_SHARE = 0.05
#: Work is shared: the first upper bound, by greedy packing, ends at this share, the
#: counting bounds of segments at that one; the solver's questions have the rest.
_GREEDY_SHARE = 0.3
_COUNTING_SHARE = 0.7
#: Work of one pattern bound.
_PATTERN_WORK = 8_000_000
#: Questions to the packing oracle in one decision.
_QUESTIONS = 120
#: Up to so many tasks the optimum is sought to the ns; beyond, to 0.01 %.
_EXACT_TASKS = 150


@dataclass(frozen=True, eq=False)
class JointStage:
    """One stage of an answer.

    Attributes:
        first, last: its groups [first, last).
        cores: cores it needs.
        core_of: local core (0 to cores-1) of each of its tasks, by ascending id.
        load_ns: largest core load.
        span_ns: longest path of execution times inside the stage.
    """

    first: int
    last: int
    cores: int
    core_of: IntArray
    load_ns: int
    span_ns: int

    @property
    def cost_ns(self) -> int:
        """max(largest core load, dependency span)."""
        return max(self.load_ns, self.span_ns)


@dataclass(frozen=True, eq=False)
class JointResult:
    """Answer of :func:`solve_joint`.

    Attributes:
        verdict: OPTIMAL (objective equals the proved bound), FEASIBLE, INFEASIBLE
            (no schedule of any cost), UNKNOWN (none found).
        objective_ns: static objective of ``stages``; None without a solution.
        bound_ns: no schedule has a smaller static objective; None when infeasible.
        stages: partition, budgets and local packings.
        proof: what the bound rests on: ``counting`` or ``counting and cp-sat``.
        decisions: thresholds that were decided.
        work: units of work outside the solver.
        records: the solves.
        note: why the verdict is not a proof, when it is not.
    """

    verdict: Verdict
    objective_ns: int | None = None
    bound_ns: int | None = None
    stages: tuple[JointStage, ...] = ()
    proof: str = "counting"
    decisions: int = 0
    work: int = 0
    records: tuple[SolveRecord, ...] = ()
    note: str = ""

    @property
    def gap(self) -> float | None:
        """(objective - bound) / bound; None when either is unknown or zero."""
        if self.objective_ns is None or not self.bound_ns:
            return None
        return (self.objective_ns - self.bound_ns) / self.bound_ns


@dataclass(slots=True)
class _Facts:
    """What is known about one segment, for every threshold."""

    #: (limit, cores): on fewer cores there is no packing with loads <= limit.
    needs: list[tuple[int, int]] = field(default_factory=list)
    #: (load, cores, core_of): packings in hand.
    packed: list[tuple[int, int, IntArray]] = field(default_factory=list)

    def least(self, limit_ns: int) -> int:
        """Proved lower bound on cores at a threshold."""
        return max((k for c, k in self.needs if c >= limit_ns), default=1)

    def best(self, limit_ns: int) -> tuple[int, int, IntArray] | None:
        """Packing with fewest cores (then the least load) within a threshold."""
        fitting = [p for p in self.packed if p[0] <= limit_ns]
        return min(fitting, key=lambda p: (p[1], p[0]), default=None)


def solve_joint(
    instance: JointInstance,
    budget: SolveBudget,
    *,
    settings: SolveSettings | None = None,
    limit: float | None = None,
    work_limit: int = WORK_LIMIT,
) -> JointResult:
    """Least static objective, or bounds on it from both sides.

    Args:
        instance: tasks, groups, dependencies, chip.
        budget: of the run.
        settings: seed and workers of the solves.
        limit: deterministic time for all solves here; default: all that remains.
        work_limit: work outside the solver, see :data:`WORK_LIMIT`.

    Raises:
        InternalError: an answer breaks a rule (checked without the solver).
    """
    part = budget.share(budget.total if limit is None else limit)
    search = _JointSearch(instance, part, settings or SolveSettings(), work_limit)
    result = search.run()
    budget.absorb(part)
    return result


class _JointSearch:
    """Bisection over thresholds; see the module docstring."""

    def __init__(
        self,
        instance: JointInstance,
        budget: SolveBudget,
        settings: SolveSettings,
        work_limit: int,
    ) -> None:
        self.instance, self.budget, self.settings = instance, budget, settings
        self.bounds = SegmentBounds(instance)
        self.least, self.most = instance.rules.core_range(
            instance.groups, instance.cores
        )
        self.kinds = weight_kinds(instance.packing)
        self.facts: dict[tuple[int, int], _Facts] = {}
        self.packers: dict[tuple[int, int], GreedyPacker] = {}
        self.work_limit, self.work = work_limit, 0
        self.question_limit = budget.total * _QUESTION_SHARE
        self.decisions = 0
        self.best: tuple[JointStage, ...] = ()
        self.by_solver = False  # the lower bound rests on solver proofs too

    def run(self) -> JointResult:
        packing = self.instance.packing
        most = max(1, int(packing.load_ns.sum()))
        verdict = self.decide(most, ask=False)
        if verdict is Verdict.UNKNOWN:
            verdict = self.decide(most, ask=True)
        if verdict is Verdict.INFEASIBLE:
            return self._result(Verdict.INFEASIBLE, None)
        low = self._counting_floor(most)
        if verdict is Verdict.UNKNOWN:
            return self._result(Verdict.UNKNOWN, low)
        self._within(_GREEDY_SHARE, lambda: self._greedy_ceiling(low))
        low = self._within(_COUNTING_SHARE, lambda: self._segment_floor(low))
        low = self._close(low)
        done = self._objective() <= low
        return self._result(Verdict.OPTIMAL if done else Verdict.FEASIBLE, low)

    def _grain(self, low: int) -> int:
        """Thresholds closer than this (ns) are not told apart."""
        return 1 if self.instance.packing.tasks <= _EXACT_TASKS else 1 + low // 10_000

    def _tired(self, more: int) -> bool:
        """Count work; True when it may not be done any more."""
        if self.work + more > self.work_limit or self.budget.stopped:
            self.work = max(self.work, self.work_limit)
            return True
        self.work += more
        return False

    def _objective(self) -> int:
        return max(stage.cost_ns for stage in self.best)

    def _result(self, verdict: Verdict, bound: int | None) -> JointResult:
        objective = self._objective() if self.best else None
        if objective is not None and bound is not None:
            bound = min(bound, objective)
        if self.best:
            wrong = validate_joint(self.instance, self.best)
            if wrong:
                raise InternalError(f"pipeline joint: {wrong[0]}")
        notes = {
            Verdict.FEASIBLE: "the gap is not closed within the budgets",
            Verdict.UNKNOWN: "no packing was found and none was excluded",
        }
        return JointResult(
            verdict,
            objective,
            bound,
            self.best,
            "counting and cp-sat" if self.by_solver else "counting",
            self.decisions,
            self.work,
            self.budget.records,
            notes.get(verdict, ""),
        )

    # Thresholds

    def _counting_floor(self, most: int) -> int:
        """Least threshold that the bounds alone do not exclude."""
        packing = self.instance.packing
        low = max(1, ceil_div(int(packing.load_ns.sum()), self.instance.cores))
        low = max(low, int(packing.load_ns.max(initial=0)))
        high = most
        while low < high:
            middle = (low + high) // 2
            if self._cover(self.bounds.least_cores(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _within(self, share: float, phase: Callable[[], T]) -> T:
        """Run a phase that may take the work up to a share of the limit."""
        whole = self.work_limit
        self.work_limit = int(whole * share)
        result = phase()
        self.work_limit = whole
        return result

    def _segment_floor(self, low: int) -> int:
        """Raise the floor by the counting bounds of single segments."""
        high = self._objective()
        while low + self._grain(low) <= high and self.work < self.work_limit:
            middle = (low + high - 1) // 2
            if self._excluded(middle):
                low = middle + 1
            else:
                high = middle
        return low

    def _excluded(self, limit_ns: int) -> bool:
        """Whether counting alone proves that no schedule costs <= C.

        The cover with fewest cores is looked at again and again, each time with the
        bounds of the segments that the last one had.
        """
        proved = self._proved(limit_ns)
        seen = np.zeros(proved.shape, dtype=np.bool_)
        while not self._tired(5 * self.instance.depth * proved.size):
            cover = self._cover(proved, seen)
            if not cover:
                return True
            fresh = [(i, j, k) for i, j, k in cover if not seen[i, j]]
            if not fresh:
                return False
            for i, j, cores in fresh:
                seen[i, j] = True
                known = self._facts(i, j).best(limit_ns)
                if known is not None and known[1] <= cores:
                    continue
                segment = self.instance.segment(i, j, cores, limit_ns)
                if self._tired(_PATTERN_WORK + 2_000 * segment.tasks):
                    return False
                bound = counting_bound(segment).cores
                if bound > cores:
                    self._learn(i, j, limit_ns, bound, proved)
        return False

    def _greedy_ceiling(self, low: int) -> None:
        """Upper bound by greedy packing: gallop up from the floor, then bisect."""
        step, bottom, target = max(1, low // 2000), low, low
        while target < self._objective():
            if self.decide(target, ask=False) is Verdict.FEASIBLE:
                break
            bottom = target + 1
            target, step = target + step, 2 * step
        while bottom + self._grain(low) <= self._objective():
            middle = (bottom + self._objective() - 1) // 2
            if self.decide(middle, ask=False) is not Verdict.FEASIBLE:
                bottom = middle + 1

    def _close(self, low: int) -> int:
        """Bisect with the solver from both sides; returns the proved lower bound.

        ``open_low`` to ``open_high`` are thresholds that stayed UNKNOWN: bisection
        goes on below them for the lower bound, above them for the upper bound.
        """
        open_low: int | None = None
        open_high = 0
        turn = 0
        while low + self._grain(low) <= self._objective():
            turn += 1
            top = self._objective() - 1
            if open_low is not None and open_low > top:
                open_low = None  # a better schedule made it irrelevant
            if open_low is None:
                target = (low + top) // 2 if turn % 2 else top
            elif open_high < top and (turn % 2 or low >= open_low):
                target = (open_high + 1 + top) // 2
            elif low < open_low:
                target = (low + open_low - 1) // 2
            else:
                break
            verdict = self.decide(target, ask=True)
            if verdict is Verdict.INFEASIBLE:
                low = max(low, target + 1)
            elif verdict is Verdict.UNKNOWN:
                if self.work >= self.work_limit:
                    break
                open_high = target if open_low is None else max(open_high, target)
                open_low = target if open_low is None else min(open_low, target)
            if open_low is not None and low > open_low:
                open_low = low if low <= open_high else None
        return low

    # One decision

    def decide(self, limit_ns: int, *, ask: bool) -> Verdict:
        """Is there a schedule of cost <= C?  FEASIBLE updates ``best``.

        Args:
            limit_ns: C.
            ask: let the solver answer what greedy packing and counting cannot.
        """
        self.decisions += 1
        proved = self._proved(limit_ns)
        shown = proved.copy()  # what the DP sees: the oracle's "no" included
        settled = np.zeros(proved.shape, dtype=np.bool_)
        questions = 0
        while True:
            cover = self._cover(shown, settled)
            self._tired(5 * self.instance.depth * shown.size)
            if not cover:
                break
            open_cells = [(i, j) for i, j, _ in cover if not settled[i, j]]
            if not open_cells:
                self._keep(cover, limit_ns)
                return Verdict.FEASIBLE
            for i, j in open_cells:
                cores = int(shown[i, j])
                asked = False
                need, final = self._try_greedy(i, j, cores, limit_ns, count=ask)
                if not final and ask and questions < _QUESTIONS:
                    questions += 1
                    asked = True
                    need, final = self._ask(i, j, cores, limit_ns)
                self._raise(i, j, self._facts(i, j).least(limit_ns), proved)
                shown = np.maximum(shown, proved)
                need = max(need, int(proved[i, j]))
                shown[i, j] = need if need <= self.most[i, j] else IMPOSSIBLE
                # An answer "so many are enough" is final; after "no" ask again.
                settled[i, j] = final or not asked
                if asked and not final:
                    break
        if not self._cover(proved):
            return Verdict.INFEASIBLE
        return Verdict.UNKNOWN

    def _proved(self, limit_ns: int) -> IntArray:
        """[G, G+1] proved lower bounds on cores: tables, and what was learnt.

        A segment needs no fewer cores than any segment inside it.
        """
        needs = np.ones(self.most.shape, dtype=np.int64)
        for (i, j), known in self.facts.items():
            needs[i, j] = known.least(limit_ns)
        needs = np.maximum.accumulate(needs, axis=1)
        needs = np.maximum.accumulate(needs[::-1], axis=0)[::-1]
        proved = np.maximum(self.bounds.least_cores(limit_ns), needs)
        proved[proved > self.most] = IMPOSSIBLE
        return proved

    def _raise(self, i: int, j: int, cores: int, proved: IntArray) -> None:
        """Enter a bound of one segment into the table, for all that contain it."""
        around = (slice(0, i + 1), slice(j, None))
        part = np.maximum(proved[around], cores)
        proved[around] = np.where(part > self.most[around], IMPOSSIBLE, part)

    def _learn(
        self, i: int, j: int, limit_ns: int, cores: int, proved: IntArray
    ) -> None:
        least = min(cores, int(IMPOSSIBLE))
        self._facts(i, j).needs.append((limit_ns, least))
        self._raise(i, j, least, proved)

    def _cover(
        self, need: IntArray, settled: np.ndarray | None = None
    ) -> list[Segment]:
        """Segments with fewest cores, [] when the chip has too few of them.

        Among equals a cover of settled segments is preferred: fewer questions.
        """
        scale = 1024
        weighted = np.minimum(need, IMPOSSIBLE // scale) * scale
        if settled is not None:
            weighted = weighted + ~settled
        total, cover = fewest_cores_path(
            weighted, self.instance.depth, self.instance.rules.min_stages
        )
        if not cover or total // scale > self.instance.cores:
            return []
        return [(i, j, int(need[i, j])) for i, j, _ in cover]

    def _facts(self, i: int, j: int) -> _Facts:
        return self.facts.setdefault((i, j), _Facts())

    def _try_greedy(
        self, i: int, j: int, cores: int, limit_ns: int, *, count: bool
    ) -> tuple[int, bool]:
        """(cores that are enough, True when that is ``cores`` itself).

        With ``count`` a failure is followed by the counting bounds of the segment.
        """
        facts = self._facts(i, j)
        known = facts.best(limit_ns)
        if known is None or known[1] > cores:
            self._greedy(i, j, cores, limit_ns)
            known = facts.best(limit_ns)
        if known is not None and known[1] <= cores:
            return cores, True
        if count:
            segment = self.instance.segment(i, j, cores, limit_ns)
            if not self._tired(100_000 + 2_000 * segment.tasks):
                bound = core_bound(segment).cores
                if bound > cores:
                    facts.needs.append((limit_ns, min(bound, int(IMPOSSIBLE))))
        return (int(IMPOSSIBLE) if known is None else known[1]), False

    def _greedy(self, i: int, j: int, cores: int, limit_ns: int) -> None:
        packer = self.packers.get((i, j))
        first = int(self.instance.group_ptr[i])
        last = int(self.instance.group_ptr[j])
        if packer is None:
            packer = GreedyPacker(
                self.instance.packing.run(first, last, 1, None), self.kinds[first:last]
            )
            self.packers[i, j] = packer
        most = self.instance.cores
        visits = 4 * (last - first) * min(most, 2 * cores + 2)
        if self._tired(visits):
            return
        found = packer.fewest(limit_ns, min(most, 2 * cores + 2), enough=cores)
        if found is not None:
            self._facts(i, j).packed.append(
                (found.load_ns, found.cores, found.core_of.astype(np.int64))
            )

    def _ask(self, i: int, j: int, cores: int, limit_ns: int) -> tuple[int, bool]:
        """Ask the oracle whether ``cores`` are enough; learn what it says."""
        facts = self._facts(i, j)
        enough = facts.best(limit_ns)
        fallback = int(IMPOSSIBLE) if enough is None else enough[1]
        if facts.least(limit_ns) > cores:
            return facts.least(limit_ns), False
        segment = self.instance.segment(i, j, cores, limit_ns)
        if self._tired(10_000_000 + 2_000 * segment.tasks * cores):
            return fallback, True
        answer = pack(
            segment,
            self.budget,
            settings=self.settings,
            limit=self.question_limit,
            greedy=False,
        )
        if answer.core_of is not None and answer.load_ns is not None:
            facts.packed.append((answer.load_ns, cores, answer.core_of))
            return cores, True
        if answer.verdict is Verdict.INFEASIBLE:
            least = max(cores + 1, min(answer.bound.cores, int(IMPOSSIBLE)))
            facts.needs.append((limit_ns, least))
            self.by_solver = self.by_solver or bool(answer.records)
            return least, False
        return fallback, True  # UNKNOWN: what greedy packing needs is all we have

    def _keep(self, cover: list[Segment], limit_ns: int) -> None:
        stages = []
        for i, j, cores in cover:
            known = self._facts(i, j).best(limit_ns)
            if known is None or known[1] > cores:
                raise InternalError("a settled segment has no packing")
            load, used, core_of = known
            span = int(self.bounds.span_ns[i, j])
            used = max(used, int(self.least[i, j]))
            stages.append(JointStage(i, j, used, core_of, load, span))
        better = max(stage.cost_ns for stage in stages)
        if better > limit_ns:
            raise InternalError(f"a cover costs {better} ns at threshold {limit_ns}")
        if not self.best or better < self._objective():
            self.best = tuple(stages)
