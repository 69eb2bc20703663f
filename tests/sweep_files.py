"""Sweeps of scenarios that take milliseconds, for the tests of sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = """\
schema: raptor-cp/1
name: chain
network:
  tasks:
    - {id: a, execution_ns: 30}
    - {id: b, execution_ns: 50}
    - {id: c, execution_ns: 20}
  edges: [{src: a, dst: b, bytes: 4}, {src: b, dst: c, bytes: 2}]
target: {kind: table, cores: 3, link_ns: 1}
pipeline: {stages: 2}
solver: {enabled: false}
"""


def write_sweep(folder: Path, text: str, scenario: str = SCENARIO) -> Path:
    """A scenario file ``chain.yaml`` and a sweep of it: ``text`` is its body."""
    (folder / "chain.yaml").write_text(scenario)
    path = folder / "sweep.yaml"
    path.write_text(f"schema: raptor-cp/sweep/1\nscenarios: [chain.yaml]\n{text}")
    return path


def numbered(points: int) -> str:
    """The body of a sweep with so many different points, five stages deep at most."""
    links = ", ".join(str(number) for number in range(1, -(-points // 2) + 1))
    return f"grid: {{target.link_ns: [{links}], pipeline.stages: [1, 2]}}\n"
