"""The latency methods by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raptor_cp.errors import MalformedInput
from raptor_cp.latency.heft import HeftScheduler
from raptor_cp.latency.peft import PeftScheduler

if TYPE_CHECKING:
    from raptor_cp.latency.list_scheduling import LatencyScheduler, ListScheduler
    from raptor_cp.schedules import Problem

METHODS: Final[dict[str, type[ListScheduler]]] = {
    scheduler.name: scheduler for scheduler in (PeftScheduler, HeftScheduler)
}


def latency_scheduler(name: str, problem: Problem) -> LatencyScheduler:
    """The scheduler of a name.

    Raises:
        MalformedInput: there is none.
    """
    if name not in METHODS:
        raise MalformedInput(
            "no such latency method",
            where="latency.method",
            value=name,
            expected=f"one of {', '.join(METHODS)}",
        )
    return METHODS[name](problem)
