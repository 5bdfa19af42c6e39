"""A vfio-user client that sends exactly what a test wants, and a driver's bus based on it."""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from npusim.device.bus import BAR_MEMORY, Bus
from npusim.device.npu import NpuDevice
from npusim.device.transports.vfio_user import (
    DEVICE_INFO,
    DMA_MAP,
    ERROR,
    HEADER,
    REGION_INFO,
    REGION_READ,
    REGION_WRITE,
    REPLY,
    SET_IRQS,
    VERSION,
    VfioUser,
)
from npusim.hw.config import Config, load_config
from tests.support.waits_and_leaks import PATIENCE_S

CONFIG = 7
TRIGGER_EVENTFD = 0x24
SMALL = load_config("tiny").with_(**{"dram.bytes": "64 MiB"})


class RefusedError(Exception):
    """An answer with an errno."""


class Client:
    """Communicates over a connected socket. ``on_dma`` answers requests of the server, given command and body."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE_S)
        self.number = 0
        self.fds: list[int] = []
        self.on_dma: Callable[[int, bytes], tuple[int, bytes]] | None = None

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        self.sock.close()

    def send(self, command: int, body: bytes = b"", fds: Sequence[int] = (), flags: int = 0, size: int = -1) -> int:
        """Send one message and return its number. ``size`` replaces the true size."""
        self.number = self.number + 1 & 0xFFFF
        header = HEADER.pack(self.number, command, HEADER.size + len(body) if size < 0 else size, flags, 0)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        data = header + body
        sent = self.sock.sendmsg([data], ancillary)
        if sent < len(data):
            self.sock.sendall(data[sent:])
        return self.number

    def receive(self) -> tuple[int, int, int, int, bytes]:
        """Return number, command, flags, errno and body of the next message."""
        number, command, size, flags, code = HEADER.unpack(self._exactly(HEADER.size))
        return number, command, flags, code, self._exactly(size - HEADER.size)

    def call(self, command: int, body: bytes = b"", fds: Sequence[int] = ()) -> bytes:
        """Send a request, serve requests of the server, and return the body of the answer. Raises
        RefusedError(errno)."""
        number = self.send(command, body, fds)
        while True:
            answer, said, flags, code, data = self.receive()
            if flags & 0xF == REPLY:
                assert (answer, said) == (number, command)
                if flags & ERROR:
                    assert not data
                    raise RefusedError(code)
                return data
            self.serve_dma(answer, said, data)

    def serve_dma(self, number: int, command: int, data: bytes) -> None:
        assert self.on_dma is not None, f"unexpected command {command}"
        code, body = self.on_dma(command, data)
        self.sock.sendall(
            HEADER.pack(number, command, HEADER.size + len(body), REPLY | (ERROR if code else 0), code) + body
        )

    def agree(self, capabilities: dict[str, Any] | None = None, major: int = 0, minor: int = 1) -> dict[str, Any]:
        text = json.dumps({"capabilities": capabilities}).encode() + b"\0" if capabilities is not None else b""
        answer = self.call(VERSION, struct.pack("<HH", major, minor) + text)
        found: dict[str, Any] = json.loads(answer[4:].rstrip(b"\0"))["capabilities"]
        return found

    def read(self, region: int, offset: int, size: int) -> bytes:
        return self.call(REGION_READ, struct.pack("<QII", offset, region, size))[16:]

    def write(self, region: int, offset: int, data: bytes) -> None:
        self.call(REGION_WRITE, struct.pack("<QII", offset, region, len(data)) + data)

    def region_info(self, index: int, room: int = 32) -> tuple[tuple[int, ...], bytes]:
        """Return (argsz, flags, index, offset of capabilities, size, offset), and the capabilities."""
        answer = self.call(REGION_INFO, struct.pack("<IIIIQQ", room, 0, index, 0, 0, 0))
        return struct.unpack_from("<IIIIQQ", answer), answer[32:]

    def map_dma(self, address: int, size: int, file: int | None = None, offset: int = 0, flags: int = 3) -> None:
        body = struct.pack("<IIQQQ", 32, flags, offset, address, size)
        self.call(DMA_MAP, body, [] if file is None else [file])

    def set_irqs(self, kind: int, first: int, files: Sequence[int], flags: int = TRIGGER_EVENTFD) -> None:
        self.call(SET_IRQS, struct.pack("<IIIII", 20, flags, kind, first, max(len(files), 1)), files)

    def enable(self, kind: str = "msi") -> None:
        """Enable memory, bus mastering and interrupts of a kind like a driver's probe."""
        self.write(CONFIG, 4, struct.pack("<H", 6))
        place = {"msi": 0x52, "msix": 0x72}.get(kind)
        if place is not None:
            control = struct.unpack("<H", self.read(CONFIG, place, 2))[0]
            self.write(CONFIG, place, struct.pack("<H", control | (1 if kind == "msi" else 1 << 15)))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part, ancillary, _, _ = self.sock.recvmsg(size - len(data), socket.CMSG_SPACE(64))
            for _, _, raw in ancillary:
                self.fds += array.array("i", raw)
            if not part:
                raise EOFError("the server has closed the connection")
            data += part
        return data


class VfioBus(Bus):
    """A device at the other end, for the existing drivers. Its interrupts are MSI.

    Timeouts are in wall time. With a server in ``lockstep``, however, the device is idle before it answers the next
    message, so any interrupt has been sent by then.
    """

    def __init__(self, client: Client, *, lockstep: bool = False) -> None:
        self.client, self.lockstep = client, lockstep
        client.enable()
        info, _ = client.region_info(BAR_MEMORY)
        self.memory = mmap.mmap(client.fds[-1], info[4])
        self.event = os.eventfd(0, os.EFD_NONBLOCK)
        client.set_irqs(1, 0, [self.event])

    def close(self) -> None:
        self.memory.close()
        os.close(self.event)
        self.client.close()

    def read(self, bar: int, offset: int, size: int) -> int:
        return int.from_bytes(self.client.read(bar, offset, size), "little")

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        self.client.write(bar, offset, value.to_bytes(size, "little"))

    def read_memory(self, address: int, size: int) -> bytearray:
        return bytearray(self.memory[address : address + size])

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.memory[address : address + len(data)] = data

    def wait_irq(self, timeout_ps: int) -> int:
        if self.lockstep:
            self.client.call(DEVICE_INFO, struct.pack("<IIII", 16, 0, 0, 0))
            timeout_ps = 0
        poll = select.poll()
        poll.register(self.event, select.POLLIN)
        if not poll.poll(min(timeout_ps // 10**9, PATIENCE_S * 1000)):
            return 0
        os.eventfd_read(self.event)
        return 1

    def host_work(self, kind: str) -> None:
        pass


class Served:
    """A device, its server, and the threads that serve clients."""

    def __init__(self, config: Config = SMALL, *, lockstep: bool = True, patience_s: float = PATIENCE_S) -> None:
        self.device = NpuDevice(config, shared_memory=True)
        self.server = VfioUser(self.device, lockstep=lockstep, patience_s=patience_s)
        self._theirs: socket.socket | None = None

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a connected client that has sent nothing. On exit the server has finished with it."""
        ours, theirs = socket.socketpair()
        self._theirs = theirs
        failures: list[BaseException] = []

        def serve() -> None:
            try:
                self.server.serve(theirs)
            except BaseException as error:  # noqa: BLE001 told to the test below
                failures.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        client = Client(ours)
        try:
            yield client
        finally:
            client.close()
            thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not notice that its client has gone"
        assert not failures, failures

    def hurry(self) -> None:
        """Limit the wait for the rest of a message, or for the client to read, to a tenth of a second.

        Call it after the first messages: on a busy machine a client may need longer to start.
        """
        assert self._theirs is not None
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._theirs.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 100_000))
