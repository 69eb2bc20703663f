"""Certificates and proofs of the CP-SAT models: gap and time on named instances.

Usage: ``python benchmarks/bench_models.py [--large]``.  Prints one line for each
instance; the bars (optimum for T <= 100 in 1 s, a certified gap in 10 s, at most 2 %
where lanes share one weight set) are marked where they apply.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np

from raptor_cp.models.instances import (
    JointInstance,
    PackingInstance,
    PartitionInstance,
    PartitionRules,
    joint_instance,
)
from raptor_cp.models.pipeline_joint import solve_joint
from raptor_cp.models.solving import SolveBudget
from raptor_cp.models.stage_partition import solve_partition
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import load
from raptor_cp.targets.registry import create

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
#: Deterministic time of one joint solve: the share of a default run.
BUDGET = 1.4


def layered(
    tasks: int, groups: int, cores: int, depth: int, seed: int, *, lanes_share: bool
) -> JointInstance:
    """A chain of layers; lanes share one weight set, or take turns on several."""
    rng = random.Random(seed)
    lanes = [tasks // groups + (g < tasks % groups) for g in range(groups)]
    pointer = np.cumsum([0, *lanes])
    sets: list[int] = []
    slots: list[int] = []
    load: list[int] = []
    for group in range(groups):
        blocks = 1 if lanes_share else rng.randint(1, 3)
        first = len(slots)
        slots.extend([rng.randint(4, 60)] * blocks)
        base = rng.randint(20_000, 200_000)
        for lane in range(lanes[group]):
            edge = lane in (0, lanes[group] - 1)
            sets.append(first + lane % blocks)
            load.append(base - (base // 20 if edge else 0))
    edges = [
        (int(pointer[g - 1]) + lane * lanes[g - 1] // lanes[g], int(pointer[g]) + lane)
        for g in range(1, groups)
        for lane in range(lanes[g])
    ]
    return JointInstance(
        packing=PackingInstance(
            load_ns=np.array(load, dtype=np.int64),
            weight_ptr=np.arange(tasks + 1, dtype=np.int32),
            weight_idx=np.array(sets, dtype=np.int32),
            slots=np.array(slots, dtype=np.int64),
            capacity=96,
            cores=cores,
        ),
        group_ptr=pointer.astype(np.int32),
        edge_src=np.array([a for a, _ in edges], dtype=np.int32),
        edge_dst=np.array([b for _, b in edges], dtype=np.int32),
        depth=depth,
    )


def report(name: str, instance: JointInstance, bar: str) -> None:
    """Solve one joint instance and print its line."""
    packing = instance.packing
    used = np.unique(packing.weight_idx)
    room = packing.capacity * packing.cores
    fill = int(packing.slots[used].sum()) / room if used.size else 0.0
    budget = SolveBudget(BUDGET)
    start = time.perf_counter()
    result = solve_joint(instance, budget)
    seconds = time.perf_counter() - start
    gap = "-" if result.gap is None else f"{100 * result.gap:.2f} %"
    print(
        f"{name:34} T={packing.tasks:<5} G={instance.groups:<4} P={instance.cores:<4} "
        f"fill={fill:4.0%} {result.verdict.value:10} gap={gap:8} {seconds:6.2f} s "
        f"dt={budget.spent:4.2f} solves={len(result.records):<4} {result.proof}  {bar}",
        flush=True,
    )


def scenario(name: str) -> JointInstance:
    """The joint instance of a shipped scenario."""
    loaded = load(SCENARIOS / f"{name}.yaml")
    prepared = prepare(loaded, create(loaded))
    if not isinstance(prepared, Prepared):
        raise SystemExit(f"{name} cannot be scheduled")
    return joint_instance(prepared.problem, loaded.scenario.pipeline.stages or 8)


def partition(groups: int, cores: int, depth: int) -> None:
    """A whole bisection with a traffic budget, which the DP cannot express."""
    rng = random.Random(groups)
    work = [rng.randint(50, 400) for _ in range(groups)]
    cost = np.full((groups, groups + 1, cores), 2**62, dtype=np.int64)
    for i in range(groups):
        for j in range(i + 1, groups + 1):
            total = sum(work[i:j])
            span = total // 3
            cost[i, j] = [max(span, -(-total // k)) for k in range(1, cores + 1)]
    traffic = np.array([rng.randint(1, 100) for _ in range(groups + 1)])
    instance = PartitionInstance(
        cost_ns=cost,
        depth=depth,
        cores=cores,
        rules=PartitionRules(total_cut_bytes=depth * 20),
        cut_bytes=traffic,
    )
    start = time.perf_counter()
    result = solve_partition(instance, SolveBudget(20.0), limit=2.0)
    print(
        f"partition, traffic budget            G={groups:<4} P={cores:<4} S={depth:<3} "
        f"{result.verdict.value:10} cost={result.cost_ns} relaxed={result.relaxed_ns} "
        f"{time.perf_counter() - start:6.2f} s solves={len(result.records)}",
        flush=True,
    )


def main() -> None:
    """Run all instances."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also T up to 5,000")
    large = parser.parse_args().large
    solve_joint(layered(20, 4, 6, 3, 0, lanes_share=True), SolveBudget(0.1))  # compile
    for name in (
        "tiny-residual",
        "audio-cnn-small-chip",
        "bert-block-arch-a",
        "squeezenet-arch-b",
        "googlenet-arch-a",
        "mobilenetv2-arch-a",
        "resnet18-arch-a",
        "resnet50-arch-a",
    ):
        report(name, scenario(name), "bar: 2 %, 10 s")
    for seed in range(5):
        instance = layered(100, 10 + seed, 20, 5, seed, lanes_share=True)
        report(f"lanes share, seed {seed}", instance, "bar: optimum, 1 s")
    sizes = [(300, 20, 32, 8), (700, 40, 100, 8), (1000, 60, 128, 8)]
    if large:
        sizes += [(2000, 72, 168, 16), (5000, 150, 168, 32)]
    for size in sizes:
        report("lanes share", layered(*size, 1, lanes_share=True), "bar: 2 %, 10 s")
        report("several sets", layered(*size, 1, lanes_share=False), "bar: 10 s")
    for groups, depth in ((24, 8), (40, 12), (72, 16)):
        partition(groups, 64, depth)


if __name__ == "__main__":
    main()
