"""Unpacks the bundles of a Perfetto trace."""

from __future__ import annotations

import zlib


def packets(raw: bytes) -> bytes:
    """Return the packets in the bundles of a trace. Each packet (field 1) must contain only compressed packets (field
    50)."""
    found = b""
    while raw:
        head, rest = raw[:1], raw[1:]
        assert head == b"\x0a"
        size, rest = _varint(rest)
        bundle, raw = rest[:size], rest[size:]
        assert bundle[:2] == b"\x92\x03"
        length, compressed = _varint(bundle[2:])
        assert length == len(compressed)
        found += zlib.decompress(compressed)
    return found


def _varint(raw: bytes) -> tuple[int, bytes]:
    value = shift = 0
    for at, byte in enumerate(raw):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, raw[at + 1 :]
    raise AssertionError("the trace ends in a number")
