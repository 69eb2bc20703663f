"""What a program does not carry: weights, numbers, addresses, the host contract.

A program folder holds the simulator's files, ``program.json`` and ``weights.npz``.
Code generation writes the two, functional verification reads them.

Integer semantics (execution model, "Integer semantics"); ``b`` is the width of
activations, ``a`` of partial sums, in bits.  Elements are signed, little-endian,
``ceil(width/8)`` bytes; every write wraps around to its bytes, only ``vrsu`` (upper
bound) and ``vrsl`` (lower bound) clamp, to the value of register ``rs2``.  With
:class:`OperationNumbers` ``n`` of an operation, ``finish`` is

* ``a > b`` (exact): ``y = (acc + constant + rounding) >> n.shift`` (arithmetic, in
  ``a`` bits, ``rounding = 2^(shift-1)``, 0 for shift 0), then ``max(y, n.lower)``,
  ``min(y, n.upper)``, then the function unless it is one of ReLU and clip, which
  the bounds already are;
* otherwise ``y = wrap(acc + constant, b)``, then the function.

=============  ==================================================================
CONV, GEMM     ``acc = W^T x`` (wrapped to a), constant = bias; ``finish``
ADD, SUB       operands shifted left by ``n.input_shifts`` (a > b only) and combined;
               the scalar counts as an operand of value ``n.scalar``; ``finish``
MUL            product (a bits); ``finish``
MAX, MIN       ``max(p, q)``; ``p - max(p - q, 0)`` wrapped to b; then the function
SCALE          ``x * scale`` (a bits), constant = bias; ``finish``
POOL, REDUCE   maximum; or ``y = (sum * M) >> n.shift`` in a bits, where ``M`` is
               :meth:`OperationNumbers.reciprocal` of the summed elements, then
               ``min(y, n.upper)`` when a > b; a sum has no such scaling
MATMUL         ``acc`` = dot products (wrapped to a); ``finish``
SOFTMAX        host pseudo-operation, :func:`softmax` over channels
moves          concat, slice, pad, transpose, gather, nearest resize: no arithmetic
=============  ==================================================================

Functions of finished elements: RELU ``max(y, 0)``; CLIP ``min(max(y, lower),
upper)``; LEAKY_RELU and PRELU ``max(y, min((y * slope) >> slope_shift, 2^(b-1)-1))``
(the product in a bits); SIGMOID and TANH :func:`table_function`.

The matrix of a CONV has its rows in order (kernel row, kernel column, channel of the
group); the rows of a GEMM are in memory order of its input (rows, columns,
channels), also behind a flatten.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network

    Ints = NDArray[np.int64]

SCHEMA = "raptor-cp/program-1"
JSON_NAME = "program.json"
ARRAYS_NAME = "weights.npz"
_RESIDENT = (
    "resident constants and weights are present before round 0 and never written"
)
#: Rounds overlap: a core may begin the next one at once.
HOST_CONTRACT = (
    "input k is present before round k: in bank k mod banks of its region; there it "
    "replaces input k - banks, whose last load the program's signals place before any "
    "core's first load of input k - 1; "
    f"output k is taken before the same core's next store to that bank; {_RESIDENT}"
)
#: One inference alone: nothing in the program keeps cores in the same round.
HOST_CONTRACT_ALONE = (
    "one round at a time: input k is put in its place once every core has ended round "
    "k - 1, and output k taken once every core has ended round k, before any core "
    f"begins the next round; {_RESIDENT}"
)


@dataclass(frozen=True, slots=True)
class OperationNumbers:
    """Integers of one operation; see the module docstring.

    Attributes:
        name: of the operation.
        input_bits, output_bits, accumulator_bits: element widths.
        shift: right shift of ``finish``, or of an average.
        input_shifts: left shift of each operand of ADD and SUB.
        lower, upper: bounds of finished elements.
        scalar: value of an immediate operand, in units of the first operand.
        slope, slope_shift: of a leaky rectification.
    """

    name: str
    input_bits: int
    output_bits: int
    accumulator_bits: int
    shift: int = 0
    input_shifts: tuple[int, ...] = ()
    lower: int = 0
    upper: int = 0
    scalar: int = 0
    slope: int = 0
    slope_shift: int = 0

    @property
    def exact(self) -> bool:
        """Partial sums are wider than activations."""
        return self.accumulator_bits > self.output_bits

    def reciprocal(self, count: int) -> int:
        """``M`` of an average over ``count`` elements; 1 without wide sums.

        Rounded down, so that no average leaves the range of its elements.
        """
        if not self.exact:
            return 1
        return (1 << self.shift) // count


@dataclass(frozen=True, slots=True)
class ArrayGroup:
    """One array group of a core: what its crossbars hold.

    ``rows`` (K_g) x ``columns``: either rows [row_start, row_stop) of the matrix of
    one convolution group, or ``groups_together`` whole matrices of ``depth`` input
    channels each, block-diagonally.
    The columns are output channels [channel_start, channel_stop) of the operation.
    """

    core: int
    group: int
    operation: str
    row_start: int
    row_stop: int
    channel_start: int
    channel_stop: int
    rows: int
    columns: int
    crossbars: int
    groups_together: int = 1
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Region:
    """A place in global memory.

    Round k uses bank ``k mod banks`` at ``address + (k mod banks) * stride``; elements
    of ``box`` (row, column, channel limits in ``tensor``'s extent) are dense, channels
    innermost, ``element_bytes`` each.

    Attributes:
        kind: ``input``, ``output``, ``publication``, ``constant`` (present before
            round 0).
        publication: index in the compute graph, -1 for the other kinds.
        size: bytes of one bank.
    """

    kind: str
    tensor: str
    box: tuple[int, int, int, int, int, int]
    address: int
    size: int
    element_bytes: int
    banks: int = 1
    stride: int = 0
    publication: int = -1


@dataclass(frozen=True, slots=True)
class Preload:
    """Resident constants in a core's local memory.

    ``elements`` elements of ``element_bytes`` bytes at ``address``: the values of
    ``Sidecar.patterns[pattern]``, repeated.
    """

    core: int
    address: int
    element_bytes: int
    elements: int
    pattern: str


@dataclass(frozen=True, slots=True, eq=False)
class Sidecar:
    """See the module docstring.

    Attributes:
        network: name; ``digest`` identifies its operations and tensors.
        accumulators: ``exact`` or ``activation``.
        constants: ``resident`` or ``loaded``.
        core_count: cores of the program, idle ones included.
        operations: numbers of every operation that computes, in network order.
        groups: array groups, by core and number.
        regions: global memory.
        preloads: resident constants of local memories.
        local_bytes: (core, highest local address used).
        global_bytes: highest global address used.
        host_operations: pseudo-operations that the host must supply.
        alone: made for one inference at a time (latency mode): the host lets cores
            begin a round together.
        weights: operation -> [groups, K, N].
        biases: operation -> [channels].
        scales: operation -> [channels]: SCALE factors, PReLU slopes.
        tensors: constant tensor -> [rows, columns, channels].
        patterns: values that ``preloads`` repeat.
    """

    network: str
    digest: str
    accumulators: str
    constants: str
    core_count: int
    operations: tuple[OperationNumbers, ...]
    groups: tuple[ArrayGroup, ...] = ()
    regions: tuple[Region, ...] = ()
    preloads: tuple[Preload, ...] = ()
    local_bytes: tuple[tuple[int, int], ...] = ()
    global_bytes: int = 0
    host_operations: tuple[str, ...] = ()
    host_contract: str = HOST_CONTRACT
    alone: bool = False
    weights: dict[str, NDArray[np.signedinteger]] = field(default_factory=dict)
    biases: dict[str, Ints] = field(default_factory=dict)
    scales: dict[str, Ints] = field(default_factory=dict)
    tensors: dict[str, Ints] = field(default_factory=dict)
    patterns: dict[str, Ints] = field(default_factory=dict)

    def numbers(self, operation: str) -> OperationNumbers:
        """Numbers of one operation.

        Raises:
            KeyError: the operation computes nothing, or is unknown.
        """
        for entry in self.operations:
            if entry.name == operation:
                return entry
        raise KeyError(operation)

    def group_matrix(self, group: ArrayGroup) -> Ints:
        """[rows, columns] weights of an array group, block-diagonal where packed."""
        weights = self.weights[group.operation]
        _, rows, columns = weights.shape
        if group.groups_together == 1:
            own = group.channel_start // columns
            first = group.channel_start - own * columns
            return np.asarray(
                weights[
                    own,
                    group.row_start : group.row_stop,
                    first : first + group.columns,
                ],
                np.int64,
            )
        # Rows are (kernel position, group, channel of the group): the operand is one
        # contiguous piece for each kernel position.
        matrix = np.zeros((group.rows, group.columns), np.int64)
        first = group.channel_start // columns
        together, depth = group.groups_together, group.depth
        taps = rows // depth
        view = matrix.reshape(taps, together, depth, group.columns)
        channel, stop = group.channel_start, group.channel_start + group.columns
        while channel < stop:  # a range may begin or end inside a group
            own = channel // columns
            last = min(stop, (own + 1) * columns)
            block = weights[own].reshape(taps, depth, columns)
            target = slice(channel - group.channel_start, last - group.channel_start)
            source = slice(channel - own * columns, last - own * columns)
            view[:, own - first, :, target] = block[:, :, source]
            channel = last
        return matrix

    def preload_values(self, preload: Preload) -> Ints:
        """[elements] values."""
        pattern = self.patterns[preload.pattern]
        return np.resize(pattern, preload.elements)


def network_digest(network: Network) -> str:
    """SHA-256 of everything that a network computes."""
    text = repr(
        (
            network.inputs,
            network.outputs,
            network.constants,
            network.operations,
            [network.tensors[name] for name in sorted(network.tensors)],
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()


def wrapped(values: Ints, bits: int) -> Ints:
    """Values as signed integers of ``ceil(bits/8)`` bytes.

    >>> wrapped(np.array([127, 128, -129]), 8).tolist()
    [127, -128, 127]
    """
    width = 8 * ((bits + 7) // 8)
    if width >= 64:
        return values
    half = np.int64(1) << np.int64(width - 1)
    mask = (np.int64(1) << np.int64(width)) - 1
    return cast("Ints", ((values + half) & mask) - half)


def table_function(name: str, values: Ints, bits: int) -> Ints:
    """``vsigm`` and ``vtanh`` on fixed-point numbers of ``bits`` bits.

    The operand counts in units of ``2^(4-bits)``, the result in units of
    ``1/(2^(bits-1) - 1)``; rounded to nearest even.
    """
    x = values.astype(np.float64) / 2.0 ** (bits - 4)
    y = np.tanh(x) if name == "vtanh" else 1 / (1 + np.exp(-x))
    return np.asarray(np.rint(y * (2 ** (bits - 1) - 1)), np.int64)


def softmax(values: Ints, bits: int) -> Ints:
    """The host's softmax along the last axis, units as :func:`table_function`."""
    x = values.astype(np.float64) / 2.0 ** (bits - 4)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y = e / e.sum(axis=-1, keepdims=True)
    return np.asarray(np.rint(y * (2 ** (bits - 1) - 1)), np.int64)


_ARRAYS = ("weights", "biases", "scales", "tensors", "patterns")
_RECORDS = ("operations", "groups", "regions", "preloads")


def write_sidecar(sidecar: Sidecar, folder: Path) -> None:
    """Write ``program.json`` and ``weights.npz``; equal sidecars, equal bytes."""
    document: dict[str, object] = {"schema": SCHEMA}
    arrays: dict[str, NDArray[np.signedinteger]] = {}
    names: dict[str, list[str]] = {}
    for key in Sidecar.__dataclass_fields__:
        value = getattr(sidecar, key)
        if key in _ARRAYS:
            names[key] = sorted(value)
            for index, name in enumerate(names[key]):
                arrays[f"{key}-{index}"] = value[name]
        elif key in _RECORDS:
            document[key] = [asdict(entry) for entry in value]
        else:
            document[key] = value
    document["arrays"] = names
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ARRAYS_NAME).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)
    text = json.dumps(document, separators=(",", ":")) + "\n"
    (folder / JSON_NAME).write_text(text, encoding="utf-8")


def read_sidecar(folder: Path) -> Sidecar:
    """The sidecar of a program folder.

    Raises:
        MalformedInput: a file is missing or is no sidecar of this version.
    """
    path = folder / JSON_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError("unknown schema")
        with np.load(folder / ARRAYS_NAME, allow_pickle=False) as stored:
            held = {
                key: {
                    name: stored[f"{key}-{index}"]
                    for index, name in enumerate(document["arrays"][key])
                }
                for key in _ARRAYS
            }

        def entries(key: str) -> list[dict[str, object]]:
            return [
                {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
                for entry in document[key]
            ]

        return Sidecar(
            network=document["network"],
            digest=document["digest"],
            accumulators=document["accumulators"],
            constants=document["constants"],
            core_count=document["core_count"],
            operations=tuple(
                OperationNumbers(**e)  # type: ignore[arg-type]
                for e in entries("operations")
            ),
            groups=tuple(ArrayGroup(**e) for e in entries("groups")),  # type: ignore[arg-type]
            regions=tuple(Region(**e) for e in entries("regions")),  # type: ignore[arg-type]
            preloads=tuple(Preload(**e) for e in entries("preloads")),  # type: ignore[arg-type]
            local_bytes=tuple((c, s) for c, s in document["local_bytes"]),
            global_bytes=document["global_bytes"],
            host_operations=tuple(document["host_operations"]),
            host_contract=document["host_contract"],
            alone=bool(document.get("alone", False)),
            weights=held["weights"],
            biases=held["biases"],
            scales=held["scales"],
            tensors=held["tensors"],
            patterns=held["patterns"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MalformedInput(
            f"not a program's sidecar ({error})",
            where=str(path),
            expected=f"{JSON_NAME} of schema {SCHEMA!r} with {ARRAYS_NAME} beside it",
        ) from None
