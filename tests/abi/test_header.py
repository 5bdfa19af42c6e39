"""onnxifi.h compared with the Python and ctypes declarations: every value and every offset, in both flavours."""

from __future__ import annotations

import ctypes
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

from hal import abi
from hal.onnxifi import constants
from hal.onnxifi.status import Status
from tests.support.c_compiler import compile_client, gcc, needs_gcc
from tests.support.onnxifi.c_library import Fence, Tensor56, Tensor96, Timing

pytestmark = needs_gcc

FLAVOURS = {"onnxifi-npusim": Tensor96, "onnxifi-npusim-v1": Tensor56}
PREFIXES: dict[str, type[IntEnum]] = {
    "ONNXIFI_STATUS_": Status,
    "ONNXIFI_BACKEND_": constants.BackendInfo,
    "ONNXIFI_DEVICE_TYPE_": constants.DeviceType,
    "ONNXIFI_CAPABILITY_": constants.Capability,  # type: ignore[dict-item]
    "ONNXIFI_DATATYPE_": constants.DataType,
    "ONNXIFI_MEMORY_TYPE_": constants.MemoryType,
    "ONNXIFI_SYNCHRONIZATION_": constants.Synchronization,
    "ONNXIFI_EVENT_STATE_": constants.EventState,
}


def library(name: str) -> abi.Library:
    return next(each for each in abi.LIBRARIES if each.name == name)


def printed(source: str, folder: Path, flavour: str) -> list[int]:
    """Return the numbers that a program prints, one per line."""
    file = folder / "print.c"
    file.write_text(f'#include <stdio.h>\n#include "onnxifi_ext.h"\nint main(void) {{\n{source}\nreturn 0;\n}}\n')
    program = compile_client(file, folder / "print", library(flavour))
    return [int(each) for each in subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_layouts(flavour: str, tmp_path: Path) -> None:
    structures: dict[str, type[ctypes.Structure]] = {
        "onnxTensorDescriptorV1": FLAVOURS[flavour],
        "onnxMemoryFenceV1": Fence,
    }
    lines, wanted = [], []
    for name, structure in structures.items():
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        wanted.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            wanted.append(getattr(structure, field).offset)
    assert printed("\n".join(lines), tmp_path, flavour) == wanted
    assert ctypes.sizeof(FLAVOURS[flavour]) == (96 if flavour == "onnxifi-npusim" else 56)
    assert printed('printf("%zu\\n", sizeof(npusimRunTiming));', tmp_path, flavour) == [ctypes.sizeof(Timing)]


def test_values(tmp_path: Path) -> None:
    wanted = {f"{prefix}{each.name}": int(each) for prefix, kind in PREFIXES.items() for each in kind}
    wanted["ONNXIFI_TAG_TENSOR_DESCRIPTOR_V1"] = constants.TAG_TENSOR_DESCRIPTOR_V1
    wanted["ONNXIFI_TAG_MEMORY_FENCE_V1"] = constants.TAG_MEMORY_FENCE_V1
    del wanted["ONNXIFI_DATATYPE_BOOL"]  # ours
    lines = [f'printf("%lld\\n", (long long){name});' for name in wanted]
    found = dict(zip(wanted, printed("\n".join(lines), tmp_path, "onnxifi-npusim"), strict=True))
    assert found == wanted
    assert len(wanted) > 90


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
def test_the_header_compiles_in_c(standard: str, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('#include "onnxifi.h"\n#include "onnxifi_ext.h"\n#include "onnxifi.h"\n')
    gcc(f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{abi.INCLUDE}", "-fsyntax-only", tmp_path / "a.c")


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
def test_the_header_compiles_in_cpp(standard: str, tmp_path: Path) -> None:
    (tmp_path / "a.cc").write_text('#include "onnxifi_ext.h"\nonnxStatus (*f)(onnxEvent) = onnxWaitEvent;\n')
    gcc(f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{abi.INCLUDE}", "-fsyntax-only", tmp_path / "a.cc")
