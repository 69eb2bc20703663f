"""``raptor-cp compare``: solver against heuristic over scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raptor_cp.cli.options import Json, Overrides, Quiet, overrides
from raptor_cp.cli.running import console, print_json, reported

Scenarios = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Scenario files or folders; the built-in one without.", show_default=False
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="Only these methods; may be repeated."),
]
Csv = Annotated[bool, typer.Option("--csv", help="CSV on standard output.")]


@reported
def compare(
    scenarios: Scenarios = None,
    method: Methods = None,
    set_: Overrides = None,
    json: Json = False,
    csv: Csv = False,
    quiet: Quiet = False,
) -> None:
    """Compare heuristic, solver-seeded and best-of-both runs, with bound and gap."""
    import csv as csv_module
    import sys

    from rich.table import Table

    from raptor_cp.cli.summary import duration, percent
    from raptor_cp.comparison import ComparisonRow
    from raptor_cp.comparison import compare as run
    from raptor_cp.scenario import load_or_builtin, scenario_files

    screen = console(quiet=quiet)
    files: list[Path | None] = list(scenario_files(scenarios)) if scenarios else [None]
    rows: list[ComparisonRow] = []
    for path in files:
        loaded = load_or_builtin(path, overrides(set_))
        if not screen.quiet and screen.is_terminal:
            screen.print(f"{loaded.scenario.name} ...")
        rows.extend(run(loaded, method))
    table = Table(box=None, pad_edge=False)
    for title in (
        "scenario", "method", "verdict", "interval", "bound", "gap", "static",
        "static bound", "evaluations", "packings", "seconds", "gain",
    ):  # fmt: skip
        left = title in ("scenario", "method", "verdict")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        value = row.interval_ns if row.interval_ns is not None else row.latency_ns
        table.add_row(
            row.scenario, row.method, row.verdict, duration(value),
            duration(row.bound_ns), percent(row.gap),
            duration(row.static_objective_ns), duration(row.static_bound_ns),
            str(row.queue_evaluations), str(row.packings), f"{row.seconds:.2f}",
            percent(row.gain),
        )  # fmt: skip
    screen.print(table)
    judged = [r for r in rows if r.gain is not None and r.method != "both"]
    if judged:
        changed = [r for r in judged if r.interval_ns != r.static_choice_ns]
        gain = max((r.gain or 0.0 for r in judged), default=0.0)
        screen.print(
            f"queue costs changed the static choice in {len(changed)} of "
            f"{len(judged)} runs; largest gain {percent(gain)}"
        )
    if json:
        print_json([row.to_dict() for row in rows])
    if csv:
        writer = csv_module.DictWriter(
            sys.stdout, ComparisonRow.__slots__, lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(row.to_dict() for row in rows)
