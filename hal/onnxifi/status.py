"""Status codes of ONNXIFI, the exception that carries them, and the statuses of each function."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """onnxStatus: the return value of every function."""

    SUCCESS = 0x0000
    FALLBACK = 0x0001
    INVALID_ID = 0x0101
    INVALID_SIZE = 0x0102
    INVALID_POINTER = 0x0103
    INVALID_PROTOBUF = 0x0104
    INVALID_MODEL = 0x0105
    INVALID_BACKEND = 0x0106
    INVALID_GRAPH = 0x0107
    INVALID_EVENT = 0x0108
    INVALID_STATE = 0x0109
    INVALID_NAME = 0x010A
    INVALID_SHAPE = 0x010B
    INVALID_DATATYPE = 0x010C
    INVALID_MEMORY_TYPE = 0x010D
    INVALID_MEMORY_LOCATION = 0x010E
    INVALID_FENCE_TYPE = 0x010F
    INVALID_PROPERTY = 0x0110
    UNSUPPORTED_TAG = 0x0201
    UNSUPPORTED_VERSION = 0x0202
    UNSUPPORTED_OPERATOR = 0x0203
    UNSUPPORTED_ATTRIBUTE = 0x0204
    UNSUPPORTED_SHAPE = 0x0205
    UNSUPPORTED_DATATYPE = 0x0206
    UNSUPPORTED_MEMORY_TYPE = 0x0207
    UNSUPPORTED_FENCE_TYPE = 0x0208
    UNSUPPORTED_PROPERTY = 0x0209
    UNIDENTIFIED_NAME = 0x0301
    MISMATCHING_SHAPE = 0x0302
    MISMATCHING_DATATYPE = 0x0303
    NO_SYSTEM_MEMORY = 0x0401
    NO_DEVICE_MEMORY = 0x0402
    NO_SYSTEM_RESOURCES = 0x0403
    NO_DEVICE_RESOURCES = 0x0404
    BACKEND_UNAVAILABLE = 0x0405
    INTERNAL_ERROR = 0x0406
    FATAL_ERROR = 0x0407


class OnnxifiError(Exception):
    """A call ends with exactly this status; the message is for the log."""

    def __init__(self, status: Status, message: str, /) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}"


_MEMORY = "NO_SYSTEM_MEMORY NO_SYSTEM_RESOURCES NO_DEVICE_MEMORY NO_DEVICE_RESOURCES"
_LOST = "BACKEND_UNAVAILABLE INTERNAL_ERROR"
_MODEL = "INVALID_PROTOBUF INVALID_MODEL"
_UNSUPPORTED = "UNSUPPORTED_VERSION UNSUPPORTED_OPERATOR UNSUPPORTED_ATTRIBUTE UNSUPPORTED_SHAPE UNSUPPORTED_DATATYPE"
_MISMATCHING = "MISMATCHING_SHAPE MISMATCHING_DATATYPE"
_DESCRIPTOR = "INVALID_SHAPE INVALID_DATATYPE INVALID_MEMORY_TYPE INVALID_MEMORY_LOCATION"


def _statuses(*names: str) -> tuple[Status, ...]:
    """Return SUCCESS and the statuses with these names, separated by blanks."""
    return tuple(Status[name] for name in " ".join(("SUCCESS", *names)).split())


RETURNS: dict[str, tuple[Status, ...]] = {
    "onnxGetBackendIDs": _statuses("FALLBACK INVALID_POINTER NO_SYSTEM_MEMORY INTERNAL_ERROR"),
    "onnxReleaseBackendID": _statuses("INVALID_ID INTERNAL_ERROR"),
    "onnxGetBackendInfo": _statuses("FALLBACK INVALID_ID INVALID_POINTER UNSUPPORTED_ATTRIBUTE BACKEND_UNAVAILABLE"),
    "onnxGetBackendCompatibility": _statuses(
        "FALLBACK INVALID_ID INVALID_POINTER INVALID_SIZE",
        _MODEL,
        _UNSUPPORTED,
        _MISMATCHING,
        "NO_SYSTEM_MEMORY",
        _LOST,
    ),
    "onnxInitBackend": _statuses("INVALID_ID INVALID_POINTER INVALID_PROPERTY UNSUPPORTED_PROPERTY", _MEMORY, _LOST),
    "onnxReleaseBackend": _statuses("INVALID_BACKEND INTERNAL_ERROR"),
    "onnxInitEvent": _statuses("INVALID_BACKEND INVALID_POINTER", _MEMORY, _LOST),
    "onnxSignalEvent": _statuses("INVALID_EVENT INVALID_STATE", _LOST),
    "onnxGetEventState": _statuses("INVALID_EVENT INVALID_POINTER", _LOST),
    "onnxWaitEvent": _statuses("INVALID_EVENT", _LOST),
    "onnxReleaseEvent": _statuses("INVALID_EVENT INTERNAL_ERROR"),
    "onnxInitGraph": _statuses(
        "FALLBACK INVALID_BACKEND INVALID_PROPERTY INVALID_POINTER INVALID_SIZE",
        _MODEL,
        _DESCRIPTOR,
        "UNSUPPORTED_PROPERTY",
        _UNSUPPORTED,
        "UNSUPPORTED_MEMORY_TYPE",
        _MISMATCHING,
        _MEMORY,
        _LOST,
        "UNSUPPORTED_TAG INVALID_NAME",
    ),
    "onnxSetGraphIO": _statuses(
        "INVALID_GRAPH INVALID_POINTER INVALID_NAME",
        _DESCRIPTOR,
        "UNSUPPORTED_TAG UNSUPPORTED_SHAPE UNSUPPORTED_MEMORY_TYPE UNIDENTIFIED_NAME",
        _MISMATCHING,
        _MEMORY,
        _LOST,
    ),
    "onnxRunGraph": _statuses(
        "INVALID_POINTER INVALID_GRAPH INVALID_FENCE_TYPE INVALID_EVENT UNSUPPORTED_TAG UNSUPPORTED_FENCE_TYPE",
        "UNIDENTIFIED_NAME",
        _MEMORY,
        _LOST,
    ),
    "onnxReleaseGraph": _statuses("INVALID_GRAPH INTERNAL_ERROR"),
}
"""The statuses of each function, in the order of the specification.

onnxInitGraph has two that the specification does not list for it, because it has no others for these errors:
UNSUPPORTED_TAG and INVALID_NAME of a weight descriptor.
"""

_BECOMES_UNSUPPORTED_SHAPE = (
    Status.NO_DEVICE_MEMORY,
    Status.UNSUPPORTED_OPERATOR,
    Status.UNSUPPORTED_ATTRIBUTE,
    Status.UNSUPPORTED_DATATYPE,
    Status.INVALID_MODEL,
)
"""Statuses that become UNSUPPORTED_SHAPE in a function that may not return them. onnxInitGraph has checked everything
that depends on the model alone, so a later failure is due to the shapes given to onnxSetGraphIO."""


def within(function: str, status: Status) -> Status:
    """Return the status if ``function`` may return it, else the nearest that it may return."""
    allowed = RETURNS[function]
    nearest = Status.UNSUPPORTED_SHAPE if status in _BECOMES_UNSUPPORTED_SHAPE else status
    return next(
        each for each in (status, nearest, Status.INTERNAL_ERROR, Status.BACKEND_UNAVAILABLE) if each in allowed
    )
