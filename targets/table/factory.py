"""Builds the table target from a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import TableTarget as TableSpec
from raptor_cp.target import MemoryModel
from raptor_cp.targets.table.target import TableTarget

if TYPE_CHECKING:
    from raptor_cp.scenario import LoadedScenario


def create(loaded: LoadedScenario) -> TableTarget:
    """The table target of a scenario.

    Raises:
        MalformedInput: another kind of target, or a matrix of the wrong shape.
    """
    spec = loaded.scenario.target
    if not isinstance(spec, TableSpec):
        raise MalformedInput(
            "not a table target", where="target.kind", value=spec.kind, expected="table"
        )
    memory = spec.memory
    return TableTarget(
        spec.cores,
        spec.slots_per_core,
        spec.link_ns,
        spec.handshake_ns,
        spec.link_width,
        MemoryModel(memory.width, memory.read_ns, memory.write_ns),
    )
