"""Optimistic costs: shortest remaining time if every later task chose freely.

Arabnejad and Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an
Optimistic Cost Table", IEEE TPDS 25(3), 2014.  For task t on core p::

    OCT(t, p) = max over successors j of
                min over cores q of (OCT(j, q) + w(j, q) + c(t, j, p, q))

and 0 for an exit task.  c is the transfer of the edge's bytes from p to q, which the
paper takes as an average: here the target's own links are used, so that the table
knows distances; on a chip whose links are all alike both are the same.

Nothing contends in it, so ``OCT(t, p)`` never exceeds the time that really passes
between the end of t on p and the end of all that depends on t: it is also a lower
bound (:mod:`raptor_cp.latency.bounds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit
from numpy.typing import NDArray

if TYPE_CHECKING:
    from raptor_cp.latency.costs import LatencyCosts

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]


def optimistic_costs(costs: LatencyCosts, apart: BoolArray | None = None) -> IntArray:
    """[T, P] optimistic cost table (ns).

    Args:
        costs: tables of the problem.
        apart: [E] dependencies, ordered by destination, whose ends can never share
            a core; None when every pair may.

    ``O(E P^2)`` time in the worst case; near ``O(E P)`` when cores are alike, since
    cores are tried in order of their own cost and only while they can still win.
    """
    return _optimistic(
        np.arange(costs.tasks - 1, -1, -1, dtype=np.int64),
        costs.execution_ns,
        costs.pred_ptr,
        costs.pred_src,
        costs.pred_bytes,
        _flags(apart, costs.pred_src.size),
        costs.handshake_ns,
        costs.unit_ns,
        costs.link_width,
        costs.endpoint_width,
        costs.endpoint_ns,
    )


def earliest_starts(costs: LatencyCosts, apart: BoolArray | None = None) -> IntArray:
    """[T, P] no schedule starts task t on core p earlier (ns): the table backwards.

    Args:
        costs: tables of the problem.
        apart: [E] as above, but ordered by source.
    """
    return _optimistic(
        np.arange(costs.tasks, dtype=np.int64),
        costs.execution_ns,
        costs.succ_ptr,
        costs.succ_dst,
        costs.succ_bytes,
        _flags(apart, costs.succ_dst.size),
        np.ascontiguousarray(costs.handshake_ns.T),
        np.ascontiguousarray(costs.unit_ns.T),
        costs.link_width,
        costs.endpoint_width,
        costs.endpoint_ns,
    )


def _flags(apart: BoolArray | None, edges: int) -> BoolArray:
    return np.zeros(edges, dtype=np.bool_) if apart is None else apart


@njit(cache=True)
def _optimistic(
    sequence: IntArray,
    execution_ns: IntArray,
    ptr: IndexArray,
    neighbour: IndexArray,
    size: IntArray,
    apart: BoolArray,
    handshake_ns: IntArray,
    unit_ns: IntArray,
    link_width: int,
    endpoint_width: int,
    endpoint_ns: int,
) -> IntArray:
    """Push each task's costs to its neighbours; ``handshake_ns[p, q]`` leads from
    core p of the neighbour to core q of the task."""
    tasks, cores = execution_ns.shape
    table = np.zeros((tasks, cores), dtype=np.int64)
    share = np.zeros(cores, dtype=np.int64)
    for task in sequence:
        own = table[task] + execution_ns[task]
        cheapest = np.argsort(own, kind="mergesort")
        known_size, known_apart = np.int64(-1), False
        for edge in range(ptr[task], ptr[task + 1]):
            # Edges of one size give one row: lanes of an operation mostly agree.
            if size[edge] != known_size or apart[edge] != known_apart:
                known_size, known_apart = size[edge], apart[edge]
                units = (known_size + link_width - 1) // link_width
                ends = (known_size + endpoint_width - 1) // endpoint_width * endpoint_ns
                for core in range(cores):
                    best = np.int64(2**62) if known_apart else own[core]
                    for other in cheapest:
                        if own[other] >= best:
                            break
                        if other == core:
                            continue
                        cost = own[other]
                        if known_size > 0:
                            cost += (
                                handshake_ns[core, other]
                                + units * unit_ns[core, other]
                                + ends
                            )
                        best = min(best, cost)
                    share[core] = best
            row = table[neighbour[edge]]
            for core in range(cores):
                row[core] = max(row[core], share[core])
    return table
