"""NULL, garbage, stale and foreign handles, and NULL pointers: every function returns a code."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.nnapi.c_api import Api, add_model, code, compiled, memory_of, prototypes

NULL, BAD_DATA = code("UNEXPECTED_NULL"), code("BAD_DATA")
OPAQUE = ("Memory", "MemoryDesc", "Model", "Compilation", "Execution", "Burst", "Event", "Device")
GARBAGE = (1, 8, 0xDEADBEEF, 0xDEADBEEFDEADBEE3, (1 << 64) - 1)


def is_handle(parameter: str) -> bool:
    return "**" not in parameter and "*const *" not in parameter and any(
        parameter.replace("const ", "").startswith(f"ANeuralNetworks{name} *") for name in OPAQUE
    )  # fmt: skip


def places() -> list[tuple[str, int]]:
    """Return (function, position) of every handle parameter that must not be NULL."""
    return [
        (name, place)
        for name, (result, parameters) in prototypes().items()
        for place, parameter in enumerate(parameters)
        if is_handle(parameter) and result == "int"
    ]


def harmless(parameters: list[str]) -> list[Any]:
    """Return an argument for each parameter that is not a handle: a buffer of zeros for pointers, 1 for numbers."""
    return [ctypes.cast(ctypes.create_string_buffer(256), ctypes.c_void_p) if "*" in p else 1 for p in parameters]


@pytest.mark.parametrize(("name", "place"), places())
def test_null_and_garbage_handles(
    api: Api, add: int, name: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """Checks the code, and one log line that names the function and the argument."""
    parameters = prototypes()[name][1]
    arguments = harmless(parameters)
    good = {"Model": api.make("Model_create"), "Compilation": add, "Execution": api.make("Execution_create", add),
            "Memory": memory_of(api, np.zeros(4))}  # fmt: skip
    for other, parameter in enumerate(parameters):
        kind = parameter.replace("const ", "").split()[0].removeprefix("ANeuralNetworks")
        if other < place and is_handle(parameter):
            arguments[other] = good.get(kind) or api.make("MemoryDesc_create")
    function = getattr(api, name.removeprefix("ANeuralNetworks"))
    for handle in (0, *GARBAGE):
        arguments[place] = ctypes.c_void_p(handle)
        caplog.clear()
        assert function(*arguments) == (BAD_DATA if handle else NULL), f"{handle:#x}"
        [line] = [record.getMessage() for record in caplog.records if record.name == "hal.nnapi.capi"]
        assert line.startswith(f"{name}: {'BAD_DATA' if handle else 'UNEXPECTED_NULL'}: ")
        assert f"{handle:#x}" in line or "is NULL" in line
    api.Model_free(good["Model"])
    api.Execution_free(good["Execution"])


@pytest.mark.parametrize("name", [name for name, (result, _) in prototypes().items() if result == "void"])
def test_freeing_what_is_not_there(api: Api, name: str) -> None:
    function = getattr(api, name.removeprefix("ANeuralNetworks"))
    for handle in (0, *GARBAGE):
        function(handle)


def test_stale_handles(api: Api) -> None:
    model = api.make("Model_create")
    api.Model_free(model)
    assert api.Model_finish(model) == BAD_DATA
    api.Model_free(model)
    assert api.make("Model_create") != model


def test_handles_of_another_kind(api: Api, add: int, execution: int) -> None:
    assert api.Model_finish(add) == BAD_DATA
    assert api.Execution_compute(add) == BAD_DATA
    assert api.Compilation_finish(execution) == BAD_DATA
    api.Model_free(execution)  # does not free it
    assert api.Execution_setLoopTimeout(execution, 5) == 0


NEW = {name: parameters for name, (_, parameters) in prototypes().items() if parameters and "**" in parameters[-1]}


@pytest.mark.parametrize("name", sorted(NEW))
def test_where_the_result_goes_must_not_be_null(api: Api, add: int, execution: int, name: str) -> None:
    parameters = prototypes()[name][1]
    arguments = harmless(parameters)
    model = add_model(api)
    device = ctypes.c_void_p()
    api.ok("getDevice", 0, ctypes.byref(device))
    good = {"Model": model, "Compilation": add, "Execution": execution, "Device": device.value}
    for place, parameter in enumerate(parameters):
        if is_handle(parameter):
            kind = parameter.replace("const ", "").split()[0].removeprefix("ANeuralNetworks")
            arguments[place] = good.get(kind) or api.make("MemoryDesc_create")
    arguments[-1] = None
    assert getattr(api, name.removeprefix("ANeuralNetworks").lstrip("_"))(*arguments) == NULL
    api.Model_free(model)


def test_a_failed_function_gives_null(api: Api) -> None:
    model = api.make("Model_create")
    handle = ctypes.c_void_p(77)
    assert api.Compilation_create(model, ctypes.byref(handle)) == code("BAD_STATE")
    assert handle.value is None
    handle = ctypes.c_void_p(77)
    assert api.Compilation_create(None, ctypes.byref(handle)) == NULL
    assert handle.value is None
    api.Model_free(model)


def test_objects_go_on_working_when_what_they_were_made_from_is_freed(api: Api) -> None:
    model = add_model(api)
    compilation = compiled(api, model)
    api.Model_free(model)
    execution = api.make("Execution_create", compilation)
    api.Compilation_free(compilation)
    numbers = [(ctypes.c_float * 4)(*values) for values in ((1, 2, 3, 4), (10, 20, 30, 40), (0, 0, 0, 0))]
    for place, array in enumerate(numbers[:2]):
        api.ok("Execution_setInput", execution, place, None, array, 16)
    api.ok("Execution_setOutput", execution, 0, None, numbers[2], 16)
    api.ok("Execution_compute", execution)
    assert list(numbers[2]) == [11, 22, 33, 44]
    api.Execution_free(execution)


def test_no_handle_is_given_twice(api: Api) -> None:
    seen = set()
    for _ in itertools.repeat(None, 100):
        model = api.make("Model_create")
        assert model not in seen
        seen.add(model)
        api.Model_free(model)
