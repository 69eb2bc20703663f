"""``raptor-cp check``: feasibility and certificate only."""

from __future__ import annotations

import typer

from raptor_cp.cli.options import (
    Json,
    NoSolver,
    Overrides,
    Quiet,
    ScenarioFile,
    Workers,
    overrides,
)
from raptor_cp.cli.running import console, interruptible, print_json, reported


@reported
def check(
    scenario: ScenarioFile = None,
    set_: Overrides = None,
    no_solver: NoSolver = False,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say whether a scenario is feasible and how good a schedule can be at most.

    Places the initial schedule only: no search, no run folder.
    """
    with interruptible() as stop:
        from raptor_cp.cli.progress import SearchProgress
        from raptor_cp.cli.summary import print_summary
        from raptor_cp.interruption import Interrupted
        from raptor_cp.scenario import load_or_builtin
        from raptor_cp.scheduler import schedule as run

        given = overrides(set_, no_solver=no_solver, workers=workers)
        loaded = load_or_builtin(
            scenario, (*given, "search.timing=static", "search.queue_evaluations=1")
        )
        screen = console(quiet=quiet)
        with SearchProgress(screen) as progress:
            result = run(loaded, progress, stop=stop)
        if result.interrupted and result.schedule is None:
            raise Interrupted(result.reason)
    if json:
        print_json({**result.summary(), "solver": list(result.solver)})
    print_summary(screen, result)
    raise typer.Exit(result.exit_code)
