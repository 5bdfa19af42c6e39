"""The thread-safe door to a device: any thread submits, one thread works."""

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
"""Simulated time up to which a run is short: so little is done in it that another thread is not worth its waking."""


class Executor:
    """One device with a thread of its own, for clients with many threads.

    The worker owns device, driver and clock; simulated time passes only while there is work. Requests that come one
    after another, each when the one before is done, take the same picoseconds each time; for several at once see
    :meth:`paused`. ``queue_limit``: jobs that may wait or run. ``faults``: a script of faults for the device;
    :meth:`close` raises UsageError if one has not happened, :attr:`faults` takes more. ``timeout_ps``: simulated time
    after which a device in which no job has ended is reset, and all jobs in it fail; by default it is reset when it
    does nothing more. ``check_driver``, ``adversary``: as
    those of a Session; findings are logged. An executor that nobody refers to ends by itself; :meth:`close` waits for
    that. After ``os.fork`` the child cannot use it (UsageError): threads do not survive a fork.
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
        worker, memory = self._worker, self._dispatcher.memory  # not self: whoever keeps the store keeps no executor
        self.programs = ProgramStore(self.config, lambda program: worker.post(partial(memory.unload, program)))

    @property
    def device(self) -> NpuDevice:
        """The simulated device, to look at."""
        return self._dispatcher.device

    @property
    def faults(self) -> DeviceFaults:
        """The faults of the device, for any thread."""
        return DeviceFaults(self)

    @property
    def preemption(self) -> bool:
        """Whether jobs preempt each other: False on a device whose memory has no room for contexts."""
        return self._dispatcher.preemption

    # Buffers

    def buffer(self, nbytes: int) -> DeviceBuffer:
        """Device memory, its contents undefined. Raises DeviceMemoryError, also after idle programs have left."""
        if nbytes < 0:
            raise UsageError(f"buffer: size must be >= 0 bytes, got {nbytes}")
        return DeviceBuffer(self, self._call(partial(self._dispatcher.memory.allocate, nbytes)))

    def write(self, buffer: DeviceBuffer, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes into a device buffer, which takes the time of a transfer. Raises UsageError outside of it."""
        raw = memoryview(data).cast("B")
        address = self._inside(buffer, offset, len(raw))
        if len(raw):
            self._call(partial(self._dispatcher.driver.write, address, raw))

    def read(self, buffer: DeviceBuffer, nbytes: int, offset: int = 0) -> bytearray:
        """Copy bytes from a device buffer, which takes the time of a transfer. Raises UsageError outside of it."""
        address = self._inside(buffer, offset, nbytes)
        return self._call(partial(self._dispatcher.driver.read, address, nbytes)) if nbytes else bytearray()

    def drop_block(self, block: MemoryBlock) -> None:
        """For DeviceBuffer, also while Python collects it: no lock, no waiting."""
        self._worker.post(partial(self._dispatcher.memory.drop, block))

    def _inside(self, buffer: DeviceBuffer, offset: int, nbytes: int) -> int:
        if buffer.executor is not self:
            raise UsageError("a device buffer belongs to another executor")
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise UsageError(f"bytes {offset} to {offset + nbytes} of a device buffer of {buffer.nbytes} bytes")
        return buffer.block.address + offset

    # Programs

    def pin(self, program: Program, *, to_run: bool = False) -> None:
        """Load a program with its constants, to stay until as many :meth:`unpin`. ``to_run``: only if there is room for
        runs, too, of any program that is pinned. Raises DeviceMemoryError."""
        self._check_program(program)
        self._call(partial(self._dispatcher.memory.pin, program, to_run=to_run))

    def keep(self, program: Program) -> None:
        """Let a program stay, once its first job has brought it, until as many :meth:`unpin`. Does not wait."""
        self._check_program(program)
        self._worker.post(partial(self._dispatcher.memory.keep, program))

    def unpin(self, program: Program) -> None:
        """Undo one :meth:`pin` or :meth:`keep`; the program stays until its memory is needed."""
        self._worker.post(partial(self._dispatcher.memory.unpin, program))

    def unload(self, program: Program) -> None:
        """Give a program's device memory back, when the jobs that run it have ended; pinned or not. Does not wait."""
        self._worker.post(partial(self._dispatcher.memory.unload, program))

    def estimate(self, program: Program) -> int:
        """The simulated time of one run on the device, in ps: that of an earlier one, or tried elsewhere."""
        known = self._estimates.get(program)
        if known is None:
            self._check_program(program)
            # On a device of its own: to ask how long a program takes must not disturb those that run.
            with contextlib.closing(NpuDevice(self.config)) as device:
                driver = Driver(device.bus)
                driver.run(driver.load(program), timing_only=True)
                assert device.last_job is not None
                known = self._estimates[program] = device.last_job.time_ps
        return known

    # Jobs

    def submit(self, request: Request, *, here: bool = False) -> Job:
        """Hand a request over, without waiting for the device. ``here``: if the device rests, a job that is known
        to be short may be done on the caller's thread; this is quicker than to wake the executor's.

        Raises at once: InputError for inputs that do not fit the program, UsageError for another device's program,
        unknown outputs, buffers too small or released, QueueFullError. Everything else is in the job.
        """
        self._check_program(request.program)
        job = Job(request, self)
        # Counted before it is sent, so that the limit holds however many threads come at once.
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
        """Do rounds of jobs once more, in turn, up to ``most``; gives how many were done. Results, simulated time and
        counters are those of jobs that are submitted one after the other; it is much quicker, and makes no Result.

        ``rounds``: what this caller has done before, in this order. A round is broken off, and does not count, when a
        job is a fault, or reads back an output that ends in a word of zeros or ones: what it writes is undefined. None
        is done if there are other jobs, or if the rounds did not take the same times.
        """
        return self._call(partial(self._dispatcher.repeat, rounds, most))

    def abort(self, job: Job) -> None:
        """See :meth:`Job.abort`."""
        self._worker.post(partial(self._dispatcher.abort, job))

    def backlog_ps(self, priority: int) -> int:
        """Modelled time of the jobs of that priority or a higher one that wait or run."""
        with self._lock:
            programs = [job.program for job in self._open if job.priority >= priority]
        return sum(self.estimate(program) for program in programs)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is submitted in this block arrives when it ends, all at the same simulated time, in order.

        For one thread at a time, and to submit only: there, whatever waits for the device raises UsageError.
        """
        gate, caller = threading.Event(), threading.get_ident()
        if caller in self._pausing or self._worker.is_current():
            raise UsageError("the executor is paused by this thread, or works on it")
        self._send(gate.wait)
        self._pausing.add(caller)
        try:
            yield
        finally:
            self._pausing.remove(caller)
            gate.set()

    def check_may_wait(self) -> None:
        """Raise UsageError where waiting would never end: on the executor's own thread, in a pause."""
        if self._worker.is_current() or threading.get_ident() in self._pausing:
            raise UsageError("waiting for a job in a done callback or while the executor is paused would never end")

    def works_here(self) -> bool:
        """Whether the caller is the executor's own thread."""
        return self._worker.is_current()

    def forget(self, job: Job) -> None:
        """For jobs: one does not wait or run any more."""
        with self._lock:
            self._open.pop(job, None)

    def _check_program(self, program: Program) -> None:
        check_program(program, self.config.name, self._fingerprint)

    # The device

    @property
    def status(self) -> str:
        """``AVAILABLE``, ``BUSY`` when no more jobs may wait, or ``OFFLINE`` when the device is gone or closed."""
        gone = self._dispatcher.gone or self._dispatcher.driver.gone
        if gone is not None or not self.device.connected or self._worker.stopped:
            return "OFFLINE"
        return "BUSY" if len(self._open) >= self.queue_limit else "AVAILABLE"

    @property
    def counters(self) -> HostCounters:
        """What the host has done so far; a copy."""
        return self._dispatcher.counters.snapshot()

    @property
    def free_bytes(self) -> int:
        """Device memory that nothing takes; idle programs would make more room."""
        return self._call(lambda: self._dispatcher.driver.free_bytes)

    def unplug(self) -> None:
        """Take the device off its bus, for good: jobs that wait, and later ones, fail with DeviceGoneError."""
        self.device.unplug()
        self._worker.post(lambda: None)

    def close(self) -> None:
        """End the thread and switch the device off; jobs that have not ended fail with JobAbortedError.

        Raises UsageError, when all is done, if a fault of the script has not happened."""
        if self._shut():
            self.device.faults.check()

    def _shut(self) -> bool:
        """Whether it was still open."""
        was_open = self._end.alive
        self._end()
        self._worker.join()
        return was_open

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:  # what has gone wrong already is what is told
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
        """The result of ``work()`` on the worker's thread; it raises what that raises."""
        if self._worker.is_current():
            return self._present(work)
        if threading.get_ident() in self._pausing:
            raise UsageError("the executor is paused: jobs can be submitted, and nothing else")
        reply = Reply(partial(self._present, work))
        self._send(reply)
        return reply.wait()

    def _present(self, work: Callable[[], _T]) -> _T:
        self._dispatcher.check_present()
        return work()

    def between(self, work: Callable[[], None]) -> None:
        """Do something to the device between two of its steps, whether it is on its bus or not."""
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
        """More faults, from now on. Raises ConfigError, and adds none, if the device cannot have one of them."""
        self._executor.between(partial(self._faults.add, faults))

    def clear(self) -> None:
        """No faults from here on, and nothing of those that were."""
        self._executor.between(self._faults.clear)

    def check(self) -> None:
        """Raise UsageError if a fault has not happened."""
        self._executor.between(self._faults.check)
