"""Shared-memory demands of a problem, priced once as flat arrays.

What is stored and loaded depends on the stages (:mod:`raptor_cp.static_evaluation`);
what one store or load costs does not.  Times are ns, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.target import AccessKind

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem
    from raptor_cp.target import MemoryModel

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class MemoryTables:
    """Shared-memory demands of a problem: service and core occupation, ns.

    Explicit edges that carry bytes are appended as publications with one transfer.

    Attributes:
        producer: [N] producer task of each publication.
        store_service, store_core: [N] one store of the publication.
        scalar: [N] stored for each crossing transfer.
        publication, consumer: [F] of each transfer.
        load_service, load_core: [F] one load.
        baseline_service_ns: service of all baseline accesses together.
        baseline_core: [T] occupation of each task's core by its baseline accesses.
    """

    producer: IndexArray
    store_service: IntArray
    store_core: IntArray
    scalar: NDArray[np.bool_]
    publication: IndexArray
    consumer: IndexArray
    load_service: IntArray
    load_core: IntArray
    baseline_service_ns: int
    baseline_core: IntArray

    @classmethod
    def of(cls, problem: Problem) -> MemoryTables:
        """Tables of all publications, transfers and baseline accesses."""
        graph, memory = problem.graph, problem.resources.memory
        extra = [edge for edge in graph.extra_edges if edge[2] > 0]
        tails = np.array([e[0] for e in extra], dtype=np.int32)
        heads = np.array([e[1] for e in extra], dtype=np.int32)
        sizes = np.array([e[2] for e in extra], dtype=np.int64)
        ones = np.ones(len(extra), dtype=np.int64)
        count = graph.publication_producer.size
        scalar = np.concatenate([graph.publication_scalar, ones == 0])
        stored = np.concatenate([graph.publication_size, sizes])
        # Only scalar projections round their source runs one by one.
        runs = np.where(scalar, np.concatenate([graph.publication_runs, ones]), 1)
        store_service, store_core = access_ns(memory, stored, runs, AccessKind.WRITE)
        load_service, load_core = access_ns(
            memory,
            np.concatenate([graph.transfer_size, sizes]),
            np.concatenate([graph.transfer_runs, ones]),
            AccessKind.READ,
        )
        baseline_core = np.zeros(graph.task_count, dtype=np.int64)
        service = 0
        for access in graph.baseline:
            write = access.kind is BaselineKind.OUTPUT
            kind = AccessKind.WRITE if write else AccessKind.READ
            time = memory.access(access.size, kind, access.runs)
            service += time.service_ns
            baseline_core[access.task] += time.core_ns
        return cls(
            producer=np.concatenate([graph.publication_producer, tails]),
            store_service=store_service,
            store_core=store_core,
            scalar=scalar,
            publication=np.concatenate(
                [
                    graph.transfer_publication,
                    np.arange(count, count + len(extra), dtype=np.int32),
                ]
            ),
            consumer=np.concatenate([graph.transfer_consumer, heads]),
            load_service=load_service,
            load_core=load_core,
            baseline_service_ns=service,
            baseline_core=baseline_core,
        )

    def edge_ns(self, edge_ptr: IndexArray, edge_dst: IndexArray) -> IntArray:
        """[E] core time of each dependency when it goes through shared memory."""
        tasks = edge_ptr.size - 1
        sources = np.repeat(np.arange(tasks, dtype=np.int64), np.diff(edge_ptr))
        keys = sources * tasks + edge_dst  # ascending: edges are sorted
        moves = self.producer[self.publication].astype(np.int64) * tasks + self.consumer
        edges = np.searchsorted(keys, moves)
        result = np.zeros(edge_dst.size, dtype=np.int64)
        np.add.at(result, edges, self.load_core)
        repeated = self.scalar[self.publication]
        np.add.at(result, edges[repeated], self.store_core[self.publication[repeated]])
        once = np.flatnonzero(~repeated)
        pairs = self.publication[once].astype(np.int64) * tasks + self.consumer[once]
        first = once[np.unique(pairs, return_index=True)[1]]
        np.add.at(result, edges[first], self.store_core[self.publication[first]])
        return result


def access_ns(
    memory: MemoryModel, size: IntArray, runs: IntArray, kind: AccessKind
) -> tuple[IntArray, IntArray]:
    """``MemoryModel.access`` for arrays: (service_ns, core_ns)."""
    run = -(-size // runs)
    local = -(-run // memory.local_width) * runs
    beats = -(-run // memory.width) * runs
    if kind is AccessKind.READ:
        service = beats * memory.read_ns
        core = memory.read_fixed_ns * runs + service + local * memory.local_write_ns
    else:
        service = beats * memory.write_ns
        core = memory.write_fixed_ns * runs + service + local * memory.local_read_ns
        core = core + -(-run // memory.link_width) * runs * memory.link_ns
    return service.astype(np.int64), core.astype(np.int64)
