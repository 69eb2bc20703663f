"""Decisions of the lowering: how weights are cut and how many lanes there are.

First every weight is cut to what a core holds, then the work of all pieces and
reductions is added up, then lanes are shared out by work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray, TileGrid, weight_demand
from raptor_cp.graph.lanes import (
    LaneLimits,
    bundle_lanes,
    channel_ranges,
    row_lanes,
)
from raptor_cp.graph.splitting import (
    TIGHT_SHARE,
    CapacityConflict,
    ColumnSplits,
    OperationSplit,
    Piece,
    column_cuts,
    core_equivalents,
    even_ranges,
    mvmuls_per_position,
    row_cut,
)
from raptor_cp.graph.views import is_runtime_free
from raptor_cp.graph.widths import Accumulators, accumulator_bits, stored_bytes
from raptor_cp.graph.work import Box, SliceWork, TaskRole
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raptor_cp.graph.work import Work
    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network
#: A column cut multiplies matrix products (and their energy), so it must save at
#: least a tenth of the work of the row cut.
COLUMN_GAIN = Fraction(9, 10)


class DirectLinks(Protocol):
    """What a direct transfer costs; ``raptor_cp.target.LinkModel`` has it."""

    def transfer_ns(self, size: int, source: int, destination: int) -> int:
        """Completion time (ns) of ``size`` bytes between two cores."""
        ...


class ChipCapacity(Protocol):
    """What lowering asks of a chip; ``raptor_cp.target.Resources`` has it."""

    @property
    def cores(self) -> int:
        """P."""
        ...

    @property
    def slots_per_core(self) -> int:
        """Core capacity in weight slots."""
        ...

    @property
    def array(self) -> MatrixArray | None:
        """Geometry of a weight slot; None where weights are not resident."""
        ...

    @property
    def links(self) -> DirectLinks:
        """Direct transfers between cores."""
        ...


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """Scenario key ``lowering``.

    Attributes:
        max_lanes: most lanes of one operation.
        lanes_per_core: tasks for every core that an operation's work deserves.
        accumulators: width of partial sums.
        constants_resident: biases, scales and constant operands are preloaded;
            False loads them every inference.
        column_splits: when a weight may be cut by columns.
    """

    max_lanes: int = 64
    lanes_per_core: int = 2
    accumulators: Accumulators = Accumulators.EXACT
    constants_resident: bool = True
    column_splits: ColumnSplits = ColumnSplits.CHEAPEST

    def __post_init__(self) -> None:
        for name, value in (
            ("max_lanes", self.max_lanes),
            ("lanes_per_core", self.lanes_per_core),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise MalformedInput(
                    "not a positive integer",
                    where=f"lowering.{name}",
                    value=value,
                    expected="at least 1",
                )


@dataclass(slots=True)
class OperationPlan:
    """Decisions about one operation.

    Attributes:
        operation: the operation.
        base: the work of the whole operation as one task.
        grid: its array groups; None without a resident weight.
        pieces: pieces of its weight, in task order; empty without one.
        columns: output channel ranges.
        rows: output rows of the lanes.
        reduce_rows: output rows of the REDUCE tasks: their lanes are their own.
        work_ns: work of the pieces, split as decided (ns).
        reduce_ns: the part of it that REDUCE tasks do.
        split: how the weight was cut, for the report.
    """

    operation: Operation
    base: SliceWork
    grid: TileGrid | None = None
    pieces: list[Piece] = field(default_factory=list)
    columns: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    reduce_rows: list[tuple[int, int]] = field(default_factory=list)
    work_ns: int = 0
    reduce_ns: int = 0
    split: OperationSplit | None = None


@dataclass(frozen=True, slots=True)
class _CutPrice:
    """ns of the pieces, of the reductions, and of moving partial sums."""

    pieces_ns: int
    reduce_ns: int
    moves_ns: int

    @property
    def total(self) -> int:
        return self.pieces_ns + self.reduce_ns + self.moves_ns


def plan_network(
    network: Network,
    chip: ChipCapacity,
    price: Callable[[Work], int | Unavailable],
    options: LoweringOptions,
    notes: list[str],
) -> list[OperationPlan] | CapacityConflict:
    """One plan for each operation that takes time, in network order.

    ``notes`` receives what could not be priced.

    Raises:
        MalformedInput: a weight wider than a crossbar row, or nothing takes time.
    """
    planner = _Planner(network, chip, price, options, notes)
    plans = []
    for operation in network.operations:
        if is_runtime_free(operation):
            continue
        plan = planner.started(operation)
        conflict = planner.cut(plan)
        if conflict is not None:
            return conflict
        plans.append(plan)
    if not plans:
        raise MalformedInput(
            "nothing takes time: all operations are views",
            where=f"network {network.name!r}",
            expected="at least one operation that computes",
        )
    total = sum(plan.work_ns for plan in plans)
    for plan in plans:
        planner.share_out(plan, total)
    return plans


class _Planner:
    def __init__(
        self,
        network: Network,
        chip: ChipCapacity,
        price: Callable[[Work], int | Unavailable],
        options: LoweringOptions,
        notes: list[str],
    ) -> None:
        self.network = network
        self.chip = chip
        self.price = price
        self.options = options
        self.notes = notes
        self.limits = LaneLimits(chip.cores, options.lanes_per_core, options.max_lanes)
        array = chip.array
        demand = sum(d.slots for d in weight_demand(network, array)) if array else 0
        self.tight = demand > TIGHT_SHARE * chip.cores * chip.slots_per_core

    def started(self, operation: Operation) -> OperationPlan:
        """The operation as one task, and its array groups."""
        tensors = self.network.tensors
        inputs = [tensors[name] for name in operation.inputs]
        output = tensors[operation.output]
        shapes = tuple(tensor.shape for tensor in inputs)
        input_bits = max(tensor.bits for tensor in inputs)
        grid = None
        if operation.weight is not None and self.chip.array is not None:
            where = f"operation {operation.name!r}"
            grid = TileGrid.of(operation.weight, self.chip.array, where)
        base = SliceWork(
            operation=operation,
            output=Box.whole(output.extent),
            row_tiles=(0, grid.row_tiles) if grid else (0, 0),
            input_shapes=shapes,
            output_shape=output.shape,
            input_bits=input_bits,
            output_bits=output.bits,
            accumulator_bits=accumulator_bits(
                operation, input_bits, shapes, self.options.accumulators
            ),
        )
        return OperationPlan(operation, base, grid)

    def cut(self, plan: OperationPlan) -> CapacityConflict | None:
        """Cut the weight to what a core holds; choose by price."""
        grid, capacity = plan.grid, self.chip.slots_per_core
        if grid is None:
            plan.work_ns = self._priced(plan.base)
            return None
        name = plan.operation.name
        if capacity < 1:
            reason = f"operation {name!r} needs weight slots, a core has none"
            return CapacityConflict(name, 1, capacity, reason)
        by_rows = row_cut(grid, capacity, tight=self.tight)
        policy = self.options.column_splits
        too_wide = by_rows is None
        if by_rows is None:
            per_tile = max(grid.crossbars(0, min(grid.channels, grid.bundle_columns)))
            reason = (
                f"one row tile across all columns needs {per_tile} slots, a core has "
                f"{capacity}"
            )
            if policy == ColumnSplits.NEVER:
                reason = f"operation {name!r}: {reason}"
                return CapacityConflict(name, per_tile, capacity, reason)
            candidates = column_cuts(grid, capacity, tight=self.tight)
        else:
            candidates = [by_rows]
            if len(by_rows) > 1 and policy == ColumnSplits.CHEAPEST:
                candidates += column_cuts(grid, capacity, tight=self.tight)
        if policy != ColumnSplits.CHEAPEST:
            fewest = min(mvmuls_per_position(grid, cut) for cut in candidates)
            candidates = [
                cut for cut in candidates if mvmuls_per_position(grid, cut) == fewest
            ]
        prices = [self._cut_price(plan, cut) for cut in candidates]
        # Where columns must be cut, a tight chip asks for little waste first.
        waste = [
            core_equivalents(cut, capacity) if too_wide and self.tight else 0
            for cut in candidates
        ]
        best = min(
            range(len(prices)),
            key=lambda index: (waste[index], prices[index].total, index),
        )
        if not too_wide and prices[best].total > COLUMN_GAIN * prices[0].total:
            best = 0
        pieces = candidates[best]
        if not too_wide:
            reason = (
                f"{prices[best].total} ns of work by columns, {prices[0].total} ns "
                "by rows"
            )
        plan.pieces = pieces
        plan.work_ns = prices[best].pieces_ns + prices[best].reduce_ns
        plan.reduce_ns = prices[best].reduce_ns
        positions = plan.base.output.shape[0] * plan.base.output.shape[1]
        mvmuls = positions * mvmuls_per_position(grid, pieces)
        unsplit = positions * grid.mvmuls
        plan.split = OperationSplit(
            name, tuple(pieces), unsplit, mvmuls, reason if mvmuls != unsplit else ""
        )
        return None

    def share_out(self, plan: OperationPlan, total: int) -> None:
        """Lanes by the operation's share of ``total`` ns of work."""
        extent = self.network.tensors[plan.operation.output].extent
        if plan.grid is None:
            wanted = self.limits.wanted(plan.work_ns, total)
            shapes = plan.base.input_shapes
            plan.columns = channel_ranges(plan.operation, extent, shapes, wanted)
            lanes = row_lanes(wanted, len(plan.columns), extent.rows)
            plan.rows = even_ranges(extent.rows, lanes)
            return
        wanted = self.limits.wanted(plan.work_ns - plan.reduce_ns, total)
        if plan.grid.bundles > 1:
            plan.pieces = bundle_lanes(plan.grid, plan.pieces, extent.rows, wanted)
        plan.columns = list(dict.fromkeys(piece.channels for piece in plan.pieces))
        lanes = row_lanes(wanted, len(plan.pieces), extent.rows)
        plan.rows = even_ranges(extent.rows, lanes)
        sums = self.limits.wanted(plan.reduce_ns, total)
        sums = row_lanes(sums, len(plan.columns), extent.rows)
        plan.reduce_rows = even_ranges(extent.rows, max(lanes, sums))

    def _priced(self, work: SliceWork) -> int:
        price = self.price(work)
        if isinstance(price, Unavailable):
            self.notes.append(
                f"{work.operation.name}: no price ({price.reason}); one lane"
            )
            return 0
        return price

    def _cut_price(self, plan: OperationPlan, pieces: list[Piece]) -> _CutPrice:
        """Work of all pieces and reductions, and moving the partial sums (ns)."""
        whole = [(plan.base.output.row_start, plan.base.output.row_stop)]
        sums = [0, 0, 0]
        for work, piece, _ in _slices(plan.base, pieces, whole, whole):
            sums[piece is None] += self._priced(work)
            if work.role is TaskRole.PARTIAL and self.chip.cores > 1:
                size = stored_bytes(work.output.elements, work.accumulator_bits)
                sums[2] += self.chip.links.transfer_ns(size, 0, 1)
        return _CutPrice(*sums)


def slices_of(
    plan: OperationPlan,
) -> Iterator[tuple[SliceWork, Piece | None, int]]:
    """(work, weight piece, lane) of every task of an operation, in task order."""
    if plan.pieces:
        yield from _slices(plan.base, plan.pieces, plan.rows, plan.reduce_rows)
        return
    columns = len(plan.columns)
    for lane, rows in enumerate(plan.rows):
        for number, channels in enumerate(plan.columns):
            work = _slice(plan.base, rows, channels, TaskRole.COMPUTE, (0, 0))
            yield work, None, lane * columns + number


def _slices(
    base: SliceWork,
    pieces: Sequence[Piece],
    rows: Sequence[tuple[int, int]],
    reduce_rows: Sequence[tuple[int, int]],
) -> Iterator[tuple[SliceWork, Piece | None, int]]:
    cut: dict[tuple[int, int], int] = {}
    for piece in pieces:
        cut[piece.channels] = cut.get(piece.channels, 0) + 1
    number = {channels: index for index, channels in enumerate(cut)}
    for piece in pieces:
        alone = cut[piece.channels] == 1
        role = TaskRole.COMPUTE if alone else TaskRole.PARTIAL
        for lane, lane_rows in enumerate(rows):
            work = _slice(base, lane_rows, piece.channels, role, piece.row_tiles)
            yield work, piece, lane * len(cut) + number[piece.channels]
    for channels, count in cut.items():
        if count == 1:
            continue
        for lane, lane_rows in enumerate(reduce_rows):
            work = _slice(base, lane_rows, channels, TaskRole.REDUCE, (0, 0), count)
            yield work, None, lane * len(cut) + number[channels]


def _slice(
    base: SliceWork,
    rows: tuple[int, int],
    channels: tuple[int, int],
    role: TaskRole,
    tiles: tuple[int, int],
    partials: int = 0,
) -> SliceWork:
    columns = (base.output.column_start, base.output.column_stop)
    return SliceWork(
        base.operation,
        Box(*rows, *columns, *channels),
        role,
        tiles,
        partials,
        base.input_shapes,
        base.output_shape,
        base.input_bits,
        base.output_bits,
        base.accumulator_bits,
    )
