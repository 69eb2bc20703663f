"""What happened on an element: every stage with its exact times.

Times are ticks (``1 / scale`` of a cycle); two timelines are equal when every
stage is, which is how live and replayed runs are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.targets.pe.stages import NO_ENGINE, Engine, StageKind

if TYPE_CHECKING:
    from raptor_cp.targets.pe.commands import PeCommand
    from raptor_cp.targets.pe.cost_model import Charge
    from raptor_cp.targets.pe.topology import PeAttributes

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ElementCost:
    """What a command list costs on one element, exact.

    Attributes:
        total_cycles: until every command is complete.
        dispatch_cycles: CPU cycles charged by the formula.
        explicit_cycles: CPU cycles that the kernel stated itself.
        total_ns, dispatch_ns: the same times on the element's clock.
    """

    total_cycles: Fraction
    dispatch_cycles: Fraction
    explicit_cycles: Fraction
    total_ns: Fraction
    dispatch_ns: Fraction


@dataclass(frozen=True, slots=True)
class ElementTimeline:
    """Stages of one run, indexed alike in all tuples.

    Attributes:
        attributes: the element.
        commands, charges: by command index.
        scale: ticks in a cycle.
        engine, kind, command: of each stage.
        ready: all predecessors finished, ticks.
        start, finish: on its engine, ticks.
    """

    attributes: PeAttributes
    commands: tuple[PeCommand, ...]
    charges: tuple[Charge, ...]
    scale: int
    engine: tuple[int, ...]
    kind: tuple[StageKind, ...]
    command: tuple[int, ...]
    ready: tuple[int, ...]
    start: tuple[int, ...]
    finish: tuple[int, ...]

    @property
    def total_ticks(self) -> int:
        """Until the last stage has finished."""
        return max(self.finish, default=0)

    def cycles(self, ticks: int) -> Fraction:
        """Exact cycles of ``ticks``."""
        return Fraction(ticks, self.scale)

    @property
    def total_cycles(self) -> Fraction:
        """Until the last stage has finished, cycles."""
        return self.cycles(self.total_ticks)

    @property
    def dispatch_cycles(self) -> Fraction:
        """CPU cycles charged by the formula, all commands."""
        return sum((c.dispatch_cycles for c in self.charges), Fraction(0))

    @property
    def explicit_cycles(self) -> Fraction:
        """CPU cycles that the kernel stated itself."""
        return sum((c.explicit_cycles for c in self.charges), Fraction(0))

    def cost(self) -> ElementCost:
        """The totals, in cycles and exact nanoseconds."""
        to_ns = self.attributes.cycles_to_ns
        return ElementCost(
            total_cycles=self.total_cycles,
            dispatch_cycles=self.dispatch_cycles,
            explicit_cycles=self.explicit_cycles,
            total_ns=to_ns(self.total_cycles),
            dispatch_ns=to_ns(self.dispatch_cycles),
        )

    def busy(self, engine: Engine) -> tuple[Interval, ...]:
        """Intervals in which ``engine`` serves a stage, in time order, merged."""
        spans = sorted(
            (self.start[i], self.finish[i])
            for i, served_by in enumerate(self.engine)
            if served_by == engine and self.finish[i] > self.start[i]
        )
        return merged(spans)

    def outstanding(self, engine: Engine) -> tuple[Interval, ...]:
        """Intervals in which ``engine`` has pushed stages that are not finished."""
        pushed = {
            self.command[i]: self.finish[i]
            for i, kind in enumerate(self.kind)
            if kind is StageKind.PUSH
        }
        spans = sorted(
            (pushed[self.command[i]], self.finish[i])
            for i, served_by in enumerate(self.engine)
            if served_by == engine
        )
        return merged(spans)

    def cpu_queue_stalls(self) -> tuple[Interval, ...]:
        """Intervals in which the CPU holds a command that the queue cannot take."""
        return self._cpu_gaps(StageKind.PUSH)

    def cpu_waits(self) -> tuple[Interval, ...]:
        """Intervals in which the CPU waits for a completion."""
        return self._cpu_gaps(StageKind.WAIT)

    def _cpu_gaps(self, wanted: StageKind) -> tuple[Interval, ...]:
        gaps: list[Interval] = []
        before = 0
        for i, kind in enumerate(self.kind):
            if kind not in (StageKind.DISPATCH, StageKind.PUSH, StageKind.WAIT):
                continue
            if kind is wanted and self.finish[i] > before:
                gaps.append((before, self.finish[i]))
            before = self.finish[i]
        return tuple(gaps)

    def engine_service(self) -> tuple[tuple[StageKind, Fraction], ...]:
        """Engine time of every stage off the CPU, in order of making, cycles.

        Independent of all dispatch knobs: nothing is counted twice.
        """
        return tuple(
            (self.kind[i], self.cycles(self.finish[i] - self.start[i]))
            for i, served_by in enumerate(self.engine)
            if served_by not in (NO_ENGINE, Engine.CPU)
        )


def merged(spans: list[Interval]) -> tuple[Interval, ...]:
    """Union of sorted intervals."""
    union: list[Interval] = []
    for start, end in spans:
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return tuple(union)


def common(
    left: tuple[Interval, ...], right: tuple[Interval, ...]
) -> tuple[Interval, ...]:
    """Intersection of two unions of disjoint intervals in time order."""
    both: list[Interval] = []
    i, j = 0, 0
    while i < len(left) and j < len(right):
        start = max(left[i][0], right[j][0])
        end = min(left[i][1], right[j][1])
        if start < end:
            both.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(both)


def complement(spans: tuple[Interval, ...], end: int) -> tuple[Interval, ...]:
    """What ``[0, end)`` leaves of ``spans``."""
    gaps: list[Interval] = []
    at = 0
    for start, stop in spans:
        if start > at:
            gaps.append((at, start))
        at = max(at, stop)
    if at < end:
        gaps.append((at, end))
    return tuple(gaps)
