"""Phase times and counts: for reports only, never for decisions."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Phases:
    """Adds up wall time (seconds) and entries by phase name, in order of first use.

    Attributes:
        seconds: time spent; phases may lie inside others.
        counts: how often each phase was entered, the same in equal runs.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the body's time for ``name``."""
        self.seconds.setdefault(name, 0.0)
        self.counts[name] = self.counts.get(name, 0) + 1
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def add(self, other: Phases) -> None:
        """Count what somebody else has timed."""
        for name, value in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + other.counts[name]

    def to_dict(self) -> dict[str, float]:
        """Seconds by phase, rounded to microseconds."""
        return {name: round(value, 6) for name, value in self.seconds.items()}
