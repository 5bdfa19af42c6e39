"""Malformed messages to a transport in each state cause nothing but expected errors.

Whole sessions with damaged messages are in :mod:`tests.support.fuzz.uml_kernels`.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import struct
from collections import Counter

import pytest

from npusim.device.npu import NpuDevice
from npusim.device.transports.calendar import Calendar
from npusim.device.transports.uml import EndlessError, UmlTransport
from npusim.device.transports.vhost_user import VhostUser
from npusim.device.transports.wire import PeerError, PeerGoneError, Wire
from npusim.hw.config import load_config
from tests.support.uml_kernel import (
    AVAILABLE,
    DESCRIPTORS,
    HEADER,
    MEMORY,
    MEMORY_BYTES,
    QUEUE,
    QUEUE_BYTES,
    TIME,
    USED,
)

NUMBERS = (0, 1, 2, 3, 8, 255, 256, 257, 4096, 0x7FFF, 0xFFFF, 1 << 31, 0xFFFF_FFFF, (1 << 63) - 1, (1 << 64) - 1)
OUTCOMES = Counter[str]


class Target:
    """A transport with a booted kernel. Each message uses new sockets, while the set-up is kept."""

    def __init__(self) -> None:
        device = NpuDevice(load_config("tiny").with_(**{"dram.bytes": "1 MiB"}))
        self.transport = UmlTransport(device, 0.001, 10**18)
        self.file = os.memfd_create("kernel")
        self.vhost = self.calendar = None
        self.restart()

    def restart(self) -> None:
        """Set up memory and queues as after a boot."""
        self.close()
        os.truncate(self.file, MEMORY_BYTES)
        self.peers, ends = zip(socket.socketpair(), socket.socketpair(), socket.socketpair(), strict=True)
        wires = [Wire(end, 0.001) for end in ends]
        self.calendar = Calendar(wires[0], lambda: 0, lambda: self.transport._await_message(wires[0]))
        self.vhost = VhostUser(wires[1], 0.001, self.transport._kicked)
        self.vhost.back = wires[2]
        self.transport._calendar, self.transport._vhost = self.calendar, self.vhost
        self.send(5, struct.pack("<II4Q", 1, 0, MEMORY, MEMORY_BYTES, MEMORY, 0), (self.file,))
        for index in range(2):
            base = MEMORY + index * QUEUE_BYTES
            self.send(8, struct.pack("<II", index, QUEUE))
            self.send(9, struct.pack("<IIQQQQ", index, 0, base + DESCRIPTORS, base + USED, base + AVAILABLE, 0))

    def send(self, request: int, payload: bytes, files: tuple[int, ...] = ()) -> None:
        assert self.vhost is not None
        socket.send_fds(self.peers[1], [HEADER.pack(request, 1, len(payload)) + payload], files)
        self.vhost.handle()

    def close(self) -> None:
        if self.vhost is not None and self.calendar is not None:
            self.vhost.close()
            self.calendar.wire.close()
            for peer in self.peers:
                peer.close()


def _number(rng: random.Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randrange(1 << rng.randrange(1, 65))


def _words(rng: random.Random, most: int) -> bytes:
    return b"".join(struct.pack("<I", _number(rng) & 0xFFFF_FFFF) for _ in range(rng.randrange(most)))


def _a_request(target: Target, rng: random.Random) -> None:
    """Send any number, payload and descriptors."""
    assert target.vhost is not None
    payload = _words(rng, 20)
    size = len(payload) if rng.random() < 0.9 else _number(rng) & 0xFFFF_FFFF
    message = HEADER.pack(rng.randrange(45), 1 if rng.random() < 0.9 else rng.randrange(16), size) + payload
    files = [rng.choice((target.file, 0, target.peers[0].fileno()))] * rng.choice((0, 0, 0, 1, 2, 8, 9))
    socket.send_fds(target.peers[1], [message[: rng.choice((len(message), rng.randrange(1, len(message) + 1)))]], files)
    target.peers[1].shutdown(socket.SHUT_WR)
    target.vhost.handle()


def _a_time(target: Target, rng: random.Random) -> None:
    assert target.calendar is not None
    message = TIME.pack(rng.choice((2, 3, 5, _number(rng) & 0xFFFF_FFFF)), rng.randrange(9), _number(rng))
    target.peers[0].sendall(message[: rng.choice((16, rng.randrange(1, 17)))])
    target.peers[0].shutdown(socket.SHUT_WR)
    target.calendar.handle()
    if target.calendar.waiting:
        target.transport._let_time_pass(target.calendar)


def _an_access(target: Target, rng: random.Random) -> None:
    """Send invalid descriptors, indices and commands, and a kick."""
    queue = rng.randrange(2)
    base = queue * QUEUE_BYTES
    command = struct.pack("<BBHIQ", rng.randrange(8), rng.randrange(7), 0, _number(rng) & 0xFFFF_FFFF, _number(rng))
    os.pwrite(target.file, command + rng.randbytes(16), 0x10_0000)
    for number in range(rng.randrange(1, 4)):
        address = rng.choice(
            (MEMORY + 0x10_0000, MEMORY + 0x10_0000, MEMORY + rng.randrange(MEMORY_BYTES), _number(rng))
        )
        size = rng.choice((16, 20, 24, 4096, _number(rng) & 0xFFFF_FFFF))
        entry = struct.pack(
            "<QIHH",
            address,
            size,
            rng.choice((0, 1, 2, 3, 3, rng.randrange(1 << 16))),
            rng.choice((number + 1, 0, 300)),
        )
        os.pwrite(target.file, entry, base + DESCRIPTORS + 16 * number)
    assert target.vhost is not None
    taken = target.vhost.queues[queue].taken
    available = taken + rng.choice((1, 1, 1, 2, 300)) & 0xFFFF
    os.pwrite(
        target.file, struct.pack("<H", rng.choice((0, 0, 0, 1, 256, 65535))), base + AVAILABLE + 4 + 2 * (taken % QUEUE)
    )
    os.pwrite(target.file, struct.pack("<H", available), base + AVAILABLE + 2)
    if rng.random() < 0.01:
        os.truncate(target.file, rng.randrange(MEMORY_BYTES))
    target.send(35, struct.pack("<II", queue, 0))


def _an_answer(target: Target, rng: random.Random) -> None:
    """Answer the call that an interrupt makes."""
    assert target.vhost is not None
    message = HEADER.pack(*(rng.choice((4, 5, 8, _number(rng) & 0xFFFF_FFFF)) for _ in range(3))) + bytes(8)
    target.peers[2].sendall(message[: rng.choice((20, rng.randrange(1, 21)))])
    target.peers[2].shutdown(socket.SHUT_WR)
    target.vhost.call(1, target.transport._await_message)


def attack(seed: int, count: int) -> OUTCOMES:
    """Send ``count`` messages and return their outcomes. Unexpected errors are raised."""
    rng = random.Random(seed)
    outcomes: OUTCOMES = Counter()
    target = Target()
    gc.collect()  # descriptors that other tests left
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(count):
        deed = rng.choice((_a_request, _a_time, _an_access, _an_access, _an_answer))
        try:
            deed(target, rng)
            outcomes["answered"] += 1
        except (PeerError, PeerGoneError, EndlessError) as error:
            outcomes[type(error).__name__] += 1
        if deed is not _an_access or rng.random() < 0.3:
            target.restart()
    target.restart()
    assert len(os.listdir("/proc/self/fd")) == files
    target.close()
    with contextlib.suppress(OSError):
        os.close(target.file)
    return outcomes


def test_malformed_messages_are_refused_or_without_effect() -> None:
    outcomes = attack(1, 4000)
    assert outcomes["PeerError"] > 1000
    assert outcomes["answered"] > 300


@pytest.mark.slow
def test_a_hundred_thousand_of_them() -> None:
    assert attack(2, 100_000).total() == 100_000
