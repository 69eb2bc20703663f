"""The counted budgets of the search: one object that the search cannot exceed.

Limits are those of the scheduling spec, "Default throughput selection": at most
32 complete queue costs, 128 constructive allocations and physical packings, a
beam of two, two new placements a round, a shortlist of at most 2C; for each packing
recovery 16 single-choice deviations within 65,536 core-candidate checks; at most
sixteen units of spare cores in the initial partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.pipeline.packing import CHECK_LIMIT, DEVIATION_LIMIT, RecoveryUse

BEAM_LIMIT = 2
QUEUE_EVALUATION_LIMIT = 32
PACKING_LIMIT = 128
PLACEMENTS_PER_ROUND = 2
#: Most units of spare cores in the initial partition (the spec's Q).
UNIT_LIMIT = 16


@dataclass(slots=True)
class Counter:
    """Counts up to a limit; taking more than is left is a bug and raises."""

    name: str
    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        """How many may still be taken."""
        return self.limit - self.used

    def take(self) -> None:
        """Count one."""
        if self.used >= self.limit:
            raise InternalError(f"budget {self.name!r} exceeded: limit {self.limit}")
        self.used += 1


class SearchBudget:
    """Queue evaluations, packings, and the largest counts of their parts.

    Args:
        queue_evaluations: complete queue costs, 1 to 32.
        packings: constructive allocations and physical packings, 1 to 128.
        beam: schedules kept, 1 or 2.

    Raises:
        MalformedInput: a value outside the spec's limits.
    """

    def __init__(
        self,
        queue_evaluations: int = QUEUE_EVALUATION_LIMIT,
        packings: int = PACKING_LIMIT,
        beam: int = BEAM_LIMIT,
    ) -> None:
        for name, value, limit in (
            ("queue_evaluations", queue_evaluations, QUEUE_EVALUATION_LIMIT),
            ("packings", packings, PACKING_LIMIT),
            ("beam", beam, BEAM_LIMIT),
        ):
            if not 1 <= value <= limit:
                raise MalformedInput(
                    f"{name} is outside the limits of the search",
                    where="search budget",
                    value=value,
                    expected=f"1 to {limit}",
                )
        self.queue_evaluations = Counter("queue evaluations", queue_evaluations)
        self.packings = Counter("packings", packings)
        self.beam = beam
        self.largest_shortlist = 0
        self.largest_round = 0
        self.rounds = 0
        #: Units of the initial partition's quality grid; 0 without one.
        self.spare_units = 0
        #: Largest counts of one packing recovery.
        self.recovery = RecoveryUse()

    @property
    def spent(self) -> str | None:
        """Name of the budget that ended the search, None while both have some left."""
        for counter in (self.queue_evaluations, self.packings):
            if counter.left == 0:
                return counter.name
        return None

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Used and limit of every budget, for reports."""
        return {
            "queue_evaluations": {
                "used": self.queue_evaluations.used,
                "limit": self.queue_evaluations.limit,
            },
            "packings": {"used": self.packings.used, "limit": self.packings.limit},
            "beam": {"used": self.beam, "limit": BEAM_LIMIT},
            "placements_per_round": {
                "used": self.largest_round,
                "limit": PLACEMENTS_PER_ROUND,
            },
            "shortlist": {
                "used": self.largest_shortlist,
                "limit": 2 * self.queue_evaluations.limit,
            },
            "spare_units": {"used": self.spare_units, "limit": UNIT_LIMIT},
            "packing_deviations": {
                "used": self.recovery.deviations,
                "limit": DEVIATION_LIMIT,
            },
            "core_candidate_checks": {
                "used": self.recovery.checks,
                "limit": CHECK_LIMIT,
            },
            "rounds": {"used": self.rounds, "limit": self.queue_evaluations.limit},
        }
