"""``raptor-cp schedule``: the main job."""

from __future__ import annotations

from pathlib import Path

import typer

from raptor_cp.cli.options import (
    AcceptInitial,
    Json,
    Method,
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
from raptor_cp.cli.running import console, interruptible, print_json, reported


@reported
def schedule(
    scenario: ScenarioFile = None,
    out: OutFolder = None,
    set_: Overrides = None,
    no_solver: NoSolver = False,
    no_program: NoProgram = False,
    workers: Workers = None,
    accept_initial: AcceptInitial = False,
    method: Method = None,
    json: Json = False,
    quiet: Quiet = False,
    timing: Timing = False,
) -> None:
    """Schedule a network on a chip and say how good the schedule is.

    Ctrl-C (or SIGTERM) keeps the best schedule so far, with its verdict, and ends
    with exit code 3; a second one ends at once.
    """
    with interruptible() as stop:
        from raptor_cp.cli.progress import SearchProgress
        from raptor_cp.cli.summary import print_summary
        from raptor_cp.errors import MalformedInput
        from raptor_cp.interruption import Interrupted
        from raptor_cp.run_folder import check_replaceable
        from raptor_cp.run_output import write_run
        from raptor_cp.scenario import load_or_builtin
        from raptor_cp.scheduler import schedule as run

        given = overrides(
            set_,
            no_solver=no_solver,
            workers=workers,
            accept_initial=accept_initial,
            method=method,
        )
        loaded = load_or_builtin(scenario, given)
        if method is not None and loaded.scenario.mode != "latency":
            raise MalformedInput(
                "a method is chosen in latency mode only",
                where="--method",
                value=method,
                expected="a scenario with mode: latency",
                hint="--set mode=latency schedules one inference",
            )
        folder = out or Path("runs") / loaded.scenario.name
        check_replaceable(folder)
        screen = console(quiet=quiet)
        with SearchProgress(screen) as progress:
            result = run(loaded, progress, program=not no_program, stop=stop)
            if result.interrupted and result.schedule is None:
                raise Interrupted(result.reason)
            progress.phase("run folder")
            write_run(result, folder)
    if json:
        print_json(result.to_dict())
    print_summary(screen, result, folder=folder, timing=timing)
    if stop.requested and not result.interrupted:
        raise Interrupted("interrupted while the run folder was written; it is whole")
    raise typer.Exit(result.exit_code)
