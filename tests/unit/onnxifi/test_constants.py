"""Names and values equal those of the header for C clients."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag

from hal import abi
from hal.onnxifi import constants
from hal.onnxifi.status import Status

HEADER = {
    name: int(value, 0)
    for name, value in re.findall(
        r"^#define ONNXIFI_(\w+) (0x[0-9A-Fa-f]+|\d+)", (abi.INCLUDE / "onnxifi.h").read_text(), re.MULTILINE
    )
}
KINDS: dict[str, type[IntEnum | IntFlag]] = {
    "STATUS": Status, "BACKEND": constants.BackendInfo, "DEVICE_TYPE": constants.DeviceType,
    "CAPABILITY": constants.Capability, "DATATYPE": constants.DataType, "MEMORY_TYPE": constants.MemoryType,
    "SYNCHRONIZATION": constants.Synchronization, "EVENT_STATE": constants.EventState,
    "BACKEND_PROPERTY": constants.BackendProperty, "OPTIMIZATION": constants.Optimization,
    "LOG_LEVEL": constants.LogLevel,
}  # fmt: skip
OURS = {"DATATYPE_BOOL"}
"""ONNX's number, which clients send although the interface does not define it."""
WITHOUT_PROPERTY = ("BACKEND_PROPERTY_CUDA_STREAM", "BACKEND_PROPERTY_OPENCL_CONTEXT")
"""Their names in the specification lack the word."""


def test_every_value_of_every_kind() -> None:
    found = {f"{prefix}_{each.name}": int(each) for prefix, kind in KINDS.items() for each in kind}
    found |= {name.replace("PROPERTY_", ""): found.pop(name) for name in WITHOUT_PROPERTY}
    wanted = {name: value for name, value in HEADER.items() if name.startswith(tuple(f"{each}_" for each in KINDS))}
    assert {name: value for name, value in found.items() if name not in OURS} == wanted
    assert len(wanted) > 90


def test_single_values() -> None:
    assert HEADER["TAG_TENSOR_DESCRIPTOR_V1"] == constants.TAG_TENSOR_DESCRIPTOR_V1
    assert HEADER["TAG_MEMORY_FENCE_V1"] == constants.TAG_MEMORY_FENCE_V1
    # Major version 1 in the upper half, minor version 0 in the lower one.
    assert constants.ONNXIFI_VERSION == 1 << 32
