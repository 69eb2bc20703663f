"""The CP-SAT model of one inference: cores, starts, delays, weights.

Optional intervals per core; a start that waits for its inputs, longer when they come
from another core; the union of weights under the capacity; the completion, least.
Bounds of :mod:`raptor_cp.latency.bounds` narrow every start, and the incumbent is the
horizon and the hint.

All times are ns, or units of several ns where the horizon exceeds the solver's safe
range: durations and delays are then rounded down, so that the model is a relaxation.
Its bound times the unit still holds, and its solutions are orders that the evaluator
times exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.latency.costs import LatencyCosts
from raptor_cp.models.solving import scale_divisor
from raptor_cp.schedules import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raptor_cp.latency.bounds import CompletionBound
    from raptor_cp.models.solving import Solution
    from raptor_cp.schedules import Problem, Schedule

#: Cores are put in the order of their first task up to this many Booleans.
_ORDERED_LIMIT = 4_000


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
        return (
            0 if _like_links(problem) else int(problem.graph.edge_dst.size) * cores**2
        )

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
                    self.model.add_implication(literals[core], self.holds[weight, core])
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


def _like_links(problem: Problem) -> bool:
    """Every pair of different cores has the same link."""
    links, cores = problem.resources.links, problem.resources.cores
    away = ~np.eye(cores, dtype=np.bool_)
    return all(
        np.unique(matrix[away]).size <= 1
        for matrix in (links.handshake_ns, links.unit_ns)
    )
