"""Conversion of exceptions to ONNXIFI's status codes, with one table whose completeness is tested."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from npusim import errors
from npusim.frontends.onnx.signature import DeclaredShapeError, DeclaredTypeError

from .causes import worst
from .status import OnnxifiError, Status, within

_log = logging.getLogger("npusim.onnxifi")
_P = ParamSpec("_P")
_T = TypeVar("_T")

ONNXIFI_STATUS: dict[type[BaseException], Status] = {
    errors.NpusimError: Status.INTERNAL_ERROR,
    errors.UsageError: Status.INTERNAL_ERROR,  # a mistake of this engine, not of its client
    errors.ConfigError: Status.INTERNAL_ERROR,
    errors.ModelError: Status.INVALID_MODEL,
    errors.OpenInputsError: Status.INVALID_MODEL,
    DeclaredShapeError: Status.MISMATCHING_SHAPE,
    DeclaredTypeError: Status.MISMATCHING_DATATYPE,
    errors.UnsupportedError: Status.UNSUPPORTED_OPERATOR,  # by its reasons, see causes.py
    errors.UndecidedError: Status.UNSUPPORTED_SHAPE,
    errors.NeedsValueError: Status.UNSUPPORTED_SHAPE,
    errors.CompileError: Status.UNSUPPORTED_SHAPE,
    errors.ScheduleError: Status.UNSUPPORTED_SHAPE,
    errors.InputError: Status.INTERNAL_ERROR,
    errors.ProgramError: Status.INTERNAL_ERROR,
    errors.CacheError: Status.INTERNAL_ERROR,
    errors.CheckpointError: Status.INTERNAL_ERROR,
    errors.DriverCheckError: Status.INTERNAL_ERROR,
    errors.FileCutError: Status.INTERNAL_ERROR,
    errors.DeviceFaultError: Status.INTERNAL_ERROR,
    errors.DeviceGoneError: Status.BACKEND_UNAVAILABLE,
    errors.DeviceMemoryError: Status.NO_DEVICE_MEMORY,
    errors.QueueFullError: Status.NO_DEVICE_RESOURCES,
    errors.DeadlineError: Status.INTERNAL_ERROR,
    errors.JobAbortedError: Status.BACKEND_UNAVAILABLE,  # the device was powered off
    MemoryError: Status.NO_SYSTEM_MEMORY,
    OSError: Status.NO_SYSTEM_RESOURCES,
}
"""The status of an exception for an ONNXIFI client; others are INTERNAL_ERROR."""


def status_of(error: BaseException) -> Status:
    """Return the status of an exception: its own, or that of its nearest class in the table."""
    if isinstance(error, OnnxifiError):
        return error.status
    if isinstance(error, errors.UnsupportedError) and error.reasons:
        return worst(error.reasons)
    kinds = type(error).__mro__
    return next((ONNXIFI_STATUS[kind] for kind in kinds if kind in ONNXIFI_STATUS), Status.INTERNAL_ERROR)


def answers(function: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Convert exceptions of the decorated function to OnnxifiError with a status that ``function`` may return.

    Every failure is logged: client errors at INFO, wrong settings at ERROR, internal errors at ERROR with a traceback.
    """

    def decorate(work: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(work)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return work(*args, **kwargs)
            except Exception as error:
                status = within(function, status_of(error))
                message = error.message if isinstance(error, OnnxifiError) else str(error)
                if not isinstance(error, (OnnxifiError, *ONNXIFI_STATUS)):
                    _log.error("%s: %s", function, error, exc_info=error)
                else:
                    level = logging.ERROR if isinstance(error, errors.ConfigError) else logging.INFO
                    _log.log(level, "%s: %s: %s", function, status.name, message)
                raise OnnxifiError(status, message) from error

        return guarded

    return decorate
