"""Instruction diagnostic of a large program in binary form.

    python benchmarks/bench_diagnostic.py [--instructions 5000000] [--pimsim PATH]

Bar: 5 million instructions in 5 s, and at least 50 times faster than the
simulator, whose time for the same program is measured when its binary is given.
The program imitates a compiled network on the 168-core chip: per output pixel
address set-up, copies, matrix products and adds; now and then a transfer along a
chain of cores, a global load or a store.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from raptor_cp.targets.pim.artifact import ProgramWriter, read_program
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.config_writer import write_simulator_config
from raptor_cp.targets.pim.diagnostic import DiagnosticOptions, diagnose
from raptor_cp.targets.pim.isa import RECORD, Opcode

#: One output pixel: (opcode, r2_or_imm, generic1, generic2, generic3).
_PIXEL = [
    (Opcode.SLDI, 4096, 0, 0, 0),
    (Opcode.SLDI, 8192, 0, 0, 0),
    (Opcode.LMV, 0, 0, 0, 288),
    (Opcode.SLDI, 0, 0, 0, 0),
    (Opcode.MVMUL, 8, 0, 3, 0),
    (Opcode.SLDI, 64, 0, 0, 0),
    (Opcode.VVADD, 2, 0, 0, 128),
    (Opcode.SLDI, 128, 0, 0, 0),
    (Opcode.SLDI, 256, 0, 0, 0),
    (Opcode.VRELU, 0, 0, 0, 128),
]
_PIXELS_PER_TRANSFER = 20
_PIXELS_PER_REQUEST = 10


def core_stream(core: int, cores: int, instructions: int) -> np.ndarray:
    """Records of one core of the chain."""
    pixel = np.zeros(len(_PIXEL), dtype=RECORD)
    for place, (opcode, second, first, middle, last) in enumerate(_PIXEL):
        pixel[place] = (int(opcode), 0, 1, 0, second, first, middle, last)
    pixels = max(1, instructions // len(_PIXEL))
    body = np.tile(pixel, pixels)
    at, extra = [], []

    def insert(position: int, *record: int) -> None:
        at.append(position)
        extra.append(record)

    insert(0, int(Opcode.SETBW), 0, 0, 0, 0, 8, 8, 0)
    for number in range(pixels):
        start = number * len(_PIXEL)
        if number % _PIXELS_PER_REQUEST == 0:
            insert(start, int(Opcode.LD), 0, 4, 0, 0, 0, 0, 256)
        if number % _PIXELS_PER_TRANSFER == 0 and core > 0:
            insert(start, int(Opcode.RECV), 0, 0, 0, core - 1, 0, 0, 128)
        end = start + len(_PIXEL)
        if number % _PIXELS_PER_TRANSFER == 0 and core + 1 < cores:
            insert(end, int(Opcode.SEND), 0, 0, 0, core + 1, 0, 0, 128)
        if number % _PIXELS_PER_REQUEST == 5:
            insert(end, int(Opcode.ST), 4, 0, 0, 0, 0, 0, 128)
    return np.insert(body, at, np.array(extra, dtype=RECORD))


def main() -> None:
    """Write the program, diagnose it cold and warm, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instructions", type=int, default=5_000_000)
    parser.add_argument("--pimsim", type=Path, default=None)
    given = parser.parse_args()
    config = load_config("arch-a")
    cores = config.core_count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "program"
        writer = ProgramWriter(folder, cores)
        groups = np.full(24, 4, dtype=np.int64)
        for core in range(cores):
            stream = core_stream(core, cores, given.instructions // cores)
            writer.write_core(core, groups, stream)
        writer.close()
        for controller in (False, False, True, True):
            begun = time.perf_counter()
            program = read_program(folder, config)
            read = time.perf_counter()
            options = DiagnosticOptions(memory_controller=controller)
            result = diagnose(program, config, options)
            done = time.perf_counter()
            print(
                f"{program.instructions} instructions, controller {controller}: "
                f"read {read - begun:.2f} s, diagnosis {done - read:.2f} s, "
                f"{result.events} events, interval {result.interval_ns}, "
                f"one generation {result.single_generation_ns}"
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak:.0f} MiB")
        if given.pimsim is not None:
            written = write_simulator_config(config, Path(name) / "chip")
            begun = time.perf_counter()
            output = subprocess.run(
                [given.pimsim, folder, written],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            simulated = time.perf_counter() - begun
            line = next(x for x in output.splitlines() if "latency:" in x)
            print(f"simulator, one generation: {simulated:.1f} s, {line.strip()}")


if __name__ == "__main__":
    main()
