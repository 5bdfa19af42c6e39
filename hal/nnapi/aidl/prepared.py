"""IPreparedModel and IExecution of the AIDL interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..driver.prepared import PreparedModel
from ..errors import StatusError
from ..execution.fenced import FencedCallback, execute_fenced
from ..memory.pools import Kept, PoolMappings
from ..types import ErrorStatus, Request
from ..validation.fields import items
from .border import raises_status
from .burst import Burst
from .config import checked_config
from .request import request_to_1_3, result_of, time_to_1_3
from .types import ExecutionConfig, ExecutionResult, FencedExecutionResult, Interface, Timing


class AidlPreparedModel(Interface):
    """IPreparedModel."""

    def __init__(self, prepared: PreparedModel) -> None:
        self.prepared = prepared

    @raises_status
    def executeSynchronously(
        self, request: Any, measureTiming: bool, deadlineNs: int, loopTimeoutDurationNs: int
    ) -> ExecutionResult:
        """Execute a request."""
        config = ExecutionConfig(measureTiming, loopTimeoutDurationNs)
        return _execute(self.prepared, request_to_1_3(request), config, deadlineNs)

    @raises_status
    def executeSynchronouslyWithConfig(self, request: Any, config: ExecutionConfig, deadlineNs: int) -> ExecutionResult:
        """The same with a configuration. Vendor hints are checked; this driver follows none."""
        return _execute(self.prepared, request_to_1_3(request), checked_config(config), deadlineNs)

    @raises_status
    def executeFenced(
        self,
        request: Any,
        waitFor: Sequence[int],
        measureTiming: bool,
        deadlineNs: int,
        loopTimeoutDurationNs: int,
        durationNs: int,
    ) -> FencedExecutionResult:
        """Execute a request after all fences are signalled. Returns at once."""
        config = ExecutionConfig(measureTiming, loopTimeoutDurationNs)
        return _execute_fenced(self.prepared, request_to_1_3(request), waitFor, config, deadlineNs, durationNs)

    @raises_status
    def executeFencedWithConfig(
        self, request: Any, waitFor: Sequence[int], config: ExecutionConfig, deadlineNs: int, durationNs: int
    ) -> FencedExecutionResult:
        """The same with a configuration."""
        given = checked_config(config)
        return _execute_fenced(self.prepared, request_to_1_3(request), waitFor, given, deadlineNs, durationNs)

    @raises_status
    def configureExecutionBurst(self) -> Burst:
        """Start a sequence of executions that keep their resources."""
        self.prepared.engine.check_available()
        return Burst(self.prepared)

    @raises_status
    def createReusableExecution(self, request: Any, config: ExecutionConfig) -> AidlExecution:
        """A request that is executed again and again."""
        return AidlExecution(self.prepared, request_to_1_3(request), checked_config(config))


class AidlExecution(Interface):
    """IExecution: one request, whose pools stay mapped."""

    def __init__(self, prepared: PreparedModel, request: Request, config: ExecutionConfig) -> None:
        self._prepared = prepared
        self._request = request
        self._config = config
        self._kept: dict[int, Kept] = {}
        # Permanent errors are reported when the execution is created, not by every run.
        prepared.check_request(request, config.measureTiming, time_to_1_3(config.loopTimeoutDurationNs, "loopTimeout"))

    @raises_status
    def executeSynchronously(self, deadlineNs: int) -> ExecutionResult:
        """Execute the request."""
        mappings = PoolMappings(self._kept, list(range(len(self._request.pools))))
        return _execute(self._prepared, self._request, self._config, deadlineNs, mappings)

    @raises_status
    def executeFenced(self, waitFor: Sequence[int], deadlineNs: int, durationNs: int) -> FencedExecutionResult:
        """Execute the request after all fences are signalled. Returns at once."""
        return _execute_fenced(self._prepared, self._request, waitFor, self._config, deadlineNs, durationNs)


class AidlFencedCallback(Interface):
    """IFencedExecutionCallback."""

    def __init__(self, callback: FencedCallback) -> None:
        self._callback = callback

    @raises_status
    def getExecutionInfo(self) -> tuple[ErrorStatus, Timing, Timing]:
        """(status, times since the launch, times since the last fence was signalled) in nanoseconds.

        Raises GENERAL_FAILURE until the execution has ended.
        """
        if not self._callback.over:
            raise StatusError(ErrorStatus.GENERAL_FAILURE, "the execution has not ended")
        status, launched, fenced = self._callback.times_ns()
        return status, Timing(*launched), Timing(*fenced)


def _execute(
    prepared: PreparedModel,
    request: Request,
    config: ExecutionConfig,
    deadlineNs: int,
    mappings: PoolMappings | None = None,
) -> ExecutionResult:
    outcome = prepared.run(
        request,
        config.measureTiming,
        time_to_1_3(deadlineNs, "deadlineNs"),
        time_to_1_3(config.loopTimeoutDurationNs, "loopTimeoutDurationNs"),
        mappings,
    )
    return result_of(outcome)


def _execute_fenced(
    prepared: PreparedModel,
    request: Request,
    waitFor: Sequence[int],
    config: ExecutionConfig,
    deadlineNs: int,
    durationNs: int,
) -> FencedExecutionResult:
    handle, callback = execute_fenced(
        prepared,
        request,
        handles_of(waitFor),
        config.measureTiming,
        time_to_1_3(deadlineNs, "deadlineNs"),
        time_to_1_3(config.loopTimeoutDurationNs, "loopTimeoutDurationNs"),
        time_to_1_3(durationNs, "durationNs"),
    )
    return FencedExecutionResult(AidlFencedCallback(callback), handle[0])


def handles_of(descriptors: Sequence[int]) -> list[list[int]]:
    """ParcelFileDescriptors as handles of HIDL."""
    given: Sequence[Any] = items(descriptors, "descriptors")
    return [list(items(each, "a handle")) if isinstance(each, Sequence) else [each] for each in given]
