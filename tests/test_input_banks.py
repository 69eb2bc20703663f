"""Inputs have as many banks as their readers can be rounds apart, and one more."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raptor_cp.realization.plan import Signal, Wait
from raptor_cp.targets.pim import codegen_memory
from raptor_cp.targets.pim.backend import Built, Rejected, build_program
from raptor_cp.targets.pim.codegen_memory import ReadersApart, plan_memory
from raptor_cp.targets.pim.functional import core_orders, verify_program
from raptor_cp.targets.pim.input_banks import input_distances
from tests.random_networks import Case, random_case
from tests.test_verification import POLICIES, built, verified

if TYPE_CHECKING:
    import pytest


def case_of(seed: int) -> Case | None:
    return random_case(
        seed, layers=2 + seed % 7, stages=1 + seed % 6, policy=POLICIES[seed // 6 % 3]
    )


def test_a_host_with_one_input_in_each_bank_loses_none() -> None:
    apart = set()
    # 1002 and 1045: their readers ran further apart than the stages tell.
    for seed in [*range(24), 1002, 1045]:
        result = verified(seed, orders=3, strict_host=True)
        if result is None:
            continue
        assert result.equal, (seed, result.fault)
        found = built(seed)
        assert found is not None
        apart |= set(input_distances(found[0].plan).values())
    assert {1, 2, 3} <= apart


def test_fewer_banks_lose_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance is no guess: with fewer banks some order of cores shows it."""
    monkeypatch.setattr(
        codegen_memory,
        "input_distances",
        lambda plan: dict.fromkeys(input_distances(plan), 1),
    )
    lost = tried = 0
    for seed in range(1000, 1200):
        case = case_of(seed)
        if case is None or 3 not in input_distances(case.plan).values():
            continue
        program = build_program(
            case.plan,
            case.target,
            case.network,
            accumulators=case.accumulators,
            constants_resident=case.resident,
        )
        assert isinstance(program, Built)
        result = verify_program(
            case.network,
            program.program(native=True),
            program.sidecar,
            orders=core_orders(8, seed),
            strict_host=True,
        )
        tried += 1
        if result.fault is not None:
            assert result.fault.kind == "overwritten"
            lost += 1
    assert tried > 5
    assert lost > 0


def test_readers_that_nothing_couples_are_rejected() -> None:
    for seed in range(200):
        case = case_of(seed)
        if case is None or len(case.plan.cores) < 2:
            continue
        distances = input_distances(case.plan)
        assert None not in distances.values()
        if max(distances.values(), key=lambda d: d or 0) == 1 or case.plan.direct:
            continue
        cores = tuple(
            replace(
                text,
                items=tuple(i for i in text.items if not isinstance(i, Signal | Wait)),
            )
            for text in case.plan.cores
        )
        free = replace(case.plan, cores=cores)
        assert None in input_distances(free).values()
        assert isinstance(plan_memory(free, case.network), ReadersApart)
        answer = build_program(free, case.target, case.network)
        assert isinstance(answer, Rejected)
        assert "can be more than 63 inferences apart" in answer.reason
        return
    raise AssertionError("no such plan")
