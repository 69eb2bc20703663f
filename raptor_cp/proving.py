"""What the solver contributes to a run: feasibility, seeds, bounds, explanations.

Everything the solver says reaches the search as data.  Without the solver every
method still answers: with nothing, and a note that says what was not proved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.infeasibility import Infeasibility
from raptor_cp.models.certificate import Certificate, certify
from raptor_cp.models.conflicts import Conflict, Lever, LeverKind, explain
from raptor_cp.models.instances import (
    PartitionRules,
    joint_instance,
    packing_instance,
)
from raptor_cp.models.pipeline_joint import JointResult, solve_joint
from raptor_cp.models.solving import SolveBudget, SolveSettings
from raptor_cp.models.weight_packing import pack
from raptor_cp.pipeline.neighbourhood import StageVector
from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from raptor_cp.interruption import Stop
    from raptor_cp.models.solving import SolveRecord
    from raptor_cp.phases import Phases
    from raptor_cp.pipeline.groups import StageLimits
    from raptor_cp.pipeline.partition import PartitionFailure
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.schedules import Problem, Schedule
    from raptor_cp.target import RealizedCost

    IndexArray = NDArray[np.int32]
    Seed = tuple[StageVector, list[IndexArray]]

#: Share of the solver's deterministic time that the joint model may take; the rest
#: is for explanations and for the last word when every heuristic packing failed.
_JOINT_SHARE = 0.7


class Prover:
    """The solver's part of one pipeline run, inside one deterministic budget.

    Args:
        loaded: the scenario: budget, workers, seed, or ``solver.enabled: false``.
        problem: graph, costs, chip.
        limits: side constraints, the same as the DP's.
        phases: where solver time is counted.
        stop: ends solves early.
        on_solve: told (solves so far, deterministic time spent, its limit).
    """

    def __init__(
        self,
        loaded: LoadedScenario,
        problem: Problem,
        limits: StageLimits,
        phases: Phases,
        *,
        stop: Stop | None = None,
        on_solve: Callable[[int, float, float], None] | None = None,
    ) -> None:
        solver = loaded.scenario.solver
        self.problem, self.limits, self.phases = problem, limits, phases
        self.enabled = solver.enabled
        self.wants_seed = "cp-sat" in loaded.scenario.search.seeds
        self._on_solve = on_solve
        self._solves, self._spent = 0, 0.0
        self.budget = SolveBudget(
            solver.deterministic_time if solver.enabled else 0.0,
            stop=stop,
            on_solve=self._solved,
        )
        self.settings = SolveSettings(workers=solver.workers, seed=solver.random_seed)
        self.answer: JointResult | None = None
        self.notes: list[str] = []
        if not solver.enabled:
            self.notes.append(
                "the solver is off: infeasibility and optimality are proved by "
                "counting bounds only"
            )

    def _solved(self, record: SolveRecord) -> None:
        # Shares of the budget are paid back late, so the sum is kept here.
        self._solves += 1
        self._spent += record.deterministic_time
        if self._on_solve is not None:
            self._on_solve(self._solves, self._spent, self.budget.total)

    def joint(self, depth: int) -> Seed | None:
        """Solve partition, budgets and packing together; the seed, if wanted.

        With the solver off the bound still comes from counting, and no seed does.
        """
        with self.phases.timed("joint model"):
            self.answer = solve_joint(
                joint_instance(self.problem, depth, self._rules()),
                self.budget,
                settings=self.settings,
                limit=_JOINT_SHARE * self.budget.total,
            )
        if self.answer.note:
            self.notes.append(f"joint model: {self.answer.note}")
        if not (self.enabled and self.answer.stages):
            return None
        stages = self.answer.stages
        vector = StageVector(
            tuple(stage.first for stage in stages),
            tuple(stage.cores for stage in stages),
        )
        return vector, [stage.core_of.astype("int32") for stage in stages]

    def certificate(self, schedule: Schedule, cost: RealizedCost) -> Certificate:
        """How far from the optimum a schedule is at most."""
        with self.phases.timed("certificate"):
            return certify(schedule, cost.larger_ns, self.answer)

    def infeasibility(self) -> Infeasibility | None:
        """A confirmed proof that the weights fit on no placement; None without one."""
        instance = packing_instance(self.problem)
        with self.phases.timed("weight packing"):
            answer = pack(instance, self.budget, settings=self.settings)
            if answer.verdict is not Verdict.INFEASIBLE:
                return None
            conflict = explain(instance, answer, self.budget)
        if conflict is None:
            return None
        return _infeasibility(conflict, answer.method)

    def explain(self, failure: PartitionFailure) -> Infeasibility:
        """The proof behind a partition that lower bounds refute."""
        found = self.infeasibility()
        if found is not None:
            return found
        resources = self.problem.resources
        capacity = resources.cores * resources.slots_per_core
        levers = ["relax pipeline.constraints"]
        needed = capacity
        if failure.least_cores is not None:
            needed = failure.least_cores * resources.slots_per_core
            levers.append(f"at least {failure.least_cores} cores")
        return Infeasibility(
            failure.reason, "counting bound", needed, capacity, (), tuple(levers)
        )

    def records(self) -> tuple[dict[str, object], ...]:
        """All solves of the run."""
        return tuple(record.to_dict() for record in self.budget.records)

    def _rules(self) -> PartitionRules:
        limits, cores = self.limits, self.problem.resources.cores
        groups = limits.min_cores.size
        return PartitionRules(
            forbidden_cuts=tuple(
                cut for cut in range(1, groups) if not limits.allows_cut(cut)
            ),
            group_cores=tuple(
                (group, int(low), int(high))
                for group, (low, high) in enumerate(
                    zip(limits.min_cores, limits.max_cores, strict=True)
                )
                if (low, high) != (1, cores)
            ),
        )


def _infeasibility(conflict: Conflict, method: str) -> Infeasibility:
    counted = conflict.argument in ("task", "slots", "load", "clique")
    return Infeasibility(
        conflict.sentence(),
        f"counting bound: {conflict.argument}"
        if counted
        else f"CP-SAT ({method}), confirmed by a second solve",
        conflict.slots_needed,
        conflict.slots_there,
        tuple((need.name, need.slots) for need in conflict.operations),
        tuple(_lever(lever) for lever in conflict.levers),
    )


def _lever(lever: Lever) -> str:
    match lever.kind:
        case LeverKind.CORES:
            return f"at least {lever.at_least} cores (there are {lever.at_present})"
        case LeverKind.SLOTS_PER_CORE:
            return (
                f"at least {lever.at_least} weight slots on each core (there are "
                f"{lever.at_present})"
            )
        case LeverKind.WEIGHT_SLOTS:
            return (
                f"at most {lever.at_least} weight slots in all (now "
                f"{lever.at_present}): fewer bits per weight, or more bits per cell"
            )
        case LeverKind.SPLIT:
            return (
                f"cut {lever.where!r} into blocks of at most {lever.at_least} weight "
                f"slots (now {lever.at_present})"
            )
