"""Operations that move nothing: views, contiguous slices and gathers.

They become no tasks.  Whoever reads such a tensor reads boxes of its *root*: the
tensor that an operation really computes, or a network input or constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.axes import (
    box_ranges,
    ranges_box,
    reshaped_ranges,
    whole_ranges,
)
from raptor_cp.graph.projection import gathered_ranges, sliced_ranges
from raptor_cp.graph.work import Box
from raptor_cp.network.attributes import (
    GatherAttributes,
    OpKind,
    SliceAttributes,
    ViewAttributes,
)

if TYPE_CHECKING:
    from raptor_cp.network.operations import Operation, Tensor
    from raptor_cp.network.structure import Network


def is_runtime_free(operation: Operation) -> bool:
    """True if the operation becomes no task: its elements stay where they are."""
    if operation.activation is not None:
        return False
    attributes = operation.attributes
    if isinstance(attributes, ViewAttributes):
        return True
    if isinstance(attributes, SliceAttributes):
        return all(step == 1 for step in attributes.steps)
    if isinstance(attributes, GatherAttributes) and attributes.indices is not None:
        indices = attributes.indices
        return indices == tuple(range(indices[0], indices[0] + len(indices)))
    return False


def root_of(network: Network, tensor: str) -> str:
    """Name of the tensor that holds the elements of ``tensor``."""
    maker = network.producer(tensor)
    while maker is not None and is_runtime_free(maker):
        tensor = maker.inputs[0]
        maker = network.producer(tensor)
    return tensor


def root_box(
    network: Network, tensor: str, box: Box, reader: OpKind | None = None
) -> tuple[str, Box]:
    """The root of ``tensor`` and the box of it that covers ``box``.

    ``reader``: a logical flatten in front of a GEMM keeps memory order, because
    the rows of the constant matrix were put into that order once.
    """
    maker = network.producer(tensor)
    while maker is not None and is_runtime_free(maker):
        source = network.tensors[maker.inputs[0]]
        box = _source_box(maker, network.tensors[tensor], source, box, reader)
        tensor = source.name
        maker = network.producer(tensor)
    return tensor, box


def _source_box(
    view: Operation, output: Tensor, source: Tensor, box: Box, reader: OpKind | None
) -> Box:
    attributes = view.attributes
    if isinstance(attributes, ViewAttributes):
        flat = output.extent.rows == output.extent.columns == 1
        if attributes.channels_last or (reader is OpKind.GEMM and flat):
            mapped = reshaped_ranges(
                (
                    (box.row_start, box.row_stop),
                    (box.column_start, box.column_stop),
                    (box.channel_start, box.channel_stop),
                ),
                tuple(output.extent),
                tuple(source.extent),
            )
            return Box(*mapped[0], *mapped[1], *mapped[2])
        wanted = box_ranges(box, output.shape)
        logical = reshaped_ranges(wanted, output.shape, source.shape)
        return ranges_box(logical, source.shape)
    wanted = box_ranges(box, output.shape)
    if isinstance(attributes, SliceAttributes):
        return ranges_box(sliced_ranges(attributes, wanted), source.shape)
    gathered = (
        gathered_ranges(attributes, wanted, source.shape)
        if isinstance(attributes, GatherAttributes)
        else None
    )
    return ranges_box(gathered or whole_ranges(source.shape), source.shape)
