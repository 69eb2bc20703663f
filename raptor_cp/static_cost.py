"""The static estimate in the place of the queue estimate (``search.timing: static``).

It answers the same question as a target's realized cost, without realization: the
interval is the largest of core work, shared-memory service and stage span.  Nothing
contends in it, which is why reports say ``timing: static``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.target import ProcessorGuidance, RealizedCost

if TYPE_CHECKING:
    from raptor_cp.schedules import Schedule


def static_cost(schedule: Schedule) -> RealizedCost:
    """Static interval of a schedule, the same under both tie orders."""
    summary = schedule.summary
    spans = summary.stage_spans_ns
    critical = sorted(range(len(spans)), key=lambda s: (-spans[s], s))
    return RealizedCost(
        timing="static",
        interval_ns=summary.static_interval_ns,
        alternative_ns=summary.static_interval_ns,
        recurrence_proved=True,
        guidance=ProcessorGuidance(summary.stage_loads_ns, tuple(critical)),
        details=(
            ("core_work_ns", max(summary.core_work_ns)),
            ("memory_service_ns", summary.memory_service_ns),
            ("stage_span_ns", max(spans, default=summary.completion_ns)),
        ),
    )
