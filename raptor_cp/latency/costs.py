"""What list scheduling reads of a problem, as flat arrays.

Times are ns.  Arrays are contiguous and writable, so that kernels see one type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class LatencyCosts:
    """Execution times, dependencies and links of one problem.

    A transfer of B > 0 bytes from core s to core d, s != d, takes ``handshake_ns[s, d]
    + ceil(B / link_width) * unit_ns[s, d] + ceil(B / endpoint_width) * endpoint_ns``;
    on one core, or for no bytes, it takes no time.

    Attributes:
        execution_ns: [T, P] execution time of each task on each core.
        pred_ptr, pred_src, pred_bytes: [T+1], [E], [E] dependencies by destination.
        succ_ptr, succ_dst, succ_bytes: [T+1], [E], [E] the same by source.
        handshake_ns, unit_ns: [P, P].
        link_width, endpoint_width: bytes.
        endpoint_ns: ns per ``endpoint_width`` bytes at both ends together.
    """

    execution_ns: IntArray
    pred_ptr: IndexArray
    pred_src: IndexArray
    pred_bytes: IntArray
    succ_ptr: IndexArray
    succ_dst: IndexArray
    succ_bytes: IntArray
    handshake_ns: IntArray
    unit_ns: IntArray
    link_width: int
    endpoint_width: int
    endpoint_ns: int

    @classmethod
    def of(cls, problem: Problem) -> LatencyCosts:
        """Copy what is needed: ``O(T P + E + P^2)``."""
        graph, links = problem.graph, problem.resources.links
        table = problem.costs.per_core_ns
        if table is None:
            shape = (graph.task_count, problem.resources.cores)
            table = np.broadcast_to(problem.costs.execution_ns[:, None], shape)
        return cls(
            np.array(table, dtype=np.int64, order="C"),
            graph.pred_ptr.copy(),
            graph.pred_src.copy(),
            graph.pred_bytes.copy(),
            graph.edge_ptr.copy(),
            graph.edge_dst.copy(),
            graph.edge_bytes.copy(),
            np.array(links.handshake_ns, dtype=np.int64, order="C"),
            np.array(links.unit_ns, dtype=np.int64, order="C"),
            links.link_width,
            links.endpoint_width,
            links.read_ns + links.write_ns,
        )

    @property
    def tasks(self) -> int:
        """T."""
        return int(self.execution_ns.shape[0])

    @property
    def cores(self) -> int:
        """P."""
        return int(self.execution_ns.shape[1])

    @property
    def alike(self) -> bool:
        """Whether every task takes the same time on every core."""
        return bool((self.execution_ns == self.execution_ns[:, :1]).all())

    def transfer_ns(self, size: int) -> IntArray:
        """[P, P] time of ``size`` bytes between all pairs of cores."""
        if size == 0:
            return np.zeros_like(self.unit_ns)
        result: IntArray = (
            self.handshake_ns
            + -(-size // self.link_width) * self.unit_ns
            + -(-size // self.endpoint_width) * self.endpoint_ns
        )
        np.fill_diagonal(result, 0)
        return result
