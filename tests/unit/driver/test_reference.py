"""The reference driver on the tiny device: loading, running, refusing."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from npusim._mapped import MappedFile
from npusim.device.bus import Bus
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.errors import DeviceFaultError, DeviceMemoryError, FileCutError, InputError, UsageError
from npusim.hw.config import load_config
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO, ConstantData, Program
from tests.support.programs.streams import Stream, add, copy, round_trip

TINY = load_config("tiny")


def add_constant(constant: bytes) -> Program:
    """Return y0 = x0 + constant."""
    size = len(constant)
    stream = Stream()
    x = stream.dma(copy(0, region(FIRST_IO), size))
    c = stream.dma(copy(1024, region(CONSTANTS), size))
    done = stream.vector(add(2048, 0, 1024, size), x, c)
    stream.dma(copy(region(FIRST_IO + 1), 2048, size), done)
    return stream.program([size], [size], constants=constant)


@pytest.fixture
def driver() -> Driver:
    return Driver(NpuDevice(TINY).bus)


def test_programs_live_side_by_side(driver: Driver) -> None:
    values = np.arange(100, dtype=np.uint8)
    loaded = [driver.load(add_constant(bytes([number] * 100))) for number in (1, 2, 3)]
    for number, program in zip((1, 2, 3), loaded, strict=True):
        assert np.array_equal(driver.run(program, {"x0": values}).outputs["y0"], values + number)
    driver.unload(loaded[1])
    again = driver.load(add_constant(bytes([9] * 100)))
    for number, program in ((1, loaded[0]), (3, loaded[2]), (9, again)):
        assert np.array_equal(driver.run(program, {"x0": values}).outputs["y0"], values + number)


def test_a_program_of_another_driver_is_refused_and_nothing_is_freed(driver: Driver) -> None:
    """Its addresses are meaningless here."""
    values, other = np.arange(100, dtype=np.uint8), Driver(NpuDevice(TINY).bus)
    mine, foreign = driver.load(add_constant(bytes([1] * 100))), other.load(add_constant(bytes([2] * 100)))
    free = driver.free_bytes
    for use in (driver.unload, lambda loaded: driver.submit(loaded, {"x0": values})):
        with pytest.raises(UsageError, match="was loaded by another driver"):
            use(foreign)
    assert driver.free_bytes == free
    assert np.array_equal(driver.run(mine, {"x0": values}).outputs["y0"], values + 1)
    assert np.array_equal(other.run(foreign, {"x0": values}).outputs["y0"], values + 2)


def test_constants_are_written_once_by_the_first_run_that_computes() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(add_constant(bytes([5] * 100)))
    values = np.zeros(100, np.uint8)
    driver.run(loaded, timing_only=True)
    assert not any(device.bus.read_memory(loaded.regions[CONSTANTS], 100))
    assert driver.run(loaded, {"x0": values}).outputs["y0"].tolist() == [5] * 100
    device.bus.write_memory(loaded.regions[CONSTANTS], bytes([6] * 100))  # the existing content is reused
    assert driver.run(loaded, {"x0": values}).outputs["y0"].tolist() == [6] * 100


def test_constants_that_are_gone_take_no_memory_with_them() -> None:
    descriptor = os.memfd_create("weights")
    os.ftruncate(descriptor, mmap.PAGESIZE)
    file = MappedFile(descriptor, mmap.PAGESIZE, mmap.PROT_READ, 0, False)
    program = add_constant(bytes(100))
    program.constants = ConstantData.of(np.frombuffer(memoryview(file), np.uint8, 100))
    driver = Driver(NpuDevice(TINY).bus)
    loaded, values = driver.load(program), np.zeros(100, np.uint8)
    free = driver.free_bytes
    os.ftruncate(descriptor, 0)
    os.close(descriptor)
    for _ in range(2):
        with pytest.raises(FileCutError):
            driver.run(loaded, {"x0": values})
    assert (len(loaded.idle), driver.free_bytes) == (1, free)
    driver.unload(loaded)


def test_all_of_the_devices_memory_but_the_rings_is_free() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    assert driver.free_bytes == TINY.dram.bytes - 3 * 64 * 64  # from address 0 on
    assert driver.allocate(1) == 3 * 64 * 64


def test_seqnos_grow(driver: Driver) -> None:
    loaded = driver.load(round_trip(64))
    seqnos = [driver.run(loaded, timing_only=True).seqno for _ in range(200)]  # more than the ring has entries
    assert seqnos == list(range(1, 201))


def test_unloading_gives_everything_back(driver: Driver) -> None:
    before = driver.free_bytes
    loaded = driver.load(round_trip(5000))
    assert driver.free_bytes <= before - 10_000
    driver.unload(loaded)
    assert driver.free_bytes == before
    with pytest.raises(UsageError, match="program 'test' has been unloaded"):
        driver.run(loaded, timing_only=True)
    with pytest.raises(UsageError, match="has been unloaded"):
        driver.unload(loaded)


def test_a_program_that_does_not_fit_takes_nothing(driver: Driver) -> None:
    before = driver.free_bytes
    program = Stream().program(scratch=TINY.dram.bytes)
    with pytest.raises(DeviceMemoryError, match=r"program 'test': scratch: 1073741824 bytes of device memory required"):
        driver.load(program)
    assert driver.free_bytes == before


def test_inputs_are_checked_before_anything_is_written(driver: Driver) -> None:
    loaded = driver.load(round_trip(4))
    good = np.zeros(4, np.uint8)
    for inputs, text in (
        ({}, "'x0' is missing; the program takes 'x0'"),
        ({"x0": good, "z": good}, "'z' is unknown; the program takes 'x0'"),
        ({"x0": good.astype(np.float32)}, "input 'x0': dtype must be uint8, got float32"),
        ({"x0": np.zeros((2, 2), np.uint8)}, r"input 'x0': shape must be \(4,\), got \(2, 2\)"),
    ):
        with pytest.raises(InputError, match=text):
            driver.run(loaded, inputs)
    assert driver.run(loaded, {"x0": good}).seqno == 1


def test_inputs_need_not_be_contiguous(driver: Driver) -> None:
    values = np.arange(20, dtype=np.uint8)[::2]
    assert np.array_equal(driver.run(driver.load(round_trip(10)), {"x0": values}).outputs["y0"], values)


def test_scalars_and_empty_tensors(driver: Driver) -> None:
    assert driver.run(driver.load(round_trip(1)), {"x0": np.array([7], np.uint8)}).outputs["y0"].tolist() == [7]
    empty = driver.load(Stream().program([0], [0]))
    assert driver.run(empty, {"x0": np.zeros(0, np.uint8)}).outputs["y0"].shape == (0,)


def test_outputs_belong_to_the_caller(driver: Driver) -> None:
    loaded = driver.load(round_trip(4))
    first = driver.run(loaded, {"x0": np.full(4, 1, np.uint8)}).outputs["y0"]
    driver.run(loaded, {"x0": np.full(4, 2, np.uint8)})
    assert first.tolist() == [1] * 4
    first[0] = 5  # writable


def test_cycles_are_those_of_the_machine() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    result = driver.run(driver.load(round_trip(64)), timing_only=True)
    assert device.last_job is not None
    assert result.cycles == device.last_job.cycles > 0


def test_a_timeout_is_a_fault_and_the_driver_goes_on() -> None:
    device = NpuDevice(TINY)
    driver = Driver(device.bus)
    loaded = driver.load(round_trip(60_000))
    with pytest.raises(DeviceFaultError, match="no completion within 1000 ps") as caught:
        driver.run(loaded, timing_only=True, timeout_ps=1000)
    assert caught.value.code == "TIMEOUT"
    assert driver.run(loaded, timing_only=True).seqno == 2


@pytest.mark.unwatched
def test_a_second_driver_takes_over_a_device_in_any_state() -> None:
    device = NpuDevice(TINY)
    Driver(device.bus)
    device.bus.write(0, 0x134, 4, 1)
    device.bus.write(0, 0x128, 4, 3)
    driver = Driver(device.bus)
    values = np.arange(64, dtype=np.uint8)
    assert np.array_equal(driver.run(driver.load(round_trip(64)), {"x0": values}).outputs["y0"], values)


class OtherDevice(Bus):
    """Registers that all read as one value."""

    def __init__(self, values: dict[int, int]) -> None:
        self.values = values

    def read(self, bar: int, offset: int, size: int) -> int:
        return self.values.get(offset, 0)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        raise AssertionError("a driver must not write to a device that it does not know")

    def read_memory(self, address: int, size: int) -> bytearray:
        raise AssertionError

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError

    def wait_irq(self, timeout_ps: int) -> int:
        raise AssertionError

    def host_work(self, kind: str) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "UNKNOWN_DEVICE at 0x0: device ID must be 0x3155504e, got 0x0"),
        ({0: 0x3155_504E, 4: 0x0003_0001}, "UNKNOWN_VERSION at 0x0: interface version must be 2, the device has 3"),
    ],
)
def test_a_driver_leaves_other_devices_alone(values: dict[int, int], text: str) -> None:
    with pytest.raises(DeviceFaultError, match=text):
        Driver(OtherDevice(values))


def test_the_bus_refuses_unknown_host_work() -> None:
    with pytest.raises(ValueError, match="kind of host work must be one of submit, map, got 'nap'"):
        NpuDevice(TINY).bus.host_work("nap")
