"""Phase times: for reports only, never for decisions."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Phases:
    """Adds up wall time (seconds) by phase name, in order of first use."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the body's time for ``name``."""
        self.seconds.setdefault(name, 0.0)
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def to_dict(self) -> dict[str, float]:
        """Seconds by phase, rounded to microseconds."""
        return {name: round(value, 6) for name, value in self.seconds.items()}
