"""A host with one PCI slot in this process. It does the work of a kernel for a driver: set-up of the function, memory
behind an IOMMU, and all kinds of interrupts. To a driver it is a bus like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from npusim.device.bus import Bus, DmaError, Turn
from npusim.device.host import HostBus
from npusim.device.npu import NpuDevice
from npusim.device.pci import space
from npusim.device.pci.function import MSIX_TABLE, HostSide, PciFunction
from npusim.device.pci.messages import ROW_BYTES
from npusim.errors import UsageError
from npusim.isa.base import ByteArray

KINDS = ("msix", "msi", "intx")
_IDS = {"msi": 0x05, "msix": 0x11}
_MOST_CAPABILITIES = 48
"""The number of capabilities that fit; a longer list is a cycle."""
_NOBODY = 0xFFFF_FFFF
"""Identity of an empty slot."""
_PAGE = 4096
_FIRST_WINDOW = 0x1_0000_0000
_BAR_SPACE = 0xE000_0000
_MESSAGES_AT = 0xFEE0_0000
_BOTH = space.COMMAND_MEMORY | space.COMMAND_MASTER


@dataclass
class HostWindow:
    """Host memory that the device can access: ``data`` at bus address ``address``."""

    address: int
    data: bytearray = field(repr=False)


class PciHost(HostBus):
    """``interrupts``: the kind to set up; None: the best kind of the function. Raises UsageError for one that it does
    not have.

    ``wait_irq`` returns the vectors as bits. The pin is bit 0, and while it is asserted every call returns at once, so
    a driver that does not clear the cause is called repeatedly. A reset of the device does not clear messages that have
    arrived. ``make``: makes the function, for example a traced one.
    """

    def __init__(
        self,
        device: NpuDevice,
        interrupts: str | None = None,
        *,
        most_messages: int = 32,
        make: Callable[[NpuDevice, HostSide], PciFunction] = PciFunction,
    ) -> None:
        self.function = make(device, self)
        super().__init__(
            device.config, device.machine.clock, device.machine.memory, self.function, device.machine.watchers
        )
        self.windows: list[HostWindow] = []
        self._next = _FIRST_WINDOW
        self._pin = False
        self._most_messages = most_messages
        self.bar_sizes: dict[int, int] = {}
        self.set_up(interrupts)

    # What a kernel does

    def set_up(self, interrupts: str | None = None) -> None:
        """Assign the BARs, enable memory and bus mastering, set up interrupts; again after a reset or D3hot. No effect
        on an empty slot."""
        if self.config_read(0, 4) == _NOBODY:
            self.interrupts = interrupts or KINDS[-1]
            return
        self._place_bars()
        self.config_write(space.COMMAND, 2, _BOTH)
        found = self.capabilities()
        kinds = [kind for kind in KINDS if kind == "intx" or _IDS[kind] in found]
        self.interrupts = interrupts or kinds[0]
        if self.interrupts not in kinds:
            raise UsageError(f"interrupts must be one of {', '.join(kinds)}, got {self.interrupts!r}")
        if self.interrupts == "msix":
            self._set_up_table(found[_IDS["msix"]])
        elif self.interrupts == "msi":
            self._set_up_messages(found[_IDS["msi"]])

    def config_read(self, offset: int, size: int) -> int:
        """An access to configuration space takes the time of a register access."""
        self._clock.advance(self._host.mmio_ps)
        return self.function.config_read(offset, size)

    def config_write(self, offset: int, size: int, value: int) -> None:
        self._clock.advance(self._host.mmio_ps)
        self.function.config_write(offset, size, value)

    def capabilities(self) -> dict[int, int]:
        """Offsets of the capabilities by their number."""
        found: dict[int, int] = {}
        place = self.config_read(0x34, 1) & ~3
        for _ in range(_MOST_CAPABILITIES):
            number = self.config_read(place, 1) if place else 0xFF
            if number == 0xFF:  # the end of the list, or an empty slot
                break
            found[number] = place
            place = self.config_read(place + 1, 1) & ~3
        return found

    def _place_bars(self) -> None:
        """Size and assign BARs: write ones, read back, place the window naturally aligned."""
        self.config_write(space.COMMAND, 2, 0)
        number, low, high = 0, _BAR_SPACE, 1 << 40
        while number < 6:
            place = space.BAR0 + 4 * number
            kind = self.config_read(place, 4) & 0xF
            wide = kind & 6 == 4
            for part in range(1 + wide):
                self.config_write(place + 4 * part, 4, 0xFFFF_FFFF)
            mask = sum(self.config_read(place + 4 * part, 4) << 32 * part for part in range(1 + wide)) & ~0xF
            size = -mask & (1 << 32 * (1 + wide)) - 1
            if size:
                self.bar_sizes[number] = size
                base = -(-(high if wide else low) // size) * size
                low, high = (low, base + size) if wide else (base + size, high)
                for part in range(1 + wide):
                    self.config_write(place + 4 * part, 4, base >> 32 * part & 0xFFFF_FFFF)
            number += 1 + wide

    def _set_up_table(self, place: int) -> None:
        """Enable with all vectors masked, fill the table, then unmask, as Linux does."""
        self.config_write(place + 2, 2, space.MSIX_ENABLE | space.MSIX_MASK_ALL)
        vectors = (self.config_read(place + 2, 2) & 0x7FF) + 1
        for vector in range(vectors):
            row = MSIX_TABLE + ROW_BYTES * vector
            for offset, value in ((0, _MESSAGES_AT), (4, 0), (8, vector), (12, 0)):
                self.write(0, row + offset, 4, value)
        self.config_write(place + 2, 2, space.MSIX_ENABLE)

    def _set_up_messages(self, place: int) -> None:
        capable = 1 << (self.config_read(place + 2, 2) >> 1 & 7)
        granted = min(capable, self._most_messages)
        self.config_write(place + 4, 4, _MESSAGES_AT)
        self.config_write(place + 8, 4, 0)
        self.config_write(place + 12, 2, 0)
        self.config_write(place + 2, 2, space.MSI_ENABLE | (granted.bit_length() - 1) << 4)

    # Memory for the device

    def map(self, size: int) -> HostWindow:
        """Allocate zeroed host memory and map it in the IOMMU. There is an unmapped page between two windows."""
        window = HostWindow(self._next, bytearray(size))
        self._next += -(-size // _PAGE) * _PAGE + _PAGE
        self.windows.append(window)
        return window

    def unmap(self, window: HostWindow) -> None:
        """Unmap a window."""
        self.windows.remove(window)

    def dma_read(self, address: int, size: int) -> bytes:
        window, at = self._find(address, size)
        return bytes(window.data[at : at + size])

    def dma_write(self, address: int, data: bytes) -> None:
        window, at = self._find(address, len(data))
        window.data[at : at + len(data)] = data

    def _find(self, address: int, size: int) -> tuple[HostWindow, int]:
        for window in self.windows:
            at = address - window.address
            if 0 <= at < len(window.data):
                if at + size <= len(window.data):
                    return window, at
                address = window.address + len(window.data)  # the first unmapped address
        raise DmaError(address, "the IOMMU has no mapping there")

    # Interrupts

    def interrupt(self, vector: int) -> None:
        self._pending.add(vector)

    def intx(self, asserted: bool) -> None:
        self._pin = asserted

    def wait_irq(self, timeout_ps: int) -> int:
        if not self._clock.run_until(lambda: self._pin or self._pending, timeout_ps):
            return 0
        self._clock.advance(self._host.irq_ps)
        vectors = sum(1 << vector for vector in self._pending) | self._pin
        self._pending.clear()
        return vectors

    # Bulk copies use BAR 2 like any other access

    def read_memory(self, address: int, size: int) -> bytearray:
        return bytearray(self.function.read_memory(address, size))

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.function.write_memory(address, bytes(data))

    def fill_memory(self, address: int, size: int, fill: Callable[[ByteArray], None]) -> None:
        Bus.fill_memory(self, address, size, fill)

    def repeat(self, rounds: Sequence[Sequence[Turn]], most: int) -> int:
        """See :meth:`Bus.repeat`. Not for a traced function, because repeated accesses could not be recorded."""
        return 0 if self.function.traced else super().repeat(rounds, most)
