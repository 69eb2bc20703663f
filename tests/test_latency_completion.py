"""One inference on the queues: plans of latency mode, executed for one generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.latency.methods import latency_scheduler
from raptor_cp.latency_run import run_latency
from raptor_cp.phases import Phases
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.realization.plan import OrderRule
from raptor_cp.realized import PlanForm, realized_completion
from raptor_cp.scenario import LoadedScenario, loads
from raptor_cp.static_evaluation import StaticEvaluator
from raptor_cp.target import CompletionEstimator, RealizedCompletion, Unavailable
from raptor_cp.targets.registry import create
from raptor_cp.validation import violations

if TYPE_CHECKING:
    from raptor_cp.result import ScheduleResult
    from raptor_cp.schedules import Schedule

CHAIN = """
schema: raptor-cp/1
name: chain
network:
  tasks:
    - {id: a, execution_ns: 10, weights: [wa]}
    - {id: b, execution_ns: 20, weights: [wb]}
    - {id: c, execution_ns: 30, weights: [wa]}
  edges:
    - {src: a, dst: b, bytes: 5}
    - {src: b, dst: c, bytes: 7}
  weights: [{id: wa, slots: 3}, {id: wb, slots: 3}]
target: {kind: table, cores: 2, slots_per_core: 4, link_ns: 2}
mode: latency
"""


class Quiet:
    def phase(self, name: str) -> None:
        del name

    def solved(self, solves: int, spent: float, limit: float) -> None:
        pass

    def completing(self, completion_ns: int) -> None:
        pass


def run(loaded: LoadedScenario) -> ScheduleResult:
    target = create(loaded)
    prepared = prepare(loaded, target)
    assert isinstance(prepared, Prepared)
    return run_latency(loaded, target, prepared, Quiet(), Phases())


def listed(loaded: LoadedScenario) -> tuple[Schedule, CompletionEstimator]:
    target = create(loaded)
    prepared = prepare(loaded, target)
    assert isinstance(prepared, Prepared)
    assert isinstance(target, CompletionEstimator)
    found = latency_scheduler("peft", prepared.problem).schedule()
    evaluator = StaticEvaluator(prepared.problem)
    return evaluator.schedule(found.placement), target  # type: ignore[union-attr]


def test_a_chain_takes_its_tasks_and_its_links() -> None:
    # a on one core, b on the other for capacity, c back where wa is: 10+10+20+14+30
    result = run(loads(CHAIN))
    assert result.static_latency_ns == 84
    assert result.completion is not None
    assert result.completion.event_index_ns == 84
    assert result.completion.reversed_ns == 84
    assert result.latency_ns == 84
    assert result.timing == "queue"


def test_static_timing_asks_no_queues() -> None:
    result = run(loads(CHAIN + "search: {timing: static}\n"))
    assert result.completion is None
    assert result.latency_ns == result.static_latency_ns == 84


@pytest.mark.parametrize("name", ["resnet18", "bert-base-block"])
def test_networks_complete_on_the_chip(name: str) -> None:
    text = f"""
schema: raptor-cp/1
name: network
network: {{zoo: {name}, weight_bits: 8, activation_bits: 8}}
target: {{kind: pim, config: arch-a}}
mode: latency
solver: {{enabled: false}}
"""
    result = run(loads(text))
    assert result.schedule is not None
    assert violations(result.schedule) == ()
    assert result.completion is not None
    assert result.completion.failures == ()
    first, second = result.completion.event_index_ns, result.completion.reversed_ns
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert result.latency_ns == max(first, second)
    assert result.certificate is not None
    document = result.certificate.to_dict()
    assert document["completion_ns"] == result.static_latency_ns
    # What blocks and queues costs time; nothing on the chip is faster than its path.
    assert isinstance(document["bound_ns"], int)
    assert min(first, second) >= document["bound_ns"]


def test_a_completion_is_the_same_twice() -> None:
    schedule, target = listed(loads(CHAIN))
    first = realized_completion(schedule, target, Phases())
    assert first == realized_completion(schedule, target, Phases())
    assert PlanForm.named(first.form).order in OrderRule


def test_no_timing_is_said_and_not_counted() -> None:
    gone = RealizedCompletion(Unavailable("no table"), 5)
    assert gone.larger_ns is None
    assert gone.reason == "no table"
    assert gone.to_dict()["event_index_ns"] == {"unavailable": "no table"}


def test_the_evaluator_and_the_queues_agree_on_one_core() -> None:
    loaded = loads(CHAIN.replace("cores: 2, slots_per_core: 4", "cores: 1"))
    schedule, target = listed(loaded)
    assert np.unique(schedule.placement.core_of).size == 1
    found = realized_completion(schedule, target, Phases())
    assert found.larger_ns == schedule.summary.completion_ns == 60
