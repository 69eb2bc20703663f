"""What a person reads of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from raptor_cp.cli.running import say
from raptor_cp.cli.summary import duration, percent
from raptor_cp.sweeps.identity import flow_text
from raptor_cp.sweeps.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from raptor_cp.sweeps.records import PointRecord, SweepReport

_COLOURS = {
    "FEASIBLE": "green",
    "OPTIMAL": "green",
    "INFEASIBLE": "red",
    "UNKNOWN": "yellow",
}
#: Sentences about points without an answer, at most.
_MOST_SENTENCES = 10


def print_table(
    screen: Console,
    report: SweepReport,
    records: Sequence[PointRecord],
) -> None:
    """A line for each point, in the order of the sweep file.

    Args:
        screen: a console that reads markup.
        report: the sweep.
        records: those of its points that are shown.
    """
    several = len({record.scenario for record in report.records}) > 1
    short = _short_keys(report.records)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    if several:
        table.add_column("scenario", overflow="fold")
    table.add_column("point", overflow="fold", ratio=1 if screen.is_terminal else None)
    table.add_column("verdict", no_wrap=True)
    for title in (_time_title(report.records), "gap", "st", "cores", "slots"):
        table.add_column(title, justify="right", no_wrap=True)
    for record in records:
        figures = record.figures
        point = " ".join(
            f"{short[key]}={flow_text(value)}"
            for key, value in record.overrides.items()
        )
        word = figures.verdict or str(figures.outcome)
        cells = [
            escape(point or "as it is"),
            f"[{_COLOURS.get(word, 'red')}]{word}[/]",
            duration(_time_ns(record)),
            percent(figures.gap),
            *map(_number, (figures.stages, figures.cores_used, figures.weight_slots)),
        ]
        if several:
            cells.insert(0, escape(record.scenario))
        table.add_row(*cells)
    if screen.is_terminal:
        screen.print(table)
        return
    # A pipe has no width: a line for each point, whatever its length.
    width = screen.measure(table, options=screen.options.update(width=10_000)).maximum
    screen.print(table, width=max(width, 1), soft_wrap=True)


def print_counts(screen: Console, report: SweepReport) -> None:
    """How many points have what, then the sentences of those without an answer."""
    counts = report.counts()
    name = escape(report.name)
    done = counts["total"] - counts["missing"]
    infeasible = sum(1 for r in report.records if r.figures.verdict == "INFEASIBLE")
    parts = [f"{counts[str(Outcome.ANSWERED)]} answered ({infeasible} infeasible)"]
    for word, title in (
        (Outcome.UNANSWERED, "without an answer"),
        (Outcome.FAILED, "failed"),
        ("missing", "not done"),
    ):
        if counts[str(word)]:
            parts.append(f"[red]{counts[str(word)]} {title}[/]")
    if counts["repeated"]:
        parts.append(f"{counts['repeated']} repeated")
    total = counts["total"]
    say(
        screen,
        f"[bold]{name}[/]: {done} of {total} points done: " + ", ".join(parts),
        0,
    )
    if counts["expectation_failed"]:
        text = f"{counts['expectation_failed']} points against what `expect` says"
        say(screen, f"[yellow]{text}[/]")
    without = [r for r in report.records if r.figures.error]
    for record in without[:_MOST_SENTENCES]:
        point = " ".join(f"{k}={flow_text(v)}" for k, v in record.overrides.items())
        text = f"{record.scenario} {point}".rstrip()
        say(screen, f"{escape(text)}: {escape(record.figures.error)}")
    if len(without) > _MOST_SENTENCES:
        say(screen, f"and {len(without) - _MOST_SENTENCES} more (--csv has them all)")
    if report.note:
        say(screen, f"[red]{escape(report.note)}[/]")
    if report.interrupted:
        say(screen, "[yellow]interrupted[/]: the points that are done stay")


def _time_ns(record: PointRecord) -> int | None:
    """The interval; in latency mode the completion of one inference."""
    interval = record.figures.interval_ns
    return record.figures.latency_ns if interval is None else interval


def _time_title(records: Sequence[PointRecord]) -> str:
    modes = {
        r.figures.interval_ns is None for r in records if r.figures.stages is not None
    }
    titles = {True: "latency", False: "interval"}
    return "int./lat." if len(modes) > 1 else titles[modes == {True}]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _short_keys(records: Sequence[PointRecord]) -> dict[str, str]:
    """Key paths by their last word, where that is enough to tell them apart."""
    keys = dict.fromkeys(key for record in records for key in record.overrides)
    words = [key.rpartition(".")[2] for key in keys]
    return {
        key: word if words.count(word) == 1 and not word.isdigit() else key
        for key, word in zip(keys, words, strict=True)
    }
