"""How the driver reads and writes its device, and how it notices that the device is gone.

A device that is not there reads as all ones. One that comes back has been reset, and its memory is zero. So a read that
gives one of these is followed by a read of INT_MASK, which the driver has set and which can never be all ones: all ones
mean that the device is gone, any other value than the driver's that it has lost power. Memory is read in ascending
order, so the last word tells whether the device was there until the end. The price is one register access for each such
read; all others take the time that they took.

A reset makes INT_MASK 0, as power-on does. Memory tells them apart then: a reset keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS, Bus, is_doubtful
from npusim.driver import header
from npusim.errors import DeviceGoneError


class Link:
    """The bus of one device, for the parts of a driver. ``on_gone`` is called before DeviceGoneError is raised.

    ``mask``: what INT_MASK must be; 0 while the device is being reset, when ``mark`` is where memory tells. ``looks``:
    how often the device was looked for. ``proven``: no write can hide that it was lost.
    """

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
            value = self.bus.read(BAR_REGISTERS, register, 4)  # it may have come back before the look
        return value

    def get_pair(self, low: int) -> int:
        """The 64 bits of a register and the next one. Raises DeviceGoneError."""
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
        """A text that ends with a zero byte, as far as it goes; its beginning tells. Raises DeviceGoneError."""
        text = bytes(self.bus.read_memory(address, size)).split(b"\0", 1)[0]
        if is_doubtful(address, text[:4]):
            self.look()
        return text

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write device memory that the host may read again before a job has ended.

        On a device that has lost its memory such a write would hide the loss from the next read, so that looks.
        """
        self.bus.write_memory(address, data)
        self.proven = False

    def set_mark(self, address: int, entry: bool) -> None:
        """Before a reset: know a word of memory that will still be there after it, that of a ring's ``entry`` or a new
        one. Raises DeviceGoneError."""
        if not entry:
            self.bus.write(BAR_MEMORY, address, 4, header.ENTRY_MAGIC)
        self.mark = address
        self.look()
        self.mask = 0

    def look(self) -> None:
        """Raise DeviceGoneError unless the device is there, and as the driver has set it up."""
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
