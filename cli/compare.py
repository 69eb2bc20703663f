"""``raptor-cp compare``: solver against heuristic over scenarios."""

from __future__ import annotations

import csv as csv_module
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.options import Json, Overrides, Quiet, overrides
from raptor_cp.cli.running import console, interruptible, print_json, reported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from raptor_cp.cli.progress import SearchProgress
    from raptor_cp.comparison import ComparisonRow

Scenarios = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Scenario files or folders; the built-in one without.", show_default=False
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        help="Only this method; may be repeated. Pipeline: heuristic, cp-sat, both; "
        "latency: peft, heft, cp-sat.",
    ),
]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on standard output.")]


#: Headings of the table; where it is wider than the screen, the second part stands
#: in a table of its own.
_KEYS = ("scenario", "method")
_ANSWER = ("verdict", "interval", "bound", "gap", "seconds")
_EFFORT = ("static", "static bound", "evaluations", "packings", "gain")


@reported
def compare(
    scenarios: Scenarios = None,
    method: Methods = None,
    set_: Overrides = None,
    json: Json = False,
    csv: Csv = False,
    quiet: Quiet = False,
) -> None:
    """Compare heuristic, solver-seeded and best-of-both runs, with bound and gap.

    Ctrl-C ends with exit code 3 after the rows that are finished.
    """
    with interruptible() as stop:
        from raptor_cp.cli.progress import SearchProgress
        from raptor_cp.comparison import ComparisonRow
        from raptor_cp.comparison import compare as run
        from raptor_cp.interruption import Interrupted
        from raptor_cp.scenario import load_or_builtin, scenario_files

        screen = console(quiet=quiet)
        files: list[Path | None] = (
            list(scenario_files(scenarios)) if scenarios else [None]
        )
        rows: list[ComparisonRow] = []
        with SearchProgress(screen) as progress:
            for path in files:
                if stop.requested:
                    break
                loaded = load_or_builtin(path, overrides(set_))
                watch = partial(_watched, progress, loaded.scenario.name)
                rows.extend(run(loaded, method, observer=watch, stop=stop))
        if rows:
            _print_rows(screen, rows)
    if json:
        print_json([row.to_dict() for row in rows])
    if csv:
        writer = csv_module.DictWriter(
            sys.stdout, ComparisonRow.__slots__, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(row.to_dict() for row in rows)
    if stop.requested:
        raise Interrupted(f"interrupted: {len(rows)} rows are finished")


def _watched(progress: SearchProgress, scenario: str, method: str) -> SearchProgress:
    return progress.begin(f"{method}: {scenario}")


def _print_rows(screen: Console, rows: Sequence[ComparisonRow]) -> None:
    from raptor_cp.cli.running import say
    from raptor_cp.cli.summary import percent

    whole = _table(rows, (*_KEYS, *_ANSWER[:-1], *_EFFORT[:-1], "seconds", "gain"))
    anything = screen.options.update(width=10_000)
    if screen.measure(whole, options=anything).maximum <= screen.width:
        screen.print(whole)
    else:
        for part in (_ANSWER, _EFFORT):
            screen.print(_table(rows, (*_KEYS, *part)))
    judged = [r for r in rows if r.gain is not None and r.method != "both"]
    if judged:
        changed = [r for r in judged if r.interval_ns != r.static_choice_ns]
        gain = max((r.gain or 0.0 for r in judged), default=0.0)
        say(
            screen,
            f"queue costs changed the static choice in {len(changed)} of "
            f"{len(judged)} runs; largest gain {percent(gain)}",
            0,
        )


def _table(rows: Sequence[ComparisonRow], titles: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in titles:
        left = title in ("scenario", "method", "verdict")
        # Only names are folded; a folded number would be two numbers.
        table.add_column(
            title,
            justify="left" if left else "right",
            no_wrap=title != "scenario",
            overflow="fold",
        )
    for row in rows:
        cells = _cells(row)
        table.add_row(*(cells[title] for title in titles))
    return table


def _cells(row: ComparisonRow) -> dict[str, str]:
    from raptor_cp.cli.summary import duration, percent

    value = row.interval_ns if row.interval_ns is not None else row.latency_ns
    return {
        "scenario": row.scenario,
        "method": row.method,
        "verdict": row.verdict,
        "interval": duration(value),
        "bound": duration(row.bound_ns),
        "gap": percent(row.gap),
        "static": duration(row.static_objective_ns),
        "static bound": duration(row.static_bound_ns),
        "evaluations": str(row.queue_evaluations),
        "packings": str(row.packings),
        "seconds": f"{row.seconds:.2f}",
        "gain": percent(row.gain),
    }
