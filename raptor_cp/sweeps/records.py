"""What is recorded of a point, and what a sweep reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REPORT_SCHEMA = "raptor-cp/sweep-report/1"


class Outcome(StrEnum):
    """What became of a point."""

    ANSWERED = "answered"  #: a schedule, or the proof that there is none
    UNANSWERED = "unanswered"  #: verdict UNKNOWN: a budget is spent
    FAILED = "failed"  #: malformed, an internal error, or the worker died


@dataclass(frozen=True, slots=True)
class PointFigures:
    """Result of a point; everything but ``seconds`` is the same in every run.

    Attributes:
        outcome: answered, unanswered or failed.
        verdict: of the run; None when it failed.
        interval_ns: initiation interval; None in latency mode or without a schedule.
        latency_ns: completion of one inference.
        bound_ns: no schedule of this graph on this chip has a smaller interval (in
            latency mode: completion).
        gap: (found - bound) / bound.
        stages: number of pipeline stages.
        cores_used: cores that have a task.
        weight_slots: slots in use, summed over the cores.
        failed_expectations: names of the lines of ``expect`` that did not hold.
        program: what the backend made of it; None when no program was asked for.
        error: one sentence when there is no answer; empty otherwise.
        exit_code: what ``raptor-cp schedule`` returns for this point.
        seconds: wall-clock time of the run; None when it did not end.
        summary: all figures of the run, as ``schedule`` writes them.
    """

    outcome: Outcome
    verdict: str | None = None
    interval_ns: int | None = None
    latency_ns: int | None = None
    bound_ns: int | None = None
    gap: float | None = None
    stages: int | None = None
    cores_used: int | None = None
    weight_slots: int | None = None
    failed_expectations: tuple[str, ...] = ()
    program: str | None = None
    error: str = ""
    exit_code: int = 0
    seconds: float | None = None
    summary: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Plain data; :meth:`from_dict` reads it back."""
        document = {f.name: getattr(self, f.name) for f in fields(self)}
        document["failed_expectations"] = list(self.failed_expectations)
        document["summary"] = dict(self.summary)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> PointFigures:
        """The figures in a document of :meth:`to_dict`."""
        values = dict(document)
        values["outcome"] = Outcome(str(values["outcome"]))
        expectations = values["failed_expectations"]
        if not isinstance(expectations, list):
            raise TypeError("failed_expectations is not a list")
        values["failed_expectations"] = tuple(map(str, expectations))
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def failure(
        cls, error: str, exit_code: int, seconds: float | None = None
    ) -> PointFigures:
        """A point that could not be run to its end."""
        return cls(Outcome.FAILED, error=error, exit_code=exit_code, seconds=seconds)


@dataclass(frozen=True, slots=True)
class PointRecord:
    """A point that is done.

    Attributes:
        id: hash of the resolved scenario, the files it refers to, and the version.
        position: of the point in the sweep file.
        scenario: name of the scenario.
        workload: the network, in short; only points of one workload are compared.
        overrides: the point's own, by key path.
        figures: what came out.
    """

    id: str
    position: int
    scenario: str
    workload: str
    overrides: Mapping[str, object]
    figures: PointFigures

    def to_dict(self) -> dict[str, object]:
        """One element of ``points`` in ``sweep --json``."""
        return {
            "id": self.id,
            "position": self.position,
            "scenario": self.scenario,
            "workload": self.workload,
            "overrides": dict(self.overrides),
            **self.figures.to_dict(),
        }

    def figure(self, name: str) -> float | None:
        """A number of the record: a figure by name, or an override by key path."""
        value = (
            self.overrides.get(name)
            if name in self.overrides
            else getattr(self.figures, OBJECTIVES.get(name, ""), None)
        )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value


#: What ``--pareto`` can compare besides overrides; smaller is better.
OBJECTIVES = {
    "interval_ns": "interval_ns",
    "latency_ns": "latency_ns",
    "bound_ns": "bound_ns",
    "gap": "gap",
    "stages": "stages",
    "cores": "cores_used",
    "cores_used": "cores_used",
    "slots": "weight_slots",
    "weight_slots": "weight_slots",
    "seconds": "seconds",
}


@dataclass(frozen=True, slots=True)
class SweepReport:
    """State of a sweep: after a run, or as its results file has it.

    Attributes:
        name: of the sweep.
        database: the results file.
        total: distinct points of the sweep.
        repeated: points of the sweep file that are equal to an earlier one.
        records: the points that are done, in the order of the sweep file.
        ran: points that this call has done; 0 when only results were read.
        interrupted: the run was asked to end early.
        note: one sentence when the run ended early for another reason.
    """

    name: str
    database: Path
    total: int
    repeated: int
    records: tuple[PointRecord, ...]
    ran: int = 0
    interrupted: bool = False
    note: str = ""

    @property
    def missing(self) -> int:
        """Points that are not done."""
        return self.total - len(self.records)

    def with_outcome(self, outcome: Outcome) -> tuple[PointRecord, ...]:
        """The records with this outcome."""
        return tuple(r for r in self.records if r.figures.outcome is outcome)

    @property
    def exit_code(self) -> int:
        """What the command line returns.

        3 when a point failed, has no answer or is not done; otherwise 1 when an
        expectation of a scenario failed; otherwise 0 (infeasible is an answer).
        """
        answered = len(self.with_outcome(Outcome.ANSWERED))
        if self.interrupted or answered < self.total:
            return 3
        return int(any(r.figures.failed_expectations for r in self.records))

    def counts(self) -> dict[str, int]:
        """Points by outcome, and those that are not done."""
        found = Counter(record.figures.outcome for record in self.records)
        return {
            "total": self.total,
            "repeated": self.repeated,
            **{str(outcome): found[outcome] for outcome in Outcome},
            "missing": self.missing,
            "expectation_failed": sum(
                1 for record in self.records if record.figures.failed_expectations
            ),
        }

    def to_dict(self) -> dict[str, object]:
        """``sweep --json``."""
        return {
            "schema": REPORT_SCHEMA,
            "sweep": self.name,
            "counts": self.counts(),
            "interrupted": self.interrupted,
            "points": [record.to_dict() for record in self.records],
        }
