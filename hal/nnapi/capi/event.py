"""ANeuralNetworksEvent: the end of a computation, or a sync fence."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence

from .. import fence
from ..aidl.types import OMITTED
from ..errors import StatusError
from ..execution.tasks import Task, TaskPool
from ..fence import FenceStatus
from ..waiter import wait_all
from .codes import ApiError, ResultCode, bad_data
from .diagnostics import Mode
from .execution import Execution
from .running import Outcome, deadline_after

MAX_THREADS = 32
_tasks = TaskPool(MAX_THREADS, "nnapi-c")
_GIVEN_UP = Outcome(ResultCode.DEAD_OBJECT, "the process ends")


class Event(ABC):
    """Something to wait for."""

    @abstractmethod
    def wait(self) -> None:
        """Block until the event has happened. Raises ApiError with the code of a failure."""

    @abstractmethod
    def settle(self) -> None:
        """Return when the event no longer uses the client's memory."""

    @abstractmethod
    def fence_fd(self) -> int | None:
        """The descriptor of its sync fence, which the event still owns; None if it has none."""


class Completion(Event):
    """The end of a computation that ``startCompute`` has started."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._over = threading.Event()
        self._outcome = Outcome(ResultCode.OP_FAILED)
        computation = execution.begin(Mode.ASYNC)
        deadline = deadline_after(execution.timeout_ns)
        _submit(lambda: self._end(computation.run(deadline)), lambda: self._end(_GIVEN_UP))

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._execution.end(outcome)
        self._over.set()

    def wait(self) -> None:
        """Block until the computation has ended. Raises ApiError with its result code."""
        self.settle()
        self._outcome.check()

    def settle(self) -> None:
        """Wait until the computation no longer uses client buffers."""
        self._over.wait()

    def fence_fd(self) -> int | None:
        """None: this event has no sync fence."""
        return None


class FencedCompletion(Event):
    """The end of a computation that waits for other events. It has a separate sync fence."""

    def __init__(self, execution: Execution, before: Sequence[Event], duration_ns: int) -> None:
        handles = _handles(before)
        self._execution = execution
        self._duration_ns = duration_ns
        self._fence = fence.create()
        self._handle = self._fence.dup()
        _close_with(self, self._handle[0])
        self._outcome = Outcome(ResultCode.OP_FAILED)
        # From here on nothing is raised: the computation must end.
        self._computation = execution.begin(Mode.ASYNC_WITH_DEPS)
        self._deadline_ns = deadline_after(execution.timeout_ns)
        self._launched_ns = time.monotonic_ns()
        try:
            wait_all(handles, self._go)
        except StatusError as error:  # the fence was valid a moment ago
            self._end(Outcome(ResultCode.BAD_DATA, error.message), 0)
        except (OSError, RuntimeError) as error:  # no descriptors or threads to wait with
            self._end(Outcome(ResultCode.RESOURCE_EXHAUSTED_TRANSIENT, str(error)), 0)

    def _go(self, state: FenceStatus) -> None:
        if state is not FenceStatus.SIGNALED:
            self._end(Outcome(ResultCode.OP_FAILED, "an event before the execution has failed"), 0)
            return
        _submit(self._run, lambda: self._end(_GIVEN_UP, 0))

    def _run(self) -> None:
        waited = time.monotonic_ns() - self._launched_ns
        after = deadline_after(self._duration_ns)
        given = [deadline for deadline in (self._deadline_ns, after) if deadline != OMITTED]
        self._end(self._computation.run(min(given, default=OMITTED)), waited)

    def _end(self, outcome: Outcome, waited_ns: int) -> None:
        self._outcome = outcome
        self._execution.end(outcome, waited_ns)
        # Signal after the execution has its outcome: a client that sees the fence may read the outcome at once.
        if outcome.code is ResultCode.NO_ERROR:
            self._fence.signal()
        else:
            self._fence.signal_error()
        self._fence.close()

    def wait(self) -> None:
        """Block until the fence is signalled. Raises ApiError with the result code of the computation."""
        self.settle()
        self._outcome.check()

    def settle(self) -> None:
        """Wait until the computation no longer uses client buffers."""
        fence.wait(self._handle)

    def fence_fd(self) -> int | None:
        """The descriptor of the sync fence; the event keeps it."""
        return self._handle[0]


class ForeignFence(Event):
    """A sync fence of the client. Its descriptor is duplicated."""

    def __init__(self, descriptor: int) -> None:
        # Descriptor 0 is refused too, as in the Android runtime.
        if descriptor <= 0:
            raise bad_data(f"a sync fence must be a descriptor above 0, got {descriptor}")
        try:
            fence.check([descriptor])
            self._own = os.dup(descriptor)
        except (StatusError, OSError) as error:
            raise bad_data(str(error)) from None
        _close_with(self, self._own)

    def wait(self) -> None:
        """Block until the fence is signalled. Raises ApiError if it ends in the error state."""
        if fence.wait([self._own]) is FenceStatus.ERROR:
            raise ApiError(ResultCode.OP_FAILED, "the sync fence is in error")

    def settle(self) -> None:
        """Return at once: a foreign fence uses no client buffers."""

    def fence_fd(self) -> int | None:
        """The descriptor of the duplicated fence; the event keeps it."""
        return self._own


def _close_with(event: Event, descriptor: int) -> None:
    """Close a descriptor when its event is collected, but not at process exit, which closes it anyway."""
    weakref.finalize(event, os.close, descriptor).atexit = False


def _handles(before: Sequence[Event]) -> list[list[int]]:
    """The fences of events. Waits here for events without one. Raises ApiError if one has already failed."""
    handles = []
    for event in before:
        descriptor = event.fence_fd()
        if descriptor is None:
            event.wait()
        elif fence.status(descriptor) is FenceStatus.ERROR:
            raise bad_data("an event that the execution depends on has failed")
        else:
            handles.append([descriptor])
    return handles


def _submit(task: Task, otherwise: Task) -> None:
    try:
        _tasks.submit(task)
    except RuntimeError:  # no more threads can be started
        otherwise()
