"""PEFT: predict earliest finish time (Arabnejad and Barbosa, IEEE TPDS 2014).

Priority of a task is the mean of its row of the optimistic cost table
(:mod:`raptor_cp.latency.optimistic_cost`); it goes to the core with the least sum of
its earliest finish there and its optimistic cost there.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from raptor_cp.latency.list_scheduling import ListScheduler
from raptor_cp.latency.optimistic_cost import optimistic_costs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


class PeftScheduler(ListScheduler):
    """PEFT under weight capacity; the table is computed once."""

    name = "peft"

    @cached_property
    def table(self) -> IntArray:
        """[T, P] optimistic costs (ns)."""
        return optimistic_costs(self.costs)

    @property
    def look_ahead_ns(self) -> IntArray:
        """The optimistic cost of the core."""
        return self.table

    @cached_property
    def priorities(self) -> list[int]:
        """[T] sums of the rows: P times the rank, exact."""
        # Python integers: the sum of a row can exceed int64 where its entries do not.
        return [sum(row) for row in self.table.tolist()]

    @property
    def ranks(self) -> tuple[Fraction, ...]:
        """[T] the paper's rank: mean optimistic cost (ns), exact."""
        return tuple(Fraction(total, self.costs.cores) for total in self.priorities)
