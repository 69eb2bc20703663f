"""The processing element: a CPU that issues, a scheduler queue, engines.

The CPU issues in program order and pays each command's dispatch.  A command then
needs a place in the scheduler's queue; places are taken and given back in order,
so command ``k`` is pushed no earlier than command ``k - depth`` has retired: that
wait is the back-pressure on the CPU.  The scheduler expands a pushed command into
stages (:mod:`raptor_cp.targets.pe.expansion`) without cost of its own, and the
engines serve stages in order of arrival.

The stages become a one-generation event graph for the project's queue engine.  Its
integer time unit is a tick, ``1 / scale`` of a cycle, with ``scale`` the least
common multiple of all denominators, so nothing is ever rounded.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import PeCommand, PeCpuOverheadCmd
from raptor_cp.targets.pe.cost_model import Charge, charge
from raptor_cp.targets.pe.engine import run_stages
from raptor_cp.targets.pe.expansion import Expander
from raptor_cp.targets.pe.stages import Engine, StageGraph, StageKind
from raptor_cp.targets.pe.timeline import ElementCost, ElementTimeline
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raptor_cp.targets.pe.topology import PeAttributes


class ProcessingElement:
    """One element while a kernel issues to it: live, or replayed from a log.

    Every command is charged and expanded when it is issued;
    :meth:`timeline` runs the engines over all that was issued so far.
    """

    def __init__(self, attributes: PeAttributes) -> None:
        self._attributes = attributes
        self._graph = StageGraph()
        self._expander = Expander(attributes, self._graph)
        self._commands: list[PeCommand] = []
        self._charges: list[Charge] = []
        self._completion: list[int] = []
        self._retirement: list[int] = []
        self._cpu: int | None = None

    @property
    def stages(self) -> StageGraph:
        """Everything issued so far, as stages."""
        return self._graph

    def issue(self, command: PeCommand) -> int:
        """Charge ``command`` to the CPU and hand it over; returns its index.

        Raises:
            CompositeTooLarge: a composite above the cap; nothing was issued.
            MalformedInput: tensors that do not fit.
        """
        cost = charge(self._attributes.cost_model, command)
        index = len(self._commands)
        self._commands.append(command)
        self._charges.append(cost)
        after_cpu = [] if self._cpu is None else [self._cpu]
        dispatch = self._graph.add(
            StageKind.DISPATCH, Engine.CPU, cost.cpu_cycles, index, after_cpu
        )
        if isinstance(command, PeCpuOverheadCmd):
            self._completion.append(dispatch)
            self._cpu = dispatch
            return index
        depth = self._attributes.scheduler_queue_depth
        credit = self._retirement[-depth:][:1]
        if len(self._retirement) < depth:
            credit = []
        push = self._graph.mark(StageKind.PUSH, index, [dispatch, *credit])
        self._cpu = push
        last = self._expander.expand(command, index, push)
        complete = self._graph.mark(StageKind.COMPLETE, index, [push, *last])
        self._completion.append(complete)
        self._retirement.append(
            self._graph.mark(
                StageKind.RETIRE, index, [complete, *self._retirement[-1:]]
            )
        )
        return index

    def wait(self, command: int) -> None:
        """The CPU goes on once ``command`` is complete; costs no cycles itself.

        Raises:
            MalformedInput: no such command was issued.
        """
        if not 0 <= command < len(self._commands):
            raise MalformedInput("no such command was issued", value=command)
        before = [self._completion[command]]
        if self._cpu is not None:
            before.append(self._cpu)
        self._cpu = self._graph.mark(StageKind.WAIT, command, before)

    def timeline(self) -> ElementTimeline:
        """Run the engines over everything issued so far.

        Raises:
            MalformedInput: times outside the supported range.
        """
        graph = self._graph
        scale = math.lcm(*(cycles.denominator for cycles in graph.cycles))
        ticks = [int(cycles * scale) for cycles in graph.cycles]
        if sum(ticks) > MAX_NS:
            raise MalformedInput(
                "the kernel's cycles do not fit the time range",
                value=f"{sum(ticks)} ticks of 1/{scale} cycle",
                expected=f"at most {MAX_NS} ticks",
                hint="use knobs with smaller denominators",
            )
        ready, finish = run_stages(graph, ticks)
        return ElementTimeline(
            attributes=self._attributes,
            commands=tuple(self._commands),
            charges=tuple(self._charges),
            scale=scale,
            engine=tuple(graph.engine),
            kind=tuple(graph.kind),
            command=tuple(graph.command),
            ready=ready,
            start=tuple(f - t for f, t in zip(finish, ticks, strict=True)),
            finish=finish,
        )


def element_cost(
    commands: Iterable[PeCommand], attributes: PeAttributes
) -> ElementCost:
    """Cost of ``commands`` issued back to back, without waits.

    Raises:
        CompositeTooLarge: a composite above the cap.
        MalformedInput: tensors that do not fit.
    """
    element = ProcessingElement(attributes)
    for command in commands:
        element.issue(command)
    return element.timeline().cost()
