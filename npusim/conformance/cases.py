"""The cases of the conformance suite: one function each. Its docstring is the requirement that the report shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.conformance.programs import SuitePrograms
from npusim.conformance.subject import DriverRefusedError, Subject
from npusim.device.npu import NpuDevice
from npusim.device.registers import RINGS
from npusim.faults import AtInterrupt, AtJob, Fail, Fault, Hang, MessageFault
from npusim.program import Program
from npusim.timeline import FaultCode

LONG_PS = 10**13
"""Ten seconds of device time, longer than any job of the suite."""
MANY = 150
CHANNEL = "core0.dma0"
MOST_QUEUED = 300

Array = npt.NDArray[Any]


class ViolationError(Exception):
    """A driver violates a requirement. The argument states the expected and the actual behaviour."""


@dataclass
class CaseContext:
    """A driver on a fresh device, and the checks that cases share."""

    subject: Subject
    device: NpuDevice
    programs: SuitePrograms
    computes: bool = True

    def values(self, number: int = 0, size: int = 64) -> Array:
        """``size`` bytes that depend on ``number``."""
        return (np.arange(size) + 7 * number).astype(np.uint8)

    def same(self, found: dict[str, Array], wanted: Array, what: str = "outputs", name: str = "y0") -> None:
        """Raise ViolationError unless ``found`` has the array ``wanted`` under ``name``."""
        got = found.get(name)
        if got is None or got.shape != wanted.shape or got.dtype != wanted.dtype:
            raise ViolationError(f"{what}: must be {name}, {wanted.dtype}{list(wanted.shape)}, got {_kinds(found)}")
        if self.computes and not np.array_equal(got, wanted):
            at = int(np.flatnonzero(got != wanted)[0])
            raise ViolationError(f"{what}: {name}[{at}] must be {wanted[at]}, got {got[at]}")

    def right(self, loaded: Any, number: int = 0) -> None:
        """Raise ViolationError unless a round trip returns its input."""
        self.same(self.subject.run(loaded, {"x0": self.values(number)}), self.values(number), f"job {number}")

    @property
    def announced(self) -> list[int]:
        """The TAIL register of each ring."""
        return [self.device.registers.get(f"{name}_TAIL") for name in RINGS]

    def stopped(self) -> None:
        """Hang the next job until it is aborted or the faults are cleared, so that later jobs queue up behind it."""
        self.device.faults.add([Fault(AtJob(job=1), Hang(hang=CHANNEL))])

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Raise ViolationError if a refused call inside has moved a TAIL register."""
        before = self.announced
        yield
        if self.announced != before:
            raise ViolationError(f"a refused job must not reach the device: TAIL was {before}, is {self.announced}")

    @contextmanager
    def refused(self, *codes: str, fault: str = "") -> Iterator[None]:
        """Raise ViolationError unless the block is refused with one of the codes, or with FAULT and that fault."""
        wanted = f"{' or '.join(codes)} {fault}".strip()
        try:
            yield
        except DriverRefusedError as error:
            if error.code == "UNSUPPORTED":
                raise
            if error.code not in codes or (
                fault and error.text.split(" ")[0] not in (fault, str(int(FaultCode[fault])))
            ):
                raise ViolationError(f"must be refused with {wanted}, got {error}") from None
        else:
            raise ViolationError(f"must be refused with {wanted}, but succeeded")


def _kinds(found: dict[str, Array]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in found.items()) or "nothing"


CASES: dict[str, Callable[[CaseContext], None]] = {}
WITHOUT_ARITHMETIC: set[str] = set()
"""Cases that also apply to a driver that computes nothing."""


def _case(*, always: bool = False) -> Callable[[Callable[[CaseContext], None]], Callable[[CaseContext], None]]:
    def add(function: Callable[[CaseContext], None]) -> Callable[[CaseContext], None]:
        name = function.__name__.replace("_", "-")
        CASES[name] = function
        if always:
            WITHOUT_ARITHMETIC.add(name)
        return function

    return add


@_case(always=True)
def computes(trial: CaseContext) -> None:
    """Outputs have the names, shapes and types of the program, and correct values."""
    trial.right(trial.subject.load(trial.programs.round_trip()))


@_case()
def computes_again(trial: CaseContext) -> None:
    """A loaded program runs more often than a ring has entries, with different inputs."""
    loaded = trial.subject.load(trial.programs.round_trip())
    for number in range(MANY):
        trial.right(loaded, number)


@_case()
def many_bytes(trial: CaseContext) -> None:
    """Inputs and outputs of 100 kB are transferred completely."""
    size = 100_000
    if trial.device.config.sram.bytes < size:
        raise DriverRefusedError("UNSUPPORTED", f"the device has {trial.device.config.sram.bytes} bytes of SRAM")
    values = np.random.default_rng(1).integers(0, 256, size).astype(np.uint8)
    trial.same(trial.subject.run(trial.subject.load(trial.programs.round_trip(size)), {"x0": values}), values)


@_case()
def jobs_in_flight(trial: CaseContext) -> None:
    """Several jobs are in the device at once, in all rings; waits may come in any order."""
    subject, loaded = trial.subject, [trial.subject.load(trial.programs.round_trip()) for _ in range(2)]
    trial.stopped()
    jobs = [
        subject.submit(loaded[number % 2], {"x0": trial.values(number)}, number % len(RINGS)) for number in range(6)
    ]
    if 0 in trial.announced:
        raise ViolationError(f"jobs must be in all rings, {', '.join(RINGS)}: TAIL is {trial.announced}")
    trial.device.faults.clear()
    for number in reversed(range(6)):
        trial.same(subject.wait(jobs[number], LONG_PS), trial.values(number), f"job {number}")


@_case()
def a_full_ring(trial: CaseContext) -> None:
    """A full ring refuses the next job without side effects; all accepted jobs end well."""
    subject, loaded, jobs = trial.subject, trial.subject.load(trial.programs.slow()), []
    trial.stopped()
    for number in range(MOST_QUEUED):
        before = trial.announced
        try:
            jobs.append(subject.submit(loaded, {"x0": trial.values(number)}))
        except DriverRefusedError as error:
            if error.code not in ("FULL", "MEMORY") or not jobs:
                raise
            if trial.announced != before:
                raise ViolationError(f"a refusal leaves no trace: TAIL was {before}, is {trial.announced}") from None
            break
    trial.device.faults.clear()
    for number, job in enumerate(jobs):
        trial.same(subject.wait(job, LONG_PS), trial.values(number), f"job {number}")
    trial.right(loaded)


@_case()
def constants(trial: CaseContext) -> None:
    """Each program uses its own constants, also at an address that another program has used."""
    subject = trial.subject
    first, second = (bytes([value] * 64) for value in (3, 5))
    loaded = [subject.load(trial.programs.constant(data)) for data in (first, second)]
    for _ in range(2):
        for each, value in zip(loaded, (3, 5), strict=True):
            trial.same(subject.run(each, {}), np.full(64, value, np.uint8))
    for each in loaded:
        subject.unload(each)
    again = [subject.load(trial.programs.constant(bytes([value] * 64))) for value in (9, 11)]
    for number in (1, 0):  # the first of them where the program was that has run last
        trial.same(subject.run(again[number], {}), np.full(64, 9 + 2 * number, np.uint8), "constants where others were")


@_case(always=True)
def wrong_inputs(trial: CaseContext) -> None:
    """Missing inputs and inputs of a wrong size are refused before the device is accessed."""
    loaded = trial.subject.load(trial.programs.round_trip())
    for inputs in ({}, {"x0": trial.values(size=63)}, {"x0": trial.values(size=65)}):
        with trial.unseen(), trial.refused("INPUT"):
            trial.subject.run(loaded, inputs)
    trial.right(loaded)


@_case(always=True)
def too_large(trial: CaseContext) -> None:
    """A program that does not fit is refused, at load or at its first run, and uses no memory."""
    # A part of the second program fits: a driver that keeps the first has no room for all of it.
    for program in (trial.programs.huge(), trial.programs.half(twice=True)):
        for _ in range(2):
            with trial.unseen(), trial.refused("MEMORY"):
                loaded = trial.subject.load(program)
                try:
                    trial.subject.run(loaded, {"x0": trial.values()} if program.inputs else {})
                finally:
                    trial.subject.unload(loaded)
    trial.right(trial.subject.load(trial.programs.half()))


@_case(always=True)
def unloaded(trial: CaseContext) -> None:
    """An unloaded program is refused, and its memory is free again."""
    for _ in range(2):
        loaded = trial.subject.load(trial.programs.half())
        trial.right(loaded)
        trial.subject.unload(loaded)
        with trial.unseen(), trial.refused("USAGE"):
            trial.subject.run(loaded, {"x0": trial.values()})
        with trial.refused("USAGE"):
            trial.subject.unload(loaded)


def _fails_alone(trial: CaseContext, broken: Program, inputs: dict[str, Array], name: str) -> None:
    subject, good = trial.subject, trial.subject.load(trial.programs.round_trip())
    bad = subject.load(broken)
    with trial.refused("FAULT", fault=name):
        subject.run(bad, inputs)
    trial.right(good, 1)
    jobs = [subject.submit(good, {"x0": trial.values(2)}), subject.submit(bad, inputs)]
    jobs.append(subject.submit(good, {"x0": trial.values(3)}))
    trial.same(subject.wait(jobs[0], LONG_PS), trial.values(2), "the job before the fault")
    with trial.refused("FAULT", fault=name):
        subject.wait(jobs[1], LONG_PS)
    trial.same(subject.wait(jobs[2], LONG_PS), trial.values(3), "the job after the fault")


@_case()
def a_program_that_is_none(trial: CaseContext) -> None:
    """An invalid program is reported as fault PROGRAM for its job; other jobs are not affected."""
    _fails_alone(trial, trial.programs.nonsense(), {"x0": trial.values()}, "PROGRAM")


@_case()
def indices_outside(trial: CaseContext) -> None:
    """Fault DATA is reported for the job with the invalid data; the same program runs with other data."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.picked())
    good, bad = np.arange(16, dtype="<i4").view(np.uint8), np.full(16, 99, "<i4").view(np.uint8)
    trial.same(subject.run(loaded, {"x0": good}), np.arange(16, dtype=np.uint8))
    with trial.refused("FAULT", fault="DATA"):
        subject.run(loaded, {"x0": bad})
    trial.same(subject.run(loaded, {"x0": good}), np.arange(16, dtype=np.uint8))
    _fails_alone(trial, trial.programs.picked(), {"x0": bad}, "DATA")


@_case()
def a_bus_error(trial: CaseContext) -> None:
    """Fault DMA is reported; the next job is correct."""
    loaded = trial.subject.load(trial.programs.round_trip())
    trial.device.faults.add([Fault(AtJob(job=1), Fail(fail=CHANNEL))])
    with trial.refused("FAULT", fault="DMA"):
        trial.subject.run(loaded, {"x0": trial.values()})
    trial.right(loaded)


@_case()
def a_unit_that_hangs(trial: CaseContext) -> None:
    """A job whose unit hangs ends at its timeout; the next job is correct."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.round_trip())
    trial.device.faults.add([Fault(AtJob(job=2), Hang(hang=CHANNEL))])
    trial.right(loaded)
    job = subject.submit(loaded, {"x0": trial.values()})
    with trial.refused("TIMEOUT", "ABORTED"):
        subject.wait(job, 10**9)
    trial.right(loaded)


@_case()
def a_lost_interrupt(trial: CaseContext) -> None:
    """A job whose interrupt was lost is completed."""
    loaded = trial.subject.load(trial.programs.round_trip())
    trial.device.faults.add([Fault(AtInterrupt(interrupt=1), MessageFault(interrupt="lose", count=2))])
    for number in range(4):
        trial.right(loaded, number)


@_case()
def odd_interrupts(trial: CaseContext) -> None:
    """Late, duplicate and spurious interrupts, and interrupt storms, have no effect on jobs."""
    loaded = trial.subject.load(trial.programs.slow())  # slow, so that some arrive before the end of a job
    for kind, count in (("delay", 1), ("double", 1), ("spurious", 1), ("storm", 1000)):
        trial.device.faults.add([Fault(AtInterrupt(interrupt=1), MessageFault(interrupt=kind, count=count))])
        for number in range(3):
            trial.right(loaded, number)
        trial.device.faults.clear()


@_case()
def aborts(trial: CaseContext) -> None:
    """A running and a waiting job end with ABORTED; aborting an ended job has no effect; other jobs are correct."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.slow())
    trial.stopped()  # so that no job ends before its abort
    jobs = [subject.submit(loaded, {"x0": trial.values(number)}) for number in range(5)]
    for number in (2, 0):
        subject.abort(jobs[number])
    for number in (0, 2):
        with trial.refused("ABORTED"):
            subject.wait(jobs[number], LONG_PS)
    trial.same(subject.wait(jobs[4], LONG_PS), trial.values(4), "job 4")
    subject.abort(jobs[3])  # it has ended before job 4
    for number in (1, 3):
        trial.same(subject.wait(jobs[number], LONG_PS), trial.values(number), f"job {number}")


@_case()
def a_job_that_takes_too_long(trial: CaseContext) -> None:
    """A job that exceeds its timeout ends, and the device works again."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.endless())
    job = subject.submit(loaded, {"x0": trial.values()})
    with trial.refused("TIMEOUT", "ABORTED"):
        subject.wait(job, 10**9)
    trial.right(trial.subject.load(trial.programs.round_trip()))
    trial.right(loaded)


@_case()
def a_reset(trial: CaseContext) -> None:
    """A reset fails the jobs that have not ended; programs stay loaded."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.round_trip())
    trial.stopped()
    jobs = [subject.submit(loaded, {"x0": trial.values()}) for _ in range(3)]
    subject.reset()
    for job in jobs:
        with trial.refused("ABORTED", "FAULT"):
            subject.wait(job, LONG_PS)
    trial.right(loaded)


@_case()
def a_device_that_goes(trial: CaseContext) -> None:
    """If the device is unplugged, its jobs and later jobs fail with GONE; nothing hangs."""
    subject, loaded = trial.subject, trial.subject.load(trial.programs.round_trip())
    trial.right(loaded)
    jobs = []
    with suppress(DriverRefusedError):  # UNSUPPORTED: a driver that only runs
        trial.stopped()
        jobs = [subject.submit(loaded, {"x0": trial.values()}) for _ in range(2)]
    trial.device.unplug()
    for job in jobs:
        with trial.refused("GONE"):
            subject.wait(job, LONG_PS)
    with trial.refused("GONE"):
        subject.run(loaded, {"x0": trial.values()})


OPENING: dict[str, tuple[str, Callable[[NpuDevice], None]]] = {
    "no-device": ("GONE", lambda device: device.unplug()),
    "another-device": ("DEVICE", lambda device: device.pretend(ID=0x1234_5678)),
    "another-interface": ("DEVICE", lambda device: device.pretend(VERSION=0x7FFF_0000)),
}
"""Cases in which a driver must refuse to open: the code, and the preparation of the device."""
