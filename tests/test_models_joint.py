"""The joint optimum equals brute force and a monolithic model; bounds hold."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ortools.sat.python import cp_model

from raptor_cp.errors import MalformedInput
from raptor_cp.models.instances import JointInstance, PackingInstance, PartitionRules
from raptor_cp.models.joint_validation import dependency_span, validate_joint
from raptor_cp.models.packing_bounds import SegmentBounds, segment_spans
from raptor_cp.models.pipeline_joint import JointResult, solve_joint
from raptor_cp.models.solving import SolveBudget
from raptor_cp.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]


def random_joint(
    rng: random.Random, tasks: int = 6, largest: int = 9, rules: bool = True
) -> JointInstance:
    groups = rng.randint(1, min(4, tasks))
    count = rng.randint(groups, tasks)
    cuts = sorted(rng.sample(range(1, count), groups - 1))
    weights = rng.randint(1, 5)
    sets = [
        tuple(sorted(rng.sample(range(weights), rng.randint(0, min(2, weights)))))
        for _ in range(count)
    ]
    cores = rng.randint(1, 4)
    edges = [
        (a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.3
    ]
    limits = PartitionRules()
    if rules and groups > 1 and rng.random() < 0.4:
        limits = PartitionRules(
            min_stages=rng.choice([1, 2]),
            forbidden_cuts=(rng.randint(1, groups - 1),) if rng.random() < 0.5 else (),
            apart=((0, groups - 1),) if rng.random() < 0.3 else (),
            group_cores=((0, 1, rng.randint(1, cores)),) if rng.random() < 0.3 else (),
        )
    return JointInstance(
        packing=PackingInstance(
            load_ns=np.array([rng.randint(1, largest) for _ in range(count)]),
            weight_ptr=np.cumsum([0, *(len(s) for s in sets)], dtype=np.int32),
            weight_idx=np.array([w for s in sets for w in s], dtype=np.int32),
            slots=np.array([rng.randint(1, 6) for _ in range(weights)]),
            capacity=rng.randint(4, 12),
            cores=cores,
        ),
        group_ptr=np.array([0, *cuts, count], dtype=np.int32),
        edge_src=np.array([a for a, _ in edges], dtype=np.int32),
        edge_dst=np.array([b for _, b in edges], dtype=np.int32),
        depth=rng.randint(1, groups),
        rules=limits,
    )


def least_load(instance: JointInstance, i: int, j: int, cores: int) -> int | None:
    """Exhaustive least largest load of a segment; None when nothing fits."""
    packing = instance.packing
    tasks = range(int(instance.group_ptr[i]), int(instance.group_ptr[j]))
    sets = {t: frozenset(packing.weights_of(t)) for t in tasks}
    slots, load = packing.slots.tolist(), packing.load_ns.tolist()
    best: int | None = None

    def place(task: int, held: list[frozenset[int]], busy: list[int]) -> None:
        nonlocal best
        if best is not None and max(busy, default=0) >= best:
            return
        if task == tasks.stop:
            best = max(busy)
            return
        for core in range(min(len(held) + 1, cores)):
            new = core == len(held)
            union = sets[task] | (frozenset() if new else held[core])
            if sum(slots[w] for w in union) > packing.capacity:
                continue
            work = load[task] + (0 if new else busy[core])
            place(
                task + 1,
                [*held[:core], union, *held[core + 1 :]],
                [*busy[:core], work, *busy[core + 1 :]],
            )

    place(tasks.start, [], [])
    return best


def brute_force(instance: JointInstance) -> int | None:
    groups, cores = instance.groups, instance.cores
    allowed = instance.segments_allowed()
    least, most = instance.rules.core_range(groups, cores)
    cost: dict[tuple[int, int, int], int] = {}
    for i, j in itertools.combinations(range(groups + 1), 2):
        span = dependency_span(instance, i, j)
        for k in range(int(least[i, j]), int(most[i, j]) + 1):
            load = least_load(instance, i, j, k) if allowed[i, j] else None
            if load is not None:
                cost[i, j, k] = max(load, span)
    best: int | None = None
    for count in range(instance.rules.min_stages, min(groups, instance.depth) + 1):
        for cuts in itertools.combinations(range(1, groups), count - 1):
            points = [0, *cuts, groups]
            pairs = list(itertools.pairwise(points))
            for budgets in itertools.product(range(1, cores + 1), repeat=count):
                if sum(budgets) > cores:
                    continue
                keys = [(*p, k) for p, k in zip(pairs, budgets, strict=True)]
                if all(key in cost for key in keys):
                    value = max(cost[key] for key in keys)
                    best = value if best is None else min(best, value)
    return best


@pytest.mark.parametrize("batch", range(4))
def test_joint_equals_brute_force(batch: int) -> None:
    infeasible = 0
    for seed in range(50 * batch, 50 * batch + 50):
        instance = random_joint(random.Random(seed))
        result = solve_joint(instance, SolveBudget(20.0))
        expected = brute_force(instance)
        if expected is None:
            infeasible += 1
            assert result.verdict is Verdict.INFEASIBLE, seed
            continue
        assert result.verdict is Verdict.OPTIMAL, (seed, result)
        assert result.objective_ns == result.bound_ns == expected, seed
        assert validate_joint(instance, result.stages) == []
    assert infeasible > 2


@pytest.mark.slow
def test_joint_equals_brute_force_at_length() -> None:
    for seed in range(5_000, 6_000):
        instance = random_joint(random.Random(seed), tasks=7)
        result = solve_joint(instance, SolveBudget(20.0))
        expected = brute_force(instance)
        assert result.objective_ns == expected, seed
        assert (result.verdict is Verdict.INFEASIBLE) == (expected is None), seed


def monolithic(instance: JointInstance) -> int | None:
    """Everything in one model: only for tiny instances, an independent formulation."""
    packing, groups, cores = instance.packing, instance.groups, instance.cores
    stages = min(instance.depth, groups)
    model = cp_model.CpModel()
    top = model.new_int_var(0, int(packing.load_ns.sum()), "")
    stage = [model.new_int_var(0, stages - 1, "") for _ in range(groups)]
    for before, after in itertools.pairwise(stage):
        model.add(after >= before)
        model.add(after <= before + 1)
    model.add(stage[0] == 0)
    owner = [model.new_int_var(0, stages - 1, "") for _ in range(cores)]
    core_of = []
    group_of = np.repeat(np.arange(groups), np.diff(instance.group_ptr)).tolist()
    for task, group in enumerate(group_of):
        on = [model.new_bool_var("") for _ in range(cores)]
        model.add_exactly_one(on)
        for core, literal in enumerate(on):
            model.add(owner[core] == stage[group]).only_enforce_if(literal)
        core_of.append((task, on))
    for core in range(cores):
        model.add(sum(int(packing.load_ns[t]) * on[core] for t, on in core_of) <= top)
        held = [model.new_bool_var("") for _ in range(packing.slots.size)]
        for task, on in core_of:
            for weight in packing.weights_of(task):
                model.add_implication(on[core], held[weight])
        model.add(
            sum(int(s) * h for s, h in zip(packing.slots, held, strict=True))
            <= packing.capacity
        )
    for i, j in itertools.combinations(range(groups + 1), 2):
        together = model.new_bool_var("")
        model.add(stage[j - 1] == stage[i]).only_enforce_if(together)
        model.add(stage[j - 1] != stage[i]).only_enforce_if(~together)
        model.add(top >= dependency_span(instance, i, j)).only_enforce_if(together)
    model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return round(solver.objective_value) if status == cp_model.OPTIMAL else None


def test_joint_equals_the_monolithic_model() -> None:
    for seed in range(700, 740):
        instance = random_joint(random.Random(seed), tasks=9, rules=False)
        result = solve_joint(instance, SolveBudget(20.0))
        assert result.objective_ns == monolithic(instance), seed


def layered(
    tasks: int, groups: int, cores: int, depth: int, seed: int
) -> JointInstance:
    """Single-weight lanes: what a convolutional network looks like."""
    rng = random.Random(seed)
    lanes = [tasks // groups + (g < tasks % groups) for g in range(groups)]
    pointer = np.cumsum([0, *lanes], dtype=np.int32)
    edges = [
        (int(pointer[g - 1]) + lane * lanes[g - 1] // lanes[g], int(pointer[g]) + lane)
        for g in range(1, groups)
        for lane in range(lanes[g])
    ]
    base = [rng.randint(20_000, 200_000) for _ in range(groups)]
    return JointInstance(
        packing=PackingInstance(
            load_ns=np.array(
                [
                    base[g] - (base[g] // 20 if lane in (0, lanes[g] - 1) else 0)
                    for g in range(groups)
                    for lane in range(lanes[g])
                ]
            ),
            weight_ptr=np.arange(tasks + 1, dtype=np.int32),
            weight_idx=np.repeat(np.arange(groups, dtype=np.int32), lanes),
            slots=np.array([rng.randint(4, 60) for _ in range(groups)]),
            capacity=96,
            cores=cores,
        ),
        group_ptr=pointer,
        edge_src=np.array([a for a, _ in edges], dtype=np.int32),
        edge_dst=np.array([b for _, b in edges], dtype=np.int32),
        depth=depth,
    )


@pytest.mark.parametrize("seed", range(6))
def test_optimum_is_proved_for_a_hundred_tasks(seed: int) -> None:
    instance = layered(100, 10 + seed, 20, 5, seed)
    result = solve_joint(instance, SolveBudget(2.0))
    assert result.verdict is Verdict.OPTIMAL
    assert validate_joint(instance, result.stages) == []


def test_there_is_always_a_bound() -> None:
    instance = layered(90, 9, 12, 4, 1)
    result = solve_joint(instance, SolveBudget(0.0))
    assert result.verdict in (Verdict.FEASIBLE, Verdict.OPTIMAL)
    assert result.bound_ns is not None
    assert result.objective_ns is not None
    assert result.bound_ns <= result.objective_ns
    assert result.records == ()
    nothing = solve_joint(instance, SolveBudget(0.0), work_limit=0)
    assert nothing.verdict is Verdict.UNKNOWN
    assert nothing.bound_ns is not None
    assert nothing.bound_ns <= result.bound_ns
    assert nothing.gap is None


def test_segment_bounds_never_exceed_the_truth() -> None:
    for seed in range(60):
        instance = random_joint(random.Random(seed), rules=False)
        bounds = SegmentBounds(instance)
        for i, j in itertools.combinations(range(instance.groups + 1), 2):
            span = dependency_span(instance, i, j)
            assert span == bounds.span_ns[i, j]
            for k in range(1, instance.cores + 1):
                load = least_load(instance, i, j, k)
                if load is not None:
                    assert bounds.least_cores(max(load, span))[i, j] <= k, seed


def test_spans_of_a_chain() -> None:
    spans = segment_spans(
        np.array([0, 2, 3], dtype=np.int32),
        np.array([5, 7, 1], dtype=np.int64),
        np.array([0, 1], dtype=np.int32),
        np.array([2, 2], dtype=np.int32),
    )
    assert spans.tolist() == [[0, 7, 8], [0, 0, 1]]


def test_the_validator_finds_faults() -> None:
    instance = layered(20, 4, 6, 3, 0)
    result = solve_joint(instance, SolveBudget(2.0))
    assert validate_joint(instance, result.stages[:-1])
    with pytest.raises(MalformedInput, match="joint problem"):
        JointInstance(
            packing=instance.packing,
            group_ptr=instance.group_ptr,
            edge_src=instance.edge_src,
            edge_dst=instance.edge_dst,
            depth=1,
            rules=PartitionRules(total_cut_bytes=1),
        )


def fingerprint(result: JointResult) -> str:
    stages = [
        (s.first, s.last, s.cores, s.core_of.tolist(), s.load_ns) for s in result.stages
    ]
    hashes = [(r.model_hash, r.status.value, r.conflicts) for r in result.records]
    return repr((result.verdict.value, result.bound_ns, stages, hashes))


SCRIPT = """
import random, sys
sys.path.insert(0, {tests!r})
from test_models_joint import fingerprint, layered, random_joint, solve_joint
from raptor_cp.models.solving import SolveBudget
import hashlib
text = fingerprint(solve_joint(layered(60, 12, 10, 5, 3), SolveBudget(0.5)))
for seed in (3, 5, 8):
    instance = random_joint(random.Random(seed), tasks=9)
    text += fingerprint(solve_joint(instance, SolveBudget(1.0)))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_two_processes_agree() -> None:
    answers = []
    for seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(tests=str(ROOT / "tests"))],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(done.stdout)
    assert answers[0] == answers[1] != ""
