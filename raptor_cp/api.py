"""The calls of the public Python API; ``import raptor_cp as rc`` has them all.

Each operation of the command line is one call here.  Heavy libraries are imported by
the call that needs them, so that ``import raptor_cp`` is quick.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from raptor_cp.comparison import ComparisonRow
    from raptor_cp.interruption import Stop
    from raptor_cp.network.onnx_import import OnnxOptions
    from raptor_cp.network.structure import Network
    from raptor_cp.regression import RegressionCase
    from raptor_cp.result import ScheduleResult
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.scheduler import SchedulerObserver
    from raptor_cp.sweeps import SweepReport
    from raptor_cp.targets.pe.analysis import DispatchAnalysis
    from raptor_cp.targets.pim.diagnostic import (
        DiagnosticOptions,
        InstructionDiagnostic,
    )
    from raptor_cp.targets.pim.functional import Verification

#: A scenario file, its content as a mapping, a loaded scenario, or None for the
#: built-in one (ResNet-18 on 168 cores).
ScenarioLike: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, object] | LoadedScenario | None"
)
#: ``{"pipeline.stages": 4}`` or ``["pipeline.stages=4"]``.
Overrides: TypeAlias = Mapping[str, object] | Iterable[str]


def load(scenario: ScenarioLike = None, overrides: Overrides = ()) -> LoadedScenario:
    """A scenario, checked and with every default filled in.

    Args:
        scenario: a file, its content as a mapping (relative paths then start from the
            working directory), or None for the built-in one.
        overrides: values to replace, by dotted key.

    Raises:
        MalformedInput: not a legal scenario.
    """
    from raptor_cp.scenario import LoadedScenario, from_mapping, load_or_builtin

    texts = _override_texts(overrides)
    if isinstance(scenario, LoadedScenario):
        return from_mapping(scenario.scenario.to_dict(), texts, scenario.folder)
    if isinstance(scenario, Mapping):
        return from_mapping(scenario, texts)
    return load_or_builtin(None if scenario is None else Path(scenario), texts)


def schedule(
    scenario: ScenarioLike = None,
    *,
    overrides: Overrides = (),
    program: bool | None = None,
    out: str | os.PathLike[str] | None = None,
    observer: SchedulerObserver | None = None,
    stop: Stop | None = None,
) -> ScheduleResult:
    """Schedule a network on a chip and say how good the schedule is.

    Args:
        scenario: see :func:`load`.
        overrides: see :func:`load`.
        program: emit a program; None does when there is a run folder for it.
        out: run folder to write; None writes nothing.
        observer: progress hooks.
        stop: ends the run early, with the best schedule so far and
            ``result.interrupted``; :func:`raptor_cp.interruption.stopping_on_signals`
            makes one that Ctrl-C requests.

    Returns:
        A result with a verdict in every case; ``result.schedule`` is None when there
        is no schedule.  A run that was interrupted before it had one writes nothing.

    Raises:
        MalformedInput: the scenario, its network or its chip is wrong, or ``out``
            holds something that is no run.

    >>> result = schedule("scenarios/tiny-residual.yaml")  # doctest: +SKIP
    >>> result.certificate.gap  # doctest: +SKIP
    """
    from raptor_cp.run_folder import check_replaceable
    from raptor_cp.run_output import write_run
    from raptor_cp.scheduler import schedule as run

    loaded = load(scenario, overrides)
    if out is not None:
        check_replaceable(Path(out))
    emit = out is not None if program is None else program
    result = run(loaded, observer, program=emit, stop=stop)
    nothing = result.interrupted and result.schedule is None
    if out is not None and not nothing:
        write_run(result, Path(out))
    return result


def check(
    scenario: ScenarioLike = None, *, overrides: Overrides = ()
) -> ScheduleResult:
    """Feasibility and certificate only: the initial schedule, no search.

    Raises:
        MalformedInput: the scenario, its network or its chip is wrong.
    """
    from raptor_cp.scheduler import schedule as run

    only = ("search.timing=static", "search.queue_evaluations=1")
    return run(load(scenario, (*_override_texts(overrides), *only)))


def compare(
    scenarios: ScenarioLike | Sequence[ScenarioLike],
    *,
    overrides: Overrides = (),
    methods: Sequence[str] | None = None,
) -> list[ComparisonRow]:
    """Solver against heuristic, a row for each scenario and method.

    Args:
        scenarios: one scenario or several, see :func:`load`.
        overrides: for all of them.
        methods: ``heuristic``, ``cp-sat``, ``both`` (pipeline mode), ``peft``,
            ``heft``, ``cp-sat`` (latency mode); None takes all of the mode.

    Raises:
        MalformedInput: a wrong scenario, or an unknown method.
    """
    from raptor_cp.comparison import compare as run
    from raptor_cp.scenario import LoadedScenario

    one = scenarios is None or isinstance(
        scenarios, str | os.PathLike | Mapping | LoadedScenario
    )
    rows: list[ComparisonRow] = []
    texts = _override_texts(overrides)
    for scenario in cast("Sequence[ScenarioLike]", (scenarios,) if one else scenarios):
        rows.extend(run(load(scenario, texts), methods))
    return rows


def regress(
    scenario: str | os.PathLike[str], *, update: bool = False
) -> RegressionCase:
    """A scenario against its recorded result; ``update`` records it anew.

    Raises:
        MalformedInput: the scenario or the recorded result cannot be read.
    """
    from raptor_cp.regression import regress as run

    return run(Path(scenario), update=update)


def sweep(
    sweep: str | os.PathLike[str] | Mapping[str, object],
    database: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
    dask: str | None = None,
    retry_failed: bool = False,
    stop: Stop | None = None,
) -> SweepReport:
    """Run the points of a sweep that its database does not have yet.

    Args:
        sweep: a sweep file, or its content as a mapping.
        database: SQLite file of the results; None takes ``sweeps/<name>.sqlite``.
        workers: local processes; None takes one for each CPU.
        dask: address of a Dask scheduler that runs the points instead.
        retry_failed: also run the points again that failed.
        stop: ends the sweep early with what is finished.

    Raises:
        MalformedInput: not a legal sweep, or a database of something else.
    """
    from raptor_cp.sweeps import load_sweep, run_sweep, sweep_from_mapping

    given = (
        sweep_from_mapping(sweep)
        if isinstance(sweep, Mapping)
        else load_sweep(Path(sweep))
    )
    return run_sweep(
        given,
        None if database is None else Path(database),
        workers=workers,
        dask=dask,
        retry_failed=retry_failed,
        stop=stop,
    )


def verify(
    run: str | os.PathLike[str],
    *,
    generations: int | None = None,
    orders: int = 3,
    seed: int = 0,
    strict_host: bool = False,
) -> Verification:
    """Execute the program of a run folder and compare every output bit for bit.

    Args:
        run: folder that :func:`schedule` wrote.
        generations: rounds of each execution; None reuses every buffer twice.
        orders: executions under different core orders.
        seed: of inputs and orders.
        strict_host: one input in each bank.

    Raises:
        MalformedInput: not a run folder, or it has no program.
    """
    from raptor_cp.errors import MalformedInput
    from raptor_cp.preparation import read_network as network_of
    from raptor_cp.scenario import load as read
    from raptor_cp.targets.pim.functional import core_orders, verify_run
    from raptor_cp.targets.registry import create

    scenario = Path(run) / "scenario.yaml"
    if not scenario.is_file():
        raise MalformedInput(
            "not a run folder",
            where=str(run),
            expected="scenario.yaml and program/, as schedule writes them",
        )
    loaded = read(scenario)
    array = create(loaded).resources().array
    return verify_run(
        Path(run),
        network_of(loaded, cell_bits=array.cell_bits if array else None),
        array=array,
        generations=generations,
        orders=core_orders(orders, seed),
        seed=seed,
        strict_host=strict_host,
    )


def diagnose(
    program: str | os.PathLike[str],
    config: str | os.PathLike[str],
    options: DiagnosticOptions | None = None,
) -> InstructionDiagnostic:
    """Timing of a program for the PIM simulator, without running it.

    Args:
        program: JSON, gzipped JSON or folder.
        config: configuration file of the chip, or a built-in name.
        options: what is modelled.

    Raises:
        MalformedInput: the program or the configuration is wrong.
    """
    from raptor_cp.targets.pim.artifact import read_program
    from raptor_cp.targets.pim.config import load_config
    from raptor_cp.targets.pim.diagnostic import DiagnosticOptions
    from raptor_cp.targets.pim.diagnostic import diagnose as run

    chip = load_config(Path(config))
    return run(read_program(Path(program), chip), chip, options or DiagnosticOptions())


def dispatch(subject: str, **parameters: object) -> DispatchAnalysis:
    """What issuing the commands of a shipped kernel costs a processing element.

    Args:
        subject: name of the kernel.
        **parameters: of the kernel.

    Raises:
        MalformedInput: no such kernel or parameter.
    """
    from raptor_cp.targets.pe.analysis import analyse_kernel
    from raptor_cp.targets.pe.topology import PeTopology

    return analyse_kernel(subject, parameters, PeTopology())


def report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Path:
    """Write the HTML report of a run folder: one file, no network access.

    Args:
        run: folder that :func:`schedule` wrote.
        out: where to; None takes ``report.html`` in the folder.

    Returns:
        Where it is.

    Raises:
        MalformedInput: not a run folder, a broken file in it, or ``out`` cannot be
            written.
    """
    from raptor_cp.reports.files import write_text
    from raptor_cp.reports.html_page import report_html
    from raptor_cp.reports.run_documents import RunDocuments

    target = Path(run) / "report.html" if out is None else Path(out)
    write_text(target, report_html(RunDocuments.read(Path(run))))
    return target


def read_network(
    source: str | os.PathLike[str], options: OnnxOptions | None = None
) -> Network:
    """A network: by its name in the zoo, or from an ONNX or PIMCOMP file.

    Raises:
        MalformedInput: an unknown name, or a file that cannot be imported.
    """
    from raptor_cp.network import zoo
    from raptor_cp.network.model_file import import_model

    path = Path(source)
    if not path.suffix and not path.exists():
        return zoo.build(str(source))
    return import_model(path, options)


def _override_texts(overrides: Overrides) -> tuple[str, ...]:
    if isinstance(overrides, Mapping):
        from raptor_cp.yaml_source import yaml_text

        return tuple(
            f"{key}={yaml_text(value, key)}" for key, value in overrides.items()
        )
    if isinstance(overrides, str):
        return (overrides,)
    return tuple(overrides)
