"""Inputs have as many banks as their readers can be rounds apart, and one more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import raptor_cp
from raptor_cp.realization.plan import Signal, Wait
from raptor_cp.realization.signals import LONGEST_CHAIN, coupling_pairs
from raptor_cp.run_output import write_run
from raptor_cp.scenario import loads
from raptor_cp.scheduler import schedule
from raptor_cp.targets.pim import codegen_memory
from raptor_cp.targets.pim.backend import Built, Rejected, build_program
from raptor_cp.targets.pim.codegen_memory import ReadersApart, plan_memory
from raptor_cp.targets.pim.functional import core_orders, verify_program
from raptor_cp.targets.pim.input_banks import input_distances
from raptor_cp.targets.pim.sidecar import read_sidecar
from tests.random_networks import Case, random_case
from tests.test_verification import POLICIES, built, verified

if TYPE_CHECKING:
    from pathlib import Path

ONE_STAGE = "mode: pipeline\npipeline: {stages: 1}\nsolver: {enabled: false}\n"


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
    for seed in range(1000, 1060):
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
    assert tried >= 5
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


def test_many_cores_without_links_stay_within_few_rounds() -> None:
    """A single chain of 168 cores would need 256 banks of each input."""
    pairs = coupling_pairs([], dict.fromkeys(range(168), 0))
    assert [reader for _, reader in pairs] == list(range(1, 168))
    depth = [0] * 168
    for writer, reader in pairs:
        depth[reader] = depth[writer] + 1
    assert max(depth) == LONGEST_CHAIN - 3  # 6 chains of 27 or 28 behind the first
    few = dict.fromkeys(range(LONGEST_CHAIN), 0)
    assert coupling_pairs([], few) == list(pairwise(few))


LANES = """
schema: raptor-cp/1
name: lanes
network: {input: [1, 3, 12, 12], operations: [{op: conv, channels: 8, kernel: 3}]}
target: {kind: pim, config: arch-a, cores: 9}
"""


@pytest.mark.parametrize("form", ["mode: latency\n", ONE_STAGE])
def test_lanes_that_exchange_nothing_have_a_program(form: str, tmp_path: Path) -> None:
    """No data joins the lanes of one operation.

    One inference alone needs no signals for that: the host begins every round.
    """
    result = schedule(loads(LANES + form), program=True)
    assert result.plan is not None
    assert len(result.plan.cores) > 4
    assert not result.plan.direct
    assert result.program is not None
    assert result.program.outcome == "built", result.program.reasons
    write_run(result, tmp_path / "run")
    sidecar = read_sidecar(tmp_path / "run" / "program")
    region = next(r for r in sidecar.regions if r.kind == "input")
    if result.plan.schedule.placement.stages:
        assert not sidecar.alone
        assert region.banks == 16
    else:
        assert sidecar.alone
        assert "one round at a time" in sidecar.host_contract
        assert region.banks == 1
    found = raptor_cp.verify(tmp_path / "run", orders=4, strict_host=True)
    assert found.equal, found.difference or found.fault
