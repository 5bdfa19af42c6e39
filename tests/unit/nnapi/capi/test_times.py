"""Executions: durations, deadlines, limits of loops."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.support.nnapi.c_api import (
    Api,
    ModelMaker,
    add_model,
    address,
    code,
    compiled,
    filled,
    operand_type,
    set_inputs,
)

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
TOO_SMALL = code("OUTPUT_INSUFFICIENT_SIZE")
MISSED = (code("MISSED_DEADLINE_TRANSIENT"), code("MISSED_DEADLINE_PERSISTENT"))
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
SUM = [10, 11, 12, 13]


def test_durations(api: Api, execution: int) -> None:
    api.ok("Execution_setMeasureTiming", execution, True)
    taken = ctypes.c_uint64()

    def duration(number: int) -> int:
        assert api.Execution_getDuration(execution, number, ctypes.byref(taken)) == 0
        return taken.value

    assert api.Execution_getDuration(execution, 0, ctypes.byref(taken)) == BAD_STATE
    assert taken.value == (1 << 64) - 1
    assert api.Execution_getDuration(execution, 0, None) == NULL
    filled(api, execution)
    api.ok("Execution_compute", execution)
    for wrong in (4, -1):
        assert api.Execution_getDuration(execution, wrong, ctypes.byref(taken)) == BAD_DATA
    assert 0 < duration(0) <= duration(1)
    assert (duration(2), duration(3)) == (duration(0), duration(1))


def test_a_failed_execution_has_no_duration(api: Api, open_add: int) -> None:
    execution = api.make("Execution_create", open_add)
    api.ok("Execution_setMeasureTiming", execution, True)
    given, result = operand_type("TENSOR_FLOAT32", [4]), np.zeros(4, np.float32)
    for index in range(2):
        api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(A), 16)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 4)
    assert api.Execution_compute(execution) == TOO_SMALL
    taken = ctypes.c_uint64()
    assert api.Execution_getDuration(execution, 0, ctypes.byref(taken)) == BAD_STATE
    assert taken.value == (1 << 64) - 1


def test_durations_that_were_not_measured(api: Api, execution: int) -> None:
    filled(api, execution)
    api.ok("Execution_compute", execution)
    taken = ctypes.c_uint64()
    assert api.Execution_getDuration(execution, 0, ctypes.byref(taken)) == BAD_STATE
    assert taken.value == (1 << 64) - 1


def test_what_needs_one_device(api: Api) -> None:
    execution = api.make("Execution_create", compiled(api, add_model(api), None))
    assert api.Execution_setMeasureTiming(execution, True) == BAD_DATA
    assert api.Execution_setTimeout(execution, 1000) == BAD_DATA
    filled(api, execution)
    event = ctypes.c_void_p()
    start = api.Execution_startComputeWithDependencies
    assert start(execution, None, 0, 1000, ctypes.byref(event)) == BAD_DATA
    assert start(execution, None, 0, 0, ctypes.byref(event)) == 0
    api.ok("Event_wait", event)


@pytest.mark.parametrize("way", ["compute", "burst", "event"])
def test_a_timeout_that_cannot_be_met(api: Api, add: int, execution: int, way: str) -> None:
    api.ok("Execution_setTimeout", execution, 1)
    filled(api, execution)
    if way == "compute":
        assert api.Execution_compute(execution) in MISSED
    elif way == "burst":
        assert api.Execution_burstCompute(execution, api.make("Burst_create", add)) in MISSED
    else:
        event = api.make("Execution_startCompute", execution)
        assert api.Event_wait(event) in MISSED
    rank = ctypes.c_uint32()
    assert api.Execution_getOutputOperandRank(execution, 0, ctypes.byref(rank)) == BAD_STATE


def test_a_timeout_that_can_be_met(api: Api, execution: int) -> None:
    for timeout in (10**10, (1 << 64) - 1, 0):
        api.ok("Execution_setTimeout", execution, timeout)
    result = filled(api, execution)
    api.ok("Execution_compute", execution)
    assert result.tolist() == SUM


def endless(api: Api) -> int:
    """WHILE true: x = x + x."""
    condition = ModelMaker(api)
    flag, x, again = (
        condition.operand("TENSOR_BOOL8", [1]), condition.operand("TENSOR_FLOAT32", [1]),
        condition.operand("TENSOR_BOOL8", [1]),
    )  # fmt: skip
    condition.add("LOGICAL_OR", [flag, flag], [again])
    test = condition.finish([flag, x], [again])
    body = ModelMaker(api)
    flag, x, out_flag, out = (
        body.operand("TENSOR_BOOL8", [1]), body.operand("TENSOR_FLOAT32", [1]), body.operand("TENSOR_BOOL8", [1]),
        body.operand("TENSOR_FLOAT32", [1]),
    )  # fmt: skip
    body.add("LOGICAL_OR", [flag, flag], [out_flag])
    body.add("ADD", [x, x, body.i32(0)], [out])
    step = body.finish([flag, x], [out_flag, out])
    maker = ModelMaker(api)
    graphs = [maker.operand("MODEL"), maker.operand("MODEL")]
    for index, model in zip(graphs, (test, step), strict=True):
        api.ok("Model_setOperandValueFromModel", maker.model, index, model)
    kinds = ("TENSOR_BOOL8", "TENSOR_FLOAT32", "TENSOR_BOOL8", "TENSOR_FLOAT32")
    flag, x, out_flag, out = (maker.operand(kind, [1]) for kind in kinds)
    maker.add("WHILE", [*graphs, flag, x], [out_flag, out])
    return maker.finish([flag, x], [out_flag, out])


def test_an_endless_loop(api: Api) -> None:
    compilation = compiled(api, endless(api))
    for flag, expected in ((1, MISSED), (0, (0,))):
        execution = api.make("Execution_create", compilation)
        api.ok("Execution_setLoopTimeout", execution, 200_000)
        flags, x, out_flag, out = np.array([flag], np.uint8), np.ones(1, np.float32), np.zeros(1, np.uint8), np.zeros(1)
        set_inputs(api, execution, flags, x)
        api.ok("Execution_setOutput", execution, 0, None, address(out_flag), 1)
        api.ok("Execution_setOutput", execution, 1, None, address(out), 4)
        assert api.Execution_compute(execution) in expected


def test_a_loop_timeout_beyond_the_maximum(api: Api, execution: int) -> None:
    api.ok("Execution_setLoopTimeout", execution, (1 << 64) - 1)
    result = filled(api, execution)
    api.ok("Execution_compute", execution)
    assert result.tolist() == SUM
