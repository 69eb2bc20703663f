"""Checks of integer arrays that come from outside, naming the first offender."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor_cp.errors import MalformedInput
from raptor_cp.units import MAX_NS

Int64Array = npt.NDArray[np.int64]
IntsLike = Sequence[int] | npt.NDArray[np.integer]

#: Largest core, label or server number.
MAX_ID = 2**31 - 1


def checked(
    owner: str, name: str, values: IntsLike, count: int, low: int, high: int
) -> Int64Array:
    """``values`` as int64 within ``[low, high]``; the first offender is named."""
    if len(values) != count:
        raise MalformedInput(
            f"{name} array has the wrong length",
            where=f"{owner}s",
            value=len(values),
            expected=f"{count}",
        )
    if count == 0:
        return np.zeros(0, np.int64)
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        # bool, float, and ints beyond 64 bits all land here: look one by one.
        for index, value in enumerate(values):
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            if not whole or not low <= value <= high:
                raise _out_of_range(owner, name, index, value, low, high)
        array = np.asarray(values, dtype=np.int64)
    wrong = (array < low) | (array > high)
    if wrong.any():
        index = int(np.argmax(wrong))
        raise _out_of_range(owner, name, index, int(array[index]), low, high)
    return array.astype(np.int64, copy=False)


def _out_of_range(
    owner: str, name: str, index: int, value: object, low: int, high: int
) -> MalformedInput:
    return MalformedInput(
        f"bad {name}",
        where=f"{owner} {index}",
        value=value,
        expected=f"an integer from {low} to {high}",
    )


def summed_work(
    work_core: IntsLike, work_ns: IntsLike
) -> tuple[Int64Array, Int64Array]:
    """Compute work by core, cores rising: ``(cores, ns)``."""
    entries = len(work_core)
    core = checked("work", "core", work_core, entries, 0, MAX_ID)
    work = checked("work", "time", work_ns, entries, 0, MAX_NS)
    cores, where = np.unique(core, return_inverse=True)
    total = np.zeros(len(cores), np.int64)
    np.add.at(total, where, work)
    return cores, total
