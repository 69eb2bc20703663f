"""Time and size of code generation for whole networks.

Usage: python benchmarks/bench_codegen.py [SCENARIO ...]

For each scenario (static search): seconds to build (storage, allocation, weights), to
write the folder and read it back checked, and to diagnose it; instructions, the
interval against the plan's estimate, and the peak resident memory of the process.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from raptor_cp.preparation import read_network
from raptor_cp.realization.realize import realize
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.targets.pim.backend import Built, build_program
from raptor_cp.targets.pim.diagnostic import DiagnosticOptions, diagnose
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.registry import create

DEFAULT = ("resnet18-arch-a", "resnet50-arch-a", "mobilenetv2-arch-a")


def measure(path: Path) -> None:
    """Print one line for a scenario."""
    loaded = load(path, ("search.timing=static",))
    result = schedule(loaded)
    target = create(loaded)
    if result.schedule is None or not isinstance(target, PimTarget):
        print(f"{path.stem}: {result.verdict.value}, nothing to emit")
        return
    plan = realize(result.schedule)
    network = read_network(loaded)
    start = time.perf_counter()
    built = build_program(plan, target, network)
    placed = time.perf_counter()
    if not isinstance(built, Built):
        print(f"{path.stem}: {type(built).__name__}: {built.reason}")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = built.write(Path(folder))
        written = time.perf_counter()
        options = DiagnosticOptions(memory_controller=True)
        found = diagnose(program, target.config, options)
        done = time.perf_counter()
    estimate = target.estimate_realized_schedule_cost(plan).interval_ns
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{path.stem}: {program.instructions:,} instructions, build "
        f"{placed - start:.2f} s, write and check {written - placed:.2f} s, diagnose "
        f"{done - written:.2f} s, interval {found.interval_ns} ns (plan {estimate}), "
        f"{peak} MiB"
    )


def main() -> None:
    """All scenarios named on the command line, or the large ones."""
    folder = Path(__file__).resolve().parent.parent / "scenarios"
    names = sys.argv[1:] or DEFAULT
    for name in names:
        path = Path(name)
        measure(path if path.is_file() else folder / f"{name}.yaml")


if __name__ == "__main__":
    main()
