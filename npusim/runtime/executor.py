"""The thread-safe API of a device: any thread submits jobs, one thread executes them."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from npusim.device.npu import NpuDevice
from npusim.driver import Driver, HostCounters
from npusim.errors import NpusimError, QueueFullError, UsageError
from npusim.faults import Faulty
from npusim.hw.config import Config, load_config
from npusim.program import Program
from npusim.runtime.dispatcher import SLICE_PS, Dispatcher
from npusim.runtime.job import Job, check_program
from npusim.runtime.request import DeviceBuffer, MemoryBlock, Request
from npusim.runtime.store import ProgramStore
from npusim.runtime.worker import Message, Reply, Worker

_T = TypeVar("_T")

QUEUE_LIMIT = 256
SHORT_PS = SLICE_PS
"""Longest simulated time of a run that may be executed on the thread of the caller, because waking another thread would
take longer."""


class Executor:
    """One device with a thread of its own, for clients with many threads.

    The worker thread owns device, driver and clock. Simulated time passes only while there is work. Requests submitted
    one after another, each after the previous one has ended, take the same picoseconds every time; for concurrent
    requests see :meth:`paused`. ``queue_limit``: number of jobs that may wait or run. ``faults``: a script of faults
    for the device; :meth:`close` raises UsageError if one has not happened, and :attr:`faults` accepts more.
    ``timeout_ps``: simulated time after which a device in which no job has ended is reset, and all its jobs fail; by
    default it is reset when it has no pending events. ``check_driver``, ``adversary``: as for a Session; findings are
    logged. An executor without references ends by itself; :meth:`close` waits for its end. After ``os.fork`` the child
    cannot use it (UsageError), because threads do not survive a fork.
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        *,
        faults: Faulty | None = None,
        queue_limit: int = QUEUE_LIMIT,
        timeout_ps: int | None = None,
        check_driver: bool | str | None = None,
        adversary: int | None = None,
    ) -> None:
        self.config = load_config(config)
        self.queue_limit = queue_limit
        self._fingerprint = self.config.fingerprint()
        self._dispatcher = Dispatcher(
            self.config, faults, timeout_ps=timeout_ps, check=check_driver, adversary=adversary
        )
        self._estimates: weakref.WeakKeyDictionary[Program, int] = weakref.WeakKeyDictionary()
        self._dispatcher.estimates = self._estimates.__setitem__
        self._open: dict[Job, None] = {}
        self._lock = threading.Lock()
        self._pausing: set[int] = set()
        self._worker = Worker(self._dispatcher)
        self._end = weakref.finalize(self, self._worker.stop)
        # No reference to self, so that a program store does not keep an executor alive.
        worker, memory = self._worker, self._dispatcher.memory
        self.programs = ProgramStore(self.config, lambda program: worker.post(partial(memory.unload, program)))

    @property
    def device(self) -> NpuDevice:
        """The simulated device, for inspection."""
        return self._dispatcher.device

    @property
    def faults(self) -> DeviceFaults:
        """The faults of the device, for any thread."""
        return DeviceFaults(self)

    @property
    def preemption(self) -> bool:
        """Whether jobs preempt each other; False if device memory has no room for contexts."""
        return self._dispatcher.preemption

    # Buffers

    def buffer(self, nbytes: int) -> DeviceBuffer:
        """Allocate uninitialised device memory. Raises DeviceMemoryError if there is not enough, even without idle
        programs."""
        if nbytes < 0:
            raise UsageError(f"buffer: size must be >= 0 bytes, got {nbytes}")
        return DeviceBuffer(self, self._call(partial(self._dispatcher.memory.allocate, nbytes)))

    def write(self, buffer: DeviceBuffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes to a device buffer at ``offset``, which takes the simulated time of a transfer. Raises UsageError
        if they do not fit."""
        raw = memoryview(data).cast("B")
        address = self._inside(buffer, offset, len(raw))
        if len(raw):
            self._call(partial(self._dispatcher.driver.write, address, raw))

    def read(self, buffer: DeviceBuffer, nbytes: int, offset: int = 0) -> bytearray:
        """Copy bytes from a device buffer at ``offset``, which takes the simulated time of a transfer. Raises
        UsageError outside of the buffer."""
        address = self._inside(buffer, offset, nbytes)
        return self._call(partial(self._dispatcher.driver.read, address, nbytes)) if nbytes else bytearray()

    def drop_block(self, block: MemoryBlock) -> None:
        """Release the memory of a DeviceBuffer. Takes no lock and does not wait, as the garbage collector may call
        it."""
        self._worker.post(partial(self._dispatcher.memory.drop, block))

    def _inside(self, buffer: DeviceBuffer, offset: int, nbytes: int) -> int:
        if buffer.executor is not self:
            raise UsageError("a device buffer belongs to another executor")
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise UsageError(f"bytes {offset} to {offset + nbytes} of a device buffer of {buffer.nbytes} bytes")
        return buffer.block.address + offset

    # Programs

    def pin(self, program: Program, *, to_run: bool = False) -> None:
        """Load a program with its constants and keep it on the device until as many :meth:`unpin`. ``to_run``: only if
        there is also room for a run of any pinned program. Raises DeviceMemoryError."""
        self._check_program(program)
        self._call(partial(self._dispatcher.memory.pin, program, to_run=to_run))

    def keep(self, program: Program) -> None:
        """Keep a program on the device after its first job has loaded it, until as many :meth:`unpin`. Does not
        wait."""
        self._check_program(program)
        self._worker.post(partial(self._dispatcher.memory.keep, program))

    def unpin(self, program: Program) -> None:
        """Undo one :meth:`pin` or :meth:`keep`. The program stays loaded until its memory is needed."""
        self._worker.post(partial(self._dispatcher.memory.unpin, program))

    def unload(self, program: Program) -> None:
        """Release the device memory of a program, pinned or not, once its jobs have ended. Does not wait."""
        self._worker.post(partial(self._dispatcher.memory.unload, program))

    def estimate(self, program: Program) -> int:
        """The simulated time of one run on the device, in ps: of an earlier run, or measured on a separate device."""
        known = self._estimates.get(program)
        if known is None:
            self._check_program(program)
            # On a separate device, so that running jobs are not disturbed.
            with contextlib.closing(NpuDevice(self.config)) as device:
                driver = Driver(device.bus)
                driver.run(driver.load(program), timing_only=True)
                assert device.last_job is not None
                known = self._estimates[program] = device.last_job.time_ps
        return known

    # Jobs

    def submit(self, request: Request, *, here: bool = False) -> Job:
        """Submit a request without waiting for the device. ``here``: if the device is idle, a job that is known to be
        short may be executed on the thread of the caller, which is faster than waking another thread.

        Raises immediately: InputError for inputs that do not fit the program; UsageError for a program of another
        device, unknown outputs, and buffers that are too small or released; QueueFullError. Other errors are raised by
        :meth:`Job.wait`.
        """
        self._check_program(request.program)
        job = Job(request, self)
        # Counted before it is sent, so that the limit holds for concurrent calls.
        with self._lock:
            if len(self._open) >= self.queue_limit:
                raise QueueFullError(f"{len(self._open)} jobs wait or run; the limit is {self.queue_limit}")
            self._open[job] = None
        try:
            here = here and self._estimates.get(request.program, SHORT_PS + 1) <= SHORT_PS
            self._send(partial(self._dispatcher.admit, job), here)
        except NpusimError:
            self.forget(job)
            raise
        return job

    def repeat(self, rounds: Sequence[Sequence[Job]], most: int) -> int:
        """Repeat rounds of jobs, in turn, up to ``most`` rounds; returns how many were done. Outputs, simulated time
        and counters are those of jobs submitted one after another, but it is much faster and makes no Results.

        ``rounds``: earlier rounds of this caller, in this order. A round is aborted and does not count if a job is a
        fault, or if an output that is read back ends in a word of zeros or ones; its outputs are then undefined. No
        round is done if there are other jobs, or if the earlier rounds did not take the same time.
        """
        return self._call(partial(self._dispatcher.repeat, rounds, most))

    def abort(self, job: Job) -> None:
        """See :meth:`Job.abort`."""
        self._worker.post(partial(self._dispatcher.abort, job))

    def backlog_ps(self, priority: int) -> int:
        """Simulated time in ps of the waiting and running jobs of that priority or a higher one."""
        with self._lock:
            programs = [job.program for job in self._open if job.priority >= priority]
        return sum(self.estimate(program) for program in programs)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Jobs submitted in this block arrive when it ends, all at the same simulated time, in order.

        For one thread at a time, and only to submit: other calls that wait for the device raise UsageError.
        """
        gate, caller = threading.Event(), threading.get_ident()
        if caller in self._pausing or self._worker.is_current():
            raise UsageError("this thread has paused the executor, or is its worker")
        self._send(gate.wait)
        self._pausing.add(caller)
        try:
            yield
        finally:
            self._pausing.remove(caller)
            gate.set()

    def check_may_wait(self) -> None:
        """Raise UsageError if waiting would never end: on the thread of the executor, or in :meth:`paused`."""
        if self._worker.is_current() or threading.get_ident() in self._pausing:
            raise UsageError("waiting for a job in a done callback or while the executor is paused would never end")

    def works_here(self) -> bool:
        """Whether the caller is the thread of the executor."""
        return self._worker.is_current()

    def forget(self, job: Job) -> None:
        """A job no longer waits or runs; called by the job."""
        with self._lock:
            self._open.pop(job, None)

    def _check_program(self, program: Program) -> None:
        check_program(program, self.config.name, self._fingerprint)

    # The device

    @property
    def status(self) -> str:
        """``AVAILABLE``, ``BUSY`` if no more jobs may wait, or ``OFFLINE`` if the device is removed or closed."""
        gone = self._dispatcher.gone or self._dispatcher.driver.gone
        if gone is not None or not self.device.connected or self._worker.stopped:
            return "OFFLINE"
        return "BUSY" if len(self._open) >= self.queue_limit else "AVAILABLE"

    @property
    def counters(self) -> HostCounters:
        """A copy of the counters of the host."""
        return self._dispatcher.counters.snapshot()

    @property
    def free_bytes(self) -> int:
        """Free device memory in bytes; releasing idle programs would add more."""
        return self._call(lambda: self._dispatcher.driver.free_bytes)

    def unplug(self) -> None:
        """Remove the device from its bus for good: current and later jobs fail with DeviceGoneError."""
        self.device.unplug()
        self._worker.post(lambda: None)

    def close(self) -> None:
        """End the thread and power the device off; jobs that have not ended fail with JobAbortedError.

        Raises UsageError at the end if a fault of the script has not happened.
        """
        if self._shut():
            self.device.faults.check()

    def _shut(self) -> bool:
        """Stop the worker. Returns whether it was still running."""
        was_open = self._end.alive
        self._end()
        self._worker.join()
        return was_open

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:  # do not hide the first error
            self._shut()

    # The thread

    def _send(self, message: Message, here: bool = False) -> None:
        if os.getpid() != self._worker.process:
            raise UsageError("an executor cannot be used in a process forked from its own; make a new one there")
        if here and self._worker.lend(message):
            return
        if not self._worker.send(message):
            raise UsageError("the executor is closed")

    def _call(self, work: Callable[[], _T]) -> _T:
        """The result of ``work()``, called on the worker thread. Raises what it raises."""
        if self._worker.is_current():
            return self._present(work)
        if threading.get_ident() in self._pausing:
            raise UsageError("the executor is paused: only jobs can be submitted")
        reply = Reply(partial(self._present, work))
        self._send(reply)
        return reply.wait()

    def _present(self, work: Callable[[], _T]) -> _T:
        self._dispatcher.check_present()
        return work()

    def between(self, work: Callable[[], None]) -> None:
        """Call ``work()`` between two steps of the device, even if it is off its bus."""
        if self._worker.is_current():
            work()
            return
        reply = Reply(work)
        self._send(reply)
        reply.wait()


class DeviceFaults:
    """The faults of an executor's device; see :class:`npusim.device.faults.Faults`."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._faults = executor, executor.device.faults

    def add(self, faults: Faulty) -> None:
        """Add faults from now on. Raises ConfigError, and adds none, if the device does not support one of them."""
        self._executor.between(partial(self._faults.add, faults))

    def clear(self) -> None:
        """Remove all faults and undo their effects."""
        self._executor.between(self._faults.clear)

    def check(self) -> None:
        """Raise UsageError if a fault has not happened."""
        self._executor.between(self._faults.check)
