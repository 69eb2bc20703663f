"""Small random networks, and random schedules of them on random chips."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.graph.lowering import Lowering, LoweringOptions, lower_network
from raptor_cp.graph.widths import Accumulators
from raptor_cp.network.attributes import (
    RELU,
    Activation,
    Function,
    OpKind,
    PoolFunction,
    ReduceFunction,
)
from raptor_cp.network.builder import NetworkBuilder
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realization.realize import realize
from raptor_cp.schedules import Placement, Problem, Stage
from raptor_cp.static_evaluation import evaluate
from raptor_cp.targets.pim.config import load_config
from raptor_cp.targets.pim.target import PimTarget

if TYPE_CHECKING:
    from raptor_cp.network.operations import Tensor
    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan
    from raptor_cp.targets.pim.config import PimConfig

FUNCTIONS = [
    None,
    RELU,
    RELU,
    Activation(Function.CLIP, 0.0, 6.0),
    Activation(Function.CLIP, -2.0, 3.0),
    Activation(Function.SIGMOID),
    Activation(Function.TANH),
]


@dataclass(frozen=True)
class Case:
    """Everything that a program is made from."""

    network: Network
    target: PimTarget
    plan: ExecutionPlan
    accumulators: Accumulators
    resident: bool


#: Seeds from here on have views, slices and gathers in any place too.
MOVES = 100_000


def random_network(seed: int, layers: int) -> Network:
    """A directed acyclic network of maps, with skips, ending in small outputs."""
    choose = random.Random(seed)
    bits = choose.choice([8, 8, 8, 12, 16])
    builder = NetworkBuilder(
        f"random-{seed}", weight_bits=choose.choice([8, 8, 4, 16]), activation_bits=bits
    )
    size = (choose.randint(3, 8), choose.randint(3, 8))
    x = builder.input((1, choose.choice([1, 3, 4, 8, 12]), *size), "x")
    maps = [x]
    for _ in range(layers):
        x = maps[-1] if choose.random() < 0.7 else choose.choice(maps)
        make = _move if seed >= MOVES and choose.random() < 0.4 else _layer
        maps.append(make(builder, choose, x, maps))
    unread = [t for t in maps if t.name not in builder._readers]
    heads = [_head(builder, choose, t) for t in unread[-3:]]
    return builder.finish(*dict.fromkeys([*unread[:-3], *heads]))


def _layer(
    builder: NetworkBuilder, choose: random.Random, x: Tensor, maps: list[Tensor]
) -> Tensor:
    _, channels, height, width = x.shape
    kind = choose.choice(
        ["conv"] * 5
        + ["depthwise", "pool", "pool", "add", "add", "mul", "concat"]
        + ["slice", "transpose", "activation", "maximum", "scalar", "pad", "resize"]
    )
    same = [t for t in maps if t.shape == x.shape and t is not x]
    alike = [t for t in maps if t.shape[2:] == x.shape[2:]]
    activation = choose.choice(FUNCTIONS)
    if kind in ("add", "mul", "maximum") and same:
        other = choose.choice(same)
        operation = {
            "add": choose.choice([OpKind.ADD, OpKind.SUB]),
            "mul": OpKind.MUL,
            "maximum": choose.choice([OpKind.MAXIMUM, OpKind.MINIMUM]),
        }[kind]
        return builder.binary(operation, x, other, activation=activation)
    if kind == "scalar":
        operation = choose.choice([OpKind.ADD, OpKind.MUL, OpKind.SUB])
        return builder.binary(operation, x, choose.choice([0.5, 1.5, -1.0]))
    if kind == "concat" and channels < 24:
        return builder.concat((x, choose.choice(alike)))
    if kind == "slice" and channels > 2:
        start = choose.randrange(channels - 1)
        stop = choose.randint(start + 1, channels)
        return builder.slice(x, 1, start, stop)
    if kind == "transpose":
        return builder.transpose(x, (0, 1, 3, 2))
    if kind == "activation" and activation is not None:
        return builder.activate(x, activation, fold=False)
    if kind == "pool" and min(height, width) >= 2:
        function = choose.choice(list(PoolFunction))
        kernel = choose.choice([2, 3]) if min(height, width) >= 3 else 2
        pad = choose.choice([0, kernel // 2])
        return builder.pool(
            function,
            x,
            kernel,
            stride=choose.choice([1, 2]),
            pad=pad,
            ceil_mode=choose.random() < 0.2,
            count_include_pad=choose.random() < 0.2,
        )
    if kind == "pad":
        return builder.pad(x, (0, 0, 1, 0), (0, 0, 0, 1))
    if kind == "resize" and height * width <= 16:
        return builder.resize(x, (height * 2, width * 2))
    groups, outputs = 1, choose.choice([1, 4, 6, 8, 12, 20])
    if kind == "depthwise":
        groups, outputs = channels, channels * choose.choice([1, 2])
    elif channels % 2 == 0 and outputs % 2 == 0 and choose.random() < 0.2:
        groups = 2
    window = (
        choose.choice([1, min(2, height), min(3, height)]),
        choose.choice([1, min(3, width)]),
    )
    return builder.conv(
        x,
        outputs,
        window,
        stride=(choose.choice([1, 1, 2]), choose.choice([1, 1, 2])),
        pad=tuple(choose.randint(0, 2) for _ in range(4)),  # type: ignore[arg-type]
        dilation=choose.choice([1, 1, 1, 2]) if min(height, width) >= 5 else 1,
        groups=groups,
        bias=choose.random() < 0.6,
        activation=activation,
    )


def _move(
    builder: NetworkBuilder, choose: random.Random, x: Tensor, maps: list[Tensor]
) -> Tensor:
    """A layer that reads its operand in pieces, or in another order."""
    _, channels, height, width = x.shape
    kind = choose.choice(["flat", "flat", "crop", "skip", "gather", "shuffle", "turn"])
    if kind == "flat":
        flat = builder.flatten(x)
        if choose.random() < 0.5:
            flat = builder.activate(flat, RELU, fold=False)
        if choose.random() < 0.5:
            other = builder.binary(OpKind.MUL, flat, choose.choice([0.5, -1.0]))
            flat = builder.add(other, flat)
        # Back to a map, of another shape.
        shapes = [(1, channels, height, width), (1, channels, width, height)]
        shapes += [(1, height, channels, width), (1, width * channels, 1, height)]
        x = builder.reshape(flat, choose.choice(shapes))
    elif kind in ("crop", "skip"):
        axis = choose.choice([1, 2, 3])
        size = x.shape[axis]
        if size > 2:
            step = 2 if kind == "skip" else 1
            start = choose.randrange(size - 1)
            stop = choose.randint(start + 1, size)
            x = builder.slice(x, axis, start, stop, step)
    elif kind == "gather":
        axis = choose.choice([1, 2, 3])
        taken = tuple(choose.randrange(x.shape[axis]) for _ in range(3))
        x = builder.gather(x, taken, axis=axis)
    elif kind == "shuffle" and channels % 2 == 0:
        x = builder.channel_shuffle(x, 2)
    else:
        orders = [(0, 2, 3, 1), (0, 3, 2, 1), (0, 3, 1, 2)]
        x = builder.transpose(x, choose.choice(orders))
    return _layer(builder, choose, x, [*maps, x])


def _head(builder: NetworkBuilder, choose: random.Random, x: Tensor) -> Tensor:
    kind = choose.choice(["gemm", "mean", "max", "softmax", "none"])
    if kind == "none":
        return x
    if kind == "mean":
        x = builder.global_average_pool(x)
    elif kind == "max":
        return builder.reduce(ReduceFunction.MAX, x, (2, 3))
    y = builder.gemm(builder.flatten(x), choose.choice([3, 10]))
    return builder.softmax(y) if kind == "softmax" else y


def _chip(cores: int, array: int) -> PimConfig:
    """Arch-a with small crossbars and as few converters as those need."""
    config = load_config("arch-a", core_count=cores)
    matrix = replace(
        config.core.matrix,
        xbar_rows=array,
        xbar_cols=array,
        dac_count=array,
        adc_count=1,
    )
    return replace(config, core=replace(config.core, matrix=matrix))


def random_case(seed: int, *, layers: int, stages: int, policy: Policy) -> Case | None:
    """A network on a chip; None where the two do not fit.

    Operations are cut for a small core, and placed at random on cores that hold
    everything: the cuts and the communication are as varied as they can be.
    """
    choose = random.Random(seed * 7 + stages)
    network = random_network(seed, layers)
    array = choose.choice([16, 32, 64])
    cores = choose.randint(stages, 12)
    target = PimTarget(_chip(cores, array))
    roomy = replace(target.resources(), slots_per_core=10**6)
    tight = replace(roomy, slots_per_core=choose.choice([2, 4, 16, 96]))
    accumulators = choose.choice(list(Accumulators))
    resident = choose.random() < 0.7
    lowered = lower_network(
        network,
        tight,
        target.work_ns,
        LoweringOptions(
            max_lanes=choose.choice([1, 3, 16]),
            accumulators=accumulators,
            constants_resident=resident,
        ),
    )
    if not isinstance(lowered, Lowering):
        return None
    graph = lowered.graph
    groups = len(graph.operations)
    depth = min(stages, groups)
    limits = [0, *sorted(choose.sample(range(1, groups), depth - 1)), groups]
    order = list(range(cores))
    choose.shuffle(order)
    bounds = [0, *sorted(choose.sample(range(1, cores), depth - 1)), cores]
    cut = tuple(
        Stage(
            index,
            tuple(range(limits[index], limits[index + 1])),
            tuple(sorted(order[bounds[index] : bounds[index + 1]])),
        )
        for index in range(depth)
    )
    stage_of = [stage for stage in cut for _ in stage.groups]
    core_of = [choose.choice(stage_of[task.operation].cores) for task in graph.tasks]
    placement = Placement.in_task_order(np.array(core_of, np.int32), cores, cut)
    problem = Problem(graph, target.costs(graph), roomy)
    plan = realize(
        evaluate(problem, placement),
        policy,
        choose.choice(list(CrossStage)),
        choose.choice(list(OrderRule)),
    )
    return Case(network, target, plan, accumulators, resident)
