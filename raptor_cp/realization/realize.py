"""Schedule -> execution plan (scheduling spec, "Periodic dependency diagnostics").

The text of a core in one generation::

    FREE signals | WAIT READY | loads | runs, sends, receives | stores | signals

Loads stand before all blocking communication and stores behind it: a SEND behind a
WAIT makes a convoy, and stores last also drain the switch.  Runs, sends and receives
follow the one linear order of :mod:`raptor_cp.realization.linear_order`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.realization.collection import collection_paused
from raptor_cp.realization.linear_order import LinearOrder, linear_order
from raptor_cp.realization.plan import (
    CorePlan,
    CrossStage,
    DirectTransfer,
    ExecutionPlan,
    Item,
    Load,
    OrderRule,
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
    coupling_pairs,
    point_to_point,
)
from raptor_cp.realization.steady_order import StageCoupling
from raptor_cp.realization.traffic import Traffic, classify
from raptor_cp.target import AccessKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.schedules import Schedule


@collection_paused()
def realize(
    schedule: Schedule,
    policy: Policy = Policy.DOUBLE_BUFFER,
    cross_stage: CrossStage = CrossStage.MEMORY,
    order: OrderRule = OrderRule.BLOCKING,
) -> ExecutionPlan:
    """Realize a schedule from its unchanged graph.

    Args:
        schedule: a valid schedule; without stages everything is direct.
        policy: how stages are coupled.
        cross_stage: through memory (the spec's form), or by direct SEND.
        order: rule of the linear order; legal either way.

    The result has passed no check yet: see :mod:`raptor_cp.realization.checks`.
    ``O(T + E + F)`` time but for sorting.

    Raises:
        InternalError: the order on the cores contradicts the dependencies.
    """
    placement = schedule.placement
    active = [core for core, tasks in enumerate(placement.order) if tasks]
    stages = placement.stage_of_core(len(placement.order)).tolist()
    stage_of = {core: max(stages[core], 0) for core in active}
    traffic = classify(schedule, stage_of, cross_stage)
    stage_cores = [
        [core for core in active if stage_of[core] == stage]
        for stage in range(max(stage_of.values()) + 1)
    ]
    chains: list[tuple[int, int]] = []
    covered: list[tuple[int, int]] = []
    if policy is Policy.BARRIER and traffic.pairs:
        signals: dict[int, CoreSignals] = barriers(stage_cores)
    else:
        covered, chains = adjacent_pairs(traffic.pairs, stage_of, stage_cores)
        if placement.stages:
            links = {(move.source, move.destination) for move in traffic.direct}
            couplings = coupling_pairs([*covered, *sorted(links)], stage_of)
            chains = sorted(chains + couplings)
            covered = sorted(covered + couplings)
        signals = point_to_point(covered, policy)
    wanted, results = _baseline(schedule)
    coupling, service_ns = None, 0
    if order is OrderRule.STEADY:
        joined = () if policy is Policy.BARRIER else covered
        coupling, service_ns = _coupling(schedule, traffic, wanted, results, joined)
    placed = linear_order(
        schedule, stages, traffic.direct, traffic.readers, order, coupling
    )
    direct, work = _work_items(schedule, traffic, placed)
    starts = schedule.start_ns.tolist()
    cores = []
    for core in active:
        own = signals.get(core) or CoreSignals()
        # Stable sort: what the first tasks need comes first, inputs before results.
        loads = wanted[core] + traffic.loads.get(core, [])
        loads.sort(key=lambda entry: starts[entry[0]])
        text: tuple[Item, ...] = (
            *own.entry,
            *own.before_loads,
            *(load for _, load in loads),
            *work[core],
            *own.before_stores,
            *traffic.stores.get(core, []),
            *results[core],
            *own.after_stores,
        )
        cores.append(CorePlan(core, stage_of[core], text))
    extra = 0 if policy is Policy.RELEASE else 1
    return ExecutionPlan(
        schedule,
        policy,
        cross_stage,
        tuple(cores),
        tuple(direct),
        _banks(traffic.banks, extra),
        tuple(chains),
        _banks(traffic.edge_banks, extra),
        None if placed.interval_ns is None else max(placed.interval_ns, service_ns),
    )


def _banks(distance: dict[int, int], extra: int) -> tuple[tuple[int, int], ...]:
    return tuple((key, d + extra) for key, d in sorted(distance.items()))


def _coupling(
    schedule: Schedule,
    traffic: Traffic,
    wanted: Mapping[int, Sequence[tuple[int, Load]]],
    results: Mapping[int, Sequence[Store]],
    pairs: Sequence[tuple[int, int]],
) -> tuple[StageCoupling, int]:
    """Ends of a generation for the steady order, and all service of the memory (ns)."""
    memory, cores = schedule.problem.resources.memory, schedule.problem.resources.cores
    entry_ns, exit_ns = np.zeros(cores, np.int64), np.zeros(cores, np.int64)
    service_ns = 0
    for loads in (traffic.loads, wanted):
        for core, entries in loads.items():
            for _, load in entries:
                time = memory.access(load.size, AccessKind.READ, load.runs)
                entry_ns[core] += time.core_ns
                service_ns += time.service_ns
    for stores in (traffic.stores, results):
        for core, written in stores.items():
            for store in written:
                time = memory.access(store.size, AccessKind.WRITE, store.runs)
                exit_ns[core] += time.core_ns
                service_ns += time.service_ns
    return StageCoupling.of(pairs, entry_ns, exit_ns), service_ns


def _work_items(
    schedule: Schedule, traffic: Traffic, order: LinearOrder
) -> tuple[list[DirectTransfer], dict[int, list[Item]]]:
    """Direct transfers in linear order; runs, sends and receives of every core."""
    graph, place = schedule.problem.graph, order.tasks
    direct: list[DirectTransfer] = []
    #: by core: positions of its ends of direct transfers, ascending, and these ends
    positions: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, list[Item]] = defaultdict(list)
    ranked = sorted(zip(order.transfers, traffic.direct, strict=True))
    for number, (position, move) in enumerate(ranked):
        source, destination = move.source, move.destination
        direct.append(
            DirectTransfer(
                move.publication,
                source,
                destination,
                move.size,
                move.box,
                move.transfers,
                position,
                move.edge,
            )
        )
        positions[source].append(position)
        ends[source].append(Send(number))
        positions[destination].append(position)
        ends[destination].append(Receive(number))
    operation = graph.task_operation.tolist()
    work: dict[int, list[Item]] = {}
    for core, tasks in enumerate(schedule.placement.order):
        items: list[Item] = []
        before, communication = positions.get(core, []), ends.get(core, [])
        taken, count = 0, len(before)
        together: list[int] = []
        for task in tasks:
            upcoming = taken
            while upcoming < count and before[upcoming] < place[task]:
                upcoming += 1
            breaks = upcoming > taken or (
                together and operation[together[-1]] != operation[task]
            )
            if breaks and together:
                items.append(Run(tuple(together)))
                together = []
            items.extend(communication[taken:upcoming])
            taken = upcoming
            together.append(task)
        if together:
            items.append(Run(tuple(together)))
        items.extend(communication[taken:])
        work[core] = items
    return direct, work


def _baseline(
    schedule: Schedule,
) -> tuple[dict[int, list[tuple[int, Load]]], dict[int, list[Store]]]:
    """Loads of inputs and constants with their tasks, stores of outputs, by core."""
    core_of = schedule.placement.core_of.tolist()
    loads: dict[int, list[tuple[int, Load]]] = defaultdict(list)
    stores: dict[int, list[Store]] = defaultdict(list)
    for number, access in enumerate(schedule.problem.graph.baseline):
        core = core_of[access.task]
        if access.kind is BaselineKind.OUTPUT:
            stores[core].append(Store(None, number, access.size, access.runs))
        else:
            load = Load(None, number, access.size, access.runs)
            loads[core].append((access.task, load))
    return loads, stores
