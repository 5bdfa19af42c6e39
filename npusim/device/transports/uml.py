"""Serves a device to a User Mode Linux kernel whose clock is that of the simulation.

Two sockets with one protocol each, and one thread that serves both:

- *The calendar* (``include/uapi/linux/um_timetravel.h``): the kernel, started with ``time-travel=ext``, has no clock.
  It requests its next timer (REQUEST), waits (WAIT), and gets the time when it may continue (RUN).
- *vhost-user* (``docs/interop/vhost-user.rst`` of QEMU) with a virtio device of the kernel's "PCI over virtio"
  (``include/uapi/linux/virtio_pcidev.h``): queue 0 has accesses to configuration space and BARs, queue 1 takes
  interrupts. The kernel waits for the answer to each kick, so there is no concurrency.

The clock of the device is also that of the processor. An access takes ``host.mmio``; the kernel, whose instructions
take no time, is then told the time (``Calendar.catch_up``). A time behind its next timer must not be told, because it
would miss that timer: then its clock stays behind and follows when the timer has run. During an interrupt handler the
next timer is unknown, so the time of the handler's accesses is told at its end.

Every wait is bounded: the clock of the host decides whether a peer is dead, and nothing else.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from npusim.device.bus import BAR_MEMORY
from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError
from npusim.device.traces.function import function_of
from npusim.device.transports.calendar import PS_PER_NS, Calendar
from npusim.device.transports.host_memory import HostMemory
from npusim.device.transports.vhost_user import VhostUser
from npusim.device.transports.virtio import CHAIN_BYTES, DescriptorChain, Queue
from npusim.device.transports.wire import PeerError, PeerGoneError, Wire
from npusim.errors import NpusimError

_log = logging.getLogger("npusim.device")

APERTURE_BYTES = 1 << 27
"""Most bytes of device DRAM behind BAR 2: User Mode Linux has 256 MiB for all PCI memory."""

MOST_POSTED = 256
"""Size of the kernel's queue for posted writes."""
KEPT = 64
"""Limit of writes returned to a kernel that waits; twice as many to one that does not."""

_COMMANDS, _INTERRUPTS = 0, 1  # the queues
_ACCESS = struct.Struct("<BBHIQ")  # struct virtio_pcidev_msg: operation, BAR, reserved, bytes, address
_CFG_READ, _CFG_WRITE, _MMIO_READ, _MMIO_WRITE, _MMIO_MEMSET, _INT, _MSI = range(1, 8)
_PIN_A = _ACCESS.pack(_INT, 0, 0, 0, 1)
_WORDS = (1, 2, 4, 8)
_NEVER_PS = ((1 << 63) - 1) * PS_PER_NS  # requested by a kernel without a timer


class EndlessError(NpusimError):
    """A kernel runs longer than allowed, or no event can happen any more."""


class PendingInterrupt(NamedTuple):
    """An interrupt in flight: the time of its arrival, and the message, a ``struct virtio_pcidev_msg``."""

    at_ps: int
    message: bytes


class Readable(Protocol):
    """An object with a readable file descriptor."""

    def fileno(self) -> int: ...


class UmlTransport:
    """One device for one kernel. ``patience_s``: host seconds in which the kernel must send a message. ``limit_ps``:
    limit of simulated time."""

    def __init__(self, device: NpuDevice, patience_s: float, limit_ps: int) -> None:
        self.function = function_of(device, self, aperture=APERTURE_BYTES)
        if device.checker is not None:
            device.checker.carried(mapped=False, in_step=True)
        self.accesses = 0
        """Number of accesses of the kernel to configuration space and BARs."""
        self._clock = device.machine.clock
        self._host = device.config.host
        self._patience_s = patience_s
        self._limit_ps = limit_ps
        self._gone: Readable | None = None
        self.connected = False
        self._calendar: Calendar | None = None
        self._vhost: VhostUser | None = None
        self._arrivals: deque[PendingInterrupt] = deque()
        self._pin = False
        self._returned = 0  # writes returned since the kernel last looked

    def serve(self, calendar: socket.socket, device: socket.socket, gone: Readable | None = None) -> None:
        """Serve one kernel until it has ended. ``calendar``, ``device``: listening sockets for it. ``gone``: readable
        once the kernel has ended, in case it never connects.

        Raises PeerError for a protocol violation or silence, EndlessError.
        """
        self._gone = gone
        self.connected = False
        self._arrivals.clear()  # not received by a previous kernel
        self._returned = 0
        try:
            self._first_readable(calendar)
            wire = self._accept(calendar)
            self.connected = True
            self._calendar = Calendar(wire, lambda: self._clock.now, lambda: self._await_message(wire))
            while True:
                self._answer(self._calendar, device)
        except PeerGoneError:
            return
        finally:
            if self._calendar is not None:
                self._calendar.wire.close()
            if self._vhost is not None:
                self._vhost.close()
            self._calendar = self._vhost = None

    def _accept(self, listener: socket.socket) -> Wire:
        return Wire(listener.accept()[0], self._patience_s)

    def _answer(self, calendar: Calendar, listener: socket.socket) -> None:
        """Process the next message."""
        vhost = self._vhost
        if calendar.waiting:
            self._let_time_pass(calendar)
        elif self._first_readable(listener if vhost is None else vhost.wire, calendar.wire) is calendar.wire:
            calendar.handle()
        elif vhost is not None:
            vhost.handle()
        else:
            self._vhost = VhostUser(self._accept(listener), self._patience_s, self._kicked)

    def _first_readable(self, *sources: Readable) -> Readable:
        """The first readable object. Raises PeerGoneError."""
        poll = select.poll()
        for source in (*sources, *([self._gone] if self._gone is not None else [])):
            poll.register(source, select.POLLIN)
        ready = {descriptor for descriptor, _events in poll.poll(self._patience_s * 1000)}
        if not ready:
            raise PeerError(f"the kernel has sent nothing for {self._patience_s:g} seconds")
        for source in sources:
            if source.fileno() in ready:
                return source
        raise PeerGoneError("the kernel has ended")

    def _await_message(self, wire: Wire) -> None:
        self._first_readable(wire)

    # Time

    def _let_time_pass(self, calendar: Calendar) -> None:
        """The kernel waits: advance to its timer or an interrupt, whichever is first, and let it run."""
        vhost = self._vhost
        if vhost is not None and len(vhost.queues[_COMMANDS].kept) >= KEPT:
            vhost.queues[_COMMANDS].give_kept()
            vhost.call(_COMMANDS, self._until_readable)  # processed without simulated time
            self._returned = 0
        timer_ps = _NEVER_PS if calendar.wanted_ns is None else calendar.wanted_ns * PS_PER_NS
        ready_ps = self._run_until(timer_ps)
        ready_ns = max(-(-ready_ps // PS_PER_NS), calendar.kernel_ns)
        if vhost is not None and ready_ns * PS_PER_NS < timer_ps:
            calendar.kernel_ns = ready_ns  # it reads the time when it is called
            self._deliver(vhost, ready_ns * PS_PER_NS)
        else:
            calendar.run(timer_ps // PS_PER_NS)

    def _run_until(self, timer_ps: int) -> int:
        """Run the device until the kernel's timer or an interrupt that it can take; returns that time."""
        clock = self._clock
        while clock.now < (until := min(timer_ps, self._next_arrival())):
            left = max(self._limit_ps - clock.now, 0)
            if until >= _NEVER_PS and clock.is_empty(left):
                raise EndlessError(
                    f"no event is possible after {clock.now / 1e12:.6f} s of simulated time: "
                    "the kernel waits and has no timer, the device is idle"
                )
            waiting = len(self._arrivals)
            clock.run_until(lambda: len(self._arrivals) != waiting, min(until - clock.now, left))  # noqa: B023
            self._check_limit()
        return until

    def _check_limit(self) -> None:
        if self._clock.now >= self._limit_ps:
            raise EndlessError(f"the kernel still runs after {self._limit_ps / 1e12:g} s of simulated time")

    # Interrupts

    def _next_arrival(self) -> int:
        """Time of the next interrupt, if the kernel has room for one."""
        if not self._arrivals or self._vhost is None or not self._vhost.queues[_INTERRUPTS].waiting():
            return _NEVER_PS
        return self._arrivals[0].at_ps

    def _deliver(self, vhost: VhostUser, until_ps: int) -> None:
        """Deliver interrupts that have arrived, as far as the kernel has room."""
        queue = vhost.queues[_INTERRUPTS]
        while self._arrivals and self._arrivals[0].at_ps <= until_ps and queue.waiting():
            message = self._arrivals.popleft().message
            queue.give(queue.take(), message)
            if message == _PIN_A and self._pin:
                self._arrive(_PIN_A)  # its cause has not been cleared
        vhost.call(_INTERRUPTS, self._until_readable)

    def _until_readable(self, wire: Wire) -> None:
        """Process calendar messages until another descriptor is readable."""
        calendar = self._calendar
        assert calendar is not None
        while self._first_readable(wire, calendar.wire) is not wire:
            calendar.handle()

    def _arrive(self, message: bytes) -> None:
        # Messages of one vector that have not arrived yet are merged, as in hardware.
        if all(message != each.message for each in self._arrivals):
            self._arrivals.append(PendingInterrupt(self._clock.now + self._host.irq_ps, message))

    def interrupt(self, vector: int) -> None:
        """The function sends an MSI or MSI-X message, which arrives ``host.irq`` later."""
        address, data = self.function.message(vector)
        self._arrive(_ACCESS.pack(_MSI, 0, 0, 4, address) + data.to_bytes(4, "little"))

    def intx(self, asserted: bool) -> None:
        """The pin: interrupts are repeated while it is asserted."""
        self._pin = asserted
        if asserted:
            self._arrive(_PIN_A)

    # Host memory

    def dma_read(self, address: int, size: int) -> bytes:
        """Read the kernel's memory by bus address. Raises DmaError for memory that is not shared."""
        return self._memory(address).read(address, size)

    def dma_write(self, address: int, data: bytes) -> None:
        """Write the kernel's memory by bus address. Raises DmaError for memory that is not shared."""
        self._memory(address).write(address, data)

    def _memory(self, address: int) -> HostMemory:
        if self._vhost is None:
            raise DmaError(address, "no kernel shares its memory")
        return self._vhost.memory

    # Accesses

    def _kicked(self, index: int) -> None:
        """The kernel has added to a queue. It processes calendar messages until this returns."""
        vhost, calendar = self._vhost, self._calendar
        assert vhost is not None
        assert calendar is not None
        queue = vhost.queues[index]
        if index == _COMMANDS:
            for _ in range(queue.waiting()):
                chain = queue.take()
                answer = self._access(chain)
                if chain.room:
                    queue.give(chain, answer)
                    self._returned = 0
                else:
                    self._keep(queue, chain)
                self._check_limit()
        calendar.catch_up()

    def _access(self, chain: DescriptorChain) -> bytes:
        """Execute a ``struct virtio_pcidev_msg``; returns the answer of a read."""
        if len(chain.data) < _ACCESS.size:
            raise PeerError(f"an access must have {_ACCESS.size} bytes at least, got {len(chain.data)}")
        operation, bar, _reserved, size, address = _ACCESS.unpack_from(chain.data)
        data = chain.data[_ACCESS.size :]
        room = sum(space for _address, space in chain.room)
        self.accesses += 1
        # Linux 6.1 sends memset_io() as a write to configuration space, but with a BAR, or of any size.
        if operation == _CFG_WRITE and (bar or size not in (1, 2, 4, 8)):
            operation = _MMIO_MEMSET
        most = {_CFG_READ: room, _MMIO_READ: room, _MMIO_MEMSET: CHAIN_BYTES if data else 0}.get(operation, len(data))
        if not _CFG_READ <= operation <= _MMIO_MEMSET or size > most:
            raise PeerError(f"an access: operation {operation} must be 1 to 5, and {size} bytes at most {most}")
        function = self.function
        if operation == _CFG_READ:
            self._clock.advance(self._host.mmio_ps)
            return function.config_read(address, size).to_bytes(size, "little")
        if operation == _CFG_WRITE:
            self._clock.advance(self._host.mmio_ps)
            function.config_write(address, size, int.from_bytes(data[:size], "little"))
        elif operation == _MMIO_READ:
            return self._read(bar, address, size)
        else:
            self._write(bar, address, data[:size] if operation == _MMIO_WRITE else data[:1] * size)
        return b""

    def _keep(self, queue: Queue, chain: DescriptorChain) -> None:
        """A posted write is done. Linux 6.1 waits 1 us for each that it finds returned before the answer of a read, so
        none is returned until it waits for something else or has little room left."""
        queue.keep(chain)
        if len(queue.kept) >= 2 * KEPT:
            self._returned += len(queue.kept)
            queue.give_kept()
        if self._returned + len(queue.kept) == MOST_POSTED:
            _log.warning(
                "the kernel has written to the device %d times without reading: the next write is lost, "
                "because the queue of virt-pci is full. Read a register in between, or use memcpy_toio()",
                MOST_POSTED,
            )

    def _read(self, bar: int, offset: int, size: int) -> bytes:
        if bar == BAR_MEMORY and size not in _WORDS:
            return self.function.read_memory(offset, size)
        answer = bytearray()
        for place, step in self._words(bar, offset, size):
            self._clock.advance(self._host.mmio_ps)
            answer += self.function.read(bar, place, step).to_bytes(step, "little")
        return bytes(answer) or b"\xff" * size

    def _write(self, bar: int, offset: int, data: bytes) -> None:
        if bar == BAR_MEMORY and len(data) not in _WORDS:
            self.function.write_memory(offset, data)
            return
        for place, step in self._words(bar, offset, len(data)):
            self._clock.advance(self._host.mmio_ps)
            value = int.from_bytes(data[place - offset : place - offset + step], "little")
            self.function.write(bar, place, step, value)

    def _words(self, bar: int, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """The accesses of a copy from or to a BAR; none if it exceeds the BAR."""
        if not any(each.number == bar and offset + size <= each.size for each in self.function.bars):
            return
        step = size if size in _WORDS else 4 if not (offset | size) % 4 else 1
        yield from ((place, step) for place in range(offset, offset + size, step))
