"""Projections against element tracing: nothing is missed, rows are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.graph.axes import (
    box_ranges,
    join_ranges,
    ranges_box,
    reshaped_ranges,
    split_range,
)
from raptor_cp.graph.projection import needed_boxes, needed_by_input
from raptor_cp.graph.work import Box
from raptor_cp.network.attributes import (
    Attributes,
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
    Shape,
    SliceAttributes,
    SoftmaxAttributes,
    TransposeAttributes,
)
from raptor_cp.network.operations import Operation, Tensor, WeightShape
from raptor_cp.network.shapes import infer_shape
from tests.network_oracle import dependence

if TYPE_CHECKING:
    from numpy.typing import NDArray

Case = tuple[Operation, tuple[Shape, ...]]


def _operation(
    kind: OpKind,
    attributes: Attributes,
    inputs: int = 1,
    weight: WeightShape | None = None,
) -> Operation:
    names = tuple(f"x{i}" for i in range(inputs))
    return Operation("op", kind, names, ("y",), attributes, weight)


@st.composite
def windows(draw: st.DrawFn) -> Case:
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilations = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    strides = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    span = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = (
        draw(st.integers(0, span[0] - 1)),
        draw(st.integers(0, span[1] - 1)),
        draw(st.integers(0, span[0] - 1)),
        draw(st.integers(0, span[1] - 1)),
    )
    height = draw(st.integers(span[0], 7))
    width = draw(st.integers(span[1], 5))
    if draw(st.booleans()):
        pool = PoolAttributes(
            PoolFunction.MAX,
            kernel,
            strides,
            pads,
            dilations,
            ceil_mode=draw(st.booleans()),
        )
        return _operation(OpKind.POOL, pool), ((1, 2, height, width),)
    groups = draw(st.integers(1, 3))
    depth, columns = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    conv = ConvAttributes(kernel, strides, pads, dilations, groups)
    weight = WeightShape(kernel[0] * kernel[1] * depth, columns, groups)
    shape = (1, depth * groups, height, width)
    return _operation(OpKind.CONV, conv, weight=weight), (shape,)


@st.composite
def boxes_in(draw: st.DrawFn, extent: tuple[int, int, int]) -> Box:
    limits: list[int] = []
    for size in extent:
        start = draw(st.integers(0, size - 1))
        limits += [start, draw(st.integers(start + 1, size))]
    return Box(*limits)


def _mask(boxes: tuple[Box, ...], extent: tuple[int, int, int]) -> NDArray[np.bool_]:
    mask = np.zeros(extent, dtype=bool)
    for box in boxes:
        a, b, c, d, e, f = box.bounds
        assert not mask[a:b, c:d, e:f].any(), "boxes of one input must be disjoint"
        mask[a:b, c:d, e:f] = True
    return mask


def _check(case: Case, box: Box, *, exact_rows: bool, tight: bool = True) -> None:
    operation, shapes = case
    output = infer_shape(
        operation.kind, operation.attributes, list(shapes), operation.weight
    )
    for index, shape in enumerate(shapes):
        table = dependence(operation, index, shapes, output)
        a, b, c, d, e, f = box.bounds
        traced = np.any(table[:, :, :, a:b, c:d, e:f], axis=(3, 4, 5))
        boxes = needed_boxes(operation, index, box, shapes, output)
        mask = _mask(boxes, Tensor("x", shape).extent)
        assert not (traced & ~mask).any(), "an element is read but not covered"
        if exact_rows:
            assert (np.any(mask, axis=(1, 2)) == np.any(traced, axis=(1, 2))).all()
        if tight:  # every box is the hull of what is read inside it
            for axes in ((1, 2), (0, 2), (0, 1)):
                rows, hull = np.any(traced, axis=axes), np.any(mask, axis=axes)
                if rows.any():
                    assert np.flatnonzero(hull)[[0, -1]].tolist() == (
                        np.flatnonzero(rows)[[0, -1]].tolist()
                    )
            assert mask.any() == traced.any()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_windows_cover_exactly_the_rows_they_read(data: st.DataObject) -> None:
    case = data.draw(windows())
    operation, shapes = case
    output = infer_shape(
        operation.kind, operation.attributes, list(shapes), operation.weight
    )
    box = data.draw(boxes_in(Tensor("y", output).extent))
    _check(case, box, exact_rows=True)


CASES: dict[str, Case] = {
    "add": (
        _operation(OpKind.ADD, ElementwiseAttributes(), 2),
        ((1, 4, 3, 2), (1, 4, 3, 2)),
    ),
    "broadcast channels": (
        _operation(OpKind.MUL, ElementwiseAttributes(), 2),
        ((1, 4, 3, 2), (1, 4, 1, 1)),
    ),
    "broadcast rank": (
        _operation(OpKind.ADD, ElementwiseAttributes(), 2),
        ((1, 3, 6), (6,)),
    ),
    "broadcast columns": (
        _operation(OpKind.ADD, ElementwiseAttributes(), 2),
        ((1, 4, 3, 2), (2,)),
    ),
    "gemm": (
        _operation(OpKind.GEMM, GemmAttributes(), weight=WeightShape(6, 4)),
        ((1, 5, 6),),
    ),
    "concat channels": (
        _operation(OpKind.CONCAT, ConcatAttributes(1), 3),
        ((1, 2, 3, 2), (1, 3, 3, 2), (1, 1, 3, 2)),
    ),
    "concat rows": (
        _operation(OpKind.CONCAT, ConcatAttributes(2), 2),
        ((1, 2, 3, 2), (1, 2, 2, 2)),
    ),
    "concat tokens": (
        _operation(OpKind.CONCAT, ConcatAttributes(1), 2),
        ((1, 1, 4), (1, 5, 4)),
    ),
    "strided slice": (
        _operation(OpKind.SLICE, SliceAttributes((1, 2), (1, 0), (6, 5), (2, 3))),
        ((1, 7, 5, 2),),
    ),
    "transpose tokens": (
        _operation(OpKind.TRANSPOSE, TransposeAttributes((0, 2, 1))),
        ((1, 4, 3),),
    ),
    "transpose map": (
        _operation(OpKind.TRANSPOSE, TransposeAttributes((0, 2, 3, 1))),
        ((1, 4, 3, 2),),
    ),
    "mean": (
        _operation(OpKind.REDUCE, ReduceAttributes(ReduceFunction.MEAN, (2, 3))),
        ((1, 4, 3, 2),),
    ),
    "mean, axes dropped": (
        _operation(
            OpKind.REDUCE, ReduceAttributes(ReduceFunction.MEAN, (1,), keep_dims=False)
        ),
        ((1, 4, 3),),
    ),
    "softmax": (_operation(OpKind.SOFTMAX, SoftmaxAttributes(3)), ((1, 2, 4, 3),)),
    "layer norm": (_operation(OpKind.LAYER_NORM, LayerNormAttributes(2)), ((1, 4, 6),)),
    "lrn": (_operation(OpKind.LRN, LrnAttributes(3)), ((1, 6, 2, 2),)),
    "pad": (
        _operation(OpKind.PAD, PadAttributes((0, 0, 1, 2), (0, 1, 2, 0))),
        ((1, 2, 3, 2),),
    ),
    "attention scores": (
        _operation(OpKind.MATMUL, MatMulAttributes(transpose_b=True, heads=2), 2),
        ((1, 3, 6), (1, 4, 6)),
    ),
    "attention context": (
        _operation(OpKind.MATMUL, MatMulAttributes(heads=2, merge_heads=True), 2),
        ((1, 2, 3, 4), (1, 4, 6)),
    ),
    "matmul": (_operation(OpKind.MATMUL, MatMulAttributes(), 2), ((3, 4), (4, 2))),
    "transposed convolution": (
        _operation(
            OpKind.CONV_TRANSPOSE,
            ConvTransposeAttributes((3, 3), (2, 2), (1, 1, 1, 1)),
            weight=WeightShape(18, 2),
        ),
        ((1, 2, 3, 3),),
    ),
    "gather rows": (
        _operation(OpKind.GATHER, GatherAttributes(1, (2, 0))),
        ((1, 4, 3),),
    ),
    "gather one": (
        _operation(OpKind.GATHER, GatherAttributes(1, (2,), drop_axis=True)),
        ((1, 4, 3),),
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_boxes_cover_what_is_read(name: str, data: st.DataObject) -> None:
    operation, shapes = CASES[name]
    output = infer_shape(
        operation.kind, operation.attributes, list(shapes), operation.weight
    )
    box = data.draw(boxes_in(Tensor("y", output).extent))
    loose = name in ("transposed convolution", "attention context", "gather rows")
    _check(CASES[name], box, exact_rows=False, tight=not loose)


@pytest.mark.parametrize(
    ("operation", "shape"),
    [
        (_operation(OpKind.RESIZE, ResizeAttributes((7, 4))), (1, 2, 3, 3)),
        (
            _operation(
                OpKind.PAD, PadAttributes((0, 0, 1, 1), (0, 0, 1, 1), mode="reflect")
            ),
            (1, 2, 3, 3),
        ),
    ],
)
def test_covers_are_safe_where_they_are_not_tight(
    operation: Operation, shape: Shape
) -> None:
    output = infer_shape(operation.kind, operation.attributes, [shape])
    rows, columns, channels = Tensor("y", output).extent
    for row in range(rows):
        box = Box(row, row + 1, 0, columns, 0, channels)
        _check((operation, (shape,)), box, exact_rows=False, tight=False)


def test_an_index_tensor_keeps_the_whole_producer() -> None:
    gather = _operation(OpKind.GATHER, GatherAttributes(0), 2)
    shapes = ((10, 4), (3,))
    box = Box(0, 1, 0, 1, 0, 4)
    assert needed_boxes(gather, 0, box, shapes, (3, 4)) == (Box(0, 10, 0, 1, 0, 4),)


def test_rows_that_the_stride_leaves_out_are_not_read() -> None:
    conv = _operation(
        OpKind.CONV, ConvAttributes((1, 1), (2, 2)), weight=WeightShape(2, 4)
    )
    boxes = needed_boxes(conv, 0, Box(0, 2, 0, 4, 0, 4), ((1, 2, 8, 8),), (1, 4, 4, 4))
    assert [(box.row_start, box.row_stop) for box in boxes] == [(0, 1), (2, 3)]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_matrix_rows_restrict_the_window(data: st.DataObject) -> None:
    """A K split reads only the kernel rows and channels of its own matrix rows."""
    kernel, depth = (3, 2), 3
    conv = ConvAttributes(kernel, (1, 1), (1, 1, 1, 0))
    operation = _operation(OpKind.CONV, conv, weight=WeightShape(18, 2))
    shape = (1, depth, 5, 4)
    output = infer_shape(OpKind.CONV, conv, [shape], operation.weight)
    box = data.draw(boxes_in(Tensor("y", output).extent))
    start = data.draw(st.integers(0, 17))
    stop = data.draw(st.integers(start + 1, 18))
    read = np.zeros((5, 4, depth), dtype=bool)
    for row in range(box.row_start, box.row_stop):
        for column in range(box.column_start, box.column_stop):
            for k in range(start, stop):
                ky, kx, c = k // 6, k // 3 % 2, k % 3
                y, x = row - 1 + ky, column - 1 + kx
                if 0 <= y < 5 and 0 <= x < 4:
                    read[y, x, c] = True
    boxes = needed_boxes(operation, 0, box, (shape,), output, (start, stop))
    mask = _mask(boxes, (5, 4, depth))
    assert not (read & ~mask).any()
    # At a border a last, partial kernel row may meet nothing but padding.
    if read.any() and box.column_stop - box.column_start == 4:
        rows = np.flatnonzero(read.any(axis=(1, 2)))
        assert np.flatnonzero(mask.any(axis=(1, 2)))[[0, -1]].tolist() == (
            rows[[0, -1]].tolist()
        )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_axis_ranges_cover(data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    total = int(np.prod(sizes))
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    ranges = split_range((start, stop), sizes)
    cover = np.zeros(sizes, dtype=bool)
    cover[tuple(slice(a, b) for a, b in ranges)] = True
    assert cover.reshape(-1)[start:stop].all()
    low, high = join_ranges(ranges, sizes)
    assert low <= start
    assert high >= stop


@pytest.mark.parametrize(
    ("shape", "source"),
    [
        ((1, 24), (1, 2, 3, 4)),
        ((1, 2, 12), (1, 2, 3, 4)),
        ((1, 2, 3, 4), (1, 6, 4)),
        ((2, 12), (1, 2, 1, 3, 4)),
        ((24,), (1, 24, 1, 1)),
        ((1, 1, 24), (24,)),
        ((1, 6, 2, 2), (1, 3, 2, 4)),
    ],
)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_reshapes_cover(shape: Shape, source: Shape, data: st.DataObject) -> None:
    ranges = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        ranges.append((start, data.draw(st.integers(start + 1, size))))
    ids = np.arange(int(np.prod(shape)))
    wanted = ids.reshape(shape)[tuple(slice(a, b) for a, b in ranges)]
    mapped = reshaped_ranges(tuple(ranges), shape, source)
    assert len(mapped) == len(source)
    got = ids.reshape(source)[tuple(slice(a, b) for a, b in mapped)]
    assert set(wanted.ravel()) <= set(got.ravel())


@pytest.mark.parametrize("shape", [(6,), (3, 4), (1, 3, 4), (1, 2, 3, 4)])
def test_boxes_and_ranges_are_inverse(shape: Shape) -> None:
    box = Box.whole(Tensor("x", shape).extent)
    assert ranges_box(box_ranges(box, shape), shape) == box


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_needs_of_all_inputs_are_those_of_each(axis: int) -> None:
    shapes = [(1, *(5 + n if a == axis else 6 for a in (1, 2, 3))) for n in range(4)]
    whole = tuple(sum(s[a] for s in shapes) if a == axis else 6 for a in (1, 2, 3))
    concat = _operation(OpKind.CONCAT, ConcatAttributes(axis), 4)
    box = Box(1, whole[1] - 2, 0, whole[2] - 1, 2, whole[0])
    found = list(needed_by_input(concat, box, shapes, (1, *whole)))
    assert found == [
        needed_boxes(concat, index, box, shapes, (1, *whole)) for index in range(4)
    ]
