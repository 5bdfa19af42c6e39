"""The work of an executor without its threads: which job goes to the device when, and what memory it gets.

Jobs wait here, one queue for each class; at most one of each class is in the device. All that concerns time is decided
by simulated time, so the same requests at the same simulated times give the same picoseconds.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, HostCounters, Priority
from npusim.errors import (
    DeadlineError,
    DeviceFaultError,
    DeviceGoneError,
    DeviceMemoryError,
    JobAbortedError,
    NpusimError,
)
from npusim.executor.requests import Array, Block, DeviceBuffer, JobDone, JobRequest, Ticket
from npusim.executor.residence import Residence
from npusim.hw.config import Config
from npusim.program import Program
from npusim.sim.inject import Injection
from npusim.sim.run import JobRecord
from npusim.units import cycles_spanned

_log = logging.getLogger("npusim.executor")

_RINGS = tuple(Priority)
_DOWN = _RINGS[::-1]
_NOBODY: list[Pending | None] = [None for _ in _RINGS]


@dataclass(slots=True, eq=False)
class Pending:
    """A job on its way. Times in ps since power-on; ``reason``: why it was stopped."""

    ticket: Ticket
    request: JobRequest
    arrays: Mapping[str, Array]
    bound: Mapping[int, Block]
    arrived_ps: int = 0
    began_ps: int | None = None
    rung_ps: int = 0
    fence: int = 0
    reason: NpusimError | None = None
    host: HostCounters = field(default_factory=HostCounters)

    @property
    def deadline_ps(self) -> int | None:
        budget = self.request.budget_ps
        return None if budget is None or self.reason is not None else self.arrived_ps + budget


class Dispatcher:
    """One device with its driver, and the jobs for it. One thread at a time."""

    def __init__(self, config: Config, injection: Injection | None = None) -> None:
        self.config = config
        self.device = NpuDevice(config, injection)
        self.device.listener = self._ended
        self._clock = self.device.machine.clock
        self.driver = Driver(self.device.bus)
        self.counters = self.driver.counters
        self.preemption = self._enable_preemption()
        self.estimates: Callable[[Program, int], None] = lambda program, run_ps: None
        self.gone: NpusimError | None = None
        self.settled: deque[tuple[Ticket, JobDone | None, NpusimError | None]] = deque()
        self._waiting: list[deque[Pending]] = [deque() for _ in Priority]
        self._running: list[Pending | None] = [None for _ in Priority]
        self._records: dict[int, JobRecord] = {}
        self._budgets = 0  # jobs with a deadline that wait or run
        self.memory = Residence(self.driver)

    @property
    def now_ps(self) -> int:
        return self._clock.now

    @property
    def busy(self) -> bool:
        """Whether there is a job that waits or runs."""
        return self._running != _NOBODY or any(self._waiting)

    def _enable_preemption(self) -> bool:
        try:
            self.driver.enable_preemption()
        except DeviceMemoryError as error:
            _log.warning("jobs do not preempt each other: %s", error)
            return False
        return True

    # Jobs

    def admit(self, job: Pending) -> None:
        """A job arrives, now."""
        job.arrived_ps = self.now_ps
        self.memory.job_begins(job.request.program)
        self._budgets += job.request.budget_ps is not None
        for block in job.bound.values():
            block.users += 1
        if self.gone is not None:
            self._settle(job, None, self.gone)
        else:
            self._waiting[job.request.priority].append(job)

    def abort(self, ticket: Ticket, reason: NpusimError) -> None:
        """Stop a job; no effect if it has ended."""
        for ring in Priority:
            for job in self._waiting[ring]:
                if job.ticket is ticket:
                    self._waiting[ring].remove(job)
                    self._settle(job, None, reason)
                    return
            running = self._running[ring]
            if running is not None and running.ticket is ticket:
                self._stop(running, reason)

    def _stop(self, job: Pending, reason: NpusimError) -> None:
        """The ticket is settled now; what the job has is kept until the device is done with it."""
        if job.reason is None:
            job.reason = reason
            self.driver.abort(job.fence)
            self.settled.append((job.ticket, None, reason))

    def step(self, slice_ps: int) -> None:
        """Begin one job, or let the device work for at most ``slice_ps``."""
        try:
            self.check_present()
            self._expire()
            if not self._begin_one():
                self._work(slice_ps)
        except DeviceFaultError as error:  # of no job: the driver could not bring the device back
            self.lose(error)

    def check_present(self) -> None:
        """Raise what the device was lost for, if it is."""
        if self.gone is not None:
            raise copy.copy(self.gone)  # which is kept, and must not hold the frames of all whom it is told
        if self.device.injection.unplugged:
            raise DeviceGoneError("UNPLUGGED", 0, "the device is gone from the bus")

    def close(self) -> None:
        """Switch the device off."""
        self.device.close()

    def lose(self, error: NpusimError) -> None:
        """The device is of no more use: every job fails, now and later."""
        if self.gone is None:
            self.gone = error
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
        for ring in _RINGS:
            for job in [*self._waiting[ring], self._running[ring]]:
                if job is not None and job.deadline_ps is not None and job.deadline_ps <= self.now_ps:
                    name, budget = job.request.program.name, job.request.budget_ps
                    self.abort(job.ticket, DeadlineError(f"job of program {name!r}: not done within {budget} ps"))

    def _begin_one(self) -> bool:
        """Hand the waiting job of the highest class to the device whose class is free; False if there is none."""
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
            job.began_ps = self.now_ps
        mark = self.counters.mark()
        try:
            self._submit(job)
        except DeviceMemoryError as error:
            if any(self._running):  # when one of them has ended, there is more
                self.memory.short = True
                return
            self._waiting[ring].popleft()
            self._settle(job, None, error)
            return
        except NpusimError as error:
            self._waiting[ring].popleft()
            self._settle(job, None, error)
            return
        finally:
            job.host.add_since(mark, self.counters)
        job.rung_ps = self.now_ps
        self._waiting[ring].popleft()
        self._running[ring] = job

    def _submit(self, job: Pending) -> None:
        request = job.request
        bound = {region: block.address for region, block in job.bound.items()}
        loaded = self.memory.load(request.program)
        if job.host.mappings < request.host_mappings:
            self.driver.map_memory(request.host_mappings)
        while True:
            try:
                job.fence = self.driver.submit(
                    loaded,
                    job.arrays,
                    bound=bound,
                    priority=request.priority,
                    timing_only=request.timing_only,
                    checked=not request.timing_only,
                )
            except DeviceMemoryError:
                if not self.memory.make_room(loaded):
                    raise
            else:
                return

    def _work(self, slice_ps: int) -> None:
        """Let the device work until something happens; take what has ended."""
        if self._budgets:
            jobs = [job for ring in self._waiting for job in ring] + [job for job in self._running if job is not None]
            deadlines = [job.deadline_ps for job in jobs if job.deadline_ps is not None]
            limit = min(deadlines, default=self.now_ps + slice_ps)
            slice_ps = max(1, min(slice_ps, limit - self.now_ps))
        if not self.driver.poll(slice_ps):
            return
        for ring in _DOWN:
            job = self._running[ring]
            if job is not None and self.driver.ended(job.fence):
                self._running[ring] = None
                self.memory.short = False
                self._finish(job)

    def _finish(self, job: Pending) -> None:
        """Read the outputs back; the job is over."""
        mark = self.counters.mark()
        record = self._records.pop(job.fence, None)
        if record is not None:
            self.counters.preemptions += record.preemptions
        try:
            outputs = self.driver.finish(job.fence).outputs
        except NpusimError as error:
            aborted = isinstance(error, JobAbortedError) and job.reason is not None
            self._settle(job, None, job.reason if aborted else error)
            return
        assert record is not None
        job.host.add_since(mark, self.counters)
        self._settle(job, self._result(job, outputs, record), None)

    def _result(self, job: Pending, outputs: dict[str, Array], record: JobRecord) -> JobDone:
        assert job.began_ps is not None
        run_ps = record.time_ps - record.suspended_ps
        if not record.preemptions:
            self.estimates(job.request.program, run_ps)
        # When a job before it ends just then, the device sees the ring's tail before the doorbell.
        queued = job.began_ps - job.arrived_ps + max(0, record.started_ps - job.rung_ps)
        total = self.now_ps - job.arrived_ps
        cycles = cycles_spanned(run_ps, self.config.clock_hz)
        host = total - run_ps - record.suspended_ps - queued
        times = (cycles, run_ps, queued, record.suspended_ps, host, total)
        return JobDone(outputs, *times, record.timeline, record.counters, job.host)

    def _settle(self, job: Pending, done: JobDone | None, error: NpusimError | None) -> None:
        for block in job.bound.values():
            block.users -= 1
            self.memory.free_unused(block)
        self.memory.job_ends(job.request.program)
        self._budgets -= job.request.budget_ps is not None
        if error is not None:
            error.__traceback__ = None  # it would hold the frames of whoever has the turn
        self.settled.append((job.ticket, done, error))

    def _ended(self, fence: int, record: JobRecord) -> None:
        self._records[fence] = record


def bound_blocks(program: Program, request: JobRequest) -> dict[int, Block]:
    """The blocks of the device buffers of a request, by the region that they stand for."""
    if not request.outputs and DeviceBuffer not in map(type, request.inputs.values()):
        return {}
    regions = {binding.name: binding.region for binding in program.inputs}
    bound = {regions[name]: item.block for name, item in request.inputs.items() if isinstance(item, DeviceBuffer)}
    regions = {binding.name: binding.region for binding in program.outputs}
    return bound | {regions[name]: buffer.block for name, buffer in request.outputs.items()}
