"""Numbers of the C API that differ from those of the HAL, and the exception that carries a result code."""

from __future__ import annotations

import enum

from ..types import ErrorStatus, Priority

FEATURE_LEVEL = 1_000_008
"""ANEURALNETWORKS_FEATURE_LEVEL_8: of the runtime, and of every device."""
MAX_COPIED_BYTES = 128
"""ANEURALNETWORKS_MAX_SIZE_OF_IMMEDIATELY_COPIED_VALUES."""
NOT_AVAILABLE = 0xFFFF_FFFF_FFFF_FFFF
"""A duration that was not measured."""


class ResultCode(enum.IntEnum):
    """ANEURALNETWORKS_*: the result codes of functions."""

    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    INCOMPLETE = 2
    UNEXPECTED_NULL = 3
    BAD_DATA = 4
    OP_FAILED = 5
    BAD_STATE = 6
    UNMAPPABLE = 7
    OUTPUT_INSUFFICIENT_SIZE = 8
    UNAVAILABLE_DEVICE = 9
    MISSED_DEADLINE_TRANSIENT = 10
    MISSED_DEADLINE_PERSISTENT = 11
    RESOURCE_EXHAUSTED_TRANSIENT = 12
    RESOURCE_EXHAUSTED_PERSISTENT = 13
    DEAD_OBJECT = 14


class DurationCode(enum.IntEnum):
    """ANEURALNETWORKS_DURATION_*: the durations of ``getDuration``."""

    ON_HARDWARE = 0
    IN_DRIVER = 1
    FENCED_ON_HARDWARE = 2
    FENCED_IN_DRIVER = 3


PRIORITIES = {90: Priority.LOW, 100: Priority.MEDIUM, 110: Priority.HIGH}
"""ANEURALNETWORKS_PRIORITY_*."""

_CODES = {
    ErrorStatus.NONE: ResultCode.NO_ERROR,
    ErrorStatus.DEVICE_UNAVAILABLE: ResultCode.UNAVAILABLE_DEVICE,
    ErrorStatus.GENERAL_FAILURE: ResultCode.OP_FAILED,
    ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: ResultCode.OUTPUT_INSUFFICIENT_SIZE,
    ErrorStatus.INVALID_ARGUMENT: ResultCode.BAD_DATA,
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: ResultCode.MISSED_DEADLINE_TRANSIENT,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: ResultCode.MISSED_DEADLINE_PERSISTENT,
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResultCode.RESOURCE_EXHAUSTED_TRANSIENT,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResultCode.RESOURCE_EXHAUSTED_PERSISTENT,
}


def code_of(status: ErrorStatus) -> ResultCode:
    """The result code for a status of the driver."""
    return _CODES[status]


class ApiError(Exception):
    """A function fails with this code; the message is logged."""

    def __init__(self, code: ResultCode, message: str, /) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def bad_data(message: str) -> ApiError:
    """The error of a call with a wrong argument."""
    return ApiError(ResultCode.BAD_DATA, message)


def bad_state(message: str) -> ApiError:
    """The error of a call in the wrong state."""
    return ApiError(ResultCode.BAD_STATE, message)
