"""What each kind of operation can be told: one frozen class per kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raptor_cp.errors import MalformedInput

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
