"""Who has driver and device: which job goes to the device when, what memory it gets, and what comes of it.

Jobs wait here, one queue for each class; at most one of each class is in the device. All that concerns time is decided
by simulated time, so the same requests at the same simulated times give the same picoseconds.
"""

from __future__ import annotations

import copy
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from npusim._core import DefaultFloats
from npusim.device.firmware import image
from npusim.device.npu import NpuDevice
from npusim.device.traces import TracedBus
from npusim.driver import Driver, Priority
from npusim.driver.reference import Past
from npusim.errors import (
    DeadlineError,
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    JobAbortedError,
    NpusimError,
    UsageError,
)
from npusim.faults import Faulty
from npusim.hw.config import Config
from npusim.isa import decode
from npusim.program import Program
from npusim.runtime.job import Job
from npusim.runtime.request import MemoryBlock, Request
from npusim.runtime.result import Result
from npusim.runtime.store import Residence
from npusim.timeline import FaultCode, Timeline
from npusim.turns import Turns

_log = logging.getLogger("npusim.runtime")

_DOWN = tuple(Priority)[::-1]
SLICE_PS = 50 * 10**6
"""Simulated time after which an executor looks for new messages while the device works. It changes no event's time."""
LOOK_PS = 100 * 10**9
"""Simulated time that a device works without anybody looking, where nobody can come meanwhile."""


class Dispatcher:
    """One device with its driver, and the jobs for it. One thread at a time.

    ``preemption``: whether jobs of a higher class may interrupt others, which takes device memory for what is parked.
    ``timeout_ps``: simulated time after which a device in which no job has ended is reset, and all jobs in it fail.
    None: a device is reset when it has jobs and does nothing more, be it ever so slow.
    ``check``, ``adversary``: of the device. ``bus_trace``: the file that a :class:`TracedBus` writes. ``turns``: which
    thread's turn it is, where several have :meth:`run` called.
    """

    def __init__(
        self,
        config: Config,
        faults: Faulty | None = None,
        *,
        preemption: bool = True,
        timeout_ps: int | None = None,
        check: bool | str | None = None,
        adversary: int | None = None,
        bus_trace: str | os.PathLike[str] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.config = config
        self.turns = turns or Turns()
        self.timeout_ps = timeout_ps
        self.device = NpuDevice(config, faults, check=check, adversary=adversary)
        self._clock = self.device.machine.clock
        self._trace = TracedBus.wanted(self.device, bus_trace)
        self.driver = Driver(self._trace or self.device.bus, _firmware(config))
        self.counters = self.driver.counters
        self.preemption = preemption
        if preemption:
            try:
                self.driver.enable_preemption()
            except DeviceMemoryError as error:
                _log.warning("jobs do not preempt each other: %s", error)
                self.preemption = False
        self.estimates: Callable[[Program, int], None] = lambda program, run_ps: None
        self.gone: NpusimError | None = None
        self.settled: deque[tuple[Job, Result | None, NpusimError | MemoryError | None]] = deque()
        self._waiting: list[deque[Job]] = [deque() for _ in Priority]
        self._running: list[Job | None] = [None for _ in Priority]
        self._timelines: dict[int, Timeline] = {}
        self.device.listener = self._timelines.__setitem__
        self._heard_ps = 0  # when a job has last ended, or come to the device
        self._inside = False  # in the midst of run()
        self._silent = False  # the device has done nothing when it was looked at last
        self._jobs = 0  # that wait or run
        self._budgets = 0  # jobs with a deadline that wait or run
        self.memory = Residence(self.driver)

    @property
    def now_ps(self) -> int:
        return self._clock.now

    @property
    def busy(self) -> bool:
        """Whether there is a job that waits or runs."""
        return self._jobs > 0

    # Jobs

    def admit(self, job: Job) -> None:
        """A job arrives, now."""
        # From here on the job's time counts, whoever's thread this is.
        job.arrived_ps = self._clock.now
        self._jobs += 1
        self.memory.job_begins(job.program)
        self._budgets += job.request.budget_ps is not None
        for block in job.blocks.values():
            block.users += 1
        if self.gone is not None:
            self._settle(job, None, self.gone)
        else:
            self._waiting[job.priority].append(job)

    def abort(self, job: Job, reason: NpusimError | None = None) -> None:
        """Stop a job; no effect if it has ended."""
        reason = reason or JobAbortedError(f"job of program {job.program.name!r} was aborted")
        if job in self._waiting[job.priority]:
            self._waiting[job.priority].remove(job)
            self._settle(job, None, reason)
        elif self._running[job.priority] is job and job.reason is None:
            # It is settled now; what it has is kept until the device is done with it.
            job.reason = reason
            self.driver.abort(job)
            self.settled.append((job, None, reason))

    def step(self, slice_ps: int = SLICE_PS) -> None:
        """Begin one job, or let the device work for at most ``slice_ps``."""
        try:
            self.check_present()
            self._expire()
            if not self._begin_one():
                self._work(slice_ps)
        except DeviceFaultError as error:  # of no job: the driver could not bring the device back
            self.lose(error)

    def idle(self, duration_ps: int) -> None:
        """Let time pass in which nobody asks for anything."""
        self._clock.advance(duration_ps)

    def check_present(self) -> None:
        """Raise what the device was lost for, if it is."""
        if self.gone is None and self.driver.gone is not None:  # a client has read its memory
            self.lose(self.driver.gone)
        if self.gone is not None:
            raise copy.copy(self.gone)  # which is kept, and must not hold the frames of all whom it is told
        if not self.device.connected:
            raise DeviceGoneError("UNPLUGGED", 0, "the device is gone from the bus")

    def run(self, request: Request) -> Result:
        """Carry a request out, here and now. Raises what it ends with."""
        self.check_idle("run")
        job = Job(request, self)
        self._inside = True
        try:
            with DefaultFloats():
                self.admit(job)
                while not job.done():
                    self.step(LOOK_PS)
                    self.deliver()
        finally:
            self._inside = False
        return job.wait()

    def check_idle(self, what: str) -> None:
        """Raise UsageError in the midst of :meth:`run`, whose watchers and listeners are called on the same thread."""
        if self._inside:
            raise UsageError(f"{what}: a run is under way on this thread, in whose midst this was called")

    def deliver(self) -> None:
        """Tell whoever waits for the jobs that have ended."""
        while self.settled:
            job, result, error = self.settled.popleft()
            job.settle(result, error)

    def repeat(self, rounds: Sequence[Sequence[Job]], most: int) -> int:
        """See :meth:`Executor.repeat`."""
        results = [[job.wait() for job in jobs] for jobs in rounds]
        if self.busy or any(result.queued_ps or result.suspended_ps for each in results for result in each):
            return 0
        if len({tuple((result.time_ps, result.total_ps) for result in each) for each in results}) != 1:
            return 0
        past: list[list[Past]] = [[] for _ in rounds]
        for jobs, each, found in zip(rounds, results, past, strict=True):
            for job, result in zip(jobs, each, strict=True):
                loaded = self.memory.resident(job.program)
                if loaded is None:
                    return 0
                found.append((loaded, job, result.total_ps))
        count = self.driver.repeat(past, most)
        for number, jobs in enumerate(rounds):
            for job in jobs:
                self.counters.add(job.host, len(range(number, count, len(rounds))))
        return count

    # Of jobs that run() makes, this is the owner

    def drop_block(self, block: MemoryBlock) -> None:
        self.turns.post(partial(self.memory.drop, block))

    def check_may_wait(self) -> None:
        """One may: whoever waits for a job of this thread has it done already."""

    def works_here(self) -> bool:
        return True

    def forget(self, job: Job) -> None:
        """Nobody counts these jobs."""

    def close(self) -> None:
        """Switch the device off, in order."""
        if self.device.connected:
            freed = self.gone is None and not self.busy
            if freed:
                self.memory.close()
            self.driver.close(freed=freed)
        if self._trace is not None:
            self._trace.close()
        self.device.close()

    def lose(self, error: NpusimError) -> None:
        """The device is of no more use: every job fails, now and later."""
        if self.gone is None:
            self.gone = error
        self.driver.lose(error)
        self.memory.forget()
        for ring in Priority:
            running, self._running[ring] = self._running[ring], None
            if running is not None:
                self._settle(running, None, error)
            while self._waiting[ring]:
                self._settle(self._waiting[ring].popleft(), None, error)

    def _expire(self) -> None:
        """Stop the jobs whose time is over."""
        if not self._budgets:
            return
        for ring in Priority:
            # A copy: abort() takes jobs off the very queue.
            for job in [*self._waiting[ring], self._running[ring]]:
                if job is not None and job.deadline_ps is not None and job.deadline_ps <= self._clock.now:
                    name, budget = job.program.name, job.request.budget_ps
                    self.abort(job, DeadlineError(f"job of program {name!r}: not done within {budget} ps"))

    def _check_silence(self) -> None:
        """Reset a device that has said nothing for too long: a unit hangs, or whatever else."""
        due_ps, what = self._due_ps, f"no job has ended within {self.timeout_ps} ps"
        if due_ps is None:
            due_ps, what = self._clock.now + (not self.driver.hung), "the device does nothing more"
        if not any(self._running) or self._clock.now < due_ps:
            return
        self._heard_ps = self._clock.now
        if not self.driver.look():
            self.driver.reset(DeviceFaultError("TIMEOUT", 0, f"{what}; it was reset"))
        for job in self._running:
            # What an interrupt that was lost was about is as good as ever; what has ended since is late.
            if job is not None and job.ended and job.error is None and self._ended_ps(job) > due_ps:
                job.error = DeviceFaultError("TIMEOUT", 0, what)

    @property
    def _due_ps(self) -> int | None:
        """When the device is reset if no job ends before; None: no time was set."""
        return None if self.timeout_ps is None else self._heard_ps + self.timeout_ps

    def _ended_ps(self, job: Job) -> int:
        """When the device was done with a job."""
        timeline = self._timelines[job.seqno]
        return timeline.started_ps + timeline.time_ps

    def _begin_one(self) -> bool:
        """Hand the waiting job of the highest class to the device whose class is free; False if there is none."""
        # A job waits for memory: a later one that would fit must not overtake it, or it might wait for ever.
        if self.memory.short:
            return False
        for ring in _DOWN:
            if self._waiting[ring] and self._running[ring] is None:
                self._begin(ring)
                return not self.memory.short
        return False

    def _begin(self, ring: Priority) -> None:
        job = self._waiting[ring][0]
        if job.began_ps is None:
            job.began_ps = self._clock.now
            if job.program.host.work:
                self._clock.advance(job.program.host.operations * self.config.host.operation_ps)
        mark = self.counters.mark()
        try:
            self._submit(job)
        except (NpusimError, MemoryError) as error:  # the host has no memory for the job; the device is as it was
            if isinstance(error, DeviceMemoryError) and any(self._running):  # when one of them has ended, there is more
                self.memory.short = True
                return
            self._waiting[ring].popleft()
            self._settle(job, None, error)
            return
        finally:
            job.host.add_since(mark, self.counters)
        job.rung_ps = self._clock.now
        self._heard_ps = job.rung_ps
        self._waiting[ring].popleft()
        self._running[ring] = job

    def _submit(self, job: Job) -> None:
        loaded = self.memory.load(job.program)
        if self.device.faults.active:
            self.device.faults.name_operators(loaded.code, [(op.name, *op.members) for op in job.program.ops])
        if job.host.mappings < job.request.host_mappings:
            self.driver.map_memory(job.request.host_mappings)
        while True:
            try:
                self.driver.start(loaded, job)
                return
            except DeviceMemoryError:
                if not self.memory.make_room(loaded):
                    raise

    def _work(self, slice_ps: int) -> None:
        """Let the device work until something happens; take what has ended."""
        if self._silent and self._clock.is_empty(LOOK_PS):
            # Nothing moves in the device: what it has not said until now it will not say for long.
            slice_ps = self.driver.slice_ps
        if self._due_ps is not None and any(self._running):
            slice_ps = max(0, min(slice_ps, self._due_ps - self._clock.now))
        if self._budgets:
            jobs = [job for ring in self._waiting for job in ring] + [job for job in self._running if job is not None]
            deadlines = [job.deadline_ps for job in jobs if job.deadline_ps is not None]
            limit = min(deadlines, default=self._clock.now + slice_ps)
            slice_ps = max(1, min(slice_ps, limit - self._clock.now))
        # At the latest at the next deadline; simulated time decides it, so that no host is slow enough to miss it.
        self._silent = not self.driver.poll(slice_ps)
        if self._silent:
            self._check_silence()
        self._take_ended()  # even so: others may use the driver, and see that a job has ended

    def _take_ended(self) -> None:
        # Highest class first: when two end at once, the more urgent client hears of it first.
        for ring in _DOWN:
            job = self._running[ring]
            if job is not None and job.ended:
                self._running[ring] = None
                self.memory.short = False
                self._heard_ps = self._clock.now
                self._finish(job)

    def _finish(self, job: Job) -> None:
        """Read the outputs back; the job is over."""
        mark = self.counters.mark()
        timeline = self._timelines.pop(job.seqno, None)
        if timeline is not None:
            self.counters.preemptions += timeline.preemptions
        loaded = job.loaded
        try:
            self.driver.finish(job)
        except (NpusimError, MemoryError) as error:
            aborted = isinstance(error, JobAbortedError) and job.reason is not None
            if isinstance(error, DeviceFaultError) and error.code == FaultCode.DATA.name and loaded is not None:
                _name_layer(error, job.program, error.address - loaded.code)
            self._settle(job, None, job.reason if aborted else error)
            return
        assert timeline is not None
        assert job.began_ps is not None
        job.host.add_since(mark, self.counters)
        queued = job.began_ps - job.arrived_ps + timeline.started_ps - job.rung_ps
        total = self._clock.now - job.arrived_ps
        result = Result(job.program, self.config, job.outputs, timeline, queued, total, job.host)
        result.arithmetic = not job.request.timing_only
        if not timeline.preemptions:
            self.estimates(job.program, result.time_ps)
        self._settle(job, result, None)

    def _settle(self, job: Job, result: Result | None, error: NpusimError | MemoryError | None) -> None:
        for block in job.blocks.values():
            block.users -= 1
            self.memory.free_unused(block)
        self.memory.job_ends(job.program)
        self._jobs -= 1
        self._budgets -= job.request.budget_ps is not None
        if error is not None:
            error.__traceback__ = None  # it would hold the frames of whoever has the turn
        self.settled.append((job, result, error))


def _name_layer(error: DeviceFaultError, program: Program, offset: int) -> None:
    """Put the operator whose command stands at ``offset`` into the fault: the device knows addresses alone."""
    position = 0
    for command in decode(program.code):
        if position == offset and command.op < len(program.ops):
            layer = program.ops[command.op]
            error.args = (error.code, error.address, f"layer {layer.name!r} ({layer.kind}): {error.args[2]}")
        position += len(command.to_bytes())


def _firmware(config: Config) -> bytes | None:
    """An image that the device runs, if it wants one."""
    wanted = config.firmware
    return image(b"", wanted.major, wanted.minor) if wanted else None
