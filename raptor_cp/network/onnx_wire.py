"""An ONNX file without its weights: large payloads are skipped, not read.

A model is a protobuf message: fields of (tag, length, bytes), nested.  Walking the
field headers of a memory-mapped file finds every tensor; only the pages that hold
headers and small fields are touched, so a file of gigabytes costs kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

#: Payloads up to this many bytes are kept: constants of shape arithmetic are small.
LARGE_BYTES = 64 * 1024
#: Deepest nesting; protobuf itself reads no deeper.
DEEPEST = 100

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class DamagedMessage(ValueError):
    """The bytes are no protobuf message, or the message stops too early."""


@dataclass(frozen=True, slots=True)
class Message:
    """Fields of a message type that may be large.

    Attributes:
        payload: numbers of fields that hold tensor data.
        children: message types of nested messages, by field number.
    """

    payload: frozenset[int] = frozenset()
    children: Mapping[int, Message] = field(default_factory=dict)


def _model() -> Message:
    # Field numbers of onnx.proto.
    tensor = Message(payload=frozenset({4, 5, 6, 7, 9, 10, 11}))
    sparse = Message(children={1: tensor, 2: tensor})
    in_attribute: dict[int, Message] = {5: tensor, 10: tensor, 22: sparse}
    attribute = Message(children=in_attribute)
    node = Message(children={5: attribute})
    graph = Message(children={1: node, 5: tensor, 15: sparse})
    in_attribute[6] = graph
    in_attribute[11] = graph
    return Message(children={7: graph, 25: Message(children={7: node})})


MODEL = _model()


def without_payload(data: bytes | mmap, large: int = LARGE_BYTES) -> bytes:
    """The message in ``data``, without tensor payloads above ``large`` bytes.

    Raises:
        DamagedMessage: a field that cannot be, or that ends behind the data.
    """
    with memoryview(data) as view:
        return _skim(view, (0, len(view)), MODEL, large, 0)


def _skim(
    view: memoryview, span: tuple[int, int], kind: Message, large: int, depth: int
) -> bytes:
    if depth > DEEPEST:
        raise DamagedMessage(f"messages are nested more than {DEEPEST} deep")
    start, stop = span
    pieces: list[bytes] = []
    position = kept = start
    while position < stop:
        begin = position
        tag, position = _varint(view, position, stop)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise DamagedMessage(f"no field starts at byte {begin:,}")
        if wire == _BYTES:
            size, position = _varint(view, position, stop)
        elif wire == _VARINT:
            _, position = _varint(view, position, stop)
            continue
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise DamagedMessage(f"no field starts at byte {begin:,}")
        if size > stop - position:
            raise DamagedMessage(
                f"the field at byte {begin:,} needs {size:,} bytes, "
                f"{stop - position:,} are left"
            )
        end = position + size
        if wire == _BYTES and size > large:
            if number in kind.payload:
                pieces.append(bytes(view[kept:begin]))
                kept = end
            elif number in kind.children:
                inner = kind.children[number]
                child = _skim(view, (position, end), inner, large, depth + 1)
                pieces.append(bytes(view[kept:begin]))
                pieces += [_encoded(tag), _encoded(len(child)), child]
                kept = end
        position = end
    pieces.append(bytes(view[kept:stop]))
    return b"".join(pieces)


def _varint(view: memoryview, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    start = position
    while position < stop and shift < 70:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DamagedMessage(f"the number at byte {start:,} does not end")


def _encoded(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
