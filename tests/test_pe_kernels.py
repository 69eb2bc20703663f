"""Kernels: live and replayed runs, logs, and the requirements on opt2 and opt3."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    PeCommand,
    PeCpuOverheadCmd,
    Scope,
    TensorHandle,
)
from raptor_cp.targets.pe.cost_model import PeCostModel, charge
from raptor_cp.targets.pe.kernel import KernelRun, replay, run_live
from raptor_cp.targets.pe.kernels import KERNELS, find_kernel, gemm_op
from raptor_cp.targets.pe.op_log import OpLog
from raptor_cp.targets.pe.stages import Engine, StageKind
from raptor_cp.targets.pe.topology import PeAttributes, Tiling

if TYPE_CHECKING:
    from raptor_cp.targets.pe.kernel import KernelSteps, TlContext

SMALL: dict[str, dict[str, object]] = {
    "gemm_primitive": {"m": 128, "k": 128, "n": 64, "tile": 32},
    "gemm_composite": {"m": 100, "k": 130, "n": 70},
    "gemm_prefetch": {"chunks": 5},
    "gqa_decode_opt2": {"tiles": 3},
    "gqa_decode_opt3": {"tiles": 3},
    "gqa_decode_plain": {"tiles": 3},
}
ELEMENT = PeAttributes()


def with_costs(model: PeCostModel) -> PeAttributes:
    return replace(ELEMENT, cost_model=model)


def tile_commands(name: str) -> list[PeCommand]:
    """The commands that one more tile adds, by their multiset of descriptors."""
    runs = [run_live(KERNELS[name], ELEMENT, {"tiles": n}) for n in (4, 6)]
    short, long = (list(run.op_log.commands) for run in runs)
    head = next(i for i, c in enumerate(short) if isinstance(c, CompositeCmd))
    extra = len(long) - len(short)
    # Two more tiles: an even number, so buffers that swap roles meet again.
    middle = long[head : head + extra]
    return middle[: extra // 2]


def dispatch(commands: list[PeCommand], model: PeCostModel) -> Fraction:
    return sum((model.dispatch_cycles(c) for c in commands), Fraction(0))


def test_every_shipped_kernel_is_tested_here() -> None:
    assert set(SMALL) == set(KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_live_equals_replay(name: str) -> None:
    run = run_live(KERNELS[name], ELEMENT, SMALL[name])
    read_back = OpLog.from_bytes(run.op_log.to_bytes())
    assert read_back == run.op_log
    assert replay(read_back, ELEMENT) == run.timeline


@pytest.mark.parametrize("name", KERNELS)
def test_same_input_same_bytes(name: str) -> None:
    first, second = (run_live(KERNELS[name], ELEMENT, SMALL[name]) for _ in range(2))
    assert first.op_log.to_bytes() == second.op_log.to_bytes()
    assert first.timeline == second.timeline


def test_same_bytes_in_another_process() -> None:
    code = (
        "import hashlib\n"
        "from raptor_cp.targets.pe.kernels import KERNELS\n"
        "from raptor_cp.targets.pe.kernel import run_live\n"
        "from raptor_cp.targets.pe.topology import PeAttributes\n"
        "run = run_live(KERNELS['gqa_decode_opt2'], PeAttributes(), {'tiles': 2})\n"
        "print(hashlib.sha256(run.op_log.to_bytes()).hexdigest(),"
        " run.timeline.total_cycles)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_recorded_cpu_time_follows_the_formula(name: str) -> None:
    model = PeCostModel(Fraction(31), Fraction(7, 3), Fraction(3, 16), 4096)
    run = run_live(KERNELS[name], with_costs(model), SMALL[name])
    timeline = run.timeline
    recorded = [
        timeline.cycles(timeline.finish[i] - timeline.start[i])
        for i, kind in enumerate(timeline.kind)
        if kind is StageKind.DISPATCH
    ]
    expected = []
    for command in run.op_log.commands:
        assert not isinstance(command, PeCpuOverheadCmd)
        fixed = Fraction(31) if isinstance(command, CompositeCmd) else Fraction(7, 3)
        expected.append(fixed + command.logical_bytes * Fraction(3, 16))
    assert recorded == expected
    assert timeline.dispatch_cycles == sum(expected)


def test_decode_tiles_have_the_counts_and_bytes_of_the_document() -> None:
    opt2, opt3 = tile_commands("gqa_decode_opt2"), tile_commands("gqa_decode_opt3")
    assert len(opt2) == 2
    first, second = opt2
    assert isinstance(first, CompositeCmd)
    assert isinstance(second, CompositeCmd)
    assert (first.logical_bytes, second.logical_bytes) == (54, 322)
    assert len(second.ops) == 10
    assert len(opt3) == 10
    merge = [c for c in opt3 if isinstance(c, MathCmd)]
    assert len(merge) == 8
    assert sum(c.logical_bytes for c in merge) == 232
    assert sum(c.logical_bytes for c in opt3) == 340
    assert sum(c.logical_bytes for c in opt2) == 376


def test_opt3_costs_more_than_twice_opt2_at_uniform_fixed_costs() -> None:
    opt2, opt3 = tile_commands("gqa_decode_opt2"), tile_commands("gqa_decode_opt3")
    uniform = PeCostModel(fixed_per_single_op_cmd_cycles=Fraction(40))
    fast = PeCostModel()
    ratio = dispatch(opt3, uniform) / dispatch(opt2, uniform)
    print(f"opt3/opt2: {float(ratio):.3f} at D1, ", end="")
    print(f"{float(dispatch(opt3, fast) / dispatch(opt2, fast)):.3f} at D8")
    assert ratio > 2
    assert dispatch(opt3, fast) > dispatch(opt2, fast)


@pytest.mark.parametrize("single", [8, 40])
def test_sensitivity_to_r(single: int) -> None:
    opt2, opt3 = tile_commands("gqa_decode_opt2"), tile_commands("gqa_decode_opt3")
    ratios = []
    for r in (0.25, 0.0625, 0.03125):
        model = PeCostModel.from_mapping(
            {"byte_cycles_recip": r, "fixed_per_single_op_cmd_cycles": single}
        )
        assert dispatch(opt3, model) > dispatch(opt2, model)
        ratios.append(dispatch(opt3, model) / dispatch(opt2, model))
    assert ratios[0] < ratios[1] < ratios[2]


def test_plain_commands_turn_the_comparison_round() -> None:
    model = PeCostModel()
    opt2 = dispatch(tile_commands("gqa_decode_opt2"), model)
    runs = [
        run_live(KERNELS["gqa_decode_plain"], ELEMENT, {"tiles": n, "resident": True})
        for n in (2, 3)
    ]
    plain = runs[1].timeline.dispatch_cycles - runs[0].timeline.dispatch_cycles
    assert plain < opt2
    loaded = [
        run_live(KERNELS["gqa_decode_plain"], ELEMENT, {"tiles": n}) for n in (2, 3)
    ]
    again = loaded[1].timeline.dispatch_cycles - loaded[0].timeline.dispatch_cycles
    assert again == plain + 2 * (8 + Fraction(24, 16))


def test_prefetch_issues_a_load_a_product_and_a_sum_for_each_chunk() -> None:
    runs = [run_live(KERNELS["gemm_prefetch"], ELEMENT, {"chunks": n}) for n in (4, 5)]
    kinds = [sorted(type(c).__name__ for c in run.op_log.commands) for run in runs]
    extra = list(kinds[1])
    for kind in kinds[0]:
        extra.remove(kind)
    assert extra == ["DmaReadCmd", "GemmCmd", "MathCmd"]


def test_one_composite_replaces_many_primitives() -> None:
    primitive = run_live(KERNELS["gemm_primitive"], ELEMENT)
    composite = run_live(KERNELS["gemm_composite"], ELEMENT)
    assert len(composite.op_log.commands) == 1
    assert composite.timeline.dispatch_cycles * 10 < primitive.timeline.dispatch_cycles
    single = charge(ELEMENT.cost_model, primitive.op_log.commands[0]).cpu_cycles
    assert composite.timeline.dispatch_cycles > single


@pytest.mark.parametrize("name", KERNELS)
def test_engine_times_do_not_depend_on_any_knob(name: str) -> None:
    free = PeCostModel(Fraction(0), Fraction(0), Fraction(0), 1024)
    runs = [
        run_live(KERNELS[name], attributes, SMALL[name]).timeline
        for attributes in (ELEMENT, with_costs(free))
    ]
    assert runs[0].engine_service() == runs[1].engine_service()
    assert runs[1].dispatch_cycles == 0
    for engine in (Engine.DMA, Engine.TCM, Engine.GEMM, Engine.MATH):
        spans = [
            sum(timeline.cycles(end - start) for start, end in timeline.busy(engine))
            for timeline in runs
        ]
        assert spans[0] == spans[1]


def test_the_composite_kernel_does_not_move_with_the_single_op_knob() -> None:
    timelines = [
        run_live(
            KERNELS["gemm_composite"],
            with_costs(PeCostModel(fixed_per_single_op_cmd_cycles=Fraction(k))),
        ).timeline
        for k in (0, 8, 40)
    ]
    spans = {(t.start, t.finish, t.scale) for t in timelines}
    assert len(spans) == 1


def random_kernel(seed: int, element: PeAttributes) -> KernelRun:
    """A kernel of random commands on a few tensors, with waits and CPU work."""

    def kernel(tl: TlContext) -> KernelSteps:
        rng = random.Random(seed)
        side = rng.choice([16, 48, 96])
        shape = (side, side)
        far = [tl.hbm(f"far{i}", shape) for i in range(2)]
        near = [tl.tcm(f"near{i}", shape) for i in range(4)]
        column = tl.tcm("column", (side, 1))
        for step in range(rng.randint(3, 25)):
            a, b, c = rng.sample(near, 3)
            choice = rng.randrange(9)
            if choice == 0:
                tl.load(rng.choice(far), a)
            elif choice == 1:
                tl.store(a, rng.choice(far))
            elif choice == 2:
                tl.dot(a, b, c, accumulate=rng.random() < 0.5)
            elif choice == 3:
                tl.math(rng.choice(["add", "mul", "max"]), (a, column), a)
            elif choice == 4:
                tl.max(a, None, column)
            elif choice == 5:
                tl.copy(a, b)
            elif choice == 6:
                tl.cycles(rng.randrange(100))
            elif choice == 7:
                ops = [
                    gemm_op(rng.choice(far), a, b),
                    OpSpec("add", {"x": b, "y": c}, c, {"f": 0.5, "s": [1, 2]}),
                    OpSpec("sum", {"x": c}, column, {"axis": 1}, Scope.WHOLE),
                ]
                tl.composite(ops[: rng.randint(1, 3)], [b], f"step{step}")
            else:
                yield tl.wait(tl.add(a, b, a))

    return run_live(kernel, element)


@pytest.mark.parametrize("block", range(4))
def test_live_equals_replay_on_random_kernels(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        rng = random.Random(1000 + seed)
        element = PeAttributes(
            scheduler_queue_depth=rng.choice([1, 2, 16]),
            cost_model=PeCostModel(
                Fraction(rng.randrange(60)),
                Fraction(rng.randrange(20), 3),
                Fraction(1, rng.choice([4, 16, 7])),
            ),
            tiling=Tiling(32, 16, 32, rng.choice([1, 2, 3])),
        )
        run = random_kernel(seed, element)
        data = run.op_log.to_bytes()
        assert random_kernel(seed, element).op_log.to_bytes() == data
        assert replay(OpLog.from_bytes(data), element) == run.timeline


# What a context refuses.


def test_the_cap_is_enforced_when_a_kernel_emits() -> None:
    def kernel(tl: TlContext) -> KernelSteps:
        x = tl.tcm("x", (8, 8))
        ops = [OpSpec("add", {"a": x, "b": x}, x) for _ in range(37)]
        tl.composite(ops[:36], [x])
        with pytest.raises(ValueError, match="the cap is 1024"):
            tl.composite(ops, [x], "too_large")
        yield tl.wait(x)

    run = run_live(kernel, ELEMENT)
    assert len(run.op_log.commands) == 1  # nothing was split or issued


def test_manual_cycles_cost_exactly_their_number() -> None:
    def kernel(tl: TlContext, *, n: int) -> KernelSteps:
        tl.cycles(n)
        yield from ()

    for n in (0, 1, 12345):
        run = run_live(kernel, ELEMENT, {"n": n})
        assert run.timeline.total_cycles == n
        assert run.timeline.dispatch_cycles == 0
        assert run.timeline.explicit_cycles == n


def test_waiting_is_not_charged() -> None:
    def kernel(tl: TlContext, *, waits: int) -> KernelSteps:
        x = tl.load(tl.hbm("x", (64, 64)))
        for _ in range(waits):
            yield tl.wait(x)

    costs = {run_live(kernel, ELEMENT, {"waits": n}).timeline.cost() for n in (0, 1, 5)}
    assert len(costs) == 1


def test_a_wait_must_be_yielded() -> None:
    def forgets(tl: TlContext) -> KernelSteps:
        x = tl.add(tl.tcm("x", (4, 4)), tl.tcm("y", (4, 4)))
        tl.wait(x)
        tl.cycles(1)
        yield from ()

    def forgets_last(tl: TlContext) -> KernelSteps:
        x = tl.add(tl.tcm("x", (4, 4)), tl.tcm("y", (4, 4)))
        tl.wait(x)
        yield from ()

    for kernel in (forgets, forgets_last):
        with pytest.raises(MalformedInput, match="was not yielded"):
            run_live(kernel, ELEMENT)


def test_only_waits_may_be_yielded() -> None:
    def kernel(tl: TlContext) -> KernelSteps:
        yield tl.tcm("x", (4, 4))  # type: ignore[misc]

    with pytest.raises(MalformedInput, match="only yield"):
        run_live(kernel, ELEMENT)


def test_kernel_parameters_are_checked() -> None:
    with pytest.raises(MalformedInput, match="tile_kv"):
        run_live(KERNELS["gqa_decode_opt2"], ELEMENT, {"tilekv": 3})

    def plain(tl: TlContext) -> None:
        tl.cycles(1)

    with pytest.raises(MalformedInput, match="generator"):
        run_live(plain, ELEMENT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gemm_primitive", {"m": 100}),
        ("gemm_prefetch", {"chunks": 0}),
        ("gqa_decode_opt2", {"tiles": 0}),
    ],
)
def test_impossible_parameters(name: str, params: dict[str, object]) -> None:
    with pytest.raises(MalformedInput):
        run_live(KERNELS[name], ELEMENT, params)


def test_unknown_kernels_name_the_nearest() -> None:
    assert find_kernel("gemm_prefetch") is KERNELS["gemm_prefetch"]
    with pytest.raises(MalformedInput, match="'gqa_decode_opt3'"):
        find_kernel("gqa_opt3")


def test_tensors_have_one_name() -> None:
    def kernel(tl: TlContext) -> KernelSteps:
        tl.tcm("x", (4, 4))
        tl.tcm("x", (4, 4))
        yield from ()

    with pytest.raises(MalformedInput, match="name is taken"):
        run_live(kernel, ELEMENT)


def test_shapes_and_places_are_checked() -> None:
    def differs(tl: TlContext) -> KernelSteps:
        tl.dot(tl.tcm("a", (4, 5)), tl.tcm("b", (4, 5)))
        yield from ()

    def broadcast(tl: TlContext) -> KernelSteps:
        tl.add(tl.tcm("a", (4, 5)), tl.tcm("b", (3, 5)))
        yield from ()

    def remote(tl: TlContext) -> KernelSteps:
        tl.add(tl.hbm("a", (4, 5)), tl.tcm("b", (4, 5)))
        yield from ()

    def own(tl: TlContext) -> KernelSteps:
        a = tl.tcm("a", (4, 4))
        tl.dot(a, tl.tcm("b", (4, 4)), a)
        yield from ()

    def nothing(tl: TlContext) -> KernelSteps:
        yield tl.wait(tl.tcm("a", (4, 4)))

    for kernel, words in (
        (differs, "inner extents"),
        (broadcast, "broadcast"),
        (remote, "local memory"),
        (own, "overwrite"),
        (nothing, "no command has written"),
    ):
        with pytest.raises(MalformedInput, match=words):
            run_live(kernel, ELEMENT)


# Logs.


def test_a_log_refuses_what_it_cannot_hold() -> None:
    x = TensorHandle("x", (4, 4))

    def odd(tl: TlContext) -> KernelSteps:
        tl.composite([OpSpec("f", {"x": x}, x, {"object": object()})])
        yield from ()

    with pytest.raises(MalformedInput, match=r"f->x\.object"):
        run_live(odd, ELEMENT).op_log.to_bytes()

    def twins(tl: TlContext) -> KernelSteps:
        tl.add(x, x, x)
        y = TensorHandle("x", (4, 4), space=MemorySpace.HBM)
        tl.composite([OpSpec("f", {"x": y}, x)])
        yield from ()

    with pytest.raises(MalformedInput, match="one name"):
        run_live(twins, ELEMENT).op_log.to_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"wait":0}',
        '{"schema":"other"}',
        '{"what":1}',
        '{"issue":{"type":"copy","src":"a","dst":"b"}}',
        '{"issue":{"type":"jump"}}',
        '{"issue":{"type":"cpu","cycles":-1}}',
        '{"tensor":{"name":"a","shape":[],"dtype":"f16","space":"tcm"}}',
    ],
)
def test_unreadable_logs_name_the_line(line: str) -> None:
    data = f'{{"schema":"raptor-cp/op-log/1"}}\n{line}\n'.encode()
    with pytest.raises(MalformedInput, match=":2: cannot read"):
        OpLog.from_bytes(data, where="run.jsonl")
