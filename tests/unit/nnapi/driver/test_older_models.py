"""Models of HAL 1.0 to 1.2 in HAL 1.3."""

from __future__ import annotations

import pytest

from hal.nnapi import v1_0, v1_1, v1_2
from hal.nnapi.errors import StatusError
from hal.nnapi.types import (
    Capabilities,
    DataLocation,
    ErrorStatus,
    ExtensionNameAndPrefix,
    OperandLifeTime,
    OperandPerformance,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    RequestArgument,
)
from hal.nnapi.validation import validate_model

VERSIONS = [v1_0, v1_1, v1_2]


def unary(version, operation, kind=OperandType.TENSOR_FLOAT32, **more):
    """A model of one operation with one input."""
    operands = [
        version.Operand(kind, [2, 2], 1, lifetime=OperandLifeTime.SUBGRAPH_INPUT),
        version.Operand(kind, [2, 2], 0, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
    ]
    return version.Model(operands, [Operation(operation, [0], [1])], [0], [1], **more)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.__name__)
def test_a_model_keeps_everything(version):
    model = version.model_to_1_3(unary(version, OperationType.FLOOR, operandValues=b"abcd"))
    assert validate_model(model).main.operations[0].type == OperationType.FLOOR
    assert (model.main.inputIndexes, model.main.outputIndexes) == ([0], [1])
    assert [operand.numberOfConsumers for operand in model.main.operands] == [1, 0]
    assert bytes(model.operandValues) == b"abcd"
    assert not model.referenced


@pytest.mark.parametrize("version", [v1_1, v1_2], ids=lambda version: version.__name__)
def test_relaxed_models_stay_relaxed(version):
    model = unary(version, OperationType.FLOOR, relaxComputationFloat32toFloat16=True)
    assert version.model_to_1_3(model).relaxComputationFloat32toFloat16


def test_extensions_come_along_from_1_2_on():
    names = [ExtensionNameAndPrefix("com.example.x", 3)]
    model = unary(v1_2, 3 << 16, 3 << 16, extensionNameToPrefix=names)
    assert v1_2.model_to_1_3(model).extensionNameToPrefix == names
    assert v1_2.model_to_1_3(model).main.operations[0].type == 3 << 16


@pytest.mark.parametrize(
    ("version", "operation", "kind"),
    [
        (v1_0, OperationType.SUB, OperandType.TENSOR_FLOAT32),
        (v1_1, OperationType.ABS, OperandType.TENSOR_FLOAT32),
        (v1_2, OperationType.ELU, OperandType.TENSOR_FLOAT32),
        (v1_0, OperationType.FLOOR, OperandType.TENSOR_FLOAT16),
        (v1_1, OperationType.FLOOR, OperandType.BOOL),
        (v1_2, OperationType.FLOOR, OperandType.SUBGRAPH),
        (v1_1, 3 << 16, OperandType.TENSOR_FLOAT32),
        (v1_0, -1, OperandType.TENSOR_FLOAT32),
    ],
)
def test_types_of_a_later_interface_are_invalid(version, operation, kind):
    with pytest.raises(StatusError, match="version") as caught:
        version.model_to_1_3(unary(version, operation, kind))
    assert caught.value.status is ErrorStatus.INVALID_ARGUMENT


@pytest.mark.parametrize("model", [None, 7, "model", object()])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.__name__)
def test_what_is_no_model_is_an_invalid_argument(version, model):
    with pytest.raises(StatusError) as caught:
        v1_0.converted(version.model_to_1_3, model)
    assert caught.value.status is ErrorStatus.INVALID_ARGUMENT


def test_a_request_names_its_pools():
    argument = RequestArgument(location=DataLocation(0, 0, 4))
    request = v1_0.request_to_1_3(v1_0.Request([argument], [argument], ["pool"]))
    assert [pool.hidlMemory for pool in request.pools] == ["pool"]


def test_older_capabilities_are_parts_of_the_newest():
    infos = [PerformanceInfo(n, n) for n in (1.0, 2.0, 3.0, 4.0, 5.0)]
    kinds = [OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM]
    by_type = [OperandPerformance(kind, info) for kind, info in zip(kinds, infos, strict=False)]
    found = Capabilities(infos[2], infos[2], by_type, infos[3], infos[4])
    assert v1_0.capabilities_from_1_3(found) == v1_0.Capabilities(infos[0], infos[1])
    assert v1_1.capabilities_from_1_3(found) == v1_1.Capabilities(infos[0], infos[1], infos[2])
    assert v1_2.capabilities_from_1_3(found) == v1_2.Capabilities(infos[2], infos[2], by_type)
