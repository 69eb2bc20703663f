"""Verdict, certificate, interval, stages and placement of the HTML report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.reports.html_drawings import HeatMap, cycle_path, heat_map
from raptor_cp.reports.html_parts import (
    Cell,
    Figure,
    Head,
    Placement,
    Table,
    cells,
)
from raptor_cp.reports.html_text import (
    TimeUnit,
    duration,
    exact_ns,
    percent,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raptor_cp.reports.accounting import Accounting
    from raptor_cp.reports.json_view import JsonView

#: What ``certificate.proof`` of latency mode stands for.
_LATENCY_PROOFS = {
    "path": "the longest path through the tasks",
    "work": "the work of all tasks spread over all cores",
    "copies": "the weights that cores can hold copies of",
    "slots": "the copies of all weights, shared out along the dependencies",
    "cp-sat": "the solver, confirmed by a second solve",
}


@dataclass(frozen=True, slots=True)
class CoreFacts:
    """One core of a schedule.

    Attributes:
        core: its number.
        stage: its stage; None outside all stages.
        operations: names of what runs on it, in order.
        tasks: how many.
        work_ns: of one inference.
        slots: weight slots in use.
    """

    core: int
    stage: int | None
    operations: tuple[str, ...]
    tasks: int
    work_ns: int
    slots: int


def core_facts(schedule: JsonView) -> tuple[CoreFacts, ...]:
    """All cores of ``schedule.json``, in order."""
    tasks = list(schedule["tasks"])
    names = [task["operation"].text() for task in tasks]
    weights = [task["weights"].integers() for task in tasks]
    slots = [weight["slots"].integer() for weight in schedule["weights"]]
    work = schedule["costs"]["core_work_ns"].integers()
    found = []
    for number, core in enumerate(schedule["cores"]):
        mine = core["tasks"].integers()
        held = {weight for task in mine for weight in weights[task]}
        stage = core["stage"]
        found.append(
            CoreFacts(
                core["id"].integer(),
                None if stage.is_null else stage.integer(),
                tuple(dict.fromkeys(names[task] for task in mine)),
                len(mine),
                work[number],
                sum(slots[weight] for weight in held),
            )
        )
    return tuple(found)


def key_figures(result: JsonView, cores: int | None) -> tuple[Figure, ...]:
    """The large numbers at the top."""
    found = []
    interval = result["interval_ns"].known()
    latency = result["latency_ns"].known()
    timing = result["timing"].text_or("static")
    how = "on the queue model" if timing == "queue" else "static estimate"
    if interval is not None:
        found.append(Figure("Initiation interval", duration(interval), how))
        found.append(
            Figure("Throughput", f"{1e9 / interval:,.1f} /s", "inferences per second")
            if interval
            else Figure("Throughput", "–")
        )
    if latency is not None:
        note = how if interval is None else "static estimate, nothing queues"
        found.append(Figure("One inference", duration(latency), note))
    gap = _gap(result["certificate"])
    if gap is not None:
        what = "interval" if interval is not None else "completion"
        found.append(
            Figure("Gap at most", percent(gap), f"{what} above a proved lower bound")
        )
    used = result["cores_used"].known()
    if used is not None:
        of = f"of {cores}" if cores else ""
        found.append(Figure("Cores used", f"{used:,}", of))
    stages = result["stages"].integer()
    if stages:
        found.append(Figure("Stages", str(stages), "pipelined"))
    return tuple(found)


def _gap(certificate: JsonView) -> float | None:
    if certificate.is_null:
        return None
    found = certificate.get("gap_interval").known()
    return certificate.get("gap").known() if found is None else found


def certificate_table(certificate: JsonView) -> tuple[Table, str]:
    """What is proved, and on what it rests."""
    rows = []
    heads = (
        Head("figure"),
        Head("this schedule", number=True),
        Head("no schedule is below", number=True),
        Head("gap at most", number=True),
    )
    if certificate.get("objective").text_or("") == "completion_ns":
        ours, bound = certificate["completion_ns"], certificate["bound_ns"]
        rows.append(_bounded("completion, without queues", ours, bound))
        proof = certificate["proof"].text()
        words = f"The bound rests on {_LATENCY_PROOFS.get(proof, proof)}."
        note = certificate["note"].text()
        if note:
            words += f" {note[0].upper()}{note[1:]}."
        return Table("How good the schedule is at least", heads, tuple(rows)), words
    rows.append(
        _bounded(
            "interval", certificate["interval_ns"], certificate["bound_interval_ns"]
        )
    )
    rows.append(
        _bounded(
            "static objective", certificate["ours_static"], certificate["bound_static"]
        )
    )
    objective = certificate["objective"].text().removesuffix(", ns")
    words = (
        f"The bound of the interval holds for every schedule of this network on this "
        f"chip. The static objective is {objective}. Bounds by "
        f"{certificate['proof'].text()}."
    )
    return Table("How good the schedule is at least", heads, tuple(rows)), words


def _bounded(name: str, ours: JsonView, bound: JsonView) -> tuple[Cell, ...]:
    value, least = ours.known(), bound.known()
    gap = None if value is None or not least else (value - least) / least
    share = None if not value or least is None else least / value
    return cells(name, exact_ns(value), Cell(exact_ns(least), share), percent(gap, 2))


def interval_tables(result: JsonView, periodic: JsonView | None) -> list[Table]:
    """Both tie orders, and what bounds the interval from below."""
    completion = result.get("queue_completion")
    if not completion.is_null:
        rows = []
        for name, key in (
            ("event index", "event_index_ns"),
            ("reversed", "reversed_ns"),
        ):
            value = completion[key]
            why = value.reason
            rows.append(cells(name, why or exact_ns(value.known())))
        heads = (Head("tie order"), Head("completion", number=True))
        return [
            Table("Completion of one inference, both tie orders", heads, tuple(rows))
        ]
    if periodic is None or "queues" not in dict(periodic.items()):
        return []
    rows = []
    for queue in periodic["queues"]:
        if queue.reason is not None:
            rows.append(cells("–", queue.reason, "–", "–", "–"))
            continue
        exact = queue["exact_interval_ns"]
        window = queue["window"]
        rows.append(
            cells(
                queue["tie_order"].text(),
                exact.reason or exact_ns(exact.known()),
                window.reason or exact_ns(window["interval_ns"].known()),
                _proof(queue),
                exact_ns(queue["max_request_wait_ns"].known()),
            )
        )
    both = Table(
        "The interval under both tie orders of simultaneous requests",
        (
            Head("tie order"),
            Head("interval, exact", number=True),
            Head("mean of the window", number=True),
            Head("recurrence", wide=True),
            Head("longest wait in the queue", number=True),
        ),
        tuple(rows),
    )
    return [both, _terms(periodic)]


def _proof(queue: JsonView) -> str:
    if not queue["recurrence_established"].flag():
        return "not proved"
    texts = []
    for proof in queue["proofs"]:
        period = proof["period_generations"].integer()
        transient = proof["transient_generations"].integer()
        texts.append(
            "proved: repeats every "
            + ("generation" if period == 1 else f"{period} generations")
            + f" after {several(transient, 'generation')}"
        )
    return "; ".join(dict.fromkeys(texts))


def _terms(periodic: JsonView) -> Table:
    rows = []
    recurrence = periodic["recurrence"]
    if recurrence.reason is None:
        rows.append(
            ("critical recurrence", recurrence["interval_ns"].known(), "bounds it")
        )
    work = periodic["largest_core_work_ns"]
    rows.append(
        (
            f"largest core work (core {work['core'].integer()})",
            work["max"].known(),
            "bounds it",
        )
    )
    rows.append(
        ("shared-memory service", periodic["memory_service_ns"].known(), "bounds it")
    )
    rows.append(
        (
            "longest path through one generation",
            periodic["within_generation_span_ns"].known(),
            "latency, no bound",
        )
    )
    single = periodic["single_generation_ns"]
    if single.reason is None:
        low, high = min(single.integers()), max(single.integers())
        rows.append(("one generation alone, least", low, "latency, no bound"))
        rows.append(("one generation alone, most", high, "latency, no bound"))
    return Table(
        "What the interval is made of",
        (Head("term"), Head("time", number=True), Head("for the interval")),
        tuple(cells(name, exact_ns(value), what) for name, value, what in rows),
    )


def stage_table(
    schedule: JsonView, facts: Sequence[CoreFacts], accounting: Accounting | None
) -> Table | None:
    """A row for each stage; None in latency mode."""
    stages = list(schedule["stages"])
    if not stages:
        return None
    groups = [group["operation"].text() for group in schedule["groups"]]
    capacity = schedule["capacity"].integer()
    loads = schedule["costs"]["stage_loads_ns"].integers()
    spans = schedule["costs"]["stage_spans_ns"].integers()
    unit = TimeUnit.fitting([*loads, *spans])
    of = {fact.core: fact for fact in facts}
    rows = []
    for number, stage in enumerate(stages):
        mine = stage["groups"].integers()
        first, last = groups[mine[0]], groups[mine[-1]]
        cores = stage["cores"].integers()
        slots = sum(of[core].slots for core in cores)
        room = capacity * len(cores)
        busy: Cell | str = "–"
        if accounting is not None:
            shares = [accounting.busy_share(c) for c in cores if c in accounting.cores]
            top = max(shares, default=0.0)
            busy = Cell(percent(top, 0), top)
        rows.append(
            cells(
                str(stage["index"].integer()),
                Cell(first if first == last else f"{first} … {last}", kind="name"),
                str(len(cores)),
                str(sum(of[core].tasks for core in cores)),
                unit.text(loads[number]),
                unit.text(spans[number]),
                busy,
                Cell(f"{slots:,} / {room:,}", slots / room if room else None),
            )
        )
    top_load = loads.index(max(loads))
    return Table(
        "Stages of the pipeline, in the order of the network",
        (
            Head("stage"),
            Head("operations", wide=True),
            Head("cores", number=True),
            Head("tasks", number=True),
            Head(f"load, {unit.name}", number=True),
            Head(f"span, {unit.name}", number=True),
            Head("busiest core", number=True),
            Head("weight slots", number=True),
        ),
        tuple(rows),
        marked=frozenset({top_load}),
    )


def placement_section(
    schedule: JsonView,
    chip: JsonView | None,
    facts: Sequence[CoreFacts],
    accounting: Accounting | None,
    witness: Sequence[int],
) -> Placement:
    """Heat maps of load and weight slots, the critical cycle on top, and a table."""
    capacity = schedule["capacity"].integer()
    places, known = _places(chip, len(facts))
    top = max((fact.work_ns for fact in facts), default=0) or 1
    marks = ["" if fact.stage is None else str(fact.stage) for fact in facts]
    if all(not mark for mark in marks):
        marks = [str(fact.tasks) if fact.tasks else "" for fact in facts]
    titles = [_core_title(fact, capacity, accounting) for fact in facts]
    busiest = min(facts, key=lambda fact: (-fact.work_ns, fact.core))
    fullest = min(facts, key=lambda fact: (-fact.slots, fact.core))
    idle = sum(not fact.tasks for fact in facts)
    load = heat_map(
        "Load",
        f"Work of one inference on each core, from 0 to {duration(top)}. The most is "
        f"on core {busiest.core}; {several(idle, 'core is', 'cores are')} idle.",
        places,
        [fact.work_ns / top if fact.tasks else None for fact in facts],
        marks,
        titles,
        ("0", duration(top)),
    )
    maps: list[HeatMap] = [load]
    if any(fact.slots for fact in facts):
        maps.append(
            heat_map(
                "Weight slots used",
                f"Weight slots in use on each core, from 0 to the capacity of "
                f"{capacity}. The most is {fullest.slots} on core {fullest.core}.",
                places,
                [fact.slots / capacity if fact.tasks else None for fact in facts],
                marks,
                titles,
                ("0", f"{capacity:,} slots"),
            )
        )
    note = (
        "A number in a cell is the stage that owns the core."
        if any(fact.stage is not None for fact in facts)
        else "A number in a cell counts the tasks of the core."
    )
    if not known:
        note += " The target gives no positions: the cores stand in rows."
    path = (
        cycle_path({f.core: p for f, p in zip(facts, places, strict=True)}, witness)
        if witness
        else ""
    )
    if path:
        note += " The line on the first map is the critical recurrence."
    return Placement(tuple(maps), path, _core_table(facts, accounting, capacity), note)


def _places(chip: JsonView | None, cores: int) -> tuple[list[tuple[int, int]], bool]:
    if chip is not None and not chip["rows"].is_null:
        rows, columns = chip["rows"].integers(), chip["columns"].integers()
        if len(rows) == len(columns) == cores:
            least = min(rows), min(columns)
            return [
                (row - least[0], column - least[1])
                for row, column in zip(rows, columns, strict=True)
            ], True
    width = math.ceil(math.sqrt(max(cores, 1)))
    return [divmod(core, width) for core in range(cores)], False


def _core_title(fact: CoreFacts, capacity: int, accounting: Accounting | None) -> str:
    if not fact.tasks:
        return f"core {fact.core}: idle"
    stage = "" if fact.stage is None else f", stage {fact.stage}"
    busy = ""
    if accounting is not None and fact.core in accounting.cores:
        busy = f", {percent(accounting.busy_share(fact.core), 0)} busy"
    return (
        f"core {fact.core}{stage}: work {duration(fact.work_ns)}{busy}, "
        f"{fact.slots} of {capacity} slots, {several(fact.tasks, 'task')} of "
        + _named(fact.operations)
    )


def _named(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {several(more, 'more', 'more')}" if more > 0 else shown


def _core_table(
    facts: Sequence[CoreFacts], accounting: Accounting | None, capacity: int
) -> Table:
    unit = TimeUnit.fitting(fact.work_ns for fact in facts)
    rows = []
    for fact in facts:
        if not fact.tasks:
            continue
        busy = "–"
        if accounting is not None and fact.core in accounting.cores:
            busy = percent(accounting.busy_share(fact.core))
        rows.append(
            cells(
                str(fact.core),
                "–" if fact.stage is None else str(fact.stage),
                unit.text(fact.work_ns),
                busy,
                f"{fact.slots:,} / {capacity:,}",
                str(fact.tasks),
                Cell(_named(fact.operations), kind="name"),
            )
        )
    return Table(
        "Every core that has tasks",
        (
            Head("core"),
            Head("stage", number=True),
            Head(f"work, {unit.name}", number=True),
            Head("busy", number=True),
            Head("slots", number=True),
            Head("tasks", number=True),
            Head("operations", wide=True),
        ),
        tuple(rows),
    )


def infeasibility_table(infeasibility: JsonView) -> Table:
    """The conflict, largest first."""
    operations = list(infeasibility["operations"])
    top = max((row["slots"].integer() for row in operations), default=1) or 1
    rows = tuple(
        cells(
            Cell(row["operation"].text(), kind="name"),
            Cell(f"{row['slots'].integer():,}", row["slots"].integer() / top),
        )
        for row in operations
    )
    return Table(
        "Operations in the conflict",
        (Head("operation"), Head("weight slots needed", number=True)),
        rows,
    )


def stage_of_cores(facts: Sequence[CoreFacts]) -> Mapping[int, int]:
    """Stage of each core that has one."""
    return {fact.core: fact.stage for fact in facts if fact.stage is not None}
