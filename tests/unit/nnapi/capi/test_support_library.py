"""The table of the NNAPI support library: a C client that uses nothing else, and its layout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hal.abi import INCLUDE
from hal.nnapi.capi.diagnostics import DataClass, data_class
from hal.nnapi.types import OperandType
from tests.support.c_compiler import PROGRAMS, gcc, needs_gcc
from tests.support.nnapi.c_api import LIBRARY, members, prototypes

LEVEL_8 = ("ANeuralNetworksCompilation_addExtensionAttribute", "ANeuralNetworksExecution_addExtensionAttribute")
PLACES = {
    "ANeuralNetworksBurst_create": 0,
    "ANeuralNetworksCompilation_finish": 3,
    "ANeuralNetworksDevice_getExtensionSupport": 13,
    "ANeuralNetworksEvent_wait": 22,
    "ANeuralNetworksExecution_compute": 24,
    "ANeuralNetworksExecution_startComputeWithDependencies": 39,
    "ANeuralNetworksMemory_copy": 46,
    "ANeuralNetworksModel_addOperand": 51,
    "ANeuralNetworksModel_setOperandValueFromModel": 65,
    "ANeuralNetworks_getDefaultLoopTimeout": 66,
    "ANeuralNetworks_getRuntimeFeatureLevel": 70,
    "SL_ANeuralNetworksCompilation_setCachingFromFds": 71,
    "SL_ANeuralNetworksDiagnosticCompilationInfo_getSessionId": 78,
    "SL_ANeuralNetworksDiagnostic_registerCallbacks": 103,
}
"""Some members and their places in NnApiSLDriverImplFL5 of Android, counted after its base."""
NOT_IN_THE_TABLE = {"ANeuralNetworksCompilation_create", "ANeuralNetworksExecution_startCompute"}


@needs_gcc
def test_a_client_of_the_table_alone(tmp_path: Path) -> None:
    program = tmp_path / "client"
    gcc("-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", PROGRAMS / "support_library_client.c",
        "-o", program, "-ldl")  # fmt: skip
    own = {"NPUSIM_NNAPI_DEVICES": "tiny", "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [program, LIBRARY], capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | own
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_the_table_has_the_functions_of_the_api_in_the_published_order() -> None:
    table = list(members())
    assert [table.index(name) for name in PLACES] == list(PLACES.values())
    shared = [name for name in table if not name.startswith("SL_")]
    assert set(shared) == set(prototypes()) - NOT_IN_THE_TABLE
    assert tuple(table[-2:]) == LEVEL_8
    assert len(table) == len(shared) + 7 + 11 + 14 + 1


def test_members_have_the_parameters_of_the_header() -> None:
    for name, (result, parameters) in members().items():
        if not name.startswith("SL_"):
            assert prototypes()[name] == (result, parameters), name


def test_classes_of_operand_types() -> None:
    float32, half, byte = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16, OperandType.TENSOR_QUANT8_ASYMM
    assert data_class([]) is DataClass.UNKNOWN
    assert data_class([float32, float32]) is DataClass.FLOAT32
    assert data_class([half]) is DataClass.FLOAT16
    assert data_class([byte, OperandType.TENSOR_QUANT16_SYMM]) is DataClass.QUANT
    assert data_class([float32, byte]) is DataClass.MIXED
    assert data_class([OperandType.TENSOR_INT32]) is DataClass.OTHER
