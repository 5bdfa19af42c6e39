"""The device behind QEMU's ``x-pci-proxy-dev`` (QEMU 7.2 in Debian 12): a protocol between two processes.

QEMU reports accesses of its processor to configuration space and BARs, and the layout of its RAM; the protocol has no
interrupt messages. An MSI or MSI-X message is a write to memory: to RAM it is done here, to other addresses through a
second channel, QEMU's qtest protocol, which writes to machine addresses. The pin is a pair of eventfds, which QEMU only
uses with KVM.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import select
import socket
import struct
from collections.abc import Callable

from npusim.device.bus import BAR_MEMORY
from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError, PciFunction
from npusim.device.transports.host_memory import DmaWindow, HostMemory
from npusim.device.transports.interrupts import INTX, EventfdInterrupts, check_eventfds
from npusim.device.transports.pace import Pace
from npusim.device.transports.wire import PATIENCE_S, PeerError, PeerGoneError, Wire, close_all
from npusim.errors import UsageError

SYNC_RAM, RETURN, CONFIG_WRITE, CONFIG_READ, BAR_WRITE, BAR_READ, SET_IRQ, RESET = range(8)
HEADER = struct.Struct("<i4xQ")
"""Command, bytes after this header."""
SECTIONS = 8
RAM = struct.Struct(f"<{SECTIONS}Q{SECTIONS}Q{SECTIONS}q")
"""Bus addresses, sizes, and file offsets of the sections of RAM, one per descriptor."""
CONFIG = struct.Struct("<IIi")
"""Address, value, bytes."""
BAR = struct.Struct("<QQI?3x")
"""Bus address, value, bytes, whether it is memory and not ports."""
_SIZES = {
    SYNC_RAM: RAM.size,
    CONFIG_WRITE: CONFIG.size,
    CONFIG_READ: CONFIG.size,
    BAR_WRITE: BAR.size,
    BAR_READ: BAR.size,
    SET_IRQ: 0,
    RESET: 0,
}
_ALL_ONES = (1 << 64) - 1
LARGEST_BAR = 1 << 30
_ACCESSES = {command: HEADER.pack(command, _SIZES[command]) for command in (BAR_WRITE, BAR_READ)}
_BAR2, _BAR3 = 0x18, 0x1C

_log = logging.getLogger("npusim.device")


class PciProxy:
    """Serves a device to one QEMU after another; see :class:`Pace` for ``lockstep``.

    QEMU only supports 32-bit BARs, so DRAM is in such a BAR. Raises UsageError if it is too large.
    """

    def __init__(self, device: NpuDevice, *, lockstep: bool = False, patience_s: float = PATIENCE_S) -> None:
        if device.checker is not None:
            device.checker.carried(mapped=False)
        self._pace = Pace(device, lockstep=lockstep)
        self._patience_s = patience_s
        self.function = PciFunction(device, self)
        sizes = {bar.number: bar.size for bar in self.function.bars}
        self._sizes = {BAR_MEMORY: sizes.pop(BAR_MEMORY), **sizes}  # first the BAR of nearly all accesses
        if self._sizes[BAR_MEMORY] > LARGEST_BAR:
            raise UsageError(
                f"dram.bytes: x-pci-proxy-dev has BARs of at most 1 GiB, got {device.config.dram.bytes:#x} bytes"
            )
        self._interrupts = EventfdInterrupts((1,))
        self._resample: int | None = None
        self._ram = HostMemory()
        self._channel: Wire | None = None
        self._poll = select.poll()
        self._broken: PeerError | PeerGoneError | None = None
        self._actions: dict[int, Callable[[bytes, list[int]], int | None]] = {
            SYNC_RAM: self._sync_ram,
            CONFIG_WRITE: self._config_write,
            CONFIG_READ: self._config_read,
            BAR_WRITE: self._bar_write,
            BAR_READ: self._bar_read,
            SET_IRQ: self._set_irq,
            RESET: self._reset,
        }

    def serve(self, peer: socket.socket, channel: socket.socket | None = None) -> None:
        """Serve a QEMU until it closes or violates the protocol; closes the sockets. ``channel``: for qtest."""
        wire = Wire(peer, self._patience_s)
        self._channel = Wire(channel, self._patience_s) if channel is not None else None
        self._broken = None
        for each in (wire, self._channel):
            if each is not None:
                self._poll.register(each.fileno(), select.POLLIN)
        self.function.restart()  # the device is in its initial state when a machine is powered on
        try:
            while True:
                self._wait(wire)
                self._obey(wire)
                self._pace.settle()
        except PeerGoneError:
            pass
        except PeerError as error:
            _log.warning("pci-proxy: QEMU is dropped: %s", error)
        finally:
            wire.close()
            self._forget()

    def _forget(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._resample is not None:
            os.close(self._resample)
        self._channel = self._resample = None
        self._poll = select.poll()
        self._ram.clear()
        self._interrupts.clear()

    # Messages

    def _wait(self, wire: Wire) -> None:
        """Run the device until QEMU has a message; process other input meanwhile."""
        while True:
            self._pace.until(lambda: self._broken or self._poll.poll(0))
            if self._broken is not None:
                raise self._broken
            ready = [file for file, _ in self._poll.poll()]
            if wire.fileno() in ready:
                return
            if self._resample in ready:
                self._sampled()
            else:
                assert self._channel is not None
                self._channel.drain()  # acknowledgements

    def _obey(self, wire: Wire) -> None:
        seen = wire.glance(HEADER.size + BAR.size)
        for command, header in _ACCESSES.items():
            if seen.startswith(header) and len(seen) == HEADER.size + BAR.size:
                # The most frequent message. It is consumed after the answer: consuming it first would wake QEMU twice
                # per access.
                self._answer(wire, self._actions[command](seen[HEADER.size :], []) or 0)
                wire.receive(len(seen))
                return
        command, size = HEADER.unpack(wire.receive(HEADER.size))
        if size != _SIZES.get(command):
            raise PeerError(f"command {command} with {size} bytes")
        body = bytes(wire.receive(size, begun=True)) if size else b""
        fds = wire.take_fds()
        try:
            if fds and command not in (SYNC_RAM, SET_IRQ):
                raise PeerError(f"command {command} with {len(fds)} descriptors")
            value = self._actions[command](body, fds)
        finally:
            close_all(fds)
        if value is not None:
            self._answer(wire, value)

    @staticmethod
    def _answer(wire: Wire, value: int) -> None:
        wire.send(HEADER.pack(RETURN, 8), struct.pack("<Q", value & _ALL_ONES))

    def _sync_ram(self, body: bytes, fds: list[int]) -> None:
        """Set the whole RAM of QEMU."""
        numbers = RAM.unpack(body)
        self._ram.clear()
        for address, size, offset in zip(
            *(numbers[n : n + SECTIONS] for n in (0, SECTIONS, 2 * SECTIONS)), strict=True
        ):
            if not fds:
                return
            try:
                self._ram.add(DmaWindow(address, size, True, True, fds[0], offset))
            except OSError as error:
                raise PeerError(f"RAM of {size} bytes at {address:#x}: {error.strerror}") from None
            fds.pop(0)

    def _config_write(self, body: bytes, fds: list[int]) -> int:
        offset, value, size = CONFIG.unpack(body)
        self._pace.access()
        if offset & ~3 != _BAR3:  # the upper half of BAR 2, which is hidden
            self.function.config_write(offset, size, value)
        return 0

    def _config_read(self, body: bytes, fds: list[int]) -> int:
        offset, _, size = CONFIG.unpack(body)
        self._pace.access()
        if size not in (1, 2, 4):
            return 0xFFFF_FFFF
        if offset & ~3 == _BAR3:
            return 0
        value = self.function.config_read(offset, size)
        return value & ~0xF if offset == _BAR2 else value  # as a 32-bit non-prefetchable BAR

    def _bar_write(self, body: bytes, fds: list[int]) -> int:
        address, value, size, memory = BAR.unpack(body)
        self._pace.access()
        place = self._find(address, size, memory)
        if place is not None:
            self.function.write(*place, size, value & (1 << 8 * size) - 1)
        return 0

    def _bar_read(self, body: bytes, fds: list[int]) -> int:
        address, _, size, memory = BAR.unpack(body)
        self._pace.access()
        place = self._find(address, size, memory)
        return _ALL_ONES if place is None else self.function.read(*place, size)

    def _find(self, address: int, size: int, memory: bool) -> tuple[int, int] | None:
        """BAR and offset of a bus address."""
        if not memory or size not in (1, 2, 4, 8):
            return None
        for bar, most in self._sizes.items():
            base = self.function.config_read(0x10 + 4 * bar, 4) & ~0xF
            if base and base <= address and address + size <= base + most:
                return bar, address - base
        return None

    def _set_irq(self, body: bytes, fds: list[int]) -> None:
        """Set the eventfds that assert the pin and report its handling."""
        if len(fds) != 2:
            raise PeerError(f"{len(fds)} descriptors for the pin, must be 2")
        try:
            check_eventfds(fds)
            if not fcntl.fcntl(fds[1], fcntl.F_GETFL) & os.O_NONBLOCK:  # other processes may read it, too
                raise OSError(errno.EINVAL, "the second eventfd must not block")
            if self._resample is not None:
                self._poll.unregister(self._resample)
                os.close(self._resample)
            self._resample = fds.pop()
            self._poll.register(self._resample, select.POLLIN)
            self._interrupts.assign(INTX, 0, 1, fds)
            fds.clear()
        except OSError as error:
            raise PeerError(f"the pin: {error.strerror}") from None

    def _sampled(self) -> None:
        assert self._resample is not None
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._resample)
        self._interrupts.mask(INTX, False, [0])

    def _reset(self, body: bytes, fds: list[int]) -> int:
        self.function.restart()
        return 0

    # The function's host side

    def interrupt(self, vector: int) -> None:
        address, data = self.function.message(vector)
        try:
            self._ram.write(address, struct.pack("<I", data))
            return
        except DmaError:
            pass
        if self._channel is None:
            _log.warning("pci-proxy: an interrupt message to %#x is lost: there is no qtest channel", address)
            return
        try:  # called during an event of the device: a peer that does not read is dropped afterwards
            self._channel.send(f"writel {address:#x} {data:#x}\n".encode())
        except (PeerError, PeerGoneError) as error:
            self._broken = error

    def intx(self, asserted: bool) -> None:
        self._interrupts.level(asserted)

    def dma_read(self, address: int, size: int) -> bytes:
        return self._ram.read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        self._ram.write(address, data)
