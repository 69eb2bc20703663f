"""How dispatch and run time move with the knobs of the cost model.

A kernel's log holds no costs, so it is recorded once and replayed at every point
of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.cost_model import exact_number
from raptor_cp.targets.pe.kernel import replay
from raptor_cp.targets.pe.knobs import reject_unknown_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes

    from raptor_cp.targets.pe.op_log import OpLog
    from raptor_cp.targets.pe.topology import PeAttributes

#: Short names of the knobs on the command line.
SWEPT_KNOBS = {
    "R": "byte_cycles_recip",
    "FIXED_COMPOSITE": "fixed_per_cmd_cycles",
    "FIXED_SINGLE": "fixed_per_single_op_cmd_cycles",
}

#: Points of one sweep.
MAX_POINTS = 10_000

Grid = dict[str, tuple[Fraction, ...]]


def parse_sweep(text: str) -> Grid:
    """``R=0.25,0.0625,FIXED_SINGLE=8,40`` as values by short name.

    >>> parse_sweep("R=0.25,0.5,FIXED_SINGLE=8")["R"]
    (Fraction(1, 4), Fraction(1, 2))

    Raises:
        MalformedInput: an unknown knob, a knob twice, or a bad value.
    """
    grid: Grid = {}
    knob = ""
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if equals:
            knob = name.strip()
            reject_unknown_keys({knob: None}, SWEPT_KNOBS, where="--sweep")
            if knob in grid:
                raise MalformedInput(
                    "this knob is given twice", where=f"--sweep {knob}"
                )
            grid[knob] = ()
        if not knob:
            raise MalformedInput(
                "a value without a knob",
                where="--sweep",
                value=part,
                expected="R=0.25,0.0625,FIXED_SINGLE=8,40",
            )
        try:
            number: object = float(value)
        except ValueError:
            number = value
        grid[knob] = (*grid[knob], exact_number(number, knob, where="--sweep"))
    return grid


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """One point: knobs, and dispatch and run time of each kernel (cycles, exact)."""

    byte_cycles_recip: Fraction
    fixed_composite: Fraction
    fixed_single: Fraction
    dispatch_cycles: tuple[Fraction, ...]
    total_cycles: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """A sweep over a grid of knobs.

    Attributes:
        kernels: names; figures of a row stand in this order.
        rows: R slowest, then the composite's FIXED, then the other one.
    """

    kernels: tuple[str, ...]
    rows: tuple[SensitivityRow, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON reports."""
        return {
            "kernels": list(self.kernels),
            "rows": [
                {
                    "R": float(row.byte_cycles_recip),
                    "FIXED_COMPOSITE": float(row.fixed_composite),
                    "FIXED_SINGLE": float(row.fixed_single),
                    "dispatch_cycles": [float(c) for c in row.dispatch_cycles],
                    "total_cycles": [float(c) for c in row.total_cycles],
                }
                for row in self.rows
            ],
        }


def sweep(
    logs: Mapping[str, OpLog],
    attributes: PeAttributes,
    grid: Mapping[str, Sequence[Fraction]],
) -> Sensitivity:
    """Replay every log at every point; a knob that is not swept keeps its value.

    Raises:
        MalformedInput: an unknown knob, or more than ``MAX_POINTS`` points.
    """
    reject_unknown_keys(grid, SWEPT_KNOBS, where="sweep")
    base = attributes.cost_model
    axes = [
        grid.get(name) or (base.knobs()[knob],) for name, knob in SWEPT_KNOBS.items()
    ]
    points = 1
    for axis in axes:
        points *= len(axis)
    if points > MAX_POINTS:
        raise MalformedInput(
            "too many points", where="sweep", value=points, expected=f"<= {MAX_POINTS}"
        )
    rows = []
    for r, composite, single in product(*(map(Fraction, axis) for axis in axes)):
        model = replace(
            base,
            byte_cycles_recip=r,
            fixed_per_cmd_cycles=composite,
            fixed_per_single_op_cmd_cycles=single,
        )
        element = replace(attributes, cost_model=model)
        runs = [replay(log, element) for log in logs.values()]
        rows.append(
            SensitivityRow(
                r,
                composite,
                single,
                tuple(run.dispatch_cycles for run in runs),
                tuple(run.total_cycles for run in runs),
            )
        )
    return Sensitivity(tuple(logs), tuple(rows))


def plot_sensitivity(result: Sensitivity, ax: Axes | None = None) -> Axes:
    """Dispatch cycles over R, a line for each kernel and pair of FIXED costs."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7, 4.5), layout="constrained").subplots()
    pairs = dict.fromkeys((r.fixed_composite, r.fixed_single) for r in result.rows)
    for number, kernel in enumerate(result.kernels):
        for pair in pairs:
            rows = [
                r for r in result.rows if (r.fixed_composite, r.fixed_single) == pair
            ]
            rows.sort(key=lambda r: r.byte_cycles_recip)
            ax.plot(
                [float(r.byte_cycles_recip) for r in rows],
                [float(r.dispatch_cycles[number]) for r in rows],
                marker="o",
                label=f"{kernel}, FIXED {float(pair[0]):g}/{float(pair[1]):g}",
            )
    ax.set_xlabel("R (cycles per byte)")
    ax.set_ylabel("CPU dispatch (cycles)")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small")
    return ax
