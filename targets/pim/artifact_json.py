"""Instructions as JSON text: a bounded streaming reader and a writer.

The text of a program is far larger than its records (a whole network is some
10^8 characters), so the reader holds one window of it at a time, turns every
instruction into a 20-byte record at once and never builds the whole document.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.isa import (
    JSON_FIELDS,
    MNEMONICS,
    OPCODE_COUNT,
    RECORD,
    Opcode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from numpy.typing import NDArray

#: Longest single instruction in JSON, characters.
MAX_INSTRUCTION_CHARACTERS = 2**16
#: Longest other value (the ``config`` object), characters.
MAX_VALUE_CHARACTERS = 2**24
#: Longest decompressed text, bytes; use the binary form beyond it.
MAX_TEXT_BYTES = 2**31
#: Most instructions of one JSON file.
MAX_JSON_INSTRUCTIONS = 2**25
#: Text of a packed file beyond this length may be at most so many times the file:
#: programs pack to a thirtieth, what is made to exhaust a reader to a thousandth.
FREE_TEXT_BYTES = 2**24
MAX_TEXT_RATIO = 100

_CHUNK_BYTES = 2**20
_ROWS = 2**16
_SPACE = re.compile(r"[ \t\r\n]*")
_COLUMN = {name: index for index, name in enumerate(RECORD.names or ())}
_INT32 = (-(2**31), 2**31 - 1)


def _spec(opcode: Opcode) -> tuple[tuple[str, int, int, int], ...]:
    """(key, record column, lowest, highest) of the flat keys of an opcode."""
    return tuple(
        (key, _COLUMN[column], *((0, 255) if column in ("rd", "rs1") else _INT32))
        for key, column in JSON_FIELDS[opcode].items()
        if "." not in key
    )


_SPECS = {
    name: (int(opcode), _spec(opcode), "offset.offset_value" in JSON_FIELDS[opcode])
    for name, opcode in MNEMONICS.items()
}


class JsonText:
    """A window over a stream of JSON text.

    Args:
        stream: bytes, already decompressed (a gzip stream is fine).
        name: shown in messages.
        limit: longest text, bytes.
    """

    def __init__(
        self, stream: IO[bytes], name: str, limit: int = MAX_TEXT_BYTES
    ) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._decode = json.JSONDecoder(parse_constant=_no_constant).raw_decode
        self._buffer = ""
        self._position = 0
        self._consumed = 0
        self._bytes = 0
        self._ended = False
        self._limit = limit
        self._instructions = 0
        self.name = name

    def items(self) -> Iterator[str]:
        """Keys of the object that starts here; the caller reads each value.

        Raises:
            MalformedInput: not an object, a key twice, or truncated text.
        """
        seen: set[str] = set()
        self.expect("{")
        if self.accept("}"):
            return
        while True:
            key = self.value(MAX_INSTRUCTION_CHARACTERS, "a key")
            if not isinstance(key, str):
                raise self.error("a key that is no string")
            if key in seen:
                raise MalformedInput(
                    "the same key twice",
                    where=self.name,
                    value=key,
                    expected="each core once",
                )
            seen.add(key)
            self.expect(":")
            yield key
            if self.accept("}"):
                return
            self.expect(",")

    def instructions(self, core: str) -> NDArray[np.void]:
        """Records of the array that starts here.

        Raises:
            MalformedInput: names core and index of what is wrong.
        """
        self.expect("[")
        parts: list[NDArray[np.void]] = []
        rows: list[tuple[int, ...]] = []
        count = 0
        if not self.accept("]"):
            while True:
                item = self.value(MAX_INSTRUCTION_CHARACTERS, "an instruction")
                rows.append(_row(item, self.name, core, count))
                count += 1
                if len(rows) == _ROWS:
                    parts.append(np.array(rows, dtype=RECORD))
                    rows.clear()
                    self._instructions += _ROWS
                    if self._instructions > MAX_JSON_INSTRUCTIONS:
                        raise MalformedInput(
                            "too many instructions for the JSON form",
                            where=f"{self.name}: {core}",
                            expected=f"at most {MAX_JSON_INSTRUCTIONS}",
                            hint="use the binary form",
                        )
                if self.accept("]"):
                    break
                self.expect(",")
        parts.append(np.array(rows, dtype=RECORD))
        return np.concatenate(parts)

    def end(self) -> None:
        """Nothing but white space may follow."""
        self._skip()
        if self._position < len(self._buffer):
            raise self.error("text after the end of the JSON value")

    def value(self, limit: int, what: str) -> object:
        """The next JSON value, of at most ``limit`` characters."""
        self._skip(limit)
        try:
            result, self._position = self._decode(self._buffer, self._position)
        except (ValueError, RecursionError) as error:
            if isinstance(error, MalformedInput):
                raise MalformedInput(
                    error.what, where=self.name, value=error.value
                ) from None
            if not self._ended:
                raise self.error(f"{what} of more than {limit} characters") from None
            raise self.error(f"{what} is not valid JSON, or truncated") from None
        checked: object = result
        return checked

    def expect(self, character: str) -> None:
        """Consume one punctuation character."""
        if not self.accept(character):
            at_end = self._position >= len(self._buffer)
            raise self.error(
                "the text ends early" if at_end else "unexpected character",
                expected=repr(character),
            )

    def accept(self, character: str) -> bool:
        """Consume ``character`` if it is next."""
        position = self._position
        if position < len(self._buffer) and self._buffer[position] == character:
            self._position = position + 1
            return True
        self._skip()
        if self._buffer[self._position : self._position + 1] == character:
            self._position += 1
            return True
        return False

    def error(self, what: str, expected: str = "") -> MalformedInput:
        """An error at the current character."""
        return MalformedInput(
            what,
            where=f"{self.name}: character {self._consumed + self._position}",
            value=self._buffer[self._position : self._position + 40],
            expected=expected,
        )

    def _skip(self, room: int = 1) -> None:
        """Move past white space and hold ``room`` characters if there are any."""
        while True:
            match = _SPACE.match(self._buffer, self._position)
            if match is not None:
                self._position = match.end()
            if len(self._buffer) - self._position >= room or self._ended:
                return
            self._fill(room)

    def _fill(self, room: int) -> None:
        pieces = [self._buffer[self._position :]]
        held = len(pieces[0])
        while held < room + _CHUNK_BYTES and not self._ended:
            try:
                data = self._stream.read(_CHUNK_BYTES)
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError:
                raise MalformedInput("not UTF-8 text", where=self.name) from None
            except (OSError, EOFError, zlib.error) as error:
                raise MalformedInput(
                    f"cannot read the text ({error})", where=self.name
                ) from None
            self._bytes += len(data)
            if self._bytes > self._limit:
                raise MalformedInput(
                    "the text is too long",
                    where=self.name,
                    expected=f"at most {self._limit} bytes",
                    hint="use the binary form",
                )
            self._ended = not data
            pieces.append(text)
            held += len(text)
        self._consumed += self._position
        self._buffer = "".join(pieces)
        self._position = 0


def _no_constant(text: str) -> object:
    raise MalformedInput("not a number", value=text)


def _row(item: object, name: str, core: str, index: int) -> tuple[int, ...]:
    """One record as a tuple; absent fields are 0, unknown keys are ignored."""
    if not isinstance(item, dict):
        raise MalformedInput(
            "an instruction is not an object",
            where=f"{name}: {core}[{index}]",
            value=item,
            expected='{"op": ...}',
        )
    mnemonic = item.get("op")
    spec = _SPECS.get(mnemonic) if isinstance(mnemonic, str) else None
    if spec is None:
        raise MalformedInput(
            "unknown opcode",
            where=f"{name}: {core}[{index}]",
            value=mnemonic,
            expected="one of " + ", ".join(MNEMONICS),
        )
    code, fields, has_offset = spec
    row = [code, 0, 0, 0, 0, 0, 0, 0]
    for key, column, low, high in fields:
        value = item.get(key, 0)
        if type(value) is not int or not low <= value <= high:
            raise MalformedInput(
                f"wrong {key} of {mnemonic}",
                where=f"{name}: {core}[{index}]",
                value=value,
                expected=f"an integer from {low} to {high}",
            )
        row[column] = value
    if has_offset and "offset" in item:
        offset = item["offset"]
        if not isinstance(offset, dict):
            raise MalformedInput(
                "wrong offset",
                where=f"{name}: {core}[{index}]",
                value=offset,
                expected="an object with offset_select and offset_value",
            )
        for key, column in (("offset_select", 5), ("offset_value", 6)):
            value = offset.get(key, 0)
            if type(value) is not int or not _INT32[0] <= value <= _INT32[1]:
                raise MalformedInput(
                    f"wrong {key}",
                    where=f"{name}: {core}[{index}]",
                    value=value,
                    expected="a 32-bit integer",
                )
            row[column] = value
    return tuple(row)


def _template(opcode: Opcode) -> str:
    """A ``str.format`` template over the columns of a record."""
    flat: list[str] = [f'"op":"{opcode.mnemonic}"']
    offset: list[str] = []
    for key, column in JSON_FIELDS[opcode].items():
        where = f"{{{_COLUMN[column]}}}"
        if "." in key:
            offset.append(f'"{key.partition(".")[2]}":{where}')
        else:
            flat.append(f'"{key}":{where}')
    if offset:
        flat.append('"offset":{{' + ",".join(offset) + "}}")
    return "{{" + ",".join(flat) + "}}"


_TEMPLATES = [_template(Opcode(code)) for code in range(OPCODE_COUNT)]


def instruction_text(records: NDArray[np.void]) -> Iterator[str]:
    """Pieces of the JSON array that holds ``records``."""
    yield "["
    for first in range(0, len(records), _ROWS):
        rows = records[first : first + _ROWS].tolist()
        lines = [_TEMPLATES[row[0]].format(*row) for row in rows]
        yield ("," if first else "") + ",\n".join(lines)
    yield "]"
