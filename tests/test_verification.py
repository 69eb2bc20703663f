"""Emitted programs compute their networks: random networks, chips and schedules."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.widths import Accumulators
from raptor_cp.realization.checks import check
from raptor_cp.realization.plan import CrossStage, Policy
from raptor_cp.targets.pim.artifact import make_program
from raptor_cp.targets.pim.backend import Built, build_program
from raptor_cp.targets.pim.functional import (
    core_orders,
    generations_for,
    verify_program,
)
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.sidecar import read_sidecar, write_sidecar
from tests.random_networks import MOVES, Case, random_case

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.targets.pim.functional import Verification

POLICIES = list(Policy)


@cache
def built(seed: int) -> tuple[Case, Built] | None:
    """Networks of 2 to 8 layers, 1 to 6 stages, all policies; None if refused."""
    case = random_case(
        seed, layers=2 + seed % 7, stages=1 + seed % 6, policy=POLICIES[seed // 6 % 3]
    )
    if case is None:
        return None
    assert not check(case.plan).faults
    program = build_program(
        case.plan,
        case.target,
        case.network,
        accumulators=case.accumulators,
        constants_resident=case.resident,
    )
    return (case, program) if isinstance(program, Built) else None


def verified(
    seed: int, orders: int = 2, *, strict_host: bool = False
) -> Verification | None:
    found = built(seed)
    if found is None:
        return None
    case, program = found
    return verify_program(
        case.network,
        program.program(native=True),
        program.sidecar,
        array=case.target.machine.array,
        orders=core_orders(orders, seed),
        strict_host=strict_host,
    )


@pytest.mark.parametrize("first", range(0, 36, 6))
def test_random_programs_equal_their_networks(first: int) -> None:
    seen = 0
    for seed in range(first, first + 6):
        result = verified(seed)
        if result is not None:
            seen += 1
            assert result.equal, (seed, result.difference, result.fault)
            assert result.compared > 0
    assert seen >= 3


def test_an_operand_is_read_where_it_is_still_kept() -> None:
    # Two blocks held the same rows; the one that was found had been given up.
    result = verified(1468)
    assert result is not None
    assert result.equal


@pytest.mark.parametrize("first", range(MOVES, MOVES + 24, 6))
def test_random_programs_of_views_and_slices(first: int) -> None:
    for seed in range(first, first + 6):
        result = verified(seed, strict_host=True)
        if result is not None:
            assert result.equal, (seed, result.difference, result.fault)


def test_elements_between_the_rows_that_a_view_reads_are_not_gathered() -> None:
    result = verified(100470)
    assert result is not None
    assert result.equal


def test_random_programs_have_every_option() -> None:
    cases = [found[0] for found in map(built, range(72)) if found is not None]
    plans = [case.plan for case in cases]
    assert {len(plan.schedule.placement.stages) for plan in plans} == set(range(1, 7))
    assert {plan.policy for plan in plans} == set(Policy)
    assert {plan.cross_stage for plan in plans} == set(CrossStage)
    assert {case.accumulators for case in cases} == set(Accumulators)
    assert {case.resident for case in cases} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [*range(1000, 2000, 50), *range(MOVES + 400, MOVES + 900, 50)]
)
def test_many_random_programs_equal_their_networks(first: int) -> None:
    wrong = []
    for seed in range(first, first + 50):
        result = verified(seed, orders=4, strict_host=True)
        if result is not None and not result.equal:
            wrong.append((seed, str(result.difference or result.fault)))
        built.cache_clear()
    assert not wrong


# -- what a broken program looks like ---------------------------------------------


def changed(seed: int, core: int, records: NDArray[np.void]) -> Verification:
    """The verification of a program with one core's text replaced."""
    found = built(seed)
    assert found is not None
    case, program = found
    streams = {
        c: (groups, records if c == core else own)
        for c, groups, own in program.records(native=True)
    }
    return verify_program(
        case.network,
        make_program(streams, program.core_count),
        program.sidecar,
        array=case.target.machine.array,
    )


def test_every_left_out_vector_instruction_or_product_is_noticed() -> None:
    found = built(3)
    assert found is not None
    noticed = tried = 0
    for core, _, records in found[1].records(native=True):
        opcode = records["opcode"]
        work = np.flatnonzero(np.isin(opcode, [Opcode.MVMUL, Opcode.VRSU, Opcode.LMV]))
        for index in work[:: max(1, len(work) // 5)]:
            tried += 1
            noticed += not changed(3, core, np.delete(records, index)).equal
    assert tried > 5
    # A copy of padding, or a clamp that clamps nothing, may be superfluous.
    assert noticed >= 0.7 * tried


def without_register(
    streams: dict[int, tuple[NDArray[np.int64], NDArray[np.void]]],
    core: int,
    register: int,
) -> dict[int, tuple[NDArray[np.int64], NDArray[np.void]]]:
    """The program without one event register: neither its wait nor its signals."""
    result = {}
    for number, (groups, records) in streams.items():
        opcode, own = records["opcode"], records["generic1"] == register
        gone = (opcode == Opcode.SYNC) & (records["r2_or_imm"] == core) & own
        if number == core:
            gone |= (opcode == Opcode.WAIT) & own
        result[number] = (groups, records[~gone])
    return result


@pytest.mark.parametrize("policy", [Policy.DOUBLE_BUFFER, Policy.RELEASE])
def test_a_missing_signal_is_a_race_in_any_order(policy: Policy) -> None:
    noticed = tried = 0
    for seed in range(1, 60):
        found = built(seed) if POLICIES[seed // 6 % 3] is policy else None
        if found is None:
            continue
        case, program = found
        streams = {c: (g, r) for c, g, r in program.records(native=True)}
        waits = [
            (core, int(register))
            for core, (_, records) in streams.items()
            for register in records["generic1"][records["opcode"] == Opcode.WAIT]
        ]
        for core, register in waits[:4]:
            broken = without_register(streams, core, register)
            result = verify_program(
                case.network,
                make_program(broken, program.core_count),
                program.sidecar,
                orders=core_orders(1, seed),
            )
            tried += 1
            noticed += not result.equal
        if tried > 40:
            break
    # Some signals are implied by others.
    assert tried > 20
    assert noticed >= 0.8 * tried, (noticed, tried)


def test_the_first_wrong_element_is_reported_with_its_place() -> None:
    found = built(3)
    assert found is not None
    case, program = found
    # The program's own constants stay, the reference gets other biases.
    biases = {name: values + 17 for name, values in program.sidecar.biases.items()}
    assert biases
    result = verify_program(
        case.network,
        program.program(native=True),
        replace(program.sidecar, biases=biases),
        array=case.target.machine.array,
    )
    difference = result.difference
    assert difference is not None
    assert difference.generation == 0
    assert difference.expected != difference.found
    assert 0 < difference.wrong <= difference.elements
    assert f"output {difference.output!r}, round 0, element (row " in str(difference)


def test_a_sidecar_of_another_network_is_refused() -> None:
    one, other = built(3), built(4)
    assert one is not None
    assert other is not None
    with pytest.raises(MalformedInput, match="another network"):
        verify_program(one[0].network, one[1].program(), other[1].sidecar)


def test_the_command(tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    from raptor_cp.cli.verify import verify
    from raptor_cp.preparation import read_network
    from raptor_cp.realized import plan_forms
    from raptor_cp.scenario import loads
    from raptor_cp.scheduler import schedule
    from raptor_cp.targets.pim.target import PimTarget
    from raptor_cp.targets.registry import create

    text = (
        "schema: raptor-cp/1\nname: small\nnetwork: {zoo: tiny-residual}\n"
        "target: {kind: pim, config: arch-a, cores: 12}\nmode: pipeline\n"
        "pipeline: {stages: 3}\nsolver: {enabled: false}\n"
    )
    loaded = loads(text)
    found = schedule(loaded).schedule
    target = create(loaded)
    assert found is not None
    assert isinstance(target, PimTarget)
    plan = plan_forms(loaded.scenario.pipeline)[0][0].realize(found)
    program = build_program(plan, target, read_network(loaded))
    assert isinstance(program, Built)
    app = typer.Typer()
    app.command()(verify)
    call = CliRunner().invoke
    empty = call(app, [str(tmp_path)])
    assert empty.exit_code == 2
    assert "not a run folder" in empty.output
    (tmp_path / "scenario.yaml").write_text(text)
    assert "the run has no program" in call(app, [str(tmp_path)]).output
    program.write(tmp_path / "program")
    good = call(app, [str(tmp_path), "--json", "--quiet", "--orders", "4"])
    assert good.exit_code == 0
    document = json.loads(good.stdout)
    assert document["equal"] is True
    assert len(document["orders"]) == 4
    again = call(app, [str(tmp_path), "--json", "--quiet", "--orders", "4"])
    assert again.stdout == good.stdout
    biases = {name: value + 5000 for name, value in program.sidecar.biases.items()}
    write_sidecar(replace(program.sidecar, biases=biases), tmp_path / "program")
    bad = call(app, [str(tmp_path), "--json"])
    assert bad.exit_code == 1
    assert "NOT equal: output 'fc', round 0, element (row 0" in bad.output


def test_verification_from_files(tmp_path: Path) -> None:
    found = built(3)
    assert found is not None
    case, program = found
    write_sidecar(program.sidecar, tmp_path)
    sidecar = read_sidecar(tmp_path)
    assert generations_for(sidecar) >= 4
    result = verify_program(case.network, program.program(native=True), sidecar)
    assert result.equal
    assert result.to_dict()["equal"] is True
