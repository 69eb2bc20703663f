"""Topology clustering: which physical cores a stage gets.

Works on distances alone (:meth:`raptor_cp.target.LinkModel.distance`), so on any
topology.  Three constructions compete for each vector of budgets, each ``O(P^2)``:

``chain``
    one order of all cores, each next core nearest to the one before (rows of a mesh
    in boustrophedon); stages are consecutive intervals of it.
``grown``
    a stage starts at the free core nearest to the stage before and takes the free
    core nearest to all it has, again and again.
``bisected``
    cores and stages are halved together, along the line between two cores that are
    far apart; the half nearer to the stage before goes first.

The one with the least distances inside stages wins (sum over stages of all pairwise
distances / cores, the earlier construction on a tie): direct transfers stay
inside a stage, while a cut goes through shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.target import LinkModel

IntArray = NDArray[np.int64]
Clusters = tuple[tuple[int, ...], ...]


class CoreLayout:
    """Clusters of the cores of one chip.

    Args:
        links: the direct transfers; only their symmetric distance counts.
    """

    def __init__(self, links: LinkModel) -> None:
        self.distance: IntArray = np.ascontiguousarray(links.distance())
        self.order = self._chain()
        self._known: dict[tuple[int, ...], Clusters] = {}

    @property
    def cores(self) -> int:
        """P."""
        return int(self.distance.shape[0])

    def clusters(self, budgets: Sequence[int]) -> Clusters:
        """Disjoint cores for each stage; neighbours in a cluster are near.

        Args:
            budgets: cores of each stage, positive, at most P together.

        Raises:
            InternalError: budgets that are not positive or exceed the chip.
        """
        key = tuple(budgets)
        if min(key, default=0) < 1 or sum(key) > self.cores:
            raise InternalError(f"budgets {key} on a chip of {self.cores} cores")
        if key not in self._known:
            options = (self._intervals(key), self._grown(key), self._bisected(key))
            self._known[key] = min(options, key=self.spread)
        return self._known[key]

    def spread(self, clusters: Clusters) -> int:
        """Distances inside clusters: sum of pairwise distances / cores (ns)."""
        total = 0
        for cluster in clusters:
            inner = self.distance[np.ix_(cluster, cluster)]
            total += int(inner.sum()) // len(cluster)
        return total

    def _corner(self, free: IntArray) -> int:
        """The free core that is farthest from all free cores; lowest id on a tie."""
        return int(free[self.distance[np.ix_(free, free)].sum(axis=1).argmax()])

    def _chain(self) -> tuple[int, ...]:
        free = np.ones(self.cores, dtype=np.bool_)
        core = self._corner(np.arange(self.cores))
        order = [core]
        free[core] = False
        while free.any():
            candidates = np.flatnonzero(free)
            core = int(candidates[self.distance[core, candidates].argmin()])
            order.append(core)
            free[core] = False
        return tuple(order)

    def _intervals(self, budgets: tuple[int, ...]) -> Clusters:
        ends = np.cumsum(budgets).tolist()
        return tuple(
            self.order[end - size : end]
            for end, size in zip(ends, budgets, strict=True)
        )

    def _grown(self, budgets: tuple[int, ...]) -> Clusters:
        free = np.ones(self.cores, dtype=np.bool_)
        result: list[tuple[int, ...]] = []
        near = np.zeros(self.cores, dtype=np.int64)
        for size in budgets:
            candidates = np.flatnonzero(free)
            if result:
                core = int(candidates[near[candidates].argmin()])
            else:
                core = self._corner(candidates)
            near = np.zeros(self.cores, dtype=np.int64)
            cluster: list[int] = []
            while True:
                cluster.append(core)
                free[core] = False
                near += self.distance[core]
                if len(cluster) == size:
                    break
                candidates = np.flatnonzero(free)
                core = int(candidates[near[candidates].argmin()])
            result.append(tuple(cluster))
        return tuple(result)

    def _bisected(self, budgets: tuple[int, ...]) -> Clusters:
        found: list[tuple[int, ...]] = [()] * len(budgets)
        # Unused cores go last, as if they were one more stage.
        idle = self.cores - sum(budgets)
        sizes = [*budgets, idle] if idle else list(budgets)
        anchor = self._corner(np.arange(self.cores))
        work: list[tuple[int, int, IntArray]] = [(0, len(sizes), np.arange(self.cores))]
        while work:
            first, last, pool = work.pop()
            far = int(pool[self.distance[anchor, pool].argmax()])
            near = int(pool[self.distance[far, pool].argmax()])
            if self.distance[anchor, far] < self.distance[anchor, near]:
                near, far = far, near
            along = self.distance[near, pool] - self.distance[far, pool]
            ordered = pool[np.lexsort((pool, self.distance[near, pool], along))]
            if last - first == 1:
                if first < len(budgets):
                    found[first] = tuple(ordered.tolist())
                anchor = int(ordered[-1])
                continue
            middle = _half(sizes, first, last)
            cut = sum(sizes[first:middle])
            work.append((middle, last, np.sort(ordered[cut:])))
            work.append((first, middle, np.sort(ordered[:cut])))  # taken up first
        return tuple(found)


def _half(sizes: Sequence[int], first: int, last: int) -> int:
    """Split of [first, last) whose two sums differ least; the earlier on a tie."""
    total, left, best, at = sum(sizes[first:last]), 0, -1, first + 1
    for split in range(first + 1, last):
        left += sizes[split - 1]
        gap = abs(total - 2 * left)
        if best < 0 or gap < best:
            best, at = gap, split
    return at
