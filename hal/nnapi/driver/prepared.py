"""The prepared model: ``IPreparedModel`` of HAL 1.0 to 1.3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..border import never_raises, nothing, older_status, status_of
from ..errors import StatusError
from ..execution import burst
from ..execution.deadline import Duration, TimePoint
from ..execution.execution import Executable, Execution
from ..execution.fenced import FencedCallback, execute_fenced
from ..fence import Handle
from ..types import ErrorStatus, MeasureTiming, OutputShape, Request, Timing
from ..v1_0 import request_to_1_3
from .callbacks import check_callback, notify_executed

NO = MeasureTiming.NO


class PreparedModel(Executable):
    """IPreparedModel of HAL 1.0 to 1.3, created by ``IDevice.prepareModel*``. Any number of executions may run
    concurrently."""

    # HAL 1.0 to 1.2

    @never_raises()
    def execute(self, request: Any, callback: Any) -> ErrorStatus:
        """1.0: execute a request; the callback gets the status."""
        return older_status(self._launch(partial(request_to_1_3, request), NO, None, None, callback))

    @never_raises()
    def execute_1_2(self, request: Any, measure: MeasureTiming | int, callback: Any) -> ErrorStatus:
        """1.2: likewise, with times."""
        return older_status(self._launch(partial(request_to_1_3, request), measure, None, None, callback))

    @never_raises(list, Timing)
    def executeSynchronously(
        self, request: Any, measure: MeasureTiming | int
    ) -> tuple[ErrorStatus, list[OutputShape], Timing]:
        """1.2: execute a request: (status, output shapes, times in microseconds)."""
        status, shapes, timing = self.executeSynchronously_1_3(request_to_1_3(request), measure, None, None)
        return older_status(status), shapes, timing

    @never_raises(nothing)
    def configureExecutionBurst(
        self, callback: Any, requestChannel: Any, resultChannel: Any
    ) -> tuple[ErrorStatus, Any]:
        """1.2: start a burst over message queues: (status, IBurstContext or None)."""
        self.engine.check_available()
        return burst.configure(self, callback, requestChannel, resultChannel)

    # HAL 1.3

    @never_raises()
    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming | int,
        deadline: TimePoint,
        loopTimeoutDuration: Duration,
        callback: Any,
    ) -> ErrorStatus:
        """1.3: execute a request; returns the status of the launch. If it failed, the callback gets the same status."""
        return self._launch(lambda: request, measure, deadline, loopTimeoutDuration, callback)

    @never_raises(list, Timing)
    def executeSynchronously_1_3(
        self, request: Request, measure: MeasureTiming | int, deadline: TimePoint, loopTimeoutDuration: Duration
    ) -> tuple[ErrorStatus, list[OutputShape], Timing]:
        """Execute a request: (status, output shapes, times in microseconds)."""
        outcome = self.run(request, measure, deadline, loopTimeoutDuration)
        return outcome.status, outcome.outputShapes, outcome.timing()

    @never_raises(nothing, nothing)
    def executeFenced(
        self,
        request: Request,
        waitFor: Sequence[Handle],
        measure: MeasureTiming | int,
        deadline: TimePoint,
        loopTimeoutDuration: Duration,
        duration: Duration,
    ) -> tuple[ErrorStatus, list[int] | None, FencedCallback | None]:
        """Execute a request after all fences are signalled: (status, handle of a sync fence, callback).

        Returns at once. A fence of ``waitFor`` that is already in the error state gives INVALID_ARGUMENT. The returned
        fence is signalled at the end, with an error if the execution or one of ``waitFor`` failed. ``duration``: limit
        since the last fence was signalled. The receiver of the handle closes its descriptor.
        """
        handle, callback = execute_fenced(self, request, waitFor, measure, deadline, loopTimeoutDuration, duration)
        return ErrorStatus.NONE, handle, callback

    def _launch(
        self, request: Any, measure: MeasureTiming | int, deadline: TimePoint, loop_timeout: Duration, callback: Any
    ) -> ErrorStatus:
        """Check a request, then execute it on another thread. ``request``: creates it."""
        try:
            check_callback(callback)
            execution = Execution(self, request(), measure, deadline, loop_timeout)
        except Exception as error:  # noqa: BLE001 - whatever it is, launch and callback get its status
            status = status_of(error, "execution")
            notify_executed(callback, status, [], Timing())
            return status

        def task() -> None:
            outcome = execution.run()
            notify_executed(callback, outcome.status, outcome.outputShapes, outcome.timing())

        try:
            self.engine.tasks.submit(task, int(self.queue))
        except RuntimeError as error:
            execution.abandon()
            status = status_of(StatusError(ErrorStatus.DEVICE_UNAVAILABLE, str(error)), "execution")
            notify_executed(callback, status, [], Timing())
            return status
        return ErrorStatus.NONE
