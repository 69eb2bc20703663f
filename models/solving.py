"""The one way to solve a CP-SAT model: deterministic, budgeted, never taken on trust.

Rules kept here, so that no model has to remember them:

* ``max_deterministic_time`` binds.  A wall-clock limit stands far above it; when it
  fires the record says ``reproducible=False`` and nothing is proved.
* Workers > 1 are interleaved, which is repeatable.  Interleaving, several workers
  and a hint together can abort the process from C++, so that combination raises.
* Every solve draws from one :class:`SolveBudget` for the whole run.
* One solve proves nothing.  ``SolveOutcome.verdict`` is FEASIBLE or UNKNOWN until
  :func:`confirm` has seen the claim hold in a second solve of another kind.
* A solution can only be read where there is one.

Deterministic time is the solver's own unit (about one CPU second), not ns.
"""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ortools.sat.python import cp_model

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.units import INT64_MAX
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raptor_cp.interruption import Stop

#: A model with more variables than this is not built: presolve alone would take
#: seconds and hundreds of MiB.
MAX_BOOLEANS = 60_000

#: Coefficients and right-hand sides of rows over Booleans stay below this: a
#: presolve rule of the current solver overflows int32 (or-tools issue 5293).
MAX_COEFFICIENT = 2**31 - 1

#: Objectives are reported by the solver as floats, exact up to here.
MAX_OBJECTIVE = 2**53

#: Seconds of wall time per unit of deterministic time before the net catches.
_WALL_FACTOR = 60.0
_WALL_MINIMUM = 60.0
#: Below this much deterministic time a solve is not worth starting.
_LEAST_GRANT = 1e-4


class SolverClaim(StrEnum):
    """What one solve said; a claim, not a verdict."""

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    INFEASIBLE = "INFEASIBLE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class SolveSettings:
    """How one solve is done; every field is deterministic.

    Attributes:
        workers: threads; more than one are interleaved.
        seed: random seed of the solver.
        presolve: run the presolve.
        linearization_level: 0, 1, 2; None for the solver's default.
        symmetry_level: None for the default, which a hint overrides with 0.
        fixed_search: follow the model's decision strategies only.
        local_search_only: violation local search (one worker; finds, never proves).
        light_presolve: skip probing and the quadratic inclusion rules.
    """

    workers: int = 1
    seed: int = 0
    presolve: bool = True
    linearization_level: int | None = None
    symmetry_level: int | None = None
    fixed_search: bool = False
    local_search_only: bool = False
    light_presolve: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 64:
            raise MalformedInput(
                "number of solver workers is out of range",
                value=self.workers,
                expected="1 to 64",
            )

    def single(self) -> SolveSettings:
        """The same with one worker: what a model with a hint needs."""
        return replace(self, workers=1)

    def second_witness(self) -> SolveSettings:
        """Settings of another kind, to confirm a claim made with these."""
        if self.presolve:
            return replace(
                self, presolve=False, fixed_search=False, local_search_only=False
            )
        return replace(
            self,
            presolve=True,
            seed=self.seed + 1,
            linearization_level=0 if self.linearization_level else 2,
        )

    def describe(self) -> str:
        """Short text for records, only what differs from the defaults."""
        parts = [
            f"{name}={getattr(self, name)}"
            for name in self.__slots__
            if getattr(self, name) != getattr(_DEFAULTS, name)
        ]
        return " ".join(parts) or "default"


_DEFAULTS = SolveSettings()


@dataclass(frozen=True, slots=True)
class SolveRecord:
    """What is known about one solve; None where unknown.

    Attributes:
        what: the question, for reports.
        status: the solver's claim.
        objective: value of the solution found (units of the model).
        bound: proved-by-this-solve bound on the objective.
        deterministic_time: spent, in the solver's unit.
        limit: deterministic time that was granted.
        conflicts: search conflicts.
        branches: search decisions.
        booleans: Boolean variables after presolve.
        model_hash: sha256 of the model's text form.
        settings: the settings that differ from the defaults.
        reproducible: False when the wall-clock net ended the solve.
        note: anything a reader must know; empty otherwise.
    """

    what: str
    status: SolverClaim
    objective: int | None = None
    bound: int | None = None
    deterministic_time: float = 0.0
    limit: float = 0.0
    conflicts: int | None = None
    branches: int | None = None
    booleans: int | None = None
    model_hash: str | None = None
    settings: str = "default"
    reproducible: bool = True
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON reports."""
        return {name: getattr(self, name) for name in self.__slots__}


class SolveBudget:
    """Deterministic time of a whole run; all solves draw from it.

    The solver overshoots a little (more when workers are interleaved), so
    ``spent`` can pass ``total`` by the overshoot of the last solve, never by more:
    nothing is granted once it is spent.

    Args:
        total: deterministic time, > 0; 0 makes every solve UNKNOWN.
        stop: when it is requested, nothing is granted any more and the running
            solve ends with what it has.
        on_solve: told about every solve when it ends.
    """

    __slots__ = ("_records", "on_solve", "spent", "stop", "total")

    def __init__(
        self,
        total: float,
        *,
        stop: Stop | None = None,
        on_solve: Callable[[SolveRecord], None] | None = None,
    ) -> None:
        if not 0 <= total < float("inf"):
            raise MalformedInput(
                "solver budget is not a finite number >= 0", value=total
            )
        self.total = float(total)
        self.spent = 0.0
        self.stop, self.on_solve = stop, on_solve
        self._records: list[SolveRecord] = []

    @property
    def stopped(self) -> bool:
        """Whether the run was asked to end early."""
        return self.stop is not None and self.stop.requested

    @property
    def remaining(self) -> float:
        """Deterministic time left, never negative."""
        return 0.0 if self.stopped else max(0.0, self.total - self.spent)

    @property
    def records(self) -> tuple[SolveRecord, ...]:
        """Every solve so far, in order."""
        return tuple(self._records)

    def grant(self, wanted: float | None = None) -> float:
        """Limit for the next solve: what is wanted, at most what remains."""
        return self.remaining if wanted is None else min(wanted, self.remaining)

    def share(self, total: float) -> SolveBudget:
        """A part of this budget to spend separately; pay back with :meth:`absorb`."""
        return SolveBudget(
            min(total, self.remaining), stop=self.stop, on_solve=self.on_solve
        )

    def absorb(self, part: SolveBudget) -> None:
        """Count what a part from :meth:`share` has spent."""
        for record in part._records:
            self.charge(record)

    def charge(self, record: SolveRecord) -> None:
        """Count one solve."""
        self.spent += record.deterministic_time
        self._records.append(record)


class Indexed(Protocol):
    """A variable, or a negated Boolean, of a CP-SAT model."""

    @property
    def index(self) -> int:
        """Position in the model; ``-i - 1`` for the negation of ``i``."""
        ...


@dataclass(frozen=True, slots=True)
class Solution:
    """Values of the variables of one model: a snapshot, safe to keep."""

    _values: tuple[int, ...] = field(repr=False)

    def value(self, variable: Indexed) -> int:
        """Value of a variable, or of a negated Boolean (``~x``)."""
        index = int(variable.index)
        return self._values[index] if index >= 0 else 1 - self._values[-index - 1]

    def true(self, literal: Indexed) -> bool:
        """Whether a Boolean literal holds."""
        return self.value(literal) != 0


@dataclass(frozen=True, slots=True)
class SolveOutcome:
    """Result of :func:`solve` or :func:`confirm`.

    Attributes:
        verdict: what may be said: FEASIBLE or UNKNOWN after one solve; OPTIMAL and
            INFEASIBLE only after a confirmation.
        record: of the solve that made the claim.
        solution: present exactly when a solution was found (not yet validated).
        confirmation: record of the second solve, if there was one.
        note: one sentence when the verdict needs one.
    """

    verdict: Verdict
    record: SolveRecord
    solution: Solution | None = None
    confirmation: SolveRecord | None = None
    note: str = ""

    @property
    def confirmed(self) -> bool:
        """A proof that a second solve has seen hold."""
        return self.verdict in (Verdict.OPTIMAL, Verdict.INFEASIBLE)


def fits(booleans: int) -> bool:
    """Whether a model of so many Booleans may be built at all."""
    return booleans <= MAX_BOOLEANS


def checked_coefficients(
    values: Iterable[int], what: str, *, limit: int = MAX_COEFFICIENT
) -> int:
    """Check costs before a model is built and return their sum.

    Args:
        values: non-negative costs that will multiply variables.
        what: name of the cost for the message, e.g. ``"execution time (ns)"``.
        limit: largest value allowed; default: what Booleans may be multiplied by.

    Raises:
        MalformedInput: a cost is negative or too large, or the sum leaves int64.
    """
    total = 0
    for position, value in enumerate(values):
        if not 0 <= value <= limit:
            raise MalformedInput(
                f"{what} number {position} is too large for the solver"
                if value > limit
                else f"{what} number {position} is negative",
                value=int(value),
                expected=f"0 to {limit}",
            )
        total += int(value)
    if total > INT64_MAX // 4:
        raise MalformedInput(
            f"the sum of all {what} leaves the solver's range",
            value=total,
            expected=f"at most {INT64_MAX // 4}",
        )
    return total


def scale_divisor(largest: int, *, limit: int = MAX_COEFFICIENT) -> int:
    """Least divisor that brings ``largest`` to at most ``limit``.

    Round costs down and limits down for a claim of infeasibility; round costs up
    and limits down for a claim of feasibility.

    >>> scale_divisor(2**31 - 1), scale_divisor(2**31)
    (1, 2)
    """
    return max(1, -(-largest // limit))


def model_hash(model: cp_model.CpModel) -> str:
    """sha256 of the model's text form, which is the same in every process."""
    return hashlib.sha256(str(model.proto).encode()).hexdigest()


def solve(
    model: cp_model.CpModel,
    budget: SolveBudget,
    *,
    what: str,
    settings: SolveSettings = _DEFAULTS,
    limit: float | None = None,
) -> SolveOutcome:
    """Solve once within the budget; the verdict is FEASIBLE or UNKNOWN.

    Args:
        model: at most :data:`MAX_BOOLEANS` variables.
        budget: of the run; charged with what was spent.
        what: the question, for the record.
        settings: how.
        limit: deterministic time for this solve; default: all that remains.

    Raises:
        InternalError: the model is invalid, too large, or combines a hint with
            several workers.
    """
    proto = model.proto
    variables = len(proto.variables)
    if not fits(variables):
        raise InternalError(
            f"{what}: {variables} variables, more than {MAX_BOOLEANS}; "
            "check fits() before building"
        )
    hinted = len(proto.solution_hint.vars) > 0 if proto.has_solution_hint() else False
    if hinted and settings.workers > 1:
        raise InternalError(
            f"{what}: a hint with {settings.workers} interleaved workers can abort "
            "the process; use settings.single()"
        )
    granted = budget.grant(limit)
    digest = model_hash(model)
    if granted < _LEAST_GRANT:
        record = SolveRecord(
            what,
            SolverClaim.UNKNOWN,
            model_hash=digest,
            settings=settings.describe(),
            note="interrupted" if budget.stopped else "no deterministic time left",
        )
        budget.charge(record)
        return SolveOutcome(Verdict.UNKNOWN, record, note=record.note)
    solver = cp_model.CpSolver()
    wall = _apply(solver, settings, granted, hinted=hinted)
    stop = budget.stop
    with nullcontext() if stop is None else stop.calling(solver.stop_search):
        claim = _claim(solver, model, what)
    has_solution = claim in (SolverClaim.OPTIMAL, SolverClaim.FEASIBLE)
    response = solver.response_proto
    objective, bound = _objective(model, solver, has_solution)
    note = ""
    if claim is SolverClaim.OPTIMAL and objective != bound:
        # The word alone is not a proof: gap limits also end in OPTIMAL.
        claim, note = SolverClaim.FEASIBLE, "optimal was claimed above the bound"
    timed_out = solver.wall_time >= wall
    if timed_out:
        note = "the wall-clock net ended the solve: not reproducible"
        if claim in (SolverClaim.OPTIMAL, SolverClaim.INFEASIBLE):
            claim = SolverClaim.FEASIBLE if has_solution else SolverClaim.UNKNOWN
    cut_short = budget.stopped and claim in (SolverClaim.FEASIBLE, SolverClaim.UNKNOWN)
    if cut_short:
        note = "interrupted: not reproducible"
    record = SolveRecord(
        what=what,
        status=claim,
        objective=objective,
        bound=bound,
        deterministic_time=float(response.deterministic_time),
        limit=granted,
        conflicts=int(solver.num_conflicts),
        branches=int(solver.num_branches),
        booleans=int(solver.num_booleans),
        model_hash=digest,
        settings=settings.describe(),
        reproducible=not (timed_out or cut_short),
        note=note,
    )
    budget.charge(record)
    if budget.on_solve is not None:
        budget.on_solve(record)
    solution = Solution(tuple(response.solution)) if has_solution else None
    verdict = Verdict.FEASIBLE if has_solution and not timed_out else Verdict.UNKNOWN
    return SolveOutcome(verdict, record, solution, note=note)


def confirm(
    model: cp_model.CpModel,
    outcome: SolveOutcome,
    budget: SolveBudget,
    *,
    settings: SolveSettings = _DEFAULTS,
    limit: float | None = None,
) -> SolveOutcome:
    """Ask a claim of OPTIMAL or INFEASIBLE again, in another way.

    INFEASIBLE is solved again with presolve off; OPTIMAL becomes the question
    whether anything better exists, also with presolve off.  Agreement turns the
    claim into the verdict.  A contradiction makes it UNKNOWN with a note (a found
    solution stays readable); no answer keeps FEASIBLE or UNKNOWN.

    Args:
        model: the model of ``outcome``, unchanged.
        outcome: from :func:`solve` with ``settings``.
        budget: of the run.
        settings: those of the first solve; the second differs.
        limit: deterministic time of the second solve.
    """
    claim = outcome.record.status
    if claim is SolverClaim.INFEASIBLE:
        question = model
    elif claim is SolverClaim.OPTIMAL and model.has_objective():
        if outcome.solution is None:
            raise InternalError("an optimum without a solution")
        question = _strictly_better(model, outcome.solution)
    else:
        return outcome
    second = solve(
        question,
        budget,
        what=f"{outcome.record.what} (confirmation)",
        settings=settings.second_witness().single(),
        limit=limit,
    )
    if second.record.status is SolverClaim.INFEASIBLE:
        proved = (
            Verdict.INFEASIBLE if claim is SolverClaim.INFEASIBLE else Verdict.OPTIMAL
        )
        return replace(outcome, verdict=proved, confirmation=second.record)
    if second.solution is not None:
        return SolveOutcome(
            Verdict.UNKNOWN,
            outcome.record,
            second.solution,
            second.record,
            note=f"two solves disagree about {claim.value}: no claim is made",
        )
    return replace(
        outcome,
        confirmation=second.record,
        note=f"{claim.value} was claimed once and not confirmed in the budget",
    )


def solve_confirmed(
    model: cp_model.CpModel,
    budget: SolveBudget,
    *,
    what: str,
    settings: SolveSettings = _DEFAULTS,
    limit: float | None = None,
) -> SolveOutcome:
    """:func:`solve`, then :func:`confirm`; each gets ``limit`` at most."""
    outcome = solve(model, budget, what=what, settings=settings, limit=limit)
    return confirm(model, outcome, budget, settings=settings, limit=limit)


def confirm_bound(
    model: cp_model.CpModel,
    bound: int,
    budget: SolveBudget,
    *,
    what: str,
    settings: SolveSettings = _DEFAULTS,
    limit: float | None = None,
) -> bool:
    """Whether a solve of another kind also finds nothing beyond ``bound``.

    Minimisation: nothing below ``bound``; maximisation: nothing above.
    """
    objective = model.proto.objective
    inner = round(bound / objective.scaling_factor - objective.offset)
    outcome = solve(
        _below(model, inner),
        budget,
        what=f"{what} (bound)",
        settings=settings.second_witness().single(),
        limit=limit,
    )
    return outcome.record.status is SolverClaim.INFEASIBLE


def _apply(
    solver: cp_model.CpSolver, settings: SolveSettings, granted: float, *, hinted: bool
) -> float:
    """Set the parameters; returns the wall-clock net in seconds."""
    parameters = solver.parameters
    parameters.num_workers = settings.workers
    parameters.interleave_search = settings.workers > 1
    parameters.random_seed = settings.seed
    parameters.max_deterministic_time = granted
    wall = _WALL_MINIMUM + _WALL_FACTOR * granted
    parameters.max_time_in_seconds = wall
    parameters.cp_model_presolve = settings.presolve
    # Ctrl-C ends the run (raptor_cp.interruption), not one solve of many.
    parameters.catch_sigint_signal = False
    if settings.linearization_level is not None:
        parameters.linearization_level = settings.linearization_level
    if settings.symmetry_level is not None:
        parameters.symmetry_level = settings.symmetry_level
    elif hinted:
        parameters.symmetry_level = 0  # symmetry breaking can destroy a hint
    if settings.fixed_search:
        parameters.search_branching = cp_model.FIXED_SEARCH
    if settings.local_search_only:
        parameters.use_ls_only = True
    if settings.light_presolve:
        parameters.cp_model_probing_level = 0
        parameters.presolve_inclusion_work_limit = 0
        parameters.merge_at_most_one_work_limit = 0
    return wall


def _claim(
    solver: cp_model.CpSolver, model: cp_model.CpModel, what: str
) -> SolverClaim:
    status = solver.solve(model)
    if status == cp_model.MODEL_INVALID:
        reason = model.validate() or solver.solution_info()
        raise InternalError(f"{what}: invalid model: {reason}")
    for known, claim in (
        (cp_model.OPTIMAL, SolverClaim.OPTIMAL),
        (cp_model.FEASIBLE, SolverClaim.FEASIBLE),
        (cp_model.INFEASIBLE, SolverClaim.INFEASIBLE),
        (cp_model.UNKNOWN, SolverClaim.UNKNOWN),
    ):
        if status == known:
            return claim
    raise InternalError(f"{what}: unknown solver status {status!r}")


def _objective(
    model: cp_model.CpModel, solver: cp_model.CpSolver, has_solution: bool
) -> tuple[int | None, int | None]:
    """(objective, bound) as exact ints; (None, None) without an objective."""
    if not model.has_objective():
        return None, None
    objective = round(solver.objective_value) if has_solution else None
    raw = float(solver.best_objective_bound)
    if abs(raw) >= MAX_OBJECTIVE:
        return objective, None
    # An integer objective: the bound may be rounded towards the solution.
    nearest = round(raw)
    if abs(raw - nearest) < 1e-6:
        return objective, nearest
    below = int(raw // 1)
    return objective, below + 1 if model.proto.objective.scaling_factor >= 0 else below


def _terms(model: cp_model.CpModel) -> list[tuple[cp_model.IntVar, int]]:
    """Objective of the minimisation form as (variable, coefficient)."""
    objective = model.proto.objective
    terms = []
    for reference, coefficient in zip(objective.vars, objective.coeffs, strict=True):
        sign = 1 if reference >= 0 else -1  # a negative reference is -variable
        index = reference if reference >= 0 else -reference - 1
        terms.append(
            (model.get_int_var_from_proto_index(index), sign * int(coefficient))
        )
    return terms


def _strictly_better(model: cp_model.CpModel, solution: Solution) -> cp_model.CpModel:
    """The decision "is there a better solution?" as a model of its own."""
    inner = sum(factor * solution.value(variable) for variable, factor in _terms(model))
    return _below(model, inner)


def _below(model: cp_model.CpModel, inner: int) -> cp_model.CpModel:
    """Copy without objective and hint, whose minimised sum is below ``inner``."""
    question = model.clone()
    terms = _terms(question)
    question.proto.clear_objective()
    question.proto.clear_solution_hint()
    question.add(
        cp_model.LinearExpr.weighted_sum(
            [variable for variable, _ in terms], [factor for _, factor in terms]
        )
        <= inner - 1
    )
    return question
