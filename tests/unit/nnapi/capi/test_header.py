"""The header, the library and the engine name the same functions, and the numbers of the interface."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hal.abi import HERE, INCLUDE
from hal.nnapi.capi.codes import PRIORITIES, DurationCode, ResultCode
from hal.nnapi.capi.engine import ENTRIES
from hal.nnapi.types import FusedActivationFunc, OperandType, OperationType
from tests.support.nnapi.c_api import CONSTANTS, LIBRARY, code, members, prototypes

BY_C_ALONE = {
    "ANeuralNetworks_getRuntimeFeatureLevel",
    "ANeuralNetworks_getDefaultLoopTimeout",
    "ANeuralNetworks_getMaximumLoopTimeout",
}
EXTENSION_ENTRY_POINTS = {
    "ANeuralNetworksDevice_getExtensionSupport",
    "ANeuralNetworksModel_getExtensionOperandType",
    "ANeuralNetworksModel_getExtensionOperationType",
    "ANeuralNetworksModel_setOperandExtensionData",
    "ANeuralNetworksCompilation_addExtensionAttribute",
    "ANeuralNetworksExecution_addExtensionAttribute",
}


def test_there_are_75_functions() -> None:
    assert len(prototypes()) == 75
    assert set(prototypes()) >= EXTENSION_ENTRY_POINTS | BY_C_ALONE


def test_the_engine_answers_what_c_does_not() -> None:
    own = {name for name in ENTRIES if name.startswith("SL_")}
    assert set(ENTRIES) - own == set(prototypes()) - BY_C_ALONE
    assert own == {name for name in members() if name.startswith("SL_") and "Info_" not in name}


def test_the_engine_has_the_parameters_of_the_header() -> None:
    for name, entry in ENTRIES.items():
        if not name.startswith("SL_"):
            assert len(entry.parameters) == len(prototypes()[name][1]), name


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_library_exports_the_functions_and_nothing_else() -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in done.stdout.splitlines()}
    assert exported - {"_init", "_fini"} == set(prototypes()) | {"ANeuralNetworks_getSLDriverImpl"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_the_library_has_its_soname_and_no_python() -> None:
    done = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True, check=True)
    assert "soname: [libneuralnetworks.so]" in done.stdout
    assert not re.search(r"NEEDED.*python", done.stdout)
    assert "NODELETE" in done.stdout


def test_numbers() -> None:
    special = {"SUBGRAPH": "MODEL", "OEM": "OEM_SCALAR"}
    for kind in OperandType:
        assert code(special.get(kind.name, kind.name)) == kind
    for operation in OperationType:
        assert code(operation.name) == operation
    for result in ResultCode:
        assert code(result.name) == result
    for fuse in FusedActivationFunc:
        assert code(f"FUSED_{fuse.name}") == fuse
    for priority, value in PRIORITIES.items():
        assert code(f"PRIORITY_{value.name}") == priority
    names = ("DURATION_ON_HARDWARE", "DURATION_IN_DRIVER", "FENCED_DURATION_ON_HARDWARE", "FENCED_DURATION_IN_DRIVER")
    assert [code(name) for name in names] == list(DurationCode)
    levels = [CONSTANTS[f"ANEURALNETWORKS_FEATURE_LEVEL_{n}"] for n in range(1, 9)]
    assert levels == [27, 28, 29, 30, 31, 1_000_006, 1_000_007, 1_000_008]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("header", sorted(path.name for path in INCLUDE.glob("NeuralNetworks*.h")))
def test_the_headers_compile_alone(language: str, header: str, tmp_path: Path) -> None:
    source = tmp_path / "client.c"
    source.write_text(f'#include "{header}"\nint main(void) {{ return sizeof(ANeuralNetworksOperandType) != 32; }}\n')
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{INCLUDE}", "-fsyntax-only"]
    subprocess.run(["gcc", "-x", language, *flags, str(source)], check=True)


def test_the_table_of_functions_has_the_header_s_parameters() -> None:
    text = " ".join((HERE / "neuralnetworks_functions.h").read_text("utf-8").split())
    for name, (_, parameters) in prototypes().items():
        if name not in BY_C_ALONE | {"ANeuralNetworks_getDeviceCount"}:
            assert f"({name}, ({', '.join(parameters)})," in text, name
