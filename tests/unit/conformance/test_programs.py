"""The programs of the conformance suite do what they say, and no more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npusim.conformance.programs import LONG_COPIES, SLOW_COPIES, SuitePrograms
from npusim.device.npu import NpuDevice
from npusim.driver import Driver
from npusim.errors import DeviceFaultError, DeviceMemoryError
from npusim.hw.config import load_config
from npusim.program import Program
from npusim.timeline import Timeline

TINY = load_config("tiny")


def moved(timeline: Timeline) -> int:
    """Bytes of its transfers, without those of the command stream."""
    return sum(unit.bytes for name, unit in timeline.counters.units.items() if ".dma" in name)


def timeline_of(program: Program, *, timing_only: bool = False) -> Timeline:
    """What a run does. Its outputs are the input."""
    device, found = NpuDevice(TINY), list[Timeline]()
    device.listener = lambda number, timeline: found.append(timeline)
    driver = Driver(device.bus)
    x = np.arange(program.inputs[0].shape[0]).astype(np.uint8)
    outputs = driver.run(driver.load(program), {"x0": x}, timing_only=timing_only).outputs
    assert timing_only or [array.tolist() for array in outputs.values()] == [x.tolist()] * len(program.outputs)
    return found[-1]


@pytest.mark.parametrize("size", [1, 64, 1000])
@pytest.mark.parametrize(
    ("make", "copies"), [(SuitePrograms.round_trip, 2), (SuitePrograms.twice, 3), (SuitePrograms.half, 2)]
)
def test_each_byte_is_moved_once(make: Callable[[SuitePrograms, int], Program], copies: int, size: int) -> None:
    assert moved(timeline_of(make(SuitePrograms(TINY), size))) == copies * size


@pytest.mark.parametrize(
    ("make", "wasted", "about_ps"),
    [(SuitePrograms.slow, SLOW_COPIES * 4096, 2 * 10**8), (SuitePrograms.endless, LONG_COPIES * 65536, 10**11)],
)
def test_those_that_take_long_read_what_nobody_needs(
    make: Callable[[SuitePrograms], Program], wasted: int, about_ps: int
) -> None:
    timeline = timeline_of(make(SuitePrograms(TINY)), timing_only=True)
    assert moved(timeline) == wasted + 2 * 64
    assert about_ps / 2 < timeline.counters.duration_ps < 2 * about_ps


def test_the_long_one_that_is_run_gives_its_input() -> None:
    timeline_of(SuitePrograms(TINY).slow())


def test_constants_are_loaded_by_the_first_job_alone() -> None:
    device, found = NpuDevice(TINY), list[int]()
    device.listener = lambda number, timeline: found.append(moved(timeline))
    driver, data = Driver(device.bus), bytes(range(100))
    loaded = driver.load(SuitePrograms(TINY).constant(data))
    assert [driver.run(loaded, {}).outputs["y0"].tobytes() for _ in range(3)] == [data] * 3
    assert found == [200, 100, 100]


def test_a_choice_takes_the_bytes_at_its_indices() -> None:
    driver, program = Driver(NpuDevice(TINY).bus), SuitePrograms(TINY).picked(16, 32)
    loaded, indices = driver.load(program), np.arange(31, -1, -2).astype("<i4")
    assert driver.run(loaded, {"x0": indices.view(np.uint8)}).outputs["y0"].tolist() == indices.tolist()
    indices[3] = 32
    with pytest.raises(DeviceFaultError) as fault:
        driver.run(loaded, {"x0": indices.view(np.uint8)})
    assert fault.value.code == "DATA"


def test_nonsense_is_refused_for_its_last_byte_and_nothing_is_written() -> None:
    driver, programs = Driver(NpuDevice(TINY).bus), SuitePrograms(TINY)
    with pytest.raises(DeviceFaultError) as fault:
        driver.run(driver.load(programs.nonsense()), {"x0": np.zeros(64, np.uint8)})
    assert fault.value.code == "PROGRAM"


def test_sizes_are_on_the_sides_of_memory_that_they_name() -> None:
    """More than all, and more than half: once it fits, and twice it never does."""
    programs, x = SuitePrograms(TINY), {"x0": np.zeros(64, np.uint8)}
    driver = Driver(NpuDevice(TINY).bus)
    for program in (programs.huge(), programs.half(twice=True)):
        with pytest.raises(DeviceMemoryError):
            driver.run(driver.load(program), x)
    loaded = driver.load(programs.half())
    driver.run(loaded, x)
    with pytest.raises(DeviceMemoryError):
        driver.run(driver.load(programs.half()), x)
