"""The five checks catch faulty plans and say where the fault is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raptor_cp.realization.checks import CheckReport, check
from raptor_cp.realization.plan import (
    CorePlan,
    CrossStage,
    DirectTransfer,
    ExecutionPlan,
    Policy,
    Purpose,
    Receive,
    Send,
    Signal,
    Wait,
)
from raptor_cp.realization.realize import realize
from tests.plans import hand_made, load, pipeline, run, store

READY, FREE = Purpose.READY, Purpose.FREE


def kinds(report: CheckReport) -> set[str]:
    return {fault.check for fault in report.faults}


def two_readers(*, credit_first: bool) -> ExecutionPlan:
    """Core 0 writes for cores 1 and 2, with one FREE register for both."""
    schedule = pipeline(3, [(0, 2)])
    wait = Wait(1, 2, FREE)
    ready = (Signal(1, 0, READY), Signal(2, 0, READY))
    tail = (wait, *ready) if credit_first else (*ready, wait)
    return hand_made(
        schedule,
        {
            0: (run(0), store(0), *tail),
            1: (Signal(0, 1, FREE), Wait(0, 1, READY), load(0), run(1)),
            2: (Signal(0, 1, FREE), Wait(0, 1, READY), load(2), run(2)),
        },
        {0: 2},
        {0: 0, 1: 1, 2: 1},
    )


def test_sound_plan_made_by_hand_passes() -> None:
    assert check(two_readers(credit_first=True)).faults == ()


def test_ready_register_shared_with_a_writer_without_credit() -> None:
    """Measured on the simulator: 26 stale reads in 0.3 ms."""
    schedule = pipeline(3, [(0, 2)])
    plan = hand_made(
        schedule,
        {
            0: (
                run(0),
                store(0),
                Wait(1, 1, FREE),
                Signal(1, 0, READY),
                Signal(2, 0, READY),
            ),
            1: (
                Signal(0, 1, FREE),
                Wait(0, 1, READY),
                load(0),
                run(1),
                store(1),
                Wait(1, 1, FREE),
                Signal(2, 0, READY),
            ),
            2: (
                Signal(1, 1, FREE),
                Wait(0, 2, READY),
                load(1),
                load(2),
                run(2),
            ),
        },
        {0: 3, 1: 2},
    )
    report = check(plan)
    assert kinds(report) == {"mixed generations"}
    message = report.faults[0].message
    assert "core 2 WAIT ready register 0" in message
    assert "core 0 SYNC ready -> core 2 register 0" in message
    assert "distance 2" in message


def test_one_free_register_for_two_readers_waited_after_ready() -> None:
    """Measured on the simulator: 29 overwrites."""
    report = check(two_readers(credit_first=False))
    assert "mixed generations" in kinds(report)
    assert any("core 0 WAIT free register 1" in f.message for f in report.faults)


def test_two_waits_on_one_free_register() -> None:
    """Measured on the simulator: 29 overwrites."""
    plan = two_readers(credit_first=True)
    first = plan.cores[0]
    items = [i for i in first.items if not isinstance(i, Wait)]
    text = (*items[:2], Wait(1, 1, FREE), Wait(1, 1, FREE), *items[2:])
    report = check(replace(plan, cores=(CorePlan(0, 0, text), *plan.cores[1:])))
    assert "registers" in kinds(report)
    assert "core 0 register 1: 2 WAITs, expected one" in report.faults[0].message


def test_missing_ready_is_a_stale_read_that_names_the_publication() -> None:
    plan = realize(pipeline(2))
    texts = [
        replace(
            text,
            items=tuple(
                i
                for i in text.items
                if not isinstance(i, Signal | Wait) or i.purpose is not READY
            ),
        )
        for text in plan.cores
    ]
    report = check(replace(plan, cores=tuple(texts)))
    assert kinds(report) == {"stale read"}
    message = report.faults[0].message
    assert "core 0 ST publication 0 => core 1 LD publication 0" in message


@pytest.mark.parametrize("banks", [0, 1, 2])
def test_too_few_banks_are_an_overwrite(banks: int) -> None:
    plan = replace(realize(pipeline(2)), banks=((0, banks),))
    faults = check(plan).faults
    assert [f.check for f in faults] == ([] if banks == 2 else ["overwrite"])
    if faults:
        assert "LD publication 0 => core 0 ST publication 0" in faults[0].message


def test_far_reader_needs_a_bank_for_each_stage_it_skips() -> None:
    plan = realize(pipeline(5, [(0, 4)]))
    assert dict(plan.banks) == {0: 5, 1: 2, 2: 2, 3: 2}
    assert check(plan).faults == ()
    fewer = replace(plan, banks=((0, 4), *plan.banks[1:]))
    assert kinds(check(fewer)) == {"overwrite"}


def test_halo_exchange_with_both_sending_first_is_a_deadlock() -> None:
    plan = ExecutionPlan(
        pipeline(2),
        Policy.DOUBLE_BUFFER,
        CrossStage.DIRECT,
        (
            CorePlan(0, 0, (run(0), Send(0), Receive(1))),
            CorePlan(1, 0, (run(1), Send(1), Receive(0))),
        ),
        (
            DirectTransfer(0, 0, 1, 8, None, (0,), 0),
            DirectTransfer(None, 1, 0, 8, None, (), 1, 0),
        ),
        (),
    )
    report = check(plan)
    assert kinds(report) == {"deadlock"}
    assert "SEND publication 0 core 0 -> 1" in report.faults[0].message
    receiving = replace(
        plan,
        cores=(
            CorePlan(0, 0, (run(0), Receive(1), Send(0))),
            CorePlan(1, 0, (run(1), Receive(0), Send(1))),
        ),
    )
    assert kinds(check(receiving)) == {"deadlock"}
    ordered = replace(
        plan,
        cores=(plan.cores[0], CorePlan(1, 0, (run(1), Receive(0), Send(1)))),
    )
    assert check(ordered).faults == ()


def test_ends_of_a_transfer_must_exist_once_and_on_their_cores() -> None:
    plan = ExecutionPlan(
        pipeline(2),
        Policy.DOUBLE_BUFFER,
        CrossStage.DIRECT,
        (CorePlan(0, 0, (run(0), Send(0))), CorePlan(1, 1, (run(1),))),
        (DirectTransfer(0, 0, 1, 8, None, (0,), 0),),
        (),
    )
    (fault,) = check(plan).faults
    assert fault.check == "deadlock"
    assert "1 SENDs and 0 RECVs" in fault.message


@pytest.mark.parametrize("register", [-1, 32])
def test_register_numbers_are_checked(register: int) -> None:
    plan = hand_made(
        pipeline(2),
        {
            0: (run(0), Signal(1, register, READY)),
            1: (Wait(register, 1, READY), run(1)),
        },
        {},
    )
    assert kinds(check(plan)) == {"registers"}


def test_counts_and_silent_cores_are_checked() -> None:
    plan = hand_made(
        pipeline(3),
        {
            0: (run(0), Signal(1, 0, READY), Signal(2, 0, READY)),
            1: (Wait(0, 2, READY), run(1)),
        },
        {},
    )
    messages = " ".join(f.message for f in check(plan).faults)
    assert "core 0 signals core 2, which has no program" in messages
    assert "core 1 register 0: WAIT value 2, but 1 SYNCs a generation" in messages
