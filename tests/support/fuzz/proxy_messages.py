"""Messages that QEMU never sends for its x-pci-proxy-dev: randomly changed, truncated, with odd descriptors.

A case is one connection. The peer writes all messages to the socket and hangs up before the server reads.
"""

from __future__ import annotations

import array
import contextlib
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from unittest import mock

from npusim.device.npu import NpuDevice
from npusim.device.registers import REGISTERS
from npusim.device.transports.pci_proxy import (
    BAR,
    BAR_READ,
    BAR_WRITE,
    CONFIG,
    CONFIG_READ,
    CONFIG_WRITE,
    HEADER,
    RAM,
    RESET,
    RETURN,
    SET_IRQ,
    SYNC_RAM,
    PciProxy,
)
from npusim.hw.config import load_config

PATIENCE_S = 0.05
SANE_PATIENCE_S = 60.0
"""Time limit for valid messages: the process may be suspended for longer than PATIENCE_S within a message."""
MOST_MESSAGES = 60
_AT = 0xE000_0000, 0xD000_0000
_PLACES = [register.offset for register in REGISTERS]


class World:
    """One server for all cases."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._device = NpuDevice(load_config("tiny").with_(**{"dram.bytes": 3 << 20}))
        self._server = PciProxy(self._device, patience_s=PATIENCE_S)
        self._file = os.memfd_create("ram")
        os.ftruncate(self._file, 16384)

    def case(self, rng: random.Random) -> list[str]:
        before, began = len(os.listdir("/proc/self/fd")), time.monotonic()
        self._serve(lambda sock: self._nonsense(sock, rng))
        if time.monotonic() - began > 60:
            return [f"took {time.monotonic() - began:.0f} s"]
        with mock.patch.object(self._server, "_patience_s", SANE_PATIENCE_S):
            said = self._serve(lambda sock: sock.sendall(HEADER.pack(CONFIG_READ, CONFIG.size) + CONFIG.pack(0, 0, 4)))
        if said != HEADER.pack(RETURN, 8) + struct.pack("<Q", 0x0042_1E4E):
            return [f"a sane QEMU was answered {said!r}"]
        left = len(os.listdir("/proc/self/fd")) - before
        return [f"{left} descriptors are left"] if left else []

    def _serve(self, speak: Callable[[socket.socket], None]) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            speak(ours)
            ours.shutdown(socket.SHUT_WR)
            self._server.serve(theirs)
            said = b""
            while True:
                with contextlib.suppress(ConnectionResetError):
                    part = ours.recv(1 << 20)
                    if not part:
                        break
                    said += part
        self.tally["answered"] += len(said) // 24
        return said

    def _nonsense(self, sock: socket.socket, rng: random.Random) -> None:
        if rng.random() < 0.8:  # enable access to the memory behind the BARs
            for offset, value in ((0x10, _AT[0]), (0x18, _AT[1]), (0x04, 6), (0x50, 1 << 16), (0x54, rng.choice(_BUS))):
                self._say(sock, CONFIG_WRITE, CONFIG.pack(offset, value & 0xFFFF_FFFF, 4), [])
        for _ in range(rng.randrange(MOST_MESSAGES)):
            command = rng.choice(_COMMANDS) if rng.random() < 0.995 else rng.getrandbits(32) - (1 << 31)
            body = bytearray(_BODIES.get(command, lambda rng: b"")(rng))
            if rng.random() < 0.2 and body:
                body[rng.randrange(len(body))] = rng.randrange(256)
            size = len(body)
            if rng.random() < 0.005:
                size = rng.choice([0, size + 1, abs(size - 1), 1 << 31, (1 << 64) - 1])
            self.tally["said"] += 1
            self._say(sock, command, bytes(body), self._files(rng, command), size)

    def _files(self, rng: random.Random, command: int) -> list[int]:
        good = command in (SYNC_RAM, SET_IRQ) and rng.random() < 0.9
        if not good and rng.random() < 0.995:
            return []
        if good and command == SET_IRQ:
            return [os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)]
        if good:
            return [os.dup(self._file)]
        kinds: list[Callable[[], int]] = [
            lambda: os.eventfd(0),
            lambda: os.open("/dev/zero", os.O_RDWR),
            lambda: os.open("/", os.O_RDONLY),
            lambda: os.memfd_create("short"),
            lambda: socket.socket(socket.AF_UNIX).detach(),
        ]
        return [rng.choice(kinds)() for _ in range(rng.choice([1, 2, 8, 9, 30]))]

    @staticmethod
    def _say(sock: socket.socket, command: int, body: bytes, fds: list[int], size: int = -1) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sock.sendmsg([HEADER.pack(command, len(body) if size < 0 else size) + body], ancillary)
        finally:
            for fd in fds:
                os.close(fd)


def _address(rng: random.Random) -> int:
    return rng.choice(
        [_AT[0] + rng.choice(_PLACES), _AT[0] + rng.choice(_PLACES), _AT[0] + rng.randrange(0x5000),
         _AT[1] + rng.randrange(5 << 20), rng.getrandbits(64), (1 << 64) - 1]
    )  # fmt: skip


def _access(rng: random.Random) -> bytes:
    value = rng.choice([0, 1, 3, (1 << 64) - 1, rng.getrandbits(64)])
    return BAR.pack(_address(rng), value, rng.choice([4, 4, 4, 1, 2, 8, 3, 0, 1 << 31]), rng.random() < 0.95)


def _config(rng: random.Random) -> bytes:
    offset = rng.choice([0x04, 0x10, 0x18, 0x1C, 0x44, 0x52, 0x54, 0x88, rng.randrange(5000), rng.getrandbits(32)])
    return CONFIG.pack(offset, rng.choice([6, 1, rng.getrandbits(32)]), rng.choice([4, 2, 1, 3, 0, -1, 1 << 30]))


def _ram(rng: random.Random) -> bytes:
    sizes = [rng.choice([4096, 4096, 8192, 0, rng.getrandbits(64)]) if rng.random() < 0.05 else 4096 for _ in range(8)]
    return RAM.pack(*(rng.choice(_BUS) for _ in range(8)), *sizes, *(rng.choice([0, 4096]) for _ in range(8)))


_BUS = (0, 4096, 1 << 20, 0xFEE0_0000, 0x1_0000_0000)
_BODIES: dict[int, Callable[[random.Random], bytes]] = {
    SYNC_RAM: _ram, CONFIG_WRITE: _config, CONFIG_READ: _config, BAR_WRITE: _access, BAR_READ: _access,
    SET_IRQ: lambda rng: b"", RESET: lambda rng: b"",
}  # fmt: skip
_COMMANDS = [SYNC_RAM, SET_IRQ, RESET, *[CONFIG_WRITE, CONFIG_READ] * 6, *[BAR_WRITE, BAR_READ] * 20]


def make() -> World:
    return World()
