"""Owner of driver and device: decides which job is submitted when, which memory it gets, and how it ends.

Jobs wait in one queue per priority; at most one job of each priority is in the device. All decisions depend on
simulated time only, so equal requests at equal simulated times take equal picoseconds.
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
"""Simulated time after which an executor checks for new messages while the device works. It does not affect the times
of events."""
LOOK_PS = 100 * 10**9
"""Simulated time for which the device runs without a check, if no message can arrive."""


class Dispatcher:
    """One device with its driver, and the jobs for it. To be used by one thread at a time.

    ``preemption``: whether jobs of a higher priority may preempt others, which takes device memory for contexts.
    ``timeout_ps``: simulated time after which a device in which no job has ended is reset, and all its jobs fail. None:
    the device is reset when it has jobs but no pending events. ``check``, ``adversary``: passed to the device.
    ``bus_trace``: file written by a :class:`TracedBus`. ``turns``: serializes the threads that call :meth:`run`.
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
        self._heard_ps = 0  # when the last job ended or was submitted to the device
        self._inside = False  # during run()
        self._silent = False  # the device did nothing since the last check
        self._jobs = 0  # number of waiting and running jobs
        self._budgets = 0  # number of waiting and running jobs with a deadline
        self.memory = Residence(self.driver)

    @property
    def now_ps(self) -> int:
        """Simulated time in ps."""
        return self._clock.now

    @property
    def busy(self) -> bool:
        """Whether a job waits or runs."""
        return self._jobs > 0

    # Jobs

    def admit(self, job: Job) -> None:
        """Accept a new job at the current simulated time."""
        # The budget of the job starts now, whichever thread submitted it.
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
        """Stop a job. No effect if it has ended."""
        reason = reason or JobAbortedError(f"job of program {job.program.name!r} was aborted")
        if job in self._waiting[job.priority]:
            self._waiting[job.priority].remove(job)
            self._settle(job, None, reason)
        elif self._running[job.priority] is job and job.reason is None:
            # The result is decided now; its resources are kept until the device has finished with them.
            job.reason = reason
            self.driver.abort(job)
            self.settled.append((job, None, reason))

    def step(self, slice_ps: int = SLICE_PS) -> None:
        """Begin one job, or run the device for at most ``slice_ps``."""
        try:
            self.check_present()
            self._expire()
            if not self._begin_one():
                self._work(slice_ps)
        except DeviceFaultError as error:  # without a job: the driver could not recover the device
            self.lose(error)

    def idle(self, duration_ps: int) -> None:
        """Let simulated time pass without requests."""
        self._clock.advance(duration_ps)

    def check_present(self) -> None:
        """Raise the error that made the device unusable, if there is one."""
        if self.gone is None and self.driver.gone is not None:  # detected by a client that read device memory
            self.lose(self.driver.gone)
        if self.gone is not None:
            raise copy.copy(self.gone)  # a copy, so that the stored error does not keep the frames of callers alive
        if not self.device.connected:
            raise DeviceGoneError("UNPLUGGED", 0, "the device is gone from the bus")

    def run(self, request: Request) -> Result:
        """Execute a request synchronously. Raises its error."""
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
        """Raise UsageError during :meth:`run`, whose watchers and listeners are called on the same thread."""
        if self._inside:
            raise UsageError(f"{what}: not allowed during a run on the same thread")

    def deliver(self) -> None:
        """Notify the clients of jobs that have ended."""
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

    # Owner interface for the jobs made by run()

    def drop_block(self, block: MemoryBlock) -> None:
        self.turns.post(partial(self.memory.drop, block))

    def check_may_wait(self) -> None:
        """Always allowed: jobs of this thread are done before it could wait for them."""

    def works_here(self) -> bool:
        return True

    def forget(self, job: Job) -> None:
        """Nothing to do: these jobs are not counted."""

    def close(self) -> None:
        """Power the device off."""
        if self.device.connected:
            freed = self.gone is None and not self.busy
            if freed:
                self.memory.close()
            self.driver.close(freed=freed)
        if self._trace is not None:
            self._trace.close()
        self.device.close()

    def lose(self, error: NpusimError) -> None:
        """Mark the device as unusable: current and later jobs fail with ``error``."""
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
        """Stop the jobs whose budget is exhausted."""
        if not self._budgets:
            return
        for ring in Priority:
            # A copy, because abort() removes jobs from the queue.
            for job in [*self._waiting[ring], self._running[ring]]:
                if job is not None and job.deadline_ps is not None and job.deadline_ps <= self._clock.now:
                    name, budget = job.program.name, job.request.budget_ps
                    self.abort(job, DeadlineError(f"job of program {name!r}: not done within {budget} ps"))

    def _check_silence(self) -> None:
        """Reset a device in which no job has ended for too long, for example because a unit hangs."""
        due_ps, what = self._due_ps, f"no job has ended within {self.timeout_ps} ps"
        if due_ps is None:
            due_ps, what = self._clock.now + (not self.driver.hung), "the device is idle"
        if not any(self._running) or self._clock.now < due_ps:
            return
        self._heard_ps = self._clock.now
        if not self.driver.look():
            self.driver.reset(DeviceFaultError("TIMEOUT", 0, f"{what}; it was reset"))
        for job in self._running:
            # A job whose interrupt was lost has ended in time, if it ended before the time-out.
            if job is not None and job.ended and job.error is None and self._ended_ps(job) > due_ps:
                job.error = DeviceFaultError("TIMEOUT", 0, what)

    @property
    def _due_ps(self) -> int | None:
        """Time of the reset if no job ends before; None without a time-out."""
        return None if self.timeout_ps is None else self._heard_ps + self.timeout_ps

    def _ended_ps(self, job: Job) -> int:
        """The time at which a job ended on the device."""
        timeline = self._timelines[job.seqno]
        return timeline.started_ps + timeline.time_ps

    def _begin_one(self) -> bool:
        """Submit the waiting job of the highest priority that has no job in the device. Returns whether there was
        one."""
        # A later job that fits must not overtake a job that waits for memory, or the latter might starve.
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
        except (NpusimError, MemoryError) as error:  # the host has no memory for the job; the device is unchanged
            if isinstance(error, DeviceMemoryError) and any(self._running):  # memory is released when one of them ends
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
        """Run the device until something happens, and take the jobs that have ended."""
        if self._silent and self._clock.is_empty(LOOK_PS):
            # The device has no pending events, so it will not report anything more.
            slice_ps = self.driver.slice_ps
        if self._due_ps is not None and any(self._running):
            slice_ps = max(0, min(slice_ps, self._due_ps - self._clock.now))
        if self._budgets:
            jobs = [job for ring in self._waiting for job in ring] + [job for job in self._running if job is not None]
            deadlines = [job.deadline_ps for job in jobs if job.deadline_ps is not None]
            limit = min(deadlines, default=self._clock.now + slice_ps)
            slice_ps = max(1, min(slice_ps, limit - self._clock.now))
        # Stop at the next deadline. Deadlines are in simulated time, so a slow host cannot miss one.
        self._silent = not self.driver.poll(slice_ps)
        if self._silent:
            self._check_silence()
        self._take_ended()  # a watcher may use the driver and see that a job has ended

    def _take_ended(self) -> None:
        # Highest priority first: when two jobs end at once, the more urgent client is notified first.
        for ring in _DOWN:
            job = self._running[ring]
            if job is not None and job.ended:
                self._running[ring] = None
                self.memory.short = False
                self._heard_ps = self._clock.now
                self._finish(job)

    def _finish(self, job: Job) -> None:
        """Read the outputs and finish the job."""
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
            error.__traceback__ = None  # do not keep the frames of the thread that runs
        self.settled.append((job, result, error))


def _name_layer(error: DeviceFaultError, program: Program, offset: int) -> None:
    """Add the name of the operator whose command is at ``offset`` to the error, because the device only knows
    addresses."""
    position = 0
    for command in decode(program.code):
        if position == offset and command.op < len(program.ops):
            layer = program.ops[command.op]
            error.args = (error.code, error.address, f"layer {layer.name!r} ({layer.kind}): {error.args[2]}")
        position += len(command.to_bytes())


def _firmware(config: Config) -> bytes | None:
    """A firmware image for the device, if it needs one."""
    wanted = config.firmware
    return image(b"", wanted.major, wanted.minor) if wanted else None
