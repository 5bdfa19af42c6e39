"""Bad drivers for each case of the suite: the case fails on each of them and says what is wrong. A case without a bad
driver might never fail."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from npusim.conformance import run
from npusim.conformance.subject import PythonSubject
from npusim.conformance.suite import REMOVAL, names
from npusim.errors import DeviceFaultError, DeviceGoneError, DeviceMemoryError, JobAbortedError, UsageError
from npusim.hw.config import load_config
from tests.support.drivers import written_from_the_document as document
from tests.support.drivers.written_from_the_document import DocumentDriver, Job, Loaded

TINY = load_config("tiny")


class Good(DocumentDriver):
    """The correct driver to which the errors are added."""


class Zeros(Good):
    def read_outputs(self, job: Job) -> None:
        super().read_outputs(job)
        job.outputs = {name: np.zeros_like(array) for name, array in job.outputs.items()}


class OtherNames(Good):
    def read_outputs(self, job: Job) -> None:
        super().read_outputs(job)
        job.outputs = {f"out.{name}": array for name, array in job.outputs.items()}


class OtherTypes(Good):
    def read_outputs(self, job: Job) -> None:
        super().read_outputs(job)
        job.outputs = {name: array.view(np.int8) for name, array in job.outputs.items()}


class OtherShapes(Good):
    def read_outputs(self, job: Job) -> None:
        super().read_outputs(job)
        job.outputs = {name: array.reshape(1, -1) for name, array in job.outputs.items()}


class RemembersOutputs(Good):
    """Returns old outputs of a program that has run once."""

    def run(self, loaded: Loaded, inputs: dict[str, Any], *, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        self.known = getattr(self, "known", {})
        self.known[loaded] = self.known.get(loaded) or super().run(loaded, inputs, timeout_ps=timeout_ps)
        return self.known[loaded]


class FirstRoundOnly(Good):
    """Only writes entries in the first round of the ring."""

    def write_entry(self, job: Job) -> None:
        if self.tails[job.ring] < document.ENTRIES:
            super().write_entry(job)


class Leaks(Good):
    """Never frees the memory of a run, and has little memory."""

    def __init__(self, bus: Any) -> None:
        super().__init__(bus)
        self.dram = 1 << 17

    def free(self, address: int) -> None:
        pass


class ShortInputs(Good):
    def write_inputs(self, job: Job, inputs: dict[str, Any]) -> None:
        for item in job.loaded.program.inputs:
            self.bus.write_memory(job.regions[item.region], inputs[item.name].tobytes()[: 1 << 16].ljust(item.nbytes))


class ShortOutputs(Good):
    def read_outputs(self, job: Job) -> None:
        for item in job.loaded.program.outputs:
            raw = self.bus.read_memory(job.regions[item.region], min(item.nbytes, 1 << 16))
            job.outputs[item.name] = np.frombuffer(raw.ljust(item.nbytes, b"\0"), np.uint8)


class OneRing(Good):
    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        return super().submit(loaded, inputs, priority=1)


class OneAtATime(Good):
    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        job = super().submit(loaded, inputs, priority=priority)
        while not job.ended:
            if not self.bus.wait_irq(document.LOOK_PS) and not self.look() and not job.ended:
                self.give_up(job, document.LOOK_PS)
        return job


class InOrder(Good):
    """Waits for the job submitted first, whichever is requested."""

    def wait(self, job: Job, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        self.order = getattr(self, "order", [])
        return super().wait(self.order.pop(0) if self.order else job, timeout_ps)

    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        job = super().submit(loaded, inputs, priority=priority)
        self.order = [*getattr(self, "order", []), job]
        return job


class NoRoomAtAll(Good):
    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        if any(self.inside):
            raise UsageError("busy")
        return super().submit(loaded, inputs, priority=priority)


class DropsTheLast(Good):
    """Accepts a job without room for it and reports success."""

    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        if len(self.inside[priority]) < document.ENTRIES:
            return super().submit(loaded, inputs, priority=priority)
        job = Job(loaded, priority, 0, [], 0, 0, 0, [], ended=True)
        job.outputs = {item.name: np.zeros(item.shape, np.uint8) for item in loaded.program.outputs}
        return job

    def finish(self, job: Job) -> Job:
        return super().finish(job) if job.seqno else job


class RefusesTooLate(Good):
    """Refuses after it has notified the device."""

    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        if len(self.inside[priority]) == document.ENTRIES:
            self.put(document.RINGS[priority] + document.TAIL, self.tails[priority] + 1)
        return super().submit(loaded, inputs, priority=priority)


class OneSetOfConstants(Good):
    def write_constants(self, program: Any, address: int) -> None:
        self.first = getattr(self, "first", None) or program
        super().write_constants(self.first if self.first.constants.nbytes else program, address)


class OneNumber(Good):
    """Uses one number for all resident weights."""

    def load(self, program: Any) -> Loaded:
        loaded = super().load(program)
        loaded.residents = 1
        return loaded


class TakesAnything(Good):
    def write_inputs(self, job: Job, inputs: dict[str, Any]) -> None:
        for item in job.loaded.program.inputs:
            raw = inputs[item.name].tobytes() if item.name in inputs else b""
            self.bus.write_memory(job.regions[item.region], raw[: item.nbytes].ljust(item.nbytes))

    @staticmethod
    def check_inputs(program: Any, inputs: dict[str, Any]) -> None:
        pass


class ChecksSizesAfterwards(TakesAnything):
    def submit(self, loaded: Loaded, inputs: dict[str, Any], *, priority: int = 1) -> Job:
        job = super().submit(loaded, inputs, priority=priority)
        DocumentDriver.check_inputs(loaded.program, inputs)
        return job


class TakesTooLong(TakesAnything):
    """Accepts input that is too long and truncates it."""

    @staticmethod
    def check_inputs(program: Any, inputs: dict[str, Any]) -> None:
        cut = {item.name: inputs[item.name][: item.nbytes] for item in program.inputs if item.name in inputs}
        DocumentDriver.check_inputs(program, cut)


class KeepsAPart(Good):
    """Leaks a part of what did not fit."""

    def allocate_all(self, sizes: list[int]) -> list[int]:
        return [self.allocate(size) for size in sizes]


class RunsWithoutRoom(Good):
    """Loads a program without room over other memory."""

    def allocate(self, size: int) -> int:
        try:
            return super().allocate(size)
        except DeviceMemoryError:
            return 0

    def free(self, address: int) -> None:
        if address:
            super().free(address)


class UnloadsNothing(Good):
    def unload(self, loaded: Loaded) -> None:
        self.check(loaded)


class KeepsItsMemory(Good):
    """Does not free the large scratch memory of a program after a run."""

    def finish(self, job: Job) -> Job:
        job.blocks = [block for block in job.blocks if self.blocks[block] < 1 << 29]
        return super().finish(job)


class RunsTheUnloaded(Good):
    @staticmethod
    def check(loaded: Loaded) -> None:
        pass

    def unload(self, loaded: Loaded) -> None:
        if not loaded.loaded:
            raise UsageError("again")
        super().unload(loaded)


class HidesFaults(Good):
    def finish(self, job: Job) -> Job:
        if isinstance(job.error, DeviceFaultError) and not isinstance(job.error, DeviceGoneError):
            job.error = None
        return super().finish(job)


class OneFault(Good):
    """Reports the same fault for every error."""

    @staticmethod
    def fault_name(code: int) -> str:
        return "INTERNAL"


class FaultsOfAll(Good):
    """A fault of one job fails all jobs in the device."""

    def has_ended(self, job: Job) -> bool:
        found = super().has_ended(job)
        if isinstance(job.error, DeviceFaultError):
            self.lose(job.error)
            DocumentDriver.reset(self)
            self.inside[job.ring][:] = [job]
        return found


class NeverContinues(Good):
    def put(self, register: int, value: int) -> None:
        if (register, value) != (document.CONTROL, document.CONTINUE):
            super().put(register, value)


class SaysAllIsWell(Good):
    """Reports success for an aborted job."""

    def give_up(self, job: Job, timeout_ps: int) -> None:
        super().give_up(job, timeout_ps)
        job.error = None


class GivesUpInWordsOnly(Good):
    """Reports a timeout but leaves the job in the device."""

    def give_up(self, job: Job, timeout_ps: int) -> None:
        for jobs in self.inside:
            jobs.clear()
        job.ended, job.error = True, DeviceFaultError("TIMEOUT", 0, "given up")


class HasPatience(Good):
    def wait(self, job: Job, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        return super().wait(job, 10**13)


class TrustsInterrupts(Good):
    """Expects an interrupt per job and never polls without one."""

    def wait(self, job: Job, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        while not job.ended:
            if not self.bus.wait_irq(timeout_ps):
                raise DeviceFaultError("TIMEOUT", 0, "no interrupt")
            self.acknowledge()
            self.look()
        return self.finish(job)


class TakesInterruptsForEnds(Good):
    def wait(self, job: Job, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        while not job.ended:
            if self.bus.wait_irq(document.LOOK_PS):
                self.acknowledge()
                for jobs in self.inside:
                    if job in jobs:
                        jobs.remove(job)
                job.ended = True
        return self.finish(job)


class DiesOfStorms(Good):
    def acknowledge(self) -> None:
        super().acknowledge()
        self.taken = getattr(self, "taken", 0) + 1
        if self.taken > 100:
            raise RuntimeError("nobody cared")


class AbortsNothing(Good):
    def abort(self, job: Job) -> None:
        pass


class AbortsInWordsOnly(Good):
    """Reports an abort without telling the device."""

    def abort(self, job: Job) -> None:
        if not job.ended:
            job.ended, job.error = True, JobAbortedError("aborted")
            self.inside[job.ring].remove(job)


class AbortsTheWaitingOnly(Good):
    def abort(self, job: Job) -> None:
        if job is not self.inside[job.ring][0]:
            super().abort(job)


class AbortsTheRunningOnly(Good):
    def abort(self, job: Job) -> None:
        if job is self.inside[job.ring][0]:
            super().abort(job)


class AbortsByReset(Good):
    def abort(self, job: Job) -> None:
        if not job.ended:
            self.reset()


class AbortsWhatHasEnded(Good):
    def abort(self, job: Job) -> None:
        super().abort(job)
        if job.ended:
            job.error = JobAbortedError("aborted")


class ResetsNothing(Good):
    """Ignores a client's reset request."""

    wanted = True

    def reset(self) -> None:
        if self.wanted:
            super().reset()
        self.wanted = False

    def give_up(self, job: Job, timeout_ps: int) -> None:
        self.wanted = True
        super().give_up(job, timeout_ps)

    def close(self) -> None:
        self.wanted = True
        super().close()


class FailsTheOldestOnly(Good):
    def reset(self) -> None:
        if any(self.inside):
            for jobs in self.inside:
                for job in jobs[1:]:
                    job.ended = True
                    job.outputs = {"y0": np.zeros(64, np.uint8)}
                del jobs[1:]
        super().reset()


class ResetUnloads(Good):
    programs: list[Loaded]

    def load(self, program: Any) -> Loaded:
        loaded = super().load(program)
        self.programs = [*getattr(self, "programs", []), loaded]
        return loaded

    def reset(self) -> None:
        super().reset()
        for loaded in getattr(self, "programs", []):
            loaded.loaded = False


class OtherNameForGone(Good):
    def finish(self, job: Job) -> Job:
        try:
            return super().finish(job)
        except DeviceGoneError as error:
            raise DeviceFaultError("DMA", 0, str(error)) from None


class NeverNotices(Good):
    """Does not notice that the device is gone; it waits and reports a timeout."""

    def look_at_status(self) -> bool:
        return False

    def give_up(self, job: Job, timeout_ps: int) -> None:
        job.ended, job.error = True, DeviceFaultError("TIMEOUT", 0, "too long")


class OpensAnything(Good):
    """Opens any device without checking that it is its own."""

    def get(self, register: int) -> int:
        found = super().get(register)
        return {document.ID: 0x3155504E, document.VERSION: 2 << 16, document.STATUS: 1}.get(register, found)


class CallsItMissing(Good):
    """Reports an unknown device as missing."""

    def __init__(self, bus: Any) -> None:
        try:
            super().__init__(bus)
        except DeviceFaultError as error:
            code = "DEVICE" if isinstance(error, DeviceGoneError) else "GONE"
            raise (DeviceGoneError if code == "GONE" else DeviceFaultError)(code, 0, str(error)) from None


class Sleeps(Good):
    """Sleeps for the usual time of a job instead of checking for its end."""

    def wait(self, job: Job, timeout_ps: int = document.TIMEOUT_PS) -> Job:
        self.bus.wait_irq(60 * 10**6)
        self.acknowledge()
        for jobs in self.inside:
            if job in jobs:
                jobs.remove(job)
        job.ended = True
        return self.finish(job)


class BelievesWhatIsGone(Good):
    def check_presence(self, raw: bytes | bytearray) -> None:
        pass


class Plant(NamedTuple):
    driver: type[Good]
    case: str
    says: str


PLANTS = (
    Plant(Zeros, "computes", "y0[1] must be 1, got 0"),
    Plant(OtherNames, "computes", "must be y0, uint8[64], got out.y0"),
    Plant(OtherTypes, "computes", "must be y0, uint8[64], got y0 int8[64]"),
    Plant(OtherShapes, "computes", "must be y0, uint8[64], got y0 uint8[1, 64]"),
    Plant(RemembersOutputs, "computes-again", "job 1: y0[0] must be 7, got 0"),
    Plant(FirstRoundOnly, "computes-again", ""),
    Plant(Leaks, "computes-again", "refused: MEMORY"),
    Plant(ShortInputs, "many-bytes", "y0[65536] must be"),
    Plant(ShortOutputs, "many-bytes", "y0[65536] must be"),
    Plant(OneRing, "jobs-in-flight", "jobs must be in all rings"),
    Plant(OneAtATime, "jobs-in-flight", "refused: "),
    Plant(InOrder, "jobs-in-flight", "job 5: y0[0] must be 35, got 0"),
    Plant(NoRoomAtAll, "a-full-ring", "refused: USAGE busy"),
    Plant(DropsTheLast, "a-full-ring", "must be"),
    Plant(RefusesTooLate, "a-full-ring", "a refusal leaves no trace"),
    Plant(OneSetOfConstants, "constants", "y0[0] must be 5, got 3"),
    Plant(OneNumber, "constants", "must be"),
    Plant(TakesAnything, "wrong-inputs", "must be refused with INPUT, but succeeded"),
    Plant(TakesTooLong, "wrong-inputs", "must be refused with INPUT, but succeeded"),
    Plant(ChecksSizesAfterwards, "wrong-inputs", "a refused job must not reach the device"),
    Plant(KeepsAPart, "too-large", "MEMORY"),
    Plant(RunsWithoutRoom, "too-large", "must be refused with MEMORY, got FAULT ADDRESS"),
    Plant(UnloadsNothing, "unloaded", "must be refused with USAGE, but succeeded"),
    Plant(RunsTheUnloaded, "unloaded", "must be refused with USAGE, got FAULT PROGRAM"),
    Plant(KeepsItsMemory, "unloaded", "refused: MEMORY"),
    Plant(HidesFaults, "a-program-that-is-none", "must be refused with FAULT PROGRAM, but succeeded"),
    Plant(OneFault, "a-program-that-is-none", "must be refused with FAULT PROGRAM, got FAULT INTERNAL"),
    Plant(FaultsOfAll, "a-program-that-is-none", "refused: FAULT PROGRAM"),
    Plant(HidesFaults, "indices-outside", "must be refused with FAULT DATA, but succeeded"),
    Plant(NeverContinues, "indices-outside", ""),
    Plant(HidesFaults, "a-bus-error", "must be refused with FAULT DMA, but succeeded"),
    Plant(NeverContinues, "a-bus-error", "refused: "),
    Plant(SaysAllIsWell, "a-unit-that-hangs", "must be refused with TIMEOUT or ABORTED, but succeeded"),
    Plant(GivesUpInWordsOnly, "a-unit-that-hangs", "refused: "),
    Plant(TrustsInterrupts, "a-lost-interrupt", "refused: TIMEOUT"),
    Plant(TakesInterruptsForEnds, "odd-interrupts", "must be"),
    Plant(DiesOfStorms, "odd-interrupts", "RuntimeError: nobody cared"),
    Plant(AbortsNothing, "aborts", "must be refused with ABORTED, got TIMEOUT"),
    Plant(AbortsInWordsOnly, "aborts", ""),
    Plant(AbortsTheWaitingOnly, "aborts", "must be refused with ABORTED, got TIMEOUT"),
    Plant(AbortsTheRunningOnly, "aborts", "must be refused with ABORTED, but succeeded"),
    Plant(AbortsByReset, "aborts", "refused: ABORTED"),
    Plant(AbortsWhatHasEnded, "aborts", "refused: ABORTED"),
    Plant(HasPatience, "a-job-that-takes-too-long", "must be refused with TIMEOUT or ABORTED, but succeeded"),
    Plant(ResetsNothing, "a-reset", "must be refused with ABORTED or FAULT, got TIMEOUT"),
    Plant(FailsTheOldestOnly, "a-reset", "must be refused with ABORTED or FAULT, but succeeded"),
    Plant(ResetUnloads, "a-reset", "refused: USAGE"),
    Plant(OtherNameForGone, "a-device-that-goes", "must be refused with GONE, got FAULT"),
    Plant(NeverNotices, "a-device-that-goes", "must be refused with GONE, got TIMEOUT"),
    Plant(OpensAnything, "no-device", "must be refused with GONE, "),
    Plant(OpensAnything, "another-device", "must be refused with DEVICE, but succeeded"),
    Plant(OpensAnything, "another-interface", "must be refused with DEVICE, but succeeded"),
    Plant(CallsItMissing, "no-device", "must be refused with GONE, got DEVICE"),
    Plant(CallsItMissing, "another-device", "must be refused with DEVICE, got GONE"),
    Plant(CallsItMissing, "another-interface", "must be refused with DEVICE, got GONE"),
    Plant(BelievesWhatIsGone, REMOVAL, "must be"),
    Plant(Sleeps, "any-times", "seed "),
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: f"{plant.driver.__name__}-{plant.case}")
def test_a_case_fails_on_a_bad_driver(plant: Plant) -> None:
    (outcome,) = run(PythonSubject(plant.driver), TINY, name="bad", cases=[plant.case], seeds=5).outcomes
    assert outcome.state == "failed"
    assert plant.says in outcome.text, outcome.text


def test_every_case_has_a_bad_driver_that_it_fails_on_by_what_it_asks_itself() -> None:
    assert {plant.case for plant in PLANTS if plant.says} == set(names())
