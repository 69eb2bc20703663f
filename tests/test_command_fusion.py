"""Command fusion: exact prices, proofs, agreement with exhaustive search."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.models.command_fusion import propose_fusion
from raptor_cp.models.fusion_problem import (
    FusionOperation,
    FusionProblem,
    PlannedCommand,
    check_plan,
    plan_by_dynamic_program,
)
from raptor_cp.models.solving import SolveBudget
from raptor_cp.targets.pe.commands import CompositeCmd, OpSpec, TensorHandle
from raptor_cp.targets.pe.cost_model import PeCostModel
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

KNOBS = PeCostModel()


def chain(count: int, size: int = 28, single: int = 30) -> list[FusionOperation]:
    """Operation i reads t(i) and writes t(i+1)."""
    return [
        FusionOperation(
            f"op{i}", size, 1, single, reads=(f"t{i}",), writes=(f"t{i + 1}",)
        )
        for i in range(count)
    ]


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    head, *tail = items
    for rest in partitions(tail):
        yield [[head], *rest]
        for i in range(len(rest)):
            yield [*rest[:i], [head, *rest[i]], *rest[i + 1 :]]


def acyclic(groups: list[list[int]], dependencies: tuple[tuple[int, int], ...]) -> bool:
    owner = {i: n for n, group in enumerate(groups) for i in group}
    edges = {(owner[a], owner[b]) for a, b in dependencies if owner[a] != owner[b]}
    left = set(range(len(groups)))
    while left:
        free = {n for n in left if not any(b == n and a in left for a, b in edges)}
        if not free:
            return False
        left -= free
    return True


def cheapest_by_enumeration(problem: FusionProblem) -> Fraction | None:
    """All partitions of the operations whose groups can follow one another."""
    best: Fraction | None = None
    for groups in partitions(list(range(len(problem.operations)))):
        if not acyclic(groups, problem.dependencies):
            continue
        total = Fraction(0)
        for group in groups:
            ways = [problem.composite(sorted(group))]
            if len(group) == 1:
                ways.append(problem.single(group[0]))
            costs = [way.cycles for way in ways if way is not None]
            if not costs:
                break
            total += min(costs)
        else:
            if best is None or total < best:
                best = total
    return best


def test_a_long_chain_is_fused_under_the_cap() -> None:
    plan = propose_fusion(chain(40), KNOBS, state=("t40",))
    assert plan.verdict is Verdict.OPTIMAL
    assert "presolve" in plan.proof
    assert len(plan.records) == 2
    assert all(c.logical_bytes <= 1024 for c in plan.commands)
    # 36 operations of 28 bytes and one live handle fill 1022 bytes; the other four
    # are cheaper alone than in a second composite.
    assert [len(c.operations) for c in plan.commands if c.composite] == [36]
    assert plan.cycles == 40 + Fraction(1022, 16) + 4 * (8 + Fraction(30, 16))


def test_single_operations_beat_a_composite_of_one() -> None:
    plan = propose_fusion(chain(1), KNOBS)
    (command,) = plan.commands
    assert not command.composite
    assert plan.cycles == 8 + Fraction(30, 16)


def test_unfusable_operations_split_the_chain() -> None:
    ops = chain(15)
    ops[7] = FusionOperation("copy", 28, 1, 20, False, ("t7",), ("t8",))
    plan = propose_fusion(ops, KNOBS)
    kinds = [(c.composite, c.operations) for c in plan.commands]
    assert kinds == [
        (True, (0, 1, 2, 3, 4, 5, 6)),
        (False, (7,)),
        (True, (8, 9, 10, 11, 12, 13, 14)),
    ]


def test_live_handles_count() -> None:
    ops = chain(3)
    problem = FusionProblem(tuple(ops), KNOBS, frozenset({"t0"}))
    assert problem.tracked([0, 1]) == ("t0", "t2")
    assert problem.tracked([0, 1, 2]) == ("t0",)
    assert problem.tracked([2]) == ()


def test_the_state_handle_can_decide_against_the_cap() -> None:
    knobs = PeCostModel(max_composite_logical_bytes=6 + 3 * 28)
    assert len(propose_fusion(chain(3), knobs).commands) == 3  # singles are cheaper
    ops = [
        FusionOperation(o.label, 28, 9, 300, True, o.reads, o.writes) for o in chain(3)
    ]
    assert len(propose_fusion(ops, knobs).commands) == 1
    assert len(propose_fusion(ops, knobs, state=("t3",)).commands) == 2


def test_infeasible_is_proved() -> None:
    ops = [FusionOperation("huge", 2000, 0, 0)]
    for contiguous in (True, False):
        plan = propose_fusion(ops, KNOBS, contiguous=contiguous)
        assert plan.verdict is Verdict.INFEASIBLE
        assert plan.commands == ()
        assert plan.cycles is None


def test_an_operation_without_any_form_is_malformed() -> None:
    with pytest.raises(MalformedInput, match="neither fusable"):
        propose_fusion([FusionOperation("x", 10, 0, 0, False)], KNOBS)


def test_nothing_to_issue() -> None:
    assert propose_fusion([], KNOBS).cycles == 0


def test_without_solver_time_the_chain_is_still_exact() -> None:
    plan = propose_fusion(chain(10), KNOBS, budget=SolveBudget(0.0))
    assert plan.verdict is Verdict.OPTIMAL
    assert "did not confirm" in plan.proof
    free = propose_fusion(chain(10), KNOBS, contiguous=False, budget=SolveBudget(0.0))
    assert free.verdict is Verdict.FEASIBLE
    assert free.cycles == plan.cycles


def test_costs_beyond_the_solver_leave_the_exact_program() -> None:
    knobs = PeCostModel(byte_cycles_recip=Fraction(1, 10**12 + 39))
    plan = propose_fusion(chain(5), knobs)
    assert plan.verdict is Verdict.OPTIMAL
    assert plan.records == ()
    free = propose_fusion(chain(5), knobs, contiguous=False)
    assert free.verdict is Verdict.FEASIBLE


def test_free_grouping_beats_neighbours() -> None:
    # Two independent chains, interleaved in program order with unfusable operations
    # between: only a free grouping can bring each chain together.
    ops: list[FusionOperation] = []
    for i in range(4):
        ops.append(
            FusionOperation(f"a{i}", 28, 1, 300, True, (f"a{i}",), (f"a{i + 1}",))
        )
        ops.append(
            FusionOperation(f"b{i}", 28, 1, 30, False, (f"b{i}",), (f"b{i + 1}",))
        )
    near = propose_fusion(ops, KNOBS)
    free = propose_fusion(ops, KNOBS, contiguous=False)
    assert free.verdict is Verdict.OPTIMAL
    assert near.cycles is not None
    assert free.cycles is not None
    assert free.cycles < near.cycles
    assert (True, (0, 2, 4, 6)) in [(c.composite, c.operations) for c in free.commands]


def test_groups_cannot_wait_for_each_other() -> None:
    # x0 -> y -> x1 with y unfusable: fusing x0 with x1 would need y in between.
    ops = [
        FusionOperation("x0", 28, 1, 3000, True, ("a",), ("b",)),
        FusionOperation("y", 28, 1, 30, False, ("b",), ("c",)),
        FusionOperation("x1", 28, 1, 3000, True, ("c",), ("d",)),
    ]
    plan = propose_fusion(ops, KNOBS, contiguous=False)
    assert [c.operations for c in plan.commands] == [(0,), (1,), (2,)]


def test_validator_sees_broken_plans() -> None:
    problem = FusionProblem(tuple(chain(3)), KNOBS)
    whole = plan_by_dynamic_program(problem)
    assert whole is not None
    assert check_plan(problem, whole) > 0
    with pytest.raises(InternalError, match="not issued"):
        check_plan(problem, whole[:-1])
    with pytest.raises(InternalError, match="twice"):
        check_plan(problem, (*whole, whole[0]))
    with pytest.raises(InternalError, match="issued before"):
        check_plan(problem, tuple(reversed(whole)))
    wrong = PlannedCommand(False, (0,), 1, (), Fraction(0))
    with pytest.raises(InternalError, match="not what it says"):
        check_plan(problem, (wrong, *whole[1:]))


def test_same_plan_every_time() -> None:
    ops = chain(20)
    first = propose_fusion(ops, KNOBS, contiguous=False)
    again = propose_fusion(ops, KNOBS, contiguous=False)
    assert first.to_dict() == again.to_dict()
    assert [r.model_hash for r in first.records] == [
        r.model_hash for r in again.records
    ]


def test_operations_of_a_composite_are_fusable_operations() -> None:
    tensors = [TensorHandle(f"t{i}", (8, 8)) for i in range(61)]
    ops = tuple(
        OpSpec("add", {"a": tensors[i], "b": tensors[i]}, tensors[i + 1])
        for i in range(60)
    )
    too_large = CompositeCmd(ops, (tensors[60],))
    assert too_large.logical_bytes > KNOBS.max_composite_logical_bytes
    plan = propose_fusion(ops, KNOBS, state=(tensors[60].name,))
    assert plan.verdict is Verdict.OPTIMAL
    assert len(plan.commands) == 2
    for command in plan.commands:
        rebuilt = CompositeCmd(
            tuple(ops[i] for i in command.operations),
            tuple(t for t in tensors if t.name in command.rw_handles),
        )
        assert rebuilt.logical_bytes == command.logical_bytes
        assert KNOBS.dispatch_cycles(rebuilt) == command.cycles


NAMES = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def operation_sets(draw: st.DrawFn, most: int) -> list[FusionOperation]:
    count = draw(st.integers(1, most))
    found = []
    for i in range(count):
        fusable = draw(st.booleans()) or draw(st.booleans())
        least = 0 if fusable else 1
        found.append(
            FusionOperation(
                f"op{i}",
                draw(st.integers(4, 60)),
                draw(st.integers(least, 3)),
                draw(st.integers(8, 90)),
                fusable,
                tuple(draw(st.lists(NAMES, max_size=2, unique=True))),
                tuple(draw(st.lists(NAMES, max_size=1))),
            )
        )
    return found


KNOB_SETS = st.builds(
    PeCostModel,
    fixed_per_cmd_cycles=st.sampled_from([0, 5, 40]),
    fixed_per_single_op_cmd_cycles=st.sampled_from([0, 8, 40]),
    byte_cycles_recip=st.sampled_from([0, 0.0625, Fraction(1, 3), 0.25]),
    max_composite_logical_bytes=st.sampled_from([40, 80, 120, 1024]),
)


@settings(max_examples=40, deadline=None)
@given(operation_sets(9), KNOB_SETS, st.sets(NAMES))
def test_contiguous_agrees_with_the_dynamic_program(
    ops: list[FusionOperation], knobs: PeCostModel, state: set[str]
) -> None:
    plan = propose_fusion(ops, knobs, state=sorted(state))
    exact = plan_by_dynamic_program(FusionProblem(tuple(ops), knobs, frozenset(state)))
    if exact is None:
        assert plan.verdict is Verdict.INFEASIBLE
    else:
        assert plan.verdict is Verdict.OPTIMAL
        assert plan.cycles == sum((c.cycles for c in exact), Fraction(0))
        assert "presolve" in plan.proof


@settings(max_examples=100, deadline=None)
@given(operation_sets(7), KNOB_SETS, st.sets(NAMES))
def test_free_agrees_with_exhaustive_search(
    ops: list[FusionOperation], knobs: PeCostModel, state: set[str]
) -> None:
    problem = FusionProblem(tuple(ops), knobs, frozenset(state))
    best = cheapest_by_enumeration(problem)
    plan = propose_fusion(ops, knobs, state=sorted(state), contiguous=False)
    if best is None:
        assert plan.verdict is Verdict.INFEASIBLE
    else:
        assert plan.verdict is Verdict.OPTIMAL
        assert plan.cycles == best
        assert check_plan(problem, plan.commands) == best
