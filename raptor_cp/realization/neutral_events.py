"""Event times of a target that only has link and memory models.

A direct transfer takes its link's time from the moment both ends are there; shared
memory serves requests in order of arrival; signals, waits and issue cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.realization.events import AccessTime, DirectTime, SignalTime
from raptor_cp.target import AccessKind

if TYPE_CHECKING:
    from raptor_cp.realization.plan import DirectTransfer
    from raptor_cp.schedules import Problem

_NO_TIME = SignalTime(0, 0, 0, 0)


class NeutralTimes:
    """:class:`~raptor_cp.realization.events.PlanTimes` of a problem's resources."""

    first_ns = 0
    wait_ns = 0

    def __init__(self, problem: Problem) -> None:
        self._costs = problem.costs
        self._links = problem.resources.links
        self._memory = problem.resources.memory

    def run(self, task: int, core: int) -> int:
        """The task's execution time."""
        return self._costs.on(task, core)

    def read(self, core: int, size: int) -> AccessTime:
        """Fixed part, service, local write."""
        time = self._memory.access(size, AccessKind.READ)
        before = self._memory.read_fixed_ns
        after = time.core_ns - before - time.service_ns
        return AccessTime(before, before, time.service_ns, after)

    def write(self, core: int, size: int) -> AccessTime:
        """Fixed part, local read and link, then service."""
        time = self._memory.access(size, AccessKind.WRITE)
        before = time.core_ns - time.service_ns
        return AccessTime(before, before, time.service_ns, 0)

    def direct(self, transfer: DirectTransfer) -> DirectTime:
        """Both ends are occupied for the whole transfer."""
        time = self._links.transfer_ns(
            transfer.size, transfer.source, transfer.destination
        )
        return DirectTime(0, 0, 0, 0, time, time, time)

    def signal(self, source: int, target: int) -> SignalTime:
        """No time."""
        return _NO_TIME
