"""Network to compute graph: tasks, resident weights, publications, transfers.

Every operation that takes time becomes one operation group; views are composed
away (:mod:`raptor_cp.graph.views`).  Tasks of one group stand in piece-major order
(all lanes of the first weight piece, then of the second, ... and the REDUCE tasks
last), so that an ordered packing keeps the lanes that share a weight together.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.graph.compute_graph import (
    BaselineAccess,
    BaselineKind,
    ComputeGraph,
    Publication,
    ResidentWeight,
    Task,
    Transfer,
)
from raptor_cp.graph.planning import (
    ChipCapacity,
    OperationPlan,
    plan_network,
    slices_of,
)
from raptor_cp.graph.planning import LoweringOptions as LoweringOptions
from raptor_cp.graph.projection import needed_by_input
from raptor_cp.graph.splitting import CapacityConflict, OperationSplit, SplitReport
from raptor_cp.graph.views import is_runtime_free, root_box, root_of
from raptor_cp.graph.widths import stored_bytes
from raptor_cp.graph.work import Box, SliceWork, TaskRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raptor_cp.graph.splitting import Piece
    from raptor_cp.graph.work import Work
    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network
    from raptor_cp.verdict import Unavailable

Bounds = tuple[int, int, int, int, int, int]


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

    def run(self) -> Lowering | CapacityConflict:
        plans = plan_network(
            self.network, self.chip, self.price, self.options, self.notes
        )
        if isinstance(plans, CapacityConflict):
            return plans
        for index, plan in enumerate(plans):
            if plan.split is not None:
                self.splits.append(plan.split)
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

    # -- tasks and data ----------------------------------------------------------

    def _emit(self, plan: OperationPlan, group: int) -> None:
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
        for work, held, lane in slices_of(plan):
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

    def _read_inputs(self, plan: OperationPlan, task: int, work: SliceWork) -> None:
        operation = plan.operation
        rows = None
        if plan.grid is not None and work.role is TaskRole.PARTIAL:
            rows = plan.grid.matrix_rows(work.row_tiles)
        seen: set[tuple[str, Box]] = set()
        needs = needed_by_input(
            operation, work.output, work.input_shapes, work.output_shape, rows
        )
        for name, boxes in zip(operation.inputs, needs, strict=True):
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

    def _read_partials(self, plan: OperationPlan, task: int, work: SliceWork) -> None:
        for piece in plan.pieces:
            channels = (work.output.channel_start, work.output.channel_stop)
            if piece.channels == channels:
                tensor = _partial_name(plan.operation.output, work, piece)
                self._read_fragments(task, tensor, work.output)

    def _load_constants(self, plan: OperationPlan, task: int, work: SliceWork) -> None:
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
