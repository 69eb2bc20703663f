"""Tensors and operations: what one layer-level node of a network is.

Shapes are logical (N, C, H, W) shapes with batch 1; every operation has exactly
one output (a split is one SLICE operation per part), so an operation and the
tensor it produces can be named by each other.

Layout: :attr:`Tensor.extent` gives the (rows, columns, channels) a tensor
occupies.  Data lie in memory row by row, column by column, channels innermost:

========================  ==================  ==========================
shape                     meaning             (rows, columns, channels)
========================  ==================  ==========================
``(D,)``                  vector              ``(1, 1, D)``
``(S, D)``                sequence            ``(S, 1, D)``
``(1, S, D)``             sequence            ``(S, 1, D)``
``(1, C, H, W)``          feature map         ``(H, W, C)``
``(1, h, S, d)``          attention heads     ``(S, d, h)``, as above
``(1, g, c, H, W)``       grouped channels    ``(H, W, g*c)``
========================  ==================  ==========================

A one-dimensional convolution works on ``(1, C, L, 1)``: rows are time steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    ATTRIBUTES_OF,
    MAX_ELEMENTS,
    WEIGHTED_KINDS,
    Activation,
    Attributes,
    OpKind,
    Shape,
    require_positive,
)
from raptor_cp.units import ceil_div


class Extent(NamedTuple):
    """Where a tensor lies: ``rows`` x ``columns`` positions of ``channels``."""

    rows: int
    columns: int
    channels: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array of ``bits``-bit elements.

    Raises:
        MalformedInput: a dimension below 1, no dimension at all, or bits outside
            1 to 64.
    """

    name: str
    shape: Shape
    bits: int = 8

    def __post_init__(self) -> None:
        where = f"tensor {self.name!r}"
        if not self.name:
            raise MalformedInput("a tensor has no name", expected="a non-empty name")
        checked_shape(self.shape, where)
        if not 1 <= self.bits <= 64:
            raise MalformedInput(
                "impossible element width",
                where=where,
                value=self.bits,
                expected="1 to 64 bits",
            )

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes when packed without gaps, rounded up once."""
        return ceil_div(self.elements * self.bits, 8)

    @property
    def extent(self) -> Extent:
        """(rows, columns, channels) as tabulated in the module's docstring.

        Raises:
            MalformedInput: three or more dimensions and a batch other than 1.

        >>> Tensor("x", (1, 64, 56, 28)).extent
        Extent(rows=56, columns=28, channels=64)
        >>> Tensor("tokens", (1, 197, 768)).extent
        Extent(rows=197, columns=1, channels=768)
        """
        shape = self.shape
        if len(shape) == 1:
            return Extent(1, 1, shape[0])
        if len(shape) == 2:
            return Extent(shape[0], 1, shape[1])
        if shape[0] != 1:
            raise MalformedInput(
                "the batch dimension is not 1",
                where=f"tensor {self.name!r}",
                value=shape,
                expected="one inference at a time: shape (1, ...)",
            )
        if len(shape) == 3:
            return Extent(shape[1], 1, shape[2])
        return Extent(shape[-2], shape[-1], prod(shape[1:-2]))


@dataclass(frozen=True, slots=True)
class WeightShape:
    """The constant matrices of a CONV, CONV_TRANSPOSE or GEMM.

    ``groups`` matrices of ``rows`` (K: inputs of one output value) by ``columns``
    (N: output channels of the group), ``bits`` bits per weight.  For CONV,
    ``rows = kh*kw*C/groups``; for CONV_TRANSPOSE the same formula, of which one
    output value uses about ``1/(stride_h*stride_w)``.
    """

    rows: int
    columns: int
    groups: int = 1
    bias: bool = False
    bits: int = 8

    def __post_init__(self) -> None:
        for field, value in (
            ("rows", self.rows),
            ("columns", self.columns),
            ("groups", self.groups),
            ("bits", self.bits),
        ):
            require_positive(value, f"weight.{field}")
        if self.bits > 64:
            raise MalformedInput(
                "impossible weight width", value=self.bits, expected="1 to 64 bits"
            )

    @property
    def parameters(self) -> int:
        """Weights and biases of all groups."""
        matrix = self.rows * self.columns * self.groups
        return matrix + (self.columns * self.groups if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One layer-level node.

    Args:
        name: unique within the network.
        kind: what it computes.
        inputs: tensor names; a convolution's constants are not among them.
        outputs: exactly one tensor name.
        attributes: of the class that :data:`ATTRIBUTES_OF` gives for ``kind``.
        weight: the crossbar matrices, for the :data:`WEIGHTED_KINDS` only.
        activation: function applied to each result element, or None.
        vector_parameters: constants that are no matrix (normalisation scales).
        folded: names of source nodes that this operation absorbed, in order.

    Raises:
        MalformedInput: no inputs, not one output, attributes of another kind,
            a weight where none belongs or none where one does.
    """

    name: str
    kind: OpKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Attributes
    weight: WeightShape | None = None
    activation: Activation | None = None
    vector_parameters: int = 0
    folded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise MalformedInput("an operation has no name", expected="a unique name")
        where = f"operation {self.name!r}"
        if not self.inputs:
            raise MalformedInput(
                "the operation has no inputs", where=where, expected="at least one"
            )
        if len(self.outputs) != 1:
            raise MalformedInput(
                "wrong number of outputs",
                where=where,
                value=self.outputs,
                expected="exactly one (a split is one slice per part)",
            )
        wanted = ATTRIBUTES_OF[self.kind]
        if type(self.attributes) is not wanted:
            raise MalformedInput(
                f"attributes do not belong to kind {self.kind.value!r}",
                where=where,
                value=type(self.attributes).__name__,
                expected=wanted.__name__,
            )
        if (self.weight is not None) != (self.kind in WEIGHTED_KINDS):
            raise MalformedInput(
                "weight given" if self.weight else "weight missing",
                where=where,
                value=self.weight,
                expected=f"a weight exactly for {', '.join(WEIGHTED_KINDS)}",
            )
        if self.vector_parameters < 0:
            raise MalformedInput(
                "negative number of constants",
                where=where,
                value=self.vector_parameters,
                expected="0 or more",
            )

    @property
    def output(self) -> str:
        """Name of the one tensor produced."""
        return self.outputs[0]

    @property
    def parameters(self) -> int:
        """Trained constants: matrices, biases and vectors."""
        matrix = self.weight.parameters if self.weight is not None else 0
        return matrix + self.vector_parameters

    @property
    def is_view(self) -> bool:
        """True if the operation moves and computes nothing."""
        return self.kind is OpKind.VIEW and self.activation is None


def checked_shape(shape: Shape, where: str) -> None:
    """Raise MalformedInput unless all dimensions are ints of at least 1."""
    if not shape:
        raise MalformedInput(
            "the shape is empty", where=where, value=shape, expected="1 or more axes"
        )
    for dimension in shape:
        if type(dimension) is not int or dimension < 1:
            raise MalformedInput(
                "a dimension is not a positive integer",
                where=where,
                value=shape,
                expected="every dimension known and at least 1",
            )
    if prod(shape) > MAX_ELEMENTS:
        raise MalformedInput(
            "the tensor is too large",
            where=where,
            value=shape,
            expected=f"at most {MAX_ELEMENTS} elements",
        )
