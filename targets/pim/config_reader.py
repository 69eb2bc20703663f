"""Typed access to parsed JSON that always knows the key path it stands at.

One :class:`KeyReader` stands for one JSON object.  Each getter checks one value
and raises :class:`~raptor_cp.errors.MalformedInput` with the file, the dotted
key path, the value and what was expected.  Keys that nobody asked for are
reported by :meth:`KeyReader.ignored`.
"""

from __future__ import annotations

import difflib
import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: The simulator keeps its integers in 32 bits.
INT32_MAX = 2**31 - 1
#: Periods and crossbar latencies are kept as fractions of at most this
#: denominator (the simulator's own time resolution is 1 ps).
MAX_DENOMINATOR = 10**5
_REQUIRED = object()


class KeyReader:
    """One JSON object at a key path of a file."""

    def __init__(self, values: dict[str, object], file: str, prefix: str) -> None:
        self._values = values
        self._file = file
        self._prefix = prefix
        self._asked: dict[str, None] = {}
        self._children: list[KeyReader] = []
        self._finished = False

    @classmethod
    def root(cls, document: object, file: str) -> KeyReader:
        """The outermost object of a file."""
        if not isinstance(document, dict):
            raise MalformedInput(
                "the file holds no JSON object",
                where=file,
                value=type(document).__name__,
                expected='an object like {"chip_config": ...}',
            )
        return cls(document, file, "")

    def path(self, key: str) -> str:
        """Where ``key`` of this object is, as messages show it."""
        dotted = f"{self._prefix}.{key}" if self._prefix else key
        return f"{self._file}: {dotted}"

    def names(self) -> dict[str, object]:
        """The object itself, for membership tests."""
        return self._values

    def section(self, key: str) -> KeyReader:
        """A nested object that must be there."""
        value = self._take(key, _REQUIRED)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "a JSON object")
        dotted = f"{self._prefix}.{key}" if self._prefix else key
        child = KeyReader(value, self._file, dotted)
        self._children.append(child)
        return child

    def integer(
        self,
        key: str,
        *,
        minimum: int,
        maximum: int = INT32_MAX,
        default: int | None = None,
    ) -> int:
        """An integer in ``[minimum, maximum]``."""
        value = self._take(key, _REQUIRED if default is None else default)
        if default is not None and value is default and key not in self._values:
            return default
        return self._integer(key, value, minimum, maximum)

    def rational(
        self,
        key: str,
        *,
        default: Fraction,
        zero_allowed: bool = False,
    ) -> Fraction:
        """A number of ns, exact; positive unless ``zero_allowed``."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise self._wrong(key, value, "a number of ns")
        number = Fraction(value)
        if number < 0 or (number == 0 and not zero_allowed) or number > INT32_MAX:
            raise self._wrong(
                key,
                _plain(value),
                "a number >= 0" if zero_allowed else "a number > 0",
            )
        rounded = number.limit_denominator(MAX_DENOMINATOR)
        if rounded == 0 and number > 0:
            raise self._wrong(key, _plain(value), f"at least 1/{MAX_DENOMINATOR} ns")
        return rounded

    def real(self, key: str, *, minimum: float, default: float) -> float:
        """A finite float >= ``minimum`` (powers and energies)."""
        value = self._take(key, default)
        return self._real(key, value, minimum)

    def boolean(self, key: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string; it must not be empty when it is required."""
        value = self._take(key, _REQUIRED if default is None else default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._wrong(key, value, "a non-empty string")
        return value

    def pair(
        self, key: str, *, minimum: int, default: tuple[int, int]
    ) -> tuple[int, int]:
        """A list of two integers >= ``minimum``."""
        value = self._take(key, list(default))
        if not isinstance(value, list) or len(value) != 2:
            raise self._wrong(key, value, "a list of two integers")
        first, second = (self._integer(key, item, minimum, INT32_MAX) for item in value)
        return first, second

    def integers(
        self, keys: Sequence[str], *, skip: int, required: bool
    ) -> NDArray[np.int64]:
        """Non-negative integers under ``keys``; 0 at index ``skip`` if absent."""
        result = np.zeros(len(keys), dtype=np.int64)
        values = self._values
        for index, key in enumerate(keys):
            value = values.get(key, None)
            # Exact type: the fast path of a table with 10^4 to 10^7 entries.
            if type(value) is int and 0 <= value <= INT32_MAX:
                result[index] = value
            elif key in values:
                result[index] = self._integer(key, value, 0, INT32_MAX)
            elif required and index != skip:
                raise MalformedInput(
                    "the pair is missing from the network table",
                    where=self.path(key),
                    expected="ns per flit for every ordered pair (source.destination)",
                    hint="the simulator would charge 0 ns",
                )
        return result

    def reals(self, keys: Sequence[str]) -> NDArray[np.float64]:
        """Non-negative floats under ``keys``, 0.0 where absent."""
        return np.array(
            [
                self._real(key, self._values[key], 0.0) if key in self._values else 0.0
                for key in keys
            ],
            dtype=np.float64,
        )

    def finish(self) -> None:
        """No more keys will be asked for: what is left is unknown."""
        self._finished = True

    def ignored(self) -> list[str]:
        """Dotted paths of unknown keys in this object and below, sorted."""
        found = []
        if self._finished:
            for key in self._values:
                if key not in self._asked:
                    dotted = f"{self._prefix}.{key}" if self._prefix else key
                    near = difflib.get_close_matches(
                        key, [k for k in self._asked if k not in self._values], n=1
                    )
                    found.append(f"{dotted} (similar to {near[0]})" if near else dotted)
        for child in self._children:
            found.extend(child.ignored())
        return sorted(found)

    def _take(self, key: str, default: object) -> object:
        self._asked[key] = None
        if key in self._values:
            return self._values[key]
        if default is _REQUIRED:
            near = difflib.get_close_matches(key, list(self._values), n=1)
            raise MalformedInput(
                "missing key",
                where=self.path(key),
                expected="a value",
                hint=f"is {near[0]!r} meant?" if near else "",
            )
        return default

    def _integer(self, key: str, value: object, minimum: int, maximum: int) -> int:
        if isinstance(value, Fraction) and value.denominator == 1:
            value = int(value)
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not minimum <= value <= maximum
        ):
            raise self._wrong(
                key, _plain(value), f"an integer from {minimum} to {maximum}"
            )
        return value

    def _real(self, key: str, value: object, minimum: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
            raise self._wrong(key, value, f"a number >= {minimum:g}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number < minimum:
            raise self._wrong(key, _plain(value), f"a finite number >= {minimum:g}")
        return number

    def _wrong(self, key: str, value: object, expected: str) -> MalformedInput:
        return MalformedInput(
            "wrong value", where=self.path(key), value=value, expected=expected
        )


def _plain(value: object) -> object:
    """Fractions as the floats the user wrote."""
    return float(value) if isinstance(value, Fraction) else value
