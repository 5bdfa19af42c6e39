"""Resident data in SRAM: found only by a job with the same program, constants and number, and only if complete."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from npusim.driver import Driver, Priority
from npusim.errors import DeviceFaultError, JobAbortedError
from npusim.isa.base import region
from npusim.program import CONSTANTS
from tests.support.bare_device import BareDevice
from tests.support.programs.streams import Stream, copy, gather, keeper, round_trip
from tests.support.programs.timed_jobs import LATENCY, NS, TINY, Bench, alone, balanced, long_job

KEPT = bytes(range(1, 201))
KEEPER = keeper(KEPT)


class Runs:
    """Jobs with arithmetic on one device."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.driver = self.bench.driver
        self.loaded = self.driver.load(KEEPER)

    def held(self, timing_only: bool = False) -> bool:
        """Run the keeper and return whether its bytes were resident. Its output contains them in any case."""
        job = self.driver.submit(self.loaded, timing_only=timing_only)
        self.driver.wait(job)
        if not timing_only:
            assert job.outputs["y0"].tobytes() == KEPT
        return self.bench.records[job.seqno].residents_held


def test_the_second_job_finds_what_the_first_has_loaded() -> None:
    runs = Runs()
    assert [runs.held() for _ in range(4)] == [False, True, True, True]


def test_what_is_there_is_neither_fetched_nor_moved() -> None:
    """To the picosecond: both copies one after the other, or the second alone."""
    bench = Bench()
    loaded = bench.driver.load(KEEPER)
    first, second, third = (bench.finish(bench.submit(loaded, Priority.LOW))[0] for _ in range(3))
    without = Stream()
    without.dma(copy(region(2), 0, len(KEPT)))
    only = alone(without.program([], [len(KEPT)], constants=KEPT))
    mark, wait = 24, 8  # bytes of the stream that the other one does not have; the DRAM gives 8 in a ns
    assert second.time_ps == third.time_ps == only.time_ps + (mark + wait) // 8 * NS
    assert first.time_ps > second.time_ps + LATENCY
    assert first.counters.dram_read_bytes == len(KEPT) + len(KEEPER.code)
    assert second.counters.dram_read_bytes == len(KEEPER.code) - _prologue_bytes()
    assert [span.op for span in first.spans] == [1, 0]
    assert [span.op for span in second.spans] == [0]
    assert balanced(first)
    assert balanced(second)


def _prologue_bytes() -> int:
    stream = Stream()
    stream.dma(copy(0, region(CONSTANTS), len(KEPT)))
    return stream.commands[0].size


def another(runs: Runs) -> None:
    runs.driver.run(runs.driver.load(round_trip(8)), {"x0": np.zeros(8, np.uint8)})


def same_bytes_elsewhere(runs: Runs) -> None:
    """Load the same program again: its constants may differ."""
    runs.driver.run(runs.driver.load(KEEPER))


def loaded_anew(runs: Runs) -> None:
    runs.driver.unload(runs.loaded)
    runs.loaded = runs.driver.load(KEEPER)


def reset(runs: Runs) -> None:
    runs.driver.reset()


def fault(runs: Runs) -> None:
    stream = Stream()
    stream.dma(gather(64, region(2), 0, 4, 1))
    bad = runs.driver.load(stream.program([8], []))
    with pytest.raises(DeviceFaultError):
        runs.driver.run(bad, {"x0": np.zeros(8, np.uint8)})


def abort(runs: Runs) -> None:
    job = runs.driver.submit(runs.loaded)
    runs.bench.device.machine.clock.advance(LATENCY * 3)
    runs.driver.abort(job)
    with pytest.raises(JobAbortedError):
        runs.driver.wait(job)


def parked(runs: Runs) -> None:
    """The job finds its bytes, is preempted and resumed: the other job's data are gone."""
    high = runs.driver.load(long_job(1))
    job = runs.driver.submit(runs.loaded, priority=Priority.LOW)
    runs.bench.device.machine.clock.advance(LATENCY * 3 + 10 * NS)
    above = runs.driver.submit(high, priority=Priority.HIGH, timing_only=True)
    runs.driver.wait(above)
    runs.driver.wait(job)
    assert job.outputs["y0"].tobytes() == KEPT
    assert runs.bench.records[job.seqno].preemptions == 1
    assert runs.bench.records[job.seqno].residents_held


@pytest.mark.parametrize("between", [another, same_bytes_elsewhere, loaded_anew, reset, fault, abort, parked])
def test_whatever_comes_between_it_is_loaded_again(between: Callable[[Runs], None]) -> None:
    runs = Runs()
    assert [runs.held(), runs.held()] == [False, True]
    between(runs)
    assert [runs.held(), runs.held()] == [False, True]


def test_a_job_without_arithmetic_leaves_no_bytes() -> None:
    runs = Runs()
    assert [runs.held(timing_only=True) for _ in range(2)] == [False, True]
    assert [runs.held(), runs.held(timing_only=True), runs.held()] == [False, True, True]


def test_software_that_gives_no_number_loads_each_time() -> None:
    bare = BareDevice()
    for number in (0, 0, 7, 7, 8, 0, 8):
        bare.submit("LOW", KEEPER, residents=number)
        bare.wait()
    # The memory is another each time, so the constants are, too.
    assert not any(record.residents_held for record in bare.records.values())


def test_constants_at_the_same_place_and_another_number() -> None:
    """A driver that writes other constants to an address announces it with another number, as the reference driver
    does."""
    driver = Driver(Bench().device.bus)
    for content in (b"\1" * 64, b"\2" * 64, b"\3" * 64):
        loaded = driver.load(keeper(content))
        assert driver.run(loaded).outputs["y0"].tobytes() == content
        assert driver.run(loaded).outputs["y0"].tobytes() == content
        driver.unload(loaded)


def test_every_core_keeps_its_own() -> None:
    stream = Stream()
    waits = [stream.dma(copy(8, region(CONSTANTS, core * 8), 8), core=core) for core in (0, 1)]
    stream.keep(16)
    for core, wait in enumerate(waits):
        stream.dma(copy(region(2, core * 8), 8, 8), wait, core=core)
    driver = Bench(TINY.with_(cores=2)).driver
    loaded = driver.load(stream.program([], [16], constants=bytes(range(16))))
    for _ in range(2):
        assert driver.run(loaded).outputs["y0"].tobytes() == bytes(range(16))


@pytest.mark.parametrize("later_us", [5, 20])  # while its context comes back, and when it runs again
def test_what_was_parked_comes_back_over_what_the_other_has_left(later_us: int) -> None:
    runs = Runs()
    low = runs.driver.submit(runs.driver.load(long_job(40)), priority=Priority.LOW)
    for wait_us in (5, later_us):  # between them the long job has its own bytes where the keeper's were
        runs.bench.device.machine.clock.advance(wait_us * 1000 * NS)
        job = runs.driver.submit(runs.loaded, priority=Priority.HIGH)
        while not job.ended:
            runs.driver.poll(10**9)
        runs.driver.finish(job)
        assert job.outputs["y0"].tobytes() == KEPT
        assert not runs.bench.records[job.seqno].residents_held
    assert not low.ended
    runs.driver.wait(low)
    assert runs.bench.records[low.seqno].preemptions > 0
