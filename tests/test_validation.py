"""Each rule of the schedule validator rejects a schedule that breaks only it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from raptor_cp.errors import InternalError
from raptor_cp.graph.compute_graph import (
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.work import ExplicitWork
from raptor_cp.schedules import CostSummary, Placement, Problem, Schedule, Stage
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import Resources, TaskCosts
from raptor_cp.validation import validate, violations
from tests.instances import generator, mesh_links, random_placement, small_memory
from tests.instances import random_problem as random_instance

_STAGES = (Stage(0, (0,), (0, 1)), Stage(1, (1, 2), (2, 3)))


def _problem(slots: int = 3) -> Problem:
    """Two lanes a, one task b, two lanes c; weights of 2, 1 and 2 slots."""
    tasks = tuple(
        Task(f"{name}{lane}", operation, lane, ExplicitWork((time,)), (operation,))
        for name, operation, lane, time in (
            ("a", 0, 0, 10),
            ("a", 0, 1, 10),
            ("b", 1, 0, 20),
            ("c", 2, 0, 5),
            ("c", 2, 1, 5),
        )
    )
    graph = ComputeGraph(
        "five",
        ("A", "B", "C"),
        tasks,
        tuple(ResidentWeight(f"w{g}", s, g) for g, s in enumerate((2, 1, 2))),
        (
            Publication(0, "x", 8, (0, 1, 0, 4, 0, 1), 4),
            Publication(1, "x", 8, (1, 2, 0, 4, 0, 1), 4),
            Publication(2, "y", 8, (0, 1, 0, 4, 0, 1), 4),
        ),
        (Transfer(0, 2, 4), Transfer(1, 2, 4), Transfer(2, 3, 4), Transfer(2, 4, 4)),
    )
    costs = TaskCosts(np.array([10, 10, 20, 5, 5], dtype=np.int64))
    chip = Resources(5, slots, mesh_links(5, 5), small_memory())
    return Problem(graph, costs, chip)


def _schedule(
    cores: tuple[int, ...] = (0, 1, 2, 2, 3),
    stages: tuple[Stage, ...] = _STAGES,
    slots: int = 3,
) -> Schedule:
    core_of = np.array(cores, dtype=np.int32)
    return evaluate(_problem(slots), Placement.in_task_order(core_of, 5, stages))


def _replaced(schedule: Schedule, **parts: object) -> Schedule:
    """The schedule with another placement, its figures untouched."""
    old = schedule.placement
    values = {"core_of": old.core_of, "order": old.order, "stages": old.stages}
    return replace(schedule, placement=Placement(**{**values, **parts}))  # type: ignore[arg-type]


def _only(schedule: Schedule, *texts: str) -> None:
    found = violations(schedule)
    assert len(found) == len(texts), found
    for sentence, text in zip(found, texts, strict=True):
        assert text in sentence
    with pytest.raises(InternalError, match="invalid schedule of 'five'"):
        validate(schedule)


def test_the_original_is_legal() -> None:
    assert violations(_schedule()) == ()
    validate(_schedule())
    validate(_schedule(stages=()))


def test_a_task_missing() -> None:
    order = ((0,), (1,), (2, 3), (), ())
    _only(_replaced(_schedule(), order=order), "task 4 is in no core's order")


def test_a_task_twice() -> None:
    order = ((0,), (1,), (2, 3), (4, 4), ())
    _only(_replaced(_schedule(), order=order), "task 4 runs on core 3 and on core 3")


def test_an_unknown_task() -> None:
    order = ((0,), (1,), (2, 3), (4, 5), ())
    _only(_replaced(_schedule(), order=order), "core 3 runs unknown task 5")


def test_another_core_than_the_order_says() -> None:
    core_of = np.array([0, 1, 2, 3, 3], dtype=np.int32)
    _only(
        _replaced(_schedule(), core_of=core_of),
        "task 3 is placed on core 3, but core 2 runs it",
    )


def test_core_out_of_range() -> None:
    schedule = _schedule(stages=())
    core_of = np.array([0, 1, 2, 2, 7], dtype=np.int32)
    _only(_replaced(schedule, core_of=core_of), "core 7, the chip has 5", "task 4")


def test_wrong_shapes() -> None:
    schedule = _schedule()
    _only(_replaced(schedule, core_of=np.zeros(3, dtype=np.int32)), "shape (3,)")
    _only(_replaced(schedule, order=schedule.placement.order[:4]), "for 4 cores")
    _only(replace(schedule, slot=schedule.slot[:3]), "slots have shape (3,)")
    _only(replace(schedule, start_ns=schedule.start_ns[:3]), "there are 3 starts")


def test_slots_with_a_gap() -> None:
    slot = schedule_slots = _schedule().slot.copy()
    slot[3] = 2
    _only(replace(_schedule(), slot=schedule_slots), "slots of core 2")


def test_order_against_the_dependencies() -> None:
    schedule = _schedule()
    slot = schedule.slot.copy()
    slot[2], slot[3] = 1, 0
    turned = _replaced(schedule, order=((0,), (1,), (3, 2), (4,), ()))
    _only(replace(turned, slot=slot), "form a cycle")


def test_capacity_counts_the_union() -> None:
    both = (0, 0, 2, 2, 3)  # both lanes of A share two slots: nothing is added
    assert violations(_schedule(both, slots=3)) == ()
    schedule = _schedule(both, slots=2)
    _only(schedule, "core 2 holds 3 weight slots, its capacity is 2")


def test_lanes_of_a_group_in_two_stages() -> None:
    schedule = _schedule((0, 2, 2, 2, 3), stages=())
    broken = _replaced(schedule, stages=_STAGES)
    _only(broken, "task 1 of group 0 (stage 0) runs on core 2 of stage 1")


def test_a_task_outside_all_stages() -> None:
    broken = _replaced(_schedule((0, 4, 2, 2, 3), stages=()), stages=_STAGES)
    _only(broken, "core 4 of stage None")


@pytest.mark.parametrize(
    ("stages", "texts"),
    [
        (
            (Stage(0, (0, 2), (0, 1, 3)), Stage(1, (1,), (2,))),
            (
                "group 2 where group 1",
                "group 1 where group 3",
                "end with group 1 of 3",
                "task 3 of group 2 (stage 0) runs on core 2",
            ),
        ),
        ((Stage(0, (0,), (0, 1)),), ("end with group 0 of 3", *["is in no stage"] * 3)),
        (
            (Stage(0, (0,), (0, 1)), Stage(1, (1, 2), (1, 2, 3))),
            ("core 1 is in stages 0 and 1", "task 1 of group 0 (stage 0) runs on"),
        ),
        (
            (Stage(0, (0,), (0, 1)), Stage(1, (), (4,)), Stage(2, (1, 2), (2, 3))),
            ("stage 1 has no groups", "stage 1 is empty"),
        ),
        (
            (Stage(0, (0,), (0, 1)), Stage(2, (1, 2), (2, 3))),
            ("stage 1 has index 2",),
        ),
        (
            (Stage(0, (0,), (1, 0)), Stage(1, (1, 2), (2, 3))),
            ("cores of stage 0 are not ascending",),
        ),
        (
            (Stage(0, (0,), (0, 1)), Stage(1, (1, 2), (2, 3, 9))),
            ("stage 1 owns core 9",),
        ),
    ],
)
def test_stage_rules(stages: tuple[Stage, ...], texts: tuple[str, ...]) -> None:
    _only(_replaced(_schedule(), stages=stages), *texts)


def test_a_stage_without_cores() -> None:
    stages = (Stage(0, (0,), (0, 1)), Stage(1, (1, 2), ()))
    found = violations(_replaced(_schedule(), stages=stages))
    assert found[0] == "stage 1 has no cores"


def test_a_dependency_to_an_earlier_stage() -> None:
    """Groups are numbered by the graph: only an explicit edge can lead backwards."""
    problem = _problem()
    graph = problem.graph
    backward = object.__new__(ComputeGraph)  # no constructor lets this through
    for field in fields(ComputeGraph):
        object.__setattr__(backward, field.name, getattr(graph, field.name))
    turned = tuple(replace(t, operation=2 - t.operation) for t in graph.tasks)
    object.__setattr__(backward, "tasks", turned)
    stages = (Stage(0, (0,), (2, 3)), Stage(1, (1, 2), (0, 1)))
    schedule = _schedule((0, 1, 0, 2, 3), stages=())
    broken = replace(
        _replaced(schedule, stages=stages),
        problem=Problem(backward, problem.costs, problem.resources),
    )
    found = violations(broken)
    assert "task 2 in stage 1 feeds task 3 in stage 0" in found
    assert "task 2 in stage 1 feeds task 4 in stage 0" in found


def test_a_start_before_its_input() -> None:
    schedule = _schedule()
    start = schedule.start_ns.copy()
    start[2] -= 1
    _only(
        replace(schedule, start_ns=start),
        "task 2 starts at",
        "task 2 starts at",
    )


def test_a_negative_start() -> None:
    schedule = _schedule()
    start = schedule.start_ns.copy()
    start[0] = -1
    _only(replace(schedule, start_ns=start), "task 0 starts at -1 ns")


def test_two_tasks_at_once_on_a_core() -> None:
    schedule = _schedule((0, 0, 2, 2, 3))
    start = schedule.start_ns.copy()
    start[1] -= 1
    _only(replace(schedule, start_ns=start), "tasks 0 and 1 overlap on core 0")


def test_a_last_task_that_ends_later_than_the_summary_says() -> None:
    schedule = _schedule()
    start = schedule.start_ns.copy()
    start[4] += 1
    _only(replace(schedule, start_ns=start), "the last task ends at")


@pytest.mark.parametrize("field", [f.name for f in fields(CostSummary)])
def test_every_figure_is_recomputed(field: str) -> None:
    schedule = _schedule()
    value = getattr(schedule.summary, field)
    wrong = (value[0] + 1, *value[1:]) if isinstance(value, tuple) else value + 1
    broken = replace(schedule, summary=replace(schedule.summary, **{field: wrong}))  # type: ignore[arg-type]
    texts = [f"{field} is"]
    if field == "completion_ns":
        texts.insert(0, "the last task ends at")
    _only(broken, *texts)


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        (((0, 1), (2,), (3,)), "not a partition"),
        (((0, 1), (2,), (3, 4, 4)), "not a partition"),
        (((1, 0), (2,), (3, 4)), "not ascending"),
        (((0, 1), (2, 3), (4,)), "not of one operation"),
    ],
)
def test_equivalence_classes(classes: tuple[tuple[int, ...], ...], text: str) -> None:
    _only(replace(_schedule(), equivalence_classes=classes), text)


def test_the_message_is_bounded() -> None:
    schedule = _schedule()
    empty = _replaced(schedule, order=((), (), (), (), ()))
    with pytest.raises(InternalError, match="in no core's order"):
        validate(empty)
    rng = generator(3)
    large = evaluate(
        (problem := random_instance(rng, operations=6)), random_placement(rng, problem)
    )
    broken = _replaced(large, order=tuple(() for _ in large.placement.order))
    with pytest.raises(InternalError, match=r"\(and \d+ more\)"):
        validate(broken)
