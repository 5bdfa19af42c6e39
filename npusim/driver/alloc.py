"""A first-fit allocator of device memory for drivers. Frees are checked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from npusim.errors import DeviceMemoryError, shown
from npusim.units import ceil_div

WORD = (1 << 64) - 1
ALIGNMENT = 256
"""Alignment of blocks in bytes; a multiple of any sensible DRAM burst."""


def block_bytes(size: int) -> int:
    """Size of a block in bytes: a multiple of ALIGNMENT, at least one."""
    return max(ceil_div(size, ALIGNMENT), 1) * ALIGNMENT


def whole(value: object, most: int = WORD) -> int:
    """A validated integer of a saved state. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"must be an integer from 0 to {most}, got {shown(value)}")
    return value


class Allocator:
    """Allocator of bytes [start, start + size) of device memory. Sizes are rounded up to ALIGNMENT, also 0."""

    def __init__(self, start: int, size: int, note: Callable[[str, int, int], object] = lambda *_: None) -> None:
        """``note`` is called with ``allocated`` or ``freed``, address and size of each block."""
        self._note = note
        first = ceil_div(start, ALIGNMENT) * ALIGNMENT
        last = (start + size) // ALIGNMENT * ALIGNMENT
        self._free: list[tuple[int, int]] = [(first, last - first)] if last > first else []  # (address, size), sorted
        self._used: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Free bytes in all pieces together."""
        return sum(size for _, size in self._free)

    @property
    def largest(self) -> int:
        """Size of the largest free piece in bytes."""
        return max((size for _, size in self._free), default=0)

    def allocate(self, size: int, purpose: str) -> int:
        """The address of a new block. Raises DeviceMemoryError with required and available bytes."""
        needed = block_bytes(size)
        # First fit from the lowest address, so that equal requests give equal addresses.
        for number, (address, free) in enumerate(self._free):
            if free >= needed:
                if free == needed:
                    del self._free[number]
                else:
                    self._free[number] = (address + needed, free - needed)
                self._used[address] = needed
                self._note("allocated", address, needed)
                return address
        raise DeviceMemoryError(
            f"{purpose}: {needed} bytes of device memory required, {self.available} available, "
            f"{self.largest} of them in one piece"
        )

    def free(self, address: int) -> None:
        """Free a block. Raises ValueError for an address that is not the start of one."""
        size = self._used.pop(address, None)
        if size is None:
            raise ValueError(f"free of {address:#x}: no block starts there")
        self._note("freed", address, size)
        at = bisect_left(self._free, (address, 0))
        if at < len(self._free) and address + size == self._free[at][0]:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == address:
            address, size = self._free[at - 1][0], size + self._free.pop(at - 1)[1]
            at -= 1
        self._free.insert(at, (address, size))

    def free_all(self, addresses: Iterable[int]) -> None:
        """Free several blocks."""
        for address in addresses:
            self.free(address)

    def state(self) -> dict[str, list[list[int]]]:
        """The state as plain data."""
        return {"free": [list(piece) for piece in self._free], "used": [list(block) for block in self._used.items()]}

    def resume(self, state: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Restore a state. Raises ValueError, TypeError or KeyError for invalid states: blocks that overlap or are
        outside of this memory."""
        free = sorted((whole(address), whole(size)) for address, size in state["free"])
        used = sorted((whole(address), whole(size)) for address, size in state["used"])
        ends = [(address, address + size) for address, size in self._span()]
        at, end = ends[0][0], ends[-1][1]
        for address, size in sorted([*free, *used]):
            if address != at or not size or size % ALIGNMENT:
                raise ValueError(f"a block of {size} bytes at {address:#x}: the next one must begin at {at:#x}")
            at += size
        if at != end:
            raise ValueError(f"blocks end at {at:#x}, the memory at {end:#x}")
        self._free, self._used = free, dict(used)

    def _span(self) -> list[tuple[int, int]]:
        """All pieces, free or used, in order."""
        return sorted([*self._free, *self._used.items()]) or [(0, 0)]

    def check_used(self, addresses: Iterable[int]) -> None:
        """Raise ValueError unless these are distinct start addresses of used blocks."""
        starts = list(addresses)
        if not set(starts) <= self._used.keys() or len(set(starts)) != len(starts):
            raise ValueError("programs, slots and rings must have separate blocks")
