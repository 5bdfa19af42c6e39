"""A driver never trusts data read from a device that is gone, or that has returned without its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.device.bus import BAR_MEMORY, Bus, is_doubtful
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, header
from npusim.driver.link import Link
from npusim.errors import DeviceFaultError, DeviceGoneError, JobAbortedError
from npusim.faults import AtCommand, AtWrite, Fault, Hang, Resets
from npusim.hw.config import load_config
from tests.support.programs.streams import round_trip

TINY = load_config("tiny")
SIZE = 64
VALUES = np.arange(SIZE, dtype=np.uint8)


class Torn(Bus):
    """A device's bus on which something happens after a number of accesses. Each word of a bulk read counts as one
    access."""

    def __init__(self, device: NpuDevice) -> None:
        self.device, self.bus = device, device.bus
        self.count = 0
        self.moments: dict[int, Callable[[], None]] = {}

    def _passes(self) -> None:
        self.count += 1
        self.moments.get(self.count, lambda: None)()

    def read(self, bar: int, offset: int, size: int) -> int:
        self._passes()
        return self.bus.read(bar, offset, size)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        self._passes()
        self.bus.write(bar, offset, size, value)

    def read_memory(self, address: int, size: int) -> bytearray:
        if size == header.COMPLETION.size:  # which a bus reads at once
            self._passes()
            return self.bus.read_memory(address, size)
        data = bytearray()
        while len(data) < size:
            self._passes()
            at = address + len(data)
            data += self.bus.read_memory(at, min(4 - at % 4, size - len(data)))
        return data

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self._passes()
        self.bus.write_memory(address, data)

    def wait_irq(self, timeout_ps: int) -> int:
        self._passes()
        return self.bus.wait_irq(timeout_ps)

    def host_work(self, kind: str) -> None:
        self.bus.host_work(kind)

    def goes(self, accesses: int, back: int | None) -> None:
        """Unplug the device before the given access from now on; ``back``: plug it in this many accesses later."""
        self.moments[self.count + accesses] = self._replug if back == 0 else self.device.unplug
        if back:
            self.moments[self.count + accesses + back] = self.device.plug

    def _replug(self) -> None:
        self.device.unplug()
        self.device.plug()


@pytest.fixture
def bus() -> Torn:
    return Torn(NpuDevice(TINY))


def accesses_of(work: Callable[[Driver, Torn], object]) -> int:
    """Return the number of accesses of some work with a driver."""
    bus = Torn(NpuDevice(TINY))
    driver = Driver(bus)
    before = bus.count
    work(driver, bus)
    return bus.count - before


@given(st.integers(0, 9), st.binary(max_size=40))
def test_the_last_word_decides(address: int, data: bytes) -> None:
    words: dict[int, bytes] = {}
    for at, byte in enumerate(data, address):
        words[at // 4] = words.get(at // 4, b"") + bytes([byte])
    last = words[max(words)] if words else b"?"
    assert is_doubtful(address, data) == (set(last) in ({0}, {0xFF}))
    assert is_doubtful(address, bytearray(data)) == is_doubtful(address, data)


def run_once(driver: Driver, bus: Torn, values: Any = VALUES) -> Any:
    return driver.run(driver.load(round_trip(SIZE)), {"x0": values}).outputs["y0"]


@pytest.mark.parametrize(
    ("back", "values"),
    [
        (None, VALUES), (0, VALUES), (1, VALUES), (5, VALUES), (0, np.zeros(SIZE, np.uint8)),
        (None, np.full(SIZE, 255, np.uint8)),
    ],
)  # fmt: skip
def test_gone_at_any_access_of_a_run(back: int | None, values: Any) -> None:
    """Gone before each access, including words of bulk reads, and back at once, some accesses later, or never."""
    for number in range(1, accesses_of(lambda driver, bus: run_once(driver, bus, values)) + 1):
        bus = Torn(NpuDevice(TINY))
        driver = Driver(bus)
        bus.goes(number, back)
        with pytest.raises(DeviceFaultError):  # the device may report a fault for an incomplete job
            run_once(driver, bus, values)


@pytest.mark.parametrize("offset", [0, 32])
def test_a_write_does_not_hide_that_memory_was_lost(bus: Torn, offset: int) -> None:
    driver = Driver(bus)
    buffer = driver.allocate(SIZE)
    driver.write(buffer, VALUES.data)
    assert driver.read(buffer, SIZE) == VALUES.tobytes()
    bus.device.unplug()
    bus.device.plug()
    driver.write(buffer + offset, VALUES[offset:].data)
    with pytest.raises(DeviceGoneError, match="has been without power") as caught:
        driver.read(buffer, SIZE)
    assert driver.gone is caught.value
    with pytest.raises(DeviceGoneError):
        driver.run(driver.load(round_trip(SIZE)), {"x0": VALUES}, timeout_ps=10**12)


def test_a_look_costs_one_access_and_only_what_is_doubtful_takes_one() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(SIZE))
    taken = {}
    for last in (1, 0, 255, 254):
        values = VALUES.copy()
        values[-4:] = last
        driver.run(loaded, {"x0": values})  # the first one writes the table
        before = device.now_ps
        job = driver.run(loaded, {"x0": values})
        taken[last] = device.now_ps - before
        assert job.looked == (last in (0, 255))
    assert taken[254] == taken[1]
    assert taken[0] == taken[255] == taken[1] + TINY.host.mmio_ps


def after_a_hang(driver: Driver, bus: Torn) -> None:
    """A job hangs and is aborted with a reset; memory is intact afterwards."""
    buffer = driver.allocate(SIZE)
    driver.write(buffer, VALUES.data)
    loaded = driver.load(round_trip(SIZE))
    assert np.array_equal(driver.run(loaded, {"x0": VALUES}).outputs["y0"], VALUES)
    bus.device.faults.add([
        Fault(AtCommand(command=1, unit="core0.dma0"), Hang(hang="core0.dma0")),
        Fault(AtWrite(write="CONTROL"), Resets(reset="late", delay_ps=3 * 10**9)),
    ])  # fmt: skip
    with pytest.raises(DeviceFaultError) as caught:
        driver.run(loaded, {"x0": VALUES}, timeout_ps=10**9)
    if caught.value.code != "TIMEOUT":
        raise caught.value
    assert driver.read(buffer, SIZE) == VALUES.tobytes()
    assert np.array_equal(driver.run(loaded, {"x0": VALUES}).outputs["y0"], VALUES)


@pytest.mark.parametrize("back", [None, pytest.param(0, marks=pytest.mark.slow), 2])
def test_gone_at_any_access_of_a_reset(back: int | None) -> None:
    """A reset clears the register that would reveal it."""
    for number in range(1, accesses_of(after_a_hang) + 1):
        bus = Torn(NpuDevice(TINY))
        driver = Driver(bus)
        bus.goes(number, back)
        with pytest.raises(DeviceFaultError):
            after_a_hang(driver, bus)


def test_a_reset_that_failed_is_tried_again(bus: Torn) -> None:
    driver = Driver(bus)
    loaded = driver.load(round_trip(SIZE))
    bus.device.faults.add([Fault(AtWrite(write="CONTROL"), Resets(reset="late", delay_ps=1500 * 10**9))])
    with pytest.raises(DeviceFaultError, match="status after reset is 0x0"):
        driver.reset()
    assert np.array_equal(driver.run(loaded, {"x0": VALUES}).outputs["y0"], VALUES)


@pytest.mark.parametrize("back", [False, True])
def test_gone_while_a_reset_has_failed(bus: Torn, back: bool) -> None:
    driver = Driver(bus)
    buffer = driver.allocate(SIZE)
    driver.write(buffer, VALUES.data)
    bus.device.faults.add([Fault(AtWrite(write="CONTROL"), Resets(reset="late", delay_ps=1500 * 10**9))])
    with pytest.raises(DeviceFaultError, match="status after reset is 0x0"):
        driver.reset()
    assert driver.read(buffer, SIZE) == VALUES.tobytes()  # DRAM keeps its bytes
    bus.device.unplug()
    if back:
        bus.device.plug()
    with pytest.raises(DeviceGoneError, match="without power" if back else "gone"):
        driver.read(buffer, SIZE)
    with pytest.raises(DeviceGoneError):
        driver.reset()


def test_a_register_that_is_all_ones_and_a_device_that_is_there(bus: Torn) -> None:
    driver = Driver(bus)
    job = driver.submit(driver.load(round_trip(SIZE)), {"x0": VALUES})
    bus.device.pretend(STATUS=5, FAULT_CODE=1, FAULT_ADDR_LO=0xFFFF_FFFF, FAULT_ADDR_HI=0xFFFF_FFFF)
    link = Link(bus)
    assert link.get_pair(header.FAULT_ADDR_LO) == 0xFFFF_FFFF_FFFF_FFFF
    assert link.looks == 2
    bus.device.unplug()
    with pytest.raises(DeviceGoneError, match="gone"):
        link.get(header.FAULT_ADDR_LO)
    with pytest.raises(DeviceGoneError):
        driver.wait(job)
    assert isinstance(job.error, DeviceGoneError)


def test_jobs_that_a_reset_takes_know_that_the_device_was_gone(bus: Torn) -> None:
    driver = Driver(bus)
    job = driver.submit(driver.load(round_trip(SIZE)), {"x0": VALUES})
    bus.device.unplug()
    with pytest.raises(DeviceGoneError):
        driver.reset(JobAbortedError("the reason of a reset that did not come to pass"))
    assert isinstance(job.error, DeviceGoneError)


def test_memory_at_a_mark_is_nobodys() -> None:
    """A reset without any job: the first word of a ring is written, and memory of others is unchanged."""
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    driver.load(round_trip(SIZE))
    before = bytes(device.bus.read_memory(0, 1 << 16))
    driver.reset()
    after = bytes(device.bus.read_memory(0, 1 << 16))
    assert device.bus.read(BAR_MEMORY, 0, 4) == header.ENTRY_MAGIC
    assert before[4:] == after[4:]
