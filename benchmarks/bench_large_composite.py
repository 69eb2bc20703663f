"""Large composites: dispatch and run time from one operation up to the cap.

Run: ``python benchmarks/bench_large_composite.py``.  A chain of elementwise operations
is issued as one composite and as single-op commands; both do the same engine work.
The dispatch-cost spec asks for this stress test (open review item 2): the scheduler's
own work is free in the model, so what a composite of 36 operations saves over 36
commands shows how much of its advantage rests on that.  Prints a Markdown table; all
figures are deterministic cycles, no clock is read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    MathCmd,
    OpSpec,
    PeCommand,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import CompositeTooLarge
from raptor_cp.targets.pe.element import element_cost
from raptor_cp.targets.pe.topology import PeAttributes

if TYPE_CHECKING:
    from fractions import Fraction

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, 37)
SHAPE = (64, 64)


@dataclass(frozen=True, slots=True)
class Row:
    """One chain length; cycles, exact; None where the cap refuses the composite."""

    operations: int
    logical_bytes: int
    composite_dispatch: Fraction | None
    single_dispatch: Fraction
    composite_total: Fraction | None
    single_total: Fraction


def chain(count: int) -> tuple[CompositeCmd, list[PeCommand]]:
    """``count`` additions, each of the previous result to itself."""
    tensors = [TensorHandle(f"t{i}", SHAPE) for i in range(count + 1)]
    ops = []
    singles: list[PeCommand] = []
    for source, target in pairwise(tensors):
        ops.append(OpSpec("add", {"a": source, "b": source}, target))
        singles.append(MathCmd("add", (source, source), target))
    return CompositeCmd(tuple(ops), (tensors[-1],), f"chain of {count}"), singles


def measure(count: int, attributes: PeAttributes) -> Row:
    """Both ways to issue a chain."""
    composite, singles = chain(count)
    alone = element_cost(singles, attributes)
    try:
        fused = element_cost([composite], attributes)
    except CompositeTooLarge:
        return Row(
            count,
            composite.logical_bytes,
            None,
            alone.dispatch_cycles,
            None,
            alone.total_cycles,
        )
    return Row(
        count,
        composite.logical_bytes,
        fused.dispatch_cycles,
        alone.dispatch_cycles,
        fused.total_cycles,
        alone.total_cycles,
    )


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        "| operations | bytes | dispatch, composite | dispatch, single |"
        " total, composite | total, single |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        cells = [
            "refused" if value is None else f"{float(value):g}"
            for value in (
                row.composite_dispatch,
                row.single_dispatch,
                row.composite_total,
                row.single_total,
            )
        ]
        lines.append(
            f"| {row.operations} | {row.logical_bytes} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    attributes = PeAttributes()
    rows = [measure(count, attributes) for count in COUNTS]
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
