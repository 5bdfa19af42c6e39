"""The transport for QEMU's x-pci-proxy-dev, message by message, and protocol errors of QEMU."""

from __future__ import annotations

import array
import contextlib
import gc
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
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
from npusim.errors import UsageError
from npusim.hw.config import Config
from tests.support.fuzz import proxy_messages
from tests.support.fuzz.run import rng_of
from tests.support.vfio_client import SMALL
from tests.support.waits_and_leaks import PATIENCE_S, descriptors, until

REGISTERS, DRAM = 0xE000_0000, 0xD000_0000
MAGIC = 0x3155_504E
INT_STATUS, INT_MASK = 0x48, 0x4C
COMMAND, BAR0, BAR2, BAR3, MSI = 0x04, 0x10, 0x18, 0x1C, 0x50


class Qemu:
    """The other end."""

    def __init__(self, sock: socket.socket, channel: socket.socket | None) -> None:
        self.sock, self.channel = sock, channel
        sock.settimeout(PATIENCE_S)

    def send(self, command: int, body: bytes = b"", fds: Sequence[int] = (), size: int = -1) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([HEADER.pack(command, len(body) if size < 0 else size) + body], ancillary)

    def call(self, command: int, body: bytes = b"") -> int:
        self.send(command, body)
        answer = self.sock.recv(24)
        assert HEADER.unpack_from(answer) == (RETURN, 8)
        return int.from_bytes(answer[16:], "little")

    def config(self, offset: int, size: int = 4) -> int:
        return self.call(CONFIG_READ, CONFIG.pack(offset, 0, size))

    def set_config(self, offset: int, value: int, size: int = 4) -> None:
        assert self.call(CONFIG_WRITE, CONFIG.pack(offset, value, size)) == 0

    def read(self, address: int, size: int = 4, *, memory: bool = True) -> int:
        return self.call(BAR_READ, BAR.pack(address, 0, size, memory))

    def write(self, address: int, value: int, size: int = 4) -> None:
        assert self.call(BAR_WRITE, BAR.pack(address, value, size, True)) == 0

    def set_up(self, command: int = 6) -> None:
        self.set_config(BAR0, REGISTERS)
        self.set_config(BAR2, DRAM)
        self.set_config(COMMAND, command, 2)

    def fail(self) -> None:
        """Cause an interrupt at once."""
        for register, value in ((INT_MASK, 3), (0x110, 1), (0x114, 1)):
            self.write(REGISTERS + register, value)


class Started:
    def __init__(self, config: Config = SMALL) -> None:
        self.device = NpuDevice(config)
        self.server = PciProxy(self.device, patience_s=0.2)

    @contextlib.contextmanager
    def qemu(self, *, channel: bool = False) -> Iterator[Qemu]:
        ours, theirs = socket.socketpair()
        far, near = socket.socketpair() if channel else (None, None)
        thread = threading.Thread(target=self.server.serve, args=(theirs, near))
        thread.start()
        try:
            yield Qemu(ours, far)
        finally:
            ours.close()
            if far is not None:
                far.close()
            thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not notice that QEMU has gone"


@pytest.fixture
def started() -> Iterator[Started]:
    gc.collect()
    before = descriptors()
    yield Started()
    assert descriptors() == before


@pytest.fixture
def qemu(started: Started) -> Iterator[Qemu]:
    with started.qemu() as made:
        yield made


def dropped(qemu: Qemu) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert qemu.sock.recv(1) == b""


def test_bars_as_a_machine_with_32_bits_sees_them(qemu: Qemu) -> None:
    assert qemu.config(0) == 0x0042_1E4E
    for offset, size in ((BAR0, 0x4000), (BAR2, 64 << 20)):
        qemu.set_config(offset, 0xFFFF_FFFF)
        assert qemu.config(offset) == -size & 0xFFFF_FFFF
    qemu.set_config(BAR3, 0xFFFF_FFFF)
    assert qemu.config(BAR3) == 0
    assert qemu.config(BAR3 + 2, 2) == 0
    qemu.set_up()
    assert qemu.read(REGISTERS) == MAGIC
    qemu.write(DRAM + 8, 0x1122334455667788, 8)
    assert [qemu.read(DRAM + 8, size) for size in (1, 2, 4, 8)] == [0x88, 0x7788, 0x55667788, 0x1122334455667788]


@pytest.mark.parametrize(
    ("address", "size", "memory"),
    [(REGISTERS - 1, 1, True), (REGISTERS, 3, True), (REGISTERS, 4, False), (DRAM + (64 << 20), 1, True),
     (DRAM + (64 << 20) - 2, 4, True), ((1 << 64) - 1, 4, True), (0, 4, True)],
)  # fmt: skip
def test_addresses_that_are_nobodys(qemu: Qemu, address: int, size: int, memory: bool) -> None:
    qemu.set_up()
    assert qemu.read(address, size, memory=memory) == (1 << 64) - 1


def test_a_message_to_ram_is_made_there(started: Started, qemu: Qemu) -> None:
    ram = os.memfd_create("ram")
    os.ftruncate(ram, 8192)
    qemu.send(SYNC_RAM, RAM.pack(0x10000, 0, *[0] * 6, 4096, 4096, *[0] * 6, 4096, 0, *[0] * 6), [ram])
    qemu.set_up()
    qemu.set_config(MSI + 4, 0x10010)
    qemu.set_config(MSI + 12, 0x77, 2)
    qemu.set_config(MSI + 2, 1, 2)
    qemu.fail()
    assert os.pread(ram, 4, 4096 + 16) == b"\x77\0\0\0"
    assert os.pread(ram, 4, 16) == bytes(4)
    os.close(ram)


def test_any_other_goes_to_qtest() -> None:
    started = Started()
    with started.qemu(channel=True) as qemu:
        assert qemu.channel is not None
        qemu.set_up()
        qemu.set_config(MSI + 4, 0xFEE0_1000)
        qemu.set_config(MSI + 12, 0x41, 2)
        qemu.set_config(MSI + 2, 1, 2)
        qemu.fail()
        assert qemu.channel.recv(100) == b"writel 0xfee01000 0x41\n"
        qemu.channel.sendall(b"OK\n" * 1000)  # of no interest
        assert qemu.read(REGISTERS) == MAGIC


def test_the_pin_is_asserted_again_until_its_cause_is_gone(qemu: Qemu) -> None:
    pin, handled = os.eventfd(0, os.EFD_NONBLOCK), os.eventfd(0, os.EFD_NONBLOCK)
    qemu.send(SET_IRQ, fds=[pin, handled])
    qemu.set_up()
    qemu.fail()
    assert os.eventfd_read(pin) == 1
    os.eventfd_write(handled, 1)
    seen: list[int] = []

    def again() -> bool:
        with contextlib.suppress(BlockingIOError):
            seen.append(os.eventfd_read(pin))
        return bool(seen)

    until(again)
    qemu.write(REGISTERS + INT_STATUS, 3)
    os.eventfd_write(handled, 1)
    assert qemu.read(REGISTERS) == MAGIC
    with pytest.raises(BlockingIOError):
        os.eventfd_read(pin)
    os.close(pin)
    os.close(handled)


def test_reset(started: Started, qemu: Qemu) -> None:
    qemu.set_up()
    qemu.write(REGISTERS + INT_MASK, 3)
    assert qemu.call(RESET) == 0
    assert qemu.config(COMMAND, 2) == 0
    qemu.set_up()
    assert qemu.read(REGISTERS + INT_MASK) == 0


def test_a_machine_that_is_switched_on_or_reset_finds_the_device_at_once() -> None:
    """Its firmware has waited for that; the function's own reset takes 100 ms."""
    with Started(SMALL.with_(**{"pci.vectors": 4, "pci.reset": "100 ms"})).qemu() as qemu:
        assert qemu.config(0) == 0x0042_1E4E
        assert qemu.call(RESET) == 0
        assert qemu.config(0) == 0x0042_1E4E


def _nothing() -> list[int]:
    return []


def _files(*names: str) -> Callable[[], list[int]]:
    return lambda: [os.eventfd(0) if name == "event" else os.open(name, os.O_RDWR) for name in names]


@pytest.mark.parametrize(
    ("command", "body", "files", "size"),
    [
        (8, b"", _nothing, -1),
        (-1, b"", _nothing, -1),
        (RETURN, bytes(8), _nothing, -1),
        (BAR_READ, bytes(23), _nothing, -1),
        (BAR_READ, b"", _nothing, 1 << 40),
        (BAR_READ, b"", _nothing, (1 << 64) - 1),
        (CONFIG_READ, bytes(11), _nothing, 12),
        (CONFIG_READ, bytes(12), _files("event"), -1),
        (BAR_READ, bytes(24), _files("event"), -1),
        (SET_IRQ, b"", _nothing, -1),
        (SET_IRQ, b"", _files("event", "event", "event"), -1),
        (SET_IRQ, b"", _files("event", "event"), -1),  # we would wait for the second one
        (SET_IRQ, b"", _files("/dev/null", "/dev/null"), -1),
        (SYNC_RAM, RAM.pack(0, *[0] * 7, 4096, *[0] * 7, *[0] * 8), _files("/dev/null"), -1),
        (SYNC_RAM, RAM.pack(*[0] * 8, 4096, *[0] * 7, *[0] * 8), _files(*["event"] * 9), -1),
    ],
)
def test_who_breaks_the_protocol_is_dropped_and_the_next_one_served(
    started: Started, command: int, body: bytes, files: Callable[[], list[int]], size: int
) -> None:
    with started.qemu() as qemu:
        fds = files()
        qemu.send(command, body, fds, size)
        for fd in fds:
            os.close(fd)
        dropped(qemu)
    with started.qemu() as qemu:
        qemu.set_up()
        assert qemu.read(REGISTERS) == MAGIC


@pytest.mark.parametrize("size", [0, 3, -4, 8, 1 << 30, -(1 << 31)])
def test_sizes_that_cannot_be(qemu: Qemu, size: int) -> None:
    assert qemu.config(0, size) == 0xFFFF_FFFF
    qemu.set_config(0x3C, 0, size)
    assert qemu.config(0xFFFF_FFFC) == 0xFFFF_FFFF


def test_a_machine_that_is_gone_leaves_nothing(started: Started) -> None:
    rng = random.Random(2)
    message = HEADER.pack(BAR_READ, BAR.size) + BAR.pack(REGISTERS, 0, 4, True)
    for _ in range(100):
        with started.qemu() as qemu:
            qemu.set_up()
            qemu.write(REGISTERS + INT_MASK, 3)
            qemu.sock.sendall(message[: rng.randrange(len(message) + 1)])
    with started.qemu() as qemu:
        assert qemu.config(COMMAND, 2) == 0  # switched on anew
        qemu.set_up()
        assert qemu.read(REGISTERS + INT_MASK) == 0


def test_more_dram_than_a_bar_can_have() -> None:
    with pytest.raises(
        UsageError, match=r"dram\.bytes: x-pci-proxy-dev has BARs of at most 1 GiB, got 0x80000000 bytes"
    ):
        PciProxy(NpuDevice(SMALL.with_(**{"dram.bytes": 2 << 30})))


def test_nonsense() -> None:
    gc.collect()  # descriptors are counted
    world = proxy_messages.make()
    for number in range(300):
        assert world.case(rng_of("pci-proxy", 1, number)) == [], f"case {number} of seed 1"
    assert world.tally["answered"] > 1000


class Answering(socket.socket):
    """Records how much data was unread when an answer was sent."""

    unread: list[int]

    def sendmsg(self, *args: Any) -> int:
        try:
            self.unread.append(len(self.recv(1000, socket.MSG_PEEK | socket.MSG_DONTWAIT)))
        except BlockingIOError:
            self.unread.append(0)
        return super().sendmsg(*args)


def test_an_access_is_answered_before_it_is_taken() -> None:
    """Reading a message makes room, of which Linux notifies the sender. As the sender waits for the answer, it would be
    woken twice. A job has tens of thousands of writes."""
    ours, theirs = socket.socketpair()
    answering = Answering(fileno=theirs.detach())
    answering.unread = []
    server = PciProxy(NpuDevice(SMALL))
    thread = threading.Thread(target=server.serve, args=(answering,))
    thread.start()
    qemu = Qemu(ours, None)
    qemu.set_up()
    del answering.unread[:]
    qemu.write(DRAM, 5)
    assert qemu.read(DRAM) == 5
    ours.close()
    thread.join(PATIENCE_S)
    assert answering.unread == [HEADER.size + BAR.size] * 2
