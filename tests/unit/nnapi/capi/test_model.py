"""Building models: what is refused, when, and with which code."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.support.nnapi.c_api import (
    Api,
    ChannelQuant,
    ModelMaker,
    OperandType,
    add_model,
    address,
    code,
    compiled,
    device,
    handles,
    memory_of,
    operand_type,
    set_inputs,
    u32s,
)

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")


@pytest.fixture
def maker(api: Api) -> Any:
    made = ModelMaker(api)
    yield made
    api.Model_free(made.model)


BAD_TYPES = {
    "unknown": operand_type(16),
    "negative": operand_type(-1),
    "no such extension": operand_type(0x10_0000),
    "scalar with dimensions": operand_type("INT32", [1]),
    "float with a scale": operand_type("TENSOR_FLOAT32", [1], 1.0),
    "quantised without a scale": operand_type("TENSOR_QUANT8_ASYMM", [1]),
    "scale that is no number": operand_type("TENSOR_QUANT8_ASYMM", [1], float("nan")),
    "zero point": operand_type("TENSOR_QUANT8_ASYMM", [1], 1.0, 256),
    "zero point of a symmetric type": operand_type("TENSOR_QUANT16_SYMM", [1], 1.0, 1),
    "too large": operand_type("TENSOR_FLOAT32", [1 << 31, 4]),
}


@pytest.mark.parametrize("given", BAD_TYPES.values(), ids=BAD_TYPES)
def test_bad_operand_types(api: Api, maker: ModelMaker, given: OperandType) -> None:
    assert api.Model_addOperand(maker.model, ctypes.byref(given)) == BAD_DATA


def test_operand_type_must_be_there(api: Api, maker: ModelMaker) -> None:
    assert api.Model_addOperand(maker.model, None) == NULL
    without = OperandType(code("TENSOR_FLOAT32"), 2, None, 0.0, 0)
    assert api.Model_addOperand(maker.model, ctypes.byref(without)) == BAD_DATA
    uncounted = OperandType(code("TENSOR_FLOAT32"), 0, u32s([1]), 0.0, 0)
    assert api.Model_addOperand(maker.model, ctypes.byref(uncounted)) == BAD_DATA
    absurd = OperandType(code("TENSOR_FLOAT32"), 0xFFFF_FFFF, u32s([1]), 0.0, 0)
    assert api.Model_addOperand(maker.model, ctypes.byref(absurd)) == BAD_DATA


def test_values(api: Api, maker: ModelMaker) -> None:
    tensor, scalar, open_tensor = (
        maker.operand("TENSOR_FLOAT32", [2]), maker.operand("INT32"), maker.operand("TENSOR_FLOAT32", [0]),
    )  # fmt: skip
    data = np.zeros(64, np.float32)
    value = api.Model_setOperandValue
    assert value(maker.model, 3, address(data), 4) == BAD_DATA
    assert value(maker.model, -1, address(data), 4) == BAD_DATA
    assert value(maker.model, tensor, address(data), 4) == BAD_DATA
    assert value(maker.model, scalar, address(data), 8) == BAD_DATA
    assert value(maker.model, open_tensor, address(data), 4) == BAD_DATA
    assert value(maker.model, tensor, None, 8) == NULL
    assert value(maker.model, tensor, address(data), 8) == 0
    assert value(maker.model, scalar, None, 0) == 0


@pytest.mark.parametrize(("count", "taken_over"), [(32, True), (33, False)])
def test_up_to_128_bytes_are_copied_at_once(api: Api, count: int, taken_over: bool) -> None:
    """Larger values are read when the model is finished."""
    maker = ModelMaker(api)
    x = maker.operand("TENSOR_FLOAT32", [count])
    values = np.ones(count, np.float32)
    constant, y = maker.constant("TENSOR_FLOAT32", values), maker.operand("TENSOR_FLOAT32", [count])
    maker.add("ADD", [x, constant, maker.i32(0)], [y])
    values[:] = 5
    model = maker.finish([x], [y])
    values[:] = 9  # too late in both cases
    compilation = compiled(api, model)
    execution = api.make("Execution_create", compilation)
    zeros, result = np.zeros(count, np.float32), np.empty(count, np.float32)
    set_inputs(api, execution, zeros)
    api.ok("Execution_setOutput", execution, 0, None, address(result), result.nbytes)
    api.ok("Execution_compute", execution)
    assert set(result) == {1.0 if taken_over else 5.0}


def test_values_in_memory(api: Api) -> None:
    maker = ModelMaker(api)
    data = np.arange(16, dtype=np.float32)
    memory = memory_of(api, data, 1)
    x, constant, y = (maker.operand("TENSOR_FLOAT32", [4]) for _ in range(3))
    value = api.Model_setOperandValueFromMemory
    assert value(maker.model, 9, memory, 0, 16) == BAD_DATA
    assert value(maker.model, constant, memory, 52, 16) == BAD_DATA
    assert value(maker.model, constant, memory, 0, 12) == BAD_DATA
    assert value(maker.model, constant, memory, (1 << 64) - 8, 16) == BAD_DATA
    assert value(maker.model, constant, memory, 16, 16) == 0
    maker.add("ADD", [x, constant, maker.i32(0)], [y])
    compilation = compiled(api, maker.finish([x], [y]))
    api.Memory_free(memory)
    execution = api.make("Execution_create", compilation)
    ones, result = np.ones(4, np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, ones)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
    api.ok("Execution_compute", execution)
    assert list(result) == [5, 6, 7, 8]


def test_channel_scales(api: Api, maker: ModelMaker) -> None:
    kind = "TENSOR_QUANT8_SYMM_PER_CHANNEL"
    operand, other = maker.operand(kind, [2, 3]), maker.operand("TENSOR_FLOAT32", [2])

    def given(dim: int, *scales: float) -> Any:
        return ctypes.byref(ChannelQuant(dim, len(scales), (ctypes.c_float * len(scales))(*scales)))

    function = api.Model_setOperandSymmPerChannelQuantParams
    assert function(maker.model, operand, None) == NULL
    assert function(maker.model, operand, ctypes.byref(ChannelQuant(0, 2, None))) == BAD_DATA
    assert function(maker.model, operand, given(0, 1.0)) == BAD_DATA
    assert function(maker.model, operand, given(2, 1.0)) == BAD_DATA
    assert function(maker.model, operand, given(0, 1.0, 0.0)) == BAD_DATA
    assert function(maker.model, other, given(0, 1.0, 1.0)) == BAD_DATA
    assert function(maker.model, operand, given(1, 1.0, 0.5, 0.25)) == 0


def test_operations(api: Api, maker: ModelMaker) -> None:
    a = maker.operand("TENSOR_FLOAT32", [2])
    add = api.Model_addOperation
    assert add(maker.model, 106, 1, u32s([a]), 1, u32s([a])) == BAD_DATA
    assert add(maker.model, -1, 1, u32s([a]), 1, u32s([a])) == BAD_DATA
    assert add(maker.model, 0, 1, u32s([7]), 1, u32s([a])) == BAD_DATA
    assert add(maker.model, 0, 1, u32s([a]), 1, u32s([7])) == BAD_DATA
    assert add(maker.model, 0, 1, None, 1, u32s([a])) == NULL
    assert add(maker.model, 0, 1, u32s([a]), 1, None) == NULL
    assert add(maker.model, 0, 1, u32s([a]), 0, u32s([a])) == BAD_DATA
    assert add(maker.model, 0, 0x7FFF_FFFF, u32s([a]), 1, u32s([a])) == BAD_DATA
    fuse = maker.i32(0)
    assert add(maker.model, 0, 2, u32s([a, a]), 1, u32s([a])) == BAD_DATA
    assert add(maker.model, 0, 3, u32s([a, fuse, fuse]), 1, u32s([a])) == BAD_DATA
    assert add(maker.model, 0, 3, u32s([a, a, fuse]), 1, u32s([a])) == 0


def test_inputs_and_outputs(api: Api, maker: ModelMaker) -> None:
    a, b = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(2))
    constant = maker.constant("TENSOR_FLOAT32", np.zeros(2, np.float32))
    identify = api.Model_identifyInputsAndOutputs
    assert identify(maker.model, 1, None, 1, u32s([b])) == NULL
    assert identify(maker.model, 1, u32s([a]), 1, None) == NULL
    assert identify(maker.model, 1, u32s([9]), 1, u32s([b])) == BAD_DATA
    assert identify(maker.model, 2, u32s([a, a]), 1, u32s([b])) == BAD_DATA
    assert identify(maker.model, 1, u32s([a]), 1, u32s([a])) == BAD_DATA
    assert identify(maker.model, 1, u32s([constant]), 1, u32s([b])) == BAD_DATA
    assert identify(maker.model, 100, u32s([a] * 100), 1, u32s([b])) == BAD_DATA
    assert identify(maker.model, 1, u32s([a]), 1, u32s([b])) == 0
    data = np.zeros(2, np.float32)
    assert api.Model_setOperandValue(maker.model, a, address(data), 8) == BAD_DATA


def test_a_finished_model_does_not_change(api: Api) -> None:
    model = add_model(api)
    data, scale = np.zeros(4, np.float32), ChannelQuant(0, 0, None)
    byte = ctypes.create_string_buffer(8)
    for result in (
        api.Model_finish(model),
        api.Model_addOperand(model, ctypes.byref(operand_type("INT32"))),
        api.Model_setOperandValue(model, 0, address(data), 16),
        api.Model_setOperandValueFromModel(model, 0, add_model(api)),
        api.Model_setOperandValueFromMemory(model, 0, memory_of(api, data), 0, 16),
        api.Model_setOperandSymmPerChannelQuantParams(model, 0, ctypes.byref(scale)),
        api.Model_addOperation(model, 0, 1, u32s([0]), 1, u32s([1])),
        api.Model_identifyInputsAndOutputs(model, 1, u32s([0]), 1, u32s([1])),
        api.Model_relaxComputationFloat32toFloat16(model, True),
        api.Model_setOperandExtensionData(model, 0, byte, 1),
    ):
        assert result == BAD_STATE


def test_what_breaks_a_rule_is_refused_at_the_end(api: Api, maker: ModelMaker) -> None:
    a, y = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(2))
    maker.add("ADD", [a, a, maker.i32(9)], [y])  # there is no such activation
    api.ok("Model_identifyInputsAndOutputs", maker.model, 1, u32s([a]), 1, u32s([y]))
    assert api.Model_finish(maker.model) == BAD_DATA
    assert api.Model_finish(maker.model) == BAD_STATE
    handle = ctypes.c_void_p()
    assert api.Compilation_create(maker.model, ctypes.byref(handle)) == BAD_STATE


def test_a_model_without_anything(api: Api, maker: ModelMaker) -> None:
    assert api.Model_finish(maker.model) == BAD_DATA


def test_a_cycle(api: Api, maker: ModelMaker) -> None:
    a, b, c = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(3))
    fuse = maker.i32(0)
    maker.add("ADD", [a, c, fuse], [b])
    maker.add("ADD", [a, b, fuse], [c])
    api.ok("Model_identifyInputsAndOutputs", maker.model, 1, u32s([a]), 1, u32s([c]))
    assert api.Model_finish(maker.model) == BAD_DATA


def reversed_chain(api: Api) -> tuple[int, int]:
    """Build y = relu(a + a) - a with the operations added in reverse; return the model and the position of ADD."""
    maker = ModelMaker(api)
    a, total, positive, y = (maker.operand("TENSOR_FLOAT32", [4]) for _ in range(4))
    fuse = maker.i32(0)
    maker.add("SUB", [positive, a, fuse], [y])
    maker.add("RELU", [total], [positive])
    maker.add("ADD", [a, a, fuse], [total])
    return maker.finish([a], [y]), 2


def test_operations_in_any_order(api: Api) -> None:
    model, _ = reversed_chain(api)
    execution = api.make("Execution_create", compiled(api, model))
    values, result = np.array([-1, 2, -3, 4], np.float32), np.empty(4, np.float32)
    set_inputs(api, execution, values)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
    api.ok("Execution_compute", execution)
    assert list(result) == [1, 2, 3, 4]


def test_supported_operations_in_the_order_of_adding(api: Api) -> None:
    """The first one is an OEM operation, which no device supports."""
    maker = ModelMaker(api)
    a, b, c = (maker.operand("TENSOR_FLOAT32", [4]) for _ in range(3))
    maker.add("OEM_OPERATION", [b], [c])
    maker.add("ADD", [a, a, maker.i32(0)], [b])
    model = maker.finish([a], [c])
    found = (ctypes.c_bool * 2)(True, False)
    ask = api.Model_getSupportedOperationsForDevices
    assert ask(model, handles([device(api)]), 1, found) == 0
    assert list(found) == [False, True]
    assert ask(model, handles([device(api, 0), device(api, 1)]), 2, found) == 0
    assert ask(model, handles([device(api)]), 0, found) == BAD_DATA
    assert ask(model, handles([device(api)] * 2), 2, found) == BAD_DATA
    assert ask(model, handles([0]), 1, found) == NULL
    assert ask(model, handles([12345]), 1, found) == BAD_DATA
    assert ask(model, None, 1, found) == NULL
    assert ask(model, handles([device(api)]), 1, None) == NULL
    assert ask(api.make("Model_create"), handles([device(api)]), 1, found) == BAD_STATE
    compilation = api.make("Compilation_create", model)
    assert api.Compilation_finish(compilation) == BAD_DATA  # there is no CPU to fall back to


def branch(api: Api, operation: str) -> int:
    """y = x <operation> x."""
    maker = ModelMaker(api)
    x, y = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(2))
    maker.add(operation, [x, x, maker.i32(0)], [y])
    return maker.finish([x], [y])


def test_models_as_values(api: Api) -> None:
    maker = ModelMaker(api)
    condition = maker.operand("TENSOR_BOOL8", [1])
    yes, no = maker.operand("MODEL"), maker.operand("MODEL")
    x, y = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(2))
    value = api.Model_setOperandValueFromModel
    assert value(maker.model, x, branch(api, "ADD")) == BAD_DATA
    assert value(maker.model, yes, maker.model) == BAD_STATE
    assert value(maker.model, yes, api.make("Model_create")) == BAD_STATE
    assert value(maker.model, 99, branch(api, "ADD")) == BAD_DATA
    added = branch(api, "ADD")
    api.ok("Model_setOperandValueFromModel", maker.model, yes, added)
    api.ok("Model_setOperandValueFromModel", maker.model, no, branch(api, "MUL"))
    maker.add("IF", [condition, yes, no, x], [y])
    model = maker.finish([condition, x], [y])
    api.Model_free(added)
    compilation = compiled(api, model)
    for flag, expected in ((1, [6, 10]), (0, [9, 25])):
        execution = api.make("Execution_create", compilation)
        flags, values, result = np.array([flag], np.uint8), np.array([3, 5], np.float32), np.empty(2, np.float32)
        set_inputs(api, execution, flags, values)
        api.ok("Execution_setOutput", execution, 0, None, address(result), 8)
        api.ok("Execution_compute", execution)
        assert list(result) == expected


def test_relaxed(api: Api) -> None:
    maker = ModelMaker(api)
    a, y = (maker.operand("TENSOR_FLOAT32", [2]) for _ in range(2))
    api.ok("Model_relaxComputationFloat32toFloat16", maker.model, True)
    maker.add("ADD", [a, a, maker.i32(0)], [y])
    compiled(api, maker.finish([a], [y]))
