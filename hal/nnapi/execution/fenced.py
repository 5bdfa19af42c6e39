"""executeFenced: an execution that waits for fences in the background, and its callback object."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import fence
from ..border import never_raises
from ..errors import invalid_argument
from ..fence import FenceStatus, Handle
from ..types import ErrorStatus, MeasureTiming, Request, Timing
from ..waiter import Pending, wait_all
from .deadline import Deadline, Duration, TimePoint, duration_ns
from .engine import Engine
from .execution import Executable, Execution
from .outcome import Outcome


class FencedCallback:
    """IFencedExecutionCallback: status and times of a fenced execution."""

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._waited_ps = 0

    @never_raises(Timing, Timing)
    def getExecutionInfo(self) -> tuple[ErrorStatus, Timing, Timing]:
        """(status, times since the launch, times since the last fence was signalled), in microseconds.

        GENERAL_FAILURE until the execution has ended. The wait for fences is measured on the steady clock and is part
        of the time in the driver since the launch. All other times are simulated.
        """
        outcome = self._outcome
        if outcome is None:
            return ErrorStatus.GENERAL_FAILURE, Timing(), Timing()
        return outcome.status, self._launched(outcome).timing(), outcome.timing()

    @property
    def over(self) -> bool:
        """Whether the execution has ended."""
        return self._outcome is not None

    def times_ns(self) -> tuple[ErrorStatus, tuple[int, int], tuple[int, int]]:
        """:meth:`getExecutionInfo` as pairs (on device, in driver) of nanoseconds, -1 where HIDL has UINT64_MAX."""
        outcome = self._outcome
        if outcome is None:
            return ErrorStatus.GENERAL_FAILURE, (-1, -1), (-1, -1)
        return outcome.status, self._launched(outcome).times_ns(), outcome.times_ns()

    def _launched(self, outcome: Outcome) -> Outcome:
        if outcome.driver_ps is None:
            return outcome
        return Outcome(outcome.status, [], outcome.device_ps, outcome.driver_ps + self._waited_ps)

    def finish(self, outcome: Outcome, waited_ps: int) -> None:
        """Store the result of the execution."""
        self._waited_ps = waited_ps
        self._outcome = outcome


class FencedExecution:
    """An execution that waits for fences, and signals one at its end."""

    def __init__(self, engine: Engine, execution: Execution, duration: Duration, priority: int) -> None:
        self.callback = FencedCallback()
        self._engine = engine
        self._execution = execution
        self._duration_ns = duration_ns(duration)
        self._priority = priority
        self._clock = engine.clock
        self._launched_ns = self._clock()
        self._fence = fence.create()
        self._pending: Pending | None = None

    def launch(self, handles: Sequence[Handle]) -> list[int]:
        """Run it after all fences are signalled. Returns the handle of the fence that it signals."""
        handle = self._fence.dup()  # while the fence can be duplicated: it may be signalled before wait_all returns
        self._engine.waits.add(self)
        deadline = self._execution.deadline
        try:
            pending = wait_all(handles, self._go, None if deadline is None else deadline.seconds_left())
        except BaseException:
            self._engine.waits.discard(self)
            self._execution.abandon()
            os.close(handle[0])
            raise
        if not self.callback.over:  # otherwise it has ended, and would keep itself alive until the collector runs
            self._pending = pending
        if self._engine.closed:  # close() may have missed this one
            self.cancel()
        return handle

    def cancel(self) -> None:
        """End now if it still waits, because the device is being closed."""
        pending = self._pending
        if pending is not None and pending.cancel():
            self._engine.waits.discard(self)
            self._give_up(ErrorStatus.DEVICE_UNAVAILABLE)

    def _go(self, state: FenceStatus) -> None:
        self._engine.waits.discard(self)
        if state is not FenceStatus.SIGNALED:
            late = state is FenceStatus.ACTIVE  # the deadline passed before the fences were signalled
            self._give_up(ErrorStatus.MISSED_DEADLINE_TRANSIENT if late else ErrorStatus.GENERAL_FAILURE)
            return
        try:
            # On another thread: the thread that waits for fences is shared, and this may take long.
            self._engine.tasks.submit(self._run, self._priority)
        except RuntimeError:  # the device has been closed meanwhile
            self._give_up(ErrorStatus.DEVICE_UNAVAILABLE)

    def _run(self) -> None:
        began = self._clock()
        outcome = self._execution.run(self._sooner(began))
        self._settle(outcome, max(0, began - self._launched_ns) * 1000)

    def _sooner(self, now_ns: int) -> Deadline | None:
        """The earlier of the deadline and the end of the duration from now."""
        deadline = self._execution.deadline
        if self._duration_ns is None:
            return deadline
        end = now_ns + self._duration_ns
        return Deadline(end if deadline is None else min(end, deadline.at_ns), self._clock)

    def _give_up(self, status: ErrorStatus) -> None:
        self._execution.abandon()
        self._settle(Outcome(status), 0)

    def _settle(self, outcome: Outcome, waited_ps: int) -> None:
        self.callback.finish(outcome, waited_ps)  # before the fence, because a client that sees the fence may query it
        if outcome.status is ErrorStatus.NONE:
            self._fence.signal()
        else:
            self._fence.signal_error()
        self._fence.close()
        self._pending = None  # it refers to this object, whose mappings must not wait for the collector


def execute_fenced(
    model: Executable,
    request: Request,
    waitFor: object,
    measure: MeasureTiming | bool | int,
    deadline: TimePoint,
    loop_timeout: Duration,
    duration: Duration,
) -> tuple[list[int], FencedCallback]:
    """Execute a request after all fences are signalled. Returns the handle of the fence that it signals, and the
    callback.

    Raises errors of the request or the fences.
    """
    if not isinstance(waitFor, Sequence):
        raise invalid_argument(f"waitFor must be handles of fences, got {waitFor!r}")
    for handle in waitFor:
        # Before the execution is created: an invalid fence, or one in the error state, fails the call and leaves
        # buffers unchanged.
        fence.check_good(handle)
    execution = Execution(model, request, measure, deadline, loop_timeout, fenced=True)
    fenced = FencedExecution(model.engine, execution, duration, int(model.queue))
    return fenced.launch(waitFor), fenced.callback
