"""``raptor-cp regress``: scenarios against their expected results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.options import Json, Quiet
from raptor_cp.cli.running import console, interruptible, print_json, reported, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from raptor_cp.regression import RegressionCase

Scenarios = Annotated[
    list[Path] | None,
    typer.Argument(help="Scenario files or folders (default: scenarios)."),
]
Update = Annotated[
    bool, typer.Option("--update", help="Record what is found as the expected result.")
]
Tolerances = Annotated[
    list[str] | None,
    typer.Option(
        "--tolerance",
        metavar="FIGURE=AMOUNT",
        help="Allow a figure to differ: interval_ns=1% or interval_ns=100; may be "
        "repeated. Recorded with --update.",
        show_default=False,
    ),
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", help="Write JUnit XML.", show_default=False),
]
HistoryFile = Annotated[
    Path | None,
    typer.Option(
        "--history-file",
        help="Append the figures of this run to a file of JSON lines.",
        show_default=False,
    ),
]
History = Annotated[
    Path | None,
    typer.Option(
        "--history",
        help="Write a page (HTML) of all runs in the history file; its default is "
        "the page's name with .jsonl.",
        show_default=False,
    ),
]


@reported
def regress(
    scenarios: Scenarios = None,
    update: Update = False,
    tolerance: Tolerances = None,
    junit: Junit = None,
    history: History = None,
    history_file: HistoryFile = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare scenarios with `expect` and with their recorded results.

    Exit codes: 0 all as expected; 1 a difference, or nothing recorded; 2 or 4 a
    scenario that cannot be run; 3 interrupted. A failing scenario does not end the
    run.
    """
    with interruptible() as stop:
        from raptor_cp.cli.progress import SearchProgress
        from raptor_cp.errors import MalformedInput
        from raptor_cp.regression import regress_all
        from raptor_cp.scenario import scenario_files
        from raptor_cp.tolerance import parse_tolerances

        if history is not None and history.suffix == ".jsonl":
            raise MalformedInput(
                "the page and the history file have different names",
                where="--history",
                value=str(history),
                expected="the name of an HTML page",
            )
        tolerances = parse_tolerances(tolerance or ())
        files = scenario_files(scenarios or [Path("scenarios")])
        screen = console(quiet=quiet)
        with SearchProgress(screen) as progress:
            cases = regress_all(
                files,
                update=update,
                tolerances=tolerances,
                on_case=lambda case: _print_case(screen, case),
                observer=lambda path: progress.begin(path.stem),
                stop=stop,
            )
        left = files[len(cases) :]
        passed = sum(case.passed for case in cases)
        say(screen, f"{passed} of {len(cases)} scenarios as expected", 0)
        _write_files(cases, left, junit, history, history_file)
    if json:
        print_json([case.to_dict() for case in cases])
    if left:
        from raptor_cp.interruption import Interrupted

        raise Interrupted(f"interrupted: {len(left)} of {len(files)} were not run")
    raise typer.Exit(max((case.exit_code for case in cases), default=0))


def _print_case(screen: Console, case: RegressionCase) -> None:
    from rich.markup import escape

    name = escape(case.scenario)
    if case.passed:
        say(screen, f"[green]same[/]      {name}", 0)
        return
    if case.error is not None:
        say(screen, f"[red]failed[/]    {name}", 0)
        say(screen, escape(str(case.error)), 4)
        return
    word = "different" if case.differences else "no record"
    say(screen, f"[red]{word}[/] {name}", 0)
    for difference in case.differences:
        say(screen, escape(difference.key), 4)
        say(screen, f"expected {escape(difference.expected)}", 6)
        say(screen, f"found    {escape(difference.found)}", 6)
    if not case.recorded:
        say(screen, "nothing recorded: run with --update", 4)


def _write_files(
    cases: Sequence[RegressionCase],
    left: Sequence[Path],
    junit: Path | None,
    history: Path | None,
    history_file: Path | None,
) -> None:
    from datetime import UTC, datetime

    from raptor_cp.regression import history_run, junit_document
    from raptor_cp.reports.files import write_bytes, write_text
    from raptor_cp.reports.history import append_run, history_html, read_history

    if junit is not None:
        write_bytes(junit, junit_document(cases, left))
    if history_file is None and history is not None:
        history_file = history.with_suffix(".jsonl")
    if history_file is None:
        return
    time = datetime.now(UTC).isoformat(timespec="seconds")
    append_run(history_file, history_run(cases, time, complete=not left))
    if history is not None:
        write_text(history, history_html(*read_history(history_file)))
