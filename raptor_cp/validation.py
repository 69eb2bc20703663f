"""The schedule validator: plain Python, independent of how a schedule was made.

Every rule is one function that yields sentences.  Rules about figures recompute
them from the definitions in :mod:`raptor_cp.static_evaluation` without its kernels,
and run only when the structure they stand on is sound.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.target import AccessKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raptor_cp.schedules import Placement, Problem, Schedule

#: dependency (source, destination) -> ns
_EdgeTimes = dict[tuple[int, int], int]


def validate(schedule: Schedule) -> None:
    """Check every rule.

    Raises:
        InternalError: a rule is broken; the first sentences of
            :func:`violations` are in the message.
    """
    found = violations(schedule)
    if found:
        shown = "; ".join(found[:5])
        more = f" (and {len(found) - 5} more)" if len(found) > 5 else ""
        name = schedule.problem.graph.name
        raise InternalError(f"invalid schedule of {name!r}: {shown}{more}")


def violations(schedule: Schedule) -> tuple[str, ...]:
    """What is wrong with a schedule, one sentence each; empty when it is legal."""
    problem, placement = schedule.problem, schedule.placement
    for structure in (assignment_violations, stage_violations):
        found = list(structure(problem, placement))
        if found:  # nothing below is defined for such a placement
            return tuple(found)
    found += slot_violations(schedule)
    found += capacity_violations(problem, placement)
    found += direction_violations(problem, placement)
    found += class_violations(schedule)
    order = combined_order(problem, placement)
    if order is None:
        found.append("dependencies and the order on the cores form a cycle")
        return tuple(found)
    edges = edge_times(problem, placement)
    found += start_violations(schedule, edges)
    found += figure_violations(schedule, edges, order)
    return tuple(found)


def assignment_violations(problem: Problem, placement: Placement) -> Iterator[str]:
    """Each task exactly once, on a core that exists, where ``core_of`` says."""
    tasks, cores = problem.graph.task_count, problem.resources.cores
    if tuple(placement.core_of.shape) != (tasks,):
        yield f"core_of has shape {placement.core_of.shape}, the graph {tasks} tasks"
        return
    if len(placement.order) != cores:
        yield f"an order for {len(placement.order)} cores, the chip has {cores}"
        return
    seen: dict[int, int] = {}
    for core, sequence in enumerate(placement.order):
        for task in sequence:
            if not 0 <= task < tasks:
                yield f"core {core} runs unknown task {task}"
            elif task in seen:
                yield f"task {task} runs on core {seen[task]} and on core {core}"
            else:
                seen[task] = core
    for task, core in enumerate(placement.core_of.tolist()):
        if not 0 <= core < cores:
            yield f"task {task} is on core {core}, the chip has {cores}"
        if task not in seen:
            yield f"task {task} is in no core's order"
        elif seen[task] != core:
            yield f"task {task} is placed on core {core}, but core {seen[task]} runs it"


def stage_violations(problem: Problem, placement: Placement) -> Iterator[str]:
    """Stages: contiguous groups, all of them, cores of their own, work in each."""
    graph, cores = problem.graph, problem.resources.cores
    if not placement.stages:
        return
    owner_of_core: dict[int, int] = {}
    owner_of_group: dict[int, int] = {}
    following = 0
    for number, stage in enumerate(placement.stages):
        if stage.index != number:
            yield f"stage {number} has index {stage.index}"
        if not stage.groups:
            yield f"stage {number} has no groups"
        for group in stage.groups:
            if group != following:
                yield (
                    f"stage {number} has group {group} where group {following} "
                    "follows: groups are not contiguous"
                )
            following = group + 1
            owner_of_group[group] = number
        if not stage.cores:
            yield f"stage {number} has no cores"
        if list(stage.cores) != sorted(set(stage.cores)):
            yield f"the cores of stage {number} are not ascending"
        for core in stage.cores:
            if not 0 <= core < cores:
                yield f"stage {number} owns core {core}, the chip has {cores}"
            elif core in owner_of_core:
                yield f"core {core} is in stages {owner_of_core[core]} and {number}"
            owner_of_core[core] = number
    if following != len(graph.operations):
        yield f"the stages end with group {following - 1} of {len(graph.operations)}"
    filled = set()
    for number, task in enumerate(graph.tasks):
        stage_index = owner_of_group.get(task.operation)
        filled.add(stage_index)
        core = int(placement.core_of[number])
        if stage_index is None:
            yield f"group {task.operation} of task {number} is in no stage"
        elif owner_of_core.get(core) != stage_index:
            yield (
                f"task {number} of group {task.operation} (stage {stage_index}) runs "
                f"on core {core} of stage {owner_of_core.get(core)}"
            )
    for number in range(len(placement.stages)):
        if number not in filled:
            yield f"stage {number} is empty: its groups have no tasks"


def slot_violations(schedule: Schedule) -> Iterator[str]:
    """Slots of a core are 0, 1, 2, ... in its execution order."""
    if schedule.slot.shape != (schedule.problem.graph.task_count,):
        yield f"slots have shape {schedule.slot.shape}"
        return
    for core, sequence in enumerate(schedule.placement.order):
        slots = [int(schedule.slot[task]) for task in sequence]
        if slots != list(range(len(sequence))):
            yield f"slots of core {core} are not contiguous: {slots[:8]}"


def capacity_violations(problem: Problem, placement: Placement) -> Iterator[str]:
    """The union of the resident weights of a core's tasks fits (weight slots)."""
    graph, capacity = problem.graph, problem.resources.slots_per_core
    for core, sequence in enumerate(placement.order):
        union = {weight for task in sequence for weight in graph.tasks[task].weights}
        used = sum(graph.weights[weight].slots for weight in union)
        if used > capacity:
            yield f"core {core} holds {used} weight slots, its capacity is {capacity}"


def direction_violations(problem: Problem, placement: Placement) -> Iterator[str]:
    """No dependency leads to an earlier stage."""
    stage_of = _stage_of_task(problem, placement)
    for source, target, _ in dependencies(problem):
        if stage_of[source] > stage_of[target]:
            yield (
                f"task {source} in stage {stage_of[source]} feeds task {target} in "
                f"stage {stage_of[target]}"
            )


def class_violations(schedule: Schedule) -> Iterator[str]:
    """Equivalence classes partition the tasks, each inside one operation."""
    graph = schedule.problem.graph
    members = [task for group in schedule.equivalence_classes for task in group]
    if sorted(members) != list(range(graph.task_count)):
        yield "equivalence classes are not a partition of the tasks"
        return
    for group in schedule.equivalence_classes:
        if list(group) != sorted(group):
            yield f"an equivalence class is not ascending: {group[:8]}"
        if len({graph.tasks[task].operation for task in group}) != 1:
            yield f"an equivalence class is not of one operation: {group[:8]}"


def start_violations(schedule: Schedule, edges: _EdgeTimes) -> Iterator[str]:
    """Starts wait for inputs and for the task before on the core."""
    problem, placement = schedule.problem, schedule.placement
    start = schedule.start_ns.tolist()
    if len(start) != problem.graph.task_count:
        yield f"there are {len(start)} starts"
        return
    work = _placed_work(problem, placement)
    for task, time in enumerate(start):
        if time < 0:
            yield f"task {task} starts at {time} ns"
    for (source, target), delay in edges.items():
        if start[target] < start[source] + work[source] + delay:
            yield (
                f"task {target} starts at {start[target]} ns, its input from task "
                f"{source} is there at {start[source] + work[source] + delay} ns"
            )
    for core, sequence in enumerate(placement.order):
        for before, after in itertools.pairwise(sequence):
            if start[after] < start[before] + work[before]:
                yield f"tasks {before} and {after} overlap on core {core}"
    end = max(begin + length for begin, length in zip(start, work, strict=True))
    if end != schedule.summary.completion_ns:
        yield (
            f"the last task ends at {end} ns, the summary says "
            f"{schedule.summary.completion_ns} ns"
        )


def figure_violations(
    schedule: Schedule, edges: _EdgeTimes, order: list[int]
) -> Iterator[str]:
    """Every figure of the cost summary equals its definition."""
    problem, placement = schedule.problem, schedule.placement
    summary = schedule.summary
    work = _placed_work(problem, placement)
    stage_of = _stage_of_task(problem, placement)
    core_work = [sum(work[task] for task in tasks) for tasks in placement.order]
    stages = [list(stage.cores) for stage in placement.stages]
    shown = bool(stages)
    if not shown:
        stages = [list(range(problem.resources.cores))]
    following: dict[int, int] = {}
    for sequence in placement.order:
        following.update(itertools.pairwise(sequence))
    out: list[list[tuple[int, int]]] = [[] for _ in work]
    for (source, target), delay in edges.items():
        out[source].append((target, delay))
    ready, ordered, inside, chain = ([0] * len(work) for _ in range(4))
    critical = completion = 0
    spans, depths = [0] * len(stages), [0] * len(stages)
    for task in order:
        stage, length = stage_of[task], work[task]
        critical = max(critical, ready[task] + length)
        completion = max(completion, ordered[task] + length)
        spans[stage] = max(spans[stage], inside[task] + length)
        depths[stage] = max(depths[stage], chain[task] + length)
        for target, delay in out[task]:
            ready[target] = max(ready[target], ready[task] + length + delay)
            ordered[target] = max(ordered[target], ordered[task] + length + delay)
            if stage_of[target] == stage:
                inside[target] = max(inside[target], inside[task] + length + delay)
                chain[target] = max(chain[target], chain[task] + length)
        if task in following:
            after = following[task]
            ordered[after] = max(ordered[after], ordered[task] + length)
            inside[after] = max(inside[after], inside[task] + length)
    loads = [max(core_work[core] for core in cores) for cores in stages]
    service = memory_service(problem, placement)
    objective = max(max(pair) for pair in zip(loads, depths, strict=True))
    interval = max(max(core_work), service, max(spans))
    for name, ours, said in (
        ("serial_work_ns", sum(work), summary.serial_work_ns),
        ("core_work_ns", tuple(core_work), summary.core_work_ns),
        ("critical_path_ns", critical, summary.critical_path_ns),
        ("transfer_work_ns", sum(edges.values()), summary.transfer_work_ns),
        ("completion_ns", completion, summary.completion_ns),
        ("stage_spans_ns", tuple(spans) if shown else (), summary.stage_spans_ns),
        ("stage_loads_ns", tuple(loads) if shown else (), summary.stage_loads_ns),
        ("memory_service_ns", service, summary.memory_service_ns),
        ("static_objective_ns", objective, summary.static_objective_ns),
        ("static_interval_ns", interval, summary.static_interval_ns),
    ):
        if ours != said:
            yield f"{name} is {said}, it should be {ours}"


def dependencies(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """(source, destination, bytes) of every aggregated dependency."""
    graph = problem.graph
    for source in range(graph.task_count):
        for edge in range(int(graph.edge_ptr[source]), int(graph.edge_ptr[source + 1])):
            yield source, int(graph.edge_dst[edge]), int(graph.edge_bytes[edge])


def combined_order(problem: Problem, placement: Placement) -> list[int] | None:
    """A topological order of dependencies and core order; None when cyclic."""
    tasks = problem.graph.task_count
    after: list[list[int]] = [[] for _ in range(tasks)]
    waiting = [0] * tasks
    for source, target, _ in dependencies(problem):
        after[source].append(target)
        waiting[target] += 1
    for sequence in placement.order:
        for source, target in itertools.pairwise(sequence):
            after[source].append(target)
            waiting[target] += 1
    ready = [task for task in range(tasks) if waiting[task] == 0]
    for task in ready:  # grows while it is read
        for target in after[task]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return ready if len(ready) == tasks else None


def edge_times(problem: Problem, placement: Placement) -> _EdgeTimes:
    """Time (ns) of every dependency at a placement."""
    graph, resources = problem.graph, problem.resources
    stage_of = _stage_of_task(problem, placement)
    core_of = placement.core_of.tolist()
    result: _EdgeTimes = {}
    for source, target, size in dependencies(problem):
        direct = stage_of[source] == stage_of[target]
        result[source, target] = (
            resources.links.transfer_ns(size, core_of[source], core_of[target])
            if direct
            else 0
        )
    stored: set[tuple[int, int]] = set()
    for move in graph.transfers:
        publication = graph.publications[move.publication]
        key = (publication.producer, move.consumer)
        if stage_of[key[0]] == stage_of[key[1]]:
            continue
        load = resources.memory.access(move.size, AccessKind.READ, move.runs)
        result[key] += load.core_ns
        runs = publication.runs if publication.scalar else 1
        if publication.scalar or (move.publication, move.consumer) not in stored:
            stored.add((move.publication, move.consumer))
            store = resources.memory.access(publication.size, AccessKind.WRITE, runs)
            result[key] += store.core_ns
    for source, target, size in graph.extra_edges:
        if size and stage_of[source] != stage_of[target]:
            for kind in (AccessKind.WRITE, AccessKind.READ):
                access = resources.memory.access(size, kind)
                result[source, target] += access.core_ns
    return result


def memory_service(problem: Problem, placement: Placement) -> int:
    """Serialized shared-memory service (ns) of one inference."""
    graph, memory = problem.graph, problem.resources.memory
    stage_of = _stage_of_task(problem, placement)
    total = 0
    stored: set[int] = set()
    for move in graph.transfers:
        publication = graph.publications[move.publication]
        if stage_of[publication.producer] == stage_of[move.consumer]:
            continue
        total += memory.access(move.size, AccessKind.READ, move.runs).service_ns
        runs = publication.runs if publication.scalar else 1
        if publication.scalar or move.publication not in stored:
            stored.add(move.publication)
            store = memory.access(publication.size, AccessKind.WRITE, runs)
            total += store.service_ns
    for source, target, size in graph.extra_edges:
        if size and stage_of[source] != stage_of[target]:
            for kind in (AccessKind.WRITE, AccessKind.READ):
                total += memory.access(size, kind).service_ns
    for access in graph.baseline:
        write = access.kind is BaselineKind.OUTPUT
        kind = AccessKind.WRITE if write else AccessKind.READ
        total += memory.access(access.size, kind, access.runs).service_ns
    return total


def _placed_work(problem: Problem, placement: Placement) -> list[int]:
    cores = placement.core_of.tolist()
    return [problem.costs.on(task, core) for task, core in enumerate(cores)]


def _stage_of_task(problem: Problem, placement: Placement) -> list[int]:
    owner = {group: s.index for s in placement.stages for group in s.groups}
    return [owner.get(task.operation, 0) for task in problem.graph.tasks]
