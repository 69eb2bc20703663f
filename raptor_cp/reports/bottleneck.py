"""The bottleneck in one sentence, and the evidence that it rests on.

With a timeline: the core of the critical recurrence that is busy most of the time
(of all cores where no recurrence explains the interval), unless the shared memory is
busier still; what limits it is what it spends most of the interval on, or the
recurrence itself where that is work of several cores.  Without a timeline: the largest
term of the static estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.reports.accounting import Accounting, Part
from raptor_cp.reports.html_text import duration, exact_ns, numbers, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.reports.json_view import JsonView

#: A recurrence explains an interval that is at most this much longer.
EXPLAINS = 0.98
#: A shared memory that is busy for this share of the time limits everything.
SATURATED = 0.95

#: A core is limited by its own computing alone when that takes this share.
DOMINATES = 0.9

#: Smaller shares are left out of the sentence about a core.
SHOWN = 0.0005

_OWN, _OTHERS = "its own computing", "waiting for other cores"
#: What a core can be limited by, and the parts of its time that say so.
_LIMITS = {
    _OWN: (Part.COMPUTING,),
    "direct transfers": (Part.SENDING, Part.RECEIVING),
    "shared memory": (Part.LOADING, Part.STORING, Part.WAITING_MEMORY),
    "signals": (Part.SIGNALLING,),
    _OTHERS: (Part.WAITING_CORE, Part.WAITING_SIGNAL),
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a run.

    Attributes:
        sentence: for people.
        core: the core that is named; None where none is.
        evidence: the figures behind the sentence, one phrase each.
    """

    sentence: str
    core: int | None
    evidence: tuple[str, ...]


def queue_bottleneck(
    accounting: Accounting,
    periodic: JsonView | None,
    stage_of: Mapping[int, int],
    *,
    path_ns: int | None = None,
) -> Bottleneck:
    """What the timeline says.

    Args:
        accounting: of the timeline.
        periodic: ``reports/pipeline_periodic.json``.
        stage_of: stage of each core; empty in latency mode.
        path_ns: longest path through the tasks, when the timeline is that of one
            inference alone.
    """
    alone = path_ns is not None
    interval = accounting.window_ns / accounting.generations
    shares = accounting.busy_ns / accounting.window_ns
    critical: list[int] = []
    evidence = []
    recurrence = None if periodic is None or alone else periodic.get("recurrence")
    if recurrence is not None and not recurrence.is_null and recurrence.reason is None:
        ratio = recurrence["interval_ns"].number()
        totals = recurrence.get("totals")
        cores = [] if totals.is_null else totals["cores"].integers()
        evidence.append(
            f"the critical recurrence takes {duration(ratio)}, "
            f"{percent(ratio / interval)} of the interval"
            + (f", through cores {numbers(cores)}" if len(cores) > 1 else "")
            + (f", inside core {cores[0]}" if len(cores) == 1 else "")
        )
        if ratio >= EXPLAINS * interval:
            critical = [core for core in cores if core in accounting.cores]
    candidates = critical or list(accounting.cores)
    core = min(candidates, key=lambda c: (-shares[accounting.row(c)], c))
    share = accounting.busy_share(core)
    parts = accounting.of_core(core)
    sums = {
        limit: sum(parts.get(part, 0) for part in members)
        for limit, members in _LIMITS.items()
    }
    limit = max(sums, key=lambda name: sums[name])
    own = limit == _OWN and sums[limit] < DOMINATES * accounting.window_ns
    if len(critical) > 1 and (own or limit == _OTHERS):
        limit = f"the recurrence through {len(critical)} cores"
    length = "time of the inference" if alone else "interval"
    evidence.append(
        f"core {core} spends "
        + ", ".join(
            f"{percent(ns / accounting.window_ns)} on {name}"
            for name, ns in sorted(sums.items(), key=lambda item: -item[1])
            if ns >= SHOWN * accounting.window_ns
        ).replace(" on waiting", " waiting")
    )
    busiest = min(accounting.cores, key=lambda c: (-shares[accounting.row(c)], c))
    if busiest != core:
        evidence.append(
            f"core {busiest} is busier ({percent(accounting.busy_share(busiest))}) but "
            "not on the critical recurrence"
        )
    if accounting.memory_ns is not None:
        evidence.append(
            f"shared memory serves {percent(accounting.memory_share)} of the {length}"
        )
    if accounting.memory_share >= max(SATURATED, share):
        return Bottleneck(
            f"Shared memory, {_busy(accounting.memory_share)} busy, is what limits "
            f"the {length}.",
            core,
            tuple(evidence),
        )
    if path_ns is not None:
        on_path = path_ns / accounting.window_ns
        return Bottleneck(
            f"The longest path through the tasks takes {_busy(on_path)} of the "
            f"inference; no core is busy for more than {_busy(share)} of it.",
            core,
            tuple(evidence),
        )
    where = f"core {core}"
    if core in stage_of:
        where = f"stage {stage_of[core]}, {where}"
    return Bottleneck(
        f"{where[0].upper()}{where[1:]}, {_busy(share)} busy, limited by {limit}.",
        core,
        tuple(evidence),
    )


def static_bottleneck(costs: JsonView, *, pipeline: bool) -> Bottleneck:
    """What the static estimate says.

    Args:
        costs: ``costs`` of ``schedule.json``.
        pipeline: the schedule has stages.
    """
    work = costs["core_work_ns"].integers()
    core = min(range(len(work)), key=lambda c: (-work[c], c))
    if not pipeline:
        completion = costs["completion_ns"].integer()
        path = costs["critical_path_ns"].integer()
        share = path / completion if completion else 0.0
        return Bottleneck(
            f"The longest path through the tasks, {_busy(share)} of the time of the "
            "inference."
            if share >= 0.5
            else f"Core {core}, {_busy(work[core] / max(completion, 1))} busy with "
            "computing.",
            core,
            (
                f"longest path {duration(path)}, completion {duration(completion)}",
                f"largest work of a core {duration(work[core])}, core {core}",
            ),
        )
    loads = costs["stage_loads_ns"].integers()
    spans = costs["stage_spans_ns"].integers()
    memory = costs["memory_service_ns"].integer()
    terms = [
        (memory, "Shared memory, whose service of one inference is the longest"),
        *(
            (ns, f"Stage {n}, limited by its fullest core")
            for n, ns in enumerate(loads)
        ),
        *(
            (ns, f"Stage {n}, limited by the dependencies between its tasks")
            for n, ns in enumerate(spans)
        ),
    ]
    largest = max(ns for ns, _ in terms)
    text = next(text for ns, text in terms if ns == largest)
    return Bottleneck(
        f"{text}: {duration(largest)} (static estimate).",
        core,
        (
            f"largest stage load {exact_ns(max(loads))}",
            f"largest stage span {exact_ns(max(spans))}",
            f"shared-memory service {exact_ns(memory)}",
        ),
    )


def _busy(share: float) -> str:
    return percent(share, 0)
