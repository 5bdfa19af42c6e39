"""Functions of NNAPI support libraries, which their table alone has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ..aidl.types import BYTE_SIZE_OF_CACHE_TOKEN, MAX_NUMBER_OF_CACHE_FILES
from ..types import Extension, PerformanceInfo
from . import diagnostics, pointers
from .codes import bad_data
from .compilation import Compilation
from .devices import Device
from .entry import address, entry, handle, i32, out, pointer, u32
from .handles import Kind
from .pointers import read_bytes, read_i32s

DEVICE = handle(Kind.Device)


class Performance(ctypes.Structure):
    """SL_ANeuralNetworksPerformanceInfo."""

    _fields_ = (("execTime", ctypes.c_float), ("powerUsage", ctypes.c_float))


class OperandPerformance(ctypes.Structure):
    """SL_ANeuralNetworksOperandPerformanceInfo."""

    _fields_ = (("operandType", ctypes.c_int32), ("performanceInfo", Performance))


class ExtensionType(ctypes.Structure):
    """SL_ANeuralNetworksExtensionOperandTypeInformation."""

    _fields_ = (("byteSize", ctypes.c_uint32), ("type", ctypes.c_uint16), ("isTensor", ctypes.c_bool))


def _callback(kind: Any, address: int) -> Callable[[Any, int], None]:
    """The client's function that takes a structure by value and its context."""
    return ctypes.CFUNCTYPE(None, kind, ctypes.c_void_p)(address)


def _performance(info: PerformanceInfo) -> Performance:
    return Performance(info.execTime, info.powerUsage)


@entry("SL_ANeuralNetworksCompilation_setCachingFromFds", handle(Kind.Compilation), address, u32, address, u32, pointer)
def _set_caching_from_fds(
    compilation: Compilation,
    modelCacheFds: int,
    numModelCacheFiles: int,
    dataCacheFds: int,
    numDataCacheFiles: int,
    token: int,
) -> None:
    compilation.set_cache_files(
        read_i32s(modelCacheFds, numModelCacheFiles, MAX_NUMBER_OF_CACHE_FILES, "modelCacheFds"),
        read_i32s(dataCacheFds, numDataCacheFiles, MAX_NUMBER_OF_CACHE_FILES, "dataCacheFds"),
        read_bytes(token, BYTE_SIZE_OF_CACHE_TOKEN, "token"),
    )


@entry("SL_ANeuralNetworksDevice_getNumberOfCacheFilesNeeded", DEVICE, out(ctypes.c_uint32), out(ctypes.c_uint32))
def _cache_files(device: Device, numModelCacheFiles: Any, numDataCacheFiles: Any) -> None:
    numModelCacheFiles.set(0)
    numDataCacheFiles.set(0)
    count = device.aidl.getNumberOfCacheFilesNeeded()
    numModelCacheFiles.set(count.numModelCache)
    numDataCacheFiles.set(count.numDataCache)


@entry("SL_ANeuralNetworksDevice_getPerformanceInfo", DEVICE, i32, pointer)
def _performance_info(device: Device, performanceInfoKind: int, performanceInfo: int) -> None:
    found = device.capabilities
    kinds = (
        found.relaxedFloat32toFloat16PerformanceScalar,
        found.relaxedFloat32toFloat16PerformanceTensor,
        found.ifPerformance,
        found.whilePerformance,
    )
    if not 0 <= performanceInfoKind < len(kinds):
        raise bad_data(f"the kind must be in [0, {len(kinds)}), got {performanceInfoKind}")
    pointers.copy(
        performanceInfo, ctypes.addressof(_performance(kinds[performanceInfoKind])), ctypes.sizeof(Performance)
    )


@entry("SL_ANeuralNetworksDevice_forEachOperandPerformanceInfo", DEVICE, address, pointer)
def _for_each_performance(device: Device, context: int, callback: int) -> None:
    tell = _callback(OperandPerformance, callback)
    for each in device.capabilities.operandPerformance:
        tell(OperandPerformance(int(each.type), _performance(each.info)), context)


@entry("SL_ANeuralNetworksDevice_getVendorExtensionCount", DEVICE, out(ctypes.c_uint32))
def _extension_count(device: Device, vendorExtensionCount: Any) -> None:
    vendorExtensionCount.set(len(device.extensions()))


@entry("SL_ANeuralNetworksDevice_getVendorExtensionName", DEVICE, u32, out(ctypes.c_uint64))
def _extension_name(device: Device, vendorExtensionIndex: int, extensionName: Any) -> None:
    extensionName.set(0)
    extensionName.set(ctypes.addressof(_c_string(_extension(device, vendorExtensionIndex).name)))


@entry("SL_ANeuralNetworksDevice_forEachVendorExtensionOperandTypeInformation", DEVICE, u32, address, pointer)
def _for_each_type(device: Device, vendorExtensionIndex: int, context: int, callback: int) -> None:
    tell = _callback(ExtensionType, callback)
    for each in _extension(device, vendorExtensionIndex).operandTypes:
        tell(ExtensionType(each.byteSize, each.type, each.isTensor), context)


@entry("SL_ANeuralNetworksDiagnostic_registerCallbacks", address, address, address)
def _register(compilationCallback: int, executionCallback: int, callbackContext: int) -> None:
    diagnostics.register(compilationCallback, executionCallback, callbackContext)


_names: dict[str, Any] = {}
"""Extension names as C strings, which live as long as the process because the interface has no owner for them."""


def _c_string(name: str) -> Any:
    return _names.setdefault(name, ctypes.create_string_buffer(name.encode()))


def _extension(device: Device, index: int) -> Extension:
    found = device.extensions()
    if index >= len(found):
        raise bad_data(f"extension {index} does not exist: there are {len(found)}")
    return found[index]
