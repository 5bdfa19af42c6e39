"""Reads and writes of the driver, with detection of a removed device.

A removed device reads as all ones. A device that was plugged in again has been reset, and its memory is zero. After a
read that ends in one of these values, the driver therefore reads INT_MASK, which it has set to a value other than all
ones: all ones mean that the device is gone, any other value than the driver's means that it has lost power. Memory is
read in ascending order, so the last word shows whether the device was present until the end. The cost is one register
access per such read; other reads are not slower.

A reset sets INT_MASK to 0, as power-on does. Memory tells these apart, because a reset keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS, Bus, is_doubtful
from npusim.driver import header
from npusim.errors import DeviceGoneError


class Link:
    """The bus of one device. ``on_gone`` is called before DeviceGoneError is raised. ``mask``: expected value of
    INT_MASK; 0 while the device is being reset, when ``mark`` in memory is checked instead. ``looks``: number of
    checks. ``proven``: no write can hide a loss of the device."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.mask = 0
        self.mark: int | None = None
        self.looks = 0
        self.on_gone: Callable[[DeviceGoneError], object] = lambda gone: None
        self.proven = True

    def get(self, register: int) -> int:
        """The value of a register. Raises DeviceGoneError."""
        value = self.bus.read(BAR_REGISTERS, register, 4)
        if value == header.GONE:
            self.look()
            # The device may have been plugged in again before the check.
            value = self.bus.read(BAR_REGISTERS, register, 4)
        return value

    def get_pair(self, low: int) -> int:
        """The 64-bit value of a register and the next one. Raises DeviceGoneError."""
        return self.get(low + 4) << 32 | self.get(low)

    def put(self, register: int, value: int) -> None:
        """Write a register."""
        self.bus.write(BAR_REGISTERS, register, 4, value)

    def read(self, address: int, size: int) -> bytearray:
        """Bytes of device memory. Raises DeviceGoneError."""
        data = self.bus.read_memory(address, size)
        if not self.proven or is_doubtful(address, data):
            self.look()
        return data

    def read_text(self, address: int, size: int) -> bytes:
        """A zero-terminated text. Its beginning shows whether the device is present. Raises DeviceGoneError."""
        text = bytes(self.bus.read_memory(address, size)).split(b"\0", 1)[0]
        if is_doubtful(address, text[:4]):
            self.look()
        return text

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write device memory that the host may read again before a job has ended.

        If the device has lost its memory, such a write would hide that from the next read, so this checks first.
        """
        self.bus.write_memory(address, data)
        self.proven = False

    def set_mark(self, address: int, entry: bool) -> None:
        """Before a reset: remember a word of memory that will keep its value, of a ring entry or a new one. Raises
        DeviceGoneError."""
        if not entry:
            self.bus.write(BAR_MEMORY, address, 4, header.ENTRY_MAGIC)
        self.mark = address
        self.look()
        self.mask = 0

    def look(self) -> None:
        """Raise DeviceGoneError unless the device is present and still configured by this driver."""
        self.looks += 1
        if self.mask:
            found, wanted = self.bus.read(BAR_REGISTERS, header.INT_MASK, 4), self.mask
        elif self.mark is not None:
            found, wanted = self.bus.read(BAR_MEMORY, self.mark, 4), header.ENTRY_MAGIC
        else:
            found, wanted = self.bus.read(BAR_REGISTERS, header.ID, 4), None
        if found == header.GONE:
            self._lose("UNPLUGGED", "the device is gone from the bus")
        if wanted is not None and found != wanted:
            self._lose("POWER_LOST", "the device has been without power: its memory is lost")
        self.proven = True

    def _lose(self, code: str, why: str) -> NoReturn:
        gone = DeviceGoneError(code, 0, why)
        self.on_gone(gone)
        raise gone
