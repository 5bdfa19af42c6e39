"""When a job is preempted and resumed on the tiny device: one cycle is 1 ns, DRAM transfers 8 bytes per ns after 100
ns.

Jobs are written directly to the device's rings, so that each arrives at a chosen time.
"""

from __future__ import annotations

import numpy as np
import pytest

from npusim.driver import Priority
from npusim.hw.units.dma import FETCH_BYTES
from npusim.isa.base import region
from npusim.program import FIRST_IO, Program
from npusim.timeline import NO_OP
from tests.support.programs.streams import Stream, add, copy, round_trip
from tests.support.programs.timed_jobs import (
    CONTEXT_BYTES,
    LATENCY,
    MOVE,
    NS,
    SUBMIT_PS,
    TINY,
    Bench,
    alone,
    balanced,
    long_job,
    moves,
)


def test_the_bench_takes_no_time_of_its_own() -> None:
    bench = Bench()
    loaded = bench.driver.load(round_trip(64))
    before = bench.device.now_ps
    bench.submit(loaded, Priority.LOW)
    assert bench.device.now_ps == before + SUBMIT_PS


@pytest.mark.parametrize("early_ps", [1, 2, 200 * NS])
def test_a_job_leaves_when_the_running_command_has_ended(early_ps: int) -> None:
    """The higher job arrives before the end of a command: the save starts exactly at that end."""
    ends = [span.end_ps for span in alone(long_job()).spans]
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    started = bench.device.now_ps
    seqno = bench.submit(high, Priority.HIGH, ends[1] - early_ps)
    above, record = bench.finish(seqno, low)
    save, restore = moves(record)
    assert (save.kind, save.start_ps, save.end_ps) == ("context.save", ends[1], ends[1] + MOVE)
    assert save.bytes == restore.bytes == CONTEXT_BYTES
    assert save.op == restore.op == NO_OP
    assert above.started_ps == started + ends[1] + MOVE
    assert restore.start_ps == ends[1] + MOVE + above.time_ps
    assert (restore.kind, restore.end_ps) == ("context.restore", restore.start_ps + MOVE)
    assert record.suspended_ps == restore.end_ps - save.start_ps
    copies = [span for span in record.spans if span.unit == "core0.dma0"]
    assert copies[1].end_ps == ends[1]
    assert copies[2].start_ps == restore.end_ps  # what waited in the queue goes on at once
    assert record.time_ps == alone(long_job()).time_ps + record.suspended_ps


def test_a_job_that_comes_at_a_boundary_waits_for_the_next() -> None:
    ends = [span.end_ps for span in alone(long_job()).spans]
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, ends[1])
    _, record = bench.finish(seqno, low)
    assert moves(record)[0].start_ps == ends[2]


def test_the_context_is_as_large_as_the_cores_that_the_job_uses() -> None:
    config = TINY.with_(cores=3)
    stream = Stream()
    for core in (0, 2):
        for _ in range(3):
            stream.dma(copy(0, region(1), 4096), core=core)
    bench = Bench(config)
    high = bench.driver.load(round_trip(64))
    low = bench.submit(stream.program(scratch=4096), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, 2000 * NS)
    _, record = bench.finish(seqno, low)
    assert [span.bytes for span in moves(record)] == [2 * CONTEXT_BYTES] * 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dram.latency": "1 us", "dma.max_outstanding": 256}, MOVE + 900 * NS),
        ({"dram.latency": "1 us", "dma.max_outstanding": 16}, 1000 * NS + CONTEXT_BYTES // (16 * 64) * 1000 * NS),
        ({"dram.bandwidth": "4 GB/s"}, LATENCY + CONTEXT_BYTES * NS // 4),
        ({"dma.bytes_per_cycle": 2}, LATENCY + CONTEXT_BYTES * NS // 2),
        ({"dma.bytes_per_cycle": 2, "dma.channels": 3}, LATENCY + -(-CONTEXT_BYTES * NS // 6)),
    ],
)
def test_what_a_context_takes_follows_from_the_config(changes: dict[str, object], expected: int) -> None:
    config = TINY.with_(**changes)
    first = alone(long_job(), config).spans[0]
    bench = Bench(config)
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, first.end_ps + NS)
    _, record = bench.finish(seqno, low)
    save, restore = moves(record)
    assert save.end_ps - save.start_ps == restore.end_ps - restore.start_ps == expected


def test_high_interrupts_medium_which_has_interrupted_low() -> None:
    bench = Bench()
    loaded = {priority: bench.driver.load(long_job(6)) for priority in Priority}
    low = bench.submit(loaded[Priority.LOW], Priority.LOW)
    medium = bench.submit(loaded[Priority.MEDIUM], Priority.MEDIUM, 1000 * NS)
    high = bench.submit(loaded[Priority.HIGH], Priority.HIGH, MOVE + 2000 * NS)
    records = dict(zip(Priority, bench.finish(low, medium, high), strict=True))
    ends = {priority: record.started_ps + record.time_ps for priority, record in records.items()}
    assert ends[Priority.HIGH] < ends[Priority.MEDIUM] < ends[Priority.LOW]
    assert records[Priority.HIGH].preemptions == 0
    assert [span.kind for span in moves(records[Priority.MEDIUM])] == ["context.save", "context.restore"]
    assert [span.kind for span in moves(records[Priority.LOW])] == ["context.save", "context.restore"]
    assert all(balanced(record) for record in records.values())
    medium_back = moves(records[Priority.MEDIUM])[1].start_ps + records[Priority.MEDIUM].started_ps
    assert medium_back == ends[Priority.HIGH]
    low_back = moves(records[Priority.LOW])[1].start_ps + records[Priority.LOW].started_ps
    assert low_back == ends[Priority.MEDIUM]


def test_a_job_that_comes_during_a_restore_has_the_machine_at_its_end() -> None:
    """The context in DRAM is still valid, so nothing is saved again."""
    bench = Bench()
    high = [bench.driver.load(round_trip(64)) for _ in range(2)]
    low = bench.submit(long_job(), Priority.LOW)
    first = bench.submit(high[0], Priority.HIGH, 2000 * NS)
    bench.finish(first)
    second = bench.submit(high[1], Priority.HIGH, MOVE // 2)
    above, record = bench.finish(second, low)
    kinds = [span.kind for span in moves(record)]
    assert kinds == ["context.save", "context.restore", "context.restore"]
    assert above.started_ps == record.started_ps + moves(record)[1].end_ps
    assert balanced(record)


def test_the_same_class_does_not_interrupt_itself() -> None:
    bench = Bench()
    loaded = [bench.driver.load(long_job()) for _ in range(2)]
    seqnos = [bench.submit(item, Priority.HIGH, 500 * NS) for item in loaded]
    first, second = bench.finish(*seqnos)
    assert not moves(first)
    assert not moves(second)
    assert second.started_ps == first.started_ps + first.time_ps


def test_without_a_context_area_nobody_is_interrupted() -> None:
    bench = Bench(preempt=False)
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, 2000 * NS)
    above, record = bench.finish(seqno, low)
    assert not moves(record)
    assert record.time_ps == alone(long_job()).time_ps
    assert above.started_ps == record.started_ps + record.time_ps


def test_a_job_without_competitors_takes_what_it_took_before() -> None:
    for program in (long_job(), round_trip(1000)):
        bench = Bench()
        record = bench.finish(bench.submit(program, Priority.LOW))[0]
        assert record.digest() == alone(program).digest()
        assert record.time_ps == alone(program).time_ps


def test_a_job_that_is_being_fetched_goes_back_into_its_ring() -> None:
    """Its region table is being read when the higher job arrives: it has nothing to save, and starts again."""
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    began = bench.device.now_ps
    seqno = bench.submit(high, Priority.HIGH, 150 * NS)
    above, record = bench.finish(seqno, low)
    entry_and_table = 2 * LATENCY + 64 * NS // 8 + 16 * 2 * NS // 8
    assert above.started_ps == began + entry_and_table
    assert not moves(record)
    assert record.started_ps == above.started_ps + above.time_ps
    assert record.suspended_ps == 0


def test_counters_say_that_the_units_were_preempted() -> None:
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, 2000 * NS)
    _, record = bench.finish(seqno, low)
    units = record.counters.units
    assert units["core0.vector"].stalls == {"preempted": record.suspended_ps}
    assert units["sequencer"].stalls["preempted"] == record.suspended_ps
    assert balanced(record)
    before = alone(long_job()).counters
    assert record.counters.dram_write_bytes == before.dram_write_bytes + CONTEXT_BYTES
    assert record.counters.dram_read_bytes == before.dram_read_bytes + CONTEXT_BYTES
    assert record.counters.dram_busy_ps == before.dram_busy_ps + 2 * (MOVE - LATENCY)


def test_a_stream_that_is_longer_than_the_fetch_buffer_goes_on() -> None:
    """Fetching stops and resumes with the job, long before the next command is needed."""
    program = long_job(400)
    assert len(program.code) > 4 * FETCH_BYTES
    wanted = alone(program)
    for number in (1, 50, 200, 398):
        bench = Bench()
        high = bench.driver.load(round_trip(64))
        low = bench.submit(program, Priority.LOW)
        seqno = bench.submit(high, Priority.HIGH, wanted.spans[number - 1].end_ps + NS)
        _, record = bench.finish(seqno, low)
        assert record.time_ps == wanted.time_ps + record.suspended_ps
        assert record.counters.dram_read_bytes == wanted.counters.dram_read_bytes + CONTEXT_BYTES
        assert balanced(record)


def test_a_job_in_its_last_command_ends_and_is_not_parked() -> None:
    program = long_job()
    wanted = alone(program)
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(program, Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, wanted.spans[-2].end_ps + NS)
    above, record = bench.finish(seqno, low)
    assert record.digest() == wanted.digest()
    assert record.time_ps == wanted.time_ps
    assert above.started_ps == record.started_ps + record.time_ps


QUICK = TINY.with_(**{
    "dma.setup_cycles": 0, "vector.setup_cycles": 0, "sram.latency_cycles": 0, "queue_depth": 32,
})  # fmt: skip
"""Units that finish a command before the next one is dispatched."""


def quick_job(pairs: int) -> Program:
    """Return commands of one or a few cycles, alternating between two units."""
    stream = Stream()
    for _ in range(pairs):
        stream.vector(add(0, 0, 0, 8))
        stream.dma(copy(1024, 2048, 8))
    return stream.program()


def test_commands_on_their_way_to_a_queue_arrive_before_the_job_leaves() -> None:
    """After the first fetch, one command per cycle is dispatched until a queue of eight is full; the units keep up."""
    config = QUICK.with_(queue_depth=8)
    wanted = alone(quick_job(12), config)
    first = min(span.start_ps for span in wanted.spans)
    bench = Bench(config)
    high = bench.driver.load(round_trip(64))
    low = bench.submit(quick_job(12), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, first + 1)
    _, record = bench.finish(seqno, low)
    sent_off = 2 * (1 + 8)  # one at each unit, eight in each queue
    assert moves(record)[0].start_ps == first + (sent_off - 1) * NS
    assert balanced(record)
    assert record.counters.instructions == 25


def test_a_job_that_leaves_dispatches_nothing_more() -> None:
    bench = Bench()
    high = bench.driver.load(round_trip(64))
    low = bench.submit(long_job(100), Priority.LOW)
    seqno = bench.submit(high, Priority.HIGH, 2000 * NS)
    run = bench.device.machine.current
    assert run is not None
    before = run.sequencer.dispatched
    bench.device.machine.clock.advance(2000 * NS)
    assert run.parked
    assert run.sequencer.dispatched == before
    bench.finish(seqno, low)
    assert run.sequencer.dispatched == 101


@pytest.mark.parametrize("depth", [1, 2, 32])
def test_a_job_that_waits_for_its_own_commands_can_be_parked_at_any_time(depth: int) -> None:
    """Quick commands are faster than the fetch, so the sequencer sometimes starves, also after the job resumes."""
    config, program = QUICK.with_(queue_depth=depth), quick_job(200)
    wanted = alone(program, config)
    done = sorted((span.unit, span.kind) for span in wanted.spans)
    assert len(program.code) > 4 * FETCH_BYTES
    for part in range(1, 24):
        bench = Bench(config)
        high = bench.driver.load(round_trip(64))
        low = bench.submit(program, Priority.LOW)
        seqno = bench.submit(high, Priority.HIGH, wanted.time_ps * part // 24)
        _, record = bench.finish(seqno, low)
        assert sorted((span.unit, span.kind) for span in record.spans if "." in span.unit) == done
        assert balanced(record)
        assert min(count for unit in record.counters.units.values() for count in unit.stalls.values()) >= 0


def test_memories_come_back_as_they_were() -> None:
    """The low job keeps a value in SRAM while the high one overwrites all of it."""
    values = np.arange(64, dtype=np.uint8)
    stream = Stream()
    begun = stream.dma(copy(0, region(FIRST_IO), 64))
    slow = stream.dma(copy(1024, region(1), 4096), begun)
    total = stream.vector(add(64, 0, 0, 64), slow)
    stream.dma(copy(region(FIRST_IO + 1), 64, 64), total)
    bench = Bench()
    program = bench.driver.load(stream.program([64], [64], scratch=4096))
    spoil = Stream()
    spoil.dma(copy(0, region(1), TINY.sram.bytes))
    high = bench.driver.load(spoil.program(scratch=TINY.sram.bytes))
    low = bench.driver.submit(program, {"x0": values}, priority=Priority.LOW)
    bench.device.machine.clock.advance(700 * NS)
    seqno = bench.driver.submit(high, {}, priority=Priority.HIGH)
    bench.driver.wait(seqno)
    result = bench.driver.wait(low)
    assert bench.records[low.seqno].preemptions == 1
    assert np.array_equal(result.outputs["y0"], values * 2)
