"""ONNXIFI for Python: the 15 functions with the specification's names, over simulated devices.

They use the code of the C library. Each returns its status first, and what C stores through pointers after it:

>>> from hal import onnxifi
>>> status, ids, count = onnxifi.onnxGetBackendIDs(16)
>>> status, backend = onnxifi.onnxInitBackend(ids[0])

Handles are ints, and 0 is NULL. ``out=False`` passes NULL where the function would store its result. Tensors are
:class:`TensorDescriptorV1`, fences :class:`MemoryFenceV1`; :func:`TensorDescriptorV1.of` describes a numpy array.
Beyond the specification: :func:`run_timing`, :func:`inject`, :func:`unplug`, :func:`plug`, :func:`device_faults`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING


def _preload() -> None:
    """Import onnx so that its C++ part binds to its own symbols.

    A client in C++ may have an older onnx and protobuf in the process, whose symbols would come first.
    """
    if "onnx" in sys.modules:
        return
    flags = sys.getdlopenflags()
    # A library that binds to its own symbols would be the end of a sanitizer in the process.
    sanitized = hasattr(ctypes.CDLL(None), "__sanitizer_print_stack_trace")
    sys.setdlopenflags(os.RTLD_NOW | (0 if sanitized else getattr(os, "RTLD_DEEPBIND", 0)))
    try:
        import onnx  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ImportError("ONNXIFI needs the onnx package to read models: pip install 'npusim[onnx]'") from None
    finally:
        sys.setdlopenflags(flags)


_preload()

from hal.onnxifi._core import (  # noqa: E402 - after onnx
    inject,
    onnxGetBackendCompatibility,
    onnxGetBackendIDs,
    onnxGetBackendInfo,
    onnxGetEventState,
    onnxInitBackend,
    onnxInitEvent,
    onnxInitGraph,
    onnxReleaseBackend,
    onnxReleaseBackendID,
    onnxReleaseEvent,
    onnxReleaseGraph,
    onnxRunGraph,
    onnxSetGraphIO,
    onnxSignalEvent,
    onnxWaitEvent,
    run_timing,
)
from hal.onnxifi._table import plug, unplug  # noqa: E402
from hal.onnxifi.constants import (  # noqa: E402
    GRAPH_PROPERTY_PRIORITY,
    BackendInfo,
    BackendProperty,
    Capability,
    DataType,
    DeviceType,
    EventState,
    LogLevel,
    MemoryType,
    Optimization,
    Synchronization,
)
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1  # noqa: E402
from hal.onnxifi.status import RETURNS, Status  # noqa: E402

if TYPE_CHECKING:
    from npusim.runtime.executor import DeviceFaults

__all__ = [
    "GRAPH_PROPERTY_PRIORITY",
    "RETURNS",
    "BackendInfo",
    "BackendProperty",
    "Capability",
    "DataType",
    "DeviceType",
    "EventState",
    "LogLevel",
    "MemoryFenceV1",
    "MemoryType",
    "Optimization",
    "Status",
    "Synchronization",
    "TensorDescriptorV1",
    "device_faults",
    "inject",
    "onnxGetBackendCompatibility",
    "onnxGetBackendIDs",
    "onnxGetBackendInfo",
    "onnxGetEventState",
    "onnxInitBackend",
    "onnxInitEvent",
    "onnxInitGraph",
    "onnxReleaseBackend",
    "onnxReleaseBackendID",
    "onnxReleaseEvent",
    "onnxReleaseGraph",
    "onnxRunGraph",
    "onnxSetGraphIO",
    "onnxSignalEvent",
    "onnxWaitEvent",
    "plug",
    "run_timing",
    "unplug",
]


def device_faults(device: int) -> DeviceFaults:
    """The faults of a simulated device that is on: ``add`` takes a script, ``clear`` ends them, ``check`` raises
    UsageError if one has not happened.

    ``device`` is its place in the list of backends. Raises ValueError if it is not on: no backend of it is initialised.
    """
    from hal.onnxifi.engine import devices

    executor = devices()[device].live_executor()
    if executor is None:
        raise ValueError(f"device {device} is not on: no backend of it is initialised")
    return executor.faults
