"""Dispatch analysis of a shipped kernel or of a scenario: what the CLI prints.

A scenario gives either ``network: {kernel: ..., params: ...}`` or explicit tasks with
``commands``; each task is then analysed as a kernel of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import ExplicitNetwork, KernelNetwork, PeTarget
from raptor_cp.targets.pe.command_spec import read_commands
from raptor_cp.targets.pe.cost_model import CompositeTooLarge
from raptor_cp.targets.pe.kernel import KernelRun, replay, run_live
from raptor_cp.targets.pe.kernels import find_kernel
from raptor_cp.targets.pe.op_log import Issue, OpLog
from raptor_cp.targets.pe.report import DispatchReport, dispatch_report
from raptor_cp.targets.pe.sensitivity import Sensitivity, sweep
from raptor_cp.targets.pe.topology import PeTopology
from raptor_cp.targets.pe.workload import DECODE_KERNELS, decode_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.targets.pe.sensitivity import Grid
    from raptor_cp.targets.pe.timeline import ElementTimeline


@dataclass(frozen=True, slots=True)
class DispatchAnalysis:
    """One analysed kernel.

    Attributes:
        report: where the time goes.
        op_log: what was issued.
        timeline: when everything happened.
    """

    report: DispatchReport
    op_log: OpLog
    timeline: ElementTimeline


def analyse_kernel(
    name: str, params: Mapping[str, object], topology: PeTopology
) -> DispatchAnalysis:
    """Run a shipped kernel live on element 0 of ``topology``.

    Raises:
        CompositeTooLarge: a composite above the cap.
        MalformedInput: unknown kernel, bad parameters.
    """
    run = run_live(find_kernel(name), topology.elements[0], params)
    return _analysis(name, run)


def analyse_scenario(
    loaded: LoadedScenario, topology: PeTopology | None = None
) -> tuple[DispatchAnalysis, ...]:
    """Every command list of a scenario, on element 0.

    A decode kernel spread over elements gives one analysis for each distinct share of
    its tiles, and one of the merge.

    Args:
        loaded: a scenario of the ``pe`` target.
        topology: instead of the scenario's own.

    Raises:
        CompositeTooLarge: a composite above the cap.
        MalformedInput: not a ``pe`` scenario, or nothing in it issues commands.
    """
    topology = scenario_topology(loaded) if topology is None else topology
    network = loaded.scenario.network
    if (
        isinstance(network, KernelNetwork)
        and network.kernel in DECODE_KERNELS
        and {"splits", "layers"} & network.params.keys()
    ):
        runs = decode_runs(network.kernel, network.params, topology.elements[0])
        attention = [
            _analysis(f"{network.kernel}, {share} tiles", run)
            for share, run in runs.attention.items()
        ]
        return (*attention, _analysis("merge", runs.merge))
    if isinstance(network, KernelNetwork):
        return (analyse_kernel(network.kernel, network.params, topology),)
    found = []
    if isinstance(network, ExplicitNetwork):
        for number, task in enumerate(network.tasks):
            if task.commands is None:
                continue
            where = f"network.tasks.{number}.commands"
            log = OpLog(tuple(Issue(c) for c in read_commands(task.commands, where)))
            try:
                timeline = replay(log, topology.elements[0])
            except CompositeTooLarge as error:
                raise CompositeTooLarge(error.composite, error.model, where) from None
            found.append(_analysis(task.id, KernelRun(log, timeline)))
    if not found:
        raise MalformedInput(
            "nothing in this scenario issues commands",
            where="network",
            expected="kernel, or tasks with commands",
        )
    return tuple(found)


def scenario_topology(loaded: LoadedScenario) -> PeTopology:
    """The topology of a ``pe`` scenario; ``elements`` replaces its count.

    Raises:
        MalformedInput: another target, or a bad topology file.
    """
    spec = loaded.scenario.target
    if not isinstance(spec, PeTarget):
        raise MalformedInput(
            "not a pe target", where="target.kind", value=spec.kind, expected="pe"
        )
    if spec.topology is None:
        topology = PeTopology()
    else:
        topology = PeTopology.load(loaded.path(spec.topology))
    if spec.elements is None or spec.elements == len(topology.elements):
        return topology
    if len(set(topology.elements)) > 1:
        raise MalformedInput(
            "the topology's elements differ, so their number is fixed",
            where="target.elements",
            value=spec.elements,
            expected=str(len(topology.elements)),
        )
    return replace(topology, elements=topology.elements[:1] * spec.elements)


def analyse_sensitivity(
    analyses: tuple[DispatchAnalysis, ...], grid: Grid
) -> Sensitivity:
    """Sweep the knobs over the recorded kernels.

    Raises:
        MalformedInput: an unknown knob or too many points.
    """
    logs = {found.report.kernel: found.op_log for found in analyses}
    return sweep(logs, analyses[0].timeline.attributes, grid)


def _analysis(name: str, run: KernelRun) -> DispatchAnalysis:
    report = dispatch_report(name, run.timeline)
    return DispatchAnalysis(report, run.op_log, run.timeline)
