"""Loop times of cores that nothing holds to one rate.

Cores of a foreign program may be coupled only by the memory they share: each has
its own rate, the chip as a whole never returns to an earlier state, and no window
of generations agrees.  What can be measured is each core's own mean loop time; the
throughput of such a program is that of its slowest core.  Nothing is proved here.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.periodic.queue_engine import (
    Stop,
    TieOrder,
    TokenExecution,
    event_limit,
)

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph

#: Loops that the slowest core must have done before its mean says anything.
MIN_LOOPS = 4


@dataclass(frozen=True, slots=True)
class FreeRunningEstimate:
    """Mean loop time of each core, ns, the larger of both tie orders.

    Attributes:
        reason: why there is no interval of the whole chip.
        core_intervals_ns: (core, mean loop time) over the second half of the run.
        loops: loops of the slowest core that were averaged, fewest of both orders.
    """

    reason: str
    core_intervals_ns: tuple[tuple[int, Fraction], ...]
    loops: int

    @property
    def slowest_ns(self) -> Fraction:
        """Loop time of the slowest core."""
        return max(interval for _, interval in self.core_intervals_ns)

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports: still unavailable, with what was seen."""
        return {
            "unavailable": self.reason,
            "core_intervals_ns": {
                str(core): round(float(interval), 3)
                for core, interval in self.core_intervals_ns
            },
            "slowest_core_interval_ns": round(float(self.slowest_ns), 3),
            "averaged_loops": self.loops,
        }


def measure_free_running(graph: EventGraph, reason: str) -> FreeRunningEstimate | None:
    """Run within the limits of the queue analysis; None where a core loops too
    rarely.
    """
    found: dict[int, Fraction] = {}
    loops = MIN_LOOPS + 10**9
    for order in TieOrder:
        run = TokenExecution(graph, order, event_limit=event_limit(graph))
        while run.advance() is Stop.CHECKPOINT:
            pass
        times = run.completion_times_ns()
        for event, row in zip(graph.completion.tolist(), times, strict=True):
            seen = row[row >= 0]
            first = len(seen) // 2
            done = len(seen) - 1 - first
            if done < MIN_LOOPS:
                return None
            interval = Fraction(int(seen[-1] - seen[first]), done)
            core = int(graph.core[event])
            found[core] = max(found.get(core, Fraction(0)), interval)
            loops = min(loops, done)
    return FreeRunningEstimate(reason, tuple(sorted(found.items())), loops)
