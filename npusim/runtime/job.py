"""A submitted request, from its checks to its end."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from npusim import driver
from npusim._core import DefaultFloats
from npusim.driver import HostCounters
from npusim.driver.alloc import block_bytes
from npusim.errors import InputError, NpusimError, UsageError
from npusim.program import Program
from npusim.runtime.request import Array, DeviceBuffer, Keeper, MemoryBlock, Request
from npusim.runtime.result import Result

_log = logging.getLogger("npusim.runtime")


class Owner(Keeper, Protocol):
    """The executor of a job, as the job sees it."""

    def check_may_wait(self) -> None:
        """Raise UsageError if waiting would never end."""

    def works_here(self) -> bool:
        """Whether the caller is the thread that executes jobs."""

    def abort(self, job: Job) -> None:
        """See :meth:`Job.abort`."""

    def forget(self, job: Job) -> None:
        """A job no longer waits or runs."""


class Job(driver.DriverJob):
    """A future: it becomes done exactly once, with a Result or an error.

    The constructor checks the request: InputError for inputs that do not fit the program; UsageError for unknown
    outputs and for buffers that are too small, released, or of another executor.

    Times in ps since power-on: ``arrived_ps``: the dispatcher received the job; ``began_ps``: the host began to work
    for it; ``rung_ps``: its doorbell rang. ``reason``: why it was stopped.
    """

    __slots__ = (
        "_callbacks",
        "_claimed",
        "_done",
        "_ending",
        "_failure",
        "_lock",
        "_owner",
        "_result",
        "arrived_ps",
        "began_ps",
        "blocks",
        "host",
        "reason",
        "request",
        "rung_ps",
    )

    def __init__(self, request: Request, owner: Owner) -> None:
        self.request = request
        self.blocks: dict[int, MemoryBlock] = {}  # blocks of the buffers, by the region that each replaces
        arrays: Mapping[str, Any] = request.inputs
        if request.outputs or DeviceBuffer in map(type, arrays.values()):
            arrays = _bind(request, owner, self.blocks)
        if request.program.host.decided and not request.timing_only:
            _check_decided(request.program, arrays)
        bound = {region: block.address for region, block in self.blocks.items()}
        super().__init__(
            request.program, arrays, bound=bound, priority=request.priority, timing_only=request.timing_only
        )
        self.arrived_ps = self.rung_ps = 0
        self.began_ps: int | None = None
        self.reason: NpusimError | None = None
        self.host = HostCounters()
        self._owner = owner
        self._lock = threading.Lock()
        self._claimed = False
        self._done = False
        # Held until the job has ended; a lock is ten times faster to create than an event.
        self._ending = threading.Lock()
        self._ending.acquire()
        self._callbacks: list[Callable[[Job], object]] = []
        self._result: Result | None = None
        self._failure: Exception | None = None

    @property
    def deadline_ps(self) -> int | None:
        """The deadline in ps; None without a budget, or if the job is being stopped already."""
        budget = self.request.budget_ps
        return None if budget is None or self.reason is not None else self.arrived_ps + budget

    def done(self) -> bool:
        """Whether the job has a result or an error."""
        return self._done

    def wait(self, timeout_s: float | None = None) -> Result:
        """The result. Raises the error of the job, or TimeoutError after ``timeout_s`` of real time.

        In a callback only jobs that are done can be waited for.
        """
        if not self._done:
            self._owner.check_may_wait()
            if not self._ending.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
                raise TimeoutError(f"job of program {self.program.name!r}: not done within {timeout_s} s")
            self._ending.release()  # for the next waiting thread
        if self._failure is not None:
            raise copy.copy(self._failure)  # a copy, so that the stored error does not keep the frames of callers alive
        assert self._result is not None
        return self._result

    def abort(self) -> None:
        """Request the end of the job. It ends with JobAbortedError unless it has ended already."""
        self._owner.abort(self)

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        """Call ``callback(job)`` once when the job is done, or now if it is.

        It is called without locks, on the thread of the executor or of the caller. The device is halted meanwhile.
        Exceptions are logged. It must not wait for a lock held by a thread that waits for the executor.
        """
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._notify(callback)

    def settle(self, result: Result | None, error: Exception | None) -> bool:
        """Set the result or the error; called by the dispatcher. Returns False if the job was done already."""
        with self._lock:
            if self._claimed:
                return False
            self._claimed = True
        self._owner.forget(self)  # first, so that a client that sees the job done can submit another one
        with self._lock:
            self._result, self._failure = result, error
            callbacks, self._callbacks = self._callbacks, []
            self._done = True
            self._ending.release()
        # Without a lock, because a callback may use the job or submit another one.
        for callback in callbacks:
            self._notify(callback)
        return True

    def _notify(self, callback: Callable[[Job], object]) -> None:
        try:
            callback(self)
        except BaseException as error:
            if not isinstance(error, Exception) and not self._owner.works_here():
                raise
            _log.exception("done callback of a job of program %r", self.program.name)


def check_program(program: Program, name: str, fingerprint: str) -> None:
    """Raise UsageError for a program that was compiled for a device other than the one with that name and
    fingerprint."""
    if program.config_fingerprint != fingerprint:
        raise UsageError(
            f"program {program.name!r} was compiled for another device (config {program.config_name!r}, "
            f"fingerprint {program.config_fingerprint[:12]}); this one is {name!r}, {fingerprint[:12]}"
        )


def _check_decided(program: Program, arrays: Mapping[str, Array]) -> None:
    """Raise InputError if the values of inputs require another program."""
    check = program.host.check
    if check is None:
        what, value = program.host.decided[0]
        raise InputError(
            f"program {program.name!r} requires inputs for which {what} is {value}, which only the model can check: "
            "run the model"
        )
    with DefaultFloats():
        check(arrays)


def _bind(request: Request, owner: Owner, blocks: dict[int, MemoryBlock]) -> dict[str, Array]:
    """Check the buffers of a request and add them to ``blocks``. Returns the other inputs."""
    program, given = request.program, request.inputs
    buffers = {name: item for name, item in given.items() if isinstance(item, DeviceBuffer)}
    for kind, bindings, found in (("input", program.inputs, buffers), ("output", program.outputs, request.outputs)):
        named = {binding.name: binding for binding in bindings}
        for name, buffer in found.items():
            if name not in named:
                raise UsageError(f"{kind} {name!r} is unknown; the program has {', '.join(named) or 'none'}")
            region, nbytes = named[name].region, named[name].nbytes
            if buffer.executor is not owner:
                raise UsageError("a device buffer belongs to another executor")
            if buffer.nbytes < nbytes or block_bytes(buffer.block.nbytes) < program.region_bytes[region]:
                raise UsageError(f"{kind} {name!r}: needs a buffer of {nbytes} bytes, got one of {buffer.nbytes}")
            if blocks.setdefault(region, buffer.block) is not buffer.block:
                shared = next(binding.name for binding in program.inputs if binding.region == region)
                raise UsageError(f"output {name!r} shares the memory of input {shared!r}: both need the same buffer")
    for binding in program.inputs:
        if binding.region in blocks and not isinstance(given.get(binding.name), DeviceBuffer):
            raise UsageError(f"input {binding.name!r} grows in place: it needs the buffer of its output")
    return {name: item for name, item in given.items() if not isinstance(item, DeviceBuffer)}
