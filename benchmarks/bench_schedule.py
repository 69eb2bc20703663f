"""Whole runs of ``raptor-cp schedule`` as processes: seconds and peak memory.

    python benchmarks/bench_schedule.py [SCENARIO ...]

Each scenario with static timing, with queue evaluations, and with the program; warm
kernels (one run before the first measurement), median of three.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODES = {
    "static": ("--set", "search.timing=static", "--no-program"),
    "queue": ("--no-program",),
    "program": (),
}


def run(scenario: Path, options: tuple[str, ...]) -> tuple[float, float, int]:
    """Seconds, peak MiB, exit code of one process."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        process = subprocess.Popen(
            [
                sys.executable, "-m", "raptor_cp.cli", "schedule", str(scenario),
                "--quiet", "--out", f"{folder}/run", *options,
            ]
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
    return seconds, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def main() -> None:
    """Measure and print one row for each scenario and mode."""
    names = sys.argv[1:] or ["resnet18-arch-a", "resnet50-arch-a"]
    print(f"{'scenario':28} {'mode':8} {'seconds':>8} {'peak MiB':>9} exit")
    for name in names:
        scenario = ROOT / "scenarios" / f"{name}.yaml"
        run(scenario, ())
        for mode, options in MODES.items():
            found = [run(scenario, options) for _ in range(3)]
            seconds = statistics.median(row[0] for row in found)
            peak = max(row[1] for row in found)
            print(f"{name:28} {mode:8} {seconds:8.2f} {peak:9.0f} {found[0][2]:4}")


if __name__ == "__main__":
    main()
