"""Improving one inference on a large chip: windows of a schedule, solved exactly.

A window is a run of tasks in order of start.  What starts before it stays as it is;
what starts after it keeps its core and its place, so that the completion of the whole
is the largest, over the tasks of the window, of their end plus a tail that is known.
Inside, each task may go to a few cores and the order is free.  The model is small and
its objective is the completion itself, not a proxy; every answer becomes a placement,
is evaluated, and is kept only if the completion is less.

The order of windows, candidates and solves is fixed; one worker; deterministic time.
All times are ns, or units of several ns above the solver's safe range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError
from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.models.solving import (
    Solution,
    SolveBudget,
    SolveSettings,
    scale_divisor,
    solve,
)
from raptor_cp.schedules import Placement
from raptor_cp.validation import violations

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.static_evaluation import StaticEvaluator

IntArray = NDArray[np.int64]

#: Tasks of a window; half of them are in the next one too.
WINDOW_TASKS = 32
#: Cores that a task of a window may go to, its own included.
CANDIDATES = 10
#: Deterministic time of one window.
WINDOW_TIME = 0.1
#: A pass over all windows without a gain ends the improvement, and so does this many.
MAX_PASSES = 8


@dataclass(frozen=True, eq=False)
class _Surroundings:
    """What a window cannot change; [k, P] by position in the window.

    Attributes:
        tasks: of the window, by start.
        release_ns: earliest start by results from before and by what runs before.
        tail_ns: least time from an end to the completion of all that comes after.
        held: [P, W] weights of tasks outside the window.
        free: [P] weight slots left beside them.
    """

    tasks: tuple[int, ...]
    release_ns: IntArray
    tail_ns: IntArray
    held: NDArray[np.bool_]
    free: IntArray


class WindowSearch:
    """Windows of one problem's schedules.

    Args:
        problem: graph, costs and chip.
        evaluator: of the problem.
        window_tasks, candidates: sizes of the model.
    """

    def __init__(
        self,
        problem: Problem,
        evaluator: StaticEvaluator,
        *,
        window_tasks: int = WINDOW_TASKS,
        candidates: int = CANDIDATES,
    ) -> None:
        self.problem, self.evaluator = problem, evaluator
        self.costs = LatencyCosts.of(problem)
        self.window_tasks, self.candidates = window_tasks, candidates
        self._weights = [sorted(task.weights) for task in problem.graph.tasks]
        self._slots = problem.graph.weight_slots.astype(np.int64)
        self._links: dict[int, IntArray] = {}

    def improve(
        self,
        incumbent: Schedule,
        budget: SolveBudget,
        *,
        settings: SolveSettings | None = None,
        passes: int = MAX_PASSES,
    ) -> Schedule:
        """A schedule that completes no later than ``incumbent``.

        Args:
            incumbent: a legal schedule of the problem in latency mode.
            budget: deterministic time; all of it may be spent.
            settings: seed of the solves.
            passes: over all windows, at most.

        Raises:
            InternalError: a solution breaks a rule.
        """
        chosen = (settings or SolveSettings()).single()
        best = incumbent
        count = self.costs.tasks
        step = max(1, self.window_tasks // 2)
        for _ in range(passes):
            before = best.summary.completion_ns
            for first in range(0, count, step):
                if budget.remaining <= 0:
                    return best
                best = self._one(best, first, budget, chosen)
                if first + self.window_tasks >= count:
                    break
            if best.summary.completion_ns == before:
                break
        return best

    def _one(
        self, best: Schedule, first: int, budget: SolveBudget, settings: SolveSettings
    ) -> Schedule:
        order = self._by_start(best)
        around = self._surroundings(best, order, first)
        window = _WindowModel(self, best, around)
        outcome = solve(
            window.model,
            budget,
            what=f"window of tasks {first} to {first + len(around.tasks) - 1} by start",
            settings=settings,
            limit=WINDOW_TIME,
        )
        if outcome.solution is None:
            return best
        placement = window.placement(outcome.solution, order, first)
        found = self.evaluator.schedule(placement)
        if found.summary.completion_ns >= best.summary.completion_ns:
            return best
        wrong = violations(found)
        if wrong:
            raise InternalError(f"window model: {wrong[0]}")
        return found

    def _by_start(self, schedule: Schedule) -> list[int]:
        """Tasks by (start, id): dependencies always point forwards."""
        start = schedule.start_ns
        return [int(t) for t in np.lexsort((np.arange(start.size), start))]

    def delays(self, size: int) -> IntArray:
        """[P, P] transfer of so many bytes (ns)."""
        found = self._links.get(size)
        if found is None:
            found = self._links[size] = self.costs.transfer_ns(size)
        return found

    def _surroundings(
        self, schedule: Schedule, order: list[int], first: int
    ) -> _Surroundings:
        costs = self.costs
        tasks = order[first : first + self.window_tasks]
        core_of = schedule.placement.core_of.tolist()
        start = schedule.start_ns.tolist()
        cores = costs.cores
        place = np.empty(costs.tasks, dtype=np.int64)
        place[order] = np.arange(costs.tasks)
        high = first + len(tasks)
        free = np.zeros(cores, dtype=np.int64)
        for task in order[:first]:
            end = start[task] + int(costs.execution_ns[task, core_of[task]])
            free[core_of[task]] = max(int(free[core_of[task]]), end)
        after = np.zeros(cores, dtype=np.int64)
        length: dict[int, int] = {}
        for task in reversed(order[high:]):
            core = core_of[task]
            longest = int(after[core])
            for successor, size in self.successors(task):
                delay = int(self.delays(size)[core, core_of[successor]])
                longest = max(longest, delay + length[successor])
            length[task] = longest + int(costs.execution_ns[task, core])
            after[core] = length[task]
        release = np.tile(free, (len(tasks), 1))
        tail = np.tile(after, (len(tasks), 1))
        for row, task in enumerate(tasks):
            for edge in range(int(costs.pred_ptr[task]), int(costs.pred_ptr[task + 1])):
                source = int(costs.pred_src[edge])
                if place[source] >= first:
                    continue
                end = start[source] + int(costs.execution_ns[source, core_of[source]])
                arrival = end + self.delays(int(costs.pred_bytes[edge]))
                release[row] = np.maximum(release[row], arrival[core_of[source]])
            for successor, size in self.successors(task):
                if place[successor] >= high:
                    ahead = self.delays(size)[:, core_of[successor]]
                    tail[row] = np.maximum(tail[row], ahead + length[successor])
        held = np.zeros((cores, self._slots.size), dtype=np.bool_)
        for task in [*order[:first], *order[high:]]:
            held[core_of[task], self._weights[task]] = True
        room = self.problem.resources.slots_per_core - held @ self._slots
        return _Surroundings(tuple(tasks), release, tail, held, room)

    def successors(self, task: int) -> list[tuple[int, int]]:
        """(successor, bytes) of a task."""
        low, high = int(self.costs.succ_ptr[task]), int(self.costs.succ_ptr[task + 1])
        return list(
            zip(
                self.costs.succ_dst[low:high].tolist(),
                self.costs.succ_bytes[low:high].tolist(),
                strict=True,
            )
        )

    def choices(self, around: _Surroundings, core_of: list[int]) -> list[list[int]]:
        """Cores of each task of a window: its own first, then the most promising.

        Equal cores are taken in an order that differs from task to task: otherwise
        the lanes of an operation would all ask for the same ones.
        """
        cores = self.costs.cores
        result = []
        for row, task in enumerate(around.tasks):
            weights = self._weights[task]
            need = (~around.held[:, weights] * self._slots[weights]).sum(axis=1)
            key = (
                around.release_ns[row]
                + self.costs.execution_ns[task]
                + around.tail_ns[row]
            )
            turn = (np.arange(cores) - row * self.candidates) % cores
            fits = need <= around.free
            own = core_of[task]
            ranked = np.lexsort((turn, need > 0, key))
            others = [int(c) for c in ranked if fits[c] and c != own]
            result.append([own, *others[: self.candidates - 1]])
        return result

    def weights_of(self, task: int) -> list[int]:
        """Resident weights of a task, ascending."""
        return self._weights[task]

    def slots_of(self, weight: int) -> int:
        """Weight slots."""
        return int(self._slots[weight])


class _WindowModel:
    """Model of one window; see the module docstring."""

    def __init__(
        self, search: WindowSearch, schedule: Schedule, around: _Surroundings
    ) -> None:
        self.search, self.around = search, around
        self.schedule = schedule
        core_of = schedule.placement.core_of.tolist()
        self.own = [core_of[task] for task in around.tasks]
        self.cores = search.choices(around, core_of)
        horizon = schedule.summary.completion_ns
        self.unit = scale_divisor(max(horizon, 1))
        self.horizon = horizon // self.unit
        self.model = cp_model.CpModel()
        self.on: list[dict[int, cp_model.IntVar]] = []
        self.start: list[cp_model.IntVar] = []
        self.last = self.model.new_int_var(0, self.horizon, "")
        self._tasks()
        self._edges()
        self._weights()
        self.model.add_hint(self.last, self.horizon)
        self.model.minimize(self.last)

    def _tasks(self) -> None:
        model, around = self.model, self.around
        execution = self.search.costs.execution_ns
        turns: dict[int, list[cp_model.IntervalVar]] = {}
        for row, task in enumerate(around.tasks):
            literals = {core: model.new_bool_var("") for core in self.cores[row]}
            release = around.release_ns[row] // self.unit
            low = int(min(release[core] for core in literals))
            start = model.new_int_var(low, self.horizon, "")
            model.add_exactly_one(literals.values())
            for core, literal in literals.items():
                length = int(execution[task, core]) // self.unit
                ending = length + int(around.tail_ns[row, core]) // self.unit
                model.add(start >= int(release[core])).only_enforce_if(literal)
                model.add(self.last >= start + ending).only_enforce_if(literal)
                turns.setdefault(core, []).append(
                    model.new_optional_fixed_size_interval_var(
                        start, length, literal, ""
                    )
                )
                model.add_hint(literal, core == self.own[row])
            model.add_hint(start, int(self.schedule.start_ns[task]) // self.unit)
            self.on.append(literals)
            self.start.append(start)
        for intervals in turns.values():
            model.add_no_overlap(intervals)

    def _edges(self) -> None:
        model, search = self.model, self.search
        row_of = {task: row for row, task in enumerate(self.around.tasks)}
        execution = search.costs.execution_ns
        for row, task in enumerate(self.around.tasks):
            for successor, size in search.successors(task):
                other = row_of.get(successor)
                if other is None:
                    continue
                delays = search.delays(size)
                for core, literal in self.on[row].items():
                    length = int(execution[task, core]) // self.unit
                    ready = self.start[row] + length
                    far = {
                        head: int(delays[core, head]) // self.unit
                        for head in self.on[other]
                    }
                    least = min(far.values())
                    model.add(self.start[other] >= ready + least).only_enforce_if(
                        literal
                    )
                    for head, delay in far.items():
                        if delay > least:
                            model.add(
                                self.start[other] >= ready + delay
                            ).only_enforce_if(literal, self.on[other][head])

    def _weights(self) -> None:
        """Weights that tasks of the window bring to a core fit beside the others."""
        model, around, search = self.model, self.around, self.search
        holds: dict[tuple[int, int], cp_model.IntVar] = {}
        needed: dict[tuple[int, int], bool] = {}
        for row, task in enumerate(around.tasks):
            for core, literal in self.on[row].items():
                for weight in search.weights_of(task):
                    if around.held[core, weight]:
                        continue
                    key = (core, weight)
                    if key not in holds:
                        holds[key] = model.new_bool_var("")
                    needed[key] = needed.get(key, False) or core == self.own[row]
                    model.add_implication(literal, holds[key])
        by_core: dict[int, list[int]] = {}
        for core, weight in holds:
            by_core.setdefault(core, []).append(weight)
            model.add_hint(holds[core, weight], needed[core, weight])
        for core, weights in by_core.items():
            model.add(
                cp_model.LinearExpr.weighted_sum(
                    [holds[core, weight] for weight in weights],
                    [search.slots_of(weight) for weight in weights],
                )
                <= int(around.free[core])
            )

    def placement(self, solution: Solution, order: list[int], first: int) -> Placement:
        """What is before, the window by its starts, what comes after."""
        core_of = np.array(self.schedule.placement.core_of, dtype=np.int32)
        keys = []
        for row, task in enumerate(self.around.tasks):
            core = next(c for c, on in self.on[row].items() if solution.true(on))
            core_of[task] = core
            keys.append((solution.value(self.start[row]), task))
        inside = [task for _, task in sorted(keys)]
        sequence = [*order[:first], *inside, *order[first + len(inside) :]]
        rows: list[list[int]] = [[] for _ in range(self.search.costs.cores)]
        for task in sequence:
            rows[int(core_of[task])].append(task)
        core_of.setflags(write=False)
        return Placement(core_of, tuple(tuple(row) for row in rows))
