"""Messages that no valid client sends to the vfio-user server: randomly changed, truncated, out of order, with odd
descriptors.

A case is one connection. The client writes all messages to the socket and hangs up before the server reads. The server
must finish, close all descriptors, and serve the next client.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from unittest import mock

from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError
from npusim.device.registers import REGISTERS
from npusim.device.transports import vfio_user
from npusim.device.transports.vfio_user import HEADER, MOST_BYTES, REPLY, VfioUser
from npusim.hw.config import load_config
from npusim.sim.watch import Watcher

PATIENCE_S = 0.05
"""Time limit of the server for a client that has hung up or does not read."""
SANE_PATIENCE_S = 60.0
"""The same for valid messages: the process may be suspended for longer than PATIENCE_S within a message."""
MOST_MESSAGES = 40
MOST_PENDING = 100_000
"""Most bytes that a client sends, because all of them must fit in the socket."""
_DRAM = 3 << 20  # not a power of two, so BAR 2 is mapped in part
_PLACES = [register.offset for register in REGISTERS]


class Dma(Watcher):
    """Makes the device access the client's memory at random addresses."""

    def __init__(self, server: VfioUser, rng: random.Random, tally: Counter[str]) -> None:
        self._server, self._rng, self._tally = server, rng, tally

    def register_read(self, register: str, value: int) -> None:
        self.register_written(register, value)

    def register_written(self, register: str, value: int) -> None:
        if self._rng.random() < 0.2:
            return
        address, size = (
            self._rng.choice([0, 0, 4096, 4096, 8000, 1 << 40]),
            self._rng.choice([1, 64, 5000, 70_000]),
        )
        try:
            if self._rng.random() < 0.5:
                assert len(self._server.dma_read(address, size)) == size
            else:
                self._server.dma_write(address, bytes(size))
            self._tally["DMA done"] += 1
        except DmaError:
            self._tally["DMA refused"] += 1


class World:
    """One server for all cases, like a server with many clients."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._device = NpuDevice(load_config("tiny").with_(**{"dram.bytes": _DRAM}), shared_memory=True)
        self._server = VfioUser(self._device, patience_s=PATIENCE_S)
        self._file = os.memfd_create("memory")
        os.ftruncate(self._file, 16384)

    def case(self, rng: random.Random) -> list[str]:
        dma = Dma(self._server, rng, self.tally)
        self._device.watch(dma)
        before, began = len(os.listdir("/proc/self/fd")), time.monotonic()
        try:
            self._serve(rng, sane=False)
            if time.monotonic() - began > 60:
                return [f"took {time.monotonic() - began:.0f} s"]
            with mock.patch.object(self._server, "_patience_s", SANE_PATIENCE_S):
                problem = self._serve(rng, sane=True)
        finally:
            self._device.unwatch(dma)
        left = len(os.listdir("/proc/self/fd")) - before
        return [problem] if problem else [f"{left} descriptors are left"] if left else []

    def _serve(self, rng: random.Random, *, sane: bool) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            if sane:
                self._say(ours, 1, vfio_user.VERSION, struct.pack("<HH", 0, 1))
                self._say(ours, 2, vfio_user.DEVICE_RESET, b"")
                self._say(ours, 3, vfio_user.REGION_READ, struct.pack("<QII", 0, 7, 4))
            else:
                self._nonsense(ours, rng)
            ours.shutdown(socket.SHUT_WR)
            self._server.serve(theirs)
            said = _rest(ours)
            if not sane:
                self._count(said)
                return ""
            return "" if said.endswith(struct.pack("<HH", 0x1E4E, 0x42)) else f"a sane client was answered {said!r}"

    def _count(self, said: bytes) -> None:
        """Tally the answers: 0 for success, or an errno."""
        place = 0
        while place + HEADER.size <= len(said):
            _, _, size, flags, code = HEADER.unpack_from(said, place)
            place += size
            kind = f"answered {errno.errorcode.get(code, code)}" if flags & 0xF == REPLY else "asked by the server"
            self.tally[kind] += 1

    def _nonsense(self, sock: socket.socket, rng: random.Random) -> None:
        pending = 0
        if rng.random() < 0.95:
            self._say(sock, 0, vfio_user.VERSION, struct.pack("<HH", 0, 1) + _capabilities(rng))
        if rng.random() < 0.8:  # enable access to the memory behind the BARs
            self._say(sock, 0, vfio_user.REGION_WRITE, struct.pack("<QIIH", 4, 7, 2, 6))
            for place, files in ((0, [lambda: os.dup(self._file)]), (4096, [])):
                self._say(sock, 0, vfio_user.DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, place, 4096), files=files)
        for number in range(rng.randrange(MOST_MESSAGES)):
            command = rng.choice(_COMMANDS) if rng.random() < 0.95 else rng.randrange(1 << 16)
            body = bytearray(_BODIES.get(command, _bytes)(rng))
            if rng.random() < 0.2 and body:
                body[rng.randrange(len(body))] = rng.randrange(256)
            if rng.random() < 0.1:
                body = body[: rng.randrange(len(body) + 1)] if rng.random() < 0.5 else body + _bytes(rng)
            size = HEADER.size + len(body)
            if rng.random() < 0.005:
                size = rng.choice([0, 15, size + 1, size - 1, MOST_BYTES, MOST_BYTES + 1, 1 << 31, (1 << 32) - 1])
            flags = rng.choice([0] * 150 + [0x10] * 40 + [REPLY, rng.getrandbits(32)])
            if command in (vfio_user.DMA_READ, vfio_user.DMA_WRITE) and rng.random() < 0.8:
                flags = rng.choice([REPLY, REPLY, REPLY | 0x20])
            pending += size
            if pending > MOST_PENDING:
                return
            answers = rng.choice([number, 1, 1, 2])  # the server numbers its own commands from 1
            try:
                self._say(sock, answers, command, bytes(body), flags, size, self._files(rng, command))
            except BlockingIOError:
                return

    def _files(self, rng: random.Random, command: int) -> list[Callable[[], int]]:
        if rng.random() > (0.7 if command in (vfio_user.DMA_MAP, vfio_user.SET_IRQS) else 0.02):
            return []
        kinds: list[Callable[[], int]] = [
            lambda: os.eventfd(0),
            lambda: os.eventfd(0),
            lambda: os.dup(self._file),
            lambda: os.open("/dev/null", os.O_RDWR),
            lambda: os.open("/dev/zero", os.O_RDONLY),
            lambda: os.open("/", os.O_RDONLY),
            lambda: os.memfd_create("short"),
            lambda: socket.socket(socket.AF_UNIX).detach(),
        ]
        return [rng.choice(kinds) for _ in range(rng.choice([1] * 30 + [2, 2, 3, 8, 9, 30]))]

    @staticmethod
    def _say(
        sock: socket.socket,
        number: int,
        command: int,
        body: bytes,
        flags: int = 0,
        size: int = -1,
        files: list[Callable[[], int]] | None = None,
    ) -> None:
        fds = [make() for make in files or []]
        header = HEADER.pack(number, command, HEADER.size + len(body) if size < 0 else size, flags, 0)
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            sock.sendmsg([header + body], ancillary)
        finally:
            for fd in fds:
                os.close(fd)


def _rest(sock: socket.socket) -> bytes:
    """Return all that the server sent before it hung up. A reset, caused by unread data, counts as the end."""
    said = b""
    while True:
        with contextlib.suppress(ConnectionResetError):
            part = sock.recv(1 << 20)
            if not part:
                return said
            said += part


def _bytes(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 4, 16, 24, 100]))


def _number(rng: random.Random, *likely: int) -> int:
    return rng.choice([*likely, *likely, rng.getrandbits(rng.choice([3, 8, 16, 32]))])


def _wide(rng: random.Random, *likely: int) -> int:
    return rng.choice([*likely, *likely, rng.getrandbits(64), (1 << 64) - rng.randrange(1, 5000)])


def _capabilities(rng: random.Random) -> bytes:
    most, twin = rng.choice([1, 100, 1 << 20, -1, 0, "x", None]), rng.choice([{"supported": True}, 1, None])
    choices = [
        b"", b"{}\0", b"{", b"\xff\xfe", b"[" * 10_000, b"9" * 5000, b"null", b'{"capabilities": 3}', b"[]",
        json.dumps({"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": most}}).encode(),
        json.dumps({"capabilities": {"write_multiple": True, "twin_socket": twin}}).encode(),
    ]  # fmt: skip
    return b"" if rng.random() < 0.85 else rng.choice(choices)


def _access(rng: random.Random) -> tuple[int, int, int]:
    region = _number(rng, 0, 0, 2, 7)
    offset = _wide(
        rng, rng.choice(_PLACES), rng.choice([4, 0x10, 0x18, 0x1C, 0x44, 0x52, 0x72, 0x88]), rng.randrange(_DRAM)
    )
    return offset, region, _number(rng, 1, 2, 4, 4, 4, 8, 100, 5000)


def _write(rng: random.Random) -> bytes:
    offset, region, size = _access(rng)
    data = rng.choice(
        [bytes(min(size, 5000)), b"\x06\x00\x00\x00", b"\xff" * min(size, 5000), rng.randbytes(min(size, 5000))]
    )
    return struct.pack("<QII", offset, region, rng.choice([len(data), len(data), size])) + data


def _several(rng: random.Random) -> bytes:
    count = rng.randrange(5)
    rows = b"".join(struct.pack("<QIIQ", *_access(rng), rng.getrandbits(64)) for _ in range(count))
    return struct.pack("<Q", _wide(rng, count, count)) + rows


def _map(rng: random.Random) -> bytes:
    size, address = _wide(rng, 4096, 4096, 8192), _wide(rng, 0, 4096, 8192, 1 << 40)
    return struct.pack("<IIQQQ", 32, _number(rng, 3, 3, 1, 2), _wide(rng, 0, 0, 4096, 16384), address, size)


def _irqs(rng: random.Random) -> bytes:
    flags, kind = _number(rng, 0x24, 0x24, 0x21, 0x22, 9, 17), _number(rng, 0, 1, 2)
    return struct.pack("<IIIII", 20, flags, kind, _number(rng, 0), _number(rng, 0, 1, 1)) + rng.choice([b"", b"\1"])


_BODIES: dict[int, Callable[[random.Random], bytes]] = {
    vfio_user.VERSION: lambda rng: struct.pack("<HH", 0, 1) + _capabilities(rng),
    vfio_user.DMA_MAP: _map,
    vfio_user.DMA_UNMAP: lambda rng: struct.pack(
        "<IIQQ", 24, _number(rng, 0, 0, 2), _wide(rng, 0, 4096, 8192), _wide(rng, 4096, 8192)
    ),
    vfio_user.DEVICE_INFO: lambda rng: struct.pack("<IIII", _number(rng, 16), 0, 0, 0),
    vfio_user.REGION_INFO: lambda rng: struct.pack("<IIIIQQ", _number(rng, 32, 64), 0, _number(rng, 0, 2, 7), 0, 0, 0),
    vfio_user.IRQ_INFO: lambda rng: struct.pack("<IIII", _number(rng, 16), 0, _number(rng, 0, 1, 2, 4), 0),
    vfio_user.SET_IRQS: _irqs,
    vfio_user.REGION_READ: lambda rng: struct.pack("<QII", *_access(rng)),
    vfio_user.REGION_WRITE: _write,
    vfio_user.DMA_READ: lambda rng: struct.pack("<QQ", 0, 64) + bytes(_number(rng, 64, 1, 5000) % 6000),
    vfio_user.DMA_WRITE: lambda rng: struct.pack("<QI", 0, 64),
    vfio_user.DEVICE_RESET: lambda rng: b"",
    vfio_user.REGION_WRITE_MULTI: _several,
    vfio_user.DEVICE_FEATURE: _bytes,
    vfio_user.REGION_IO_FDS: _bytes,
}  # fmt: skip


# A reset disables what the other messages are about, and an unexpected answer ends the connection.
_RARE = (vfio_user.DEVICE_RESET, vfio_user.DMA_READ, vfio_user.DMA_WRITE)
_COMMANDS = [command for command in _BODIES if command not in _RARE] * 4 + [vfio_user.REGION_WRITE] * 12 + [*_RARE]


def make() -> World:
    return World()
