"""Lift the raw data of a model's initializers out of its bytes before protobuf parses (and copies) them.

Weights are nearly all of a model file. A message parsed by protobuf holds a copy of them and gives out another; here
they stay where they are in the file's bytes, and the message that protobuf sees is small. Only the framing is read: a
ModelProto's field 7 is the graph, a GraphProto's field 5 an initializer, a TensorProto's fields 8 and 9 its name and
raw data.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

GRAPH, INITIALIZER, NAME, RAW = 7, 5, 8, 9
SMALLEST = 4096
"""Raw data of fewer bytes stays in the message."""
_LENGTH_DELIMITED = 2


class MalformedError(Exception):
    """The bytes are not protobuf framing."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        # Ten bytes hold 64 bits; a longer varint is invalid, and could extend to the end of the file.
        if at >= len(data) or shift > 63:
            raise MalformedError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the field, start of its content, end) of every field of a message."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        wire = tag & 7
        content = at
        if wire == 0:
            _, at = _varint(data, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == _LENGTH_DELIMITED:
            length, content = _varint(data, at)
            at = content + length
        else:
            raise MalformedError
        if at > len(data):
            raise MalformedError
        yield tag >> 3, wire, start, content, at


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(len(content)) + content


def _lift_tensor(data: memoryview, blobs: dict[str, memoryview]) -> bytes | None:
    """The TensorProto without its raw data, which is added to blobs; None if it is unchanged."""
    name, raw, rest, count = None, None, [], 0
    for number, wire, start, content, end in _fields(data):
        if number == RAW and wire == _LENGTH_DELIMITED:
            raw, count = data[content:end], count + 1
            continue
        if number == NAME and wire == _LENGTH_DELIMITED:
            name = bytes(data[content:end]).decode("utf-8", "replace")
        rest.append(data[start:end])
    # In doubt it stays where it is: of a repeated field protobuf takes the last, and small data is quicker copied.
    if raw is None or count != 1 or not name or name in blobs or len(raw) < SMALLEST:
        return None
    blobs[name] = raw
    return b"".join(rest)


def lift_initializers(data: bytes | mmap.mmap | memoryview) -> tuple[bytes, dict[str, memoryview]]:
    """(the model's bytes without large raw data, that data by initializer name, as views into ``data``).

    Bytes that are not protobuf are returned unchanged: protobuf reports the problem.
    """
    blobs: dict[str, memoryview] = {}
    try:
        model, parts = memoryview(data), []
        for number, wire, start, content, end in _fields(model):
            graph = number == GRAPH and wire == _LENGTH_DELIMITED
            parts.append(_message(GRAPH, _lift_graph(model[content:end], blobs)) if graph else model[start:end])
        return b"".join(parts), blobs
    except MalformedError:
        return bytes(data), {}


def _lift_graph(data: memoryview, blobs: dict[str, memoryview]) -> bytes:
    parts = []
    for number, wire, start, content, end in _fields(data):
        small = None
        if number == INITIALIZER and wire == _LENGTH_DELIMITED and end - content >= SMALLEST:
            small = _lift_tensor(data[content:end], blobs)
        parts.append(data[start:end] if small is None else _message(INITIALIZER, small))
    return b"".join(parts)
