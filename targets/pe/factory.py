"""Builds the pe target from a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.targets.pe.analysis import scenario_topology
from raptor_cp.targets.pe.target import PeTarget

if TYPE_CHECKING:
    from raptor_cp.scenario import LoadedScenario


def create(loaded: LoadedScenario) -> PeTarget:
    """The elements of a scenario's topology.

    Raises:
        MalformedInput: another kind of target, or a wrong topology.
    """
    return PeTarget(scenario_topology(loaded))
