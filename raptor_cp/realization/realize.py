"""Schedule -> execution plan (scheduling spec, "Periodic dependency diagnostics").

Cross-stage results go through shared memory: one store for a shared publication,
one load for each consumer transfer.  Inside a stage they are sent directly, once to
each core that needs them.  Inputs, constants and outputs are baseline traffic.

All cores follow ONE linear order of tasks and direct transfers, which is why nothing
can deadlock: the smallest unfinished item is the next one on all of its cores.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.realization.plan import (
    CorePlan,
    CrossStage,
    DirectTransfer,
    ExecutionPlan,
    Item,
    Load,
    Policy,
    Receive,
    Run,
    Send,
    Store,
)
from raptor_cp.realization.signals import (
    CoreSignals,
    adjacent_pairs,
    barriers,
    point_to_point,
)

if TYPE_CHECKING:
    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.schedule import Schedule

Box = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Classified transfers of one schedule."""

    loads: dict[int, list[int]]  #: reader core -> consumer transfers
    stores: dict[int, list[Store]]  #: writer core -> stores
    direct: list[DirectTransfer]
    baseline: dict[int, list[int]]  #: core -> baseline accesses
    pairs: list[tuple[int, int]]  #: (writer core, reader core) across stages
    banks: dict[int, int]  #: publication -> largest stage distance


def realize(
    schedule: Schedule,
    policy: Policy = Policy.DOUBLE_BUFFER,
    cross_stage: CrossStage = CrossStage.MEMORY,
) -> ExecutionPlan:
    """Realize a schedule from its unchanged graph.

    Args:
        schedule: a valid schedule; without stages everything is direct.
        policy: how stages are coupled.
        cross_stage: through memory (the spec's form), or by direct SEND.

    The result has passed no check yet: see :mod:`raptor_cp.realization.checks`.
    """
    placement = schedule.placement
    active = [core for core, tasks in enumerate(placement.order) if tasks]
    stages = placement.stage_of_core(len(placement.order)).tolist()
    stage_of = {core: max(stages[core], 0) for core in active}
    traffic = _classify(schedule, stage_of, cross_stage)
    stage_cores = [
        [core for core in active if stage_of[core] == stage]
        for stage in range(max(stage_of.values()) + 1)
    ]
    if policy is Policy.BARRIER and traffic.pairs:
        signals: dict[int, CoreSignals] = barriers(stage_cores)
        chains: list[tuple[int, int]] = []
    else:
        covered, chains = adjacent_pairs(traffic.pairs, stage_of, stage_cores)
        signals = point_to_point(covered, policy)
    extra = 0 if policy is Policy.RELEASE else 1
    work = _work_items(schedule, traffic.direct)
    cores = tuple(
        CorePlan(
            core,
            stage_of[core],
            _text(schedule, core, traffic, work[core], signals.get(core)),
        )
        for core in active
    )
    banks = tuple((p, d + extra) for p, d in sorted(traffic.banks.items()))
    return ExecutionPlan(
        schedule,
        policy,
        cross_stage,
        cores,
        tuple(traffic.direct),
        banks,
        tuple(chains),
    )


def _classify(
    schedule: Schedule, stage_of: dict[int, int], cross_stage: CrossStage
) -> _Traffic:
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of.tolist()
    producers = graph.publication_producer.tolist()
    loads: dict[int, list[int]] = defaultdict(list)
    stored: dict[tuple[int, int | None], Store] = {}
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    pairs: set[tuple[int, int]] = set()
    banks: dict[int, int] = {}
    for number, move in enumerate(graph.transfers):
        producer = producers[move.publication]
        source, destination = core_of[producer], core_of[move.consumer]
        if source == destination:
            continue
        distance = stage_of[destination] - stage_of[source]
        if distance == 0 or cross_stage is CrossStage.DIRECT:
            grouped[move.publication, destination].append(number)
            continue
        loads[destination].append(number)
        pairs.add((source, destination))
        publication = graph.publications[move.publication]
        banks[move.publication] = max(banks.get(move.publication, 0), distance)
        consumer = number if publication.scalar else None
        if (move.publication, consumer) not in stored:
            stored[move.publication, consumer] = Store(
                move.publication,
                None,
                move.size if publication.scalar else publication.size,
                move.runs if publication.scalar else publication.runs,
                consumer,
            )
    bare: list[tuple[int, int]] = []  # dependencies without data, between cores
    for source_task, destination_task, _size in graph.extra_edges:
        source, destination = core_of[source_task], core_of[destination_task]
        if source == destination:
            continue
        if stage_of[source] == stage_of[destination] or (
            cross_stage is CrossStage.DIRECT
        ):
            bare.append((source_task, destination))
        else:
            pairs.add((source, destination))
    stores: dict[int, list[Store]] = defaultdict(list)
    for (publication_id, _), store in sorted(
        stored.items(), key=lambda e: (e[0][0], e[0][1] or -1)
    ):
        stores[core_of[producers[publication_id]]].append(store)
    baseline: dict[int, list[int]] = defaultdict(list)
    for number, access in enumerate(graph.baseline):
        baseline[core_of[access.task]].append(number)
    direct = _direct_transfers(schedule, grouped, bare)
    return _Traffic(
        dict(loads), dict(stores), direct, dict(baseline), sorted(pairs), banks
    )


def _direct_transfers(
    schedule: Schedule,
    grouped: dict[tuple[int, int], list[int]],
    bare: list[tuple[int, int]],
) -> list[DirectTransfer]:
    """One payload for each (publication, core), in the order of readiness."""
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of.tolist()
    found: list[tuple[tuple[int, int, int], DirectTransfer]] = []
    for (publication, destination), numbers in grouped.items():
        producer = graph.publications[publication].producer
        size, box = _payload(graph, publication, numbers)
        transfer = DirectTransfer(
            publication, core_of[producer], destination, size, box, tuple(numbers), 0
        )
        key = (_finish(schedule, producer), publication, destination)
        found.append((key, transfer))
    for number, (producer, destination) in enumerate(sorted(set(bare))):
        transfer = DirectTransfer(
            None, core_of[producer], destination, 0, None, (), producer
        )
        key = (
            _finish(schedule, producer),
            len(graph.publications) + number,
            destination,
        )
        found.append((key, transfer))
    found.sort(key=lambda e: e[0])
    return [
        DirectTransfer(
            t.publication, t.source, t.destination, t.size, t.box, t.transfers, key[0]
        )
        for key, t in found
    ]


def _payload(
    graph: ComputeGraph, publication: int, numbers: list[int]
) -> tuple[int, Box | None]:
    """Hull of what the consumers on one core read, and its bytes."""
    source = graph.publications[publication]
    boxes = [graph.transfers[n].box for n in numbers]
    whole = source.box
    if whole is None or any(b is None for b in boxes):
        sizes = [graph.transfers[n].size for n in numbers]
        return (sizes[0] if len(sizes) == 1 else source.size), whole
    known = [b for b in boxes if b is not None]
    hull: Box = (
        min(b[0] for b in known),
        max(b[1] for b in known),
        min(b[2] for b in known),
        max(b[3] for b in known),
        min(b[4] for b in known),
        max(b[5] for b in known),
    )
    elements = (hull[1] - hull[0]) * (hull[3] - hull[2]) * (hull[5] - hull[4])
    return -(-elements * source.payload_bits // 8), hull


def _finish(schedule: Schedule, task: int) -> int:
    core = int(schedule.placement.core_of[task])
    return int(schedule.start_ns[task]) + schedule.problem.costs.on(task, core)


def _work_items(
    schedule: Schedule, direct: list[DirectTransfer]
) -> dict[int, list[Item]]:
    """Runs, sends and receives of every core in the one linear order.

    A transfer is ready when its producer ends, and its consumers start no earlier:
    sorting by (time, transfers first) is a linear extension of the dependencies.
    """
    graph = schedule.problem.graph
    starts = schedule.start_ns.tolist()
    slots = schedule.slot.tolist()
    events: dict[int, list[tuple[tuple[int, int, int, int], Item]]] = defaultdict(list)
    for core, tasks in enumerate(schedule.placement.order):
        for task in tasks:
            events[core].append(((starts[task], 1, slots[task], task), Run((task,))))
    for number, transfer in enumerate(direct):
        key = (transfer.position, 0, number, 0)
        events[transfer.source].append((key, Send(number)))
        events[transfer.destination].append((key, Receive(number)))
    merged: dict[int, list[Item]] = {}
    for core, entries in events.items():
        entries.sort(key=lambda e: e[0])
        items: list[Item] = []
        for _, item in entries:
            last = items[-1] if items else None
            if (
                isinstance(item, Run)
                and isinstance(last, Run)
                and graph.task_operation[last.tasks[0]]
                == graph.task_operation[item.tasks[0]]
            ):
                items[-1] = Run(last.tasks + item.tasks)
            else:
                items.append(item)
        merged[core] = items
    return merged


def _text(
    schedule: Schedule,
    core: int,
    traffic: _Traffic,
    work: list[Item],
    signals: CoreSignals | None,
) -> tuple[Item, ...]:
    graph = schedule.problem.graph
    own = signals or CoreSignals()
    starts = schedule.start_ns
    wanted: list[tuple[tuple[int, int, int], Item]] = []
    for number in traffic.loads.get(core, []):
        move = graph.transfers[number]
        key = (int(starts[move.consumer]), 1, number)
        wanted.append((key, Load(number, None, move.size, move.runs)))
    outputs: list[Item] = []
    for number in traffic.baseline.get(core, []):
        access = graph.baseline[number]
        if access.kind is BaselineKind.OUTPUT:
            outputs.append(Store(None, number, access.size, access.runs))
        else:
            key = (int(starts[access.task]), 0, number)
            wanted.append((key, Load(None, number, access.size, access.runs)))
    wanted.sort(key=lambda e: e[0])
    return (
        *own.entry,
        *own.before_loads,
        *(item for _, item in wanted),
        *work,
        *own.before_stores,
        *traffic.stores.get(core, []),
        *outputs,
        *own.after_stores,
    )
