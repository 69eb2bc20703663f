"""Timeline, breakdown, recurrence and search of the HTML report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.periodic.timeline import TrackKind
from raptor_cp.reports.accounting import PARTS, WAITING, Accounting, slice_parts
from raptor_cp.reports.html_drawings import (
    core_bar,
    part_class,
    search_drawing,
    stacked_bar,
    timeline_drawing,
)
from raptor_cp.reports.html_parts import (
    Breakdown,
    Cell,
    Head,
    Recurrence,
    SearchSection,
    Table,
    TimelineSection,
    cells,
)
from raptor_cp.reports.html_text import (
    TimeUnit,
    duration,
    exact_ns,
    numbers,
    percent,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.periodic.timeline import Timeline
    from raptor_cp.reports.json_view import JsonView

#: Rows of the table of longest slices.
LONGEST = 12

LEGEND = (
    ("run", "computing"),
    ("move", "direct transfer"),
    ("memory", "shared memory"),
    ("signal", "signal"),
    ("wait", "waiting"),
)

_EVENT = re.compile(r"^(?P<kind>.*)@(?P<core>-?\d+)(?:\[(?P<link>\d+->\d+)\])?#\d+$")

_CHOICES = {
    "single": "It is the only candidate.",
    "separated": "It is better than the initialized schedule beyond the 2.1 % margin.",
    "near-equivalent": "The best candidate is within the 2.1 % margin, so the "
    "initialized schedule is kept.",
    "initialized": "No candidate is better than the initialized schedule.",
    "accepted-initial": "The initialized schedule was accepted without comparison.",
    "stopped": "The candidates cannot be compared.",
    "interrupted": "The run was interrupted; this is the best candidate so far.",
    "exhausted": "The backend rejected every candidate.",
}


def timeline_section(
    timeline: Timeline,
    accounting: Accounting,
    stage_of: Mapping[int, int],
    core: int,
    *,
    alone: bool,
) -> TimelineSection:
    """All cores over the window, and one of them in large."""
    window, count = timeline.window_ns, timeline.generations
    if alone:
        sentence = (
            f"One inference alone, from a cold start to its last event: "
            f"{exact_ns(window)}."
        )
    elif timeline.proved:
        sentence = (
            f"One whole period of the proved recurrence: {several(count, 'generation')}"
            f" in {exact_ns(window)}; it repeats for ever."
        )
    else:
        sentence = (
            f"{several(count, 'generation')} in {exact_ns(window)}, after the "
            "transient. No recurrence is proved for this window, so other generations "
            "may look different."
        )
    sentence += (
        " Each row is a core; blank is waiting. Colours say what it does; every slice "
        "with its name is in trace.perfetto.json."
    )
    titles = {c: _row_title(accounting, c, stage_of) for c in accounting.cores}
    drawing = timeline_drawing(timeline, stage_of, titles, core)
    shares = [accounting.busy_share(c) for c in accounting.cores]
    description = (
        f"{several(len(shares), 'core')} over {duration(window)}. Busy for "
        f"{percent(min(shares))} to {percent(max(shares))} of the time, "
        f"{percent(sum(shares) / len(shares))} on average. "
        + _row_title(accounting, core, stage_of)
        + "."
    )
    if accounting.memory_ns is not None:
        description += f" Shared memory serves {percent(accounting.memory_share)}."
    return TimelineSection(
        sentence,
        drawing,
        description,
        core,
        core_bar(timeline, core),
        _longest(timeline, core),
        LEGEND,
    )


def _row_title(accounting: Accounting, core: int, stage_of: Mapping[int, int]) -> str:
    parts = accounting.of_core(core)
    stage = f", stage {stage_of[core]}" if core in stage_of else ""
    shown = ", ".join(
        f"{part} {percent(ns / accounting.window_ns)}"
        for part, ns in sorted(parts.items(), key=lambda item: -item[1])[:3]
    )
    return f"core {core}{stage}: {shown}"


def _longest(timeline: Timeline, core: int) -> Table:
    track = next(
        n
        for n, t in enumerate(timeline.tracks)
        if t.kind is TrackKind.CORE and t.core == core
    )
    mine = np.flatnonzero(timeline.track == track)
    order = mine[np.argsort(-timeline.duration_ns[mine], kind="stable")][:LONGEST]
    parts = slice_parts(timeline)
    unit = TimeUnit.fitting([timeline.window_ns])
    rows = []
    for row in order.tolist():
        part = PARTS[int(parts[row])]
        label = timeline.labels[int(timeline.label[row])]
        ns = int(timeline.duration_ns[row])
        rows.append(
            cells(
                Cell(label, kind="name"),
                "waiting" if part in WAITING else str(part),
                unit.text(int(timeline.start_ns[row])),
                unit.text(ns),
                Cell(percent(ns / timeline.window_ns), ns / timeline.window_ns),
            )
        )
    return Table(
        f"Longest slices of core {core}, of {several(len(mine), 'slice')}",
        (
            Head("what", wide=True),
            Head("it is"),
            Head(f"start, {unit.name}", number=True),
            Head(f"length, {unit.name}", number=True),
            Head("share", number=True),
        ),
        tuple(rows),
    )


def breakdown_section(accounting: Accounting, core: int, *, alone: bool) -> Breakdown:
    """Every nanosecond of the window of one core; the parts sum to it."""
    parts = accounting.of_core(core)
    window, count = accounting.window_ns, accounting.generations
    length = "the inference" if alone else "the interval"
    if count > 1:
        length = f"{count} intervals, one period"
    rows = tuple(
        cells(
            Cell(str(part), kind=f"key {part_class(part)}"),
            f"{ns:,}",
            Cell(percent(ns / window, 2), ns / window),
        )
        for part, ns in parts.items()
    )
    table = Table(
        f"Core {core}: where the {window:,} ns of {length} go",
        (Head("part"), Head("ns", number=True), Head("share", number=True)),
        rows,
        foot=cells("sum", f"{sum(parts.values()):,}", percent(1.0, 2)),
    )
    sentence = f"The time of core {core}, part by part; the sum is exactly {length}."
    description = ", ".join(
        f"{part} {percent(ns / window)}" for part, ns in parts.items()
    )
    return Breakdown(sentence, stacked_bar(parts, window), description, table)


@dataclass(slots=True)
class _Step:
    """Consecutive edges of a cycle that leave the same kind of event of one core."""

    core: str
    what: str
    count: int
    delay_ns: int
    distance: int


def recurrence_section(periodic: JsonView) -> Recurrence:
    """The critical cycle as a path, consecutive like events in one step."""
    recurrence = periodic["recurrence"]
    if recurrence.reason is not None:
        return Recurrence(f"Not available: {recurrence.reason}.", None)
    ratio = recurrence["interval_ns"].number()
    witness = recurrence.get("witness")
    if witness.is_null:
        return Recurrence(
            f"The cycle ratio is {exact_ns(ratio)}; no critical cycle was recorded.",
            None,
        )
    totals = recurrence["totals"]
    delay, distance = totals["delay_ns"].integer(), totals["distance"].integer()
    edges = totals["edges"].integer()
    sentence = (
        f"No interval can be below {exact_ns(ratio)}: this dependency cycle takes "
        f"{exact_ns(delay)} and spans {several(distance, 'generation')}. It has "
        f"{several(edges, 'edge')} on core"
        + ("s " if len(totals["cores"]) > 1 else " ")
        + numbers(totals["cores"].integers())
        + "."
    )
    if len(witness) < edges:
        sentence += f" The first {len(witness)} edges are shown."
    steps: list[_Step] = []
    for edge in witness:
        core, what = _event(edge["source_label"].text())
        delay_ns = edge["delay_ns"].integer()
        step = edge["distance"].integer()
        last = steps[-1] if steps else None
        if last and (last.core, last.what) == (core, what) and not last.distance:
            last.count += 1
            last.delay_ns += delay_ns
            last.distance = step
        else:
            steps.append(_Step(core, what, 1, delay_ns, step))
    unit = TimeUnit.fitting(step.delay_ns for step in steps)
    rows = []
    for number, found in enumerate(steps, 1):
        what = found.what + (f" × {found.count}" if found.count > 1 else "")
        ahead = several(found.distance, "generation") if found.distance else ""
        rows.append(
            cells(
                str(number),
                found.core,
                Cell(what, kind="name"),
                unit.text(found.delay_ns),
                Cell(percent(found.delay_ns / delay), found.delay_ns / delay)
                if delay
                else "–",
                f"enters the next: + {ahead}" if ahead else "",
            )
        )
    return Recurrence(
        sentence,
        Table(
            "The critical cycle, step by step; after the last step comes the first",
            (
                Head("step"),
                Head("core", number=True),
                Head("event"),
                Head(f"until the next, {unit.name}", number=True),
                Head("share", number=True),
                Head("generation"),
            ),
            tuple(rows),
        ),
    )


def witness_cores(periodic: JsonView) -> list[int]:
    """Cores of the critical cycle in its order; empty where there is none."""
    recurrence = periodic.get("recurrence")
    if recurrence.is_null or recurrence.reason is not None:
        return []
    witness = recurrence.get("witness")
    if witness.is_null:
        return []
    found = []
    for edge in witness:
        match = _EVENT.match(edge["source_label"].text())
        if match and int(match["core"]) >= 0:
            found.append(int(match["core"]))
    return found


def _event(label: str) -> tuple[str, str]:
    match = _EVENT.match(label)
    if not match:
        return "–", label
    what = match["kind"]
    if match["link"]:
        source, target = match["link"].split("->")
        what += f" {source} → {target}"
    return match["core"], what


def search_section(selection: JsonView) -> SearchSection:
    """Every candidate with its parent and evidence, and the budgets."""
    chosen = selection["chosen"].known()
    candidates = list(selection["candidates"])
    indices = [c["index"].integer() for c in candidates]
    place = {index: n for n, index in enumerate(indices)}
    intervals: list[float | None] = []
    rows, kinds, titles, parents = [], [], [], []
    known = [_interval(c) for c in candidates]
    static = [c["static"]["interval_ns"].known() for c in candidates]
    unit = TimeUnit.fitting([*known, *static])
    for number, candidate in enumerate(candidates):
        index, value = indices[number], known[number]
        intervals.append(value)
        parent = candidate["parent"].known()
        parents.append(None if parent is None else place.get(int(parent)))
        kind, state = _state(candidate, index, chosen, selection)
        kinds.append(kind)
        stages = list(candidate["stages"])
        cores = sum(len(stage["cores"]) for stage in stages)
        titles.append(
            f"candidate {index}, {candidate['origin'].text()}: "
            f"{duration(value)}, {several(len(stages), 'stage')}, {state}"
        )
        rows.append(
            cells(
                str(index),
                candidate["origin"].text(),
                "–" if parent is None else str(int(parent)),
                str(len(stages)),
                str(cores),
                unit.text(static[number]),
                unit.text(value),
                Cell(candidate.get("form").text_or("–"), kind="name"),
                Cell(state, kind="name"),
            )
        )
    drawing = search_drawing(intervals, parents, kinds, titles)
    reason = selection["reason"].text()
    found = [value for value in known if value is not None]
    sentence = f"{several(len(candidates), 'candidate')} were evaluated"
    if len(candidates) == 1:
        sentence = "One candidate was evaluated"
    sentence += f"; the search ended by: {selection['termination'].text()}. "
    if chosen is not None:
        sentence += f"Candidate {int(chosen)} is selected. "
    sentence += _CHOICES.get(reason, reason)
    description = ""
    if found:
        description = (
            f"Intervals from {duration(min(found))} to {duration(max(found))} in the "
            "order of evaluation; lines lead from each candidate's parent, the step "
            "line is the best so far."
        )
    return SearchSection(
        sentence,
        drawing,
        description,
        Table(
            f"Candidates; intervals are the larger of both tie orders, {unit.name}",
            (
                Head("candidate"),
                Head("move", wide=True),
                Head("parent", number=True),
                Head("stages", number=True),
                Head("cores", number=True),
                Head("static", number=True),
                Head("interval", number=True),
                Head("form"),
                Head("outcome", wide=True),
            ),
            tuple(rows),
            marked=frozenset({place[int(chosen)]} if chosen in place else ()),
        ),
        budget_table(selection["budgets"]),
        _attempts(selection["attempts"]),
    )


def _interval(candidate: JsonView) -> int | float | None:
    values = [
        value
        for key in ("interval_ns", "alternative_ns")
        if (value := candidate.get(key).known()) is not None
    ]
    return max(values) if len(values) == 2 else None


def _state(
    candidate: JsonView, index: int, chosen: float | None, selection: JsonView
) -> tuple[str, str]:
    words, kind = [], "other"
    if index == selection["initialized"].known():
        words.append("initialized")
        kind = "initial"
    if index == selection["best"].known():
        words.append("best")
    if index == chosen:
        words.append("selected")
        kind = "chosen"
    if candidate["eligible"].value is False:
        why = [
            *candidate.get("unavailable").texts_of_values(),
            *(
                []
                if candidate.get("failures").is_null
                else candidate["failures"].texts()
            ),
        ]
        words.append("not eligible" + (f": {'; '.join(why)}" if why else ""))
    return kind, ", ".join(words)


def budget_table(budgets: JsonView) -> Table:
    """Used and limit of every counted budget."""
    rows = []
    for name, count in budgets.items():
        used, limit = count["used"].integer(), count["limit"].integer()
        rows.append(
            cells(
                name.replace("_", " "),
                Cell(f"{used:,}", used / limit if limit else None),
                f"{limit:,}",
            )
        )
    return Table(
        "Budgets; none can be exceeded",
        (Head("budget"), Head("used", number=True), Head("limit", number=True)),
        tuple(rows),
    )


def _attempts(attempts: JsonView) -> Table | None:
    rows = tuple(
        cells(
            str(attempt["candidate"].integer()),
            attempt["outcome"].text(),
            Cell("; ".join(attempt["reasons"].texts()), kind="name"),
        )
        for attempt in attempts
    )
    if not rows:
        return None
    return Table(
        "Programs that were built or tried",
        (Head("candidate"), Head("outcome"), Head("reasons", wide=True)),
        rows,
    )
