"""Checks of user-written keys: a typo names the nearest legal key."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def reject_unknown_keys(
    given: Mapping[str, object],
    legal: Iterable[str],
    *,
    where: str,
    what: str = "key",
) -> None:
    """Raise for the first key of ``given`` that is not in ``legal``.

    Raises:
        MalformedInput: names the key and the nearest legal one.
    """
    names = list(legal)
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.0)
        raise MalformedInput(
            f"unknown {what}",
            where=f"{where}.{key}",
            expected=f"one of {', '.join(names)}",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
