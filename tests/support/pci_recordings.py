"""A bus trace of a PCI function with every kind of access."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from npusim.device.npu import NpuDevice
from npusim.device.pci import PciHost, space
from npusim.device.ring import COPY_MAGIC, DESCRIPTOR, HOST, Descriptor
from npusim.device.traces.function import TracedFunction
from npusim.driver.reference import Driver
from npusim.hw.config import Config
from tests.support.bare_device import SECOND, TINY
from tests.support.driven_jobs import drive

COSTLY = TINY.with_(**{"pci.vectors": 5, "pci.reset": "1 us"})


def record(path: Path, config: Config = COSTLY, kind: str = "msix") -> bytes:
    """Record the reference driver, a copy from host memory, one to memory that the device may not write, and a
    reset."""
    device = NpuDevice(config)
    host = PciHost(device, kind, make=partial(TracedFunction, path=path))
    out = drive(Driver(host))
    window = host.map(4096)
    window.data[2048:3072] = bytes(range(256)) * 4
    end = window.address + 4096
    for slot, (source, destination) in enumerate(((window.address + 2048 | HOST, 0x5000), (0x5000, end - 512 | HOST))):
        entry = Descriptor(COPY_MAGIC, 1, source, destination, 1024, 7 + slot, window.address + 1024 + 32 * slot | HOST)
        window.data[64 * slot : 64 * slot + 64] = DESCRIPTOR.pack(*entry)
    base = window.address | HOST
    setup = {0x160: base & 0xFFFF_FFFF, 0x164: base >> 32, 0x168: 2, 0x04C: 7, 0x170: 2, 0x174: 1}
    for offset, value in setup.items():
        host.write(0, offset, 4, value)
    assert host.wait_irq(SECOND)
    device.machine.clock.advance(10**8)
    assert host.read_memory(0x5000, 1024) == bytes(range(256)) * 4
    host.config_write(space.DEVICE_CONTROL, 2, space.DEVICE_RESET)
    device.machine.clock.advance(10**8)
    host.set_up(kind)
    assert host.read(0, 0, 4) == 0x3155_504E
    assert isinstance(host.function, TracedFunction)
    host.function.restart()
    host.set_up(kind)
    assert host.read(0, 0, 4) == 0x3155_504E
    host.function.close()
    return out
