"""``raptor-cp periodic``: timing of any emitted program, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raptor_cp.cli.running import print_json, reported

Artifact = Annotated[
    Path,
    typer.Argument(
        help="Program: a JSON file, gzipped or not, or a folder with config.json.",
        show_default=False,
    ),
]
ConfigFile = Annotated[
    str,
    typer.Option(
        "--pim-target-config",
        help="The chip: a simulator configuration, or a built-in name (arch-a, ...).",
        show_default=False,
    ),
]
CoreCount = Annotated[
    int | None,
    typer.Option("--core-count", help="Override the chip's cores.", show_default=False),
]
CrossbarCount = Annotated[
    int | None,
    typer.Option(
        "--crossbar-count", help="Override the crossbars a core.", show_default=False
    ),
]
CrossbarSize = Annotated[
    int | None,
    typer.Option(
        "--crossbar-size", help="Override rows and columns.", show_default=False
    ),
]
NetworkQueues = Annotated[
    bool,
    typer.Option(
        "--model-network-queues/--no-model-network-queues",
        help="Messages wait for their core's switch.",
    ),
]
Issue = Annotated[
    bool,
    typer.Option(
        "--model-issue/--no-model-issue",
        help="Scalar slots and retirement cost time.",
    ),
]
Controller = Annotated[
    bool,
    typer.Option(
        "--model-memory-controller/--no-model-memory-controller",
        help="Queue every global request at the memory controller.",
    ),
]
Semantics = Annotated[
    str,
    typer.Option(
        "--wait-semantics",
        help="counting (register >= value) or exact (register == value).",
    ),
]


@reported
def periodic(
    artifact: Artifact,
    pim_target_config: ConfigFile,
    core_count: CoreCount = None,
    crossbar_count: CrossbarCount = None,
    crossbar_size: CrossbarSize = None,
    model_network_queues: NetworkQueues = True,
    model_issue: Issue = True,
    model_memory_controller: Controller = False,
    wait_semantics: Semantics = "counting",
) -> None:
    """Print the timing of a program as JSON; read-only.

    Exit code 3 when there is no interval: the reason stands in the report.
    """
    from raptor_cp.errors import MalformedInput
    from raptor_cp.targets.pim.artifact import read_program
    from raptor_cp.targets.pim.config import load_config
    from raptor_cp.targets.pim.diagnostic import (
        DiagnosticOptions,
        WaitSemantics,
        diagnose,
    )

    if wait_semantics not in set(WaitSemantics):
        raise MalformedInput(
            "unknown wait semantics",
            where="--wait-semantics",
            value=wait_semantics,
            expected=" or ".join(WaitSemantics),
        )
    config = load_config(
        pim_target_config,
        core_count=core_count,
        crossbar_count=crossbar_count,
        crossbar_size=crossbar_size,
    )
    result = diagnose(
        read_program(artifact, config),
        config,
        DiagnosticOptions(
            network_queues=model_network_queues,
            issue=model_issue,
            memory_controller=model_memory_controller,
            wait_semantics=WaitSemantics(wait_semantics),
        ),
    )
    print_json(result.to_dict())
    if not result.available:
        raise typer.Exit(3)
