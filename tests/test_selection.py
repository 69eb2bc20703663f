"""Selection policy: bands, near-equivalence, explicit stops, recovery order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raptor_cp.pipeline.selection import MARGIN, Band, select
from raptor_cp.target import RealizedCost
from raptor_cp.verdict import Unavailable


def cost(first: int, second: int | None = None) -> RealizedCost:
    return RealizedCost("queue", first, first if second is None else second, True)


def test_band_is_the_spec_formula() -> None:
    band = Band.of(cost(1021, 979))
    assert band.low == Fraction(979, 1) / Fraction(1021, 1000)
    assert band.high == Fraction(1021, 1) / Fraction(979, 1000)
    assert Fraction(21, 1000) == MARGIN


def test_single_candidate_is_not_gated() -> None:
    assert select([None]).reason == "single"
    broken = replace(cost(5), recurrence_proved=False)
    assert select([broken]).chosen == 0


def test_close_alternative_keeps_the_initialized_schedule() -> None:
    selection = select([cost(1000), cost(970)])
    assert (selection.chosen, selection.best) == (0, 1)
    assert selection.reason == "near-equivalent"


def test_separated_alternative_wins() -> None:
    selection = select([cost(1000), cost(900), cost(905)])
    assert (selection.chosen, selection.reason) == (1, "separated")


def test_lowest_larger_tie_order_is_the_best() -> None:
    selection = select([cost(1000), cost(100, 900), cost(800, 800)])
    assert selection.best == 2


def test_edge_of_the_band_is_not_separated() -> None:
    # high(best) == low(base) exactly: 979 / 0.979 == 1021 / 1.021
    assert select([cost(1021), cost(979)]).chosen == 0
    assert select([cost(1022), cost(979)]).chosen == 1


@pytest.mark.parametrize(
    ("change", "prop"),
    [
        ({"interval_ns": Unavailable("no table")}, "timing"),
        ({"alternative_ns": Unavailable("no table")}, "timing (reversed ties)"),
        ({"static_support": False}, "static support"),
        ({"recurrence_proved": False}, "recurrence"),
        ({"failures": ("a check failed",)}, "failure"),
    ],
)
def test_any_obstacle_stops_and_names_candidate_and_property(
    change: dict[str, object], prop: str
) -> None:
    broken = replace(cost(10), **change)  # type: ignore[arg-type]
    selection = select([cost(1000), broken])
    assert selection.chosen is None
    assert selection.reason == "stopped"
    assert [(c, p) for c, p, _ in selection.stops] == [(1, prop)]
    kept = select([cost(1000), broken], accept_initial=True)
    assert (kept.chosen, kept.reason) == (0, "accepted-initial")


def test_recovery_takes_the_first_remaining_as_reference() -> None:
    costs = [cost(1000), cost(500), cost(990)]
    assert select(costs, remaining=[0, 2]).chosen == 0
    assert select(costs, remaining=[2, 1]).chosen == 1
    assert select(costs, remaining=[2]).reason == "single"
    with pytest.raises(ValueError, match="no candidate"):
        select(costs, remaining=[])


@given(
    st.lists(
        st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=2, max_size=6
    )
)
def test_choice_is_the_reference_or_separated_from_it(
    values: list[tuple[int, int]],
) -> None:
    costs = [cost(a, b) for a, b in values]
    selection = select(costs)
    assert selection.chosen is not None
    assert selection.best is not None
    least = min(max(v) for v in values)
    assert max(values[selection.best]) == least
    if selection.chosen != 0:
        low = Fraction(min(values[0])) / Fraction(1021, 1000)
        high = Fraction(max(values[selection.chosen])) / Fraction(979, 1000)
        assert high < low
