"""List scheduling under weight capacity: the frame that PEFT and HEFT share.

A method gives two things: a priority for each task, and what it adds to a task's end
when cores are compared.  The frame gives the rest (scheduling spec, "Capacity and
recovery"):

1. *arrival*: tasks in priority order, each to the core of the least key that has, or
   has room for, its weights: load- and communication-aware;
2. *largest-first*, when a task fits nowhere: each maximal weight set reserves a core,
   largest first, where the method would run most of its work if capacity were no
   limit; then the tasks as before, on what is reserved and on what is left;
3. *constructed*, when a set fits nowhere: the same with the reservation of the shared
   constructor (:func:`~raptor_cp.pipeline.packing.pack_resident`): reuse-first best
   fit, reverse order, at most 16 deviations within 65,536 checks.

A reservation holds every task's weights on some core, so the pass that follows it
cannot fail.  When no reservation is found either, the answer is a
:class:`LatencyFailure`: UNKNOWN (the bounded search is exhausted) or INFEASIBLE (a
lower bound exceeds the chip), never a claim without a proof.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import InternalError
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.latency.insertion import Insertion, insert_in_order
from raptor_cp.pipeline.packing import (
    CHECK_LIMIT,
    DEVIATION_LIMIT,
    Packed,
    PackingCounts,
    PackingExhausted,
    PackingMethod,
    PackingRefuted,
    pack_resident,
)
from raptor_cp.pipeline.weights import IMPOSSIBLE, IndexedResidentWeights
from raptor_cp.schedules import Placement
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


_NO_WORK = PackingCounts()


class ReservationMethod(StrEnum):
    """Which step made the weights fit; see the module docstring."""

    ARRIVAL = "arrival"
    LARGEST_FIRST = "largest-first"
    CONSTRUCTED = "constructed"
    GIVEN = "given"  #: an assignment from outside, e.g. of a solver


@dataclass(frozen=True, eq=False)
class ListSchedule:
    """A complete schedule of one inference.

    Attributes:
        method: name of the list scheduler.
        placement: cores, and insertion order on each core.
        start_ns: [T] starts as the list scheduler planned them.
        makespan_ns: end of the last task in that plan; the evaluator's completion
            is never larger.
        reservation: which step made the weights fit.
        packing: constructor behind a constructed reservation.
        counts: work of the shared constructor.
    """

    method: str
    placement: Placement
    start_ns: IntArray
    makespan_ns: int
    reservation: ReservationMethod
    packing: PackingMethod | None = None
    counts: PackingCounts = _NO_WORK

    @property
    def verdict(self) -> Verdict:
        """FEASIBLE."""
        return Verdict.FEASIBLE

    def to_dict(self) -> dict[str, object]:
        """What the list scheduler did, for reports."""
        return {
            "method": self.method,
            "verdict": self.verdict,
            "reason": None,
            "makespan_ns": self.makespan_ns,
            "reservation": self.reservation,
            "packing": self.packing,
            "budgets": _recovery_budgets(self.counts),
        }


@dataclass(frozen=True, eq=False)
class LatencyFailure:
    """No placement was found.

    Attributes:
        method: name of the list scheduler.
        verdict: UNKNOWN: the bounded search is exhausted; INFEASIBLE: proved by
            ``least_cores``.
        reason: one sentence.
        counts: work of the shared constructor.
        least_cores: lower bound on the cores; None when one task exceeds a core.
    """

    method: str
    verdict: Verdict
    reason: str
    counts: PackingCounts
    least_cores: int | None

    def to_dict(self) -> dict[str, object]:
        """Where the list scheduler ended, for reports."""
        return {
            "method": self.method,
            "verdict": self.verdict,
            "reason": self.reason,
            "makespan_ns": None,
            "reservation": None,
            "packing": None,
            "budgets": _recovery_budgets(self.counts),
        }


LatencyOutcome = ListSchedule | LatencyFailure


def _recovery_budgets(counts: PackingCounts) -> dict[str, dict[str, int]]:
    """Used and limit of the shared constructor's retries, for reports."""
    return {
        "packing_deviations": {"used": counts.deviations, "limit": DEVIATION_LIMIT},
        "core_candidate_checks": {"used": counts.recovery_checks, "limit": CHECK_LIMIT},
    }


class LatencyScheduler(Protocol):
    """A latency method, as the main job sees it."""

    @property
    def name(self) -> str:
        """``peft``, ``heft``."""
        ...

    def schedule(self, assignment: IndexArray | None = None) -> LatencyOutcome:
        """Schedule the problem; ``assignment`` ([T] cores) reserves weights."""
        ...


class ListScheduler:
    """Base of the list schedulers; see the module docstring.

    Args:
        problem: graph, costs and chip.
    """

    name = "list"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = LatencyCosts.of(problem)
        self.weights = IndexedResidentWeights.of(problem)

    @property
    def priorities(self) -> Sequence[int]:
        """[T] the larger, the earlier among the tasks that are ready."""
        raise NotImplementedError

    @property
    def look_ahead_ns(self) -> IntArray | None:
        """[T, P] added to a task's end when cores are compared."""
        raise NotImplementedError

    @cached_property
    def order(self) -> IntArray:
        """[T] tasks as they are placed: the ready task of the largest priority
        first, the lower id on a tie."""
        costs, priority = self.costs, self.priorities
        waiting = np.diff(costs.pred_ptr).tolist()
        ptr, successors = costs.succ_ptr.tolist(), costs.succ_dst.tolist()
        ready = [(-priority[t], t) for t in range(costs.tasks) if not waiting[t]]
        heapq.heapify(ready)
        order = []
        while ready:
            _, task = heapq.heappop(ready)
            order.append(task)
            for successor in successors[ptr[task] : ptr[task + 1]]:
                waiting[successor] -= 1
                if not waiting[successor]:
                    heapq.heappush(ready, (-priority[successor], successor))
        return np.array(order, dtype=np.int64)

    def schedule(self, assignment: IndexArray | None = None) -> LatencyOutcome:
        """Place all tasks.

        Args:
            assignment: [T] a core for each task whose unions fit: its weights are
                reserved there before any task is placed.

        Raises:
            InternalError: ``assignment`` does not fit.
        """
        if assignment is not None:
            held = self._seats_of(assignment)
            return self._reserved(held, ReservationMethod.GIVEN)
        arrival = self._insert(None)
        if arrival.placed == self.costs.tasks:
            return self._result(arrival, ReservationMethod.ARRIVAL)
        seats = self._largest_first()
        if seats is not None:
            return self._reserved(seats, ReservationMethod.LARGEST_FIRST)
        return self._constructed()

    def schedule_on(self, held: BoolArray) -> ListSchedule:
        """Place all tasks on a reservation that has a core for every task.

        Args:
            held: [P, W] weights that cores hold already, within their capacity.

        Raises:
            InternalError: it exceeds a core, or some task finds no core.
        """
        if (held @ self.weights.slots > self.weights.capacity).any():
            raise InternalError("a reservation exceeds a core's capacity")
        return self._reserved(held, ReservationMethod.GIVEN)

    def _insert(self, held: BoolArray | None, capacity: int | None = None) -> Insertion:
        return insert_in_order(
            self.order, self.costs, self.look_ahead_ns, self.weights, held, capacity
        )

    def _largest_first(self) -> BoolArray | None:
        """[P, W] reservation; None when some weight set fits nowhere."""
        weights, cores = self.weights, self.costs.cores
        total = int(weights.slots.sum())
        free = self._insert(None, max(total, weights.capacity))
        work = np.zeros((weights.class_count, cores), dtype=np.int64)
        np.add.at(work, (weights.task_class, free.core_of), free.end_ns - free.start_ns)
        items = weights.maximal_classes(range(self.costs.tasks))
        items = items[np.lexsort((items, -weights.class_slots[items]))]
        held = np.zeros((cores, weights.slots.size), dtype=np.bool_)
        used = np.zeros(cores, dtype=np.int64)
        load = np.zeros(cores, dtype=np.int64)
        for item in items.tolist():
            row = weights.class_weights(item)
            need = (~held[:, row] * weights.slots[row]).sum(axis=1)
            fits = np.flatnonzero(used + need <= weights.capacity)
            if fits.size == 0:
                return None
            keys = (fits, load[fits], need[fits], -work[item, fits])
            core = int(fits[np.lexsort(keys)[0]])
            held[core, row] = True
            used[core] += need[core]
            load[core] += int(work[item].sum())
        return held

    def _constructed(self) -> LatencyOutcome:
        weights, tasks = self.weights, list(range(self.costs.tasks))
        cores, capacity = self.costs.cores, weights.capacity
        outcome = pack_resident(
            weights, tasks, cores, self.problem.costs.execution_ns.copy()
        )
        match outcome:
            case Packed():
                return self._reserved(
                    self._seats_of(outcome.core_of),
                    ReservationMethod.CONSTRUCTED,
                    outcome,
                )
            case PackingExhausted():
                counts = outcome.counts
                return LatencyFailure(
                    self.name,
                    Verdict.UNKNOWN,
                    f"the weights found no place on {cores} cores of {capacity} "
                    f"weight slots: {counts.deviations} deviations and "
                    f"{counts.recovery_checks} core-candidate checks were tried",
                    counts,
                    weights.bound(tasks).cores,
                )
            case PackingRefuted():
                least = outcome.bound.cores
                alone = least >= IMPOSSIBLE
                return LatencyFailure(
                    self.name,
                    Verdict.INFEASIBLE,
                    f"a task needs more than the {capacity} weight slots of a core"
                    if alone
                    else f"the weights need at least {least} cores of {capacity} "
                    f"weight slots, there are {cores}",
                    PackingCounts(),
                    None if alone else least,
                )

    def _seats_of(self, assignment: IndexArray) -> BoolArray:
        """[P, W] one core for each maximal weight set, where its first task is.

        Further copies that the assignment makes are not reserved: the pass over the
        tasks copies weights where that pays.
        """
        weights = self.weights
        held = np.zeros((self.costs.cores, weights.slots.size), dtype=np.bool_)
        classes, first = np.unique(weights.task_class, return_index=True)
        task_of = dict(zip(classes.tolist(), first.tolist(), strict=True))
        for item in weights.maximal_classes(range(self.costs.tasks)).tolist():
            core = int(assignment[task_of[item]])
            held[core, weights.class_weights(item)] = True
        if (held @ weights.slots > weights.capacity).any():
            raise InternalError("a reserved assignment exceeds a core's capacity")
        return held

    def _reserved(
        self,
        held: BoolArray,
        method: ReservationMethod,
        packed: Packed | None = None,
    ) -> ListSchedule:
        insertion = self._insert(held)
        if insertion.placed < self.costs.tasks:
            raise InternalError("a task found no core although its weights have one")
        if packed is None:
            return self._result(insertion, method)
        return self._result(insertion, method, packed.method, packed.counts)

    def _result(
        self,
        insertion: Insertion,
        reservation: ReservationMethod,
        packing: PackingMethod | None = None,
        counts: PackingCounts = _NO_WORK,
    ) -> ListSchedule:
        for array in (insertion.core_of, insertion.start_ns):
            array.setflags(write=False)
        return ListSchedule(
            self.name,
            Placement(insertion.core_of, insertion.order),
            insertion.start_ns,
            insertion.makespan_ns,
            reservation,
            packing,
            counts,
        )
