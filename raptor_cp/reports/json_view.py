"""JSON documents read with their types: what is wrong is named by file and key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Characters that a page cannot show: controls, and halves of surrogate pairs.
_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class JsonView:
    """A value of a document and where it stands.

    >>> view = JsonView({"cores": [{"id": 3}]}, "schedule.json")
    >>> view["cores"][0]["id"].integer()
    3
    >>> view.get("certificate").is_null
    True
    """

    value: object
    where: str

    @property
    def is_null(self) -> bool:
        """Null, or absent."""
        return self.value is None

    @property
    def reason(self) -> str | None:
        """Why a figure is not known; None where it is."""
        if isinstance(self.value, Mapping) and "unavailable" in self.value:
            return self["unavailable"].text()
        return None

    def __getitem__(self, key: str | int) -> JsonView:
        """What stands under a key or at a position.

        Raises:
            MalformedInput: nothing does.
        """
        if isinstance(key, int):
            return JsonView(self._list()[key], f"{self.where}[{key}]")
        found = self.get(key)
        if found.is_null and key not in self._mapping():
            raise MalformedInput("a key is missing", where=f"{self.where}: {key}")
        return found

    def get(self, key: str) -> JsonView:
        """What stands under a key, null where nothing does."""
        return JsonView(self._mapping().get(key), f"{self.where}: {key}")

    def __iter__(self) -> Iterator[JsonView]:
        """The items of a list."""
        for number, item in enumerate(self._list()):
            yield JsonView(item, f"{self.where}[{number}]")

    def __len__(self) -> int:
        """Length of a list or of a mapping."""
        if isinstance(self.value, Mapping):
            return len(self.value)
        return len(self._list())

    def items(self) -> Iterator[tuple[str, JsonView]]:
        """Keys and values of a mapping, in its order."""
        for key in self._mapping():
            yield _showable(key), self.get(key)

    def integer(self) -> int:
        """A whole number.

        Raises:
            MalformedInput: it is something else.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self._wrong("a whole number")
        return self.value

    def number(self) -> int | float:
        """A number.

        Raises:
            MalformedInput: it is something else.
        """
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self._wrong("a number")
        return self.value

    def known(self) -> int | float | None:
        """A number, or None where it is null or unavailable."""
        return None if self.is_null or self.reason is not None else self.number()

    def flag(self) -> bool:
        """True or false.

        Raises:
            MalformedInput: it is neither.
        """
        if not isinstance(self.value, bool):
            raise self._wrong("true or false")
        return self.value

    def text(self) -> str:
        """A text, with what cannot be shown replaced.

        Raises:
            MalformedInput: it is something else.
        """
        if not isinstance(self.value, str):
            raise self._wrong("a text")
        return _showable(self.value)

    def text_or(self, default: str) -> str:
        """A text, or the default where it is null."""
        return default if self.is_null else self.text()

    def integers(self) -> list[int]:
        """A list of whole numbers."""
        return [item.integer() for item in self]

    def texts(self) -> list[str]:
        """A list of texts."""
        return [item.text() for item in self]

    def texts_of_values(self) -> list[str]:
        """The texts of a mapping's values; none where it is null."""
        return [] if self.is_null else [value.text() for _, value in self.items()]

    def _mapping(self) -> Mapping[str, object]:
        if not isinstance(self.value, Mapping):
            raise self._wrong("an object")
        return self.value

    def _list(self) -> list[object] | tuple[object, ...]:
        if not isinstance(self.value, list | tuple):
            raise self._wrong("a list")
        return self.value

    def _wrong(self, expected: str) -> MalformedInput:
        return MalformedInput(
            "not what a run folder has here", where=self.where, expected=expected
        )


def _showable(text: str) -> str:
    return _UNSHOWABLE.sub("\ufffd", text)
