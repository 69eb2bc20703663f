"""What a person reads after a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from raptor_cp.cli.running import printable, say

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from raptor_cp.result import ScheduleResult

_COLOURS = {"FEASIBLE": "green", "OPTIMAL": "green", "INFEASIBLE": "red"}


def duration(value: int | None) -> str:
    """ns in a readable unit with three digits; a dash for nothing."""
    if value is None:
        return "-"
    for unit, scale in (("ms", 10**6), ("us", 10**3)):
        if value >= scale:
            return f"{value / scale:,.3f} {unit}"
    return f"{value} ns"


def percent(gap: float | None) -> str:
    """A gap as a percentage; a dash for nothing."""
    return "-" if gap is None else f"{100 * gap:.2f} %"


def print_summary(
    screen: Console,
    result: ScheduleResult,
    *,
    folder: Path | None = None,
    timing: bool = False,
) -> None:
    """Verdict and certificate first, then the stages, then what to know."""
    name = escape(result.loaded.scenario.name)
    colour = _COLOURS.get(result.verdict, "yellow")
    say(screen, f"[bold]{name}[/]: [bold {colour}]{result.verdict}[/]", 0)
    if result.interrupted:
        say(screen, "[yellow]interrupted[/]: this is the best schedule so far")
    if result.infeasibility is not None:
        for line in result.infeasibility.sentences():
            say(screen, escape(line))
    else:
        say(screen, escape(result.reason))
    certificate = result.certificate
    if result.schedule is not None:
        kind = result.timing or "static estimate"
        latency = f"one inference {duration(result.latency_ns)}"
        if result.interval_ns is not None:
            interval = f"interval {duration(result.interval_ns)}"
            say(screen, f"{interval} (timing: {kind}); {latency}")
        else:
            say(screen, latency)
    if certificate is not None:
        for line in certificate.sentences():
            say(screen, escape(line))
    if result.schedule is not None and result.schedule.placement.stages:
        screen.print(_stages(result))
    if result.search is not None:
        budget = result.search.budget
        say(
            screen,
            f"search: {budget.queue_evaluations.used}/"
            f"{budget.queue_evaluations.limit} evaluations, {budget.packings.used}/"
            f"{budget.packings.limit} packings, ended by: "
            f"{escape(result.search.termination)}",
        )
    if result.schedule is not None:
        for name, values in result.schedule.problem.costs.components:
            label = name.removesuffix("_ns")
            work = duration(result.schedule.summary.serial_work_ns)
            say(screen, f"{label}: {duration(int(values.sum()))} of {work} work")
    if result.program is not None:
        reasons = "; ".join(result.program.reasons)
        say(
            screen,
            f"program: {result.program.outcome}"
            + (f" ({escape(reasons)})" if reasons else ""),
        )
    for expectation in result.expectations():
        if not expectation.held:
            say(
                screen,
                f"[red]expected[/] {escape(expectation.expected)}, found "
                f"{escape(expectation.found)}",
            )
    for note in result.notes:
        say(screen, f"note: {escape(note)}")
    if timing:
        for phase, seconds in result.phases.items():
            count = result.phase_counts.get(phase, 0)
            say(screen, f"{phase:28} {seconds:8.3f} s {count:7}")
    if folder is not None:
        say(screen, f"written to {escape(str(folder))}")


def _stages(result: ScheduleResult) -> Table:
    schedule = result.schedule
    if schedule is None:
        raise ValueError("no schedule to show")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("  stage", "operations", "cores", "tasks", "load", "span"):
        left = title == "operations"
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    graph, order = schedule.problem.graph, schedule.placement.order
    for stage in schedule.placement.stages:
        first, last = graph.operations[stage.groups[0]], graph.operations[
            stage.groups[-1]
        ]  # fmt: skip
        table.add_row(
            str(stage.index),
            escape(printable(first if first == last else f"{first} .. {last}")),
            str(len(stage.cores)),
            str(sum(len(order[core]) for core in stage.cores)),
            duration(schedule.summary.stage_loads_ns[stage.index]),
            duration(schedule.summary.stage_spans_ns[stage.index]),
        )
    return table
