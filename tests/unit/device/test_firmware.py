"""Firmware: a valid image is started and jobs are accepted; any other is refused, and the reason named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.device.firmware import HEADER, MAX_BYTES, FirmwareState, image
from npusim.device.npu import NpuDevice
from npusim.device.ring import HOST
from npusim.driver.reference import Driver
from npusim.errors import DeviceFaultError, UsageError
from npusim.faults import AtTime, Fault, Stuck
from npusim.runtime import Session
from tests.support.bare_device import QUICK, SECOND, TINY, BareDevice
from tests.support.driven_jobs import drive
from tests.support.pci_slots import PCI, on_host
from tests.support.programs.streams import round_trip

CONFIG = QUICK.with_(**{"firmware.major": 2, "firmware.minor": 3, "firmware.boot": "1 ms"})
GOOD = image(b"payload" * 100, 2, 5)
JOB = round_trip(64)
READY, WAITS = 1, 8
STUCK = Fault(AtTime(time_ps=0), Stuck(stuck="FW_STATUS", value=1))


def load(bare: BareDevice, data: bytes, size: int | None = None) -> None:
    """Write an image to DRAM and start it."""
    address = bare.store(data)
    bare["FW_ADDR_LO"], bare["FW_ADDR_HI"] = address & 0xFFFF_FFFF, address >> 32
    bare["FW_BYTES"] = len(data) if size is None else size
    bare["FW_BOOT"] = 1


def after(data: bytes, size: int | None = None) -> tuple[FirmwareState, int]:
    bare = BareDevice(CONFIG)
    load(bare, data, size)
    bare.advance(SECOND)
    return FirmwareState(bare["FW_STATUS"]), bare["STATUS"]


def test_before_it_runs_no_job_is_taken() -> None:
    bare = BareDevice(CONFIG)
    assert (bare["STATUS"], bare["CAP_HOST"]) == (WAITS, 1 << 17)
    bare.submit("LOW", JOB)
    assert bare.bus.wait_irq(SECOND) == 0
    assert bare.device.misuse == ["write to LOW_DOORBELL: no firmware runs, see FW_STATUS"]
    load(bare, GOOD)
    bare.advance(SECOND)
    assert bare.bus.wait_irq(SECOND) == 0, "a doorbell of before counts"
    bare.ring("LOW")
    assert bare.bus.wait_irq(SECOND) == 1
    assert (bare["STATUS"], bare["FW_VERSION"]) == (READY, 2 << 16 | 5)


def test_it_takes_its_time() -> None:
    bare = BareDevice(CONFIG)
    load(bare, GOOD)
    read = bare.device.machine.control_ps(len(GOOD))
    assert bare["FW_STATUS"] == FirmwareState.BOOTING
    bare.advance(read + 10**9 - 1)
    assert (bare["FW_STATUS"], bare["STATUS"]) == (FirmwareState.BOOTING, WAITS)
    bare.advance(1)
    assert (bare["FW_STATUS"], bare["STATUS"]) == (FirmwareState.RUNNING, READY)


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (image(b"", 2, 3), "RUNNING"),
        (image(b"x", 2, 2), "BAD_VERSION"),
        (image(b"x", 1, 9), "BAD_VERSION"),
        (image(b"x", 3, 3), "BAD_VERSION"),
        (b"\0" * 64, "BAD_HEADER"),
        (GOOD + b"\0", "BAD_SIZE"),
        (GOOD[:-1], "BAD_SIZE"),
        (GOOD[:-1] + b"\0", "BAD_CHECKSUM"),
        (b"short", "BAD_SIZE"),
    ],
)
def test_images(data: bytes, state: str) -> None:
    found, status = after(data)
    assert found.name == state
    assert status == (READY if state == "RUNNING" else WAITS)


@given(st.integers(0, 8 * len(GOOD) - 1))
def test_an_image_with_any_bit_wrong_does_not_run(bit: int) -> None:
    damaged = bytearray(GOOD)
    damaged[bit // 8] ^= 1 << bit % 8
    # The last 12 bytes of the header are its checksum and reserved bytes, which are not checked.
    state, _ = after(bytes(damaged))
    assert (state is FirmwareState.RUNNING) == (24 <= bit // 8 < HEADER.size)


@pytest.mark.parametrize("size", [0, 31, MAX_BYTES + 1, 0xFFFF_FFFF])
def test_sizes_that_no_image_has(size: int) -> None:
    assert after(GOOD, size) == (FirmwareState.BAD_SIZE, WAITS)


def test_an_image_that_is_not_there() -> None:
    bare = BareDevice(CONFIG)
    bare["FW_ADDR_HI"], bare["FW_BYTES"], bare["FW_BOOT"] = 5, 64, 1
    bare.advance(SECOND)
    assert bare["FW_STATUS"] == FirmwareState.BAD_ADDRESS
    load(bare, GOOD)  # a second attempt
    bare.advance(SECOND)
    assert bare["FW_STATUS"] == FirmwareState.RUNNING


def test_from_host_memory() -> None:
    bare, host = on_host(PCI.with_(**{"firmware.major": 2}))
    window = host.map(len(GOOD))
    window.data[:] = GOOD
    address = window.address | HOST
    bare["FW_ADDR_LO"], bare["FW_ADDR_HI"], bare["FW_BYTES"] = address & 0xFFFF_FFFF, address >> 32, len(GOOD)
    bare["FW_BOOT"] = 1
    bare.advance(SECOND)
    assert bare["FW_STATUS"] == FirmwareState.RUNNING


def test_what_runs_stays_over_a_reset_of_the_jobs_and_is_lost_with_the_function() -> None:
    bare, host = on_host(PCI.with_(**{"firmware.major": 2}))
    load(bare, GOOD)
    bare.advance(SECOND)
    bare["CONTROL"] = 1
    assert (bare["STATUS"], bare["FW_STATUS"], bare["FW_VERSION"]) == (READY, FirmwareState.RUNNING, 2 << 16 | 5)
    bare["FW_BOOT"] = 1
    assert bare.device.misuse == ["write to FW_BOOT: firmware is running already"]
    host.function.reset()
    host.set_up()
    assert (bare["STATUS"], bare["FW_STATUS"], bare["FW_VERSION"]) == (WAITS, FirmwareState.NONE, 0)


def test_a_boot_is_lost_with_the_function() -> None:
    bare, host = on_host(PCI.with_(**{"firmware.major": 2}))
    load(bare, GOOD)
    host.function.reset()
    host.set_up()
    bare.advance(SECOND)
    assert bare["FW_STATUS"] == FirmwareState.NONE


def test_a_device_of_before_needs_none() -> None:
    bare = BareDevice(QUICK)
    assert bare["STATUS"] == READY
    bare["FW_BOOT"] = 1
    assert "there is no register" in bare.device.misuse[0]


def test_what_no_header_can_say() -> None:
    with pytest.raises(UsageError, match="major must be 0 to 65535, got 65536"):
        image(b"", 65536)
    with pytest.raises(UsageError, match="payload must have at most"):
        image(bytes(MAX_BYTES))


def test_the_reference_driver_boots_it() -> None:
    device = NpuDevice(TINY.with_(**{"firmware.major": 2, "firmware.boot": "3 ms"}))
    with pytest.raises(DeviceFaultError, match="status after reset is 0x8"):
        Driver(device.bus)
    with pytest.raises(DeviceFaultError, match="the device does not run the image: BAD_VERSION"):
        Driver(device.bus, image(b"", 1))
    drive(Driver(device.bus, image(b"", 2)))
    before = device.now_ps
    drive(Driver(device.bus, image(b"", 2)))  # it runs already
    assert device.now_ps - before < 10**9
    stuck = NpuDevice(TINY.with_(**{"firmware.boot": "1 s"}), [STUCK])
    with pytest.raises(DeviceFaultError, match="the device does not run the image: BOOTING"):
        Driver(stuck.bus, image(b""))


def test_a_session_boots_it() -> None:
    with Session(TINY.with_(**{"firmware.minor": 4}), cache_dir=False) as session:
        assert drive(session.driver)
