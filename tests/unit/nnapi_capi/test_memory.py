"""Memory objects: of files, and of devices for certain roles."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hal.nnapi.capi.handles import TABLE, Kind
from hal.nnapi.mapping import Mapping
from tests.nnapi_c import Api, ModelMaker, add_model, address, code, compiled, operand_type, set_inputs, u32s

NULL, BAD_DATA, BAD_STATE = code("UNEXPECTED_NULL"), code("BAD_DATA"), code("BAD_STATE")
A, B = np.arange(4, dtype=np.float32), np.full(4, 10, np.float32)


class File:
    """Anonymous memory with floats in it, and its memory object."""

    def __init__(self, api: Api, values: Sequence[float] | np.ndarray[Any, Any], protect: int = 3) -> None:
        self._data = np.asarray(values, np.float32)
        self.descriptor = os.memfd_create("floats")
        os.write(self.descriptor, self._data.tobytes())
        self.memory = api.make("Memory_createFromFd", self._data.nbytes, protect, self.descriptor, 0)

    def read(self) -> list[float]:
        return np.frombuffer(os.pread(self.descriptor, self._data.nbytes, 0), np.float32).tolist()

    def close(self) -> None:
        os.close(self.descriptor)


def test_files(api: Api) -> None:
    handle = ctypes.c_void_p()
    descriptor = os.memfd_create("bytes")
    os.ftruncate(descriptor, 8192)
    make = api.Memory_createFromFd
    for size, protect, fd, offset in (
        (0, 3, descriptor, 0), (8193, 3, descriptor, 0), (4096, 3, descriptor, 4097), (64, 3, -1, 0), (64, 3, 9999, 0),
        (64, 8, descriptor, 0), (1 << 63, 3, descriptor, 0), (64, 3, descriptor, 1 << 63),
    ):  # fmt: skip
        assert make(size, protect, fd, offset, ctypes.byref(handle)) == BAD_DATA, (size, protect, fd, offset)
    assert make(64, 3, descriptor, 0, None) == NULL
    api.Memory_free(api.make("Memory_createFromFd", 4096, 1, descriptor, 4096))
    os.close(descriptor)


def test_hardware_buffers_are_refused(api: Api) -> None:
    handle = ctypes.c_void_p(4)
    assert api.Memory_createFromAHardwareBuffer(1, ctypes.byref(handle)) == code("UNMAPPABLE")
    assert handle.value is None
    assert api.Memory_createFromAHardwareBuffer(None, ctypes.byref(handle)) == NULL


def test_arguments_in_files(api: Api, execution: int) -> None:
    source, result = File(api, [0, *A, *B]), File(api, np.zeros(6))
    for function in (api.Execution_setInputFromMemory, api.Execution_setOutputFromMemory):
        assert function(execution, 3, None, source.memory, 4, 16) == BAD_DATA
        assert function(execution, 0, None, source.memory, 24, 16) == BAD_DATA
        assert function(execution, 0, None, source.memory, 4, 12) == BAD_DATA
        assert function(execution, 0, None, source.memory, 0, 0) == BAD_DATA
        other = operand_type("TENSOR_FLOAT32", [3])
        assert function(execution, 0, ctypes.byref(other), source.memory, 4, 16) == BAD_DATA
    api.ok("Execution_setInputFromMemory", execution, 0, None, source.memory, 4, 16)
    api.ok("Execution_setInputFromMemory", execution, 1, None, source.memory, 20, 16)
    api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 8, 16)
    api.Memory_free(source.memory)
    api.ok("Execution_compute", execution)
    assert result.read() == [0, 0, 10, 11, 12, 13]


def test_an_output_in_memory_that_cannot_be_written(api: Api, execution: int) -> None:
    result = File(api, np.zeros(4), protect=1)
    set_inputs(api, execution, A, B)
    api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 0, 16)
    assert api.Execution_compute(execution) == BAD_DATA


def test_memory_in_bursts(api: Api, add: int) -> None:
    burst, source, result = api.make("Burst_create", add), File(api, [*A, *B]), File(api, np.zeros(4))
    for _ in range(3):
        execution = api.make("Execution_create", add)
        api.ok("Execution_setInputFromMemory", execution, 0, None, source.memory, 0, 16)
        api.ok("Execution_setInputFromMemory", execution, 1, None, source.memory, 16, 16)
        api.ok("Execution_setOutputFromMemory", execution, 0, None, result.memory, 0, 16)
        api.ok("Execution_burstCompute", execution, burst)
        assert result.read() == [10, 11, 12, 13]
        assert kept_by(burst) == 2
    api.Memory_free(source.memory)
    assert kept_by(burst) == 1
    api.Burst_free(burst)


def kept_by(burst: int) -> int:
    """How many mappings a burst keeps."""
    [inner] = TABLE.get(Kind.Burst, burst, "burst")._bursts
    return len(inner._kept)


def test_a_burst_keeps_nothing_of_the_runtime_s_own(api: Api, add: int) -> None:
    burst = api.make("Burst_create", add)
    for _ in range(3):
        execution, result = api.make("Execution_create", add), np.zeros(4, np.float32)
        set_inputs(api, execution, A, B)
        api.ok("Execution_setOutput", execution, 0, None, address(result), 16)
        api.ok("Execution_burstCompute", execution, burst)
        assert kept_by(burst) == 0


# Files that are cut


@pytest.fixture
def gone(api: Api) -> File:
    """A file of which nothing is left."""
    file = File(api, np.ones(4096))
    os.ftruncate(file.descriptor, 0)
    return file


def test_constants_in_a_file_that_is_cut(api: Api) -> None:
    file = File(api, np.ones(4096))
    maker = ModelMaker(api)
    x, y = (maker.operand("TENSOR_FLOAT32", [4096]) for _ in range(2))
    weights = maker.operand("TENSOR_FLOAT32", [4096])
    api.ok("Model_setOperandValueFromMemory", maker.model, weights, file.memory, 0, 4 * 4096)
    maker.add("ADD", [x, weights, maker.i32(0)], [y])
    model = maker.finish([x], [y])
    compilation, data = compiled(api, model), np.zeros(4096, np.float32)
    os.ftruncate(file.descriptor, 4096)
    late = api.make("Compilation_create", model)
    assert api.Compilation_finish(late) == BAD_DATA  # the memory does not lie in its file
    execution = api.make("Execution_create", compilation)
    set_inputs(api, execution, data)
    api.ok("Execution_setOutput", execution, 0, None, address(data), data.nbytes)
    assert api.Execution_compute(execution) == code("OP_FAILED")


@pytest.mark.parametrize("kind", ["Input", "Output"])
def test_arguments_in_a_file_that_is_cut(api: Api, add: int, gone: File, kind: str) -> None:
    execution, data = api.make("Execution_create", add), np.zeros(4, np.float32)
    api.ok(f"Execution_set{kind}FromMemory", execution, 0, None, gone.memory, 0, 16)
    api.ok("Execution_setInput", execution, 1, None, address(data), 16)
    if kind == "Input":
        api.ok("Execution_setOutput", execution, 0, None, address(data), 16)
    else:
        api.ok("Execution_setInput", execution, 0, None, address(data), 16)
    assert api.Execution_compute(execution) in (BAD_DATA, code("OP_FAILED"))


def test_copies_of_files_that_are_cut(api: Api, add: int, gone: File, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, device = File(api, np.ones(4096)), memory_for(api, add, [0], [0])
    assert api.Memory_copy(whole.memory, gone.memory) == BAD_DATA
    assert api.Memory_copy(gone.memory, whole.memory) == BAD_DATA
    assert api.Memory_copy(gone.memory, device) == BAD_DATA
    check = Mapping.check

    def cut_behind(mapping: Mapping) -> None:
        check(mapping)
        os.ftruncate(other.descriptor, 0)

    for places in ((0, 1), (1, 0)):
        other = File(api, np.ones(4096))
        files = [whole.memory, other.memory]
        with monkeypatch.context() as patched:
            patched.setattr(Mapping, "check", cut_behind)
            assert api.Memory_copy(files[places[0]], files[places[1]]) == code("OP_FAILED")
    assert np.all(np.array(whole.read()) == 0)  # what was read of the file that was cut


# Descriptors


@pytest.fixture
def desc(api: Api) -> Iterator[int]:
    made = api.make("MemoryDesc_create")
    yield made
    api.MemoryDesc_free(made)


@pytest.fixture(scope="module")
def other(api: Api) -> int:
    """y = a + b with five numbers."""
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
    """Memory for inputs and outputs of one compilation."""
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
    """A compilation, and another one that shares the memory: of the same device, or of another."""
    from tests.nnapi_c import compiled as make

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


def test_memory_is_no_constant(api: Api, add: int) -> None:
    maker = ModelMaker(api)
    constant = maker.operand("TENSOR_FLOAT32", [4])
    memory = memory_for(api, add, [0], [])
    assert api.Model_setOperandValueFromMemory(maker.model, constant, memory, 0, 16) == BAD_DATA


def test_open_dimensions(api: Api) -> None:
    """The memory takes the dimensions of what was written last."""
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
