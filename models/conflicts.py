"""Why a packing is impossible: a small set of operations, numbers, and levers.

The set is found by deletion: operations (then tasks) are dropped one by one and stay
dropped while the rest is still proved impossible.  Counting bounds are asked first;
the solver only when they say nothing, and then inside the budget.  The final set is
proved again as a problem of its own.  Solver cores are not used: they are not
minimal with an objective, and open reports say that they can be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.models.packing_bounds import (
    IMPOSSIBLE,
    CoreBound,
    core_bound,
    task_slots,
)
from raptor_cp.models.weight_packing import PackingResult, pack, proved_infeasible
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.models.instances import PackingInstance
    from raptor_cp.models.solving import SolveBudget

#: Single tasks are only dropped when so few are left.
_TASK_LIMIT = 80
#: Deterministic time of one deletion test by the solver.
_TEST_LIMIT = 0.2


class LeverKind(StrEnum):
    """What a user can turn."""

    CORES = "cores"
    SLOTS_PER_CORE = "slots-per-core"
    WEIGHT_SLOTS = "weight-slots"  #: fewer slots: fewer weight bits, denser cells
    SPLIT = "split"  #: cut an operation into smaller weight blocks


@dataclass(frozen=True, slots=True)
class Lever:
    """One way out.

    Attributes:
        kind: what to change.
        at_present: its value now.
        at_least: a necessary value: more may be needed, less cannot be enough.  For
            weight slots and splits the largest value that could be enough.
        where: operation it applies to; empty for the chip.
    """

    kind: LeverKind
    at_present: int
    at_least: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class OperationNeed:
    """An operation of the conflict: distinct weight slots of its tasks in it."""

    name: str
    tasks: int
    slots: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why no packing exists.

    Attributes:
        argument: ``task``, ``slots``, ``load``, ``clique`` or ``search``.
        operations: the conflicting set, in network order.
        tasks: ids of the tasks in it, ascending.
        slots_needed: weight slots of the union of the set.
        slots_there: cores times capacity; the capacity for a single task.
        cores_needed: proved lower bound; None when a single task exceeds a core.
        cores: cores that there are.
        capacity: weight slots of a core.
        minimal: without any operation of the set the rest is not proved impossible.
        levers: ways out.
    """

    argument: str
    operations: tuple[OperationNeed, ...]
    tasks: tuple[int, ...]
    slots_needed: int
    slots_there: int
    cores_needed: int | None
    cores: int
    capacity: int
    minimal: bool
    levers: tuple[Lever, ...]

    def sentence(self) -> str:
        """One sentence with the operations and all numbers."""
        names = [f"{o.name!r}" for o in self.operations]
        shown = ", ".join(names[:6]) + (
            f" and {len(names) - 6} more" if len(names) > 6 else ""
        )
        if self.cores_needed is None:
            return (
                f"a task of {shown} needs {self.slots_needed} weight slots, a core "
                f"has {self.capacity}"
            )
        return (
            f"{shown} need {self.slots_needed} weight slots on at least "
            f"{self.cores_needed} cores of {self.capacity}, there are {self.cores} "
            f"cores with {self.slots_there}"
        )


def explain(
    instance: PackingInstance, result: PackingResult, budget: SolveBudget
) -> Conflict | None:
    """A small conflicting set of an INFEASIBLE packing.

    Args:
        instance: the packing.
        result: its answer.
        budget: of the run; deletion by the solver draws from it.

    Returns:
        None when the verdict is not INFEASIBLE.
    """
    if result.verdict is not Verdict.INFEASIBLE:
        return None
    everything = list(range(instance.tasks))
    if result.bound.cores >= IMPOSSIBLE:
        return _conflict(instance, list(result.bound.tasks), result.bound, True)
    if proved_infeasible(instance) is not None:
        kept, minimal = _shrink(
            instance,
            everything,
            lambda part: proved_infeasible(instance.only(part)) is not None,
        )
        bound = proved_infeasible(instance.only(kept)) or result.bound
        return _conflict(instance, kept, bound, minimal)

    def still_impossible(part: list[int]) -> bool:
        answer = pack(instance.only(part), budget, limit=_TEST_LIMIT)
        return answer.verdict is Verdict.INFEASIBLE

    kept, minimal = _shrink(instance, everything, still_impossible)
    searched = CoreBound(instance.cores + 1, "search")
    return _conflict(instance, kept, searched, minimal)


def _shrink(
    instance: PackingInstance, tasks: list[int], impossible: Callable[[list[int]], bool]
) -> tuple[list[int], bool]:
    """Drop operations, small ones first, then single tasks; (rest, minimal)."""
    operation = instance.operation
    slots = task_slots(instance)
    total: dict[int, int] = {}
    for task in tasks:
        key = int(operation[task])
        total[key] = max(total.get(key, 0), int(slots[task]))
    kept = tasks
    for drop in sorted(total, key=lambda o: (total[o], -o)):
        rest = [t for t in kept if int(operation[t]) != drop]
        if rest and impossible(rest):
            kept = rest
    if len(kept) <= _TASK_LIMIT:
        for task in sorted(kept, key=lambda t: (int(slots[t]), -t)):
            rest = [t for t in kept if t != task]
            if rest and impossible(rest):
                kept = rest
    else:
        kept = _without_twins(instance, kept, impossible)
    # Verified as a problem of its own; if a deletion test was cut short, say so.
    return (kept, True) if impossible(kept) else (tasks, False)


def _without_twins(
    instance: PackingInstance, kept: list[int], impossible: Callable[[list[int]], bool]
) -> list[int]:
    """One task for each weight set, when loads do not matter to the proof."""
    first: dict[tuple[int, ...], int] = {}
    for task in kept:
        first.setdefault(instance.weights_of(task), task)
    once = sorted(first.values())
    return once if len(once) < len(kept) and impossible(once) else kept


def _conflict(
    instance: PackingInstance, tasks: list[int], bound: CoreBound, minimal: bool
) -> Conflict:
    part = instance.only(tasks)
    single = bool(bound.cores >= IMPOSSIBLE)
    needs = []
    for operation in sorted(set(part.operation.tolist())):
        inside = np.flatnonzero(part.operation == operation).tolist()
        needs.append(
            OperationNeed(
                instance.name_of(operation), len(inside), _union(part, inside)
            )
        )
    union = _union(part, list(range(part.tasks)))
    capacity, cores = instance.capacity, instance.cores
    return Conflict(
        argument=bound.reason,
        operations=tuple(needs),
        tasks=tuple(sorted(tasks)),
        slots_needed=union,
        slots_there=capacity if single else capacity * cores,
        cores_needed=None if single else bound.cores,
        cores=cores,
        capacity=capacity,
        minimal=minimal,
        levers=_levers(instance, part, bound, union, single),
    )


def _levers(
    instance: PackingInstance,
    part: PackingInstance,
    bound: CoreBound,
    union: int,
    single: bool,
) -> tuple[Lever, ...]:
    largest = int(task_slots(part).max(initial=0))
    capacity, cores = instance.capacity, instance.cores
    if single:
        name = instance.name_of(int(part.operation[0]))
        return (
            Lever(LeverKind.SPLIT, largest, capacity, name),
            Lever(LeverKind.SLOTS_PER_CORE, capacity, largest),
            Lever(LeverKind.WEIGHT_SLOTS, largest, capacity, name),
        )
    whole = core_bound(instance).cores
    return (
        Lever(LeverKind.CORES, cores, max(bound.cores, whole)),
        Lever(
            LeverKind.SLOTS_PER_CORE,
            capacity,
            max(capacity + 1, largest, ceil_div(_union_all(instance), cores)),
        ),
        Lever(LeverKind.WEIGHT_SLOTS, union, min(union - 1, capacity * cores)),
    )


def _union(instance: PackingInstance, tasks: list[int]) -> int:
    held = sorted({w for t in tasks for w in instance.weights_of(t)})
    return int(instance.slots[held].sum()) if held else 0


def _union_all(instance: PackingInstance) -> int:
    return int(instance.slots[np.unique(instance.weight_idx)].sum())
