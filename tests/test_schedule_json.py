"""schedule.json is checked by somebody who has only the file."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.reports.files import json_text, write_json, write_text
from raptor_cp.reports.schedule_json import schedule_document
from raptor_cp.static_evaluation import evaluate
from raptor_cp.target import RealizedCost, Unavailable
from raptor_cp.verdict import Verdict
from tests.instances import generator, random_placement, random_problem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raptor_cp.schedules import Schedule

KEYS = {
    "": "schema scenario capacity weights tasks edges groups cores "
    "equivalence_classes stages verdict certificate costs",
    "weights": "id slots",
    "tasks": "id operation group lane execution_ns weights",
    "edges": "src dst bytes",
    "groups": "index operation",
    "cores": "id stage tasks slots starts_ns last_task",
    "stages": "index groups cores",
}


def check(text: str) -> None:
    """An independent checker: nothing but the JSON text.

    Raises:
        ValueError: what is wrong.
    """
    doc: dict[str, Any] = json.loads(text)

    def need(condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(what)

    for place, keys in KEYS.items():
        for record in doc[place] if place else [doc]:
            need(list(record) == keys.split(), f"keys of {place or 'the document'}")
    for place in ("weights", "tasks", "cores"):
        ids = [record["id"] for record in doc[place]]
        need(ids == list(range(len(ids))), f"ids of {place}")
    tasks, groups, stages = doc["tasks"], doc["groups"], doc["stages"]
    names = [group["operation"] for group in groups]
    need([g["index"] for g in groups] == list(range(len(names))), "group indices")
    need(all(names[t["group"]] == t["operation"] for t in tasks), "operations")
    where: dict[int, int] = {}
    start: dict[int, int] = {}
    for core in doc["cores"]:
        ids = core["tasks"]
        need(core["slots"] == list(range(len(ids))), "slots")
        need(core["last_task"] == (ids[-1] if ids else None), "last task")
        held = {w for t in ids for w in tasks[t]["weights"]}
        used = sum(doc["weights"][w]["slots"] for w in held)
        need(used <= doc["capacity"], "capacity")
        for task, time in zip(ids, core["starts_ns"], strict=True):
            need(task not in where and 0 <= task < len(tasks), "each task once")
            where[task], start[task] = core["id"], time
        for a, b in pairwise(ids):
            need(start[a] + tasks[a]["execution_ns"] <= start[b], "overlap")
    need(len(where) == len(tasks), "each task once")
    owner: dict[int, int] = {}
    if stages:
        need([s["index"] for s in stages] == list(range(len(stages))), "stages")
        need([g for s in stages for g in s["groups"]] == list(range(len(names))), "cut")
        owned = [c for s in stages for c in s["cores"]]
        need(len(set(owned)) == len(owned), "disjoint cores")
        for stage in stages:
            members = {t["id"] for t in tasks if t["group"] in stage["groups"]}
            need(bool(members), "empty stage")
            need({where[t] for t in members} <= set(stage["cores"]), "stage cores")
            owner.update(dict.fromkeys(members, stage["index"]))
            for core in stage["cores"]:
                need(doc["cores"][core]["stage"] == stage["index"], "stage of core")
    else:
        need(all(core["stage"] is None for core in doc["cores"]), "stage of core")
        owner = dict.fromkeys(where, 0)
    depth = dict.fromkeys(where, 0)
    for edge in sorted(doc["edges"], key=lambda e: (e["src"], e["dst"])):
        a, b = edge["src"], edge["dst"]
        need(a < b and edge["bytes"] >= 0, "edge")
        need(start[a] + tasks[a]["execution_ns"] <= start[b], "dependency")
        need(owner[a] <= owner[b], "dependency to an earlier stage")
        if owner[a] == owner[b]:
            depth[b] = max(depth[b], depth[a] + tasks[a]["execution_ns"])
    classed = [t for group in doc["equivalence_classes"] for t in group]
    need(sorted(classed) == list(range(len(tasks))), "classes")
    for group in doc["equivalence_classes"]:
        need(len({tasks[t]["group"] for t in group}) == 1, "class of one group")
    costs = doc["costs"]
    work = [sum(tasks[t]["execution_ns"] for t in c["tasks"]) for c in doc["cores"]]
    need(costs["core_work_ns"] == work, "core work")
    need(costs["serial_work_ns"] == sum(work), "serial work")
    ends = [start[t] + tasks[t]["execution_ns"] for t in where]
    need(costs["completion_ns"] == max(ends), "completion")
    loads = [max(work[c] for c in s["cores"]) for s in stages]
    need(costs["stage_loads_ns"] == loads, "stage loads")
    spans = dict.fromkeys(owner.values(), 0)
    for task, stage in owner.items():
        end = depth[task] + tasks[task]["execution_ns"]
        spans[stage] = max(spans[stage], end)
    largest = [max(loads[s] if stages else max(work), spans[s]) for s in spans]
    need(costs["static_objective_ns"] == max(largest), "static objective")
    within = costs["stage_spans_ns"] or [costs["completion_ns"]]
    interval = max(*work, costs["memory_service_ns"], *within)
    need(costs["static_interval_ns"] == interval, "static interval")
    need(doc["verdict"] in ("FEASIBLE", "OPTIMAL"), "verdict")


def _schedule(seed: int = 11, stages: int = 2) -> Schedule:
    rng = generator(seed)
    problem = random_problem(rng, operations=4, uneven_cores=True)
    return evaluate(problem, random_placement(rng, problem, stages))


def _text(schedule: Schedule) -> str:
    return json_text(schedule_document(schedule, {"name": "x"}, Verdict.FEASIBLE))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_documents_pass_the_independent_checker(seed: int) -> None:
    rng = generator(seed)
    operations = int(rng.integers(1, 6))
    problem = random_problem(rng, operations=operations, uneven_cores=bool(seed % 2))
    for stages in (0, int(rng.integers(1, operations + 1))):
        check(_text(evaluate(problem, random_placement(rng, problem, stages))))


def _swap_cores(doc: dict[str, Any]) -> None:
    """Move the last task of the last busy core to a core of another stage."""
    busy = [core for core in doc["cores"] if core["tasks"]]
    source = busy[-1]
    target = next(c for c in busy if c["stage"] != source["stage"])
    for key in ("tasks", "starts_ns"):
        target[key].append(source[key].pop())
    target["slots"] = list(range(len(target["tasks"])))
    source["slots"] = list(range(len(source["tasks"])))
    for core in (source, target):
        core["last_task"] = core["tasks"][-1] if core["tasks"] else None


def _drop_task(doc: dict[str, Any]) -> None:
    core = next(core for core in doc["cores"] if core["tasks"])
    for key in ("tasks", "starts_ns", "slots"):
        core[key].pop()
    core["last_task"] = core["tasks"][-1] if core["tasks"] else None


def _raise_start(doc: dict[str, Any]) -> None:
    edge = doc["edges"][0]
    for core in doc["cores"]:
        if edge["dst"] in core["tasks"]:
            core["starts_ns"][core["tasks"].index(edge["dst"])] = 0


@pytest.mark.parametrize(
    "spoil",
    [
        _swap_cores,
        _drop_task,
        _raise_start,
        lambda doc: doc.update(capacity=0),
        lambda doc: doc.update(extra=1),
        lambda doc: doc["costs"].update(serial_work_ns=1),
        lambda doc: doc["costs"].update(static_objective_ns=1),
        lambda doc: doc["costs"].update(static_interval_ns=1),
        lambda doc: doc["costs"].update(completion_ns=1),
        lambda doc: doc["stages"].reverse(),
        lambda doc: doc["equivalence_classes"].pop(),
    ],
)
def test_the_checker_sees_what_is_wrong(
    spoil: Callable[[dict[str, Any]], object],
) -> None:
    doc = json.loads(_text(_schedule()))
    check(json.dumps(doc))
    spoil(doc)
    with pytest.raises(ValueError, match=r"\w"):
        check(json.dumps(doc))


def test_timing_and_certificate() -> None:
    schedule = _schedule()
    doc = schedule_document(schedule, {"name": "x"}, Verdict.FEASIBLE)
    costs = doc["costs"]
    assert isinstance(costs, dict)
    assert doc["certificate"] == {}
    assert costs["timing"] == "static"
    assert costs["interval_ns"] == schedule.summary.static_interval_ns
    cost = RealizedCost(
        "queue", Unavailable("too many events"), 7, False, failures=("no recurrence",)
    )
    doc = schedule_document(
        schedule, {"name": "x"}, Verdict.OPTIMAL, {"proof": "decomposition"}, cost
    )
    costs = doc["costs"]
    assert isinstance(costs, dict)
    assert (doc["verdict"], doc["certificate"]) == (
        "OPTIMAL",
        {"proof": "decomposition"},
    )
    assert costs["timing"] == "queue"
    assert costs["interval_ns"] == {"unavailable": "too many events"}
    assert costs["alternative_interval_ns"] == 7
    assert costs["failures"] == ["no recurrence"]
    json_text(doc)


def test_the_same_schedule_gives_the_same_bytes() -> None:
    assert _text(_schedule()) == _text(_schedule())
    assert _text(_schedule()).endswith("}\n")


def test_files_are_renamed_into_place(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "a.json"
    write_json(place, {"b": 1, "a": [1.5, "ü", None, True]})
    assert (
        place.read_text(encoding="utf-8") == '{"b": 1, "a": [1.5, "ü", null, true]}\n'
    )
    write_text(place, "x\n")
    assert place.read_bytes() == b"x\n"
    assert [p.name for p in place.parent.iterdir()] == ["a.json"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MalformedInput, match="cannot be written"):
        write_text(tmp_path / "file" / "a.json", "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(MalformedInput, match="cannot be written"):
        write_text(tmp_path / "folder", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, {1: 2}, {"a": {2: 3}}, object(), [[object()]], {1, 2}]
)
def test_what_json_cannot_say(value: object) -> None:
    with pytest.raises(InternalError, match="what JSON cannot"):
        json_text({"a": value})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
        ),
    )
)
def test_layout_does_not_change_the_content(value: object) -> None:
    assert json.loads(json_text(value)) == value
