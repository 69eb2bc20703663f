"""Instances of the scaling benchmark: one function for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bench_cycle_ratio import pipeline_graph as recurring_graph
from benchmarks.bench_queue_engine import pipeline_graph as pipelined
from raptor_cp.graph.compute_graph import (
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.lowering import _Fragments
from raptor_cp.graph.work import Box, ExplicitWork
from raptor_cp.network.attributes import RELU, ConcatAttributes, OpKind
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.operations import Operation
from raptor_cp.schedules import Problem
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from raptor_cp.network.structure import Network
    from raptor_cp.periodic.event_graph import EventGraph

__all__ = ["pipelined"]


def zero_links(cores: int) -> LinkModel:
    """A row of cores; transfers cost their distance."""
    place = np.arange(cores)
    away = np.abs(place[:, None] - place[None, :]).astype(np.int64)
    return LinkModel(away, np.zeros((cores, cores), np.int64), 8)


def chip(cores: int, slots: int) -> Resources:
    """Like cores in a row."""
    return Resources(cores, slots, zero_links(cores), MemoryModel(8, 1, 1))


def layered(
    groups: int,
    lanes: int,
    width: int,
    *,
    cores: int = 16,
    weights: int = 0,
    references: int = 1,
) -> Problem:
    """A chain of operations; each lane reads ``width`` lanes of the one before.

    Each task holds ``references`` of the ``weights``, drawn at random.
    """
    rng = np.random.default_rng(groups)
    times = rng.integers(1_000, 9_000, groups * lanes)
    tasks, publications, transfers = [], [], []
    for number, duration in enumerate(times.tolist()):
        group, lane = divmod(number, lanes)
        held = rng.choice(weights, references, False).tolist() if weights else []
        work = ExplicitWork((duration,))
        tasks.append(Task(f"{group}.{lane}", group, lane, work, tuple(sorted(held))))
        box = (lane, lane + 1, 0, 1, 0, 1)
        publications.append(Publication(number, f"t{group}", 8, box, 64))
        for step in range(min(width, lanes) if group else 0):
            source = (group - 1) * lanes + (lane + step) % lanes
            transfers.append(Transfer(source, number, 64))
    graph = ComputeGraph(
        "layered",
        tuple(f"o{group}" for group in range(groups)),
        tuple(tasks),
        tuple(ResidentWeight(f"w{i}", 1, 0) for i in range(weights)),
        tuple(publications),
        tuple(transfers),
    )
    return Problem(graph, TaskCosts(times), chip(cores, max(weights, 1)))


def fitting_weights(weights: int, lanes: int, cores: int) -> Problem:
    """``lanes`` tasks hold each weight; two and a half weights fit on a core, and
    there is room for twice the weights there are."""
    per_core = max(2, -(-2 * weights // cores))
    tasks = [
        Task(f"{w}.{lane}", w, lane, ExplicitWork((100 + w,)), (w,))
        for w in range(weights)
        for lane in range(lanes)
    ]
    graph = ComputeGraph(
        "weights",
        tuple(f"o{w}" for w in range(weights)),
        tuple(tasks),
        tuple(ResidentWeight(f"w{w}", 2, w) for w in range(weights)),
        (),
        (),
    )
    times = np.array([100 + w for w in range(weights) for _ in range(lanes)], np.int64)
    return Problem(graph, TaskCosts(times), chip(cores, 2 * per_core + 1))


def concatenated(
    inputs: int, rank: int
) -> tuple[Operation, Box, list[tuple[int, ...]], tuple[int, ...]]:
    """A concatenation of many tensors along their second axis."""
    names = tuple(f"x{i}" for i in range(inputs))
    operation = Operation("c", OpKind.CONCAT, names, ("y",), ConcatAttributes(1))
    rest = (4,) * (rank - 2)
    shapes = [(1, 2, *rest)] * inputs
    output = (1, 2 * inputs, *rest)
    whole = (
        Box(0, 4, 0, 4, 0, 2 * inputs) if rank == 4 else Box(0, 1, 0, 1, 0, 2 * inputs)
    )
    return operation, whole, shapes, output


def slots_and_lanes(consumers: int, lanes: int) -> Callable[[], int]:
    """Rows of ``consumers`` lanes looked up among the rows of ``lanes`` producers."""
    rows = max(consumers, lanes)
    wanted = [
        (rows * i // consumers, rows * (i + 1) // consumers, 0, 1, 0, 1)
        for i in range(consumers)
    ]
    made = [
        (rows * i // lanes, rows * (i + 1) // lanes, 0, 1, 0, 1) for i in range(lanes)
    ]

    def visit() -> int:
        fragments = _Fragments(8)
        for number, bounds in enumerate(made):
            fragments.add(bounds, number)
        return sum(1 for box in wanted for _ in fragments.meeting(box))

    return visit


def long_views(length: int) -> tuple[Network, str]:
    """A network of ``length`` reshapes in a row, and its last tensor."""
    builder = NetworkBuilder("views")
    tensor = builder.activate(builder.input((1, 4, 8, 8)), RELU)
    for step in range(length):
        shape = (1, 8, 4, 8) if step % 2 == 0 else (1, 4, 8, 8)
        tensor = builder.reshape(tensor, shape)
    last = builder.activate(tensor, RELU)
    return builder.finish(last), tensor.name


def recurring(cores: int, length: int) -> EventGraph:
    """Chains of ``length`` events on every core, one wrap edge each."""
    return recurring_graph(2 * cores * length, cores=cores)
