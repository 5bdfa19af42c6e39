"""The six entry points of vendor extensions, with the worked example ``com.example.fibonacci``."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from hal.nnapi.extensions import fibonacci, find_extension
from tests.support.nnapi.c_api import Api, ModelMaker, address, code, compiled, device, handles, set_inputs, u32s

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
NAME = fibonacci.NAME.encode()


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    assert find_extension(fibonacci.NAME) is fibonacci.EXTENSION


def extension_type(api: Api, model: int, number: int, what: str = "Operand") -> int:
    found = ctypes.c_int32()
    api.ok(f"Model_getExtension{what}Type", model, NAME, number, ctypes.byref(found))
    return found.value


class Fibonacci:
    """The first n numbers, quantised."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.maker = ModelMaker(api)
        model = self.maker.model
        self.n = self.maker.operand(extension_type(api, model, fibonacci.EXAMPLE_INT64))
        self.y = self.maker.operand(extension_type(api, model, fibonacci.EXAMPLE_TENSOR_QUANT64_ASYMM), [0])
        self.kind = extension_type(api, model, fibonacci.EXAMPLE_FIBONACCI, "Operation")

    def finish(self, scale: float = 0.5, zero: int = 10) -> int:
        blob = fibonacci.FibonacciQuant64Params(scale, zero).pack()
        self.api.ok("Model_setOperandExtensionData", self.maker.model, self.y, blob, len(blob))
        self.api.ok("Model_addOperation", self.maker.model, self.kind, 1, u32s([self.n]), 1, u32s([self.y]))
        return self.maker.finish([self.n], [self.y])


def test_support(api: Api) -> None:
    found = ctypes.c_bool(False)
    ask = api.Device_getExtensionSupport
    assert ask(device(api), NAME, ctypes.byref(found)) == 0
    assert found.value
    assert ask(device(api), b"com.example.unknown", ctypes.byref(found)) == 0
    assert not found.value
    assert ask(device(api), None, ctypes.byref(found)) == NULL
    assert ask(device(api), NAME, None) == NULL
    assert ask(device(api), b"\xff\xfe", ctypes.byref(found)) == BAD_DATA


@pytest.mark.parametrize("what", ["Operand", "Operation"])
def test_types(api: Api, what: str) -> None:
    model, found = api.make("Model_create"), ctypes.c_int32()
    ask = getattr(api, f"Model_getExtension{what}Type")
    assert ask(model, b"com.example.unknown", 0, ctypes.byref(found)) == BAD_DATA
    assert ask(model, None, 0, ctypes.byref(found)) == NULL
    assert ask(model, NAME, 0, None) == NULL
    assert ask(model, NAME, 1, ctypes.byref(found)) == 0
    assert found.value & 0xFFFF == 1
    assert found.value > 0xFFFF
    first = found.value
    assert ask(api.make("Model_create"), NAME, 1, ctypes.byref(found)) == 0
    assert found.value == first, "models may refer to each other, so a type is the same in all of them"


def test_data(api: Api) -> None:
    model = Fibonacci(api)
    plain = model.maker.operand("TENSOR_FLOAT32", [2])
    attach = api.Model_setOperandExtensionData
    assert attach(model.maker.model, plain, b"abc", 3) == BAD_DATA
    assert attach(model.maker.model, 9, b"abc", 3) == BAD_DATA
    assert attach(model.maker.model, model.y, None, 3) == NULL
    assert attach(model.maker.model, model.y, b"abc", 0) == BAD_DATA
    assert attach(model.maker.model, model.y, None, 0) == 0
    assert attach(model.maker.model, model.y, b"abc", 3) == 0
    api.ok("Model_addOperation", model.maker.model, model.kind, 1, u32s([model.n]), 1, u32s([model.y]))
    api.ok("Model_identifyInputsAndOutputs", model.maker.model, 1, u32s([model.n]), 1, u32s([model.y]))
    assert api.Model_finish(model.maker.model) == BAD_DATA, "the extension wants 16 bytes"


def numbers(api: Api, execution: int, count: int) -> Any:
    n, result = np.array([count], np.int64), np.zeros(count, np.int64)
    set_inputs(api, execution, n)
    api.ok("Execution_setOutput", execution, 0, None, address(result), result.nbytes)
    api.ok("Execution_compute", execution)
    return result


def test_an_operation(api: Api) -> None:
    execution = api.make("Execution_create", compiled(api, Fibonacci(api).finish()))
    assert numbers(api, execution, 6).tolist() == [12, 12, 14, 16, 20, 26]
    rank = ctypes.c_uint32()
    api.ok("Execution_getOutputOperandDimensions", execution, 0, ctypes.byref(rank))
    assert rank.value == 6


def test_attributes(api: Api) -> None:
    model, code_of = Fibonacci(api).finish(), b"value"
    compilation = api.make("Compilation_createForDevices", model, handles([device(api)]), 1)
    add = api.Compilation_addExtensionAttribute
    assert add(compilation, b"com.example.unknown", 1, code_of, 5) == BAD_DATA
    assert add(compilation, None, 1, code_of, 5) == NULL
    assert add(compilation, NAME, 1, None, 5) == NULL
    assert add(compilation, NAME, 1, code_of, 5) == 0
    api.ok("Compilation_finish", compilation)
    assert add(compilation, NAME, 1, code_of, 5) == BAD_STATE
    execution = api.make("Execution_create", compilation)
    add = api.Execution_addExtensionAttribute
    assert add(execution, b"com.example.unknown", 1, code_of, 5) == BAD_DATA
    assert add(execution, None, 1, code_of, 5) == NULL
    assert add(execution, NAME, 1, None, 5) == NULL
    assert add(execution, NAME, 1, code_of, 5) == 0
    assert numbers(api, execution, 3).tolist() == [12, 12, 14]
    assert add(execution, NAME, 1, code_of, 5) == BAD_STATE


def test_attributes_need_one_device(api: Api) -> None:
    model = Fibonacci(api).finish()
    compilation = api.make("Compilation_create", model)
    assert api.Compilation_addExtensionAttribute(compilation, NAME, 1, b"v", 1) == BAD_DATA
    api.ok("Compilation_finish", compilation)
    execution = api.make("Execution_create", compilation)
    assert api.Execution_addExtensionAttribute(execution, NAME, 1, b"v", 1) == BAD_DATA
