"""Event times of an execution plan on the pimsim-nn chip.

Each plan item is the unit instruction that code generation emits for it (a load or
store of several runs is one instruction a run), preceded by the scalar instructions
that set its addresses.  With a reorder buffer of capacity one a core's messages leave
in program order, so that only the global memory's controller arbitrates; what a SEND
or SYNC leaves in the switch delays the core's next message.

Unit ends are rounded to whole core periods where they begin on a clock edge; the end
of a load, a receive or a wait depends on other cores and is taken without rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.work import Box
from raptor_cp.realization.events import (
    AccessTime,
    DirectTime,
    PlanEvents,
    SignalTime,
    extract_events,
)
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from raptor_cp.realization.plan import DirectTransfer, ExecutionPlan
    from raptor_cp.schedules import Problem
    from raptor_cp.targets.pim.timing import PimTiming

#: Scalar instructions before a load or store: local address, and the two words of
#: the global one.
MEMORY_SLOTS = 3
#: Scalar instructions before a SEND or RECV: the local address.
TRANSFER_SLOTS = 1
#: Scalar instructions before a copy: both addresses.
COPY_SLOTS = 2


class PimPlanTimes:
    """:class:`~raptor_cp.realization.events.PlanTimes` of a chip.

    Args:
        timing: the chip.
        problem: execution times of the tasks, their own issue included; and what is
            published, in which boxes.
    """

    def __init__(self, timing: PimTiming, problem: Problem) -> None:
        self._timing = timing
        self._costs = problem.costs
        self._published = problem.graph.publications
        period = timing.period_ns
        #: start(first) = (3 + k)P, of which (1 + k)P is its own issue.
        self.first_ns = timing.first_start_ns(0) - timing.issue_ns(0)
        self.wait_ns = timing.issue_ns(0) + 2 * period
        self._signals: dict[tuple[int, int], SignalTime] = {}

    def run(self, task: int, core: int) -> int:
        """All instructions of a task."""
        return self._costs.on(task, core)

    def read(self, core: int, size: int) -> AccessTime:
        """LD: request, service; the data travel back free; local write, commit."""
        timing = self._timing
        request = timing.link_ns(core, timing.cores)
        return AccessTime(
            before_ns=timing.issue_ns(MEMORY_SLOTS) + request,
            message_ns=request,
            service_ns=timing.memory_read_ns(size),
            after_ns=timing.local_write_ns(size) + timing.period_ns,
        )

    def write(self, core: int, size: int) -> AccessTime:
        """ST: local read, payload, service, late commit."""
        timing = self._timing
        payload = timing.link_ns(core, timing.cores, size)
        local = timing.local_read_ns(size)
        return AccessTime(
            before_ns=timing.issue_ns(MEMORY_SLOTS) + local + payload,
            message_ns=payload,
            service_ns=timing.memory_write_ns(size),
            after_ns=2 * timing.period_ns,
        )

    def direct(self, transfer: DirectTransfer) -> DirectTime:
        """SEND and RECV: READY, permission, local read, payload, local write."""
        timing = self._timing
        source, target, size = transfer.source, transfer.destination, transfer.size
        issue = timing.issue_ns(TRANSFER_SLOTS) + self._packing_ns(transfer)
        ready = timing.link_ns(source, target)
        # The sender's switch is busy one ns longer than its READY travels.
        read = max(timing.link_ns(target, source) + timing.local_read_ns(size), 1)
        free = read + timing.link_ns(source, target, size)
        return DirectTime(
            send_before_ns=issue + ready,
            send_message_ns=ready,
            receive_before_ns=timing.issue_ns(TRANSFER_SLOTS),
            receive_message_ns=0,
            send_after_ns=read + timing.period_ns,
            receive_after_ns=free + timing.local_write_ns(size) + timing.period_ns,
            hold_ns=free,
        )

    def _packing_ns(self, transfer: DirectTransfer) -> int:
        """Copies that put a part of a result into one piece before it is sent."""
        if transfer.publication is None or transfer.box is None:
            return 0
        whole = self._published[transfer.publication].box
        if whole is None or whole == transfer.box:
            return 0
        runs = Box(*transfer.box).runs_within(Box(*whole))
        if runs <= 1:
            return 0
        timing = self._timing
        one = timing.issue_ns(COPY_SLOTS)
        one += timing.lmv_occupancy_ns(transfer.size // runs)
        return runs * one

    def signal(self, source: int, target: int) -> SignalTime:
        """SYNC: one control message; WAIT ends on the first edge after it."""
        found = self._signals.get((source, target))
        if found is None:
            timing = self._timing
            issue, period = timing.issue_ns(0), timing.period_ns
            travel = timing.link_ns(source, target)
            found = SignalTime(issue, issue + 3 * period, travel + period + 1, travel)
            self._signals[source, target] = found
        return found


def plan_events(plan: ExecutionPlan, timing: PimTiming) -> PlanEvents | Unavailable:
    """Events of one generation of a plan on this chip.

    Unavailable when the chip's timing does not describe whole programs (a reorder
    buffer of another capacity than one) or a limit of the extraction is exceeded.
    """
    if timing.unavailable:
        return Unavailable("; ".join(timing.unavailable))
    return extract_events(plan, PimPlanTimes(timing, plan.schedule.problem))
