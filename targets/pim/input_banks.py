"""How many banks a network input needs, so that a host can keep one input in each.

The cores that read an input run apart: between two of them only the signals and the
rendezvous of the plan say how far.  If input k + d is read by any core only after all
loads of input k are done, ``d`` banks hold what is still to be read.  One more gives
the host the time of a round to replace an input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.realization.plan import Load
from raptor_cp.realization.plan_graph import UNREACHED, PlanItems, WaitingGraph

if TYPE_CHECKING:
    from raptor_cp.realization.plan import ExecutionPlan

#: Rounds that two readers of an input may be apart.
MAX_DISTANCE = 63


def input_distances(plan: ExecutionPlan) -> dict[str, int | None]:
    """For each network input that is loaded, the largest distance ``d`` of two loads.

    ``d`` is the smallest number such that every load of round k is completed before
    any load of round k + d begins; None where two readers can be further apart than
    :data:`MAX_DISTANCE` rounds.
    """
    graph = plan.schedule.problem.graph
    #: tensor -> core -> (first, last) position of its loads
    readers: dict[str, dict[int, tuple[int, int]]] = {}
    for text in plan.cores:
        for position, item in enumerate(text.items):
            if isinstance(item, Load) and item.baseline is not None:
                access = graph.baseline[item.baseline]
                if access.kind is BaselineKind.INPUT:
                    own = readers.setdefault(access.tensor, {})
                    first, _ = own.get(text.core, (position, position))
                    own[text.core] = (first, position)
    found: dict[str, int | None] = dict.fromkeys(readers, 1)
    if all(len(own) == 1 for own in readers.values()):
        return found  # its own next round
    waiting = WaitingGraph(PlanItems.of(plan), rendezvous=True)
    for tensor, own in readers.items():
        found[tensor] = _largest(waiting, own)
    return found


def _largest(waiting: WaitingGraph, readers: dict[int, tuple[int, int]]) -> int | None:
    cores = np.array(list(readers), np.int64)
    places = np.array(list(readers.values()), np.int64)
    start, until = waiting.leave(cores, places[:, 1])
    stop, since = waiting.reach(cores, places[:, 0])
    if cores.size > 1 and (start < 0).any():
        return None  # a core that nothing couples to the others
    largest = 1
    for number in range(cores.size):
        apart = waiting.distances(int(start[number]), MAX_DISTANCE)[stop]
        apart[number] = 0  # program order, then the wrap
        if (apart >= UNREACHED).any():
            return None
        total = apart + since + until[number]
        total[number] = 1
        largest = max(largest, int(total.max()))
    return largest
