"""Removes the raw data of initializers from the bytes of a model before protobuf parses (and copies) them.

Weights are most of a model file. A message parsed by protobuf contains a copy of them and returns another one. Here the
weights stay in the bytes of the file, and protobuf parses a small message. Only the framing is read: field 7 of a
ModelProto is the graph, field 5 of a GraphProto an initializer, fields 8 and 9 of a TensorProto its name and raw data.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

GRAPH, INITIALIZER, NAME, RAW = 7, 5, 8, 9
SMALLEST = 4096
"""Raw data with fewer bytes stays in the message."""
_LENGTH_DELIMITED = 2


class MalformedError(Exception):
    """The bytes are not protobuf framing."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        # Ten bytes hold 64 bits. A longer varint is invalid and could extend to the end of the file.
        if at >= len(data) or shift > 63:
            raise MalformedError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the field, start of its content, end) of each field of a message."""
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
    """The TensorProto without its raw data, which is added to ``blobs``; None if it is unchanged."""
    name, raw, rest, count = None, None, [], 0
    for number, wire, start, content, end in _fields(data):
        if number == RAW and wire == _LENGTH_DELIMITED:
            raw, count = data[content:end], count + 1
            continue
        if number == NAME and wire == _LENGTH_DELIMITED:
            name = bytes(data[content:end]).decode("utf-8", "replace")
        rest.append(data[start:end])
    # Ambiguous data stays: of a repeated field protobuf uses the last. Small data is faster to copy.
    if raw is None or count != 1 or not name or name in blobs or len(raw) < SMALLEST:
        return None
    blobs[name] = raw
    return b"".join(rest)


def lift_initializers(data: bytes | mmap.mmap | memoryview) -> tuple[bytes, dict[str, memoryview]]:
    """(the bytes of the model without large raw data, that data by initializer name as views of ``data``).

    Bytes that are not protobuf are returned unchanged, and protobuf reports the problem.
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
