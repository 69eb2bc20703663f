"""``raptor-cp sweep``: a grid of overrides over scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.options import Json, Quiet
from raptor_cp.cli.running import console, interruptible, print_json, reported
from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Collection

    from raptor_cp.sweeps import PointRecord, SweepReport

SweepFile = Annotated[
    Path, typer.Argument(help="Sweep file; with --show also a results file.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Results file (default sweeps/<name>.sqlite).", show_default=False
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Local processes (default: all processors).",
        show_default=False,
    ),
]  # fmt: skip
Dask = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Run on this Dask cluster instead.",
        show_default=False,
    ),
]  # fmt: skip
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run points that failed again.")
]
Show = Annotated[bool, typer.Option("--show", help="Show the results, run nothing.")]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="Write the results as CSV; - is standard output.",
                 show_default=False),
]  # fmt: skip
Parquet = Annotated[
    Path | None,
    typer.Option("--parquet", help="Write the results as Parquet (extra tables).",
                 show_default=False),
]  # fmt: skip
Pareto = Annotated[
    str | None,
    typer.Option(
        "--pareto",
        metavar="OBJECTIVES",
        help="Only the Pareto front of each network: auto, or figures and overrides "
        "to minimize (interval_ns,cores).",
        show_default=False,
    ),
]


@reported
def sweep(
    file: SweepFile,
    out: Out = None,
    workers: Workers = None,
    dask: Dask = None,
    retry_failed: RetryFailed = False,
    show: Show = False,
    csv: Csv = None,
    parquet: Parquet = None,
    pareto: Pareto = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run many scenarios: a grid, or a list, of overrides.

    Each point is recorded when it is done, so the command may be killed at
    any time; given again, it does what is left. Exit code 0: every point has
    an answer (infeasible is one); 1: some are not as `expect` says; 3: some
    failed or are not done. With --show: 0.
    """
    with interruptible() as stop:
        from raptor_cp.sweeps import front_of, load_sweep, run_sweep
        from raptor_cp.sweeps.pareto import objectives_of

        screen = console(quiet=quiet)
        if dask is not None and workers is not None:
            raise MalformedInput(
                "a cluster has its own workers",
                where="--workers",
                value=workers,
                expected="--workers or --dask, not both",
            )
        if show:
            report = _stored(file, out)
        else:
            from raptor_cp.cli.sweep_progress import sweep_progress

            loaded = load_sweep(file)
            with sweep_progress(screen) as observer:
                report = run_sweep(
                    loaded,
                    out,
                    workers=workers,
                    dask=dask,
                    retry_failed=retry_failed,
                    observer=observer,
                    stop=stop,
                )
    front: list[PointRecord] | None = None
    objectives: tuple[str, ...] = ()
    if pareto is not None:
        objectives = objectives_of(pareto, report.records)
        front = front_of(report.records, objectives)
    marked = None if front is None else {record.id for record in front}
    _write_tables(report, marked, csv, parquet)
    if json:
        document = report.to_dict()
        if front is not None:
            document["pareto"] = {
                "objectives": list(objectives),
                "points": [record.id for record in front],
            }
        print_json(document)
    if not quiet:
        _print(report, front, objectives, show=show, to_pipe=json or str(csv) == "-")
    raise typer.Exit(0 if show else report.exit_code)


def _stored(file: Path, out: Path | None) -> SweepReport:
    from raptor_cp.sweeps import default_database, load_sweep, read_results
    from raptor_cp.sweeps.database import is_database

    if out is None:
        out = file if is_database(file) else default_database(load_sweep(file))
    return read_results(out)


def _write_tables(
    report: SweepReport,
    front: Collection[str] | None,
    csv: Path | None,
    parquet: Path | None,
) -> None:
    from raptor_cp.sweeps.tables import csv_text, write_parquet

    if csv is not None and str(csv) == "-":
        print(csv_text(report.records, front), end="", flush=True)
    elif csv is not None:
        from raptor_cp.reports.files import write_text

        write_text(csv, csv_text(report.records, front))
    if parquet is not None:
        write_parquet(parquet, report.records, front)


def _print(
    report: SweepReport,
    front: list[PointRecord] | None,
    objectives: tuple[str, ...],
    *,
    show: bool,
    to_pipe: bool,
) -> None:
    from rich.console import Console

    from raptor_cp.cli.sweep_table import print_counts, print_table

    screen = console()
    if show or front is not None:
        # The table is what was asked for, unless machine output was.
        answer = screen if to_pipe else Console(highlight=False)
        records = report.records if front is None else front
        print_table(answer, report, records)
    print_counts(screen, report)
    if front is not None:
        named = " and ".join(objectives)
        screen.print(f"  Pareto front of {named}: {len(front)} points", markup=False)
    screen.print(f"  results in {report.database}", markup=False)
