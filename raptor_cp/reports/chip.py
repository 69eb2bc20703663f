"""``reports/chip.json``: where the cores lie, for drawings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor_cp.target import Resources

SCHEMA = "raptor-cp/chip/1"


def chip_document(resources: Resources) -> dict[str, object]:
    """Cores, capacity, and a row and column for each core (null without places)."""
    places = resources.positions
    return {
        "schema": SCHEMA,
        "cores": resources.cores,
        "slots_per_core": resources.slots_per_core,
        "rows": None if places is None else places[:, 0].tolist(),
        "columns": None if places is None else places[:, 1].tolist(),
    }
