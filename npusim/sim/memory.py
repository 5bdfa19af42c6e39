"""The memories of the machine: DRAM, L2, and SRAM and accumulators of each core."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Sequence

import numpy as np

from npusim._core import Strided
from npusim.errors import DeviceMemoryError
from npusim.hw.config import Config
from npusim.isa.base import OFFSET_MASK, ByteArray, Space

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_SPACE_SHIFT = OFFSET_MASK.bit_length()


class AddressError(Exception):
    """An access outside the memory of the machine, which becomes STATUS.FAULT. Arguments: address, explanation."""

    def __init__(self, address: int, explanation: str, /) -> None:
        super().__init__(address, explanation)
        self.address = address
        self.explanation = explanation


def sizes_of(config: Config) -> dict[str, int]:
    """Bytes of each memory of a device, all cores together."""
    acc = config.matrix.accumulator_bytes if config.matrix else 0
    l2 = config.l2.bytes if config.l2 else 0
    return {"dram": config.dram.bytes, "sram": config.cores * config.sram.bytes, "acc": config.cores * acc, "l2": l2}


class DeviceMemory:
    """The memories, initially zero. DRAM is mapped, so unwritten pages take no memory.

    ``shared``: DRAM is an anonymous file of sealed size whose descriptor ``dram_file`` another process may map. Raises
    DeviceMemoryError if the host has not enough address space, or no such files.
    """

    def __init__(self, config: Config, *, shared: bool = False) -> None:
        self.dram_bytes = config.dram.bytes
        self.sram_bytes = config.sram.bytes
        self.acc_bytes = config.matrix.accumulator_bytes if config.matrix else 0
        self.l2_bytes = config.l2.bytes if config.l2 else 0
        self.dram_file: int | None = None
        try:
            if shared:
                self.dram_file = _sealed_file(self.dram_bytes)
                weakref.finalize(self, os.close, self.dram_file)
                self._pages = mmap.mmap(self.dram_file, self.dram_bytes, flags=mmap.MAP_SHARED | _NO_RESERVE)
            else:
                self._pages = mmap.mmap(-1, self.dram_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        except OSError as error:
            raise DeviceMemoryError(
                f"dram.bytes: the host cannot map {self.dram_bytes} bytes of simulated DRAM: {error.strerror}"
            ) from None
        self.dram: ByteArray = np.frombuffer(self._pages, np.uint8)
        self.sram = [np.zeros(self.sram_bytes, np.uint8) for _ in range(config.cores)]
        self.acc = [np.zeros(self.acc_bytes, np.uint8) for _ in range(config.cores)]
        self.l2 = np.zeros(self.l2_bytes, np.uint8)

    def release(self) -> None:
        """Return the pages of DRAM to the operating system; the bytes become zeros."""
        if self.dram_file is not None:
            self._pages.madvise(mmap.MADV_REMOVE)  # removes them from the file, for all processes that map it
        elif hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)
        else:
            self.dram[:] = 0

    def slice(self, address: int, size: int) -> ByteArray:
        """``size`` bytes of DRAM at a device address, as a view. Raises AddressError outside of DRAM."""
        if address < 0 or size < 0 or address + size > self.dram_bytes:
            raise AddressError(address, f"{size} bytes at {address:#x}: DRAM has {self.dram_bytes:#x} bytes")
        return self.dram[address : address + size]

    def load(self, address: int, size: int) -> bytes:
        """A copy of bytes of DRAM. Raises AddressError outside of DRAM."""
        return self.slice(address, size).tobytes()

    def store(self, address: int, data: bytes) -> None:
        """Write bytes to DRAM. Raises AddressError outside of DRAM."""
        self.slice(address, len(data))[:] = np.frombuffer(data, np.uint8)


def _sealed_file(size: int) -> int:
    """The descriptor of a file in memory that cannot be truncated: access to a mapping behind its end would be
    fatal."""
    if not hasattr(os, "memfd_create"):
        raise DeviceMemoryError("device DRAM can be shared with another process on Linux only")
    file = os.memfd_create("npusim-dram", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(file)
        raise
    return file


class JobMemory:
    """The memories as the instructions of one job see them: DRAM only through the regions of the job."""

    def __init__(self, memory: DeviceMemory, regions: Sequence[tuple[int, int]]) -> None:
        """``regions``: (DRAM address, bytes) of each. Raises AddressError for one outside of DRAM."""
        self._sram = memory.sram
        self._acc = memory.acc
        self._l2 = memory.l2
        self._regions = [memory.slice(base, size) for base, size in regions]

    def at(self, core: int, address: int, strides: tuple[int, ...] = ()) -> Strided:
        """The elements from an address on. Raises AddressError if there is no such memory, or it ends before the
        address."""
        space, offset = address >> _SPACE_SHIFT, address & OFFSET_MASK
        try:
            if space >= Space.REGION:
                array = self._regions[space - Space.REGION]
            elif space == Space.SRAM:
                array = self._sram[core]
            elif space == Space.ACC:
                array = self._acc[core]
            elif space == Space.L2:
                array = self._l2
            else:
                raise AddressError(address, f"there is no memory space {space}")
        except IndexError:
            raise AddressError(address, f"no such region or core: {address:#x} of core {core}") from None
        if offset > array.size:
            raise AddressError(address, f"offset {offset:#x}: the memory has {array.size:#x} bytes")
        return Strided(array, offset, strides)
