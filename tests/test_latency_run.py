"""``mode: latency`` as a run: verdicts, certificates, the solver's last word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.latency_run import run_latency
from raptor_cp.phases import Phases
from raptor_cp.preparation import Prepared, prepare
from raptor_cp.scenario import LoadedScenario, load, loads
from raptor_cp.targets.registry import create
from raptor_cp.validation import violations
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from raptor_cp.result import ScheduleResult

SCENARIOS = Path(__file__).parents[1] / "scenarios"


class Watch:
    """Remembers the phases."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def phase(self, name: str) -> None:
        self.seen.append(name)

    def solved(self, solves: int, spent: float, limit: float) -> None:
        pass

    def completing(self, completion_ns: int) -> None:
        pass


def run(loaded: LoadedScenario) -> ScheduleResult:
    target = create(loaded)
    prepared = prepare(loaded, target)
    assert isinstance(prepared, Prepared)
    watch = Watch()
    result = run_latency(loaded, target, prepared, watch, Phases())
    assert watch.seen[0] == "list scheduling"
    return result


def scenario(name: str, *overrides: str) -> LoadedScenario:
    return load(SCENARIOS / f"{name}.yaml", overrides)


def with_method(loaded: LoadedScenario, method: str) -> LoadedScenario:
    latency = loaded.scenario.latency.model_copy(update={"method": method})
    changed = loaded.scenario.model_copy(update={"latency": latency})
    return loaded.model_copy(update={"scenario": changed})


@pytest.mark.parametrize(
    ("method", "completion", "verdict"),
    [
        ("peft", 122, Verdict.FEASIBLE),
        ("heft", 133, Verdict.FEASIBLE),
        ("cp-sat", 113, Verdict.OPTIMAL),
    ],
)
def test_the_methods_side_by_side(
    method: str, completion: int, verdict: Verdict
) -> None:
    result = run(with_method(scenario("peft-paper"), method))
    assert result.verdict is verdict
    assert result.latency_ns == completion
    assert result.interval_ns is None
    assert result.certificate is not None
    assert result.certificate.to_dict()["bound_ns"] == 113
    assert result.schedule is not None
    assert violations(result.schedule) == ()
    assert len(result.solver) == 2


def test_shipped_examples_meet_their_expectations() -> None:
    for name in ("peft-paper", "heft-paper"):
        result = run(scenario(name))
        assert all(expectation.held for expectation in result.expectations())
        assert result.exit_code == 0


def test_without_the_solver() -> None:
    result = run(scenario("peft-paper", "solver.enabled=false"))
    assert result.verdict is Verdict.FEASIBLE
    assert result.solver == ()
    assert result.certificate is not None
    assert result.certificate.to_dict()["proof"] == "path"
    assert any("solver is off" in note for note in result.notes)


def test_a_network_on_a_pim_chip() -> None:
    result = run(scenario("tiny-residual", "mode=latency"))
    assert result.verdict in (Verdict.FEASIBLE, Verdict.OPTIMAL)
    assert result.schedule is not None
    assert violations(result.schedule) == ()
    document = result.to_dict()
    again = run(scenario("tiny-residual", "mode=latency")).to_dict()
    for run_ in (document, again):
        run_.pop("phases")
    assert document == again


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18-arch-a", "bert-block-arch-a"])
def test_networks_on_arch_a(name: str) -> None:
    result = run(scenario(name, "mode=latency"))
    assert result.verdict is Verdict.FEASIBLE
    assert result.schedule is not None
    assert violations(result.schedule) == ()
    assert result.certificate is not None
    gap = result.certificate.gap_interval
    assert gap is not None
    assert 0 < gap < 0.5


TIGHT = """
schema: raptor-cp/1
name: tight
network:
  tasks: [{tasks}]
  weights: [{weights}]
target: {{kind: table, cores: {cores}, slots_per_core: 10}}
mode: latency
"""


def tight(sets: list[str], slots: dict[str, int], cores: int) -> LoadedScenario:
    tasks = ", ".join(
        f"{{id: t{n}, execution_ns: 10, weights: [{', '.join(held)}]}}"
        for n, held in enumerate(sets)
    )
    weights = ", ".join(f"{{id: {w}, slots: {s}}}" for w, s in slots.items())
    return loads(TIGHT.format(tasks=tasks, weights=weights, cores=cores))


def test_proved_infeasible_with_a_conflict() -> None:
    result = run(tight(["a", "b", "c"], {"a": 6, "b": 6, "c": 6}, 2))
    assert result.verdict is Verdict.INFEASIBLE
    assert result.infeasibility is not None
    assert result.infeasibility.proof.startswith("counting bound")
    assert result.infeasibility.levers
    assert result.exit_code == 1


def test_the_packing_model_proves_what_the_search_cannot() -> None:
    """Union bound 2, every pair of sets exceeds a core: three cores are needed."""
    sets = ["abc", "cde", "eaf"]
    slots = {"a": 3, "b": 4, "c": 3, "d": 4, "e": 3, "f": 3}
    result = run(tight(sets, slots, 2))
    assert result.verdict is Verdict.INFEASIBLE
    assert result.infeasibility is not None
    assert "weight slots" in result.infeasibility.reason
    assert run(tight(sets, slots, 3)).verdict is not Verdict.INFEASIBLE


def test_an_unknown_method() -> None:
    with pytest.raises(MalformedInput, match="no such latency method"):
        run(with_method(scenario("peft-paper"), "cpop"))
