"""The driver sanitizer finds each of the planted errors, and none in correct drivers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.device.findings import KINDS
from npusim.device.npu import NpuDevice
from npusim.device.ring import HOST
from npusim.device.transports.pci_proxy import PciProxy
from npusim.device.transports.vfio_user import VfioUser
from npusim.errors import DeviceFaultError, NpusimError, UsageError
from npusim.hw.config import load_config
from tests.support.drivers import written_from_the_document as document
from tests.support.drivers.written_from_the_document import DocumentDriver, Job, Loaded
from tests.support.programs.executor_jobs import adder
from tests.support.programs.streams import Stream, keeper, round_trip
from tests.support.vfio_client import SMALL

TINY = load_config("tiny")
VALUES = np.arange(64, dtype=np.uint8)
SOON = 10**9


class Good(DocumentDriver):
    """The correct driver to which the errors are added."""


def one_job(driver: Any) -> Any:
    return driver.run(driver.load(round_trip(64)), {"x0": VALUES}, timeout_ps=SOON)


def two_jobs(driver: Any) -> None:
    loaded = driver.load(round_trip(64))
    for number in range(2):
        driver.run(loaded, {"x0": VALUES + number}, timeout_ps=SOON)


def two_at_once(driver: Any, *rings: int) -> None:
    loaded = driver.load(round_trip(64))
    jobs = [driver.submit(loaded, {"x0": VALUES}, priority=ring) for ring in rings or (1, 1)]
    for job in jobs:
        driver.wait(job, SOON)


def slow_and_quick(driver: Any) -> None:
    slow, quick = driver.load(adder(slow=200)), driver.load(round_trip(64))
    first = driver.submit(slow, {"x0": np.zeros(slow.program.inputs[0].shape, np.uint8)}, priority=0)
    driver.run(quick, {"x0": VALUES}, timeout_ps=SOON)
    driver.wait(first, SOON)


class ForgetsTheDoorbell(Good):
    def ring_doorbell(self, ring: int) -> None:
        pass


class DoorbellBeforeTail(Good):
    def hand_over(self, job: Job) -> None:
        self.write_entry(job)
        self.ring_doorbell(job.ring)
        self.move_tail(job.ring)


class DoorbellBeforeEntry(Good):
    def hand_over(self, job: Job) -> None:
        self.move_tail(job.ring)
        self.ring_doorbell(job.ring)
        self.write_entry(job)


class EntryOfTheLastRound(Good):
    def write_entry(self, job: Job) -> None:
        if job.seqno <= document.ENTRIES:
            super().write_entry(job)


class InputAfterTheDoorbell(Good):
    def write_job(self, job: Job, inputs: Any) -> None:
        super().write_job(job, inputs)
        self.late = inputs

    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        self.write_inputs(job, self.late)


class TableAfterTheDoorbell(Good):
    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        self.bus.write(2, job.table, 8, job.regions[0])


class ConstantsAgain(Good):
    def submit(self, loaded: Loaded, inputs: Any, *, priority: int = 1) -> Job:
        self.bus.write_memory(loaded.code, loaded.program.code)
        return super().submit(loaded, inputs, priority=priority)


class AbortsByTearingTheEntry(Good):
    def abort(self, job: Job) -> None:
        self.bus.write_memory(job.entry, bytes(64))


class ReadsAtOnce(Good):
    def wait(self, job: Job, timeout_ps: int = 0) -> Job:
        self.read_outputs(job)
        return super().wait(job, timeout_ps)


class SleepsInsteadOfLooking(Good):
    """On this device the job has ended by then."""

    def reset(self) -> None:
        super().reset()
        self.put(document.INT_MASK, 0)

    def wait(self, job: Job, timeout_ps: int = 0) -> Job:
        for _ in range(50):
            self.get(document.ID)
        self.read_outputs(job)
        return job


class ReusesTheOutputUnseen(Good):
    def reset(self) -> None:
        super().reset()
        self.put(document.INT_MASK, 0)

    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        for _ in range(50):
            self.get(document.ID)
        self.bus.write_memory(job.regions[-1], bytes(64))


class FreesInFlight(Good):
    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        self.free(job.blocks.pop())


class RunsWhatIsFreed(Good):
    def write_entry(self, job: Job) -> None:
        self.free(job.loaded.code)
        super().write_entry(job)


class OneScratchForAll(Good):
    shared: list[int] | None = None

    def write_job(self, job: Job, inputs: Any) -> None:
        self.shared = self.shared or job.regions
        job.regions[1:] = self.shared[1:]
        super().write_job(job, inputs)


class OneRecordForAll(Good):
    shared = 0

    def write_job(self, job: Job, inputs: Any) -> None:
        self.shared = self.shared or job.record
        job.record = self.shared
        super().write_job(job, inputs)


class RecordIsNotCleared(Good):
    def write_job(self, job: Job, inputs: Any) -> None:
        super().write_job(job, inputs)
        if job.seqno > 1:
            self.bus.write_memory(job.record + 8, struct.pack("<I", 1))


class OneFence(Good):
    def entry_of(self, job: Job) -> bytes:
        job.seqno = 1
        return super().entry_of(job)


class NeverAcknowledges(Good):
    def acknowledge(self) -> None:
        pass


class MaskClosed(Good):
    def reset(self) -> None:
        super().reset()
        self.put(document.INT_MASK, 0)


class ForgetsConstants(Good):
    def write_constants(self, program: Any, address: int) -> None:
        pass


class HalfAnInput(Good):
    def write_inputs(self, job: Job, inputs: Any) -> None:
        self.bus.write_memory(job.regions[2], bytes(32))


class ResetsBlindly(Good):
    def reset(self) -> None:
        look, self.look = self.look, lambda: False  # type: ignore[method-assign]
        super().reset()
        self.look = look  # type: ignore[method-assign]


class NoContext(Good):
    def enable_preemption(self) -> None:
        self.put(document.PREEMPT, 1)


class ContextIsScratch(Good):
    def write_job(self, job: Job, inputs: Any) -> None:
        job.regions[-1] = self.context
        super().write_job(job, inputs)


class Overruns(Good):
    def move_tail(self, ring: int) -> None:
        self.tails[ring] += document.ENTRIES + 1
        self.put(document.RINGS[ring] + document.TAIL, self.tails[ring])


class TakesBack(Good):
    """Cancels a job by moving TAIL back before it."""

    def abort(self, job: Job) -> None:
        self.tails[job.ring] -= 1
        self.put(document.RINGS[job.ring] + document.TAIL, self.tails[job.ring])
        self.ring_doorbell(job.ring)


class MovesItsRing(Good):
    def hand_over(self, job: Job) -> None:
        super().hand_over(job)
        self.put(document.RINGS[job.ring] + document.SIZE, 2 * document.ENTRIES)


class ForgetsSize(Good):
    def hand_over(self, job: Job) -> None:
        self.put(document.RINGS[job.ring] + document.SIZE, 0)
        super().hand_over(job)


class NeverResets(Good):
    def reset(self) -> None:
        put, self.put = self.put, lambda register, value: put(register, value) if register != 0x40 else None  # type: ignore[method-assign]
        super().reset()
        self.put = put  # type: ignore[method-assign]


class OneNumberOfResidents(Good):
    def load(self, program: Any) -> Loaded:
        self.loads = 0
        return super().load(program)


class WritesReservedBits(Good):
    def acknowledge(self) -> None:
        self.put(document.INT_STATUS, 0xFF)


class ReachesOutside(Good):
    def finish(self, job: Job) -> Job:
        self.bus.read_memory(self.dram - 4, 8)
        return super().finish(job)


class NeverContinues(Good):
    def has_ended(self, job: Job) -> bool:
        put, self.put = self.put, lambda register, value: None  # type: ignore[method-assign]
        try:
            return super().has_ended(job)
        finally:
            self.put = put  # type: ignore[method-assign]

    def close(self) -> None:
        pass


class ClosesInFlight(Good):
    def wait(self, job: Job, timeout_ps: int = 0) -> Job:
        return job

    def close(self) -> None:
        pass


class Leaks(Good):
    def finish(self, job: Job) -> Job:
        job.blocks.remove(job.text)
        return super().finish(job)

    def close(self) -> None:
        self.put(document.CONTROL, document.RESET)
        for block in self.rings:
            self.free(block)
        self.bus.note("done")


def a_constant(driver: Any) -> None:
    loaded = driver.load(adder())
    driver.run(loaded, {"x0": np.zeros(loaded.program.inputs[0].shape, np.uint8)}, timeout_ps=SOON)


def aborted(driver: Any) -> None:
    loaded = driver.load(round_trip(64))
    jobs = [driver.submit(loaded, {"x0": VALUES}) for _ in range(3)]
    driver.abort(jobs[2])
    driver.wait(jobs[2], SOON)


def reset_in_flight(driver: Any) -> None:
    driver.submit(driver.load(round_trip(64)), {"x0": VALUES})
    driver.reset()
    one_job(driver)


def preempting(driver: Any) -> None:
    driver.enable_preemption()
    one_job(driver)


def other_constants(driver: Any) -> None:
    for value in (1, 2):
        loaded = driver.load(keeper(bytes([value] * 64)))
        driver.run(loaded, {}, timeout_ps=SOON)
        driver.unload(loaded)


def a_fault(driver: Any) -> None:
    loaded = driver.load(Stream().program([64], [64], code=b"\xff" * 40))
    with pytest.raises(DeviceFaultError, match="PROGRAM"):
        driver.run(loaded, {"x0": VALUES}, timeout_ps=SOON)


def nine_jobs(driver: Any) -> None:
    loaded = driver.load(round_trip(64))
    for number in range(document.ENTRIES + 1):
        driver.run(loaded, {"x0": VALUES + number}, timeout_ps=SOON)


class Planted(NamedTuple):
    driver: type[Any]
    does: Callable[[Any], object]
    kind: str
    says: str = ""


PLANTED = (
    Planted(ForgetsTheDoorbell, one_job, "no-doorbell", "MEDIUM_TAIL is 1, at the previous doorbell it was 0"),
    Planted(DoorbellBeforeTail, one_job, "doorbell-without-tail"),
    Planted(DoorbellBeforeEntry, one_job, "entry-late", "begins with 00000000"),
    Planted(EntryOfTheLastRound, nine_jobs, "entry-late", "is that of the previous job"),
    Planted(InputAfterTheDoorbell, one_job, "changed-in-flight", "input, region 2"),
    Planted(TableAfterTheDoorbell, one_job, "changed-in-flight", "region table"),
    Planted(ConstantsAgain, two_at_once, "changed-in-flight", "code"),
    Planted(AbortsByTearingTheEntry, aborted, "changed-in-flight", "ring entry"),
    Planted(ReadsAtOnce, one_job, "output-early", "output, region 3"),
    Planted(SleepsInsteadOfLooking, one_job, "output-early", "but the driver had not read its record"),
    Planted(ReusesTheOutputUnseen, one_job, "changed-in-flight", "but the driver had not read its record"),
    Planted(FreesInFlight, one_job, "freed-in-flight", "output, region 3"),
    Planted(RunsWhatIsFreed, one_job, "used-after-free"),
    Planted(OneScratchForAll, lambda driver: two_at_once(driver, 0, 2), "shared-in-flight", "output, region 3"),
    Planted(OneRecordForAll, two_at_once, "shared-in-flight", "completion record"),
    Planted(RecordIsNotCleared, two_jobs, "record-not-cleared", "is 1"),
    Planted(OneFence, two_at_once, "seqno-reused"),
    Planted(NeverAcknowledges, two_jobs, "interrupt-unacknowledged"),
    Planted(MaskClosed, one_job, "wait-masked", "INT_MASK is 0x0"),
    Planted(ForgetsConstants, a_constant, "uninitialised", "constants"),
    Planted(HalfAnInput, one_job, "uninitialised", "input, region 2"),
    Planted(ResetsBlindly, reset_in_flight, "reset-in-flight", "looked at never"),
    Planted(NoContext, preempting, "preempt-without-context", "CONTEXT_BASE is 0x0"),
    Planted(ContextIsScratch, preempting, "shared-in-flight", "context area"),
    Planted(Overruns, one_job, "ring-overrun", "9 entries are pending in a ring of 8"),
    Planted(TakesBack, aborted, "tail-back", "TAIL is 2, at the previous doorbell it was 3"),
    Planted(MovesItsRing, one_job, "ring-changed", "MEDIUM_SIZE was written"),
    Planted(ForgetsSize, one_job, "ring-not-set-up", "SIZE is 0"),
    Planted(NeverResets, one_job, "ring-not-set-up", "there was no RESET"),
    Planted(OneNumberOfResidents, other_constants, "stale-residents"),
    Planted(WritesReservedBits, one_job, "register-misuse", "reserved bits 0xf8"),
    Planted(ReachesOutside, one_job, "register-misuse", "bulk read"),
    Planted(NeverContinues, a_fault, "fault-ignored"),
    Planted(ClosesInFlight, one_job, "left-in-flight"),
    Planted(Leaks, one_job, "leaked", "256 bytes"),
)


def found(driver: type[Any], does: Callable[[Any], object], check: bool | str = True) -> list[Any]:
    device = NpuDevice(TINY, check=check)
    try:
        made = driver(device.bus)
        does(made)
        made.close()
    except (NpusimError, AssertionError):
        pass  # some of these mistakes show in the results, too
    device.close()
    assert device.checker is not None
    return device.checker.findings


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.driver.__name__)
def test_a_planted_mistake_is_found(planted: Planted) -> None:
    findings = found(planted.driver, planted.does)
    matching = [each for each in findings if each.kind == planted.kind and planted.says in each.text]
    assert matching, [str(each) for each in findings]
    assert KINDS[planted.kind].fix in str(matching[0])
    assert matching[0].time_ps > 0


def test_a_job_that_nobody_looked_at() -> None:
    device = NpuDevice(TINY, check=True)
    driver = Good(device.bus)
    loaded = driver.load(round_trip(64))
    for _ in range(2):
        driver.submit(loaded, {"x0": VALUES})
    device.machine.clock.advance(10**9)
    device.close()
    assert device.checker is not None
    assert {(each.kind, each.seqno) for each in device.checker.findings} == {
        ("never-looked-at", 1),
        ("never-looked-at", 2),
    }


@pytest.mark.parametrize("does", sorted({planted.does for planted in PLANTED}, key=lambda each: each.__name__))
def test_the_same_without_a_mistake_is_without_a_finding(does: Callable[[Any], object]) -> None:
    assert [str(each) for each in found(Good, does)] == []


def test_a_reset_at_the_end_needs_no_look() -> None:
    def ends(driver: Any) -> None:
        driver.submit(driver.load(round_trip(64)), {"x0": VALUES})
        driver.inside[1].clear()  # so that close() waits for nothing

    assert found(Good, ends) == []


def test_every_kind_is_planted() -> None:
    assert {planted.kind for planted in PLANTED} | {"never-looked-at"} == KINDS.keys()


def test_a_finding_names_both_accesses() -> None:
    (finding,) = found(InputAfterTheDoorbell, one_job)
    assert (finding.kind, finding.seqno) == ("changed-in-flight", 1)
    assert finding.first is not None
    assert finding.first.what == "doorbell"
    assert finding.second.what.startswith("write of 64 bytes at 0x")
    assert finding.first.time_ps < finding.second.time_ps == finding.time_ps
    assert finding.to_json_dict()["first"] == {"time_ps": finding.first.time_ps, "what": "doorbell"}


def test_what_is_watched_takes_the_same_picoseconds() -> None:
    def times(check: bool) -> list[int]:
        device = NpuDevice(TINY, check=check)
        driver = Good(device.bus)
        loaded, moments = driver.load(round_trip(64)), []
        for number in range(5):
            driver.run(loaded, {"x0": VALUES + number})
            moments.append(device.now_ps)
        return moments

    assert times(True) == times(False)


def test_poison_shows_what_was_not_written() -> None:
    device = NpuDevice(TINY, check="poison")
    driver = HalfAnInput(device.bus)
    job = one_job(driver)
    assert job.outputs["y0"].tolist() == [0] * 32 + [0xA5] * 32


@pytest.mark.parametrize("check", ["poison", True])
def test_dram_that_software_maps_is_poisoned_at_power_on(check: str | bool) -> None:
    device = NpuDevice(SMALL, check=check, shared_memory=True)
    VfioUser(device)
    expected = 0xA5 if check == "poison" else 0
    assert (device.machine.memory.dram == expected).all()
    device.machine.memory.dram[:] = 1
    device.unplug()
    device.plug()
    assert (device.machine.memory.dram == expected).all()


def test_the_environment_turns_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUSIM_DRIVER_CHECK", "0")
    assert NpuDevice(TINY).checker is None
    monkeypatch.setenv("NPUSIM_DRIVER_CHECK", "yes")
    with pytest.raises(UsageError, match="NPUSIM_DRIVER_CHECK, check: must be 0, 1 or poison, got 'yes'"):
        NpuDevice(TINY)
    assert NpuDevice(TINY, check=False).checker is None


def test_a_driver_is_not_judged_by_what_it_did_before_a_checkpoint() -> None:
    device = NpuDevice(TINY, check=True)
    driver = Good(device.bus)
    loaded = driver.load(round_trip(64))
    job = driver.submit(loaded, {"x0": VALUES})
    checkpoint = device.checkpoint()
    other = NpuDevice(TINY, check=True)
    other.restore(checkpoint)
    driver.bus = other.bus
    assert driver.wait(job).outputs["y0"].tolist() == VALUES.tolist()
    two_at_once(driver)
    assert other.checker is not None
    assert other.checker.findings == []


def test_a_copy_by_the_device_is_the_drivers_doing() -> None:
    device = NpuDevice(TINY, check=True)
    assert device.checker is not None
    driver = Good(device.bus)
    loaded = driver.load(round_trip(64))
    job = driver.submit(loaded, {"x0": VALUES})
    device.checker.copied(HOST | 0x1000, job.regions[2], 64)
    device.checker.copied(job.regions[3], HOST | 0x1000, 64)
    assert [each.kind for each in device.checker.findings] == ["changed-in-flight", "output-early"]


def test_changes_through_a_mapping_are_seen_at_the_end_of_the_job() -> None:
    device = NpuDevice(TINY, check=True)
    assert device.checker is not None
    device.checker.carried(mapped=True)
    driver = Good(device.bus)
    loaded = driver.load(round_trip(64))
    job = driver.submit(loaded, {"x0": VALUES})
    device.machine.memory.dram[job.regions[2]] ^= 1  # past the device, as a client does that has mapped it
    driver.wait(job)
    driver.close()
    device.close()
    (finding,) = device.checker.findings
    assert finding.kind == "changed-in-flight"
    assert "input, region 2" in finding.text


class TrustsInterrupts(Good):
    """Never reads a record: one job at a time, and an interrupt that signals its end."""

    def wait(self, job: Job, timeout_ps: int = 0) -> Job:
        assert self.bus.wait_irq(SOON)
        self.acknowledge()
        self.inside[job.ring].remove(job)
        return self.finish(job)


def test_an_interrupt_that_can_be_about_one_job_only_tells_of_its_end() -> None:
    device = NpuDevice(TINY, check=True)
    driver = TrustsInterrupts(device.bus)
    loaded = driver.load(round_trip(64))
    for number in range(30):
        assert driver.run(loaded, {"x0": VALUES + number}).outputs["y0"].tolist() == (VALUES + number).tolist()
    driver.close()
    device.close()
    assert device.checker is not None
    assert device.checker.findings == []
    assert len(device.checker._flights) <= 1  # finished jobs are removed


def test_behind_the_proxy_nobody_knows_how_long_ago_the_driver_looked() -> None:
    device = NpuDevice(TINY.with_(**{"dram.bytes": "64 MiB"}), check=True)
    PciProxy(device)
    driver = ResetsBlindly(device.bus)
    reset_in_flight(driver)
    driver.close()
    device.close()
    assert device.checker is not None
    assert device.checker.findings == []


def test_a_device_that_goes_in_the_midst_of_a_doorbell_has_taken_no_job() -> None:
    device = NpuDevice(TINY, check=True, faults=[{"when": {"doorbell": 2}, "what": {"unplug": True}}])
    driver = Good(device.bus)
    loaded = driver.load(round_trip(64))
    driver.run(loaded, {"x0": VALUES}, timeout_ps=SOON)
    driver.submit(loaded, {"x0": VALUES})
    assert not device.connected
    assert device.checker is not None
    assert [str(each) for each in device.checker.findings] == []
