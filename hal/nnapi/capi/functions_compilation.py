"""Functions of the runtime, of devices and of compilations."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..aidl.types import BYTE_SIZE_OF_CACHE_TOKEN
from . import pointers
from .codes import FEATURE_LEVEL, ApiError, ResultCode, bad_data, bad_state
from .compilation import ALIGNMENT, PADDING, Compilation
from .devices import Device, check_distinct, devices
from .entry import NewHandle, address, entry, handle, i32, out, pointer, structure, u16, u32, u64
from .handles import TABLE, Kind
from .model import Model
from .partition import supported
from .pointers import read_bytes, read_handles, read_string

MAX_DEVICES = 1024
COMPILATION = handle(Kind.Compilation)

# The runtime


@entry("ANeuralNetworks_getDeviceCount", out(ctypes.c_uint32))
def _device_count(numDevices: Any) -> None:
    numDevices.set(len(devices()))


@entry("ANeuralNetworks_getDevice", u32, out(ctypes.c_uint64))
def _device(devIndex: int, device: Any) -> None:
    device.set(0)
    found = devices()
    if devIndex >= len(found):
        raise bad_data(f"device {devIndex} does not exist: there are {len(found)}")
    device.set(found[devIndex].handle)


# Devices


@entry("ANeuralNetworksDevice_getName", handle(Kind.Device), out(ctypes.c_uint64))
def _device_name(device: Device, name: Any) -> None:
    name.set(ctypes.addressof(device.c_name))


@entry("ANeuralNetworksDevice_getVersion", handle(Kind.Device), out(ctypes.c_uint64))
def _device_version(device: Device, version: Any) -> None:
    version.set(ctypes.addressof(device.c_version))


@entry("ANeuralNetworksDevice_getType", handle(Kind.Device), out(ctypes.c_int32))
def _device_type(device: Device, type: Any) -> None:
    type.set(int(device.aidl.getType()))


@entry("ANeuralNetworksDevice_getFeatureLevel", handle(Kind.Device), out(ctypes.c_int64))
def _device_feature_level(device: Device, featureLevel: Any) -> None:
    featureLevel.set(FEATURE_LEVEL)


entry("ANeuralNetworksDevice_wait", handle(Kind.Device))(Device.wait)


@entry("ANeuralNetworksDevice_getExtensionSupport", handle(Kind.Device), structure(read_string), out(ctypes.c_bool))
def _extension_support(device: Device, extensionName: str, isExtensionSupported: Any) -> None:
    isExtensionSupported.set(extensionName in {extension.name for extension in device.extensions()})


@entry("ANeuralNetworksModel_getSupportedOperationsForDevices", handle(Kind.Model), pointer, u32, pointer)
def _supported(model: Model, devices: int, numDevices: int, supportedOps: int) -> None:
    chosen = _chosen(devices, numDevices)
    composed = model.composed
    sorted_union = [any(each) for each in zip(*(supported(device, composed) for device in chosen), strict=True)]
    in_order = dict(zip(model.order, sorted_union, strict=True))
    pointers.write_array(ctypes.c_bool, supportedOps, tuple(in_order[number] for number in range(len(in_order))))


def _chosen(array: int, count: int) -> Sequence[Device]:
    found = [
        TABLE.get(Kind.Device, word, f"devices[{number}]")
        for number, word in enumerate(read_handles(array, count, MAX_DEVICES, "devices"))
    ]
    check_distinct(found)
    return found


# Compilations


@entry("ANeuralNetworksCompilation_create", handle(Kind.Model), NewHandle(Kind.Compilation))
def _create(model: Model) -> Compilation:
    return Compilation(model, None)


@entry("ANeuralNetworksCompilation_createForDevices", handle(Kind.Model), pointer, u32, NewHandle(Kind.Compilation))
def _create_for_devices(model: Model, devices: int, numDevices: int) -> Compilation:
    return Compilation(model, _chosen(devices, numDevices))


entry("ANeuralNetworksCompilation_setPreference", COMPILATION, i32)(Compilation.set_preference)
entry("ANeuralNetworksCompilation_setPriority", COMPILATION, i32)(Compilation.set_priority)
entry("ANeuralNetworksCompilation_setTimeout", COMPILATION, u64)(Compilation.set_timeout)
entry("ANeuralNetworksCompilation_finish", COMPILATION)(Compilation.finish)


@entry("ANeuralNetworksCompilation_setCaching", COMPILATION, structure(read_string), pointer)
def _set_caching(compilation: Compilation, cacheDir: str, token: int) -> None:
    compilation.set_caching(cacheDir, read_bytes(token, BYTE_SIZE_OF_CACHE_TOKEN, "token"))


@entry("ANeuralNetworksCompilation_addExtensionAttribute", COMPILATION, structure(read_string), u16, address, u64)
def _add_attribute(
    compilation: Compilation, extensionName: str, attributeCodeWithinExtension: int, data: int, length: int
) -> None:
    compilation.add_attribute(extensionName, attributeCodeWithinExtension, read_attribute(data, length))


def read_attribute(data: int, length: int) -> bytes:
    """The value of an attribute, which may be empty. Raises ApiError (UNEXPECTED_NULL)."""
    if length and not data:
        raise ApiError(ResultCode.UNEXPECTED_NULL, f"data is NULL, but length is {length}")
    return read_bytes(data, length, "data")


def _preferred(direction: str, value: int) -> Any:
    def get(compilation: Compilation, index: int, result: Any) -> None:
        if not compilation.finished:
            raise bad_state("the compilation is not finished, or has failed")
        count = len(compilation.model.inputs if direction == "input" else compilation.model.outputs)
        if index >= count:
            raise bad_data(f"{direction} {index} does not exist: the model has {count}")
        result.set(value)

    return get


_PREFERRED = (COMPILATION, u32, out(ctypes.c_uint32))
for _direction in ("Input", "Output"):
    for _what, _value in (("Alignment", ALIGNMENT), ("Padding", PADDING)):
        _name = f"ANeuralNetworksCompilation_getPreferredMemory{_what}For{_direction}"
        entry(_name, *_PREFERRED)(_preferred(_direction.lower(), _value))
