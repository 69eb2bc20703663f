"""The command-fusion problem: operations, their prices, legal commands, plans.

No solver here: prices follow the dispatch formula, ``check_plan`` recomputes a plan
from nothing but the problem, and ``plan_by_dynamic_program`` is exact for plans that
keep the program order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from raptor_cp.errors import InternalError, MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raptor_cp.models.solving import SolveRecord
    from raptor_cp.verdict import Verdict

#: Bytes of a composite around its operations: framing and two lengths.
COMPOSITE_BYTES = 6
#: Bytes of one tracked handle.
HANDLE_BYTES = 8


class FusableOperation(Protocol):
    """What the model needs to know of one operation."""

    @property
    def label(self) -> str:
        """Name for messages."""
        ...

    @property
    def logical_bytes(self) -> int:
        """Bytes inside a composite."""
        ...

    @property
    def single_command_count(self) -> int:
        """Single-op commands that do the same; 0 when there is no such way."""
        ...

    @property
    def single_command_bytes(self) -> int:
        """Bytes of those commands together."""
        ...

    @property
    def fusable(self) -> bool:
        """May stand in a composite at all."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors read."""
        ...

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the tensors written."""
        ...


class DispatchKnobs(Protocol):
    """Knobs of the dispatch formula: cycles, cycles a byte, bytes."""

    @property
    def fixed_per_cmd_cycles(self) -> Fraction:
        """Cycles of a composite."""
        ...

    @property
    def fixed_per_single_op_cmd_cycles(self) -> Fraction:
        """Cycles of a single-op command."""
        ...

    @property
    def byte_cycles_recip(self) -> Fraction:
        """Cycles of a logical byte."""
        ...

    @property
    def max_composite_logical_bytes(self) -> int:
        """Cap of a composite, bytes."""
        ...


@dataclass(frozen=True, slots=True)
class FusionOperation:
    """An operation given by its figures (see :class:`FusableOperation`)."""

    label: str
    logical_bytes: int
    single_command_count: int = 1
    single_command_bytes: int = 0
    fusable: bool = True
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """One command of a plan.

    Attributes:
        composite: a composite, else the operation's single-op commands.
        operations: positions in program order, rising.
        logical_bytes: of the command or commands.
        rw_handles: tensors the composite has to track, sorted.
        cycles: dispatch, exact.
    """

    composite: bool
    operations: tuple[int, ...]
    logical_bytes: int
    rw_handles: tuple[str, ...]
    cycles: Fraction

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON reports."""
        return {
            "kind": "composite" if self.composite else "single",
            "operations": list(self.operations),
            "logical_bytes": self.logical_bytes,
            "rw_handles": list(self.rw_handles),
            "cycles": float(self.cycles),
        }


@dataclass(frozen=True, slots=True)
class FusionPlan:
    """A way to issue the operations, and how good it is known to be.

    Attributes:
        verdict: OPTIMAL and INFEASIBLE are proved; FEASIBLE is the best known.
        commands: in an order that respects all dependencies; empty without a plan.
        cycles: dispatch of all commands, exact; None without a plan.
        proof: what the verdict rests on, one sentence.
        records: the solves.
    """

    verdict: Verdict
    commands: tuple[PlannedCommand, ...]
    cycles: Fraction | None
    proof: str
    records: tuple[SolveRecord, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON reports."""
        return {
            "verdict": self.verdict.name,
            "cycles": None if self.cycles is None else float(self.cycles),
            "commands": [command.to_dict() for command in self.commands],
            "proof": self.proof,
        }


@dataclass(frozen=True, slots=True)
class FusionProblem:
    """Operations in program order, their prices, and the tensors that must be tracked.

    Attributes:
        operations: in program order.
        knobs: of the element.
        state: tensors that any composite touching them must track.
        dependencies: pairs (first, second) that must keep their order.
        accessors: by tensor in order of first use, the operations that touch it.

    Raises:
        MalformedInput: an operation that can be issued in no way.
    """

    operations: tuple[FusableOperation, ...]
    knobs: DispatchKnobs
    state: frozenset[str] = frozenset()
    dependencies: tuple[tuple[int, int], ...] = field(init=False)
    accessors: dict[str, tuple[int, ...]] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for position, op in enumerate(self.operations):
            if not op.fusable and op.single_command_count == 0:
                raise MalformedInput(
                    "neither fusable nor a single-op command",
                    where=f"operation {position} ({op.label})",
                )
        pairs = tuple(
            (first, second)
            for second in range(len(self.operations))
            for first in range(second)
            if self._conflict(first, second)
        )
        object.__setattr__(self, "dependencies", pairs)
        accessors: dict[str, tuple[int, ...]] = {}
        for position, op in enumerate(self.operations):
            for name in dict.fromkeys((*op.reads, *op.writes)):
                accessors[name] = (*accessors.get(name, ()), position)
        object.__setattr__(self, "accessors", accessors)

    def _conflict(self, first: int, second: int) -> bool:
        a, b = self.operations[first], self.operations[second]
        return not set(a.writes).isdisjoint((*b.reads, *b.writes)) or not set(
            a.reads
        ).isdisjoint(b.writes)

    def tracked(self, members: Sequence[int]) -> tuple[str, ...]:
        """Handles that a composite of ``members`` has to list, sorted."""
        inside = set(members)
        found = []
        touched = {
            name: None
            for i in members
            for name in (*self.operations[i].reads, *self.operations[i].writes)
        }
        for handle in touched:
            touching = self.accessors[handle]
            own = [i for i in touching if i in inside]
            written = [i for i in own if handle in self.operations[i].writes]
            if (handle in self.state and own) or any(
                later > first and later not in inside
                for first in written[:1]
                for later in touching
            ):
                found.append(handle)
        return tuple(sorted(found))

    def composite(self, members: Sequence[int]) -> PlannedCommand | None:
        """The composite of ``members``; None when it is not allowed."""
        if not members or not all(self.operations[i].fusable for i in members):
            return None
        handles = self.tracked(members)
        size = (
            COMPOSITE_BYTES
            + sum(self.operations[i].logical_bytes for i in members)
            + HANDLE_BYTES * len(handles)
        )
        if size > self.knobs.max_composite_logical_bytes:
            return None
        cycles = self.knobs.fixed_per_cmd_cycles + size * self.knobs.byte_cycles_recip
        return PlannedCommand(True, tuple(sorted(members)), size, handles, cycles)

    def single(self, position: int) -> PlannedCommand | None:
        """The single-op commands of an operation; None when there are none."""
        op = self.operations[position]
        if op.single_command_count == 0:
            return None
        cycles = (
            op.single_command_count * self.knobs.fixed_per_single_op_cmd_cycles
            + op.single_command_bytes * self.knobs.byte_cycles_recip
        )
        return PlannedCommand(False, (position,), op.single_command_bytes, (), cycles)

    def begins(self, end: int) -> Iterator[int]:
        """Where a run that ends before ``end`` may begin, nearest first."""
        size = COMPOSITE_BYTES
        for begin in range(end - 1, -1, -1):
            size += self.operations[begin].logical_bytes
            if begin < end - 1 and size > self.knobs.max_composite_logical_bytes:
                return
            yield begin

    def runs(self, begin: int, end: int) -> list[PlannedCommand]:
        """Commands that issue exactly the operations ``[begin, end)``."""
        found = [self.composite(range(begin, end))]
        if end == begin + 1:
            found.append(self.single(begin))
        return [command for command in found if command is not None]


def plan_by_dynamic_program(
    problem: FusionProblem,
) -> tuple[PlannedCommand, ...] | None:
    """The cheapest contiguous plan, or None when there is none: exact."""
    count = len(problem.operations)
    best: list[tuple[Fraction, tuple[PlannedCommand, ...]] | None]
    best = [(Fraction(0), ())] + [None] * count
    for end in range(1, count + 1):
        for begin in problem.begins(end):
            before = best[begin]
            if before is None:
                continue
            for command in problem.runs(begin, end):
                cost = before[0] + command.cycles
                known = best[end]
                if known is None or cost < known[0]:
                    best[end] = (cost, (*before[1], command))
    last = best[count]
    return None if last is None else last[1]


def check_plan(problem: FusionProblem, commands: Sequence[PlannedCommand]) -> Fraction:
    """Recompute a plan without the solver; returns its cycles.

    Raises:
        InternalError: names the first rule that is broken.
    """
    place: dict[int, int] = {}
    total = Fraction(0)
    for number, command in enumerate(commands):
        for position in command.operations:
            if position in place:
                raise InternalError(f"operation {position} is issued twice")
            place[position] = number
        again = (
            problem.composite(command.operations)
            if command.composite
            else problem.single(command.operations[0])
        )
        if again != command:
            raise InternalError(f"command {number} is not what it says: {command}")
        total += command.cycles
    if len(place) != len(problem.operations):
        raise InternalError("some operations are not issued")
    for first, second in problem.dependencies:
        if place[first] > place[second]:
            raise InternalError(f"operation {second} is issued before {first}")
    return total
