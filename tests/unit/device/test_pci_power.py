"""Function level reset and D3hot during a job: what is lost, what is kept, and when the device is ready again."""

from __future__ import annotations

import pytest

from npusim.device.pci import PciHost, space
from tests.support.bare_device import SECOND, BareDevice
from tests.support.pci_slots import PCI, in_slot, on_host
from tests.support.programs.streams import round_trip

JOB = round_trip(4096)
ONES = 0xFFFF_FFFF
EXPRESS_RESET = (space.DEVICE_CONTROL, 2, space.DEVICE_RESET)
TO_D3, TO_D0 = (space.PM_CONTROL, 2, 3), (space.PM_CONTROL, 2, 0)


def duration() -> int:
    """Return the picoseconds from doorbell to record."""
    bare, _ = on_host()
    bare.submit("LOW", JOB)
    began = bare.now_ps
    bare.advance_to_end()
    return bare.now_ps - began


def stop_and_return(bare: BareDevice, host: PciHost, how: str) -> None:
    if how == "reset":
        host.config_write(*EXPRESS_RESET)
    else:
        host.config_write(*TO_D3)
        bare.advance(SECOND)  # nothing of the job goes on there
        host.config_write(*TO_D0)


@pytest.mark.parametrize("how", ["reset", "suspend"])
@pytest.mark.parametrize("part", [0, 1, 3, 5, 7])
def test_in_the_midst_of_a_job(how: str, part: int) -> None:
    bare, host = on_host()
    entry = bare.submit("LOW", JOB)
    bare.bus.write_memory(entry.completion, bytes(32))
    mark = bare.store(b"what is in DRAM")
    bare.advance(duration() * part // 8)
    stop_and_return(bare, host, how)
    # Lost: the job without a trace, registers, configuration space, messages.
    assert host.wait_irq(SECOND) == 0
    assert host.config_read(space.COMMAND, 2) == 0
    assert host.config_read(0x10, 4) == 0
    assert host.config_read(space.MSIX_CONTROL, 2) == 4
    assert host.read(0, 0, 4) == ONES
    # The driver restores configuration space and sets the device up; DRAM has kept everything.
    host.set_up("msix")
    assert (bare["STATUS"], bare["INT_STATUS"], bare["LOW_HEAD"], bare["LOW_SIZE"]) == (1, 0, 0, 0)
    assert bare.completion(entry).status == 0
    assert bytes(bare.bus.read_memory(mark, 15)) == b"what is in DRAM"
    bare.set_up()
    again = bare.submit("LOW", JOB)
    assert bare.wait() == 1
    assert bare.completion(again).status == 1


def test_sram_is_lost_and_no_job_finds_residents() -> None:
    bare, host = on_host()
    bare.device.machine.memory.sram[0][:] = 7
    host.config_write(*EXPRESS_RESET)
    assert not bare.device.machine.memory.sram[0].any()


def test_asleep_only_configuration_space_answers() -> None:
    bare, host = on_host()
    host.config_write(*TO_D3)
    assert host.config_read(space.PM_CONTROL, 2) == 3
    assert host.config_read(0, 4) == 0x0042_1E4E
    assert host.config_read(space.COMMAND, 2) == 6
    assert host.read(0, 0, 4) == ONES
    assert bytes(host.read_memory(0, 4)) == b"\xff" * 4
    host.write_memory(0, b"1234")
    host.fill_memory(0, 4, lambda array: array.fill(5))
    assert not bare.device.machine.memory.dram[:4].any()
    bare.ring("LOW")
    assert bare.device.misuse == []


@pytest.mark.parametrize("state", [1, 2])
def test_states_that_are_not_there_are_not_taken(state: int) -> None:
    bare, host = on_host()
    bare.submit("LOW", JOB)
    host.config_write(space.PM_CONTROL, 2, state)
    assert host.config_read(space.PM_CONTROL, 2) == 0
    assert bare.wait() == 1


def test_a_reset_in_d3hot_brings_it_back() -> None:
    function, _ = in_slot(PCI)
    function.config_write(*TO_D3)
    function.config_write(*EXPRESS_RESET)
    assert function.config_read(space.PM_CONTROL, 2) == 0


def test_the_reset_bit_reads_as_zero_and_comes_in_any_width() -> None:
    for offset, size, value in ((0x88, 2, 0x8000), (0x88, 4, 0x8000), (0x89, 1, 0x80)):
        function, _ = in_slot(PCI)
        function.config_write(4, 2, 6)
        function.config_write(offset, size, value)
        assert function.config_read(4, 2) == 0, (offset, size)
        assert function.config_read(0x88, 2) == 0x2810
    for offset, size, value in (
        (0x88, 1, 0x80),
        (0x88, 2, 0x7FFF),
        (0x8A, 2, 0x8000),
        (0x84, 4, ONES),
        (0x8C, 4, ONES),
    ):
        function, _ = in_slot(PCI)
        function.config_write(4, 2, 6)
        function.config_write(offset, size, value)
        assert function.config_read(4, 2) == 6, (offset, size)


def test_within_a_reset_it_reads_as_ones_and_then_it_is_there() -> None:
    bare, host = on_host(PCI.with_(**{"pci.reset": "100 ms"}))
    host.config_write(*EXPRESS_RESET)
    bare.advance(10**11 - 1)
    assert host.config_read(space.COMMAND, 2) == 0xFFFF  # what Linux' pci_dev_wait() waits on
    assert host.config_read(0, 4) == ONES
    host.config_write(space.COMMAND, 2, 6)  # goes nowhere
    bare.advance(1)
    assert host.config_read(space.COMMAND, 2) == 0
    assert host.config_read(0, 4) == 0x0042_1E4E


def test_who_resets_for_a_host_that_waits_finds_it_there() -> None:
    bare, host = on_host(PCI.with_(**{"pci.reset": "100 ms"}))
    began = bare.device.now_ps
    host.function.restart()
    assert bare.device.now_ps == began + 10**11
    assert host.config_read(0, 4) == 0x0042_1E4E


@pytest.mark.parametrize(("accesses", "ps"), [((EXPRESS_RESET,), 10**11), ((TO_D3, TO_D0), 10**10)])
def test_that_it_comes_back_is_an_event(accesses: tuple[tuple[int, int, int], ...], ps: int) -> None:
    """Otherwise time that only passes while an event is pending would stop, and the device would never return."""
    bare, host = on_host(PCI.with_(**{"pci.reset": "100 ms", "pci.resume": "10 ms"}))
    for each in accesses:
        host.config_write(*each)
    clock = bare.device.machine.clock
    assert clock.coming == clock.now + ps


def test_after_d3hot_memory_answers_when_its_time_is_over() -> None:
    bare, host = on_host(PCI.with_(**{"pci.resume": "10 ms"}))
    host.config_write(*TO_D3)
    host.config_write(*TO_D0)
    host.config_write(space.COMMAND, 2, 6)
    bare.advance(10**10 - 1)
    assert host.read(0, 0, 4) == ONES
    bare.advance(1)
    assert host.read(0, 0, 4) == 0x3155_504E


def test_a_device_of_before_is_back_at_once() -> None:
    function, _ = in_slot()
    function.reset()
    function.config_write(4, 2, 6)
    assert function.read(0, 0, 4) == 0x3155_504E
