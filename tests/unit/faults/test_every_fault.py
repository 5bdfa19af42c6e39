"""Every fault at every moment: the reference driver recovers or reports it, nothing hangs, the next job is right; and
the same script gives the same picoseconds with and without arithmetic."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from npusim.device.bus import BAR_REGISTERS
from npusim.device.npu import NpuDevice
from npusim.driver import Driver, header
from npusim.errors import DeviceFaultError, DeviceGoneError, UsageError
from npusim.faults import (
    AtCommand,
    AtDoorbell,
    AtInterrupt,
    AtJob,
    AtLabel,
    AtRead,
    AtSeqno,
    AtTime,
    AtWrite,
    Ecc,
    Fail,
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
    When,
    Wrong,
)
from npusim.program import FIRST_IO
from tests.support.programs.executor_jobs import TINY, adder, values

US, MS = 10**6, 10**9
TIMEOUT_PS = 1000 * MS
ROUNDS = 6

WHEN: dict[str, When] = {
    "time": AtTime(time_ps=24_000_000),
    "doorbell": AtDoorbell(doorbell=2),
    "doorbell of a ring": AtDoorbell(doorbell=2, ring="MEDIUM"),
    "seqno begins": AtSeqno(seqno=2),
    "seqno runs": AtSeqno(seqno=2, stage="runs"),
    "seqno runs, later": AtSeqno(seqno=2, stage="runs", after_ps=50_000),
    "seqno ends": AtSeqno(seqno=2, stage="ends"),
    "job": AtJob(job=2),
    "read": AtRead(read="STATUS", nth=2),
    "write": AtWrite(write="MEDIUM_TAIL", nth=2),
    "command": AtCommand(command=15, unit="core0.dma0"),
    "command of a job": AtCommand(command=2, unit="core0.dma0", per="job"),
    "label begins": AtLabel(label="sum", nth=2),
    "label ends": AtLabel(label="sum", edge="ends", nth=2),
    "interrupt": AtInterrupt(interrupt=2),
}
WHAT: dict[str, What] = {
    "flip in DRAM": Flip(flip="dram", address=0, bit=3),  # of the input, see below
    "flip in SRAM": Flip(flip="sram", address=5, bit=7),
    "channel hangs": Hang(hang="core0.dma0"),
    "unit hangs": Hang(hang="core0.vector"),
    "sequencer hangs": Hang(hang="sequencer"),
    "unit hangs for a time": Hang(hang="core0.vector", lasts=30 * US),
    "channel hangs until a reset": Hang(hang="core0.dma0", lasts="reset"),
    "slow DMA": Slow(slow="core0.dma0", factor=Fraction(7, 2)),
    "slow unit for a time": Slow(slow="core0.vector", factor=Fraction(3), lasts=20 * US),
    "failing DMA": Fail(fail="core0.dma0"),
    "lost interrupt": MessageFault(interrupt="lose"),
    "late interrupt": MessageFault(interrupt="delay", delay_ps=5 * US),
    "double interrupt": MessageFault(interrupt="double", delay_ps=3 * US),
    "spurious interrupt": MessageFault(interrupt="spurious"),
    "storm": MessageFault(interrupt="storm", count=500, delay_ps=US),
    "stuck BUSY": Stuck(stuck="STATUS", field="BUSY", value=1, lasts=20 * MS),
    "stuck READY": Stuck(stuck="STATUS", field="READY", value=0, lasts=20 * MS),
    "stuck FAULT": Stuck(stuck="STATUS", field="FAULT", value=1, lasts="reset"),
    "wrong STATUS": Wrong(wrong="STATUS", invert=7),
    "lost doorbell": LoseWrite(lose_write="MEDIUM_DOORBELL"),
    "error corrected": Ecc(ecc="corrected", address=0x40),
    "error in DRAM": Ecc(ecc="uncorrected", address=0x40),
    "error in SRAM": Ecc(ecc="uncorrected", memory="sram", address=0x40),
    "throttling": Throttle(throttle=Fraction(2), lasts=20 * US),
    "unplug and plug": Unplug(unplug=True, lasts=3 * MS),
    "late reset": Resets(reset="late", delay_ps=5 * MS),
    "reset that does not come back": Resets(reset="never", lasts=2000 * MS),
}
HARMLESS = {
    "unit hangs for a time", "slow DMA", "slow unit for a time", "lost interrupt", "late interrupt", "double interrupt",
    "spurious interrupt", "storm", "error corrected", "throttling", "late reset",
}  # fmt: skip
"""Faults that cost time but no job."""
TOO_LATE = {
    ("command", "sequencer hangs"),  # it has sent everything off
    ("label ends", "channel hangs"),  # the job's only operator: there is nothing left for them to do
    ("label ends", "unit hangs"),
    ("label ends", "sequencer hangs"),
}
"""Faults without an effect at this moment: the script fails."""


class Course:
    """A driver that continues as long as there is work, and what it has seen of each job."""

    def __init__(self, fault: Fault | None, *, arithmetic: bool = True) -> None:
        self.arithmetic = arithmetic
        self.device = NpuDevice(TINY)
        self.digests: list[str] = []
        self.device.listener = lambda _, timeline: self.digests.append(timeline.digest())
        self.power_up()
        if fault is not None:
            if isinstance(fault.what, Flip) and fault.what.flip == "dram":
                place = self.loaded.regions[FIRST_IO] + 7
                fault = dataclasses.replace(fault, what=dataclasses.replace(fault.what, address=place))
            self.device.faults.add([fault])
        self.seen: list[Any] = []
        self.in_each_job = fault is not None and getattr(fault.when, "per", "") == "job"

    def power_up(self) -> None:
        """Start a new driver, at the beginning and after the device was gone."""
        self.driver = Driver(self.device.bus)
        self.loaded = self.driver.load(adder(slow=8))
        self.device.faults.name_operators(self.loaded.code, [("sum", "add")])

    def job(self, number: int) -> None:
        """Run one job and inspect the device like a monitor does."""
        x = values(number)
        try:
            inputs = {"x0": x} if self.arithmetic else None
            job = self.driver.run(self.loaded, inputs, timing_only=not self.arithmetic, timeout_ps=TIMEOUT_PS)
            right = not self.arithmetic or np.array_equal(job.outputs["y0"], x + 1)
            self.seen.append((right, job.cycles))
        except DeviceGoneError as gone:
            self.seen.append(str(gone))
            self.device.bus.wait_irq(5 * MS)
            self.power_up()
        except DeviceFaultError as error:
            self.seen.append(str(error))
        self.device.bus.read(BAR_REGISTERS, header.STATUS, 4)

    def reset(self) -> None:
        """Reset like a driver on request, twice if necessary."""
        for _ in range(3):
            try:
                self.driver.reset()
            except DeviceGoneError as gone:
                self.seen.append(str(gone))
                self.device.bus.wait_irq(5 * MS)
                self.power_up()
            except DeviceFaultError as error:
                self.seen.append(str(error))
            else:
                return
        raise AssertionError("it did not come back")

    def go(self) -> list[Any]:
        for number in range(ROUNDS // 2):
            self.job(number)
        self.reset()
        for number in range(ROUNDS // 2, ROUNDS - 1):
            self.job(number)
        if self.in_each_job:
            self.device.faults.check()
            self.device.faults.clear()
        self.job(ROUNDS - 1)
        return self.seen


@pytest.fixture(scope="module")
def usual() -> int:
    """Return the cycles of the job without faults."""
    (cycles,) = {cycles for right, cycles in Course(None).go() if right}
    return int(cycles)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("when", WHEN)
def test_the_driver_recovers_or_reports_and_the_next_job_is_right(when: str, what: str, usual: int) -> None:
    fault = Fault(WHEN[when], WHAT[what])
    course = Course(fault)
    seen = course.go()
    if (when, what) in TOO_LATE:
        with pytest.raises(UsageError, match=r"fault 1: what.hang was active from .*, but nothing matched"):
            course.device.faults.check()
        assert seen == [(True, usual)] * ROUNDS
        return
    course.device.faults.check()
    assert len(course.device.faults.happened) == 1 or course.in_each_job
    assert seen[-1][0] is True, seen
    assert seen[-1][1] == usual or isinstance(fault.what, Slow), seen
    if what in HARMLESS:
        assert all(each[0] is True for each in seen), seen
    wrong = [each for each in seen if each[0] is False]
    assert not wrong or isinstance(fault.what, Flip), seen

    again = Course(fault)
    assert again.go() == seen
    assert (again.device.now_ps, again.digests) == (course.device.now_ps, course.digests)
    assert again.device.faults.happened == course.device.faults.happened

    # Without arithmetic the host copies nothing, so events that depend on its time occur at another moment of the job.
    if not isinstance(fault.when, AtTime) and not isinstance(getattr(fault.what, "lasts", ""), int):
        timed = Course(fault, arithmetic=False).go()
        assert [each if isinstance(each, str) else each[1] for each in timed] == [
            each if isinstance(each, str) else each[1] for each in seen
        ]
