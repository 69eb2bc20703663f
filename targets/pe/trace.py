"""A run as trace events that Perfetto and Chrome show: one track for each server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.targets.pe.commands import CompositeCmd, MathCmd
from raptor_cp.targets.pe.stages import NO_ENGINE, Engine

if TYPE_CHECKING:
    from raptor_cp.targets.pe.commands import PeCommand
    from raptor_cp.targets.pe.timeline import ElementTimeline


def trace_events(timeline: ElementTimeline, process: str) -> dict[str, object]:
    """The trace document; times are microseconds, as its format wants.

    The CPU's track also shows when it waits, and when the queue is full.
    """
    events: list[dict[str, object]] = [_name("process_name", 0, process)]
    events += [_name("thread_name", e.value, e.name) for e in Engine]

    def add(
        name: str, engine: int, start: int, finish: int, command: int | None
    ) -> None:
        event: dict[str, object] = {
            "name": name,
            "ph": "X",
            "pid": 0,
            "tid": engine,
            "ts": _microseconds(timeline, start),
            "dur": _microseconds(timeline, finish - start),
        }
        if command is not None:
            event["args"] = {
                "command": command,
                "type": type(timeline.commands[command]).__name__,
            }
        events.append(event)

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
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _name(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def _label(command: PeCommand) -> str:
    if isinstance(command, CompositeCmd):
        return command.name
    if isinstance(command, MathCmd):
        return command.op
    return type(command).__name__


def _microseconds(timeline: ElementTimeline, ticks: int) -> float:
    return float(timeline.attributes.cycles_to_ns(timeline.cycles(ticks)) / 1000)
