"""``raptor-cp dispatch``: what issuing commands costs, and who waits for whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raptor_cp.cli.options import Json, Overrides, Quiet
from raptor_cp.cli.running import console, print_json, reported, say

if TYPE_CHECKING:
    from rich.console import Console

    from raptor_cp.targets.pe.analysis import DispatchAnalysis
    from raptor_cp.targets.pe.report import DispatchReport
    from raptor_cp.targets.pe.sensitivity import Sensitivity

Subject = Annotated[
    str,
    typer.Argument(
        metavar="KERNEL|SCENARIO",
        help="A scenario, or a shipped kernel: gemm_primitive, gemm_composite, "
        "gemm_prefetch, gqa_decode_opt2, gqa_decode_opt3 or gqa_decode_plain.",
        show_default=False,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Parameter of the kernel; may be repeated.",
        show_default=False,
    ),
]
TopologyFile = Annotated[
    Path | None,
    typer.Option("--topology", help="Topology file (YAML).", show_default=False),
]
SweepText = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="R=...,FIXED_COMPOSITE=...,FIXED_SINGLE=...",
        help="Sensitivity: all combinations of these values.",
        show_default=False,
    ),
]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", help="Picture of the sweep (PNG, SVG, ...).", show_default=False
    ),
]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="Write the timeline for Perfetto (JSON).", show_default=False
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option("--op-log", help="Write what was issued.", show_default=False),
]


@reported
def dispatch(
    subject: Subject,
    param: Parameters = None,
    topology: TopologyFile = None,
    sweep: SweepText = None,
    plot: PlotFile = None,
    trace: TraceFile = None,
    op_log: LogFile = None,
    set_: Overrides = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Price the commands of a kernel and run them on a processing element."""
    from raptor_cp.errors import MalformedInput
    from raptor_cp.targets.pe.analysis import analyse_sensitivity
    from raptor_cp.targets.pe.sensitivity import parse_sweep

    if plot is not None and sweep is None:
        raise MalformedInput("a plot needs a sweep", where="--plot", hint="add --sweep")
    grid = None if sweep is None else parse_sweep(sweep)
    found = _analyses(subject, param or [], topology, tuple(set_ or ()))
    sensitivity = None if grid is None else analyse_sensitivity(found, grid)
    _write_files(found, sensitivity, trace=trace, op_log=op_log, plot=plot)
    if json:
        document: dict[str, object] = {
            "schema": "raptor-cp/dispatch/1",
            "kernels": [analysis.report.to_dict() for analysis in found],
        }
        if sensitivity is not None:
            document["sensitivity"] = sensitivity.to_dict()
        print_json(document)
        return
    screen = console(quiet=quiet)
    for analysis in found:
        _print_report(screen, analysis.report)
    if sensitivity is not None:
        _print_sensitivity(screen, sensitivity)


def _analyses(
    subject: str, params: list[str], topology: Path | None, overrides: tuple[str, ...]
) -> tuple[DispatchAnalysis, ...]:
    from raptor_cp.errors import MalformedInput
    from raptor_cp.targets.pe.analysis import analyse_kernel, analyse_scenario
    from raptor_cp.targets.pe.kernels import KERNELS
    from raptor_cp.targets.pe.topology import PeTopology

    given = None if topology is None else PeTopology.load(topology)
    path = Path(subject)
    is_file = path.suffix in (".yaml", ".yml") or path.exists()
    if subject in KERNELS or not is_file:
        if overrides:
            raise MalformedInput("--set is for scenarios", where="--set")
        return (analyse_kernel(subject, _parameters(params), given or PeTopology()),)
    from raptor_cp.scenario import load

    if params:
        raise MalformedInput(
            "--param is for kernels",
            where="--param",
            hint="use --set network.params.NAME=VALUE",
        )
    return analyse_scenario(load(path, overrides), given)


def _parameters(params: list[str]) -> dict[str, object]:
    import yaml

    from raptor_cp.errors import MalformedInput

    values: dict[str, object] = {}
    for text in params:
        name, equals, value = text.partition("=")
        if not equals:
            raise MalformedInput(
                "not NAME=VALUE", where="--param", value=text, expected="tiles=8"
            )
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError as problem:
            raise MalformedInput(
                "cannot read the value", where=f"--param {name}", value=value
            ) from problem
    return values


def _write_files(
    found: tuple[DispatchAnalysis, ...],
    sensitivity: Sensitivity | None,
    *,
    trace: Path | None,
    op_log: Path | None,
    plot: Path | None,
) -> None:
    from raptor_cp.errors import MalformedInput
    from raptor_cp.reports.files import write_bytes, write_json
    from raptor_cp.targets.pe.trace import trace_events

    if (trace is not None or op_log is not None) and len(found) != 1:
        raise MalformedInput(
            "a trace or log shows one command list", where="--trace", value=len(found)
        )
    if trace is not None:
        timeline = found[0].timeline
        write_json(trace, trace_events(timeline, found[0].report.kernel))
    if op_log is not None:
        write_bytes(op_log, found[0].op_log.to_bytes())
    if plot is not None and sensitivity is not None:
        _write_plot(sensitivity, plot)


def _write_plot(sensitivity: Sensitivity, plot: Path) -> None:
    from raptor_cp.errors import MalformedInput
    from raptor_cp.targets.pe.sensitivity import plot_sensitivity

    try:
        figure = plot_sensitivity(sensitivity).get_figure(root=True)
    except ImportError as missing:
        raise MalformedInput(
            "plots need matplotlib", hint="pip install raptor-cp[plot]"
        ) from missing
    if figure is None:
        return
    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(plot)
    except ValueError as problem:
        raise MalformedInput(str(problem), where=str(plot)) from problem


def _print_report(screen: Console, report: DispatchReport) -> None:
    from rich.markup import escape
    from rich.table import Table

    from raptor_cp.targets.pe.report import shown_cycles

    total, cycles = report.total_cycles, report.dispatch_cycles
    say(
        screen,
        f"[bold]{escape(report.kernel)}[/]: {shown_cycles(total)} cycles"
        f" ({report.ns(total):,} ns), dispatch {shown_cycles(cycles)} cycles"
        f" ({report.ns(cycles):,} ns) in {report.commands:,} commands",
        0,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("  command", "count", "bytes", "FIXED", "bytes x R", "cycles", "ns"):
        left = "command" in title
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for row in report.rows:
        table.add_row(
            f"  {row.type}",
            f"{row.commands:,}",
            f"{row.logical_bytes:,}",
            shown_cycles(row.fixed_cycles),
            shown_cycles(row.byte_cycles),
            shown_cycles(row.dispatch_cycles),
            f"{report.ns(row.dispatch_cycles):,}",
        )
    screen.print(table)
    if cycles:
        fixed = 100 * float(report.fixed_share)
        say(screen, f"FIXED is {fixed:.1f} % of the dispatch, bytes the rest")
    cpu = report.cpu
    say(
        screen,
        f"CPU: dispatch {shown_cycles(cpu.dispatch)},"
        f" own work {shown_cycles(cpu.explicit)},"
        f" queue full {shown_cycles(cpu.queue_full)},"
        f" waiting {shown_cycles(cpu.waiting)},"
        f" done {shown_cycles(cpu.done)} cycles",
    )
    for use in report.engines:
        share = 100 * float(use.busy / total) if total else 0.0
        blocked = f" (by {use.blocked_by})" if use.blocked_by else ""
        say(
            screen,
            f"{use.engine}: busy {shown_cycles(use.busy)} ({share:.1f} %),"
            f" starved by the CPU {shown_cycles(use.starved)},"
            f" blocked {shown_cycles(use.blocked)}{blocked},"
            f" without work {shown_cycles(use.without_work)} cycles",
        )
    say(screen, f"busiest: {report.saturated}")
    for finding in report.findings():
        say(screen, escape(finding))


def _print_sensitivity(screen: Console, sensitivity: Sensitivity) -> None:
    from rich.table import Table

    from raptor_cp.targets.pe.report import shown_cycles

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("  R", "FIXED_COMPOSITE", "FIXED_SINGLE"):
        table.add_column(title, justify="right", overflow="fold")
    for kernel in sensitivity.kernels:
        table.add_column(f"{kernel}: dispatch", justify="right", overflow="fold")
        table.add_column("total", justify="right", overflow="fold")
    for row in sensitivity.rows:
        figures = zip(row.dispatch_cycles, row.total_cycles, strict=True)
        table.add_row(
            f"{float(row.byte_cycles_recip):g}",
            f"{float(row.fixed_composite):g}",
            f"{float(row.fixed_single):g}",
            *(shown_cycles(value) for pair in figures for value in pair),
        )
    screen.print(table)
