"""Any accesses to configuration space and BARs: nothing breaks, and the invariants hold."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.device.pci import PciFunction, space
from npusim.device.pci.function import MSIX_TABLE
from npusim.device.registers import REGISTERS
from tests.support.bare_device import QUICK
from tests.support.pci_accesses import CONFIG, access
from tests.support.pci_slots import in_slot

ROUNDS, ACCESSES = 100, 1000


def check(function: PciFunction) -> None:
    """Check that a reset restores the power-on state, whatever happened before."""
    function.reset()
    function.device.machine.clock.advance(10**6)
    fresh, _ = in_slot(CONFIG)
    for place in range(0, 0x100, 4):
        assert function.config_read(place, 4) == fresh.config_read(place, 4), hex(place)
    for each in (function, fresh):
        each.config_write(space.COMMAND, 2, 6)
    for register in REGISTERS:
        if register.name not in ("CYCLES_LO", "CYCLES_HI"):
            assert function.read(0, register.offset, 4) == fresh.read(0, register.offset, 4), register.name
    for place in range(MSIX_TABLE, MSIX_TABLE + 80, 4):
        assert function.read(0, place, 4) == fresh.read(0, place, 4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=ROUNDS, deadline=None)
@given(st.integers(0, (1 << 32) - 1))
def test_any_accesses(seed: int) -> None:
    """100 000 of them."""
    random = Random(seed)
    function, slot = in_slot(CONFIG)
    for _ in range(ACCESSES):
        access(function, random)
    assert all(vector is True or vector is False or 0 <= vector < function.vectors for vector in slot.log)
    levels = [each for each in slot.log if isinstance(each, bool)]
    assert levels == [number % 2 == 0 for number in range(len(levels))], "the pin changed to what it was"
    check(function)


def test_the_same_seed_does_the_same() -> None:
    logs = []
    for _ in range(2):
        function, slot = in_slot(CONFIG)
        random = Random(7)
        for _ in range(ACCESSES):
            access(function, random)
        logs.append((slot.log, function.device.now_ps, [function.config_read(place, 4) for place in range(0, 256, 4)]))
    assert logs[0] == logs[1]


@given(st.integers(0, 4095), st.sampled_from([1, 2, 4]), st.integers(0, (1 << 32) - 1))
def test_what_cannot_be_written_stays(offset: int, size: int, value: int) -> None:
    """Written in one piece or byte by byte: the result is the same, and identity and pointers never change."""
    offset -= offset % size
    if offset + size - 1 >= space.DEVICE_CONTROL and offset < space.DEVICE_CONTROL + 2:
        value &= ~(1 << 8 * (space.DEVICE_CONTROL + 2 - offset) - 1)  # not the reset: what follows it would be lost
    if offset <= space.PM_CONTROL < offset + size:
        value &= ~(3 << 8 * (space.PM_CONTROL - offset))
    whole, _ = in_slot(QUICK)
    parts, _ = in_slot(QUICK)
    value &= (1 << 8 * size) - 1
    whole.config_write(offset, size, value)
    for number in range(size):
        parts.config_write(offset + number, 1, value >> 8 * number & 0xFF)
    found = [whole.config_read(place, 4) for place in range(0, 0x100, 4)]
    assert found == [parts.config_read(place, 4) for place in range(0, 0x100, 4)]
    assert found[0] == 0x0042_1E4E
    assert [whole.config_read(place, 1) for place in (0x34, 0x41, 0x51, 0x71, 0x81)] == [0x40, 0x50, 0x70, 0x80, 0]
