"""Which stages must finish before a tile of a tensor may be read or written.

Read after write, write after read and write after write are tracked for each
tile where both sides cut the tensor alike, and for the whole tensor otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.targets.pe.stages import StageGraph, StageKind
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.targets.pe.commands import TensorHandle


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor cut into tiles of at most ``rows`` x ``columns`` elements."""

    total_rows: int
    total_columns: int
    rows: int
    columns: int

    @classmethod
    def of(cls, handle: TensorHandle, rows: int, columns: int) -> Cut:
        """The cut of ``handle`` by tiles of those extents."""
        return cls(
            handle.rows,
            handle.columns,
            min(rows, handle.rows),
            min(columns, handle.columns),
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along the rows and along the columns."""
        return (
            ceil_div(self.total_rows, self.rows),
            ceil_div(self.total_columns, self.columns),
        )

    @property
    def count(self) -> int:
        """Number of tiles."""
        return self.grid[0] * self.grid[1]

    def index(self, row: int, column: int) -> int:
        """Number of the tile at (row, column); a broadcast side has one tile."""
        rows, columns = self.grid
        return min(row, rows - 1) * columns + min(column, columns - 1)

    def elements(self, tile: int) -> int:
        """Elements of tile number ``tile``; tiles at the border are smaller."""
        row, column = divmod(tile, self.grid[1])
        height = min(self.rows, self.total_rows - row * self.rows)
        width = min(self.columns, self.total_columns - column * self.columns)
        return height * width


@dataclass(slots=True)
class _Accesses:
    """Stages that touched a tensor under one cut, by tile."""

    cut: Cut
    stages: list[list[int]]
    joined: int | None = None

    @classmethod
    def empty(cls, cut: Cut) -> _Accesses:
        return cls(cut, [[] for _ in range(cut.count)])

    def before(self, cut: Cut, tile: int, graph: StageGraph, command: int) -> list[int]:
        """What an access to ``tile`` of ``cut`` has to wait for."""
        if cut == self.cut:
            return self.stages[tile]
        if self.joined is None:
            everything = [stage for tile in self.stages for stage in tile]
            if len(everything) <= 1:
                return everything
            # One join instead of an edge from every tile to every tile.
            self.joined = graph.mark(StageKind.JOIN, command, everything)
        return [self.joined]


@dataclass(slots=True)
class _Tensor:
    writes: _Accesses | None = None
    reads: list[_Accesses] = field(default_factory=list)


@dataclass(slots=True)
class Reader:
    """Reads of one operation from one tensor under one cut."""

    cut: Cut
    _writes: _Accesses | None
    _own: _Accesses

    def before(self, tile: int, graph: StageGraph, command: int) -> list[int]:
        """Stages that must finish before ``tile`` is read."""
        if self._writes is None:
            return []
        return self._writes.before(self.cut, tile, graph, command)

    def note(self, tile: int, stage: int) -> None:
        """``stage`` reads ``tile``."""
        self._own.stages[tile].append(stage)
        self._own.joined = None


@dataclass(slots=True)
class Writer:
    """Writes of one operation to one tensor under one cut."""

    cut: Cut
    _before: list[_Accesses]
    _own: _Accesses

    def before(self, tile: int, graph: StageGraph, command: int) -> list[int]:
        """Stages that must finish before ``tile`` is overwritten."""
        return [
            stage
            for accesses in self._before
            for stage in accesses.before(self.cut, tile, graph, command)
        ]

    def note(self, tile: int, stage: int) -> None:
        """``stage`` writes ``tile``."""
        self._own.stages[tile].append(stage)
        self._own.joined = None


class HazardTracker:
    """The scheduler's view of every tensor, by name.

    An operation asks for its readers first, then for its writer: its own reads
    then see the old contents, and later operations the new ones.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, _Tensor] = {}

    def reader(self, handle: TensorHandle, cut: Cut) -> Reader:
        """Start reading ``handle`` by tiles of ``cut``."""
        tensor = self._tensors.setdefault(handle.name, _Tensor())
        for own in tensor.reads:
            if own.cut == cut:
                return Reader(cut, tensor.writes, own)
        own = _Accesses.empty(cut)
        tensor.reads.append(own)
        return Reader(cut, tensor.writes, own)

    def writer(self, handle: TensorHandle, cut: Cut) -> Writer:
        """Start overwriting ``handle`` by tiles of ``cut``."""
        tensor = self._tensors.setdefault(handle.name, _Tensor())
        before = [*tensor.reads]
        if tensor.writes is not None:
            before.append(tensor.writes)
        own = _Accesses.empty(cut)
        # What came before is ordered before the new writes, tile by tile or by a
        # join, so later accesses need to know the new writes only.
        tensor.writes, tensor.reads = own, []
        return Writer(cut, before, own)
