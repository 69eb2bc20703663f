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
from enum import StrEnum
from math import prod
from typing import NamedTuple

from raptor_cp.errors import MalformedInput
from raptor_cp.units import ceil_div

#: Bounds every dimension and element count, so that no product of a few of
#: them leaves int64.
MAX_ELEMENTS = 2**40

Shape = tuple[int, ...]


class OpKind(StrEnum):
    """What an operation computes; each kind has one attribute class."""

    CONV = "conv"
    CONV_TRANSPOSE = "conv_transpose"
    GEMM = "gemm"
    MATMUL = "matmul"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAXIMUM = "maximum"
    MINIMUM = "minimum"
    POOL = "pool"
    REDUCE = "reduce"
    CONCAT = "concat"
    SLICE = "slice"
    PAD = "pad"
    VIEW = "view"
    TRANSPOSE = "transpose"
    SOFTMAX = "softmax"
    LAYER_NORM = "layer_norm"
    SCALE = "scale"
    ACTIVATION = "activation"
    LRN = "lrn"
    RESIZE = "resize"
    GATHER = "gather"


#: Elementwise kinds of two operands, which broadcast as in numpy.
BINARY_KINDS = (
    OpKind.ADD,
    OpKind.SUB,
    OpKind.MUL,
    OpKind.DIV,
    OpKind.MAXIMUM,
    OpKind.MINIMUM,
)
#: Kinds whose constant operand is a matrix that crossbars hold.
WEIGHTED_KINDS = (OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.GEMM)


class Function(StrEnum):
    """Functions of one element, alone or fused behind another operation."""

    RELU = "relu"
    CLIP = "clip"
    LEAKY_RELU = "leaky_relu"
    PRELU = "prelu"
    ELU = "elu"
    SIGMOID = "sigmoid"
    HARD_SIGMOID = "hard_sigmoid"
    TANH = "tanh"
    GELU = "gelu"
    SILU = "silu"
    HARD_SWISH = "hard_swish"
    SOFTPLUS = "softplus"
    MISH = "mish"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RECIPROCAL = "reciprocal"
    ERF = "erf"
    NEG = "neg"
    ABS = "abs"
    SQUARE = "square"


class PoolFunction(StrEnum):
    """How a pooling window is combined."""

    MAX = "max"
    AVERAGE = "average"


class ReduceFunction(StrEnum):
    """How the elements along reduced axes are combined."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


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
class Activation:
    """A function of one element.

    ``alpha``, ``beta``: lower and upper bound of CLIP; slope of LEAKY_RELU and
    ELU (alpha); slope and offset of HARD_SIGMOID; unused elsewhere.
    """

    function: Function
    alpha: float = 0.0
    beta: float = 0.0


RELU = Activation(Function.RELU)
RELU6 = Activation(Function.CLIP, 0.0, 6.0)


@dataclass(frozen=True, slots=True)
class ConvAttributes:
    """Sizes as (height, width); ``pads`` as (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1

    def __post_init__(self) -> None:
        check_window(self.kernel, self.strides, self.pads, self.dilations)
        require_positive(self.groups, "groups")


@dataclass(frozen=True, slots=True)
class ConvTransposeAttributes:
    """As :class:`ConvAttributes`; ``output_padding`` adds (rows, columns)."""

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    output_padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        check_window(self.kernel, self.strides, self.pads, self.dilations)
        require_positive(self.groups, "groups")
        require_integers(self.output_padding, "output_padding", length=2, minimum=0)


@dataclass(frozen=True, slots=True)
class GemmAttributes:
    """Last axis times a constant matrix (also a MatMul with a constant)."""


@dataclass(frozen=True, slots=True)
class MatMulAttributes:
    """Product of two computed tensors, batched over ``heads``.

    With ``heads == 1`` operands are matrices or stacks of them as in numpy.  With
    ``heads > 1`` an operand is either stacked, ``(1, heads, S, d)``, or a sequence
    ``(1, S, heads*d)`` whose channels are read head by head; so attention needs
    no reshapes and no transposes.  The result is ``(1, heads, M, N)``, or
    ``(1, M, heads*N)`` with ``merge_heads``.  ``transpose_a``/``transpose_b`` swap
    the two matrix axes of an operand; ``scale`` multiplies the result.
    """

    transpose_a: bool = False
    transpose_b: bool = False
    heads: int = 1
    merge_heads: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self.heads, "heads")


@dataclass(frozen=True, slots=True)
class ElementwiseAttributes:
    """Of a binary kind: two inputs, or one input and an immediate ``scalar``.

    ``scalar_first`` puts the scalar on the left (``1 - x``, ``1 / x``).
    """

    scalar: float | None = None
    scalar_first: bool = False


@dataclass(frozen=True, slots=True)
class PoolAttributes:
    """Sizes as (height, width); ``pads`` as (top, left, bottom, right).

    With ``ceil_mode`` a last partial window counts if it starts inside the input
    or the padding before it.
    """

    function: PoolFunction
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    ceil_mode: bool = False
    count_include_pad: bool = False

    def __post_init__(self) -> None:
        check_window(self.kernel, self.strides, self.pads, self.dilations)


@dataclass(frozen=True, slots=True)
class ReduceAttributes:
    """Combine along ``axes``; global average pooling is MEAN over axes (2, 3)."""

    function: ReduceFunction
    axes: tuple[int, ...]
    keep_dims: bool = True


@dataclass(frozen=True, slots=True)
class ConcatAttributes:
    """Join the inputs along ``axis`` (0-based, never negative)."""

    axis: int


@dataclass(frozen=True, slots=True)
class SliceAttributes:
    """``start:stop:step`` along each of ``axes`` (normalised: 0 <= start < stop)."""

    axes: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        length = len(self.axes)
        require_integers(self.axes, "axes", length=length, minimum=0)
        require_integers(self.starts, "starts", length=length, minimum=0)
        require_integers(self.stops, "stops", length=length, minimum=1)
        require_integers(self.steps, "steps", length=length, minimum=1)


@dataclass(frozen=True, slots=True)
class PadAttributes:
    """Elements added before and after each axis; ``mode`` as in numpy.pad."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        require_integers(self.before, "before", length=len(self.before), minimum=0)
        require_integers(self.after, "after", length=len(self.before), minimum=0)


@dataclass(frozen=True, slots=True)
class ViewAttributes:
    """The same elements under another shape: runtime free.

    Reshape, Flatten, Squeeze, Unsqueeze, Identity and Dropout are views.
    ``channels_last`` says which element order is kept: False, the order of the
    logical shape (as ONNX has it); True, the order of the memory layout, so that
    ``(1, C, H, W)`` read as ``(1, H*W, C)`` is a view and no transpose.  A logical
    flatten in front of a GEMM is free as well: the rows of the constant matrix
    are put into memory order once, when weights are laid out.
    """

    shape: Shape
    channels_last: bool = False


@dataclass(frozen=True, slots=True)
class TransposeAttributes:
    """Output axis ``i`` is input axis ``permutation[i]``."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SoftmaxAttributes:
    """Normalise along ``axis`` (0-based); ``log`` takes the logarithm."""

    axis: int
    log: bool = False


@dataclass(frozen=True, slots=True)
class LayerNormAttributes:
    """Normalise over ``axis`` and all later axes, then scale (and shift)."""

    axis: int
    epsilon: float = 1e-5
    bias: bool = True


@dataclass(frozen=True, slots=True)
class ScaleAttributes:
    """``x*scale + shift`` along ``axis``: a BatchNormalization left unfolded."""

    axis: int = 1


@dataclass(frozen=True, slots=True)
class LrnAttributes:
    """Local response normalisation over ``size`` channels."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    bias: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self.size, "size")


@dataclass(frozen=True, slots=True)
class ResizeAttributes:
    """New (height, width) of a feature map; ``mode``: "nearest" or "linear"."""

    size: tuple[int, int]
    mode: str = "nearest"

    def __post_init__(self) -> None:
        require_integers(self.size, "size", length=2, minimum=1)


@dataclass(frozen=True, slots=True)
class GatherAttributes:
    """Take entries along ``axis``: fixed ``indices``, or a second input if None.

    ``drop_axis`` removes the axis of a single fixed index (a scalar index).
    """

    axis: int
    indices: tuple[int, ...] | None = None
    drop_axis: bool = False


Attributes = (
    ConvAttributes
    | ConvTransposeAttributes
    | GemmAttributes
    | MatMulAttributes
    | ElementwiseAttributes
    | PoolAttributes
    | ReduceAttributes
    | ConcatAttributes
    | SliceAttributes
    | PadAttributes
    | ViewAttributes
    | TransposeAttributes
    | SoftmaxAttributes
    | LayerNormAttributes
    | ScaleAttributes
    | Activation
    | LrnAttributes
    | ResizeAttributes
    | GatherAttributes
)

#: The attribute class of each kind.
ATTRIBUTES_OF: dict[OpKind, type[Attributes]] = {
    OpKind.CONV: ConvAttributes,
    OpKind.CONV_TRANSPOSE: ConvTransposeAttributes,
    OpKind.GEMM: GemmAttributes,
    OpKind.MATMUL: MatMulAttributes,
    **dict.fromkeys(BINARY_KINDS, ElementwiseAttributes),
    OpKind.POOL: PoolAttributes,
    OpKind.REDUCE: ReduceAttributes,
    OpKind.CONCAT: ConcatAttributes,
    OpKind.SLICE: SliceAttributes,
    OpKind.PAD: PadAttributes,
    OpKind.VIEW: ViewAttributes,
    OpKind.TRANSPOSE: TransposeAttributes,
    OpKind.SOFTMAX: SoftmaxAttributes,
    OpKind.LAYER_NORM: LayerNormAttributes,
    OpKind.SCALE: ScaleAttributes,
    OpKind.ACTIVATION: Activation,
    OpKind.LRN: LrnAttributes,
    OpKind.RESIZE: ResizeAttributes,
    OpKind.GATHER: GatherAttributes,
}


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


def require_positive(value: int, where: str) -> None:
    """Raise MalformedInput unless ``value`` is an int of at least 1."""
    if type(value) is not int or not 1 <= value <= MAX_ELEMENTS:
        raise MalformedInput(
            "not a positive integer", where=where, value=value, expected="at least 1"
        )


def require_integers(
    values: tuple[int, ...], where: str, *, length: int, minimum: int
) -> None:
    """Raise MalformedInput unless there are ``length`` ints >= ``minimum``."""
    wrong = [v for v in values if type(v) is not int or not minimum <= v < 2**31]
    if len(values) != length or wrong:
        raise MalformedInput(
            "wrong values",
            where=where,
            value=values,
            expected=f"{length} integers of at least {minimum}",
        )


def check_window(
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    dilations: tuple[int, int],
) -> None:
    """Raise MalformedInput for a window that cannot exist."""
    require_integers(kernel, "kernel", length=2, minimum=1)
    require_integers(strides, "strides", length=2, minimum=1)
    require_integers(pads, "pads", length=4, minimum=0)
    require_integers(dilations, "dilations", length=2, minimum=1)
