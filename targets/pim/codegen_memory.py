"""Global memory: inputs, outputs, banked publications, loaded constants.

Banks are a power of two, so that a counter of a few bits in persistent registers
selects them; all regions with the same number of banks share one stride, and one
register holds the current bank's offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.graph.work import Box, SliceWork
from raptor_cp.realization.plan import Load, Store
from raptor_cp.targets.pim.allocation import ADDRESS_LIMIT, MemoryExhausted
from raptor_cp.targets.pim.input_banks import MAX_DISTANCE, input_distances
from raptor_cp.targets.pim.lowering_common import width
from raptor_cp.targets.pim.sidecar import Region

if TYPE_CHECKING:
    from raptor_cp.network.structure import Network
    from raptor_cp.realization.plan import ExecutionPlan

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class GlobalMemory:
    """All regions; ``publications`` and ``tensors`` index into them."""

    regions: tuple[Region, ...]
    publications: dict[int, int]
    inputs: dict[str, int]
    outputs: dict[str, int]
    size: int

    def publication(self, index: int) -> Region:
        """Region of a publication."""
        return self.regions[self.publications[index]]

    def baseline(self, kind: BaselineKind, tensor: str) -> Region:
        """Region of a network input, constant or output."""
        table = self.outputs if kind is BaselineKind.OUTPUT else self.inputs
        return self.regions[table[tensor]]


@dataclass(slots=True)
class _Wanted:
    kind: str
    tensor: str
    box: Box
    element: int
    banks: int
    publication: int = -1


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below ``count``.

    >>> [power_of_two(n) for n in (1, 2, 3, 5)]
    [1, 2, 4, 8]
    """
    return int(1 << (count - 1).bit_length())


@dataclass(frozen=True, slots=True)
class ReadersApart:
    """No number of banks is enough for an input: nothing couples its readers."""

    tensor: str

    @property
    def reason(self) -> str:
        """One sentence."""
        return (
            f"the cores that read input {self.tensor!r} can be more than "
            f"{MAX_DISTANCE} inferences apart"
        )


def plan_memory(
    plan: ExecutionPlan, network: Network
) -> GlobalMemory | MemoryExhausted | ReadersApart:
    """Place everything that a plan loads or stores.

    An input has one bank more than its readers can be rounds apart, so that a host
    that holds one input in each bank loses none and has a round to replace it.  Where
    inferences do not overlap (no stages) one bank is enough.
    """
    graph = plan.schedule.problem.graph
    wanted: dict[tuple[str, str, int], _Wanted] = {}
    banks = dict(plan.banks)
    for text in plan.cores:
        for item in text.items:
            if isinstance(item, Store) and item.publication is not None:
                made = graph.publications[item.publication]
                if made.box is not None:
                    wanted["publication", "", item.publication] = _Wanted(
                        "publication",
                        made.tensor,
                        Box(*made.box),
                        width(made.payload_bits),
                        power_of_two(banks[item.publication]),
                        item.publication,
                    )
            if isinstance(item, Load | Store) and item.baseline is not None:
                access = graph.baseline[item.baseline]
                key = (access.kind.name.lower(), access.tensor, -1)
                found = wanted.get(key)
                if found is None:
                    found = _baseline(access.kind, access.tensor, network)
                    found.element = found.element or width(
                        _constant_bits(plan, item.baseline)
                    )
                    wanted[key] = found
    overlapping = bool(plan.schedule.placement.stages)
    for tensor, distance in input_distances(plan).items() if overlapping else ():
        if distance is None:
            return ReadersApart(tensor)
        wanted["input", tensor, -1].banks = power_of_two(distance + 1)
    return _placed(list(wanted.values()))


def _constant_bits(plan: ExecutionPlan, baseline: int) -> int:
    graph = plan.schedule.problem.graph
    work = graph.tasks[graph.baseline[baseline].task].work
    return work.accumulator_bits if isinstance(work, SliceWork) else 8


def _baseline(kind: BaselineKind, tensor: str, network: Network) -> _Wanted:
    label = {
        BaselineKind.INPUT: "input",
        BaselineKind.CONSTANT: "constant",
        BaselineKind.OUTPUT: "output",
    }[kind]
    described = network.tensors.get(tensor)
    if described is not None:
        box = Box.whole(described.extent)
        return _Wanted(label, tensor, box, width(described.bits), 1)
    # The biases of an operation; their element width is that of its sums.
    name = tensor.removesuffix("/constants")
    operation = next(o for o in network.operations if o.name == name)
    channels = network.tensors[operation.output].extent.channels
    return _Wanted(label, tensor, Box(0, 1, 0, 1, 0, channels), 0, 1)


def _placed(wanted: list[_Wanted]) -> GlobalMemory | MemoryExhausted:
    order = sorted(wanted, key=lambda w: (w.banks, w.kind, w.publication, w.tensor))
    base, regions = 0, []
    for banks in sorted({w.banks for w in order}):
        group = [w for w in order if w.banks == banks]
        sizes = [w.box.elements * w.element for w in group]
        stride = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        place = base
        for entry, size in zip(group, sizes, strict=True):
            regions.append(
                Region(
                    entry.kind,
                    entry.tensor,
                    entry.box.bounds,
                    place,
                    size,
                    entry.element,
                    banks,
                    stride if banks > 1 else 0,
                    entry.publication,
                )
            )
            place += -(-size // ALIGNMENT) * ALIGNMENT
        base += stride * banks
        if base > ADDRESS_LIMIT:
            return MemoryExhausted("global memory", base, ADDRESS_LIMIT, False)
    return GlobalMemory(
        tuple(regions),
        {r.publication: i for i, r in enumerate(regions) if r.publication >= 0},
        {r.tensor: i for i, r in enumerate(regions) if r.kind in ("input", "constant")},
        {r.tensor: i for i, r in enumerate(regions) if r.kind == "output"},
        base,
    )
