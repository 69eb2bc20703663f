"""Union-capacity packing of tasks on the cores of one stage (or of the chip).

The shared constructor (scheduling spec, "Capacity and recovery") has two steps:

1. *Weights*: every maximal weight class gets a core, largest first.  Reuse comes
   first: the core that needs the fewest further slots; ties go to the least loaded
   core (one variant) or to the fullest (the other, best fit).
2. *Tasks*: longest first, on a core that has, or still has room for, its weights.
   Cores whose load stays within ``max(ceil(total / cores), longest task)`` are
   preferred, among them the one that needs the fewest further slots, then the
   least loaded.  Step 1 gave every task a core, so this step cannot fail.

When step 1 fails in both variants it is retried in reverse order, then with single
deviations from the best-fit order: one choice takes its second-best core.  These
retries stop at 16 deviations or 65,536 core-candidate checks.  A failure is then a
bounded-search limitation, not a proof; only lower bounds prove infeasibility.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.pipeline.weights import CoreBound, IndexedResidentWeights

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

DEVIATION_LIMIT: Final = 16
CHECK_LIMIT: Final = 65_536
NO_LIMIT: Final = 2**62  # first attempts


class PackingMethod(StrEnum):
    """Which constructor found the assignment."""

    ORDERED = "ordered"  #: contiguous runs in packing order
    LOAD_AWARE = "load-aware"  #: reuse first, then the least loaded core
    BEST_FIT = "best-fit"  #: reuse first, then the fullest core
    REVERSED = "reversed"  #: best fit, smallest weights first
    DEVIATION = "deviation"  #: best fit with one choice changed


class CheckBudget:
    """Counts core-candidate checks and deviations of one recovery.

    The limits are handed to the kernels as what is left, and ``spend`` refuses more
    than that: neither count can exceed its limit.
    """

    __slots__ = ("check_limit", "checks", "deviation_limit", "deviations")

    def __init__(
        self, checks: int = CHECK_LIMIT, deviations: int = DEVIATION_LIMIT
    ) -> None:
        for name, value, most in (
            ("checks", checks, CHECK_LIMIT),
            ("deviations", deviations, DEVIATION_LIMIT),
        ):
            if not 0 <= value <= most:
                raise MalformedInput(
                    f"{name} is outside the limits of packing recovery",
                    value=value,
                    expected=f"0 to {most}",
                )
        self.check_limit, self.deviation_limit = checks, deviations
        self.checks = self.deviations = 0

    @property
    def checks_left(self) -> int:
        """Checks that may still be made."""
        return self.check_limit - self.checks

    @property
    def spent(self) -> bool:
        """True when no further attempt may start."""
        return self.checks_left == 0 or self.deviations == self.deviation_limit

    def spend(self, checks: int, *, deviation: bool) -> None:
        """Count an attempt.

        Raises:
            InternalError: it took more than was left.
        """
        if checks > self.checks_left or (
            deviation and self.deviations == self.deviation_limit
        ):
            raise InternalError("packing recovery exceeded its budget")
        self.checks += checks
        self.deviations += deviation


@dataclass(frozen=True, slots=True)
class PackingCounts:
    """Work of the constructor.

    Attributes:
        first_checks: core-candidate checks of the two first attempts (unlimited).
        recovery_checks: the same of all retries, at most 65,536.
        deviations: single-choice deviations tried, at most 16.
    """

    first_checks: int = 0
    recovery_checks: int = 0
    deviations: int = 0


class RecoveryUse:
    """The largest counts of any packing recovery of a run, for its reports."""

    __slots__ = ("checks", "deviations")

    def __init__(self) -> None:
        self.checks = self.deviations = 0

    def note(self, outcome: PackingOutcome) -> None:
        """Take an outcome of the constructor into account."""
        if not isinstance(outcome, PackingRefuted):
            counts = outcome.counts
            self.checks = max(self.checks, counts.recovery_checks)
            self.deviations = max(self.deviations, counts.deviations)


@dataclass(frozen=True, eq=False)
class Packed:
    """An assignment in hand.

    Attributes:
        core_of: [n] local core (0 .. cores-1) of ``tasks[i]``.
        cores: cores offered; some may stay idle.
        load_ns: largest core load.
        method: the constructor that found it.
        counts: what it took.
    """

    core_of: IndexArray
    cores: int
    load_ns: int
    method: PackingMethod
    counts: PackingCounts = PackingCounts()

    @property
    def verdict(self) -> Verdict:
        """FEASIBLE."""
        return Verdict.FEASIBLE


@dataclass(frozen=True, slots=True)
class PackingExhausted:
    """The bounded search found nothing: no claim of infeasibility."""

    cores: int
    counts: PackingCounts

    @property
    def verdict(self) -> Verdict:
        """UNKNOWN."""
        return Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class PackingRefuted:
    """Proved: a lower bound exceeds the cores offered."""

    cores: int
    bound: CoreBound

    @property
    def verdict(self) -> Verdict:
        """INFEASIBLE."""
        return Verdict.INFEASIBLE


PackingOutcome = Packed | PackingExhausted | PackingRefuted


def pack_resident(
    weights: IndexedResidentWeights,
    tasks: Sequence[int],
    cores: int,
    execution_ns: IntArray,
    budget: CheckBudget | None = None,
) -> PackingOutcome:
    """Place tasks on ``cores`` like cores under union capacity.

    Args:
        weights: index of the problem.
        tasks: distinct task ids.
        cores: local cores offered.
        execution_ns: [T] execution time of every task of the problem.
        budget: recovery budget; a full one of its own when None.

    Returns:
        An assignment; or Refuted with the bound that proves that none exists; or
        Exhausted with what was tried.
    """
    bound = weights.bound(tasks)
    if cores < bound.cores:
        return PackingRefuted(cores, bound)
    constructor = _Constructor(weights, tasks, cores, execution_ns)
    return constructor.run(CheckBudget() if budget is None else budget)


def check_packing(
    weights: IndexedResidentWeights,
    tasks: Sequence[int],
    core_of: Sequence[int] | IndexArray,
    cores: int,
) -> None:
    """Recompute the union of every core, without any of the packers.

    Raises:
        InternalError: a task outside the cores, or a union above the capacity.
    """
    if len(tasks) != len(core_of):
        raise InternalError(f"{len(core_of)} cores for {len(tasks)} tasks")
    held: dict[int, set[int]] = {}
    for task, core in zip(tasks, core_of, strict=True):
        if not 0 <= core < cores:
            raise InternalError(f"task {task} on core {core} of {cores}")
        row = weights.class_weights(int(weights.task_class[task]))
        held.setdefault(int(core), set()).update(row.tolist())
    for core, members in sorted(held.items()):
        need = sum(int(weights.slots[weight]) for weight in sorted(members))
        if need > weights.capacity:
            raise InternalError(
                f"core {core} holds {need} weight slots of {weights.capacity}"
            )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One pass of step 1; see ``_place_classes``."""

    placed: int
    checks: int
    seat: IndexArray
    second: IndexArray


class _Constructor:
    """One packing question, flattened for the kernels."""

    def __init__(
        self,
        weights: IndexedResidentWeights,
        tasks: Sequence[int],
        cores: int,
        execution_ns: IntArray,
    ) -> None:
        self.weights, self.tasks, self.cores = weights, tasks, cores
        self.picked = np.asarray(tasks, dtype=np.int64)
        self.work = execution_ns[self.picked]
        self.classes = weights.task_class[self.picked]
        class_load = np.zeros(weights.class_count, dtype=np.int64)
        np.add.at(class_load, self.classes, self.work)
        self.class_load = class_load
        items = weights.maximal_classes(tasks)
        # largest first, ties by class
        self.items = items[np.lexsort((items, -weights.class_slots[items]))]
        # longest first, ties by position
        self.sequence = np.argsort(-self.work, kind="stable")

    def run(self, budget: CheckBudget) -> PackingOutcome:
        best: Packed | None = None
        first_checks = 0
        for method in (PackingMethod.LOAD_AWARE, PackingMethod.BEST_FIT):
            attempt = self._place(self.items, method is PackingMethod.LOAD_AWARE)
            first_checks += attempt.checks
            if attempt.placed == self.items.size:
                found = self._fill(attempt.seat, method, PackingCounts(first_checks))
                if best is None or found.load_ns < best.load_ns:
                    best = found
        if best is not None:
            return best
        return self._recover(budget, first_checks, attempt)

    def _recover(
        self, budget: CheckBudget, first_checks: int, failed: _Attempt
    ) -> PackingOutcome:
        reverse = self.items[::-1].copy()
        attempt = self._place(reverse, limit=budget.checks_left)
        budget.spend(attempt.checks, deviation=False)
        method = PackingMethod.REVERSED
        # Choices next to the failure first: they are the most constrained ones.
        # A choice without a different second-best core is no deviation.
        for position in range(failed.placed - 1, -1, -1):
            if attempt.placed == self.items.size or budget.spent:
                break
            if failed.second[position] < 0:
                continue
            attempt = self._place(
                self.items, deviation=position, limit=budget.checks_left
            )
            budget.spend(attempt.checks, deviation=True)
            method = PackingMethod.DEVIATION
        counts = PackingCounts(first_checks, budget.checks, budget.deviations)
        if attempt.placed < self.items.size:
            return PackingExhausted(self.cores, counts)
        return self._fill(attempt.seat, method, counts)

    def _place(
        self,
        items: IntArray,
        load_aware: bool = False,
        deviation: int = -1,
        limit: int = NO_LIMIT,
    ) -> _Attempt:
        w = self.weights
        seat = np.full(w.class_count, -1, dtype=np.int32)
        second = np.full(items.size, -1, dtype=np.int32)
        placed, checks = _place_classes(
            items,
            w.class_ptr,
            w.class_idx,
            w.slots,
            w.capacity,
            self.cores,
            self.class_load,
            load_aware,
            deviation,
            limit,
            seat,
            second,
        )
        return _Attempt(int(placed), int(checks), seat, second)

    def _fill(
        self, seat: IndexArray, method: PackingMethod, counts: PackingCounts
    ) -> Packed:
        w = self.weights
        longest = int(self.work.max(initial=0))
        share = ceil_div(int(self.work.sum()), max(self.cores, 1))
        core_of, load = _place_tasks(
            self.sequence,
            self.classes,
            self.work,
            w.class_ptr,
            w.class_idx,
            w.slots,
            w.capacity,
            self.cores,
            seat,
            max(share, longest),
        )
        return Packed(core_of, self.cores, int(load), method, counts)


@njit(cache=True)
def _further_slots(
    held: BoolArray, weights: IndexArray, slots: IntArray, low: int, high: int
) -> int:
    """Slots of a class (weights[low:high]) that a core does not hold yet."""
    total = 0
    for entry in range(low, high):
        if not held[weights[entry]]:
            total += int(slots[weights[entry]])
    return total


@njit(cache=True)
def _place_classes(
    items: IntArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
    cores: int,
    class_load: IntArray,
    load_aware: bool,
    deviation: int,
    limit: int,
    seat: IndexArray,
    second: IndexArray,
) -> tuple[int, int]:
    """Step 1: (items placed, checks); fills the seat of each class, and for each
    item the core that a deviation would take (-1: none that differs)."""
    held = np.zeros((cores, slots.size), dtype=np.bool_)
    used = np.zeros(cores, dtype=np.int64)
    load = np.zeros(cores, dtype=np.int64)
    checks = 0
    for index in range(items.size):
        item = items[index]
        low, high = class_ptr[item], class_ptr[item + 1]
        best, other = -1, -1
        key = (0, 0)
        other_key = (0, 0)
        for core in range(cores):
            if checks >= limit:
                return index, checks
            checks += 1
            need = _further_slots(held[core], class_idx, slots, low, high)
            if used[core] + need > capacity:
                continue
            mine = (need, int(load[core]) if load_aware else -int(used[core]))
            if best < 0 or mine < key:
                if best >= 0 and (used[best] > 0 or used[core] > 0):
                    other, other_key = best, key
                best, key = core, mine
            elif (used[best] > 0 or used[core] > 0) and (other < 0 or mine < other_key):
                other, other_key = core, mine
        if best < 0:
            return index, checks
        second[index] = other
        if index == deviation and other >= 0:
            best = other
        for entry in range(low, high):
            weight = class_idx[entry]
            if not held[best, weight]:
                held[best, weight] = True
                used[best] += slots[weight]
        load[best] += class_load[item]
        seat[item] = best
    return items.size, checks


@njit(cache=True)
def _place_tasks(
    sequence: IntArray,
    classes: IndexArray,
    work: IntArray,
    class_ptr: IndexArray,
    class_idx: IndexArray,
    slots: IntArray,
    capacity: int,
    cores: int,
    seat: IndexArray,
    share: int,
) -> tuple[IndexArray, int]:
    """Step 2: core of each task, and the largest load."""
    held = np.zeros((cores, slots.size), dtype=np.bool_)
    used = np.zeros(cores, dtype=np.int64)
    load = np.zeros(cores, dtype=np.int64)
    for item in range(seat.size):
        if seat[item] < 0:
            continue
        for entry in range(class_ptr[item], class_ptr[item + 1]):
            weight = class_idx[entry]
            if not held[seat[item], weight]:
                held[seat[item], weight] = True
                used[seat[item]] += slots[weight]
    result = np.full(sequence.size, -1, dtype=np.int32)
    for task in sequence:
        low, high = class_ptr[classes[task]], class_ptr[classes[task] + 1]
        best = -1
        key = (0, 0, 0)
        for core in range(cores):
            need = _further_slots(held[core], class_idx, slots, low, high)
            if used[core] + need > capacity:
                continue
            after = int(load[core] + work[task])
            mine = (max(after - share, 0), need, after)
            if best < 0 or mine < key:
                best, key = core, mine
        for entry in range(low, high):
            weight = class_idx[entry]
            if not held[best, weight]:
                held[best, weight] = True
                used[best] += slots[weight]
        load[best] += work[task]
        result[task] = best
    return result, int(load.max()) if cores else 0
