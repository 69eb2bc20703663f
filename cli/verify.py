"""``raptor-cp verify``: does the program of a run compute its network?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from raptor_cp.cli.options import Json, Quiet
from raptor_cp.cli.running import console, print_json, reported, say

RunFolder = Annotated[
    Path,
    typer.Argument(help="Run folder of schedule, with program/.", show_default=False),
]
Generations = Annotated[
    int | None,
    typer.Option(
        "--generations",
        min=1,
        max=1000,
        help="Rounds of each execution (default: every buffer is reused twice).",
        show_default=False,
    ),
]
Orders = Annotated[
    int,
    typer.Option(
        "--orders",
        min=1,
        max=100,
        help="Executions under different core orders: random, rising, falling, then "
        "more of both kinds.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of inputs and orders.")]
StrictHost = Annotated[
    bool,
    typer.Option(
        "--strict-host",
        help="One input in each bank: refuse programs in which a core can lag so far "
        "behind that the host replaced its input.",
    ),
]


@reported
def verify(
    run: RunFolder,
    generations: Generations = None,
    orders: Orders = 3,
    seed: Seed = 0,
    strict_host: StrictHost = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Execute a run's program on integers and compare every output bit for bit.

    Large networks take a minute or two; --orders 1 --generations 1 is a quick look.
    Exit codes: 0 equal; 1 the program is wrong; 2 malformed input.
    """
    from rich.markup import escape

    import raptor_cp

    screen = console(quiet=quiet)
    with (
        nullcontext()
        if not screen.is_terminal
        else screen.status("executing the program", spinner="line")
    ):
        result = raptor_cp.verify(
            run,
            generations=generations,
            orders=orders,
            seed=seed,
            strict_host=strict_host,
        )
    if json:
        print_json(result.to_dict())
    name = escape(result.network)
    executed = f"{len(result.orders)} core orders, {result.generations} rounds"
    if result.equal:
        say(
            screen,
            f"{name}: equal ({result.compared:,} elements of "
            f"{len(result.outputs)} outputs; {executed}; "
            f"{result.instructions:,} instructions a round; accumulators "
            f"{result.accumulators})",
            0,
        )
    else:
        wrong = escape(str(result.difference or result.fault))
        say(screen, f"{name}: NOT equal: {wrong}", 0)
    if result.host_operations:
        names = escape(", ".join(result.host_operations))
        say(screen, f"host pseudo-operations: {names}", 0)
    raise typer.Exit(0 if result.equal else 1)
