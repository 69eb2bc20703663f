"""Builds the PIM target from a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import PimTarget as PimSpec
from raptor_cp.targets.pim.config import builtin_configs, load_config
from raptor_cp.targets.pim.target import PimTarget

if TYPE_CHECKING:
    from raptor_cp.scenario import LoadedScenario


def create(loaded: LoadedScenario) -> PimTarget:
    """The chip of a scenario: a built-in configuration by name, or a file.

    Raises:
        MalformedInput: another kind of target, or a wrong configuration.
    """
    scenario = loaded.scenario
    spec = scenario.target
    if not isinstance(spec, PimSpec):
        raise MalformedInput(
            "not a pim target", where="target.kind", value=spec.kind, expected="pim"
        )
    # A name is never a file: the same scenario means the same in every folder.
    named = spec.config in builtin_configs()
    config = load_config(
        spec.config if named else loaded.path(spec.config),
        core_count=spec.cores,
        crossbar_count=spec.crossbars_per_core,
        crossbar_size=spec.crossbar_size,
    )
    return PimTarget(config)
