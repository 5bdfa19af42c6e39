"""Values of onnxGetBackendInfo, derived from the device description."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import onnx

import npusim
from npusim.frontends.onnx.registry import MICROSOFT, entries
from npusim.frontends.onnx.versions import FIRST_OPSET
from npusim.hw.capability import capabilities
from npusim.hw.config import Config

from .constants import GRAPH_PROPERTY_PRIORITY, ONNXIFI_VERSION, BackendInfo, Capability, DeviceType, MemoryType
from .extensions import EXTENSIONS
from .power import MAX_GRAPHS
from .status import OnnxifiError, Status

CAPABILITIES = (
    Capability.THREAD_SAFE
    | Capability.SYMBOLIC_BATCH_SIZE
    | Capability.SYMBOLIC_SIZE_TENSORS
    | Capability.HOT_PLUGGABLE
)
OLDEST_IR = 3
"""First version of the format that names operator sets."""


@functools.cache
def ir_versions() -> range:
    """Return the supported versions of the ONNX format."""
    return range(OLDEST_IR, int(onnx.IR_VERSION) + 1)


@functools.cache
def opset_versions() -> dict[str, range]:
    """Return the versions of each domain's operator set; the standard domain is the empty string."""
    newest = max((entry.since for entry in entries() if entry.domain == MICROSOFT), default=1)
    return {"": range(FIRST_OPSET, onnx.defs.onnx_opset_version() + 1), MICROSOFT: range(1, newest + 1)}


_TEXTS: dict[int, Callable[[Config], str]] = {
    BackendInfo.NAME: lambda _: "npusim",
    BackendInfo.VENDOR: lambda _: "npusim",
    BackendInfo.VERSION: lambda _: npusim.__version__,
    BackendInfo.EXTENSIONS: lambda _: " ".join(EXTENSIONS),
    BackendInfo.DEVICE: lambda config: config.name,
    BackendInfo.ONNX_IR_VERSION: lambda _: " ".join(map(str, ir_versions())),
    BackendInfo.OPSET_VERSION: lambda _: " ".join(
        f"{domain or 'ai.onnx'}:{versions[-1]}" for domain, versions in opset_versions().items()
    ),
}
_NUMBERS: dict[int, Callable[[Config], int]] = {
    BackendInfo.ONNXIFI_VERSION: lambda _: ONNXIFI_VERSION,
    BackendInfo.DEVICE_TYPE: lambda _: DeviceType.NPU,
    BackendInfo.CAPABILITIES: lambda _: CAPABILITIES,
    BackendInfo.INIT_PROPERTIES: lambda _: 0,
    BackendInfo.MEMORY_TYPES: lambda _: MemoryType.CPU,
    BackendInfo.GRAPH_INIT_PROPERTIES: lambda _: GRAPH_PROPERTY_PRIORITY,
    # 0 is EVENT: the specification numbers these and does not define bits.
    BackendInfo.SYNCHRONIZATION_TYPES: lambda _: 0,
    BackendInfo.MEMORY_SIZE: lambda config: config.dram.bytes,
    BackendInfo.MAX_GRAPH_SIZE: lambda config: config.dram.bytes,
    BackendInfo.MAX_GRAPH_COUNT: lambda _: MAX_GRAPHS,
    BackendInfo.MACS_FP32: lambda config: capabilities(config).peak_macs.get("float32", 0),
    BackendInfo.MACS_FP16: lambda config: capabilities(config).peak_macs.get("float16", 0),
    BackendInfo.MEMORY_BANDWIDTH: lambda config: capabilities(config).dram_peak,
    BackendInfo.CPU_MEMORY_READ_BANDWIDTH: lambda config: config.host.link_bandwidth,
    BackendInfo.CPU_MEMORY_WRITE_BANDWIDTH: lambda config: config.host.link_bandwidth,
}
"""Without the IDs of PCI, DirectX, CUDA and OpenCL, which this device does not have."""


def info(config: Config, info_type: int) -> bytes:
    """Return the value of one query: text with its final NUL, or 8 bytes. Raises UNSUPPORTED_ATTRIBUTE."""
    text = _TEXTS.get(info_type)
    if text is not None:
        return text(config).encode() + b"\0"
    number = _NUMBERS.get(info_type)
    if number is not None:
        return struct.pack("=Q", number(config))
    raise OnnxifiError(Status.UNSUPPORTED_ATTRIBUTE, f"backend information {info_type} is not known here")
