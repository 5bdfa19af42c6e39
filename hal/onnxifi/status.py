"""Status codes of ONNXIFI, the one exception that carries them, and which function may return which."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """onnxStatus: what every function returns."""

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


_S = Status
_MEMORY = (_S.NO_SYSTEM_MEMORY, _S.NO_SYSTEM_RESOURCES, _S.NO_DEVICE_MEMORY, _S.NO_DEVICE_RESOURCES)
_LOST = (_S.BACKEND_UNAVAILABLE, _S.INTERNAL_ERROR)
_MODEL = (_S.INVALID_PROTOBUF, _S.INVALID_MODEL)
_UNSUPPORTED = (
    _S.UNSUPPORTED_VERSION, _S.UNSUPPORTED_OPERATOR, _S.UNSUPPORTED_ATTRIBUTE, _S.UNSUPPORTED_SHAPE,
    _S.UNSUPPORTED_DATATYPE,
)  # fmt: skip
_MISMATCHING = (_S.MISMATCHING_SHAPE, _S.MISMATCHING_DATATYPE)
_DESCRIPTOR = (_S.INVALID_SHAPE, _S.INVALID_DATATYPE, _S.INVALID_MEMORY_TYPE, _S.INVALID_MEMORY_LOCATION)

RETURNS: dict[str, tuple[Status, ...]] = {
    "onnxGetBackendIDs": (_S.SUCCESS, _S.FALLBACK, _S.INVALID_POINTER, _S.NO_SYSTEM_MEMORY, _S.INTERNAL_ERROR),
    "onnxReleaseBackendID": (_S.SUCCESS, _S.INVALID_ID, _S.INTERNAL_ERROR),
    "onnxGetBackendInfo": (
        _S.SUCCESS, _S.FALLBACK, _S.INVALID_ID, _S.INVALID_POINTER, _S.UNSUPPORTED_ATTRIBUTE, _S.BACKEND_UNAVAILABLE,
    ),
    "onnxGetBackendCompatibility": (
        _S.SUCCESS, _S.FALLBACK, _S.INVALID_ID, _S.INVALID_POINTER, _S.INVALID_SIZE, *_MODEL, *_UNSUPPORTED,
        *_MISMATCHING, _S.NO_SYSTEM_MEMORY, *_LOST,
    ),
    "onnxInitBackend": (
        _S.SUCCESS, _S.INVALID_ID, _S.INVALID_POINTER, _S.INVALID_PROPERTY, _S.UNSUPPORTED_PROPERTY, *_MEMORY, *_LOST,
    ),
    "onnxReleaseBackend": (_S.SUCCESS, _S.INVALID_BACKEND, _S.INTERNAL_ERROR),
    "onnxInitEvent": (_S.SUCCESS, _S.INVALID_BACKEND, _S.INVALID_POINTER, *_MEMORY, *_LOST),
    "onnxSignalEvent": (_S.SUCCESS, _S.INVALID_EVENT, _S.INVALID_STATE, *_LOST),
    "onnxGetEventState": (_S.SUCCESS, _S.INVALID_EVENT, _S.INVALID_POINTER, *_LOST),
    "onnxWaitEvent": (_S.SUCCESS, _S.INVALID_EVENT, *_LOST),
    "onnxReleaseEvent": (_S.SUCCESS, _S.INVALID_EVENT, _S.INTERNAL_ERROR),
    "onnxInitGraph": (
        _S.SUCCESS, _S.FALLBACK, _S.INVALID_BACKEND, _S.INVALID_PROPERTY, _S.INVALID_POINTER, _S.INVALID_SIZE, *_MODEL,
        *_DESCRIPTOR, _S.UNSUPPORTED_PROPERTY, *_UNSUPPORTED, _S.UNSUPPORTED_MEMORY_TYPE, *_MISMATCHING, *_MEMORY,
        *_LOST, _S.UNSUPPORTED_TAG, _S.INVALID_NAME,
    ),
    "onnxSetGraphIO": (
        _S.SUCCESS, _S.INVALID_GRAPH, _S.INVALID_POINTER, _S.INVALID_NAME, *_DESCRIPTOR, _S.UNSUPPORTED_TAG,
        _S.UNSUPPORTED_SHAPE, _S.UNSUPPORTED_MEMORY_TYPE, _S.UNIDENTIFIED_NAME, *_MISMATCHING, *_MEMORY, *_LOST,
    ),
    "onnxRunGraph": (
        _S.SUCCESS, _S.INVALID_POINTER, _S.INVALID_GRAPH, _S.INVALID_FENCE_TYPE, _S.INVALID_EVENT, _S.UNSUPPORTED_TAG,
        _S.UNSUPPORTED_FENCE_TYPE, _S.UNIDENTIFIED_NAME, *_MEMORY, *_LOST,
    ),
    "onnxReleaseGraph": (_S.SUCCESS, _S.INVALID_GRAPH, _S.INTERNAL_ERROR),
}  # fmt: skip
"""The statuses of each function, in the order of the specification.

onnxInitGraph has two that the specification does not list for it but has no other word for: UNSUPPORTED_TAG and
INVALID_NAME of a weight descriptor.
"""

_NEAREST: dict[Status, tuple[Status, ...]] = {
    _S.NO_DEVICE_MEMORY: (_S.UNSUPPORTED_SHAPE,),
    _S.UNSUPPORTED_OPERATOR: (_S.UNSUPPORTED_SHAPE,),
    _S.UNSUPPORTED_ATTRIBUTE: (_S.UNSUPPORTED_SHAPE,),
    _S.UNSUPPORTED_DATATYPE: (_S.UNSUPPORTED_SHAPE,),
    _S.INVALID_MODEL: (_S.UNSUPPORTED_SHAPE,),
}
"""What to say where a function's list lacks a status. In onnxSetGraphIO all that depends on the model was settled by
onnxInitGraph: what fails there fails for the shapes that were given."""


def within(function: str, status: Status) -> Status:
    """The status itself if ``function`` may return it, else the nearest that it may."""
    allowed = RETURNS[function]
    for candidate in (status, *_NEAREST.get(status, ()), Status.INTERNAL_ERROR):
        if candidate in allowed:
            return candidate
    return Status.BACKEND_UNAVAILABLE
