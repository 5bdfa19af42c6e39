"""Configuration space: identity, BARs, command and status, the capability list."""

from __future__ import annotations

import pytest

from npusim.device.npu import INTERFACE_VERSION
from npusim.device.pci import Bar, space
from tests.support.bare_device import QUICK
from tests.support.pci_slots import PCI, in_slot, on_host

ONES = 0xFFFF_FFFF


def walk(read) -> dict[int, int]:
    """Walk the list like Linux' __pci_find_next_cap_ttl(): at most 48 steps, pointers without their low two bits, ID
    0xff ends it."""
    found, place = {}, read(0x34, 1)
    for _ in range(48):
        if place < 0x40:
            break
        place &= ~3
        entry = read(place, 2)
        if entry & 0xFF == 0xFF:
            break
        found[entry & 0xFF] = place
        place = entry >> 8
    return found


def test_who_it_is() -> None:
    function, _ = in_slot()
    assert function.config_read(0, 4) == 0x0042_1E4E
    assert function.config_read(8, 4) == 0x1200_0000 | INTERFACE_VERSION
    assert function.config_read(0x0E, 1) == 0  # header type
    assert function.config_read(0x2C, 4) == 0x0042_1E4E
    assert function.config_read(0x3D, 1) == 1  # INTA#


def test_fields_that_say_what_it_is_cannot_be_written() -> None:
    function, _ = in_slot()
    before = [function.config_read(place, 4) for place in range(0, 0x100, 4)]
    for place in (0, 8, 0x14, 0x20, 0x24, 0x28, 0x2C, 0x30, 0x34, 0x38):
        function.config_write(place, 4, ONES)
    assert [function.config_read(place, 4) for place in range(0, 0x100, 4)] == before


@pytest.mark.parametrize("dram", [1 << 20, 3 << 20, 1 << 30, 6 << 30])
def test_a_bar_says_its_size_by_the_bits_that_stay_zero(dram: int) -> None:
    function, _ = in_slot(QUICK.with_(**{"dram.bytes": dram}))
    function.config_write(0x10, 4, ONES)
    assert function.config_read(0x10, 4) == ONES & -0x4000  # memory, 32 bit, not prefetchable
    function.config_write(0x18, 4, ONES)
    function.config_write(0x1C, 4, ONES)
    wide = function.config_read(0x18, 4) | function.config_read(0x1C, 4) << 32
    size = 1 << (dram - 1).bit_length()
    assert wide & 0xF == 0xC  # memory, 64 bit, prefetchable
    assert -(wide & ~0xF) & (1 << 64) - 1 == size
    assert function.bars == (Bar(0, 0x4000, False), Bar(2, size, True))


def test_a_bar_keeps_the_address_that_it_is_given() -> None:
    function, _ = in_slot()
    function.config_write(0x10, 4, 0xE012_3456)
    assert function.config_read(0x10, 4) == 0xE012_0000  # naturally aligned
    function.config_write(0x18, 4, 0x8000_0000)
    function.config_write(0x1C, 4, 0x12)
    assert function.config_read(0x1C, 4) << 32 | function.config_read(0x18, 4) == 0x12_8000_000C
    function.config_write(0x13, 1, 0xD0)  # one byte of four
    assert function.config_read(0x10, 4) == 0xD012_0000


@pytest.mark.parametrize(("kinds", "there"), [("msix", [1, 5, 17, 16]), ("msi", [1, 5, 16]), ("intx", [1, 16])])
def test_the_list_of_capabilities(kinds: str, there: list[int]) -> None:
    function, _ = in_slot(PCI.with_(**{"pci.interrupts": kinds}))
    assert list(walk(function.config_read)) == there
    assert function.config_read(6, 2) & 0x10  # there is a list


def test_capabilities_that_a_config_leaves_out() -> None:
    function, _ = in_slot(PCI.with_(**{"pci.power_states": False, "pci.function_reset": False}))
    found = walk(function.config_read)
    assert list(found) == [5, 17, 16]
    assert not function.config_read(found[16] + 4, 4) & 1 << 28
    function.config_write(0x44, 2, 3)
    function.config_write(4, 2, 6)
    function.config_write(found[16] + 8, 2, 1 << 15)
    assert function.config_read(4, 2) == 6, "was reset all the same"


def test_a_host_walks_the_list_too() -> None:
    _, host = on_host()
    assert host.capabilities() == walk(host.function.config_read) == {1: 0x40, 5: 0x50, 0x11: 0x70, 0x10: 0x80}
    assert host.bar_sizes == {0: 0x4000, 2: 1 << 30}


def test_the_express_capability_is_that_of_an_endpoint_with_reset() -> None:
    function, _ = in_slot()
    assert function.config_read(0x82, 2) == 2  # version 2, type 0
    assert function.config_read(0x84, 4) & 1 << 28
    assert function.config_read(0x92, 2) == 0x83  # 8 GT/s by 8


def test_the_command_register_has_the_bits_that_mean_something() -> None:
    function, _ = in_slot()
    function.config_write(4, 2, 0xFFFF)
    assert function.config_read(4, 2) == 0x0546  # memory, master, parity, SERR, INTx disable; no I/O space
    function.config_write(4, 1, 0)
    assert function.config_read(4, 2) == 0x0500


def test_status_bits_are_cleared_by_ones_and_by_nothing_else() -> None:
    function, _ = in_slot()
    assert function.read(0, 0, 4) == ONES  # memory is not enabled: an unsupported request
    assert function.config_read(space.DEVICE_STATUS, 2) == 8
    function.config_write(space.DEVICE_STATUS, 2, 0)
    assert function.config_read(space.DEVICE_STATUS, 2) == 8
    function.config_write(space.DEVICE_STATUS, 2, 7)
    assert function.config_read(space.DEVICE_STATUS, 2) == 8
    function.config_write(space.DEVICE_CONTROL, 4, 8 << 16)  # control and status in one write
    assert function.config_read(space.DEVICE_STATUS, 2) == 0


def test_memory_is_there_when_it_is_enabled() -> None:
    function, _ = in_slot()
    function.write(2, 0x100, 8, 5)
    assert function.read(2, 0x100, 8) == (1 << 64) - 1
    function.config_write(4, 2, space.COMMAND_MEMORY)
    assert function.read(2, 0x100, 8) == 0, "a write that nobody took has written"
    assert function.read(0, 0, 4) == 0x3155_504E
    function.write(2, 0x100, 8, 5)
    function.config_write(4, 2, 0)
    assert function.read(2, 0x100, 1) == 0xFF
    function.config_write(4, 2, space.COMMAND_MEMORY)
    assert function.read(2, 0x100, 1) == 5


def test_accesses_that_configuration_space_does_not_have() -> None:
    function, _ = in_slot()
    assert function.config_read(2, 4) == ONES  # not aligned
    assert function.config_read(0, 8) == (1 << 64) - 1
    assert function.config_read(4096, 4) == ONES
    assert function.config_read(-4, 4) == ONES
    assert function.config_read(4092, 4) == 0
    assert function.config_read(0x100, 4) == 0  # no extended capability
    for offset, size in ((5, 2), (4094, 4), (-1, 1), (4096, 1), (4, 3), (4, 0), (4, -1)):
        function.config_write(offset, size, ONES)
    assert function.config_read(4, 2) == 0


def test_a_device_that_is_gone_reads_as_ones() -> None:
    function, _ = in_slot()
    function.config_write(4, 2, 6)
    function.device.unplug()
    assert function.config_read(0, 4) == ONES
    assert function.read(0, 0, 4) == ONES
    function.device.plug()
    assert function.config_read(0, 4) == 0x0042_1E4E
    assert function.config_read(4, 2) == 0, "configuration space has outlived the device"
    assert function.read(0, 0, 4) == ONES
