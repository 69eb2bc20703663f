"""CP-SAT models of one packing question; :mod:`raptor_cp.models.weight_packing` asks.

Tasks with the same weights (and load, when there is a load limit) are one *kind*.
Each model has one method for each rule and gives an assignment of tasks to cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ortools.sat.python import cp_model

from raptor_cp.models.packing_bounds import reachable_capacity
from raptor_cp.models.solving import MAX_COEFFICIENT, scale_divisor

if TYPE_CHECKING:
    from raptor_cp.models.instances import IntArray, PackingInstance
    from raptor_cp.models.solving import Solution


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
