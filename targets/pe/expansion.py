"""How the scheduler turns one command into stages on the engines.

A composite's operations become DMA_READ -> FETCH -> GEMM or MATH -> STORE ->
DMA_WRITE stages for each tile.  The DMA stages exist for operands in HBM only; the
scheduler makes them itself, so the CPU never pays for them.  A single-op compute
command is one tile without staging.  Engine times come from the topology alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    GEMM_KINDS,
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    DmaWriteCmd,
    GemmCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    QueuedCommand,
    Scope,
    TensorHandle,
)
from raptor_cp.targets.pe.hazards import Cut, HazardTracker, Reader, Writer
from raptor_cp.targets.pe.stages import Engine, StageGraph, StageKind
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.targets.pe.topology import PeAttributes

_WHOLE = 1 << 40


@dataclass(slots=True)
class _Operand:
    handle: TensorHandle
    reader: Reader

    def bytes(self, tile: int) -> int:
        return self.reader.cut.elements(tile) * self.handle.dtype.bytes


class Expander:
    """Expands commands of one element into ``graph``, tracking hazards."""

    def __init__(self, attributes: PeAttributes, graph: StageGraph) -> None:
        self._attributes = attributes
        self._graph = graph
        self._hazards = HazardTracker()

    def expand(self, command: QueuedCommand, index: int, push: int) -> list[int]:
        """Add the stages of ``command``; returns those that complete it.

        Raises:
            MalformedInput: the tensors do not fit the operation.
        """
        match command:
            case CompositeCmd():
                tiling = self._attributes.tiling
                extents = (tiling.m, tiling.k, tiling.n)
                return [
                    stage
                    for op in command.ops
                    for stage in self._operation(op, extents, index, push)
                ]
            case GemmCmd():
                kind = "gemm_acc" if command.accumulate else "gemm"
                op = OpSpec(
                    kind,
                    {"a": command.a, "b": command.b},
                    command.out,
                    {"m": command.m, "k": command.k, "n": command.n},
                )
                _require_local(op)
                return self._operation(op, (_WHOLE, _WHOLE, _WHOLE), index, push)
            case MathCmd():
                operands = {str(i): h for i, h in enumerate(command.operands)}
                op = OpSpec(command.op, operands, command.out)
                _require_local(op)
                return self._math(op, (_WHOLE, _WHOLE), index, push)
            case DmaReadCmd() | DmaWriteCmd() | CopyCmd():
                return [self._transfer(command, index, push)]

    def _transfer(
        self, command: DmaReadCmd | DmaWriteCmd | CopyCmd, index: int, push: int
    ) -> int:
        attributes = self._attributes
        reader = self._hazards.reader(command.src, _whole(command.src))
        writer = self._hazards.writer(command.dst, _whole(command.dst))
        if command.src.nbytes != command.dst.nbytes:
            raise MalformedInput(
                "source and destination differ in size",
                where=f"{command.src.name} -> {command.dst.name}",
                value=(command.src.nbytes, command.dst.nbytes),
            )
        if isinstance(command, CopyCmd):
            kind, engine, rate = StageKind.COPY, Engine.TCM, attributes.tcm
        elif isinstance(command, DmaReadCmd):
            kind, engine, rate = StageKind.DMA_READ, Engine.DMA, attributes.dma
        else:
            kind, engine, rate = StageKind.DMA_WRITE, Engine.DMA, attributes.dma
        before = [
            push,
            *reader.before(0, self._graph, index),
            *writer.before(0, self._graph, index),
        ]
        cycles = rate.cycles(command.src.nbytes)
        stage = self._graph.add(kind, engine, cycles, index, before)
        reader.note(0, stage)
        writer.note(0, stage)
        return stage

    def _operation(
        self, op: OpSpec, extents: tuple[int, int, int], index: int, push: int
    ) -> list[int]:
        if op.scope is Scope.WHOLE:
            extents = (_WHOLE, _WHOLE, _WHOLE)
        if op.kind in GEMM_KINDS:
            return self._gemm(op, extents, index, push)
        return self._math(op, (extents[0], extents[2]), index, push)

    def _gemm(
        self, op: OpSpec, extents: tuple[int, int, int], index: int, push: int
    ) -> list[int]:
        m, k, n = op.gemm_extents()
        tm, tk, tn = min(extents[0], m), min(extents[1], k), min(extents[2], n)
        a, b, out = _gemm_tensors(op, m, k, n)
        cut_out = Cut(m, n, tm, tn)
        left = _Operand(a, self._hazards.reader(a, Cut(m, k, tm, tk)))
        right = _Operand(b, self._hazards.reader(b, Cut(k, n, tk, tn)))
        old = (
            _Operand(out, self._hazards.reader(out, cut_out))
            if op.kind == "gemm_acc"
            else None
        )
        writer = self._hazards.writer(out, cut_out)
        feed = _Feed(self._attributes, self._graph, index, push)
        steps = ceil_div(k, tk)
        for tile in range(cut_out.count):
            row, column = divmod(tile, cut_out.grid[1])
            last = -1
            for step in range(steps):
                wanted = [
                    (left, left.reader.cut.index(row, step)),
                    (right, right.reader.cut.index(step, column)),
                ]
                if old is not None and step == 0:
                    wanted.append((old, tile))
                depth = min(tk, k - step * tk)
                work = cut_out.elements(tile) * depth
                last = feed.compute(Engine.GEMM, work, wanted, first=step == 0)
            feed.store(out, writer, tile, [last])
        return feed.finished

    def _math(
        self, op: OpSpec, extents: tuple[int, int], index: int, push: int
    ) -> list[int]:
        handles = [*op.operands.values(), *([op.out] if op.out is not None else [])]
        if not handles:
            raise MalformedInput("an operation without tensors", where=op.label)
        rows = max(handle.rows for handle in handles)
        columns = max(handle.columns for handle in handles)
        for handle in handles:
            if handle.rows not in (1, rows) or handle.columns not in (1, columns):
                raise MalformedInput(
                    "shapes cannot be broadcast",
                    where=f"{op.label}: {handle.name}",
                    value=handle.shape,
                    expected=f"{rows} or 1 rows, {columns} or 1 columns",
                )
        tr, tc = min(extents[0], rows), min(extents[1], columns)
        grid = Cut(rows, columns, tr, tc)
        operands = [
            _Operand(handle, self._hazards.reader(handle, Cut.of(handle, tr, tc)))
            for handle in dict.fromkeys(op.operands.values())
        ]
        out = op.out
        writer = None if out is None else self._hazards.writer(out, Cut.of(out, tr, tc))
        feed = _Feed(self._attributes, self._graph, index, push)
        parts: dict[int, list[int]] = {}
        left = {} if writer is None else _pieces(grid, writer.cut)
        for tile in range(grid.count):
            row, column = divmod(tile, grid.grid[1])
            wanted = [(o, o.reader.cut.index(row, column)) for o in operands]
            target = 0 if writer is None else writer.cut.index(row, column)
            part = parts.setdefault(target, [])
            stage = feed.compute(
                Engine.MATH, grid.elements(tile), wanted, first=not part
            )
            part.append(stage)
            if out is None or writer is None:
                feed.finished.append(stage)
                continue
            left[target] -= 1
            if left[target] == 0:  # a reduction stores after its last part
                feed.store(out, writer, target, part)
        return feed.finished


class _Feed:
    """Stages of one operation, with the limits of the staging buffers."""

    def __init__(
        self, attributes: PeAttributes, graph: StageGraph, index: int, push: int
    ) -> None:
        self._attributes = attributes
        self._graph = graph
        self._index = index
        self._push = push
        self._buffers = attributes.tiling.staging_buffers
        self._fetches: list[int] = []
        self._computes: list[int] = []
        self._stores: list[int] = []
        self._drains: list[int] = []
        self.finished: list[int] = []

    def compute(
        self,
        engine: Engine,
        work: int,
        wanted: list[tuple[_Operand, int]],
        *,
        first: bool,
    ) -> int:
        """DMA_READ as needed, FETCH and the engine stage of one step."""
        graph, index, attributes = self._graph, self._index, self._attributes
        before: list[int] = []
        size = 0
        for operand, tile in wanted:
            nbytes = operand.bytes(tile)
            size += nbytes
            ready = operand.reader.before(tile, graph, index)
            if operand.handle.space is MemorySpace.HBM:
                # A staging buffer is free once the fetch that used it is done.
                free = self._nth_last(self._fetches)
                stage = graph.add(
                    StageKind.DMA_READ,
                    Engine.DMA,
                    attributes.dma.cycles(nbytes),
                    index,
                    [self._push, *ready, *free],
                )
                operand.reader.note(tile, stage)
                before.append(stage)
            else:
                before.extend(ready)
        fetch = graph.add(
            StageKind.FETCH,
            Engine.TCM,
            attributes.tcm.cycles(size),
            index,
            [self._push, *before, *self._nth_last(self._computes)],
        )
        self._fetches.append(fetch)
        for operand, tile in wanted:
            if operand.handle.space is not MemorySpace.HBM:
                operand.reader.note(tile, fetch)
        gemm = engine is Engine.GEMM
        # A new output tile needs an accumulator that has been stored.
        free = self._nth_last(self._stores) if first else []
        stage = graph.add(
            StageKind.GEMM if gemm else StageKind.MATH,
            engine,
            (attributes.gemm if gemm else attributes.math).cycles(work),
            index,
            [fetch, *free],
        )
        self._computes.append(stage)
        return stage

    def store(
        self, out: TensorHandle, writer: Writer, tile: int, parts: list[int]
    ) -> None:
        """STORE of one output tile, and DMA_WRITE when it belongs in HBM."""
        graph, index, attributes = self._graph, self._index, self._attributes
        nbytes = writer.cut.elements(tile) * out.dtype.bytes
        conflicts = writer.before(tile, graph, index)
        away = out.space is MemorySpace.HBM
        before = [*parts, *(self._nth_last(self._drains) if away else conflicts)]
        last = graph.add(
            StageKind.STORE,
            Engine.TCM,
            attributes.tcm.cycles(nbytes),
            index,
            before,
        )
        self._stores.append(last)
        if away:
            last = graph.add(
                StageKind.DMA_WRITE,
                Engine.DMA,
                attributes.dma.cycles(nbytes),
                index,
                [last, *conflicts],
            )
            self._drains.append(last)
        writer.note(tile, last)
        self.finished.append(last)

    def _nth_last(self, stages: list[int]) -> list[int]:
        return stages[-self._buffers : len(stages) - self._buffers + 1]


def _whole(handle: TensorHandle) -> Cut:
    return Cut(handle.rows, handle.columns, handle.rows, handle.columns)


def _pieces(grid: Cut, target: Cut) -> dict[int, int]:
    """How many tiles of ``grid`` go into each tile of ``target``."""
    counts: dict[int, int] = {}
    for tile in range(grid.count):
        row, column = divmod(tile, grid.grid[1])
        key = target.index(row, column)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _require_local(op: OpSpec) -> None:
    handles = [*op.operands.values(), *([op.out] if op.out is not None else [])]
    for handle in handles:
        if handle.space is not MemorySpace.TCM:
            raise MalformedInput(
                "a single-op command needs its tensors in local memory",
                where=f"{op.label}: {handle.name}",
                hint="load it first, or use a composite, which stages it",
            )


def _gemm_tensors(
    op: OpSpec, m: int, k: int, n: int
) -> tuple[TensorHandle, TensorHandle, TensorHandle]:
    handles = tuple(op.operands.values())
    if len(handles) != 2 or op.out is None:
        raise MalformedInput("a GEMM has two operands and an output", where=op.label)
    for handle, elements in (
        (handles[0], m * k),
        (handles[1], k * n),
        (op.out, m * n),
    ):
        if handle.elements != elements:
            raise MalformedInput(
                "the tensor does not fit m, k, n",
                where=f"{op.label}: {handle.name}",
                value=handle.shape,
                expected=f"{elements} elements",
            )
    if op.out.name in (handles[0].name, handles[1].name):
        raise MalformedInput("a GEMM cannot overwrite its operand", where=op.label)
    return handles[0], handles[1], op.out
