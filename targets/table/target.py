"""The ``table`` target: costs that a person wrote down.

For published examples, tests, and people with measurements of their own.  Tasks
carry :class:`~raptor_cp.graph.work.ExplicitWork`; communication follows the link
matrices and vanishes on one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.work import ExplicitWork, Work
from raptor_cp.target import (
    LinkModel,
    MemoryModel,
    Resources,
    TaskCosts,
    Unavailable,
)
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.target import RealizedCompletion, RealizedCost

Matrix: TypeAlias = "int | np.integer | Sequence[Sequence[int]] | NDArray[np.integer]"


class TableTarget:
    """Cores with explicit costs.

    Args:
        cores: P.
        slots_per_core: core capacity, weight slots.
        link_ns: ns per ``link_width`` bytes between two different cores, one number
            or a [P][P] matrix.
        handshake_ns: ns per transfer besides, one number or a [P][P] matrix.
        link_width: bytes that one ``link_ns`` moves.
        memory: shared memory; by default it costs nothing.
        where: place named in error messages.

    Raises:
        MalformedInput: a matrix that is not P x P, or a number out of range.
    """

    name = "table"

    def __init__(
        self,
        cores: int,
        slots_per_core: int = 2**31 - 1,
        link_ns: Matrix = 1,
        handshake_ns: Matrix = 0,
        link_width: int = 1,
        memory: MemoryModel | None = None,
        where: str = "target",
    ) -> None:
        for key, value, least in (
            ("cores", cores, 1),
            ("slots_per_core", slots_per_core, 1),
            ("link_width", link_width, 1),
        ):
            _in_range(value, f"{where}.{key}", least)
        self._resources = Resources(
            cores,
            slots_per_core,
            LinkModel(
                _square(handshake_ns, cores, f"{where}.handshake_ns"),
                _square(link_ns, cores, f"{where}.link_ns"),
                link_width,
            ),
            memory or MemoryModel(1, 0, 0),
        )

    def resources(self) -> Resources:
        """Cores, slots, links, memory."""
        return self._resources

    def work_ns(self, work: Work) -> int | Unavailable:
        """Cost on the cheapest core."""
        if isinstance(work, ExplicitWork):
            return min(work.execution_ns)
        return Unavailable("the table target prices explicit tasks only")

    def costs(self, graph: ComputeGraph) -> TaskCosts:
        """[T] or [T, P] costs as written.

        Raises:
            MalformedInput: a task without explicit costs, with a number of costs
                that is neither one nor the number of cores, or a cost out of range.
        """
        cores = self._resources.cores
        table = np.empty((graph.task_count, cores), dtype=np.int64)
        for index, task in enumerate(graph.tasks):
            where = f"graph {graph.name!r}, task {task.name!r}"
            if not isinstance(task.work, ExplicitWork):
                raise MalformedInput(
                    "has no explicit cost",
                    where=where,
                    expected="execution_ns (target kind table)",
                )
            given = task.work.execution_ns
            if len(given) not in (1, cores):
                raise MalformedInput(
                    "wrong number of execution times",
                    where=where,
                    value=len(given),
                    expected=f"one, or one for each of the {cores} cores",
                )
            row = np.array(given)
            if row.dtype.kind != "i" or not 0 <= row.min() <= row.max() <= MAX_NS:
                for number, value in enumerate(given):
                    core = f", core {number}" if len(given) > 1 else ""
                    _in_range(value, f"{where}{core}", 0)
            table[index] = given[0] if len(given) == 1 else given
        if bool((table == table[:, :1]).all()):
            return TaskCosts(table[:, 0].copy())
        return TaskCosts(table.max(axis=1), table)

    def extract_events(self, plan: ExecutionPlan) -> PlanEvents | Unavailable:
        """Events: transfers take their link's time, shared memory serves in order."""
        from raptor_cp.realization.events import extract_events
        from raptor_cp.realization.neutral_events import NeutralTimes

        return extract_events(plan, NeutralTimes(plan.schedule.problem))

    def estimate_realized_schedule_cost(self, plan: ExecutionPlan) -> RealizedCost:
        """Transfers take their link's time, shared memory serves in order."""
        from raptor_cp.realization.cost import realized_cost

        return realized_cost(plan, self.extract_events)

    def estimate_completion(self, plan: ExecutionPlan) -> RealizedCompletion:
        """One inference alone; transfers occupy both of their ends."""
        from raptor_cp.realization.cost import realized_completion
        from raptor_cp.realization.events import extract_events
        from raptor_cp.realization.neutral_events import NeutralTimes

        times = NeutralTimes(plan.schedule.problem)
        return realized_completion(
            plan, lambda realized: extract_events(realized, times)
        )


def _square(value: Matrix, cores: int, where: str) -> NDArray[np.int64]:
    if isinstance(value, int | np.integer):
        _in_range(value, where, 0)
        matrix = np.full((cores, cores), value, dtype=np.int64)
    else:
        if not isinstance(value, Sequence | np.ndarray):
            raise MalformedInput(
                "not a number of ns", where=where, value=value, expected=_MATRIX
            )
        rows = [np.size(row) for row in value]
        if rows != [cores] * cores:
            raise MalformedInput(
                "not a square matrix over the cores",
                where=where,
                value=f"rows of {rows[:8]} values",
                expected=f"{cores} rows of {cores}",
            )
        for source, row in enumerate(value):
            for target, entry in enumerate(row):
                _in_range(entry, f"{where}[{source}][{target}]", 0)
        matrix = np.array(value, dtype=np.int64)
    np.fill_diagonal(matrix, 0)
    matrix.setflags(write=False)
    return matrix


_MATRIX = "one whole number, or a row for each core"


def _in_range(value: object, where: str, least: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not least <= int(value) <= MAX_NS:  # type: ignore[call-overload]
        raise MalformedInput(
            "out of range" if whole else "not a whole number",
            where=where,
            value=value,
            expected=f"{least} to {MAX_NS}",
        )
