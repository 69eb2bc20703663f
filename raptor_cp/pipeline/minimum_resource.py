"""The minimum-resource prefix DP: fewest cores of a partition, every core count.

For a largest stage cost V (ns) a segment needs the least k with ``cost(k) <= V``; a
prefix DP over groups and stages adds those up, and V is attainable when the fewest
cores of some stage count fit the chip.  Bisection over V gives the best partition
over every core count of every segment, without the quantization of the quality
grid (scheduling spec, "Costs and interpretation").

Feasibility comes first (V unlimited): with ordered pack counts, and, when those
exceed the chip, restarted from weight lower bounds ("Capacity and recovery").  A
count below the ordered one costs what the reuse-first constructor finds.  It is
asked only about segments on a path that the DP wants to use; a count that it cannot
pack is raised by one.  Lower bounds alone that exceed the chip are a proof; anything
after a question is a bounded search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import InternalError
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.pipeline.budgets import StagePacking
    from raptor_cp.pipeline.groups import StageLimits

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

#: Most questions to the reuse-first constructor in one DP.
QUESTION_LIMIT: Final = 1024


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A partition that fits.

    Attributes:
        segments: groups [first, last) of each stage.
        cores: least cores of each stage for its cost.
        value_ns: largest stage cost.
        questions: segments and counts the constructor was asked about.
        restarted: ordered pack counts exceeded the chip.
    """

    segments: tuple[tuple[int, int], ...]
    cores: tuple[int, ...]
    value_ns: int
    questions: int
    restarted: bool


@dataclass(frozen=True, slots=True)
class NoPath:
    """Nothing found.

    Attributes:
        least_cores: cores that lower bounds prove necessary; None when no number
            of cores is enough.
        proved: the bounds alone exceed the chip.
        questions: what the constructor was asked.
    """

    least_cores: int | None
    proved: bool
    questions: int


@dataclass(frozen=True, eq=False)
class SegmentTables:
    """[G, G+1] figures of all segments under the side constraints.

    Attributes:
        legal: both ends are legal boundaries and the segment has tasks.
        low, high: least and most cores.
        load: execution time (ns) of all its tasks.
        longest: longest task (ns).
    """

    legal: BoolArray
    low: IntArray
    high: IntArray
    load: IntArray
    longest: IntArray

    @classmethod
    def of(cls, packing: StagePacking, limits: StageLimits) -> SegmentTables:
        """Tables of a problem: ``O(G^2 + T)``."""
        groups = packing.groups
        count = groups.count
        low = np.ones((count, count + 1), dtype=np.int64)
        high = np.full((count, count + 1), UNAVAILABLE, dtype=np.int64)
        longest = np.zeros((count, count + 1), dtype=np.int64)
        ptr, work = groups.task_ptr, groups.execution_ns
        prefix = np.concatenate([[0], np.cumsum(work)])[ptr]
        peaks = np.array(
            [work[ptr[g] : ptr[g + 1]].max(initial=0) for g in range(count)]
        )
        for g in range(count):
            low[g, g + 1 :] = np.maximum.accumulate(limits.min_cores[g:])
            high[g, g + 1 :] = np.minimum.accumulate(limits.max_cores[g:])
            longest[g, g + 1 :] = np.maximum.accumulate(peaks[g:])
        cut = limits.cut_allowed
        legal: BoolArray = cut[:-1, None] & cut[None, :] & (packing.least > 0)
        load = np.maximum(prefix[None, :] - prefix[:-1, None], 0)
        return cls(legal, low, high, load, longest)

    def load_bound(self, counts: IntArray) -> IntArray:
        """[G, G+1, n] least largest load (ns) on any of n core counts."""
        share: IntArray = -(-self.load[:, :, None] // counts)
        return np.maximum(share, self.longest[:, :, None])

    def within(self, need: IntArray) -> IntArray:
        """``need`` under the limits; UNAVAILABLE where they clash."""
        result = np.maximum(need, self.low)
        result[~self.legal | (result > self.high)] = UNAVAILABLE
        return result


class MinimumResource:
    """One search for the best partition over every core count.

    Args:
        packing: curves and assignments of the problem.
        tables: segment figures under the side constraints.
        depth: most stages.
    """

    def __init__(
        self, packing: StagePacking, tables: SegmentTables, depth: int
    ) -> None:
        self.packing, self.tables, self.depth = packing, tables, depth
        groups = packing.groups
        self.cores = groups.problem.resources.cores
        self.spans = groups.spans
        traffic = groups.traffic
        self.service = traffic.segment_load_ns + traffic.segment_store_ns
        self.questions = 0
        #: load found for (first, last, cores); UNAVAILABLE when packing failed
        self._answers: dict[tuple[int, int, int], int] = {}
        self._asked: dict[tuple[int, int], None] = {}  # in order of asking

    def run(self) -> ResourcePath | NoPath:
        """The partition of least largest stage cost.

        Ties: fewest stages, fewest cores, least memory service, earliest
        boundaries.
        """
        restarted = False
        found = self._path(self._ordered(UNAVAILABLE))
        if found is None:
            restarted = True
            bounds = self._bounds(UNAVAILABLE)
            least = self._fewest(bounds)
            if least > self.cores:
                return NoPath(None if least == UNAVAILABLE else least, True, 0)
            found = self._probe(UNAVAILABLE)
            if found is None:
                return NoPath(least, False, self.questions)
        value = self._value(found)
        low = max(
            int(self.packing.groups.execution_ns.max()),
            ceil_div(int(self.packing.groups.execution_ns.sum()), self.cores),
        )
        while low < value:
            middle = (low + value) // 2
            better = self._probe(middle)
            if better is None:
                low = middle + 1
            else:
                found, value = better, self._value(better)
        segments, counts = found
        return ResourcePath(segments, counts, value, self.questions, restarted)

    def _ordered(self, limit: int) -> IntArray:
        """[G, G+1] cores for a cost of at most ``limit``, ordered packing alone."""
        need = self.tables.within(self.packing.ordered.cores_within(limit))
        need[self.spans > limit] = UNAVAILABLE
        return need

    def _bounds(self, limit: int) -> IntArray:
        """[G, G+1] cores that a cost of at most ``limit`` needs at least."""
        share = -(-self.tables.load // limit)
        need = self.tables.within(np.maximum(self.packing.least, share))
        need[(self.spans > limit) | (self.tables.longest > limit)] = UNAVAILABLE
        return need

    def _probe(
        self, limit: int
    ) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]] | None:
        """A path with every stage at most ``limit``, its assignments in hand."""
        ordered = self._ordered(limit)
        need = np.minimum(self._bounds(limit), ordered)
        # Where ordered packing fits, it is the cost: the constructor has no say.
        closed = need >= self.packing.ordered_least
        need[closed] = ordered[closed]
        for cell in self._asked:
            self._raise(cell, need, ordered, limit)
        while True:
            found = self._path(need)
            if found is None:
                return None
            unknown = [
                cell
                for cell in found[0]
                if need[cell] < ordered[cell]
                and (*cell, int(need[cell])) not in self._answers
            ]
            if not unknown:
                return found
            for cell in unknown:
                self._ask(cell, int(need[cell]))
                self._raise(cell, need, ordered, limit)

    def _ask(self, cell: tuple[int, int], cores: int) -> None:
        if self.questions >= QUESTION_LIMIT:
            self._answers[*cell, cores] = UNAVAILABLE
        else:
            self.questions += 1
            packed = self.packing.packed(*cell, cores)
            load = UNAVAILABLE if packed is None else packed.load_ns
            self._answers[*cell, cores] = load
        self._asked[cell] = None

    def _raise(
        self, cell: tuple[int, int], need: IntArray, ordered: IntArray, limit: int
    ) -> None:
        """Move a segment past the counts that are known not to do."""
        cores = int(need[cell])
        if cores == UNAVAILABLE:
            return
        most = min(
            int(self.packing.ordered_least[cell]), int(self.tables.high[cell]) + 1
        )
        while cores < most:
            load = self._answers.get((*cell, cores))
            if load is None or (load <= limit and load != UNAVAILABLE):
                break
            cores += 1
        need[cell] = cores if cores < most else ordered[cell]

    def _value(self, found: tuple[tuple[tuple[int, int], ...], tuple[int, ...]]) -> int:
        """Largest stage cost of a path, from its assignments."""
        value = 0
        for (first, last), cores in zip(*found, strict=True):
            packed = self.packing.packed(first, last, cores)
            if packed is None:
                raise InternalError(f"stage [{first}, {last}) lost its assignment")
            value = max(value, packed.load_ns, int(self.spans[first, last]))
        return value

    def _path(
        self, need: IntArray
    ) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]] | None:
        """Segments and cores of the path of fewest stages that fits the chip."""
        total, step = _resource_table(need, self.service, self.depth)
        for stages in range(1, self.depth + 1):
            if total[stages, 0] > self.cores:
                continue
            path, first = [], 0
            for left in range(stages, 0, -1):
                last = int(step[left, first])
                path.append((first, last))
                first = last
            return tuple(path), tuple(int(need[cell]) for cell in path)
        return None

    def _fewest(self, need: IntArray) -> int:
        """Fewest cores of any path; UNAVAILABLE without one."""
        total, _ = _resource_table(need, self.service, self.depth)
        return int(total[1:, 0].min())


@njit(cache=True)
def _resource_table(
    need: IntArray, service: IntArray, depth: int
) -> tuple[IntArray, IntArray]:
    """(fewest cores, next boundary) from each group to the end with exactly s
    stages; ties: least service, earliest boundary."""
    groups = need.shape[0]
    total = np.full((depth + 1, groups + 1), UNAVAILABLE, dtype=np.int64)
    cut = np.zeros((depth + 1, groups + 1), dtype=np.int64)
    step = np.full((depth + 1, groups + 1), -1, dtype=np.int64)
    total[0, groups] = 0
    for stages in range(1, depth + 1):
        for first in range(groups):
            for last in range(first + 1, groups + 1):
                tail = total[stages - 1, last]
                if need[first, last] == UNAVAILABLE or tail == UNAVAILABLE:
                    continue
                cores = need[first, last] + tail
                memory = service[first, last] + cut[stages - 1, last]
                known = total[stages, first]
                if cores < known or (cores == known and memory < cut[stages, first]):
                    total[stages, first] = cores
                    cut[stages, first] = memory
                    step[stages, first] = last
    return total, step
