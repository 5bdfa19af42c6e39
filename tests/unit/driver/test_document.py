"""docs/device.md is complete: a driver written from it alone works."""

from __future__ import annotations

import numpy as np
import pytest

import npusim
from npusim.demo import network
from npusim.device.npu import NpuDevice
from npusim.errors import DeviceFaultError, DeviceGoneError, DeviceMemoryError, InputError, JobAbortedError, UsageError
from npusim.faults import AtCommand, AtInterrupt, Fault, Hang, MessageFault
from npusim.hw.config import load_config
from npusim.isa.base import region
from npusim.program import CONSTANTS, FIRST_IO
from tests.support.drivers.written_from_the_document import ENTRIES, DocumentDriver
from tests.support.programs.executor_jobs import adder
from tests.support.programs.streams import Stream, add, copy, gather, round_trip

TINY = load_config("tiny")
VALUES = np.arange(64, dtype=np.uint8)


@pytest.fixture
def device() -> NpuDevice:
    return NpuDevice(TINY, check=True)


@pytest.fixture
def driver(device: NpuDevice) -> DocumentDriver:
    return DocumentDriver(device.bus)


def nothing_wrong(device: NpuDevice) -> None:
    assert device.checker is not None
    device.close()
    assert [str(finding) for finding in device.checker.findings] == []


def test_many_jobs_in_all_rings(device: NpuDevice, driver: DocumentDriver) -> None:
    loaded = [driver.load(round_trip(64)), driver.load(round_trip(64))]
    for number in range(3 * ENTRIES):
        jobs = [driver.submit(loaded[ring % 2], {"x0": VALUES + number + ring}, priority=ring) for ring in (0, 1, 2)]
        for ring, job in enumerate(jobs):
            assert np.array_equal(driver.wait(job).outputs["y0"], VALUES + number + ring)
    driver.close()
    nothing_wrong(device)


def test_a_network_gives_what_the_reference_driver_gives(device: NpuDevice, driver: DocumentDriver) -> None:
    session = npusim.Session(TINY, cache_dir=False)
    program = session.compile(network())
    random = np.random.default_rng(7)
    inputs = {x.name: random.integers(0, 100, x.shape).astype(x.dtype.storage) for x in program.inputs}
    found = driver.run(driver.load(program), inputs)
    for name, array in session.run(program, inputs).outputs.items():
        assert np.array_equal(found.outputs[name], array)
    driver.close()
    nothing_wrong(device)


def test_preemption(device: NpuDevice, driver: DocumentDriver) -> None:
    driver.enable_preemption()
    slow, quick = driver.load(adder(slow=200)), driver.load(adder())
    (x,) = slow.program.inputs
    values = np.ones(x.shape, x.dtype.storage)
    low = driver.submit(slow, {x.name: values}, priority=0)
    high = driver.submit(quick, {x.name: values + 1}, priority=2)
    driver.wait(high)
    assert not low.ended
    assert np.array_equal(driver.wait(low).outputs["y0"], driver.run(slow, {x.name: values}).outputs["y0"])
    driver.close()
    nothing_wrong(device)


def test_faults_aborts_timeouts_and_lost_interrupts(device: NpuDevice, driver: DocumentDriver) -> None:
    good = driver.load(round_trip(64))
    broken = driver.load(Stream().program([64], [64], code=b"\xff" * 40))
    jobs = [driver.submit(each, {"x0": VALUES}) for each in (good, broken, good)]
    driver.wait(jobs[0])
    with pytest.raises(DeviceFaultError, match="PROGRAM"):
        driver.wait(jobs[1])
    driver.wait(jobs[2])

    slow = driver.load(adder(slow=200))
    jobs = [driver.submit(slow, {"x0": np.zeros(slow.program.inputs[0].shape, np.uint8)}) for _ in range(3)]
    for job in jobs[:2]:  # one that runs, one that waits
        driver.abort(job)
        with pytest.raises(JobAbortedError):
            driver.wait(job)
    driver.wait(jobs[2])

    device.faults.add([Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose"))])
    assert np.array_equal(driver.run(good, {"x0": VALUES}).outputs["y0"], VALUES)

    device.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    with pytest.raises(DeviceFaultError, match="TIMEOUT"):
        driver.run(good, {"x0": VALUES}, timeout_ps=10**12)
    assert np.array_equal(driver.run(good, {"x0": VALUES}).outputs["y0"], VALUES)
    driver.close()
    nothing_wrong(device)


def test_a_job_that_takes_too_long_is_given_up(device: NpuDevice, driver: DocumentDriver) -> None:
    slow, good = driver.load(adder(slow=200)), driver.load(round_trip(64))
    (x,) = slow.program.inputs
    with pytest.raises(DeviceFaultError, match="TIMEOUT"):
        driver.run(slow, {x.name: np.zeros(x.shape, x.dtype.storage)}, timeout_ps=10**6)
    assert np.array_equal(driver.run(good, {"x0": VALUES}).outputs["y0"], VALUES)
    driver.close()
    nothing_wrong(device)


def test_indices_outside_their_axis_are_a_fault_of_that_job(device: NpuDevice, driver: DocumentDriver) -> None:
    stream = Stream()
    loaded = stream.dma(copy(0, region(FIRST_IO), 64))
    stream.dma(gather(64, region(CONSTANTS), 0, 16, 32), loaded)
    program = driver.load(stream.program([64], [], constants=bytes(64)))
    driver.run(program, {"x0": np.zeros(64, np.uint8)})
    with pytest.raises(DeviceFaultError, match="DATA"):
        driver.run(program, {"x0": np.full(64, 7, np.uint8)})
    driver.close()
    nothing_wrong(device)


def test_what_is_refused_leaves_no_trace(device: NpuDevice, driver: DocumentDriver) -> None:
    loaded = driver.load(round_trip(4))
    taken = dict(driver.blocks)
    with pytest.raises(DeviceMemoryError):
        driver.run(driver.load(Stream().program(scratch=1 << 40)), {})
    with pytest.raises(InputError):
        driver.run(loaded, {})
    assert len(driver.blocks) == len(taken) + 2  # code and constants of the large one
    driver.unload(loaded)
    with pytest.raises(UsageError):
        driver.run(loaded, {"x0": np.zeros(4, np.uint8)})
    driver.close()
    nothing_wrong(device)


def test_a_device_that_is_gone(device: NpuDevice, driver: DocumentDriver) -> None:
    job = driver.submit(driver.load(round_trip(64)), {"x0": VALUES})
    device.unplug()
    with pytest.raises(DeviceGoneError):
        driver.wait(job)
    with pytest.raises(DeviceGoneError):
        DocumentDriver(device.bus)


def test_additions_in_sram(device: NpuDevice, driver: DocumentDriver) -> None:
    stream = Stream()
    loaded = [stream.dma(copy(0, region(FIRST_IO), 64)), stream.dma(copy(64, region(CONSTANTS), 64))]
    added = stream.vector(add(128, 0, 64, 64), *loaded)
    stream.dma(copy(region(FIRST_IO + 1), 128, 64), added)
    program = driver.load(stream.program([64], [64], constants=bytes([9] * 64)))
    assert np.array_equal(driver.run(program, {"x0": VALUES}).outputs["y0"], VALUES + 9)
    driver.close()
    nothing_wrong(device)
