"""PCI functions in slots that record their output."""

from __future__ import annotations

from typing import Any

from npusim.device.npu import NpuDevice
from npusim.device.pci import DmaError, PciFunction, PciHost
from npusim.hw.config import Config
from tests.support.bare_device import QUICK, BareDevice

PCI = QUICK.with_(**{"pci.vectors": 5, "pci.reset": "0 ns", "pci.resume": "0 ns"})
"""A device with every [pci] feature enabled, whose resets take no time."""


class Slot:
    """A host side without memory; ``log``: vectors as numbers and pin levels as booleans, in order."""

    def __init__(self) -> None:
        self.log: list[int | bool] = []

    def interrupt(self, vector: int) -> None:
        self.log.append(vector)

    def intx(self, asserted: bool) -> None:
        self.log.append(asserted)

    def dma_read(self, address: int, size: int) -> bytes:
        raise DmaError(address, "there is no memory")

    def dma_write(self, address: int, data: bytes) -> None:
        raise DmaError(address, "there is no memory")


def in_slot(config: Config = QUICK, **how: Any) -> tuple[PciFunction, Slot]:
    """Return a function in its power-on state, and its slot."""
    slot = Slot()
    return PciFunction(NpuDevice(config), slot, **how), slot


def on_host(config: Config = PCI, interrupts: str = "msix", **how: Any) -> tuple[BareDevice, PciHost]:
    """Return a device with its rings set up, on a host that has configured the function."""
    bare = BareDevice(config, lambda device: PciHost(device, interrupts, **how))
    assert isinstance(bare.bus, PciHost)
    return bare, bare.bus
