"""Weight packing: verdicts equal exhaustive search, proofs and conflicts hold."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.models.conflicts import LeverKind, explain
from raptor_cp.models.greedy_packing import GreedyPacker
from raptor_cp.models.instances import PackingInstance, validate_packing
from raptor_cp.models.packing_bounds import (
    DualFunctions,
    core_bound,
    incompatible_clique,
    reachable_capacity,
)
from raptor_cp.models.packing_models import (
    CountModel,
    PatternModel,
    RepresentativesModel,
    TaskKinds,
)
from raptor_cp.models.pattern_bound import PatternKinds, pattern_bound
from raptor_cp.models.solving import SolveBudget, solve
from raptor_cp.models.weight_packing import counting_bound, pack
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence


def make(
    sets: Sequence[tuple[int, ...]],
    slots: list[int],
    capacity: int,
    cores: int,
    load: list[int] | None = None,
    limit: int | None = None,
    operation: list[int] | None = None,
) -> PackingInstance:
    return PackingInstance(
        load_ns=np.array([1] * len(sets) if load is None else load, dtype=np.int64),
        weight_ptr=np.cumsum([0, *(len(s) for s in sets)], dtype=np.int32),
        weight_idx=np.array([w for s in sets for w in sorted(s)], dtype=np.int32),
        slots=np.array(slots, dtype=np.int64),
        capacity=capacity,
        cores=cores,
        load_limit_ns=limit,
        operation=np.arange(len(sets), dtype=np.int32)
        if operation is None
        else np.array(operation, dtype=np.int32),
        operation_names=tuple(f"op{n}" for n in range(len(sets))),
    )


def random_packing(rng: random.Random, limited: bool) -> PackingInstance:
    tasks, weights = rng.randint(1, 7), rng.randint(1, 6)
    slots = [rng.randint(1, 6) for _ in range(weights)]
    sets: list[tuple[int, ...]]
    if rng.random() < 0.5:  # lanes share one set
        sets = [(rng.randrange(weights),) for _ in range(tasks)]
    else:
        sets = [
            tuple(sorted(rng.sample(range(weights), rng.randint(0, min(3, weights)))))
            for _ in range(tasks)
        ]
    load = [rng.randint(0, 9) for _ in range(tasks)]
    if rng.random() < 0.4:
        load = [rng.choice([3, 5])] * tasks
    cores = rng.randint(1, 4)
    limit = max(1, sum(load) // cores + rng.randint(-1, 3)) if limited else None
    return make(sets, slots, rng.randint(3, 11), cores, load, limit)


def exists(instance: PackingInstance) -> bool:
    """Exhaustive: tasks in order, each on an open core or the next one."""
    sets = [frozenset(instance.weights_of(t)) for t in range(instance.tasks)]
    slots, load = instance.slots.tolist(), instance.load_ns.tolist()
    limit = instance.load_limit_ns

    def place(task: int, cores: list[tuple[frozenset[int], int]]) -> bool:
        if task == len(sets):
            return True
        options = [*range(len(cores)), *([len(cores)] * (len(cores) < instance.cores))]
        for core in options:
            held, busy = cores[core] if core < len(cores) else (frozenset(), 0)
            union, work = held | sets[task], busy + load[task]
            if sum(slots[w] for w in union) > instance.capacity:
                continue
            if limit is not None and work > limit:
                continue
            rest = list(cores)
            rest[core : core + 1] = [(union, work)]
            if place(task + 1, rest):
                return True
        return False

    return place(0, [])


def check(instance: PackingInstance, seed: int, *, greedy: bool) -> None:
    result = pack(instance, SolveBudget(20.0), greedy=greedy)
    expected = exists(instance)
    wanted = Verdict.FEASIBLE if expected else Verdict.INFEASIBLE
    assert result.verdict is wanted, (seed, result.method, result.note)
    if result.core_of is not None:
        assert validate_packing(instance, result.core_of) == []
    if expected:
        assert result.bound.cores <= instance.cores


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("batch", range(4))
def test_verdicts_equal_exhaustive_search(batch: int, limited: bool) -> None:
    for seed in range(100 * batch, 100 * batch + 100):
        check(random_packing(random.Random(seed), limited), seed, greedy=seed % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("limited", [False, True])
def test_verdicts_equal_exhaustive_search_at_length(limited: bool) -> None:
    for seed in range(10_000, 13_000):
        check(random_packing(random.Random(seed), limited), seed, greedy=seed % 2 == 0)


@pytest.mark.parametrize("limited", [False, True])
def test_bounds_never_exceed_the_truth(limited: bool) -> None:
    tight = 0
    for seed in range(600):
        instance = random_packing(random.Random(seed), limited)
        feasible = exists(instance)
        bound = core_bound(instance).cores
        assert not feasible or bound <= instance.cores, seed
        clique = incompatible_clique(instance)
        assert not feasible or len(clique) <= instance.cores, seed
        tight += not feasible and bound > instance.cores
    assert tight > 100


def test_dual_functions_are_feasible() -> None:
    """Sizes that fit together never sum above one."""
    for seed in range(300):
        rng = random.Random(seed)
        capacity = rng.randint(3, 30)
        sizes = np.array([rng.randint(1, capacity) for _ in range(6)])
        functions = DualFunctions.of(sizes, capacity)
        for count in range(1, 7):
            for chosen in itertools.combinations(range(6), count):
                if sizes[list(chosen)].sum() <= capacity:
                    total = functions.value[:, list(chosen)].sum(axis=1)
                    assert (total <= functions.unit).all(), (seed, sizes, chosen)


def test_reachable_capacity_is_a_subset_sum() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        sizes = [rng.randint(1, 20) for _ in range(rng.randint(0, 7))]
        capacity = rng.randint(1, 40)
        sums = {
            sum(c)
            for n in range(len(sizes) + 1)
            for c in itertools.combinations(sizes, n)
        }
        expected = max(s for s in sums if s <= capacity)
        assert reachable_capacity(np.array(sizes, dtype=np.int64), capacity) == expected


def test_greedy_never_breaks_a_rule() -> None:
    found = 0
    for seed in range(400):
        instance = random_packing(random.Random(seed), seed % 2 == 0)
        result = GreedyPacker(instance).fewest(instance.load_limit_ns, instance.cores)
        if result is None:
            continue
        found += 1
        core_of = result.core_of.astype(np.int64)
        assert validate_packing(instance, core_of) == []
        assert core_of.max() < result.cores
    assert found > 150


def test_each_rule_has_a_violation() -> None:
    sets, slots = [(0,), (1,)], [3, 4]
    both = np.array([0, 0], dtype=np.int64)
    assert not validate_packing(make(sets, slots, 7, 1), both)
    assert "slots" in validate_packing(make(sets, slots, 6, 1), both)[0]
    late = make(sets, slots, 7, 1, [5, 6], 10)
    assert "load" in validate_packing(late, both)[0]
    assert "no core" in validate_packing(make(sets, slots, 7, 1), both - 1)[0]
    assert "assigned" in validate_packing(make(sets, slots, 7, 1), both[:1])[0]


def test_kinds_collapse() -> None:
    instance = make([(0, 1), (0,), (), (2,), (0, 1)], [1, 1, 1], 5, 2)
    kinds = TaskKinds.of(instance)
    assert kinds.weights == ((0, 1), (2,))
    assert sorted(t for members in kinds.members for t in members) == [0, 1, 2, 3, 4]
    limited = make([(0,), (0,), ()], [1], 5, 2, [4, 4, 0], 9)
    assert TaskKinds.of(limited).members == ((0, 1), (2,))


def test_tasks_without_weights_always_fit() -> None:
    result = pack(make([(), ()], [], 1, 1), SolveBudget(1.0), greedy=False)
    assert result.verdict is Verdict.FEASIBLE
    assert (
        RepresentativesModel(
            make([()], [], 1, 1), TaskKinds.of(make([()], [], 1, 1))
        ).model.validate()
        == ""
    )


def overlap_ring(count: int) -> list[tuple[int, ...]]:
    """Neighbours share a weight; three neighbours exceed a core of 4 unit slots."""
    return [(i, (i + 1) % count, count + i) for i in range(count)]


def test_solver_proves_what_counting_cannot() -> None:
    instance = make(overlap_ring(9), [1] * 18, 5, 4, operation=list(range(9)))
    assert core_bound(instance).cores <= 4
    result = pack(instance, SolveBudget(20.0))
    assert result.verdict is Verdict.INFEASIBLE
    assert result.method in ("counts", "first-fit", "representatives")
    assert len(result.records) >= 2  # the claim and its confirmation
    fine = pack(make(overlap_ring(9), [1] * 18, 5, 5), SolveBudget(20.0))
    assert fine.verdict is Verdict.FEASIBLE


def test_greedy_fails_and_the_solver_packs() -> None:
    # Four cores are filled exactly; every greedy order leaves a hole somewhere.
    sizes = [22, 47, 44, 44, 31, 27, 50, 24, 15, 28, 21, 31]
    instance = make([(i,) for i in range(12)], sizes, 96, 4)
    assert GreedyPacker(instance).fewest(None, 4) is None
    result = pack(instance, SolveBudget(5.0))
    assert result.verdict is Verdict.FEASIBLE
    assert result.method in ("patterns", "first-fit")


def test_without_budget_the_answer_is_unknown() -> None:
    instance = make(overlap_ring(9), [1] * 18, 5, 4)
    result = pack(instance, SolveBudget(0.0))
    assert result.verdict is Verdict.UNKNOWN
    assert result.note


def test_large_loads_are_scaled_safely() -> None:
    big = 2**40
    sets = [(0,)] * 4
    tight = make(sets, [1], 1, 2, [big, big + 1, big, big + 1], 2 * big + 1)
    assert pack(tight, SolveBudget(5.0)).verdict is Verdict.FEASIBLE
    # Rounded loads may lead to an answer that does not hold: then nothing is said.
    rounded = pack(tight, SolveBudget(5.0), greedy=False)
    assert rounded.verdict in (Verdict.FEASIBLE, Verdict.UNKNOWN)
    over = make(sets, [1], 1, 2, [big, big + 1, big, big + 1], 2 * big)
    assert pack(over, SolveBudget(5.0), greedy=False).verdict is Verdict.INFEASIBLE


def test_malformed_instances_are_refused() -> None:
    with pytest.raises(MalformedInput, match="capacity"):
        make([(0,)], [1], 0, 1)
    with pytest.raises(MalformedInput, match="cores"):
        make([(0,)], [1], 1, 0)
    with pytest.raises(MalformedInput, match="unknown resident weight"):
        make([(1,)], [1], 1, 1)
    with pytest.raises(MalformedInput, match="load"):
        make([(0,)], [1], 1, 1, [-1])


def conflict_names(instance: PackingInstance) -> tuple[str, ...]:
    budget = SolveBudget(20.0)
    conflict = explain(instance, pack(instance, budget), budget)
    assert conflict is not None
    assert conflict.minimal
    assert conflict.levers
    assert conflict.sentence()
    return tuple(o.name for o in conflict.operations)


def test_a_task_above_a_core_is_named() -> None:
    instance = make([(0,), (1,), (2,)], [3, 12, 4], 10, 5)
    budget = SolveBudget(1.0)
    conflict = explain(instance, pack(instance, budget), budget)
    assert conflict is not None
    assert [o.name for o in conflict.operations] == ["op1"]
    assert (conflict.slots_needed, conflict.slots_there) == (12, 10)
    assert conflict.levers[0].kind is LeverKind.SPLIT
    assert conflict.levers[0].at_least == 10
    assert "needs 12 weight slots, a core has 10" in conflict.sentence()


def test_a_planted_union_conflict_is_found() -> None:
    # op2, op3, op4 need 27 of 20 slots; the others are noise.
    instance = make([(n,) for n in range(7)], [1, 1, 9, 9, 9, 1, 1], 10, 2)
    assert conflict_names(instance) == ("op2", "op3", "op4")


def test_a_planted_clique_conflict_is_found() -> None:
    # Three tasks of 6 pairwise exceed 10: 18 < 20 slots, but no two share a core.
    instance = make([(n,) for n in range(5)], [6, 1, 6, 1, 6], 10, 2)
    assert conflict_names(instance) == ("op0", "op2", "op4")


def test_a_planted_search_conflict_is_found() -> None:
    ring = overlap_ring(9)
    sets = [*ring, (18,)]
    instance = make(sets, [1] * 19, 5, 4)
    names = conflict_names(instance)
    assert set(names) == {f"op{n}" for n in range(9)}


def test_nothing_to_explain() -> None:
    instance = make([(0,)], [1], 1, 1)
    budget = SolveBudget(1.0)
    assert explain(instance, pack(instance, budget), budget) is None


def test_models_agree_on_size() -> None:
    instance = make(overlap_ring(5), [1] * 10, 5, 3)
    kinds = TaskKinds.of(instance)
    model = CountModel(instance, kinds)
    assert len(model.model.proto.variables) == CountModel.size(instance, kinds)


def pattern_kinds(instance: PackingInstance) -> PatternKinds:
    kinds = TaskKinds.of(instance)
    held = [w for weights in kinds.weights for w in weights]
    assert instance.load_limit_ns is not None
    return PatternKinds(
        load=np.array(kinds.load_ns, dtype=np.int64),
        count=np.array([len(m) for m in kinds.members], dtype=np.int64),
        weight_ptr=np.cumsum([0, *(len(w) for w in kinds.weights)]),
        weight_idx=np.array(held, dtype=np.int64),
        slots=instance.slots.copy(),
        capacity=instance.capacity,
        limit=instance.load_limit_ns,
    )


def test_the_pattern_bound_holds_and_exhaustive_patterns_decide() -> None:
    decided = stronger = 0
    for seed in range(300):
        instance = random_packing(random.Random(seed), True)
        if core_bound(instance).cores > 100:
            continue  # a task exceeds a core
        feasible = exists(instance)
        found = pattern_bound(pattern_kinds(instance), instance.cores)
        assert not feasible or found.cores <= instance.cores, seed
        assert counting_bound(instance).cores >= found.cores
        stronger += found.cores > core_bound(instance).cores
        if found.exhaustive:
            decided += 1
            model = PatternModel(instance, TaskKinds.of(instance), found.patterns)
            outcome = solve(model.model, SolveBudget(5.0), what="patterns")
            assert (outcome.solution is not None) == feasible, seed
            if outcome.solution is not None:
                core_of = model.assignment(outcome.solution)
                assert validate_packing(instance, core_of) == []
    assert decided > 50
    assert stronger > 0


def test_every_pattern_fits_on_a_core() -> None:
    for seed in range(100):
        instance = random_packing(random.Random(seed), True)
        if core_bound(instance).cores > 100:
            continue
        kinds = pattern_kinds(instance)
        for pattern in pattern_bound(kinds, instance.cores).patterns:
            used = np.flatnonzero(pattern)
            held = {
                int(w)
                for k in used
                for w in kinds.weight_idx[kinds.weight_ptr[k] : kinds.weight_ptr[k + 1]]
            }
            assert sum(int(kinds.slots[w]) for w in held) <= kinds.capacity
            assert int((pattern * kinds.load).sum()) <= kinds.limit
            assert (pattern <= kinds.count).all()
