"""Results of sweeps in one SQLite file, a transaction for each point.

A rollback journal and full synchronisation: slower than a write-ahead log, but the
file alone is whole after a kill or a power cut, also on network file systems, and it
can be copied.  ``sequence`` never repeats (AUTOINCREMENT), so the file itself shows
that no result was ever overwritten.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.sweeps.records import (
    Outcome,
    PointFigures,
    PointRecord,
    SweepReport,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from raptor_cp.sweeps.identity import ResolvedPoint

#: "rcps": what makes a SQLite file one of ours.
APPLICATION_ID = 0x72637073
FORMAT = 1
MAGIC = b"SQLite format 3\0"
_BUSY_S = 60.0

_TABLES = (
    "CREATE TABLE sweep (name TEXT NOT NULL, repeated INTEGER NOT NULL)",
    """
CREATE TABLE points (
    id TEXT PRIMARY KEY,
    position INTEGER,  -- in the sweep file of the last run; NULL: no longer in it
    scenario TEXT NOT NULL,
    workload TEXT NOT NULL,
    overrides TEXT NOT NULL  -- JSON
)
    """,
    """
CREATE TABLE results (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    point TEXT NOT NULL UNIQUE REFERENCES points (id),
    outcome TEXT NOT NULL,
    verdict TEXT,
    interval_ns INTEGER,
    latency_ns INTEGER,
    bound_ns INTEGER,
    gap REAL,
    stages INTEGER,
    cores_used INTEGER,
    weight_slots INTEGER,
    failed_expectations TEXT NOT NULL,  -- JSON
    program TEXT,
    error TEXT NOT NULL,
    exit_code INTEGER NOT NULL,
    seconds REAL,
    summary TEXT NOT NULL  -- JSON
)
    """,
)
_FIGURES = (
    "outcome", "verdict", "interval_ns", "latency_ns", "bound_ns", "gap", "stages",
    "cores_used", "weight_slots", "failed_expectations", "program", "error",
    "exit_code", "seconds", "summary",
)  # fmt: skip
_JSON_COLUMNS = ("failed_expectations", "summary")


class SweepDatabase:
    """An open results file; a context manager.

    Args:
        path: the file; made when it is missing and ``sweep`` is given.
        sweep: name of the sweep that writes; None only reads.

    Raises:
        MalformedInput: the file is missing (reading), is not ours, or belongs to
            another sweep.
    """

    def __init__(self, path: Path, sweep: str | None = None) -> None:
        self.path = path
        check_ours(path)
        if sweep is None and not path.is_file():
            raise _no_results(path)
        with self._sentences():
            self._connection = self._connect(writing=sweep is not None)
        try:
            with self._sentences():
                self._set_up(sweep)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> SweepDatabase:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def enrol(self, points: Sequence[ResolvedPoint]) -> None:
        """Make these the points of the sweep, in this order; results stay."""
        repeated = len(points) - len({point.id for point in points})
        with self._transaction() as run:
            run.execute("UPDATE points SET position = NULL")
            run.execute("UPDATE sweep SET repeated = ?", (repeated,))
            # The first of equal points gives the place and the overrides.
            run.executemany(
                "INSERT INTO points VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET position = excluded.position, scenario = excluded.scenario, "
                "workload = excluded.workload, overrides = excluded.overrides",
                [
                    (p.id, p.position, p.scenario, p.workload, json.dumps(p.overrides))
                    for p in reversed(points)
                ],
            )

    def done(self) -> dict[str, Outcome]:
        """Outcome of every point that has a result, by identity."""
        with self._sentences():
            rows = self._connection.execute("SELECT point, outcome FROM results")
            return {point: Outcome(outcome) for point, outcome in rows}

    def record(self, point: str, figures: PointFigures, *, again: bool) -> None:
        """Record a result; it is on the disk when this returns.

        Args:
            point: identity.
            figures: the result.
            again: replace the result that is there.

        Raises:
            InternalError: the point has a result already.
            MalformedInput: the file cannot be written.
        """
        document = figures.to_dict()
        values = [
            json.dumps(document[name]) if name in _JSON_COLUMNS else document[name]
            for name in _FIGURES
        ]
        marks = ", ".join("?" * (len(values) + 1))
        try:
            with self._transaction() as run:
                if again:
                    run.execute("DELETE FROM results WHERE point = ?", (point,))
                run.execute(
                    f"INSERT INTO results (point, {', '.join(_FIGURES)}) "
                    f"VALUES ({marks})",
                    (point, *values),
                )
        except sqlite3.IntegrityError as error:
            raise InternalError(f"point {point} was done twice: {error}") from error

    def report(
        self, *, ran: int = 0, interrupted: bool = False, note: str = ""
    ) -> SweepReport:
        """The state of the sweep."""
        with self._sentences():
            run = self._connection
            run.execute("BEGIN")
            try:
                name, repeated = run.execute("SELECT * FROM sweep").fetchone()
                (total,) = run.execute(
                    "SELECT count(*) FROM points WHERE position IS NOT NULL"
                ).fetchone()
                rows = run.execute(
                    "SELECT id, position, scenario, workload, overrides, "
                    f"{', '.join(_FIGURES)} FROM points JOIN results ON point = id "
                    "WHERE position IS NOT NULL ORDER BY position"
                ).fetchall()
            finally:
                run.execute("ROLLBACK")
        records = tuple(map(_record, rows))
        return SweepReport(
            name, self.path, total, repeated, records, ran, interrupted, note
        )

    def _connect(self, *, writing: bool) -> sqlite3.Connection:
        # Reading, too, is opened for writing where it can be: after a kill the journal
        # has to be rolled back before anything can be read.
        modes = ("rwc",) if writing else ("rw", "ro")
        address = self.path.absolute().as_uri()
        for mode in modes:
            connection = sqlite3.connect(
                f"{address}?mode={mode}", uri=True, timeout=_BUSY_S,
                isolation_level=None,
            )  # fmt: skip
            try:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                return connection
            except sqlite3.OperationalError:
                connection.close()
                if mode == modes[-1]:
                    raise
            except BaseException:
                connection.close()
                raise
        raise InternalError("a results file could neither be opened nor refused")

    def _set_up(self, sweep: str | None) -> None:
        run = self._connection
        (tables,) = run.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and sweep is None:  # killed before its first transaction
            raise _no_results(self.path)
        if not tables:
            run.execute("PRAGMA journal_mode = DELETE")
            with self._transaction():
                run.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                run.execute(f"PRAGMA user_version = {FORMAT}")
                for statement in _TABLES:
                    run.execute(statement)
                run.execute("INSERT INTO sweep VALUES (?, 0)", (sweep,))
        (application,) = run.execute("PRAGMA application_id").fetchone()
        (found,) = run.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID or found != FORMAT:
            raise _not_ours(self.path)
        run.execute("PRAGMA synchronous = FULL")
        run.execute("PRAGMA foreign_keys = ON")
        (name,) = run.execute("SELECT name FROM sweep").fetchone()
        if sweep is not None and name != sweep:
            raise MalformedInput(
                "holds the results of another sweep",
                where=str(self.path),
                value=name,
                expected=f"sweep {sweep!r}, or a new file",
                hint="choose another --out",
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._sentences():
            run = self._connection
            run.execute("BEGIN IMMEDIATE")
            try:
                yield run
                run.execute("COMMIT")
            except BaseException:
                # A failed COMMIT (disk full) may have ended the transaction itself.
                if run.in_transaction:
                    run.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise MalformedInput(
                f"the results file cannot be used: {error}", where=str(self.path)
            ) from error


def check_ours(path: Path) -> None:
    """Refuse a place that holds something else.

    Raises:
        MalformedInput: a folder, or a file that is not a SQLite file.
    """
    if path.is_dir():
        raise MalformedInput("is a folder", where=str(path), expected="a file")
    if path.is_file() and path.stat().st_size and not is_database(path):
        raise _not_ours(path)


def is_database(path: Path) -> bool:
    """Starts like a SQLite file."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _no_results(path: Path) -> MalformedInput:
    return MalformedInput(
        "no results yet", where=str(path), hint="run the sweep without --show"
    )


def _not_ours(path: Path) -> MalformedInput:
    return MalformedInput(
        "is not a results file of this version, so it is left alone",
        where=str(path),
        hint="choose another --out",
    )


def _record(row: tuple[object, ...]) -> PointRecord:
    identity, position, scenario, workload, overrides, *values = row
    document = {
        name: json.loads(str(value)) if name in _JSON_COLUMNS else value
        for name, value in zip(_FIGURES, values, strict=True)
    }
    if not isinstance(position, int):
        raise InternalError("a point without a position was reported")
    return PointRecord(
        str(identity),
        position,
        str(scenario),
        str(workload),
        json.loads(str(overrides)),
        PointFigures.from_dict(document),
    )
