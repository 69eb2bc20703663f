"""``report.html``: one page that says all about a run, without a network or scripts.

Made from the files of a run folder alone, so that a folder that was copied elsewhere
still has its report; equal runs give equal bytes (phase times, the only part of a run
that differs, stay in ``result.json``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.reports.accounting import Accounting
from raptor_cp.reports.bottleneck import (
    Bottleneck,
    queue_bottleneck,
    static_bottleneck,
)
from raptor_cp.reports.html_evidence import (
    breakdown_section,
    budget_table,
    recurrence_section,
    search_section,
    timeline_section,
    witness_cores,
)
from raptor_cp.reports.html_figures import (
    certificate_table,
    core_facts,
    infeasibility_table,
    interval_tables,
    key_figures,
    placement_section,
    stage_of_cores,
    stage_table,
)
from raptor_cp.reports.html_parts import Absent, Cell, Head, Table, cells
from raptor_cp.reports.html_text import exact_ns, percent

if TYPE_CHECKING:
    from jinja2 import Environment

    from raptor_cp.reports.html_parts import (
        Breakdown,
        Figure,
        Placement,
        Recurrence,
        SearchSection,
        TimelineSection,
    )
    from raptor_cp.reports.json_view import JsonView
    from raptor_cp.reports.run_documents import RunDocuments

_TITLES = {
    "certificate": "Certificate",
    "interval": "Interval",
    "bottleneck": "Bottleneck",
    "stages": "Stages",
    "placement": "Placement",
    "timeline": "Timeline",
    "breakdown": "Every nanosecond",
    "recurrence": "Recurrence",
    "search": "Search",
    "scenario": "Scenario",
    "notes": "Notes",
}

_VERDICTS = {
    "OPTIMAL": ("good", "a schedule, proved optimal"),
    "FEASIBLE": ("good", "a schedule, checked"),
    "INFEASIBLE": ("bad", "no schedule exists, proved"),
    "UNKNOWN": ("open", "not decided within the budgets"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """Everything that the template shows; None for sections that do not apply."""

    name: str
    verdict: str
    tone: str
    meaning: str
    reason: str
    mode: str
    figures: tuple[Figure, ...]
    infeasibility: tuple[Table, tuple[str, ...], str] | None
    certificate: tuple[Table, str] | None
    intervals: tuple[Table, ...]
    interval_note: str
    bottleneck: Bottleneck | None
    stages: Table | None
    placement: Placement | None
    timeline: TimelineSection | None
    breakdown: Breakdown | None
    recurrence: Recurrence | None
    search: SearchSection | None
    budgets: Table | None
    scenario: str
    expectations: Table | None
    program: str
    notes: tuple[str, ...]
    components: tuple[str, ...]
    counts: Table | None
    solves: Table | None
    absent: tuple[Absent, ...]
    contents: tuple[tuple[str, str], ...]


def report_html(documents: RunDocuments) -> str:
    """The page of a run.

    Args:
        documents: what its folder says.

    Raises:
        MalformedInput: a document is not what a run folder has.
    """
    page = _page(documents)
    return _environment().get_template("report.html.j2").render(page=page)


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("raptor_cp.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _page(documents: RunDocuments) -> Page:
    result, schedule = documents.result, documents.schedule
    periodic, timeline = documents.periodic, documents.timeline
    if periodic is not None and "queues" not in dict(periodic.items()):
        unavailable = periodic.get("unavailable").text_or("the plan has no events")
        periodic = None
    else:
        unavailable = ""
    pipeline = result["stages"].integer() > 0
    alone = schedule is not None and not pipeline
    facts = () if schedule is None else core_facts(schedule)
    stage_of = stage_of_cores(facts)
    accounting = None
    if timeline is not None and timeline.window_ns and timeline.slice_count:
        accounting = Accounting.of(timeline)
    bottleneck = None
    if accounting is not None:
        path = None
        if alone and schedule is not None:
            path = schedule["costs"]["critical_path_ns"].integer()
        bottleneck = queue_bottleneck(accounting, periodic, stage_of, path_ns=path)
    elif schedule is not None:
        bottleneck = static_bottleneck(schedule["costs"], pipeline=pipeline)
    core = None if bottleneck is None else bottleneck.core
    drawn = breakdown = None
    if timeline is not None and accounting is not None and core is not None:
        drawn = timeline_section(timeline, accounting, stage_of, core, alone=alone)
        breakdown = breakdown_section(accounting, core, alone=alone)
    recurring = periodic if pipeline else None
    placement = None
    if schedule is not None and facts:
        placement = placement_section(
            schedule,
            documents.chip,
            facts,
            accounting,
            [] if recurring is None else witness_cores(recurring),
        )
    selection, budgets = documents.selection, result["budgets"]
    intervals = interval_tables(result, recurring)
    certificate = result["certificate"]
    tone, meaning = _VERDICTS.get(result["verdict"].text(), ("open", ""))
    infeasibility = result["infeasibility"]
    missing = {
        "certificate": certificate.is_null,
        "interval": not intervals,
        "bottleneck": bottleneck is None,
        "stages": not pipeline,
        "placement": placement is None,
        "timeline": drawn is None,
        "breakdown": breakdown is None,
        "recurrence": recurring is None,
        "search": selection is None and budgets.is_null,
    }
    absent = tuple(
        Absent(anchor, _TITLES[anchor], why)
        for anchor, gone in missing.items()
        if gone and (why := _why(anchor, result, schedule, unavailable))
    )
    gone = {entry.anchor for entry in absent}
    titles = _TITLES | ({"interval": "Completion"} if alone else {})
    contents = [(a, t) for a, t in titles.items() if a not in gone]
    if not infeasibility.is_null:
        contents.insert(0, ("proof", "Proof"))
    return Page(
        name=result["scenario"].text(),
        verdict=result["verdict"].text(),
        tone=tone,
        meaning=meaning,
        reason=_sentence(result["reason"].text(), chosen=schedule is not None),
        mode="pipeline" if pipeline else "latency" if alone else "",
        figures=key_figures(result, len(facts) or None),
        infeasibility=None
        if infeasibility.is_null
        else (
            infeasibility_table(infeasibility),
            tuple(infeasibility["levers"].texts()),
            _proved_by(infeasibility),
        ),
        certificate=None if certificate.is_null else certificate_table(certificate),
        intervals=tuple(intervals),
        interval_note=_interval_note(result, recurring),
        bottleneck=bottleneck,
        stages=None if schedule is None else stage_table(schedule, facts, accounting),
        placement=placement,
        timeline=drawn,
        breakdown=breakdown,
        recurrence=None if recurring is None else recurrence_section(recurring),
        search=None if selection is None else search_section(selection),
        budgets=None
        if selection is not None or budgets.is_null
        else budget_table(budgets),
        scenario=documents.scenario,
        expectations=_expectations(result["expectations"]),
        program=_program(result),
        notes=(
            *(["The run was interrupted; what is shown is the best so far."]
              if result["interrupted"].flag() else []),
            *result["notes"].texts(),
        ),
        components=_components(result, schedule),
        counts=_counts(result["phase_counts"]),
        solves=_solves(result["solver"]),
        absent=absent,
        contents=(*contents, *((("absent", "Not here"),) if absent else ())),
    )  # fmt: skip


def _why(
    anchor: str, result: JsonView, schedule: JsonView | None, unavailable: str
) -> str:
    """Why a section is not there."""
    if schedule is None:
        verdict = result["verdict"].text()
        if anchor == "search":
            return "The run ended before a search."
        return f"The run is {verdict}, so there is no schedule."
    latency = result["stages"].integer() == 0
    if latency and anchor in ("stages", "recurrence", "search"):
        return {
            "stages": "In latency mode one inference uses all cores; there are no "
            "stages.",
            "recurrence": "In latency mode one inference runs alone; nothing recurs.",
            "search": "In latency mode a list schedule is made; there are no "
            "candidates.",
        }[anchor]
    if unavailable:
        return f"There are no events to time: {unavailable}."
    if result["timing"].text_or("static") == "static":
        return "The timing is static (search.timing: static); no queue was executed."
    if latency:
        return "The queue execution of one inference was not recorded."
    return "The run folder has no timing for it."


def _sentence(reason: str, *, chosen: bool) -> str:
    """``reason`` of a result as a sentence."""
    if chosen:
        return f"Chosen: {reason}."
    return f"{reason[:1].upper()}{reason[1:]}."


def _interval_note(result: JsonView, periodic: JsonView | None) -> str:
    interval = result["interval_ns"].known()
    if interval is None:
        return ""
    timing = result["timing"].text_or("static")
    if timing == "static":
        return (
            f"The reported interval, {exact_ns(interval)}, is the static estimate"
            + ("; the queues below rank nothing." if periodic is not None else ".")
        )
    return (
        f"The reported interval is the larger of both tie orders: {exact_ns(interval)}."
    )


def _proved_by(infeasibility: JsonView) -> str:
    needed = infeasibility["slots_needed"].integer()
    there = infeasibility["slots_available"].integer()
    times = f" ({needed / there:,.2f} times as many)" if there else ""
    return (
        f"Proved by {infeasibility['proof'].text()}: {needed:,} weight slots are "
        f"needed, {there:,} are there{times}."
    )


def _expectations(expectations: JsonView) -> Table | None:
    rows = tuple(
        cells(
            row["name"].text(),
            row["expected"].text(),
            row["found"].text(),
            Cell(
                "held" if row["held"].flag() else "failed",
                kind="good" if row["held"].flag() else "bad",
            ),
        )
        for row in expectations
    )
    if not rows:
        return None
    heads = (Head("figure"), Head("expected"), Head("found"), Head("outcome"))
    return Table("What the scenario expects", heads, rows)


def _program(result: JsonView) -> str:
    outcome = result["program"].text_or("")
    reasons = "; ".join(result["program_reasons"].texts())
    products = result["mvmul"].known()
    text = {
        "": "No program was asked for, or the target emits none.",
        "built": "A program was built: program/.",
    }.get(outcome, f"The program was {outcome}.")
    if reasons:
        text += f" {reasons[0].upper()}{reasons[1:]}."
    if products is not None:
        text += f" One inference takes {products:,} matrix-vector products."
    return text


def _components(result: JsonView, schedule: JsonView | None) -> tuple[str, ...]:
    found = []
    for name, value in result["components"].items():
        total = value.integer()
        work = 0
        if schedule is not None:
            work = schedule["costs"]["serial_work_ns"].integer()
        share = f", {percent(total / work)} of all work" if work else ""
        label = name.removesuffix("_ns").replace("_", " ")
        found.append(f"{label}: {exact_ns(total)}{share}")
    return tuple(found)


def _counts(counts: JsonView) -> Table | None:
    rows = tuple(cells(name, f"{count.integer():,}") for name, count in counts.items())
    if not rows:
        return None
    heads = (Head("phase"), Head("times entered", number=True))
    return Table("Phases of the run", heads, rows)


def _solves(solves: JsonView) -> Table | None:
    rows = []
    for solve in solves:
        objective, bound = solve["objective"].known(), solve["bound"].known()
        rows.append(
            cells(
                Cell(solve["what"].text(), kind="name"),
                solve["status"].text(),
                "–" if objective is None else f"{objective:,}",
                "–" if bound is None else f"{bound:,}",
                f"{solve['deterministic_time'].number():.3f}",
                f"{solve['limit'].number():.3f}",
                Cell(solve["note"].text(), kind="name"),
            )
        )
    if not rows:
        return None
    return Table(
        "Solves; time in the solver's deterministic unit",
        (
            Head("question", wide=True),
            Head("status"),
            Head("objective", number=True),
            Head("bound", number=True),
            Head("spent", number=True),
            Head("granted", number=True),
            Head("note", wide=True),
        ),
        tuple(rows),
    )
