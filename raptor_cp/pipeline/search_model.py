"""The pipeline's own search model: proxies, constructive placement, costs.

The proxy of a neighbour is the larger of its slowest stage (packing curve, which
includes the dependency span, corrected by what the parent's stages really took) and
the shared-memory service of its cuts.  Ties go to the lower slowest stage, then to
moves that touch the parent's critical stages (scheduling spec, "Costs and
interpretation").
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.pipeline.beam import Scored
from raptor_cp.pipeline.budgets import minimax_budgets, with_idle_cores
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.pipeline.ordered_packing import UNAVAILABLE
from raptor_cp.pipeline.placement import Placed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from raptor_cp.pipeline.beam import Candidate
    from raptor_cp.pipeline.budgets import StagePacking
    from raptor_cp.pipeline.groups import StageLimits
    from raptor_cp.pipeline.neighbourhood import Move
    from raptor_cp.pipeline.placement import StagePlacer
    from raptor_cp.schedules import Schedule
    from raptor_cp.target import RealizedCost

IndexArray = NDArray[np.int32]


class PipelineModel:
    """Prices, places and costs the candidates of one problem.

    Args:
        packing: curves and assignments of segments.
        limits: side constraints on stages.
        placer: topology-aware placement.
        cost_of: one complete cost evaluation of a schedule.
        timed: opens a named phase whose time is reported.
    """

    def __init__(
        self,
        packing: StagePacking,
        limits: StageLimits,
        placer: StagePlacer,
        cost_of: Callable[[Schedule], RealizedCost],
        timed: Callable[[str], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.packing, self.limits, self.placer = packing, limits, placer
        self._cost_of = cost_of
        self._timed = timed or (lambda _: nullcontext())

    def propose(self, parent: Candidate, move: Move) -> Scored | None:
        """Share the changed block's cores (minimax) and price the neighbour."""
        with self._timed("neighbourhood scoring"):
            return self._scored(parent, move)

    def _scored(self, parent: Candidate, move: Move) -> Scored | None:
        groups = self.packing.groups
        vector = StageVector(move.starts, (0,) * len(move.starts))
        segments = vector.segments(groups.count)
        ranges = [self.limits.core_range(i, j) for i, j in segments]
        if any(low > high for low, high in ranges):
            return None
        curves = [self.packing.curve(i, j) for i, j in segments]
        allocation = minimax_budgets(curves, move.pool, kept=move.kept, ranges=ranges)
        if allocation is None:
            return None
        budgets = allocation.budgets
        if allocation.spare:
            budgets = with_idle_cores(
                budgets,
                curves,
                [groups.load_ns(i, j) for i, j in segments],
                allocation.spare,
                changing=[s for s, kept in enumerate(move.kept) if kept is None],
                ranges=ranges,
            )
        if any(
            not low <= budget <= high
            for budget, (low, high) in zip(budgets, ranges, strict=True)
        ):
            return None
        costs = [int(c[budget]) for c, budget in zip(curves, budgets, strict=True)]
        if UNAVAILABLE in costs:
            return None
        slowest = self._expected(parent, move, segments, costs)
        service = groups.traffic.memory_service(move.starts)
        return Scored(
            max(slowest, service),
            (slowest, self._distance_from_bottleneck(parent, move)),
            StageVector(move.starts, budgets),
            move.kind,
        )

    def _expected(
        self,
        parent: Candidate,
        move: Move,
        segments: Sequence[tuple[int, int]],
        costs: Sequence[int],
    ) -> int:
        """Largest stage cost (ns), corrected by what the parent's stages really took.

        A curve knows no transfers.  Where the parent's placed stage took longer than
        its curve, a neighbour's stage is expected to do so in the same proportion:
        that of its own unchanged stage, or the worst of those that the move touches.
        """
        groups = self.packing.groups
        summary = parent.schedule.summary
        ratios: dict[tuple[int, int], tuple[int, int]] = {}
        touched = (0, 1)
        for index, (first, last) in enumerate(parent.vector.segments(groups.count)):
            budget = parent.vector.budgets[index]
            curve = int(self.packing.curve(first, last)[budget])
            real = max(summary.stage_spans_ns[index], curve)
            ratios[first, last] = (real, curve)
            if index in move.touched and real * touched[1] > touched[0] * curve:
                touched = (real, curve)
        return max(
            cost * ratio[0] // max(ratio[1], 1)
            for segment, cost in zip(segments, costs, strict=True)
            for ratio in [ratios.get(segment, touched)]
        )

    @staticmethod
    def _distance_from_bottleneck(parent: Candidate, move: Move) -> int:
        """Rank of the most critical stage that the move touches; 0 is the worst."""
        guidance = None if parent.cost is None else parent.cost.guidance
        if guidance is None:
            return 0
        critical = list(guidance.critical_stages)
        busiest = sorted(
            range(len(guidance.stage_service_ns)),
            key=lambda s: (-guidance.stage_service_ns[s], s),
        )
        order = critical + [s for s in busiest if s not in critical]
        return min(
            (order.index(s) for s in move.touched if s in order), default=len(order)
        )

    def place(
        self,
        vector: StageVector,
        retained: Sequence[IndexArray | None] | None = None,
    ) -> Schedule | None:
        """Constructive assignment of every stage, then physical placement."""
        with self._timed("constructive packing"):
            return self._placed(vector, retained)

    def _placed(
        self,
        vector: StageVector,
        retained: Sequence[IndexArray | None] | None,
    ) -> Schedule | None:
        if retained is None:
            found = [
                self.packing.best_packed(first, last, budget)
                for (first, last), budget in zip(
                    vector.segments(self.packing.groups.count),
                    vector.budgets,
                    strict=True,
                )
            ]
            retained = [None if p is None else p.core_of for p in found]
        outcome = self.placer.place(vector, retained)
        if not isinstance(outcome, Placed):
            return None
        return self.placer.evaluator.schedule(outcome.placement)

    def cost(self, schedule: Schedule) -> RealizedCost:
        """One complete cost evaluation."""
        return self._cost_of(schedule)
