"""Functional verification of a whole network.

    python benchmarks/bench_verify.py [--size 64] [--network resnet18] [--stages 8]
        [--orders 3] [--bits 16] [--accumulators exact]

Schedules the network on arch-A without the solver, generates its program and executes
it under several core orders, for at least two rounds of every bank; prints times,
instructions and multiply-accumulates per second.  Exit code 1 if an output differs.
"""

from __future__ import annotations

import argparse
import resource
import time

from raptor_cp.graph.widths import Accumulators
from raptor_cp.preparation import read_network
from raptor_cp.realized import plan_forms
from raptor_cp.scenario import loads
from raptor_cp.scheduler import schedule
from raptor_cp.targets.pim.backend import Built, build_program
from raptor_cp.targets.pim.functional import core_orders, verify_program
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.registry import create

SCENARIO = """
schema: raptor-cp/1
name: verify
network: {{zoo: {network}, input: [1, 3, {size}, {size}], weight_bits: {bits},
          activation_bits: {bits}}}
target: {{kind: pim, config: arch-a}}
mode: pipeline
pipeline: {{stages: {stages}}}
lowering: {{accumulators: {accumulators}}}
search: {{timing: static}}
solver: {{enabled: false}}
"""


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--accumulators", default="exact")
    parser.add_argument("--orders", type=int, default=3)
    options = parser.parse_args()
    loaded = loads(
        SCENARIO.format(
            network=options.network,
            size=options.size,
            stages=options.stages,
            bits=options.bits,
            accumulators=options.accumulators,
        )
    )
    start = time.perf_counter()
    result = schedule(loaded)
    if result.schedule is None:
        print(f"{result.verdict}: {result.reason}")
        return 1
    plan = plan_forms(loaded.scenario.pipeline)[0][0].realize(result.schedule)
    print(f"schedule          {time.perf_counter() - start:8.2f} s")
    target, network = create(loaded), read_network(loaded)
    if not isinstance(target, PimTarget):
        return 1
    start = time.perf_counter()
    policy = Accumulators(options.accumulators)
    built = build_program(plan, target, network, accumulators=policy)
    if not isinstance(built, Built):
        print(f"no program: {built.reason}")
        return 1
    program = built.program(native=True)
    print(f"code generation   {time.perf_counter() - start:8.2f} s")
    start = time.perf_counter()
    found = verify_program(
        network,
        program,
        built.sidecar,
        array=target.machine.array,
        orders=core_orders(options.orders),
    )
    seconds = time.perf_counter() - start
    rounds = found.generations * len(found.orders)
    print(f"verification      {seconds:8.2f} s ({rounds} rounds)")
    print(f"instructions      {found.instructions} a round")
    print(f"speed             {found.instructions * rounds / seconds / 1e6:8.2f} M/s")
    print(f"products          {network.macs * rounds / seconds / 1e6:8.0f} M/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory       {peak:8.0f} MiB")
    print(f"equal             {found.equal} {found.difference or found.fault or ''}")
    return 0 if found.equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
