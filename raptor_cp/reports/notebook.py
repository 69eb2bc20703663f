"""A result as a notebook shows it: the verdict, the figures, the stages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class StageRow:
    """One pipeline stage; times in ns."""

    index: int
    first: str
    last: str
    cores: int
    tasks: int
    load_ns: int
    span_ns: int


def result_html(summary: Mapping[str, object], stages: Sequence[StageRow]) -> str:
    """An HTML fragment without styles of its own; every text is escaped.

    Args:
        summary: :meth:`raptor_cp.result.ScheduleResult.summary`.
        stages: rows of the stage table; none in latency mode.
    """
    certificate = summary["certificate"]
    gap = bound = None
    if isinstance(certificate, dict):
        gap = certificate.get("gap_interval", certificate.get("gap"))
        bound = certificate.get("bound_interval_ns", certificate.get("bound_ns"))
    figures = [
        ("interval", _ns(summary["interval_ns"])),
        ("one inference", _ns(summary["latency_ns"])),
        ("bound", _ns(bound)),
        ("gap", None if not isinstance(gap, int | float) else f"{100 * gap:.2f} %"),
        ("timing", summary["timing"]),
        ("cores used", summary["cores_used"]),
        ("program", summary["program"]),
    ]
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(value))}</td></tr>'
        for name, value in figures
        if value is not None
    )
    return (
        f"<div><strong>{escape(str(summary['scenario']))}: "
        f"{escape(str(summary['verdict']))}</strong>"
        f"<p>{escape(str(summary['reason']))}</p>"
        f"<table><tbody>{rows}</tbody></table>{_stage_table(stages)}</div>"
    )


def _stage_table(stages: Sequence[StageRow]) -> str:
    if not stages:
        return ""
    heads = ("stage", "operations", "cores", "tasks", "load", "span")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = ""
    for row in stages:
        ends = row.first if row.first == row.last else f"{row.first} .. {row.last}"
        cells = (row.index, ends, row.cores, row.tasks, _ns(row.load_ns),
                 _ns(row.span_ns))  # fmt: skip
        body += "<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in cells) + "</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _ns(value: object) -> str | None:
    return f"{value:,} ns" if isinstance(value, int) else None
