"""Sweeps: a grid of overrides over scenarios, resumable, one record a point.

::

    from raptor_cp.sweeps import load_sweep, run_sweep

    report = run_sweep(load_sweep("sweep.yaml"), "results.sqlite")
    [(r.overrides, r.figures.interval_ns) for r in report.records]

A point is known by its content (:mod:`raptor_cp.sweeps.identity`); results are in one
SQLite file, a transaction for each point (:mod:`raptor_cp.sweeps.database`), so a
sweep may be killed at any time and continued.
"""

from raptor_cp.sweeps.driver import (
    SweepObserver,
    default_database,
    read_results,
    run_sweep,
)
from raptor_cp.sweeps.pareto import front_of, pareto_front
from raptor_cp.sweeps.records import Outcome, PointFigures, PointRecord, SweepReport
from raptor_cp.sweeps.sweep_file import (
    Sweep,
    SweepPoint,
    load_sweep,
    sweep_from_mapping,
)

__all__ = [
    "Outcome",
    "PointFigures",
    "PointRecord",
    "Sweep",
    "SweepObserver",
    "SweepPoint",
    "SweepReport",
    "default_database",
    "front_of",
    "load_sweep",
    "pareto_front",
    "read_results",
    "run_sweep",
    "sweep_from_mapping",
]
