"""Executions: arguments, states, results, times."""

from __future__ import annotations

import ctypes
import random
import threading
from typing import Any

import numpy as np
import pytest

from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.capi.running import Computation
from tests.support.fuzz.hosts import other_floats
from tests.support.nnapi.c_api import (
    Api,
    ModelMaker,
    OperandType,
    add_model,
    address,
    code,
    compiled,
    filled,
    memory_of,
    operand_type,
    set_inputs,
    u32s,
)
from tests.support.waits_and_leaks import descriptors, until

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
TOO_SMALL = code("OUTPUT_INSUFFICIENT_SIZE")
MISSED = (code("MISSED_DEADLINE_TRANSIENT"), code("MISSED_DEADLINE_PERSISTENT"))
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)
SUM = [10, 11, 12, 13]


def test_arguments(api: Api, execution: int) -> None:
    data = np.zeros(64, np.float32)
    place = address(data)
    for function in (api.Execution_setInput, api.Execution_setOutput):
        assert function(execution, 2, None, place, 16) == BAD_DATA
        assert function(execution, -1, None, place, 16) == BAD_DATA
        assert function(execution, 0, None, None, 16) == NULL
        for pointer in (OperandType(code("TENSOR_FLOAT32"), 1), OperandType(code("TENSOR_FLOAT32"), 0, u32s([4]))):
            assert function(execution, 0, ctypes.byref(pointer), place, 16) == BAD_DATA
        for length in (0, 15, 17, 32):
            assert function(execution, 0, None, place, length) == BAD_DATA
        for other in (
            operand_type("TENSOR_FLOAT32", [5]),
            operand_type("TENSOR_FLOAT32", [4, 1]),
        ):
            assert function(execution, 0, ctypes.byref(other), place, 16) == BAD_DATA
        other = operand_type("TENSOR_QUANT8_ASYMM", [4], 0.5, 3)  # only the dimensions of the type count
        assert function(execution, 0, ctypes.byref(other), place, 16) == 0
        assert function(execution, 0, None, place, 16) == BAD_STATE  # not twice
        assert function(execution, 0, None, None, 0) == BAD_STATE


def test_the_log_says_which_dimensions_were_wrong(api: Api, execution: int, caplog: pytest.LogCaptureFixture) -> None:
    other = operand_type("TENSOR_FLOAT32", [5])
    assert api.Execution_setInput(execution, 1, ctypes.byref(other), address(A), 16) == BAD_DATA
    assert caplog.messages == [
        "ANeuralNetworksExecution_setInput: BAD_DATA: input 1: dimensions must agree with [4], got [5]"
    ]


def test_an_argument_is_set_once_in_whatever_way(api: Api, execution: int) -> None:
    memory = memory_of(api, A)
    from_memory, from_pointer = api.Execution_setInputFromMemory, api.Execution_setInput
    assert from_memory(execution, 0, None, memory, 0, 0) == BAD_DATA  # file memory needs a length
    assert from_memory(execution, 0, None, memory, 0, 16) == 0
    assert from_memory(execution, 0, None, memory, 0, 16) == BAD_STATE
    assert from_pointer(execution, 0, None, address(A), 16) == BAD_STATE
    assert from_pointer(execution, 1, None, address(B), 16) == 0
    assert from_memory(execution, 1, None, memory, 0, 16) == BAD_STATE
    output = api.Execution_setOutputFromMemory
    assert output(execution, 0, None, memory, 0, 16) == 0
    assert output(execution, 0, None, memory, 0, 16) == BAD_STATE


@pytest.mark.parametrize("inputs", [0, 2])
def test_an_argument_that_is_not_set(api: Api, execution: int, inputs: int) -> None:
    set_inputs(api, execution, *(A, B)[:inputs])
    event = ctypes.c_void_p(3)
    assert api.Execution_startCompute(execution, ctypes.byref(event)) == BAD_DATA
    assert event.value is None
    for later in (
        api.Execution_compute(execution),
        api.Execution_setOutput(execution, 0, None, address(A), 16),
        api.Execution_getDuration(execution, 0, ctypes.byref(ctypes.c_uint64())),
    ):
        assert later == BAD_STATE  # that was its computation


def test_an_interrupt_from_the_keyboard_ends_the_computation(
    api: Api, execution: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    api.ok("Execution_setReusable", execution, True)
    result = filled(api, execution)
    monkeypatch.setattr(Computation, "_run_steps", interrupt)
    with pytest.raises(KeyboardInterrupt):
        TABLE.get(Kind.Execution, execution, "execution").compute()
    monkeypatch.undo()
    api.ok("Execution_compute", execution)
    assert result.tolist() == SUM


def test_a_reusable_execution_may_be_computed_in_vain_again(api: Api, execution: int) -> None:
    api.ok("Execution_setReusable", execution, True)
    for _ in range(2):
        assert api.Execution_compute(execution) == BAD_DATA


def test_an_omitted_input_that_is_not_optional(api: Api, execution: int) -> None:
    api.ok("Execution_setInput", execution, 0, None, None, 0)
    api.ok("Execution_setInput", execution, 1, None, address(B), 16)
    api.ok("Execution_setOutput", execution, 0, None, address(np.zeros(4, np.float32)), 16)
    assert api.Execution_compute(execution) != 0


def test_states(api: Api, execution: int) -> None:
    rank = ctypes.c_uint32()
    for index in (0, 9):
        assert api.Execution_getOutputOperandRank(execution, index, ctypes.byref(rank)) == BAD_STATE
    result = filled(api, execution)
    api.ok("Execution_compute", execution)
    assert result.tolist() == SUM
    for again in (
        api.Execution_compute(execution),
        api.Execution_startCompute(execution, ctypes.byref(ctypes.c_void_p())),
        api.Execution_setInput(execution, 0, None, address(A), 16),
        api.Execution_setOutput(execution, 0, None, address(result), 16),
        api.Execution_setLoopTimeout(execution, 5),
        api.Execution_setTimeout(execution, 5),
        api.Execution_setMeasureTiming(execution, True),
        api.Execution_setReusable(execution, True),
        api.Execution_enableInputAndOutputPadding(execution, True),
    ):
        assert again == BAD_STATE


def test_shapes(api: Api, execution: int) -> None:
    filled(api, execution)
    api.ok("Execution_compute", execution)
    number = ctypes.c_uint32()
    for function in (api.Execution_getOutputOperandRank, api.Execution_getOutputOperandDimensions):
        assert function(execution, 1, ctypes.byref(number)) == BAD_DATA
        assert function(execution, -1, ctypes.byref(number)) == BAD_DATA
        assert function(execution, 0, None) == NULL
    api.ok("Execution_getOutputOperandRank", execution, 0, ctypes.byref(number))
    assert number.value == 1
    api.ok("Execution_getOutputOperandDimensions", execution, 0, ctypes.byref(number))
    assert number.value == 4


def test_reuse(api: Api, execution: int) -> None:
    api.ok("Execution_setReusable", execution, True)
    result, a = np.zeros(4, np.float32), A.copy()
    set_inputs(api, execution, a, B)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
    for number in range(3):
        a[:] = number
        api.ok("Execution_compute", execution)
        assert result.tolist() == [10 + number] * 4
    assert api.Execution_setInput(execution, 0, None, address(a), 16) == BAD_STATE


def test_padding(api: Api, add: int) -> None:
    execution = api.make("Execution_create", add)
    api.ok("Execution_enableInputAndOutputPadding", execution, True)
    a, b, result = (np.full(6, value, np.float32) for value in (1, 2, -7))
    assert api.Execution_setInput(execution, 0, None, address(a), 12) == BAD_DATA
    set_inputs(api, execution, a, b)
    assert api.Execution_enableInputAndOutputPadding(execution, False) == BAD_STATE
    api.ok("Execution_setOutput", execution, 0, None, address(result), 24)
    api.ok("Execution_compute", execution)
    assert result.tolist() == [3, 3, 3, 3, -7, -7]


def test_dimensions_come_with_the_arguments(api: Api, open_add: int) -> None:
    for length in (3, 5):
        execution = api.make("Execution_create", open_add)
        given = operand_type("TENSOR_FLOAT32", [length])
        a, result = np.arange(length, dtype=np.float32), np.zeros(8, np.float32)
        assert api.Execution_setInput(execution, 0, None, address(a), a.nbytes) == BAD_DATA
        for index in range(2):
            api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(a), a.nbytes)
        api.ok("Execution_setOutput", execution, 0, None, address(result), result.nbytes)
        api.ok("Execution_compute", execution)
        assert result[:length].tolist() == (a + a).tolist()
        assert not result[length:].any()
        number = ctypes.c_uint32()
        api.ok("Execution_getOutputOperandDimensions", execution, 0, ctypes.byref(number))
        assert number.value == length


def test_too_little_room(api: Api, open_add: int) -> None:
    execution = api.make("Execution_create", open_add)
    given, a, result = operand_type("TENSOR_FLOAT32", [5]), np.ones(5, np.float32), np.zeros(4, np.float32)
    for index in range(2):
        api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(a), a.nbytes)
    api.ok("Execution_setOutput", execution, 0, None, address(result), result.nbytes)
    assert api.Execution_compute(execution) == TOO_SMALL
    number = ctypes.c_uint32()
    assert api.Execution_getOutputOperandRank(execution, 0, ctypes.byref(number)) == TOO_SMALL
    assert number.value == 1
    assert api.Execution_getOutputOperandDimensions(execution, 0, ctypes.byref(number)) == TOO_SMALL
    assert number.value == 5
    assert not result.any()


def test_a_result_of_more_bytes_than_there_can_be(api: Api) -> None:
    maker = ModelMaker(api)
    inputs = [maker.operand("TENSOR_FLOAT32", dims) for dims in ([0, 1], [0, 1], [0])]
    y = maker.operand("TENSOR_FLOAT32", [0, 0])
    maker.add("FULLY_CONNECTED", [*inputs, maker.i32(0)], [y])
    execution = api.make("Execution_create", compiled(api, maker.finish(inputs, [y])))
    data = np.zeros(1 << 16, np.float32)
    for index, dims in enumerate(([1 << 16, 1], [1 << 16, 1], [1 << 16])):
        given = operand_type("TENSOR_FLOAT32", dims)
        api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(data), data.nbytes)
    api.ok("Execution_setOutput", execution, 0, None, address(data), data.nbytes)
    assert api.Execution_compute(execution) != 0


def test_bursts(api: Api, add: int) -> None:
    burst = api.make("Burst_create", add)
    for _ in range(3):
        execution = api.make("Execution_create", add)
        result = filled(api, execution)
        api.ok("Execution_burstCompute", execution, burst)
        assert result.tolist() == SUM
        assert api.Execution_burstCompute(execution, burst) == BAD_STATE
        api.Execution_free(execution)
    other = api.make("Execution_create", compiled(api, add_model(api)))
    filled(api, other)
    assert api.Execution_burstCompute(other, burst) == BAD_DATA
    api.Burst_free(burst)
    assert api.Execution_burstCompute(other, burst) == BAD_DATA


def test_one_execution_of_a_burst_at_a_time(api: Api, add: int, execution: int) -> None:
    from hal.nnapi.capi.handles import TABLE, Kind

    burst = api.make("Burst_create", add)
    filled(api, execution)
    with TABLE.get(Kind.Burst, burst, "burst")._one:
        assert api.Execution_burstCompute(execution, burst) == BAD_STATE
    assert api.Execution_burstCompute(execution, burst) == 0


def test_many_threads(api: Api, add: int) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        values, result = np.full(4, seed, np.float32), np.zeros(4, np.float32)
        for _ in range(20):
            execution = api.make("Execution_create", add)
            set_inputs(api, execution, values, values)
            api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
            api.ok("Execution_compute", execution)
            if result.tolist() != [2 * seed] * 4:
                wrong.append((seed, result.tolist()))
            api.Execution_free(execution)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_interrupted_client_leaves_no_descriptors(api: Api, add: int) -> None:
    for number in range(4):
        execution = api.make("Execution_create", add)
        filled(api, execution)
        api.ok("Execution_compute", execution)
        api.Execution_free(execution)
        if number == 1:
            before = descriptors()
    until(lambda: descriptors() <= before)


@pytest.mark.parametrize("seed", range(4))
def test_the_floating_point_mode_of_the_host(api: Api, seed: int) -> None:
    """With flushed denormals or another rounding mode, results have the same bits and the host's mode is kept."""
    a, b, y = np.array([1e-39, 0.1, -0.1, 3], np.float32), np.array([0, 1e-9, 1e-9, 7], np.float32), np.zeros_like(A)
    expected, problems = a + b, list[str]()
    with other_floats(random.Random(seed), problems):
        execution = api.make("Execution_create", compiled(api, add_model(api)))
        for index, data in enumerate((a, b)):
            api.ok("Execution_setInput", execution, index, None, address(data), data.nbytes)
        api.ok("Execution_setOutput", execution, 0, None, address(y), y.nbytes)
        api.ok("Execution_compute", execution)
    assert y.tobytes() == expected.tobytes()
    assert not problems
