"""Better schedules of one inference on chips that the exact model cannot hold.

Two things in order.  Without a solver: list schedules by every method, as they are and
with copies of weights reserved (:mod:`raptor_cp.latency.copy_search`), also as if
transfers took longer (a transfer blocks both of its ends, which list schedules do not
see: dearer links keep neighbours together).  Then windows of the best schedule, solved
exactly (:mod:`raptor_cp.models.latency_window`) inside the deterministic budget.
Nothing here proves a bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.latency.copy_search import CopySearch
from raptor_cp.latency.list_scheduling import ListSchedule
from raptor_cp.latency.methods import METHODS
from raptor_cp.models.latency_window import WindowSearch
from raptor_cp.models.solving import MAX_COEFFICIENT
from raptor_cp.validation import violations

if TYPE_CHECKING:
    from raptor_cp.models.solving import SolveBudget, SolveSettings
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.static_evaluation import StaticEvaluator

#: List schedules are made with transfers that take so many times their time.
_LINK_FACTORS = (1, 8)


def improve_latency(
    problem: Problem,
    incumbent: Schedule,
    evaluator: StaticEvaluator,
    budget: SolveBudget,
    settings: SolveSettings,
) -> tuple[Schedule, ...]:
    """Schedules of the problem by completion, the incumbent among them.

    Args:
        problem: graph, costs and chip.
        incumbent: a legal schedule of it in latency mode.
        evaluator: of the problem.
        budget: deterministic time; all of it may be spent.
        settings: of the solves.

    Raises:
        InternalError: one of them breaks a rule.
    """
    found = [incumbent]
    schedulers = [
        method(_with_links(problem, factor))
        for factor in _LINK_FACTORS
        for method in METHODS.values()
    ]
    for scheduler in schedulers:
        listed = scheduler.schedule()
        if isinstance(listed, ListSchedule):
            found.append(evaluator.schedule(listed.placement))
    search = CopySearch(problem, schedulers, evaluator)
    while not budget.stopped and search.next_round():
        pass
    found += [schedule for schedule in search.best if schedule is not None]
    best = min(found, key=_completion)
    found.append(
        WindowSearch(problem, evaluator).improve(best, budget, settings=settings)
    )
    distinct = {schedule.placement.key(): schedule for schedule in reversed(found)}
    for schedule in distinct.values():
        wrong = violations(schedule)
        if wrong:
            raise InternalError(f"improved latency schedule: {wrong[0]}")
    return tuple(sorted(reversed(distinct.values()), key=_completion))


def _with_links(problem: Problem, factor: int) -> Problem:
    links = problem.resources.links
    largest = max(
        int(links.handshake_ns.max(initial=0)),
        int(links.unit_ns.max(initial=0)),
        links.read_ns + links.write_ns,
    )
    if factor == 1 or largest * factor > MAX_COEFFICIENT:
        return problem
    dearer = replace(
        links,
        handshake_ns=links.handshake_ns * factor,
        unit_ns=links.unit_ns * factor,
        read_ns=links.read_ns * factor,
        write_ns=links.write_ns * factor,
    )
    return replace(problem, resources=replace(problem.resources, links=dearer))


def _completion(schedule: Schedule) -> int:
    return schedule.summary.completion_ns
