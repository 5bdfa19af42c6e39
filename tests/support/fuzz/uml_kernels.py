"""User Mode Linux kernels that lie, stop and die: their messages are valid for a while, then partly damaged."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from npusim.device.npu import NpuDevice
from npusim.device.transports.uml import EndlessError, UmlTransport
from npusim.device.transports.wire import PeerError
from npusim.hw.config import load_config
from tests.support.uml_kernel import (
    FAR,
    GET,
    HEADER,
    MEMORY,
    MEMORY_BYTES,
    QUEUE_BYTES,
    REQUEST,
    TIME,
    UPDATE,
    Closed,
    Kernel,
    Served,
)  # fmt: skip

STEPS = 60
QUIET_S = 0.05
"""A kernel that gets no answer for this long disconnects."""
NUMBERS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    255,
    256,
    257,
    4095,
    4096,
    0x7FFF,
    0xFFFF,
    1 << 31,
    0xFFFF_FFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


class Mangler:
    """A socket that damages part of the data."""

    def __init__(self, sock: socket.socket, rng: random.Random, tally: Counter[str]) -> None:
        self._sock, self._rng, self._tally = sock, rng, tally
        self.often = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def sendall(self, data: bytes) -> None:
        self._tally["messages"] += 1
        if self._rng.random() < self.often:
            self._tally["damaged"] += 1
            data = self._damage(data)
        self._sock.sendall(data)

    def sendmsg(self, buffers: list[bytes], *more: Any) -> int:
        """Send a message with its descriptors, which may be replaced."""
        self._tally["messages"] += 1
        return self._sock.sendmsg(buffers, *more)

    def _damage(self, data: bytes) -> bytes:
        rng = self._rng
        match rng.randrange(7):
            case 0:  # flip a bit
                place = rng.randrange(len(data))
                return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
            case 1:  # replace a number
                place = rng.randrange(0, len(data), 4)
                return data[:place] + (rng.choice(NUMBERS) & 0xFFFF_FFFF).to_bytes(4, "little") + data[place + 4 :]
            case 2:
                return data[: rng.randrange(len(data))]
            case 3:
                return data * rng.randrange(2, 5)
            case 4:
                return rng.randbytes(rng.randrange(1, 100))
            case 5:
                return data + rng.randbytes(rng.randrange(1, 30))
            case _:
                return b""


class World:
    """One device to which kernels connect one after the other."""

    def __init__(self) -> None:
        self.tally: Counter[str] = Counter()
        self._device = NpuDevice(load_config("tiny").with_(**{"dram.bytes": "1 MiB"}))
        self._folder = tempfile.TemporaryDirectory()

    def case(self, rng: random.Random) -> list[str]:
        files = len(os.listdir("/proc/self/fd"))
        limit = self._device.now_ps + rng.choice((10**9, 10**13))
        served = Served(UmlTransport(self._device, 5, limit), Path(self._folder.name))
        kernel = Kernel(*served.connect(), QUIET_S)
        manglers = [Mangler(each, rng, self.tally) for each in (kernel.calendar, kernel.device, kernel.back)]
        kernel.calendar, kernel.device, kernel.back = (cast(socket.socket, each) for each in manglers)
        # Half of the kernels behave correctly until they have booted.
        damaged = rng.choice((0.01, 0.05, 0.3))
        early = rng.random() < 0.5
        for each in manglers:
            each.often = damaged * early
        # KeyError: the kernel does not recognise what it receives through a queue that it damaged itself.
        with contextlib.suppress(Closed, OSError, ValueError, KeyError, AssertionError, struct.error):
            kernel.boot()
            for each in manglers:
                each.often = damaged
            kernel.say(REQUEST, FAR)
            kernel.enable()
            for _ in range(STEPS):
                rng.choice(DEEDS if rng.random() < 0.9 else MISDEEDS)(kernel, rng)
        kernel.close()
        try:
            error = served.join()
        except AssertionError as hangs:
            return [str(hangs)]
        self.tally[type(error).__name__] += 1
        found = (
            [] if error is None or isinstance(error, PeerError | EndlessError) else [f"{type(error).__name__}: {error}"]
        )
        if (left := len(os.listdir("/proc/self/fd")) - files) > 0:
            found.append(f"{left} descriptors are left")
        return found


def _number(rng: random.Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(1 << rng.randrange(1, 64))


def _asks(kernel: Kernel, rng: random.Random) -> None:
    kernel.say(REQUEST, kernel.now + rng.choice((0, 1, 100, 10**4, 10**7)))


def _waits(kernel: Kernel, rng: random.Random) -> None:
    _asks(kernel, rng)
    kernel.wait()


def _speaks(kernel: Kernel, rng: random.Random) -> None:
    kernel.say(rng.choice((GET, UPDATE, REQUEST, rng.randrange(12))), rng.choice((kernel.now, _number(rng))))


def _requests(kernel: Kernel, rng: random.Random) -> None:
    payload = b"".join(struct.pack("<I", _number(rng) & 0xFFFF_FFFF) for _ in range(rng.randrange(12)))
    files = tuple(rng.choice((kernel.file, 0, kernel.device.fileno())) for _ in range(rng.choice((0, 0, 0, 1, 2, 9))))
    kernel.request(rng.randrange(1, 45), payload, files)


def _shares(kernel: Kernel, rng: random.Random) -> None:
    count = rng.choice((0, 1, 1, 2, 9))
    rows = [
        rng.choice(((MEMORY, MEMORY_BYTES, 0, 0), tuple(_number(rng) & (1 << 64) - 1 for _ in range(4))))
        for _ in range(count)
    ]
    payload = struct.pack("<II", count, 0) + b"".join(struct.pack("<QQQQ", *row) for row in rows)
    kernel.request(5, payload, (kernel.file,) * min(rng.choice((count, 1)), 9))


def _accesses(kernel: Kernel, rng: random.Random) -> None:
    operation, bar, size = (
        rng.choice((1, 2, 3, 3, 4, 4, 4, 5, 6)),
        rng.choice((0, 2, 2, 5)),
        rng.choice((1, 2, 4, 8, 64, 4096)),
    )
    address = rng.choice((rng.randrange(0x400), rng.randrange(0, 0x4000, 4), rng.randrange(1 << 20), _number(rng)))
    data = rng.choice((b"", rng.randbytes(size))) if operation in (1, 3) else rng.randbytes(rng.choice((size, size, 1)))
    room = rng.choice((size, size, 8, 0)) if operation in (1, 3) else 0
    kernel.access(operation, bar, address & (1 << 64) - 1, size, data, room)


def _configures(kernel: Kernel, rng: random.Random) -> None:
    kernel.config_write(rng.randrange(0, 0x100, 2), 2, rng.choice((0, 1, 6, 0x406, 0xFFFF)))


def _scribbles(kernel: Kernel, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 3, 30))):
        kernel.poke(MEMORY + rng.randrange(2 * QUEUE_BYTES), rng.choice((rng.randbytes(2), b"\xff\xff", b"\0" * 8)))
    kernel.kick(rng.randrange(2))


def _describes(kernel: Kernel, rng: random.Random) -> None:
    for number in range(rng.randrange(1, 5)):
        address = rng.choice((MEMORY + rng.randrange(MEMORY_BYTES), _number(rng) & (1 << 64) - 1))
        kernel.describe(
            0, number, address, _number(rng) & 0xFFFF_FFFF, rng.randrange(8), rng.choice((number + 1, 0, 999))
        )
    kernel.make_available(0, rng.choice((0, 0, 1, 65535)))
    kernel.kick(0)


def _shortens(kernel: Kernel, rng: random.Random) -> None:
    if rng.random() < 0.1:
        os.truncate(kernel.file, rng.choice((0, 0x1000, MEMORY_BYTES)))


def _dies(kernel: Kernel, rng: random.Random) -> None:
    if rng.random() < 0.1:
        rng.choice((kernel.calendar, kernel.device, kernel.back)).close()


def _raw(kernel: Kernel, rng: random.Random) -> None:
    if rng.random() < 0.2:
        message = rng.choice((HEADER.pack(rng.randrange(45), 1 | 8, _number(rng) & 0xFFFF_FFFF), TIME.pack(0, 1, 5)))
        rng.choice((kernel.calendar, kernel.device, kernel.back)).sendall(message)


Deeds = list[Callable[[Kernel, random.Random], None]]
DEEDS: Deeds = [_asks, _waits, _waits, _accesses, _accesses, _accesses, _accesses, _configures]
MISDEEDS: Deeds = [_speaks, _requests, _shares, _scribbles, _describes, _shortens, _dies, _raw]


def make() -> World:
    return World()
