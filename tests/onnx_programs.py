"""Executing programs of imported models on numbers of the tests' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.targets.pim.interpreter import (
    CoreImage,
    CoreOrder,
    GroupMatrix,
    Interpreter,
)
from raptor_cp.targets.pim.interpreter_memory import GlobalMemory, as_bytes, from_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from raptor_cp.network.structure import Network
    from raptor_cp.targets.pim.backend import Built
    from raptor_cp.targets.pim.target import PimTarget

    Ints = NDArray[np.int64]


def fixed(values: NDArray[np.generic], places: int) -> Ints:
    """Real numbers as integers; they must be multiples of the unit."""
    scaled = np.asarray(values, np.float64) * 2.0**places
    return np.asarray(np.rint(scaled), np.int64)


def executed(
    built: Built, network: Network, target: PimTarget, inputs: Mapping[str, Ints]
) -> dict[str, Ints]:
    """Outputs of a program that is given one inference again and again."""
    sidecar = built.sidecar
    memory = GlobalMemory(
        sidecar.global_bytes, sidecar.regions, lambda name, _: inputs[name]
    )
    for region in sidecar.regions:
        if region.kind == "constant":
            r0, r1, c0, c1, k0, k1 = region.box
            part = sidecar.tensors[region.tensor][r0:r1, c0:c1, k0:k1]
            memory.place_constant(region, part)
    images = []
    for core in built.program(native=True).active_cores:
        groups = [g for g in sidecar.groups if g.core == core.core]
        widths = [
            g.crossbars
            * target.machine.array.columns_for(_weight_bits(network, g.operation))
            for g in groups
        ]
        matrices = tuple(
            GroupMatrix(sidecar.group_matrix(group), width)
            for group, width in zip(groups, widths, strict=True)
        )
        preloads = tuple(
            (p.address, as_bytes(sidecar.preload_values(p), p.element_bytes))
            for p in sidecar.preloads
            if p.core == core.core
        )
        size = dict(sidecar.local_bytes).get(core.core, 0)
        images.append(CoreImage(core, size, matrices, preloads))
    Interpreter(images, memory).run(3, CoreOrder.RANDOM, 1)
    results: dict[str, Ints] = {}
    for index, region in enumerate(sidecar.regions):
        if region.kind != "output":
            continue
        r0, r1, c0, c1, k0, k1 = region.box
        extent = network.tensors[region.tensor].extent
        whole = results.setdefault(region.tensor, np.zeros(extent, np.int64))
        data, stored = memory.outputs[index][2]
        assert stored.all()
        part = from_bytes(data, region.element_bytes)
        whole[r0:r1, c0:c1, k0:k1] = part.reshape(r1 - r0, c1 - c0, k1 - k0)
    return results


def _weight_bits(network: Network, name: str) -> int:
    weight = next(o.weight for o in network.operations if o.name == name)
    assert weight is not None
    return weight.bits
