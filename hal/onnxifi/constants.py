"""Names and values of the ONNXIFI interface, as in its specification."""

from __future__ import annotations

from enum import IntEnum, IntFlag

TAG_TENSOR_DESCRIPTOR_V1 = 0x43DFBF69
TAG_MEMORY_FENCE_V1 = 0x23E08AAB
ONNXIFI_VERSION = 0x0000000100000000


class BackendInfo(IntEnum):
    """onnxBackendInfo: the queries of onnxGetBackendInfo."""

    ONNXIFI_VERSION = 0
    NAME = 1
    VENDOR = 2
    VERSION = 3
    EXTENSIONS = 4
    DEVICE = 5
    DEVICE_TYPE = 6
    ONNX_IR_VERSION = 7
    OPSET_VERSION = 8
    CAPABILITIES = 10
    INIT_PROPERTIES = 11
    MEMORY_TYPES = 12
    GRAPH_INIT_PROPERTIES = 13
    SYNCHRONIZATION_TYPES = 14
    MEMORY_SIZE = 20
    MAX_GRAPH_SIZE = 21
    MAX_GRAPH_COUNT = 22
    MACS_FP32 = 30
    MACS_FP16 = 31
    MEMORY_BANDWIDTH = 35
    CPU_MEMORY_READ_BANDWIDTH = 36
    CPU_MEMORY_WRITE_BANDWIDTH = 37
    PCI_BUS_ID = 40
    PCI_DEVICE_ID = 41
    PCI_DOMAIN_ID = 42
    DIRECTX_ID = 43
    CUDA_INDEX = 44
    OPENCL_PLATFORM_ID = 45
    OPENCL_DEVICE_ID = 46


class Capability(IntFlag):
    """Bits of BackendInfo.CAPABILITIES."""

    THREAD_SAFE = 0x01
    SYMBOLIC_BATCH_SIZE = 0x02
    SYMBOLIC_SIZE_TENSORS = 0x04
    VARIABLE_BATCH_SIZE = 0x08
    VARIABLE_SIZE_OUTPUTS = 0x10
    HOT_PLUGGABLE = 0x20


class DeviceType(IntEnum):
    """Values of BackendInfo.DEVICE_TYPE."""

    NPU = 0x01
    DSP = 0x02
    GPU = 0x04
    CPU = 0x08
    FPGA = 0x10
    HETEROGENEOUS = 0x20


class DataType(IntEnum):
    """Element types of tensor descriptors: the numbers of ONNX's TensorProto.DataType.

    BOOL is not in the specification, but clients send ONNX's number for it, which is accepted.
    """

    UNDEFINED = 0
    FLOAT32 = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    BOOL = 9
    FLOAT16 = 10
    FLOAT64 = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16


class MemoryType(IntEnum):
    """onnxEnum: the memory of a tensor descriptor's buffer. Only CPU is supported."""

    CPU = 0
    CUDA_BUFFER = 1
    OPENCL_BUFFER = 2
    OPENGLES_TEXTURE_2D = 4
    D3D_RESOURCE = 8


class Synchronization(IntEnum):
    """Types of a memory fence. Only EVENT is supported."""

    EVENT = 0
    IMPLICIT = 2


class EventState(IntEnum):
    """The event states of onnxGetEventState."""

    INVALID = 0
    NONSIGNALLED = 0x16BD
    SIGNALLED = 0x3395


class BackendProperty(IntEnum):
    """Ids in the property list of onnxInitBackend: pairs of id and value, then NONE."""

    NONE = 0
    OPTIMIZATION = 1
    LOG_LEVEL = 2
    CUDA_STREAM = 4
    OPENCL_CONTEXT = 8


class Optimization(IntEnum):
    """Values of BackendProperty.OPTIMIZATION. AOT is also taken as an id without value by onnxInitGraph."""

    HIGH_THROUGHPUT = 0
    LOW_LATENCY = 1
    LOW_POWER = 2
    LOW_DELAY = 3
    AOT = 4


class LogLevel(IntEnum):
    """Values of BackendProperty.LOG_LEVEL."""

    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4


GRAPH_PROPERTY_PRIORITY = 1 << 32
"""A graph property of this backend: id, then 1 (low), 2 (medium, the default) or 3 (high), the priority with which the
graph's runs wait for the device."""
