"""The ``raptor-cp`` command.  Commands import what they need when they run."""

from __future__ import annotations

from typing import Annotated

import typer

from raptor_cp.cli.check import check
from raptor_cp.cli.compare import compare
from raptor_cp.cli.dispatch import dispatch
from raptor_cp.cli.import_ import import_
from raptor_cp.cli.network import network
from raptor_cp.cli.periodic import periodic
from raptor_cp.cli.regress import regress
from raptor_cp.cli.report import report
from raptor_cp.cli.schedule import schedule
from raptor_cp.cli.schema import schema
from raptor_cp.cli.sweep import sweep
from raptor_cp.cli.targets import targets
from raptor_cp.cli.verify import verify
from raptor_cp.cli.zoo import zoo

app = typer.Typer(
    name="raptor-cp",
    help="Schedule neural networks on many-core processing-in-memory chips, and say "
    "how good the schedule is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("raptor-cp"))
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Schedule neural networks on processing-in-memory chips."""


for command in (
    schedule,
    check,
    compare,
    regress,
    report,
    sweep,
    periodic,
    verify,
    dispatch,
    zoo,
    targets,
    schema,
    network,
):
    app.command()(command)


app.command("import")(import_)


def main() -> None:
    """Entry point of the console script."""
    app()
