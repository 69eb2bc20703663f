"""Typed reading of one layer mapping, with errors that name the key path."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, TypeGuard

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import RELU6, Activation, Function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raptor_cp.network.builder import Pads

AUTO_PADS = ("SAME_UPPER", "SAME_LOWER", "VALID")


class LayerEntry:
    """One layer of an inline network.

    Args:
        layer: the mapping, with an ``op`` already known to be legal.
        where: its key path, such as ``operations[3]``.
        default_name: used when the layer has no ``name``.
    """

    def __init__(
        self, layer: Mapping[str, object], where: str, default_name: str
    ) -> None:
        self._layer = layer
        self.where = where
        self.op = self._text("op", "")
        self.name = self._text("name", default_name)
        #: True if no other layer and no output reads this layer's inputs.
        self.sole_reader = False

    def has(self, key: str) -> bool:
        """True if the layer sets ``key``."""
        return key in self._layer

    def inputs(self, default: str) -> tuple[str, ...]:
        """Names of the layers read."""
        value = self._layer.get("inputs", default)
        names = value if isinstance(value, list | tuple) else [value]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise self._wrong("inputs", "a layer name or a list of them")
        return tuple(str(name) for name in names)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An int of at least ``minimum``; required if there is no default."""
        value = self._layer.get(key, default)
        if not _is_integer(value, minimum):
            raise self._wrong(key, f"an integer of at least {minimum}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """An int of at least 0, or None if the key is absent."""
        return self.integer(key, minimum=0) if self.has(key) else None

    def integers(self, key: str, *, minimum: int = 1) -> tuple[int, ...]:
        """A list of ints of at least ``minimum``."""
        value = self._layer.get(key)
        if not isinstance(value, list | tuple) or not value:
            raise self._wrong(key, f"a list of integers of at least {minimum}")
        if not all(_is_integer(item, minimum) for item in value):
            raise self._wrong(key, f"a list of integers of at least {minimum}")
        return tuple(value)

    def pair(
        self, key: str, default: int | None = None, *, minimum: int = 1
    ) -> tuple[int, int]:
        """(height, width) from one int or a list of two."""
        value = self._layer.get(key, default)
        if _is_integer(value, minimum):
            return (value, value)
        if (
            isinstance(value, list | tuple)
            and len(value) == 2
            and all(_is_integer(item, minimum) for item in value)
        ):
            return (value[0], value[1])
        raise self._wrong(
            key, f"an integer of at least {minimum}, or [height, width] of such"
        )

    def pads(self) -> Pads:
        """``pad``: ints, or one of :data:`AUTO_PADS`; 0 if absent."""
        value = self._layer.get("pad", 0)
        if isinstance(value, str) and value in AUTO_PADS:
            return value
        return self.explicit_pads()

    def explicit_pads(self) -> tuple[int, int, int, int]:
        """``pad`` as (top, left, bottom, right); zeros if absent."""
        value = self._layer.get("pad", 0)
        items = list(value) if isinstance(value, list | tuple) else [value]
        sizes = [item for item in items if _is_integer(item, 0)]
        if len(sizes) == len(items) and len(items) in (1, 2, 4):
            top, left, bottom, right = (sizes * 4)[:4]
            return (top, left, bottom, right)
        raise self._wrong(
            "pad",
            "an integer, [height, width], [top, left, bottom, right]"
            f" or one of {', '.join(AUTO_PADS)}",
        )

    def flag(self, key: str, *, default: bool = False) -> bool:
        """A boolean."""
        value = self._layer.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; required if there is no default."""
        value = self._layer.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not isfinite(value)
        ):
            raise self._wrong(key, "a finite number")
        return float(value)

    def activation(self) -> Activation | None:
        """``activation``: the name of a function, or None if absent."""
        value = self._layer.get("activation")
        if value is None:
            return None
        if value == "relu6":
            return RELU6
        if not isinstance(value, str) or value not in list(Function):
            raise self._wrong("activation", f"relu6 or one of {', '.join(Function)}")
        return Activation(Function(value))

    def _text(self, key: str, default: str) -> str:
        value = self._layer.get(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "a non-empty name")
        return value

    def _wrong(self, key: str, expected: str) -> MalformedInput:
        where = f"{self.where}.{key}"
        if key not in self._layer:
            return MalformedInput("missing", where=where, expected=expected)
        return MalformedInput(
            "wrong value", where=where, value=self._layer[key], expected=expected
        )


def _is_integer(value: object, minimum: int) -> TypeGuard[int]:
    return type(value) is int and minimum <= value < 2**31
