"""What dispatch cost a kernel, and whether the CPU or an engine holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.targets.pe.commands import PeCpuOverheadCmd
from raptor_cp.targets.pe.stages import Engine
from raptor_cp.targets.pe.timeline import common, complement

if TYPE_CHECKING:
    from raptor_cp.targets.pe.timeline import ElementTimeline, Interval


def shown_cycles(cycles: Fraction) -> str:
    """Cycles for people, large numbers in full: at most three decimals.

    >>> shown_cycles(Fraction(3_450_001, 2)), shown_cycles(Fraction(2040))
    ('1,725,000.5', '2,040')
    """
    return f"{float(cycles):,.3f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True)
class CommandRow:
    """Dispatch of all commands of one type (cycles, exact)."""

    type: str
    commands: int
    logical_bytes: int
    fixed_cycles: Fraction
    byte_cycles: Fraction

    @property
    def dispatch_cycles(self) -> Fraction:
        """FIXED and bytes together."""
        return self.fixed_cycles + self.byte_cycles


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Where the CPU's time goes (cycles, exact); the parts add up to the total.

    Attributes:
        dispatch: charged by the formula.
        explicit: stated by ``tl.cycles``.
        queue_full: held up by the scheduler's queue.
        waiting: in ``tl.wait``.
        done: after its last command, while engines finish.
    """

    dispatch: Fraction
    explicit: Fraction
    queue_full: Fraction
    waiting: Fraction
    done: Fraction


@dataclass(frozen=True, slots=True)
class EngineUse:
    """Where an engine's time goes (cycles, exact); the parts add up to the total.

    Attributes:
        engine: its name.
        busy: serving stages.
        starved: nothing was pushed to it while the CPU was dispatching: the CPU
            holds it up.
        blocked: it had stages, but their inputs or buffers were not ready.
        blocked_by: the engine that was busy for most of ``blocked``; empty if none.
        without_work: nothing was pushed, and the CPU was not dispatching.
    """

    engine: str
    busy: Fraction
    starved: Fraction
    blocked: Fraction
    blocked_by: str
    without_work: Fraction


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """Everything that ``raptor-cp dispatch`` prints about one kernel.

    Attributes:
        kernel: its name.
        rows: by command type, in order of first issue.
        total_cycles: until the last stage has finished.
        cpu: use of the CPU.
        engines: use of the engines.
        clock_freq_ghz: cycles per nanosecond.
    """

    kernel: str
    rows: tuple[CommandRow, ...]
    total_cycles: Fraction
    cpu: CpuUse
    engines: tuple[EngineUse, ...]
    clock_freq_ghz: Fraction

    @property
    def commands(self) -> int:
        """Commands of all types."""
        return sum(row.commands for row in self.rows)

    @property
    def dispatch_cycles(self) -> Fraction:
        """CPU cycles charged by the formula."""
        return sum((row.dispatch_cycles for row in self.rows), Fraction(0))

    @property
    def fixed_share(self) -> Fraction:
        """Part of the dispatch that FIXED makes; 0 without dispatch."""
        fixed = sum((row.fixed_cycles for row in self.rows), Fraction(0))
        return fixed / self.dispatch_cycles if self.dispatch_cycles else Fraction(0)

    @property
    def saturated(self) -> str:
        """The busiest server: ``CPU`` when issuing is the bottleneck."""
        cpu = self.cpu.dispatch + self.cpu.explicit
        busiest = max(self.engines, key=lambda use: use.busy)
        return busiest.engine if busiest.busy >= cpu else "CPU"

    def findings(self) -> tuple[str, ...]:
        """Who starves whom, one sentence each; what is below 1 % is left out."""
        found: list[str] = []
        least = self.total_cycles / 100
        for use in self.engines:
            if use.busy and use.starved > least:
                share = float(100 * use.starved / self.total_cycles)
                found.append(
                    f"the CPU starves {use.engine}: nothing to do during dispatch for"
                    f" {shown_cycles(use.starved)} cycles ({share:.1f} % of the run)"
                )
            if use.busy and use.blocked_by and use.blocked > least:
                share = float(100 * use.blocked / self.total_cycles)
                found.append(
                    f"{use.blocked_by} starves {use.engine}: inputs not ready for"
                    f" {shown_cycles(use.blocked)} cycles ({share:.1f} % of the run)"
                )
        if self.cpu.queue_full > least:
            found.append(
                f"{self.saturated} holds the CPU up: the scheduler's queue was full for"
                f" {shown_cycles(self.cpu.queue_full)} cycles"
            )
        return tuple(found)

    def ns(self, cycles: Fraction) -> int:
        """Whole nanoseconds to show, halves to even: the only rounding there is."""
        return round(cycles / self.clock_freq_ghz)

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON; cycles as numbers, the total also as a fraction."""
        total = self.total_cycles
        dispatch = self.dispatch_cycles
        return {
            "kernel": self.kernel,
            "clock_freq_ghz": float(self.clock_freq_ghz),
            "commands": self.commands,
            "logical_bytes": sum(row.logical_bytes for row in self.rows),
            "total_cycles": float(total),
            "total_cycles_exact": str(total),
            "total_ns": self.ns(total),
            "dispatch_cycles": float(dispatch),
            "dispatch_cycles_exact": str(dispatch),
            "dispatch_ns": self.ns(dispatch),
            "fixed_share": float(self.fixed_share),
            "bytes_share": float(1 - self.fixed_share) if dispatch else 0.0,
            "by_type": [
                {
                    "type": row.type,
                    "commands": row.commands,
                    "logical_bytes": row.logical_bytes,
                    "fixed_cycles": float(row.fixed_cycles),
                    "byte_cycles": float(row.byte_cycles),
                    "dispatch_cycles": float(row.dispatch_cycles),
                    "dispatch_ns": self.ns(row.dispatch_cycles),
                }
                for row in self.rows
            ],
            "cpu": {name: float(getattr(self.cpu, name)) for name in CpuUse.__slots__},
            "engines": [
                {
                    "engine": use.engine,
                    "busy": float(use.busy),
                    "utilisation": float(use.busy / total) if total else 0.0,
                    "starved": float(use.starved),
                    "blocked": float(use.blocked),
                    "blocked_by": use.blocked_by,
                    "without_work": float(use.without_work),
                }
                for use in self.engines
            ],
            "saturated": self.saturated,
            "findings": list(self.findings()),
        }


def dispatch_report(kernel: str, timeline: ElementTimeline) -> DispatchReport:
    """Account for all the time of one run."""
    rows: dict[str, CommandRow] = {}
    for command, cost in zip(timeline.commands, timeline.charges, strict=True):
        name = type(command).__name__
        row = rows.get(name, CommandRow(name, 0, 0, Fraction(0), Fraction(0)))
        # Overhead is not written into the queue: its bytes are not counted.
        size = 0 if isinstance(command, PeCpuOverheadCmd) else command.logical_bytes
        rows[name] = CommandRow(
            name,
            row.commands + 1,
            row.logical_bytes + size,
            row.fixed_cycles + cost.fixed_cycles,
            row.byte_cycles + cost.byte_cycles,
        )
    return DispatchReport(
        kernel,
        tuple(rows.values()),
        timeline.total_cycles,
        _cpu_use(timeline),
        tuple(_engine_use(timeline, e) for e in Engine if e is not Engine.CPU),
        timeline.attributes.clock_freq_ghz,
    )


def _cpu_use(timeline: ElementTimeline) -> CpuUse:
    queue_full = _length(timeline.cpu_queue_stalls())
    waiting = _length(timeline.cpu_waits())
    used = _length(timeline.busy(Engine.CPU)) + queue_full + waiting
    return CpuUse(
        dispatch=timeline.dispatch_cycles,
        explicit=timeline.explicit_cycles,
        queue_full=timeline.cycles(queue_full),
        waiting=timeline.cycles(waiting),
        done=timeline.cycles(timeline.total_ticks - used),
    )


def _engine_use(timeline: ElementTimeline, engine: Engine) -> EngineUse:
    end = timeline.total_ticks
    busy = timeline.busy(engine)
    outstanding = timeline.outstanding(engine)
    blocked = common(complement(busy, end), outstanding)
    without = complement(outstanding, end)
    starved = _length(common(without, timeline.busy(Engine.CPU)))
    culprits = [
        (_length(common(blocked, timeline.busy(other))), other.name)
        for other in Engine
        if other not in (engine, Engine.CPU)
    ]
    most, name = max(culprits, key=lambda culprit: culprit[0])
    cycles = timeline.cycles
    return EngineUse(
        engine=engine.name,
        busy=cycles(_length(busy)),
        starved=cycles(starved),
        blocked=cycles(_length(blocked)),
        blocked_by=name if most else "",
        without_work=cycles(_length(without) - starved),
    )


def _length(spans: tuple[Interval, ...]) -> int:
    return sum(end - start for start, end in spans)
