"""Stage partition and core budgets: equal to brute force, validated, explained."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.models.core_budget import CoreBudgetModel, validate_budgets
from raptor_cp.models.instances import (
    UNAVAILABLE,
    BudgetInstance,
    PartitionInstance,
    PartitionRules,
)
from raptor_cp.models.solving import SolveBudget
from raptor_cp.models.stage_partition import (
    Segment,
    cost_of_partition,
    fewest_cores_path,
    solve_partition,
    validate_partition,
)
from raptor_cp.verdict import Verdict


def random_curve(rng: random.Random, cores: int, work: int) -> list[int]:
    curve, last = [], int(UNAVAILABLE)
    for k in range(1, cores + 1):
        value = max(1, work // k + rng.randint(0, 3))
        if rng.random() < 0.1 and last == UNAVAILABLE:
            value = int(UNAVAILABLE)
        last = min(last, value)
        curve.append(last)
    return curve


def random_partition(rng: random.Random) -> PartitionInstance:
    groups, cores = rng.randint(1, 6), rng.randint(1, 6)
    cost = np.full((groups, groups + 1, cores), UNAVAILABLE, dtype=np.int64)
    work = [rng.randint(1, 20) for _ in range(groups)]
    for i in range(groups):
        for j in range(i + 1, groups + 1):
            cost[i, j] = random_curve(rng, cores, sum(work[i:j]))
    pairs = list(itertools.combinations(range(groups), 2))
    rules = PartitionRules(
        min_stages=rng.choice([1, 1, 1, 2]),
        forbidden_cuts=tuple(c for c in range(1, groups) if rng.random() < 0.15),
        together=(rng.choice(pairs),) if pairs and rng.random() < 0.2 else (),
        apart=(rng.choice(pairs),) if pairs and rng.random() < 0.2 else (),
        max_cut_bytes=rng.choice([None, None, 8]),
        total_cut_bytes=rng.choice([None, 6, 10, 14]),
        hop_limits=tuple((*p, rng.randint(0, 2)) for p in pairs if rng.random() < 0.15),
        stage_memory_bytes=rng.choice([None, None, 12]),
        group_cores=((0, 1, rng.randint(1, cores)),) if rng.random() < 0.2 else (),
    )
    return PartitionInstance(
        cost_ns=cost,
        depth=rng.randint(1, groups + 1),
        cores=cores,
        rules=rules,
        cut_bytes=np.array([rng.randint(0, 9) for _ in range(groups + 1)]),
        group_bytes=np.array([rng.randint(0, 6) for _ in range(groups)]),
    )


def brute_force_partition(instance: PartitionInstance) -> int | None:
    groups, best = instance.groups, None
    for count in range(1, min(groups, instance.depth) + 1):
        for cuts in itertools.combinations(range(1, groups), count - 1):
            points = [0, *cuts, groups]
            for cores in itertools.product(range(1, instance.cores + 1), repeat=count):
                if sum(cores) > instance.cores:
                    continue
                segments: tuple[Segment, ...] = tuple(
                    (points[n], points[n + 1], cores[n]) for n in range(count)
                )
                cost = cost_of_partition(instance, segments)
                if cost >= (UNAVAILABLE if best is None else best):
                    continue
                if not validate_partition(instance, segments):
                    best = cost
    return best


@pytest.mark.parametrize("batch", range(4))
def test_partition_equals_brute_force(batch: int) -> None:
    coupled = 0
    for seed in range(50 * batch, 50 * batch + 50):
        instance = random_partition(random.Random(seed))
        budget = SolveBudget(10.0)
        result = solve_partition(instance, budget)
        expected = brute_force_partition(instance)
        coupled += instance.rules.beyond_dp
        if expected is None:
            assert result.verdict is Verdict.INFEASIBLE, seed
            assert result.cost_ns is None
            continue
        assert result.verdict is Verdict.OPTIMAL, seed
        assert result.cost_ns == result.bound_ns == expected, seed
        assert validate_partition(instance, result.stages) == []
        assert result.relaxed_ns is not None
        assert result.relaxed_ns <= expected
    assert coupled > 20


def test_without_budget_the_relaxed_bound_stays() -> None:
    instance = next(
        i
        for i in (random_partition(random.Random(s)) for s in range(200))
        if i.rules.beyond_dp and i.groups > 3 and brute_force_partition(i)
    )
    result = solve_partition(instance, SolveBudget(0.0))
    assert result.verdict is Verdict.UNKNOWN
    assert result.bound_ns == result.relaxed_ns
    assert result.note


def test_each_rule_has_a_violation() -> None:
    cost = np.full((3, 4, 3), 5, dtype=np.int64)
    cases = [
        PartitionRules(min_stages=3),
        PartitionRules(forbidden_cuts=(1,)),
        PartitionRules(together=((0, 1),)),
        PartitionRules(apart=((1, 2),)),
        PartitionRules(max_cut_bytes=1),
        PartitionRules(total_cut_bytes=1),
        PartitionRules(hop_limits=((0, 2, 0),)),
        PartitionRules(stage_memory_bytes=3),
        PartitionRules(group_cores=((0, 2, 3),)),
    ]
    for rules in cases:
        instance = PartitionInstance(
            cost_ns=cost,
            depth=3,
            cores=3,
            rules=rules,
            cut_bytes=np.array([0, 2, 2, 0]),
            group_bytes=np.array([2, 2, 2]),
        )
        assert validate_partition(instance, ((0, 1, 1), (1, 3, 1))), rules
        assert not validate_partition(
            PartitionInstance(cost_ns=cost, depth=3, cores=3), ((0, 1, 1), (1, 3, 1))
        )


def test_malformed_instances_are_refused() -> None:
    with pytest.raises(MalformedInput, match="dearer"):
        PartitionInstance(cost_ns=np.array([[[1, 1], [1, 2]]]), depth=1, cores=2)
    with pytest.raises(MalformedInput, match="G, G"):
        PartitionInstance(cost_ns=np.ones((2, 2, 1), dtype=np.int64), depth=1, cores=1)
    with pytest.raises(MalformedInput, match="cut bytes"):
        PartitionInstance(
            cost_ns=np.ones((1, 2, 1), dtype=np.int64),
            depth=1,
            cores=1,
            rules=PartitionRules(total_cut_bytes=3),
        )
    with pytest.raises(MalformedInput, match="unknown cut"):
        PartitionInstance(
            cost_ns=np.ones((1, 2, 1), dtype=np.int64),
            depth=1,
            cores=1,
            rules=PartitionRules(forbidden_cuts=(1,)),
        )


def test_the_path_prefers_few_segments() -> None:
    need = np.full((2, 3), 9, dtype=np.int64)
    need[0, 1] = need[1, 2] = 1
    need[0, 2] = 2
    assert fewest_cores_path(need, 2) == (2, [(0, 2, 2)])
    assert fewest_cores_path(need, 2, least=2) == (2, [(0, 1, 1), (1, 2, 1)])
    assert fewest_cores_path(need, 2, least=3)[1] == []


def random_budgets(rng: random.Random) -> BudgetInstance:
    stages, cores = rng.randint(1, 4), rng.randint(2, 7)
    every = range(stages)
    return BudgetInstance(
        cost_ns=np.array([random_curve(rng, cores, rng.randint(1, 30)) for _ in every]),
        cores=cores,
        spare=rng.choice([0, 0, 1]),
        equal=((0, stages - 1),) if rng.random() < 0.3 else (),
        multiple_of=tuple(rng.choice([1, 1, 2]) for _ in every)
        if rng.random() < 0.3
        else (),
        totals=((tuple(every)[:2], rng.randint(1, cores)),)
        if rng.random() < 0.3
        else (),
    )


def brute_force_budgets(instance: BudgetInstance) -> tuple[int, int] | None:
    best = None
    for budgets in itertools.product(
        range(1, instance.cores + 1), repeat=instance.stages
    ):
        if validate_budgets(instance, budgets):
            continue
        cost = max(int(instance.cost_ns[s, k - 1]) for s, k in enumerate(budgets))
        if best is None or (cost, sum(budgets)) < best:
            best = (cost, sum(budgets))
    return best


@pytest.mark.parametrize("batch", range(4))
def test_budgets_equal_brute_force(batch: int) -> None:
    for seed in range(50 * batch, 50 * batch + 50):
        instance = random_budgets(random.Random(seed))
        result = CoreBudgetModel(instance).solve(SolveBudget(10.0))
        expected = brute_force_budgets(instance)
        if expected is None:
            assert result.verdict is Verdict.INFEASIBLE, seed
            continue
        assert result.verdict is Verdict.OPTIMAL, seed
        assert (result.cost_ns, sum(result.budgets)) == expected, seed


def test_a_stage_that_fits_nowhere() -> None:
    cost = np.full((1, 2), UNAVAILABLE, dtype=np.int64)
    result = CoreBudgetModel(BudgetInstance(cost_ns=cost, cores=2)).solve(
        SolveBudget(1.0)
    )
    assert result.verdict is Verdict.INFEASIBLE
    assert result.note
    with pytest.raises(MalformedInput, match="multiple"):
        BudgetInstance(
            cost_ns=np.ones((1, 2), dtype=np.int64), cores=2, multiple_of=(0,)
        )
