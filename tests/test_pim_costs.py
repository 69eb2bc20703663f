"""PIM costs: the instruction sequence of every operation, and its time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray
from raptor_cp.graph.explicit import GivenTask, explicit_graph
from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.widths import Accumulators, accumulator_bits
from raptor_cp.graph.work import Box, CommandWork, ExplicitWork, SliceWork, TaskRole
from raptor_cp.network.attributes import (
    RELU,
    RELU6,
    Activation,
    ConcatAttributes,
    ConvAttributes,
    ElementwiseAttributes,
    Function,
    OpKind,
    PoolAttributes,
    PoolFunction,
    Shape,
    SoftmaxAttributes,
    TransposeAttributes,
)
from raptor_cp.network.operations import Operation, Tensor, WeightShape
from raptor_cp.network.shapes import infer_shape
from raptor_cp.network.zoo import build, names
from raptor_cp.target import AccessKind, SchedulingTarget
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.costs import CostModel, instruction_profile, refusals
from raptor_cp.targets.pim.functions import FUNCTION_STEPS
from raptor_cp.targets.pim.isa import Opcode
from raptor_cp.targets.pim.matrix_costs import Machine
from raptor_cp.targets.pim.profile import (
    InstructionCount,
    Profile,
    count_of,
    profile_ns,
)
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.targets.pim.vector_costs import emit_vector
from raptor_cp.verdict import Unavailable


@cache
def target() -> PimTarget:
    """The shipped 168-core chip."""
    return PimTarget(load_config("arch-a"))


def work_of(
    operation: Operation,
    shapes: tuple[Shape, ...],
    rows: tuple[int, int] | None = None,
    bits: int = 16,
) -> SliceWork:
    """All columns and channels of some output rows, exact accumulators."""
    output = infer_shape(
        operation.kind, operation.attributes, list(shapes), operation.weight
    )
    box = Box.whole(Tensor("y", output).extent)
    if rows is not None:
        box = replace(box, row_start=rows[0], row_stop=rows[1])
    tiles = (0, 0)
    if operation.weight is not None:
        tiles = (0, -(-operation.weight.rows // target().machine.array.rows))
    return SliceWork(
        operation,
        box,
        row_tiles=tiles,
        input_shapes=shapes,
        output_shape=output,
        input_bits=bits,
        output_bits=bits,
        accumulator_bits=accumulator_bits(operation, bits, shapes),
    )


def conv(
    attributes: ConvAttributes,
    depth: int,
    channels: int,
    *,
    activation: Activation | None = RELU,
    bits: int = 16,
) -> Operation:
    """A convolution of ``depth`` to ``channels`` channels with a bias."""
    groups = attributes.groups
    rows = attributes.kernel[0] * attributes.kernel[1] * depth // groups
    weight = WeightShape(rows, channels // groups, groups, bias=True, bits=bits)
    return Operation("c", OpKind.CONV, ("x",), ("y",), attributes, weight, activation)


def profile_of(work: SliceWork) -> Profile:
    """The profile on the shipped chip."""
    return instruction_profile(work, target().machine)


def test_a_convolution_is_the_sequence_written_by_hand() -> None:
    """3 x 3, 64 -> 64 channels at 16 bit, one row of 56: five row tiles of 576."""
    attributes = ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1))
    work = work_of(conv(attributes, 64, 64), ((1, 64, 56, 56),), (10, 11))
    assert work.accumulator_bits == 48
    unit, row = 16, 56 * 64
    expected = {
        InstructionCount(Opcode.MVMUL, 5 * 56, 4, unit, 48, unit),
        InstructionCount(Opcode.VVADD, 4 + 1, row, 48, 48),  # row tiles; bias
        InstructionCount(Opcode.VVSRA, 1, row, 48, 48),
        InstructionCount(Opcode.VRELU, 1, row, 48, 48),
        InstructionCount(Opcode.VRSU, 1, row, 48, unit),
        InstructionCount(Opcode.LMV, 3 * 54, 3 * 64 * 2),
        InstructionCount(Opcode.LMV, 3 * 2, 2 * 64 * 2),  # both borders
        InstructionCount(Opcode.LLDI, 3 * 2, 64 * 2),
        InstructionCount(Opcode.SETBW, 3),
        InstructionCount(
            Opcode.SLDI,
            2 * 280 + 3 * 6 + 2 * 2 + 2 * 168 + 6,
        ),
    }
    profile = profile_of(work)
    assert set(profile) == expected
    timing = target().timing
    assert profile_ns(timing, profile) == (
        280 * (1 + timing.mvmul_occupancy_ns(4, 16, 16, 48))
        + 5 * (1 + timing.vector_occupancy_ns(Opcode.VVADD, row, 48, 48))
        + 1
        + timing.vector_occupancy_ns(Opcode.VVSRA, row, 48, 48)
        + 1
        + timing.vector_occupancy_ns(Opcode.VRELU, row, 48, 48)
        + 1
        + timing.vector_occupancy_ns(Opcode.VRSU, row, 48, 16)
        + 162 * (1 + timing.lmv_occupancy_ns(384))
        + 6 * (1 + timing.lmv_occupancy_ns(256))
        + 6 * (1 + timing.lldi_occupancy_ns(128))
        + 3
        + 924
    )


def _operand_moves(work: SliceWork, used: tuple[int, int]) -> Counter[tuple[str, int]]:
    """im2col tap by tap: (copy or fill, bytes) of every move, by brute force."""
    attributes = work.operation.attributes
    assert isinstance(attributes, ConvAttributes)
    _, depth, height, width = work.input_shapes[0]
    element = -(-work.input_bits // 8)
    moves: Counter[tuple[str, int]] = Counter()
    for row in range(work.output.row_start, work.output.row_stop):
        for ky in range(attributes.kernel[0]):
            y = row * attributes.strides[0] - attributes.pads[0]
            y += ky * attributes.dilations[0]
            first = ky * attributes.kernel[1] * depth
            elements = [
                (kx, c)
                for kx in range(attributes.kernel[1])
                for c in range(depth)
                if used[0] <= first + kx * depth + c < used[1]
            ]
            if not elements:
                continue
            if not 0 <= y < height:
                moves["fill", len(elements) * element] += 1
                continue
            for column in range(work.output.column_stop):
                runs: list[tuple[str, int, int]] = []  # kind, tap apart, elements
                for kx, _ in elements:
                    x = column * attributes.strides[1] - attributes.pads[1]
                    x += kx * attributes.dilations[1]
                    kind = "copy" if 0 <= x < width else "fill"
                    apart = attributes.dilations[1] > 1 and kind == "copy"
                    tap = kx if apart else 0
                    if runs and runs[-1][:2] == (kind, tap):
                        runs[-1] = (kind, tap, runs[-1][2] + 1)
                    else:
                        runs.append((kind, tap, 1))
                for kind, _, size in runs:
                    moves[kind, size * element] += 1
    return moves


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_operands_are_moved_as_tap_by_tap(data: st.DataObject) -> None:
    draw = data.draw
    kernel = (draw(st.integers(1, 3)), draw(st.integers(2, 4)))
    dilations = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    pads = tuple(draw(st.integers(0, 3)) for _ in range(4))
    attributes = ConvAttributes(
        kernel,
        (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        (pads[0], pads[1], pads[2], pads[3]),
        dilations,
    )
    depth = draw(st.integers(1, 40))
    shape = (1, depth, draw(st.integers(6, 8)), draw(st.integers(7, 9)))
    work = work_of(conv(attributes, depth, 4), (shape,))
    start = draw(st.integers(0, work.output.row_stop - 1))
    stop = draw(st.integers(start + 1, work.output.row_stop))
    work = replace(work, output=replace(work.output, row_start=start, row_stop=stop))
    tiles = work.row_tiles[1]
    first = draw(st.integers(0, tiles - 1))
    last = draw(st.integers(first + 1, tiles))
    role = TaskRole.PARTIAL if (first, last) != (0, tiles) else TaskRole.COMPUTE
    work = replace(work, row_tiles=(first, last), role=role)
    assert work.operation.weight is not None
    used = (128 * first, min(128 * last, work.operation.weight.rows))
    got: Counter[tuple[str, int]] = Counter()
    for item in profile_of(work):
        if item.opcode in (Opcode.LMV, Opcode.LLDI):
            kind = "copy" if item.opcode is Opcode.LMV else "fill"
            got[kind, item.length] += item.count
    assert got == _operand_moves(work, used)


def test_a_pointwise_convolution_reads_its_operand_in_place() -> None:
    work = work_of(conv(ConvAttributes((1, 1)), 256, 64), ((1, 256, 14, 14),), (0, 2))
    profile = profile_of(work)
    assert count_of(profile, Opcode.LMV) == count_of(profile, Opcode.LLDI) == 0
    assert count_of(profile, Opcode.MVMUL) == 2 * 14 * 2


def test_depthwise_groups_share_products() -> None:
    attributes = ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1), groups=32)
    work = work_of(conv(attributes, 32, 32), ((1, 32, 8, 8),))
    assert count_of(profile_of(work), Opcode.MVMUL) == 64 * 3  # 14 groups a tile


def _pieces(work: SliceWork, cuts: list[tuple[int, int]]) -> list[Profile]:
    return [
        profile_of(replace(work, role=TaskRole.PARTIAL, row_tiles=cut)) for cut in cuts
    ]


def test_row_pieces_keep_products_and_their_sum_adds_the_rest() -> None:
    attributes = ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1))
    work = work_of(conv(attributes, 256, 256), ((1, 256, 14, 14),), (3, 5))
    whole = profile_of(work)
    parts = _pieces(work, [(0, 6), (6, 12), (12, 18)])
    sums = profile_of(replace(work, role=TaskRole.REDUCE, row_tiles=(0, 0), partials=3))
    products = sum(count_of(part, Opcode.MVMUL) for part in parts)
    assert products == count_of(whole, Opcode.MVMUL) == 18 * 28
    assert count_of(sums, Opcode.MVMUL) == 0
    adds = sum(count_of(p, Opcode.VVADD) for p in (*parts, sums))
    assert adds == count_of(whole, Opcode.VVADD)
    for part in parts:
        assert count_of(part, Opcode.VRSU) == 0  # partial sums stay wide
    copied = sum(i.count * i.length for p in parts for i in p if i.opcode is Opcode.LMV)
    assert copied == sum(i.count * i.length for i in whole if i.opcode is Opcode.LMV)


def test_vectors_shrink_to_what_the_local_memory_holds() -> None:
    attributes = ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1))
    work = work_of(conv(attributes, 64, 64), ((1, 64, 56, 56),), (10, 11))
    machine = target().machine
    large = instruction_profile(work, machine)
    small = instruction_profile(
        work, Machine(machine.timing, machine.array, local_memory_bytes=40_000)
    )
    lengths = {i.length for i in small if i.opcode is Opcode.VVADD}
    assert lengths == {64}
    assert count_of(small, Opcode.VVADD) == 56 * count_of(large, Opcode.VVADD)
    timing = machine.timing
    assert profile_ns(timing, small) > profile_ns(timing, large)


def test_accumulators_of_the_activation_width_are_cheaper() -> None:
    attributes = ConvAttributes((3, 3), (1, 1), (1, 1, 1, 1))
    exact = work_of(conv(attributes, 64, 64), ((1, 64, 56, 56),), (10, 11))
    narrow = replace(exact, accumulator_bits=16)
    profile = profile_of(narrow)
    assert count_of(profile, Opcode.VVSRA) == count_of(profile, Opcode.VRSU) == 0
    assert count_of(profile, Opcode.VRELU) == 1
    model = target()
    ratio = model.work_ns(exact) / model.work_ns(narrow)  # type: ignore[operator]
    assert 1.1 < ratio < 2.0


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (1, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_maxima_are_combined_in_the_cheaper_order(
    kernel: tuple[int, int], stride: int
) -> None:
    pool = PoolAttributes(PoolFunction.MAX, kernel, (stride, stride))
    operation = Operation("p", OpKind.POOL, ("x",), ("y",), pool)
    work = work_of(operation, ((1, 64, 9, 9),))
    profile = profile_of(work)
    rows, columns, channels = work.output.shape
    timing = target().timing
    direct = rows * columns * (kernel[0] * kernel[1] - 1)
    one = InstructionCount(Opcode.VVMAX, direct, channels, 16, 16)
    vectors = tuple(i for i in profile if i.opcode in (Opcode.VVMAX, Opcode.VMV))
    assert profile_ns(timing, vectors) <= profile_ns(timing, (one,))


def test_an_average_is_widened_summed_scaled_and_narrowed() -> None:
    pool = PoolAttributes(PoolFunction.AVERAGE, (2, 2), (2, 2))
    operation = Operation("p", OpKind.POOL, ("x",), ("y",), pool)
    profile = profile_of(work_of(operation, ((1, 64, 8, 8),), (1, 2)))
    used = {item.opcode for item in profile}
    assert {Opcode.VRSU, Opcode.VVADD, Opcode.VVMUL, Opcode.VVSRA} <= used
    assert Opcode.VAVG not in used


def test_a_residual_sum_widens_both_operands() -> None:
    add = Operation(
        "a",
        OpKind.ADD,
        ("x", "z"),
        ("y",),
        ElementwiseAttributes(),
        activation=RELU,
    )
    shape = (1, 64, 8, 8)
    profile = profile_of(work_of(add, (shape, shape), (0, 1)))
    counts = {i.opcode: i.count for i in profile}
    assert counts[Opcode.VVSLL] == 2
    assert counts[Opcode.VVADD] == 2  # the sum, and the rounding constant
    assert counts[Opcode.VVSRA] == counts[Opcode.VRELU] == counts[Opcode.VRSU] == 1


def test_concatenation_copies_each_input_block_of_each_outer_row() -> None:
    concat = Operation("j", OpKind.CONCAT, ("a", "b"), ("y",), ConcatAttributes(1))
    shapes = ((1, 16, 4, 4), (1, 48, 4, 4))
    profile = profile_of(work_of(concat, shapes, (0, 2)))
    copies = {i.length: i.count for i in profile if i.opcode is Opcode.LMV}
    assert copies == {16 * 2: 8, 48 * 2: 8}
    rows = Operation("j", OpKind.CONCAT, ("a", "b"), ("y",), ConcatAttributes(2))
    shapes = ((1, 16, 4, 4), (1, 16, 4, 4))
    copies = {
        i.length: i.count
        for i in profile_of(work_of(rows, shapes, (3, 6)))
        if i.opcode is Opcode.LMV
    }
    assert copies == {1 * 4 * 16 * 2: 1, 2 * 4 * 16 * 2: 1}


def test_a_transpose_is_strided_work() -> None:
    swap = Operation(
        "t", OpKind.TRANSPOSE, ("x",), ("y",), TransposeAttributes((0, 2, 1))
    )
    profile = profile_of(work_of(swap, ((1, 6, 10),)))
    assert count_of(profile, Opcode.LMV) == 60
    spatial = Operation(
        "t", OpKind.TRANSPOSE, ("x",), ("y",), TransposeAttributes((0, 1, 3, 2))
    )
    profile = profile_of(work_of(spatial, ((1, 32, 4, 5),)))
    copies = {i.length: i.count for i in profile if i.opcode is Opcode.LMV}
    assert copies == {64: 20}  # channels stay together


def test_softmax_has_no_timed_work_but_its_operand_has() -> None:
    softmax = Operation("s", OpKind.SOFTMAX, ("x",), ("y",), SoftmaxAttributes(2))
    profile = profile_of(work_of(softmax, ((1, 4, 32),)))
    timing = target().timing
    special = [i for i in profile if i.opcode is Opcode.VSOFTMAX]
    assert special
    assert profile_ns(timing, special) == 0
    assert profile_ns(timing, profile) > 0


def test_a_clipped_maximum_costs_what_a_rectifier_costs() -> None:
    attributes = ConvAttributes((1, 1))
    works = [
        work_of(conv(attributes, 64, 64, activation=function), ((1, 64, 4, 4),))
        for function in (RELU, RELU6)
    ]
    assert profile_of(works[0]) == profile_of(works[1])


@pytest.mark.parametrize("function", list(Function))
def test_every_function_has_a_sequence(function: Function) -> None:
    assert FUNCTION_STEPS[function]
    alone = Operation("f", OpKind.ACTIVATION, ("x",), ("y",), Activation(function))
    shape = (1, 32, 4, 4)
    assert target().work_ns(work_of(alone, (shape,))) > 0  # type: ignore[operator]
    fused = conv(ConvAttributes((1, 1)), 32, 32, activation=Activation(function))
    plain = conv(ConvAttributes((1, 1)), 32, 32, activation=None)
    prices = [target().work_ns(work_of(op, (shape,))) for op in (fused, plain)]
    assert prices[0] >= prices[1] * 0.99  # type: ignore[operator]


def test_what_cannot_be_expressed_is_named() -> None:
    gelu = conv(ConvAttributes((1, 1)), 4, 4, activation=Activation(Function.GELU))
    assert refusals(gelu) == ("gelu",)
    assert refusals(conv(ConvAttributes((1, 1)), 4, 4)) == ()
    network = build("bert-base-block")
    lowering = lower_network(network, target().resources(), target().work_ns)
    assert isinstance(lowering, Lowering)
    notes = target().costs(lowering.graph).notes
    assert any("LayerNormalization is not expressible" in note for note in notes)
    assert any("softmax itself has no timed work" in note for note in notes)


@pytest.mark.parametrize("name", names())
def test_cached_prices_equal_prices_of_each_slice_alone(name: str) -> None:
    network = build(name, weight_bits=16, activation_bits=16)
    options = LoweringOptions(lanes_per_core=1, max_lanes=12)
    chip = target()
    lowering = lower_network(network, chip.resources(), chip.work_ns, options)
    assert isinstance(lowering, Lowering)
    costs = CostModel(chip.machine)
    for task in lowering.graph.tasks:
        assert isinstance(task.work, SliceWork)
        alone = profile_ns(chip.timing, instruction_profile(task.work, chip.machine))
        assert costs.price(task.work) == alone
        assert alone > 0


@pytest.mark.parametrize("accumulators", list(Accumulators))
@pytest.mark.parametrize(
    ("config", "products"), [("arch-a", 132_500), ("arch-b", 132_500)]
)
def test_resnet18_programs_have_132500_products(
    config: str, products: int, accumulators: Accumulators
) -> None:
    chip = PimTarget(load_config(config))
    network = build("resnet18", weight_bits=16, activation_bits=16)
    options = LoweringOptions(accumulators=accumulators)
    lowering = lower_network(network, chip.resources(), chip.work_ns, options)
    assert isinstance(lowering, Lowering)
    counted = sum(
        count_of(instruction_profile(task.work, chip.machine), Opcode.MVMUL)
        for task in lowering.graph.tasks
        if isinstance(task.work, SliceWork)
    )
    assert counted == lowering.splits.mvmuls == products


def test_split_reports_count_the_products_of_the_profiles() -> None:
    chip = target()
    network = build("resnet50", weight_bits=16, activation_bits=16)
    lowering = lower_network(network, chip.resources(), chip.work_ns)
    assert isinstance(lowering, Lowering)
    counted: Counter[str] = Counter()
    for task in lowering.graph.tasks:
        assert isinstance(task.work, SliceWork)
        profile = instruction_profile(task.work, chip.machine)
        counted[task.work.operation.name] += count_of(profile, Opcode.MVMUL)
    for split in lowering.splits.operations:
        assert counted[split.operation] == split.mvmuls
    assert lowering.splits.deviations
    assert all(split.reason for split in lowering.splits.deviations)


def test_the_target_is_a_scheduling_target() -> None:
    chip = target()
    assert isinstance(chip, SchedulingTarget)
    resources = chip.resources()
    assert (resources.cores, resources.slots_per_core) == (168, 96)
    assert resources.array == MatrixArray(128, 128, 2)
    assert resources.positions is not None
    assert resources.positions[14].tolist() == [1, 0]
    timing = chip.timing
    for size in (1, 63, 64, 65, 1000, 4096):
        for source, destination in ((0, 1), (5, 160), (167, 0)):
            assert resources.links.transfer_ns(size, source, destination) == (
                timing.transfer_ns(source, destination, size)
            )
        read = resources.memory.access(size, AccessKind.READ)
        write = resources.memory.access(size, AccessKind.WRITE)
        assert read.service_ns == timing.memory_read_ns(size)
        assert write.service_ns == timing.memory_write_ns(size)
        farthest = int(timing.latency_ns[:168, 168].argmax())
        assert read.core_ns == timing.ld_ns(farthest, size)
        assert write.core_ns == timing.st_ns(farthest, size)


def test_other_work() -> None:
    chip = target()
    assert chip.work_ns(ExplicitWork((3, 9))) == 9
    assert isinstance(chip.work_ns(CommandWork(())), Unavailable)
    graph = explicit_graph("g", [GivenTask("a", CommandWork(()))])
    with pytest.raises(MalformedInput, match="task 'a': no execution time"):
        chip.costs(graph)


def test_every_kind_has_a_sequence() -> None:
    from raptor_cp.network.attributes import WEIGHTED_KINDS
    from raptor_cp.targets.pim.vector_costs import KINDS

    assert emit_vector.__doc__
    assert set(KINDS) | set(WEIGHTED_KINDS) == set(OpKind)
