"""The devices of the C API: simulated ones, named in the environment."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence

from .. import aidl
from ..driver.device import open_device
from ..types import Capabilities, DeviceStatus, ExecutionPreference, Extension
from .codes import ApiError, ResultCode, bad_data
from .handles import TABLE, Kind

VARIABLE = "NPUSIM_NNAPI_DEVICES"
DEFAULT = "edge"
STRICT_VARIABLE = "NPUSIM_NNAPI_STRICT_FLOAT32"
"""Anything but 0: models with relaxed FLOAT32 are computed in FLOAT32."""


class Device:
    """One simulated device, with its strings as C strings that live as long as the process."""

    def __init__(self, config: str, name: str) -> None:
        self.hal = open_device(config, strict_float32=os.environ.get(STRICT_VARIABLE, "0") not in ("", "0"))
        self.aidl = aidl.device(self.hal)
        self.name = name
        self.version = self.aidl.getVersionString()
        # The API returns pointers without an owner, so these buffers live as long as the process.
        self.c_name = ctypes.create_string_buffer(name.encode())
        self.c_version = ctypes.create_string_buffer(self.version.encode())
        self.handle = TABLE.add(Kind.Device, self)

    def extensions(self) -> Sequence[Extension]:
        """The vendor extensions of its driver."""
        return self.aidl.getSupportedExtensions()

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        """Performance by operand type, with IF and WHILE; measured on first use."""
        return self.aidl.getCapabilities()

    def cost(self, kind: int, preference: int) -> float:
        """The time of operands of a type relative to the reference CPU, or the energy if low power is preferred."""
        found = (entry.info for entry in self.capabilities.operandPerformance if entry.type == kind)
        # Types that were not measured cost as much as control flow.
        info = next(found, self.capabilities.ifPerformance)
        return info.powerUsage if preference == ExecutionPreference.LOW_POWER else info.execTime

    def wait(self) -> None:
        """Wait until the device is available. Raises ApiError (DEAD_OBJECT) if it is unplugged, which is permanent."""
        if self.hal.getStatus() == DeviceStatus.OFFLINE:
            raise ApiError(ResultCode.DEAD_OBJECT, f"{self.name} is unplugged")


_opened: list[Device] = []
_lock = threading.Lock()


def devices() -> Sequence[Device]:
    """All devices, opened on first use. Raises ConfigError for a name that is not a configuration."""
    with _lock:
        if not _opened:
            names = [name.strip() for name in (os.environ.get(VARIABLE) or DEFAULT).split(",") if name.strip()]
            _opened.extend(_open(names))
        return tuple(_opened)


def _open(configs: Sequence[str]) -> list[Device]:
    found: list[Device] = []
    try:
        for config in configs:
            stem = os.path.basename(config).removesuffix(".toml")
            taken = sum(other.name.partition(":")[0] == f"npusim-{stem}" for other in found)
            found.append(Device(config, f"npusim-{stem}" + (f":{taken + 1}" if taken else "")))
    except BaseException:
        # Other open devices keep theirs. A second attempt must not find partly opened ones.
        for device in found:
            TABLE.pop(Kind.Device, device.handle, "device")
            device.hal.close()
        raise
    return found


def check_distinct(chosen: Sequence[Device]) -> None:
    """Raise ApiError (BAD_DATA) for no devices or a repeated device."""
    if not chosen or len(set(map(id, chosen))) != len(chosen):
        raise bad_data("there must be at least one device, and none may be listed twice")
