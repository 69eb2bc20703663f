"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ScenarioFile = Annotated[
    Path | None,
    typer.Argument(
        help="Scenario file; without one, the built-in ResNet-18 on arch-A.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Override a value of the scenario; may be repeated.",
        show_default=False,
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Run folder (default runs/<scenario name>); replaced only if it is one.",
        show_default=False,
    ),
]
NoSolver = Annotated[
    bool, typer.Option("--no-solver", help="Heuristics only: nothing is proved.")
]
NoProgram = Annotated[bool, typer.Option("--no-program", help="Emit no program.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, max=8, help="Solver workers.", show_default=False),
]
AcceptInitial = Annotated[
    bool,
    typer.Option(
        "--accept-initial",
        help="Keep the initialized schedule when candidates cannot be compared.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="Latency mode: peft, heft or cp-sat.",
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Machine output on standard output.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no summary.")
]
Timing = Annotated[bool, typer.Option("--timing", help="Show phase times and counts.")]


def overrides(
    given: list[str] | None,
    *,
    no_solver: bool = False,
    workers: int | None = None,
    accept_initial: bool = False,
    method: str | None = None,
) -> tuple[str, ...]:
    """All overrides in order; the short options come last and so win."""
    texts = list(given or ())
    if no_solver:
        texts.append("solver.enabled=false")
    if accept_initial:
        texts.append("search.accept_initial=true")
    if workers is not None:
        texts.append(f"solver.workers={workers}")
    if method is not None:
        texts.append(f"latency.method={method}")
    return tuple(texts)
