"""Network to compute graph: tasks, resident weights, publications, transfers.

Every operation that takes time becomes one operation group; views are composed
away (:mod:`raptor_cp.graph.views`).  Tasks of one group stand in piece-major order
(all lanes of the first weight piece, then of the second, ... and the REDUCE tasks
last), so that an ordered packing keeps the lanes that share a weight together.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.crossbars import MatrixArray, TileGrid, weight_demand
from raptor_cp.graph.lanes import (
    LaneLimits,
    bundle_lanes,
    channel_ranges,
    row_lanes,
)
from raptor_cp.graph.projection import needed_boxes
from raptor_cp.graph.splitting import (
    TIGHT_SHARE,
    CapacityConflict,
    ColumnSplits,
    OperationSplit,
    Piece,
    SplitReport,
    column_cut,
    even_ranges,
    mvmuls_per_position,
    row_cut,
)
from raptor_cp.graph.views import is_runtime_free, root_box, root_of
from raptor_cp.graph.widths import Accumulators, accumulator_bits, stored_bytes
from raptor_cp.graph.work import Box, SliceWork, TaskRole
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raptor_cp.graph.work import Work
    from raptor_cp.network.operations import Operation, Tensor
    from raptor_cp.network.structure import Network

Bounds = tuple[int, int, int, int, int, int]


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
        partial_sum_ns_per_byte: what moving one byte of a partial sum between two
            cores costs (both ends), for comparing row and column cuts.
    """

    max_lanes: int = 64
    lanes_per_core: int = 2
    accumulators: Accumulators = Accumulators.EXACT
    constants_resident: bool = True
    column_splits: ColumnSplits = ColumnSplits.NEEDED
    partial_sum_ns_per_byte: int = 1

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


@dataclass(frozen=True, slots=True, eq=False)
class Lowering:
    """A lowered network.

    Attributes:
        graph: the compute graph.
        splits: how each weight was cut.
        notes: what was not exact or not priced, for reports.
    """

    graph: ComputeGraph
    splits: SplitReport
    notes: tuple[str, ...] = ()


def lower_network(
    network: Network,
    chip: ChipCapacity,
    price: Callable[[Work], int | Unavailable],
    options: LoweringOptions | None = None,
) -> Lowering | CapacityConflict:
    """Lower ``network`` for ``chip``.

    Args:
        network: the network.
        chip: core count, core capacity and crossbar geometry.
        price: execution time (ns) of a piece of work, e.g. ``target.work_ns``.
        options: see :class:`LoweringOptions`.

    Returns:
        The lowering, or the proof that one indivisible weight block exceeds a core.
        A network whose union exceeds the chip is lowered all the same: see
        :func:`raptor_cp.graph.splitting.chip_conflict` for that check.

    Raises:
        MalformedInput: a weight wider than a crossbar row, no core, or a network
            in which nothing takes time.
    """
    return _Lowerer(network, chip, price, options or LoweringOptions()).run()


@dataclass(slots=True)
class _Plan:
    """Decisions about one operation, before tasks exist."""

    operation: Operation
    base: SliceWork
    work_ns: int
    grid: TileGrid | None = None
    pieces: list[Piece] = field(default_factory=list)
    columns: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Fragments:
    """Stored fragments of one tensor, sorted by first row."""

    bits: int
    starts: list[int] = field(default_factory=list)
    items: list[tuple[Bounds, int]] = field(default_factory=list)
    tallest: int = 0

    def add(self, bounds: Bounds, publication: int) -> None:
        self.items.append((bounds, publication))
        self.tallest = max(self.tallest, bounds[1] - bounds[0])

    def meeting(self, box: Bounds) -> Iterator[tuple[Bounds, Bounds, int]]:
        """(common part, fragment, publication) of every fragment that meets box."""
        if len(self.starts) != len(self.items):
            self.items.sort()
            self.starts = [bounds[0] for bounds, _ in self.items]
        first = bisect_right(self.starts, box[0] - self.tallest)
        for fragment, publication in self.items[first:]:
            if fragment[0] >= box[1]:
                break
            common = (
                max(box[0], fragment[0]),
                min(box[1], fragment[1]),
                max(box[2], fragment[2]),
                min(box[3], fragment[3]),
                max(box[4], fragment[4]),
                min(box[5], fragment[5]),
            )
            if (
                common[0] < common[1]
                and common[2] < common[3]
                and common[4] < common[5]
            ):
                yield common, fragment, publication


class _Lowerer:
    def __init__(
        self,
        network: Network,
        chip: ChipCapacity,
        price: Callable[[Work], int | Unavailable],
        options: LoweringOptions,
    ) -> None:
        self.network = network
        self.chip = chip
        self.price = price
        self.options = options
        self.limits = LaneLimits(chip.cores, options.lanes_per_core, options.max_lanes)
        self.notes: list[str] = []
        self.tasks: list[Task] = []
        self.weights: list[ResidentWeight] = []
        self.publications: list[Publication] = []
        self.transfers: list[Transfer] = []
        self.baseline: list[BaselineAccess] = []
        self.fragments: dict[str, _Fragments] = {}
        self.splits: list[OperationSplit] = []
        self.shapes = {name: t.shape for name, t in network.tensors.items()}
        #: tensors that some task reads, by root name
        self.read = {
            root_of(network, name)
            for operation in network.operations
            if not is_runtime_free(operation)
            for name in operation.inputs
        }
        self.outputs = {root_of(network, name) for name in network.outputs}
        array = chip.array
        demand = sum(d.slots for d in weight_demand(network, array)) if array else 0
        self.tight = demand > TIGHT_SHARE * chip.cores * chip.slots_per_core

    def run(self) -> Lowering | CapacityConflict:
        plans = [
            self._plan(operation)
            for operation in self.network.operations
            if not is_runtime_free(operation)
        ]
        if not plans:
            raise MalformedInput(
                "nothing takes time: all operations are views",
                where=f"network {self.network.name!r}",
                expected="at least one operation that computes",
            )
        total = sum(plan.work_ns for plan in plans)
        for index, plan in enumerate(plans):
            conflict = self._cut(plan, total)
            if conflict is not None:
                return conflict
            self._emit(plan, index)
        for name in self.network.outputs:
            if self.network.producer(root_of(self.network, name)) is None:
                self.notes.append(f"output {name!r} is an input: nobody stores it")
        graph = ComputeGraph(
            name=self.network.name,
            operations=tuple(plan.operation.name for plan in plans),
            tasks=tuple(self.tasks),
            weights=tuple(self.weights),
            publications=tuple(self.publications),
            transfers=tuple(self.transfers),
            baseline=tuple(self.baseline),
        )
        return Lowering(graph, SplitReport(tuple(self.splits)), tuple(self.notes))

    # -- decisions ---------------------------------------------------------------

    def _plan(self, operation: Operation) -> _Plan:
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
        return _Plan(operation, base, self._priced(base), grid)

    def _priced(self, work: SliceWork) -> int:
        price = self.price(work)
        if isinstance(price, Unavailable):
            self.notes.append(
                f"{work.operation.name}: no price ({price.reason}); one lane"
            )
            return 0
        return price

    def _cut(self, plan: _Plan, total: int) -> CapacityConflict | None:
        extent = self.network.tensors[plan.operation.output].extent
        wanted = self.limits.wanted(plan.work_ns, total)
        if plan.grid is None:
            shape = plan.base.input_shapes[0]
            plan.columns = channel_ranges(plan.operation, extent, shape, wanted)
            lanes = row_lanes(wanted, len(plan.columns), extent.rows)
            plan.rows = even_ranges(extent.rows, lanes)
            return None
        grid, capacity = plan.grid, self.chip.slots_per_core
        if capacity < 1:
            return CapacityConflict(
                plan.operation.name,
                1,
                capacity,
                f"operation {plan.operation.name!r} needs a weight slot, a core has "
                f"{capacity}",
            )
        pieces = row_cut(grid, capacity, tight=self.tight)
        reason = ""
        if pieces is None:
            pieces = column_cut(grid, capacity, tight=self.tight)
            per_tile = max(grid.crossbars(0, min(grid.channels, grid.bundle_columns)))
            reason = (
                f"one row tile across all columns needs {per_tile} slots, a core has "
                f"{capacity}"
            )
        elif len(pieces) > 1 and self.options.column_splits is ColumnSplits.CHEAPEST:
            other = column_cut(grid, capacity, tight=self.tight)
            by_rows, by_columns = (
                self._cut_price(plan, cut) for cut in (pieces, other)
            )
            if by_columns < by_rows:
                pieces = other
                reason = f"{by_columns} ns by columns, {by_rows} ns by rows"
        if grid.bundles > 1:
            pieces = bundle_lanes(grid, pieces, extent.rows, wanted)
        plan.pieces = pieces
        plan.columns = list(dict.fromkeys(piece.channels for piece in pieces))
        lanes = row_lanes(wanted, len(pieces), extent.rows)
        plan.rows = even_ranges(extent.rows, lanes)
        positions = extent.rows * extent.columns
        mvmuls = positions * mvmuls_per_position(grid, pieces)
        unsplit = positions * grid.mvmuls
        self.splits.append(
            OperationSplit(
                plan.operation.name,
                tuple(pieces),
                unsplit,
                mvmuls,
                reason if mvmuls != unsplit else "",
            )
        )
        return None

    def _cut_price(self, plan: _Plan, pieces: Sequence[Piece]) -> int:
        """Work of all pieces and reductions, and moving the partial sums (ns)."""
        total = 0
        for work, _, _ in _slices(plan, pieces, [(0, plan.base.output.row_stop)]):
            total += self._priced(work)
            if work.role is TaskRole.PARTIAL:
                size = stored_bytes(work.output.elements, work.accumulator_bits)
                total += size * self.options.partial_sum_ns_per_byte
        return total

    # -- tasks and data ----------------------------------------------------------

    def _emit(self, plan: _Plan, group: int) -> None:
        operation, output = plan.operation, plan.operation.output
        weight_of: dict[Piece, int] = {}
        for piece in plan.pieces:
            weight_of[piece] = len(self.weights)
            name = operation.name
            if len(plan.pieces) > 1:
                tiles, channels = piece.row_tiles, piece.channels
                name += f"[rows {tiles[0]}:{tiles[1]}, channels "
                name += f"{channels[0]}:{channels[1]}]"
            self.weights.append(ResidentWeight(name, piece.slots, group))
        for work, held, lane in _slices(plan, plan.pieces, plan.rows):
            task = len(self.tasks)
            name = f"{operation.name}/{lane}"
            if work.role is TaskRole.PARTIAL:
                name += f"+{work.row_tiles[0]}:{work.row_tiles[1]}"
            elif work.role is TaskRole.REDUCE:
                name += "+sum"
            weights = (weight_of[held],) if held is not None else ()
            self.tasks.append(Task(name, group, lane, work, weights))
            if work.role is TaskRole.REDUCE:
                self._read_partials(plan, task, work)
            else:
                self._read_inputs(plan, task, work)
            if not self.options.constants_resident:
                self._load_constants(plan, task, work)
            if work.role is TaskRole.PARTIAL:
                tensor = _partial_name(output, work)
                self._publish(task, tensor, work.accumulator_bits, work.output)
            else:
                self._store(task, output, work)

    def _store(self, task: int, output: str, work: SliceWork) -> None:
        tensor = self.network.tensors[output]
        if output in self.read:
            self._publish(task, output, tensor.bits, work.output)
        if output in self.outputs:
            runs = work.output.runs_within(Box.whole(tensor.extent))
            size = stored_bytes(work.output.elements, tensor.bits, runs)
            self.baseline.append(
                BaselineAccess(
                    task, BaselineKind.OUTPUT, output, size, runs, work.output.bounds
                )
            )

    def _publish(self, task: int, tensor: str, bits: int, box: Box) -> None:
        if tensor not in self.fragments:
            self.fragments[tensor] = _Fragments(bits)
        self.fragments[tensor].add(box.bounds, len(self.publications))
        size = stored_bytes(box.elements, bits)
        self.publications.append(Publication(task, tensor, bits, box.bounds, size))

    def _read_inputs(self, plan: _Plan, task: int, work: SliceWork) -> None:
        operation = plan.operation
        rows = None
        if plan.grid is not None and work.role is TaskRole.PARTIAL:
            rows = plan.grid.matrix_rows(work.row_tiles)
        seen: set[tuple[str, Box]] = set()
        for index, name in enumerate(operation.inputs):
            boxes = needed_boxes(
                operation,
                index,
                work.output,
                work.input_shapes,
                work.output_shape,
                rows,
            )
            for needed in boxes:
                root, box = root_box(self.network, name, needed, operation.kind)
                if (root, box) in seen:
                    continue
                seen.add((root, box))
                if root in self.fragments:
                    self._read_fragments(task, root, box)
                else:
                    self._read_outside(task, self.network.tensors[root], box)

    def _read_fragments(self, task: int, tensor: str, box: Box) -> None:
        fragments = self.fragments[tensor]
        bits = fragments.bits
        for common, fragment, publication in fragments.meeting(box.bounds):
            if common == fragment:
                size, runs = self.publications[publication].size, 1
            else:
                part = Box(*common)
                runs = part.runs_within(Box(*fragment))
                whole = self.publications[publication].size
                size = min(stored_bytes(part.elements, bits, runs), whole)
            self.transfers.append(Transfer(publication, task, size, runs, common))

    def _read_outside(self, task: int, tensor: Tensor, box: Box) -> None:
        constant = tensor.name not in self.network.inputs
        if constant and self.options.constants_resident:
            return
        runs = box.runs_within(Box.whole(tensor.extent))
        size = stored_bytes(box.elements, tensor.bits, runs)
        kind = BaselineKind.CONSTANT if constant else BaselineKind.INPUT
        self.baseline.append(
            BaselineAccess(task, kind, tensor.name, size, runs, box.bounds)
        )

    def _read_partials(self, plan: _Plan, task: int, work: SliceWork) -> None:
        for piece in plan.pieces:
            channels = (work.output.channel_start, work.output.channel_stop)
            if piece.channels == channels:
                tensor = _partial_name(plan.operation.output, work, piece)
                self._read_fragments(task, tensor, work.output)

    def _load_constants(self, plan: _Plan, task: int, work: SliceWork) -> None:
        """Bias of the lane's channels, and other vector constants."""
        operation = plan.operation
        if work.role is TaskRole.PARTIAL:
            return
        size = 0
        if operation.weight is not None and operation.weight.bias:
            channels = work.output.shape[2]
            size += stored_bytes(channels, work.accumulator_bits)
        if operation.vector_parameters:
            size += stored_bytes(operation.vector_parameters, work.input_bits)
        if size:
            name = f"{operation.name}/constants"
            self.baseline.append(
                BaselineAccess(task, BaselineKind.CONSTANT, name, size)
            )


def _partial_name(output: str, work: SliceWork, piece: Piece | None = None) -> str:
    tiles = piece.row_tiles if piece is not None else work.row_tiles
    box = work.output
    return (
        f"{output}[rows {tiles[0]}:{tiles[1]}, channels "
        f"{box.channel_start}:{box.channel_stop}]"
    )


def _slices(
    plan: _Plan, pieces: Sequence[Piece], rows: Sequence[tuple[int, int]]
) -> Iterator[tuple[SliceWork, Piece | None, int]]:
    """(work, weight piece, lane) of every task of an operation, in task order."""
    base = plan.base
    whole = base.output
    columns = list(dict.fromkeys(p.channels for p in pieces)) or plan.columns

    number = {channels: index for index, channels in enumerate(columns)}
    cut = {channels: 0 for channels in columns}
    for piece in pieces:
        cut[piece.channels] += 1

    def make(
        lane_rows: tuple[int, int],
        channels: tuple[int, int],
        role: TaskRole,
        tiles: tuple[int, int],
        partials: int = 0,
    ) -> SliceWork:
        return SliceWork(
            base.operation,
            Box(*lane_rows, whole.column_start, whole.column_stop, *channels),
            role,
            tiles,
            partials,
            base.input_shapes,
            base.output_shape,
            base.input_bits,
            base.output_bits,
            base.accumulator_bits,
        )

    if not pieces:
        for lane, lane_rows in enumerate(rows):
            for channels in columns:
                index = lane * len(columns) + number[channels]
                yield make(lane_rows, channels, TaskRole.COMPUTE, (0, 0)), None, index
        return
    for piece in pieces:
        alone = cut[piece.channels] == 1
        role = TaskRole.COMPUTE if alone else TaskRole.PARTIAL
        for lane, lane_rows in enumerate(rows):
            index = lane * len(columns) + number[piece.channels]
            yield make(lane_rows, piece.channels, role, piece.row_tiles), piece, index
    for channels in columns:
        if cut[channels] == 1:
            continue
        for lane, lane_rows in enumerate(rows):
            index = lane * len(columns) + number[channels]
            work = make(lane_rows, channels, TaskRole.REDUCE, (0, 0), cut[channels])
            yield work, None, index
