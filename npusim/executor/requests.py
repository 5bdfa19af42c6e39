"""What clients of an executor hold: requests, tickets, results, device buffers."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from npusim.driver import HostCounters, Priority
from npusim.errors import UsageError
from npusim.program import Program
from npusim.timeline import Counters, Timeline

if TYPE_CHECKING:
    from npusim.executor.executor import Executor

_log = logging.getLogger("npusim.executor")

Array = npt.NDArray[Any]


class DeviceBuffer:
    """``nbytes`` bytes of device memory, made by :meth:`Executor.buffer`. A context manager; or call :meth:`release`.

    Jobs that were submitted with it keep the memory until they have ended, whatever happens to the buffer.
    """

    def __init__(self, executor: Executor, block: Block) -> None:
        self.executor = executor
        self.nbytes = block.nbytes
        self._block = block
        self._released = False

    @property
    def block(self) -> Block:
        """The memory behind it. Raises UsageError after release."""
        if self._released:
            raise UsageError(f"a device buffer of {self.nbytes} bytes is used after its release")
        return self._block

    def release(self) -> None:
        """Give the memory back, as soon as no job uses it. A second release does nothing."""
        if not self._released:
            self._released = True
            self.executor.drop_block(self._block)

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@dataclass(slots=True, eq=False)
class Block:
    """Device memory at ``address``. ``users``: jobs that were submitted with it and have not ended; worker only."""

    address: int
    nbytes: int
    users: int = 0
    dropped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class JobRequest:
    """One run of a program.

    ``inputs``: for each input an array of its shape in its storage dtype, which is copied to the device and must not
    change until the job has ended, or a device buffer of at least its size, which is used where it lies. None are
    needed with ``timing_only``. ``outputs``: device buffers for outputs that stay on the device; the others are read
    back. ``budget_ps``: simulated time from submission after which the job is stopped with DeadlineError.
    ``host_mappings``: pools of host memory that have to be mapped for this job, at ``host.map`` each.
    """

    program: Program
    inputs: Mapping[str, Array | DeviceBuffer] = field(default_factory=dict)
    outputs: Mapping[str, DeviceBuffer] = field(default_factory=dict)
    priority: Priority = Priority.MEDIUM
    budget_ps: int | None = None
    timing_only: bool = False
    host_mappings: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class JobDone:
    """What a job gave, in storage dtypes, and what it took.

    ``run_ps``: on the device, from its beginning to its interrupt, without ``suspended_ps``, the time that it was
    parked for jobs of a higher class; ``cycles`` is ``run_ps`` in cycles of the device's clock. ``queued_ps``: from
    submission to the first work of the host, and from the doorbell to the beginning. ``host_ps``: everything else:
    loading, mapping, transfers, submission, interrupt. The four add up to ``total_ps``. ``timeline`` and ``counters``:
    of this job; ``host``: what the host did for it.
    """

    outputs: dict[str, Array]
    cycles: int
    run_ps: int
    queued_ps: int
    suspended_ps: int
    host_ps: int
    total_ps: int
    timeline: Timeline
    counters: Counters
    host: HostCounters


class Ticket:
    """The promise of a result: exactly once it becomes done, with a JobDone or an error."""

    def __init__(self, executor: Executor, request: JobRequest) -> None:
        self.request = request
        self._executor = executor
        self._lock = threading.Lock()
        self._claimed = False
        self._ended = False
        self._ending = threading.Lock()  # taken until the end; a lock is made in a tenth of the time of an event
        self._ending.acquire()
        self._callbacks: list[Callable[[Ticket], object]] = []
        self._done: JobDone | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Whether the job has ended, well or not."""
        return self._ended

    def wait(self, timeout_s: float | None = None) -> JobDone:
        """The result. Raises the error that the job ended with, or TimeoutError after ``timeout_s`` of real time.

        In a callback only a ticket that is done may be waited for.
        """
        if not self.done():
            self._executor.check_may_wait()
            if not self._ending.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
                raise TimeoutError(f"job of program {self.request.program.name!r}: not done within {timeout_s} s")
            self._ending.release()  # for the next one who waits
        if self._error is not None:
            raise copy.copy(self._error)  # a traceback of its own: the kept one must not hold the callers' frames
        assert self._done is not None
        return self._done

    def abort(self) -> None:
        """Ask for the end of the job; it ends with JobAbortedError, unless it has ended before."""
        self._executor.abort(self)

    def add_done_callback(self, callback: Callable[[Ticket], object]) -> None:
        """``callback(ticket)`` is called once, when the ticket is done, at once if it is.

        It runs without locks held, on the executor's thread (or on the caller's): the device stands still meanwhile.
        What it raises is logged. It must not wait for a lock that somebody holds who waits for the executor.
        """
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        self._notify(callback)

    def settle(self, done: JobDone | None, error: Exception | None) -> bool:
        """For the executor: the ticket is done; False if it was before."""
        with self._lock:
            if self._claimed:
                return False
            self._claimed = True
        self._executor.forget(self)  # before anybody can see that there is room for another one
        with self._lock:
            self._done, self._error = done, error
            callbacks, self._callbacks = self._callbacks, []
            self._ended = True
            self._ending.release()
        for callback in callbacks:
            self._notify(callback)
        return True

    def _notify(self, callback: Callable[[Ticket], object]) -> None:
        try:
            callback(self)
        except BaseException as error:
            if not isinstance(error, Exception) and not self._executor.works_here():
                raise
            _log.exception("done callback of a job of program %r", self.request.program.name)
