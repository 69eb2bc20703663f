"""Does an emitted program compute its network?  Executed, compared bit for bit.

The program runs in the interpreter under several core orders, for enough rounds that
every buffer is reused, with other inputs each round.  Every element of every network
output of every round must equal the reference, whose numbers and weights come from
the program's sidecar.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.graph.views import root_of
from raptor_cp.graph.widths import Accumulators
from raptor_cp.targets.pim.artifact import read_program
from raptor_cp.targets.pim.interpreter import (
    CoreImage,
    CoreOrder,
    GroupMatrix,
    Interpreter,
)
from raptor_cp.targets.pim.interpreter_memory import (
    GlobalMemory,
    ProgramFault,
    as_bytes,
    from_bytes,
)
from raptor_cp.targets.pim.quantization import Quantization, input_values
from raptor_cp.targets.pim.reference import evaluate
from raptor_cp.targets.pim.sidecar import network_digest, read_sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.graph.crossbars import MatrixArray
    from raptor_cp.network.structure import Network
    from raptor_cp.targets.pim.artifact import CoreProgram, Program
    from raptor_cp.targets.pim.sidecar import ArrayGroup, Region, Sidecar

    Ints = NDArray[np.int64]

SCHEMA = "raptor-cp/verification/1"
PROGRAM_FOLDER = "program"
#: Folder, inside a program's, of the program with host pseudo-operations.
NATIVE_FOLDER = "native"


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One execution: which core goes next."""

    order: CoreOrder
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.order.value}, seed {self.seed}"


def core_orders(count: int, seed: int = 0) -> tuple[RunOrder, ...]:
    """``count`` orders: random, rising and falling core numbers, then both kinds."""
    found = [
        RunOrder(CoreOrder.RANDOM, seed),
        RunOrder(CoreOrder.GREEDY, 0),
        RunOrder(CoreOrder.GREEDY, 1),
    ]
    for index in range(3, count):
        order = CoreOrder.RANDOM if index % 2 else CoreOrder.GREEDY
        found.append(RunOrder(order, seed + index))
    return tuple(found[:count])


DEFAULT_ORDERS = core_orders(3)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first element that is wrong.

    Attributes:
        output: tensor.
        generation: round, from 0.
        element: (row, column, channel) in the tensor's memory order.
        expected, found: integers; ``found`` is None where nobody stored the element.
        order: core order under which it was seen.
        wrong, elements: how many elements of this output and round are wrong, of all.
    """

    output: str
    generation: int
    element: tuple[int, int, int]
    expected: int
    found: int | None
    order: str
    wrong: int
    elements: int

    def __str__(self) -> str:
        row, column, channel = self.element
        found = "never stored" if self.found is None else f"found {self.found}"
        return (
            f"output {self.output!r}, round {self.generation}, element (row {row}, "
            f"column {column}, channel {channel}): expected {self.expected}, {found}; "
            f"{self.wrong} of {self.elements} elements differ (core order: "
            f"{self.order})"
        )


@dataclass(frozen=True, slots=True)
class FaultReport:
    """What an execution did wrong; the fields of a ``ProgramFault``."""

    kind: str
    message: str
    core: int
    generation: int
    instruction: int
    order: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message} (core order: {self.order})"


@dataclass(frozen=True, slots=True)
class Verification:
    """What was executed and compared.

    Attributes:
        network: name.
        accumulators: ``exact`` or ``activation``.
        outputs: network outputs, by the tensor that holds them.
        generations: rounds of each execution.
        orders: core orders, in the order they were run.
        instructions: of one round, all cores.
        compared: elements that were equal.
        host_operations: pseudo-operations that the host supplied.
        difference, fault: the first thing that is wrong, or None.
    """

    network: str
    accumulators: str
    outputs: tuple[str, ...]
    generations: int
    orders: tuple[str, ...]
    instructions: int
    compared: int
    host_operations: tuple[str, ...]
    difference: Difference | None = None
    fault: FaultReport | None = None

    @property
    def equal(self) -> bool:
        """The program computes the network."""
        return self.difference is None and self.fault is None

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"schema": SCHEMA, "equal": self.equal, **asdict(self)}


def generations_for(sidecar: Sidecar) -> int:
    """Rounds after which every bank was reused twice: ``2 D + 2``."""
    return 2 * max((region.banks for region in sidecar.regions), default=1) + 2


def verify_program(
    network: Network,
    program: Program,
    sidecar: Sidecar,
    *,
    array: MatrixArray | None = None,
    generations: int | None = None,
    orders: Sequence[RunOrder] = DEFAULT_ORDERS,
    seed: int = 0,
    strict_host: bool = False,
) -> Verification:
    """Execute ``program`` and compare it with the reference.

    Args:
        network: what it should compute.
        program: the checked program, the native one where there are two.
        sidecar: its weights, numbers and addresses.
        array: crossbar geometry; with it a product writes the full width of its
            crossbars, undefined behind the true columns.
        generations: rounds; by default :func:`generations_for`.
        orders: core orders to try; the first failure ends the verification.
        seed: of the inputs.
        strict_host: one input in each bank (see
            :mod:`raptor_cp.targets.pim.interpreter_memory`), and one round at a time
            where the host contract says so.

    Raises:
        MalformedInput: the sidecar belongs to another network or program.
    """
    rounds = generations_for(sidecar) if generations is None else generations
    if sidecar.digest != network_digest(network):
        raise MalformedInput(
            "the sidecar is that of another network",
            where=f"program of {sidecar.network!r}",
            value=network.name,
            expected="the network that the program was generated from",
        )
    outputs = _output_regions(network, sidecar)
    reference = _Reference(network, sidecar, seed)
    bits = {
        operation.name: operation.weight.bits
        for operation in network.operations
        if operation.weight is not None
    }
    images = [_image(core, sidecar, array, bits) for core in program.active_cores]
    compared = 0
    difference: Difference | None = None
    fault: FaultReport | None = None
    done = []
    for order in orders:
        memory = GlobalMemory(
            sidecar.global_bytes,
            sidecar.regions,
            reference.input_values,
            strict=strict_host,
        )
        _place_constants(memory, sidecar)
        done.append(str(order))
        try:
            Interpreter(images, memory).run(
                rounds,
                order.order,
                order.seed,
                alone=strict_host and sidecar.alone,
            )
        except ProgramFault as wrong:
            fault = FaultReport(
                wrong.kind.value,
                str(wrong),
                wrong.core,
                wrong.generation,
                wrong.instruction,
                str(order),
            )
            break
        for generation in range(rounds):
            for index in outputs:
                expected = reference.output(sidecar.regions[index], generation)
                stored = memory.outputs.get(index, {}).get(generation)
                difference = _compare(
                    sidecar.regions[index], generation, expected, stored, str(order)
                )
                if difference is not None:
                    break
                compared += expected.size
            if difference is not None:
                break
        if difference is not None:
            break
    return Verification(
        network=network.name,
        accumulators=sidecar.accumulators,
        outputs=tuple(sidecar.regions[index].tensor for index in outputs),
        generations=rounds,
        orders=tuple(done),
        instructions=program.instructions,
        compared=compared,
        host_operations=sidecar.host_operations,
        difference=difference,
        fault=fault,
    )


def verify_run(
    run: Path,
    network: Network,
    *,
    array: MatrixArray | None = None,
    generations: int | None = None,
    orders: Sequence[RunOrder] = DEFAULT_ORDERS,
    seed: int = 0,
    strict_host: bool = False,
) -> Verification:
    """Verify the program of a run folder.

    Args:
        run: folder with ``program/``.
        network: of the scenario beside it.
        array, generations, orders, seed, strict_host: see :func:`verify_program`.

    Raises:
        MalformedInput: no program (refused or skipped), or one that does not fit the
            network.
    """
    folder = run / PROGRAM_FOLDER
    if not folder.is_dir():
        raise MalformedInput(
            "the run has no program",
            where=str(run),
            expected="program/ inside the run folder",
            hint="run schedule in pipeline mode on a pim target; result.json says why "
            "a program was refused",
        )
    sidecar = read_sidecar(folder)
    native = folder / NATIVE_FOLDER
    program = read_program(native if native.is_dir() else folder)
    return verify_program(
        network,
        program,
        sidecar,
        array=array,
        generations=generations,
        orders=orders,
        seed=seed,
        strict_host=strict_host,
    )


class _Reference:
    """Inputs and expected outputs; each round is evaluated once."""

    def __init__(self, network: Network, sidecar: Sidecar, seed: int) -> None:
        self._network, self._seed = network, seed
        own = {name: sidecar.tensors[name] for name in network.constants}
        self._quantization = Quantization(
            Accumulators(sidecar.accumulators),
            sidecar.operations,
            sidecar.weights,
            sidecar.biases,
            sidecar.scales,
            own,
        )
        self._rounds: dict[int, dict[str, Ints]] = {}
        self._kept = {root_of(network, name) for name in network.outputs}

    def input_values(self, tensor: str, generation: int) -> Ints:
        """[rows, columns, channels] of one round."""
        return input_values(self._network, tensor, generation, self._seed)

    def output(self, region: Region, generation: int) -> Ints:
        """What a region should hold after one round."""
        if generation not in self._rounds:
            given = {
                name: self.input_values(name, generation)
                for name in self._network.inputs
            }
            values = evaluate(self._network, self._quantization, given)
            self._rounds[generation] = {
                name: values[name] for name in sorted(self._kept)
            }
        rows, row_stop, columns, column_stop, channels, channel_stop = region.box
        value = self._rounds[generation][region.tensor]
        return value[rows:row_stop, columns:column_stop, channels:channel_stop]


def _output_regions(network: Network, sidecar: Sidecar) -> list[int]:
    """Regions of the outputs, which must cover every output that is computed."""
    regions = [
        index for index, region in enumerate(sidecar.regions) if region.kind == "output"
    ]
    covered: dict[str, int] = {}
    for index in regions:
        region = sidecar.regions[index]
        size = region.size // region.element_bytes
        covered[region.tensor] = covered.get(region.tensor, 0) + size
    for name in network.outputs:
        root = root_of(network, name)
        if network.producer(root) is None:
            continue  # an input that is an output as well: nobody stores it
        if covered.get(root, 0) != network.tensors[root].elements:
            raise MalformedInput(
                "the sidecar has no place for a network output",
                where=f"program of {sidecar.network!r}, output {name!r}",
                value=covered.get(root, 0),
                expected=f"{network.tensors[root].elements} elements of {root!r}",
            )
    return regions


def _compare(
    region: Region,
    generation: int,
    expected: Ints,
    stored: tuple[NDArray[np.uint8], NDArray[np.bool_]] | None,
    order: str,
) -> Difference | None:
    if stored is None:
        found: Ints = np.zeros(expected.shape, np.int64)
        known: NDArray[np.bool_] = np.zeros(expected.shape, np.bool_)
    else:
        width = region.element_bytes
        found = from_bytes(stored[0], width).reshape(expected.shape)
        whole = stored[1].reshape(-1, width).min(axis=1)
        known = np.asarray(whole, np.bool_).reshape(expected.shape)
    wrong: NDArray[np.bool_] = np.asarray((found != expected) | ~known)
    if not wrong.any():
        return None
    row, column, channel = (
        int(index) for index in np.unravel_index(int(np.argmax(wrong)), expected.shape)
    )
    place = (row, column, channel)
    first = (region.box[0], region.box[2], region.box[4])
    return Difference(
        output=region.tensor,
        generation=generation,
        element=(row + first[0], column + first[1], channel + first[2]),
        expected=int(expected[place]),
        found=int(found[place]) if known[place] else None,
        order=order,
        wrong=int(wrong.sum()),
        elements=int(expected.size),
    )


def _image(
    core: CoreProgram,
    sidecar: Sidecar,
    array: MatrixArray | None,
    weight_bits: dict[str, int],
) -> CoreImage:
    own = sorted(
        (group for group in sidecar.groups if group.core == core.core),
        key=lambda group: group.group,
    )
    if [group.group for group in own] != list(range(len(core.array_groups))) or any(
        group.crossbars != int(crossbars)
        for group, crossbars in zip(own, core.array_groups, strict=True)
    ):
        raise MalformedInput(
            "the sidecar's array groups are not those of the program",
            where=f"program of {sidecar.network!r}, core {core.core}",
            value=[(group.group, group.crossbars) for group in own],
            expected=f"groups of {core.array_groups.tolist()} crossbars",
        )
    matrices = tuple(
        _matrix(group, sidecar, array, weight_bits[group.operation]) for group in own
    )
    preloads = tuple(
        (
            preload.address,
            as_bytes(sidecar.preload_values(preload), preload.element_bytes),
        )
        for preload in sidecar.preloads
        if preload.core == core.core
    )
    size = dict(sidecar.local_bytes).get(core.core, 0)
    return CoreImage(core, size, matrices, preloads)


def _matrix(
    group: ArrayGroup, sidecar: Sidecar, array: MatrixArray | None, weight_bits: int
) -> GroupMatrix:
    weights = sidecar.group_matrix(group)
    width = group.columns
    if array is not None:
        width = max(width, group.crossbars * array.columns_for(weight_bits))
    return GroupMatrix(weights, width)


def _place_constants(memory: GlobalMemory, sidecar: Sidecar) -> None:
    for region in sidecar.regions:
        if region.kind == "constant":
            rows, row_stop, columns, column_stop, first, stop = region.box
            values = sidecar.tensors[region.tensor]
            part = values[rows:row_stop, columns:column_stop, first:stop]
            memory.place_constant(region, part)
