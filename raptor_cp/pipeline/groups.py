"""Operation groups in pipeline order: ranges, spans, shared-memory traffic, limits.

All lanes of an operation move between stages together; the group index is the
operation index, which is the one fixed topological order of the pipeline.  Tasks of
a group have contiguous ids, so a stage [i, j) of groups is one range of task ids.

Figures of a segment [i, j) of groups are ``[G, G + 1]`` int64 tables (entries with
``j <= i`` are 0): see the scheduling spec, "Costs and interpretation".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

from raptor_cp.errors import MalformedInput
from raptor_cp.static_evaluation import MemoryTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PipelineGroups:
    """The groups of a problem, with what partitioning asks about segments.

    Attributes:
        problem: graph, costs and chip.
        task_ptr: [G+1] tasks of group g are ``task_ptr[g] .. task_ptr[g+1] - 1``.
        task_group: [T] group of each task.
        execution_ns: [T] execution time; the largest over cores when they differ.
    """

    problem: Problem
    task_ptr: IndexArray
    task_group: IndexArray
    execution_ns: IntArray

    @classmethod
    def of(cls, problem: Problem) -> PipelineGroups:
        """Groups of a problem, in operation order."""
        graph = problem.graph
        counts = np.bincount(graph.task_operation, minlength=len(graph.operations))
        ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        # Writable copies: a read-only array is another type to a kernel.
        return cls(
            problem,
            ptr,
            graph.task_operation.astype(np.int32),
            problem.costs.execution_ns.astype(np.int64),
        )

    @property
    def count(self) -> int:
        """G."""
        return int(self.task_ptr.size - 1)

    def tasks(self, first: int, last: int) -> range:
        """Task ids of groups [first, last)."""
        return range(int(self.task_ptr[first]), int(self.task_ptr[last]))

    def load_ns(self, first: int, last: int) -> int:
        """Execution time (ns) of all tasks of groups [first, last)."""
        return int(self.execution_ns[self.task_ptr[first] : self.task_ptr[last]].sum())

    @cached_property
    def spans(self) -> IntArray:
        """[G, G+1] dependency span of every segment: longest path of execution
        times (ns) over its tasks; transfers and core order are not included.

        One forward sweep for each first group: ``O(G (T + E))``.
        """
        graph = self.problem.graph
        return _spans(
            self.task_ptr,
            graph.pred_ptr.copy(),
            graph.pred_src.copy(),
            self.execution_ns,
        )

    @cached_property
    def traffic(self) -> CutTraffic:
        """Shared-memory traffic of cuts."""
        return CutTraffic.of(self)


@dataclass(frozen=True, eq=False)
class CutTraffic:
    """Shared-memory service of a partition, without a placement.

    A publication is stored once when a transfer reads it in a later stage (scalar
    ones once for each such transfer); every such transfer is loaded once.  Service
    of a whole partition is additive over its segments: what a segment loads from
    before it and stores for after it depends on its two ends alone.

    Attributes:
        segment_load_ns: [G, G+1] service of the loads that enter a segment.
        segment_store_ns: [G, G+1] service of the stores that leave a segment.
        cut_bytes: [G+1] bytes that cross a boundary c: publications of groups
            before c read by groups from c on, each counted once (scalar ones once
            for each transfer).
        baseline_ns: service of network inputs, constants and outputs.
    """

    segment_load_ns: IntArray
    segment_store_ns: IntArray
    cut_bytes: IntArray
    baseline_ns: int

    @classmethod
    def of(cls, groups: PipelineGroups) -> CutTraffic:
        """Tables of all segments: ``O(N + F + G^2)``."""
        tables = MemoryTables.of(groups.problem)
        graph, count = groups.problem.graph, groups.count
        extra = [size for _, _, size in graph.extra_edges if size > 0]
        size = np.concatenate([graph.publication_size, np.array(extra, np.int64)])
        source = groups.task_group[tables.producer]
        reader = groups.task_group[tables.consumer]
        producer = source[tables.publication]
        loads = np.zeros((count, count), dtype=np.int64)
        np.add.at(loads, (producer, reader), tables.load_service)
        # (writer, last reader) -> service and bytes of what is stored once
        last = np.full(size.size, -1, dtype=np.int64)
        np.maximum.at(last, tables.publication, reader)
        once = np.flatnonzero(~tables.scalar & (last >= 0))
        each = np.flatnonzero(tables.scalar[tables.publication])
        writers = np.concatenate([source[once], producer[each]])
        readers = np.concatenate([last[once], reader[each]])
        stored = np.concatenate([once, tables.publication[each]])
        stores = np.zeros((count, count), dtype=np.int64)
        np.add.at(stores, (writers, readers), tables.store_service[stored])
        crossing = np.zeros((count, count), dtype=np.int64)
        np.add.at(crossing, (writers, readers), size[stored])
        before = _cumulated(loads)  # [a, b]: writers < a, readers < b
        after = _cumulated(stores)
        starts, ends = np.arange(count)[:, None], np.arange(count + 1)[None, :]
        inside = ends > starts
        entering = before[starts, ends] - before[starts, starts]
        leaving = (after[ends, count] - after[starts, count]) - (
            after[ends, ends] - after[starts, ends]
        )
        edge = np.arange(count + 1)
        bytes_before = _cumulated(crossing)
        return cls(
            np.where(inside, entering, 0),
            np.where(inside, leaving, 0),
            bytes_before[edge, count] - bytes_before[edge, edge],
            tables.baseline_service_ns,
        )

    def memory_service(self, starts: Sequence[int]) -> int:
        """Service (ns) of one inference, baseline included.

        Args:
            starts: first group of each stage, ascending, beginning with 0.
        """
        ends = [*starts[1:], int(self.cut_bytes.size - 1)]
        return self.baseline_ns + sum(
            int(self.segment_load_ns[i, j] + self.segment_store_ns[i, j])
            for i, j in zip(starts, ends, strict=True)
        )


@dataclass(frozen=True, eq=False)
class StageLimits:
    """Side constraints that the partition and the search both respect.

    Attributes:
        cut_allowed: [G+1] may a stage start (end) at this boundary; 0 and G may.
        min_cores: [G] least cores of the stage that holds the group.
        max_cores: [G] most cores of the stage that holds the group.
    """

    cut_allowed: BoolArray
    min_cores: IntArray
    max_cores: IntArray

    @classmethod
    def of(
        cls,
        groups: PipelineGroups,
        *,
        forbidden_cuts: Sequence[int] = (),
        together: Sequence[Sequence[int]] = (),
        max_cut_bytes: int | None = None,
        cores: Mapping[int, tuple[int | None, int | None]] | None = None,
    ) -> StageLimits:
        """Collect the constraints of a scenario, by group index.

        Args:
            groups: the groups.
            forbidden_cuts: boundaries at which no stage starts (1 to G-1).
            together: lists of groups that share one stage.
            max_cut_bytes: most bytes that may cross a boundary.
            cores: (least, most) cores of the stage that holds a group.

        Raises:
            MalformedInput: an unknown group or boundary, least above most.
        """
        count, chip = groups.count, groups.problem.resources.cores
        where = "stage constraints"
        allowed = np.ones(count + 1, dtype=np.bool_)
        for cut in forbidden_cuts:
            if not 1 <= cut < count:
                raise MalformedInput(
                    "unknown boundary",
                    where=where,
                    value=cut,
                    expected=f"1 to {count - 1}",
                )
            allowed[cut] = False
        for members in together:
            for group in members:
                _check_group(group, count, where)
            if members:
                allowed[min(members) + 1 : max(members) + 1] = False
        if max_cut_bytes is not None:
            allowed[1:count] &= groups.traffic.cut_bytes[1:count] <= max_cut_bytes
        low = np.ones(count, dtype=np.int64)
        high = np.full(count, chip, dtype=np.int64)
        for group, (least, most) in sorted((cores or {}).items()):
            _check_group(group, count, where)
            low[group] = 1 if least is None else least
            high[group] = chip if most is None else min(most, chip)
            if not 1 <= low[group] <= high[group]:
                raise MalformedInput(
                    f"core limits of group {group} cannot be met",
                    where=where,
                    value=(least, most),
                    expected=f"1 <= least <= most, least <= {chip} cores",
                )
        return cls(allowed, low, high)

    def allows_cut(self, group: int) -> bool:
        """May a stage start at ``group``?"""
        return bool(self.cut_allowed[group])

    def core_range(self, first: int, last: int) -> tuple[int, int]:
        """Least and most cores of a stage [first, last); least > most: illegal."""
        return (
            int(self.min_cores[first:last].max()),
            int(self.max_cores[first:last].min()),
        )


def _check_group(group: int, count: int, where: str) -> None:
    if not 0 <= group < count:
        raise MalformedInput(
            "unknown group", where=where, value=group, expected=f"0 to {count - 1}"
        )


def _cumulated(table: IntArray) -> IntArray:
    """[G+1, G+1] sums over the rectangle above and left of each entry."""
    result = np.zeros((table.shape[0] + 1, table.shape[1] + 1), dtype=np.int64)
    result[1:, 1:] = table.cumsum(axis=0).cumsum(axis=1)
    return result


@njit(cache=True)
def _spans(
    task_ptr: IndexArray, pred_ptr: IndexArray, pred_src: IndexArray, work: IntArray
) -> IntArray:
    count = task_ptr.size - 1
    spans = np.zeros((count, count + 1), dtype=np.int64)
    finish = np.zeros(work.size, dtype=np.int64)
    for first in range(count):
        begin = task_ptr[first]
        longest = np.int64(0)
        for group in range(first, count):
            for task in range(task_ptr[group], task_ptr[group + 1]):
                start = np.int64(0)
                # sources ascend, so the ones inside the segment come last
                for edge in range(pred_ptr[task + 1] - 1, pred_ptr[task] - 1, -1):
                    source = pred_src[edge]
                    if source < begin:
                        break
                    start = max(start, finish[source])
                finish[task] = start + work[task]
                longest = max(longest, finish[task])
            spans[first, group + 1] = longest
    return spans
