"""A run as trace events that Perfetto and Chrome show: one track for each server."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.targets.pe.commands import CompositeCmd, MathCmd
from raptor_cp.targets.pe.stages import NO_ENGINE, Engine
from raptor_cp.trace_format import TraceEvents

if TYPE_CHECKING:
    from raptor_cp.targets.pe.commands import PeCommand
    from raptor_cp.targets.pe.timeline import ElementTimeline


def trace_events(timeline: ElementTimeline, process: str) -> dict[str, object]:
    """The trace document; times are microseconds, as its format wants.

    The CPU's track also shows when it waits, and when the queue is full.
    """
    trace = TraceEvents()
    trace.name_process(0, process)
    for member in Engine:
        trace.name_track(0, member.value, member.name)

    def add(
        name: str, engine: int, start: int, finish: int, command: int | None
    ) -> None:
        args: dict[str, object] | None = None
        if command is not None:
            kind = type(timeline.commands[command]).__name__
            args = {"command": command, "type": kind}
        trace.add_slice(
            0, engine, name, _ns(timeline, start), _ns(timeline, finish - start),
            args=args,
        )  # fmt: skip

    for i, engine in enumerate(timeline.engine):
        if engine == NO_ENGINE:
            continue
        command = timeline.command[i]
        label = f"{timeline.kind[i].value} {_label(timeline.commands[command])}"
        add(label, engine, timeline.start[i], timeline.finish[i], command)
    for start, finish in timeline.cpu_queue_stalls():
        add("queue full", Engine.CPU.value, start, finish, None)
    for start, finish in timeline.cpu_waits():
        add("wait", Engine.CPU.value, start, finish, None)
    return trace.document()


def _label(command: PeCommand) -> str:
    if isinstance(command, CompositeCmd):
        return command.name
    if isinstance(command, MathCmd):
        return command.op
    return type(command).__name__


def _ns(timeline: ElementTimeline, ticks: int) -> Fraction:
    return Fraction(timeline.attributes.cycles_to_ns(timeline.cycles(ticks)))
