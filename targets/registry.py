"""Targets by kind: entry points of the group ``raptor_cp.targets``.

The built-in ones register in the same way as anybody else's.  A factory is called
with the target part of a scenario and the folder of its relative paths.
"""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Protocol, cast

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from raptor_cp.scenario import LoadedScenario
    from raptor_cp.target import SchedulingTarget

GROUP = "raptor_cp.targets"


class TargetFactory(Protocol):
    """Makes a target from a scenario."""

    def __call__(self, loaded: LoadedScenario) -> SchedulingTarget:
        """Build the target that ``loaded.scenario.target`` describes."""
        ...


def registered() -> dict[str, EntryPoint]:
    """Entry points by kind, in name order."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    return dict(sorted(found.items()))


def create(loaded: LoadedScenario) -> SchedulingTarget:
    """The target of a scenario.

    Raises:
        MalformedInput: no such kind, or the target's own description is wrong.
    """
    kind = loaded.scenario.target.kind
    known = registered()
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        raise MalformedInput(
            "no target of this kind is registered",
            where="target.kind",
            value=kind,
            expected=f"one of {', '.join(known)}",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    factory = cast("TargetFactory", known[kind].load())
    return factory(loaded)
