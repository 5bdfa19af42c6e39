"""The prepared model: everything that executes it, whichever interface the client speaks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.executor import Priority as QueuePriority
from npusim.program import Program

from .. import fence
from ..border import never_raises, nothing, status_of
from ..errors import StatusError
from ..execution import burst
from ..execution.deadline import Duration, TimePoint, loop_timeout_ps
from ..execution.execution import Execution, Mappings, Outcome, checked_measure
from ..execution.fenced import FencedCallback, FencedExecution
from ..fence import Handle
from ..types import ErrorStatus, MeasureTiming, Model, Operand, OutputShape, Priority, Request, Timing
from ..v1_0 import request_to_1_3
from ..validation import validate_request
from .callbacks import check_callback, notify_executed, older_status

if TYPE_CHECKING:
    from ..plan import Plan
    from .device import Device
    from .programs import ProgramStore

NO = MeasureTiming.NO


class PreparedModel:
    """IPreparedModel of HAL 1.0 to 1.3. Made by ``IDevice.prepareModel*``; any number of executions may run at once."""

    def __init__(self, device: Device, model: Model, plan: Plan, priority: Priority) -> None:
        self._device = device
        self._model = model
        self._plan = plan
        self._priority = priority
        self._queue = QueuePriority(int(priority))
        self._pinned: list[list[Program]] = []
        weakref.finalize(self, _release, device._programs, plan).atexit = False

    # HAL 1.0 to 1.2

    @never_raises()
    def execute(self, request: Any, callback: Any) -> ErrorStatus:
        """1.0: have a request executed; the callback is told how it ended."""
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
        """1.2: executions one after the other over message queues: (status, IBurstContext or None)."""
        self._device._check_available()
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
        """Have a request executed: the status of the launch. The callback is told the same if that failed."""
        return self._launch(lambda: request, measure, deadline, loopTimeoutDuration, callback)

    @never_raises(list, Timing)
    def executeSynchronously_1_3(
        self, request: Request, measure: MeasureTiming | int, deadline: TimePoint, loopTimeoutDuration: Duration
    ) -> tuple[ErrorStatus, list[OutputShape], Timing]:
        """Execute a request: (status, output shapes, times in microseconds)."""
        outcome = self._run(request, measure, deadline, loopTimeoutDuration)
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
        """Have a request executed when all fences are signalled: (status, handle of a sync fence, callback).

        Returns at once. The fence is signalled at the end, in error if the execution or one of ``waitFor`` failed.
        ``duration``: time from when the last fence is signalled. The receiver of the handle closes its descriptor.
        """
        return self._fenced(request, waitFor, measure, deadline, loopTimeoutDuration, duration)

    # What the methods have in common

    def _run(
        self,
        request: Request,
        measure: MeasureTiming | bool | int,
        deadline: TimePoint,
        loop_timeout: Duration,
        mappings: Mappings | None = None,
    ) -> Outcome:
        """Execute in the caller's thread. Never raises."""
        try:
            execution = Execution(self, request, measure, deadline, loop_timeout, mappings)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets a status
            return Outcome(status_of(error, "execution"))
        return execution.run()

    def _check_request(self, request: Request, measure: MeasureTiming | bool | int, loop_timeout: Duration) -> None:
        """Raise what executions of a request would fail with from the start."""
        checked_measure(measure)
        loop_timeout_ps(loop_timeout)
        validate_request(request, self._model, token=self._device._buffers.check_token)

    def _launch(
        self, request: Any, measure: MeasureTiming | int, deadline: TimePoint, loop_timeout: Duration, callback: Any
    ) -> ErrorStatus:
        """Check a request, then have it executed by another thread. ``request``: makes it."""
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
            self._device._tasks.submit(task, int(self._priority))
        except RuntimeError as error:
            execution.abandon()
            status = status_of(StatusError(ErrorStatus.DEVICE_UNAVAILABLE, str(error)), "execution")
            notify_executed(callback, status, [], Timing())
            return status
        return ErrorStatus.NONE

    def _fenced(
        self,
        request: Request,
        waitFor: Any,
        measure: MeasureTiming | bool | int,
        deadline: TimePoint,
        loop_timeout: Duration,
        duration: Duration,
    ) -> tuple[ErrorStatus, list[int], FencedCallback]:
        if not isinstance(waitFor, Sequence):
            raise StatusError(ErrorStatus.INVALID_ARGUMENT, f"waitFor must be handles of fences, got {waitFor!r}")
        for handle in waitFor:
            fence.check(handle)
        execution = Execution(self, request, measure, deadline, loop_timeout, fenced=True)
        fenced = FencedExecution(self._device, execution, duration, int(self._priority))
        return ErrorStatus.NONE, fenced.launch(waitFor), fenced.callback

    def _storage_of(self, operand: Operand) -> np.dtype[Any]:
        """The numpy type of an operand's elements."""
        return self._plan.vocabulary.storage_of(operand)

    # Residence on the device, for bursts

    def _pin(self) -> None:
        """Keep the programs on the device until as many ``_unpin`` have followed."""
        pinned: list[Program] = []
        try:
            for program in list(self._plan.programs()):
                self._device._executor.keep(program)
                pinned.append(program)
        except BaseException:
            self._unpin_all(pinned)
            raise
        self._pinned.append(pinned)

    def _unpin(self) -> None:
        """Undo one ``_pin``. Takes no lock: finalizers may call it anywhere."""
        self._unpin_all(self._pinned.pop())

    def _unpin_all(self, programs: Sequence[Program]) -> None:
        for program in programs:
            self._device._executor.unpin(program)


def _release(store: ProgramStore, plan: Plan) -> None:
    store.release(plan.programs())
