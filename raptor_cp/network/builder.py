"""Build a network one call at a time.

Each method appends an operation, infers its shape at once and returns the tensor
it produces.  BatchNormalization and activations fold into their producer, so that
convolution + normalisation + ReLU is one operation.

>>> from raptor_cp.network.attributes import RELU
>>> net = NetworkBuilder("example")
>>> x = net.input((1, 3, 32, 32))
>>> x = net.conv(x, 16, 3, pad=1, norm=True, activation=RELU)
>>> x = net.gemm(net.flatten(net.global_average_pool(x)), 10)
>>> network = net.finish(x)
>>> [operation.kind.value for operation in network.operations]
['conv', 'reduce', 'view', 'gemm']
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    Activation,
    ConcatAttributes,
    ConvAttributes,
    ConvTransposeAttributes,
    ElementwiseAttributes,
    GatherAttributes,
    GemmAttributes,
    LayerNormAttributes,
    LrnAttributes,
    MatMulAttributes,
    OpKind,
    PadAttributes,
    PoolAttributes,
    PoolFunction,
    ReduceAttributes,
    ReduceFunction,
    ResizeAttributes,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
    ViewAttributes,
)
from raptor_cp.network.operations import Tensor, WeightShape
from raptor_cp.network.recording import OperationRecorder
from raptor_cp.network.shapes import auto_pads, checked_axis, feature_map

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = int | tuple[int, int]
#: One number, (height, width), (top, left, bottom, right) or an auto_pad mode.
Pads = int | tuple[int, int] | tuple[int, int, int, int] | str


class NetworkBuilder(OperationRecorder):
    """One method per kind of layer; arguments as for the recorder."""

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: Pads = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = False,
        norm: bool = False,
        activation: Activation | None = None,
        name: str = "",
    ) -> Tensor:
        """Convolution to ``channels``; ``norm`` folds a BatchNormalization in."""
        name = self._named(name, "conv")
        where = self._where(name)
        _, depth, height, width = feature_map(x.shape, where)
        window = (pair(kernel), pair(stride), pair(dilation))
        pads = window_pads(pad, (height, width), *window, where=where)
        attributes = ConvAttributes(window[0], window[1], pads, window[2], groups)
        weight = self._weight(depth, channels, attributes, bias or norm, where)
        return self._add(
            name,
            OpKind.CONV,
            (x,),
            attributes,
            weight=weight,
            activation=activation,
            folded=("batch_norm",) if norm else (),
        )

    def conv_transpose(
        self,
        x: Tensor,
        channels: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: int | tuple[int, int] | tuple[int, int, int, int] = 0,
        dilation: Pair = 1,
        groups: int = 1,
        output_padding: Pair = 0,
        bias: bool = False,
        activation: Activation | None = None,
        name: str = "",
    ) -> Tensor:
        """Transposed convolution to ``channels``."""
        name = self._named(name, "conv_transpose")
        where = self._where(name)
        _, depth, _, _ = feature_map(x.shape, where)
        attributes = ConvTransposeAttributes(
            pair(kernel),
            pair(stride),
            window_pads(pad, (1, 1), (1, 1), (1, 1), (1, 1), where=where),
            pair(dilation),
            groups,
            pair(output_padding),
        )
        weight = self._weight(depth, channels, attributes, bias, where)
        return self._add(
            name,
            OpKind.CONV_TRANSPOSE,
            (x,),
            attributes,
            weight=weight,
            activation=activation,
        )

    def gemm(
        self,
        x: Tensor,
        columns: int,
        *,
        bias: bool = True,
        activation: Activation | None = None,
        name: str = "",
    ) -> Tensor:
        """Fully connected layer over the last axis."""
        return self._add(
            self._named(name, "gemm"),
            OpKind.GEMM,
            (x,),
            GemmAttributes(),
            weight=WeightShape(x.shape[-1], columns, 1, bias, self.weight_bits),
            activation=activation,
        )

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        heads: int = 1,
        merge_heads: bool = False,
        scale: float = 1.0,
        name: str = "",
    ) -> Tensor:
        """Product of two computed tensors; see :class:`MatMulAttributes`."""
        attributes = MatMulAttributes(
            transpose_a, transpose_b, heads, merge_heads, scale
        )
        name = self._named(name, "matmul")
        return self._add(name, OpKind.MATMUL, (a, b), attributes)

    def binary(
        self,
        kind: OpKind,
        a: Tensor,
        b: Tensor | float,
        *,
        scalar_first: bool = False,
        activation: Activation | None = None,
        name: str = "",
    ) -> Tensor:
        """Elementwise ``kind`` of two tensors, or of a tensor and a number."""
        inputs = (a, b) if isinstance(b, Tensor) else (a,)
        scalar = None if isinstance(b, Tensor) else float(b)
        attributes = ElementwiseAttributes(scalar, scalar_first)
        name = self._named(name, kind.value)
        return self._add(name, kind, inputs, attributes, activation=activation)

    def add(
        self,
        a: Tensor,
        b: Tensor | float,
        *,
        activation: Activation | None = None,
        name: str = "",
    ) -> Tensor:
        """Elementwise sum."""
        return self.binary(OpKind.ADD, a, b, activation=activation, name=name)

    def mul(self, a: Tensor, b: Tensor | float, *, name: str = "") -> Tensor:
        """Elementwise product."""
        return self.binary(OpKind.MUL, a, b, name=name)

    def pool(
        self,
        function: PoolFunction,
        x: Tensor,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: Pads = 0,
        dilation: Pair = 1,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Maximum or average of a sliding window."""
        name = self._named(name, f"{function.value}_pool")
        where = self._where(name)
        _, _, height, width = feature_map(x.shape, where)
        window = (pair(kernel), pair(stride), pair(dilation))
        attributes = PoolAttributes(
            function,
            window[0],
            window[1],
            window_pads(pad, (height, width), *window, where=where),
            window[2],
            ceil_mode,
            count_include_pad,
        )
        return self._add(name, OpKind.POOL, (x,), attributes)

    def max_pool(
        self,
        x: Tensor,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: Pads = 0,
        ceil_mode: bool = False,
        name: str = "",
    ) -> Tensor:
        """Maximum of a sliding window."""
        return self.pool(
            PoolFunction.MAX,
            x,
            kernel,
            stride=stride,
            pad=pad,
            ceil_mode=ceil_mode,
            name=name,
        )

    def average_pool(
        self,
        x: Tensor,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: Pads = 0,
        count_include_pad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Mean of a sliding window."""
        return self.pool(
            PoolFunction.AVERAGE,
            x,
            kernel,
            stride=stride,
            pad=pad,
            count_include_pad=count_include_pad,
            name=name,
        )

    def reduce(
        self,
        function: ReduceFunction,
        x: Tensor,
        axes: Sequence[int],
        *,
        keep_dims: bool = True,
        name: str = "",
    ) -> Tensor:
        """Combine the elements along ``axes``."""
        name = self._named(name, f"reduce_{function.value}")
        attributes = ReduceAttributes(function, tuple(axes), keep_dims)
        return self._add(name, OpKind.REDUCE, (x,), attributes)

    def global_average_pool(self, x: Tensor, *, name: str = "") -> Tensor:
        """Mean of each channel: (1, C, H, W) to (1, C, 1, 1)."""
        name = self._named(name, "global_average_pool")
        feature_map(x.shape, self._where(name))
        return self.reduce(ReduceFunction.MEAN, x, (2, 3), name=name)

    def concat(
        self, parts: Sequence[Tensor], *, axis: int = 1, name: str = ""
    ) -> Tensor:
        """Join tensors along ``axis``."""
        name = self._named(name, "concat")
        return self._add(name, OpKind.CONCAT, tuple(parts), ConcatAttributes(axis))

    def slice(
        self,
        x: Tensor,
        axis: int,
        start: int,
        stop: int,
        step: int = 1,
        *,
        name: str = "",
    ) -> Tensor:
        """``x[start:stop:step]`` along ``axis``."""
        attributes = SliceAttributes((axis,), (start,), (stop,), (step,))
        return self._add(self._named(name, "slice"), OpKind.SLICE, (x,), attributes)

    def split(
        self, x: Tensor, sizes: Sequence[int], *, axis: int = 1, name: str = ""
    ) -> list[Tensor]:
        """Consecutive parts of ``x``: one slice each."""
        name = self._named(name, "split")
        where = self._where(name)
        checked_axis(axis, x.shape, where)
        if sum(sizes) != x.shape[axis]:
            raise MalformedInput(
                "the parts do not add up",
                where=where,
                value=tuple(sizes),
                expected=f"a sum of {x.shape[axis]}",
            )
        stops = list(accumulate(sizes))
        return [
            self.slice(x, axis, stop - size, stop, name=f"{name}.{index}")
            for index, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]

    def pad(
        self,
        x: Tensor,
        before: Sequence[int],
        after: Sequence[int],
        *,
        mode: str = "constant",
        value: float = 0.0,
        name: str = "",
    ) -> Tensor:
        """Add elements around ``x``: one number per axis and side."""
        attributes = PadAttributes(tuple(before), tuple(after), mode, value)
        return self._add(self._named(name, "pad"), OpKind.PAD, (x,), attributes)

    def reshape(
        self,
        x: Tensor,
        shape: Sequence[int],
        *,
        channels_last: bool = False,
        name: str = "",
    ) -> Tensor:
        """The same elements as ``shape``; see :class:`ViewAttributes`."""
        attributes = ViewAttributes(tuple(shape), channels_last)
        return self._add(self._named(name, "view"), OpKind.VIEW, (x,), attributes)

    def flatten(self, x: Tensor, *, name: str = "") -> Tensor:
        """All elements as the vector (1, D)."""
        name = self._named(name, "flatten")
        return self.reshape(x, (1, prod(x.shape)), name=name)

    def transpose(
        self, x: Tensor, permutation: Sequence[int], *, name: str = ""
    ) -> Tensor:
        """Permute the axes."""
        attributes = TransposeAttributes(tuple(permutation))
        name = self._named(name, "transpose")
        return self._add(name, OpKind.TRANSPOSE, (x,), attributes)

    def channel_shuffle(self, x: Tensor, groups: int, *, name: str = "") -> Tensor:
        """Interleave the channels of ``groups`` groups: view, transpose, view."""
        name = self._named(name, "shuffle")
        where = self._where(name)
        _, channels, height, width = feature_map(x.shape, where)
        if channels % groups:
            raise MalformedInput(
                "the groups do not divide the channels",
                where=where,
                value=groups,
                expected=f"a divisor of {channels}",
            )
        grouped = (1, groups, channels // groups, height, width)
        split = self.reshape(x, grouped, name=f"{name}.split")
        swapped = self.transpose(split, (0, 2, 1, 3, 4), name=f"{name}.transpose")
        return self.reshape(swapped, x.shape, name=f"{name}.join")

    def softmax(
        self,
        x: Tensor,
        *,
        axis: int | None = None,
        log: bool = False,
        name: str = "",
    ) -> Tensor:
        """Normalised exponentials along ``axis`` (the last one if None)."""
        axis = len(x.shape) - 1 if axis is None else axis
        attributes = SoftmaxAttributes(axis, log)
        return self._add(self._named(name, "softmax"), OpKind.SOFTMAX, (x,), attributes)

    def layer_norm(
        self,
        x: Tensor,
        *,
        axis: int | None = None,
        epsilon: float = 1e-5,
        bias: bool = True,
        parameters: int | None = None,
        name: str = "",
    ) -> Tensor:
        """Normalise over ``axis`` and later axes (the last axis if None).

        ``parameters``: number of trained constants, if it is not one scale (and,
        with ``bias``, one shift) for each normalised element.
        """
        axis = len(x.shape) - 1 if axis is None else axis
        attributes = LayerNormAttributes(axis, epsilon, bias)
        if parameters is None:
            parameters = (2 if bias else 1) * prod(x.shape[axis:])
        return self._add(
            self._named(name, "layer_norm"),
            OpKind.LAYER_NORM,
            (x,),
            attributes,
            vector_parameters=parameters,
        )

    def lrn(
        self,
        x: Tensor,
        size: int,
        *,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        name: str = "",
    ) -> Tensor:
        """Local response normalisation over ``size`` channels."""
        attributes = LrnAttributes(size, alpha, beta, bias)
        return self._add(self._named(name, "lrn"), OpKind.LRN, (x,), attributes)

    def resize(
        self,
        x: Tensor,
        size: tuple[int, int],
        *,
        mode: str = "nearest",
        name: str = "",
    ) -> Tensor:
        """Scale a feature map to (height, width)."""
        attributes = ResizeAttributes(size, mode)
        return self._add(self._named(name, "resize"), OpKind.RESIZE, (x,), attributes)

    def gather(
        self,
        x: Tensor,
        indices: Sequence[int] | Tensor,
        *,
        axis: int,
        drop_axis: bool = False,
        name: str = "",
    ) -> Tensor:
        """Entries of ``x`` along ``axis``, fixed or chosen by another tensor."""
        inputs: tuple[Tensor, ...] = (x,)
        fixed: tuple[int, ...] | None = None
        if isinstance(indices, Tensor):
            inputs = (x, indices)
        else:
            fixed = tuple(indices)
        attributes = GatherAttributes(axis, fixed, drop_axis)
        return self._add(self._named(name, "gather"), OpKind.GATHER, inputs, attributes)

    def _weight(
        self,
        depth: int,
        channels: int,
        attributes: ConvAttributes | ConvTransposeAttributes,
        bias: bool,
        where: str,
    ) -> WeightShape:
        groups = attributes.groups
        for label, value in (("input", depth), ("output", channels)):
            if value % groups:
                raise MalformedInput(
                    f"the groups do not divide the {label} channels",
                    where=f"{where}.groups",
                    value=groups,
                    expected=f"a divisor of {value}",
                )
        rows = depth // groups * prod(attributes.kernel)
        return WeightShape(rows, channels // groups, groups, bias, self.weight_bits)


def pair(value: Pair) -> tuple[int, int]:
    """(height, width) of one number or two.

    >>> pair(3), pair((10, 4))
    ((3, 3), (10, 4))
    """
    return value if isinstance(value, tuple) else (value, value)


def window_pads(
    pad: Pads,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    *,
    where: str = "",
) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of any way to write padding."""
    if isinstance(pad, str):
        return auto_pads(pad, size, kernel, strides, dilations, where=where)
    if isinstance(pad, int):
        return (pad, pad, pad, pad)
    if len(pad) == 2:
        return (pad[0], pad[1], pad[0], pad[1])
    return pad
