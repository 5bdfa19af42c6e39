"""Random accesses to configuration space and BARs, mostly to implemented locations."""

from __future__ import annotations

from random import Random

from npusim.device.pci import PciFunction, space
from npusim.device.pci.function import BAR0_BYTES, MSIX_PENDING, MSIX_TABLE
from npusim.device.registers import REGISTERS
from tests.support.pci_slots import PCI

CONFIG = PCI.with_(**{"dram.bytes": 1 << 20, "sram.bytes": "16 KiB", "firmware.major": 1, "pci.reset": "1 us"})
PLACES = (
    *range(0, 0x40, 4), *range(space.PM, space.EXPRESS + 0x3C, 2), 0xFC, 0x100, 4092, 4096, 1 << 40, -1, -4,
)  # fmt: skip
OFFSETS = (
    *(register.offset for register in REGISTERS), *range(MSIX_TABLE - 8, MSIX_TABLE + 96, 4),
    MSIX_PENDING, MSIX_PENDING + 4, MSIX_PENDING + 8, BAR0_BYTES - 4, BAR0_BYTES, 1 << 20, (1 << 20) - 4, -8,
)  # fmt: skip
VALUES = (0, 1, 2, 3, 6, 7, 8, 0x47, 0x8000, 0xC000, 0xFFFF, 0x8000_0000, 0xFFFF_FFFF, (1 << 64) - 1, 1 << 70, -1)


def access(function: PciFunction, random: Random) -> None:
    size = random.choice((1, 2, 4, 4, 4, 8, 3, 0, -1))
    value = random.choice(VALUES) if random.random() < 0.7 else random.getrandbits(64)
    offset = random.choice(PLACES) + random.choice((0, 0, 0, 1, 2))
    bar, place = random.choice((0, 0, 0, 2, 1, 5, 6, -1)), random.choice(OFFSETS) + random.choice((0, 0, 0, 0, 1, 4))
    kind = random.randrange(12)
    if kind < 2:
        assert 0 <= function.config_read(offset, size) < 1 << 8 * max(size, 1)
    elif kind < 5:
        function.config_write(offset, size, value)
    elif kind < 6:
        function.config_write(space.COMMAND, 2, 6)  # otherwise memory access would be disabled most of the time
    elif kind < 8:
        assert 0 <= function.read(bar, place, size) < 1 << 8 * max(min(size, 8), 1)
    elif kind < 11:
        function.write(bar, place, size, value)
    else:
        function.device.machine.clock.advance(random.choice((0, 1, 10**6, 10**9)))
