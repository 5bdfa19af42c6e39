"""Every structure and enumeration of the NNAPI HAL 1.3 interface, under its name and with its field names.

Structures of the older interfaces are in ``hal.nnapi.v1_0`` to ``v1_2``, those of the AIDL interface in
``hal.nnapi.aidl``. Enumeration fields also take plain integers: extension types are such, and a driver must be able to
receive values that are not in its enumerations.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import errors

if TYPE_CHECKING:
    from .memory import Memory

FLT_MAX = 3.4028234663852886e38
"""The value of PerformanceInfo for an operand type without an entry."""
NOT_MEASURED = 0xFFFF_FFFF_FFFF_FFFF
"""A time in Timing that was not measured."""

# Defined there because shared memory, which structures contain, also fails with a status.
ErrorStatus = errors.ErrorStatus


class DeviceStatus(enum.IntEnum):
    """The state of a device."""

    AVAILABLE = 0
    BUSY = 1
    OFFLINE = 2
    UNKNOWN = 3


class DeviceType(enum.IntEnum):
    """The kind of a device."""

    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class ExecutionPreference(enum.IntEnum):
    """The main objective of a client for a prepared model."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(enum.IntEnum):
    """Priority of a prepared model among those of its client."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class MeasureTiming(enum.IntEnum):
    """Whether an execution reports its times."""

    NO = 0
    YES = 1


class FusedActivationFunc(enum.IntEnum):
    """Activation applied to the result of an operation."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class OperandLifeTime(enum.IntEnum):
    """The origin of an operand's value."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_REFERENCE = 4
    NO_VALUE = 5
    SUBGRAPH = 6


class OperandType(enum.IntEnum):
    """Type of an operand."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15
    OEM = 10000
    TENSOR_OEM_BYTE = 10001


class OperandTypeRange(enum.IntEnum):
    """Ranges of operand type values."""

    FUNDAMENTAL_MIN = 0
    FUNDAMENTAL_MAX = 15
    OEM_MIN = 10000
    OEM_MAX = 10001
    BASE_MAX = 0xFFFF


class OperationType(enum.IntEnum):
    """Type of an operation."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    # Of later versions of the AIDL interface; see operations.versions.
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000


class OperationTypeRange(enum.IntEnum):
    """Ranges of operation type values in HAL 1.3."""

    FUNDAMENTAL_MIN = 0
    FUNDAMENTAL_MAX = 101
    OEM_MIN = 10000
    OEM_MAX = 10000
    BASE_MAX = 0xFFFF


class Constant(enum.IntEnum):
    """Constants of the interface."""

    BYTE_SIZE_OF_CACHE_TOKEN = 32
    MAX_NUMBER_OF_CACHE_FILES = 32


class LoopTimeoutDurationNs(enum.IntEnum):
    """Limits of the time of a WHILE loop, in nanoseconds."""

    DEFAULT = 2_000_000_000
    MAXIMUM = 15_000_000_000


class ExtensionTypeEncoding(enum.IntEnum):
    """How an extension type's 32 bits are divided."""

    HIGH_BITS_PREFIX = 16
    LOW_BITS_TYPE = 16


@dataclass(slots=True)
class PerformanceInfo:
    """Time and energy as ratios to the CPU's: lower is better."""

    execTime: float = FLT_MAX
    powerUsage: float = FLT_MAX


@dataclass(slots=True)
class OperandPerformance:
    """Performance with operands of one type."""

    type: OperandType | int
    info: PerformanceInfo


@dataclass(slots=True)
class Capabilities:
    """Performance of a driver; ``operandPerformance`` is sorted by type."""

    relaxedFloat32toFloat16PerformanceScalar: PerformanceInfo
    relaxedFloat32toFloat16PerformanceTensor: PerformanceInfo
    operandPerformance: Sequence[OperandPerformance]
    ifPerformance: PerformanceInfo
    whilePerformance: PerformanceInfo


@dataclass(slots=True)
class DataLocation:
    """A place in a pool, in bytes; ``padding`` is of the AIDL interface."""

    poolIndex: int = 0
    offset: int = 0
    length: int = 0
    padding: int = 0


@dataclass(slots=True)
class SymmPerChannelQuantParams:
    """One scale for each index of dimension ``channelDim``."""

    scales: Sequence[float]
    channelDim: int


@dataclass(slots=True)
class ExtraParams:
    """Parameters of an operand beyond scale and zero point; at most one is set."""

    channelQuant: SymmPerChannelQuantParams | None = None
    extension: bytes | None = None


@dataclass(slots=True)
class Operand:
    """One operand of a subgraph; dimension 0 is unknown, no dimensions of a tensor is unknown rank."""

    type: OperandType | int
    dimensions: Sequence[int] = ()
    numberOfConsumers: int = 0
    scale: float = 0.0
    zeroPoint: int = 0
    lifetime: OperandLifeTime | int = OperandLifeTime.TEMPORARY_VARIABLE
    location: DataLocation = field(default_factory=DataLocation)
    extraParams: ExtraParams | None = None


@dataclass(slots=True)
class Operation:
    """One operation: indexes into its subgraph's operands."""

    type: OperationType | int
    inputs: Sequence[int]
    outputs: Sequence[int]


@dataclass(slots=True)
class Subgraph:
    """Operations in the order of their execution."""

    operands: Sequence[Operand]
    operations: Sequence[Operation]
    inputIndexes: Sequence[int]
    outputIndexes: Sequence[int]


@dataclass(slots=True)
class ExtensionNameAndPrefix:
    """The prefix that a model uses for an extension."""

    name: str
    prefix: int


@dataclass(slots=True)
class Model:
    """A model; ``operandValues`` holds the CONSTANT_COPY operands, ``pools`` the CONSTANT_REFERENCE ones."""

    main: Subgraph
    referenced: Sequence[Subgraph] = ()
    operandValues: bytes | bytearray | memoryview = b""
    pools: Sequence[Memory] = ()
    relaxComputationFloat32toFloat16: bool = False
    extensionNameToPrefix: Sequence[ExtensionNameAndPrefix] = ()


@dataclass(slots=True)
class RequestArgument:
    """The location of an input or output of an execution, and its dimensions if the model leaves them open."""

    hasNoValue: bool = False
    location: DataLocation = field(default_factory=DataLocation)
    dimensions: Sequence[int] = ()


@dataclass(slots=True)
class MemoryPool:
    """A pool of a request: shared memory, or the token of a buffer from ``IDevice.allocate``."""

    hidlMemory: Memory | None = None
    token: int | None = None


@dataclass(slots=True)
class Request:
    """Inputs, outputs and pools of an execution. A pool may also be a plain Memory or token."""

    inputs: Sequence[RequestArgument]
    outputs: Sequence[RequestArgument]
    pools: Sequence[MemoryPool | Memory | int] = ()


@dataclass(slots=True)
class OutputShape:
    """Dimensions of an output, and whether its place was large enough."""

    dimensions: Sequence[int]
    isSufficient: bool


@dataclass(slots=True)
class Timing:
    """Times of an execution, in microseconds (HIDL); NOT_MEASURED if they were not taken."""

    timeOnDevice: int = NOT_MEASURED
    timeInDriver: int = NOT_MEASURED


@dataclass(slots=True)
class BufferDesc:
    """The known dimensions of a buffer."""

    dimensions: Sequence[int] = ()


@dataclass(slots=True)
class BufferRole:
    """One use of a buffer: input or output ``ioIndex`` of prepared model ``modelIndex``."""

    modelIndex: int
    ioIndex: int
    frequency: float = 1.0


@dataclass(slots=True)
class OptionalTimePoint:
    """A point on the steady clock, or none."""

    nanosecondsSinceEpoch: int | None = None


@dataclass(slots=True)
class OptionalTimeoutDuration:
    """A duration, or none."""

    nanoseconds: int | None = None


@dataclass(slots=True)
class OperandTypeInformation:
    """An operand type of an extension; ``byteSize`` of one element."""

    type: int
    isTensor: bool
    byteSize: int


@dataclass(slots=True)
class Extension:
    """A vendor extension that a driver supports."""

    name: str
    operandTypes: Sequence[OperandTypeInformation]


# The interface nests these; both names are valid.
Capabilities.OperandPerformance = OperandPerformance  # type: ignore[attr-defined]
Operand.ExtraParams = ExtraParams  # type: ignore[attr-defined]
Model.ExtensionNameAndPrefix = ExtensionNameAndPrefix  # type: ignore[attr-defined]
Request.MemoryPool = MemoryPool  # type: ignore[attr-defined]
Extension.OperandTypeInformation = OperandTypeInformation  # type: ignore[attr-defined]
