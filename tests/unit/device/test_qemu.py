"""The transports with a real QEMU: a driver made of processor reads and writes runs a job."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import npusim
from npusim.demo import network
from npusim.device.npu import NpuDevice
from npusim.device.transports.door import door
from npusim.device.transports.pci_proxy import PciProxy
from npusim.driver.reference import Driver
from tests.support import qemu
from tests.support.qemu import Machine
from tests.support.vfio_client import SMALL, Served

REGISTERS, DRAM = 0xE000_0000, 0xD000_0000
MESSAGE, DATA = 8 << 20, 0x4A4B
"""Interrupt messages go to RAM, where they are visible, instead of an interrupt controller."""
PATIENCE_S = 60


def set_up(machine: Machine) -> None:
    """Do what firmware and a driver's probe do: addresses, memory, bus mastering, MSI."""
    assert machine.config_read(0) == 0x0042_1E4E
    machine.config_write(0x10, REGISTERS)
    machine.config_write(0x18, DRAM)
    machine.config_write(0x54, MESSAGE)
    machine.config_write(0x58, 0)
    machine.config_write(0x5C, DATA, 2)
    machine.config_write(0x04, 6, 2)
    machine.config_write(0x52, machine.config_read(0x50) >> 16 | 1, 2)
    assert machine.read(REGISTERS) == 0x3155_504E


def run_a_job(machine: Machine) -> None:
    """docs/device.md, "From power-on to a result", by a processor: the bits and cycles of the reference driver."""
    program = npusim.Session(SMALL, cache_dir=False).compile(network())
    blocks = iter(range(1 << 20, 64 << 20, 1 << 20))
    constants = np.empty(program.constants.nbytes, np.uint8)
    program.constants.fill(constants)
    (x,), (y,) = program.inputs, program.outputs
    given = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype.storage)
    code, table, ring, record, *regions = (next(blocks) for _ in range(4 + len(program.region_bytes)))
    rows = b"".join(struct.pack("<QQ", *row) for row in zip(regions, program.region_bytes, strict=True))
    entry = struct.pack("<IIQIIQQQQII", 0x4A4F4231, 0, code, len(program.code), len(regions), table, 7, record, 0, 0, 0)
    for address, data in (
        (code, program.code), (regions[0], constants.tobytes()), (regions[x.region], given.tobytes()),
        (table, rows), (ring, entry), (record, bytes(32)),
    ):  # fmt: skip
        machine.write_bytes(DRAM + address, data)
    machine.write(MESSAGE, 0)
    for register, value in ((0x40, 1), (0x120, ring), (0x128, 4), (0x4C, 3), (0x130, 1), (0x134, 1)):
        machine.write(REGISTERS + register, value)
    end = time.monotonic() + PATIENCE_S
    while machine.read(MESSAGE) != DATA:
        assert time.monotonic() < end, "no interrupt"
    assert machine.read(REGISTERS + 0x48) == 1
    seqno, status, _, _, cycles = struct.unpack("<QIIQQ", machine.read_bytes(DRAM + record, 32))
    found = machine.read_bytes(DRAM + regions[y.region], y.nbytes)
    driver = Driver(NpuDevice(SMALL).bus)
    expected = driver.run(driver.load(program), {x.name: given})
    assert (seqno, status, cycles, found) == (7, 1, expected.cycles, expected.outputs[y.name].tobytes())


@contextlib.contextmanager
def serving(served: Served, path: Path) -> Iterator[None]:
    """Serve one client at a path."""
    with door(path) as listener:
        thread = threading.Thread(target=lambda: served.server.serve(listener.accept()[0]))
        thread.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:  # end accept()
                knock.connect(str(path))
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not notice that QEMU has gone"


@qemu.needs("vfio-user-pci")
def test_vfio_user_under_qemu(tmp_path: Path) -> None:
    path = tmp_path / "s"
    device = f'{{"driver": "vfio-user-pci", "addr": "{qemu.SLOT}", "socket": {{"type": "unix", "path": "{path}"}}}}'
    with serving(Served(lockstep=False), path), Machine.start("-device", device) as machine:
        set_up(machine)
        run_a_job(machine)
        machine.write(REGISTERS + 0x40, 1)
        run_a_job(machine)


@qemu.needs("x-pci-proxy-dev")
@pytest.mark.skipif(qemu.has_device("vfio-user-pci"), reason="that of QEMU 11.1 ends by a signal where there is no KVM")
def test_pci_proxy_under_qemu() -> None:
    ours, theirs = socket.socketpair()
    device = NpuDevice(SMALL)
    server = PciProxy(device)
    thread = threading.Thread(target=server.serve, args=(ours,))
    thread.start()
    with theirs:
        file = theirs.fileno()
        options = ["-device", f"x-pci-proxy-dev,id=npu,addr={qemu.SLOT},fd={file}"]
        with Machine.start(*options, pass_fds=(file,)) as machine:
            set_up(machine)
            run_a_job(machine)
            machine.write(REGISTERS + 0x40, 1)
            run_a_job(machine)
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the server does not notice that QEMU has gone"
