"""One PCI Express endpoint around a device; whoever carries it gives it a :class:`HostSide`.

An access takes no time here: the transport lets it pass. What software may not do has no effect, as in hardware: an
access to memory that is not enabled reads as all ones.
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
"""Behind the registers in BAR 0, in pages of their own, so that a host may map the registers and keep the table."""
_PENDING_BYTES = 8
_D0, _D3HOT = 0, 3
_SIZES = (1, 2, 4, 8)


class HostSide(Protocol):
    """What a transport gives to the function."""

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
    ``aperture``: the most bytes that BAR 2 may have, a power of two; of larger DRAM it shows the beginning.

    A device without ``[pci]`` has one vector, all kinds of interrupts, D3hot and function level reset, none of which
    takes time.
    """

    pinned = True
    traced = False
    """Whether all that passes is written down."""

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
            self.vectors, MSIX_TABLE, MSIX_PENDING, INTERFACE_VERSION, msi=kinds != "intx", msix=kinds == "msix",
            power_states=pci.power_states if pci else True, function_reset=self._can_reset,
        )  # fmt: skip
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
        """1, 2 or 4 bytes, aligned; anything else, and whatever lies behind the 4096 bytes, reads as all ones, and so
        does everything of a function that is gone or within its reset."""
        return _ones(size) if self._silent else self._config.read(offset, size)

    def config_write(self, offset: int, size: int, value: int) -> None:
        """As :meth:`config_read`; what cannot be written stays as it is."""
        if self._silent:
            return
        # Resets itself: it always reads as 0, so what is written is looked at and not what is there.
        if self._can_reset and _written(offset, size, value, space.DEVICE_CONTROL) & space.DEVICE_RESET:
            self.reset()
            return
        state = self._power_state
        self._config.write(offset, size, value)
        asked = self._power_state
        if asked not in (_D0, _D3HOT):
            self._config.set(space.PM_CONTROL, 2, state)  # D1 and D2 are not there: the write has no effect
        elif asked != state:
            self._change_power(asked)
        if self._power_state == _D0:
            self._messages.settle()
        self._settle_pin()

    @property
    def _silent(self) -> bool:
        if self.device.plugged != self._plugged:  # another device, as far as anybody can tell
            self._plugged = self.device.plugged
            self._config.reset()
            self._messages.reset()
            self._silent_until = 0
        return not self.device.connected or self._clock.now < self._silent_until

    @property
    def _power_state(self) -> int:
        return self._config.get(space.PM_CONTROL, 2) & space.PM_STATE

    def _change_power(self, state: int) -> None:
        """Into D3hot: the device stops, and what it was about is lost. Back to D0: as after a reset, by No_Soft_Reset =
        0, so software restores configuration space. DRAM refreshes itself all the while and keeps its bytes."""
        self._lose()
        if state == _D0:
            self._config.reset()
            self._resumed_at = self._back_after(self._resume_ps)

    def reset(self) -> None:
        """Function level reset: everything as after power-on, but DRAM keeps its bytes."""
        self._lose()
        self._config.reset()
        self._settle_pin()
        self._silent_until = self._back_after(self._reset_ps)

    def restart(self) -> None:
        """A reset by who carries the function, on behalf of a host that waits until it answers again: the firmware of a
        machine that is switched on, VFIO."""
        self.reset()
        self._clock.advance(self._reset_ps)

    def _back_after(self, delay_ps: int) -> int:
        """When it answers again. That is an event: transports let time pass by itself as long as one is to come, and
        software that waits by a clock of its own makes no accesses meanwhile."""
        if delay_ps:
            self._clock.after(delay_ps, lambda _: None)
        return self._clock.now + delay_ps

    def _lose(self) -> None:
        self._epoch += 1
        self.device.lose_power()
        self._messages.reset()

    # Memory

    def read(self, bar: int, offset: int, size: int) -> int:
        """An access to a BAR by its offset; ``size``: 1, 2, 4 or 8. No time passes."""
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
        """A bulk copy from device DRAM through BAR 2, for which the link takes its time, as for those of the bus."""
        return bytes(self.device.bus.read_memory(offset, size)) if self.reached() else b"\xff" * size

    def write_memory(self, offset: int, data: bytes) -> None:
        """As :meth:`read_memory`."""
        if self.reached():
            self.device.bus.write_memory(offset, data)

    def reached(self) -> bool:
        """Whether an access to memory finds the device; one that does not is an unsupported request."""
        if self._silent:
            return False
        enabled = self._config.get(space.COMMAND, 2) & space.COMMAND_MEMORY
        if enabled and self._power_state == _D0 and self._clock.now >= self._resumed_at:
            return True
        status = self._config.get(space.DEVICE_STATUS, 2)
        self._config.set(space.DEVICE_STATUS, 2, status | space.DEVICE_UNSUPPORTED)
        return False

    def _read_structures(self, offset: int, size: int) -> int:
        """The MSI-X table and the pending bits; what lies around them reads as 0."""
        if size not in (4, 8) or offset % size:
            return _ones(size)
        place = offset - MSIX_TABLE
        if 0 <= place < ROW_BYTES * self.vectors:
            return self._messages.read_table(place, size)
        place = offset - MSIX_PENDING
        if 0 <= place < _PENDING_BYTES:
            return self._messages.pending >> 8 * place & (1 << 8 * size) - 1
        return 0

    # What the device does: it knows the function as its transport

    def arithmetic(self, turn: Turn) -> Callable[[], bool] | None:
        """As :meth:`NpuDevice.arithmetic`."""
        return self.device.arithmetic(turn) if self.reached() else None

    def irq(self, vector: int) -> None:
        """The device raises a vector."""
        if self._masters:
            self._messages.raise_(vector)

    def level(self) -> None:
        """The device's level may have changed."""
        self._settle_pin()

    def cancel_irqs(self) -> None:
        """What has not left will not leave; what is under way to the host is lost, too."""
        self._epoch += 1
        self._messages.forget()

    def dma_read(self, address: int, size: int) -> bytes:
        """Raises DmaError, also while software has not made the function a bus master."""
        self._check_master(address)
        try:
            return self._host.dma_read(address, size)
        except DmaError:
            self._note(space.STATUS_MASTER_ABORT)
            raise

    def dma_write(self, address: int, data: bytes) -> None:
        """As :meth:`dma_read`. A posted write that fails is known here at once; the device stops at it."""
        self._check_master(address)
        try:
            self._host.dma_write(address, data)
        except DmaError:
            self._note(space.STATUS_MASTER_ABORT)
            raise

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
        return self._power_state == _D0 and bool(self._config.get(space.COMMAND, 2) & space.COMMAND_MASTER)

    def _check_master(self, address: int) -> None:
        if not self._masters:
            raise DmaError(address, "the function is no bus master: bit 2 of its command register is 0")

    def _note(self, bit: int) -> None:
        self._config.set(space.STATUS, 2, self._config.get(space.STATUS, 2) | bit)

    def _send(self, vector: int) -> None:
        """A message is a posted write: it is on its way for a while, in order with all others; the pin's are, too."""
        epoch = self._epoch
        self._later(lambda: self._host.interrupt(vector) if epoch == self._epoch else None)

    def _settle_pin(self) -> None:
        """The pin is what the device's level is, unless it is disabled or messages have taken its place."""
        wanted = self._power_state == _D0 and self.device.interrupts_pending
        status = self._config.get(space.STATUS, 2) & ~space.STATUS_INTERRUPT
        self._config.set(space.STATUS, 2, status | (space.STATUS_INTERRUPT if wanted else 0))
        command = self._config.get(space.COMMAND, 2)
        wanted = wanted and not command & space.COMMAND_INTX_DISABLE and self._messages.kind == "intx"
        if wanted != self._pin:
            self._pin = wanted
            # Also of a function that is reset meanwhile: a pin that stayed asserted would storm for ever.
            self._later(lambda: self._host.intx(wanted))

    def _later(self, then: Callable[[], None]) -> None:
        if self._message_ps:
            self._clock.after(self._message_ps, lambda _: then())
        else:
            then()


def _ones(size: int) -> int:
    return (1 << 8 * max(min(size, 8), 0)) - 1


def _written(offset: int, size: int, value: int, place: int) -> int:
    """The part of a write that falls on the 16 bits at a place; 0 where it does not."""
    if size not in (1, 2, 4) or offset % size or not place - size < offset < place + 2:
        return 0
    shift = 8 * (offset - place)
    value &= (1 << 8 * size) - 1
    return (value << shift if shift >= 0 else value >> -shift) & 0xFFFF
