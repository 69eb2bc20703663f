"""``raptor-cp report``: the HTML report of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raptor_cp.cli.running import reported


@reported
def report(
    run: Annotated[Path, typer.Argument(help="Run folder, as `schedule` writes it.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write; `report.html` in the run folder by default.",
        ),
    ] = None,
) -> None:
    """Write the HTML report of a run folder: one file, without network access.

    Prints where it is.
    """
    from raptor_cp.api import report as run_report

    print(run_report(run, out=out))
