"""What a core holds of every tensor, and where an element of it lies.

A *block* is a dense box of a tensor in local memory: rows, columns, channels
innermost.  Boxes that tasks read are merged while they overlap or follow each other;
a task that works on whole rows needs a block of just its columns and channels, one
that picks its operands position by position (convolution) does not.
A *source* brings elements: a load, a receive, a task of the core itself.  Its elements
go straight into a block whose columns and channels are the source's own; otherwise the
source gets a block of its own.  Copies take what other blocks need from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import InternalError
from raptor_cp.graph.work import Box
from raptor_cp.targets.pim.emission import Text, fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from raptor_cp.targets.pim.codegen_operands import OperandMap

    Ints = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Block:
    """A dense box of ``tensor``, ``element`` bytes each, live in [first, last].

    Attributes:
        rowwise: some task reads whole rows of it.
        wanted: some task reads it; otherwise it is only sent or stored.
        joined: the block that this one has become a part of.
    """

    tensor: str
    box: Box
    element: int
    first: int
    last: int
    address: int = -1
    rowwise: bool = False
    wanted: bool = False
    joined: Block | None = None

    @property
    def final(self) -> Block:
        """The block that this one is a part of."""
        block = self
        while block.joined is not None:
            block = block.joined
        return block

    @property
    def size(self) -> int:
        """Bytes."""
        return self.box.elements * self.element

    @property
    def column_stride(self) -> int:
        """Bytes from one column to the next."""
        return self.box.shape[2] * self.element

    @property
    def row_stride(self) -> int:
        """Bytes from one row to the next."""
        return self.box.shape[1] * self.column_stride

    def at(self, row: int, column: int = 0, channel: int = 0) -> int:
        """Address of an element; outside the box it is extrapolated."""
        box = self.box
        return (
            self.address
            + (row - box.row_start) * self.row_stride
            + (column - box.column_start) * self.column_stride
            + (channel - box.channel_start) * self.element
        )

    def holds(self, row: int, like: Box) -> bool:
        """True if the block has row ``row`` of the columns and channels of a box."""
        box = self.box
        return (
            box.row_start <= row < box.row_stop
            and box.column_start <= like.column_start
            and like.column_stop <= box.column_stop
            and box.channel_start <= like.channel_start
            and like.channel_stop <= box.channel_stop
        )


@dataclass(slots=True, eq=False)
class Source:
    """Elements of a box that arrive at ``step``; ``block`` is where."""

    tensor: str
    box: Box
    element: int
    step: int
    block: Block | None = None
    copies: list[Block] = field(default_factory=list)

    @property
    def place(self) -> Block:
        """The block, once storage is planned."""
        if self.block is None:
            raise InternalError(f"{self.tensor}: a source without storage")
        return self.block


@dataclass(frozen=True, slots=True)
class Demand:
    """A box that a task reads at ``step``; ``rowwise``: as whole rows.

    ``task`` and ``index`` name the reader and which of its inputs this is.
    """

    tensor: str
    box: Box
    element: int
    step: int
    rowwise: bool = True
    task: int = -1
    index: int = 0


def plan_blocks(
    demands: Sequence[Demand], sources: Sequence[Source]
) -> tuple[dict[str, list[Block]], list[Block]]:
    """Blocks by tensor, and the block of each demand.

    Gives every source its block and its copies.  The lives of blocks cover their
    sources and demands; what reads a block besides (sends, stores) has to extend them.
    A task may only read the blocks of its own demands: another one that has the same
    elements can be dead, or not yet filled, at its step.
    """
    read: dict[str, list[Block]] = {}
    served: list[Block] = []
    for demand in demands:
        block = Block(
            demand.tensor,
            demand.box,
            demand.element,
            demand.step,
            demand.step,
            rowwise=demand.rowwise,
            wanted=True,
        )
        served.append(block)
        read.setdefault(demand.tensor, []).append(block)
    blocks = {tensor: _merged(group) for tensor, group in read.items()}
    for source in sources:
        group = blocks.setdefault(source.tensor, [])
        met = [b for b in group if b.box.intersect(source.box) is not None]
        own = Block(source.tensor, source.box, source.element, source.step, source.step)
        same = [b for b in met if same_spans(b.box, source.box)]
        if same or not met:
            for block in same:
                group.remove(block)
                _join(own, block)
            group.append(own)
    # Growing blocks swallow each other: look the final ones up only now.
    for source in sources:
        group = blocks[source.tensor]
        met = [
            b
            for b in group
            if b.box.intersect(source.box) is not None
            and (b.wanted or same_spans(b.box, source.box))
        ]
        home = next(
            (
                b
                for b in met
                if same_spans(b.box, source.box) and b.box.contains(source.box)
            ),
            None,
        )
        source.block = home or Block(
            source.tensor, source.box, source.element, source.step, source.step
        )
        if home is not None:
            home.first = min(home.first, source.step)
            home.last = max(home.last, source.step)
        source.copies = [b for b in met if b is not home and b.wanted]
    _leave_out_copies(demands, sources)
    for source in sources:
        for block in source.copies:
            block.first = min(block.first, source.step)
    for source in sources:
        if source.place not in blocks[source.tensor]:
            blocks[source.tensor].append(source.place)
    return blocks, [block.final for block in served]


def _leave_out_copies(demands: Sequence[Demand], sources: Sequence[Source]) -> None:
    """Copy only what a later task reads and what no earlier source has brought.

    A copy behind the last reader would write where another buffer lies by then.
    """
    read: dict[str, list[Demand]] = {}
    for demand in demands:
        read.setdefault(demand.tensor, []).append(demand)
    brought: dict[int, list[Box]] = {}
    for source in sorted(sources, key=lambda s: s.step):
        kept = []
        for block in (source.place, *source.copies):
            common = block.box.intersect(source.box)
            if common is None:
                continue
            there = brought.setdefault(id(block), [])
            if block is not source.place:
                if any(box.contains(common) for box in there):
                    continue
                if source.step >= block.last or not any(
                    demand.step > source.step
                    and block.box.contains(demand.box)
                    and common.intersect(demand.box) is not None
                    for demand in read[source.tensor]
                ):
                    continue
                kept.append(block)
            there.append(common)
        source.copies = kept


def _join(block: Block, other: Block) -> None:
    """``block`` becomes the hull of both."""
    other.joined = block
    block.box = _hull(block.box, other.box)
    block.first = min(block.first, other.first)
    block.last = max(block.last, other.last)
    block.rowwise |= other.rowwise
    block.wanted |= other.wanted


def _merged(blocks: list[Block]) -> list[Block]:
    result: list[Block] = []
    pending = sorted(blocks, key=lambda b: b.box)
    while pending:
        block = pending.pop(0)
        for index, other in enumerate(result):
            free = not block.rowwise and not other.rowwise
            if _touching(block.box, other.box) and (
                free or same_spans(block.box, other.box)
            ):
                del result[index]
                _join(other, block)
                pending.insert(0, other)
                break
        else:
            result.append(block)
    return result


def _touching(one: Box, other: Box) -> bool:
    return (
        one.row_start <= other.row_stop
        and other.row_start <= one.row_stop
        and one.column_start < other.column_stop
        and other.column_start < one.column_stop
        and one.channel_start < other.channel_stop
        and other.channel_start < one.channel_stop
    )


def _hull(one: Box, other: Box) -> Box:
    return Box(
        min(one.row_start, other.row_start),
        max(one.row_stop, other.row_stop),
        min(one.column_start, other.column_start),
        max(one.column_stop, other.column_stop),
        min(one.channel_start, other.channel_start),
        max(one.channel_stop, other.channel_stop),
    )


def same_spans(one: Box, other: Box) -> bool:
    """Equal columns and channels."""
    return one.bounds[2:] == other.bounds[2:]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Contiguous pieces of a box, all of one size in bytes.

    ``rows``, ``columns``, ``channels``: first element of each piece.
    """

    rows: Ints
    columns: Ints
    channels: Ints
    size: int

    @property
    def count(self) -> int:
        """Number of pieces."""
        return self.rows.size


def pieces_of(box: Box, element: int, frames: Sequence[Box]) -> Pieces:
    """Longest pieces of ``box`` that are contiguous inside all of ``frames``."""
    runs = max(box.runs_within(frame) for frame in frames)
    rows, columns, channels = box.shape
    if runs == 1:
        at_row, at_column = np.array([box.row_start]), np.array([box.column_start])
        size = box.elements
    elif runs == rows and columns > 1:
        at_row = np.arange(box.row_start, box.row_stop)
        at_column = np.full(rows, box.column_start)
        size = columns * channels
    else:
        at_row = np.repeat(np.arange(box.row_start, box.row_stop), columns)
        at_column = np.tile(np.arange(box.column_start, box.column_stop), rows)
        size = channels
    where = np.full(at_row.size, box.channel_start)
    return Pieces(
        at_row.astype(np.int64),
        at_column.astype(np.int64),
        where.astype(np.int64),
        size * element,
    )


def addresses_in(block: Block, pieces: Pieces) -> Ints:
    """Address of each piece in a block that holds them."""
    box = block.box
    return np.asarray(
        block.address
        + (pieces.rows - box.row_start) * block.row_stride
        + (pieces.columns - box.column_start) * block.column_stride
        + (pieces.channels - box.channel_start) * block.element,
        np.int64,
    )


def copy_box(box: Box, source: Block, target: Block) -> Text:
    """Copies of a box from one block to another."""
    pieces = pieces_of(box, source.element, (source.box, target.box))
    text = Text(pieces.count)
    text.copy(
        fixed(addresses_in(target, pieces)),
        fixed(addresses_in(source, pieces)),
        pieces.size,
    )
    return text


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """An operand whose elements are not where its own coordinates say.

    ``block`` has them in the operand's order: a part of ``base`` where they follow
    each other there, else storage of its own that copies fill before the task.

    Attributes:
        starts: byte in ``block`` where each run of elements begins.
        sources: the same in ``base``.
        sizes: bytes of each run.
    """

    block: Block
    base: Block
    starts: Ints
    sources: Ints
    sizes: Ints

    @property
    def runs(self) -> int:
        """Number of contiguous runs."""
        return self.sizes.size

    def settle(self) -> None:
        """A single run needs no storage; its address follows its base's."""
        if self.runs == 1:
            moved = int(self.sources[0]) - int(self.starts[0])
            self.block.address = self.base.address + moved

    def text(self) -> Text:
        """Copies, one for each run."""
        text = Text(self.runs)
        text.copy(
            fixed(self.block.address + self.starts),
            fixed(self.base.address + self.sources),
            self.sizes,
        )
        return text


def gathered(entry: OperandMap, base: Block, step: int) -> View:
    """The operand of one step, its elements taken from ``base``."""
    if entry.places is None or entry.numbers is None:
        raise InternalError(f"{entry.root}: a view without places")
    rows, columns, channels = entry.places
    box = base.box
    order = (
        (rows - box.row_start) * base.row_stride
        + (columns - box.column_start) * base.column_stride
        + (channels - box.channel_start) * base.element
    )
    start = entry.numbers * base.element
    block = Block(entry.root, entry.needed, base.element, step, step)
    if (order - start == order[0] - start[0]).all():
        whole = np.array([block.size], np.int64)
        return View(block, base, start[:1], order[:1], whole)
    runs_on = (np.diff(order) == base.element) & (np.diff(entry.numbers) == 1)
    first = np.concatenate([[0], np.flatnonzero(~runs_on) + 1]).astype(np.int64)
    sizes = np.diff(np.append(first, order.size)) * base.element
    return View(block, base, start[first], order[first], sizes)
