"""What moves between cores: loads, stores and direct transfers of a schedule.

Across stages one store for a shared publication (one for each consumer transfer of
a scalar projection) and one load for each consumer transfer; inside a stage one
direct payload for each (publication, core) that needs it; explicit edges likewise,
each a publication of its own.  What stays on its core moves nothing.  Every payload
leaves from its producer: no core passes a result on, so there is nothing to forward.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.realization.plan import CrossStage, DirectTransfer, Load, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.schedules import Schedule

Box = tuple[int, int, int, int, int, int]


@dataclass(slots=True)
class Traffic:
    """Classified transfers of one schedule.

    Attributes:
        loads: reader core -> (consumer task, load).
        stores: writer core -> stores, publications first.
        direct: direct transfers, positions not yet known, with their producers.
        readers: for each direct transfer the tasks that read it.
        pairs: (writer core, reader core) across stages, sorted.
        banks, edge_banks: stage distance that publications and edges must outlive.
    """

    loads: dict[int, list[tuple[int, Load]]] = field(default_factory=dict)
    stores: dict[int, list[Store]] = field(default_factory=dict)
    direct: list[tuple[int, DirectTransfer]] = field(default_factory=list)
    readers: list[tuple[int, ...]] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    banks: dict[int, int] = field(default_factory=dict)
    edge_banks: dict[int, int] = field(default_factory=dict)


def classify(
    schedule: Schedule, stage_of: Mapping[int, int], cross_stage: CrossStage
) -> Traffic:
    """Sort all transfers and explicit edges of a schedule by how they travel."""
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of
    loads: dict[int, list[tuple[int, Load]]] = defaultdict(list)
    stores: dict[int, list[Store]] = defaultdict(list)
    traffic = Traffic(loads, stores)
    pairs: set[tuple[int, int]] = set()
    stage = np.zeros(int(core_of.max()) + 1, np.int64)
    for core, index in stage_of.items():
        stage[core] = index

    publication = graph.transfer_publication
    writer = core_of[graph.publication_producer[publication]]
    reader = core_of[graph.transfer_consumer]
    distance = stage[reader] - stage[writer]
    moving = writer != reader
    straight = moving & ((distance == 0) | (cross_stage is CrossStage.DIRECT))
    stored = np.flatnonzero(moving & ~straight)
    seen: set[int] = set()
    for number, source, w, r, d in zip(
        stored.tolist(),
        publication[stored].tolist(),
        writer[stored].tolist(),
        reader[stored].tolist(),
        distance[stored].tolist(),
        strict=True,
    ):
        move = graph.transfers[number]
        loads[r].append((move.consumer, Load(number, None, move.size, move.runs)))
        pairs.add((w, r))
        traffic.banks[source] = max(traffic.banks.get(source, 0), d)
        made = graph.publications[source]
        if made.scalar:
            # Scalar projections keep separate stores, rounded run by run.
            stores[w].append(Store(source, None, made.size, made.runs, number))
        elif source not in seen:
            seen.add(source)
            stores[w].append(Store(source, None, made.size, 1))
    _group_direct(schedule, np.flatnonzero(straight).tolist(), traffic)
    _add_edges(schedule, stage_of, cross_stage, traffic, pairs)
    for items in stores.values():
        items.sort(key=_store_key)
    traffic.pairs = sorted(pairs)
    return traffic


def _store_key(store: Store) -> tuple[int, int, int]:
    if store.publication is None:
        return (1, store.edge or 0, 0)
    return (0, store.publication, store.consumer or 0)


def _group_direct(schedule: Schedule, numbers: list[int], traffic: Traffic) -> None:
    """One payload for each (publication, core)."""
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of.tolist()
    transfers = graph.transfers
    grouped: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in numbers:
        move = transfers[number]
        grouped[move.publication, core_of[move.consumer]].append(number)
    for (publication, destination), members in sorted(grouped.items()):
        producer = graph.publications[publication].producer
        size, box = _payload(graph, publication, members)
        traffic.direct.append(
            (
                producer,
                DirectTransfer(
                    publication,
                    core_of[producer],
                    destination,
                    size,
                    box,
                    tuple(members),
                    -1,
                ),
            )
        )
        traffic.readers.append(tuple(transfers[n].consumer for n in members))


def _add_edges(
    schedule: Schedule,
    stage_of: Mapping[int, int],
    cross_stage: CrossStage,
    traffic: Traffic,
    pairs: set[tuple[int, int]],
) -> None:
    """Explicit edges: a payload of their own, or only an order to keep."""
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of.tolist()
    # An edge without bytes is kept by any payload between the same two ends.
    carried = {
        (producer, reader)
        for (producer, _), readers in zip(traffic.direct, traffic.readers, strict=True)
        for reader in readers
    }
    for number, (tail, head, size) in enumerate(graph.extra_edges):
        w, r = core_of[tail], core_of[head]
        if w == r:
            continue
        distance = stage_of[r] - stage_of[w]
        if distance == 0 or cross_stage is CrossStage.DIRECT:
            if size or (tail, head) not in carried:
                traffic.direct.append(
                    (tail, DirectTransfer(None, w, r, size, None, (), -1, number))
                )
                traffic.readers.append((head,))
                carried.add((tail, head))
            continue
        pairs.add((w, r))
        if size:
            traffic.edge_banks[number] = distance
            traffic.stores.setdefault(w, []).append(
                Store(None, None, size, 1, None, number)
            )
            traffic.loads.setdefault(r, []).append(
                (head, Load(None, None, size, 1, number))
            )


def _payload(
    graph: ComputeGraph, publication: int, members: list[int]
) -> tuple[int, Box | None]:
    """Hull of what the consumers on one core read, and its bytes."""
    source = graph.publications[publication]
    if len(members) == 1:
        move = graph.transfers[members[0]]
        return move.size, move.box
    known: list[Box] = []
    for number in members:
        box = graph.transfers[number].box
        if box is None or source.box is None:
            return source.size, source.box
        known.append(box)
    hull: Box = (
        min(b[0] for b in known),
        max(b[1] for b in known),
        min(b[2] for b in known),
        max(b[3] for b in known),
        min(b[4] for b in known),
        max(b[5] for b in known),
    )
    elements = (hull[1] - hull[0]) * (hull[3] - hull[2]) * (hull[5] - hull[4])
    size = -(-elements * source.payload_bits // 8)
    return min(size, source.size), hull
