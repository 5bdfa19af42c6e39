"""One PCI Express endpoint around a device; whoever carries it gives it a :class:`HostSide`.

An access takes no time here: the carrier lets it pass. What software may not do has no effect, as in hardware: an
access to memory that is not enabled reads as all ones.
"""

from __future__ import annotations

from typing import Protocol

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS
from npusim.device.npu import INTERFACE_VERSION, NpuDevice
from npusim.device.pci import space
from npusim.device.pci.messages import ROW_BYTES, Message, Messages
from npusim.device.pci.space import Bar, ConfigSpace
from npusim.device.registers import SPACE_BYTES

MSIX_TABLE, MSIX_PENDING, BAR0_BYTES = 0x2000, 0x3000, 0x4000
"""Behind the registers in BAR 0, in pages of their own, so that a host may map the registers and keep the table."""
_PENDING_BYTES = 8


class DmaError(Exception):
    """Host memory that cannot be reached. Arguments: bus address, why."""

    def __init__(self, address: int, explanation: str, /) -> None:
        super().__init__(address, explanation)
        self.address = address
        self.explanation = explanation


class HostSide(Protocol):
    """What a carrier gives to the function."""

    def interrupt(self, vector: int) -> None:
        """An MSI or MSI-X message; :meth:`PciFunction.message` says what it writes where."""

    def intx(self, asserted: bool) -> None:
        """The pin changes its level; only while neither MSI nor MSI-X is enabled is it ever asserted."""

    def dma_read(self, address: int, size: int) -> bytes:
        """Host memory by bus address. Raises DmaError."""

    def dma_write(self, address: int, data: bytes) -> None:
        """As :meth:`dma_read`."""


class PciFunction:
    """The function. ``vectors``: interrupt messages, numbered from 0. ``host_masks``: see :class:`Messages`.
    ``aperture``: the most bytes that BAR 2 may have, a power of two; of larger DRAM it shows the beginning."""

    def __init__(
        self, device: NpuDevice, host: HostSide, *, host_masks: bool = False, aperture: int | None = None
    ) -> None:
        self.device = device
        self.vectors = device.vectors
        self._host = host
        dram = 1 << (device.config.dram.bytes - 1).bit_length()
        self.bars = (Bar(BAR_REGISTERS, BAR0_BYTES, False), Bar(BAR_MEMORY, min(dram, aperture or dram), True))
        self._config = ConfigSpace(self.bars, self.vectors, MSIX_TABLE, MSIX_PENDING, INTERFACE_VERSION)
        self._messages = Messages(self._config, self.vectors, host.interrupt, host_masks)
        self._pin = False
        device.connect(self)

    # Configuration space

    def config_read(self, offset: int, size: int) -> int:
        """1, 2 or 4 bytes, aligned; anything else, and whatever lies behind the 4096 bytes, reads as all ones."""
        if self.device.injection.unplugged:
            return (1 << 8 * max(size, 0)) - 1
        return self._config.read(offset, size)

    def config_write(self, offset: int, size: int, value: int) -> None:
        """As :meth:`config_read`; what cannot be written stays as it is."""
        if self.device.injection.unplugged:
            return
        state = self._power_state
        # Resets itself: it always reads as 0, so what is written is looked at and not what is there.
        if _written(offset, size, value, space.DEVICE_CONTROL) & space.DEVICE_RESET:
            self.reset()
            return
        self._config.write(offset, size, value)
        asked = self._power_state
        if asked != state:
            if asked not in (_D0, _D3HOT):
                self._config.set(space.PM_CONTROL, 2, state)  # D1 and D2 are not there: the write has no effect
            else:
                self._change_power(asked)
        if state == asked == _D0:
            self._messages.settle()
        self._settle_pin()

    @property
    def _power_state(self) -> int:
        return self._config.get(space.PM_CONTROL, 2) & space.PM_STATE

    def _change_power(self, state: int) -> None:
        """Into D3hot: the device stops, and what it was about is lost. Back to D0: as after a reset, by No_Soft_Reset =
        0, so software restores configuration space. DRAM refreshes itself all the while and keeps its bytes."""
        self.device.reset()
        self._messages.reset()
        if state == _D0:
            self._config.reset()

    def reset(self) -> None:
        """Function level reset: everything as after power-on, but DRAM keeps its bytes."""
        self.device.reset()
        self._config.reset()
        self._messages.reset()
        self._settle_pin()

    # Memory

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access to a BAR by its offset; ``size``: 1, 2, 4 or 8. No time passes."""
        if not self._reachable:
            self._unsupported()
            return (1 << 8 * max(size, 0)) - 1
        if bar == BAR_REGISTERS and offset >= SPACE_BYTES:
            return self._read_structures(offset, size)
        return self.device.read(bar, offset, size)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """As :meth:`read`."""
        if not self._reachable:
            self._unsupported()
        elif bar == BAR_REGISTERS and offset >= SPACE_BYTES:
            place = offset - MSIX_TABLE
            if size in (4, 8) and not offset % size and 0 <= place < ROW_BYTES * self.vectors:
                self._messages.write_table(place, size, value)
        else:
            self.device.write(bar, offset, size, value)

    def read_memory(self, offset: int, size: int) -> bytes:
        """A bulk copy from device DRAM through BAR 2, for which the link takes its time, as for those of the bus."""
        if not self._reachable:
            self._unsupported()
            return b"\xff" * size
        return bytes(self.device.bus.read_memory(offset, size))

    def write_memory(self, offset: int, data: bytes) -> None:
        """As :meth:`read_memory`."""
        if self._reachable:
            self.device.bus.write_memory(offset, data)
        else:
            self._unsupported()

    @property
    def _reachable(self) -> bool:
        return self._power_state == _D0 and bool(self._config.get(space.COMMAND, 2) & space.COMMAND_MEMORY)

    def _unsupported(self) -> None:
        status = self._config.get(space.DEVICE_STATUS, 2)
        self._config.set(space.DEVICE_STATUS, 2, status | space.DEVICE_UNSUPPORTED)

    def _read_structures(self, offset: int, size: int) -> int:
        """The MSI-X table and the pending bits; what lies around them reads as 0."""
        if size not in (4, 8) or offset % size:
            return (1 << 8 * max(size, 0)) - 1
        place = offset - MSIX_TABLE
        if 0 <= place < ROW_BYTES * self.vectors:
            return self._messages.read_table(place, size)
        place = offset - MSIX_PENDING
        if 0 <= place < _PENDING_BYTES:
            return self._messages.pending >> 8 * place & (1 << 8 * size) - 1
        return 0

    # Interrupts, from the device

    def irq(self, vector: int) -> None:
        """The device raises a vector."""
        if self._power_state == _D0 and self._masters:
            self._messages.raise_(vector)

    def level(self) -> None:
        """The device's level may have changed."""
        self._settle_pin()

    def withdraw_irqs(self) -> None:
        """What has not left will not leave."""
        self._messages.forget()

    def message(self, vector: int) -> Message:
        """Address and data of the write that the vector's message is, as software has set them up."""
        return self._messages.message(vector)

    @property
    def interrupts(self) -> str:
        """``msix``, ``msi`` or ``intx``: what software has enabled."""
        return self._messages.kind

    @property
    def _masters(self) -> bool:
        """Whether software lets the function write to the host's memory, which messages are, too."""
        return bool(self._config.get(space.COMMAND, 2) & space.COMMAND_MASTER)

    def _settle_pin(self) -> None:
        """The pin is what the device's level is, unless it is disabled or messages have taken its place."""
        wanted = self._power_state == _D0 and self.device.interrupts_pending
        status = self._config.get(space.STATUS, 2) & ~space.STATUS_INTERRUPT
        self._config.set(space.STATUS, 2, status | (space.STATUS_INTERRUPT if wanted else 0))
        command = self._config.get(space.COMMAND, 2)
        wanted = wanted and not command & space.COMMAND_INTX_DISABLE and self._messages.kind == "intx"
        if wanted != self._pin:
            self._pin = wanted
            self._host.intx(wanted)


_D0, _D3HOT = 0, 3


def _written(offset: int, size: int, value: int, place: int) -> int:
    """The part of a write that falls on the 16 bits at a place; 0 where it does not."""
    if size not in (1, 2, 4) or offset % size or offset < 0:
        return 0
    shift = 8 * (offset - place)
    value &= (1 << 8 * size) - 1
    return (value << shift if shift >= 0 else value >> -shift) & 0xFFFF
