"""The interpreter: every instruction alone, small programs, one test per detector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from raptor_cp.targets.pim.artifact import make_program
from raptor_cp.targets.pim.interpreter import (
    CoreImage,
    CoreOrder,
    GroupMatrix,
    Interpreter,
)
from raptor_cp.targets.pim.interpreter_memory import (
    FaultKind,
    GlobalMemory,
    ProgramFault,
    as_bytes,
    from_bytes,
)
from raptor_cp.targets.pim.isa import RECORD, Opcode
from raptor_cp.targets.pim.sidecar import Region, softmax, table_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Line = tuple[object, ...]

ORDERS = [
    (CoreOrder.RANDOM, 0),
    (CoreOrder.RANDOM, 1),
    (CoreOrder.GREEDY, 0),
    (CoreOrder.GREEDY, 1),
    (CoreOrder.GREEDY, 2),
]


def text(*lines: Line) -> NDArray[np.void]:
    """Records of (opcode, rd, rs1, r2_or_imm, generic1, generic2, generic3)."""
    return np.array(
        [
            (int(op), rd, rs1, 0, *rest)  # type: ignore[call-overload]
            for op, rd, rs1, *rest in (
                (*line, *(0,) * (7 - len(line))) for line in lines
            )
        ],
        RECORD,
    )


def sldi(register: int, value: int) -> Line:
    return (Opcode.SLDI, register, 0, value)


def setbw(ibiw: int, obiw: int) -> Line:
    return (Opcode.SETBW, 0, 0, 0, ibiw, obiw)


def vector(opcode: Opcode, to: int, first: int, second: int, length: int) -> list[Line]:
    """Operand addresses in registers 0, 1, 2; a bound is register 2's value."""
    return [
        sldi(0, to),
        sldi(1, first),
        sldi(2, second),
        (opcode, 0, 1, 2, 0, 0, length),
    ]


def load(to: int, address: int, size: int) -> list[Line]:
    return [
        sldi(0, to),
        sldi(4, 0),
        sldi(5, address),
        (Opcode.LD, 0, 4, 0, 0, 0, size),
    ]


def store(address: int, source: int, size: int) -> list[Line]:
    return [
        sldi(0, source),
        sldi(4, 0),
        sldi(5, address),
        (Opcode.ST, 4, 0, 0, 0, 0, size),
    ]


def fill(to: int, value: int, length: int) -> list[Line]:
    return [sldi(0, to), (Opcode.LLDI, 0, 0, value, 0, 0, length)]


def copy(to: int, source: int, length: int) -> list[Line]:
    return [sldi(0, to), sldi(1, source), (Opcode.LMV, 0, 1, 0, 0, 0, length)]


def send(core: int, source: int, size: int) -> list[Line]:
    return [sldi(0, source), (Opcode.SEND, 0, 0, core, 0, 0, size)]


def receive(core: int, to: int, size: int) -> list[Line]:
    return [sldi(0, to), (Opcode.RECV, 0, 0, core, 0, 0, size)]


def sync(core: int, register: int) -> Line:
    return (Opcode.SYNC, 0, 0, core, register)


def wait(register: int, value: int) -> Line:
    return (Opcode.WAIT, 0, 0, 0, register, value)


def chip(
    *streams: Sequence[Line],
    regions: Sequence[Region] = (),
    inputs: Callable[[str, int], Ints] | None = None,
    preloads: dict[int, tuple[tuple[int, NDArray[np.uint8]], ...]] | None = None,
    groups: dict[int, tuple[GroupMatrix, ...]] | None = None,
    local: int = 512,
    size: int = 256,
) -> tuple[Interpreter, GlobalMemory]:
    groups, preloads = groups or {}, preloads or {}
    program = make_program(
        {
            core: (np.ones(len(groups.get(core, ())), np.int64), text(*lines))
            for core, lines in enumerate(streams)
        },
        len(streams),
    )
    memory = GlobalMemory(size, regions, inputs)
    images = [
        CoreImage(p, local, groups.get(p.core, ()), preloads.get(p.core, ()))
        for p in program.cores
    ]
    return Interpreter(images, memory), memory


def compute(
    lines: Sequence[Line],
    held: dict[int, tuple[Ints, int]],
    at: int,
    width: int,
    count: int,
    groups: tuple[GroupMatrix, ...] = (),
) -> Ints:
    """Elements at ``at`` after one round of one core; ``held``: address -> values."""
    preloads = tuple((a, as_bytes(v, w)) for a, (v, w) in held.items())
    region = Region("output", "y", (0, 1, 0, 1, 0, count), 0, width * count, width)
    interpreter, memory = chip(
        [*lines, *store(0, at, width * count)],
        regions=[region],
        preloads={0: preloads},
        groups={0: groups},
    )
    interpreter.run(1)
    data, stored = memory.outputs[0][0]
    assert stored.all()
    return from_bytes(data, width)


A = np.array([5, -7, 127, -128, 0, 100], np.int64)
B = np.array([3, 2, 1, 6, 4, 100], np.int64)


def wrap(values: Ints, bits: int) -> Ints:
    return np.array(
        [(int(v) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in values]
    )


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        (Opcode.VVADD, wrap(A + B, 8)),
        (Opcode.VVSUB, wrap(A - B, 8)),
        (Opcode.VVMAX, np.maximum(A, B)),
        (Opcode.VRELU, np.maximum(A, 0)),
        (Opcode.VMV, A),
    ],
)
def test_narrow_vector_instructions_wrap_to_the_input_width(
    opcode: Opcode, expected: Ints
) -> None:
    lines = [setbw(8, 16), *vector(opcode, 64, 0, 16, 6)]
    found = compute(lines, {0: (A, 1), 16: (B, 1)}, 64, 1, 6)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("obiw", [8, 16, 24, 40, 64])
@pytest.mark.parametrize(
    ("opcode", "exact"),
    [
        (Opcode.VVMUL, A * B),
        (Opcode.VVSLL, A << np.minimum(B, 63)),
        (Opcode.VVSRA, A >> np.minimum(B, 63)),
    ],
)
def test_wide_vector_instructions_wrap_to_the_output_width(
    opcode: Opcode, exact: Ints, obiw: int
) -> None:
    shift = opcode is not Opcode.VVMUL
    second = np.where(B > 63, 0, B) if shift else B
    exact = np.where(B > 63, A, exact) if shift else exact
    lines = [setbw(8, obiw), *vector(opcode, 64, 0, 16, 6)]
    found = compute(lines, {0: (A, 1), 16: (second, 1)}, 64, obiw // 8, 6)
    assert found.tolist() == wrap(exact, obiw).tolist()


def test_bounds_are_register_values() -> None:
    wide = np.array([1000, -1000, 127, 128], np.int64)
    lines = [setbw(16, 16), *vector(Opcode.VRSL, 64, 0, -128, 4)]
    lines += [setbw(16, 8), *vector(Opcode.VRSU, 80, 64, 127, 4)]
    assert compute(lines, {0: (wide, 2)}, 80, 1, 4).tolist() == [127, -128, 127, 127]


def test_widening_in_place_reads_before_it_writes() -> None:
    lines = [setbw(8, 32), *vector(Opcode.VRSU, 0, 0, 127, 6)]
    assert compute(lines, {0: (A, 1)}, 0, 4, 6).tolist() == A.tolist()


def test_dot_product_and_average_write_one_element() -> None:
    lines = [setbw(8, 16), *vector(Opcode.VVDMUL, 64, 0, 16, 6)]
    lines += vector(Opcode.VAVG, 66, 0, 0, 6)
    found = compute(lines, {0: (A, 1), 16: (B, 1)}, 64, 2, 2)
    assert found.tolist() == [int(A @ B), int(A.sum()) // 6]


@pytest.mark.parametrize("name", ["vsigm", "vtanh", "vsoftmax"])
def test_table_functions(name: str) -> None:
    opcode = Opcode[name.upper()]
    lines = [setbw(8, 8), *vector(opcode, 64, 0, 0, 6)]
    expected = softmax(A, 8) if name == "vsoftmax" else table_function(name, A, 8)
    assert compute(lines, {0: (A, 1)}, 64, 1, 6).tolist() == expected.tolist()


def test_matrix_product_wraps_to_the_output_width() -> None:
    weights = np.arange(-9, 9).reshape(6, 3).astype(np.int8) * 10
    group = GroupMatrix(weights, 4)
    lines = [setbw(8, 16), sldi(0, 64), sldi(1, 0), (Opcode.MVMUL, 0, 1, 8)]
    found = compute(lines, {0: (A, 1)}, 64, 2, 3, (group,))
    assert found.tolist() == wrap(A @ weights, 16).tolist()


def test_what_a_product_writes_behind_its_columns_is_undefined() -> None:
    group = GroupMatrix(np.ones((6, 3), np.int8), 4)
    lines = [setbw(8, 16), sldi(0, 64), sldi(1, 0), (Opcode.MVMUL, 0, 1, 8)]
    with pytest.raises(ProgramFault) as caught:
        compute(lines, {0: (A, 1), 70: (A[:1], 2)}, 64, 2, 4, (group,))
    assert caught.value.kind is FaultKind.UNWRITTEN


def test_copies_fills_and_scalar_arithmetic() -> None:
    lines = [*fill(32, -1, 8), *copy(33, 0, 3)]
    lines += [sldi(7, 2**31 - 1), (Opcode.SADDI, 8, 7, 1)]  # wraps
    lines += [(Opcode.SADD, 9, 8, 7), (Opcode.SMULI, 9, 9, -3)]
    lines += [(Opcode.SSUB, 10, 9, 9), (Opcode.SMUL, 11, 9, 9)]
    lines += [setbw(8, 8), sldi(0, 40), sldi(1, 0), (Opcode.VRSU, 0, 1, 11, 0, 0, 2)]
    lines += [sldi(0, 42), sldi(1, 0), (Opcode.VRSU, 0, 1, 10, 0, 0, 2)]
    found = compute(lines, {0: (A, 1)}, 32, 1, 12)
    assert found.tolist() == [-1, 5, -7, 127, -1, -1, -1, -1, 5, -7, 0, -7]


# -- small programs ---------------------------------------------------------------


def numbered(tensor: str, generation: int) -> Ints:
    return np.random.default_rng(generation).integers(-128, 128, (1, 1, 8))


def test_a_convolution_with_bias_residual_and_requantisation_equals_numpy() -> None:
    """Two cores: one computes W^T x, the other adds the skip and requantises."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (8, 8)).astype(np.int8)
    bias = rng.integers(-1000, 1000, 8)
    shift = 6
    regions = [
        Region("input", "x", (0, 1, 0, 1, 0, 8), 0, 8, 1, banks=2, stride=8),
        Region("output", "y", (0, 1, 0, 1, 0, 8), 16, 8, 1, banks=2, stride=8),
    ]
    # Register 20 is the bank: 1 - bank each round, persistent.
    flip = [sldi(21, 1), (Opcode.SSUB, 20, 21, 20)]
    bank = [(Opcode.SMULI, 5, 20, 8), (Opcode.SSUB, 5, 22, 5)]
    first = [
        setbw(8, 32),
        *flip,
        sldi(22, 8),
        sldi(4, 0),
        *bank,
        sldi(0, 0),
        (Opcode.LD, 0, 4, 0, 0, 0, 8),
        sldi(0, 64),
        sldi(1, 0),
        (Opcode.MVMUL, 0, 1, 8),
        *send(1, 64, 32),
        *send(1, 0, 8),
        *fill(200, 0, 1),
    ]
    second = [
        *flip,
        *receive(0, 64, 32),
        *receive(0, 0, 8),
        setbw(8, 32),
        *vector(Opcode.VVSLL, 128, 0, 8, 8),  # residual: widen and align
        setbw(32, 32),
        *vector(Opcode.VVADD, 64, 64, 128, 8),
        *vector(Opcode.VVADD, 64, 64, 300, 8),
        *vector(Opcode.VVSRA, 64, 64, 332, 8),
        *vector(Opcode.VRELU, 64, 64, 0, 8),
        setbw(32, 8),
        *vector(Opcode.VRSU, 64, 64, 127, 8),
        sldi(22, 24),
        sldi(4, 0),
        *bank,
        sldi(0, 64),
        (Opcode.ST, 4, 0, 0, 0, 0, 8),
    ]
    constants = (
        (8, as_bytes(np.full(8, 4), 1)),
        (300, as_bytes(bias + (1 << (shift - 1)), 4)),
        (332, as_bytes(np.full(8, shift), 4)),
    )
    for order, seed in ORDERS:
        interpreter, memory = chip(
            first,
            second,
            regions=regions,
            inputs=numbered,
            preloads={1: constants},
            groups={0: (GroupMatrix(weights, 8),)},
        )
        interpreter.run(6, order, seed)
        for generation in range(6):
            x = numbered("x", generation)[0, 0]
            y = (x @ weights.astype(np.int64) + (x << 4) + bias + 32) >> shift
            data, stored = memory.outputs[1][generation]
            assert stored.all()
            assert from_bytes(data, 1).tolist() == np.clip(y, 0, 127).tolist()


def pipeline(*, credit: bool = True, ready: bool = True) -> list[list[Line]]:
    """Core 0 publishes its input through one buffer at 64, core 1 stores it."""
    producer: list[Line] = [*load(0, 0, 8)]
    producer += [wait(0, 1)] if credit else []
    producer += store(64, 0, 8)
    producer += [sync(1, 0)] if ready else []
    consumer: list[Line] = [sync(0, 0)] if credit else []
    consumer += [wait(0, 1)] if ready else []
    consumer += [*load(0, 64, 8), *store(128, 0, 8)]
    return [producer, consumer]


PIPELINE = [
    Region("input", "x", (0, 1, 0, 1, 0, 8), 0, 8, 1),
    Region("publication", "x", (0, 1, 0, 1, 0, 8), 64, 8, 1),
    Region("output", "y", (0, 1, 0, 1, 0, 8), 128, 8, 1),
]


@pytest.mark.parametrize(("order", "seed"), ORDERS)
def test_a_coupled_pipeline_is_right_in_every_order(
    order: CoreOrder, seed: int
) -> None:
    interpreter, memory = chip(*pipeline(), regions=PIPELINE, inputs=numbered)
    interpreter.run(8, order, seed)
    for generation in range(8):
        data, _ = memory.outputs[2][generation]
        assert (
            from_bytes(data, 1).tolist() == numbered("x", generation).ravel().tolist()
        )


# -- one test per detector --------------------------------------------------------


def kinds(
    *streams: Sequence[Line], generations: int = 6, **options: object
) -> set[FaultKind]:
    """What goes wrong, over all orders."""
    found = set()
    for order, seed in ORDERS:
        interpreter, _ = chip(*streams, **options)  # type: ignore[arg-type]
        try:
            interpreter.run(generations, order, seed)
        except ProgramFault as fault:
            found.add(fault.kind)
    return found


def test_without_ready_a_load_is_early() -> None:
    found = kinds(*pipeline(ready=False), regions=PIPELINE, inputs=numbered)
    assert found == {FaultKind.UNWRITTEN, FaultKind.RACE}


def test_without_free_data_are_overwritten() -> None:
    found = kinds(*pipeline(credit=False), regions=PIPELINE, inputs=numbered)
    assert found == {FaultKind.OVERWRITTEN, FaultKind.RACE}


def test_a_race_is_found_even_where_the_result_is_right() -> None:
    """Rising core numbers for one round: the load happens to be late enough."""
    streams = pipeline(credit=False, ready=False)
    interpreter, _ = chip(*streams, regions=PIPELINE, inputs=numbered)
    with pytest.raises(ProgramFault) as caught:
        interpreter.run(1, CoreOrder.GREEDY, 0)
    assert caught.value.kind is FaultKind.RACE
    assert str(caught.value) == (
        "core 1, round 0, instruction 3 (ld): no signal orders it behind the store of "
        "byte 64 of global memory (publication 'x') by core 0, instruction 7, of this "
        "round"
    )


def test_data_that_were_stored_in_the_round_before_are_stale() -> None:
    """The signal comes before the store that it should announce."""
    producer, consumer = pipeline()
    early = [producer[-1], *producer[:-1]]
    late = [*consumer, *load(16, 64, 8)]
    found = kinds(early, late, regions=PIPELINE, inputs=numbered)
    assert found <= {FaultKind.STALE, FaultKind.UNWRITTEN, FaultKind.RACE}
    assert found


def test_a_register_of_two_sources_must_not_mix_rounds() -> None:
    """Core 0's second signal could stand in for the first one of core 1."""
    work = fill(0, 0, 1)
    found = kinds([sync(2, 0), *work], [sync(2, 0), *work], [wait(0, 2), *work])
    assert found == {FaultKind.RACE}
    coupled = [[wait(1, 1), sync(2, 0), *work] for _ in range(2)]
    # The target permits each round; no permission is needed in the first one.
    target = [sync(0, 1), sync(1, 1), wait(0, 2), *work]
    assert kinds(*coupled, target) == set()


def test_a_message_names_place_and_author() -> None:
    streams = pipeline(credit=False)
    interpreter, _ = chip(*streams, regions=PIPELINE, inputs=numbered)
    with pytest.raises(ProgramFault) as caught:
        interpreter.run(6, CoreOrder.GREEDY)
    assert str(caught.value) == (
        "core 1, round 0, instruction 4 (ld): byte 64 of global memory (publication "
        "'x') was overwritten by core 0, instruction 7, in round 5 while round 0 was "
        "still to be read"
    )
    assert (caught.value.core, caught.value.instruction) == (1, 4)


def test_reads_of_local_memory_nobody_wrote() -> None:
    for lines in (
        [setbw(8, 8), *vector(Opcode.VRELU, 0, 32, 0, 4)],
        copy(0, 32, 4),
        store(0, 32, 4),
        [*send(1, 32, 4)],
    ):
        other = [*receive(0, 0, 4)] if lines[-1][0] is Opcode.SEND else fill(0, 0, 4)
        assert kinds(lines, other) == {FaultKind.UNWRITTEN}


def test_transfers_of_the_wrong_size() -> None:
    lines = [*fill(0, 1, 16), *send(1, 0, 16)]
    assert kinds(lines, receive(0, 0, 8)) == {FaultKind.SIZE}


def test_addresses_out_of_range() -> None:
    assert kinds(fill(510, 0, 8)) == {FaultKind.RANGE}
    assert kinds(fill(-4, 0, 2)) == {FaultKind.RANGE}
    assert kinds([*fill(0, 0, 8), *store(252, 0, 8)]) == {FaultKind.RANGE}
    between = [*fill(0, 0, 8), *store(68, 0, 8)]
    assert kinds(between, regions=PIPELINE) == {FaultKind.RANGE}
    into_input = [*fill(0, 0, 8), *store(0, 0, 8)]
    assert kinds(into_input, regions=PIPELINE) == {FaultKind.RANGE}


def test_deadlock_names_cores_and_instructions() -> None:
    lines = [
        [*fill(0, 0, 8), *send(1 - core, 0, 8), *receive(1 - core, 8, 8)]
        for core in (0, 1)
    ]
    interpreter, _ = chip(*lines)
    with pytest.raises(ProgramFault) as caught:
        interpreter.run(2)
    assert caught.value.kind is FaultKind.DEADLOCK
    assert str(caught.value) == (
        "nobody can go on: core 0 at instruction 3 of round 0: send to core 1; core 1 "
        "at instruction 3 of round 0: send to core 0"
    )


def test_a_wait_nobody_satisfies_is_a_deadlock() -> None:
    interpreter, _ = chip([sync(1, 3), *fill(0, 0, 1)], [wait(3, 2), *fill(0, 0, 1)])
    with pytest.raises(ProgramFault, match=r"event register 3 \(1 of 2\)"):
        interpreter.run(1)


def test_signals_that_are_left_over() -> None:
    lines = [[sync(1, 3), sync(1, 3), *fill(0, 0, 1)], [wait(3, 1), *fill(0, 0, 1)]]
    assert kinds(*lines) == {FaultKind.SIGNALS}


def test_an_output_in_the_wrong_bank() -> None:
    region = Region("output", "y", (0, 1, 0, 1, 0, 8), 0, 8, 1, banks=2, stride=8)
    lines = [*fill(0, 0, 8), *store(0, 0, 8)]
    assert kinds(lines, regions=[region]) == {FaultKind.OUTPUT}


def test_undefined_instructions() -> None:
    negative = [setbw(8, 8), *fill(0, -1, 8), *vector(Opcode.VVSRA, 16, 0, 0, 8)]
    assert kinds(negative) == {FaultKind.UNDEFINED}
    offset = [*fill(0, 0, 8), (Opcode.LMV, 0, 0, 0, 1, 4, 8)]
    assert kinds(offset) == {FaultKind.UNDEFINED}
