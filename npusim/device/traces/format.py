"""The file format of bus traces, its writer and its reader.

``NPUTRACE``, u16 version, u16 0, then blocks: u8 kind, u32 bytes, u32 bytes when inflated, u32 CRC-32 of those, zlib.
The first is HEAD, JSON of the device; then ACCESSES, rows of varints, and CONTENTS, bytes that were copied into the
device, once per content; the last is END, with the number of accesses. A file without END was truncated or its process
was killed: the complete blocks are read, and ``Trace.complete`` is False.

A reader allocates in proportion to the file: blocks up to any offset inflate to at most the bytes of the file up to
there plus a constant. The writer stores data that would exceed this without compression.
"""

from __future__ import annotations

import enum
import hashlib
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from npusim.errors import InputError
from npusim.untrusted import FileKind

MAGIC = b"NPUTRACE"
VERSION = 1
_START = struct.Struct("<8sHH")
_BLOCK = struct.Struct("<BIII")
_END = struct.Struct("<Q")
_HEAD_BYTES, _ACCESS_BYTES = 1 << 20, 1 << 16
MOST_ROWS, MOST_CONTENTS = 1 << 22, 1 << 26
"""Limit in bytes by which rows, or contents, may exceed the size of the file. In memory a row takes about 30 times its
bytes."""
_MOST_BITS = 128
"""Limit for a number. Digests are the longest."""
_MOST_PS = 1 << 80
_MOST_BYTES = 1 << 30
"""Limit of a copy. The memory of the device may be smaller."""
DIGEST_BYTES = 16


class RecordKind(enum.IntEnum):
    """The kind of a row, with its numbers in addition to gap and duration."""

    READ = 0  # bar, size, offset, value
    WRITE = 1  # bar, size, offset, value
    READ_MEMORY = 2  # address, size, digest
    WRITE_MEMORY = 3  # address, contents
    WAIT = 4  # timeout, vectors
    WORK = 5  # kind of host work
    INTERRUPT = 6  # vector; kinds from here to DMA_REFUSED come from the device, within the access after them
    PIN = 7  # level
    DMA_READ = 8  # address, contents
    DMA_WRITE = 9  # address, size, digest
    DMA_REFUSED = 10  # address, size, the address that could not be accessed
    CONFIG_READ = 11  # size, offset, value
    CONFIG_WRITE = 12  # size, offset, value
    PASS = 13  # only time, at the end
    RESTART = 14  # the transport resets the function


_NUMBERS = {
    RecordKind.READ: 4,
    RecordKind.WRITE: 4,
    RecordKind.READ_MEMORY: 3,
    RecordKind.WRITE_MEMORY: 2,
    RecordKind.WAIT: 2,
    RecordKind.WORK: 1,
    RecordKind.INTERRUPT: 1,
    RecordKind.PIN: 1,
    RecordKind.DMA_READ: 2,
    RecordKind.DMA_WRITE: 3,
    RecordKind.DMA_REFUSED: 3,
    RecordKind.CONFIG_READ: 3,
    RecordKind.CONFIG_WRITE: 3,
    RecordKind.PASS: 0,
    RecordKind.RESTART: 0,
}
FROM_DEVICE = frozenset(
    (RecordKind.INTERRUPT, RecordKind.PIN, RecordKind.DMA_READ, RecordKind.DMA_WRITE, RecordKind.DMA_REFUSED)
)
WORKS = ("submit", "map")


class TraceRecord(NamedTuple):
    """One row. ``gap_ps``: time from the end of the previous access to the start of this one, or to an interrupt.
    ``spent_ps``: its duration, 0 for events of the device. ``numbers``: see :class:`RecordKind`."""

    kind: RecordKind
    gap_ps: int
    spent_ps: int
    numbers: tuple[int, ...]


class _Block(enum.IntEnum):
    HEAD = 1
    ACCESSES = 2
    CONTENTS = 3
    END = 4


def digest(data: bytes | bytearray | memoryview) -> int:
    """The digest of bytes copied from the device."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest(), "little")


@dataclass
class Trace:
    """A trace in memory. ``head``: JSON values, with the resolved config of the device under ``config``. ``contents``:
    bytes that WRITE_MEMORY refers to by number. ``complete``: whether the writer finished."""

    head: Mapping[str, Any]
    accesses: list[TraceRecord] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def compared(self) -> int:
        """Number of accesses by the host, which a replay compares."""
        return sum(access.kind not in FROM_DEVICE and access.kind is not RecordKind.PASS for access in self.accesses)


TRACE = FileKind("bus trace", 1 << 40, InputError, InputError)


class _Size:
    """The size of a file so far, compressed and decompressed."""

    def __init__(self) -> None:
        self._file = _START.size
        self._inflated = {_Block.CONTENTS: 0, _Block.ACCESSES: 0}

    def room(self, kind: _Block, packed: int) -> int:
        """Limit of the decompressed size of the next block, which has ``packed`` bytes."""
        more = MOST_CONTENTS if kind is _Block.CONTENTS else MOST_ROWS
        most = self._file + packed + more - self._inflated[kind] if kind in self._inflated else _HEAD_BYTES
        return min(most, _ACCESS_BYTES) if kind is _Block.ACCESSES else most

    def add(self, kind: _Block, packed: int, size: int) -> None:
        """Count another block."""
        self._file += _BLOCK.size + packed
        if kind in self._inflated:
            self._inflated[kind] += size


class Writer:
    """Writes one file, block by block. Raises OSError."""

    def __init__(self, file: BinaryIO, head: Mapping[str, Any]) -> None:
        self._file = file
        self._rows = bytearray()
        self._count = 0
        self._known: dict[bytes, int] = {}
        self._size = _Size()
        file.write(_START.pack(MAGIC, VERSION, 0))
        self._block(_Block.HEAD, json.dumps(head, sort_keys=True).encode())

    def contents(self, data: bytes | bytearray | memoryview) -> int:
        """The number of these bytes in the file. Equal contents are stored once."""
        key = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self._known)
            self._block(_Block.CONTENTS, bytes(data))
        return number

    def access(self, access: TraceRecord) -> None:
        """Write the next row."""
        self._count += 1
        rows = self._rows
        rows.append(access.kind)
        for number in (access.gap_ps, access.spent_ps, *access.numbers):
            rest = number
            while rest > 0x7F:
                rows.append(rest & 0x7F | 0x80)
                rest >>= 7
            rows.append(rest)
        if len(rows) >= _ACCESS_BYTES - 256:
            self.flush()

    def flush(self) -> None:
        """Write all rows so far to the file, in case this process is killed."""
        if self._rows:
            self._block(_Block.ACCESSES, bytes(self._rows))
            self._rows.clear()
        self._file.flush()

    def end(self) -> None:
        """Write the end of the trace."""
        self.flush()
        self._block(_Block.END, _END.pack(self._count))
        self._file.flush()

    def _block(self, kind: _Block, data: bytes) -> None:
        packed = zlib.compress(data, 1)
        if len(data) > self._size.room(kind, len(packed)):
            packed = zlib.compress(data, 0)
        self._size.add(kind, len(packed), len(data))
        self._file.write(_BLOCK.pack(kind, len(packed), len(data), zlib.crc32(data)) + packed)


def read_trace(path: Path | str) -> Trace:
    """The trace in a file. Raises InputError if it is not a trace, is damaged, or cannot be read."""
    label = f"bus trace {path}"
    try:
        with TRACE.open(path) as file:
            return _read(file, label)
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror or error}") from None


def _read(file: io.FileIO, label: str) -> Trace:
    start = file.read(_START.size)
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise InputError(f"{label}: is not a bus trace; its first bytes must be {MAGIC.decode()}")
    _, version, reserved = _START.unpack(start)
    if version != VERSION or reserved:
        raise InputError(f"{label}: version must be {VERSION}, got {version | reserved << 16}")
    trace: Trace | None = None
    for kind, data in _blocks(file, label):
        if trace is None:
            trace = Trace(_head(kind, data, label))
        elif kind == _Block.ACCESSES:
            trace.accesses += _rows(data, label, len(trace.accesses), len(trace.contents))
        elif kind == _Block.CONTENTS:
            trace.contents.append(data)
        elif kind == _Block.END:
            count = len(trace.accesses)
            if data != _END.pack(count):
                raise InputError(f"{label}: its end does not count the {count} accesses before it")
            if count and trace.accesses[-1].kind in FROM_DEVICE:
                raise InputError(f"{label}: must end with an access of the host, got an event of the device")
            trace.complete = True
        else:
            raise InputError(f"{label}: a second head")
    if trace is None:
        raise InputError(f"{label}: was cut off before the description of its device")
    return trace


def _blocks(file: io.FileIO, label: str) -> Iterator[tuple[_Block, bytes]]:
    """The complete blocks of a file, up to the end."""
    kind = None
    sizes = _Size()
    left = os.fstat(file.fileno()).st_size - _START.size
    while kind != _Block.END:
        place = file.tell()
        raw = file.read(_BLOCK.size)
        if len(raw) < _BLOCK.size:
            return
        number, packed_bytes, size, checksum = _BLOCK.unpack(raw)
        where = f"{label}: block at {place}"
        try:
            kind = _Block(number)
        except ValueError:
            raise InputError(f"{where}: kind must be 1 to {len(_Block)}, got {number}") from None
        most = sizes.room(kind, packed_bytes)
        if size > most:
            raise InputError(f"{where}: must inflate to at most {most} bytes, its header says {size}")
        left -= _BLOCK.size + packed_bytes
        if left < 0:
            return
        sizes.add(kind, packed_bytes, size)
        packed = file.read(packed_bytes)
        if len(packed) < packed_bytes:
            return
        yield kind, _inflated(packed, size, checksum, where)
    if file.read(1):
        raise InputError(f"{label}: has data after its end")


def _inflated(packed: bytes, size: int, checksum: int, where: str) -> bytes:
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(packed, size + 1)
    except zlib.error as error:
        raise InputError(f"{where}: is damaged: {error}") from None
    if len(data) != size or not inflate.eof or inflate.unused_data or zlib.crc32(data) != checksum:
        raise InputError(f"{where}: is damaged: its checksum does not match")
    return data


def _head(kind: _Block, data: bytes, label: str) -> Mapping[str, Any]:
    head = TRACE.parse_json(data, label) if kind == _Block.HEAD else None
    if not isinstance(head, dict) or not isinstance(head.get("config"), dict):
        raise InputError(f"{label}: its first block must describe the device")
    faults, adversary = head.get("faults"), head.get("adversary")
    # A table of faults; a text would be a file name.
    if not isinstance(faults, list | None) or not (adversary is None or (type(adversary) is int and adversary >= 0)):
        raise InputError(f"{label}: its faults must be a list, its adversary a number")
    return head


def _rows(data: bytes, label: str, before: int, contents: int) -> Iterator[TraceRecord]:
    """The accesses of a block. Raises InputError."""
    place = 0

    def bad(what: str) -> InputError:
        return InputError(f"{label}: access {before}: {what}")

    def number() -> int:
        nonlocal place
        found = shift = 0
        while True:
            if place == len(data) or shift > _MOST_BITS:
                raise bad("ends inside a number, or has a number that is too long")
            byte = data[place]
            place += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while place < len(data):
        code = data[place]
        place += 1
        if code not in _NUMBERS:
            raise bad(f"kind must be 0 to {len(_NUMBERS) - 1}, got {code}")
        kind = RecordKind(code)
        gap, spent = number(), number()
        numbers = tuple(number() for _ in range(_NUMBERS[kind]))
        access = TraceRecord(kind, gap, spent, numbers)
        problem = _problem(access, contents)
        if problem:
            raise bad(problem)
        yield access
        before += 1


def _problem(access: TraceRecord, contents: int) -> str:
    """The problem with an access after this number of contents; empty if there is none."""
    kind, numbers = access.kind, access.numbers
    longest = max(access.gap_ps, access.spent_ps, numbers[0] if kind is RecordKind.WAIT else 0)
    if longest > _MOST_PS:
        return f"a time of {longest} ps must be at most {_MOST_PS}"
    if kind in (RecordKind.READ_MEMORY, RecordKind.DMA_WRITE, RecordKind.DMA_REFUSED) and numbers[1] > _MOST_BYTES:
        return f"copies {numbers[1]} bytes, must be at most {_MOST_BYTES}"
    if kind in (RecordKind.READ, RecordKind.WRITE) and numbers[1] not in (1, 2, 4, 8):
        return f"size must be 1, 2, 4 or 8, got {numbers[1]}"
    if kind in (RecordKind.CONFIG_READ, RecordKind.CONFIG_WRITE) and numbers[0] not in (1, 2, 4, 8):
        return f"size must be 1, 2, 4 or 8, got {numbers[0]}"
    if kind in (RecordKind.WRITE_MEMORY, RecordKind.DMA_READ) and numbers[1] >= contents:
        return f"refers to contents {numbers[1]}, and there are {contents} before it"
    if kind is RecordKind.WORK and numbers[0] >= len(WORKS):
        return f"kind of host work must be 0 to {len(WORKS) - 1}, got {numbers[0]}"
    return ""
