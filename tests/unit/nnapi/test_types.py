"""The structures of the interface under its names."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from hal.nnapi import types


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("Capabilities", "OperandPerformance"),
        ("Operand", "ExtraParams"),
        ("Model", "ExtensionNameAndPrefix"),
        ("Request", "MemoryPool"),
        ("Extension", "OperandTypeInformation"),
    ],
)
def test_nested_structures_have_both_names(outer: str, inner: str) -> None:
    assert getattr(getattr(types, outer), inner) is getattr(types, inner)


def test_enumerations_have_the_values_of_the_interface() -> None:
    assert [kind.value for kind in types.OperationType][:106] == list(range(106))
    assert [kind.value for kind in types.OperandType][:16] == list(range(16))
    assert types.OperandType.TENSOR_OEM_BYTE == types.OperandTypeRange.OEM_MAX == 10001
    assert types.OperationType.OEM_OPERATION == types.OperationTypeRange.OEM_MAX == 10000


def test_fields_have_the_names_of_the_interface_in_its_order() -> None:
    fields = {
        cls.__name__: [field.name for field in dataclasses.fields(cls)]
        for cls in (types.Model, types.Subgraph, types.Operand, types.Operation, types.Request, types.RequestArgument)
    }
    assert fields == {
        "Model": [
            "main", "referenced", "operandValues", "pools", "relaxComputationFloat32toFloat16", "extensionNameToPrefix",
        ],
        "Subgraph": ["operands", "operations", "inputIndexes", "outputIndexes"],
        "Operand": [
            "type", "dimensions", "numberOfConsumers", "scale", "zeroPoint", "lifetime", "location", "extraParams",
        ],
        "Operation": ["type", "inputs", "outputs"],
        "Request": ["inputs", "outputs", "pools"],
        "RequestArgument": ["hasNoValue", "location", "dimensions"],
    }  # fmt: skip


def test_public_modules_are_there_once_the_package_is_imported() -> None:
    code = "import hal.nnapi as n; print(n.memory.allocate_ashmem, n.types.Model, n.aidl.device, n.open_device)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
