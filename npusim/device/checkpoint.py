"""The state of a whole device at one moment, and the file format of it.

A file holds plain data and no code: a header, the state as JSON, and the memory pages that are not all zeros; both
compressed and covered by a checksum. All data is validated when read. See ADR 0047.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import CheckpointError, ConfigError, UsageError
from npusim.hw.config import Config, config_of
from npusim.isa.base import ISA_VERSION, ByteArray
from npusim.sim.memory import DeviceMemory, sizes_of
from npusim.sim.pages import PAGE, Runs, bytes_of, memories, pages_of, written
from npusim.sim.saved import Saved
from npusim.trusted_files import replace_file
from npusim.untrusted import FileKind

CHECKPOINT = FileKind("checkpoint of a device", error=CheckpointError)
FORMAT_VERSION = 4
"""Version of the file and of the state in it. Increment it with any change of either."""
LONGEST_STATE = 1 << 25
"""Limit for the JSON of the state, in bytes."""

_MAGIC = b"NPUCKPT\x1a"
_HEADER = struct.Struct("<8sIIQQQQ32s")
_PIECE = 1 << 16
_LEVEL = 1
"""A low compression level: most bytes are weights, which hardly shrink."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedPages:
    """Compressed pages of a file. ``size``: bytes after decompression, which is done directly into the memories."""

    packed: memoryview
    size: int

    def write_to(self, parts: Iterable[ByteArray]) -> None:
        """Decompress into arrays of ``size`` bytes in total. Raises CheckpointError for another size."""
        stream, at = zlib.decompressobj(), 0
        rest: bytes | memoryview = b""

        def next_(most: int) -> bytes:
            nonlocal at, rest
            while True:
                if not rest:
                    rest, at = self.packed[at : at + _PIECE], at + _PIECE
                try:
                    raw = stream.decompress(rest, most)
                except zlib.error as error:
                    raise CheckpointError(f"its pages cannot be decompressed: {error}") from None
                rest = stream.unconsumed_tail
                if raw or stream.eof or (not rest and at >= len(self.packed)):
                    return raw

        for part in parts:
            done = 0
            while done < part.size:
                raw = next_(min(part.size - done, _PIECE))
                if not raw:
                    raise CheckpointError(f"its pages do not decompress to the {self.size} bytes of its header")
                part[done : done + len(raw)] = np.frombuffer(raw, np.uint8)
                done += len(raw)
        if next_(1) or not stream.eof or stream.unused_data or at < len(self.packed):
            raise CheckpointError(f"its pages do not decompress to the {self.size} bytes of its header")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The state of a device. ``state``: everything except the memories, as JSON values. ``pages``: the memories."""

    state: Mapping[str, Any]
    pages: ByteArray | PackedPages

    @property
    def now_ps(self) -> int:
        """The simulated time of the checkpoint, in ps."""
        return Saved(self.state)["now_ps"].integer()

    def config(self) -> Config:
        """The device description. Raises CheckpointError."""
        saved = Saved(self.state)["config"]
        saved.names()
        try:
            config = config_of(saved.value, "checkpoint")
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(f"the description of its device: {error}") from None
        if config.fingerprint() != Saved(self.state)["fingerprint"].text():
            raise CheckpointError("the description of its device differs from that of its state")
        return config

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a file atomically. Raises OSError, or CheckpointError for a state that could not be read again."""
        raw = json.dumps(self.state, separators=(",", ":")).encode()
        if len(raw) > LONGEST_STATE:
            raise CheckpointError(f"its state has {len(raw)} bytes, a file may have {LONGEST_STATE}")
        CHECKPOINT.parse_json(raw, "its state")
        pages = self.pages
        packed = pages.packed if isinstance(pages, PackedPages) else zlib.compress(pages.data, _LEVEL)
        parts = [zlib.compress(raw, _LEVEL), packed]
        lengths = [len(parts[0]), len(raw), len(parts[1]), self.pages.size]
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, ISA_VERSION, *lengths, _digest(lengths, parts))
        replace_file(Path(path), [header, *parts])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Read and validate a file. Pages are not decompressed yet, but must fit the memories of the device.

        Raises UsageError if it cannot be read, CheckpointError if it is refused.
        """
        try:
            with CHECKPOINT.open(path) as file:
                size = os.fstat(file.fileno()).st_size
                lengths, digest = _header(path, file.read(_HEADER.size), size)
                data = bytearray(size - _HEADER.size)
                done = 0
                while got := file.readinto(memoryview(data)[done:]):
                    done += got
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
        except MemoryError:
            raise CheckpointError(f"{path}: is larger than this machine's memory") from None
        view = memoryview(data)
        parts = [view[: lengths[0]], view[lengths[0] :]]
        if done < len(data) or not hmac.compare_digest(_digest(lengths, parts), digest):
            raise CheckpointError(f"{path}: has been altered: its checksum does not match")
        state = CHECKPOINT.parse_json(_inflated(path, parts[0], lengths[1]), f"{path}: its state")
        if not isinstance(state, dict):
            raise CheckpointError(f"{path}: its state must be a mapping")
        found = cls(state, PackedPages(parts[1], lengths[3]))
        memory = sum(sizes_of(found.config()).values())
        if lengths[3] > memory:
            raise CheckpointError(f"{path}: its pages have {lengths[3]} bytes, its device has {memory}")
        return found


def _digest(lengths: Iterable[int], parts: Iterable[Any]) -> bytes:
    state = hashlib.sha256(struct.pack("<IIQQQQ", FORMAT_VERSION, ISA_VERSION, *lengths))
    for part in parts:
        state.update(part)
    return state.digest()


def _header(path: object, start: bytes, size: int) -> tuple[list[int], bytes]:
    """Lengths (state, decompressed state, pages, decompressed pages), which must match the size of the file, and the
    digest."""
    if len(start) < _HEADER.size:
        raise CheckpointError(f"{path}: {len(start)} bytes, too short for a checkpoint")
    magic, version, isa, *lengths, digest = _HEADER.unpack(start)
    if magic != _MAGIC:
        raise CheckpointError(f"{path}: is not a checkpoint of npusim")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path}: has format {version}; this npusim reads format {FORMAT_VERSION}")
    if isa != ISA_VERSION:
        raise CheckpointError(f"{path}: is for instruction set {isa}, this npusim has instruction set {ISA_VERSION}")
    wanted = _HEADER.size + lengths[0] + lengths[2]
    if size != wanted:
        kind = "is truncated" if size < wanted else "has bytes after its end"
        raise CheckpointError(f"{path}: {kind}: {size} bytes, its header says {wanted}")
    if lengths[1] > LONGEST_STATE:
        raise CheckpointError(
            f"{path}: its state must have at most {LONGEST_STATE} bytes, its header says {lengths[1]}"
        )
    return lengths, digest


def _inflated(path: object, packed: memoryview, size: int) -> bytes:
    """Exactly ``size`` decompressed bytes. A longer stream is not decompressed further."""
    stream = zlib.decompressobj()
    try:
        # One byte more than allowed, to detect longer streams; also because 0 would mean no limit.
        raw = stream.decompress(packed, size + 1)
    except (zlib.error, MemoryError, OverflowError) as error:
        raise CheckpointError(f"{path}: cannot be decompressed: {error}") from None
    if len(raw) != size or not stream.eof or stream.unused_data:
        raise CheckpointError(f"{path}: does not decompress to the {size} bytes of its header")
    return raw


# Memories


def memory_state(memory: DeviceMemory) -> tuple[dict[str, Runs], ByteArray]:
    """The pages of each memory that are kept, and their bytes."""
    runs = {name: written(array) for name, array in memories(memory).items()}
    parts = [part for name, array in memories(memory).items() for part in pages_of(array, runs[name])]
    return runs, np.concatenate([np.zeros(0, np.uint8), *parts])


def restore_memory(memory: DeviceMemory, saved: Saved, pages: ByteArray | PackedPages) -> None:
    """Restore the contents of all memories. Raises CheckpointError."""
    arrays = memories(memory)
    if sorted(saved.names()) != sorted(arrays):
        raise saved.refuse(f"the pages of {', '.join(arrays)}")
    runs = {name: _runs(saved[name], array) for name, array in arrays.items()}
    total = sum(bytes_of(array, runs[name]) for name, array in arrays.items())
    if total != pages.size:
        raise CheckpointError(f"{saved.path}: name {total} bytes, there are {pages.size}")
    memory.release()
    for name, array in arrays.items():
        if name != "dram":
            array[:] = 0
    parts = [part for name, array in arrays.items() for part in pages_of(array, runs[name])]
    if isinstance(pages, PackedPages):
        pages.write_to(parts)
        return
    at = 0
    for part in parts:
        part[:] = pages[at : at + part.size]
        at += part.size


def _runs(saved: Saved, array: ByteArray) -> Runs:
    runs: Runs = []
    end, count = 0, -(-array.size // PAGE)
    for item in saved:
        first, pages = item.integers(2, 0, count)
        if first < end or not pages or first + pages > count:
            raise item.refuse(f"a page from {end} on and how many, all of them below {count}")
        end = first + pages
        runs.append((first, pages))
    return runs
