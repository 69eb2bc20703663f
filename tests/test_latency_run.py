"""``mode: latency`` as a run: verdicts, certificates, the solver's last word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raptor_cp
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


def test_steps_and_limits_are_in_the_result() -> None:
    roomy = run(tight(["a", "b"], {"a": 6, "b": 6}, 2)).to_dict()["list_schedule"]
    assert roomy == {
        "method": "peft",
        "verdict": "FEASIBLE",
        "reason": None,
        "makespan_ns": 10,
        "reservation": "arrival",
        "packing": None,
        "budgets": {
            "packing_deviations": {"used": 0, "limit": 16},
            "core_candidate_checks": {"used": 0, "limit": 65_536},
        },
    }
    sets = ["abc", "cde", "eaf"]
    slots = {"a": 3, "b": 4, "c": 3, "d": 4, "e": 3, "f": 3}
    failed = run(tight(sets, slots, 2)).to_dict()["list_schedule"]
    assert isinstance(failed, dict)
    assert failed["verdict"] == "UNKNOWN"
    assert "deviations" in failed["reason"]
    for use in failed["budgets"].values():
        assert 0 <= use["used"] <= use["limit"]
    assert failed["budgets"]["core_candidate_checks"]["used"] > 0


def test_slots_starts_ends_and_classes_are_in_the_result() -> None:
    result = run(scenario("resnet18-arch-a", "mode=latency", "solver.enabled=false"))
    document = result.schedule_document()
    assert result.schedule is not None
    graph, placement = result.schedule.problem.graph, result.schedule.placement
    cores = document["cores"]
    assert isinstance(cores, list)
    assert [core["tasks"] for core in cores] == [list(o) for o in placement.order]
    for core in cores:
        held = core["tasks"]
        assert core["stage"] is None
        assert core["slots"] == list(range(len(held)))
        assert core["starts_ns"] == [int(result.schedule.start_ns[t]) for t in held]
        assert core["starts_ns"] == sorted(core["starts_ns"])
        assert core["last_task"] == (held[-1] if held else None)
    classes = document["equivalence_classes"]
    assert isinstance(classes, list)
    assert sorted(t for group in classes for t in group) == list(
        range(graph.task_count)
    )
    assert len(classes) < graph.task_count  # lanes of one operation are alike
    for group in classes:
        assert len({int(graph.task_operation[t]) for t in group}) == 1


def test_compare_has_every_method_with_bound_and_gap() -> None:
    rows = {
        row.method: row for row in raptor_cp.compare(str(SCENARIOS / "peft-paper.yaml"))
    }
    assert list(rows) == ["peft", "heft", "cp-sat"]
    assert [row.latency_ns for row in rows.values()] == [122, 133, 113]
    for row in rows.values():
        assert row.bound_ns == 113
        assert row.latency_ns is not None
        assert row.gap == pytest.approx((row.latency_ns - 113) / 113)
        assert row.interval_ns is None
    assert rows["cp-sat"].verdict == "OPTIMAL"


def test_a_method_by_the_command_line(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from raptor_cp.cli.app import app

    paper, out = str(SCENARIOS / "peft-paper.yaml"), str(tmp_path / "run")
    runner = CliRunner()
    done = runner.invoke(
        app, ["schedule", paper, "--method", "cp-sat", "--out", out, "--json"]
    )
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert (document["verdict"], document["latency_ns"]) == ("OPTIMAL", 113)
    pipeline = str(SCENARIOS / "tiny-residual.yaml")
    refused = runner.invoke(
        app, ["schedule", pipeline, "--method", "heft", "--out", out]
    )
    assert refused.exit_code == 2
    assert "latency mode only" in refused.stderr


@pytest.mark.parametrize("method", ["peft", "heft", "cp-sat"])
def test_entry_and_exit_tasks_without_time(method: str) -> None:
    """Published graphs often have one entry and one exit that cost nothing."""
    loaded = loads(
        f"""
schema: raptor-cp/1
name: dummies
network:
  tasks:
    - {{id: in, execution_ns: 0}}
    - {{id: a, execution_ns: [7, 9]}}
    - {{id: b, execution_ns: [8, 3]}}
    - {{id: out, execution_ns: [0, 0]}}
  edges:
    - {{src: in, dst: a}}
    - {{src: in, dst: b}}
    - {{src: a, dst: out, bytes: 3}}
    - {{src: b, dst: out, bytes: 2}}
target: {{kind: table, cores: 2}}
mode: latency
latency: {{method: {method}}}
"""
    )
    result = run(loaded)
    assert result.verdict is Verdict.OPTIMAL
    assert result.static_latency_ns == 7
    assert result.schedule is not None
    assert violations(result.schedule) == ()
