"""Aborted jobs and faults while others are preempted, to the picosecond."""

from __future__ import annotations

import dataclasses

import pytest

from npusim.driver import Priority
from npusim.errors import DeviceFaultError, JobAbortedError
from npusim.faults import AtCommand, Fault, Hang
from npusim.isa.base import region
from npusim.program import Program
from tests.support.programs.streams import Stream, copy, round_trip
from tests.support.programs.timed_jobs import LATENCY, MOVE, NS, TINY, Bench, alone, balanced, long_job


def test_a_running_job_is_aborted_at_once() -> None:
    bench = Bench()
    seqno = bench.submit(long_job(100), Priority.LOW)
    bench.device.machine.clock.advance(2000 * NS)
    before = bench.device.now_ps + 1  # the mark in the ring entry is written first
    bench.driver.abort(seqno)
    with pytest.raises(JobAbortedError, match="job 1 of program 'test' was aborted"):
        bench.driver.wait(seqno)
    record = bench.records[seqno.seqno]
    assert record.aborted
    assert record.started_ps + record.time_ps == before + LATENCY + 32 * NS // 8  # the completion record
    assert bench.finish(bench.submit(round_trip(64), Priority.LOW))[0].fault is None


def test_a_parked_job_is_aborted_and_the_running_one_goes_on() -> None:
    bench = Bench()
    loaded = [bench.driver.load(long_job()) for _ in range(2)]
    low = bench.submit(loaded[0], Priority.LOW)
    high = bench.submit(loaded[1], Priority.HIGH, 1500 * NS)
    bench.device.machine.clock.advance(MOVE + 2000 * NS)
    bench.driver.abort(low)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(low)
    assert not high.ended
    assert bench.records[low.seqno].suspended_ps > 0
    assert balanced(bench.records[low.seqno])
    record = bench.finish(high)[0]
    assert record.time_ps == alone(long_job()).time_ps
    assert record.digest() == alone(long_job()).digest()


@pytest.mark.parametrize("late_ps", [100 * NS, MOVE - NS])
def test_a_job_is_aborted_while_its_context_is_on_the_way(late_ps: int) -> None:
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    ends = [span.end_ps for span in alone(long_job()).spans]
    seqno = bench.submit(high, Priority.HIGH, ends[0])
    bench.device.machine.clock.advance(ends[1] - ends[0] + late_ps)
    bench.driver.abort(low)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(low)
    record = bench.finish(seqno)[0]
    assert record.time_ps == alone(round_trip(64)).time_ps


def test_a_job_in_the_ring_is_cancelled() -> None:
    bench = Bench()
    loaded = [bench.driver.load(long_job()) for _ in range(3)]
    first, second, third = (bench.submit(item, Priority.LOW) for item in loaded)
    bench.driver.abort(second)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(second)
    before, record, after = bench.records[first.seqno], bench.records[second.seqno], bench.finish(first, third)[1]
    assert record.time_ps == 2 * LATENCY + (64 + 32) * NS // 8  # its entry is read, its completion record written
    assert not record.spans
    assert before.time_ps == after.time_ps == alone(long_job()).time_ps


def test_a_fault_leaves_parked_and_waiting_jobs_alone() -> None:
    bench = Bench()
    low_program, waiting_program = (bench.driver.load(long_job()) for _ in range(2))
    faulty = bench.driver.load(dataclasses.replace(round_trip(64), code=b"\xff" * 40))
    low = bench.submit(low_program, Priority.LOW)
    high = bench.submit(faulty, Priority.HIGH, 1500 * NS)
    waiting = bench.submit(waiting_program, Priority.MEDIUM)
    with pytest.raises(DeviceFaultError, match="device fault PROGRAM"):
        bench.driver.wait(high)
    after, record = bench.finish(waiting, low)
    assert after.fault is None
    assert after.digest() == alone(long_job()).digest()
    assert record.preemptions == 1
    assert record.time_ps == alone(long_job()).time_ps + record.suspended_ps


def test_a_unit_that_hangs_cannot_be_parked() -> None:
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    bench.device.faults.add([Fault(AtCommand(command=3, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    low = bench.submit(long_job(), Priority.LOW)
    bench.device.machine.clock.advance(2000 * NS)
    assert bench.device.faults.happened
    late = bench.submit(high, Priority.HIGH)
    assert not bench.driver.poll(10**12)
    bench.driver.abort(low)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(low)
    assert bench.finish(late)[0].fault is None


def test_a_context_area_outside_of_dram_is_not_taken() -> None:
    bench = Bench(preempt=False)
    bench.driver._rings.preempt(TINY.dram.bytes)
    assert bench.device.misuse[0].startswith("write of 0x1 to PREEMPT: CONTEXT_BASE must")
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, 2000 * NS)
    assert bench.finish(low)[0].preemptions == 0
    assert bench.records[low.seqno].time_ps == alone(long_job()).time_ps
    assert bench.finish(seqno)[0].fault is None


def _layer() -> Program:
    """Return one copy for one layer of a network."""
    stream = Stream()
    stream.dma(copy(0, region(1), 64), op=0)
    return stream.program(scratch=64)


LOADED = TINY.with_(**{"compiler.layer_bytes": "8000 B"})
LOADING = LATENCY + 8000 * NS // 8
"""Load time of one layer's instructions, at 8 bytes per ns."""


def test_a_job_is_aborted_while_its_instructions_are_loaded() -> None:
    whole = alone(_layer(), LOADED)
    assert whole.time_ps == alone(_layer()).time_ps + LOADING
    assert balanced(whole)
    bench = Bench(LOADED)
    job = bench.submit(_layer(), Priority.LOW)
    bench.device.machine.clock.advance(LOADING // 2)
    bench.driver.abort(job)
    with pytest.raises(JobAbortedError):
        bench.driver.wait(job)
    record = bench.records[job.seqno]
    assert record.aborted
    assert not record.spans
    assert bench.finish(bench.submit(_layer(), Priority.LOW))[0].time_ps == whole.time_ps


def test_the_region_table_is_read_once_whatever_is_loaded_after_it() -> None:
    bench = Bench(LOADED)
    loaded = bench.driver.load(_layer())
    table, size = loaded.slot.table, 16 * len(loaded.regions)
    job = bench.submit(loaded, Priority.LOW)
    bench.device.machine.clock.advance(LOADING // 2)
    bench.device.bus.write_memory(table, b"\xff" * size)
    assert bench.finish(job)[0].time_ps == alone(_layer(), LOADED).time_ps


def test_a_job_of_a_higher_class_goes_first_while_instructions_are_loaded() -> None:
    bench = Bench(LOADED)
    low = bench.submit(_layer(), Priority.LOW)
    high = bench.submit(_layer(), Priority.HIGH, LOADING // 2)
    records = bench.finish(low, high)
    ends = [record.started_ps + record.time_ps for record in records]
    assert ends[1] < ends[0]
    assert records[1].time_ps == alone(_layer(), LOADED).time_ps
    assert not records[0].preemptions
