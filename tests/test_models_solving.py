"""The solving discipline: budgets, claims and verdicts, refused combinations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.models.solving import (
    MAX_BOOLEANS,
    SolveBudget,
    SolverClaim,
    SolveSettings,
    checked_coefficients,
    confirm,
    confirm_bound,
    scale_divisor,
    solve,
    solve_confirmed,
)
from raptor_cp.verdict import Verdict


def knapsack(maximise: bool = False) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(6)]
    weights = [5, 4, 3, 7, 6, 2]
    total = sum(w * v for w, v in zip(weights, x, strict=True))
    if maximise:
        model.add(total <= 13)
        model.maximize(total + 100)
    else:
        model.add(total >= 8)
        model.minimize(3 * total - 7)
    return model, x


def pigeons(holes: int) -> cp_model.CpModel:
    model = cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(holes)] for _ in range(holes + 1)]
    for row in x:
        model.add_exactly_one(row)
    for hole in range(holes):
        model.add_at_most_one(row[hole] for row in x)
    return model


def market_split() -> cp_model.CpModel:
    """Too hard for any budget of these tests."""
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(40)]
    state = 12345
    for _ in range(5):
        row = []
        for _ in x:
            state = (1103515245 * state + 12345) % 2**31
            row.append(state % 100)
        model.add(cp_model.LinearExpr.weighted_sum(x, row) == sum(row) // 2)
    return model


@pytest.mark.parametrize(("maximise", "optimum"), [(False, 17), (True, 113)])
def test_an_optimum_needs_two_solves(maximise: bool, optimum: int) -> None:
    model, x = knapsack(maximise)
    budget = SolveBudget(5.0)
    first = solve(model, budget, what="knapsack")
    assert first.verdict is Verdict.FEASIBLE
    assert first.record.status is SolverClaim.OPTIMAL
    assert first.record.objective == first.record.bound == optimum
    both = confirm(model, first, budget)
    assert both.verdict is Verdict.OPTIMAL
    assert both.confirmed
    assert both.confirmation is not None
    assert both.solution is not None
    assert len(budget.records) == 2
    chosen = sum(
        w for w, v in zip([5, 4, 3, 7, 6, 2], x, strict=True) if both.solution.true(v)
    )
    assert (100 + chosen if maximise else 3 * chosen - 7) == optimum
    assert all(both.solution.value(~v) == 1 - both.solution.value(v) for v in x)


def test_infeasible_needs_two_solves() -> None:
    model = pigeons(4)
    budget = SolveBudget(5.0)
    first = solve(model, budget, what="pigeons")
    assert first.record.status is SolverClaim.INFEASIBLE
    assert first.verdict is Verdict.UNKNOWN
    assert first.solution is None
    assert confirm(model, first, budget).verdict is Verdict.INFEASIBLE


def test_a_false_claim_is_exposed() -> None:
    model, _ = knapsack()
    budget = SolveBudget(5.0)
    honest = solve(model, budget, what="knapsack")
    lie = replace(
        honest,
        record=replace(honest.record, status=SolverClaim.INFEASIBLE),
        solution=None,
    )
    exposed = confirm(model, lie, budget)
    assert exposed.verdict is Verdict.UNKNOWN
    assert "disagree" in exposed.note


def test_bounds_can_be_confirmed() -> None:
    for maximise, good, bad in ((False, 17, 18), (True, 113, 112)):
        model, _ = knapsack(maximise)
        budget = SolveBudget(5.0)
        assert confirm_bound(model, good, budget, what="bound")
        assert not confirm_bound(model, bad, budget, what="bound")


def test_no_budget_no_answer() -> None:
    model, _ = knapsack()
    outcome = solve_confirmed(model, SolveBudget(0.0), what="knapsack")
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.record.note == "no deterministic time left"
    with pytest.raises(MalformedInput):
        SolveBudget(float("nan"))


def test_the_budget_binds_over_many_solves() -> None:
    budget = SolveBudget(0.3)
    for _ in range(6):
        solve(market_split(), budget, what="split", limit=0.1)
    assert budget.spent <= 0.3 + 0.1  # the overshoot of one solve at most
    assert budget.remaining == 0.0
    late = solve(market_split(), budget, what="late")
    assert late.record.deterministic_time == 0.0
    part = SolveBudget(1.0).share(0.25)
    assert part.total == 0.25


def test_the_combination_that_aborts_is_refused() -> None:
    model, x = knapsack()
    for variable in x:
        model.add_hint(variable, 1)
    with pytest.raises(InternalError, match="abort"):
        solve(model, SolveBudget(1.0), what="k", settings=SolveSettings(workers=2))
    fine = solve(
        model, SolveBudget(1.0), what="k", settings=SolveSettings(workers=2).single()
    )
    assert fine.solution is not None


def test_several_workers_are_interleaved_and_repeat() -> None:
    results = []
    for _ in range(2):
        model, _ = knapsack()
        outcome = solve_confirmed(
            model, SolveBudget(5.0), what="k", settings=SolveSettings(workers=2)
        )
        results.append(outcome)
    assert results[0] == results[1]
    assert results[0].verdict is Verdict.OPTIMAL


def test_an_invalid_model_is_a_bug_not_a_verdict() -> None:
    model = cp_model.CpModel()
    x = model.new_int_var(0, 2**62, "")
    y = model.new_int_var(0, 2**62, "")
    model.add(2**40 * x + 2**40 * y <= 7)
    with pytest.raises(InternalError, match="invalid model"):
        solve(model, SolveBudget(1.0), what="overflow")


def test_too_many_variables_are_refused() -> None:
    model = cp_model.CpModel()
    for _ in range(MAX_BOOLEANS + 1):
        model.new_bool_var("")
    with pytest.raises(InternalError, match="fits"):
        solve(model, SolveBudget(1.0), what="huge")


def test_costs_are_checked_by_name() -> None:
    assert checked_coefficients([1, 2, 3], "load") == 6
    with pytest.raises(MalformedInput, match="execution time number 1"):
        checked_coefficients([1, 2**31], "execution time")
    with pytest.raises(MalformedInput, match="negative"):
        checked_coefficients([-1], "execution time")
    with pytest.raises(MalformedInput, match="sum of all"):
        checked_coefficients([2**60] * 3, "cost", limit=2**61)
    assert 2**40 // scale_divisor(2**40) <= 2**31 - 1


def test_settings_describe_themselves() -> None:
    assert SolveSettings().describe() == "default"
    assert "presolve=False" in SolveSettings().second_witness().describe()
    twice = SolveSettings(presolve=False).second_witness()
    assert twice.presolve
    with pytest.raises(MalformedInput):
        SolveSettings(workers=0)


@pytest.mark.parametrize(
    "settings",
    [
        SolveSettings(fixed_search=True),
        SolveSettings(local_search_only=True, symmetry_level=0),
        SolveSettings(light_presolve=True, linearization_level=2),
    ],
)
def test_every_setting_is_known_to_the_solver(settings: SolveSettings) -> None:
    model, _ = knapsack()
    outcome = solve(model, SolveBudget(1.0), what="k", settings=settings)
    assert outcome.record.status in (SolverClaim.OPTIMAL, SolverClaim.FEASIBLE)
    assert set(outcome.record.to_dict()) >= {"status", "bound", "model_hash"}
