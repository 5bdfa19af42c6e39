"""A stand-in for a User Mode Linux kernel in Python: it uses both sockets like Linux 6.1."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from npusim.device.bus import BAR_MEMORY, Bus
from npusim.device.transports.uml import UmlTransport
from npusim.device.transports.wire import PeerError
from npusim.errors import NpusimError
from tests.support.waits_and_leaks import PATIENCE_S

START, REQUEST, WAIT, GET, UPDATE, RUN = range(1, 7)
TIME = struct.Struct("<IIQ")
FAR = 10**15
"""A timer in ns that never expires in a test."""
HEADER = struct.Struct("<III")
NEED_REPLY = 1 << 3
MEMORY, MEMORY_BYTES = 0x10_0000, 0x40_0000
"""Bus address and size of the memory that the kernel shares."""
QUEUE = 256
DESCRIPTORS, AVAILABLE, USED, BUFFERS = 0x0000, 0x1000, 0x2000, 0x3000
QUEUE_BYTES = 0x8000
"""Offsets in the part of the memory that belongs to each queue."""
DATA = 2 * QUEUE_BYTES
CFG_READ, CFG_WRITE, MMIO_READ, MMIO_WRITE, MMIO_MEMSET = range(1, 6)
IRQ_BUFFERS = 10
MSI_DATA = 0x21


class Closed(Exception):  # noqa: N818 it is what a test expects
    """The transport has closed the connection."""


class Kernel:
    """``now``: its clock in ns; ``told``: every time it was told; ``messages``: received interrupts."""

    def __init__(self, calendar: socket.socket, device: socket.socket, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self.calendar, self.device = calendar, device
        self.back, self.given_back = socket.socketpair()
        for each in (calendar, device, self.back):
            each.settimeout(patience_s)
        self.file = os.memfd_create("kernel")
        os.truncate(self.file, MEMORY_BYTES)
        self.now = 0
        self.told: list[int] = []
        self.messages: list[bytes] = []
        self._sequence = 0
        self._used: list[int] = []  # interrupt buffers, to be offered again when it runs
        self._index = [0, 0]  # chains made available
        self._seen = [0, 0]  # chains returned
        self._free = list(range(QUEUE))  # descriptors for commands
        self._chains: dict[int, list[int]] = {}

    # Memory

    def peek(self, address: int, size: int) -> bytes:
        return os.pread(self.file, size, address - MEMORY)

    def poke(self, address: int, data: bytes) -> None:
        os.pwrite(self.file, data, address - MEMORY)

    # Time travel

    def say(self, operation: int, time: int = 0) -> int:
        """Send a message and return the time in its answer. The clock may be set meanwhile."""
        self._sequence += 1
        self.calendar.sendall(TIME.pack(operation, self._sequence, time))
        while True:
            found, sequence, answer = TIME.unpack(_exactly(self.calendar, TIME.size))
            if found == 0:
                assert sequence == self._sequence
                return answer
            self._set_clock(found, sequence, answer)

    def _set_clock(self, operation: int, sequence: int, time: int) -> None:
        assert operation == RUN
        assert time >= self.now, "time goes backwards"
        self.now = time
        self.told.append(time)
        self.calendar.sendall(TIME.pack(0, sequence, 0))

    def wait(self) -> None:
        """Wait until told to run; interrupts may come meanwhile."""
        self.say(WAIT)
        while True:
            if self._readable(self.back, self.calendar) is self.back:
                self._called()
                continue
            self._set_clock(*TIME.unpack(_exactly(self.calendar, TIME.size)))
            used, self._used = self._used, []
            for head in used:
                self.offer(head)
            return

    def _called(self) -> None:
        """As in virtio_uml.c: an event for the interrupt is added at the current time, then the caller is answered."""
        request, flags, _size, index, _ = struct.unpack("<IIIII", _exactly(self.back, 20))
        assert (request, flags) == (4, 1 | NEED_REPLY)
        self.now = max(self.now, self.say(GET))
        self.say(REQUEST, self.now)
        self.back.sendall(struct.pack("<IIIQ", 4, 1 | 4, 8, 0))
        if index == 1:
            self._take_interrupts()
        while index == 0 and self._take_back() is not None:
            pass

    def _take_interrupts(self) -> None:
        base = MEMORY + QUEUE_BYTES
        (used,) = struct.unpack("<H", self.peek(base + USED + 2, 2))
        while self._seen[1] != used:
            head, size = struct.unpack("<II", self.peek(base + USED + 4 + 8 * (self._seen[1] % QUEUE), 8))
            self.messages.append(self.peek(base + BUFFERS + 32 * head, size))
            self._seen[1] = self._seen[1] + 1 & 0xFFFF
            self._used.append(head)

    # vhost-user

    def request(self, number: int, payload: bytes = b"", files: tuple[int, ...] = (), reply: bool = True) -> bytes:
        """Make a vhost-user request and return its answer. The clock may be set meanwhile."""
        message = HEADER.pack(number, 1 | (NEED_REPLY if reply else 0), len(payload)) + payload
        if files:
            socket.send_fds(self.device, [message], files)
        else:
            self.device.sendall(message)
        if not reply:
            return b""
        while self._readable(self.device, self.calendar) is self.calendar:
            self._set_clock(*TIME.unpack(_exactly(self.calendar, TIME.size)))
        found, flags, size = HEADER.unpack(_exactly(self.device, HEADER.size))
        assert (found, flags) == (number, 1 | 4)
        return _exactly(self.device, size)

    def boot(self) -> None:
        """Do everything up to the first access like virtio_uml.c and virt-pci.c."""
        self.say(START)
        self.request(3)
        features = struct.unpack("<Q", self.request(1))[0]
        assert features & (1 << 30 | 1 << 32)
        self.request(16, self.request(15))
        self.request(21, files=(self.given_back.fileno(),))
        self.request(2, struct.pack("<Q", features))
        # room for two regions, of which one is used
        self.request(5, struct.pack("<II4Q4Q", 1, 0, MEMORY, MEMORY_BYTES, MEMORY, 0, 0, 0, 0, 0), (self.file,))
        for index in range(2):
            base = MEMORY + index * QUEUE_BYTES
            self.request(8, struct.pack("<II", index, QUEUE))
            self.request(10, struct.pack("<II", index, 0))
            self.request(9, struct.pack("<IIQQQQ", index, 0, base + DESCRIPTORS, base + USED, base + AVAILABLE, 0))
            self.request(18, struct.pack("<II", index, 1))
        for head in range(IRQ_BUFFERS):
            self.describe(1, head, MEMORY + QUEUE_BYTES + BUFFERS + 32 * head, 20, 2)
            self.offer(head, kick=False)
        self.kick(1)

    # The queues

    def describe(self, queue: int, number: int, address: int, size: int, flags: int, follower: int = 0) -> None:
        entry = struct.pack("<QIHH", address, size, flags, follower)
        self.poke(MEMORY + queue * QUEUE_BYTES + DESCRIPTORS + 16 * number, entry)

    def make_available(self, queue: int, head: int) -> None:
        base = MEMORY + queue * QUEUE_BYTES + AVAILABLE
        self.poke(base + 4 + 2 * (self._index[queue] % QUEUE), struct.pack("<H", head))
        self._index[queue] = self._index[queue] + 1 & 0xFFFF
        self.poke(base + 2, struct.pack("<H", self._index[queue]))

    def offer(self, head: int, kick: bool = True) -> None:
        """Offer a buffer for an interrupt."""
        self.make_available(1, head)
        if kick:
            self.kick(1)

    def kick(self, queue: int) -> None:
        self.say(UPDATE, self.now)
        self.request(35, struct.pack("<II", queue, 0))

    def access(self, operation: int, bar: int, address: int, size: int, data: bytes = b"", room: int = 0) -> bytes:
        """Send a ``struct virtio_pcidev_msg`` through queue 0 and return the answer."""
        message = struct.pack("<BBHIQ", operation, bar, 0, size, address) + data
        place, answer = MEMORY + DATA, MEMORY + DATA + 0x10_0000
        self.poke(place, message)
        if len(self._free) < (2 if room else 1):
            return b""  # virt-pci reports nothing either
        head, *_ = chain = [self._free.pop(0) for _ in range(2 if room else 1)]
        self._chains[head] = chain
        self.describe(0, head, place, len(message), 1 if room else 0, chain[-1])
        if room:
            self.describe(0, chain[1], answer, room, 2)
        self.make_available(0, head)
        self.kick(0)
        if room:
            # Linux 6.1 waits 1 us for each earlier one.
            assert self._take_back() == head, "an answer must come before what was kept"
            return self.peek(answer, room)
        return b""

    def _take_back(self) -> int | None:
        """Return the next returned chain, or None."""
        (used,) = struct.unpack("<H", self.peek(MEMORY + USED + 2, 2))
        if self._seen[0] == used:
            return None
        (head,) = struct.unpack("<I", self.peek(MEMORY + USED + 4 + 8 * (self._seen[0] % QUEUE), 4))
        self._seen[0] = self._seen[0] + 1 & 0xFFFF
        self._free += self._chains.pop(head)
        return head

    # Configuration space

    def config_read(self, offset: int, size: int) -> int:
        return int.from_bytes(self.access(CFG_READ, 0, offset, size, room=8)[:size], "little")

    def config_write(self, offset: int, size: int, value: int) -> None:
        self.access(CFG_WRITE, 0, offset, size, value.to_bytes(size, "little").ljust(8, b"\0"))

    def capability(self, kind: int) -> int:
        """Return the offset of a capability."""
        place = self.config_read(0x34, 1)
        while self.config_read(place, 1) != kind:
            place = self.config_read(place + 1, 1)
        return place

    def enable(self) -> None:
        """Enable memory, bus mastering and MSI like a driver's probe."""
        self.config_write(0x04, 2, 6)
        capability = self.capability(5)
        self.config_write(capability + 4, 4, 0xA0000)
        self.config_write(capability + 12, 2, MSI_DATA)
        self.config_write(capability + 2, 2, self.config_read(capability + 2, 2) | 1)

    def _readable(self, *sources: socket.socket) -> socket.socket:
        ready = select.select(sources, [], [], self._patience_s)[0]
        assert ready, "the transport says nothing"
        return next(source for source in sources if source in ready)

    def close(self) -> None:
        for each in (self.calendar, self.device, self.back, self.given_back):
            each.close()
        with contextlib.suppress(OSError):
            os.close(self.file)


class KernelBus(Bus):
    """The device as a driver in that kernel accesses it, so any driver runs on it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def read(self, bar: int, offset: int, size: int) -> int:
        return int.from_bytes(self.kernel.access(MMIO_READ, bar, offset, size, room=size), "little")

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        self.kernel.access(MMIO_WRITE, bar, offset, size, value.to_bytes(size, "little"))

    def read_memory(self, address: int, size: int) -> bytearray:
        return bytearray(self.kernel.access(MMIO_READ, BAR_MEMORY, address, size, room=size))

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.kernel.access(MMIO_WRITE, BAR_MEMORY, address, len(data), bytes(data))

    def wait_irq(self, timeout_ps: int) -> int:
        kernel = self.kernel
        deadline = kernel.now + timeout_ps // 1000
        while not kernel.messages and kernel.now < deadline:
            kernel.say(REQUEST, deadline)
            kernel.wait()
        found, kernel.messages = kernel.messages, []
        kernel.say(REQUEST, FAR)
        return bool(found)

    def host_work(self, kind: str) -> None:
        pass


class Served:
    """A transport running in a thread; ``error``: what ended it, after ``join()``."""

    def __init__(self, transport: UmlTransport, folder: Path) -> None:
        self.transport = transport
        self.error: BaseException | None = None
        self.listeners = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        self._paths = [str(folder / name) for name in ("calendar", "device")]
        for listener, path in zip(self.listeners, self._paths, strict=True):
            listener.bind(path)
            listener.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.transport.serve(*self.listeners)
        except BaseException as error:  # noqa: BLE001 it is the test's
            self.error = error

    def connect(self) -> tuple[socket.socket, socket.socket]:
        peers = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for peer, path in zip(peers, self._paths, strict=True):
            peer.connect(path)
        return peers[0], peers[1]

    def join(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the transport hangs"
        for listener, path in zip(self.listeners, self._paths, strict=True):
            listener.close()
            os.unlink(path)
        return self.error


@contextlib.contextmanager
def kernel_of(transport: UmlTransport, folder: Path) -> Iterator[Kernel]:
    """Yield a booted kernel served by a transport. An error that ends the transport is raised here."""
    served = Served(transport, folder)
    kernel = Kernel(*served.connect())
    try:
        kernel.boot()
        yield kernel
    except (Closed, OSError, AssertionError):
        kernel.close()
        if error := served.join():
            raise error from None
        raise
    kernel.close()
    if error := served.join():
        raise error


def error_of(transport: UmlTransport, folder: Path, tell: Callable[[Kernel], object]) -> BaseException:
    """Return the error that ends a transport after a kernel has booted and done something."""
    try:
        with kernel_of(transport, folder) as kernel:
            tell(kernel)
    except Closed:
        raise AssertionError("the transport has closed, and does not say why") from None
    except (NpusimError, PeerError) as error:
        return error
    raise AssertionError("nothing has ended the transport")


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise Closed
        data += part
    return data
