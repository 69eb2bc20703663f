"""The one linear order of a generation: tasks and direct transfers.

Every core executes its items in this order and a transfer has one position, shared
by both ends.  The order extends the dependencies and the order on the cores, so no
core ever waits for a later item: the smallest unfinished item is the next one on
all of its cores (docs/realization.md, "No deadlock").

Among the legal orders a list scheduler chooses: at each step the item that can start
first is appended.  Results of earlier stages count as present, because a stage loads
them before it begins.  Which of its rules is better differs from network to network;
:mod:`raptor_cp.realization.steady_order` compares them by the rate at which
generations would follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.realization.list_schedule import IntArray, OrderItems
from raptor_cp.realization.plan import OrderRule
from raptor_cp.realization.steady_order import StageCoupling, steady_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.realization.traffic import Movement
    from raptor_cp.schedules import Schedule


@dataclass(frozen=True, slots=True)
class LinearOrder:
    """One order of everything.

    Attributes:
        tasks, transfers: [T] and [X] positions, together a permutation.
        interval_ns: interval of the order but for memory queues; None where the rule
            does not know it.
    """

    tasks: list[int]
    transfers: list[int]
    interval_ns: int | None


def linear_order(
    schedule: Schedule,
    stage_of: Sequence[int],
    direct: Sequence[Movement],
    readers: Sequence[Sequence[int]],
    rule: OrderRule = OrderRule.BLOCKING,
    coupling: StageCoupling | None = None,
) -> LinearOrder:
    """Positions of all tasks and of X direct transfers in one linear order.

    Args:
        schedule: a schedule whose order on the cores respects the dependencies.
        stage_of: stage of each core; what crosses stages without a direct transfer
            costs no time here.
        direct: direct transfers, X of them.
        readers: [X] tasks that read each transfer.
        rule: how the order is chosen.
        coupling: how stages wait for each other, for the steady rule.

    Raises:
        InternalError: the order on the cores contradicts the dependencies.
    """
    items = order_items(schedule, stage_of, direct, readers)
    interval_ns: int | None = None
    if rule is OrderRule.STEADY:
        position, interval_ns = steady_positions(
            items, coupling or StageCoupling.none(items.cores)
        )
    else:
        position = items.positions(blocking=rule is OrderRule.BLOCKING)
    graph = schedule.problem.graph
    tasks = graph.task_count
    if position.min() < 0:
        stuck = graph.tasks[int(np.argmin(position[:tasks]))].name
        raise InternalError(
            f"{graph.name}: the order on the cores contradicts the dependencies "
            f"of task {stuck!r}"
        )
    # Stage by stage: cross-stage dependencies must be kept as well.
    order = np.lexsort((position, items.stage))
    rank = np.empty(items.count, np.int64)
    rank[order] = np.arange(items.count)
    return LinearOrder(rank[:tasks].tolist(), rank[tasks:].tolist(), interval_ns)


def order_items(
    schedule: Schedule,
    stage_of: Sequence[int],
    direct: Sequence[Movement],
    readers: Sequence[Sequence[int]],
) -> OrderItems:
    """Tasks and direct transfers with everything that restricts their order.

    Args:
        schedule, stage_of, direct, readers: see :func:`linear_order`.
    """
    problem, placement = schedule.problem, schedule.placement
    graph, links = problem.graph, problem.resources.links
    tasks, moves = graph.task_count, len(direct)
    ends = np.empty((tasks + moves, 2), np.int64)
    ends[:tasks] = placement.core_of[:, None]
    duration = np.empty(tasks + moves, np.int64)
    duration[:tasks] = execution_ns(schedule)
    made_by, source, destination, size = _columns(direct)
    ends[tasks:, 0], ends[tasks:, 1] = source, destination
    duration[tasks:] = links.transfers_ns(size, source, destination)
    # Transfers first at equal times, in order of their producers.
    priority = np.concatenate([np.arange(tasks, dtype=np.int64) + moves, made_by * 0])
    priority[tasks:] = np.argsort(np.argsort(made_by, kind="stable"), kind="stable")
    # Inside a stage all dependencies between cores are direct transfers.
    stages = np.array(stage_of, np.int64)[placement.core_of]
    edge_source = np.repeat(np.arange(tasks, dtype=np.int64), np.diff(graph.edge_ptr))
    edge_target = graph.edge_dst.astype(np.int64)
    inside = stages[edge_source] == stages[edge_target]
    before = [t for core in placement.order for t in core[:-1]]
    after = [t for core in placement.order for t in core[1:]]
    transfers = np.arange(tasks, tasks + moves, dtype=np.int64)
    reads = np.array([len(r) for r in readers], np.int64)
    return OrderItems(
        ends,
        duration,
        priority,
        np.concatenate(
            [
                edge_source[inside],
                np.array(before, np.int64),
                made_by,
                np.repeat(transfers, reads),
            ]
        ),
        np.concatenate(
            [
                edge_target[inside],
                np.array(after, np.int64),
                transfers,
                np.fromiter(chain.from_iterable(readers), np.int64, int(reads.sum())),
            ]
        ),
        np.maximum(np.concatenate([stages, stages[made_by]]), 0),
        len(placement.order),
    )


def _columns(direct: Sequence[Movement]) -> list[IntArray]:
    """[X] producer, source, destination and size of direct transfers."""
    columns = list(zip(*(move[:4] for move in direct), strict=True)) or [()] * 4
    return [np.array(column, np.int64) for column in columns]


def execution_ns(schedule: Schedule) -> IntArray:
    """[T] execution time of each task where it is placed (ns)."""
    costs = schedule.problem.costs
    if costs.per_core_ns is None:
        return costs.execution_ns
    tasks = np.arange(schedule.problem.graph.task_count)
    result: IntArray = costs.per_core_ns[tasks, schedule.placement.core_of]
    return result
