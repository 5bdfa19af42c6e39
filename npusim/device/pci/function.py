"""One PCI Express endpoint for a device. Its transport provides a :class:`HostSide`.

Accesses take no time here; the transport adds it. Invalid accesses have no effect, as in hardware: an access to memory
that is not enabled reads as all ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from npusim.device.bus import BAR_MEMORY, BAR_REGISTERS, DmaError, Turn
from npusim.device.npu import INTERFACE_VERSION, NpuDevice
from npusim.device.pci import space
from npusim.device.pci.messages import ROW_BYTES, Message, Messages
from npusim.device.pci.space import Bar, ConfigSpace, Features
from npusim.device.registers import SPACE_BYTES

MSIX_TABLE, MSIX_PENDING, BAR0_BYTES = 0x2000, 0x3000, 0x4000
"""After the registers in BAR 0, in separate pages, so that a host can map the registers but not the table."""
_PENDING_BYTES = 8
_D0, _D3HOT = 0, 3
_SIZES = (1, 2, 4, 8)


class HostSide(Protocol):
    """Interface of the host for the function."""

    def interrupt(self, vector: int) -> None:
        """Deliver an MSI or MSI-X message; :meth:`PciFunction.message` gives its address and data."""

    def intx(self, asserted: bool) -> None:
        """The level of the pin changes; it is only asserted while neither MSI nor MSI-X is enabled."""

    def dma_read(self, address: int, size: int) -> bytes:
        """Host memory by bus address. Raises DmaError."""

    def dma_write(self, address: int, data: bytes) -> None:
        """As :meth:`dma_read`."""


class PciFunction:
    """The function. ``vectors``: number of interrupt messages. ``host_masks``: see :class:`Messages`. ``aperture``:
    largest size of BAR 2, a power of two; of larger DRAM only the beginning is visible.

    A device without ``[pci]`` has one vector, all kinds of interrupts, D3hot and function level reset, which take no
    time.
    """

    pinned = True
    traced = False
    """Whether accesses are recorded."""

    def __init__(
        self, device: NpuDevice, host: HostSide, *, host_masks: bool = False, aperture: int | None = None
    ) -> None:
        self.device = device
        self.vectors = device.vectors
        self._host = host
        self._clock = device.machine.clock
        pci = device.config.pci
        self._message_ps = pci.write_latency_ps if pci else 0
        self._reset_ps, self._resume_ps = (pci.reset_ps, pci.resume_ps) if pci else (0, 0)
        kinds = pci.interrupts if pci else "msix"
        self._can_reset = pci.function_reset if pci else True
        features = Features(
            self.vectors,
            MSIX_TABLE,
            MSIX_PENDING,
            INTERFACE_VERSION,
            msi=kinds != "intx",
            msix=kinds == "msix",
            power_states=pci.power_states if pci else True,
            function_reset=self._can_reset,
        )
        dram = 1 << (device.config.dram.bytes - 1).bit_length()
        self.bars = (Bar(BAR_REGISTERS, BAR0_BYTES, False), Bar(BAR_MEMORY, min(dram, aperture or dram), True))
        self._config = ConfigSpace(self.bars, features)
        self._messages = Messages(self._config, self.vectors, self._send, host_masks)
        self._pin = False
        self._epoch = 0
        self._silent_until = self._resumed_at = 0
        self._plugged = device.plugged
        device.connect(self)

    # Configuration space

    def config_read(self, offset: int, size: int) -> int:
        """1, 2 or 4 aligned bytes. Other accesses read as all ones, and so does a function that is removed or being
        reset."""
        return _ones(size) if self._silent else self._config.read(offset, size)

    def config_write(self, offset: int, size: int, value: int) -> None:
        """As :meth:`config_read`; read-only bits do not change."""
        if self._silent:
            return
        # The bit always reads as 0, so the written value is checked.
        if self._can_reset and _written(offset, size, value, space.DEVICE_CONTROL) & space.DEVICE_RESET:
            self.reset()
            return
        state = self._power_state
        self._config.write(offset, size, value)
        asked = self._power_state
        if asked not in (_D0, _D3HOT):
            self._config.set(space.PM_CONTROL, 2, state)  # D1 and D2 are not supported: the write has no effect
        elif asked != state:
            self._change_power(asked)
        if self._power_state == _D0:
            self._messages.settle()
        self._settle_pin()

    @property
    def _silent(self) -> bool:
        if self.device.plugged != self._plugged:  # another device from the view of software
            self._plugged = self.device.plugged
            self._config.reset()
            self._messages.reset()
            self._silent_until = 0
        return not self.device.connected or self._clock.now < self._silent_until

    @property
    def _power_state(self) -> int:
        return self._config.get(space.PM_CONTROL, 2) & space.PM_STATE

    def _change_power(self, state: int) -> None:
        """To D3hot: the device stops and loses its jobs. Back to D0: as after a reset (No_Soft_Reset = 0), so software
        restores configuration space. DRAM keeps its contents by self-refresh."""
        self._lose()
        if state == _D0:
            self._config.reset()
            self._resumed_at = self._back_after(self._resume_ps)

    def reset(self) -> None:
        """Function level reset: the state after power-on, except for DRAM."""
        self._lose()
        self._config.reset()
        self._settle_pin()
        self._silent_until = self._back_after(self._reset_ps)

    def restart(self) -> None:
        """A reset by the transport for a host that waits for its end: firmware at power-on, VFIO."""
        self.reset()
        self._clock.advance(self._reset_ps)

    def _back_after(self, delay_ps: int) -> int:
        """The end of a reset as an event: a transport advances time while events are pending, and software may wait by
        its own clock without accesses."""
        if delay_ps:
            self._clock.after(delay_ps, lambda _: None)
        return self._clock.now + delay_ps

    def _lose(self) -> None:
        self._epoch += 1
        self.device.lose_power()
        self._messages.reset()

    # Memory

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access to a BAR at an offset; ``size``: 1, 2, 4 or 8. Takes no time."""
        if size not in _SIZES or offset < 0 or not self.reached():
            return _ones(size)
        if bar == BAR_REGISTERS and offset >= SPACE_BYTES:
            return self._read_structures(offset, size)
        return self.device.read(bar, offset, size)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        """As :meth:`read`."""
        if size not in _SIZES or offset < 0 or not self.reached():
            return
        if bar == BAR_REGISTERS and offset >= SPACE_BYTES:
            place = offset - MSIX_TABLE
            if size in (4, 8) and not offset % size and 0 <= place < ROW_BYTES * self.vectors:
                self._messages.write_table(place, size, value)
        else:
            self.device.write(bar, offset, size, value)

    def read_memory(self, offset: int, size: int) -> bytes:
        """A bulk copy from device DRAM through BAR 2, with the time of the link."""
        return bytes(self.device.bus.read_memory(offset, size)) if self.reached() else b"\xff" * size

    def write_memory(self, offset: int, data: bytes) -> None:
        """As :meth:`read_memory`."""
        if self.reached():
            self.device.bus.write_memory(offset, data)

    def reached(self) -> bool:
        """Whether an access to memory is accepted; otherwise it is an unsupported request."""
        if self._silent:
            return False
        enabled = self._config.get(space.COMMAND, 2) & space.COMMAND_MEMORY
        if enabled and self._power_state == _D0 and self._clock.now >= self._resumed_at:
            return True
        status = self._config.get(space.DEVICE_STATUS, 2)
        self._config.set(space.DEVICE_STATUS, 2, status | space.DEVICE_UNSUPPORTED)
        return False

    def _read_structures(self, offset: int, size: int) -> int:
        """The MSI-X table and the pending bits; the rest of their pages reads as 0."""
        if size not in (4, 8) or offset % size:
            return _ones(size)
        place = offset - MSIX_TABLE
        if 0 <= place < ROW_BYTES * self.vectors:
            return self._messages.read_table(place, size)
        place = offset - MSIX_PENDING
        if 0 <= place < _PENDING_BYTES:
            return self._messages.pending >> 8 * place & (1 << 8 * size) - 1
        return 0

    # Transport interface for the device

    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        """As :meth:`NpuDevice.arithmetic`."""
        return self.device.arithmetic(turn) if self.reached() else None

    def irq(self, vector: int) -> None:
        """The device sends an interrupt on a vector."""
        if self._masters:
            self._messages.raise_(vector)

    def level(self) -> None:
        """The device's level may have changed."""
        self._settle_pin()

    def cancel_irqs(self) -> None:
        """Drop messages that were not delivered, including those on their way."""
        self._epoch += 1
        self._messages.forget()

    def dma_read(self, address: int, size: int) -> bytes:
        """Raises DmaError, also if software has not enabled bus mastering."""
        self._check_master(address)
        try:
            return self._host.dma_read(address, size)
        except DmaError:
            self._note(space.STATUS_MASTER_ABORT)
            raise

    def dma_write(self, address: int, data: bytes) -> None:
        """As :meth:`dma_read`. The failure of a posted write is known at once here, and halts the device."""
        self._check_master(address)
        try:
            self._host.dma_write(address, data)
        except DmaError:
            self._note(space.STATUS_MASTER_ABORT)
            raise

    def message(self, vector: int) -> Message:
        """Address and data of the message of a vector, as set up by software."""
        return self._messages.message(vector)

    @property
    def interrupts(self) -> str:
        """The interrupt type enabled by software: ``msix``, ``msi`` or ``intx``."""
        return self._messages.kind

    @property
    def _masters(self) -> bool:
        """Whether bus mastering is enabled, which messages require, too."""
        return self._power_state == _D0 and bool(self._config.get(space.COMMAND, 2) & space.COMMAND_MASTER)

    def _check_master(self, address: int) -> None:
        if not self._masters:
            raise DmaError(address, "the function is not a bus master: bit 2 of its command register is 0")

    def _note(self, bit: int) -> None:
        self._config.set(space.STATUS, 2, self._config.get(space.STATUS, 2) | bit)

    def _send(self, vector: int) -> None:
        """A message is a posted write: it arrives later, in order with all others, including those of the pin."""
        epoch = self._epoch
        self._later(lambda: self._host.interrupt(vector) if epoch == self._epoch else None)

    def _settle_pin(self) -> None:
        """The pin has the level of the device, unless it is disabled or messages are enabled."""
        wanted = self._power_state == _D0 and self.device.interrupts_pending
        status = self._config.get(space.STATUS, 2) & ~space.STATUS_INTERRUPT
        self._config.set(space.STATUS, 2, status | (space.STATUS_INTERRUPT if wanted else 0))
        command = self._config.get(space.COMMAND, 2)
        wanted = wanted and not command & space.COMMAND_INTX_DISABLE and self._messages.kind == "intx"
        if wanted != self._pin:
            self._pin = wanted
            # Also for a function that is reset meanwhile: a pin that stays asserted would cause an interrupt storm.
            self._later(lambda: self._host.intx(wanted))

    def _later(self, then: Callable[[], None]) -> None:
        if self._message_ps:
            self._clock.after(self._message_ps, lambda _: then())
        else:
            then()


def _ones(size: int) -> int:
    return (1 << 8 * max(min(size, 8), 0)) - 1


def _written(offset: int, size: int, value: int, place: int) -> int:
    """The part of a write that affects the 16 bits at ``place``; 0 for other writes."""
    if size not in (1, 2, 4) or offset % size or not place - size < offset < place + 2:
        return 0
    shift = 8 * (offset - place)
    value &= (1 << 8 * size) - 1
    return (value << shift if shift >= 0 else value >> -shift) & 0xFFFF
