"""Lower bounds by linear programming, proved in exact integers.

A row ``sum a x >= b`` may be multiplied by any number that is not negative, and rows
may be added up; with all variables bounded, every such sum bounds the objective (weak
duality).  A linear solver in floating point suggests the multipliers.  They are rounded
to integers, and the bound that they give is computed in exact integers, however good
or bad the suggestion was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Steps of the linear solver: a fixed number, so that a run repeats.
MAX_ITERATIONS = 20_000
#: Multipliers are integers of this scale.
_SCALE = 2**50


@dataclass(eq=False)
class LinearBound:
    """Rows ``sum a x >= b`` in integers over bounded variables.

    Attributes:
        horizon: largest value of a time.
        bounds: (low, high) of each variable.
        rows: terms, right side, and whether the row counts copies rather than ns.
        nonzeros: of all rows.
    """

    horizon: int
    bounds: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[list[tuple[int, int]], int, int]] = field(default_factory=list)
    nonzeros: int = 0

    def variable(self, low: int, high: int) -> int:
        """A variable; its number."""
        self.bounds.append((low, high))
        return len(self.bounds) - 1

    def low(self, variable: int) -> int:
        """Least value."""
        return self.bounds[variable][0]

    def most(self, variable: int) -> int:
        """Largest value."""
        return self.bounds[variable][1]

    def at_least(
        self,
        terms: list[tuple[int, int]],
        least: int,
        *,
        mixed: bool = False,
        divisor: int = 1,
    ) -> None:
        """A row; ``mixed``: no ns in it; ``divisor``: how large its numbers are."""
        self.rows.append((terms, least, 0 if mixed else divisor))
        self.nonzeros += len(terms)

    def envelope(self, count: int, table: Sequence[int]) -> int:
        """A time at or above the lower convex envelope of a table over 1, 2, ..."""
        corners: list[tuple[int, int]] = []
        for point in enumerate(table, start=1):
            while len(corners) > 1 and _turns_down(corners[-2], corners[-1], point):
                corners.pop()
            corners.append(point)
        length = self.variable(table[-1], table[0])
        for (x0, y0), (x1, y1) in pairwise(corners):
            if y1 < y0:
                self.at_least(
                    [(length, x1 - x0), (count, y0 - y1)],
                    y0 * (x1 - x0) + x0 * (y0 - y1),
                    divisor=x1 - x0,
                )
        return length

    def least(self, objective: int) -> int | None:
        """A lower bound on a variable, proved in integers; None without an answer."""
        prices = self._prices(objective)
        if prices is None:
            return None
        rest = [0] * len(self.bounds)
        rest[objective] = _SCALE
        total = 0
        for (terms, least, _), price in zip(self.rows, prices, strict=True):
            if price:
                total += price * least
                for variable, factor in terms:
                    rest[variable] -= price * factor
        for (low, high), factor in zip(self.bounds, rest, strict=True):
            total += factor * (low if factor > 0 else high)
        return ceil_div(total, _SCALE)

    def _prices(self, objective: int) -> list[int] | None:
        """Multipliers of the rows, integers of the scale, none negative."""
        from ortools.linear_solver.python import model_builder

        # Times in thousandths of the horizon, so that all numbers are of one order.
        unit = max(1.0, self.horizon / 1_000)
        is_time = [True] * len(self.bounds)
        for terms, _, divisor in self.rows:
            for variable, _ in terms:
                is_time[variable] &= divisor > 0
        model = model_builder.Model()  # type: ignore[no-untyped-call]
        scale = [unit if time else 1.0 for time in is_time]
        variables = [
            model.new_num_var(low / by, high / by, "")
            for (low, high), by in zip(self.bounds, scale, strict=True)
        ]
        constraints = []
        for terms, least, divisor in self.rows:
            by = divisor * unit if divisor else 1.0
            constraints.append(
                model.add(
                    model_builder.LinearExpr.weighted_sum(
                        [variables[variable] for variable, _ in terms],
                        [factor * scale[variable] / by for variable, factor in terms],
                    )
                    >= least / by
                )
            )
        model.minimize(variables[objective])
        solver = model_builder.Solver("GLOP")
        solver.set_solver_specific_parameters(
            f"max_number_of_iterations: {MAX_ITERATIONS}"
        )
        if solver.solve(model) != model_builder.SolveStatus.OPTIMAL:
            return None
        prices = []
        for (_, _, divisor), constraint in zip(self.rows, constraints, strict=True):
            price = solver.dual_value(constraint) * (1.0 / divisor if divisor else unit)
            if not math.isfinite(price):
                return None
            prices.append(max(0, round(price * _SCALE)))
        return prices


def _turns_down(
    first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]
) -> bool:
    """Whether the second point is on or above the line through the others."""
    left = (second[1] - first[1]) * (third[0] - second[0])
    return left >= (third[1] - second[1]) * (second[0] - first[0])
