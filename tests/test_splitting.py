"""Cutting weights to what a core holds: nothing lost, nothing doubled."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.crossbars import MatrixArray, TileGrid, weight_demand
from raptor_cp.graph.explicit import GivenTask, explicit_graph
from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.splitting import (
    CapacityConflict,
    ColumnSplits,
    Piece,
    chip_conflict,
    column_cuts,
    mvmuls_per_position,
    row_cut,
    task_conflicts,
)
from raptor_cp.graph.work import ExplicitWork, SliceWork, TaskRole, Work
from raptor_cp.network.operations import WeightShape
from raptor_cp.network.zoo import build
from tests.chips import Chip, flat_price

ARRAY = MatrixArray(128, 128, 2)

weights = st.builds(
    WeightShape,
    rows=st.integers(1, 40),
    columns=st.integers(1, 30),
    groups=st.sampled_from([1, 1, 1, 2, 3, 7]),
    bits=st.sampled_from([1, 4, 8]),
)
arrays = st.builds(
    MatrixArray, st.integers(1, 16), st.sampled_from([4, 8, 16]), st.just(2)
)


def _cells(grid: TileGrid, pieces: list[Piece]) -> list[tuple[int, int]]:
    return [
        (channel, tile)
        for piece in pieces
        for channel in range(piece.channel_start, piece.channel_stop)
        for tile in range(*piece.row_tiles)
    ]


@settings(max_examples=300, deadline=None)
@given(weights, arrays, st.integers(1, 12), st.booleans())
def test_pieces_tile_the_matrix_and_fit(
    weight: WeightShape, array: MatrixArray, capacity: int, tight: bool
) -> None:
    grid = TileGrid.of(weight, array)
    everything = {(c, t) for c in range(grid.channels) for t in range(grid.row_tiles)}
    rows = row_cut(grid, capacity, tight=tight)
    for pieces in [*([rows] if rows else []), *column_cuts(grid, capacity)]:
        cells = _cells(grid, pieces)
        assert len(cells) == len(set(cells)), "a cell is held twice"
        assert set(cells) == everything
        assert max(piece.slots for piece in pieces) <= capacity
        for piece in pieces:
            assert piece.slots == grid.slots_of(*piece.channels, piece.row_tiles)


@settings(max_examples=200, deadline=None)
@given(weights, arrays, st.integers(1, 12))
def test_row_cuts_keep_the_number_of_products(
    weight: WeightShape, array: MatrixArray, capacity: int
) -> None:
    grid = TileGrid.of(weight, array)
    pieces = row_cut(grid, capacity)
    if pieces is None:
        assert -(-grid.bundle_columns // grid.columns_per_crossbar) > capacity
        return
    assert mvmuls_per_position(grid, pieces) == grid.mvmuls
    assert sum(piece.slots for piece in pieces) == grid.slots


@settings(max_examples=200, deadline=None)
@given(weights, arrays)
def test_slots_equal_a_count_of_crossbars(
    weight: WeightShape, array: MatrixArray
) -> None:
    """Place every group on crossbars one by one and count."""
    grid = TileGrid.of(weight, array)
    per = array.columns * array.cell_bits // weight.bits
    together = max(1, array.rows // weight.rows) if weight.groups > 1 else 1
    slots = mvmuls = 0
    for first in range(0, weight.groups, together):
        groups = min(together, weight.groups - first)
        tiles = -(-weight.rows // array.rows)
        slots += tiles * -(-groups * weight.columns // per)
        mvmuls += tiles
        assert groups == 1 or groups * weight.rows <= array.rows
    assert (grid.slots, grid.mvmuls) == (slots, mvmuls)


def test_a_weight_wider_than_a_crossbar_row_is_refused() -> None:
    with pytest.raises(MalformedInput, match="wider than a crossbar row"):
        TileGrid.of(WeightShape(4, 4, bits=16), MatrixArray(4, 4, 2))


def test_weights_are_shaped_to_fill_cores_on_a_tight_chip() -> None:
    grid = TileGrid.of(WeightShape(1024, 256, bits=16), ARRAY)  # 8 tiles of 16 slots
    loose = row_cut(grid, 96)
    tight = row_cut(grid, 96, tight=True)
    assert loose is not None
    assert tight is not None
    assert [piece.slots for piece in loose] == [64, 64]  # 32 of 96 left over
    cores = sum(1 / (96 // piece.slots) for piece in tight)
    assert cores == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("name", "slots"),
    [("resnet18", 5724), ("resnet34", 10660), ("resnet50", 12504), ("vgg16", 67576)],
)
def test_slots_of_whole_networks(name: str, slots: int) -> None:
    network = build(name, weight_bits=16, activation_bits=16)
    assert sum(demand.slots for demand in weight_demand(network, ARRAY)) == slots


def test_resnet18_needs_132500_products() -> None:
    network = build("resnet18", weight_bits=16, activation_bits=16)
    assert sum(d.mvmuls for d in weight_demand(network, ARRAY)) == 132_500
    lowered = lower_network(network, Chip(), flat_price)
    assert isinstance(lowered, Lowering)
    assert lowered.splits.mvmuls == lowered.splits.unsplit_mvmuls == 132_500
    cut = [split for split in lowered.splits.operations if len(split.pieces) > 1]
    assert {split.operation.split(".")[0] for split in cut} == {
        "layer3",
        "layer4",
        "fc",
    }
    assert not lowered.splits.deviations


def test_columns_are_cut_where_one_row_tile_exceeds_a_core() -> None:
    network = build("resnet50", weight_bits=16, activation_bits=16)
    needed = LoweringOptions(column_splits=ColumnSplits.NEEDED)
    lowered = lower_network(network, Chip(), flat_price, needed)
    assert isinstance(lowered, Lowering)
    assert lowered.splits.deviations
    for split in lowered.splits.deviations:
        assert "needs 128 slots, a core has 96" in split.reason
        assert split.mvmuls == 2 * split.unsplit_mvmuls
    never = LoweringOptions(column_splits=ColumnSplits.NEVER)
    conflict = lower_network(network, Chip(), flat_price, never)
    assert isinstance(conflict, CapacityConflict)
    assert (conflict.need, conflict.capacity) == (128, 96)
    assert conflict.subject == "layer4.0.conv3"


def test_columns_are_cut_where_it_is_cheaper_and_the_report_says_so() -> None:
    network = build("resnet18", weight_bits=16, activation_bits=16)

    def dear_sums(work: Work) -> int:
        if isinstance(work, SliceWork) and work.role is TaskRole.REDUCE:
            return 10**9
        return flat_price(work)

    lowered = lower_network(network, Chip(), dear_sums)
    assert isinstance(lowered, Lowering)
    assert lowered.splits.mvmuls > 132_500
    assert all("ns of work by columns" in s.reason for s in lowered.splits.deviations)
    needed = LoweringOptions(column_splits=ColumnSplits.NEEDED)
    kept = lower_network(network, Chip(), dear_sums, needed)
    assert isinstance(kept, Lowering)
    assert kept.splits.mvmuls == 132_500


def test_a_core_without_slots_is_a_conflict() -> None:
    network = build("tiny-residual")
    conflict = lower_network(network, Chip(slots_per_core=0), flat_price)
    assert isinstance(conflict, CapacityConflict)
    assert conflict.capacity == 0


def test_a_network_above_the_chip_is_refused_with_numbers() -> None:
    network = build("vgg16", weight_bits=16, activation_bits=16)
    conflict = chip_conflict(network, ARRAY, 168, 96)
    assert conflict is not None
    assert (conflict.need, conflict.capacity) == (67_576, 16_128)
    assert conflict.operations[0] == ("fc6", 50_176)
    small = build("resnet18", weight_bits=16, activation_bits=16)
    assert chip_conflict(small, ARRAY, 168, 96) is None


def test_an_explicit_task_above_the_capacity_is_data_not_an_error() -> None:
    graph = explicit_graph(
        "g",
        [
            GivenTask("a", ExplicitWork((5,)), weights=("w",)),
            GivenTask("b", ExplicitWork((5,)), weights=("v", "w")),
        ],
        weights=[("w", 3), ("v", 4)],
    )
    (conflict,) = task_conflicts(graph, 6)
    assert (conflict.subject, conflict.need, conflict.capacity) == ("b", 7, 6)
    assert task_conflicts(graph, 7) == ()


def test_grouped_convolutions_are_cut_between_bundles_for_free() -> None:
    grid = TileGrid.of(WeightShape(9, 1, groups=100, bits=16), ARRAY)
    pieces = row_cut(grid, 3)
    assert pieces is not None
    assert len(pieces) == 3
    assert mvmuls_per_position(grid, pieces) == grid.mvmuls == 8
    assert all(piece.row_tiles == (0, 1) for piece in pieces)


@dataclass
class _Links:
    calls: int = 0

    def transfer_ns(self, size: int, source: int, destination: int) -> int:
        self.calls += 1
        return size


def test_moving_partial_sums_is_part_of_the_comparison() -> None:
    links = _Links()
    network = build("resnet18", weight_bits=16, activation_bits=16)
    lowered = lower_network(network, Chip(links=links), flat_price)
    assert isinstance(lowered, Lowering)
    assert links.calls > 0
