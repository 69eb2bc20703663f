"""Networks to compute graphs: lanes, dependencies, publications, traffic."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.compute_graph import BaselineKind, ComputeGraph
from raptor_cp.graph.crossbars import MatrixArray
from raptor_cp.graph.lanes import LaneLimits
from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.views import is_runtime_free, root_of
from raptor_cp.graph.widths import Accumulators, stored_bytes
from raptor_cp.graph.work import Box, SliceWork, TaskRole, Work
from raptor_cp.network.attributes import (
    RELU,
    SliceAttributes,
    ViewAttributes,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.zoo import build, names
from raptor_cp.verdict import Unavailable
from tests.chips import Chip, flat_price
from tests.network_oracle import compute, logical_order, memory_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from raptor_cp.network.operations import Operation
    from raptor_cp.network.structure import Network

SMALL = Chip(cores=4, slots_per_core=64, array=MatrixArray(8, 8, 2))


def lowered(
    network: Network, chip: Chip = SMALL, options: LoweringOptions | None = None
) -> Lowering:
    """Lower with flat prices; a conflict is a failure."""
    result = lower_network(network, chip, flat_price, options)
    assert isinstance(result, Lowering)
    return result


def _from_roots(
    network: Network, operation: Operation, roots: dict[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Output of ``operation`` in memory order, given its root tensors."""

    def value(name: str) -> NDArray[np.float64]:
        if name in roots:
            return roots[name]
        maker = network.producer(name)
        assert maker is not None
        inputs = [value(source) for source in maker.inputs]
        return compute(maker, inputs, network.tensors[name].shape)

    inputs = [value(name) for name in operation.inputs]
    return memory_order(
        compute(operation, inputs, network.tensors[operation.output].shape)
    )


def check_against_element_tracing(network: Network, result: Lowering) -> None:
    """Every element a lane reads arrives by a transfer or a baseline load."""
    graph = result.graph
    group = {name: index for index, name in enumerate(graph.operations)}
    arriving: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    for move in graph.transfers:
        publication = graph.publications[move.publication]
        assert move.box is not None
        arriving.setdefault((move.consumer, publication.tensor), []).append(move.box)
    for access in graph.baseline:
        if access.kind is not BaselineKind.OUTPUT and access.box is not None:
            key = (access.task, access.tensor)
            arriving.setdefault(key, []).append(access.box)
    generator = np.random.default_rng(3)
    for operation in network.operations:
        if is_runtime_free(operation):
            continue
        names = dict.fromkeys(root_of(network, name) for name in operation.inputs)
        roots = {
            name: generator.integers(1, 999, network.tensors[name].shape).astype(float)
            for name in names
        }
        base = _from_roots(network, operation, roots)
        # The partial sums of one lane read it together; their sum reads only them.
        lanes: dict[tuple[int, ...], list[int]] = {}
        for task in graph.tasks_of(group[operation.name]).tolist():
            work = graph.tasks[task].work
            assert isinstance(work, SliceWork)
            if work.role is not TaskRole.REDUCE:
                lanes.setdefault(work.output.bounds, []).append(task)
        for name in names:
            shape = network.tensors[name].shape
            original = memory_order(roots[name])
            for position in product(*(range(n) for n in original.shape)):
                changed = original.copy()
                changed[position] += 1_000_003
                moved = roots | {name: logical_order(changed, shape)}
                touched = _from_roots(network, operation, moved) != base
                for bounds, lane_tasks in lanes.items():
                    a, b, c, d, e, f = bounds
                    if touched[a:b, c:d, e:f].any():
                        boxes = [
                            box
                            for task in lane_tasks
                            for box in arriving.get((task, name), [])
                        ]
                        assert any(
                            all(
                                box[2 * i] <= position[i] < box[2 * i + 1]
                                for i in range(3)
                            )
                            for box in boxes
                        ), (operation.name, bounds, name, position)


def check_structure(network: Network, graph: ComputeGraph) -> None:
    """Outputs of the tasks of an operation tile it; loads arrive once."""
    for index, name in enumerate(graph.operations):
        operation = next(op for op in network.operations if op.name == name)
        extent = network.tensors[operation.output].extent
        finished = np.zeros(extent, dtype=int)
        for task in graph.tasks_of(index).tolist():
            work = graph.tasks[task].work
            assert isinstance(work, SliceWork)
            if work.role is not TaskRole.PARTIAL:
                a, b, c, d, e, f = work.output.bounds
                finished[a:b, c:d, e:f] += 1
        assert (finished == 1).all(), name
    for move in graph.transfers:
        publication = graph.publications[move.publication]
        assert move.box is not None
        assert publication.box is not None
        part, whole = Box(*move.box), Box(*publication.box)
        assert move.runs == part.runs_within(whole)
        expected = stored_bytes(part.elements, publication.payload_bits, move.runs)
        assert move.size == min(expected, publication.size)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Small maps through convolutions, pools, branches, views and a classifier."""
    net = NetworkBuilder("random")
    x = net.input((1, draw(st.integers(1, 3)), draw(st.integers(5, 8)), 5))
    for _ in range(draw(st.integers(1, 3))):
        kernel = draw(st.integers(1, 3))
        stride = draw(st.integers(1, 2))
        y = net.conv(
            x,
            2 * draw(st.integers(1, 3)),
            kernel,
            stride=stride,
            pad=draw(st.integers(0, kernel - 1)),
        )
        match draw(st.integers(0, 5)):
            case 0:
                y = net.add(y, net.conv(y, y.shape[1], 1), activation=RELU)
            case 1:
                y = net.concat((y, net.conv(y, 3, 1)))
            case 2 if min(y.shape[2:]) >= 2:
                y = net.max_pool(y, 2, stride=1)
            case 3:
                left, right = net.split(y, (y.shape[1] // 2, y.shape[1] // 2))
                y = net.concat((net.conv(left, 2, 1), right))
            case 4:
                y = net.channel_shuffle(y, 2)
        x = y
        if min(x.shape[2:]) < 3:
            break
    if draw(st.booleans()):
        x = net.global_average_pool(x)
    return net.finish(net.gemm(net.flatten(x), draw(st.integers(1, 5))))


@settings(max_examples=25, deadline=None)
@given(
    networks(),
    st.integers(1, 12),
    st.integers(1, 4),
    st.sampled_from([4, 12, 64]),
)
def test_lanes_receive_what_they_read(
    network: Network, cores: int, per_core: int, slots: int
) -> None:
    chip = Chip(cores=cores, slots_per_core=slots, array=MatrixArray(8, 8, 2))
    result = lowered(network, chip, LoweringOptions(lanes_per_core=per_core))
    check_structure(network, result.graph)
    check_against_element_tracing(network, result)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "bert-base-block"])
def test_built_in_networks_are_tiled(name: str) -> None:
    network = build(name, weight_bits=16, activation_bits=16)
    check_structure(network, lowered(network, Chip()).graph)


@pytest.mark.parametrize("name", names())
def test_every_built_in_network_lowers(name: str) -> None:
    network = build(name, weight_bits=16, activation_bits=16)
    graph = lowered(network, Chip()).graph
    runtime = [op.name for op in network.operations if not is_runtime_free(op)]
    assert list(graph.operations) == runtime
    assert graph.edge_count > 0
    kinds = {access.kind for access in graph.baseline}
    assert {BaselineKind.INPUT, BaselineKind.OUTPUT} <= kinds


def test_lanes_follow_the_share_of_work() -> None:
    limits = LaneLimits(cores=168, lanes_per_core=2, max_lanes=64)
    assert limits.wanted(0, 100) == 1
    assert limits.wanted(1, 100) == 4  # ceil(336 / 100)
    assert limits.wanted(50, 100) == 64
    network = build("resnet18", weight_bits=16, activation_bits=16)
    graph = lowered(network, Chip()).graph
    first = graph.tasks_of(0)
    assert 2 <= len(first) <= 64
    works = [graph.tasks[task].work for task in first.tolist()]
    rows = [w.output.shape[0] for w in works if isinstance(w, SliceWork)]
    assert sum(rows) == 112
    assert max(rows) - min(rows) <= 1


def test_lanes_that_share_a_weight_stand_together() -> None:
    network = build("resnet18", weight_bits=16, activation_bits=16)
    graph = lowered(network, Chip(), LoweringOptions(lanes_per_core=16)).graph
    for index in range(len(graph.operations)):
        held = [graph.tasks[t].weights for t in graph.tasks_of(index).tolist()]
        changes = sum(a != b for a, b in pairwise(held))
        assert changes + 1 == len(dict.fromkeys(held))


def test_row_pieces_publish_partial_sums_for_a_reduction() -> None:
    network = build("resnet18", weight_bits=16, activation_bits=16)
    graph = lowered(network, Chip()).graph
    index = graph.operations.index("layer4.1.conv2")
    tasks = [graph.tasks[t] for t in graph.tasks_of(index).tolist()]
    sums = [t for t in tasks if isinstance(t.work, SliceWork) and t.work.partials]
    partial = [t for t in tasks if t.weights]
    assert len({t.weights for t in partial}) == 12
    for task in sums:
        assert isinstance(task.work, SliceWork)
        assert task.work.partials == 12
        assert not task.weights
    sources = {
        graph.publications[move.publication].payload_bits
        for move in graph.transfers
        if graph.tasks[move.consumer] in sums
    }
    assert sources == {48}  # 16 + 16 + log2(4608) + headroom, whole bytes


def test_accumulators_of_the_activation_width() -> None:
    network = build("resnet18", weight_bits=16, activation_bits=16)
    options = LoweringOptions(accumulators=Accumulators.ACTIVATION)
    graph = lowered(network, Chip(), options).graph
    assert {publication.payload_bits for publication in graph.publications} == {16}


def test_a_halo_is_read_from_the_neighbours() -> None:
    net = NetworkBuilder("halo")
    x = net.input((1, 1, 8, 4))
    x = net.conv(x, 1, 3, pad=1, name="a")
    x = net.conv(x, 1, 3, pad=1, name="b")
    options = LoweringOptions(max_lanes=4, lanes_per_core=64)
    graph = lowered(net.finish(x), SMALL, options).graph
    second = graph.tasks_of(1).tolist()
    reads = {
        task: [
            graph.publications[m.publication].producer
            for m in graph.transfers
            if m.consumer == task
        ]
        for task in second
    }
    assert list(reads.values()) == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]
    sizes = [m.size for m in graph.transfers if m.consumer == second[1]]
    assert sizes == [4, 8, 4]  # one row above, its own two rows, one row below
    loads = [a for a in graph.baseline if a.kind is BaselineKind.INPUT]
    assert [a.box[:2] for a in loads if a.box] == [(0, 3), (1, 5), (3, 7), (5, 8)]


def test_views_become_no_tasks_and_no_copies() -> None:
    net = NetworkBuilder("views")
    x = net.input((1, 4, 2, 2))
    x = net.conv(x, 4, 1, name="a")
    x = net.flatten(x)
    network = net.finish(net.gemm(x, 3, name="fc"))
    graph = lowered(network).graph
    assert graph.operations == ("a", "fc")
    assert sum(m.size for m in graph.transfers) == 16


def test_a_flatten_in_front_of_row_pieces_keeps_memory_order() -> None:
    net = NetworkBuilder("flat")
    x = net.conv(net.input((1, 4, 4, 2)), 4, 1, name="a")
    network = net.finish(net.gemm(net.flatten(x), 8, name="fc"))
    chip = Chip(cores=4, slots_per_core=4, array=MatrixArray(8, 8, 2))
    options = LoweringOptions(max_lanes=1)
    graph = lowered(network, chip, options).graph
    rows = {
        graph.tasks[m.consumer].name: m.box[:2]
        for m in graph.transfers
        if m.box and graph.publications[m.publication].tensor == "a"
    }
    # K = 32 in memory order: 8 rows of the matrix are one row of the map.
    assert rows == {f"fc/0+{r}:{r + 1}": (r, r + 1) for r in range(4)}


def test_sub_byte_activations_are_packed_and_rounded_by_run() -> None:
    net = NetworkBuilder("narrow", weight_bits=4, activation_bits=4)
    x = net.conv(net.input((1, 3, 6, 5)), 3, 1, name="a")
    y = net.conv(x, 3, 3, pad=1, name="b")
    graph = lowered(net.finish(y), SMALL, LoweringOptions(max_lanes=3)).graph
    for publication in graph.publications:
        if publication.payload_bits == 4 and publication.box is not None:
            elements = Box(*publication.box).elements
            assert publication.size == -(-elements * 4 // 8)
    assert graph.transfer_size.min() > 0


def test_constants_are_resident_unless_loaded() -> None:
    net = NetworkBuilder("bias")
    x = net.conv(net.input((1, 3, 6, 5)), 4, 1, bias=True, name="a")
    network = net.finish(x)
    kinds = {a.kind for a in lowered(network).graph.baseline}
    assert BaselineKind.CONSTANT not in kinds
    options = LoweringOptions(constants_resident=False)
    graph = lowered(network, SMALL, options).graph
    loads = [a for a in graph.baseline if a.kind is BaselineKind.CONSTANT]
    assert len(loads) == graph.task_count
    assert {a.size for a in loads} == {4 * 3}  # 4 channels of 24-bit sums


def test_what_has_no_price_gets_one_lane_and_a_note() -> None:
    def price(work: Work) -> int | Unavailable:
        if isinstance(work, SliceWork) and work.operation.name == "b":
            return Unavailable("nobody knows")
        return flat_price(work)

    net = NetworkBuilder("odd")
    x = net.conv(net.input((1, 3, 6, 5)), 4, 1, name="a")
    x = net.softmax(x, name="b")
    result = lower_network(net.finish(x), SMALL, price)
    assert isinstance(result, Lowering)
    assert len(result.graph.tasks_of(1)) == 1
    assert result.notes == ("b: no price (nobody knows); one lane",)


def test_a_network_of_views_is_malformed() -> None:
    net = NetworkBuilder("views")
    network = net.finish(net.flatten(net.input((1, 4, 2, 2))))
    with pytest.raises(MalformedInput, match="nothing takes time"):
        lower_network(network, SMALL, flat_price)


@pytest.mark.parametrize("value", [0, -1, True, 1.5])
def test_lane_limits_are_checked(value: object) -> None:
    with pytest.raises(MalformedInput, match=r"lowering\.max_lanes"):
        LoweringOptions(max_lanes=value)  # type: ignore[arg-type]


def test_a_split_reads_only_its_part() -> None:
    net = NetworkBuilder("split")
    x = net.conv(net.input((1, 2, 4, 4)), 6, 1, name="a")
    left, right = net.split(x, (2, 4))
    network = net.finish(net.concat((net.conv(right, 2, 1, name="b"), left)))
    assert any(isinstance(op.attributes, SliceAttributes) for op in network.operations)
    assert not any(
        isinstance(op.attributes, ViewAttributes) for op in network.operations
    )
    graph = lowered(network).graph
    assert "split" not in " ".join(graph.operations)
    assert len(graph.operations) == 3
    boxes = {
        m.box[4:]
        for m in graph.transfers
        if m.box and graph.task_operation[m.consumer] == 1
    }
    assert boxes == {(2, 6)}


_FINGERPRINT = """
import hashlib
from raptor_cp.graph.lowering import lower_network
from raptor_cp.network.zoo import build
from tests.chips import Chip, flat_price
graph = lower_network(build("googlenet"), Chip(), flat_price).graph
text = repr((graph.tasks, graph.transfers, graph.publications, graph.baseline))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_lowering_does_not_depend_on_the_hash_seed() -> None:
    prints = {
        subprocess.run(
            [sys.executable, "-c", _FINGERPRINT],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(prints) == 1
