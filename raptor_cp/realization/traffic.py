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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raptor_cp.realization.plan import CrossStage, Load, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.graph.compute_graph import Publication, Transfer
    from raptor_cp.schedules import Schedule

IndexArray = NDArray[np.int64]
Box = tuple[int, int, int, int, int, int]


class Movement(NamedTuple):
    """A direct transfer before its position is known; see ``DirectTransfer``."""

    producer: int  #: task
    source: int
    destination: int
    size: int
    publication: int | None
    box: Box | None
    transfers: tuple[int, ...]
    edge: int | None


@dataclass(slots=True)
class Traffic:
    """Classified transfers of one schedule.

    Attributes:
        loads: reader core -> (consumer task, load).
        stores: writer core -> stores, publications first.
        direct: direct transfers, positions not yet known.
        readers: for each direct transfer the tasks that read it.
        pairs: (writer core, reader core) across stages, sorted.
        banks, edge_banks: stage distance that publications and edges must outlive.
    """

    loads: dict[int, list[tuple[int, Load]]] = field(default_factory=dict)
    stores: dict[int, list[Store]] = field(default_factory=dict)
    direct: list[Movement] = field(default_factory=list)
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
    _group_direct(schedule, np.flatnonzero(straight), traffic)
    _add_edges(schedule, stage_of, cross_stage, traffic, pairs)
    for items in stores.values():
        items.sort(key=_store_key)
    traffic.pairs = sorted(pairs)
    return traffic


def _store_key(store: Store) -> tuple[int, int, int]:
    if store.publication is None:
        return (1, store.edge or 0, 0)
    return (0, store.publication, store.consumer or 0)


def _group_direct(schedule: Schedule, numbers: IndexArray, traffic: Traffic) -> None:
    """One payload for each (publication, core)."""
    graph = schedule.problem.graph
    core_of = schedule.placement.core_of
    transfers, publications = graph.transfers, graph.publications
    publication = graph.transfer_publication[numbers].astype(np.int64)
    destination = core_of[graph.transfer_consumer[numbers]].astype(np.int64)
    order = np.lexsort((destination, publication))
    key = (publication * (int(core_of.max()) + 1) + destination)[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    producer = graph.publication_producer[publication[order[starts]]]
    bounds = [*starts.tolist(), len(order)]
    sorted_numbers = numbers[order].tolist()
    for place, (made, task, source, target) in enumerate(
        zip(
            publication[order[starts]].tolist(),
            producer.tolist(),
            core_of[producer].tolist(),
            destination[order[starts]].tolist(),
            strict=True,
        )
    ):
        members = sorted_numbers[bounds[place] : bounds[place + 1]]
        if len(members) == 1:
            move = transfers[members[0]]
            size, box, readers = move.size, move.box, (move.consumer,)
        else:
            moves = [transfers[n] for n in members]
            size, box = _payload(publications[made], moves)
            readers = tuple([move.consumer for move in moves])
        traffic.direct.append(
            Movement(task, source, target, size, made, box, tuple(members), None)
        )
        traffic.readers.append(readers)


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
    carried: set[tuple[int, int]] = set()
    if graph.extra_edges:
        carried.update(
            (move.producer, reader)
            for move, readers in zip(traffic.direct, traffic.readers, strict=True)
            for reader in readers
        )
    for number, (tail, head, size) in enumerate(graph.extra_edges):
        w, r = core_of[tail], core_of[head]
        if w == r:
            continue
        distance = stage_of[r] - stage_of[w]
        if distance == 0 or cross_stage is CrossStage.DIRECT:
            if size or (tail, head) not in carried:
                traffic.direct.append(
                    Movement(tail, w, r, size, None, None, (), number)
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


def _payload(source: Publication, moves: list[Transfer]) -> tuple[int, Box | None]:
    """Hull of what several consumers on one core read, and its bytes."""
    known: list[Box] = []
    for move in moves:
        if move.box is None or source.box is None:
            return source.size, source.box
        known.append(move.box)
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
