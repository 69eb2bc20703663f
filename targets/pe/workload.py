"""Compute graphs of the pe target: a scenario's kernel or tasks with commands.

A decode kernel may be spread over elements: ``layers`` attention layers follow each
other, and the tiles of each are divided among ``splits`` tasks, whose partial maxima,
denominators and outputs one merge task combines.  Other kernels are one task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.explicit import GivenEdge, GivenTask, explicit_graph
from raptor_cp.graph.work import CommandWork, ExplicitWork
from raptor_cp.scenario import ExplicitNetwork, KernelNetwork
from raptor_cp.targets.pe.command_spec import read_commands
from raptor_cp.targets.pe.kernel import run_live
from raptor_cp.targets.pe.kernels import find_kernel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.targets.pe.kernel import KernelRun, KernelSteps, TlContext
    from raptor_cp.targets.pe.topology import PeAttributes

DECODE_KERNELS = ("gqa_decode_opt2", "gqa_decode_opt3", "gqa_decode_plain")
_ELEMENT_BYTES = 2


def compute_graph(loaded: LoadedScenario, attributes: PeAttributes) -> ComputeGraph:
    """The tasks of a ``pe`` scenario, each with its commands.

    Args:
        loaded: the scenario.
        attributes: an element; a kernel's commands must fit its cap.

    Raises:
        CompositeTooLarge: a composite above the cap.
        MalformedInput: the network is of another kind, or wrong.
    """
    spec, name = loaded.scenario.network, loaded.scenario.name
    if isinstance(spec, KernelNetwork):
        if spec.kernel in DECODE_KERNELS:
            return decode_graph(name, spec.kernel, spec.params, attributes)
        run = run_live(find_kernel(spec.kernel), attributes, spec.params)
        task = GivenTask(spec.kernel, CommandWork(run.op_log.entries))
        return explicit_graph(name, [task])
    if not isinstance(spec, ExplicitNetwork):
        raise MalformedInput(
            "the pe target runs kernels and command lists",
            where="network",
            expected="kernel, or tasks",
        )
    tasks = []
    for number, task_spec in enumerate(spec.tasks):
        if task_spec.commands is not None:
            where = f"network.tasks.{number}.commands"
            work: CommandWork | ExplicitWork = CommandWork(
                read_commands(task_spec.commands, where)
            )
        else:
            times = task_spec.execution_ns or ()
            work = ExplicitWork(times if isinstance(times, tuple) else (times,))
        tasks.append(
            GivenTask(task_spec.id, work, task_spec.operation, task_spec.weights)
        )
    edges = [GivenEdge(e.src, e.dst, e.bytes) for e in spec.edges]
    return explicit_graph(name, tasks, edges, [(w.id, w.slots) for w in spec.weights])


@dataclass(frozen=True, slots=True)
class DecodeRuns:
    """A spread decode kernel, run on one element.

    Attributes:
        layers: attention layers one after the other.
        shares: tiles of each task of a layer.
        attention: the run of each distinct share.
        merge: combines the partial results of a layer.
        query_bytes, partial_bytes: what a merge sends on, and gets of each task.
    """

    layers: int
    shares: tuple[int, ...]
    attention: Mapping[int, KernelRun]
    merge: KernelRun
    query_bytes: int
    partial_bytes: int


def decode_runs(
    kernel: str, params: Mapping[str, object], attributes: PeAttributes
) -> DecodeRuns:
    """Run the tasks of a decode kernel's scenario.

    Raises:
        MalformedInput: bad parameters, or more splits than tiles.
    """
    kernel_params = dict(params)
    layers = _positive(kernel_params.pop("layers", 1), "layers")
    splits = _positive(kernel_params.pop("splits", 1), "splits")
    tiles = _positive(kernel_params.pop("tiles", 8), "tiles")
    group = _positive(kernel_params.get("group", 8), "group")
    head_dim = _positive(kernel_params.get("head_dim", 128), "head_dim")
    if splits > tiles:
        raise MalformedInput(
            "more splits than tiles",
            where="network.params.splits",
            value=splits,
            expected=f"at most {tiles}",
        )
    shares = tuple(tiles // splits + (i < tiles % splits) for i in range(splits))
    attention = {
        share: run_live(
            find_kernel(kernel), attributes, {**kernel_params, "tiles": share}
        )
        for share in dict.fromkeys(shares)
    }
    merge = run_live(
        merge_partials,
        attributes,
        {"splits": splits, "group": group, "head_dim": head_dim},
    )
    query = _ELEMENT_BYTES * group * head_dim
    partial = query + 2 * _ELEMENT_BYTES * group
    return DecodeRuns(layers, shares, attention, merge, query, partial)


def decode_graph(
    name: str, kernel: str, params: Mapping[str, object], attributes: PeAttributes
) -> ComputeGraph:
    """``layers`` layers of attention decode, each over ``splits`` tasks and a merge.

    Raises:
        MalformedInput: bad parameters, or more splits than tiles.
    """
    runs = decode_runs(kernel, params, attributes)
    tasks: list[GivenTask] = []
    edges: list[GivenEdge] = []
    for layer in range(runs.layers):
        for split, share in enumerate(runs.shares):
            task = f"attention.{layer}.{split}"
            work = CommandWork(runs.attention[share].op_log.entries)
            tasks.append(GivenTask(task, work, f"attention.{layer}"))
            edges.append(GivenEdge(task, f"merge.{layer}", runs.partial_bytes))
            if layer:
                edges.append(GivenEdge(f"merge.{layer - 1}", task, runs.query_bytes))
        merge = CommandWork(runs.merge.op_log.entries)
        tasks.append(GivenTask(f"merge.{layer}", merge))
    return explicit_graph(name, tasks, edges)


def merge_partials(
    tl: TlContext, *, splits: int, group: int, head_dim: int
) -> KernelSteps:
    """Combine partial maxima, denominators and outputs of ``splits`` tasks.

    The partial results are in local memory: the links brought them.
    """
    column = (group, 1)
    maximum, total = tl.tcm("m", column), tl.tcm("l", column)
    output = tl.tcm("O", (group, head_dim))
    new, mine, other = (tl.tcm(name, column) for name in ("m_new", "corr", "scale"))
    for split in range(1, splits):
        m, part = tl.tcm(f"m.{split}", column), tl.tcm(f"l.{split}", column)
        o = tl.tcm(f"O.{split}", (group, head_dim))
        tl.max(maximum, m, new)
        tl.exp(maximum, new, mine)
        tl.exp(m, new, other)
        tl.mul(total, mine, total)
        tl.mul(part, other, part)
        tl.add(total, part, total)
        tl.mul(output, mine, output)
        tl.mul(o, other, o)
        tl.add(output, o, output)
        tl.copy(new, maximum)
    yield tl.wait(tl.math("div", (output, total), output))


def _positive(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MalformedInput(
            "not a positive whole number", where=f"network.params.{name}", value=value
        )
    return value
