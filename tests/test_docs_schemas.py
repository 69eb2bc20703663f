"""The report schemas against the documents of real runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from jsonschema import Draft202012Validator

import raptor_cp as rc
from raptor_cp.reports.schemas import FILES, SCHEMAS
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

TWO_TASKS = {
    "schema": "raptor-cp/1",
    "name": "two-tasks",
    "network": {
        "tasks": [
            {"id": "a", "execution_ns": 100, "weights": ["w"]},
            {"id": "b", "execution_ns": 80, "weights": ["v"]},
        ],
        "edges": [{"src": "a", "dst": "b", "bytes": 64}],
        "weights": [{"id": "w", "slots": 2}, {"id": "v", "slots": 3}],
    },
    "target": {"kind": "table", "cores": 2, "slots_per_core": 4},
    "pipeline": {"stages": 2},
}
TINY = ROOT / "scenarios" / "tiny-residual.yaml"

#: Runs that between them write every form of every document.
RUNS: dict[str, tuple[object, dict[str, object]]] = {
    "pipeline": (TINY, {}),
    "direct": (TINY, {"pipeline.cross_stage": "direct"}),
    "barrier": (TINY, {"pipeline.synchronization": "barrier"}),
    "static": (TINY, {"search.timing": "static", "solver.enabled": False}),
    "single": (TINY, {"pipeline.stages": 1}),
    "latency": (TINY, {"mode": "latency"}),
    "edges": (TWO_TASKS, {}),
    "solver": (ROOT / "scenarios" / "greedy-fails-cp-sat-packs.yaml", {}),
    "infeasible": (TWO_TASKS, {"target.slots_per_core": 2}),
    "commands": (ROOT / "scenarios" / "gqa-decode-pe.yaml", {"pipeline.stages": 2}),
}


@pytest.mark.parametrize("name", RUNS)
def test_documents_of_a_run_follow_their_schemas(name: str, tmp_path: Path) -> None:
    scenario, overrides = RUNS[name]
    rc.schedule(scenario, overrides=overrides, out=tmp_path / "run")  # type: ignore[arg-type]
    found = sorted(
        path.relative_to(tmp_path / "run").as_posix()
        for path in (tmp_path / "run").rglob("*.json")
        if "program" not in path.parts
    )
    assert {"run.json", "result.json"} <= set(found)
    for file in found:
        assert file in FILES, f"{file} has no schema in raptor_cp.reports.schemas"
        document = json.loads((tmp_path / "run" / file).read_text("utf-8"))
        complain(document, FILES[file], file)


def test_result_with_its_schedule(tmp_path: Path) -> None:
    document = json.loads(json.dumps(rc.check(TWO_TASKS).to_dict()))
    complain(document, "result", "to_dict()")
    complain(document["schedule"], "schedule", "to_dict()['schedule']")


def test_trace_of_a_kernel() -> None:
    from raptor_cp.targets.pe.trace import trace_events

    found = rc.dispatch("gqa_decode_opt3", tiles=2)
    trace = trace_events(found.timeline, "kernel")
    complain(json.loads(json.dumps(trace)), "trace", "dispatch --trace")


def test_recorded_results() -> None:
    files = sorted((ROOT / "scenarios" / "expected").glob("*.json"))
    assert len(files) >= 12
    for file in files:
        complain(json.loads(file.read_text("utf-8")), "expected", file.name)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_schemas_and_closed(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])
    for place, part in parts(SCHEMAS[name], name):
        if "properties" in part:
            assert part["additionalProperties"] is False, place
            assert part.get("description"), f"{place} says nothing"
            for key, entry in part["properties"].items():  # type: ignore[attr-defined]
                assert entry.get("description"), f"{place}.{key} says nothing"


@pytest.mark.parametrize("key", ["interval_ns", "verdict", "certificate"])
def test_schema_refuses_a_missing_and_an_unknown_key(key: str) -> None:
    document = json.loads(json.dumps(rc.check(TWO_TASKS).to_dict()))
    validator = Draft202012Validator(SCHEMAS["result"])
    assert not list(validator.iter_errors(document))
    assert list(validator.iter_errors(document | {f"{key}_": 1}))
    del document[key]
    assert list(validator.iter_errors(document))


def complain(document: object, schema: str, file: str) -> None:
    """Fail with the first difference, and say where to document it."""
    for error in Draft202012Validator(SCHEMAS[schema]).iter_errors(document):
        while error.context:
            error = max(error.context, key=lambda e: len(e.absolute_path))
        pytest.fail(
            f"{file}: {error.json_path}: {error.message[:400]} "
            "(raptor_cp/reports/schemas describes every key)"
        )


def parts(schema: object, place: str) -> list[tuple[str, dict[str, object]]]:
    """All schemas inside a schema, with their places."""
    found: list[tuple[str, dict[str, object]]] = []
    if isinstance(schema, dict):
        found.append((place, schema))
        for key, value in schema.items():
            if key != "required":
                found.extend(parts(value, f"{place}.{key}"))
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            found.extend(parts(value, f"{place}[{number}]"))
    return found
