"""The device's end of vhost-user and of virtqueues: memory of a guest, and rings of descriptors in it.

Virtual I/O Device (VIRTIO) Version 1.1, section 2.6: split virtqueues, without indirect descriptors and event indices,
which nobody here offers. Nothing that a guest writes is believed: every address is looked up, every chain has an end.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from npusim.device.carriers.channel import PeerError

CHAIN_BYTES = 1 << 28
"""The most that one chain of descriptors may hold: what lies behind all BARs together, 256 MiB."""
QUEUE_SIZES = tuple(1 << power for power in range(11))

_NEXT, _DEVICE_WRITES = 1, 2
_DESCRIPTOR = struct.Struct("<QIHH")  # address, bytes, flags, next
_USED = struct.Struct("<II")  # head of a chain, bytes written
_INDEX = struct.Struct("<H")


class Region(NamedTuple):
    """Part of a guest's memory: ``size`` bytes at a bus address are those of a file from ``offset`` on."""

    address: int
    size: int
    descriptor: int
    offset: int


class GuestMemory:
    """What a guest shares, by bus address. Owns the descriptors.

    The files are read and written, not mapped: a guest may shorten a file at any time, and an access to a mapping
    behind the end of its file kills the process.
    """

    def __init__(self) -> None:
        self._regions: tuple[Region, ...] = ()

    def share(self, regions: tuple[Region, ...]) -> None:
        """Take these regions in place of those there were. Raises PeerError, and then owns their descriptors too."""
        self.close()
        self._regions = regions
        for region in regions:
            found = os.fstat(region.descriptor)
            if not stat.S_ISREG(found.st_mode) or region.offset + region.size > found.st_size:
                raise PeerError(
                    f"memory at {region.address:#x}: must lie in a file that has bytes {region.offset:#x} to "
                    f"{region.offset + region.size:#x}, got one of {found.st_size:#x} bytes"
                )

    def close(self) -> None:
        """Let go of the files."""
        for region in self._regions:
            with suppress(OSError):
                os.close(region.descriptor)
        self._regions = ()

    def _find(self, address: int, size: int) -> tuple[int, int]:
        for region in self._regions:
            if region.address <= address and address + size <= region.address + region.size:
                return region.descriptor, region.offset + address - region.address
        shared = ", ".join(f"{each.address:#x} to {each.address + each.size:#x}" for each in self._regions)
        raise PeerError(f"{size} bytes at {address:#x} must lie in memory that is shared: {shared or 'none is'}")

    def read(self, address: int, size: int) -> bytes:
        """``size`` bytes at a bus address. Raises PeerError where nothing is shared."""
        descriptor, offset = self._find(address, size)
        try:
            data = os.pread(descriptor, size, offset)
        except OSError as error:
            raise PeerError(f"memory at {address:#x} cannot be read: {error.strerror}") from None
        if len(data) != size:
            raise PeerError(f"the file with the {size} bytes at {address:#x} has become shorter")
        return data

    def write(self, address: int, data: bytes) -> None:
        """As :meth:`read`."""
        descriptor, offset = self._find(address, len(data))
        try:
            written = os.pwrite(descriptor, data, offset)
        except OSError as error:
            raise PeerError(f"memory at {address:#x} cannot be written: {error.strerror}") from None
        if written != len(data):
            raise PeerError(f"memory at {address:#x}: only {written} of {len(data)} bytes could be written")


class Chain(NamedTuple):
    """One request: ``data``, what the driver wrote; ``room``, addresses and sizes of where the answer goes."""

    head: int
    data: bytes
    room: tuple[tuple[int, int], ...]


class Queue:
    """A split virtqueue, as its device sees it. Addresses are set by the driver before anything is taken."""

    def __init__(self, memory: GuestMemory) -> None:
        self._memory = memory
        self.descriptors = self.used = self.available = 0  # bus addresses
        self.reset()

    def reset(self) -> None:
        """As before the driver has set it up."""
        self.size = 0
        self.taken = 0  # as the driver's index of what is available counts, modulo 2**16
        self._given = 0

    def set_size(self, size: int) -> None:
        """Raises PeerError for a size that a virtqueue cannot have."""
        if size not in QUEUE_SIZES:
            raise PeerError(f"the size of a virtqueue must be a power of two up to {QUEUE_SIZES[-1]}, got {size}")
        self.size = size

    def waiting(self) -> int:
        """Chains that the driver has made available and that were not taken; 0 for a queue that is not set up."""
        if not self.size:
            return 0
        (available,) = _INDEX.unpack(self._memory.read(self.available + 2, 2))
        waiting: int = available - self.taken & 0xFFFF
        if waiting > self.size:
            raise PeerError(f"a virtqueue of {self.size} cannot have {waiting} chains available")
        return waiting

    def take(self) -> Chain:
        """The next chain; only if there is one :meth:`waiting`."""
        (head,) = _INDEX.unpack(self._memory.read(self.available + 4 + 2 * (self.taken % self.size), 2))
        self.taken = self.taken + 1 & 0xFFFF
        data, room = [], []
        for address, size, flags in self._walk(head):
            if flags & _DEVICE_WRITES:
                room.append((address, size))
            elif room:
                raise PeerError("a chain must have what the device reads before what it writes")
            else:
                data.append(self._memory.read(address, size))
        return Chain(head, b"".join(data), tuple(room))

    def _walk(self, index: int) -> Iterator[tuple[int, int, int]]:
        total = 0
        for _ in range(self.size):
            if index >= self.size:
                raise PeerError(f"a descriptor must be one of 0 to {self.size - 1}, got {index}")
            entry = self._memory.read(self.descriptors + _DESCRIPTOR.size * index, _DESCRIPTOR.size)
            address, size, flags, index = _DESCRIPTOR.unpack(entry)
            total += size
            if flags & ~(_NEXT | _DEVICE_WRITES) or total > CHAIN_BYTES:
                raise PeerError(
                    f"a chain with flags {flags:#x} and {total} bytes: must have 0 to 3, {CHAIN_BYTES} at most"
                )
            yield address, size, flags
            if not flags & _NEXT:
                return
        raise PeerError(f"a chain must end within the {self.size} descriptors of its virtqueue")

    def give(self, chain: Chain, answer: bytes) -> None:
        """Hand a chain back with an answer, of which goes in what has room."""
        place = 0
        for address, size in chain.room:
            part = answer[place : place + size]
            if part:
                self._memory.write(address, part)
            place += len(part)
        entry = _USED.pack(chain.head, place)
        self._memory.write(self.used + 4 + _USED.size * (self._given % self.size), entry)
        self._given = self._given + 1 & 0xFFFF
        self._memory.write(self.used + 2, _INDEX.pack(self._given))
