"""The device behind ``IDevice``, shared by all executions of the models that were prepared for it."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Protocol

from npusim.hw.config import Config
from npusim.polling import polled
from npusim.program import Program
from npusim.runtime import Executor, Session

from ..buffers.tracker import BufferTracker
from ..errors import StatusError
from ..types import DeviceStatus, ErrorStatus
from .deadline import Clock, Deadline
from .tasks import TaskPool

AVAILABLE = DeviceStatus.AVAILABLE.name
MAX_THREADS = 32
"""Preparations and executions that run concurrently; the device executes one job at a time."""


class Waiting(Protocol):
    """An execution that waits for fences."""

    def cancel(self) -> None:
        """Stop waiting: the device is being closed."""


class Serving(Protocol):
    """A burst."""

    def abandon(self) -> None:
        """Stop serving: the device has been removed."""


class Engine:
    """State shared by executions, and objects to notify when the device is closed.

    ``waits`` has strong references: an execution that only its fences refer to must live until they are signalled.
    ``bursts`` has weak ones: a burst ends when its client drops it. ``time_ps``: the time of a program on the device;
    None if relaxed models are computed in FLOAT32.
    """

    def __init__(self, executor: Executor, clock: Clock, *, strict: bool = False) -> None:
        self.executor = executor
        self.clock = clock
        self.buffers = BufferTracker(executor)
        self.tasks = TaskPool(MAX_THREADS, f"nnapi-{executor.config.name}")
        self.waits: set[Waiting] = set()
        self.bursts: weakref.WeakSet[Serving] = weakref.WeakSet()
        self.time_ps = None if strict else functools.partial(program_time_ps, executor.config)
        self.closed = False
        self._process = os.getpid()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Power the device off. Active work ends, possibly with an error; every callback is called.

        Finally raises UsageError if a fault of the device's script has not happened.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
        # Iterate over a copy, because each removes itself.
        for wait in list(self.waits):
            wait.cancel()
        try:
            self.executor.close()  # before the tasks, which would wait for unfinished jobs
        finally:
            self.tasks.close()
            self.executor.programs.close()
            for burst in list(self.bursts):
                burst.abandon()

    def limited(self, deadline: Deadline | None, what: str) -> AbstractContextManager[None]:
        """Context manager: the work inside ends at its next poll with StatusError, DEVICE_UNAVAILABLE if the device is
        closed, MISSED_DEADLINE_TRANSIENT if the deadline has passed."""

        def check() -> None:
            if self.closed:
                raise StatusError(ErrorStatus.DEVICE_UNAVAILABLE, f"{what}: the device has been closed meanwhile")
            if deadline is not None:
                deadline.check_met(what)

        return polled(check)

    @property
    def status(self) -> DeviceStatus:
        """OFFLINE if it is unplugged, closed or owned by another process, BUSY if its queue is full."""
        if self.closed or os.getpid() != self._process:
            return DeviceStatus.OFFLINE
        return DeviceStatus[self.executor.status]

    def check_available(self) -> None:
        """Raise StatusError (DEVICE_UNAVAILABLE) if the device is closed, unplugged or has a full queue, or in a forked
        child, which has no threads."""
        if os.getpid() != self._process:
            raise StatusError(ErrorStatus.DEVICE_UNAVAILABLE, "the device was opened by another process")
        if self.closed:
            raise StatusError(ErrorStatus.DEVICE_UNAVAILABLE, "the device is closed")
        status = self.executor.status
        if status != AVAILABLE:
            raise StatusError(ErrorStatus.DEVICE_UNAVAILABLE, f"the device is {status}")


def program_time_ps(config: Config, program: Program) -> int:
    """Picoseconds of a run of a program on a device of its own."""
    with Session(config, cache_dir=False) as session:
        return session.run(program, timing_only=True).time_ps
