"""Device memory for a driver: first fit, aligned; what is freed is checked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from npusim.errors import DeviceMemoryError
from npusim.units import ceil_div

ALIGNMENT = 256
"""Every block starts at a multiple of this many bytes; a multiple of any DRAM burst that a config should have."""


def block_bytes(size: int) -> int:
    """What a block of that size takes: whole units of ALIGNMENT, one at least."""
    return max(ceil_div(size, ALIGNMENT), 1) * ALIGNMENT


class Allocator:
    """Bytes [start, start + size) of device memory. Sizes are rounded up to ALIGNMENT, 0 too."""

    def __init__(self, start: int, size: int, note: Callable[[str, int, int], object] = lambda *_: None) -> None:
        """``note`` is told of each block that is ``allocated`` or ``freed``, with its address and size."""
        self._note = note
        first = ceil_div(start, ALIGNMENT) * ALIGNMENT
        last = (start + size) // ALIGNMENT * ALIGNMENT
        self._free: list[tuple[int, int]] = [(first, last - first)] if last > first else []  # (address, size), sorted
        self._used: dict[int, int] = {}

    @property
    def available(self) -> int:
        """Free bytes, in however many pieces."""
        return sum(size for _, size in self._free)

    @property
    def largest(self) -> int:
        """Bytes of the largest piece."""
        return max((size for _, size in self._free), default=0)

    def allocate(self, size: int, purpose: str) -> int:
        """The address of a new block; raises DeviceMemoryError with required and available bytes."""
        needed = block_bytes(size)
        # First fit, from the lowest address: the same requests lie at the same addresses on every machine.
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
        """Give a block back; raises ValueError for an address that is not the start of one."""
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
        """Give several blocks back."""
        for address in addresses:
            self.free(address)

    def state(self) -> dict[str, list[list[int]]]:
        """As plain data."""
        return {"free": [list(piece) for piece in self._free], "used": [list(block) for block in self._used.items()]}

    def resume(self, state: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Be as it was. Raises ValueError, TypeError and KeyError for what makes no sense."""
        free = [(int(address), int(size)) for address, size in state["free"]]
        used = {int(address): int(size) for address, size in state["used"]}
        self._free, self._used = sorted(free), used
