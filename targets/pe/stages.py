"""The work of one element as a graph of stages on FIFO engines.

A stage occupies one engine for a number of cycles once all its predecessors have
finished; marks (pushes, completions, waits) occupy none and take no time.  Stages
are only ever added behind existing ones, so the graph is acyclic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Above this many stages a topology's tiles are too small for the kernel.
MAX_STAGES = 1 << 22


class Engine(IntEnum):
    """FIFO servers of an element; TCM is the port of FETCH and STORE stages."""

    CPU = 0
    DMA = 1
    TCM = 2
    GEMM = 3
    MATH = 4


#: Engine number of a mark.
NO_ENGINE = -1


class StageKind(StrEnum):
    """What a stage does."""

    DISPATCH = "dispatch"
    PUSH = "push"
    WAIT = "wait"
    COMPLETE = "complete"
    RETIRE = "retire"
    JOIN = "join"
    DMA_READ = "dma_read"
    DMA_WRITE = "dma_write"
    FETCH = "fetch"
    STORE = "store"
    COPY = "copy"
    GEMM = "gemm"
    MATH = "math"


@dataclass(slots=True)
class StageGraph:
    """Stages in the order of their making; lists are indexed by stage.

    Attributes:
        engine: an :class:`Engine`, or ``NO_ENGINE``.
        kind: what it does.
        cycles: occupation of the engine, exact.
        command: index of the command it belongs to.
        predecessors: stages that must finish before.
    """

    engine: list[int] = field(default_factory=list)
    kind: list[StageKind] = field(default_factory=list)
    cycles: list[Fraction] = field(default_factory=list)
    command: list[int] = field(default_factory=list)
    predecessors: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.kind)

    def add(
        self,
        kind: StageKind,
        engine: int,
        cycles: Fraction,
        command: int,
        predecessors: Iterable[int],
    ) -> int:
        """Append a stage behind ``predecessors``; returns its index.

        Raises:
            MalformedInput: more than ``MAX_STAGES``.
        """
        if len(self.kind) >= MAX_STAGES:
            raise MalformedInput(
                "the kernel expands into too many stages",
                where=f"command {command}",
                expected=f"at most {MAX_STAGES}",
                hint="use larger tiles",
            )
        self.engine.append(int(engine))
        self.kind.append(kind)
        self.cycles.append(cycles)
        self.command.append(command)
        self.predecessors.append(tuple(dict.fromkeys(predecessors)))
        return len(self.kind) - 1

    def mark(self, kind: StageKind, command: int, predecessors: Iterable[int]) -> int:
        """Append a stage without engine or time."""
        return self.add(kind, NO_ENGINE, Fraction(0), command, predecessors)
