"""The device side of virtqueues: rings of descriptors in guest memory.

Virtual I/O Device (VIRTIO) Version 1.1, section 2.6: split virtqueues, without indirect descriptors and event indices,
which are not offered. All guest data is validated: addresses must be in memory, chains must end. Raises PeerError for
an invalid queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from npusim.device.pci import DmaError
from npusim.device.transports.host_memory import HostMemory
from npusim.device.transports.wire import PeerError

CHAIN_BYTES = 1 << 28
"""Most bytes of one chain: the size of all BARs together, 256 MiB."""
QUEUE_SIZES = tuple(1 << power for power in range(11))

_NEXT, _DEVICE_WRITES = 1, 2
_DESCRIPTOR = struct.Struct("<QIHH")  # address, bytes, flags, next
_USED = struct.Struct("<II")  # head of a chain, bytes written
_INDEX = struct.Struct("<H")


class DescriptorChain(NamedTuple):
    """One request. ``data``: written by the driver. ``room``: addresses and sizes for the answer."""

    head: int
    data: bytes
    room: tuple[tuple[int, int], ...]


class Queue:
    """A split virtqueue from the side of the device. The driver sets the addresses before use."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self.descriptors = self.used = self.available = 0  # bus addresses
        self.reset()

    def reset(self) -> None:
        """Reset to the state before set-up."""
        self.size = 0
        self.kept: list[int] = []  # heads of finished chains that were not returned yet
        self.taken = 0  # counts like the driver's available index, modulo 2**16
        self._given = 0

    def set_size(self, size: int) -> None:
        """Set the number of descriptors. Raises PeerError for an invalid size."""
        if size not in QUEUE_SIZES:
            raise PeerError(f"the size of a virtqueue must be a power of two up to {QUEUE_SIZES[-1]}, got {size}")
        self.size = size

    def waiting(self) -> int:
        """Number of available chains that were not taken; 0 for a queue that is not set up."""
        if not self.size:
            return 0
        (available,) = _INDEX.unpack(self._read(self.available + 2, 2))
        waiting: int = available - self.taken & 0xFFFF
        if waiting > self.size:
            raise PeerError(f"a virtqueue of {self.size} cannot have {waiting} chains available")
        return waiting

    def take(self) -> DescriptorChain:
        """The next chain; requires :meth:`waiting` > 0."""
        (head,) = _INDEX.unpack(self._read(self.available + 4 + 2 * (self.taken % self.size), 2))
        self.taken = self.taken + 1 & 0xFFFF
        data, room = [], []
        for address, size, flags in self._walk(head):
            if flags & _DEVICE_WRITES:
                room.append((address, size))
            elif room:
                raise PeerError("the readable descriptors of a chain must precede the writable ones")
            else:
                data.append(self._read(address, size))
        return DescriptorChain(head, b"".join(data), tuple(room))

    def _walk(self, index: int) -> Iterator[tuple[int, int, int]]:
        total = 0
        for _ in range(self.size):
            if index >= self.size:
                raise PeerError(f"a descriptor must be one of 0 to {self.size - 1}, got {index}")
            entry = self._read(self.descriptors + _DESCRIPTOR.size * index, _DESCRIPTOR.size)
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

    def give(self, chain: DescriptorChain, answer: bytes) -> None:
        """Return a chain with an answer, cut to the room for it."""
        place = 0
        for address, size in chain.room:
            part = answer[place : place + size]
            if part:
                self._write(address, part)
            place += len(part)
        self._give(chain.head, place)

    def keep(self, chain: DescriptorChain) -> None:
        """Finish a chain without an answer, to be returned later by :meth:`give_kept`."""
        self.kept.append(chain.head)

    def give_kept(self) -> None:
        """Return the kept chains."""
        for head in self.kept:
            self._give(head, 0)
        self.kept.clear()

    def _give(self, head: int, written: int) -> None:
        entry = _USED.pack(head, written)
        self._write(self.used + 4 + _USED.size * (self._given % self.size), entry)
        self._given = self._given + 1 & 0xFFFF
        self._write(self.used + 2, _INDEX.pack(self._given))

    def _read(self, address: int, size: int) -> bytes:
        try:
            return self._memory.read(address, size)
        except DmaError as error:
            raise _lost(error) from None

    def _write(self, address: int, data: bytes) -> None:
        try:
            self._memory.write(address, data)
        except DmaError as error:
            raise _lost(error) from None


def _lost(error: DmaError) -> PeerError:
    return PeerError(f"a virtqueue or one of its buffers: {error.explanation}: {error.address:#x}")
