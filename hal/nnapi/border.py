"""The border of the driver: the only place where exceptions become statuses."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from npusim import errors
from npusim.plan import ValueNeededError

from .errors import ErrorStatus, InvalidArgumentError, StatusError
from .operations.lowering import InvalidOperationError
from .plan import LoopTimeoutError
from .validation.fields import MalformedError

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("hal.nnapi")

EXPECTED: dict[type[BaseException], ErrorStatus] = {
    errors.NpusimError: ErrorStatus.GENERAL_FAILURE,
    errors.UsageError: ErrorStatus.GENERAL_FAILURE,  # a mistake of this driver, not of its client
    errors.ConfigError: ErrorStatus.GENERAL_FAILURE,
    errors.ModelError: ErrorStatus.INVALID_ARGUMENT,
    errors.OpenInputsError: ErrorStatus.INVALID_ARGUMENT,
    errors.UnsupportedError: ErrorStatus.GENERAL_FAILURE,
    errors.UndecidedError: ErrorStatus.GENERAL_FAILURE,
    errors.NeedsValueError: ErrorStatus.GENERAL_FAILURE,
    errors.CompileError: ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
    errors.ScheduleError: ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
    errors.InputError: ErrorStatus.INVALID_ARGUMENT,
    errors.ProgramError: ErrorStatus.GENERAL_FAILURE,
    errors.CacheError: ErrorStatus.GENERAL_FAILURE,
    errors.CheckpointError: ErrorStatus.GENERAL_FAILURE,
    errors.DriverCheckError: ErrorStatus.GENERAL_FAILURE,
    errors.FileCutError: ErrorStatus.GENERAL_FAILURE,
    errors.DeviceFaultError: ErrorStatus.GENERAL_FAILURE,
    errors.DeviceGoneError: ErrorStatus.DEVICE_UNAVAILABLE,
    errors.DeviceMemoryError: ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    errors.QueueFullError: ErrorStatus.DEVICE_UNAVAILABLE,
    errors.DeadlineError: ErrorStatus.MISSED_DEADLINE_TRANSIENT,
    errors.JobAbortedError: ErrorStatus.GENERAL_FAILURE,
    InvalidArgumentError: ErrorStatus.INVALID_ARGUMENT,
    MalformedError: ErrorStatus.INVALID_ARGUMENT,
    InvalidOperationError: ErrorStatus.INVALID_ARGUMENT,
    LoopTimeoutError: ErrorStatus.MISSED_DEADLINE_PERSISTENT,
    MemoryError: ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
}
"""Errors that a client, a config or a device can cause: logged in one line."""
UNEXPECTED: dict[type[BaseException], ErrorStatus] = {
    ValueNeededError: ErrorStatus.GENERAL_FAILURE,
    RecursionError: ErrorStatus.GENERAL_FAILURE,
    OSError: ErrorStatus.GENERAL_FAILURE,
}
"""Defects of the driver and failures of the machine, and exceptions in neither table: logged with a traceback."""
STATUS = EXPECTED | UNEXPECTED

_OLDER = {
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: ErrorStatus.GENERAL_FAILURE,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: ErrorStatus.GENERAL_FAILURE,
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ErrorStatus.GENERAL_FAILURE,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ErrorStatus.GENERAL_FAILURE,
}


def verdict(error: BaseException) -> tuple[bool, ErrorStatus]:
    """(whether an exception is expected, its status). The status is its own, or that of its nearest class in the
    tables."""
    if isinstance(error, StatusError):
        return True, error.status
    kind = next((kind for kind in type(error).__mro__ if kind in STATUS), BaseException)
    return kind in EXPECTED, STATUS.get(kind, ErrorStatus.GENERAL_FAILURE)


def status_of(error: BaseException, what: str) -> ErrorStatus:
    """The status of an exception (see :func:`verdict`), which is also logged."""
    expected, status = verdict(error)
    if expected:
        _log.info("%s: %s: %s", what, status.name, said(error))  # a stored exception object would keep its frames alive
    else:
        _log.error("%s: %s: %s: %s", what, status.name, type(error).__name__, error, exc_info=error)
    return status


def said(error: BaseException) -> str:
    """The message of an error without its status."""
    return error.message if isinstance(error, StatusError) else str(error)


def older_status(status: ErrorStatus) -> ErrorStatus:
    """The status for clients of HAL 1.2 or older, which lack the statuses of 1.3."""
    return _OLDER.get(status, status)


def never_raises(*others: Callable[[], Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator for methods of the interface: an exception becomes its status, and ``others`` create the other results.

    With ``others`` the method returns a tuple, without them only the status.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - this is the border
                status = status_of(error, method.__name__)
                failure: Any = (status, *(other() for other in others)) if others else status
                return failure  # type: ignore[no-any-return]

        return guarded

    return decorate


def nothing() -> None:
    """None: the result of a failed method in place of an object."""
