"""Faults take effect exactly at their picosecond."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import pytest

from npusim.device.npu import NpuDevice
from npusim.device.registers import BY_NAME
from npusim.driver import Priority
from npusim.errors import DeviceFaultError, JobAbortedError
from npusim.faults import (
    AtCommand,
    AtDoorbell,
    AtInterrupt,
    AtJob,
    AtRead,
    AtSeqno,
    AtTime,
    AtWrite,
    Ecc,
    Fault,
    Flip,
    Hang,
    LoseWrite,
    MessageFault,
    Resets,
    Slow,
    Stuck,
    Throttle,
    Unplug,
    What,
    Wrong,
)
from npusim.hw.config import load_config
from npusim.sim.watch import Watcher
from npusim.timeline import Span, Timeline
from tests.support.bare_device import QUICK, BareDevice
from tests.support.programs.streams import Stream, add
from tests.support.programs.timed_jobs import Bench, alone, long_job

T = 1_000_000


def device(*faults: Fault) -> BareDevice:
    made = BareDevice(QUICK)
    assert made.now_ps < 1000
    made.device.faults.add(list(faults))
    return made


def at(what: What) -> Fault:
    return Fault(AtTime(time_ps=T), what)


def until(bare: BareDevice, time_ps: int) -> None:
    bare.advance(time_ps - bare.now_ps)


class Messages(Watcher):
    steps = False

    def __init__(self, bare: BareDevice) -> None:
        self.bare, self.times = bare, list[int]()
        bare.device.watch(self)

    def interrupt(self, vector: int) -> None:
        self.times.append(self.bare.now_ps)


def test_a_register_is_stuck_from_its_picosecond_to_its_picosecond() -> None:
    bare = device(at(Stuck(stuck="STATUS", field="BUSY", value=1, lasts=5000)))
    seen = []
    for time_ps in (T - 1, T, T + 4999, T + 5000):
        until(bare, time_ps)
        seen.append(bare["STATUS"])
    assert seen == [1, 3, 3, 1]


def test_a_clock_is_throttled_from_its_picosecond_to_its_picosecond() -> None:
    bare = device(at(Throttle(throttle=Fraction(5, 2), lasts=5000)))
    usual, seen = bare["CAP_CLOCK"], []
    for time_ps in (T - 1, T, T + 4999, T + 5000):
        until(bare, time_ps)
        seen.append(bare["CLOCK"])
    assert seen == [usual, usual * 2 // 5, usual * 2 // 5, usual]


def test_a_throttle_outlives_a_reset() -> None:
    bare = device(at(Throttle(throttle=Fraction(2))))
    until(bare, T)
    bare["CONTROL"] = 1
    assert bare["CLOCK"] == bare["CAP_CLOCK"] // 2


def test_a_device_is_gone_from_its_picosecond_to_its_picosecond() -> None:
    bare = device(at(Unplug(unplug=True, lasts=5000)))
    bare.bus.write_memory(64, b"\1\2\3\4")
    bare["INT_MASK"] = 3
    seen = []
    for time_ps in (T - 1, T, T + 4999, T + 5000):
        until(bare, time_ps)
        seen.append((bare["ID"], bare["INT_MASK"], bare.bus.read(2, 64, 4)))
    gone = (0xFFFF_FFFF,) * 3
    assert seen == [(0x3155_504E, 3, 0x0403_0201), gone, gone, (0x3155_504E, 0, 0)]


def test_a_bit_flips_at_its_picosecond() -> None:
    bare = device(at(Flip(flip="dram", address=100, bit=6)))
    until(bare, T - 1)
    assert bare.bus.read(2, 100, 1) == 0
    until(bare, T)
    assert bare.bus.read(2, 100, 1) == 0x40


def test_a_reset_takes_to_its_picosecond() -> None:
    bare = device(at(Resets(reset="late", delay_ps=7000)))
    until(bare, T - 1)
    bare["CONTROL"] = 1
    assert bare["STATUS"] == 1  # not yet
    until(bare, T)
    bare["CONTROL"] = 1
    bare["INT_MASK"] = 3
    assert (bare["STATUS"], bare["INT_MASK"]) == (0, 0)
    until(bare, T + 6999)
    assert bare["STATUS"] == 0
    until(bare, T + 7000)
    bare["INT_MASK"] = 3
    assert (bare["STATUS"], bare["INT_MASK"]) == (1, 3)
    bare["CONTROL"] = 1
    assert bare["STATUS"] == 1  # one reset alone


def test_a_reset_that_never_comes_back_does_when_the_fault_is_over() -> None:
    bare = device(at(Resets(reset="never", lasts=9000)))
    until(bare, T)
    bare["CONTROL"] = 1
    until(bare, T + 8999)
    bare["CONTROL"] = 1
    assert bare["STATUS"] == 0
    until(bare, T + 9000)
    assert bare["STATUS"] == 0  # it was not reset since
    bare["CONTROL"] = 1
    assert bare["STATUS"] == 1


def test_messages_about_nothing_come_at_their_times() -> None:
    bare = device(at(MessageFault(interrupt="storm", count=4, delay_ps=300)))
    messages = Messages(bare)
    bare.advance(2 * T)
    assert messages.times == [T, T + 300, T + 600, T + 900]
    assert bare["INT_STATUS"] == 0


@pytest.mark.parametrize(
    ("kind", "times"), [("lose", []), ("delay", [700]), ("double", [0, 700]), ("spurious", [0, 0])]
)
def test_a_message_comes_as_it_is_told(kind: str, times: list[int]) -> None:
    plain = device()
    usual = Messages(plain)
    plain.submit("MEDIUM", long_job())
    plain.advance(10 * T)
    (sent,) = usual.times
    bare = device(Fault(AtInterrupt(interrupt=1), MessageFault(interrupt=kind, delay_ps=700)))
    messages = Messages(bare)
    bare.submit("MEDIUM", long_job())
    bare.advance(10 * T)
    assert messages.times == [sent + time_ps for time_ps in times]
    bare.device.faults.check()


def test_a_message_that_is_late_does_not_come_after_a_reset() -> None:
    bare = device(Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="delay", delay_ps=50 * T)))
    messages = Messages(bare)
    bare.submit("MEDIUM", long_job())
    bare.advance(10 * T)
    bare["CONTROL"] = 1
    bare.advance(100 * T)
    assert messages.times == []


def test_accesses_are_counted_and_the_one_counted_is_met() -> None:
    bare = device(
        Fault(AtRead(read="INT_MASK", nth=3, times=2), Wrong(wrong="INT_MASK", invert=0xF0)),
        Fault(AtWrite(write="INT_MASK", nth=2), LoseWrite(lose_write="INT_MASK")),
        Fault(AtDoorbell(doorbell=2, ring="HIGH"), Flip(flip="dram", address=0, bit=0)),
    )
    assert [bare["INT_MASK"] for _ in range(6)] == [3, 3, 0xF3, 0xF3, 3, 3]
    for value, found in ((1, 1), (2, 1), (2, 2)):
        bare["INT_MASK"] = value
        assert bare["INT_MASK"] == found
    for name, flipped in (("HIGH", 0), ("LOW", 0), ("HIGH", 1), ("HIGH", 1)):
        bare.ring(name)
        assert bare.bus.read(2, 0, 1) == flipped
    assert [each.fault for each in bare.device.faults.happened] == [
        f"faults: fault {number}" for number in (1, 1, 2, 3)
    ]


def spans_of(*faults: Fault, copies: int = 4, program: Any = None) -> list[Span]:
    bench = Bench(preempt=False)
    bench.device.faults.add(list(faults))
    record = bench.finish(bench.submit(program or long_job(copies), Priority.MEDIUM))[0]
    bench.device.faults.check()
    check_sums(record)
    return record.spans


def check_sums(record: Timeline) -> None:
    for unit in record.counters.units.values():
        assert unit.busy_ps + unit.idle_ps + sum(unit.stalls.values()) == record.counters.duration_ps


def test_what_hangs_at_the_end_of_a_command_does_not_end_it_and_a_picosecond_later_does() -> None:
    record = alone(long_job())
    end = record.started_ps + record.spans[1].end_ps
    for late, done in ((0, 1), (1, 2)):
        bench = Bench(preempt=False)
        bench.device.faults.add([Fault(AtTime(time_ps=end + late), Hang(hang="core0.dma0"))])
        job = bench.submit(long_job(), Priority.MEDIUM)
        assert not bench.driver.poll(10**12)
        bench.driver.abort(job)
        with pytest.raises(JobAbortedError):
            bench.driver.wait(job)
        assert len(bench.records[job.seqno].spans) == done
        check_sums(bench.records[job.seqno])
        assert bench.finish(bench.submit(long_job(), Priority.MEDIUM))[0].digest() == record.digest()


def test_a_unit_that_hangs_for_a_time_makes_the_job_so_much_longer() -> None:
    usual = alone(long_job())
    for number in range(1, 5):
        fault = Fault(AtCommand(command=number, unit="core0.dma0"), Hang(hang="core0.dma0", lasts=12_345))
        found = spans_of(fault)
        assert found[-1].end_ps == usual.spans[-1].end_ps + 12_345
        assert found[number - 1].start_ps == usual.spans[number - 1].start_ps
        assert found[number - 1].end_ps == usual.spans[number - 1].end_ps + 12_345


def test_a_unit_that_hangs_where_a_command_was_to_end_ends_it_when_it_goes_on() -> None:
    usual = alone(long_job())
    start = usual.started_ps + usual.spans[1].start_ps
    lasts = usual.spans[1].end_ps - usual.spans[1].start_ps + 777
    found = spans_of(Fault(AtTime(time_ps=start + 1), Hang(hang="core0.dma0", lasts=lasts)))
    assert found[1].end_ps == usual.spans[1].start_ps + 1 + lasts


def test_a_slow_channel_takes_so_many_times_as_long_from_the_command_on() -> None:
    usual = alone(long_job()).spans
    found = spans_of(Fault(AtCommand(command=3, unit="core0.dma0"), Slow(slow="core0.dma0", factor=Fraction(4))))
    lengths = [span.end_ps - span.start_ps for span in found]
    assert lengths == [(span.end_ps - span.start_ps) * factor for span, factor in zip(usual, (1, 1, 4, 4), strict=True)]


def test_a_throttled_clock_slows_what_starts_while_it_lasts() -> None:
    stream = Stream()
    for _ in range(4):
        stream.vector(add(0, 64, 128, 64))
    program = stream.program()
    usual = alone(program)
    length = usual.spans[0].end_ps - usual.spans[0].start_ps
    begin = usual.started_ps + usual.spans[1].start_ps
    for late, factor in ((0, 2), (1, 1)):
        found = spans_of(Fault(AtTime(time_ps=begin + late), Throttle(throttle=Fraction(2), lasts=10)), program=program)
        assert [span.end_ps - span.start_ps for span in found] == [length, length * factor, length, length]


def test_a_sequencer_that_hangs_for_a_time_holds_up_what_it_has_not_sent_off() -> None:
    usual = alone(long_job(40))
    third = usual.started_ps + usual.spans[2].end_ps
    lasts = usual.spans[-1].end_ps
    found = spans_of(Fault(AtTime(time_ps=third), Hang(hang="sequencer", lasts=lasts)), copies=40)
    assert found[2] == usual.spans[2]
    assert found[-1].end_ps > usual.spans[-1].end_ps + lasts // 2


def test_errors_of_memories_are_counted_and_placed() -> None:
    bare = device(
        at(Ecc(ecc="corrected", address=0x1_2345_6789 % QUICK.dram.bytes)),
        Fault(AtTime(time_ps=2 * T), Ecc(ecc="corrected", memory="sram", address=8)),
        Fault(AtTime(time_ps=3 * T), Ecc(ecc="uncorrected", memory="dram", address=0x77)),
    )
    names = ("ECC_CORRECTED", "ECC_UNCORRECTED", "ECC_ADDR_LO", "ECC_WHERE")
    seen = []
    for time_ps in (T, 2 * T, 3 * T):
        until(bare, time_ps)
        seen.append(tuple(bare[name] for name in names))
    assert seen == [(1, 0, 0x1_2345_6789 % QUICK.dram.bytes, 0), (2, 0, 8, 1), (2, 1, 0x77, 0)]
    # Nobody had the machine: the next job finds it.
    entry = bare.submit("LOW", long_job())
    assert bare.wait() == 3
    assert (bare["FAULT_CODE"], bare["FAULT_ADDR_LO"], bare["FAULT_RING"]) == (9, 0x77, 1)
    assert bare.text(entry) == "dram: an error at 0x77 that cannot be corrected"
    assert bare.device.last_job is not None
    assert [each.what for each in bare.device.last_job.injected] == ["ecc"]
    bare["CONTROL"] = 2
    assert bare["STATUS"] == 1
    entry = bare.submit("LOW", long_job())
    bare.wait()
    assert bare.completion(entry).status == 1


def test_a_parked_job_comes_back_though_its_unit_hung_meanwhile() -> None:
    usual = alone(long_job(8))
    bench = Bench()
    bench.device.faults.add([Fault(AtJob(job=2, stage="runs"), Hang(hang="core0.dma0", lasts=123_456))])
    low = bench.submit(long_job(8), Priority.LOW)
    high = bench.submit(long_job(2), Priority.HIGH, 2_000_000)
    records = bench.finish(low, high)
    assert records[0].preemptions == 1
    assert records[0].time_ps == usual.time_ps + records[0].suspended_ps
    for record in records:
        check_sums(record)


def test_a_seqno_is_met_at_each_stage() -> None:
    for stage in ("begins", "runs", "ends"):
        bench = Bench(preempt=False)
        bench.device.faults.add([Fault(AtSeqno(seqno=2, stage=stage), Ecc(ecc="corrected", address=1))])
        first, second = (bench.finish(bench.submit(long_job(), Priority.MEDIUM))[0] for _ in range(2))
        assert first.injected == ()
        assert len(bench.device.faults.happened) == 1
        moment = bench.device.faults.happened[0].at_ps - second.started_ps
        if stage == "ends":
            assert moment == second.time_ps
        else:
            assert 0 < moment <= second.spans[0].start_ps
            assert (moment == second.spans[0].start_ps) == (stage == "runs")


def test_faults_that_are_cleared_do_not_come() -> None:
    bench = Bench(preempt=False)
    bench.device.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Hang(hang="core0.dma0", lasts="ever"))])
    job = bench.submit(long_job(), Priority.MEDIUM)
    with pytest.raises(DeviceFaultError, match="TIMEOUT"):
        bench.driver.wait(job, 10**12)
    with pytest.raises(DeviceFaultError, match="TIMEOUT"):  # a reset does not help
        bench.driver.wait(bench.submit(long_job(), Priority.MEDIUM), 10**12)
    bench.device.faults.clear()
    assert not bench.device.machine.watchers
    assert bench.finish(bench.submit(long_job(), Priority.MEDIUM))[0].digest() == alone(long_job()).digest()
    bench.device.faults.check()


def test_a_job_under_way_meets_what_is_added_and_goes_on_when_it_is_cleared() -> None:
    usual = alone(long_job(8))
    bench = Bench(preempt=False)
    job = bench.submit(long_job(8), Priority.MEDIUM)
    bench.device.machine.clock.advance(usual.spans[2].start_ps)
    bench.device.faults.add([Fault(AtCommand(command=1, unit="core0.dma0"), Hang(hang="core0.dma0"))])
    assert not bench.driver.poll(10**12)
    bench.device.faults.clear()
    record = bench.finish(job)[0]
    assert record.fault is None
    assert len(record.spans) == 8
    check_sums(record)


def test_a_register_that_faults_name_is_one_that_can_be_accessed_so() -> None:
    bare = device()
    for name, register in BY_NAME.items():
        for what in ("read", "write"):
            moment = {"when": {what: name}, "what": {"flip": "dram", "address": 0, "bit": 0}}
            allowed = register.access.value != ("write only" if what == "read" else "read only")
            if allowed and not register.part:
                bare.device.faults.add([moment])
            elif not allowed:
                with pytest.raises(Exception, match=f"when.{what}: must be one of"):
                    bare.device.faults.add([moment])


def test_bits_flip_in_the_memories_of_each_core() -> None:
    made = NpuDevice(load_config("edge").with_(cores=2))
    places = [(memory, core) for memory in ("sram", "accumulators") for core in (0, 1)]
    made.faults.add([at(Flip(flip=memory, address=9, bit=2 + core, core=core)) for memory, core in places])
    made.machine.clock.advance(T)
    memory = made.machine.memory
    assert [int(each[9]) for each in (*memory.sram, *memory.acc)] == [4, 8, 4, 8]
    assert all(each.sum() == each[9] for each in (*memory.sram, *memory.acc))


@pytest.mark.parametrize(
    "what",
    [
        {"fail": "core0.dma0", "count": 2**31}, {"lose_write": "MEDIUM_DOORBELL", "count": 2**31},
        {"interrupt": "lose", "count": 10**6},
    ],
)  # fmt: skip
def test_a_fault_that_comes_often_takes_no_room_for_each(what: dict[str, object]) -> None:
    """Two thousand million occurrences once took as many list entries, 17 GB."""
    device = NpuDevice(load_config("tiny"), [{"when": {"time": "1 ns"}, "what": what}])
    tracemalloc.start()
    try:
        device.run_until(10_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        device.close()
