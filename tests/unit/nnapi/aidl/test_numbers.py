"""Numbers of the AIDL interface, as in its specification: IDevice.aidl, OperandLifeTime.aidl, OperandType.aidl."""

from __future__ import annotations

from hal.nnapi import types as hal_1_3
from hal.nnapi.aidl import types


def test_constants_of_the_device() -> None:
    assert types.DEFAULT_LOOP_TIMEOUT_DURATION_NS == 2_000_000_000
    assert types.MAXIMUM_LOOP_TIMEOUT_DURATION_NS == 15_000_000_000
    assert types.BYTE_SIZE_OF_CACHE_TOKEN == 32
    assert types.MAX_NUMBER_OF_CACHE_FILES == 32
    assert types.EXTENSION_TYPE_HIGH_BITS_PREFIX == 15
    assert types.EXTENSION_TYPE_LOW_BITS_TYPE == 16
    assert types.OMITTED == -1


def test_loops_may_take_as_long_as_in_hal_1_3() -> None:
    assert types.DEFAULT_LOOP_TIMEOUT_DURATION_NS == hal_1_3.LoopTimeoutDurationNs.DEFAULT
    assert types.MAXIMUM_LOOP_TIMEOUT_DURATION_NS == hal_1_3.LoopTimeoutDurationNs.MAXIMUM


def test_lifetimes_have_the_numbers_of_hal_1_3_and_names_of_their_own() -> None:
    names = {
        "TEMPORARY_VARIABLE": 0, "SUBGRAPH_INPUT": 1, "SUBGRAPH_OUTPUT": 2, "CONSTANT_COPY": 3, "CONSTANT_POOL": 4,
        "NO_VALUE": 5, "SUBGRAPH": 6,
    }  # fmt: skip
    assert {item.name: item.value for item in types.OperandLifeTime} == names
    assert {item.value for item in types.OperandLifeTime} == {int(item) for item in hal_1_3.OperandLifeTime}


def test_what_is_not_given_is_told_by_minus_one() -> None:
    assert types.Timing() == types.Timing(-1, -1)
    config = types.ExecutionConfig()
    assert (config.measureTiming, config.loopTimeoutDurationNs) == (False, -1)
    assert list(config.executionHints) == list(config.extensionNameToPrefix) == []
    operand = types.Operand(0)
    assert (list(operand.dimensions), operand.scale, operand.zeroPoint, operand.lifetime) == ([], 0.0, 0, 0)
