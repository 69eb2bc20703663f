"""Stage/budget vectors and the legal moves between them.

A vector is a partition of the groups into contiguous stages with a core budget for
each.  Moves (scheduling spec, "Costs and interpretation"): a boundary moves across
groups, a boundary is inserted, a run of consecutive boundaries is removed (later
stages compact), cores move between two stages in powers of two, one included.
A parent has O(G + S^2 log P) of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, order=True)
class StageVector:
    """Canonical identity of a partition with budgets.

    Attributes:
        starts: first group of each stage, ascending, ``starts[0] == 0``.
        budgets: cores of each stage.
    """

    starts: tuple[int, ...]
    budgets: tuple[int, ...]

    def segments(self, groups: int) -> tuple[tuple[int, int], ...]:
        """Half-open group range of every stage."""
        ends = (*self.starts[1:], groups)
        return tuple(zip(self.starts, ends, strict=True))


@dataclass(frozen=True, slots=True)
class Move:
    """A neighbour before its cores are shared out.

    Attributes:
        kind: ``shift``, ``insert``, ``remove`` or ``transfer``.
        starts: stages after the move.
        kept: for each stage its fixed budget, or None where the changed block
            redistributes its pool.
        pool: cores of the changed block.
        touched: stages of the *parent* that the move changes, for guidance.
    """

    kind: str
    starts: tuple[int, ...]
    kept: tuple[int | None, ...]
    pool: int
    touched: tuple[int, ...]


class StageLimits(Protocol):
    """Side constraints on stages (the same for the DP and the search)."""

    def allows_cut(self, group: int) -> bool:
        """May a stage start at ``group``?"""
        ...


def moves(
    parent: StageVector, groups: int, depth: int, limits: StageLimits
) -> Iterator[Move]:
    """All legal moves of a parent, in a fixed order."""
    yield from _shifts(parent, groups, limits)
    if len(parent.starts) < depth:
        yield from _insertions(parent, groups, limits)
    yield from _removals(parent)
    yield from _transfers(parent)


def _shifts(parent: StageVector, groups: int, limits: StageLimits) -> Iterator[Move]:
    starts, budgets = parent.starts, parent.budgets
    for boundary in range(1, len(starts)):
        low = starts[boundary - 1] + 1
        high = starts[boundary + 1] if boundary + 1 < len(starts) else groups
        for position in range(low, high):
            if position == starts[boundary] or not limits.allows_cut(position):
                continue
            pair = (boundary - 1, boundary)
            yield Move(
                "shift",
                (*starts[:boundary], position, *starts[boundary + 1 :]),
                tuple(None if s in pair else b for s, b in enumerate(budgets)),
                budgets[boundary - 1] + budgets[boundary],
                pair,
            )


def _insertions(
    parent: StageVector, groups: int, limits: StageLimits
) -> Iterator[Move]:
    for stage, (first, last) in enumerate(parent.segments(groups)):
        if parent.budgets[stage] < 2:  # two stages need a core each
            continue
        for position in range(first + 1, last):
            if not limits.allows_cut(position):
                continue
            yield Move(
                "insert",
                (*parent.starts[: stage + 1], position, *parent.starts[stage + 1 :]),
                (
                    *parent.budgets[:stage],
                    None,
                    None,
                    *parent.budgets[stage + 1 :],
                ),
                parent.budgets[stage],
                (stage,),
            )


def _removals(parent: StageVector) -> Iterator[Move]:
    count = len(parent.starts)
    for first in range(count - 1):
        for last in range(first + 1, count):
            yield Move(
                "remove",
                (*parent.starts[: first + 1], *parent.starts[last + 1 :]),
                (*parent.budgets[:first], None, *parent.budgets[last + 1 :]),
                sum(parent.budgets[first : last + 1]),
                tuple(range(first, last + 1)),
            )


def _transfers(parent: StageVector) -> Iterator[Move]:
    for source, available in enumerate(parent.budgets):
        amount = 1
        while amount < available:  # the giver keeps a core
            for destination in range(len(parent.budgets)):
                if destination == source:
                    continue
                budgets = list(parent.budgets)
                budgets[source] -= amount
                budgets[destination] += amount
                yield Move(
                    "transfer",
                    parent.starts,
                    tuple(budgets),
                    0,
                    (source, destination),
                )
            amount *= 2
