"""An ONNXIFI C library with the Python signatures of hal.onnxifi, through ctypes or a client in C.

A handle is an int and 0 is NULL; ``out=False`` passes NULL for the result.
"""

# ruff: noqa: N802 names of the interface

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from hal import abi
from hal.onnxifi.descriptor import MemoryFenceV1, TensorDescriptorV1

NPUSIM = ("npusimInjectFunction", "npusimUnplugFunction", "npusimPlugFunction", "npusimGetRunTimingFunction")
_HEAD: list[tuple[str, Any]] = [
    ("tag", c_int32),
    ("name", c_char_p),
    ("dataType", c_uint64),
    ("memoryType", c_uint64),
    ("dimensions", c_uint32),
    ("shape", POINTER(c_uint64)),
]
_QUANTIZATION: list[tuple[str, Any]] = [
    ("quantizationAxis", c_uint32),
    ("quantizationParams", c_uint64),
    ("scales", POINTER(c_float)),
    ("biases", POINTER(c_int32)),
    ("isOffline", c_uint8),
]


class Tensor96(ctypes.Structure):
    """onnxTensorDescriptorV1 of the usual flavour."""

    _fields_ = [*_HEAD, *_QUANTIZATION, ("buffer", c_uint64)]


class Tensor56(ctypes.Structure):
    """onnxTensorDescriptorV1 of the older flavour."""

    _fields_ = [*_HEAD, ("buffer", c_uint64)]


class Fence(ctypes.Structure):
    """onnxMemoryFenceV1."""

    _fields_ = [("tag", c_int32), ("type", c_uint64), ("event", c_void_p)]


class Timing(ctypes.Structure):
    """npusimRunTiming."""

    _fields_ = [(name, c_uint64) for name in ("cycles", "run", "queued", "host", "total")]


def _integers(values: Sequence[int] | None) -> Any:
    return None if values is None else (c_uint64 * max(1, len(values)))(*values)


class CDoor:
    """``library``: one of hal.abi.LIBRARIES. ``relay``: relay.c, compiled and linked with it, to make the calls
    in C."""

    def __init__(self, library: abi.Library, relay: Path | None = None) -> None:
        self.v1 = bool(library.defines) and relay is None
        self.tensor: type[ctypes.Structure] = Tensor56 if self.v1 else Tensor96
        self.c = ctypes.CDLL(str(relay or library.path))
        self.init_graph = self.c.onnxInitGraph if relay is None else self.c.relay_InitGraph
        self.set_graph_io = self.c.onnxSetGraphIO if relay is None else self.c.relay_SetGraphIO
        # The IDs are always the same. They are read before a device is removed, and need not be held.
        _, self._ids, _ = self.onnxGetBackendIDs(64)
        self._extensions = {name: self.extension(self._ids[0], name)[1] for name in NPUSIM}
        for each in self._ids:
            self.onnxReleaseBackendID(each)

    # ------------------------------------------------------------------------------------------------- backends

    def onnxGetBackendIDs(self, capacity: int | None = None, out: bool = True) -> tuple[int, list[int], int]:
        count = c_size_t(0 if capacity is None else capacity)
        ids = None if capacity is None else (c_void_p * max(1, capacity))()
        status = self.c.onnxGetBackendIDs(ids, byref(count) if out else None)
        found = [each or 0 for each in ids][: count.value] if status == 0 and ids is not None else []
        return status, found, count.value

    def onnxReleaseBackendID(self, identifier: int) -> int:
        return self.c.onnxReleaseBackendID(c_void_p(identifier))

    def onnxGetBackendInfo(
        self, identifier: int, kind: int, size: int | None = None, out: bool = True
    ) -> tuple[int, bytes | None, int]:
        length = c_size_t(size or 0)
        value = None if size is None else ctypes.create_string_buffer(max(1, size))
        status = self.c.onnxGetBackendInfo(c_void_p(identifier), c_int32(kind), value, byref(length) if out else None)
        return status, value.raw[: length.value] if status == 0 and value is not None else None, length.value

    def onnxGetBackendCompatibility(self, identifier: int, model: bytes | None, size: int | None = None) -> int:
        length = len(model or b"") if size is None else size
        return self.c.onnxGetBackendCompatibility(c_void_p(identifier), c_size_t(length), model)

    def onnxInitBackend(
        self, identifier: int, properties: Sequence[int] | None = None, out: bool = True
    ) -> tuple[int, int]:
        backend = c_void_p(0xBAD)
        status = self.c.onnxInitBackend(c_void_p(identifier), _integers(properties), byref(backend) if out else None)
        return status, (backend.value or 0) if out else 0

    def onnxReleaseBackend(self, backend: int) -> int:
        return self.c.onnxReleaseBackend(c_void_p(backend))

    # --------------------------------------------------------------------------------------------------- events

    def onnxInitEvent(self, backend: int, out: bool = True) -> tuple[int, int]:
        event = c_void_p(0xBAD)
        status = self.c.onnxInitEvent(c_void_p(backend), byref(event) if out else None)
        return status, (event.value or 0) if out else 0

    def onnxSignalEvent(self, event: int) -> int:
        return self.c.onnxSignalEvent(c_void_p(event))

    def onnxGetEventState(self, event: int, out: bool = True) -> tuple[int, int]:
        state = c_int32(0xBAD)
        status = self.c.onnxGetEventState(c_void_p(event), byref(state) if out else None)
        return status, state.value if out else 0

    def onnxWaitEvent(self, event: int) -> int:
        return self.c.onnxWaitEvent(c_void_p(event))

    def onnxReleaseEvent(self, event: int) -> int:
        return self.c.onnxReleaseEvent(c_void_p(event))

    # --------------------------------------------------------------------------------------------------- graphs

    def descriptors(self, given: Sequence[TensorDescriptorV1] | None) -> Any:
        """Return the C structures. The memory that they point to is kept until the next call."""
        if given is None:
            return None
        return (self.tensor * max(1, len(given)))(*(self._descriptor(each) for each in given))

    def _descriptor(self, of: TensorDescriptorV1) -> ctypes.Structure:
        made = self.tensor()
        made.tag = ctypes.c_int32(of.tag).value
        made.name = of.name.encode() if isinstance(of.name, str) else of.name
        made.dataType, made.memoryType, made.buffer = of.dataType, of.memoryType, of.buffer
        made.dimensions = len(of.shape or ()) if of.dimensions < 0 else of.dimensions
        if of.shape is not None:
            made.shape = ctypes.cast(_integers(of.shape), POINTER(c_uint64))
        if not self.v1:
            made.quantizationAxis, made.quantizationParams = of.quantizationAxis, of.quantizationParams
            made.isOffline = of.isOffline
            if of.scales is not None:
                made.scales = (c_float * max(1, len(of.scales)))(*of.scales)
            if of.biases is not None:
                made.biases = (c_int32 * max(1, len(of.biases)))(*of.biases)
        return made

    def onnxInitGraph(
        self,
        backend: int,
        properties: Sequence[int] | None,
        model: bytes | None,
        weights: Sequence[TensorDescriptorV1] | None = None,
        size: int | None = None,
        count: int | None = None,
        out: bool = True,
        maxSeqLength: int = 0,
        deferredWeightReader: int = 0,
    ) -> tuple[int, int]:
        graph = c_void_p(0xBAD)
        last = () if self.v1 else (c_uint32(maxSeqLength), c_void_p(deferredWeightReader))
        status = self.init_graph(
            c_void_p(backend),
            _integers(properties),
            c_size_t(len(model or b"") if size is None else size),
            model,
            c_uint32(len(weights or ()) if count is None else count),
            self.descriptors(weights),
            byref(graph) if out else None,
            *last,
        )
        return status, (graph.value or 0) if out else 0

    def onnxSetGraphIO(
        self,
        graph: int,
        inputs: Sequence[TensorDescriptorV1] | None,
        outputs: Sequence[TensorDescriptorV1] | None,
        inputsCount: int | None = None,
        outputsCount: int | None = None,
    ) -> int:
        return self.set_graph_io(
            c_void_p(graph),
            c_uint32(len(inputs or ()) if inputsCount is None else inputsCount),
            self.descriptors(inputs),
            c_uint32(len(outputs or ()) if outputsCount is None else outputsCount),
            self.descriptors(outputs),
        )

    def onnxRunGraph(self, graph: int, before: MemoryFenceV1 | None, after: MemoryFenceV1 | None) -> int:
        first, second = (
            None if fence is None else Fence(c_int32(fence.tag).value, fence.type, fence.event)
            for fence in (before, after)
        )
        status = self.c.onnxRunGraph(
            c_void_p(graph), None if first is None else byref(first), None if second is None else byref(second)
        )
        if status == 0 and after is not None and second is not None:
            after.event = second.event or 0
        return status

    def onnxReleaseGraph(self, graph: int) -> int:
        return self.c.onnxReleaseGraph(c_void_p(graph))

    # ----------------------------------------------------------------------------------------------- extensions

    def extension(self, identifier: int, name: str | None, out: bool = True) -> tuple[int, int]:
        """(status, address) of onnxGetExtensionFunctionAddress."""
        found = c_void_p(0xBAD)
        raw = None if name is None else name.encode()
        status = self.c.onnxGetExtensionFunctionAddress(c_void_p(identifier), raw, byref(found) if out else None)
        return status, found.value or 0

    def call(self, name: str, *arguments: Any) -> int:
        """Call one of npusim's extension functions."""
        return int(ctypes.CFUNCTYPE(c_int32)(self._extensions[name])(*arguments))

    def inject(self, function: str, status: int, times: int = 1) -> None:
        """Inject failures. The client must hold the first ID, here and below."""
        arguments = c_void_p(self._ids[0]), function.encode(), c_int32(status), c_uint32(times)
        assert self.call("npusimInjectFunction", *arguments) == 0, f"{function}: {status:#x} cannot be injected"

    def unplug(self, device: int) -> None:
        assert self.call("npusimUnplugFunction", c_void_p(self._ids[device])) == 0

    def plug(self, device: int) -> None:
        assert self.call("npusimPlugFunction", c_void_p(self._ids[device])) == 0

    def run_timing(self, event: int) -> tuple[int, tuple[int, ...]]:
        timing = Timing()
        status = self.call("npusimGetRunTimingFunction", c_void_p(event), byref(timing))
        return status, struct.unpack("5Q", bytes(timing))
