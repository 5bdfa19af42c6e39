"""Structures of the AIDL interface that differ from those of HAL 1.3 in ``hal.nnapi.types``.

Times are in nanoseconds; -1 means omitted. A method that fails raises ServiceSpecificException.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..types import (
    DataLocation,
    ErrorStatus,
    ExecutionPreference,
    ExtensionNameAndPrefix,
    ExtraParams,
    OperandType,
    Operation,
    OutputShape,
    Priority,
    RequestArgument,
)

if TYPE_CHECKING:
    from .memory import AidlMemory

DEFAULT_LOOP_TIMEOUT_DURATION_NS = 2_000_000_000
MAXIMUM_LOOP_TIMEOUT_DURATION_NS = 15_000_000_000
BYTE_SIZE_OF_CACHE_TOKEN = 32
MAX_NUMBER_OF_CACHE_FILES = 32
EXTENSION_TYPE_HIGH_BITS_PREFIX = 15
EXTENSION_TYPE_LOW_BITS_TYPE = 16
OMITTED = -1
"""A deadline, a duration or a time that is not given."""
INTERFACE_VERSION = 4
"""android.hardware.neuralnetworks-V4: NNAPI feature level 8."""
INTERFACE_HASH = "53178f8de9b8861df391cf0593f6f3e08adad33d"
"""Of the frozen version 4: the file neuralnetworks/aidl/aidl_api/android.hardware.neuralnetworks/4/.hash in
platform/hardware/interfaces of the Android Open Source Project."""


class Interface:
    """The methods that every AIDL interface has."""

    def getInterfaceVersion(self) -> int:
        """The version of the interface."""
        return INTERFACE_VERSION

    def getInterfaceHash(self) -> str:
        """The hash of the frozen interface."""
        return INTERFACE_HASH


class ServiceSpecificException(Exception):  # noqa: N818 - the interface's name
    """A method has failed with this ErrorStatus."""

    def __init__(self, errorCode: ErrorStatus, message: str = "", /) -> None:
        super().__init__(errorCode, message)
        self.errorCode = ErrorStatus(errorCode)
        self.message = message

    def __str__(self) -> str:
        return f"{self.errorCode.name}: {self.message}"


class OperandLifeTime(enum.IntEnum):
    """The origin of an operand's value, with the names of the AIDL interface."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_POOL = 4
    NO_VALUE = 5
    SUBGRAPH = 6


@dataclass(slots=True)
class Timing:
    """Times of an execution in nanoseconds; -1 if they were not taken."""

    timeOnDeviceNs: int = OMITTED
    timeInDriverNs: int = OMITTED


@dataclass(slots=True)
class ExecutionResult:
    """Whether all outputs had room, their shapes, and the times."""

    outputSufficientSize: bool
    outputShapes: Sequence[OutputShape]
    timing: Timing


@dataclass(slots=True)
class FencedExecutionResult:
    """The callback for the result, and a sync fence as a descriptor; None if the execution has ended."""

    callback: Any
    syncFence: int | None


@dataclass(slots=True)
class DeviceBuffer:
    """A buffer of the driver and its token."""

    buffer: Any
    token: int


@dataclass(slots=True)
class NumberOfCacheFiles:
    """The number of files of each kind that the compilation cache needs."""

    numModelCache: int
    numDataCache: int


@dataclass(slots=True)
class Operand:
    """An operand as in HAL 1.3, without a number of consumers."""

    type: OperandType | int
    dimensions: Sequence[int] = ()
    scale: float = 0.0
    zeroPoint: int = 0
    lifetime: OperandLifeTime | int = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = field(default_factory=DataLocation)
    extraParams: ExtraParams | None = None


@dataclass(slots=True)
class Subgraph:
    """Operations in the order of their execution."""

    operands: Sequence[Operand]
    operations: Sequence[Operation]
    inputIndexes: Sequence[int]
    outputIndexes: Sequence[int]


@dataclass(slots=True)
class Model:
    """A model; ``pools`` holds the AIDL union Memory."""

    main: Subgraph
    referenced: Sequence[Subgraph] = ()
    operandValues: bytes | bytearray | memoryview = b""
    pools: Sequence[AidlMemory] = ()
    relaxComputationFloat32toFloat16: bool = False
    extensionNameToPrefix: Sequence[ExtensionNameAndPrefix] = ()


@dataclass(slots=True)
class RequestMemoryPool:
    """A pool of a request: the union Memory, or the token of a DeviceBuffer."""

    pool: AidlMemory | None = None
    token: int | None = None


@dataclass(slots=True)
class Request:
    """Inputs, outputs and pools of an execution."""

    inputs: Sequence[RequestArgument]
    outputs: Sequence[RequestArgument]
    pools: Sequence[RequestMemoryPool] = ()


@dataclass(slots=True)
class TokenValuePair:
    """A hint of a vendor: an extension's token and its value."""

    token: int
    value: bytes


@dataclass(slots=True)
class PrepareModelConfig:
    """How to prepare a model."""

    preference: ExecutionPreference | int = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority | int = Priority.MEDIUM
    deadlineNs: int = OMITTED
    modelCache: Sequence[int] = ()
    dataCache: Sequence[int] = ()
    cacheToken: bytes = bytes(BYTE_SIZE_OF_CACHE_TOKEN)
    compilationHints: Sequence[TokenValuePair] = ()
    extensionNameToPrefix: Sequence[ExtensionNameAndPrefix] = ()


@dataclass(slots=True)
class ExecutionConfig:
    """How to execute."""

    measureTiming: bool = False
    loopTimeoutDurationNs: int = OMITTED
    executionHints: Sequence[TokenValuePair] = ()
    extensionNameToPrefix: Sequence[ExtensionNameAndPrefix] = ()
