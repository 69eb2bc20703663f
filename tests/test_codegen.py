"""Code generation: complete, as priced, as planned, and computing the network."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raptor_cp.graph.explicit import GivenTask, explicit_graph
from raptor_cp.graph.lowering import LoweringOptions
from raptor_cp.graph.widths import Accumulators
from raptor_cp.graph.work import ExplicitWork, SliceWork
from raptor_cp.network.attributes import RELU, RELU6, Activation, Function
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.network.zoo import build
from raptor_cp.realization.plan import (
    CrossStage,
    Load,
    Policy,
    Receive,
    Send,
    Signal,
    Store,
    Wait,
)
from raptor_cp.realization.realize import realize
from raptor_cp.schedules import Placement, Problem
from raptor_cp.static_evaluation import evaluate as evaluate_placement
from raptor_cp.targets.pim.backend import (
    NATIVE,
    Built,
    Refused,
    Rejected,
    build_program,
)
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.costs import instruction_profile
from raptor_cp.targets.pim.diagnostic import DiagnosticOptions, diagnose
from raptor_cp.targets.pim.isa import SLOT_ONLY, WIDE_RESULT, Opcode
from raptor_cp.targets.pim.sidecar import read_sidecar
from raptor_cp.targets.pim.target import PimTarget
from raptor_cp.verdict import Unavailable
from tests.codegen_oracle import check_program, placed_at_random

if TYPE_CHECKING:
    from pathlib import Path

    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.schedules import Schedule

EXACT, ACTIVATION = Accumulators.EXACT, Accumulators.ACTIVATION


@dataclass(frozen=True)
class Case:
    """A network scheduled on a chip."""

    network: Network
    target: PimTarget
    schedule: Schedule
    plan: ExecutionPlan

    def build(self, **options: object) -> Built:
        """Its program."""
        built = build_program(self.plan, self.target, self.network, **options)  # type: ignore[arg-type]
        assert isinstance(built, Built), built
        return built


@cache
def case(
    zoo: str,
    size: tuple[int, ...] | None = None,
    cores: int = 12,
    slots: int = 96,
    bits: int = 8,
    stages: int = 3,
    *,
    accumulators: Accumulators = EXACT,
    resident: bool = True,
    memory: int | None = None,
) -> Case:
    """A zoo network, placed at random; the same every time."""
    config = load_config("arch-a", core_count=cores, crossbar_count=slots)
    local = replace(config.core.local_memory, size_bytes=memory)
    config = replace(config, core=replace(config.core, local_memory=local))
    target = PimTarget(config)
    network = build(zoo, size, weight_bits=bits, activation_bits=bits)
    options = LoweringOptions(
        accumulators=accumulators, constants_resident=resident, max_lanes=4
    )
    for attempt in range(50):
        choose = random.Random(attempt)
        plan = placed_at_random(network, target, choose, stages, options)
        if plan is not None:
            return Case(network, target, plan.schedule, plan)
    raise AssertionError("no placement found")


def tiny(**options: object) -> Case:
    """The residual network of a few layers."""
    return case("tiny-residual", **options)


SMALL = [
    ("tiny-residual", None),
    ("squeezenet", (1, 3, 32, 32)),
    ("ds-cnn", None),
    ("shufflenetv2", (1, 3, 32, 32)),
]


# -- as priced -----------------------------------------------------------------------


def _counts(records: np.ndarray, groups: np.ndarray) -> Counter[tuple[int, ...]]:
    """Unit instructions and ``sldi`` by form; widths that cost nothing left out."""
    found: Counter[tuple[int, ...]] = Counter()
    ibiw = obiw = 0
    for opcode, _, _, _, second, one, two, three in records.tolist():
        if opcode == Opcode.SETBW:
            ibiw, obiw = one, two
        elif opcode == Opcode.SLDI:
            found[opcode,] += 1
        elif opcode == Opcode.MVMUL:
            found[opcode, int(groups[two]), ibiw, obiw, second] += 1
        elif opcode in (Opcode.LMV, Opcode.LLDI):
            found[opcode, three] += 1
        else:
            wide = Opcode(opcode) in WIDE_RESULT
            found[opcode, three, ibiw, obiw if wide else 0] += 1
    return found


def _priced(case_: Case, work: SliceWork) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for item in instruction_profile(work, case_.target.machine):
        key: tuple[int, ...]
        if item.opcode is Opcode.SETBW:
            continue
        if item.opcode is Opcode.SLDI:
            key = (item.opcode,)
        elif item.opcode is Opcode.MVMUL:
            key = (item.opcode, item.length, item.ibiw, item.obiw, item.mbiw)
        elif item.opcode in (Opcode.LMV, Opcode.LLDI):
            key = (item.opcode, item.length)
        else:
            wide = item.opcode in WIDE_RESULT
            key = (item.opcode, item.length, item.ibiw, item.obiw if wide else 0)
        found[key] += item.count
    return found


@pytest.mark.parametrize(("zoo", "size"), SMALL)
def test_tasks_have_the_instructions_they_were_priced_with(
    zoo: str, size: tuple[int, ...] | None
) -> None:
    chosen = case(zoo, size)
    built = chosen.build()
    compared = 0
    for code in built.cores:
        code.emit()  # bank registers exist only after the entry
        for number, step in enumerate(code.steps):
            if step.task < 0:
                continue
            work = code.common.work(step.task)
            records = np.concatenate(code._emit_task(number, step.task))
            found = _counts(records, built.array_groups(code))
            wanted = _priced(chosen, work)
            if "depthwise" in work.operation.name or "dw" in work.operation.name:
                # The last bundle of a depthwise layer copies only its own channels.
                found, wanted = _by_opcode(found), _by_opcode(wanted)
            if found != wanted:
                spilled = found - wanted
                # An output that a product would run over is copied once.
                assert not wanted - found, (work.operation.name, wanted - found)
                assert {key[0] for key in spilled} <= {Opcode.LMV, Opcode.SLDI}
            compared += 1
    assert compared == chosen.schedule.problem.graph.task_count


def _by_opcode(counts: Counter[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for key, count in counts.items():
        found[key[:1]] += count
    return found


@pytest.mark.parametrize(("zoo", "size"), SMALL)
def test_plan_estimate_agrees_with_the_diagnostic_of_the_program(
    zoo: str, size: tuple[int, ...] | None
) -> None:
    chosen = case(zoo, size)
    estimated = chosen.target.estimate_realized_schedule_cost(chosen.plan)
    assert not isinstance(estimated.interval_ns, Unavailable)
    assert _diagnosed(chosen) == pytest.approx(float(estimated.interval_ns), rel=0.02)


def _diagnosed(chosen: Case) -> float:
    """Interval of the emitted program, ns."""
    options = DiagnosticOptions(memory_controller=True)
    found = diagnose(chosen.build().program(), chosen.target.config, options)
    assert not isinstance(found.interval_ns, Unavailable)
    return float(found.interval_ns)


# -- as planned ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("cross_stage", list(CrossStage))
def test_every_item_of_the_plan_is_emitted_once_and_in_order(
    policy: Policy, cross_stage: CrossStage
) -> None:
    chosen = tiny()
    plan = realize(chosen.schedule, policy, cross_stage)
    program = replace(chosen, plan=plan).build().program()
    communication = (
        Opcode.LD,
        Opcode.ST,
        Opcode.SEND,
        Opcode.RECV,
        Opcode.SYNC,
        Opcode.WAIT,
    )
    for text, core in zip(plan.cores, program.active_cores, strict=True):
        assert text.core == core.core
        found = [
            (record[0], record[4], record[5], record[6])
            for record in core.records.tolist()
            if record[0] in communication
        ]
        wanted: list[tuple[int, int, int, int]] = []
        for item in text.items:
            match item:
                case Load():
                    wanted += [(Opcode.LD, 0, 0, 0)] * item.runs
                case Store():
                    wanted += [(Opcode.ST, 0, 0, 0)] * item.runs
                case Send():
                    peer = plan.direct[item.direct].destination
                    wanted.append((Opcode.SEND, peer, 0, 0))
                case Receive():
                    wanted.append((Opcode.RECV, plan.direct[item.direct].source, 0, 0))
                case Signal():
                    wanted.append((Opcode.SYNC, item.core, item.register, 0))
                case Wait():
                    wanted.append((Opcode.WAIT, 0, item.register, item.count))
        assert found == wanted


@pytest.mark.parametrize("policy", list(Policy))
def test_event_registers_of_plan_and_program_agree(policy: Policy) -> None:
    chosen = case("squeezenet", (1, 3, 32, 32))
    plan = realize(chosen.schedule, policy)
    program = replace(chosen, plan=plan).build().program()
    used: dict[int, set[int]] = {core.core: set() for core in program.active_cores}
    for core in program.active_cores:
        for opcode, _, _, _, peer, register, _, _ in core.records.tolist():
            if opcode == Opcode.SYNC:
                used[peer].add(register)
            elif opcode == Opcode.WAIT:
                used[core.core].add(register)
    summary = plan.registers_used()
    assert {core: tuple(sorted(found)) for core, found in used.items()} == summary


def test_cores_start_with_widths_and_end_with_a_unit() -> None:
    for core in tiny().build().program().active_cores:
        assert core.records["opcode"][0] == Opcode.SETBW
        assert Opcode(int(core.records["opcode"][-1])) not in SLOT_ONLY


# -- what it computes ----------------------------------------------------------------


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("cross_stage", list(CrossStage))
def test_all_policies_compute_the_network(
    policy: Policy, cross_stage: CrossStage
) -> None:
    chosen = tiny()
    plan = realize(chosen.schedule, policy, cross_stage)
    built = replace(chosen, plan=plan).build()
    check_program(built, chosen.network, chosen.target, EXACT, rounds=8, seed=1)


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("accumulators", [EXACT, ACTIVATION])
def test_widths_compute_the_network(bits: int, accumulators: Accumulators) -> None:
    chosen = tiny(bits=bits, accumulators=accumulators)
    built = chosen.build(accumulators=accumulators)
    check_program(built, chosen.network, chosen.target, accumulators)


def test_loaded_constants_compute_the_network() -> None:
    chosen = tiny(resident=False)
    built = chosen.build(constants_resident=False)
    assert any(region.kind == "constant" for region in built.sidecar.regions)
    check_program(built, chosen.network, chosen.target, EXACT)


@pytest.mark.parametrize("memory", [12_000, 40_000])
def test_vectors_shorten_where_memory_is_small(memory: int) -> None:
    chosen = tiny(cores=24, memory=memory)
    built = build_program(chosen.plan, chosen.target, chosen.network)
    if isinstance(built, Rejected):
        assert memory < 40_000
        assert "configured local memory" in built.reason
        return
    assert isinstance(built, Built)
    assert all(used <= memory for _, used in built.sidecar.local_bytes)
    check_program(built, chosen.network, chosen.target, EXACT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zoo", "size"),
    [
        ("squeezenet", (1, 3, 64, 64)),
        ("resnet18", (1, 3, 64, 64)),
        ("mobilenetv2", (1, 3, 32, 32)),
        ("shufflenetv2", (1, 3, 32, 32)),
        ("densenet121", (1, 3, 32, 32)),
        ("googlenet-bn", (1, 3, 32, 32)),
        ("inceptionv3", (1, 3, 75, 75)),
    ],
)
def test_whole_networks(zoo: str, size: tuple[int, ...]) -> None:
    bits = 8 if zoo == "inceptionv3" else 16
    chosen = case(zoo, size, cores=168, stages=6, bits=bits)
    built = chosen.build()
    check_program(built, chosen.network, chosen.target, EXACT, rounds=2)
    estimated = chosen.target.estimate_realized_schedule_cost(chosen.plan)
    if not isinstance(estimated.interval_ns, Unavailable):
        wanted = float(estimated.interval_ns)
        assert _diagnosed(chosen) == pytest.approx(wanted, rel=0.02)


# -- random networks -----------------------------------------------------------------

ACTIVATIONS = (
    None,
    RELU,
    RELU6,
    Activation(Function.SIGMOID),
    Activation(Function.LEAKY_RELU, 0.1),
)


def _layer(net: NetworkBuilder, x: Tensor, choose: random.Random) -> Tensor:
    """One more layer on a feature map."""
    _, channels, height, width = x.shape
    kind = choose.choice(["conv", "conv", "depthwise", "pool", "add", "concat", "mul"])
    act = choose.choice(ACTIVATIONS)
    if kind == "conv":
        kernel = choose.choice([(1, 1), (2, 2), (3, 3), (1, 3), (3, 2)])
        pads = choose.choice([(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1)])
        if height < kernel[0] or width < kernel[1]:
            kernel, pads = (1, 1), (0, 0, 0, 0)
        spread = 2 if width > 2 * kernel[1] and choose.random() < 0.2 else 1
        return net.conv(
            x,
            choose.choice([3, 8, 17, 64]),
            kernel,
            stride=choose.choice([(1, 1), (1, 1), (2, 2), (2, 1), (3, 3)]),
            pad=pads,
            dilation=(1, spread),
            bias=choose.random() < 0.5,
            activation=act,
        )
    if kind == "depthwise":
        return net.conv(x, channels, 3, pad=1, groups=channels, activation=act)
    if kind == "pool" and min(height, width) > 2:
        kernel, stride = choose.choice([(2, 2), (3, 3)]), choose.choice([1, 2])
        if choose.random() < 0.5:
            return net.max_pool(x, kernel, stride=stride, pad=1)
        return net.average_pool(x, kernel, stride=stride, pad=1)
    if kind == "concat":
        return net.concat([x, net.conv(x, 8, 1)], axis=1)
    other = net.conv(x, channels, 1)
    return net.mul(x, other) if kind == "mul" else net.add(x, other, activation=act)


def random_network(choose: random.Random) -> Network:
    """A few layers, then a classifier or nothing."""
    bits = choose.choice([8, 8, 16])
    net = NetworkBuilder(
        "random", weight_bits=choose.choice([4, 8]), activation_bits=bits
    )
    x = net.input(
        (1, choose.choice([1, 3, 6]), choose.randint(2, 9), choose.randint(2, 9))
    )
    for _ in range(choose.randint(1, 5)):
        x = _layer(net, x, choose)
    end = choose.choice(["map", "gap", "flatten"])
    if end == "gap":
        x = net.gemm(net.flatten(net.global_average_pool(x)), 10)
    elif end == "flatten":
        x = net.gemm(net.flatten(x), 5, activation=RELU)
    return net.finish(x)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_random_networks_on_random_chips(seed: int) -> None:
    choose = random.Random(seed)
    network = random_network(choose)
    config = load_config(
        "arch-a",
        core_count=choose.randint(2, 12),
        crossbar_count=choose.choice([8, 32]),
    )
    size = choose.choice([32, 64, 128])
    matrix = replace(config.core.matrix, xbar_rows=size, xbar_cols=size, dac_count=32)
    config = replace(config, core=replace(config.core, matrix=matrix))
    target = PimTarget(config)
    accumulators = choose.choice([EXACT, EXACT, ACTIVATION])
    resident = choose.random() < 0.7
    options = LoweringOptions(
        max_lanes=choose.choice([1, 3, 8, 64]),
        lanes_per_core=choose.choice([1, 2, 6]),
        accumulators=accumulators,
        constants_resident=resident,
    )
    plan = placed_at_random(network, target, choose, choose.randint(1, 6), options)
    if plan is None:
        return
    plan = realize(plan.schedule, choose.choice(list(Policy)))
    built = build_program(
        plan,
        target,
        network,
        accumulators=accumulators,
        constants_resident=resident,
    )
    assert isinstance(built, Built), built
    check_program(built, network, target, accumulators, rounds=4, seed=seed)


# -- answers that are no program -----------------------------------------------------


def test_what_the_instructions_cannot_express_is_refused_by_name() -> None:
    target = PimTarget(load_config("arch-c"))
    network = build("vit-b16-block", None, weight_bits=8, activation_bits=8)
    plan = placed_at_random(network, target, random.Random(0), 2)
    assert plan is not None
    found = build_program(plan, target, network)
    assert isinstance(found, Refused)
    assert "LayerNormalization" in found.reason
    assert "gelu" in found.reason


def test_sub_byte_storage_is_refused() -> None:
    chosen = tiny(bits=4)
    found = build_program(chosen.plan, chosen.target, chosen.network)
    assert isinstance(found, Refused)
    assert "sub-byte" in found.reason


def test_explicit_tasks_are_refused() -> None:
    target = PimTarget(load_config("arch-a", core_count=2))
    graph = explicit_graph("given", [GivenTask("a", ExplicitWork((5,)))], [], [])
    problem = Problem(graph, target.costs(graph), target.resources())
    placement = Placement.in_task_order(np.zeros(1, np.int32), 2)
    plan = realize(evaluate_placement(problem, placement))
    assert isinstance(build_program(plan, target, None), Refused)


def test_exhausted_local_memory_rejects_the_candidate() -> None:
    chosen = tiny(memory=600)
    found = build_program(chosen.plan, chosen.target, chosen.network)
    assert isinstance(found, Rejected)
    assert found.core is not None
    assert "600" in found.reason


# -- files ---------------------------------------------------------------------------


def test_written_programs_are_read_back_and_repeat(tmp_path: Path) -> None:
    built = tiny().build()
    program = built.write(tmp_path / "one")
    again = tiny().build().write(tmp_path / "two")
    assert program.instructions == again.instructions == built.program().instructions
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "program.json" in names
    assert "weights.npz" in names
    for name in names:
        one, two = (tmp_path / which / name for which in ("one", "two"))
        assert one.read_bytes() == two.read_bytes(), name
    sidecar = read_sidecar(tmp_path / "one")
    assert sidecar.regions == built.sidecar.regions
    assert sidecar.groups == built.sidecar.groups
    assert sidecar.preloads == built.sidecar.preloads
    assert sidecar.operations == built.sidecar.operations
    for name, weights in built.sidecar.weights.items():
        np.testing.assert_array_equal(sidecar.weights[name], weights)


def test_softmax_stays_in_the_native_program_alone(tmp_path: Path) -> None:
    net = NetworkBuilder("classifier", weight_bits=8, activation_bits=8)
    x = net.gemm(net.input((1, 4, 20)), 10)
    network = net.finish(net.softmax(x))
    target = PimTarget(load_config("arch-a", core_count=4))
    plan = placed_at_random(network, target, random.Random(0), 2)
    assert plan is not None
    built = build_program(plan, target, network)
    assert isinstance(built, Built)
    assert built.sidecar.host_operations == ("softmax_1",)
    check_program(built, network, target, EXACT)
    program = built.write(tmp_path)
    opcodes = [core.records["opcode"] for core in program.active_cores]
    assert not any((codes == Opcode.VSOFTMAX).any() for codes in opcodes)
    native = built.program(native=True)
    opcodes = [core.records["opcode"] for core in native.active_cores]
    assert sum(int((codes == Opcode.VSOFTMAX).sum()) for codes in opcodes) == 4
    assert (tmp_path / NATIVE / "config.json").is_file()
