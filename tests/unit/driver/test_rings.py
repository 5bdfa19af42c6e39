"""The rings as seen on the bus: which registers are written and read, in which order, and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.device.bus import Bus
from npusim.driver import LoadedProgram, header
from npusim.driver.alloc import Allocator
from npusim.driver.jobs import DriverJob, Slot
from npusim.driver.link import Link
from npusim.driver.rings import LOG_BYTES, RING_ENTRIES, SLICE_PS, Rings
from npusim.errors import DeviceFaultError, DeviceGoneError, JobAbortedError, QueueFullError
from tests.support.programs.streams import round_trip

HIGH = 5 << 32
"""An address that needs both words of a register pair."""
BYTES = RING_ENTRIES * header.ENTRY.size
ACKNOWLEDGED = ("write", header.INT_STATUS, header.INT_DONE | header.INT_FAULT)
READY = ("read", header.STATUS)


class Recorder(Bus):
    """Registers and memory as set by a test; every access is recorded."""

    def __init__(self) -> None:
        self.registers = {header.STATUS: header.STATUS_READY}
        self.memory: dict[int, bytes] = {}
        self.interrupts: list[int] = []
        self.seen: list[tuple[Any, ...]] = []

    def read(self, bar: int, offset: int, size: int) -> int:
        assert (bar, size) == (0, 4)
        self.seen.append(("read", offset))
        return self.registers.get(offset, 0)

    def write(self, bar: int, offset: int, size: int, value: int) -> None:
        assert (bar, size) == (0, 4)
        assert 0 <= value < 1 << 32
        self.seen.append(("write", offset, value))

    def read_memory(self, address: int, size: int) -> bytearray:
        self.seen.append(("fetch", address))
        return bytearray(self.memory.get(address, b"").ljust(size, b"\0"))

    def write_memory(self, address: int, data: bytes | bytearray | memoryview) -> None:
        self.seen.append(("store", address, bytes(data)))

    def wait_irq(self, timeout_ps: int) -> int:
        self.seen.append(("wait", timeout_ps))
        return self.interrupts.pop(0) if self.interrupts else 0

    def host_work(self, kind: str) -> None:
        self.seen.append(("work", kind))

    def take(self) -> list[tuple[Any, ...]]:
        """Return the accesses since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def complete(self, job: DriverJob, status: int = header.JOB_DONE, code: int = 0, address: int = 0) -> None:
        """Write the completion record of a job as the device does."""
        assert job.slot is not None
        self.memory[job.slot.completion] = header.COMPLETION.pack(job.seqno, status, code, address, 77)


@pytest.fixture
def bus() -> Recorder:
    return Recorder()


@pytest.fixture
def rings(bus: Recorder) -> Rings:
    return Rings(Link(bus), Allocator(HIGH, 1 << 20))


def a_job(seqno: int, priority: int = 1) -> DriverJob:
    program = round_trip(64)
    job = DriverJob(program, priority=priority, timing_only=True)
    job.loaded, job.seqno = LoadedProgram(program, 0x1000, 0x2000, (1, 2, 3), 7), seqno
    job.slot = Slot(0x3000 + seqno, 0x4000 + seqno, 0x5000 + seqno)
    return job


def test_a_reset_names_every_ring_in_both_words(bus: Recorder, rings: Rings) -> None:
    rings.reset()
    places = [
        write
        for number, registers in enumerate(header.RINGS)
        for write in (
            ("write", registers + header.BASE_LO, number * BYTES), ("write", registers + header.BASE_HI, 5),
            ("write", registers + header.SIZE, 64),
        )
    ]  # fmt: skip
    assert bus.take() == [
        ("write", header.CONTROL, header.CONTROL_RESET), ("wait", 0), *places,
        ("write", header.INT_MASK, header.INT_DONE | header.INT_FAULT), READY,
    ]  # fmt: skip


def test_preemption_outlives_a_reset(bus: Recorder, rings: Rings) -> None:
    rings.preempt(HIGH + 0x200)
    enabled = [
        ("write", header.CONTEXT_BASE_LO, 0x200), ("write", header.CONTEXT_BASE_HI, 5),
        ("write", header.PREEMPT, header.PREEMPT_ENABLE),
    ]  # fmt: skip
    assert bus.take() == enabled
    rings.reset()
    assert bus.take()[-4:] == [*enabled, READY]


def test_a_device_that_a_reset_does_not_help(bus: Recorder, rings: Rings) -> None:
    bus.registers[header.STATUS] = header.STATUS_READY | header.STATUS_FAULT
    with pytest.raises(DeviceFaultError, match="status after reset is 0x5") as caught:
        rings.reset()
    assert (caught.value.code, caught.value.address) == ("NOT_READY", 0)


def test_a_job_is_complete_before_its_doorbell_rings(bus: Recorder, rings: Rings) -> None:
    for number, priority in ((1, 1), (2, 1), (3, 2)):
        job = a_job(number, priority)
        job.flags = header.FLAG_TIMING_ONLY
        rings.submit(job)
        tail = 2 if number == 2 else 1
        base, registers = HIGH + priority * BYTES, header.RINGS[priority]
        assert job.entry == base + (tail - 1) * header.ENTRY.size
        entry = header.ENTRY.pack(
            header.ENTRY_MAGIC, 1, 0x1000, len(job.program.code), 3, 0x3000 + number, number, 0x4000 + number,
            0x5000 + number, LOG_BYTES, 7,
        )  # fmt: skip
        assert bus.take() == [
            ("work", "submit"), ("store", 0x4000 + number, header.COMPLETION.pack(number, 0, 0, 0, 0)),
            ("store", job.entry, entry), ("write", registers + header.TAIL, tail),
            ("write", registers + header.DOORBELL, 1),
        ]  # fmt: skip


def test_a_ring_holds_64_jobs_and_begins_anew(bus: Recorder, rings: Rings) -> None:
    jobs = [a_job(number) for number in range(1, 66)]
    for job in jobs[:64]:
        rings.check_room(1)
        rings.submit(job)
    with pytest.raises(QueueFullError, match="64 jobs of priority 1 are in the device"):
        rings.check_room(1)
    rings.check_room(0)
    bus.complete(jobs[0])
    assert rings.look()
    rings.check_room(1)
    rings.submit(jobs[64])
    assert jobs[64].entry == jobs[0].entry
    assert bus.take()[-2] == ("write", header.RINGS[1] + header.TAIL, 65)


def test_an_abort_marks_the_entry_and_names_the_seqno_in_both_words(bus: Recorder, rings: Rings) -> None:
    job = a_job((7 << 32) + 9)
    job.flags = header.FLAG_TIMING_ONLY
    rings.submit(job)
    bus.take()
    rings.abort(job)
    assert bus.take() == [
        ("store", job.entry + header.FLAGS_OFFSET, header.FLAGS.pack(3)), ("write", header.ABORT_SEQNO_LO, 9),
        ("write", header.ABORT_SEQNO_HI, 7), ("write", header.ABORT, header.ABORT_GO),
    ]  # fmt: skip


def test_an_interrupt_is_acknowledged_before_records_are_read(bus: Recorder, rings: Rings) -> None:
    """Otherwise an interrupt in between would be cleared unnoticed."""
    job = a_job(1)
    rings.submit(job)
    bus.take()
    bus.interrupts = [1]
    bus.complete(job)
    assert rings.poll(500)
    assert bus.take() == [("wait", 500), ACKNOWLEDGED, ("fetch", 0x4001)]  # and the status answers nothing more
    assert (job.ended, job.cycles, job.error) == (True, 77, None)


def test_without_an_interrupt_nothing_is_acknowledged(bus: Recorder, rings: Rings) -> None:
    rings.submit(a_job(1))
    bus.take()
    assert not rings.look()
    assert bus.take() == [("fetch", 0x4001), READY]


def test_silence_of_a_slice_is_enough_to_look(bus: Recorder, rings: Rings) -> None:
    job = a_job(1)
    rings.submit(job)
    bus.complete(job)  # whose interrupt was lost
    bus.take()
    assert not rings.poll(SLICE_PS - 1)
    assert not job.ended
    assert rings.poll(1)
    assert bus.take() == [("wait", SLICE_PS - 1), ("wait", 1), ("fetch", 0x4001)]
    rings.submit(a_job(2))
    bus.take()
    assert not rings.poll(SLICE_PS - 1)  # which counts from the last look
    assert bus.take() == [("wait", SLICE_PS - 1)]


def test_an_interrupt_ends_the_silence(bus: Recorder, rings: Rings) -> None:
    rings.submit(a_job(1))
    bus.interrupts = [0, 1]
    assert not rings.poll(SLICE_PS - 1)
    assert not rings.poll(1)
    bus.take()
    assert not rings.poll(SLICE_PS - 1)
    assert bus.take() == [("wait", SLICE_PS - 1)]


def test_jobs_of_a_ring_end_in_order_and_those_of_the_highest_class_first(bus: Recorder, rings: Rings) -> None:
    low, first, second, high = a_job(1, 0), a_job(2, 1), a_job(3, 1), a_job(4, 2)
    for job in (low, first, second, high):
        rings.submit(job)
    bus.take()
    for job in (second, high):
        bus.complete(job)
    assert rings.look()
    assert [job.ended for job in (low, first, second, high)] == [False, False, False, True]
    assert bus.take() == [("fetch", 0x4004), ("fetch", 0x4002), ("fetch", 0x4001), READY]
    bus.complete(first)
    assert rings.look()
    assert second.ended


def test_a_record_of_another_job_is_none(bus: Recorder, rings: Rings) -> None:
    job = a_job(2)
    rings.submit(job)
    bus.memory[0x4002] = header.COMPLETION.pack(1, header.JOB_DONE, 0, 0, 5)
    assert not rings.look()
    bus.memory[0x4002] = header.COMPLETION.pack(2, 4, 0, 0, 5)  # no status that there is
    assert not rings.look()
    assert not job.ended


def test_a_fault_is_read_and_the_ring_continued(bus: Recorder, rings: Rings) -> None:
    job, aborted = a_job(1), a_job(2)
    for each in (job, aborted):
        rings.submit(each)
    bus.complete(job, header.JOB_FAULT, 3, 0xABC)
    bus.complete(aborted, header.JOB_ABORTED)
    bus.memory[0x5001] = b"load beyond DRAM\0left from before"
    bus.take()
    assert rings.look()
    assert bus.take() == [
        ("fetch", 0x4001), ("fetch", 0x5001), ("write", header.CONTROL, header.CONTROL_CONTINUE), ("fetch", 0x4002),
    ]  # fmt: skip
    assert isinstance(job.error, DeviceFaultError)
    assert (job.error.code, job.error.address) == ("ADDRESS", 0xABC)
    assert str(job.error).endswith("load beyond DRAM")
    assert isinstance(aborted.error, JobAbortedError)
    assert "job 2 of program 'test'" in str(aborted.error)


def test_a_fault_of_no_job_resets_the_device_and_fails_every_job(bus: Recorder, rings: Rings) -> None:
    jobs = [a_job(1), a_job(2, 2)]
    for job in jobs:
        rings.submit(job)
    bus.registers |= {
        header.STATUS: header.STATUS_READY | header.STATUS_FAULT, header.FAULT_CODE: 1, header.FAULT_ADDR_LO: 0x10,
        header.FAULT_ADDR_HI: 5,
    }  # fmt: skip
    read = bus.read

    def recovers(bar: int, offset: int, size: int) -> int:
        value = read(bar, offset, size)
        bus.registers[header.STATUS] = header.STATUS_READY
        return value

    bus.read = recovers  # type: ignore[method-assign]
    assert rings.look()
    for job in jobs:
        assert job.ended
        assert isinstance(job.error, DeviceFaultError)
        assert (job.error.code, job.error.address) == ("RING", HIGH + 0x10)
    again = a_job(3)
    rings.submit(again)
    assert again.entry == HIGH + BYTES  # tails count from 0 again
    assert ("write", header.RINGS[1] + header.TAIL, 1) in bus.take()


def test_a_device_that_is_gone_takes_every_job_with_it(bus: Recorder, rings: Rings) -> None:
    job = a_job(1)
    rings.submit(job)
    bus.registers |= {header.STATUS: header.GONE, header.ID: header.GONE}
    with pytest.raises(DeviceGoneError):
        rings.look()
    assert job.ended
    assert isinstance(job.error, DeviceGoneError)
    rings.lose(JobAbortedError("later"))
    assert isinstance(job.error, DeviceGoneError)  # what took it first
