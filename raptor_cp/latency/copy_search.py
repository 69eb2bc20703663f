"""Which cores should hold copies of which weights: list schedules that learn.

On a chip whose slots run short, list schedulers copy weights greedily, early tasks
first, and leave late operations with few cores.  Here copies are reserved before
anything is placed, by a priority of each maximal weight set.  The schedule that a list
scheduler makes with the reservation shows where it hurts: on the chain of tasks that
decides the end, a task that could have started earlier on a free core raises the
priority of its weights by the time it waited.  Then the copies are reserved again
("squeaky wheel optimization", Joslin and Clements, Journal of Artificial Intelligence
Research 10, 1999).

A further copy of a set that has k copies is worth ``priority / (k^2 slots)``: of work W
on k cores it saves about W / k^2.  Every set gets its first core before any set gets a
second one.  All arithmetic is in integers and every choice has a total order, so that
a search repeats exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.pipeline.weights import IndexedResidentWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.latency.list_scheduling import ListScheduler
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.static_evaluation import StaticEvaluator

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: Rounds of a search.
MAX_ROUNDS = 60
#: Tasks x cores that all list schedules of a search look at, about.
MAX_PLACEMENTS = 24_000_000
#: The work of a set counts so many times as much as a wait for it.
_WORK_SHARE = 32
#: Resolution of the worth of a copy.
_WORTH_SCALE = 1 << 20


@dataclass(frozen=True, eq=False)
class CopyReservation:
    """Weights that cores hold before tasks are placed.

    Attributes:
        held: [P, W].
        copies: of each maximal weight set.
        complete: no set wants a further copy.
    """

    held: BoolArray
    copies: tuple[int, ...]
    complete: bool


class CopySearch:
    """Reservations and list schedules of one problem, round by round.

    Args:
        problem: graph, costs and chip.
        schedulers: list schedulers of it, or of the same graph with other links.
        evaluator: of the problem.

    Attributes:
        best: best schedule of each scheduler so far, by the evaluator's completion.
    """

    def __init__(
        self,
        problem: Problem,
        schedulers: Sequence[ListScheduler],
        evaluator: StaticEvaluator,
    ) -> None:
        self.schedulers, self.evaluator = tuple(schedulers), evaluator
        self.costs = LatencyCosts.of(problem)
        self.weights = weights = IndexedResidentWeights.of(problem)
        self.items = [
            item
            for item in weights.maximal_classes(range(self.costs.tasks)).tolist()
            if weights.class_slots[item] > 0
        ]
        self._members = [weights.class_weights(item) for item in self.items]
        self._slots = [int(weights.class_slots[item]) for item in self.items]
        self._seat = self._seats()
        count = np.bincount(self._seat + 1, minlength=len(self.items) + 1)[1:]
        #: Copies that a set can use.
        self._most = [max(1, min(self.costs.cores, lanes)) for lanes in count.tolist()]
        self._work = np.zeros((len(self.items), self.costs.cores), dtype=np.int64)
        seated = self._seat >= 0
        np.add.at(self._work, self._seat[seated], self.costs.execution_ns[seated])
        self.priority = [
            _WORK_SHARE * int(row.min()) if row.size else 0 for row in self._work
        ]
        self.best: list[Schedule | None] = [None] * len(self.schedulers)
        self.rounds = 0
        self._delays: dict[int, IntArray] = {}

    @property
    def limit(self) -> int:
        """Rounds that the search may have."""
        per_round = len(self.schedulers) * self.costs.tasks * self.costs.cores
        return min(MAX_ROUNDS, max(1, MAX_PLACEMENTS // max(1, per_round)))

    def next_round(self) -> bool:
        """One reservation, one schedule by each scheduler; False when it is over."""
        if not self.items or self.rounds >= self.limit:
            return False
        reserved = self.reservation()
        if reserved is None:
            return False
        self.rounds += 1
        found = [
            self.evaluator.schedule(scheduler.schedule_on(reserved.held).placement)
            for scheduler in self.schedulers
        ]
        for index, schedule in enumerate(found):
            known = self.best[index]
            if known is None or _completion(schedule) < _completion(known):
                self.best[index] = schedule
        if reserved.complete:
            return False
        for index, waited in self.waits(min(found, key=_completion)).items():
            copies = reserved.copies[index]
            self.priority[index] += waited * copies * copies * self._slots[index]
        return True

    def reservation(self) -> CopyReservation | None:
        """Copies by priority; None when some set fits nowhere.

        First copies go largest set first.  A copy goes to the core that it leaves
        least room on, then to the one where the set's work is shortest.
        """
        cores, capacity = self.costs.cores, self.weights.capacity
        held = np.zeros((cores, self.weights.slots.size), dtype=np.bool_)
        used = np.zeros(cores, dtype=np.int64)
        copies = [0] * len(self.items)
        first = sorted(range(len(self.items)), key=lambda i: (-self._slots[i], i))
        further = sorted(
            (-self._worth(index, count), index, count)
            for index in first
            for count in range(1, self._most[index])
        )
        full: set[int] = set()
        for index in [*first, *(entry[1] for entry in further)]:
            if index in full:
                continue
            members = self._members[index]
            need = (~held[:, members] * self.weights.slots[members]).sum(axis=1)
            fits = np.flatnonzero((used + need <= capacity) & (need > 0))
            if fits.size:
                keys = (fits, self._work[index, fits], need[fits], -used[fits])
                core = int(fits[np.lexsort(keys)[0]])
                held[core, members] = True
                used[core] += need[core]
                copies[index] += 1
            elif copies[index] or (need == 0).any():
                full.add(index)
            else:
                return None
        return CopyReservation(held, tuple(copies), not full)

    def waits(self, schedule: Schedule) -> dict[int, int]:
        """ns that each set waited for a core, on the chain that decides the end."""
        costs, tasks = self.costs, np.arange(self.costs.tasks)
        core_of = schedule.placement.core_of
        end = schedule.start_ns + costs.execution_ns[tasks, core_of]
        before = {
            task: earlier
            for row in schedule.placement.order
            for earlier, task in pairwise(row)
        }
        waited: dict[int, int] = {}
        task: int | None = int(np.argmax(end))
        while task is not None:
            ready, source = self._ready(task, core_of, end)
            earlier = before.get(task)
            if earlier is not None and int(end[earlier]) > ready:
                index = int(self._seat[task])
                if index >= 0:
                    wait = int(end[earlier]) - ready
                    waited[index] = waited.get(index, 0) + wait
                source = earlier
            task = source
        return waited

    def _ready(
        self, task: int, core_of: NDArray[np.int32], end: IntArray
    ) -> tuple[int, int | None]:
        """When the last input of a task arrives, and whose result it is."""
        costs = self.costs
        ready, source = 0, None
        for edge in range(int(costs.pred_ptr[task]), int(costs.pred_ptr[task + 1])):
            sender, size = int(costs.pred_src[edge]), int(costs.pred_bytes[edge])
            if size not in self._delays:
                self._delays[size] = costs.transfer_ns(size)
            delay = self._delays[size][core_of[sender], core_of[task]]
            arrival = int(end[sender] + delay)
            if source is None or arrival > ready:
                ready, source = arrival, sender
        return ready, source

    def _worth(self, index: int, copies: int) -> int:
        """Of a further copy of a set that has some."""
        cost = copies * copies * self._slots[index]
        return self.priority[index] * _WORTH_SCALE // cost

    def _seats(self) -> IntArray:
        """[T] the smallest set that serves each task; -1 for one without weights."""
        sets = [frozenset(members.tolist()) for members in self._members]
        order = sorted(range(len(sets)), key=lambda i: (self._slots[i], i))
        seat_of_class = np.full(self.weights.class_count, -1, dtype=np.int64)
        for number in range(self.weights.class_count):
            own = set(self.weights.class_weights(number).tolist())
            if own:
                seat_of_class[number] = next(
                    (index for index in order if own <= sets[index]), -1
                )
        result: IntArray = seat_of_class[self.weights.task_class]
        return result


def _completion(schedule: Schedule) -> int:
    return schedule.summary.completion_ns
