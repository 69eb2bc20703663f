"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri, Wu, IEEE TPDS 2002).

Priority of a task is its upward rank, the longest path of mean execution and mean
transfer times to an exit task, its own included; it goes to the core where it ends
first.  Means are over all cores and over all pairs of different cores.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from raptor_cp.latency.list_scheduling import ListScheduler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


class HeftScheduler(ListScheduler):
    """HEFT under weight capacity."""

    name = "heft"

    @property
    def look_ahead_ns(self) -> None:
        """HEFT compares ends only."""
        return

    @property
    def scale(self) -> int:
        """The common denominator P (P - 1) of all means; 1 on a single core."""
        cores = self.costs.cores
        return max(1, cores * (cores - 1))

    @cached_property
    def priorities(self) -> list[int]:
        """[T] upward ranks times :attr:`scale`: exact, in Python integers."""
        costs, cores = self.costs, self.costs.cores
        weight = max(1, cores - 1)
        own = [weight * sum(row) for row in costs.execution_ns.tolist()]
        ptr, target = costs.succ_ptr.tolist(), costs.succ_dst.tolist()
        transfer = self._transfers()
        rank = [0] * costs.tasks
        for task in range(costs.tasks - 1, -1, -1):
            longest = 0
            for edge in range(ptr[task], ptr[task + 1]):
                longest = max(longest, transfer[edge] + rank[target[edge]])
            rank[task] = own[task] + longest
        return rank

    @property
    def ranks(self) -> tuple[Fraction, ...]:
        """[T] upward ranks (ns), exact."""
        return tuple(Fraction(total, self.scale) for total in self.priorities)

    def _transfers(self) -> list[int]:
        """[E] sum over all pairs of different cores, by source."""
        costs, cores = self.costs, self.costs.cores
        pairs = cores * (cores - 1)
        handshake, unit = costs.handshake_ns.tolist(), costs.unit_ns.tolist()
        away = [(p, q) for p in range(cores) for q in range(cores) if p != q]
        fixed = sum(handshake[p][q] for p, q in away)
        each = sum(unit[p][q] for p, q in away)
        known: dict[int, int] = {0: 0}
        for size in sorted(set(costs.succ_bytes.tolist())):
            if size:
                units = -(-size // costs.link_width)
                ends = -(-size // costs.endpoint_width) * costs.endpoint_ns
                known[size] = fixed + units * each + pairs * ends
        return [known[size] for size in costs.succ_bytes.tolist()]
