"""Small random problems for tests; the same seed gives the same problem.

::

    rng = generator(7)
    problem = random_problem(rng, operations=4, cores=6)
    placement = random_placement(rng, problem, stages=3)

Everything is drawn from the numpy generator that is passed in, in a fixed order.
"""

from __future__ import annotations

import numpy as np

from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.target import LinkModel, MemoryModel, Resources, TaskCosts


def generator(seed: int) -> np.random.Generator:
    """The generator of a test case."""
    return np.random.Generator(np.random.PCG64(seed))


def _draw(rng: np.random.Generator, low: int, high: int) -> int:
    """A number in [low, high]."""
    return int(rng.integers(low, high + 1))


def random_graph(
    rng: np.random.Generator,
    *,
    operations: int = 4,
    max_lanes: int = 4,
    max_blocks: int = 2,
    max_slots: int = 3,
    max_ns: int = 50,
    scalar_share: float = 0.2,
    extra_share: float = 0.2,
    name: str = "random",
) -> ComputeGraph:
    """A connected graph of ``operations`` operations with 1..max_lanes lanes each.

    The lanes of an operation share its resident weights (0..max_blocks blocks of
    1..max_slots weight slots; a lane may hold only a part of them), publish one
    row each, and read whole rows or parts of rows of 1..2 earlier operations, a
    window of lanes or all.  ``scalar_share`` of the operations publish scalar
    projections of several runs, and ``extra_share`` of the operations have an
    explicit edge more (0 bytes possible).
    """
    names = tuple(f"op{index}" for index in range(operations))
    tasks: list[Task] = []
    weights: list[ResidentWeight] = []
    publications: list[Publication] = []
    transfers: list[Transfer] = []
    baseline: list[BaselineAccess] = []
    extra: list[tuple[int, int, int]] = []
    lanes_of: list[list[int]] = []  # task ids
    published: list[list[int]] = []  # publication ids
    for operation in range(operations):
        blocks = []
        for block in range(_draw(rng, 0, max_blocks)):
            blocks.append(len(weights))
            weights.append(
                ResidentWeight(
                    f"w{operation}.{block}", _draw(rng, 1, max_slots), operation
                )
            )
        split = rng.random() < 0.25
        scalar = rng.random() < scalar_share
        size, runs = _draw(rng, 1, 40), _draw(rng, 1, 3) if scalar else 1
        duration, even = _draw(rng, 1, max_ns), rng.random() < 0.6
        sources = sorted(
            {_draw(rng, 0, operation - 1) for _ in range(_draw(rng, 1, 2))}
            if operation
            else set()
        )
        mine: list[int] = []
        for lane in range(_draw(rng, 1, max_lanes)):
            task = len(tasks)
            mine.append(task)
            held = [w for w in blocks if not split or rng.random() < 0.6]
            time = duration if even else _draw(rng, 1, max_ns)
            tasks.append(
                Task(
                    f"op{operation}.{lane}",
                    operation,
                    lane,
                    ExplicitWork((time,)),
                    tuple(held),
                )
            )
            for source in sources:
                rows = published[source]
                start, stop = 0, len(rows)
                if rng.random() < 0.6:
                    start = min(lane, len(rows) - 1)
                    stop = min(start + 2, len(rows))
                for row in rows[start:stop]:
                    part = publications[row].size
                    if rng.random() < 0.3:
                        part = _draw(rng, 1, part)
                    transfers.append(Transfer(row, task, part, _draw(rng, 1, 2)))
                    if rng.random() < 0.15:  # a second demand on the same fragment
                        transfers.append(Transfer(row, task, _draw(rng, 1, part)))
            if not sources:
                baseline.append(
                    BaselineAccess(task, BaselineKind.INPUT, "in", _draw(rng, 1, 40))
                )
        lanes_of.append(mine)
        published.append([])
        for lane, task in enumerate(mine):
            published[-1].append(len(publications))
            publications.append(
                Publication(
                    task,
                    f"t{operation}",
                    8,
                    (lane, lane + 1, 0, 1, 0, 1),
                    size,
                    runs,
                    scalar,
                )
            )
        if operation and rng.random() < extra_share:
            before = lanes_of[_draw(rng, 0, operation - 1)]
            extra.append((before[0], mine[-1], _draw(rng, 0, 9)))
    for task in lanes_of[-1]:
        baseline.append(
            BaselineAccess(
                task, BaselineKind.OUTPUT, "out", _draw(rng, 1, 40), _draw(rng, 1, 2)
            )
        )
    return ComputeGraph(
        name,
        names,
        tuple(tasks),
        tuple(weights),
        tuple(publications),
        tuple(transfers),
        tuple(baseline),
        tuple(extra),
    )


def mesh_links(
    cores: int, columns: int | None = None, *, hop_ns: int = 3, link_width: int = 8
) -> LinkModel:
    """A mesh, filled by rows: handshake and unit grow with the hop distance."""
    across = columns or max(1, int(np.ceil(np.sqrt(cores))))
    row, column = np.divmod(np.arange(cores, dtype=np.int64), across)
    hops = np.abs(row[:, None] - row[None, :]) + np.abs(
        column[:, None] - column[None, :]
    )
    away = (hops > 0).astype(np.int64)
    return LinkModel(
        handshake_ns=2 * hop_ns * hops,
        unit_ns=hop_ns * hops + away,
        link_width=link_width,
        endpoint_width=4,
        read_ns=1,
        write_ns=1,
    )


def small_memory() -> MemoryModel:
    """A shared memory whose every parameter matters."""
    return MemoryModel(
        width=8,
        read_ns=5,
        write_ns=4,
        read_fixed_ns=7,
        write_fixed_ns=6,
        local_width=4,
        local_read_ns=1,
        local_write_ns=2,
        link_width=8,
        link_ns=3,
    )


def mesh_resources(cores: int, slots: int, columns: int | None = None) -> Resources:
    """A small mesh chip with ``slots`` weight slots on each core."""
    across = columns or max(1, int(np.ceil(np.sqrt(cores))))
    row, column = np.divmod(np.arange(cores, dtype=np.int64), across)
    return Resources(
        cores=cores,
        slots_per_core=slots,
        links=mesh_links(cores, across),
        memory=small_memory(),
        positions=np.stack([row, column], axis=1),
    )


def costs_of(graph: ComputeGraph) -> TaskCosts:
    """Execution times of a graph whose work is all explicit and uniform."""
    times = []
    for task in graph.tasks:
        assert isinstance(task.work, ExplicitWork)
        times.append(task.work.execution_ns[0])
    return TaskCosts(np.array(times, dtype=np.int64))


def random_problem(
    rng: np.random.Generator,
    *,
    operations: int = 4,
    max_lanes: int = 4,
    cores: int = 6,
    slots: int | None = None,
    uneven_cores: bool = False,
    max_blocks: int = 2,
    max_slots: int = 3,
    scalar_share: float = 0.2,
    extra_share: float = 0.2,
) -> Problem:
    """A random graph on a mesh.

    ``slots``: capacity of a core in weight slots; None: all weights fit on one
    core.  ``uneven_cores``: execution times differ from core to core.
    """
    graph = random_graph(
        rng,
        operations=operations,
        max_lanes=max_lanes,
        max_blocks=max_blocks,
        max_slots=max_slots,
        scalar_share=scalar_share,
        extra_share=extra_share,
    )
    if slots is None:
        slots = max(1, int(graph.weight_slots.sum()))
    costs = costs_of(graph)
    if uneven_cores:
        table = costs.execution_ns[:, None] + rng.integers(
            0, 9, (graph.task_count, cores)
        )
        costs = TaskCosts(table.max(axis=1), table)
    return Problem(graph, costs, mesh_resources(cores, slots))


def random_stages(
    rng: np.random.Generator, problem: Problem, stages: int
) -> tuple[Stage, ...]:
    """``stages`` non-empty stages; all cores are dealt out, at least one each."""
    groups, cores = len(problem.graph.operations), problem.resources.cores
    cuts = [0, *sorted(rng.choice(groups - 1, stages - 1, replace=False) + 1), groups]
    owners = np.concatenate(
        [np.arange(stages), rng.integers(0, stages, cores - stages)]
    )
    rng.shuffle(owners)
    return tuple(
        Stage(
            index,
            tuple(range(int(cuts[index]), int(cuts[index + 1]))),
            tuple(int(core) for core in np.flatnonzero(owners == index)),
        )
        for index in range(stages)
    )


def random_placement(
    rng: np.random.Generator, problem: Problem, stages: int = 0
) -> Placement:
    """Tasks on random cores of their stage (of the chip when ``stages`` is 0).

    Capacity is ignored: use roomy cores when the placement must be legal.
    """
    graph, cores = problem.graph, problem.resources.cores
    cut = random_stages(rng, problem, stages) if stages else ()
    core_of = np.zeros(graph.task_count, dtype=np.int32)
    for task in range(graph.task_count):
        pool: tuple[int, ...] = tuple(range(cores))
        for stage in cut:
            if graph.tasks[task].operation in stage.groups:
                pool = stage.cores
        core_of[task] = pool[_draw(rng, 0, len(pool) - 1)]
    return Placement.in_task_order(core_of, cores, cut)
