"""Scenario -> problem: network, compute graph, costs; or the proof that none fits.

What can be refused by counting is refused here, before any search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.explicit import GivenEdge, GivenTask, explicit_graph
from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.splitting import (
    CapacityConflict,
    SplitReport,
    chip_conflict,
    task_conflicts,
)
from raptor_cp.graph.widths import Accumulators
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.infeasibility import Infeasibility
from raptor_cp.network import zoo
from raptor_cp.network.inline import network_from_layers
from raptor_cp.scenario import (
    ExplicitNetwork,
    InlineNetwork,
    LoadedScenario,
    OnnxNetwork,
    PimcompNetwork,
    ZooNetwork,
)
from raptor_cp.schedules import Problem
from raptor_cp.target import CostAuditor, GraphSource

if TYPE_CHECKING:
    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.network.structure import Network
    from raptor_cp.target import Resources, SchedulingTarget


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem ready to be scheduled.

    Attributes:
        problem: graph, costs, chip.
        network: the network it was lowered from; None for explicit tasks.
        splits: how weights were cut; None for explicit tasks.
        notes: what was approximated, for reports.
    """

    problem: Problem
    network: Network | None
    splits: SplitReport | None
    notes: tuple[str, ...] = ()


def read_network(loaded: LoadedScenario, *, cell_bits: int | None = None) -> Network:
    """The network of a scenario that gives layers.

    ``cell_bits``: bits of a crossbar cell of the target, which PIMCOMP files need
    for their convention (a weight is as wide as a cell).

    Raises:
        MalformedInput: the network is unknown or wrong.
    """
    spec = loaded.scenario.network
    match spec:
        case ZooNetwork():
            return zoo.build(
                spec.zoo,
                spec.input,
                weight_bits=spec.weight_bits,
                activation_bits=spec.activation_bits,
            )
        case InlineNetwork():
            return network_from_layers(
                spec.operations,
                input_shape=spec.input,
                name=loaded.scenario.name,
                weight_bits=spec.weight_bits,
                activation_bits=spec.activation_bits,
                where="network.operations",
            )
        case OnnxNetwork():
            from raptor_cp.network.onnx_import import OnnxOptions, import_onnx

            policy = loaded.scenario.lowering.accumulators
            if spec.weights == "model" and policy != "exact":
                raise MalformedInput(
                    "sums as narrow as activations have no scale",
                    where="lowering.accumulators",
                    value=policy,
                    expected="exact, or network.weights: drawn",
                )
            return import_onnx(
                loaded.path(spec.onnx),
                OnnxOptions(
                    spec.dims,
                    spec.input_shapes,
                    spec.weight_bits,
                    spec.activation_bits,
                    spec.allow_unsupported == "vector",
                    spec.weights == "model",
                ),
            )
        case PimcompNetwork():
            from raptor_cp.network.pimcomp_import import CELL_BITS, import_pimcomp

            return import_pimcomp(
                loaded.path(spec.pimcomp),
                weight_bits=spec.weight_bits,
                activation_bits=spec.activation_bits,
                cell_bits=cell_bits or CELL_BITS,
            )
        case _:
            raise MalformedInput(
                "this kind of network has no layers",
                where="network",
                value=type(spec).__name__,
                expected="zoo, onnx, pimcomp or operations",
            )


def prepare(
    loaded: LoadedScenario, target: SchedulingTarget
) -> Prepared | Infeasibility:
    """Lower and price the network of a scenario.

    Raises:
        MalformedInput: a wrong network, or a depth above the number of cores.
    """
    scenario, resources = loaded.scenario, target.resources()
    if scenario.mode == "pipeline" and scenario.pipeline.stages > resources.cores:
        raise MalformedInput(
            "more stages than cores: each configured stage reserves one",
            where="pipeline.stages",
            value=scenario.pipeline.stages,
            expected=f"at most {resources.cores}",
        )
    splits: SplitReport | None = None
    notes: tuple[str, ...] = ()
    network: Network | None = None
    if isinstance(target, GraphSource):
        graph = target.compute_graph(loaded)
    elif isinstance(scenario.network, ExplicitNetwork):
        graph = _explicit(loaded)
    else:
        array = resources.array
        network = read_network(loaded, cell_bits=array.cell_bits if array else None)
        if resources.array is None:
            raise MalformedInput(
                "this target has no weight slots to lower a network onto",
                where="target.kind",
                value=target.name,
                expected="a target with crossbars (pim), or explicit tasks",
            )
        conflict = chip_conflict(
            network, resources.array, resources.cores, resources.slots_per_core
        )
        if conflict is not None:
            return explain(conflict, resources)
        lowered = lower_network(
            network,
            resources,
            target.work_ns,
            LoweringOptions(
                max_lanes=scenario.lowering.max_lanes,
                lanes_per_core=scenario.lowering.lanes_per_core,
                accumulators=Accumulators(scenario.lowering.accumulators),
                constants_resident=scenario.lowering.constants == "resident",
            ),
        )
        if not isinstance(lowered, Lowering):
            return explain(lowered, resources)
        graph, splits = lowered.graph, lowered.splits
        notes = (*network.notes, *lowered.notes)
    oversized = task_conflicts(graph, resources.slots_per_core)
    if oversized:
        return explain(oversized[0], resources)
    costs = target.costs(graph)
    if isinstance(target, CostAuditor):
        target.audit_costs(graph)
    return Prepared(
        Problem(graph, costs, resources), network, splits, (*notes, *costs.notes)
    )


def explain(conflict: CapacityConflict, resources: Resources) -> Infeasibility:
    """A counting conflict with the levers a user has."""
    levers = []
    if conflict.subject:
        levers.append(
            f"cores with at least {conflict.need:,} weight slots (there are "
            f"{resources.slots_per_core:,})"
        )
        levers.append(f"cut {conflict.subject!r} into smaller blocks")
    else:
        cores = -(-conflict.need // resources.slots_per_core)
        slots = -(-conflict.need // resources.cores)
        levers.append(
            f"at least {cores:,} cores of {resources.slots_per_core:,} weight slots "
            f"(there are {resources.cores:,})"
        )
        levers.append(f"or at least {slots:,} weight slots on each core")
        if resources.array is not None:
            levers.append("or fewer bits per weight, or more bits per cell")
    return Infeasibility(
        conflict.reason,
        "counting bound",
        conflict.need,
        conflict.capacity,
        conflict.operations,
        tuple(levers),
    )


def _explicit(loaded: LoadedScenario) -> ComputeGraph:
    spec = loaded.scenario.network
    if not isinstance(spec, ExplicitNetwork):
        raise TypeError("not an explicit network")
    tasks = []
    for number, task in enumerate(spec.tasks):
        if task.execution_ns is None:
            raise MalformedInput(
                "commands need the pe target",
                where=f"network.tasks.{number}.commands",
                expected="execution_ns",
            )
        given = task.execution_ns
        times = given if isinstance(given, tuple) else (given,)
        tasks.append(
            GivenTask(task.id, ExplicitWork(times), task.operation, task.weights)
        )
    return explicit_graph(
        loaded.scenario.name,
        tasks,
        [GivenEdge(e.src, e.dst, e.bytes) for e in spec.edges],
        [(w.id, w.slots) for w in spec.weights],
    )
