"""``raptor-cp regress``: scenarios against their expected results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raptor_cp.cli.options import Json, Quiet
from raptor_cp.cli.running import console, print_json, reported

Scenarios = Annotated[
    list[Path] | None,
    typer.Argument(help="Scenario files or folders (default: scenarios)."),
]
Update = Annotated[
    bool, typer.Option("--update", help="Record what is found as the expected result.")
]


@reported
def regress(
    scenarios: Scenarios = None,
    update: Update = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare scenarios with `expect` and with their recorded results."""
    from rich.markup import escape

    from raptor_cp.regression import regress as run
    from raptor_cp.scenario import scenario_files

    screen = console(quiet=quiet)
    cases = []
    for path in scenario_files(scenarios or [Path("scenarios")]):
        case = run(path, update=update)
        cases.append(case)
        if case.passed:
            screen.print(f"[green]same[/]      {escape(case.scenario)}")
            continue
        word = "different" if case.differences else "no record"
        screen.print(f"[red]{word}[/] {escape(case.scenario)}")
        for difference in case.differences:
            screen.print(f"    {escape(difference.key)}")
            screen.print(f"      expected {escape(difference.expected)}")
            screen.print(f"      found    {escape(difference.found)}")
        if not case.recorded:
            screen.print("    nothing recorded: run with --update")
    failed = sum(1 for case in cases if not case.passed)
    screen.print(f"{len(cases) - failed} of {len(cases)} scenarios as expected")
    if json:
        print_json(
            [
                {
                    "scenario": case.scenario,
                    "passed": case.passed,
                    "recorded": case.recorded,
                    "differences": [
                        {"key": d.key, "expected": d.expected, "found": d.found}
                        for d in case.differences
                    ],
                }
                for case in cases
            ]
        )
    raise typer.Exit(1 if failed else 0)
