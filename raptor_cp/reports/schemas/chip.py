"""``reports/chip.json``: where the cores lie."""

from __future__ import annotations

from raptor_cp.reports.chip import SCHEMA
from raptor_cp.reports.schemas.fields import (
    Schema,
    constant,
    document,
    integer,
    or_null,
    positions,
)

CHIP: Schema = document(
    "chip",
    "The cores of the chip, for drawings",
    {
        "schema": constant(SCHEMA, "version of the format"),
        "cores": integer("number of cores"),
        "slots_per_core": integer("weight slots of each core"),
        "rows": or_null(positions("row of each core; null without places")),
        "columns": or_null(positions("column of each core; null without places")),
    },
)
