"""MSI, MSI-X and the pin: masks, pending bits, destinations, and times."""

from __future__ import annotations

import pytest

from npusim.device.pci import space
from npusim.device.pci.function import MSIX_PENDING, MSIX_TABLE
from npusim.errors import UsageError
from npusim.faults import AtInterrupt, Fault, MessageFault
from tests.support.bare_device import QUICK, SECOND
from tests.support.pci_slots import PCI, in_slot, on_host
from tests.support.programs.streams import round_trip

JOB = round_trip(64)
DONE = 1
PENDING = 1 << 3


def ready(config=PCI, **how):
    """Return a function with memory and mastering enabled, its slot, and a function that raises a vector."""
    function, slot = in_slot(config, **how)
    function.config_write(space.COMMAND, 2, 6)
    return function, slot, function.irq


def enable_msix(function, control: int = space.MSIX_ENABLE) -> None:
    for vector in range(function.vectors):
        function.write(0, MSIX_TABLE + 16 * vector, 8, 0xFEE0_0000 + 16 * vector)
        function.write(0, MSIX_TABLE + 16 * vector + 8, 4, 0x40 + vector)
        function.write(0, MSIX_TABLE + 16 * vector + 12, 4, 0)
    function.config_write(space.MSIX_CONTROL, 2, control)


def test_msix_after_power_on_is_off_and_masked() -> None:
    function, slot, raise_ = ready(QUICK)
    assert function.config_read(space.MSIX_CONTROL, 2) == 0  # a table of one, not enabled
    assert function.read(0, MSIX_TABLE + 12, 4) == 1
    function.config_write(space.MSIX_CONTROL, 2, space.MSIX_ENABLE)
    raise_(0)
    assert slot.log == []
    assert function.read(0, MSIX_PENDING, 4) == 1


def test_each_vector_of_msix_has_its_message() -> None:
    function, slot, raise_ = ready(QUICK.with_(**{"pci.vectors": 5, "pci.write_latency": "0 ns"}))
    enable_msix(function)
    for vector in (3, 0, 4):
        raise_(vector)
    assert slot.log == [3, 0, 4]
    assert function.message(3) == (0xFEE0_0030, 0x43)
    assert function.interrupts == "msix"


def test_a_masked_vector_of_msix_waits_and_leaves_once() -> None:
    function, slot, raise_ = ready(PCI.with_(**{"pci.write_latency": "0 ns"}))
    enable_msix(function)
    function.write(0, MSIX_TABLE + 16 * 2 + 12, 4, 1)
    raise_(2)
    raise_(2)
    raise_(1)
    assert slot.log == [1]
    assert function.read(0, MSIX_PENDING, 8) == 0b100
    function.write(0, MSIX_PENDING, 8, 0)  # cannot be written
    assert function.read(0, MSIX_PENDING + 4, 4) == 0
    assert function.read(0, MSIX_PENDING, 4) == 0b100
    function.write(0, MSIX_TABLE + 16 * 2 + 12, 4, 0)
    assert slot.log == [1, 2]
    assert function.read(0, MSIX_PENDING, 4) == 0


def test_the_mask_of_all_vectors() -> None:
    function, slot, raise_ = ready(PCI.with_(**{"pci.write_latency": "0 ns"}))
    enable_msix(function, space.MSIX_ENABLE | space.MSIX_MASK_ALL)
    raise_(4)
    raise_(1)
    assert slot.log == []
    assert function.read(0, MSIX_PENDING, 4) == 0b10010
    function.config_write(space.MSIX_CONTROL, 2, space.MSIX_ENABLE)
    assert slot.log == [1, 4]


def test_a_carrier_whose_host_masks_is_told_at_once() -> None:
    function, slot, raise_ = ready(PCI.with_(**{"pci.write_latency": "0 ns"}), host_masks=True)
    function.config_write(space.MSIX_CONTROL, 2, space.MSIX_ENABLE)
    raise_(4)
    assert slot.log == [4]


@pytest.mark.parametrize(
    ("granted", "sent", "data"),
    [(0, [0, 0, 0], [0x40] * 3), (1, [0, 1, 0], [0x40, 0x41, 0x40]), (3, [0, 3, 4], [0x40, 0x43, 0x44])],
)
def test_vectors_share_the_messages_of_msi_that_software_grants(granted: int, sent: list[int], data: list[int]) -> None:
    function, slot, raise_ = ready(PCI.with_(**{"pci.write_latency": "0 ns"}))
    assert function.config_read(space.MSI_CONTROL, 2) == 0x180 | 3 << 1  # 8 messages, 64 bit, masks
    function.config_write(space.MSI_ADDRESS, 4, 0xFEE0_1003)
    function.config_write(space.MSI_DATA, 2, 0x40)
    function.config_write(space.MSI_CONTROL, 2, granted << 4 | 1)
    for vector in (0, 3, 4):
        raise_(vector)
    assert slot.log == sent
    assert [function.message(vector) for vector in sent] == [(0xFEE0_1000, each) for each in data]


def test_masks_and_pending_bits_of_msi() -> None:
    function, slot, raise_ = ready(PCI.with_(**{"pci.write_latency": "0 ns"}))
    function.config_write(space.MSI_CONTROL, 2, 3 << 4 | 1)
    function.config_write(space.MSI_MASK, 4, 0b110)
    for vector in (0, 1, 2):
        raise_(vector)
    assert slot.log == [0]
    assert function.config_read(space.MSI_PENDING, 4) == 0b110
    assert function.read(0, MSIX_PENDING, 4) == 0
    function.config_write(space.MSI_MASK, 4, 0b010)
    assert slot.log == [0, 2]
    assert function.config_read(space.MSI_PENDING, 4) == 0b010


def test_without_bus_mastering_no_message_leaves() -> None:
    function, slot, raise_ = ready()
    enable_msix(function)
    function.config_write(space.COMMAND, 2, space.COMMAND_MEMORY)
    raise_(0)
    function.device.machine.clock.advance(SECOND)
    assert slot.log == []


def test_a_message_takes_the_time_of_a_posted_write() -> None:
    function, slot, raise_ = ready()
    enable_msix(function)
    raise_(2)
    function.device.machine.clock.advance(273_499)
    assert slot.log == []
    function.device.machine.clock.advance(1)
    assert slot.log == [2]


def test_a_message_on_its_way_is_lost_by_a_reset() -> None:
    function, slot, raise_ = ready()
    enable_msix(function)
    raise_(2)
    function.reset()
    function.device.machine.clock.advance(SECOND)
    assert slot.log == []


# The pin


def test_the_pin_follows_the_level() -> None:
    bare, host = on_host(QUICK, "intx")
    levels: list[bool] = []
    asserted = host.intx
    host.intx = lambda level: (levels.append(level), asserted(level))  # type: ignore[assignment]
    bare.submit("LOW", JOB)
    bare.advance(SECOND)
    assert levels == [True]
    assert host.config_read(space.STATUS, 2) & PENDING
    bare["INT_MASK"] = 0
    assert levels == [True, False]
    bare["INT_MASK"] = DONE
    assert levels == [True, False, True]
    host.config_write(space.COMMAND, 2, 6 | space.COMMAND_INTX_DISABLE)
    assert levels == [True, False, True, False]
    assert host.config_read(space.STATUS, 2) & PENDING  # reported nevertheless
    host.config_write(space.COMMAND, 2, 6)
    bare["INT_STATUS"] = DONE
    assert levels == [True, False, True, False, True, False]
    assert not host.config_read(space.STATUS, 2) & PENDING


def test_an_interrupt_that_nobody_clears_storms() -> None:
    bare, host = on_host(QUICK.with_(**{"host.irq": "1 us"}), "intx")
    bare.submit("LOW", JOB)
    assert host.wait_irq(SECOND) == 1
    for _ in range(100):
        before = bare.now_ps
        assert host.wait_irq(SECOND) == 1
        assert bare.now_ps - before == 1_000_000  # at once, but for the way to the handler
    bare["INT_STATUS"] = DONE
    assert host.wait_irq(SECOND) == 0


def test_the_level_takes_its_time_both_ways() -> None:
    bare, host = on_host(PCI, "intx")
    bare.submit("LOW", JOB)
    bare.advance_to_end()
    assert host.wait_irq(273_499) == 0
    assert host.wait_irq(1) == 1
    bare["INT_STATUS"] = DONE
    bare.advance(273_499)
    assert host.wait_irq(0) == 1  # what drivers know as spurious: the level has not come down yet
    bare.advance(1)
    assert host.wait_irq(0) == 0


def test_messages_take_the_place_of_the_pin() -> None:
    bare, host = on_host(QUICK, "intx")
    bare.submit("LOW", JOB)
    bare.advance(SECOND)
    assert host.wait_irq(0) == 1
    host.config_write(space.MSI_CONTROL, 2, 1)
    assert host.wait_irq(SECOND) == 0
    bare.submit("LOW", JOB)
    assert host.wait_irq(SECOND) == 1
    assert host.wait_irq(SECOND) == 0, "a message does not storm"


def test_a_lost_message_leaves_the_level_alone() -> None:
    bare, host = on_host(QUICK, "intx")
    bare.device.faults.add([Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))])
    bare.submit("LOW", JOB)
    assert host.wait_irq(SECOND) == 1


@pytest.mark.parametrize("kind", ["msix", "msi", "intx"])
def test_a_reset_of_the_function_takes_the_interrupt_with_it(kind: str) -> None:
    bare, host = on_host(PCI, kind)
    bare.submit("LOW", JOB)
    bare.advance_to_end()
    host.function.reset()
    assert host.wait_irq(SECOND) == 0


def test_a_host_names_the_kinds_that_there_are() -> None:
    with pytest.raises(UsageError, match="interrupts must be one of msi, intx, got 'msix'"):
        on_host(PCI.with_(**{"pci.interrupts": "msi"}))
