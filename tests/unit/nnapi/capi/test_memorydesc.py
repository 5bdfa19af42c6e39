"""Memory made from a descriptor: roles, contents, copies."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.support.nnapi.c_api import (
    Api,
    File,
    ModelMaker,
    add_model,
    address,
    code,
    compiled,
    operand_type,
    set_inputs,
    u32s,
)

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


@pytest.fixture
def desc(api: Api) -> Iterator[int]:
    made = api.make("MemoryDesc_create")
    yield made
    api.MemoryDesc_free(made)


@pytest.fixture(scope="module")
def other(api: Api) -> int:
    """Build y = a + b with five numbers."""
    return compiled(api, add_model(api, [5]))


def test_a_scalar_role_has_no_dimensions(api: Api, desc: int) -> None:
    maker = ModelMaker(api)
    a, b, y = (maker.operand("TENSOR_FLOAT32", [4]) for _ in range(3))
    activation = maker.operand("INT32")
    maker.add("ADD", [a, b, activation], [y])
    compilation = compiled(api, maker.finish([a, b, activation], [y]))
    api.ok("MemoryDesc_setDimensions", desc, 1, u32s([2]))
    assert api.MemoryDesc_addInputRole(desc, compilation, 2, 1.0) == BAD_DATA
    fresh = api.make("MemoryDesc_create")
    api.ok("MemoryDesc_addInputRole", fresh, compilation, 2, 1.0)
    api.ok("MemoryDesc_setDimensions", fresh, 0, None)
    assert api.MemoryDesc_setDimensions(fresh, 1, u32s([2])) == BAD_DATA
    api.ok("MemoryDesc_finish", fresh)


def test_roles(api: Api, add: int, other: int, desc: int) -> None:
    add_input, add_output = api.MemoryDesc_addInputRole, api.MemoryDesc_addOutputRole
    for frequency in (0.0, -0.5, 1.5, float("nan")):
        assert add_input(desc, add, 0, frequency) == BAD_DATA
    assert add_input(desc, add, 2, 1.0) == BAD_DATA
    assert add_output(desc, add, 1, 1.0) == BAD_DATA
    assert api.MemoryDesc_finish(desc) == BAD_DATA
    unfinished = api.make("Compilation_create", add_model(api))
    assert add_input(desc, unfinished, 0, 1.0) == BAD_DATA
    assert add_input(desc, add, 0, 0.25) == 0
    assert add_input(desc, add, 0, 1.0) == BAD_DATA
    assert add_input(desc, other, 0, 1.0) == BAD_DATA
    assert add_output(desc, add, 0, 1.0) == 0
    assert api.MemoryDesc_setDimensions(desc, 1, u32s([5])) == BAD_DATA
    assert api.MemoryDesc_setDimensions(desc, 2, u32s([4, 1])) == BAD_DATA
    assert api.MemoryDesc_setDimensions(desc, 1, None) == NULL
    assert api.MemoryDesc_setDimensions(desc, 1, u32s([0])) == 0
    assert api.Memory_createFromDesc(desc, ctypes.byref(ctypes.c_void_p())) == BAD_STATE
    assert api.MemoryDesc_finish(desc) == 0
    for late in (
        api.MemoryDesc_finish(desc),
        add_input(desc, add, 1, 1.0),
        add_output(desc, other, 0, 1.0),
        api.MemoryDesc_setDimensions(desc, 1, u32s([4])),
    ):
        assert late == BAD_STATE


def test_roles_of_other_types(api: Api, add: int, desc: int) -> None:
    maker = ModelMaker(api)
    x, y = (maker.operand("TENSOR_QUANT8_ASYMM", [4], 0.5, 3) for _ in range(2))
    maker.add("RELU", [x], [y])
    quantised = compiled(api, maker.finish([x], [y]))
    api.ok("MemoryDesc_addInputRole", desc, quantised, 0, 1.0)
    assert api.MemoryDesc_addInputRole(desc, add, 0, 1.0) == BAD_DATA


def memory_for(api: Api, compilation: int, inputs: Sequence[int], outputs: Sequence[int]) -> int:
    """Create memory for inputs and outputs of one compilation."""
    made = api.make("MemoryDesc_create")
    for index in inputs:
        api.ok("MemoryDesc_addInputRole", made, compilation, index, 1.0)
    for index in outputs:
        api.ok("MemoryDesc_addOutputRole", made, compilation, index, 1.0)
    api.ok("MemoryDesc_finish", made)
    memory = api.make("Memory_createFromDesc", made)
    api.MemoryDesc_free(made)
    return memory


@pytest.fixture(params=["on one device", "of both devices"])
def roles_of(request: pytest.FixtureRequest, api: Api, add: int) -> tuple[int, int]:
    """A compilation, and another one that shares the memory, on the same device or another."""
    from tests.support.nnapi.c_api import compiled as make

    return add, make(api, add_model(api), 0 if request.param == "on one device" else 1)


def test_a_result_stays_on_the_device(api: Api, roles_of: tuple[int, int]) -> None:
    first, second = roles_of
    made = api.make("MemoryDesc_create")
    api.ok("MemoryDesc_addOutputRole", made, first, 0, 1.0)
    api.ok("MemoryDesc_addInputRole", made, second, 1, 0.5)
    api.ok("MemoryDesc_finish", made)
    memory = api.make("Memory_createFromDesc", made)
    execution = api.make("Execution_create", first)
    set_inputs(api, execution, A, B)
    bad = api.Execution_setOutputFromMemory(execution, 0, None, memory, 0, 16)
    assert bad == BAD_DATA, "offset and length must be 0"
    assert api.Execution_setInputFromMemory(execution, 0, None, memory, 0, 0) == BAD_DATA, "not its role"
    api.ok("Execution_setOutputFromMemory", execution, 0, None, memory, 0, 0)
    api.ok("Execution_compute", execution)
    execution, result = api.make("Execution_create", second), np.zeros(4, np.float32)
    api.ok("Execution_setInput", execution, 0, None, address(A), 16)
    api.ok("Execution_setInputFromMemory", execution, 1, None, memory, 0, 0)
    api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
    api.ok("Execution_compute", execution)
    assert result.tolist() == [10, 12, 14, 16]


def test_memory_is_written_by_nobody_else_in_an_execution(api: Api, roles_of: tuple[int, int]) -> None:
    first, second = roles_of
    made = api.make("MemoryDesc_create")
    api.ok("MemoryDesc_addOutputRole", made, first, 0, 1.0)
    for compilation in (first, second):
        api.ok("MemoryDesc_addInputRole", made, compilation, 1, 0.5)
    api.ok("MemoryDesc_finish", made)
    memory = api.make("Memory_createFromDesc", made)
    api.ok("Memory_copy", File(api, A).memory, memory)
    execution = api.make("Execution_create", first)
    api.ok("Execution_setInput", execution, 0, None, address(A), 16)
    api.ok("Execution_setInputFromMemory", execution, 1, None, memory, 0, 0)
    api.ok("Execution_setOutputFromMemory", execution, 0, None, memory, 0, 0)
    assert api.Execution_compute(execution) == BAD_DATA


def test_memory_without_contents(api: Api, add: int) -> None:
    memory, back = memory_for(api, add, [0], [0]), File(api, np.zeros(4))

    def read() -> int:
        execution, result = api.make("Execution_create", add), np.zeros(4, np.float32)
        api.ok("Execution_setInputFromMemory", execution, 0, None, memory, 0, 0)
        api.ok("Execution_setInput", execution, 1, None, address(B), 16)
        api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
        return int(api.Execution_compute(execution))

    def write(timeout: int) -> int:
        execution = api.make("Execution_create", add)
        set_inputs(api, execution, A, B)
        api.ok("Execution_setTimeout", execution, timeout)
        api.ok("Execution_setOutputFromMemory", execution, 0, None, memory, 0, 0)
        return int(api.Execution_compute(execution))

    assert read() == code("OP_FAILED")
    assert api.Memory_copy(memory, back.memory) == BAD_DATA
    assert write(0) == 0
    assert read() == 0
    assert api.Memory_copy(memory, back.memory) == 0
    assert back.read() == [10, 11, 12, 13]
    assert write(1) != 0  # a failed execution takes the contents away
    assert read() == code("OP_FAILED")


def test_copies(api: Api, add: int) -> None:
    source, target = File(api, A), File(api, np.zeros(4))
    first, second = memory_for(api, add, [0], [0]), memory_for(api, add, [1], [])
    copy = api.Memory_copy
    assert copy(source.memory, source.memory) == 0
    assert copy(first, first) == 0
    assert copy(File(api, np.zeros(5)).memory, first) == BAD_DATA
    assert copy(File(api, np.zeros(5)).memory, target.memory) == BAD_DATA
    assert copy(source.memory, first) == 0
    assert copy(first, second) == 0
    assert copy(second, target.memory) == 0
    assert target.read() == A.tolist()
    assert copy(first, File(api, np.zeros(3)).memory) == BAD_DATA
    assert copy(File(api, np.ones(3)).memory, first) == BAD_DATA
    assert copy(first, target.memory) == BAD_DATA  # after the failure it has no contents
    assert copy(File(api, B).memory, target.memory) == 0
    assert target.read() == B.tolist()


def test_memory_is_filled_from_no_file_that_is_cut(api: Api, add: int) -> None:
    memory, file = memory_for(api, add, [0], [0]), File(api, np.zeros(4))
    os.ftruncate(file.descriptor, 0)
    assert api.Memory_copy(file.memory, memory) == BAD_DATA
    assert api.Memory_copy(memory, file.memory) == BAD_DATA  # there are no contents


def test_memory_is_no_constant(api: Api, add: int) -> None:
    maker = ModelMaker(api)
    constant = maker.operand("TENSOR_FLOAT32", [4])
    memory = memory_for(api, add, [0], [])
    assert api.Model_setOperandValueFromMemory(maker.model, constant, memory, 0, 16) == BAD_DATA


def test_open_dimensions(api: Api) -> None:
    """The memory takes the dimensions of the last write."""
    open_add = compiled(api, add_model(api, [0], []))
    memory = memory_for(api, open_add, [0], [0])
    for length in (3, 6):
        values = np.arange(length, dtype=np.float32)
        given = operand_type("TENSOR_FLOAT32", [length])
        execution = api.make("Execution_create", open_add)
        for index in range(2):
            api.ok("Execution_setInput", execution, index, ctypes.byref(given), address(values), values.nbytes)
        api.ok("Execution_setOutputFromMemory", execution, 0, None, memory, 0, 0)
        api.ok("Execution_compute", execution)
        back = File(api, np.zeros(length))
        api.ok("Memory_copy", memory, back.memory)
        assert back.read() == (values + values).tolist()
    assert api.Memory_copy(memory, File(api, np.zeros(3)).memory) == BAD_DATA


def test_open_dimensions_on_two_devices(api: Api) -> None:
    made = api.make("MemoryDesc_create")
    for number in range(2):
        compilation = compiled(api, add_model(api, [0], []), number)
        api.ok("MemoryDesc_addInputRole", made, compilation, 0, 1.0)
    api.ok("MemoryDesc_finish", made)
    assert api.Memory_createFromDesc(made, ctypes.byref(ctypes.c_void_p())) == code("OP_FAILED")


@pytest.mark.parametrize(("given", "right"), [([3], True), ([4], False)])
def test_an_input_has_the_dimensions_that_were_written(api: Api, given: list[int], right: bool) -> None:
    open_add = compiled(api, add_model(api, [0], []))
    memory, values = memory_for(api, open_add, [0], [0]), np.arange(3, dtype=np.float32)
    whole, claimed = operand_type("TENSOR_FLOAT32", [3]), operand_type("TENSOR_FLOAT32", given)
    first, second = (api.make("Execution_create", open_add) for _ in range(2))
    for index in range(2):
        api.ok("Execution_setInput", first, index, ctypes.byref(whole), address(values), 12)
    api.ok("Execution_setOutputFromMemory", first, 0, None, memory, 0, 0)
    api.ok("Execution_compute", first)
    result = np.zeros(3, np.float32)
    api.ok("Execution_setInputFromMemory", second, 0, ctypes.byref(claimed), memory, 0, 0)
    api.ok("Execution_setInput", second, 1, ctypes.byref(whole), address(values), 12)
    api.ok("Execution_setOutput", second, 0, None, address(result), 12)
    assert api.Execution_compute(second) == (0 if right else BAD_DATA)
    assert result.tolist() == ([0, 3, 6] if right else [0, 0, 0])
