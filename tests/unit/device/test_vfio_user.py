"""The vfio-user server, request by request, and protocol errors of clients."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

import npusim
from npusim.demo import network
from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError, space
from npusim.device.transports import wire
from npusim.device.transports.pace import Pace
from npusim.device.transports.vfio_user import (
    DEVICE_FEATURE,
    DEVICE_INFO,
    DEVICE_RESET,
    DMA_MAP,
    DMA_READ,
    DMA_UNMAP,
    IRQ_INFO,
    MOST_DATA,
    REGION_IO_FDS,
    REGION_READ,
    REGION_WRITE,
    REGION_WRITE_MULTI,
    SET_IRQS,
    VERSION,
    VfioUser,
)
from npusim.driver.reference import Driver
from npusim.sim.watch import Watcher
from tests.support.fuzz import vfio_messages
from tests.support.fuzz.run import rng_of
from tests.support.vfio_client import CONFIG, SMALL, Client, RefusedError, Served, VfioBus
from tests.support.waits_and_leaks import descriptors, until

ID, CONTROL, STATUS, INT_STATUS, INT_MASK, CONTEXT_BASE = 0, 0x40, 0x44, 0x48, 0x4C, 0x60
MAGIC = (0x3155504E).to_bytes(4, "little")
INTX, MSI, MSIX = range(3)
MASK, UNMASK, TRIGGER, NONE, BOOL = 8, 16, 32, 1, 2


@pytest.fixture
def served() -> Iterator[Served]:
    gc.collect()  # devices of before
    before = descriptors()
    made = Served()
    kept = descriptors() - before
    yield made
    assert descriptors() - before == kept, "descriptors are left"


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as made:
        made.agree()
        made.enable("none")
        yield made


def refused(code: int, client: Client, command: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
    with pytest.raises(RefusedError) as found:
        client.call(command, body, fds)
    assert found.value.args == (code,), errno.errorcode[found.value.args[0]]
    assert client.read(0, ID, 4) == MAGIC  # and nothing else has happened


def dropped(client: Client) -> None:
    with pytest.raises((EOFError, ConnectionResetError)):
        client.receive()


def asserted(event: int) -> int:
    """Return how often an eventfd was written since the last call."""
    try:
        return os.eventfd_read(event)
    except BlockingIOError:
        return 0


@pytest.fixture
def event() -> Iterator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


# Version


def test_only_capabilities_that_the_client_knows(served: Served) -> None:
    with served.client() as client:
        assert client.agree() == {"max_msg_fds": 8, "max_data_xfer_size": MOST_DATA}
    with served.client() as client:
        found = client.agree(
            {"write_multiple": True, "pgsizes": 4096, "max_dma_maps": 65535, "migration": {"pgsize": 1}}
        )
        assert found == {
            "max_msg_fds": 8, "max_data_xfer_size": MOST_DATA,
            "write_multiple": True, "pgsizes": 4096, "max_dma_maps": 256,
        }  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), [(0, 0), (1, 1), (7, 1)])
def test_minor_versions(served: Served, theirs: int, ours: int) -> None:
    with served.client() as client:
        answer = client.call(VERSION, struct.pack("<HH", 0, theirs))
        assert struct.unpack_from("<HH", answer) == (0, ours)


@pytest.mark.parametrize(
    ("command", "body"),
    [
        (VERSION, struct.pack("<HH", 1, 0)),
        (VERSION, b"\0\0"),
        (VERSION, struct.pack("<HH", 0, 1) + b"{"),
        (VERSION, struct.pack("<HH", 0, 1) + b"[" * 5000),
        (VERSION, struct.pack("<HH", 0, 1) + b'{"capabilities": {"max_data_xfer_size": 0}}'),
        (VERSION, struct.pack("<HH", 0, 1) + b'{"capabilities": {"twin_socket": 1}}'),
        (DEVICE_INFO, struct.pack("<IIII", 16, 0, 0, 0)),
    ],
)
def test_who_does_not_agree_is_dropped_and_the_next_one_served(served: Served, command: int, body: bytes) -> None:
    with served.client() as client:
        client.send(command, body)
        dropped(client)
    with served.client() as client:
        client.agree()
        client.enable()
        assert client.read(0, ID, 4) == MAGIC


# Regions


def test_info(client: Client) -> None:
    assert struct.unpack("<IIII", client.call(DEVICE_INFO, struct.pack("<IIII", 16, 0, 0, 0))) == (16, 3, 9, 5)
    found = {index: client.region_info(index)[0][1:5] for index in range(9)}  # flags, index, capabilities, bytes
    assert found == {index: (0, index, 0, 0) for index in (1, 3, 4, 5, 6, 8)} | {
        0: (3, 0, 0, 0x4000),
        2: (7, 2, 0, 64 << 20),
        CONFIG: (3, CONFIG, 0, 4096),
    }
    with pytest.raises(RefusedError):
        client.region_info(9)
    with pytest.raises(RefusedError):
        client.region_info(0, room=31)


def test_dram_is_mapped(served: Served, client: Client) -> None:
    client.region_info(2)
    with mmap.mmap(client.fds[0], 64 << 20) as mapped:
        mapped[100:104] = b"abcd"
        assert bytes(served.device.machine.memory.slice(100, 4)) == b"abcd"
        served.device.machine.memory.store((64 << 20) - 1, b"z")
        assert mapped[-1:] == b"z"
    with pytest.raises(PermissionError):  # nor truncated: reading beyond the end of a mapping would kill the process
        os.ftruncate(client.fds[0], 4096)


def test_dram_that_does_not_fill_its_bar_is_mapped_in_part() -> None:
    served = Served(SMALL.with_(**{"dram.bytes": (48 << 20) + 100}))
    with served.client() as client:
        client.agree()
        client.enable()
        info, capabilities = client.region_info(2)
        assert (info, capabilities) == ((64, 15, 2, 0, 64 << 20, 0), b"")  # there is more than there was room for
        info, capabilities = client.region_info(2, room=64)
        assert (info[:4], len(client.fds)) == ((64, 15, 2, 32), 2)
        assert struct.unpack("<HHIIIQQ", capabilities) == (1, 1, 0, 1, 0, 0, 48 << 20)
        client.write(2, (48 << 20) + 99, b"x")
        assert client.read(2, (48 << 20) + 98, 4) == b"\0x\xff\xff"


def test_registers_configuration_space_and_dram_by_messages(client: Client) -> None:
    assert client.read(0, ID, 4) == MAGIC
    assert client.read(CONFIG, 0, 4) == struct.pack("<HH", 0x1E4E, 0x42)
    assert client.read(CONFIG, 1, 2) == b"\x1e\x42"
    assert len(client.read(CONFIG, 0, 4096)) == 4096
    data = random.Random(0).randbytes(1000)
    for offset, size in ((0, 1), (3, 5), (7, 1000), (4096, 8), (5001, 64)):
        client.write(2, offset, data[:size])
        assert client.read(2, offset, size) == data[:size]
    client.write(0, INT_MASK, struct.pack("<I", 3))
    assert client.read(0, INT_MASK, 4) == struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("offset", "region", "size"),
    [(0, 1, 4), (0, 9, 4), (0, 0, 0), (0, 0, 3), (0, 0, 16), (0x3FFE, 0, 4), (64 << 20, 2, 1), ((1 << 64) - 1, 2, 8),
     (0, 2, MOST_DATA + 1), (4095, CONFIG, 2)],
)  # fmt: skip
def test_accesses_that_cannot_be(client: Client, offset: int, region: int, size: int) -> None:
    refused(errno.EINVAL, client, REGION_READ, struct.pack("<QII", offset, region, size))
    refused(errno.EINVAL, client, REGION_WRITE, struct.pack("<QII", offset, region, size) + bytes(min(size, MOST_DATA)))


def test_several_writes_are_done_all_or_none(client: Client) -> None:
    row = struct.Struct("<QIIQ")
    good = row.pack(INT_MASK, 0, 4, 1) + row.pack(16, 2, 8, 0x1122334455667788)
    assert client.call(REGION_WRITE_MULTI, struct.pack("<Q", 2) + good) == struct.pack("<Q", 2)
    assert (client.read(0, INT_MASK, 4), client.read(2, 16, 8)[0]) == (b"\1\0\0\0", 0x88)
    bad = row.pack(INT_MASK, 0, 4, 3) + row.pack(0, 2, 9, 0)
    refused(errno.EINVAL, client, REGION_WRITE_MULTI, struct.pack("<Q", 2) + bad)
    refused(errno.EINVAL, client, REGION_WRITE_MULTI, struct.pack("<Q", 3) + good)
    refused(errno.EINVAL, client, REGION_WRITE_MULTI, struct.pack("<Q", 1 << 63) + good)
    assert client.read(0, INT_MASK, 4) == b"\1\0\0\0"


def test_what_is_not_offered(client: Client) -> None:
    refused(errno.EOPNOTSUPP, client, DEVICE_FEATURE, struct.pack("<II", 8, 1 << 16 | 1))
    refused(errno.EOPNOTSUPP, client, REGION_IO_FDS, struct.pack("<IIII", 16, 0, 0, 0))
    refused(errno.EINVAL, client, 14)
    refused(errno.EINVAL, client, 60000, b"abc")
    refused(errno.EINVAL, client, VERSION, struct.pack("<HH", 0, 1))  # once


def test_a_message_that_wants_no_answer_gets_none(client: Client) -> None:
    client.send(REGION_WRITE, struct.pack("<QII", INT_MASK, 0, 4) + b"\3\0\0\0", flags=0x10)
    client.send(REGION_WRITE, struct.pack("<QII", 0, 0, 3) + b"abc", flags=0x10)  # nor one that fails
    assert client.read(0, INT_MASK, 4) == b"\3\0\0\0"


@pytest.mark.parametrize("size", [0, 15, 1 << 17, (1 << 32) - 1])
def test_a_size_that_cannot_be_ends_the_connection(client: Client, size: int) -> None:
    client.send(DEVICE_INFO, size=size)
    dropped(client)


def test_an_answer_to_nothing_ends_the_connection(client: Client) -> None:
    client.send(DMA_READ, bytes(16), flags=1)
    dropped(client)


def test_a_client_that_stops_in_the_midst_of_a_message_is_dropped() -> None:
    served = Served(patience_s=0.1)
    for said in (b"", b"\0\0\1", struct.pack("<HHIII", 1, VERSION, 20, 0, 0) + b"\0"):
        with served.client() as client:
            with contextlib.suppress(BrokenPipeError):  # on a busy machine it is dropped before it sends anything
                client.sock.sendall(said)
            dropped(client)
    served = Served()
    with served.client() as client:
        client.agree()
        served.hurry()
        client.send(DEVICE_INFO, b"1234", size=32)
        dropped(client)


def test_a_client_that_drips_is_dropped(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """Each byte arrives in time, but not the message. A second passes on the clock with each piece."""
    seconds = itertools.count()
    monkeypatch.setattr(wire, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with served.client() as client:
        client.agree()
        client.send(DEVICE_INFO, size=60_000)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            drip(client)


def drip(client: Client) -> None:
    while True:
        client.sock.sendall(b"x")
        time.sleep(0.001)


def flood(client: Client) -> None:
    for _ in range(10_000):
        client.send(REGION_READ, struct.pack("<QII", 0, 2, MOST_DATA))


def test_a_client_that_does_not_read_is_dropped(served: Served) -> None:
    with served.client() as client:
        client.agree()
        client.enable()
        served.hurry()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            flood(client)


def test_one_that_is_silent_between_messages_is_not_dropped(served: Served) -> None:
    with served.client() as client:
        client.agree()
        client.enable()
        served.hurry()
        client.sock.settimeout(0.35)
        with pytest.raises(TimeoutError):
            client.receive()
        assert client.read(0, ID, 4) == MAGIC


def test_one_that_is_silent_lets_the_server_sleep(client: Client) -> None:
    client.read(0, ID, 4)
    before = time.process_time()
    client.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.receive()
    assert time.process_time() - before < 0.1


def test_bytes_may_come_one_by_one(client: Client) -> None:
    message = struct.pack("<HHIIIQII", 99, REGION_READ, 32, 0, 0, ID, 0, 4)
    for byte in message:
        client.sock.sendall(bytes([byte]))
    assert client.receive()[0::4] == (99, struct.pack("<QII", ID, 0, 4) + MAGIC)


# Interrupts


def finish_a_job(client: Client) -> None:
    """Cause an interrupt at once: a doorbell of a ring without entries is a fault."""
    client.write(0, INT_MASK, struct.pack("<I", 3))
    client.write(0, 0x110, struct.pack("<I", 1))
    client.write(0, 0x114, struct.pack("<I", 1))


@pytest.mark.parametrize(("kind", "name"), [(MSI, "msi"), (MSIX, "msix")])
def test_messages_go_to_their_eventfd(client: Client, event: int, kind: int, name: str) -> None:
    client.enable(name)
    client.set_irqs(kind, 0, [event])
    finish_a_job(client)
    assert asserted(event) == 1
    client.write(0, CONTROL, struct.pack("<I", 1))
    client.call(SET_IRQS, struct.pack("<IIIII", 20, 0x24, kind, 0, 1))  # no descriptor: taken away
    finish_a_job(client)
    assert asserted(event) == 0
    client.set_irqs(kind, 0, [event])
    client.call(SET_IRQS, struct.pack("<IIIII", 20, NONE | TRIGGER, kind, 0, 0))  # all of the kind
    client.write(0, CONTROL, struct.pack("<I", 1))
    finish_a_job(client)
    assert asserted(event) == 0


def test_the_pin_masks_itself_until_it_is_unmasked(client: Client, event: int) -> None:
    client.set_irqs(INTX, 0, [event])
    finish_a_job(client)
    assert asserted(event) == 1
    finish_a_job(client)
    assert asserted(event) == 0  # it is still asserted, but masked
    client.call(SET_IRQS, struct.pack("<IIIII", 20, NONE | UNMASK, INTX, 0, 1))
    assert asserted(event) == 1  # the cause was not cleared
    client.write(0, INT_STATUS, struct.pack("<I", 3))
    client.call(SET_IRQS, struct.pack("<IIIIIB", 21, BOOL | UNMASK, INTX, 0, 1, 1))
    assert asserted(event) == 0
    client.call(SET_IRQS, struct.pack("<IIIII", 20, NONE | MASK, INTX, 0, 1))
    client.write(0, CONTROL, struct.pack("<I", 1))
    finish_a_job(client)
    assert asserted(event) == 0


def test_a_client_may_try_an_interrupt(client: Client, event: int) -> None:
    client.set_irqs(MSI, 0, [event])
    client.call(SET_IRQS, struct.pack("<IIIII", 20, NONE | TRIGGER, MSI, 0, 1))
    client.call(SET_IRQS, struct.pack("<IIIIIB", 21, BOOL | TRIGGER, MSI, 0, 1, 1))
    client.call(SET_IRQS, struct.pack("<IIIIIB", 21, BOOL | TRIGGER, MSI, 0, 1, 0))
    assert asserted(event) == 2


@pytest.mark.parametrize(
    ("flags", "kind", "first", "count", "fds", "code"),
    [
        (0x24, MSI, 0, 2, 2, errno.EINVAL),  # more than there are
        (0x24, MSI, 1, 1, 1, errno.EINVAL),
        (0x24, MSI, (1 << 32) - 1, 1, 1, errno.EINVAL),
        (0x24, 5, 0, 1, 1, errno.EINVAL),
        (0x24, MSI, 0, 1, 2, errno.EINVAL),
        (0x21, MSI, 0, 1, 1, errno.EINVAL),  # descriptors for nothing
        (0x07, MSI, 0, 1, 0, errno.EINVAL),
        (0x22, MSI, 0, 1, 0, errno.EINVAL),  # no bytes
        (0x39, MSI, 0, 1, 0, errno.EINVAL),
        (MASK | NONE, MSI, 0, 1, 0, errno.EINVAL),
        (MASK | 4, INTX, 0, 1, 1, errno.EOPNOTSUPP),
    ],
)
def test_interrupts_that_cannot_be(
    client: Client, event: int, flags: int, kind: int, first: int, count: int, fds: int, code: int
) -> None:
    refused(code, client, SET_IRQS, struct.pack("<IIIII", 20, flags, kind, first, count), (event,) * fds)


def test_a_descriptor_that_would_block_is_no_interrupt(client: Client) -> None:
    with open("/dev/null", "wb") as file:
        refused(errno.EINVAL, client, SET_IRQS, struct.pack("<IIIII", 20, 0x24, MSI, 0, 1), (file.fileno(),))


def test_an_eventfd_that_is_full_keeps_nobody_waiting(client: Client) -> None:
    full = os.eventfd((1 << 32) - 1)
    try:
        os.eventfd_write(full, (1 << 64) - 2 - ((1 << 32) - 1))
        client.set_irqs(MSI, 0, [full])
        client.call(SET_IRQS, struct.pack("<IIIII", 20, NONE | TRIGGER, MSI, 0, 1))
        assert os.eventfd_read(full) == (1 << 64) - 2
    finally:
        os.close(full)


def test_interrupt_info(client: Client) -> None:
    rows = [struct.unpack("<IIII", client.call(IRQ_INFO, struct.pack("<IIII", 16, 0, n, 0))) for n in range(5)]
    assert rows == [(16, 7, 0, 1), (16, 9, 1, 1), (16, 9, 2, 1), (16, 0, 3, 0), (16, 0, 4, 0)]
    refused(errno.EINVAL, client, IRQ_INFO, struct.pack("<IIII", 16, 0, 5, 0))


# Memory of the client's


class Reach(Watcher):
    """Makes the device access host memory when CONTEXT_BASE_LO is written, and records the result."""

    def __init__(self, server: VfioUser, address: int, size: int) -> None:
        self.server, self.address, self.size = server, address, size
        self.found: bytes | DmaError = b""

    def register_written(self, register: str, value: int) -> None:
        try:
            if value:
                self.server.dma_write(self.address, bytes([value]) * self.size)
            else:
                self.found = self.server.dma_read(self.address, self.size)
        except DmaError as error:
            self.found = error


def reach(served: Served, client: Client, address: int, size: int, value: int = 0) -> bytes | DmaError:
    watcher = Reach(served.server, address, size)
    served.device.watch(watcher)
    client.write(0, CONTEXT_BASE, struct.pack("<I", value))
    served.device.unwatch(watcher)
    return watcher.found


def test_memory_in_a_file(served: Served, client: Client) -> None:
    file = os.memfd_create("memory")
    try:
        os.pwrite(file, b"x" * 4096 + b"y" * 8192, 0)
        client.map_dma(0x10000, 8192, file, offset=4096)
        client.map_dma(0x12000, 4096, file, offset=0, flags=1)
        assert reach(served, client, 0x11FFF, 2) == b"yx"  # two windows
        assert reach(served, client, 0x10010, 64, value=0x40) == b""
        assert os.pread(file, 66, 4096 + 15) == b"y" + b"\x40" * 64 + b"y"
        for address, size, where, value in (
            (0xFFFF, 2, 0xFFFF, 0), (0x12FFF, 2, 0x13000, 0), (1 << 63, 8, 1 << 63, 0), (0x11FFF, 2, 0x12000, 0x40),
        ):  # fmt: skip
            failed = reach(served, client, address, size, value)
            assert isinstance(failed, DmaError)
            assert failed.address == where
        assert os.pread(file, 1, 12287) == b"y"  # an access beyond the limit does nothing
        os.ftruncate(file, 5000)
        failed = reach(served, client, 0x10000, 4096)
        assert isinstance(failed, DmaError)
        assert (failed.address, "truncated" in failed.explanation) == (0x10000 + 5000 - 4096, True)
    finally:
        os.close(file)


@pytest.mark.parametrize(
    ("address", "size", "flags", "offset", "code"),
    [
        (0x1000, 4096, 3, 0, errno.EEXIST),
        (0xFFF, 2, 3, 0, errno.EEXIST),
        (0x8000, 1 << 40, 3, 0, errno.EINVAL),  # more than the file has
        (0x8000, 0, 3, 0, errno.EINVAL),
        ((1 << 64) - 1, 2, 3, 0, errno.EINVAL),
        (0x8000, 4096, 0, 0, errno.EINVAL),
        (0x8000, 4096, 4, 0, errno.EINVAL),
        (0x8000, 4096, 3, 1, errno.EINVAL),
        (0x8000, 4096, 3, 1 << 63, errno.EINVAL),
    ],
)
def test_windows_that_cannot_be(client: Client, address: int, size: int, flags: int, offset: int, code: int) -> None:
    file = os.memfd_create("memory")
    try:
        os.ftruncate(file, 4096)
        client.map_dma(0x1000, 4096, file)
        refused(code, client, DMA_MAP, struct.pack("<IIQQQ", 32, flags, offset, address, size), (file,))
    finally:
        os.close(file)


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/proc/self/status"])
def test_what_is_no_memory(client: Client, path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        refused(errno.EINVAL, client, DMA_MAP, struct.pack("<IIQQQ", 32, 1, 0, 0, 4096), (file,))
    finally:
        os.close(file)


def test_a_file_that_is_only_to_be_read(client: Client) -> None:
    with open(__file__, "rb") as file:
        body = struct.pack("<IIQQQ", 32, 3, 0, 0, 4096)
        refused(errno.EACCES, client, DMA_MAP, body, (file.fileno(),))
        client.map_dma(0, 4096, file.fileno(), flags=1)


def test_windows_go(served: Served, client: Client) -> None:
    client.map_dma(0, 4096)
    client.map_dma(4096, 4096)
    refused(errno.ENOENT, client, DMA_UNMAP, struct.pack("<IIQQ", 24, 0, 0, 8192))
    refused(errno.EINVAL, client, DMA_UNMAP, struct.pack("<IIQQ", 24, 4, 0, 4096))
    body = struct.pack("<IIQQ", 24, 0, 0, 4096)
    assert client.call(DMA_UNMAP, body) == body
    assert isinstance(reach(served, client, 0, 4), DmaError)
    client.call(DMA_UNMAP, struct.pack("<IIQQ", 24, 2, 0, 0))
    assert isinstance(reach(served, client, 4096, 4), DmaError)


def test_there_are_so_many_windows(client: Client) -> None:
    for number in range(256):
        client.map_dma(4096 * number, 4096)
    refused(errno.ENOSPC, client, DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, 4096 * 256, 4096))


@pytest.mark.parametrize("twin", [False, True])
def test_memory_by_messages(served: Served, twin: bool) -> None:
    memory = bytearray(random.Random(1).randbytes(300_000))

    def answer(command: int, body: bytes) -> tuple[int, bytes]:
        address, count = struct.unpack_from("<QQ", body)
        assert count <= 4096
        if command == DMA_READ:
            return 0, body[:16] + memory[address : address + count]
        memory[address : address + count] = body[16:]
        return 0, body[:16]

    with served.client() as client:
        found = client.agree({"max_data_xfer_size": 4096, "twin_socket": {"supported": twin}})
        assert ("twin_socket" in found) == twin
        client.enable()
        client.map_dma(0, 300_000)
        other = None
        if twin:
            other = Client(socket.socket(fileno=client.fds.pop()))
            other.on_dma = answer
        else:
            client.on_dma = answer
        for value in (0, 0x40):
            watcher = Reach(served.server, 50_001, 100_000)
            served.device.watch(watcher)
            number = client.send(REGION_WRITE, struct.pack("<QII", CONTEXT_BASE, 0, 4) + struct.pack("<I", value))
            for _ in range(25):  # 100 000 bytes, 4096 at a time
                asked, command, _, _, body = (other or client).receive()
                (other or client).serve_dma(asked, command, body)
            assert client.receive()[0] == number
            served.device.unwatch(watcher)
            if not value:
                assert watcher.found == bytes(memory[50_001:150_001])
        assert memory[50_000:50_002] != b"\x40\x40"
        assert memory[50_001:150_001] == b"\x40" * 100_000
        if other is not None:
            other.close()


def test_what_is_asked_meanwhile_is_answered_afterwards(served: Served, client: Client) -> None:
    client.map_dma(0, 4096)
    watcher = Reach(served.server, 8, 4)
    served.device.watch(watcher)
    first = client.send(REGION_WRITE, struct.pack("<QII", CONTEXT_BASE, 0, 4) + bytes(4))
    asked, command, _, _, body = client.receive()
    second = client.send(REGION_READ, struct.pack("<QII", ID, 0, 4))
    client.on_dma = lambda _, said: (0, said + b"host")
    client.serve_dma(asked, command, body)
    answers = [client.receive(), client.receive()]
    assert [each[0] for each in answers] == [first, second]
    assert (answers[1][4][16:], watcher.found) == (MAGIC, b"host")
    served.device.unwatch(watcher)


def test_memory_that_the_client_refuses(served: Served, client: Client) -> None:
    client.map_dma(0, 4096)
    client.on_dma = lambda command, said: (errno.EFAULT, b"")
    for value in (0, 0x40):
        failed = reach(served, client, 16, 4, value)
        assert isinstance(failed, DmaError)
        assert failed.args == (16, "the host refuses: Bad address")
    client.on_dma = lambda command, said: (0, said[:16] + b"123")
    assert isinstance(reach(served, client, 16, 4), DmaError)


def test_a_client_that_does_not_answer_is_dropped_when_the_device_is_done() -> None:
    served = Served()
    with served.client() as client:
        client.agree()
        client.enable()
        client.map_dma(0, 4096)
        served.hurry()
        watcher = Reach(served.server, 8, 4)
        served.device.watch(watcher)
        client.send(REGION_WRITE, struct.pack("<QII", CONTEXT_BASE, 0, 4) + bytes(4))
        client.receive()
        client.receive()  # the write is done, with a device that has seen a failed access
        assert isinstance(watcher.found, DmaError)
        dropped(client)
    assert isinstance(watcher.found, DmaError)
    with pytest.raises(DmaError, match="no client is connected"):
        served.server.dma_read(0, 1)


# Clients come and go


def test_the_device_stays_as_it_is_and_interrupts_are_forgotten(served: Served, event: int) -> None:
    with served.client() as client:
        client.agree()
        client.enable()
        client.set_irqs(MSI, 0, [event])
        client.write(0, INT_MASK, struct.pack("<I", 3))
        client.write(2, 4096, b"kept")
    with served.client() as client:
        client.agree()
        assert client.read(0, INT_MASK, 4) == b"\3\0\0\0"
        finish_a_job(client)
        assert asserted(event) == 0
        client.call(DEVICE_RESET)
        client.enable()
        assert (client.read(0, INT_MASK, 4), client.read(2, 4096, 4)) == (bytes(4), b"kept")
        refused(errno.EINVAL, client, DEVICE_RESET, b"1234")


VENDOR = b"\x4e\x1e\x42\x00"
LASTING = SMALL.with_(**{"pci.vectors": 4, "pci.reset": "100 ms", "pci.resume": "10 ms"})
"""A device whose resets take time."""


def test_a_reset_is_over_when_it_is_answered() -> None:
    served = Served(LASTING, lockstep=False)
    with served.client() as client:
        client.agree()
        before = served.device.now_ps
        client.call(DEVICE_RESET)
        assert client.read(CONFIG, 0, 4) == VENDOR
        assert served.device.now_ps - before >= 10**11


def test_time_passes_for_a_client_that_waits_for_the_end_of_a_reset() -> None:
    served = Served(LASTING, lockstep=False)
    with served.client() as client:
        client.agree()
        client.write(CONFIG, space.DEVICE_CONTROL, struct.pack("<H", space.DEVICE_RESET))
        until(lambda: client.read(CONFIG, 0, 4) == VENDOR)
        for state in (3, 0):
            client.write(CONFIG, space.PM_CONTROL, struct.pack("<H", state))
        client.enable()
        until(lambda: client.read(0, ID, 4) == MAGIC)


def test_a_hundred_clients_that_vanish(served: Served) -> None:
    rng = random.Random(5)
    message = struct.pack("<HHIIIHH", 1, VERSION, 20, 0, 0, 0, 1) + struct.pack(
        "<HHIIIQIII", 2, REGION_WRITE, 36, 0, 0, 0x114, 0, 4, 1
    )
    for _ in range(100):
        with served.client() as client:
            client.sock.sendall(message[: rng.randrange(len(message) + 1)])
    with served.client() as client:
        client.agree()
        client.call(DEVICE_RESET)
        client.enable()
        assert client.read(0, ID, 4) == MAGIC


def test_nonsense() -> None:
    gc.collect()  # descriptors are counted
    world = vfio_messages.make()
    for number in range(300):
        assert world.case(rng_of("vfio-user", 1, number)) == [], f"case {number} of seed 1"
    assert {"DMA done", "DMA refused", "answered EINVAL", "answered 0"} <= world.tally.keys()


def test_a_device_whose_memory_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="shared_memory=True"):
        VfioUser(NpuDevice(SMALL))


# Drivers


def outputs(driver: Driver, jobs: int) -> list[tuple[int, bytes]]:
    program = npusim.Session(SMALL, cache_dir=False).compile(network())
    loaded = driver.load(program)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(jobs):
        given = {item.name: rng.standard_normal(item.shape).astype(item.dtype.storage) for item in program.inputs}
        job = driver.run(loaded, given)
        found.append((job.cycles, b"".join(array.tobytes() for array in job.outputs.values())))
    driver.unload(loaded)
    return found


@pytest.mark.parametrize("lockstep", [False, True])
def test_jobs_give_the_same_bits_and_cycles_as_in_process(lockstep: bool) -> None:
    served = Served(lockstep=lockstep)
    with served.client() as client:
        client.agree()
        bus = VfioBus(client, lockstep=lockstep)
        assert outputs(Driver(bus), 5) == outputs(Driver(NpuDevice(SMALL).bus), 5)
        bus.close()


def test_in_lockstep_the_same_accesses_take_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the server runs later than its client, as on a busy machine."""
    settle = Pace.settle

    def late(pace: Pace) -> None:
        if pace._clock.coming is not None:
            time.sleep(0.11)  # longer than a driver waits before it looks at the device itself
        settle(pace)

    times = []
    for way in (settle, late):
        monkeypatch.setattr(Pace, "settle", way)
        served = Served(lockstep=True)
        with served.client() as client:
            client.agree()
            bus = VfioBus(client, lockstep=True)
            outputs(Driver(bus), 2)
            bus.close()
        times.append(served.device.now_ps)
    assert times[0] == times[1]
