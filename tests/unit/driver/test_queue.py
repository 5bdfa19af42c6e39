"""Several jobs in a driver: sequence numbers, device memory as inputs and outputs, aborts, and jobs lost by a reset."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, HostCounters, LoadedProgram, Priority, header
from npusim.driver.rings import RING_ENTRIES
from npusim.errors import (
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    InputError,
    JobAbortedError,
    QueueFullError,
    UsageError,
)
from npusim.hw.config import load_config
from npusim.isa.base import region
from npusim.program import FIRST_IO, SCRATCH, Program
from tests.support.programs.streams import Stream, copy, round_trip

TINY = load_config("tiny")
SIZE = 64
VALUES = np.arange(SIZE, dtype=np.uint8)
OUTPUT = FIRST_IO + 1


@pytest.fixture
def device() -> NpuDevice:
    return NpuDevice(TINY)


@pytest.fixture
def driver(device: NpuDevice) -> Driver:
    return Driver(device.bus)


@pytest.fixture
def loaded(driver: Driver) -> LoadedProgram:
    return driver.load(round_trip(SIZE))


def slow_program() -> Program:
    """Return 100 copies of half a microsecond each."""
    stream = Stream()
    for _ in range(100):
        stream.dma(copy(0, region(SCRATCH), 4096))
    return stream.program(scratch=4096)


def test_seqnos_are_waited_for_in_any_order(driver: Driver, loaded: LoadedProgram) -> None:
    seqnos = [driver.submit(loaded, {"x0": VALUES + number}) for number in range(5)]
    for number in (3, 0, 4, 2, 1):
        assert np.array_equal(driver.wait(seqnos[number]).outputs["y0"], VALUES + number)
    assert loaded.running == 0
    assert len(loaded.idle) == 5  # each had separate memory, which is reused
    free = driver.free_bytes
    driver.wait(driver.submit(loaded, {"x0": VALUES}))
    assert driver.free_bytes == free


def test_a_submission_does_not_wait(device: NpuDevice, driver: Driver, loaded: LoadedProgram) -> None:
    before = device.now_ps
    seqno = driver.submit(loaded, {"x0": VALUES})
    copies = 3 * TINY.host.link_latency_ps + 3 * 8 * 1000 + 4000  # at 8 bytes a ns: 64 + 32 + 64 bytes
    assert device.now_ps - before == TINY.host.submit_ps + copies + 2 * TINY.host.mmio_ps - 8000
    assert not seqno.ended
    with pytest.raises(UsageError, match="job 1 has not ended"):
        driver.finish(seqno)
    while not driver.poll(10**6):
        pass
    assert seqno.ended
    assert np.array_equal(driver.finish(seqno).outputs["y0"], VALUES)
    with pytest.raises(UsageError, match="there is no job 1"):
        driver.wait(seqno)


def test_inputs_and_outputs_may_lie_in_the_callers_device_memory(driver: Driver, loaded: LoadedProgram) -> None:
    first, second = driver.allocate(SIZE), driver.allocate(SIZE)
    driver.write(first, VALUES.data)
    before = driver.counters.snapshot()
    result = driver.wait(driver.submit(loaded, bound={FIRST_IO: first, OUTPUT: second}))
    assert result.outputs == {}
    moved = driver.counters.since(before)
    assert moved == HostCounters(jobs=1)
    assert driver.read(second, SIZE) == VALUES.tobytes()
    mixed = driver.wait(driver.submit(loaded, bound={FIRST_IO: second}))
    assert np.array_equal(mixed.outputs["y0"], VALUES)
    assert np.array_equal(driver.wait(driver.submit(loaded, {"x0": VALUES + 1})).outputs["y0"], VALUES + 1)
    driver.free(first)
    driver.free(second)


@pytest.mark.unwatched
def test_bound_regions_take_no_memory(driver: Driver) -> None:
    big = driver.load(round_trip(60_000), slots=0)
    address = driver.allocate(60_000)
    before = driver.free_bytes
    seqno = driver.submit(big, bound={FIRST_IO: address, OUTPUT: address})
    assert before - driver.free_bytes < 2000
    driver.wait(seqno)
    seqno = driver.submit(big, {"x0": np.zeros(60_000, np.uint8)}, bound={OUTPUT: address})
    assert before - driver.free_bytes > 60_000
    driver.wait(seqno)
    driver.trim(big)
    assert driver.free_bytes == before


def test_refusals_leave_nothing_behind(driver: Driver, loaded: LoadedProgram) -> None:
    free = driver.free_bytes
    with pytest.raises(InputError, match="'x0' is missing"):
        driver.submit(loaded, {})
    with pytest.raises(InputError, match="'x0' is unknown"):
        driver.submit(loaded, {"x0": VALUES}, bound={FIRST_IO: 0})
    huge = driver.load(Stream().program([SIZE], scratch=TINY.dram.bytes // 2), slots=0)
    block = driver.allocate(TINY.dram.bytes // 2)
    taken = driver.free_bytes
    with pytest.raises(DeviceMemoryError, match="program 'test': scratch"):
        driver.submit(huge, {"x0": VALUES})
    assert driver.free_bytes == taken
    driver.free(block)
    driver.unload(huge)
    assert driver.free_bytes == free
    assert loaded.running == 0


def test_a_program_that_runs_is_not_unloaded(driver: Driver, loaded: LoadedProgram) -> None:
    seqno = driver.submit(loaded, {"x0": VALUES})
    with pytest.raises(UsageError, match="is running: it cannot be unloaded"):
        driver.unload(loaded)
    driver.wait(seqno)
    driver.unload(loaded)


def test_a_ring_holds_so_many_jobs_and_no_more(driver: Driver, loaded: LoadedProgram) -> None:
    seqnos = [driver.submit(loaded, timing_only=True) for _ in range(RING_ENTRIES)]
    with pytest.raises(QueueFullError, match="64 jobs of priority 1 are in the device"):
        driver.submit(loaded, timing_only=True)
    other = driver.submit(loaded, timing_only=True, priority=Priority.HIGH)
    for seqno in (*seqnos, other):
        driver.wait(seqno)
    driver.wait(driver.submit(loaded, timing_only=True))


def test_aborted_jobs_give_their_memory_back(driver: Driver, loaded: LoadedProgram) -> None:
    driver.enable_preemption()
    slow = driver.load(slow_program(), slots=0)
    free = driver.free_bytes
    seqnos = [driver.submit(slow, timing_only=True, priority=priority) for priority in (0, 0, 1, 2, 2)]
    assert driver.free_bytes < free
    for seqno in seqnos:
        driver.abort(seqno)
    for seqno in seqnos:
        with pytest.raises(JobAbortedError):
            driver.wait(seqno)
    driver.trim(slow)
    assert driver.free_bytes == free
    assert np.array_equal(driver.wait(driver.submit(loaded, {"x0": VALUES})).outputs["y0"], VALUES)


def test_an_abort_that_comes_too_late_has_no_effect(device: NpuDevice, driver: Driver, loaded: LoadedProgram) -> None:
    seqno = driver.submit(loaded, {"x0": VALUES})
    device.machine.clock.advance(10**9)
    driver.abort(seqno)
    assert np.array_equal(driver.wait(seqno).outputs["y0"], VALUES)
    driver.abort(driver.submit(loaded, {"x0": VALUES}))


def test_a_fault_of_one_job_is_of_no_concern_to_the_others(driver: Driver, loaded: LoadedProgram) -> None:
    broken = driver.load(Stream().program([SIZE], [SIZE], code=b"\xff" * 40))
    seqnos = [driver.submit(item, {"x0": VALUES}) for item in (loaded, broken, loaded, broken, loaded)]
    for number, seqno in enumerate(seqnos):
        if number % 2:
            with pytest.raises(DeviceFaultError, match="device fault PROGRAM"):
                driver.wait(seqno)
        else:
            assert np.array_equal(driver.wait(seqno).outputs["y0"], VALUES)


@pytest.mark.unwatched
def test_a_damaged_ring_fails_every_job_that_is_in_the_device(device: NpuDevice, driver: Driver) -> None:
    driver.enable_preemption()
    parked = driver.load(slow_program())
    loaded = driver.load(round_trip(SIZE))
    low = driver.submit(parked, timing_only=True, priority=Priority.LOW)
    device.machine.clock.advance(5 * 10**6)
    high = [driver.submit(loaded, {"x0": VALUES}, priority=Priority.HIGH) for _ in range(2)]
    base = device.bus.read(0, header.RINGS[Priority.HIGH], 4)
    device.bus.write_memory(base + header.ENTRY.size, b"\0")  # the magic of the second entry
    assert np.array_equal(driver.wait(high[0]).outputs["y0"], VALUES)
    for seqno in (high[1], low):
        with pytest.raises(DeviceFaultError, match="device fault RING"):
            driver.wait(seqno)
    seqno = driver.submit(loaded, {"x0": VALUES}, priority=Priority.LOW)
    assert np.array_equal(driver.wait(seqno).outputs["y0"], VALUES)


def test_a_reset_fails_what_was_in_the_device(driver: Driver, loaded: LoadedProgram) -> None:
    seqno = driver.submit(driver.load(slow_program()), timing_only=True)
    driver.reset()
    with pytest.raises(JobAbortedError, match="the device was reset"):
        driver.wait(seqno)
    assert np.array_equal(driver.wait(driver.submit(loaded, {"x0": VALUES})).outputs["y0"], VALUES)


def test_a_reset_takes_what_has_ended(device: NpuDevice, driver: Driver, loaded: LoadedProgram) -> None:
    job = driver.submit(loaded, {"x0": VALUES})
    device.machine.clock.advance(10**9)
    driver.reset()
    assert np.array_equal(driver.wait(job).outputs["y0"], VALUES)


def test_a_device_that_is_unplugged_fails_every_job(device: NpuDevice, driver: Driver, loaded: LoadedProgram) -> None:
    seqnos = [driver.submit(loaded, {"x0": VALUES}, priority=priority) for priority in Priority]
    device.unplug()
    with pytest.raises(DeviceGoneError):
        driver.wait(seqnos[0])
    for seqno in seqnos:
        with pytest.raises(DeviceGoneError):
            driver.wait(seqno)


def test_mappings_are_counted_and_take_their_time(device: NpuDevice, driver: Driver) -> None:
    before = device.now_ps
    driver.map_memory(3)
    assert device.now_ps - before == 3 * TINY.host.map_ps
    assert driver.counters.mappings == 3


def test_no_room_for_contexts() -> None:
    config = TINY.with_(**{"dram.bytes": "1 MiB", "sram.bytes": "768 KiB"})
    driver = Driver(NpuDevice(config).bus)
    with pytest.raises(DeviceMemoryError, match="context area"):
        driver.enable_preemption()


def test_counters_add_up() -> None:
    total = HostCounters(input_bytes=1, constant_bytes=2, code_bytes=3, buffer_write_bytes=4, output_bytes=5)
    total.add(HostCounters(buffer_read_bytes=6, jobs=7))
    assert (total.written_bytes, total.read_bytes) == (10, 11)
    kept = total.snapshot()
    total.add(HostCounters(mappings=8, preemptions=9))
    assert total.since(kept) == HostCounters(mappings=8, preemptions=9)
