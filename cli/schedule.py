"""``raptor-cp schedule``: the main job."""

from __future__ import annotations

import typer

from raptor_cp.cli.options import (
    AcceptInitial,
    Json,
    NoProgram,
    NoSolver,
    OutFolder,
    Overrides,
    Quiet,
    ScenarioFile,
    Timing,
    Workers,
    overrides,
)
from raptor_cp.cli.running import console, print_json, reported


@reported
def schedule(
    scenario: ScenarioFile = None,
    out: OutFolder = None,
    set_: Overrides = None,
    no_solver: NoSolver = False,
    no_program: NoProgram = False,
    workers: Workers = None,
    accept_initial: AcceptInitial = False,
    json: Json = False,
    quiet: Quiet = False,
    timing: Timing = False,
) -> None:
    """Schedule a network on a chip and say how good the schedule is."""
    from pathlib import Path

    from raptor_cp.cli.progress import SearchProgress
    from raptor_cp.cli.summary import print_summary
    from raptor_cp.run_folder import check_replaceable
    from raptor_cp.run_output import write_run
    from raptor_cp.scenario import load_or_builtin
    from raptor_cp.scheduler import schedule as run

    given = overrides(
        set_, no_solver=no_solver, workers=workers, accept_initial=accept_initial
    )
    loaded = load_or_builtin(scenario, given)
    folder = out or Path("runs") / loaded.scenario.name
    check_replaceable(folder)
    screen = console(quiet=quiet)
    with SearchProgress(screen) as progress:
        result = run(loaded, progress, program=not no_program)
    write_run(result, folder)
    if json:
        print_json(result.to_dict())
    print_summary(screen, result, folder=folder, timing=timing)
    raise typer.Exit(result.exit_code)
