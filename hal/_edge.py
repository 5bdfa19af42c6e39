"""Where exceptions become status codes: one table, which a test proves complete."""

from __future__ import annotations

from npusim import errors

from .nnapi.errors import InvalidArgumentError, StatusError
from .nnapi.operations.lowering import InvalidOperationError, ValueNeededError
from .nnapi.plan import LoopTimeoutError
from .nnapi.types import ErrorStatus
from .nnapi.validation.fields import MalformedError

NNAPI_STATUS: dict[type[BaseException], ErrorStatus] = {
    errors.NpusimError: ErrorStatus.GENERAL_FAILURE,
    errors.UsageError: ErrorStatus.GENERAL_FAILURE,  # this driver's own mistake, not its client's
    errors.ConfigError: ErrorStatus.GENERAL_FAILURE,
    errors.ModelError: ErrorStatus.INVALID_ARGUMENT,
    errors.UnsupportedError: ErrorStatus.GENERAL_FAILURE,
    errors.CompileError: ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
    errors.InputError: ErrorStatus.INVALID_ARGUMENT,
    errors.ProgramError: ErrorStatus.GENERAL_FAILURE,
    errors.CacheError: ErrorStatus.GENERAL_FAILURE,
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
    ValueNeededError: ErrorStatus.GENERAL_FAILURE,
    LoopTimeoutError: ErrorStatus.MISSED_DEADLINE_PERSISTENT,
    MemoryError: ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    RecursionError: ErrorStatus.GENERAL_FAILURE,
    OSError: ErrorStatus.GENERAL_FAILURE,
}
"""What an exception means to an NNAPI client; an exception that is not named here is a GENERAL_FAILURE."""


def nnapi_status(error: BaseException) -> ErrorStatus:
    """The ErrorStatus for an exception: that of its nearest class in the table."""
    if isinstance(error, StatusError):
        return error.status
    return next(
        (NNAPI_STATUS[kind] for kind in type(error).__mro__ if kind in NNAPI_STATUS), ErrorStatus.GENERAL_FAILURE
    )
