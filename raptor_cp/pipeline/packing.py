"""Union-capacity packing of tasks on the cores of one stage (or of the chip)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.pipeline.weights import CoreBound, IndexedResidentWeights

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]


class PackingMethod(StrEnum):
    """Which constructor found the assignment."""

    ORDERED = "ordered"  #: contiguous runs in packing order
    REUSE_FIRST = "reuse-first"  #: best fit, largest weights first
    REVERSED = "reversed"  #: the same in reverse order
    DEVIATION = "deviation"  #: one choice of the first order changed


@dataclass(frozen=True, slots=True)
class PackingCounts:
    """Work of the constructor: core-candidate checks and recovery attempts."""

    first_checks: int = 0
    recovery_checks: int = 0
    deviations: int = 0


@dataclass(frozen=True, eq=False)
class Packed:
    """An assignment in hand.

    Attributes:
        core_of: [n] local core (0 .. cores-1) of ``tasks[i]``.
        cores: cores offered; some may stay idle.
        load_ns: largest core load.
        method: the constructor that found it.
        counts: what it took.
    """

    core_of: IndexArray
    cores: int
    load_ns: int
    method: PackingMethod
    counts: PackingCounts


@dataclass(frozen=True, slots=True)
class PackingExhausted:
    """The bounded search found nothing: no claim of infeasibility."""

    cores: int
    counts: PackingCounts
    verdict: Verdict = Verdict.UNKNOWN


@dataclass(frozen=True, slots=True)
class PackingRefuted:
    """Proved: a lower bound exceeds the cores offered."""

    cores: int
    bound: CoreBound
    verdict: Verdict = Verdict.INFEASIBLE


PackingOutcome = Packed | PackingExhausted | PackingRefuted


def pack_resident(
    weights: IndexedResidentWeights,
    tasks: Sequence[int],
    cores: int,
    execution_ns: IntArray,
) -> PackingOutcome:
    """Place tasks on ``cores`` cores under union capacity.

    Args:
        weights: index of the problem.
        tasks: task ids.
        cores: local cores offered.
        execution_ns: [T] execution time of every task of the problem.
    """
    raise NotImplementedError


def check_packing(
    weights: IndexedResidentWeights,
    tasks: Sequence[int],
    core_of: Sequence[int] | IndexArray,
    cores: int,
) -> None:
    """Recompute an assignment's unions without any of the packers.

    Raises:
        InternalError: a task outside the cores, or a union above the capacity.
    """
    raise NotImplementedError
